"""A process whose cached functions never hit enlists nobody, and its figures are sent all the same.

A hit enlists, and a miss does not: beside a silent Redis, or a source that fails, there are misses
alone, and nobody would hear of what is worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.apart import set_apart
from support.servers import RedisServer
from support.silent_server import SilentServer
from support.statsd import Datagrams
from workstealing import Recruiter
from workstealing.metrics.ledger import Ledger, read, total_of_caches
from workstealing.metrics.prometheus import PrometheusHooks
from workstealing.metrics.statsd import StatsDHooks
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock

PATIENCE = 120.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    set_apart(monkeypatch, clock)


@pytest.fixture
def silent() -> Iterator[VolatileHashes]:
    """Volatile hashes on a server that takes connections and never answers."""
    with SilentServer() as server:
        client = redis.Redis(
            port=server.port, socket_timeout=0.05, retry=Retry(NoBackoff(), 0), protocol=2
        )
        yield VolatileHashes(client, "cached", backend="emulated")


def failing(hashes: VolatileHashes) -> Callable[[], Any]:
    """Return a cached function whose source fails."""

    @hashes.cached(ttl=60, key="price")
    def price() -> int:
        raise LookupError("the source is away")

    def call() -> None:
        with pytest.raises(LookupError):
            price()

    return call


def test_statsd(silent: VolatileHashes, clock: ManualClock) -> None:
    with Datagrams() as datagrams:
        hooks = StatsDHooks("127.0.0.1", datagrams.port, clock=clock)
        recruiter = Recruiter()
        recruiter.add_hook(hooks)
        call = failing(silent)
        for _ in range(5):
            call()
            clock.advance(1.0)
        call()
        assert hooks.flush(PATIENCE)
        counts: dict[str, int] = {}
        for line in datagrams.received():
            name, _, value = line.partition(":")
            figure = name.rpartition(".")[2]
            if value.endswith("|c"):
                counts[figure] = counts.get(figure, 0) + int(value[:-2])
        hooks.close(PATIENCE)
    assert "enlisted" not in counts
    assert (counts["misses"], counts["failures"], counts["uncached"]) == (6, 6, 6)


def test_prometheus_at_a_scrape(silent: VolatileHashes) -> None:
    registry = CollectorRegistry()
    recruiter = Recruiter()
    recruiter.add_hook(PrometheusHooks(registry))
    call = failing(silent)
    for _ in range(5):
        call()
    cache = {"cache": "failing.<locals>.price"}
    for figure in ("failures", "uncached", "computations"):
        assert registry.get_sample_value(f"workstealing_cache_{figure}_total", cache) == 5


def test_a_ledger(redis7: RedisServer, silent: VolatileHashes, clock: ManualClock) -> None:
    client = redis7.client()
    ledger = Ledger(client, clock=clock)
    recruiter = Recruiter()
    recruiter.add_hook(ledger)
    call = failing(silent)
    for _ in range(3):
        call()
        clock.advance(1.0)
    assert ledger.flush(PATIENCE)
    ledger.close(PATIENCE)
    (found,) = total_of_caches(read(client, minutes=2)).values()
    assert (found.misses, found.failures, found.uncached) == (3, 3, 3)
    assert sum(minute.enlisted for minute in read(client, minutes=2)) == 0
