"""A recruiter that always recruits, and a log of what happened, for all integration tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.client import PubSub, PubSubWorkerThread

from workstealing.recruiting import Recruiter, Slice


@pytest.fixture
def events() -> list[object]:
    """Return the log of what happened, in order; a slice appends "slice"."""
    return []


@pytest.fixture
def recruiter(events: list[object]) -> Recruiter:
    """Return a recruiter that recruits every caller for a job that only notes it."""
    recruiter = Recruiter()

    def note(slice: Slice) -> int:
        events.append("slice")
        return 1

    recruiter.job(rate=1.0)(note)
    return recruiter


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Return a function that runs a program in a fresh interpreter and returns its output."""

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def rq_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let RQ's workers run in this process, and leave nothing of theirs in it.

    They take pytest's signal handlers and keep them; and they stop their subscription's thread, but
    not at once where it waits for a message, which it does for a minute.
    """
    kept = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    subscriptions: list[PubSubWorkerThread] = []

    def run_in_thread(pubsub: PubSub, sleep_time: float, **options: Any) -> PubSubWorkerThread:
        del sleep_time
        subscriptions.append(original(pubsub, sleep_time=0.01, **options))
        return subscriptions[-1]

    original = PubSub.run_in_thread
    monkeypatch.setattr(PubSub, "run_in_thread", run_in_thread)
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)
    for thread in subscriptions:
        # Once more: it may have begun after it was stopped.
        thread.stop()
