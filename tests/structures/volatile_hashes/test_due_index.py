"""The due index has every hash with deadlines, at the earliest one or before, whoever has written.

Writers rely on it: HSETEX and HGETEX of a field that had an earlier deadline leave the due index
alone (lua/volatile_hashes/timed.lua).
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import ResponseError

from support.hash_checks import check_index
from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing.errors import Aborted
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.store.operations import Operation, run
from workstealing.structures import VolatileHashes
from workstealing.structures.on_fleet import carry
from workstealing.structures.volatile_hashes.surface import FORGET, MOVE_FIELD, STORE

NAMES, FIELDS = ("a", "b", "c"), ("f", "g", "h")
STEPS = 400
TIMES = (1, 2, 40, 60_000, 90_000)


class Writers:
    """All that writes deadlines, moves them or removes them, drawn at random.

    Two databases stand for two nodes of a fleet, between which hashes are carried.
    """

    def __init__(self, server: Any, draw: random.Random) -> None:
        self._draw = draw
        self.nodes = [
            VolatileHashes(server.client(db=db), "n", backend="emulated") for db in (0, 1)
        ]
        for each in self.nodes:
            each.client.flushdb()
        self._jobs = [HashFieldExpiry(each, limit=3) for each in self.nodes]

    def step(self) -> str:
        """Do one thing; return what it was."""
        number = self._draw.randrange(2)
        node, name, other = self.nodes[number], *self._draw.choices(NAMES, k=2)
        fields = self._draw.choices(FIELDS, k=self._draw.choice([1, 1, 2, 3]))
        pairs = [word for each in fields for word in (each, "v")]
        ms = self._draw.choice(TIMES)
        many = ("FIELDS", len(fields))
        calls: list[tuple[Any, ...]] = [
            *[("HSETEX", name, "PX", ms, *many, *pairs)] * 4,
            *[("HGETEX", name, "PX", ms, *many, *fields)] * 4,
            ("HSETEX", name, *many, *pairs),
            ("HSETEX", name, "FXX", "PX", ms, *many, *pairs),
            ("HSETEX", name, "KEEPTTL", *many, *pairs),
            ("HGETEX", name, "PERSIST", *many, *fields),
            ("HGETEX", name, "PXAT", 1, *many, *fields),
            ("HGETDEL", name, *many, *fields),
            ("HSET", name, *pairs),
            ("HSETNX", name, fields[0], "v"),
            ("HDEL", name, *fields),
            ("HINCRBYFLOAT", name, "n", 1),
            ("HPEXPIRE", name, ms, *many, *fields),
            ("HPEXPIRE", name, ms, "LT", *many, *fields),
            ("HPERSIST", name, *many, *fields),
            ("DEL", name),
            ("PEXPIRE", name, ms),
            ("PERSIST", name),
            ("RENAME", name, other),
            ("RENAMENX", name, other),
            ("COPY", name, other, "REPLACE"),
            (MOVE_FIELD, name, other, "FIELDS", 2, fields[0], self._draw.choice(FIELDS)),
            (STORE, name, "FIELDS", 1, fields[0], "", ms, "", "v", ""),
            (FORGET, name, *many, *fields),
            ("slice",),
            ("sweep",),
            ("adopt", name, ms, fields[0]),
            ("carry", name),
            ("foreign", "DEL", name),
            ("foreign", "HDEL", name, *fields),
            ("foreign", "HSET", name, *pairs),
            ("foreign", "SET", name, "of another type"),
        ]
        call = self._draw.choice(calls)
        with suppress(ResponseError, Aborted):
            self._do(number, node, call)
        return f"{call} at node {number}"

    def _do(self, number: int, node: VolatileHashes, call: tuple[Any, ...]) -> None:
        word, *rest = call
        if word == "slice":
            self._jobs[number].perform(Slice(3, 5.0))
        elif word == "sweep":
            job = self._jobs[number]
            for part in job.parts(1):
                job.for_part(part).perform(Slice(3, 5.0))
        elif word == "adopt":
            self._adopt(node, *rest)
        elif word == "carry":
            other = self.nodes[1 - number]
            steps = carry(node, other, rest[0], (node.open(), other.open()))
            reply: Any = None
            with suppress(StopIteration):
                while True:
                    structure, operation = steps.send(reply)
                    reply = run(structure.client, operation)
        elif word == "foreign":
            node.client.execute_command(*rest)
        else:
            node.execute_command(*call)

    def _adopt(self, node: VolatileHashes, name: str, ms: int, field: str) -> None:
        layout, seconds = node.open(), node.client.time()
        keys = (*node.names.for_writing(name.encode(), layout), b"{x}:beside")
        deadline = seconds[0] * 1000 + ms
        script = node.translator.script("volatile_hashes/adopt")
        run(node.client, Operation(script, keys, (layout.mark, 1, deadline, field)))


def watch_over(server: Any, seeds: range, steps: int) -> None:
    for seed in seeds:
        writers = Writers(server, random.Random(seed))
        done = []
        for _ in range(steps):
            done.append(writers.step())
            for node in writers.nodes:
                try:
                    check_index(node)
                except AssertionError as error:
                    error.add_note(f"seed {seed}, behind {done[-12:]}")
                    raise


def test_every_writer_keeps_the_due_index(redis7: Any) -> None:
    watch_over(redis7, range(2), STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["redis62", "redis82", "valkey9"])
def test_every_writer_keeps_the_due_index_for_long(
    server: str, request: pytest.FixtureRequest
) -> None:
    watch_over(request.getfixturevalue(server), range(100, 125), STEPS)


def test_a_carried_hash_inherits_no_deadlines(redis7: Any) -> None:
    old, new = Writers(redis7, random.Random(0)).nodes
    new.hsetex("h", "f", 1, ex=90)
    new.client.delete("h")
    old.hset("h", "f", 2)
    steps = carry(old, new, "h", (old.open(), new.open()))
    structure, operation = next(steps)
    with suppress(StopIteration):
        while True:
            structure, operation = steps.send(run(structure.client, operation))
    assert new.hget("h", "f") == b"2"
    assert new.httl("h", "f") == [-1]
