"""Ledgers in tests of several files: their patience, and a recruit to tell."""

from __future__ import annotations

from workstealing.metrics.ledger import (
    Ledger,
)
from workstealing.recruiting import Outcome

PATIENCE = 120.0


def work(ledger: Ledger, job: str, outcome: Outcome, items: int = 0, seconds: float = 0.0) -> None:
    """Tell a ledger of one recruit."""
    ledger.on_recruited(job)
    ledger.on_outcome(job, outcome, items, seconds, None)
