"""Random histories of a cached function, step by step, against a model: no older result comes back.

The threads of control are the functions' own steps, which the test sends one by one, in an order by
chance. Time passes by the clock's shift alone. A request may be cut off behind its work, be sent
twice, or come again much later; a computer may be slow, fail, or be killed at any step.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from support import proof
from support.servers import RedisServer
from workstealing.store.operations import Sleep
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes import flights
from workstealing.structures.volatile_hashes.cached_results import ComputingTurn
from workstealing.structures.volatile_hashes.commands import FORGET, STORE
from workstealing.structures.volatile_hashes.flights import Awaited

HISTORIES, STEPS, TICK_MS, TICKS = 400, 60, 400, 8
POLICY: dict[str, Any] = {"ttl": 1.5, "lease": 1.0, "wait": 1000.0, "key": "row", "field": "f"}
Control = Generator[Any, Any, None]


@dataclass(eq=False)
class Running:
    """A thread of control in one of two processes."""

    name: str
    process: int
    steps: Control
    reply: Any = None


Controls = list[Running]


class History:
    """One source, one field of one hash, and the callers of a function over them.

    `floor` is the model: the oldest version of the source that anybody may still see.
    """

    def __init__(self, client: redis.Redis, chance: random.Random, backend: str) -> None:
        self.chance = chance
        self.client = client
        policy = {**POLICY, "stale": chance.choice([0.0, 0.7]), "recruiter": None}
        self.forms: list[Any] = []
        for ms in (TICK_MS * tick for tick in range(TICKS)):
            hashes = VolatileHashes(client, "n", backend=backend, clock_shift_ms=ms)
            self.forms.append(hashes.cached(**policy)(lambda: None))
            # Here only the controls are callers of their own, and not the thread of the test.
            self.forms[-1]._blocks = False
        self.now, self.version, self.floor = 0, 0, 0
        self.running: Running | None = None
        self.seen = 0
        self.late: list[Any] = []
        self.said: list[str] = []

    @property
    def cached(self) -> Any:
        return self.forms[self.now]

    def send(self, request: Any) -> Any:
        """Send a request as one process does, and learn from what it did."""
        if isinstance(request, Sleep | Awaited):
            return None
        reply = self.cached._send(request)
        if isinstance(request, tuple):
            if request[0] == STORE and reply:
                self.floor = max(self.floor, int(request[-2].partition(b":")[2]))
            elif request[0] == FORGET:
                self.floor = max(self.floor, self.version)
            if request[0] != FORGET and self.chance.random() < 0.1:
                self.late.append(request)
        self.look()
        return reply

    def look(self) -> None:
        """Compare the field with the model."""
        (value,) = self.cached._hashes.hmget("row", ["f"])
        if value is not None:
            seen = int(value.partition(b":")[2])
            assert seen >= self.floor, f"{seen} after {self.floor}: {self.said}"

    def call(self) -> Control:
        """Call the function: its own steps, and a computation that takes as long as chance will."""
        turn, least = ComputingTurn(("row", "f")), self.floor
        try:
            entry = yield from self.cached._looking(turn)
            if entry is not None:
                assert entry.value >= least, f"{entry.value} after {least}: {self.said}"
                self.seen += 1
                return
            yield from self.compute(turn)
        finally:
            turn.land()

    def compute(self, turn: ComputingTurn) -> Control:
        turn.compute(1000.0)
        read = self.version
        while self.chance.random() < 0.6:
            yield Sleep(1.0)
        if self.chance.random() < 0.8:
            yield from self.cached._storing(turn, b"%d" % read, 0.001)
        # Otherwise the function has failed.
        if turn.token is not None:
            yield from self.cached._giving_back(turn)

    def refresh(self) -> Control:
        turn = ComputingTurn(("row", "f"))
        yield from self.cached._taking_over(turn)
        yield from self.compute(turn)

    def invalidate(self) -> Control:
        yield from self.cached._forgetting("row", "f")

    def delete(self) -> Control:
        self.cached._hashes.delete("row")
        self.floor = max(self.floor, self.version)
        yield Sleep(0.0)

    def run(self) -> None:
        """Let chance make the history."""
        kinds = (self.call, self.call, self.call, self.refresh, self.invalidate, self.delete)
        controls: Controls = []
        for _ in range(STEPS):
            what = self.chance.random()
            if what < 0.15:
                self.version += 1
                self.said.append("write")
            elif what < 0.2:
                self.now = min(self.now + 1, TICKS - 1)
                self.said.append("tick")
            elif what < 0.25 and self.late:
                self.said.append("late")
                self.send(self.late.pop(self.chance.randrange(len(self.late))))
            elif what < 0.3 and controls:
                self.kill(controls)
            elif what < 0.5 or not controls:
                kind = self.chance.choice(kinds)
                controls.append(Running(kind.__name__, self.chance.randrange(2), kind()))
            else:
                self.step(controls, self.chance.randrange(len(controls)))

    def kill(self, controls: Controls) -> None:
        """Kill a process: its callers take no further step, and nobody learns how they ended."""
        victim = self.chance.choice(controls).process
        self.said.append(f"kill {victim}")
        for place in [each for each in flights._flights if each[0] == victim]:
            del flights._flights[place]
        controls[:] = [each for each in controls if each.process != victim]

    def step(self, controls: Controls, at: int) -> None:
        self.running = running = controls[at]
        self.said.append(f"{running.name} {running.process}")
        try:
            request = running.steps.send(running.reply)
            running.reply = self.send(request)
            what = self.chance.random()
            if what < 0.05:
                # The reply was cut off, and the client sends it again.
                self.said.append("again")
                running.reply = self.send(request)
            elif what < 0.1:
                self.said.append("cut")
                running.reply = self.send(running.steps.throw(ConnectionError("cut")))
        except (ConnectionError, StopIteration):
            controls.remove(running)
        finally:
            self.running = None


@pytest.mark.parametrize(("server", "backend"), [("redis7", "emulated"), ("redis8", "native")])
def test_no_older_result_comes_back(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: str, backend: str
) -> None:
    on: RedisServer = request.getfixturevalue(server)
    client, seen = on.client(), 0
    now: list[History] = []
    monkeypatch.setattr(flights, "running", lambda: now[0].running)
    monkeypatch.setattr(flights, "server_of", lambda _: now[0].running.process)  # type: ignore[union-attr]
    for number in range(HISTORIES):
        seed = f"{proof.seed()} {number}"
        client.flushall()
        now[:] = [History(client, random.Random(seed), backend)]
        now[0].run()
        flights._flights.clear()
        seen += now[0].seen
        proof.tried("a history of callers of a cached function, step by step")
    assert seen > HISTORIES / 3
