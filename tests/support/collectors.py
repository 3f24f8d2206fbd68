"""A collector for a process of its own, which cannot import a test module."""

from __future__ import annotations

from typing import Any

import redis

from support.patience import PATIENT_SECONDS
from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import Aborted
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.store.budget import Budget
from workstealing.structures import VolatileHashes


def collect_until_idle(
    port: int, hashes: tuple[str, int], totals: tuple[Any, Any], start: Any
) -> None:
    """Do slices of 25 until three in a row are idle.

    Arguments:
        hashes: their namespace and the shift of their clock in ms.
        totals: the shared values that items and aborts are added to.
        start: the barrier that all collectors begin at.
    """
    namespace, ahead_ms = hashes
    total, aborted = totals
    # A process of its own has none of the test's fixtures, and a busy machine is no dead server.
    Budget.__init__.__defaults__ = (None, PATIENT_SECONDS, SYSTEM_CLOCK)
    with redis.Redis(port=port) as client:
        later = VolatileHashes(client, namespace, clock_shift_ms=ahead_ms)
        job = HashFieldExpiry(later, limit=25)
        start.wait()
        idle = 0
        while idle < 3:
            try:
                handled = job.perform(Slice(25, 10.0))
            except Aborted:
                with aborted.get_lock():
                    aborted.value += 1
                continue
            with total.get_lock():
                total.value += handled
            idle = 0 if handled else idle + 1
