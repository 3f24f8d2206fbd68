"""Slices without a draw: what a command line and a dashboard ask for."""

from __future__ import annotations

import pytest

from workstealing.errors import ConfigurationError, UnknownJobError
from workstealing.recruiting import FunctionJob, Hooks, Job, Outcome, Recruiter, Slice
from workstealing.testing import RecordingHooks, always


class Counted(Job):
    """A job that offers a dry run."""

    name = "counted"
    limit = 5

    def __init__(self) -> None:
        self.dry_run = False
        self.left = 7
        self.lengths: list[float] = []

    def perform(self, slice: Slice) -> int:
        items = min(self.left, slice.limit)
        self.lengths.append(slice.seconds)
        if not self.dry_run:
            self.left -= items
        return items


@pytest.fixture
def job() -> Counted:
    return Counted()


@pytest.fixture
def recruiter(job: Counted) -> Recruiter:
    recruiter = Recruiter(random=lambda: 1.0)
    recruiter.install(job, rate=0.001, seconds=0.5)
    return recruiter


def test_a_slice_is_performed_without_a_draw_and_counted(
    recruiter: Recruiter, job: Counted
) -> None:
    assert [recruiter.perform("counted") for _ in range(3)] == [
        Outcome.WORKED,
        Outcome.WORKED,
        Outcome.IDLE,
    ]
    stats = recruiter.stats()
    assert stats["enlisted"] == 0
    assert (stats["jobs"]["counted"]["recruited"], stats["jobs"]["counted"]["items"]) == (3, 7)
    assert job.lengths == [0.5] * 3


def test_a_slice_by_hand_may_have_bounds_of_its_own(recruiter: Recruiter, job: Counted) -> None:
    assert recruiter.perform("counted", limit=6, seconds=2.0) is Outcome.WORKED
    assert (job.left, job.lengths) == (1, [2.0])
    assert recruiter.dry_run("counted", limit=100, seconds=3.0) == 1
    assert job.lengths == [2.0, 3.0]
    for limit, seconds in ((0, None), (None, 0.0)):
        with pytest.raises(ConfigurationError):
            recruiter.perform("counted", limit=limit, seconds=seconds)


def test_disabled_recruiting_does_not_hold_it_back_and_a_pause_does(
    recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKSTEALING_DISABLED", "1")
    assert recruiter.perform("counted") is Outcome.WORKED
    recruiter.pause("counted")
    assert recruiter.perform("counted") is Outcome.SKIPPED


def test_a_dry_run_changes_and_counts_nothing(recruiter: Recruiter, job: Counted) -> None:
    assert recruiter.dry_run("counted") == 5
    assert (job.left, job.dry_run) == (7, False)
    assert recruiter.stats()["jobs"]["counted"]["recruited"] == 0


def test_a_dry_run_has_time_to_count_a_large_backlog(recruiter: Recruiter, job: Counted) -> None:
    recruiter.dry_run("counted")
    assert job.lengths == [10.0]


def test_a_job_without_a_dry_run_says_so(recruiter: Recruiter) -> None:
    handled: list[int] = []
    recruiter.install(FunctionJob(lambda slice: handled.append(1), name="plain"), rate=0.1)
    with pytest.raises(ConfigurationError, match="'plain' has no dry run"):
        recruiter.dry_run("plain")
    assert handled == []


def test_an_unknown_job(recruiter: Recruiter) -> None:
    for method in (recruiter.perform, recruiter.dry_run):
        with pytest.raises(UnknownJobError, match="no job 'others' is installed"):
            method("others")


def test_the_jobs_are_listed_in_the_order_of_installation(
    recruiter: Recruiter, job: Counted
) -> None:
    recruiter.install(FunctionJob(lambda slice: 0, name="a"), rate=0.1)
    assert list(recruiter.jobs()) == ["counted", "a"]
    assert recruiter.jobs()["counted"] is job


def test_the_hooks_are_listed(recruiter: Recruiter) -> None:
    first, second = Hooks(), Hooks()
    recruiter.add_hook(first)
    recruiter.add_hook(second)
    assert recruiter.hooks() == (first, second)


def test_a_hook_that_is_added_twice_hears_once() -> None:
    recruiter, hooks = always(), RecordingHooks()
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=0.1)
    recruiter.add_hook(hooks)
    recruiter.add_hook(hooks)
    recruiter.enlist()
    assert len(hooks.outcomes) == 1
