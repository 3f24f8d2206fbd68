"""What metrics systems have in common: job names in bounded number, and the recruiters' figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast
from weakref import WeakSet

from workstealing.recruiting.health import ERRORS_NAMED, OTHER_ERRORS, error_name
from workstealing.recruiting.recruiter import Recruiter

JOBS_NAMED = 100
OTHER_JOBS = "_other"
_NAME_LENGTH = 200

SLICE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds in seconds: a slice has 10 ms unless told otherwise."""


def sendable(job: str) -> str:
    """Return a job's name as it goes out of the process; nearly always the name itself.

    What is no text, a file's name for instance, could not be sent, nor what goes with it.
    """
    return job.encode(errors="backslashreplace").decode()


class JobNames:
    """The first hundred jobs by their own names, cut at 200 letters; all others as "_other"."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, job: str) -> str:
        """Return the name that a job is counted by."""
        name = sendable(job[:_NAME_LENGTH])[:_NAME_LENGTH]
        if name not in self._known:
            if len(self._known) >= JOBS_NAMED:
                return OTHER_JOBS
            self._known.add(name)
        return name


class Watched:
    """The recruiters that a hook was added to, held weakly."""

    def __init__(self, names: JobNames) -> None:
        self._recruiters: WeakSet[Recruiter] = WeakSet()
        self._names = names

    def add(self, recruiter: Recruiter) -> None:
        """Watch one more recruiter."""
        self._recruiters.add(recruiter)

    def jobs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the figures, as of `stats()`, of each job that has a name here."""
        for recruiter in list(self._recruiters):
            for job, figures in recruiter.stats()["jobs"].items():
                name = self._names(job)
                if name != OTHER_JOBS:
                    yield name, cast("Mapping[str, Any]", figures)


class ErrorNames:
    """The names that errors of a job are counted by: its first eight classes, "_other" beyond."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def __call__(self, job: str, error: BaseException) -> str:
        """Return the name that an error of a job is counted by."""
        known = self._known.setdefault(job, set())
        name = error_name(error)
        if name not in known:
            if len(known) >= ERRORS_NAMED:
                return OTHER_ERRORS
            known.add(name)
        return name
