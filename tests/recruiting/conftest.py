"""The fixtures that we ship for users serve our own tests, too."""

from __future__ import annotations

import pytest

from workstealing.clock import SYSTEM_CLOCK
from workstealing.recruiting import deferral
from workstealing.recruiting.faults import FaultLog
from workstealing.testing.pytest_plugin import (  # noqa: F401 - pytest finds fixtures by name
    always_recruiter,
    manual_clock,
    never_recruiter,
    recording_hooks,
)


@pytest.fixture(autouse=True)
def _a_new_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test's first error of a `when` be logged: a process logs one a minute."""
    monkeypatch.setattr(deferral, "when_faults", FaultLog(SYSTEM_CLOCK))
