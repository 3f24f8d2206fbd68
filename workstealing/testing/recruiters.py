"""Recruiters whose chance is certain: real ones, with a scripted random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.recruiting import Recruiter

_GOLDEN = 0.6180339887498949


class _Always:
    """A random with which every caller is recruited, for the jobs in turn, each by its rate.

    A draw takes two numbers: how many callers come before the next recruit (0.0: none), and which
    job. Multiples of the golden ratio spread over the jobs more evenly than chance would.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> float:
        call, self._calls = self._calls, self._calls + 1
        return (call // 2) * _GOLDEN % 1.0 if call % 2 else 0.0


def _never() -> float:
    # Outside of what a random returns: a recruiter takes it for "nobody, whatever the rates".
    return 1.0


def always(
    *,
    seconds: Duration = 0.010,
    clock: Clock = SYSTEM_CLOCK,
    breaker: Duration = 10.0,
    longest: Duration | None = None,
) -> Recruiter:
    """Return a recruiter that recruits every caller, whatever the rates.

    With several jobs each gets its share of the callers: the same sequence in every run, starting
    with the job that was installed first. Arguments: as of Recruiter.
    """
    return Recruiter(
        seconds=seconds,
        random=_Always(),
        clock=clock,
        breaker=breaker,
        longest=longest,
    )


def never(
    *,
    seconds: Duration = 0.010,
    clock: Clock = SYSTEM_CLOCK,
    breaker: Duration = 10.0,
    longest: Duration | None = None,
) -> Recruiter:
    """Return a recruiter that dismisses every caller, whatever the rates.

    Arguments: as of Recruiter.
    """
    return Recruiter(
        seconds=seconds,
        random=_never,
        clock=clock,
        breaker=breaker,
        longest=longest,
    )


@contextmanager
def always_recruiting(recruiter: Recruiter) -> Iterator[Recruiter]:
    """Let a recruiter recruit every caller while the context lasts.

    Arguments: recruiter, such as the one that an application has been built with.
    """
    before = recruiter.use_random(_Always())
    try:
        yield recruiter
    finally:
        recruiter.use_random(before)


@contextmanager
def never_recruiting(recruiter: Recruiter) -> Iterator[Recruiter]:
    """Let a recruiter dismiss every caller while the context lasts.

    Arguments: recruiter, such as the one that an application has been built with.
    """
    before = recruiter.use_random(_never)
    try:
        yield recruiter
    finally:
        recruiter.use_random(before)
