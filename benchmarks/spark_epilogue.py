"""What an epilogue costs a Spark task, without Spark: the same calls in this process.

A task's context is changed by hand from one task to the next, in the reference too, so that every
turn is a task attempt of its own.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from figures import Batch, Figure, Target, counted, in_turn
from relay import Relay
from servers import RedisServer

from workstealing import Recruiter
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes
from workstealing.testing import always, never

ROUNDS = 60
TASKS = 20_000
RECRUITED_TASKS = 50
TASK_SECONDS = 0.005
FIELDS, LIMIT = 2_000, 5
MOST = Target(most=2.0)
TTL_SECONDS, SHIFT_MS = 3_600, 7_200_000
# Long, so that the limit and not the machine's other work ends a slice.
SLICE_SECONDS = 1.0

_factories: dict[str, Callable[[], Recruiter]] = {}


def never_recruiting() -> Recruiter:
    """Return the recruiter of the dismissed."""
    return never()


def always_recruiting() -> Recruiter:
    """Return the recruiter that the benchmark has made ready."""
    return _factories["always"]()


def measure(server: RedisServer) -> list[Figure]:
    """Measure a dismissed epilogue, a recruited one, and each as a share of a task of 5 ms."""
    return [*_dismissed(), *_recruited(server)]


class _Tasks:
    """Tasks in this process: each has one partition of three rows."""

    def __init__(self, factory: str) -> None:
        from pyspark import TaskContext

        from workstealing.spark.workers import VARIABLE, Epilogue, EpilogueSettings, enlisting

        TaskContext._setTaskContext(None)  # type: ignore[arg-type]  # noqa: SLF001
        self._context: Any = TaskContext(taskAttemptId=0)
        settings = EpilogueSettings(f"spark_epilogue:{factory}", None, "benchmark", 5.0)
        # For a function that was pickled by its name.
        os.environ[VARIABLE] = settings.as_text()
        self._named: Any = enlisting(_rows)
        enlisted: Any = enlisting(_rows)
        for cell in enlisted.__closure__:
            if isinstance(cell.cell_contents, Epilogue):
                # As it is once it has been pickled at the driver and unpickled by a worker.
                cell.cell_contents = Epilogue(settings)
        self._enlisted = enlisted
        self._attempt = 0

    def enlisting(self, tasks: int) -> Batch:
        """Return a batch of tasks whose function was pickled with its settings."""
        return self._batch(tasks, self._enlisted)

    def named(self, tasks: int) -> Batch:
        """Return a batch of tasks whose function finds its settings in the environment."""
        return self._batch(tasks, self._named)

    def plain(self, tasks: int) -> Batch:
        """Return a batch of tasks that do not enlist."""
        return self._batch(tasks, _wrapped)

    def _batch(self, tasks: int, function: Callable[..., Any]) -> Batch:

        def run() -> float:
            context, first = self._context, self._attempt
            self._attempt += tasks
            start = time.perf_counter()
            for attempt in range(first, first + tasks):
                context._taskAttemptId = attempt  # noqa: SLF001 - as Spark's worker does
                for _ in function((1, 2, 3)):
                    pass
            return (time.perf_counter() - start) / tasks

        return run

    def end(self) -> None:
        from pyspark import TaskContext

        TaskContext._setTaskContext(None)  # type: ignore[arg-type]  # noqa: SLF001


def _rows(rows: Any) -> Iterator[Any]:
    return iter(rows)


def _wrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
    yield from _rows(*args, **kwargs)


def _dismissed() -> list[Figure]:
    tasks = _Tasks("never_recruiting")
    name, what = "spark_epilogue_dismissed", "less a generator that only passes rows on"
    plain = tasks.plain(TASKS)
    extra = _extra(f"{name}_us", what, in_turn(tasks.enlisting(TASKS), plain, ROUNDS), MOST)
    named = _extra(f"{name}_named_us", what, in_turn(tasks.named(TASKS), plain, ROUNDS), MOST)
    tasks.end()
    share = extra.value / 1e6 / TASK_SECONDS
    return [extra, named, counted(f"{name}_share", round(share, 6), "a task of 5 ms")]


def _recruited(server: RedisServer) -> list[Figure]:
    writer = VolatileHashes(server.client(), namespace="spark", backend="emulated")

    def fill() -> None:
        mapping = {f"field-{number}": b"v" * 32 for number in range(FIELDS)}
        for number in range(10):
            writer.hsetex(f"item:{number}", mapping=mapping, ex=TTL_SECONDS)

    def recruiter_on(client: Any) -> Recruiter:
        # The hashes' clock is ahead, so that all is garbage at once.
        hashes = VolatileHashes(client, namespace="spark", clock_shift_ms=SHIFT_MS)
        recruiter = always(seconds=SLICE_SECONDS)
        recruiter.install(HashFieldExpiry(hashes, limit=LIMIT), rate=1.0)
        return recruiter

    from workstealing.spark import workers

    fill()
    client: Any = server.client()
    recruiter = recruiter_on(client)
    _factories["always"] = lambda: recruiter
    tasks = _Tasks("always_recruiting")
    costs = in_turn(tasks.enlisting(RECRUITED_TASKS), tasks.plain(RECRUITED_TASKS), ROUNDS)
    what = "less a generator that only passes rows on"
    figures = [_extra("spark_epilogue_recruited_us", what, costs)]
    share = figures[0].value / 1e6 / TASK_SECONDS
    figures.append(counted("spark_epilogue_recruited_share", round(share, 4), "a task of 5 ms"))
    with Relay(server.port) as relay:
        client = server.client(port=relay.port)
        recruiter = recruiter_on(client)
        # As in a process of its own.
        workers._after_fork_in_child()  # noqa: SLF001
        warm = tasks.enlisting(1)
        warm()  # Connects and reads the layout, which is done once a worker.
        relay.round_trips = 0
        warm()
        trips = relay.round_trips
    tasks.end()
    server.wipe()
    what = "round trips on the wire, HashFieldExpiry finds its fill"
    worked = recruiter.stats()["jobs"]["hash_field_expiry.spark"]["items"]
    figures.append(
        Figure(
            "spark_epilogue_recruited_trips", trips, trips, trips, 1, what, Target(most=5),
            {"fields": worked / 2},
        )
    )  # fmt: skip
    return figures


def _extra(
    name: str, what: str, costs: tuple[list[float], list[float]], target: Target | None = None
) -> Figure:
    """Return what ours takes on top of the reference, in microseconds."""
    ours, reference = costs
    extras = [(mine - theirs) * 1e6 for mine, theirs in zip(ours, reference, strict=True)]
    low, middle, high = statistics.quantiles(extras, n=4)
    details = {
        "ours_us": round(statistics.median(ours) * 1e6, 3),
        "reference_us": round(statistics.median(reference) * 1e6, 3),
    }
    return Figure(
        name, round(middle, 3), round(low, 3), round(high, 3), len(extras), what, target, details
    )
