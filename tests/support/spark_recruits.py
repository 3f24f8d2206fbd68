"""What the Python workers of Spark's tests import: recruiters' factories and wrapped functions.

Everything is noted in the Redis of the environment, since workers share nothing else with a test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from pyspark import TaskContext

import workstealing
from workstealing import Job, Recruiter, Slice
from workstealing.spark import enlisting
from workstealing.testing import always

SLICES, FACTORIES, DRAWS, TASKS = "test:slices", "test:factories", "test:draws", "test:tasks"
NO_TASK = "no task"


@cache
def client() -> Any:
    """Return this process's client."""
    return workstealing.connect()


def attempt() -> str:
    """Return the running task attempt and its process, as text."""
    context = TaskContext.get()
    return f"{NO_TASK if context is None else context.taskAttemptId()} in {os.getpid()}"


class Note(Job):
    """Notes which task attempt was recruited; handles two items."""

    name = "note"

    def perform(self, slice: Slice) -> int:
        client().rpush(SLICES, attempt())
        return 2


def make() -> Recruiter:
    """Return a recruiter that recruits everybody; note the process."""
    client().rpush(FACTORIES, os.getpid())
    recruiter = always(seconds=5.0)
    recruiter.install(Note(), rate=0.5)
    return recruiter


def make_drawing() -> Recruiter:
    """Return a usual recruiter; note some of its draws."""
    recruiter = Recruiter()
    recruiter.install(Note(), rate=0.5)
    client().rpush(DRAWS, repr([recruiter._random() for _ in range(4)]))
    return recruiter


def make_broken() -> Recruiter:
    """Fail, as a factory without its settings does; note the process."""
    client().rpush(FACTORIES, os.getpid())
    raise RuntimeError("the factory is broken")


def make_nothing() -> None:
    """Return no recruiter."""


def make_an_end() -> None:
    """End the process, as a program does that was meant to be run."""
    sys.exit(3)


@enlisting
def doubled(rows: Iterator[Any]) -> Iterator[Any]:
    """Double each number; pickled by its name, and so decorated anew in every worker."""
    for row in rows:
        yield row * 2
