"""Ledgers that wait for a busy machine, and are sent when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.ledgers import PATIENCE
from support.patience import set_timeout
from workstealing.metrics import ledger as ledgers
from workstealing.metrics.ledger import (
    Ledger,
)
from workstealing.testing import ManualClock


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be slow: a time-out would lose counts, as it should."""
    monkeypatch.setattr(ledgers, "_SEND_SECONDS", PATIENCE)
    monkeypatch.setattr(ledgers, "_WAIT_SECONDS", PATIENCE)
    set_timeout(monkeypatch, PATIENCE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def make(clock: ManualClock) -> Iterator[Callable[..., Ledger]]:
    """Make ledgers that are sent when the test says so, and end their threads afterwards."""
    made: list[Ledger] = []

    def make(client: Any, *args: Any, **options: Any) -> Ledger:
        ledger = Ledger(client, *args, **{"clock": clock, **options})
        made.append(ledger)
        return ledger

    yield make
    for ledger in made:
        ledger.close(timeout=120.0)
    for ledger in made:
        # It may still be about to send, and would write into a server that has been wiped.
        if ledger._thread is not None:
            ledger._thread.join(PATIENCE)
