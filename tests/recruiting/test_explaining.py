"""Why a job did or did not run lately: each reason has its sentence."""

from __future__ import annotations

from typing import Any

import pytest

import workstealing
from workstealing import Recruiter, Slice
from workstealing.errors import Aborted, OutOfTime
from workstealing.recruiting.explaining import Circumstances, Explanation, explain
from workstealing.recruiting.flight import FLIGHT
from workstealing.testing import ManualClock


def recruiter_of(clock: ManualClock, drawn: float = 0.0) -> Recruiter:
    return Recruiter(seconds=5.0, clock=clock, random=lambda: drawn)


def reasons(found: Explanation, word: str) -> list[str]:
    return [each for each in found.reasons if word in each]


def reason(found: Explanation, word: str) -> str:
    (only,) = reasons(found, word)
    return only


def test_a_job_that_works(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    manual_clock.advance(100.0)
    for _ in range(4):
        recruiter.enlist()
    manual_clock.advance(5.0)
    found = recruiter.explain("tidy")
    assert found.has_run
    assert found == recruiter.explain(recruiter.jobs()["tidy"])
    assert found.reasons[:3] == (
        "4 callers enlisted in this process in the last 105 s, 0.0381 a second",
        "its rate is 0.25, one caller in 4; of 4 callers about 1.0 are drawn, and 4 came",
        "4 slices of it ran, the last 5 s ago, and handled 12 items",
    )
    assert str(found).startswith("tidy has run lately:\n- 4 callers enlisted")


def test_without_callers_nobody_is_recruited(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    manual_clock.advance(3600.0)
    found = recruiter.explain("tidy")
    assert not found.has_run
    assert found.reasons == (
        (
            "nobody has enlisted in this process in the last 60 min: without callers there are no"
            " recruits"
        ),
        "its rate is 0.25, one caller in 4",
    )


def test_the_rate_and_the_traffic_are_said(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock, drawn=1.0)
    recruiter.job(rate=0.001, name="tidy")(lambda _: 3)
    for _ in range(500):
        recruiter.enlist()
    manual_clock.advance(200.0)
    found = recruiter.explain("tidy")
    assert not found.has_run
    assert reason(found, "rate") == (
        "its rate is 0.001, one caller in 1,000; of 500 callers about 0.5 are drawn, and 0 came"
    )
    assert reason(found, "nobody has") == "nobody has enlisted for at least 3 min"


def test_a_job_that_has_not_run_for_long(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    recruiter.enlist()
    manual_clock.advance(7200.0)
    found = recruiter.explain("tidy")
    assert not found.has_run
    said = reason(found, "slice of it ran")
    assert said == "1 slice of it ran, the last 2 h ago, and handled 3 items"


def test_a_job_that_is_not_installed_here(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    recruiter.enlist()
    found = recruiter.explain("sweep")
    assert not found.has_run
    assert found.reasons[0] == (
        "no job 'sweep' is installed in this process, so none of its callers is recruited for it;"
        " installed: 'tidy'"
    )


def test_disabled_by_the_environment(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    monkeypatch.setenv("WORKSTEALING_DISABLED", "1")
    recruiter.enlist()
    found = recruiter.explain("tidy")
    assert found.reasons[0] == (
        "WORKSTEALING_DISABLED is set in this process, so nobody is recruited in it"
    )


def test_a_pause(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    recruiter.pause("tidy")
    recruiter.enlist()
    found = recruiter.explain("tidy")
    assert not found.has_run
    assert found.reasons[0] == "it is paused in this process, so its recruits are skipped"
    assert reason(found, "1 recruit was skipped")


def test_a_breaker(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)

    def fail(_: Slice) -> int:
        raise ConnectionError("nobody there")

    recruiter.job(rate=0.25, name="tidy")(fail)
    manual_clock.advance(30.0)
    recruiter.enlist()
    found = recruiter.explain("tidy")
    assert reason(found, "breaker is open").startswith("its breaker is open: its server was last")
    assert reason(found, "failed") == ("1 of 1 slices failed: ConnectionError 1 time, last 0 s ago")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (lambda: 0, "2 of 2 slices found nothing to do"),
        (Aborted("another writer"), "2 of 2 slices gave way to another writer"),
        (OutOfTime("late"), "2 of 2 slices had no time to finish: if most do, install it with"),
        (ValueError("odd"), "2 of 2 slices failed: ValueError 2 times, last 0 s ago"),
    ],
)
def test_each_outcome(manual_clock: ManualClock, outcome: Any, said: str) -> None:
    recruiter = recruiter_of(manual_clock)

    def job(_: Slice) -> int:
        if isinstance(outcome, Exception):
            raise outcome
        return int(outcome())

    recruiter.job(rate=0.25, name="tidy")(job)
    recruiter.enlist()
    recruiter.enlist()
    found = recruiter.explain("tidy")
    assert found.has_run
    assert reason(found, "of 2 slices").startswith(said)


def test_a_slice_that_does_not_end(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    seen: list[Explanation] = []
    recruiter.job(rate=0.25, name="tidy")(lambda _: seen.append(recruiter.explain("tidy")) or 1)
    recruiter.enlist()
    assert FLIGHT.holder() is None
    assert reason(seen[0], "has been running") == (
        "a slice of it has been running for 0 s, and no other slice begins in its process meanwhile"
    )


def test_what_a_fleet_knows() -> None:
    found = explain(
        Circumstances(
            "tidy",
            "the fleet",
            3600.0,
            ("tidy",),
            paused="the whole fleet",
            unreached_seconds=61.0,
            enlisted=1_000_000,
            rate=0.003,
            adaptive=True,
            refused="0.003 the rates of a process would exceed 1",
            outcomes={"worked": 5, "skipped": 2},
            items=50,
            keeps_up=False,
            why="nothing has worked for 10 min",
        )
    )
    assert found.has_run
    assert found.reasons == (
        "it is paused in the whole fleet, so its recruits are skipped",
        (
            "its breaker is open: its server was last reached 61 s ago, and recruits are skipped"
            " until a try succeeds"
        ),
        "1,000,000 callers enlisted in the fleet in the last 60 min, 278 a second",
        (
            "its rate, which moves by itself, is 0.003, one caller in 333; of 1,000,000 callers"
            " about 3,000.0 are drawn, and 7 came"
        ),
        (
            "the fleet's rate for it is not in force everywhere: 0.003 the rates of a process would"
            " exceed 1"
        ),
        "5 slices of it ran, and handled 50 items",
        (
            "2 recruits were skipped: it was paused, its breaker was open, or another slice ran in"
            " the process"
        ),
        "it does not keep up: nothing has worked for 10 min",
    )


def test_the_default_recruiter_explains_too() -> None:
    assert workstealing.explain("nothing of ours").job == "nothing of ours"
