"""The ledger on every kind of server: the sums of processes, and their cost."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from support.patience import set_timeout
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing import __version__
from workstealing.errors import ConfigurationError, EvictionPolicyError, Moved, OutOfTime
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics import ledger as ledgers
from workstealing.metrics import reading
from workstealing.metrics.ledger import (
    CacheMinute,
    JobError,
    JobMinute,
    Ledger,
    Minute,
    Process,
    processes,
    read,
    total,
    total_of_caches,
)
from workstealing.metrics.minutes import (
    day_key,
    events_key,
    minute_key,
    parsed,
    parsed_processes,
    process_text,
    processes_key,
    settings_key,
)
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.adaptive import Adaptive
from workstealing.recruiting.cache_figures import CACHES
from workstealing.recruiting.lottery import MOST_MEASURED
from workstealing.recruiting.slice import Slice
from workstealing.store.connection import SENT, Command, OneAttempt
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock

pytestmark = pytest.mark.contract

PATIENCE = 120.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be slow: a time-out would lose counts, as it should."""
    monkeypatch.setattr(ledgers, "_SEND_SECONDS", PATIENCE)
    monkeypatch.setattr(ledgers, "_WAIT_SECONDS", PATIENCE)
    set_timeout(monkeypatch, PATIENCE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def make(clock: ManualClock) -> Iterator[Callable[..., Ledger]]:
    """Make ledgers that are sent when the test says so, and end their threads afterwards."""
    made: list[Ledger] = []

    def make(client: Any, *args: Any, **options: Any) -> Ledger:
        ledger = Ledger(client, *args, **{"clock": clock, **options})
        made.append(ledger)
        return ledger

    yield make
    for ledger in made:
        ledger.close(timeout=120.0)
    for ledger in made:
        # It may still be about to send, and would write into a server that has been wiped.
        if ledger._thread is not None:
            ledger._thread.join(PATIENCE)


def work(ledger: Ledger, job: str, outcome: Outcome, items: int = 0, seconds: float = 0.0) -> None:
    """Tell a ledger of one recruit."""
    ledger.on_recruited(job)
    ledger.on_outcome(job, outcome, items, seconds, None)


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


def test_gauges_are_the_highest_of_the_minute_and_the_last_rate(
    any_server: AnyServer, make: Callable[..., Ledger]
) -> None:
    client = any_server.client()
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 1, name="expiry"), rate=0.25)
    ledger, other = make(client), make(client)
    ledger._lane, other._lane = 1, 2
    recruiter.add_hook(ledger)
    for oldest, backlog in ((3.0, 10), (90.5, None), (None, 70), (2.0, 4)):
        ledger.on_observed("expiry", oldest, backlog)
    assert ledger.flush(PATIENCE)
    other.on_observed("expiry", 60.0, 100)
    assert other.flush(PATIENCE)
    recruiter.set_rate("expiry", 0.5)
    ledger.on_observed("expiry", 1.0, 1)
    assert ledger.flush(PATIENCE)
    job = total(read(client, minutes=2))["expiry"]
    assert (job.rate, job.oldest_seconds, job.backlog) == (0.5, 90.5, 100)


def test_a_minute_knows_nothing_of_the_last_ones_gauges(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis7.client()
    ledger = make(client)
    ahead = reading._server_seconds(client, "default") // 60 * 60
    for minute, oldest in ((0, 9.0), (60, 4.0)):
        monkeypatch.setattr(ledger, "_now", lambda minute=minute: ahead + minute + 1.0)
        ledger.on_observed("sweep", oldest, 1)
        assert ledger.flush(PATIENCE)
    monkeypatch.setattr(reading, "_server_seconds", lambda *_: ahead + 60)
    seen = [m.jobs["sweep"].oldest_seconds for m in read(client, minutes=2)]
    assert seen == [9.0, 4.0]


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


def test_the_number_of_hashes_is_bounded() -> None:
    keys = {minute_key("default", 60 * minute) for minute in range(5_000)}
    assert len(keys) == 1_440
    assert len({day_key("default", day) for day in range(100)}) == 7


def test_one_small_pipeline_an_interval(
    redis7: RedisServer, make: Callable[..., Ledger], clock: ManualClock
) -> None:
    ledger = make(redis7.client(), interval=10.0)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    client = redis7.client()
    before, trips, sent = connections(client), SENT.round_trips, SENT.commands
    for _ in range(1_000):
        work(ledger, "expiry", Outcome.WORKED, 1, 0.001)
    assert SENT.round_trips == trips
    assert ledger.flush(PATIENCE)
    assert SENT.round_trips == trips + 1
    assert SENT.commands - sent <= 14
    assert connections(client) == before


def connections(client: Any) -> int:
    """Return how many connections a server has ever accepted."""
    return int(client.info("stats")["total_connections_received"])


def test_it_is_sent_when_the_interval_is_over(
    redis7: RedisServer, make: Callable[..., Ledger], clock: ManualClock
) -> None:
    client = redis7.client()
    ledger = make(client, interval=10.0)
    ledger.on_enlisted(1)
    clock.advance(9.0)
    ledger.on_enlisted(1)
    assert ledger._thread is None
    clock.advance(1.0)
    ledger.on_enlisted(1)
    until = time.monotonic() + PATIENCE
    while sum(m.enlisted for m in read(client, minutes=2)) < 3:
        assert time.monotonic() < until


def test_the_thread_is_woken_once_an_interval(
    redis7: RedisServer,
    make: Callable[..., Ledger],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = make(redis7.client(), interval=10.0)
    woken: list[float] = []
    # Not for longer: the ledger's own end rouses its thread, and waits for it.
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_rouse", lambda: woken.append(clock.monotonic()))
        for _ in range(25):
            clock.advance(1.0)
            ledger.on_enlisted(1)
            work(ledger, "expiry", Outcome.IDLE)
            ledger.on_observed("expiry", 1.0, 1)
    assert woken == [110.0, 120.0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_replaced(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make(redis7.client())

    def die() -> bool:
        raise SystemExit

    with monkeypatch.context() as deadly:
        deadly.setattr(ledger, "_deliver", die)
        ledger.on_enlisted(1)
        assert not ledger.flush(timeout=0.05)
        assert ledger._thread is not None
        ledger._thread.join(PATIENCE)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(redis7.client(), minutes=2)) == 1


def test_close_ends_the_connection(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    own = len(client.client_list())
    ledger = make(redis7.client())
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    assert len(client.client_list()) == own + 1
    ledger.close(PATIENCE)
    until = time.monotonic() + PATIENCE
    while len(client.client_list()) > own:
        assert time.monotonic() < until


def test_a_newer_releases_layout_is_not_written(
    redis7: RedisServer, make: Callable[..., Ledger], caplog: pytest.LogCaptureFixture
) -> None:
    client = redis7.client()
    first = make(client)
    first.on_enlisted(1)
    assert first.flush(PATIENCE)
    client.hset("ws:ledger.default:layout", mapping={"version": 99, "writable_from": 99})
    second = make(client)
    second.on_enlisted(2)
    assert not second.flush(PATIENCE)
    assert "upgrade workstealing" in caplog.text
    assert sum(m.enlisted for m in read(client, minutes=2)) == 1


def test_nothing_is_left_when_all_has_expired(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client)
    work(ledger, "expiry", Outcome.WORKED, 1, 0.001)
    ledger.on_observed("expiry", 1.0, 1)
    ledger.spend(5)
    assert ledger.flush(PATIENCE)
    assert client.keys("{workstealing:ledger:default}*")
    late = VolatileHashes(
        client, namespace="ledger.default", clock_shift_ms=(2 * 86_400 + 1) * 1_000
    )
    job = HashFieldExpiry(late, limit=100)
    while job.perform(Slice(100, 5.0)):
        pass
    # What is left says which layout the namespace has, and that it is watched: two keys in all,
    # beside the events, which the server ends.
    left = {key.decode().rpartition(":")[2] for key in client.keys("*")}
    assert left == {"events", "layout", "mark"}
    assert client.ttl(events_key("default")) > 0


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


def test_the_number_of_jobs_is_bounded(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    for number in range(300):
        work(ledger, f"job-{number}", Outcome.IDLE)
        ledger.on_observed(f"job-{number}", 1.0, None)
    assert ledger.flush(PATIENCE)
    jobs = total(read(client, minutes=2))
    assert len(jobs) == 101
    assert jobs["_other"].idle == 200


def test_a_name_that_is_no_text_stops_no_report(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    ledger = make(redis7.client())
    work(ledger, "from a file \udcff", Outcome.WORKED, items=2)
    work(ledger, "sweep", Outcome.WORKED, items=1)
    assert ledger.flush(PATIENCE)
    jobs = total(read(redis7.client(), minutes=2))
    assert {name: job.items for name, job in jobs.items()} == {
        r"from a file \udcff": 2,
        "sweep": 1,
    }


def test_a_dead_server_costs_one_line_and_no_count(
    start_redis: Callable[..., RedisServer],
    make: Callable[..., Ledger],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_redis(7)
    client = server.client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    server.kill()
    with caplog.at_level(logging.ERROR, logger="workstealing"):
        for _ in range(5):
            ledger.on_enlisted(1)
            work(ledger, "expiry", Outcome.WORKED, 2, 0.001)
            assert not ledger.flush(PATIENCE)
    lines = [record for record in caplog.records if record.name == "workstealing"]
    assert len(lines) == 1
    assert "the ledger 'default'" in lines[0].getMessage()
    server.restart()
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    minutes = read(client, minutes=2)
    assert sum(m.enlisted for m in minutes) == 6
    assert total(minutes)["expiry"].items == 10


@pytest.mark.parametrize(
    ("error", "arrives", "kept"),
    [
        # Who cannot know whether they have arrived does not send them again.
        (RedisConnectionError, True, 2),
        (RedisConnectionError, False, 0),
        (RedisTimeoutError, True, 2),
        (RedisTimeoutError, False, 0),
        # These say that nothing has been applied.
        (Moved, False, 2),
        (OutOfTime, False, 2),
    ],
)
def test_each_count_arrives_at_most_once(
    redis7: RedisServer,
    make: Callable[..., Ledger],
    monkeypatch: pytest.MonkeyPatch,
    *,
    error: type[Exception],
    arrives: bool,
    kept: int,
) -> None:
    client = redis7.client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    send = OneAttempt._round_trip

    def cut(self: OneAttempt, commands: Sequence[Command]) -> list[Any]:
        if not arrives and ("MULTI",) in commands:
            raise error("cut")
        replies = send(self, commands)
        if ("MULTI",) in commands:
            raise error("cut")
        return replies

    with monkeypatch.context() as faulty:
        faulty.setattr(OneAttempt, "_round_trip", cut)
        ledger.on_enlisted(2)
        assert not ledger.flush(PATIENCE)
    ledger.on_enlisted(4)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(client, minutes=2)) == 5 + kept


LAST_COUNTS = """
import sys
from redis import Redis
from workstealing.metrics.ledger import Ledger
from workstealing.recruiting import FunctionJob, Recruiter

recruiter = Recruiter(random=lambda: 0.0)
recruiter.install(FunctionJob(lambda slice: 2, name="sweep"), rate=0.5)
ledger = Ledger(Redis(port=int(sys.argv[1])), interval=3600.0)
recruiter.add_hook(ledger)
recruiter.enlist()
recruiter.flush()
assert ledger.flush(30.0)
for _ in range(7):
    recruiter.enlist()
"""


def test_a_process_sends_its_last_counts_when_it_ends(redis7: RedisServer) -> None:
    command = [sys.executable, "-c", LAST_COUNTS, str(redis7.port)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    minutes = read(redis7.client(), minutes=2)
    # Enlists that the hooks had not heard of yet count, too.
    assert sum(m.enlisted for m in minutes) == 8
    assert total(minutes)["sweep"].items == 16


def test_a_slot_under_way_to_another_node_counts_nothing_twice(
    cluster: RedisCluster3, make: Callable[..., Ledger]
) -> None:
    client = cluster.client()
    ledger = make(client)
    # The fleet has no settings: for a key that is not there the old node sends to the new one.
    ledger.accompany(lambda: [("HMGET", settings_key("default"), "a")], lambda replies: None)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    slot = key_slot(settings_key("default"))
    here = client.nodes_manager.get_node_from_slot(slot)
    there = next(node for node in client.get_primaries() if node.name != here.name)
    identity = {
        node.name: client.execute_command("CLUSTER MYID", target_nodes=node)
        for node in (here, there)
    }
    setslot = ("CLUSTER SETSLOT", slot)
    client.execute_command(*setslot, "IMPORTING", identity[here.name], target_nodes=there)
    client.execute_command(*setslot, "MIGRATING", identity[there.name], target_nodes=here)
    try:
        ledger.on_enlisted(2)
        ledger.flush(PATIENCE)
    finally:
        for node in (here, there):
            client.execute_command(*setslot, "STABLE", target_nodes=node)
    ledger.on_enlisted(4)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(client, minutes=2)) == 7


def test_a_foreign_key_is_said_and_harms_nobody(
    start_redis: Callable[..., RedisServer],
    make: Callable[..., Ledger],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = start_redis(7).client()
    client.set("ws:ledger.default:layout", "foreign")
    ledger = make(client)
    ledger.on_enlisted(1)
    assert not ledger.flush(PATIENCE)
    assert "ws:ledger.default:layout" in caplog.text
    client.delete("ws:ledger.default:layout")
    ledger.on_enlisted(2)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(client, minutes=2)) == 3


def test_a_server_that_has_lost_everything(
    any_server: AnyServer, make: Callable[..., Ledger]
) -> None:
    client = any_server.client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    client.flushall()
    ledger.on_enlisted(2)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(client, minutes=2)) == 2


async def test_an_asyncio_applications_client_serves(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    async with redis7.async_client() as client:
        ledger = make(client)
        ledger.on_enlisted(3)
        assert ledger.flush(PATIENCE)
        with pytest.raises(ConfigurationError, match="blocking"):
            read(client)
    assert sum(m.enlisted for m in read(redis7.client(), minutes=2)) == 3


def test_threads_count_exactly(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)

    def count() -> None:
        for _ in range(2_000):
            work(ledger, "expiry", Outcome.WORKED, 2, 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ledger.flush(PATIENCE)
    assert ledger.flush(PATIENCE)
    expiry = total(read(client, minutes=3))["expiry"]
    assert (expiry.worked, expiry.items) == (8_000, 16_000)
    assert expiry.seconds == pytest.approx(8.0)


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


def test_what_a_full_server_refuses_is_kept(
    start_redis: Callable[..., RedisServer], make: Callable[..., Ledger]
) -> None:
    server = start_redis(7)
    client = server.client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    client.config_set("maxmemory", 1)
    ledger.on_enlisted(2)
    assert not ledger.flush(PATIENCE)
    client.config_set("maxmemory", 0)
    ledger.on_enlisted(4)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(client, minutes=2)) == 7


def test_an_evicting_server_is_refused_unless_allowed(
    start_redis: Callable[..., RedisServer],
    make: Callable[..., Ledger],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = start_redis(7, maxmemory_policy="allkeys-lru").client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert not ledger.flush(PATIENCE)
    assert "allkeys-lru" in caplog.text
    with pytest.raises(EvictionPolicyError):
        read(client)
    allowing = make(client, allow_eviction=["allkeys-lru"])
    allowing.on_enlisted(3)
    assert allowing.flush(PATIENCE)
    minutes = read(client, minutes=2, allow_eviction=["allkeys-lru"])
    assert sum(m.enlisted for m in minutes) == 3


def test_what_is_spent_is_shared(any_server: AnyServer, make: Callable[..., Ledger]) -> None:
    client = any_server.client()
    first, second = make(client), make(client)
    assert first.spent_today() == 0
    first.spend(9)
    assert first.spent_today() == 9
    assert first.flush(PATIENCE)
    second.spend(100)
    assert second.spent_today() == 100
    assert second.flush(PATIENCE)
    assert second.spent_today() == 109
    # The first hears of it with its own next send.
    assert first.spent_today() == 9
    first.on_enlisted(1)
    assert first.flush(PATIENCE)
    assert first.spent_today() == 109


def test_a_capped_job_stops_when_the_fleet_has_spent_its_day(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger, elsewhere = make(client), make(client)
    recruiter = Recruiter()
    rate = Adaptive(floor=0.1, ceiling=0.9, max_ops_per_day=1_000, spending=ledger)
    recruiter.job(rate=rate, name="sweep")(lambda slice: 1)
    recruiter.add_hook(ledger)
    assert recruiter.perform("sweep") is Outcome.WORKED
    assert 0 < ledger.spent_today() < 10
    elsewhere.spend(5_000)
    elsewhere.on_enlisted(1)
    assert elsewhere.flush(PATIENCE)
    assert ledger.flush(PATIENCE)
    assert ledger.spent_today() > 5_000
    installed = recruiter._roster.get("sweep")
    assert installed.controller is not None
    assert installed.controller.allowance() == 0.0


def test_a_new_day_has_spent_nothing(
    redis7: RedisServer, make: Callable[..., Ledger], clock: ManualClock
) -> None:
    ledger = make(redis7.client())
    ledger.spend(50)
    assert ledger.flush(PATIENCE)
    assert ledger.spent_today() == 50
    clock.advance(86_400.0)
    assert ledger.spent_today() == 0
    ledger.spend(3)
    assert ledger.spent_today() == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_is_another_process(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    ledger.on_enlisted(10)
    with ledger._lock:  # as if another thread held it
        child = os.fork()
        if child == 0:
            status = 1
            try:
                ledger.on_enlisted(100)
                status = 0 if ledger.flush(PATIENCE) else 2
            finally:
                os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ledger.flush(PATIENCE)
    minutes = read(client, minutes=2)
    assert sum(m.enlisted for m in minutes) == 111
    assert sum(m.processes for m in minutes) >= 2


def test_a_recruiter_reports(any_server: AnyServer, make: Callable[..., Ledger]) -> None:
    client = any_server.client()
    recruiter = Recruiter()
    recruiter.job(rate=1.0, name="sweep")(lambda slice: 3)
    ledger = make(client, "shop")
    recruiter.add_hook(ledger)
    for _ in range(10):
        assert recruiter.enlist() is Outcome.WORKED
    recruiter.flush()
    assert ledger.flush(PATIENCE)
    minutes = read(client, "shop", minutes=2)
    assert sum(m.enlisted for m in minutes) == 10
    sweep = total(minutes)["sweep"]
    assert (sweep.worked, sweep.items, sweep.rate) == (10, 30, 1.0)
    assert total(read(client, "another", minutes=2)) == {}


def test_counts_are_handed_back_while_the_namespace_returns(
    redis8: RedisServer, make: Callable[..., Ledger]
) -> None:
    """The server kept the deadline that it had, beside the one of the ledger's own keys."""
    client, ledger = redis8.client(), make(redis8.client())
    for count, backend in enumerate(("native", "leaving", "returning"), 1):
        if count > 1:
            client.hset(f"ws:{ledger.hashes.namespace}:layout", "backend", backend)
            ledger.hashes.forget()
        work(ledger, "sweep", Outcome.WORKED, 1)
        assert ledger.flush(PATIENCE)
        assert total(read(client, minutes=2))["sweep"].worked == count
    pattern = "{workstealing:ledger:default}:[0-9]*"
    # Two, if a minute has begun meanwhile: the last one counts.
    hashes = list(client.scan_iter(pattern, _type="hash"))
    assert [-1] in [client.hexpiretime(key, "worked:sweep") for key in hashes]
    assert all(ledger.hashes.httl(key, "worked:sweep")[0] > 0 for key in hashes)


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


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x" * 51}, "name"),
        ({"interval": 0.0}, "interval"),
        ({"interval": "10"}, "interval"),
        ({"interval": float("inf")}, "interval"),
        ({"keep": 59}, "keep"),
        ({"keep": 86_400}, "keep"),
        ({"keep": "600"}, "keep"),
    ],
)
def test_bad_arguments(redis7: RedisServer, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Ledger(redis7.client(), **options)


def test_a_closed_ledger_writes_no_more(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    # Its thread is woken once more, to end; it must not send an empty batch.
    for _ in range(20):
        work(ledger, "expiry", Outcome.WORKED, 1)
        ledger._closed = False
        assert ledger.flush(PATIENCE)
        ledger.close(PATIENCE)
        client.flushall()
        assert ledger._thread is not None
        ledger._thread.join(PATIENCE)
        assert client.dbsize() == 0


def test_a_thread_that_is_woken_twice_for_one_batch_sends_once(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make(redis7.client())
    heard: list[Sequence[Any]] = []

    def hear(replies: Sequence[Any]) -> None:
        heard.append(replies)
        if len(heard) == 1:
            # As by another caller of flush(), whose counts were in this batch too.
            ledger._wake.put(None)

    ends = queue.SimpleQueue[bool]()
    deliver = ledger._deliver
    monkeypatch.setattr(ledger, "_deliver", lambda: ends.put(deliver()))
    ledger.accompany(lambda: [("TIME",)], hear)
    work(ledger, "expiry", Outcome.WORKED, 1)
    ledger._rouse()
    ends.get(timeout=PATIENCE)
    ends.get(timeout=PATIENCE)
    assert len(heard) == 1


# ---- what went wrong, and who reports ------------------------------------------------------------


def fail(ledger: Ledger, error: BaseException, job: str = "expiry") -> None:
    """Tell a ledger of one recruit whose slice failed."""
    ledger.on_recruited(job)
    ledger.on_outcome(job, Outcome.FAILED, 0, 0.01, error)


class NoPermissionError(Exception):
    """As a server's."""


@pytest.mark.parametrize("asked", [False, True])
def test_errors_have_class_count_time_and_host_and_a_text_only_where_asked_for(
    any_server: AnyServer, make: Callable[..., Ledger], asked: bool
) -> None:
    client = any_server.client()
    ledger = make(client, error_texts=asked)
    before = time.time()
    for _ in range(3):
        fail(ledger, NoPermissionError("user:17 has no permissions"))
    fail(ledger, ValueError("x" * 1_000), "a:b")
    assert ledger.flush(PATIENCE)
    fail(ledger, NoPermissionError("user:18 has no permissions"))
    assert ledger.flush(PATIENCE)
    sums = total(read(client, minutes=3))
    denied = sums["expiry"].errors["NoPermissionError"]
    assert (denied.count, denied.host) == (4, socket.gethostname())
    assert denied.at is not None
    assert before - 120.0 <= denied.at <= time.time() + 120.0
    assert denied.text == ("user:18 has no permissions" if asked else None)
    other = sums["a:b"].errors["ValueError"]
    assert (other.count, other.text) == (1, "x" * 300 if asked else None)
    keys = [minute_key("default", each.minute) for each in read(client, minutes=3)]
    written = b"".join(b"".join(client.hgetall(key).values()) for key in keys)
    assert b"NoPermission" not in written
    assert (b"user:1" in written) is asked


def test_classes_of_errors_are_bounded(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    for number in range(50):
        fail(ledger, type(f"Error{number}", (Exception,), {})("x"))
    assert ledger.flush(PATIENCE)
    errors = total(read(client, minutes=2))["expiry"].errors
    assert len(errors) == 9
    assert errors["_other"].count == 42


def test_an_error_that_somebody_else_wrote_is_passed_over() -> None:
    fields = {"fault.ValueError:a": "nonsense", "error.ValueError:a": "3", "fault.E:a": "[1]"}
    job = parsed(0, fields).jobs["a"]
    assert job.errors == {"ValueError": JobError(count=3), "E": JobError()}


def test_what_lasts_is_reported_by_the_longest(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis7.client()
    for lane, seconds in enumerate((240.0, 60.0)):
        ledger, recruiter = make(client), Recruiter()
        # Two processes may share a lane by chance; then the later one stands.
        ledger._lane = lane
        recruiter.add_hook(ledger)
        figures = {"rate": 0.5, "running_seconds": seconds, "breaker_seconds": 2 * seconds}
        monkeypatch.setattr(Recruiter, "stats", lambda self, f=figures: {"jobs": {"sweep": f}})
        ledger.on_enlisted(1)
        assert ledger.flush(PATIENCE)
    job = total(read(client, minutes=2))["sweep"]
    assert (job.running_seconds, job.unreached_seconds) == (240.0, 480.0)


def test_a_jobs_own_figures_are_kept_by_their_highest(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    for lane, values in enumerate([(2.0, 0.0), (1.0, -3.0)]):
        ledger = make(client)
        ledger._lane = lane
        for value in values:
            ledger.on_measured("audit", "replica_differences", value)
            ledger.on_measured("audit", "of: a.colon", value - 5)
        assert ledger.flush(PATIENCE)
    (found,) = [each.jobs["audit"] for each in read(client, minutes=2) if each.jobs]
    assert found.measured == {"replica_differences": 2.0, "of. a.colon": -3.0}
    assert total(read(client, minutes=2))["audit"].measured == found.measured


def test_the_names_of_own_figures_are_bounded(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client)
    for number in range(100):
        ledger.on_measured("audit", f"figure-{number}", 1.0)
    assert ledger.flush(PATIENCE)
    assert len(total(read(client, minutes=2))["audit"].measured) == MOST_MEASURED


def test_processes_are_listed_with_host_and_version_and_forgotten(
    any_server: AnyServer, make: Callable[..., Ledger]
) -> None:
    client = any_server.client()
    assert processes(client) == []
    for _ in range(2):
        ledger = make(client)
        ledger.on_enlisted(1)
        assert ledger.flush(PATIENCE)
    found = processes(client)
    assert [(each.host, each.pid, each.version) for each in found] == [
        (socket.gethostname(), os.getpid(), __version__)
    ] * 2
    hashes, key = VolatileHashes(client, namespace="ledger.default"), processes_key("default")
    left = hashes.httl(key, *hashes.hgetall(key))
    assert all(150 <= seconds <= 180 for seconds in left), left


def test_what_is_no_process_is_passed_over() -> None:
    good = process_text(Process("web-1", 7, "0.1.0", 5.0))
    assert parsed_processes(["", "[]", "{}", '{"host": 1}', good]) == [
        Process("web-1", 7, "0.1.0", 5.0)
    ]
