"""Random histories of a cached function, step by step, against a model: no older result comes back.

The threads of control are the functions' own steps, which the test sends one by one, in an order by
chance. Time passes by the clock's shift alone. A request may be cut off behind its work, be sent
twice, or come again much later; a computer may be slow, fail, or be killed at any step.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import pytest
import redis

from support import proof
from support.servers import RedisServer
from workstealing.store.operations import Sleep
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes.cached_results import ComputingTurn
from workstealing.structures.volatile_hashes.commands import FORGET, STORE

HISTORIES, STEPS, TICK_MS, TICKS = 150, 40, 400, 8
POLICY: dict[str, Any] = {"ttl": 1.5, "lease": 1.0, "wait": 1000.0, "key": "row", "field": "f"}
Control = Generator[Any, Any, None]


class History:
    """One source, one field of one hash, and the callers of a function over them.

    `floor` is the model: the oldest version of the source that anybody may still see.
    """

    def __init__(self, client: redis.Redis, chance: random.Random, backend: str) -> None:
        self.chance = chance
        self.client = client
        stale = chance.choice([0.0, 0.7])
        shifts = [TICK_MS * tick for tick in range(TICKS)]
        made = [VolatileHashes(client, "n", backend=backend, clock_shift_ms=ms) for ms in shifts]
        self.forms: list[Any] = [
            each.cached(**POLICY, stale=stale, recruiter=None)(lambda: None) for each in made
        ]
        self.now, self.version, self.floor = 0, 0, 0
        self.late: list[Any] = []
        self.said: list[str] = []

    @property
    def cached(self) -> Any:
        return self.forms[self.now]

    def send(self, request: Any) -> Any:
        """Send a request as one process does, and learn from what it did."""
        if isinstance(request, Sleep):
            return None
        reply = self.cached._send(request)
        if isinstance(request, tuple):
            if request[0] == STORE and reply:
                self.floor = max(self.floor, int(request[-1].partition(b":")[2]))
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
        entry = yield from self.cached._looking(turn)
        if entry is not None:
            assert entry.value >= least, f"{entry.value} after {least}: {self.said}"
            return
        yield from self.compute(turn)

    def compute(self, turn: ComputingTurn) -> Control:
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
        controls: list[tuple[str, Control, Any]] = []
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
                self.said.append("kill")
                controls.pop(self.chance.randrange(len(controls)))
            elif what < 0.5 or not controls:
                kind = self.chance.choice(kinds)
                controls.append((kind.__name__, kind(), None))
            else:
                self.step(controls, self.chance.randrange(len(controls)))

    def step(self, controls: list[tuple[str, Control, Any]], at: int) -> None:
        name, control, reply = controls.pop(at)
        self.said.append(name)
        try:
            request = control.send(reply)
        except StopIteration:
            return
        reply = self.send(request)
        what = self.chance.random()
        if what < 0.05:
            # The reply was cut off, and the client sends it again.
            self.said.append("again")
            reply = self.send(request)
        elif what < 0.1:
            self.said.append("cut")
            try:
                controls.append((name, control, self.send(control.throw(ConnectionError("cut")))))
            except (ConnectionError, StopIteration):
                return
            return
        controls.append((name, control, reply))


@pytest.mark.parametrize(("server", "backend"), [("redis7", "emulated"), ("redis8", "native")])
def test_no_older_result_comes_back(
    request: pytest.FixtureRequest, server: str, backend: str
) -> None:
    on: RedisServer = request.getfixturevalue(server)
    client = on.client()
    for number in range(HISTORIES):
        seed = f"{proof.seed()} {number}"
        client.flushall()
        History(client, random.Random(seed), backend).run()
        proof.tried("a history of callers of a cached function, step by step")
