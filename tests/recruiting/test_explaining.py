"""Why a job did or did not run lately: each reason has its sentence."""

from __future__ import annotations

from typing import Any

import pytest

import workstealing
from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing import Job, Outcome, Recruiter, Slice
from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import Aborted, ConfigurationError, OutOfTime, blame
from workstealing.recruiting.breakers import Server, Servers
from workstealing.recruiting.explaining import Circumstances, Explanation, explain
from workstealing.recruiting.slice_slot import SLICE_SLOT, SliceSlot
from workstealing.testing import ManualClock

THOUSANDS = 1 - 2**-53
"""The highest number below 1: at a rate of 0.001 it dismisses 36,000 callers, block by block."""


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
        (
            "its rate is 0.25, one caller in 4; 4 callers would bring about 1.0 recruits at that"
            " rate, and 4 came"
        ),
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
    recruiter = recruiter_of(manual_clock, drawn=THOUSANDS)
    recruiter.job(rate=0.001, name="tidy")(lambda _: 3)
    for _ in range(500):
        recruiter.enlist()
    manual_clock.advance(200.0)
    found = recruiter.explain("tidy")
    assert not found.has_run
    assert reason(found, "rate") == (
        "its rate is 0.001, one caller in 1,000; 500 callers would bring about 0.5 recruits at that"
        " rate, and 0 came"
    )
    said = reason(found, "at most")
    assert int(said.split()[2]) < 500
    assert said.endswith(" enlisted in the last 3 min")


def test_a_job_that_has_not_run_for_long(manual_clock: ManualClock) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    recruiter.enlist()
    manual_clock.advance(7200.0)
    found = recruiter.explain("tidy")
    assert not found.has_run
    said = reason(found, "slice of it ran")
    assert said == "1 slice of it ran, the last 2 h ago, and handled 3 items"


def test_a_skipped_recruit_is_no_run(manual_clock: ManualClock) -> None:
    """A job whose recruits were all skipped for hours "has run lately, the last 0 s ago"."""
    recruiter = recruiter_of(manual_clock)
    seen: list[Explanation] = []

    def hang(_: Slice) -> int:
        assert recruiter.perform("tidy") is Outcome.SKIPPED
        seen.append(recruiter.explain("tidy"))
        return 1

    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    recruiter.job(rate=0.25, name="sweep")(hang)
    recruiter.perform("tidy")
    manual_clock.advance(7200.0)
    assert recruiter.perform("sweep") is Outcome.WORKED
    (found,) = seen
    assert not found.has_run
    assert reason(found, "slice of it ran").startswith("1 slice of it ran, the last 2 h ago")
    assert reason(found, "skipped").startswith("1 recruit was skipped")


def test_a_slice_of_another_job_that_does_not_end(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recruiter = recruiter_of(manual_clock)
    recruiter.job(rate=0.25, name="tidy")(lambda _: 3)
    seconds = 0.01
    monkeypatch.setattr(
        SliceSlot, "holder", lambda _: ("sweep", SYSTEM_CLOCK.monotonic() - seconds)
    )
    assert reasons(recruiter.explain("tidy"), "has been running") == []
    seconds = 3 * 3600.0
    assert reason(recruiter.explain("tidy"), "has been running") == (
        "a slice of the job 'sweep' has been running for 3 h, and no other slice begins in its"
        " process meanwhile"
    )


def test_callers_who_came_since_the_last_look_at_the_clock(manual_clock: ManualClock) -> None:
    """A thousand callers are dismissed without a look at the clock: nobody knows when they came."""
    recruiter = recruiter_of(manual_clock, drawn=THOUSANDS)
    recruiter.job(rate=0.001, name="tidy")(lambda _: 3)
    for _ in range(5000):
        recruiter.enlist()
    manual_clock.advance(3600.0)
    recruiter.enlist()
    said = reason(recruiter.explain("tidy"), "at most")
    assert 1 <= int(said.split()[2]) <= 1024
    assert said.endswith(" enlisted in the last 60 min")
    assert reasons(recruiter.explain("tidy"), "nobody has") == []
    # This ends the callers' block, so nobody knows how many of them came when.
    recruiter.set_rate("tidy", 0.002)
    assert reasons(recruiter.explain("tidy"), "nobody has") == []
    recruiter.enlist()
    manual_clock.advance(3600.0)
    assert recruiter.stats()["enlisted"] == 5002
    assert reason(recruiter.explain("tidy"), "nobody has").endswith("for at least 60 min")


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (
            1e-6,
            "1e-06, one caller in 1,000,000; 3 callers would bring about 0.0 recruits at that rate",
        ),
        (0.7, "0.7, one caller in 1.4; 3 callers would bring about 2.1 recruits at that rate"),
        (1.0, "1, one caller in 1; 3 callers would bring about 3.0 recruits at that rate"),
    ],
)
def test_the_smallest_and_the_largest_rates(
    manual_clock: ManualClock, rate: float, said: str
) -> None:
    recruiter = recruiter_of(manual_clock, drawn=1.0)
    recruiter.job(rate=rate, name="tidy")(lambda _: 3)
    for _ in range(3):
        recruiter.enlist()
    assert reason(recruiter.explain("tidy"), "rate") == f"its rate is {said}, and 0 came"


@pytest.mark.parametrize("job", [None, 5, lambda _: 1])
def test_what_is_no_job_is_refused(job: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a job or its name"):
        Recruiter().explain(job)


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
    assert reason(found, "breaker is open") == (
        "its breaker is open: its server has not been reached for 0 s, and recruits are skipped"
        " until a try succeeds"
    )
    assert reason(found, "failed") == ("1 of 1 slices failed: ConnectionError 1 time, last 0 s ago")


def test_a_breaker_of_something_else_than_the_server(manual_clock: ManualClock) -> None:
    """A database that is gone is no fault of the job's Redis."""

    class Tracking(Job):
        name = "tidy"
        dependency = Server(("redis", 6379))

        def perform(self, slice: Slice) -> int:
            raise ConnectionError("no database there")

    recruiter = recruiter_of(manual_clock)
    recruiter.install(Tracking(), rate=0.25)
    recruiter.enlist()
    manual_clock.advance(0.1)
    assert recruiter.enlist() is Outcome.SKIPPED
    assert recruiter.stats()["jobs"]["tidy"]["breaker_seconds"] is None
    assert reason(recruiter.explain("tidy"), "breaker is open") == (
        "its breaker is open: something that it uses besides its server has not been reached for"
        " 0 s, and recruits are skipped until a try succeeds"
    )
    manual_clock.advance(3600.0)
    assert reasons(recruiter.explain("tidy"), "breaker is open") == []


def test_a_breaker_of_one_server_of_several(manual_clock: ManualClock) -> None:
    near, far = Server(("near",)), Server(("far",))

    class Tidying(Job):
        name = "tidy"
        dependency = Servers((near, far))

        def perform(self, slice: Slice) -> int:
            slice.served = far
            fault = ConnectionError("it is gone")
            blame(fault, far)
            raise fault

    recruiter = recruiter_of(manual_clock)
    recruiter.install(Tidying(), rate=0.25)
    recruiter.enlist()
    assert reason(recruiter.explain("tidy"), "is open") == (
        "a breaker of it is open: one of its 2 servers has not been reached for 0 s, and recruits"
        " leave that one alone until a try succeeds"
    )
    # Its period is over, and nobody has tried yet.
    manual_clock.advance(3600.0)
    assert reasons(recruiter.explain("tidy"), "is open") == []


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
    assert SLICE_SLOT.holder() is None
    assert reason(seen[0], "a slice of it") == "a slice of it runs at this moment"
    found = explain(Circumstances("tidy", "this process", 60.0, ("tidy",), running_seconds=90.0))
    assert reason(found, "has been running") == (
        "a slice of it has been running for 90 s, and no other slice begins in its process"
        " meanwhile"
    )
    # A fleet's slice was seen as it ran, and has ended since.
    found = explain(Circumstances("tidy", "the fleet", 60.0, ("tidy",), running_seconds=0.01))
    assert reasons(found, "slice of it") == []


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
            "its breaker is open: its server has not been reached for 61 s, and recruits are"
            " skipped until a try succeeds"
        ),
        "1,000,000 callers enlisted in the fleet in the last 60 min, 278 a second",
        (
            "its rate, which moves by itself, is 0.003, one caller in 333; 1,000,000 callers would"
            " bring about 3,000.0 recruits at that rate, and 7 came"
        ),
        (
            "the fleet's rate for it is not in force everywhere: 0.003 the rates of a process would"
            " exceed 1"
        ),
        "5 slices of it ran, and handled 50 items",
        (
            "2 recruits were skipped: it was paused or could not begin, its breaker was open, or"
            " another slice ran in the process"
        ),
        "it does not keep up: nothing has worked for 10 min",
    )


def test_the_default_recruiter_explains_too() -> None:
    assert workstealing.explain("nothing of ours").job == "nothing of ours"
