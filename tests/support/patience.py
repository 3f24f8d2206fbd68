"""Time-outs for tests that are about something else."""

from __future__ import annotations

import pytest

from workstealing.store.budget import Budget

PATIENT_SECONDS = 2.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job wait longer than 50 ms for a reply: a busy machine is no dead server.

    Import it where the time-out itself is not what is tested.
    """
    set_timeout(monkeypatch, PATIENT_SECONDS)


def set_timeout(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    """Let each wait of a job last for that many seconds at most."""
    seconds, _, clock = Budget.__init__.__defaults__ or ()
    monkeypatch.setattr(Budget.__init__, "__defaults__", (seconds, timeout, clock))
