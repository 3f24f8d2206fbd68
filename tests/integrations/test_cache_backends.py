"""The cache backends for Django and Flask-Caching: their frameworks' contracts, on real servers."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import pickle
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import flask
import pytest
import redis
from asgiref.sync import ThreadSensitiveContext
from flask_caching import Cache as FlaskCache
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.any_server import AnyServer
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing.errors import Aborted, ConfigurationError, Skipped
from workstealing.integrations import cache_entries
from workstealing.integrations.cache_entries import (
    CacheEntries,
    CacheSettings,
    entry_form,
    opened,
)
from workstealing.integrations.django_cache import Cache
from workstealing.integrations.flask_caching import VolatileHashCache
from workstealing.jobs import (
    HashFieldExpiry,
    MigrateToEmulated,
    MigrateToNative,
)
from workstealing.jobs.shared import backend_moves
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.deferral import Deferral, current
from workstealing.store.fleet import Fleet
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes import hashes as hashes_module
from workstealing.structures.volatile_hashes.cached_policy import JSON
from workstealing.structures.volatile_hashes.surface import LEASE, STORE
from workstealing.testing import never

shared: Any = None
"""The client that the import path of a test names."""
maintenance = Recruiter()
_numbers = itertools.count()


class Counting:
    """An enlister that counts."""

    def __init__(self) -> None:
        self.enlisted = 0

    def enlist(self) -> None:
        self.enlisted += 1


enlister = Counting()


@pytest.fixture
def counting() -> Counting:
    """Return an enlister that counts."""
    return Counting()


@pytest.fixture(params=["emulated", "native"])
def hashes(request: pytest.FixtureRequest) -> VolatileHashes:
    """Return hashes of either backend, whose clock `shift` sets ahead."""
    server = request.getfixturevalue("redis8" if request.param == "native" else "redis7")
    return VolatileHashes(server.client(), "cache", backend=request.param)


@pytest.fixture
def entries(hashes: VolatileHashes, counting: Counting) -> CacheEntries:
    """Return entries in a few hashes."""
    return CacheEntries(hashes, 7, counting)


@pytest.fixture
def django_cache(entries: CacheEntries, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Return a Django cache on those entries."""
    monkeypatch.setattr("workstealing.integrations.django_cache.opened", lambda _: entries)
    return Cache("", {"KEY_PREFIX": "p", "OPTIONS": {"MAX_ENTRIES": 5}})


def left(entries: CacheEntries, key: str) -> int:
    """Return the milliseconds that an entry has left; -1 without a deadline, -2 without it."""
    (ms,) = entries.hashes.hpttl(entries.place(key), key)
    return int(ms)


@pytest.mark.parametrize(
    "value", [0, -7, 2**63 - 1, 2**63, -(2**80), True, None, 1.5, "3", b"", b"5", {"a": [1]}, ()]
)
def test_each_value_comes_back_as_it_was(value: object) -> None:
    form = entry_form("pickle")
    found = form.decode(form.encode(value))
    assert found == value
    assert type(found) is type(value)


def test_django_sets_gets_and_deletes(django_cache: Cache) -> None:
    cache = django_cache
    cache.set("a", {"b": 1})
    assert cache.get("a") == {"b": 1}
    assert cache.get("other", "default") == "default"
    assert cache.has_key("a")
    assert "a" in cache
    assert cache.delete("a")
    assert not cache.delete("a")
    assert not cache.has_key("a")


def test_django_tells_a_kept_none_from_a_miss(django_cache: Cache) -> None:
    django_cache.set("none", None)
    assert django_cache.get("none", "default") is None
    assert not django_cache.add("none", 1)
    assert django_cache.get_or_set("none", 5, 10) is None


def test_django_takes_many_at_once(django_cache: Cache) -> None:
    keys = [f"k{n}" for n in range(40)]
    assert django_cache.set_many({key: key for key in keys}) == []
    assert django_cache.get_many([*keys, "other"]) == {key: key for key in keys}
    django_cache.delete_many(keys[:30])
    assert set(django_cache.get_many(keys)) == set(keys[30:])
    assert django_cache.set_many({}) == []
    assert django_cache.get_many([]) == {}


def test_django_adds_only_where_nothing_is(django_cache: Cache) -> None:
    assert django_cache.add("a", 1, 60)
    assert not django_cache.add("a", 2, 60)
    assert django_cache.get("a") == 1
    assert django_cache.add("b", 1, 0)
    assert django_cache.get("b") is None


def test_django_gets_or_sets(django_cache: Cache, entries: CacheEntries) -> None:
    cache = django_cache
    assert cache.get_or_set("a", 1) == 1
    assert cache.get_or_set("a", lambda: 2) == 1
    assert cache.get_or_set("b", dict, 60) == {}
    assert 0 < left(entries, cache.make_key("b")) <= 60_000
    assert cache.get_or_set("c", lambda: 5, None) == 5
    # As `set` would have written it: others read it, and count on it.
    assert cache.get("c") == 5
    assert cache.incr("c") == 6
    assert cache.get_or_set("d", lambda: 7, 0) == 7
    assert not cache.has_key("d")
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("e", lambda: 1 // 0)
    assert cache.get_or_set("e", lambda: None) is None
    assert "e" in cache


def test_one_caller_computes_what_many_want(django_cache: Cache) -> None:
    begun, go, calls = threading.Event(), threading.Event(), []

    def compute() -> str:
        calls.append(1)
        begun.set()
        assert go.wait(60)
        return "made"

    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(django_cache.get_or_set("a", compute)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert found == ["made"] * 5
    # A caller whose thread got no turn for two seconds would compute, too.
    assert len(calls) < 5


@pytest.mark.parametrize("how", ["set", "add", "delete", "clear"])
def test_a_value_under_way_overwrites_no_later_one(entries: CacheEntries, how: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def compute() -> str:
        begun.set()
        assert go_on.wait(120)
        return "old"

    thread = threading.Thread(target=lambda: entries.computed("k", compute, 600))
    thread.start()
    assert begun.wait(120)
    if how == "set":
        entries.set_many({"k": "new"}, 600)
    elif how == "add":
        assert entries.add("k", "new", 600)
    elif how == "delete":
        entries.delete_many(["k"])
    else:
        entries.clear()
    go_on.set()
    thread.join()
    assert entries.get_many(["k"]) == ({"k": "new"} if how in ("set", "add") else {})


def test_djangos_timeouts(django_cache: Cache, entries: CacheEntries) -> None:
    cache = django_cache
    cache.set("default", 1)
    cache.set("none", 1, None)
    cache.set("short", 1, 50)
    cache.set("over", 1)
    cache.set("over", 1, 0)
    cache.set("past", 1, -1)
    assert 299_000 - 60_000 < left(entries, "p:1:default") <= 300_000
    assert left(entries, "p:1:none") == -1
    assert 0 < left(entries, "p:1:short") <= 50_000
    assert cache.get("over") is None
    assert cache.get("past") is None
    assert cache.touch("none", 20)
    assert 0 < left(entries, "p:1:none") <= 20_000
    assert cache.touch("none", None)
    assert left(entries, "p:1:none") == -1
    assert cache.touch("none", 0)
    assert cache.get("none") is None
    assert not cache.touch("none", 20)
    assert not cache.touch("none", None)


def test_an_expired_entry_is_gone_and_a_recruit_frees_it(redis7: Any) -> None:
    def ahead(ms: int) -> VolatileHashes:
        return VolatileHashes(redis7.client(), "cache", backend="emulated", clock_shift_ms=ms)

    entries = CacheEntries(ahead(0), 1, Counting())
    entries.set_many({"short": 1, "long": 1}, 5)
    entries.touch("long", 3600)
    later = CacheEntries(ahead(10_000), 1, Counting())
    assert later.get_many(["short", "long"]) == {"long": 1}
    assert redis7.client().hexists(entries.place("short"), "short")
    assert HashFieldExpiry(ahead(10_000)).perform(Slice(limit=5, seconds=60)) == 1
    assert not redis7.client().hexists(entries.place("short"), "short")
    assert later.get_many(["short", "long"]) == {"long": 1}


def test_django_counts_and_keeps_the_deadline(django_cache: Cache, entries: CacheEntries) -> None:
    django_cache.set("n", 41, 60)
    assert django_cache.incr("n") == 42
    assert django_cache.decr("n", 10) == 32
    assert django_cache.incr("n", True) == 33
    assert django_cache.decr("n", True) == 32
    assert django_cache.get("n") == 32
    assert 0 < left(entries, "p:1:n") <= 60_000
    with pytest.raises(ValueError, match="not found"):
        django_cache.incr("missing")
    assert not django_cache.has_key("missing")
    django_cache.set("text", "many")
    with pytest.raises(TypeError, match="whole number"):
        django_cache.incr("text")
    django_cache.set("most", 2**63 - 1)
    with pytest.raises(OverflowError, match="64 bits"):
        django_cache.incr("most")
    assert django_cache.get("most") == 2**63 - 1


@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_a_count_is_one_step(request: pytest.FixtureRequest, backend: str) -> None:
    """A count that died between two steps left an entry without a deadline for ever."""
    server = request.getfixturevalue("redis8" if backend == "native" else "redis7")
    with FaultyServer(server.port) as door, redis.Redis(port=door.port, protocol=2) as client:
        entries = CacheEntries(VolatileHashes(client, "cache", backend=backend), 7, Counting())
        entries.set_many({"n": 2**60}, 60)
        # The script is loaded.
        assert entries.increment("n", 1) == 2**60 + 1
        before = len(door.names())
        assert entries.increment("n", -2) == 2**60 - 1
        assert entries.increment("gone", 3) is None
        assert door.names()[before:] == ["EVALSHA"] * 2
        assert not entries.has("gone")
        assert 0 < left(entries, "n") <= 60_000


def test_an_expired_number_is_not_counted_on(redis7: Any) -> None:
    def ahead(ms: int) -> CacheEntries:
        hashes = VolatileHashes(redis7.client(), "cache", backend="emulated", clock_shift_ms=ms)
        return CacheEntries(hashes, 1, Counting())

    ahead(0).set_many({"n": 5, "lasting": 1}, 5)
    ahead(0).touch("lasting", None)
    assert ahead(10_000).increment("n", 1) is None
    assert ahead(0).get_many(["n", "lasting"]) == {"lasting": 1}


def test_numbers_are_counted_on_while_the_namespace_moves(
    redis8: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_moves, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(hashes_module, "LAYOUT_SECONDS", 0.0)
    hashes = VolatileHashes(redis8.client(), "cache", backend="emulated")
    hashes.open()
    # Not bound to a backend.
    hashes = VolatileHashes(redis8.client(), "cache")
    entries, total = CacheEntries(hashes, 3, Counting()), 0
    entries.set_many({"n": 0, "m": 1}, 600)
    for job in (MigrateToNative(hashes), MigrateToEmulated(hashes, "cache:*")):
        goal = "native" if isinstance(job, MigrateToNative) else "emulated"
        for _ in range(500):
            total += 1
            assert entries.increment("n", 1) == total
            assert entries.increment("gone", 1) is None
            name, other = ("m", "m2") if entries.has("m") else ("m2", "m")
            assert entries.move(name, other)
            assert not entries.move(name, "other")
            assert 0 < left(entries, other) <= 600_000
            if hashes.client.hget("ws:cache:layout", "backend").decode() == goal:
                break
            with contextlib.suppress(Aborted, Skipped):
                job.perform(Slice(limit=5, seconds=60))
        else:
            raise AssertionError(f"it is not {goal} yet")
    assert total > 2
    assert not entries.has("gone")
    assert 0 < left(entries, "n") <= 600_000


@pytest.mark.parametrize("timeout", [math.inf, 10**30, 1e300, 1e12, 100 * 366 * 86400])
def test_a_timeout_beyond_all_use_is_none(entries: CacheEntries, timeout: float) -> None:
    assert entries.set_many({"set": 1, "touched": 1}, timeout)
    assert entries.touch("touched", 60)
    assert entries.touch("touched", timeout)
    assert entries.add("added", 1, timeout)
    assert entries.computed("computed", lambda: 1, timeout) == 1
    assert [left(entries, key) for key in ("set", "touched", "added")] == [-1] * 3
    assert entries.has("computed")


def test_a_timeout_of_less_than_a_millisecond_is_one(entries: CacheEntries) -> None:
    assert entries.set_many({"a": 1}, 1e-9)
    assert left(entries, "a") in (0, 1, -2)


def test_a_timeout_that_is_no_number_is_refused(entries: CacheEntries) -> None:
    """Django's own backend for Redis raises a ValueError, too; the function is not called."""
    entries.set_many({"a": 1}, 60)
    for refused in (
        lambda: entries.set_many({"a": 2}, math.nan),
        lambda: entries.add("b", 2, math.nan),
        lambda: entries.touch("a", math.nan),
        lambda: entries.computed("b", pytest.fail, math.nan),
    ):
        with pytest.raises(ValueError, match="NaN"):
            refused()
    assert entries.get_many(["a", "b"]) == {"a": 1}


@pytest.mark.parametrize("key", ["", "a" * 100_000, "\x00", "ключ", "\udc80", "a\ud800b", "{a}b{"])
def test_every_text_is_a_key(entries: CacheEntries, key: str) -> None:
    """A file's name may hold a lone surrogate, which UTF-8 cannot express."""
    other = f"{key}2"
    assert entries.set_many({key: 1, other: 2}, 60)
    assert entries.get_many([key, other]) == {key: 1, other: 2}
    assert entries.has(key)
    assert entries.touch(key, 5)
    assert not entries.add(key, 1, 3)
    assert entries.increment(key, 4) == 5
    assert entries.computed(key, pytest.fail, 60) == 5
    assert entries.delete_many([key]) == 1
    calls: list[int] = []
    for _ in range(2):
        assert entries.computed(key, lambda: calls.append(1) or 6, 60) == 6
    assert len(calls) == 1
    assert entries.move(key, other)
    assert entries.get_many([key, other]) == {other: 6}


def test_no_count_of_many_threads_is_lost(entries: CacheEntries) -> None:
    entries.set_many({"n": 0}, 60)
    threads = [
        threading.Thread(target=lambda: [entries.increment("n", 1) for _ in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries.get_many(["n"]) == {"n": 400}


def test_a_moved_entry_is_not_stored_over(entries: CacheEntries) -> None:
    """By one who computes at the new key since before the move."""
    place, field = entries.place("new"), b"new"
    asked = ("FIELDS", 1, field, "nonce", 60_000, 60_000, -1, "")
    taken, *_ = entries.hashes.execute_command(LEASE, place, *asked)
    assert taken
    entries.set_many({"old": "moved"}, 60)
    client = entries.hashes.client
    before = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert entries.move("old", "new")
    # Another computer could begin between two commands, and store over it.
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 1
    stored = ("FIELDS", 1, field, "nonce", 60_000, "", b"5", taken)
    assert not entries.hashes.execute_command(STORE, place, *stored)
    assert entries.get_many(["old", "new"]) == {"new": "moved"}
    assert not entries.move("old", "new")


def test_djangos_versions(django_cache: Cache, entries: CacheEntries) -> None:
    cache = django_cache
    cache.set("a", 1, 60)
    cache.set("a", 2, version=2)
    assert cache.get("a") == 1
    assert cache.get("a", version=2) == 2
    assert cache.incr_version("a", 4) == 5
    assert cache.get("a") is None
    assert cache.get("a", version=5) == 1
    assert 0 < left(entries, "p:5:a") <= 60_000
    assert cache.decr_version("a", version=5) == 4
    with pytest.raises(ValueError, match="not found"):
        cache.incr_version("missing")
    assert cache.incr_version("a", 0, version=4) == 4
    assert cache.get("a", version=4) == 1


def test_clear_empties_its_own_namespace_alone(entries: CacheEntries) -> None:
    other = CacheEntries(VolatileHashes(entries.hashes.client, "other"), 3, Counting())
    entries.set_many({str(n): n for n in range(50)}, 60)
    other.set_many({"kept": 1}, 60)
    entries.clear()
    assert entries.get_many(map(str, range(50))) == {}
    assert other.get_many(["kept"]) == {"kept": 1}


def test_a_hit_enlists_and_a_miss_does_not(django_cache: Cache, counting: Counting) -> None:
    assert django_cache.get("a") is None
    django_cache.set("a", 1)
    assert counting.enlisted == 0
    assert django_cache.get("a") == 1
    assert django_cache.get_many(["a", "b"]) == {"a": 1}
    assert counting.enlisted == 2


def test_in_a_request_only_the_integration_enlists(django_cache: Cache, counting: Counting) -> None:
    django_cache.set("a", 1)
    token = current.set(Deferral(never()))
    try:
        assert django_cache.get("a") == 1
    finally:
        current.reset(token)
    assert counting.enlisted == 0


async def test_djangos_asyncio_methods(django_cache: Cache) -> None:
    # The context ends the thread in which Django runs them.
    async with ThreadSensitiveContext():
        await django_cache.aset("a", 1, 60)
        assert await django_cache.aincr("a") == 2
        await django_cache.aset_many({"b": [1], "c": None})
        assert await django_cache.aget_many(["a", "b", "c", "d"]) == {"a": 2, "b": [1], "c": None}
        assert await django_cache.aget_or_set("d", lambda: "made") == "made"
        assert await django_cache.adelete("d")
        await django_cache.aclear()
        assert await django_cache.aget("a") is None


def test_a_value_that_cannot_be_pickled_raises_and_changes_nothing(django_cache: Cache) -> None:
    django_cache.set("a", 1)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        django_cache.set_many({"a": 2, "b": threading.Lock()})
    assert django_cache.get("a") == 1


UNSURE: dict[str, Any] = {
    "has": lambda entries: entries.has("a"),
    "add": lambda entries: entries.add("a", 1, 60),
    "add nothing": lambda entries: entries.add("a", 1, 0),
    "touch": lambda entries: entries.touch("a", 60),
    "touch for ever": lambda entries: entries.touch("a", None),
    "touch to its end": lambda entries: entries.touch("a", 0),
    "increment": lambda entries: entries.increment("a", 1),
    "move": lambda entries: entries.move("a", "b"),
    "delete_many": lambda entries: entries.delete_many(["a"]),
    "clear": lambda entries: entries.clear(),
}


def test_a_dead_redis_is_a_miss_but_no_answer(
    start_redis: Any, caplog: pytest.LogCaptureFixture, counting: Counting
) -> None:
    server = start_redis()
    # redis-py's own ten retries take seconds a call.
    client = server.client(retry=Retry(NoBackoff(), 0))
    entries = CacheEntries(VolatileHashes(client, f"dead{next(_numbers)}"), 7, counting)
    entries.set_many({"a": 1}, 60)
    server.stop()
    assert entries.get_many(["a"]) == {}
    assert not entries.set_many({"a": 1}, 60)
    assert not entries.set_many({"a": 1}, 0)
    assert entries.get_or_add("a", 5, 60) == 5
    assert counting.enlisted == 0
    assert len([line for line in caplog.records if "the cache in namespace" in line.message]) == 1
    for name, ask in UNSURE.items():
        with pytest.raises(redis.ConnectionError):
            pytest.fail(f"{name}: {ask(entries)}")
    entries = CacheEntries(entries.hashes, 7, counting, "raise")
    for call in (
        lambda: entries.get_many(["a"]),
        lambda: entries.set_many({"a": 1}, 60),
        lambda: entries.set_many({"a": 1}, 0),
        lambda: entries.get_or_add("a", 5, 60),
    ):
        with pytest.raises(redis.ConnectionError):
            call()


def test_the_frameworks_calls_raise_when_nobody_knows(
    start_redis: Any, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    client = server.client(retry=Retry(NoBackoff(), 0))
    entries = CacheEntries(VolatileHashes(client, f"dead{next(_numbers)}"), 7, counting)
    monkeypatch.setattr("workstealing.integrations.django_cache.opened", lambda _: entries)
    cache, flasks = Cache("", {}), VolatileHashCache(entries)
    cache.set("a", 1)
    server.stop()
    for call in (
        lambda: cache.add("a", 1),
        lambda: cache.incr("a"),
        lambda: cache.decr("a"),
        lambda: cache.touch("a"),
        lambda: cache.delete("a"),
        lambda: cache.delete_many(["a"]),
        lambda: cache.incr_version("a"),
        lambda: cache.has_key("a"),
        cache.clear,
        lambda: flasks.add("a", 1),
        lambda: flasks.inc("a"),
        lambda: flasks.dec("a"),
        lambda: flasks.delete("a"),
        lambda: flasks.delete_many("a"),
        lambda: flasks.has("a"),
        flasks.clear,
    ):
        with pytest.raises(redis.ConnectionError):
            call()
    assert cache.get("a", "default") == "default"
    assert cache.get_many(["a"]) == {}
    assert cache.set_many({"a": 1}) == ["a"]
    assert cache.get_or_set("a", 5) == 5
    assert cache.get_or_set("a", lambda: 6) == 6
    cache.set("a", 1)
    assert flasks.get("a") is None
    assert not flasks.set("a", 1)


@pytest.mark.parametrize("backend", ["emulated", "native"])
@pytest.mark.parametrize(
    ("ask", "at", "found"),
    [
        (lambda entries: entries.increment("n", 1), 1, {"n": 42}),
        (lambda entries: entries.add("new", 7, 60), 1, {"n": 41, "new": 7}),
        (lambda entries: entries.move("n", "moved"), 1, {"moved": 41}),
        (lambda entries: entries.delete_many(["n"]), 1, {}),
    ],
)
def test_what_was_cut_off_is_done_once_and_answers_nothing(
    request: pytest.FixtureRequest, backend: str, ask: Any, at: int, found: dict[str, int]
) -> None:
    server = request.getfixturevalue("redis8" if backend == "native" else "redis7")
    with FaultyServer(server.port) as door:
        client = redis.Redis(port=door.port, protocol=2, retry=Retry(NoBackoff(), 3))
        entries = CacheEntries(VolatileHashes(client, "cache", backend=backend), 7, Counting())
        entries.set_many({"n": 41}, 60)
        # The scripts are loaded, and this is done elsewhere.
        ask(CacheEntries(VolatileHashes(client, "cache", backend=backend), 7, Counting()))
        entries.clear()
        entries.set_many({"n": 41}, 60)
        door.fail(len(door.names()) + at, "cut")
        with pytest.raises(redis.ConnectionError, match="not sent again"):
            ask(entries)
        assert entries.get_many(["n", "new", "moved"]) == found


def test_a_move_is_one_step(hashes: VolatileHashes) -> None:
    for buckets in (1, 7):
        entries = CacheEntries(hashes, buckets, Counting())
        entries.set_many({"a": 1}, 60)
        entries.set_many({"lasting": 2}, None)
        entries.set_many({"over": 3}, 5)
        assert entries.move("a", "b")
        assert entries.move("lasting", "over")
        assert not entries.move("a", "c")
        assert not entries.move("gone", "c")
        assert entries.get_many(["a", "b", "lasting", "over", "c"]) == {"b": 1, "over": 2}
        assert 0 < left(entries, "b") <= 60_000
        assert left(entries, "over") == -1
        entries.set_many({"ending": 4}, 60)
        assert entries.move("ending", "over")
        assert 0 < left(entries, "over") <= 60_000
        # The due index finds the hash at its new deadline.
        assert entries.get_many(["over"]) == {"over": 4}
        entries.clear()


def test_an_expired_entry_is_not_moved(redis7: Any) -> None:
    def ahead(ms: int) -> CacheEntries:
        hashes = VolatileHashes(redis7.client(), "cache", backend="emulated", clock_shift_ms=ms)
        return CacheEntries(hashes, 7, Counting())

    ahead(0).set_many({"a": 1}, 5)
    ahead(0).set_many({"b": 2}, 60)
    assert not ahead(10_000).move("a", "c")
    assert ahead(10_000).move("b", "d")
    recruiter = Recruiter()
    job = HashFieldExpiry(ahead(100_000).hashes)
    recruiter.install(job, rate=1.0)
    with contextlib.suppress(Aborted):
        while job.perform(Slice(limit=50, seconds=60)):
            pass
    assert redis7.client().keys("cache:*") == []


def test_a_full_server_keeps_an_entry_where_it_is(start_redis: Any) -> None:
    server = start_redis(7)
    entries = CacheEntries(VolatileHashes(server.client(), "cache"), 7, Counting())
    entries.set_many({"a": 1, "b": 2}, 60)
    server.client().config_set("maxmemory", "1")
    with pytest.raises(redis.OutOfMemoryError):
        entries.move("a", "c")
    assert entries.get_many(["a", "b", "c"]) == {"a": 1, "b": 2}


def test_a_silent_redis_is_a_miss(counting: Counting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = redis.Redis(
            port=silent.getsockname()[1], socket_timeout=0.05, retry=Retry(NoBackoff(), 0)
        )
        entries = CacheEntries(VolatileHashes(client, f"dead{next(_numbers)}"), 7, counting)
        assert entries.get_many(["a"]) == {}
        assert not entries.set_many({"a": 1}, 60)
        assert counting.enlisted == 0


@pytest.mark.parametrize("serializer", ["json", JSON, f"{__name__}:JSON"])
def test_a_cache_takes_a_serializer(
    flask_cache: Any, monkeypatch: pytest.MonkeyPatch, serializer: Any
) -> None:
    monkeypatch.setattr(cache_entries, "_opened", {})
    options = {"NAMESPACE": "texts", "SERIALIZER": serializer, "RATE": 0}
    cache = Cache(f"{__name__}:shared", {"OPTIONS": options})
    cache.set("a", (1,))
    entries = cache.entries
    assert entries.hashes.hget(entries.place(":1:a"), ":1:a") == b"#json1:[1]"
    app = flask.Flask(__name__)
    app.config["CACHE_TYPE"] = "workstealing.integrations.flask_caching.VolatileHashCache"
    app.config["CACHE_REDIS_URL"] = f"{__name__}:shared"
    app.config["CACHE_OPTIONS"] = {"namespace": "texts", "serializer": serializer, "rate": 0}
    with app.app_context():
        flasks = FlaskCache(app)
        flasks.set("b", (2,))
        assert flasks.get("b") == [2]
        assert flasks.cache.inc("n", 5) == 5
        assert flasks.cache.inc("n", 5) == 10


def test_bytes_of_another_program_are_a_miss(entries: CacheEntries) -> None:
    entries.hashes.hset(entries.place("a"), "a", b"\x80nonsense")
    entries.set_many({"b": 1}, 60)
    assert entries.get_many(["a", "b"]) == {"b": 1}


def test_every_server(any_server: AnyServer, counting: Counting) -> None:
    entries = CacheEntries(VolatileHashes(any_server.client(), "cache"), 64, counting)
    keys = [f"k{n}" for n in range(200)]
    assert entries.set_many(dict.fromkeys(keys, 1), 60)
    assert len(entries.get_many(keys)) == 200
    assert entries.increment("k7", 2) == 3
    assert entries.increment("none", 2) is None
    assert not entries.has("none")
    assert entries.move("k7", "k-moved")
    assert entries.get_many(["k7", "k-moved"]) == {"k-moved": 3}
    assert entries.delete_many(keys) == 199
    entries.clear()
    assert not entries.has("k-moved")


@pytest.fixture
def flask_cache(redis7: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return Flask-Caching's extension on an app, made from configuration alone."""
    monkeypatch.setitem(globals(), "shared", redis7.client())
    monkeypatch.setitem(globals(), "maintenance", Recruiter())
    monkeypatch.setattr(cache_entries, "_opened", {})
    app = flask.Flask(__name__)
    extension = FlaskCache()
    extension.init_app(
        app,
        {
            "CACHE_TYPE": "workstealing.integrations.flask_caching.VolatileHashCache",
            "CACHE_REDIS_URL": f"{__name__}:shared",
            "CACHE_KEY_PREFIX": "shop.",
            "CACHE_OPTIONS": {"namespace": "pages", "recruiter": f"{__name__}:maintenance"},
        },
    )
    with app.app_context():
        yield extension


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # The import mode of this suite gives a test's module a name that import_module may not know.
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


def test_flask_caching_by_its_configuration(flask_cache: Any) -> None:
    cache = flask_cache
    assert isinstance(cache.cache, VolatileHashCache)
    assert cache.set("a", [1])
    assert cache.get("a") == [1]
    assert cache.has("a")
    assert not cache.add("a", 2)
    assert cache.set_many({"b": 2, "c": None}) == ["b", "c"]
    assert cache.get_many("a", "b", "none") == [[1], 2, None]
    assert cache.get_dict("b") == {"b": 2}
    assert cache.cache.inc("b") == 3
    assert cache.cache.dec("b", 2) == 1
    assert cache.cache.inc("fresh", 4) == 4
    assert cache.delete("a")
    assert not cache.delete("a")
    assert cache.delete_many("b", "c") == ["b", "c"]
    cache.set("a", 1, timeout=0)
    assert left(cache.cache.entries, "shop.a") == -1
    cache.set("a", 1)
    assert 0 < left(cache.cache.entries, "shop.a") <= 300_000
    assert cache.clear()
    assert cache.get("a") is None


def test_flask_cachings_decorators(flask_cache: Any) -> None:
    computed: list[int] = []

    @flask_cache.memoize(60)
    def double(n: int) -> int:
        computed.append(n)
        return 2 * n

    assert [double(4), double(4), double(5)] == [8, 8, 10]
    assert computed == [4, 5]
    flask_cache.delete_memoized(double, 4)
    assert [double(4), double(5)] == [8, 10]
    assert computed == [4, 5, 4]


def test_a_prefix_may_be_told_by_a_function(flask_cache: Any) -> None:
    """As of Flask-Caching's own backends. The function's name and address were the prefix."""
    tenant = "a"
    cache = VolatileHashCache(flask_cache.cache.entries, lambda: f"{tenant}.")
    assert cache.set("page", 1)
    tenant = "b"
    assert cache.get_many("page") == [None]
    assert cache.inc("page", 7) == 7
    tenant = "a"
    assert cache.get("page") == 1
    assert flask_cache.cache.entries.get_many(["a.page", "b.page"]) == {"a.page": 1, "b.page": 7}


def test_the_job_is_installed_once(flask_cache: Any) -> None:
    settings = CacheSettings(f"{__name__}:shared", "pages", recruiter=f"{__name__}:maintenance")
    assert opened(settings) is flask_cache.cache.entries
    assert "hash_field_expiry.pages" in str(maintenance.stats())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"BUCKETS": 0}, "number of buckets is 0"),
        ({"BUCKETS": True}, "buckets is of type bool"),
        ({"BUCKETS": [1]}, "buckets is of type list"),
        ({"SHARDS": 4}, "unknown option 'SHARDS'"),
        ({"NAMESPACE": 5}, "namespace is of type int"),
        ({"NAMESPACE": "a b"}, "a b"),
        ({"RATE": 2}, "rate"),
        ({"RATE": -1}, "rate"),
        ({"RATE": None}, "rate is of type NoneType"),
        ({"RATE": math.nan}, "rate"),
        ({"LIMIT": 0}, "limit"),
        ({"LIMIT": "5"}, "limit is of type str"),
        ({"STORE": "disk"}, "disk"),
        ({"ON_FAULT": "ignore"}, 'expected "miss" or "raise"'),
        ({"ON_FAULT": True}, "on_fault is of type bool"),
        ({"SERIALIZER": json}, "serializer is of type module"),
        ({"SERIALIZER": "yaml"}, "serializer='yaml' is none"),
        ({"SERIALIZER": "json:dumps"}, "serializer=<function dumps"),
        ({"RECRUITER": 5}, "recruiter is of type int"),
        ({"RECRUITER": "nowhere"}, "recruiter is no import path"),
        ({"RECRUITER": ":name"}, "recruiter is no import path"),
        ({"RECRUITER": ".near:name"}, "recruiter is no import path"),
        ({"RECRUITER": "nowhere.at:all"}, "cannot be imported"),
        ({"RECRUITER": "os:path"}, "expected a Recruiter"),
        ({"RECRUITER": f"{__name__}:enlister"}, "takes no job"),
    ],
)
def test_a_wrong_option_is_refused(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_entries, "_opened", {})
    with pytest.raises(ConfigurationError, match=said) as caught:
        Cache("redis://localhost:1/0", {"OPTIONS": options})
    assert str(caught.value).count(". ") == 0
    assert cache_entries._opened == {}


@pytest.mark.parametrize(
    "location",
    [5, ["redis://:secret@a", "redis://b"], b"redis://:secret@a", "ftp://:secret@a", "secret@a:1"],
)
def test_a_wrong_location_is_refused_and_not_shown(location: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Cache(location, {})
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(CacheSettings("redis://:secret@a"))


@pytest.mark.parametrize("given", [5, None, redis.Redis, "redis://localhost"])
def test_a_location_that_is_no_client_is_refused(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "shared", given)
    with pytest.raises(ConfigurationError):
        Cache(f"{__name__}:shared", {"OPTIONS": {"RECRUITER": f"{__name__}:maintenance"}})


def test_a_second_cache_in_one_namespace_is_told_to_take_another(
    redis7: Any, redis8: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "maintenance", Recruiter())
    monkeypatch.setattr(cache_entries, "_opened", {})
    options = {"RECRUITER": f"{__name__}:maintenance"}
    first, second = (f"redis://127.0.0.1:{each.port}" for each in (redis7, redis8))
    Cache(first, {"OPTIONS": options})
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="another namespace, or the rate 0"):
            Cache(second, {"OPTIONS": options})
    other = Cache(second, {"OPTIONS": {**options, "NAMESPACE": "other"}})
    bare = Cache(second, {"OPTIONS": {**options, "RATE": 0}})
    other.set("a", 1)
    bare.set("a", 2)
    assert [other.get("a"), bare.get("a")] == [1, 2]


def test_a_cache_on_a_fleet(redis7: Any, redis8: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [f"redis://127.0.0.1:{each.port}" for each in (redis7, redis8)]
    monkeypatch.setitem(globals(), "shared", Fleet(urls))
    monkeypatch.setitem(globals(), "maintenance", Recruiter())
    monkeypatch.setattr(cache_entries, "_opened", {})
    cache = Cache(f"{__name__}:shared", {"OPTIONS": {"RECRUITER": f"{__name__}:maintenance"}})
    keys = [f"k{n}" for n in range(40)]
    assert cache.set_many(dict.fromkeys(keys, 1)) == []
    assert cache.get_many(keys) == dict.fromkeys(keys, 1)
    assert [cache.incr(key) for key in keys] == [2] * 40
    assert min(each.client().dbsize() for each in (redis7, redis8)) > 5


@pytest.mark.parametrize("threads", [1, 2])
def test_a_module_that_opens_a_cache_while_it_is_imported(
    redis7: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """`opened` imported under its lock, and waited for itself, or for a thread that waited for it.

    The module is the one that the setting names, and it opens the cache before its end.
    """
    monkeypatch.setattr(cache_entries, "_opened", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"shop_of_a_test_{threads}"
    settings = CacheSettings(f"redis://127.0.0.1:{redis7.port}", recruiter=f"{module}:recruiter")
    monkeypatch.setitem(globals(), "settings", settings)
    begun = threading.Event()
    monkeypatch.setitem(globals(), "begun", begun)
    monkeypatch.setitem(globals(), "go", threading.Event() if threads == 2 else None)
    (tmp_path / f"{module}.py").write_text(
        f"import sys\nnames = sys.modules[{__name__!r}].__dict__\n"
        "from workstealing import Recruiter\n"
        "from workstealing.integrations.cache_entries import opened\n"
        "recruiter = Recruiter()\n"
        "names['begun'].set()\n"
        "assert names['go'] is None or names['go'].wait(60)\n"
        "cache = opened(names['settings'])\n"
    )
    found: list[Any] = []
    tasks = [lambda: found.append(opened(settings))]
    if threads == 2:
        tasks.insert(0, lambda: found.append(importlib.import_module(module).cache))
    running = [threading.Thread(target=each, daemon=True) for each in tasks]
    running[0].start()
    assert begun.wait(60)
    for each in running[1:]:
        each.start()
    if threads == 2:
        globals()["go"].set()
    for each in running:
        each.join(60)
        assert not each.is_alive()
    assert len(found) == threads
    assert all(each is found[0] for each in found)
    assert found[0] is sys.modules[module].cache


def test_a_client_of_texts_is_refused(redis7: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "shared", redis7.client(decode_responses=True))
    with pytest.raises(ConfigurationError, match="decode_responses"):
        Cache(f"{__name__}:shared", {})
