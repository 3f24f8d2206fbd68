"""A namespace that is moved to native, back, and so on, while everything goes wrong that may.

One step after the other, by a seed: a process uses hashes, the mover does a slice and may be cut
off behind any command of its own, the server is killed and replays its AOF, time passes, a newer
release writes. Each process keeps the layout that it has read until time passes, and the emulated
one for ever; every other one awaits its commands. A model in Python says what every process must
see after each step: a LayoutError only where the layout, or an index shard, is a newer one.

    python -P -m support.moving_namespace --seconds 60 --seed 7 --server PATH   (in tests/)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import pytest
import redis

from support.deaths import died_of_the_switch, doors_of
from support.faulty_server import FaultyServer, KillSwitch
from support.hash_model import ModelHash, ModelHashes, now_ms
from support.killed_protocols import CUT, KILLED
from support.patience import be_patient
from support.proof import tried
from support.servers import RedisCluster3, RedisServer, find_server
from workstealing.errors import Aborted, LayoutError, OutOfTime, Skipped
from workstealing.jobs import HashFieldExpiry, MigrateToEmulated, MigrateToNative
from workstealing.jobs.shared import backend_moves
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes import hashes as hashes_module
from workstealing.structures.volatile_hashes.commands import HashNames
from workstealing.structures.volatile_hashes.server_faults import FAULTS

# What was answered was written: only a crash of the machine would lose it.
NAMESPACE, ABOUT = "m", "volatile hashes"
AOF = {"appendonly": "yes", "appendfsync": "no"}
FIELDS = ["a", "b", "c", "d"]
MOST_PROCESSES, MOST_ASLEEP = 6, 6
MOST_TOUCHED = 2
# No second passes but by a step of its own.
GRACE_SECONDS, LONG_MS = 1_000.0, 2_000_000
HOUR_MS = 3_600_000
# The end of a short-lived field is not judged so near to it.
NEAR_MS = 40
_NOT_NOW = (Aborted, OutOfTime, Skipped)
_CUT_OFF = (redis.ConnectionError, redis.TimeoutError)


@dataclass
class _Ends:
    """A short-lived field: its value, when it and its whole hash end, and its former deadlines."""

    value: bytes
    field: int
    whole: int = -1
    former: list[int] = dataclass_field(default_factory=list)


class Place:
    """A server with an AOF, or a cluster of three: its doors, its clients, and its crashes.

    Arguments:
        doors: faulty servers before it, or before each node.
        mover: a client that goes through them.
    """

    def __init__(
        self, server: RedisServer | RedisCluster3, doors: Sequence[FaultyServer], mover: Any
    ) -> None:
        self.server, self.doors, self.mover = server, doors, mover
        self.client: Any = server.client()
        self.loop = asyncio.new_event_loop()
        self.awaited: Any = server.async_client()

    def restart(self, draw: random.Random) -> None:
        """Kill a node, let it read its AOF, and forget the connections to it."""
        server = self.server
        node = server if isinstance(server, RedisServer) else draw.choice(server.nodes)
        node.kill()
        node.restart()
        if isinstance(server, RedisServer):
            self.client.connection_pool.disconnect()
            self.loop.run_until_complete(self.awaited.connection_pool.disconnect())
        else:
            server._wait_until_whole()
            self.client.disconnect_connection_pools()
            self.loop.run_until_complete(self.awaited.aclose())

    def names(self, kind: str, number: int) -> list[str]:
        """Return names of hashes, of few slots where the commands on two names want one."""
        if self.server.is_cluster:
            return [f"{kind}:{{{each % 4}}}:{each}" for each in range(number)]
        return [f"{kind}:{each}" for each in range(number)]

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self.loop.run_until_complete(self.awaited.aclose())
        self.loop.close()


class Awaited:
    """`AsyncVolatileHashes` that a blocking test can use: each command is awaited on a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hashes: AsyncVolatileHashes) -> None:
        self.hashes, self._loop = hashes, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.hashes, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            is_awaited = inspect.isawaitable(result)
            return self._loop.run_until_complete(result) if is_awaited else result

        return call

    @contextlib.contextmanager
    def pipeline(self, transaction: bool = True) -> Iterator[Any]:
        """Yield a pipeline whose `execute` does not need to be awaited."""
        pipeline = self.hashes.pipeline(transaction)
        execute = pipeline.execute
        pipeline.execute = lambda *args, **options: self._loop.run_until_complete(  # type: ignore[method-assign]
            execute(*args, **options)
        )
        yield pipeline
        pipeline.reset()


class MovingNamespace:
    """A namespace on a place of its own, its processes, and what they must see.

    Arguments:
        backend: of the new namespace.
        keys: their number.
        moves: the weight of the mover's slices among all that happens.
    """

    def __init__(
        self, place: Place, seed: int, backend: str, keys: int = 40, moves: int = 25
    ) -> None:
        self.place, self.weight = place, moves
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.client = place.client
        self.names = place.names("h", keys)
        self.short = place.names("t", 6)
        self.model = ModelHashes()
        self.ends: dict[str, _Ends] = {}
        self.target = "native" if backend == "emulated" else "emulated"
        VolatileHashes(self.client, NAMESPACE, backend=backend).open()
        self.processes = [self._process()]
        self.asleep: list[Any] = []
        self.believers: list[Any] = []

    # ---- what happens ----------------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing by chance, and look whether all is well."""
        things: list[tuple[int, Callable[[], None]]] = [
            (40, self.use),
            (8, self.use_in_a_pipeline),
            (14, self.use_short_lived),
            (40 if self.believers and self.backend == "returning" else 14, self.sleep_or_wake),
            (self.weight, self.move),
            (5, self.let_time_pass),
            (4, self.begin_a_process),
            (3, self.collect),
            (6 if self.backend in ("emulated", "native") else 0, self.meet_a_newer_release),
            (1 if not self._outlived() else 10, self.restart),
        ]
        weights, does = zip(*things, strict=True)
        (thing,) = self.draw.choices(does, weights)
        self.counts["steps"] += 1
        thing()
        self.look(self.draw.choice(self.processes), self.draw.randint(0, MOST_TOUCHED))

    def use(self, process: Any = None) -> None:
        """Let a process, or any, run a command; its reply is the model's."""
        process = process or self.draw.choice(self.processes)
        command = self._command()
        found, wanted = _attempted(command, process), _attempted(command, self.model)
        assert found == wanted, self._said(process, found, wanted)

    def use_in_a_pipeline(self) -> None:
        """Let a process run some commands in one round trip."""
        process = self.draw.choice(self.processes)
        commands = [self._command() for _ in range(self.draw.randint(2, 5))]
        with process.pipeline(transaction=self.draw.random() < 0.5) as pipeline:
            for command in commands:
                command(pipeline)
            replies = pipeline.execute(raise_on_error=False)
        for command, reply in zip(commands, replies, strict=True):
            wanted = _attempted(command, self.model)
            found = _refusal(reply) if isinstance(reply, Exception) else reply
            assert found == wanted, self._said(process, found, wanted)

    def use_short_lived(self) -> None:
        """Set a field for a moment; one that this package keeps is sometimes kept for longer.

        A native one is not: Redis 8 itself loses it when it replays its AOF.
        """
        name = self.draw.choice(self.short)
        if self.backend in ("returning", "emulated") and name in self.ends:
            # A process that has just begun hands it back first.
            self._keep_for_longer(self._process(), name)
            return
        process, value = self.draw.choice(self.processes), b"%d" % self.draw.randint(0, 999)
        ends = _Ends(value, now_ms() + self.draw.randint(100, 2000))
        process.delete(name)
        assert process.hsetex(name, "f", value, pxat=ends.field) == 1
        if self.draw.random() < 0.5 and process.pexpireat(name, now_ms() + HOUR_MS):
            ends.whole = process.pexpiretime(name)
        self.ends[name] = ends

    def _keep_for_longer(self, process: Any, name: str) -> None:
        end = now_ms() + HOUR_MS
        (reply,) = process.hpexpireat(name, end, "f")
        if reply == 1:
            self.ends[name].former.append(self.ends[name].field)
            self.ends[name].field = end
        else:
            assert reply == -2, reply
            assert now_ms() >= self.ends.pop(name).field

    def move(self) -> None:
        """Let the mover do a slice; it may be cut off or killed at any of its commands."""
        before, way = self.backend, self.target
        if before not in ("emulated", "native") and self.draw.random() < 0.1:
            # Both jobs are installed.
            way = "native" if way == "emulated" else "emulated"
        chance, most = self.draw.random(), self.draw.randint(1, 4)

        def work() -> None:
            job = _job(VolatileHashes(self.place.mover, NAMESPACE), way, self.draw.random)
            with contextlib.suppress(*_NOT_NOW):
                job.perform(Slice(most, 60.0))

        doors = [*self.place.doors]
        if chance < 0.03:
            switch = KillSwitch(self.draw.randint(1, 14), after=self.draw.random() < 0.5)
            self.counts["kills"] += died_of_the_switch(switch, doors, work, KILLED, ABOUT)
        else:
            for door in doors:
                door.reset()
            if chance < 0.5:
                self.draw.choice(doors).fail(self.draw.randint(1, 14), "cut")
            try:
                work()
            except _CUT_OFF:
                self.counts["kills"] += 1
                tried(CUT, on=ABOUT)
            finally:
                for door in doors:
                    door.settle()
        if self.backend != before:
            self.counts[f"{before} to {self.backend}"] += 1
            self.look_at_all()
        if self.backend == self.target:
            self.counts["moves"] += 1
            self.target = "native" if self.target == "emulated" else "emulated"

    def let_time_pass(self) -> None:
        """Let so much time pass that every process asks for the layout before its next command."""
        if self.client.hexists(self._layout, "since"):
            self.client.hincrby(self._layout, "since", -LONG_MS)
        for process in (*self.processes, *self.asleep, *self.believers):
            _looks_again(process)

    def sleep_or_wake(self) -> None:
        """Let a process do nothing for a while, or let one that has slept run a command.

        One that takes the namespace for emulated sleeps until it is moved back.
        """
        slept, believed = self.draw.choice([(self.believers, "emulated"), (self.asleep, "")])
        may_wake = not believed or self.backend == "returning"
        if slept and may_wake and self.draw.random() < 0.7:
            process = slept.pop(self.draw.randrange(len(slept)))
            self.look(process, 8, writes=False)
            self.use(process)
            self.processes[-1] = process
        elif len(slept) < MOST_ASLEEP and believed in ("", self.backend):
            slept.append(self._process())
            slept[-1].open()

    def begin_a_process(self) -> None:
        """Begin a process; if there are too many, another one than the oldest ends."""
        self.processes.append(self._process())
        if len(self.processes) > MOST_PROCESSES:
            del self.processes[self.draw.randrange(1, MOST_PROCESSES)]

    def collect(self) -> None:
        """Let a recruit collect expired fields."""
        with contextlib.suppress(*_NOT_NOW):
            hashes = VolatileHashes(self.client, NAMESPACE)
            HashFieldExpiry(hashes, random=self.draw.random).perform(Slice(25, 60.0))

    def meet_a_newer_release(self) -> None:
        """Let a newer release write for a while, which older ones may read, or not even that.

        Who reads the layout then, or meets a newer mark, is refused; nobody else is, and no refused
        command has done anything. Then the newer release is taken back.
        """
        self.counts["newer releases"] += 1
        backend, is_readable = self.backend, self.draw.random() < 0.5
        held = self.client.hgetall(self._layout)
        marks = {key: self.client.get(key) for key in self._keys("mark")}
        # One that may still be read has given all index shards its marks.
        newer = {key for key in marks if is_readable or self.draw.random() < 0.5}
        self.client.hset(
            self._layout,
            mapping={"version": 2, "readable_from": 2 - is_readable, "writable_from": 2},
        )
        for key in newer:
            self.client.set(key, f"2:{backend}")
        for process in [self.draw.choice(self.processes), self._process()]:
            if process.layout and process.layout.backend != backend:
                # It has missed the end of a move, and will look at the layout for that.
                continue
            if self.draw.random() < 0.5:
                _looks_again(process)
            self._use_before(process, newer, backend, is_readable=is_readable)
            # When the newer release has gone, it begins anew.
            process.forget()
        job = _job(VolatileHashes(self.client, NAMESPACE), self.target, self.draw.random)
        with pytest.raises(LayoutError):
            job.perform(Slice(4, 60.0))
        self.client.hset(self._layout, mapping=held)
        for key in newer:
            self.client.set(key, marks[key])

    def _use_before(
        self, process: Any, newer: set[bytes], backend: str, *, is_readable: bool
    ) -> None:
        """Let a process read and write beside a newer release; see who is refused."""
        name, known = self.draw.choice(self.names), process.layout
        reads = known is None or (backend != "emulated" and process._layout_read < 0)
        is_marked = backend == "emulated" and self._mark_of(name) in newer
        for is_write in (False, True):
            # Any other one goes by the layout that it read some moments ago, and so does a reader
            # of emulated hashes until it writes: their answers are right by either.
            notices = reads or (is_marked and is_write)
            is_refused = notices and (is_write or not is_readable)
            value, found = self.counts["steps"], None
            with contextlib.suppress(LayoutError):
                found = process.hset(name, "z", value) if is_write else process.hgetall(name)
            self.counts["refused"] += found is None
            assert is_refused == (found is None), self._said(process, found, f"{is_refused=}")
            if found is not None:
                model = self.model
                wanted = model.hset(name, "z", value) if is_write else model.hgetall(name)
                assert found == wanted, self._said(process, found, wanted)

    def _mark_of(self, name: str) -> bytes:
        shards = 16_384 if self.place.server.is_cluster else 16
        return HashNames(NAMESPACE).mark(key_slot(name.encode()) % shards)

    def restart(self) -> None:
        """Kill the server, and let it read its AOF."""
        self.counts["restarts"] += 1
        for ends in self.ends.values():
            ends.former.clear()
        self.place.restart(self.draw)

    def _outlived(self) -> bool:
        """Say whether a field lives on behind a deadline that the next replay meets."""
        return any(at < now_ms() for ends in self.ends.values() for at in ends.former)

    # ---- what must be so -------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """The backend that the layout names now."""
        found: bytes = self.client.hget(self._layout, "backend")
        return found.decode()

    def look(self, process: Any, most: int = MOST_TOUCHED, *, writes: bool = True) -> None:
        """Compare what a process sees with the model, and write to some hashes.

        Arguments:
            most: how many hashes it writes to, and whose deadlines it asks for: while the namespace
                moves, that alone moves a hash.
            writes: whether it writes at all.
        """
        touched = self.draw.sample(self.names, min(most, len(self.names)))
        for name in touched if writes else ():
            for hashes in (process, self.model):
                hashes.hset(name, "z", self.counts["steps"])
        model = self.model
        with process.pipeline(transaction=False) as pipeline:
            for name in self.names:
                pipeline.hgetall(name)
                pipeline.pexpiretime(name)
            for name in touched:
                pipeline.hpexpiretime(name, *FIELDS, "z")
            found = pipeline.execute()
        wanted: list[Any] = []
        for name in self.names:
            wanted += [model.hgetall(name), model.pexpiretime(name)]
        wanted += [model.hpexpiretime(name, *FIELDS, "z") for name in touched]
        assert found == wanted, self._said(process, found, wanted)
        self._look_at_short_lived(process)

    def _look_at_short_lived(self, process: Any) -> None:
        for name, ends in list(self.ends.items()):
            before = now_ms()
            found, whole = process.hget(name, "f"), process.pexpiretime(name)
            if before > ends.field + NEAR_MS:
                assert found is None, self._said(process, found, None)
                del self.ends[name]
            elif now_ms() < ends.field - NEAR_MS:
                seen, wanted = (found, whole), (ends.value, ends.whole)
                assert seen == wanted, self._said(process, seen, wanted)

    def look_at_all(self) -> None:
        """Look with the eyes of every process, and at the keys of a move that has ended.

        When a move has ended, every process can write to every hash.
        """
        has_ended = self.backend in ("emulated", "native")
        for process in self.processes:
            self.look(process, len(self.names) if has_ended else 1)
        marks = {self.client.get(key) for key in self._keys("mark")}
        if self.backend == "emulated":
            assert marks <= {b"1:emulated"}, marks
            kept = [self.client.hpexpiretime(name, *FIELDS) for name in self.names]
            assert not [each for each in kept if any(at >= 0 for at in each)], kept
            self._look_at_due_index()
        if self.backend == "native":
            assert marks <= {b"1:native"}, marks
            assert not self._keys("due")
            assert not self._keys("ttl:*")

    def _look_at_due_index(self) -> None:
        hashes = VolatileHashes(self.client, NAMESPACE)
        listed: dict[bytes, float] = {}
        for shard in {hashes.open().shard_of(key_slot(each.encode())) for each in self.names}:
            listed.update(self.client.zrange(hashes.names.due(shard), 0, -1, withscores=True))
        for name, seen in self.model.keys.items():
            if isinstance(seen, ModelHash) and seen.deadlines:
                assert listed[name] <= min(seen.deadlines.values()), name

    # ---- by chance -------------------------------------------------------------------------------

    def _command(self) -> Callable[[Any], Any]:
        draw = self.draw
        name, other = self._two_names()
        field, second, value = draw.choice(FIELDS), draw.choice(FIELDS), draw.randint(0, 99)
        at = now_ms() + HOUR_MS + draw.randint(0, 9) * HOUR_MS
        option: dict[str, Any] = draw.choice([{"pxat": at}] * 4 + [{"keepttl": True}, {}])
        kept: dict[str, Any] = draw.choice([{"pxat": at}] * 4 + [{"persist": True}, {}])
        when: dict[str, Any] = {draw.choice(["nx", "xx", "gt", "lt"]): True}
        pair = {field: value, second: value}
        commands: list[Callable[[Any], Any]] = [
            *[lambda h: h.hsetex(name, mapping=pair, **option)] * 4,
            lambda h: h.hset(name, field, value),
            lambda h: h.hincrby(name, field, value),
            lambda h: h.hdel(name, field),
            lambda h: h.hpersist(name, field, second),
            *[lambda h: h.hpexpireat(name, at, field, second)] * 4,
            lambda h: h.hpexpireat(name, at, field, **when),
            lambda h: h.hgetex(name, field, **kept),
            lambda h: h.hgetdel(name, field),
            lambda h: h.hpexpiretime(name, field, second),
            lambda h: h.hget(name, field),
            lambda h: h.hlen(name),
            lambda h: h.copy(name, other, replace=True),
            lambda h: h.rename(name, other),
            lambda h: h.delete(name),
            lambda h: h.pexpireat(name, at),
            lambda h: h.persist(name),
        ]
        return draw.choice(commands)

    def _two_names(self) -> list[str]:
        """Return two names, in one slot on a cluster: RENAME and COPY want that."""
        name = self.draw.choice(self.names)
        tag = name.partition("{")[2].partition("}")[0]
        others = [each for each in self.names if each != name and (not tag or f"{{{tag}}}" in each)]
        return [name, self.draw.choice(others)]

    def _process(self) -> Any:
        """Return a new process; every other one awaits its commands."""
        if self.draw.random() < 0.5:
            return VolatileHashes(self.client, NAMESPACE)
        return Awaited(self.place.loop, AsyncVolatileHashes(self.place.awaited, NAMESPACE))

    def _keys(self, what: str) -> list[bytes]:
        return list(self.client.scan_iter(f"*:ws:{NAMESPACE}:{what}", count=1000))

    @property
    def _layout(self) -> str:
        return f"ws:{NAMESPACE}:layout"

    def _said(self, process: Any, found: Any, wanted: Any) -> str:
        believed = process.layout.backend if process.layout else "nothing"
        return (
            f"a process that believed in {believed}, while it was {self.backend}, has seen"
            f" {found!r} and not {wanted!r}, after {dict(self.counts)}"
        )


def _job(hashes: VolatileHashes, way: str, draw: Callable[[], float]) -> Any:
    if way == "native":
        # Its servers write a file, so that a restart is one.
        return MigrateToNative(hashes, accept=[each.name for each in FAULTS], random=draw)
    return MigrateToEmulated(hashes, "[ht]:*", random=draw)


def _attempted(command: Callable[[Any], Any], hashes: Any) -> Any:
    try:
        return command(hashes)
    except redis.ResponseError as error:
        return _refusal(error)


def _refusal(error: Exception) -> str:
    """Return the error of a command that Redis refuses, too. Raises: any other."""
    if "no such key" not in str(error):
        raise error
    return "no such key"


def _looks_again(process: Any) -> None:
    """Let a process ask for the layout before its next command, unless it believes in emulated."""
    getattr(process, "hashes", process)._layout_read = -1e18


@contextlib.contextmanager
def moving_namespace(
    binary: str | Path,
    seed: int,
    backend: str = "emulated",
    *,
    is_cluster: bool = False,
    moves: int = 25,
) -> Iterator[MovingNamespace]:
    """Yield such a namespace on a new server of that binary, or a cluster of three.

    Arguments:
        seed: as of `MovingNamespace`.
        backend: as of `MovingNamespace`.
        moves: as of `MovingNamespace`.
    """
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        be_patient(patch)
        patch.setattr(backend_moves, "GRACE_SECONDS", GRACE_SECONDS)
        patch.setattr(hashes_module, "LAYOUT_SECONDS", 1e9)
        if is_cluster:
            cluster = stack.enter_context(RedisCluster3(binary, None, name="moved", **AOF))
            place = Place(cluster, *stack.enter_context(doors_of(cluster)))
        else:
            server = stack.enter_context(RedisServer(binary, None, name="moved", **AOF))
            door = stack.enter_context(FaultyServer(server.port))
            mover = stack.enter_context(
                redis.Redis(port=door.port, protocol=2, socket_timeout=60.0)
            )
            place = Place(server, [door], mover)
        stack.callback(place.close)
        yield MovingNamespace(place, seed, backend, moves=moves)


def main(arguments: Sequence[str] | None = None) -> None:
    """Move namespaces, one seed after the other, until the time is over; print what was done."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=1000, help="steps of one seed")
    parser.add_argument("--server", type=Path, default=None, help="of redis or valkey")
    parser.add_argument("--cluster", action="store_true", help="on a cluster of three")
    options = parser.parse_args(arguments)
    binary = options.server or find_server("redis", 8)
    ends, seed = time.monotonic() + options.seconds, options.seed
    total: Counter[str] = Counter()
    while time.monotonic() < ends:
        backend = ("emulated", "native")[seed % 2]
        with moving_namespace(binary, seed, backend, is_cluster=options.cluster) as moving:
            try:
                for _ in range(options.steps):
                    moving.step()
            finally:
                version = ".".join(map(str, moving.place.server.version))
                _say(f"seed {seed}, {backend} first, {version}: {dict(moving.counts)}")
        total += moving.counts
        seed += 1
    _say(f"in all: {dict(total)}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
