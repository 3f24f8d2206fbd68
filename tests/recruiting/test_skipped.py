"""A job that says that it cannot begin now is SKIPPED."""

from __future__ import annotations

from workstealing.errors import Skipped
from workstealing.recruiting import Job, Outcome, Slice
from workstealing.testing import ManualClock, RecordingHooks, always


class Cold(Job):
    name = "cold"
    raises: list[type[Exception]]

    def perform(self, slice: Slice) -> int:
        raise self.raises.pop(0)("no warm connection")


def test_a_job_that_cannot_begin_is_skipped_and_that_is_no_fault() -> None:
    job = Cold()
    job.raises = [Skipped]
    recruiter = always()
    hooks = RecordingHooks()
    recruiter.add_hook(hooks)
    recruiter.install(job, rate=1.0)
    assert recruiter.enlist() is Outcome.SKIPPED
    assert hooks.outcomes[0].error is None
    assert recruiter.stats()["jobs"]["cold"]["failed"] == 0


def test_it_leaves_the_breaker_as_it_is() -> None:
    clock = ManualClock()
    job = Cold()
    # The second fault in a row opens the breaker for longer, though a slice was skipped in between.
    job.raises = [ConnectionError, Skipped, ConnectionError]
    recruiter = always(clock=clock, breaker=10.0)
    recruiter.install(job, rate=1.0)
    outcomes = [recruiter.enlist()]
    clock.advance(1.6)
    outcomes.append(recruiter.enlist())
    outcomes.append(recruiter.enlist())
    clock.advance(0.9)
    outcomes.append(recruiter.enlist())
    assert outcomes == [Outcome.FAILED, Outcome.SKIPPED, Outcome.FAILED, Outcome.SKIPPED]
    assert not job.raises
