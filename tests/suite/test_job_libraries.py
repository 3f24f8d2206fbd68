"""The benchmark beside job libraries: each side takes what it put, and the figures are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.servers import RedisServer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
AT_HAND = (
    "stream", "shuffle_queue", "fair_queue", "fair_queue_exchange", "fair_queue_by_100",
    "time_shard_queue", "stream_async", "shuffle_queue_async", "rq", "rq_take_without_ack",
    "celery",
)  # fmt: skip
FURTHER = ("dramatiq", "dramatiq_prefetch_16", "taskiq", "bullmq")
PROGRAM = """
import json, sys
import job_library_sides as sides
url, *names = sys.argv[1:]
left = {}
for name in names:
    side = sides.SIDES[name](url)
    left[name] = []
    for do, n in ((side.put, 5), (side.take, 2), (side.take, 3)):
        do(n)
        left[name].append(side.left())
    side.close()
print(json.dumps(left))
"""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """Return the benchmark's module, which stands outside of the package."""
    # At the end, so that no benchmark hides a module that a test wants.
    sys.path.append(str(BENCHMARKS))
    import job_libraries

    return job_libraries


def left(bench: ModuleType, server: RedisServer, names: tuple[str, ...]) -> dict[str, list[int]]:
    """Return how many messages each side has left after it has put 5, taken 2, and taken 3."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url, *names],
        cwd=BENCHMARKS,
        env=bench.child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


def test_each_side_acknowledges_what_it_takes(bench: ModuleType, redis8: RedisServer) -> None:
    assert left(bench, redis8, AT_HAND) == {name: [5, 3, 0] for name in AT_HAND}


# It asks a registry.
@pytest.mark.slow
def test_so_do_the_libraries_that_have_a_folder_of_their_own(
    bench: ModuleType, redis8: RedisServer
) -> None:
    if failed := bench.install():
        pytest.skip(f"pip cannot install the libraries of {bench.PINS.name}: {failed}")
    assert left(bench, redis8, FURTHER) == {name: [5, 3, 0] for name in FURTHER}


@pytest.mark.slow
def test_both_modes_measure_every_side(bench: ModuleType) -> None:
    for mode in bench.MODES:
        found = bench.batches(mode, messages=8, batch=2)
        assert set(AT_HAND) <= found.keys() <= {*AT_HAND, *FURTHER}
        for costs in found.values():
            assert all(cost > 0 for what in bench.WHAT for cost in costs[what])
            assert [len(costs[what]) for what in bench.WHAT] == [4, 4]


def test_a_figure_is_the_least_batch_by_the_least_of_the_reference(bench: ModuleType) -> None:
    costs = {
        "stream": [100e-6, 200e-6],
        "shuffle_queue": [300e-6, 140e-6],
        "fair_queue": [400e-6, 160e-6],
        "time_shard_queue": [150e-6, 900e-6],
        "rq": [280e-6, 700e-6],
        "rq_take_without_ack": [10e-6, 10e-6],
        "celery": [900e-6, 500e-6],
    }
    found = {name: {"put": each, "take_ack": each} for name, each in costs.items()}
    figures = {each.name: each for each in bench.figures_of("pinned", found)}
    for what in bench.WHAT:
        shuffle = figures[f"job_libraries_pinned_shuffle_queue_{what}"]
        assert (shuffle.value, shuffle.low, shuffle.high) == (1.4, 0.125, 3.575)
        assert shuffle.details == {"ours_us": 140.0, "reference_us": 100.0}
        assert shuffle.met
        assert not figures[f"job_libraries_pinned_fair_queue_{what}"].met
        # A take without an ack is no rival.
        beside = figures[f"job_libraries_pinned_shuffle_queue_{what}_to_quickest"]
        assert (beside.value, beside.met) == (0.5, True)
        assert beside.reference == "rq, the quickest library"
        assert figures[f"job_libraries_pinned_rq_{what}"].target is None
    assert all(each.target is None for each in bench.figures_of("not_pinned", found))
