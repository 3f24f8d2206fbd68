"""A process without the caches, hooks and listeners of the tests before."""

from __future__ import annotations

import weakref

import pytest

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.metrics import gathering, prometheus
from workstealing.recruiting import cache_figures


def set_apart(monkeypatch: pytest.MonkeyPatch, clock: Clock = SYSTEM_CLOCK) -> None:
    """Forget them for one test; the clock says when listeners hear of caches."""
    listeners = cache_figures.Listeners(clock)
    for module in (cache_figures, gathering, prometheus):
        monkeypatch.setattr(module, "LISTENERS", listeners)
    monkeypatch.setattr(gathering, "_alive", weakref.WeakSet())
    monkeypatch.setattr(cache_figures.CACHES, "_figures", {})
