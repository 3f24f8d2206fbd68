"""What a dismissed enlist costs, beside an empty Python function call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from figures import Figure, Target, cost_figure

from workstealing import Job, Recruiter, Slice

ROUNDS = 60
CALLS = 100_000
RATE = 1e-9  # All are dismissed: what is timed is dismissing, with its blocks, clock and counts.


class _Rest(Job):
    """A job that does nothing, so that the figures are those of the dismissed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def perform(self, slice: Slice) -> int:  # noqa: ARG002 - a job's signature
        """Find nothing to do."""
        return 0


def _empty() -> None:
    pass


def recruiter_of(jobs: int) -> Recruiter:
    """Return a recruiter of that many jobs, whose callers are as good as all dismissed."""
    recruiter = Recruiter()
    for number in range(jobs):
        recruiter.install(_Rest(f"job-{number}"), rate=RATE / jobs)
    return recruiter


def _time_empty() -> float:
    call = _empty
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start


def _time_enlist(recruiter: Recruiter) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        recruiter.enlist()
    return time.perf_counter() - start


def _time_function(enlist: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        enlist()
    return time.perf_counter() - start


def measure() -> list[Figure]:
    """Time dismissed enlists and empty calls in turn: draws, blocks, clock and counts included.

    Each includes its share of a for loop, as timeit's figures do. No server and no command is
    involved.
    """
    one, thousand = recruiter_of(1), recruiter_of(1000)
    enlist = one.enlist
    costs: dict[str, list[float]] = {"empty": [], "one": [], "thousand": [], "bound": []}
    for _ in range(ROUNDS):
        costs["empty"].append(_time_empty())
        costs["one"].append(_time_enlist(one))
        costs["thousand"].append(_time_enlist(thousand))
        costs["bound"].append(_time_function(enlist))
    each = {name: [took / CALLS for took in some] for name, some in costs.items()}
    empty, cheap = "an empty Python call", Target(most=2.0)
    return [
        cost_figure("enlist_1_job", empty, (each["one"], each["empty"]), cheap),
        cost_figure("enlist_1000_jobs", empty, (each["thousand"], each["empty"]), cheap),
        cost_figure(
            "enlist_1000_to_1_job",
            "enlist with 1 job",
            (each["thousand"], each["one"]),
            Target(least=0.9, most=1.1),
        ),
        cost_figure("enlist_bound_method", empty, (each["bound"], each["empty"]), cheap),
    ]
