"""A daily cap that a whole fleet shares through its ledger."""

from __future__ import annotations

import pytest

from support.patience import GUARD_SECONDS, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Adaptive, Outcome
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics.ledger import Ledger
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock, always

pytestmark = pytest.mark.real


def test_what_one_process_spends_stops_the_others(redis7: RedisServer) -> None:
    writer: VolatileHashes = VolatileHashes(redis7.client(), namespace="capped", backend="emulated")
    writer.hsetex("h", mapping={"a": 1}, ex=60)
    # Nothing has expired: each slice is a look, of 20 commands.
    job = HashFieldExpiry(writer, limit=4)
    fleet = []
    for _ in range(2):
        clock = ManualClock()
        ledger = Ledger(redis7.client(), name="capped")
        recruiter = always(seconds=5.0, clock=clock)
        recruiter.add_hook(ledger)
        recruiter.install(job, Adaptive(0.01, 1.0, max_ops_per_day=500, spending=ledger))
        fleet.append((clock, ledger, recruiter))
    clock, ledger, recruiter = fleet[0]
    for _ in range(200):
        clock.advance(1.0)
        recruiter.enlist()
    figures = recruiter.stats()["jobs"][job.name]
    assert figures["rate"] == 0.0
    assert ledger.spent_today() == 20 * figures["idle"]
    # A slice may begin just below 98 %, and the next recruit has been drawn by then.
    assert 490 <= ledger.spent_today() < 490 + 2 * 20
    assert ledger.flush(GUARD_SECONDS)
    clock, other, recruiter = fleet[1]
    clock.advance(1.0)
    assert recruiter.enlist() is Outcome.IDLE
    recruiter.flush()
    assert other.flush(GUARD_SECONDS)
    assert other.spent_today() > 490
    for _ in range(3):
        clock.advance(1.0)
        recruiter.enlist()
    assert recruiter.stats()["jobs"][job.name]["rate"] == 0.0
    clock.advance(1.0)
    assert recruiter.enlist() is Outcome.DISMISSED
    for _, ledger, _ in fleet:
        ledger.close()
