"""What RQ's workers run in test_rq.py: they find jobs and classes by their modules' names."""

from __future__ import annotations

import os
import time
from functools import cache

import redis

from workstealing.integrations import rq as integration
from workstealing.recruiting import Recruiter, Slice

# Of the slices of the worker classes below: until its worker is asked to stop, at most.
HELD_SECONDS = 120.0

recruiter = Recruiter()
events: list[object] = []


def add(a: int, b: int) -> tuple[int, int]:
    """Return the sum, and this process' id."""
    events.append("job")
    return a + b, os.getpid()


def fail() -> None:
    """Fail."""
    events.append("job")
    raise ValueError("mine")


@recruiter.enlists
def decorated() -> str:
    """Enlist, if nobody else does."""
    events.append("job")
    return "done"


def enlist_too_long() -> None:
    """Be recruited, by `recruiter`, for longer than the job may take."""
    recruiter.enlist()


@cache
def client_of(url: str) -> redis.Redis:
    """Return a client that stays.

    A request to stop is lost if it comes while Python collects a client: RQ's worker asks by an
    exception, and none leaves a `__del__`.
    """
    return redis.Redis.from_url(url)


def note(slice: Slice) -> int:
    """Leave this process' id; while the test says so, hold the slice."""
    client = client_of(os.environ["RQ_REDIS_URL"])
    client.rpush("slices", os.getpid())
    while client.exists("hold") and not slice.expired:
        time.sleep(0.01)
    return 1


class Noting:
    """A worker whose every moment is recruited."""

    recruiter = Recruiter(seconds=HELD_SECONDS)
    idle_interval = 1.0


Noting.recruiter.job(rate=1.0)(note)


class Forking(Noting, integration.Worker):
    """With a work horse for each job."""


class Simple(Noting, integration.SimpleWorker):
    """Without."""
