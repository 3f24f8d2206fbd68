"""Fixtures for pytest; write `pytest_plugins = ["workstealing.testing.pytest_plugin"]`."""

from __future__ import annotations

import pytest

from workstealing.recruiting import Recruiter
from workstealing.testing import ManualClock, RecordingHooks, always, never


@pytest.fixture
def manual_clock() -> ManualClock:
    """Return a clock that stands still until it is advanced."""
    return ManualClock()


@pytest.fixture
def recording_hooks() -> RecordingHooks:
    """Return the hooks that listen to this test's `always_recruiter` and `never_recruiter`."""
    return RecordingHooks()


@pytest.fixture
def always_recruiter(recording_hooks: RecordingHooks) -> Recruiter:
    """Return a recruiter that recruits every caller; `recording_hooks` listens to it."""
    recruiter = always()
    recruiter.add_hook(recording_hooks)
    return recruiter


@pytest.fixture
def never_recruiter(recording_hooks: RecordingHooks) -> Recruiter:
    """Return a recruiter that dismisses every caller; `recording_hooks` listens to it."""
    recruiter = never()
    recruiter.add_hook(recording_hooks)
    return recruiter
