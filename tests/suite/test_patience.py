"""Tests that are about something else than time get it, whatever else the machine does."""

from __future__ import annotations

import time

import pytest

from support.patience import PATIENT_SECONDS, be_patient
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.testing import ManualClock


@pytest.fixture
def patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.mark.usefixtures("patiently")
@pytest.mark.parametrize("seconds", [5.0, 10.0])
def test_an_ample_slice_lasts_however_busy_the_machine_is(seconds: float) -> None:
    """A process beside others once waited for 5.4 s for its turn, in the middle of a slice."""
    slice = Slice(1, seconds)
    assert slice.remaining() > PATIENT_SECONDS / 2
    # A report takes its beginning from both.
    assert slice.seconds == PATIENT_SECONDS
    assert slice.deadline - slice.seconds <= time.monotonic()
    assert Slice(1, 2 * PATIENT_SECONDS).seconds == 2 * PATIENT_SECONDS
    budget = Budget(slice.remaining())
    assert budget.deadline is not None
    assert budget.deadline - budget.clock.monotonic() > PATIENT_SECONDS / 2


@pytest.mark.usefixtures("patiently")
def test_an_ample_count_of_garbage_lasts_too() -> None:
    budget = Budget.whole(5.0)
    assert budget.deadline is not None
    assert budget.deadline - budget.clock.monotonic() > PATIENT_SECONDS / 2


@pytest.mark.usefixtures("patiently")
def test_a_slice_whose_length_matters_keeps_it() -> None:
    assert Slice(1, 1.0).remaining() <= 1.0
    clock = ManualClock()
    assert Slice(1, 10.0, clock).remaining() == 10.0


def test_without_the_fixture_nothing_lasts_longer() -> None:
    assert Slice(1, 5.0).remaining() <= 5.0
