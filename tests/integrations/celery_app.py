"""The Celery app that test_celery.py runs workers of; each of its slices leaves its process' id."""

from __future__ import annotations

import os
import signal
from typing import Any

import redis
from celery import Celery

from workstealing.integrations.celery import WorkStealing
from workstealing.recruiting import Recruiter, Slice

URL = os.environ["REDIS_URL"]

app = Celery("tests", broker=URL, backend=URL)
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
recruiter = Recruiter()
WorkStealing(app, recruiter, idle_interval=0.02)

client = redis.Redis.from_url(URL)


@recruiter.job(rate=1.0, seconds=5.0)
def note(slice: Slice) -> int:
    """Leave this process' id; if the test says so, be cut by a soft time limit."""
    client.rpush("slices", os.getpid())
    if client.getdel(f"cut:{os.getpid()}"):
        # What the pool does to a child whose task is late.
        os.kill(os.getpid(), signal.SIGUSR1)
        while not slice.expired:
            pass
    return 1


@app.task
def add(a: int, b: int) -> tuple[int, int]:
    """Return the sum, and this process' id."""
    return a + b, os.getpid()


@app.task
def figures() -> dict[str, Any]:
    """Return the figures of this process' recruiter."""
    return dict(recruiter.stats())


@app.task(bind=True, max_retries=2)
def stubborn(self: Any) -> int:
    """Succeed at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task
def fails() -> None:
    """Fail."""
    raise ValueError("mine")
