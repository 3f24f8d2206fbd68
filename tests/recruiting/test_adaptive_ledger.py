"""A daily cap that a whole fleet shares through its ledger."""

from __future__ import annotations

import pytest
from redis import Redis

from support.patience import GUARD_SECONDS, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Adaptive, Outcome, Recruiter
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
    # It has not heard of the first one's spending yet, and asks before its first slice.
    assert recruiter.enlist() is Outcome.SKIPPED
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


def _capped_fleet(server: RedisServer, name: str, size: int, cap: int) -> list[Recruiter]:
    """Return recruiters of as many processes, none of which has reported yet."""
    writer: VolatileHashes = VolatileHashes(server.client(), namespace=name, backend="emulated")
    writer.hsetex("h", mapping={"a": 1}, ex=60)
    fleet = []
    for _ in range(size):
        ledger = Ledger(server.client(), name=name)
        recruiter = always(seconds=5.0)
        recruiter.add_hook(ledger)
        job = HashFieldExpiry(writer, limit=4)
        recruiter.install(job, Adaptive(0.5, 1.0, max_ops_per_day=cap, spending=ledger))
        fleet.append(recruiter)
    return fleet


def _spent(server: RedisServer, name: str) -> int:
    """Return the fleet's total as a process hears it that has spent nothing."""
    ledger = Ledger(server.client(), name=name)
    try:
        total = ledger.claim(0)
    finally:
        ledger.close()
    assert total is not None
    return total


def test_processes_that_have_not_heard_of_each_other_share_the_cap(redis7: RedisServer) -> None:
    # Each slice is a look, of 20 commands; each process alone may do ten.
    fleet = _capped_fleet(redis7, "shared-cap", 8, 200)
    for recruiter in fleet:
        recruiter.perform("hash_field_expiry.shared-cap")
        # A first slice costs more than was claimed for it, so its report follows at once.
        assert recruiter.hooks()[0].flush(GUARD_SECONDS)
    for _ in range(10):
        for recruiter in fleet:
            recruiter.perform("hash_field_expiry.shared-cap")
    figures = [recruiter.stats()["jobs"]["hash_field_expiry.shared-cap"] for recruiter in fleet]
    looks = sum(each["idle"] for each in figures)
    assert 20 * looks == 200
    for recruiter in fleet:
        recruiter.flush()
        for hook in recruiter.hooks():
            assert hook.flush(GUARD_SECONDS)
            hook.close()
    # The claims have become what the slices took.
    assert _spent(redis7, "shared-cap") == 20 * looks


def test_a_slice_that_is_cut_off_gives_no_claim_back(redis7: RedisServer) -> None:
    (recruiter,) = _capped_fleet(redis7, "cut-cap", 1, 1000)
    (ledger,) = recruiter.hooks()
    assert ledger.claim(5) == 0
    # Killed here: what was claimed stays counted.
    assert _spent(redis7, "cut-cap") == 5
    ledger.close()


def test_without_an_answer_a_process_spends_the_cap_by_itself_at_most(
    redis7: RedisServer,
) -> None:
    writer: VolatileHashes = VolatileHashes(redis7.client(), namespace="lone", backend="emulated")
    writer.hsetex("h", mapping={"a": 1}, ex=60)
    away = Ledger(Redis(port=1), name="lone")
    recruiter = always(seconds=5.0)
    recruiter.add_hook(away)
    rate = Adaptive(0.5, 1.0, max_ops_per_day=100, spending=away)
    recruiter.install(HashFieldExpiry(writer, limit=4), rate)
    outcomes = [recruiter.perform("hash_field_expiry.lone") for _ in range(20)]
    assert outcomes == [Outcome.IDLE] * 5 + [Outcome.SKIPPED] * 15
    away.close()
