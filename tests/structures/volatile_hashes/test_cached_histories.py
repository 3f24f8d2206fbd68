"""Random histories of a cached function, step by step, against a model: no older result comes back.

The threads of control are the functions' own steps, which the test sends one by one, in an order by
chance. Time passes by the clock's shift alone, and may go back. A request may be lost, be refused,
be cut off behind its work, be sent twice, or come again much later; a computer may be slow, fail,
or be killed at any step. And the server may fail over to a replica that lacks its last writes.

A failover that loses writes loses refresh(), invalidate() and stores with them, as it loses any
write. The promise is that it loses nothing else: from then on nobody sees anything older than was
promised at the last write that the replica had, and a lease that it lacks stores nothing.

Many histories go on side by side, each on a hash of its own, and their requests share a trip.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import redis

from support import proof
from support.servers import RedisServer
from workstealing.store.operations import Operation, Sleep
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes import computations
from workstealing.structures.volatile_hashes.cached_results import ComputingTurn
from workstealing.structures.volatile_hashes.computations import Awaited
from workstealing.structures.volatile_hashes.surface import FORGET, LEASE, STORE

# Three seconds, and with the slow tests a minute; a run of `make prove` takes as long as it may.
FEW, MANY = 1_000, 15_000
NUMBERS = (
    [20_000] if "PROVE_SEED" in os.environ else [FEW, pytest.param(MANY, marks=pytest.mark.slow)]
)
# Long times, because the real one passes, too, and ends keys by the server's own clock.
AT_ONCE, STEPS, TICK_MS, TICKS = 100, 60, 400_000, 8
# A clock that is behind every lease.
END, END_MS = TICKS, 600_000_000
POLICY: dict[str, Any] = {"ttl": 1500.0, "lease": 1000.0, "wait": 1e6, "hold": 1e6}
POLICY |= {"key": "row", "field": "f", "recruiter": None}
SCRIPTS = ("hlease", "hunlease", "hstore", "hforget", "delete", "hmget", "hlook", "native_hlook")
# A hash's keys as a replica has them, and a replica with those keys in the server's place.
COPY = """local found = {}
for i, key in ipairs(KEYS) do
  found[2 * i - 1], found[2 * i] = redis.call('DUMP', key) or '', redis.call('PTTL', key)
end
return found"""
FAIL_OVER = """redis.call('DEL', unpack(KEYS))
for i, key in ipairs(KEYS) do
  if ARGV[2 * i - 1] ~= '' then
    redis.call('RESTORE', key, math.max(0, tonumber(ARGV[2 * i])), ARGV[2 * i - 1])
  end
end"""

Control = Generator[Any, Any, None]
Trips = Generator[list[tuple[Any, ...]], list[Any], Any]
"""Steps that are driven by `tried_all`: commands for one trip, and their replies."""


@dataclass(eq=False)
class Running:
    """A thread of control in one of two processes; least: the oldest version that it may see."""

    name: str
    process: int
    least: int
    steps: Control
    reply: Any = None
    error: Exception | None = None


class World:
    """A server, and cached functions on it by the pause and the time."""

    def __init__(self, client: redis.Redis, backend: str) -> None:
        self.client = client
        times = [*(TICK_MS * tick for tick in range(TICKS)), END_MS]
        self.forms: dict[float, list[Any]] = {0.0: [], 700.0: []}
        for ms in times:
            hashes: Any = VolatileHashes(client, "n", backend=backend, clock_shift_ms=ms)
            self.names, self.layout = hashes.names, hashes.open()
            for script in SCRIPTS:
                client.script_load(hashes.translator.script(f"volatile_hashes/{script}").body)
            for stale, forms in self.forms.items():
                forms.append(hashes.cached(**POLICY, stale=stale)(lambda: None))
                # Here only the controls are callers of their own, and not the thread of the test.
                forms[-1]._blocks = False

    def operation(self, form: Any, request: tuple[Any, ...]) -> Operation:
        (found,) = form._hashes.translator.operations(self.layout, request, {})
        return found


class History:
    """One source, one field of one hash, and the callers of a function over them.

    `floor` is the model: the oldest version of the source that anybody may still see. The replica
    has the keys and the floor of an earlier moment.
    """

    def __init__(self, world: World, chance: random.Random, name: str) -> None:
        self.world, self.chance, self.name = world, chance, name
        self.forms = world.forms[chance.choice([0.0, 700.0])]
        named, names = name.encode(), world.names
        self.keys = (named, names.deadlines(named), names.computing(named))
        self.now, self.version, self.floor = 0, 0, 0
        self.replica: tuple[list[Any], int] = (["", -2] * len(self.keys), 0)
        self.controls: list[Running] = []
        self.running: Running | None = None
        self.seen, self.stored = 0, 0
        self.late: list[Any] = []
        self.said: list[str] = []

    @property
    def cached(self) -> Any:
        return self.forms[self.now]

    def send(self, request: Any) -> Trips:
        """Send a request as one process does, and learn from what it did."""
        writes = request[0] in (STORE, FORGET, "DEL")
        # What everybody sees from now on.
        requests = [request, *([("HMGET", self.name, "f")] if writes else [])]
        operations = [self.world.operation(self.cached, each) for each in requests]
        found = yield [each.by_digest() for each in operations]
        replies = [each.read(reply) for each, reply in zip(operations, found, strict=True)]
        if request[0] == STORE and replies[0]:
            self.stored += 1
            self.floor = max(self.floor, version_of(request[8]))
        elif writes and request[0] != STORE:
            self.floor = max(self.floor, self.version)
        if writes:
            (value,) = replies[1]
            assert value is None or version_of(value) >= self.floor, self.story(value)
        is_fenced = not writes or (request[0] == STORE and request[5])
        if is_fenced and self.chance.random() < 0.1:
            # Anybody's own write that comes late is the newest, as on any server.
            self.late.append(request)
        return replies[0]

    def story(self, seen: Any) -> str:
        return f"{seen} after {self.floor}: {self.said}"

    def begin(self) -> None:
        """Begin a thread of control."""
        kinds = (self.call, self.call, self.call, self.refresh, self.forget, self.overwrite)
        kind = self.chance.choice(kinds)
        running = Running(kind.__name__, self.chance.randrange(2), self.floor, kind())
        self.controls.append(running)

    def call(self, is_sure: bool = False) -> Control:
        """Call the function: its own steps, and a computation that takes as long as chance will."""
        turn = ComputingTurn((self.name, "f"))
        try:
            entry, is_away = None, False
            try:
                entry = self.cached._answered(turn, (yield self.cached._question(turn)))
            except Exception as error:  # noqa: BLE001 - as a cached function's caller
                is_away = self.cached._unanswered(turn, error)
            if entry is None or self.cached._is_due(entry):
                entry = yield from self.cached._looking(turn, entry, is_away)
            if entry is None:
                entry = yield from self.compute(turn, is_sure)
            if entry is not None:
                least = 0 if self.running is None else self.running.least
                assert entry.value >= least, self.story(entry.value)
                self.seen += 1
        finally:
            turn.finish()

    def compute(self, turn: ComputingTurn, is_sure: bool = False) -> Generator[Any, Any, Any]:
        """Compute; return an old value that stands in."""
        turn.compute(POLICY["hold"])
        read, old = self.version, None
        while self.chance.random() < 0.6:
            yield Sleep(1.0)
        steps: Any = self.cached._storing(turn, b"%d" % read, 0.001)
        if not is_sure and self.chance.random() < 0.2:
            old, steps = self.cached._failed(turn, ValueError("the source failed"))
        for each in (steps or (), self.cached._giving_back(turn)):
            try:
                yield from each
            except (redis.RedisError, ConnectionError) as error:
                turn.fail(error)
        return old

    def refresh(self) -> Control:
        turn = ComputingTurn((self.name, "f"))
        yield from self.cached._taking_over(turn)
        yield from self.compute(turn)

    def forget(self) -> Control:
        if self.chance.random() < 0.5:
            yield from self.cached._forgetting(ComputingTurn((self.name, "f")))
        else:
            yield ("DEL", self.name)

    def overwrite(self) -> Control:
        """Store the source's value, as the cache backends do."""
        data = b"0:%d" % self.version
        yield (STORE, self.name, "FIELDS", 1, "f", "", 1_500_000, "", data)

    def run(self) -> Trips:
        """Let chance make the history."""
        chance = self.chance
        for _ in range(STEPS):
            what = chance.random()
            if what < 0.15:
                self.version += 1
                self.said.append("write")
            elif what < 0.2:
                self.now = min(max(self.now + chance.choice((-1, 1, 1, 1)), 0), TICKS - 1)
                self.said.append(f"tick {self.now}")
            elif what < 0.25 and self.late:
                late = self.late.pop(chance.randrange(len(self.late)))
                self.said.append(f"late {late[0]}")
                yield from self.send(late)
            elif what < 0.29 and self.controls:
                self.kill(chance.choice(self.controls).process)
            elif what < 0.31:
                yield from self.copy()
            elif what < 0.33:
                yield from self.fail_over()
            elif what < 0.5 or not self.controls:
                self.begin()
            else:
                yield from self.step(chance.choice(self.controls))
        yield from self.end()

    def copy(self) -> Trips:
        """Let the replica have all writes."""
        self.said.append("copy")
        (found,) = yield [("EVAL", COPY, len(self.keys), *self.keys)]
        self.replica = found, self.floor

    def fail_over(self) -> Trips:
        """Let the replica take over, which lacks all writes since."""
        self.said.append("fail over")
        found, self.floor = self.replica
        for each in self.controls:
            each.least = min(each.least, self.floor)
        yield [("EVAL", FAIL_OVER, len(self.keys), *self.keys, *found)]

    def kill(self, victim: int) -> None:
        """Kill a process: its callers take no further step, and nobody learns how they ended."""
        self.said.append(f"kill {victim}")
        computations._computations.pop((victim, "n", self.name, "f"), None)
        self.controls = [each for each in self.controls if each.process != victim]

    def step(self, running: Running) -> Trips:
        """Let a control take one step, which may go wrong."""
        self.running = running
        self.said.append(f"{running.name} {running.process}")
        error, running.error = running.error, None
        try:
            request = running.steps.throw(error) if error else running.steps.send(running.reply)
        except (ConnectionError, redis.RedisError, StopIteration):
            self.controls.remove(running)
            return
        running.reply = None
        if isinstance(request, Sleep | Awaited):
            return
        what = self.chance.random()
        if what < 0.03:
            self.said.append("lost")
            running.error = ConnectionError("lost")
            return
        if what < 0.05 and request[0] in (LEASE, STORE):
            self.said.append("refused")
            running.error = redis.OutOfMemoryError("OOM")
            return
        running.reply = yield from self.send(request)
        if what < 0.08:
            # The reply was cut off, and the client sends it again.
            self.said.append("again")
            if request[0] not in (FORGET, "DEL"):
                running.reply = yield from self.send(request)
        elif what < 0.11:
            self.said.append("cut")
            running.error = ConnectionError("cut")

    def end(self) -> Trips:
        """When all is over, and every lease has ended, the next caller computes, or has a result.

        However those before it have ended, nobody holds it up.
        """
        for process in range(2):
            self.kill(process)
        self.now, before = END, self.stored
        self.running = last = Running("the last", 2, self.floor, self.call(is_sure=True))
        for _ in range(100):
            try:
                request = last.steps.send(last.reply)
            except StopIteration:
                break
            is_trip = not isinstance(request, Sleep | Awaited)
            last.reply = (yield from self.send(request)) if is_trip else None
        # On a native namespace the server's own clock decides whether there is a result.
        assert self.stored > before or (self.world.layout.is_native and self.seen), self.said


def version_of(data: bytes) -> int:
    return int(data.partition(b":")[2])


def tried_all(world: World, histories: list[History], now: list[History]) -> None:
    """Drive histories side by side: each trip has the requests of all of them."""
    connection = redis.Connection(port=world.client.connection_pool.connection_kwargs["port"])
    steps: list[tuple[History, Trips]] = [(each, each.run()) for each in histories]
    replies: list[Any] = [None] * len(steps)
    while steps:
        asked: list[tuple[History, Trips, int]] = []
        commands: list[tuple[Any, ...]] = []
        for (history, trips), reply in zip(steps, replies, strict=True):
            now[:] = [history]
            try:
                some = trips.send(reply)
            except StopIteration:
                continue
            asked.append((history, trips, len(some)))
            commands += some
        if commands:
            connection.send_packed_command(connection.pack_commands(commands))
        found = iter([connection.read_response() for _ in commands])
        replies = [[*islice(found, count)] for _, _, count in asked]
        steps = [(history, trips) for history, trips, _ in asked]
    connection.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize(("server", "backend"), [("redis7", "emulated"), ("redis8", "native")])
@pytest.mark.parametrize("number_of", NUMBERS)
def test_no_older_result_comes_back(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    backend: str,
    number_of: int,
) -> None:
    on: RedisServer = request.getfixturevalue(server)
    now: list[History] = []
    monkeypatch.setattr(computations, "running", lambda: now[0].running)
    monkeypatch.setattr(computations, "server_of", lambda _: now[0].running.process)  # type: ignore[union-attr]
    world, seen, stored = World(on.client(), backend), 0, 0
    for first in range(0, number_of, AT_ONCE):
        world.client.flushall()
        histories = [
            History(world, random.Random(f"{proof.seed()} {number}"), f"row:{number}")
            for number in range(first, first + AT_ONCE)
        ]
        tried_all(world, histories, now)
        assert not computations._computations
        seen += sum(each.seen for each in histories)
        stored += sum(each.stored for each in histories)
        proof.tried("a history of callers of a cached function, step by step", AT_ONCE)
    # Those who were killed wait for nobody.
    computations._waiting.clear()
    assert seen > number_of
    assert stored > number_of
