"""An application with every trouble that deploy/'s alerts know, told by the real StatsD hook.

It lives for 75 minutes: 45 with callers, 30 without, and then its processes end. The hook's
datagrams are real, and so are its caches, breakers' figures and dead boxes; the clock is set.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.apart import set_apart
from support.processes import free_port
from support.statsd import Datagrams
from workstealing import connect
from workstealing.dashboard.watched import Watched
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.statsd import StatsDHooks
from workstealing.recruiting import Outcome, Recruiter
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import CACHES
from workstealing.structures import FairQueue
from workstealing.testing import ManualClock

SILENT_FROM, ENDS, MINUTES = 45, 75, 85
PATIENCE = 60.0
CALLERS = 300

# What becomes of each job's recruits in a minute.
OUTCOMES = {
    "well": {"worked": 20},
    "behind": {"worked": 20},
    "aborts": {"worked": 20, "aborted": 10},
    "unwanted": {},
    "away": {"failed": 1},
    "fails": {"worked": 10, "failed": 10},
    "short": {"worked": 10, "out_of_time": 10},
    "old": {"worked": 1},
    "nothing": {"skipped": 2},
    "rests": {"skipped": 2},
    "stuck": {"worked": 1},
}

# By alert, its labels without the application's.
ALERTS: dict[str, dict[str, str]] = {
    "WorkstealingCannotKeepUp": {"job_name": "behind"},
    "WorkstealingManyAborts": {"job_name": "aborts"},
    "WorkstealingNobodyRecruited": {"job_name": "unwanted"},
    "WorkstealingBreakerOpen": {"job_name": "away"},
    "WorkstealingManyFailures": {"job_name": "fails"},
    "WorkstealingSlicesTooShort": {"job_name": "short"},
    "WorkstealingOldGarbage": {"job_name": "old"},
    "WorkstealingNothingWorks": {"job_name": "nothing"},
    "WorkstealingSliceStuck": {"job_name": "stuck"},
    "WorkstealingUnreached": {"job_name": "away"},
    "WorkstealingDeadItemsUnknown": {"structure": "gone", "kind": "Ick"},
    "WorkstealingDeadItems": {"structure": "mails", "kind": "shuffle_queue"},
    "WorkstealingAccountWaits": {"structure": "renderings", "account": "alice"},
    "WorkstealingWaitingUnknown": {"structure": "lost"},
    "WorkstealingNotReported": {"receiver": "the_ledger_shop"},
    "WorkstealingCacheUncached": {"cache": "silent"},
    "WorkstealingCacheSourceFails": {"cache": "failing"},
}
# "away" fails each time, too, as a job does whose server is away.
ALSO = [("WorkstealingManyFailures", {"job_name": "away"})]
ALSO += [("WorkstealingNothingWorks", {"job_name": "away"})]
ONLY_WHEN_SILENT = ("WorkstealingFleetSilent", dict[str, str]())


class WaitingQueue(FairQueue):
    """A fair queue without a server, of which a test says who waits; None: nobody knows."""

    name: str

    def __init__(self, name: str, waiting: dict[str, float] | None) -> None:
        self.name, self.waiting, self.is_exact = name, waiting, True

    def dead_steps(self) -> Any:
        return None

    def inspect(self, steps: Any, seconds: Any = 5.0) -> Any:
        if steps is None:
            return ()
        steps.close()
        if self.waiting is None:
            raise ConnectionError("nobody there")
        accounts = {
            name: SimpleNamespace(account=name, waiting=1, oldest_waiting_seconds=age)
            for name, age in self.waiting.items()
        }
        return {"accounts": accounts, "exact": self.is_exact}


def troubled(minute: int) -> dict[str, dict[str, Any]]:
    """Return the figures of the jobs of a process in which everything goes wrong."""
    jobs: dict[str, dict[str, Any]] = {job: {"rate": 0.0001, "keeps_up": True} for job in OUTCOMES}
    jobs["unwanted"]["rate"] = 0.01
    # Unknown at first, and never shown as known.
    jobs["behind"]["keeps_up"] = None if minute < 5 else False
    jobs["stuck"]["running_seconds"] = 60.0 * minute
    jobs["away"] |= {"breaker_open": True, "breaker_seconds": 60.0 * minute}
    jobs["rests"]["paused"] = True
    return jobs


def healthy() -> dict[str, dict[str, Any]]:
    """Return the figures of another process, in which all is well."""
    return {job: {"rate": 0.0001, "keeps_up": True} for job in OUTCOMES if job != "unwanted"}


def datagrams_by_minute(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the lines that the two processes send in each minute."""
    clock, minutes = ManualClock(1_000.0), []
    set_apart(monkeypatch, clock)
    monkeypatch.setattr(SERVER_BREAKERS, "clock", clock)
    figures: dict[int, Any] = {}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": figures[id(self)]})
    ledger = Ledger(connect(f"redis://127.0.0.1:{free_port()}/0"), "shop", clock=clock)
    breaker = SERVER_BREAKERS.of(("server", ("cache.local", 6379)))
    breaker.fail(clock.monotonic(), None)

    def away() -> int:
        raise ConnectionError("nobody there")

    structures = [
        Watched("mails", "shuffle queue", dead_size=lambda: 2),
        Watched("gone", "Ick", dead_size=away),
        Watched("orders", "Ick", dead_size=lambda: 0),
        WaitingQueue("renderings", {"alice": 2_000.0, "bob": 1.0}),
        WaitingQueue("lost", None),
    ]
    with Datagrams() as socket:
        port = socket.port
        one = StatsDHooks("127.0.0.1", port, clock=clock, sender="1", structures=structures)
        other = StatsDHooks("127.0.0.1", port, clock=clock, sender="2")
        recruiters = [Recruiter(), Recruiter()]
        for each, hooks in zip(recruiters, (one, other), strict=True):
            figures[id(each)] = {}
            each.add_hook(hooks)
        for minute in range(MINUTES):
            if minute < ENDS:
                figures[id(recruiters[0])], figures[id(recruiters[1])] = troubled(minute), healthy()
                if minute < SILENT_FROM:
                    _call(one, minute)
                ledger.on_enlisted(1)
                assert not ledger.flush(PATIENCE)
                for hooks in (one, other):
                    # Nothing is counted any more, but time passes, and the thread looks.
                    hooks._batch.counts["enlisted"] += 0
                    hooks._next_gauges = clock.monotonic()
                    assert hooks.flush(PATIENCE)
            minutes.append(socket.received())
            clock.advance(60.0)
        for hooks in (one, other):
            hooks.close(PATIENCE)
    ledger.close(0.0)
    return minutes


def _call(hooks: StatsDHooks, minute: int) -> None:
    """Let a minute's callers come."""
    for cache, fails in (("silent", False), ("failing", True), ("good", False)):
        counts = CACHES.of(cache)
        counts.miss(5)
        for _ in range(5):
            counts.compute(0.01)
        if fails:
            for _ in range(5):
                counts.fail()
        if cache == "silent":
            counts.leave(5)
    CACHES.of("good").hit(95)
    CACHES.of("good").old()
    CACHES.of("good").wait()
    hooks.on_enlisted(CALLERS)
    for job, outcomes in OUTCOMES.items():
        for outcome, count in outcomes.items():
            for number in range(count):
                hooks.on_recruited(job)
                error = ConnectionError() if outcome == "failed" else None
                seconds = 0.001 * (number + 1)
                hooks.on_outcome(job, Outcome(outcome), 3, seconds, error)
    hooks.on_observed("old", 2_000.0 + minute, 70)
    hooks.on_observed("well", 0.0, 0)
    hooks.on_measured("well", "tombstones", -1.5)
