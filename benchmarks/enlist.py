"""What a dismissed enlist costs, as a ratio to an empty Python function call in the same run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from workstealing import Job, Recruiter, Slice

ROUNDS = 15
CALLS = 400_000
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


def _recruiter(jobs: int) -> Recruiter:
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


def measure() -> dict[str, float]:
    """Time dismissed enlists and empty calls in turn: draws, blocks, clock and counts included.

    Returns: the medians over all rounds of dismissed / empty with 1 and with 1,000 jobs (target:
    at most 2.0), of the two to each other (target: 0.9 to 1.1), and of the bound method that
    `workstealing.enlist` is to an empty call; and the empty call in nanoseconds. Each includes its
    share of a for loop, as timeit's figures do. No server and no command is involved.
    """
    one, thousand = _recruiter(1), _recruiter(1000)
    enlist = one.enlist
    ratios: dict[str, list[float]] = {"one": [], "thousand": [], "bound": [], "many_to_one": []}
    empties = []
    for _ in range(ROUNDS):
        empty = _time_empty()
        first = _time_enlist(one)
        second = _time_enlist(thousand)
        bound = _time_function(enlist)
        empties.append(empty / CALLS * 1e9)
        ratios["one"].append(first / empty)
        ratios["thousand"].append(second / empty)
        ratios["bound"].append(bound / empty)
        ratios["many_to_one"].append(second / first)
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    return {
        "dismissed_to_empty_1_job": round(medians["one"], 3),
        "dismissed_to_empty_1000_jobs": round(medians["thousand"], 3),
        "dismissed_1000_to_1_job": round(medians["many_to_one"], 3),
        "dismissed_default_to_empty": round(medians["bound"], 3),
        "empty_call_ns": round(statistics.median(empties), 1),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
