"""The cache backends beside a Redis that does not answer: a time-out a period, by the breaker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.servers import RedisServer
from support.silent_server import SilentServer
from workstealing import Recruiter
from workstealing.integrations.cache_entries import CacheEntries
from workstealing.integrations.django_cache import Cache
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import CACHES
from workstealing.store.fleet import Fleet
from workstealing.structures import VolatileHashes, cache_stats
from workstealing.testing import ManualClock

ONCE: dict[str, Any] = {"socket_timeout": 0.05, "retry": Retry(NoBackoff(), 0)}
LONGEST = 15.01


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Let breakers measure by a clock that stands still."""
    clock = ManualClock()
    monkeypatch.setattr(SERVER_BREAKERS, "clock", clock)
    return clock


@pytest.fixture
def silent(clock: ManualClock) -> Iterator[SilentServer]:
    with SilentServer() as server:
        yield server


def entries_on(client: Any, on_fault: str = "miss") -> CacheEntries:
    return CacheEntries(VolatileHashes(client, "cache"), 64, Recruiter(), on_fault)


class TestASilentServer:
    @pytest.mark.parametrize(
        ("call", "answer"),
        [
            (lambda entries, key: entries.get_many([key, "other"]), {}),
            (lambda entries, key: entries.set_many({key: 1, "other": 2}, 60), False),
            (lambda entries, key: entries.set_many({key: 1}, 0), False),
            (lambda entries, key: entries.get_or_add(key, "mine", 60), "mine"),
            (lambda entries, key: entries.computed(key, lambda: "made", 60), "made"),
        ],
        ids=["get_many", "set_many", "end_many", "get_or_add", "computed"],
    )
    def test_twenty_calls_cost_a_time_out(
        self, silent: SilentServer, clock: ManualClock, call: Any, answer: Any
    ) -> None:
        entries = entries_on(redis.Redis(port=silent.port, **ONCE))
        for period in (1, 2):
            assert [call(entries, str(number)) for number in range(20)] == [answer] * 20
            assert silent.connections == period
            clock.advance(LONGEST)

    @pytest.mark.parametrize(
        "call",
        [
            lambda entries: entries.delete_many(["a"]),
            lambda entries: entries.add("a", 1, 60),
            lambda entries: entries.touch("a", 60),
            lambda entries: entries.increment("a", 1),
            lambda entries: entries.move("a", "b"),
            lambda entries: entries.has("a"),
            lambda entries: entries.clear(),
        ],
        ids=["delete_many", "add", "touch", "increment", "move", "has", "clear"],
    )
    def test_an_answer_that_cannot_be_guessed_is_asked_for(
        self, silent: SilentServer, call: Any
    ) -> None:
        entries = entries_on(redis.Redis(port=silent.port, **ONCE))
        assert entries.get_many(["a"]) == {}
        for tries in (2, 3):
            with pytest.raises(redis.TimeoutError):
                call(entries)
            assert silent.connections == tries

    def test_who_wants_errors_gets_them(self, silent: SilentServer) -> None:
        entries = entries_on(redis.Redis(port=silent.port, **ONCE), "raise")
        for tries in (1, 2, 3):
            with pytest.raises(redis.TimeoutError):
                entries.get_many(["a"])
            assert silent.connections == tries

    def test_a_node_of_a_fleet_costs_two_and_spares_the_others(
        self, redis7: RedisServer, silent: SilentServer
    ) -> None:
        """An error of several nodes does not say whose it is: the next one does."""
        fleet = Fleet(
            {
                "alive": redis.Redis(port=redis7.port, **{**ONCE, "socket_timeout": 5}),
                "silent": redis.Redis(port=silent.port, **ONCE),
            }
        )
        entries = entries_on(fleet)
        keys = [str(number) for number in range(50)]
        homes = {key: fleet.home(entries.place(key)) for key in keys}
        alive = {key for key in keys if homes[key] == "alive"}
        assert 0 < len(alive) < len(keys)
        for _ in range(20):
            entries.set_many(dict.fromkeys(keys, 1), 60)
        assert silent.connections == 2
        assert [entries.get_many(keys) for _ in range(20)] == [dict.fromkeys(alive, 1)] * 20
        assert silent.connections == 2


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function of the cache's figures, but for the seconds and zeros."""
    monkeypatch.setattr(CACHES, "_figures", {})

    def figures() -> dict[str, float]:
        found: Any = cache_stats()["cache"]
        return {name: value for name, value in found.items() if value and name != "seconds"}

    return figures


def test_each_key_is_a_hit_or_a_miss_of_its_namespace(redis7: RedisServer, figures: Any) -> None:
    entries = entries_on(redis7.client())
    entries.set_many({"a": 1, "b": 2}, 60)
    assert cache_stats() == {}
    entries.get_many(["a", "b", "c", "a"])
    assert figures() == {"hits": 2, "misses": 1}
    entries.get_many(["a"])
    assert figures() == {"hits": 3, "misses": 1}
    entries.get_or_add("d", 4, 60)
    assert figures() == {"hits": 3, "misses": 2}
    entries.get_or_add("d", 5, 60)
    assert figures() == {"hits": 4, "misses": 2}


def test_a_get_or_set_of_djangos_looks_once(
    redis7: RedisServer, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_on(redis7.client())
    monkeypatch.setattr("workstealing.integrations.django_cache.opened", lambda _: entries)
    cache = Cache("", {})
    assert [cache.get_or_set("a", lambda: 1) for _ in range(3)] == [1, 1, 1]
    assert figures() == {"hits": 2, "misses": 1, "computations": 1}


def test_reads_without_redis_are_counted(silent: SilentServer, figures: Any) -> None:
    entries = entries_on(redis.Redis(port=silent.port, **ONCE))
    for _ in range(5):
        entries.get_many(["a", "b"])
        entries.set_many({"a": 1}, 60)
    assert figures() == {"misses": 10, "uncached": 10}


def test_a_server_that_answers_again_is_used(redis7: RedisServer, clock: ManualClock) -> None:
    entries = entries_on(redis7.client())
    assert entries.set_many({"a": 1}, 60)
    breaker = entries.hashes.job_client.breaker_of("any")
    for _ in range(2):
        breaker.fail(clock.monotonic(), None)
        assert entries.get_many(["a"]) == {}
        clock.advance(LONGEST)
        assert entries.get_many(["a"]) == {"a": 1}
        assert breaker.outage is None
