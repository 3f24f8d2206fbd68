"""Reading a ledger on every kind of server: sums of processes, minutes, and strange fields."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import Pipeline

from support.ledgers import PATIENCE, work
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics import reading
from workstealing.metrics.ledger import (
    CacheMinute,
    JobError,
    JobMinute,
    Ledger,
    Minute,
    Process,
    read,
    total,
    total_of_caches,
)
from workstealing.metrics.minutes import (
    events_key,
    minute_key,
    parsed,
    parsed_processes,
    process_text,
)
from workstealing.recruiting import Outcome
from workstealing.recruiting.cache_figures import CACHES
from workstealing.recruiting.slice import Slice
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("patient")]


def test_caches_add_up(any_server: AnyServer, make: Callable[..., Ledger]) -> None:
    client = any_server.client()
    first, second = make(client), make(client)
    figures = CACHES.of("shop:price")
    figures.hit(5)
    figures.compute(0.25)
    first.on_enlisted(1)
    figures.miss(2)
    figures.wait()
    figures.leave()
    figures.old()
    second.on_enlisted(1)
    for ledger in (first, second):
        assert ledger.flush(PATIENCE)
    minutes = read(client)
    # A colon would make it a job of an earlier release's.
    assert total_of_caches(minutes) == {
        "shop.price": CacheMinute(
            hits=10, stale=1, misses=2, waits=1, computations=2, uncached=1, seconds=0.5
        )
    }
    assert total(minutes) == {}


def test_strange_fields_of_caches_are_left_out() -> None:
    fields = {"cache.hits/a": "3", "cache.who/a": "4", "cache.hits/b": "x", "cache.micros/a": "1e6"}
    assert parsed(60, fields).caches == {"a": CacheMinute(hits=3, seconds=1.0)}


def test_processes_add_up(any_server: AnyServer, make: Callable[..., Ledger]) -> None:
    client = any_server.client()
    first, second = make(client), make(client)
    for ledger in (first, second):
        ledger.on_enlisted(1_000)
        work(ledger, "expiry", Outcome.WORKED, 25, 0.004)
        work(ledger, "expiry", Outcome.WORKED, 5, 0.002)
        work(ledger, "expiry", Outcome.IDLE, 0, 0.001)
        work(ledger, "a:b", Outcome.ABORTED)
        assert ledger.flush(PATIENCE)
    work(second, "expiry", Outcome.FAILED, 0, 0.5)
    work(second, "expiry", Outcome.SKIPPED)
    assert second.flush(PATIENCE)

    minutes = read(any_server.client(decode_responses=True), minutes=3)
    assert [m.minute % 60 for m in minutes] == [0, 0, 0]
    assert [b.minute - a.minute for a, b in itertools.pairwise(minutes)] == [60, 60]
    assert sum(m.enlisted for m in minutes) == 2_000
    assert sum(m.processes for m in minutes) in (2, 3)  # 3 if a minute ended meanwhile
    sums = total(minutes)
    expiry = sums["expiry"]
    assert (expiry.recruited, expiry.worked, expiry.idle) == (8, 4, 2)
    assert (expiry.aborted, expiry.failed, expiry.skipped) == (0, 1, 1)
    assert expiry.items == 60
    assert expiry.seconds == pytest.approx(0.514)
    assert (expiry.rate, expiry.oldest_seconds, expiry.backlog) == (None, None, None)
    assert sums["a:b"] == JobMinute(recruited=2, aborted=2)


def test_minutes_are_apart_and_expire(
    any_server: AnyServer, make: Callable[..., Ledger], clock: ManualClock
) -> None:
    client = any_server.client()
    ledger = make(client, keep=600)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    # As far as the ledger knows, two minutes have passed since the server told its time.
    clock.advance(120.0)
    ledger.on_enlisted(2)
    assert ledger.flush(PATIENCE)
    now = int(client.execute_command("EVAL", reading._TIME, 1, minute_key("default", 0)))
    hashes = VolatileHashes(client, namespace="ledger.default")
    minutes = [now // 60 * 60 + 60 * later for later in range(-1, 4)]
    counts = [hashes.hget(minute_key("default", minute), "enlisted") for minute in minutes]
    assert [int(count) for count in counts if count] == [1, 2]
    first, second = (i for i, count in enumerate(counts) if count)
    assert second - first == 2
    key = minute_key("default", minutes[first])
    left = hashes.httl(key, *hashes.hkeys(key))
    assert all(590 <= seconds <= 600 for seconds in left), left


def is_minute(client: Any, key: bytes) -> bool:
    """Say whether a key holds a minute itself, no other hash and nothing that belongs to it."""
    others = (b"day", b"processes")
    return client.type(key) == b"hash" and not any(each in key for each in others)


def test_expired_minutes_are_collected_and_never_seen(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client, keep=60)
    ledger.on_enlisted(7)
    work(ledger, "expiry", Outcome.WORKED, 1, 0.001)
    assert ledger.flush(PATIENCE)
    (key,) = [k for k in client.keys("*ledger:default*") if is_minute(client, k)]
    assert client.hget(key, "enlisted") == b"7"
    later = VolatileHashes(client, namespace="ledger.default", clock_shift_ms=61_000)
    assert later.hgetall(key) == {}
    # A day later the same key is written again: yesterday's count is not carried over.
    assert later.hincrby(key, "enlisted", 2) == 2
    job = ledger.expiry_job()
    assert job.name == "hash_field_expiry.ledger.default"
    late = VolatileHashes(client, namespace="ledger.default", clock_shift_ms=61_000)
    assert HashFieldExpiry(late, limit=100).perform(Slice(100, 5.0)) == 6
    assert client.hgetall(key) == {b"enlisted": b"2"}


def test_what_is_no_figure_is_passed_over(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    work(ledger, "expiry", Outcome.WORKED, 1, 0.001)
    assert ledger.flush(PATIENCE)
    for key in set(client.keys("{workstealing:ledger:default}*")) - {events_key("default")}:
        garbage = {"items:expiry": "inf", "idle:expiry": "1e308", "enlisted": "1e999", "x:y": "z"}
        client.hset(key, mapping=garbage)
    minutes = read(client, minutes=2)
    assert sum(m.enlisted for m in minutes) == 0
    assert total(minutes)["expiry"] == JobMinute(recruited=1, worked=1, seconds=0.001)


def test_a_minute_without_gauges_hides_no_other() -> None:
    before = Minute(0, jobs={"a": JobMinute(rate=0.5, oldest_seconds=3.0, backlog=7)})
    sums = total([before, Minute(60, jobs={"a": JobMinute(items=1)})])
    assert sums == {"a": JobMinute(items=1, rate=0.5, oldest_seconds=3.0, backlog=7)}


def test_reading_costs_a_bounded_number_of_round_trips(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis7.client()
    trips: list[str] = []
    execute, execute_pipeline = Redis.execute_command, Pipeline.execute

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        trips.append(args[0])
        return execute(self, *args, **options)

    def counted_pipeline(self: Any, *args: Any, **options: Any) -> Any:
        trips.append("pipeline")
        return execute_pipeline(self, *args, **options)

    monkeypatch.setattr(Redis, "execute_command", counted)
    monkeypatch.setattr(Pipeline, "execute", counted_pipeline)
    read(client, minutes=60)
    # The server's time, the layout, the minutes.
    assert len(trips) <= 5
    assert trips[-1] == "pipeline"
    del trips[:]
    read(client, minutes=181)
    assert len(trips) <= 5
    assert trips[-2:] == ["pipeline", "pipeline"]


@pytest.mark.parametrize("minutes", [0, -1, 1_441, 1.5, True])
def test_minutes_that_cannot_be(redis7: RedisServer, minutes: Any) -> None:
    with pytest.raises(ConfigurationError, match="minutes is"):
        read(redis7.client(), minutes=minutes)


def test_a_whole_day_is_read_in_few_round_trips(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client)
    ledger.on_enlisted(5)
    assert ledger.flush(PATIENCE)
    minutes = read(client, minutes=1_440)
    assert len(minutes) == 1_440
    assert sum(m.enlisted for m in minutes) == 5


def test_an_error_that_somebody_else_wrote_is_passed_over() -> None:
    fields = {"fault.ValueError:a": "nonsense", "error.ValueError:a": "3", "fault.E:a": "[1]"}
    job = parsed(0, fields).jobs["a"]
    assert job.errors == {"ValueError": JobError(count=3), "E": JobError()}


def test_what_is_no_process_is_passed_over() -> None:
    good = process_text(Process("web-1", 7, "0.1.0", 5.0))
    assert parsed_processes(["", "[]", "{}", '{"host": 1}', good]) == [
        Process("web-1", 7, "0.1.0", 5.0)
    ]
