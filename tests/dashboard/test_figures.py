"""The arithmetic from minutes to figures, and the reasons why a job is red."""

from __future__ import annotations

from typing import Any

import pytest

from workstealing.dashboard.charts import hour
from workstealing.dashboard.figures import (
    ErrorFigures,
    MeasuredFigure,
    OwnMinutes,
    covered_seconds,
    job_figures,
    keeps_up,
    ledger_name,
    window,
)
from workstealing.dashboard.fleet_state import DENIED, FAILED, then, time_of_day
from workstealing.dashboard.presenting import _job, _tiles
from workstealing.dashboard.queries import Snapshot
from workstealing.metrics.minutes import JobError, JobMinute, Minute
from workstealing.metrics.shared_settings import Setting
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import OUTCOMES

PRESENT = 1_763_650_020
NOW = PRESENT + 30.0


def minutes(count: int, enlisted: int = 6000, **job: Any) -> list[Minute]:
    """Return so many minutes up to the present one, with one job called tidy in each."""
    return [
        Minute(PRESENT - 60 * ago, enlisted, 4, {"tidy": JobMinute(**job)})
        for ago in reversed(range(count))
    ]


def figures(found: list[Minute], local: Any = None, setting: Any = None, due: Any = None) -> Any:
    times, slots = window(found, NOW)
    covered = covered_seconds(slots, times, NOW)
    return job_figures("tidy", slots, covered, local, setting, due=due)


def test_the_last_hour_is_laid_out_with_gaps() -> None:
    found = [
        Minute(PRESENT - 3600, 1),
        Minute(PRESENT - 120, 2),
        Minute(PRESENT - 60),
        Minute(PRESENT, 3),
    ]
    times, slots = window(found, NOW)
    assert len(times) == len(slots) == 60
    assert times[-1] == PRESENT
    assert times[0] == PRESENT - 59 * 60
    # One minute is too old, and nobody wrote the other one.
    shown = [(time, slot.enlisted) for time, slot in zip(times, slots, strict=True) if slot]
    assert shown == [(PRESENT - 120, 2), (PRESENT, 3)]


def test_a_jobs_own_figures_are_of_the_last_minute_that_has_them() -> None:
    found = minutes(10)
    for ago, value in ((8, 5.0), (4, 1.0)):
        found[-1 - ago].jobs["tidy"].measured["server_faults"] = value
    job = figures(found)
    assert job.measured == [MeasuredFigure("server_faults", 1.0, PRESENT - 240, 5.0)]
    (line,) = _job(job, NOW)["measured"]
    assert line == (
        "server_faults 1 in a slice of the minute from 4.5 min ago on, at most 5 in the last hour"
    )
    assert figures(minutes(10)).measured == []


def test_a_process_alone_has_its_own_figures_of_each_minute() -> None:
    now = [float(PRESENT)]
    own = OwnMinutes(lambda: now[0])
    job = {**dict.fromkeys((*OUTCOMES, "recruited", "items", "seconds"), 0), "rate": 0.1}
    told = {"kept": {"value": 3.0, "seconds_ago": 0.0}, "old": {"value": 1.0, "seconds_ago": 300.0}}
    now[0] += 30
    found = own({"enlisted": 0, "jobs": {"tidy": {**job, "measured": told}}})
    assert found[-1].jobs["tidy"].measured == {"kept": 3.0}


def test_a_ledger_whose_clock_is_ahead_is_shown_whole() -> None:
    times, slots = window([Minute(PRESENT + 120, 7)], NOW)
    assert times[-1] == PRESENT + 120
    assert slots[-1].enlisted == 7


def test_rates_are_of_the_time_that_was_covered() -> None:
    offset = NOW - PRESENT
    found = minutes(60, recruited=30, worked=20, idle=10, items=600, seconds=0.3, rate=0.01)
    shown = figures(found)
    assert shown.items_per_second == pytest.approx(5 * 600 / (240 + offset))
    assert shown.recruited_per_minute == pytest.approx(5 * 30 * 60 / (240 + offset))
    assert shown.slice_seconds == pytest.approx(0.01)
    assert shown.outcomes == dict.fromkeys(OUTCOMES, 0) | {"worked": 1200, "idle": 600}
    assert shown.rate == 0.01
    # A ledger that has only just begun.
    young = figures(minutes(1, recruited=30, worked=30, items=600))
    assert young.items_per_second == pytest.approx(600 / offset)


def test_nothing_is_known_of_a_job_that_nobody_named() -> None:
    shown = figures([])
    assert (shown.rate, shown.backlog, shown.oldest_seconds, shown.keeps_up) == (None,) * 4
    assert shown.problems == []
    assert not shown.is_here
    assert shown.items_per_second == 0


def test_what_is_local_and_what_the_fleet_is_told() -> None:
    local = {
        "rate": 0.5,
        "paused": True,
        "adaptive": True,
        "breaker_open": True,
        "oldest_seconds": 7.0,
    }
    shown = figures([], local, Setting(paused=True, rate=0.25))
    assert (shown.rate, shown.fleet_rate) == (0.5, 0.25)
    assert shown.paused
    assert shown.fleet_paused
    assert shown.adaptive
    assert shown.oldest_seconds == 7.0
    assert shown.problems == ["its breaker is open: the server could not be reached"]


def test_a_dry_run_is_shown_and_keeps_up_with_nothing() -> None:
    counted = minutes(60, recruited=30, worked=30, items=600, oldest_seconds=1.0, rate=0.01)
    for shown in (
        figures(minutes(60, recruited=30, worked=30, items=600, rate=0.01, dry_run=True)),
        figures(counted, {"dry_run": True, "rate": 0.01}),
    ):
        assert shown.dry_run
        assert (shown.keeps_up, shown.why) == (None, "it is a dry run, which removes nothing")
        assert shown.problems == []
        assert {"text": "dry run", "kind": "warn"} in _job(shown)["badges"]
    assert not figures(counted).dry_run
    # What it has counted was not collected.
    jobs = [figures(counted), figures(counted, {"dry_run": True})]
    times, slots = window(counted, NOW)
    # Of one name in the ledger, as names of more than 200 characters may be.
    shown_at_once = Snapshot(
        NOW, True, 1, times, [100.0] * 60, 0.0, jobs, [], [], spans=[60.0] * 60, slots=slots
    )
    (collected,) = [each for each in _tiles(shown_at_once) if each["label"] == "Collected"]
    assert collected["value"] == "11.1"
    assert [max(each) for each in hour(shown_at_once)["items"]] == [10.0, 0.0]
    # Slices that fail are a fault of a dry run as well.
    failing = figures(minutes(60, recruited=30, failed=30, rate=0.01, dry_run=True))
    assert failing.keeps_up is False


@pytest.mark.parametrize(
    ("lag", "said", "answer"),
    [
        ([], None, None),
        ([None] * 60, None, None),
        ([None] * 60, True, True),
        ([1.0] * 60, False, False),
        ([5.0] * 60, None, True),
        ([600.0] * 60, None, True),
        ([20.0 * n for n in range(60)], None, False),
        ([20.0 * n for n in range(30)], None, True),
        ([2700.0] * 60, None, False),
        ([None] * 59 + [2580.0], None, None),
        ([None] * 59 + [2580.0], True, None),
        ([40.0 * n for n in range(60)], None, False),
        ([60.0 * n for n in range(60)], None, False),
        ([60.0 * n for n in range(60)], True, False),
        # A minute's garbage is young, however fast it comes, and three minutes are a short time.
        ([None] * 50 + [5.0 * n for n in range(10)], None, True),
        ([None] * 57 + [100.0, 200.0, 300.0], None, None),
        ([60.0 * n for n in range(50)] + [3000.0 - 290 * n for n in range(10)], None, True),
        ([60.0 * n for n in range(50)] + [3000.0 - 99 * n for n in range(10)], None, None),
    ],
)
def test_garbage_that_grows_older_as_time_passes_is_not_kept_up_with(
    lag: list[float | None], said: bool | None, answer: bool | None
) -> None:
    assert keeps_up(lag, said) is answer


def test_what_makes_a_job_red() -> None:
    assert figures(minutes(60, recruited=30, worked=30)).problems == []
    aborted = figures(minutes(60, recruited=30, worked=20, aborted=10))
    assert aborted.problems == ["33% of its slices were aborted"]
    failed = figures(minutes(60, recruited=30, worked=20, failed=10))
    assert failed.problems == ["33% of its slices failed"]
    # There are few recruits, but errors are errors.
    assert figures(minutes(4, recruited=1, failed=1)).problems == ["4 of its slices failed"]
    assert figures(minutes(4, recruited=1, aborted=1)).problems == []


@pytest.mark.parametrize(
    "slices",
    [
        {"worked": 20, "aborted": 10},
        {"worked": 20, "out_of_time": 10},
        {"worked": 20, "failed": 10},
        {"worked": 29, "failed": 1},
        {"worked": 30, "oldest_seconds": 2580.0},
        {"idle": 30},
        {"idle": 1, "failed": 29},
        {"out_of_time": 30},
        {"worked": 1, "failed": 3, "unreached_seconds": 70.0},
    ],
)
def test_of_a_job_that_has_just_started_there_is_nothing_to_say(slices: dict[str, Any]) -> None:
    """A machine that starts an application is busy with it: no dot is green or red."""
    for count in (1, 2, 3):
        shown = figures(minutes(count, recruited=30, **slices))
        assert (shown.just_started, shown.keeps_up, shown.problems) == (True, None, [])
        assert shown.why == "just started: nothing to say yet"
    assert not figures(minutes(4, recruited=30, **slices)).just_started
    # A job that was quiet for a few minutes is no new one, and one of an hour ago is.
    assert not figures([*minutes(6)[:2], *minutes(2, recruited=30, **slices)]).just_started
    assert figures([*minutes(60)[:5], *minutes(2, recruited=30, **slices)]).just_started


def test_a_job_that_only_fails_is_red_from_the_start() -> None:
    shown = figures(minutes(1, recruited=5, failed=5))
    assert (shown.just_started, shown.keeps_up) == (False, False)
    assert shown.problems[0] == f"does not keep up: 5 of 5 slices failed{then(FAILED)}"
    unreached = figures(minutes(2, recruited=1, failed=1, unreached_seconds=70.0))
    assert unreached.problems[0].startswith("a server of this job has not been reached")


def test_a_verdict_of_this_process_is_no_start() -> None:
    """Its own minutes begin with the first look at the page, its history with its first slice."""
    shown = figures(minutes(2, recruited=30, worked=30), {"keeps_up": True, "why": "", "rate": 0.1})
    assert (shown.just_started, shown.keeps_up) == (False, True)


def test_a_job_for_which_nobody_came_is_red_unless_that_is_chance_or_wanted() -> None:
    quiet = minutes(60, rate=0.01)
    assert figures(quiet).problems == ["nobody was recruited for 15 minutes"]
    assert figures(quiet, setting=Setting(paused=True)).problems == []
    assert figures(quiet, {"rate": 0.01, "paused": True}).problems == []
    assert figures(minutes(60, rate=0.0001)).problems == []
    assert figures(minutes(10, rate=0.01)).problems == []
    assert figures(minutes(60, enlisted=0, rate=0.01)).problems == []


def test_a_structure_knows_the_backlog_better_than_a_slice() -> None:
    shown = figures(minutes(60, backlog=5), due=Backlog(70, 9.0, "fields"))
    assert (shown.backlog, shown.oldest_seconds) == (70, 9.0)
    # The minute's highest is older than a count of just now: a page shows one age of one moment.
    assert figures(minutes(60, oldest_seconds=4.0), due=Backlog(70, 9.0, "x")).oldest_seconds == 9.0
    assert figures(minutes(60, oldest_seconds=4.0), due=Backlog(7, None, "x")).oldest_seconds == 4.0


def test_garbage_ages_while_nobody_enlists() -> None:
    """In a gap of the traffic the slices' last report of the age is minutes old."""
    gap = minutes(60, oldest_seconds=52.0)[:50]
    assert figures(gap, due=Backlog(98, 636.0, "fields")).oldest_seconds == 636.0
    assert figures(gap, due=Backlog(0, None, "fields")).oldest_seconds is None
    # No other source knows the age: the last report stands.
    assert figures(gap).oldest_seconds == 52.0
    assert figures(gap, due=Backlog(98, None, "fields")).oldest_seconds == 52.0


def test_a_long_name_is_found_under_what_the_ledger_calls_it() -> None:
    name = "x" * 1_000_000
    slots = [Minute(PRESENT, 1, 1, {ledger_name(name): JobMinute(recruited=2, worked=2)})]
    assert job_figures(name, slots, 1.0, None, None).outcomes["worked"] == 2


# ---- without a ledger ----------------------------------------------------------------------------


def stats(enlisted: int, **job: Any) -> dict[str, Any]:
    counts = ("recruited", *OUTCOMES, "items")
    zero = dict.fromkeys(counts, 0)
    return {"enlisted": enlisted, "jobs": {"tidy": {**zero, "seconds": 0.0, "rate": 0.1, **job}}}


def test_a_process_keeps_its_own_minutes() -> None:
    now = [NOW]
    own = OwnMinutes(lambda: now[0])
    assert own(stats(100, worked=5))[0].enlisted == 0
    own(stats(130, worked=6, recruited=6, items=60, seconds=0.5, oldest_seconds=9.0))
    now[0] += 60
    first, second = own(stats(230, worked=8, recruited=8, items=80, seconds=0.75))
    assert (first.minute, first.enlisted, first.processes) == (PRESENT, 30, 1)
    assert (first.jobs["tidy"].worked, first.jobs["tidy"].items) == (1, 60)
    assert first.jobs["tidy"].oldest_seconds == 9.0
    assert (second.enlisted, second.jobs["tidy"].worked) == (100, 2)
    assert second.jobs["tidy"].seconds == 0.25


def test_own_minutes_survive_a_job_that_is_installed_anew_and_are_bounded() -> None:
    now = [NOW]
    own = OwnMinutes(lambda: now[0])
    own(stats(100, items=50))
    (minute,) = own(stats(100, items=3))
    assert minute.jobs["tidy"].items == 3
    for _ in range(200):
        now[0] += 60
        kept = own(stats(100, items=3))
    assert len(kept) == 60


# ---- why a job is red ----------------------------------------------------------------------------


def growing(count: int = 60, **job: Any) -> list[Minute]:
    found = minutes(count, recruited=30, worked=30, items=3000, rate=0.005, **job)
    for number, minute in enumerate(found):
        minute.jobs["tidy"].oldest_seconds = 45.0 * number
    return found


def test_a_job_that_falls_behind_is_told_the_rate_that_would_do() -> None:
    shown = figures(growing())
    # Three quarters of the inflow stay; the limit is 100 items, and 6,000 callers come a minute.
    needed = 4 * 3000 * 5 / 270 / (0.8 * 100 * 6000 * 5 / 270)
    assert shown.enough_rate == pytest.approx(needed, rel=0.05)
    (said,) = shown.problems
    assert said == (
        "does not keep up: garbage grows older by 0.75 s a second; oldest garbage 44 min old,"
        " limit 10 min; a rate of 0.025 would do (it has 0.005)"
    )
    assert figures(minutes(60, recruited=3, worked=3, oldest_seconds=1.0)).enough_rate is None


def test_where_no_rate_would_do_it_says_so() -> None:
    found = growing()
    for minute in found:
        minute.enlisted = 60
    assert figures(found).problems[0].endswith("; no rate would do: give it larger slices")


def test_a_job_that_only_fails_is_red_by_what_it_raised() -> None:
    denied = {"NoPermissionError": JobError(10, NOW, "web-1")}
    found = minutes(60, recruited=40, skipped=30, failed=10, rate=0.01, errors=denied)
    shown = figures(found)
    assert (shown.keeps_up, shown.errors) == (
        False,
        [ErrorFigures("NoPermissionError", 600, NOW, "web-1", None)],
    )
    first, second = shown.problems
    assert first == (
        "does not keep up: nothing has worked for at least 58 min: 600 of 600 slices failed,"
        " NoPermissionError, 1,800 recruits were skipped, last on web-1 at"
        f" {time_of_day(NOW)}{then(DENIED)}"
    )
    assert second == "100% of its slices failed (NoPermissionError last)"


def test_a_job_that_failed_seconds_ago_has_not_failed_for_a_minute() -> None:
    found = minutes(60, recruited=10, worked=10, rate=0.01, oldest_seconds=1.0)
    found[-1].jobs["tidy"] = JobMinute(recruited=6, failed=6, rate=0.01)
    assert figures(found).why == "6 of 6 slices failed"


def test_shares_are_of_performed_slices() -> None:
    shown = figures(minutes(60, recruited=100, skipped=97, worked=2, failed=1))
    assert shown.problems == ["33% of its slices failed"]


def test_slices_that_are_too_short_are_red_with_the_remedy() -> None:
    shown = figures(minutes(60, recruited=10, worked=7, out_of_time=3, oldest_seconds=1.0))
    assert shown.keeps_up is True
    assert shown.problems == [
        "30% of its slices were out of time: install it with longer slices (seconds=)"
    ]


def test_old_garbage_is_red_also_where_nobody_knows_more() -> None:
    shown = figures(minutes(4, recruited=9, worked=9, oldest_seconds=2580.0))
    assert shown.keeps_up is None
    assert shown.problems == ["3 min of history; oldest garbage 43 min old, limit 10 min"]


def test_a_skipped_recruit_is_no_slice() -> None:
    """`explain` took a minute of skipped recruits for one in which the job had run."""
    found = minutes(3, recruited=9, worked=4, failed=2, skipped=3)
    found[-1].jobs["tidy"] = JobMinute(recruited=7, skipped=7)
    shown = figures(found)
    assert shown.recruits[-3:] == [9, 9, 7]
    assert shown.slices[-3:] == [6, 6, 0]


def test_a_lag_target_in_the_ledger_is_the_limit() -> None:
    assert figures(minutes(60, worked=9, oldest_seconds=70.0)).keeps_up is True
    assert figures(minutes(60, worked=9, oldest_seconds=70.0, lag=60.0)).keeps_up is False


def test_what_lasts_too_long_is_red() -> None:
    found = minutes(60, worked=9, oldest_seconds=1.0, running_seconds=240.0, unreached_seconds=90.0)
    assert figures(found).problems == [
        "a slice has been running for 4 min: nothing else runs in its process",
        "a server of this job has not been reached for 90 s: its breaker stays open",
    ]
    found[-1].jobs["tidy"] = JobMinute(worked=9, running_seconds=0.01, unreached_seconds=3.0)
    assert figures(found).problems == []
    assert figures([], {"running_seconds": 31.0}).problems == [
        "a slice has been running for 31 s: nothing else runs in its process"
    ]


def test_a_refused_rate_is_red_with_its_reason_as_long_as_it_is_set() -> None:
    refused = {"refused": "too much", "refused_rate": 0.9}
    found = minutes(60, recruited=9, worked=9, oldest_seconds=1.0, rate=0.5, **refused)
    shown = figures(found, setting=Setting(rate=0.9))
    assert (shown.rate, shown.fleet_rate, shown.refused) == (0.5, 0.9, "too much")
    assert shown.problems == ["the fleet's rate 0.9 is refused: too much"]
    assert figures(found).problems == []
    assert figures(found, setting=Setting(rate=0.3)).refused is None


def test_a_processes_own_minutes_know_its_errors() -> None:
    now = [NOW]
    own = OwnMinutes(lambda: now[0])
    own(stats(1, errors={}))
    own(stats(1, errors={"ValueError": {"count": 3, "seconds_ago": 1.0}}))
    (minute,) = own(stats(1, errors={"ValueError": {"count": 5, "seconds_ago": 0.5}}))
    error = minute.jobs["tidy"].errors["ValueError"]
    assert (error.count, error.at) == (5, NOW - 0.5)
