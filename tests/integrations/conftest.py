"""A recruiter that always recruits, and a log of what happened, for all integration tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

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
    """Return a function that runs a program in a fresh interpreter and returns what it printed."""

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Give pytest its signal handlers back: RQ's workers take them and keep them."""
    kept = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)
