"""A namespace that is moved to native, back, and so on, while everything goes wrong that may.

One step after the other, by a seed: a process uses hashes, the mover does a slice and may be cut
off behind any command of its own, the server is killed and replays its AOF, time passes. Each
process keeps the layout that it has read until time passes, and the emulated one for ever. A model
in Python says what every process must see after each step.

    python -P -m support.moving_namespace --seconds 60 --seed 7 --server PATH   (in tests/)
"""

from __future__ import annotations

import argparse
import contextlib
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

from support.faulty_server import FaultyServer
from support.hash_model import ModelHash, ModelHashes, now_ms
from support.patience import be_patient
from support.servers import RedisServer, find_server
from workstealing.errors import Aborted, OutOfTime, Skipped
from workstealing.jobs import HashFieldExpiry, MigrateToEmulated, MigrateToNative, backend_moves
from workstealing.recruiting.slice import Slice
from workstealing.structures import VolatileHashes
from workstealing.structures.namespace import INDEX_SHARDS_OF_A_SERVER
from workstealing.structures.volatile_hashes import hashes as hashes_module

# What was answered was written: only a crash of the machine would lose it.
NAMESPACE, AOF = "m", {"appendonly": "yes", "appendfsync": "no"}
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


class MovingNamespace:
    """A namespace on a server of its own, its processes, and what they must see.

    Arguments: server: with an AOF; door: in front of it, for the mover; seed; backend: of the new
    namespace; keys: their number.
    """

    def __init__(
        self, server: RedisServer, door: FaultyServer, seed: int, backend: str, keys: int = 40
    ) -> None:
        self.server, self.door = server, door
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.client = server.client()
        self.names = [f"h:{number}" for number in range(keys)]
        self.short = [f"t:{number}" for number in range(6)]
        self.model = ModelHashes()
        self.ends: dict[str, _Ends] = {}
        self.target = "native" if backend == "emulated" else "emulated"
        VolatileHashes(self.client, NAMESPACE, backend=backend).open()
        self.processes = [self._process()]
        self.asleep: list[VolatileHashes] = []
        self.believers: list[VolatileHashes] = []

    # ---- what happens ----------------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing by chance, and look whether all is well."""
        things: list[tuple[int, Callable[[], None]]] = [
            (40, self.use),
            (8, self.use_in_a_pipeline),
            (14, self.use_short_lived),
            (40 if self.believers and self.backend == "returning" else 14, self.sleep_or_wake),
            (25, self.move),
            (5, self.let_time_pass),
            (4, self.begin_a_process),
            (3, self.collect),
            (1 if not self._outlived() else 10, self.restart),
        ]
        weights, does = zip(*things, strict=True)
        (thing,) = self.draw.choices(does, weights)
        self.counts["steps"] += 1
        thing()
        self.look(self.draw.choice(self.processes), self.draw.randint(0, MOST_TOUCHED))

    def use(self, process: VolatileHashes | None = None) -> None:
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

    def _keep_for_longer(self, process: VolatileHashes, name: str) -> None:
        end = now_ms() + HOUR_MS
        (reply,) = process.hpexpireat(name, end, "f")
        if reply == 1:
            self.ends[name].former.append(self.ends[name].field)
            self.ends[name].field = end
        else:
            assert reply == -2, reply
            assert now_ms() >= self.ends.pop(name).field

    def move(self) -> None:
        """Let the mover do a slice; it may be cut off behind any of its commands."""
        before = self.backend
        self.door.reset()
        if self.draw.random() < 0.5:
            self.door.fail(self.draw.randint(1, 14), "cut")
        client = redis.Redis(port=self.door.port, protocol=2, socket_timeout=60.0)
        hashes = VolatileHashes(client, NAMESPACE)
        way = self.target
        if before not in ("emulated", "native") and self.draw.random() < 0.1:
            # Both jobs are installed.
            way = "native" if way == "emulated" else "emulated"
        job = _job(hashes, way, self.draw.random)
        try:
            job.perform(Slice(self.draw.randint(1, 4), 60.0))
        except _NOT_NOW:
            pass
        except _CUT_OFF:
            self.counts["kills"] += 1
        finally:
            client.close()
            self.door.settle()
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
            process._layout_read = -1e18

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

    def restart(self) -> None:
        """Kill the server, and let it read its AOF."""
        self.counts["restarts"] += 1
        for ends in self.ends.values():
            ends.former.clear()
        self.server.kill()
        self.server.restart()
        self.client.connection_pool.disconnect()

    def _outlived(self) -> bool:
        """Say whether a field lives on behind a deadline that the next replay meets."""
        return any(at < now_ms() for ends in self.ends.values() for at in ends.former)

    # ---- what must be so -------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """The backend that the layout names now."""
        found: bytes = self.client.hget(self._layout, "backend")
        return found.decode()

    def look(
        self, process: VolatileHashes, most: int = MOST_TOUCHED, *, writes: bool = True
    ) -> None:
        """Compare what a process sees with the model, and write to some hashes.

        Arguments: process; most: how many hashes it writes to, and whose deadlines it asks for:
        while the namespace moves, that alone moves a hash; writes: whether it writes at all.
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

    def _look_at_short_lived(self, process: VolatileHashes) -> None:
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
        names = VolatileHashes(self.client, NAMESPACE).names
        listed: dict[bytes, float] = {}
        for shard in range(INDEX_SHARDS_OF_A_SERVER):
            listed.update(self.client.zrange(names.due(shard), 0, -1, withscores=True))
        for name, seen in self.model.keys.items():
            if isinstance(seen, ModelHash) and seen.deadlines:
                assert listed[name] <= min(seen.deadlines.values()), name

    # ---- by chance -------------------------------------------------------------------------------

    def _command(self) -> Callable[[Any], Any]:
        draw = self.draw
        name, other = draw.sample(self.names, 2)
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

    def _process(self) -> VolatileHashes:
        return VolatileHashes(self.client, NAMESPACE)

    def _keys(self, what: str) -> list[bytes]:
        return list(self.client.scan_iter(f"*:ws:{NAMESPACE}:{what}", count=1000))

    @property
    def _layout(self) -> str:
        return f"ws:{NAMESPACE}:layout"

    def _said(self, process: VolatileHashes, found: Any, wanted: Any) -> str:
        believed = process.layout.backend if process.layout else "nothing"
        return (
            f"a process that believed in {believed}, while it was {self.backend}, has seen"
            f" {found!r} and not {wanted!r}, after {dict(self.counts)}"
        )


def _job(hashes: VolatileHashes, way: str, draw: Callable[[], float]) -> Any:
    if way == "native":
        return MigrateToNative(hashes, random=draw)
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


@contextlib.contextmanager
def moving_namespace(
    binary: str | Path, seed: int, backend: str = "emulated"
) -> Iterator[MovingNamespace]:
    """Yield such a namespace on a new server of that binary."""
    with (
        pytest.MonkeyPatch.context() as patch,
        RedisServer(binary, None, name="moved", **AOF) as server,
        FaultyServer(server.port) as door,
    ):
        be_patient(patch)
        patch.setattr(backend_moves, "GRACE_SECONDS", GRACE_SECONDS)
        patch.setattr(hashes_module, "LAYOUT_SECONDS", 1e9)
        yield MovingNamespace(server, door, seed, backend)


def main(arguments: Sequence[str] | None = None) -> None:
    """Move namespaces, one seed after the other, until the time is over; print what was done."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=1000, help="steps of one seed")
    parser.add_argument("--server", type=Path, default=None, help="of redis or valkey")
    options = parser.parse_args(arguments)
    binary = options.server or find_server("redis", 8)
    ends, seed = time.monotonic() + options.seconds, options.seed
    total: Counter[str] = Counter()
    while time.monotonic() < ends:
        backend = ("emulated", "native")[seed % 2]
        with moving_namespace(binary, seed, backend) as moving:
            try:
                for _ in range(options.steps):
                    moving.step()
            finally:
                version = ".".join(map(str, moving.server.version))
                _say(f"seed {seed}, {backend} first, {version}: {dict(moving.counts)}")
        total += moving.counts
        seed += 1
    _say(f"in all: {dict(total)}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
