"""What speculation does: two attempts of one task at once, of which one is killed in the middle.

The second attempt is a process of its own, as on another executor. Local mode has no speculation,
so Spark's part is played by the test: it takes the results of one attempt and kills the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.hash_checks import check_index
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import spawn
from support.servers import RedisServer
from support.sweep_jobs import NAMESPACE, field_expiry, tracked_set
from workstealing.jobs import HashFieldExpiry
from workstealing.spark.making import Recipe
from workstealing.spark.stages import Orders, TurnResult
from workstealing.store.budget import Budget
from workstealing.structures import TrackedSet, VolatileHashes
from workstealing.structures.tracked_set.sub_sets import generations

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

AHEAD_MS = 3_600_000_000
SUB_SETS = 16
HASHES, FIELDS = 400, 5

# Both say a line after each slice or step, and go on when they are told to.
SWEEPING = """
import sys
from types import SimpleNamespace
from support.sweep_jobs import field_expiry
from workstealing.recruiting import Slice

server = SimpleNamespace(port=int(sys.argv[1]), is_cluster=False)
job = field_expiry(server, int(sys.argv[2]))()
(part,) = job.parts(1)
working = job.for_part(part)
while not working.is_drained:
    print(working.perform(Slice(7, 5.0)), flush=True)
    sys.stdin.readline()
"""
RECONCILING = """
import json
import sys
from types import SimpleNamespace
import pyarrow as pa
from support.sweep_jobs import tracked_set
from workstealing.spark import comparing
from workstealing.spark.making import Recipe

server = SimpleNamespace(port=int(sys.argv[1]), is_cluster=False)
told = json.loads(sys.argv[2])
step = comparing.one_step

def saying(*arguments):
    settled, error, was_aborted = step(*arguments)
    print(settled.added + settled.removed, flush=True)
    sys.stdin.readline()
    return settled, error, was_aborted

comparing.one_step = saying
rows = [(number, each and each.encode()) for number, each in told["rows"]]
batch = pa.RecordBatch.from_pylist(
    [{"sub_set": number, "id": each} for number, each in rows],
    pa.schema([("sub_set", pa.int32()), ("id", pa.binary())]),
)
known = {int(number): each.encode() for number, each in told["known"].items()}
recipe = Recipe(tracked_set(server, "t"), "tracked")
list(comparing.applied(recipe, known, 30.0, 0.0, [batch]))
"""


@contextmanager
def other_attempt(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run the other attempt; kill it in the middle of what it does then."""
    tests = str(Path(__file__).resolve().parents[1])
    with spawn(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": tests},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def answers(process: subprocess.Popen[str], count: int) -> list[int]:
    """Let the other attempt do so many slices; return what each says."""
    assert process.stdin is not None
    assert process.stdout is not None
    said = []
    for _ in range(count):
        said.append(int(process.stdout.readline()))
        process.stdin.write("\n")
        process.stdin.flush()
    return said


def test_two_attempts_of_a_part_of_a_sweep(redis7: RedisServer) -> None:
    from workstealing.spark.sweeping import _work, rounds_of

    hashes: VolatileHashes = VolatileHashes(redis7.client(), NAMESPACE, backend="emulated")
    with hashes.pipeline(transaction=False) as pipe:
        for i in range(HASHES):
            pipe.hsetex(f"h{i}", mapping={f"f{j}": "v" for j in range(FIELDS)}, ex=60)
            pipe.hsetex(f"h{i}", mapping={"live": i}, ex=2 * AHEAD_MS // 1_000)
            pipe.hset(f"h{i}", "lasting", i)
        pipe.execute()
    recipe = Recipe(field_expiry(redis7, AHEAD_MS), "make_job")
    job = recipe.made(HashFieldExpiry)
    parts = job.parts(1)
    with other_attempt(SWEEPING, redis7.port, AHEAD_MS) as process:
        by_other = answers(process, 3)

        def work(left: Any, orders: Orders) -> list[tuple[int, TurnResult]]:
            # The other one goes on meanwhile, and is at work when it is killed.
            process.stdin.write("\n" * 20)  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return [(n, _work(recipe, part, True, orders)) for n, part in left]

        class Silent:
            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None: ...

        (row,) = rounds_of(
            job.name, parts, Orders(50, 5.0, 60.0), max_rounds=5, work=work,
            report=lambda *_: Silent(),
        )  # fmt: skip
        process.kill()
        assert process.stdout is not None
        by_other += [int(line) for line in process.stdout.read().split()]
    assert sum(by_other[:3]) == 21
    part, items, *_, is_drained, error, _rounds = row
    assert (part, is_drained, error) == (0, True, "")
    # The row counts what this attempt has removed, once; at most one slice of the other one is not
    # known, because it died before it could say so.
    assert 0 <= HASHES * FIELDS - items - sum(by_other) <= 7
    later: VolatileHashes = VolatileHashes(
        redis7.client(), NAMESPACE, backend="emulated", clock_shift_ms=AHEAD_MS
    )
    assert HashFieldExpiry(later).backlog().count == 0
    client = redis7.client()
    for i in range(HASHES):
        assert client.hgetall(f"h{i}") == {b"live": b"%d" % i, b"lasting": b"%d" % i}
    check_index(later)


def test_two_attempts_of_a_task_of_reconcile(redis7: RedisServer) -> None:
    from workstealing.spark.comparing import applied

    recipe = Recipe(tracked_set(redis7, "t", sub_sets=SUB_SETS), "tracked")
    tracked = recipe.made(TrackedSet)
    names = tracked.names
    tracked.track([f"both{i}" for i in range(200)] + [f"stale{i}" for i in range(200)])
    known = generations(tracked.job_client, names, range(SUB_SETS), Budget(60.0))
    table = [f"both{i}" for i in range(200)] + [f"new{i}" for i in range(200)]
    rows: list[tuple[int, str | None]] = [(names.sub_set_of(each.encode()), each) for each in table]
    rows = sorted([*rows, *((n, None) for n in range(SUB_SETS))], key=lambda row: row[0])
    # Work that came after the table was read.
    late = [f"late{i}" for i in range(4)]
    tracked.track(late)
    told = {"rows": rows, "known": {number: each.decode() for number, each in known.items()}}
    batch = pa.RecordBatch.from_pylist(
        [{"sub_set": number, "id": each and each.encode()} for number, each in rows],
        pa.schema([("sub_set", pa.int32()), ("id", pa.binary())]),
    )
    with other_attempt(RECONCILING, redis7.port, json.dumps(told)) as process:
        # It has applied some steps, knows all differences, and is killed at work.
        by_other = answers(process, 4)
        assert process.stdin is not None
        process.stdin.write("\n" * 5)
        process.stdin.flush()
        (done,) = (
            row for each in applied(recipe, known, 30.0, 0.0, [batch]) for row in each.to_pylist()
        )
        process.kill()
        assert process.stdout is not None
        by_other += [int(line) for line in process.stdout.read().split()]
    assert sum(by_other)
    assert (done["failed"], done["error"]) == (0, "")
    assert all(tracked.are_tracked(late))
    changed = {names.sub_set_of(each.encode()) for each in late}

    def settled(ids: list[str]) -> list[str]:
        return [each for each in ids if names.sub_set_of(each.encode()) not in changed]

    stale, new = (
        settled([f"stale{i}" for i in range(200)]),
        settled([f"new{i}" for i in range(200)]),
    )
    assert not any(tracked.are_tracked(stale))
    assert all(tracked.are_tracked(new))
    assert all(tracked.are_tracked([f"both{i}" for i in range(200)]))
    # Each change is counted by one of the two attempts, and Spark takes the counts of one.
    counted = done["added"] + done["removed"]
    assert 0 < counted + sum(by_other) <= len(stale) + len(new)
    assert counted < len(stale) + len(new)
