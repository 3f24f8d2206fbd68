"""The reports to a ledger: what each one says, its cost, and its server in every state."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from support.ledgers import PATIENCE, work
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing import __version__
from workstealing.errors import ConfigurationError, EvictionPolicyError, Moved, OutOfTime
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics import reading
from workstealing.metrics.ledger import (
    Ledger,
    processes,
    read,
    total,
)
from workstealing.metrics.minutes import (
    events_key,
    processes_key,
    settings_key,
)
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.slice import Slice
from workstealing.store.connection import SENT, Command, OneAttempt
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("patient")]


def test_gauges_are_the_highest_of_the_minute_and_the_last_rate(
    any_server: AnyServer, make: Callable[..., Ledger]
) -> None:
    client = any_server.client()
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 1, name="expiry"), rate=0.25)
    ledger, other = make(client), make(client)
    ledger._reports.lane, other._reports.lane = 1, 2
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
        monkeypatch.setattr(ledger._server, "now", lambda minute=minute: ahead + minute + 1.0)
        ledger.on_observed("sweep", oldest, 1)
        assert ledger.flush(PATIENCE)
    monkeypatch.setattr(reading, "_server_seconds", lambda *_: ahead + 60)
    seen = [m.jobs["sweep"].oldest_seconds for m in read(client, minutes=2)]
    assert seen == [9.0, 4.0]


def connections(client: Any) -> int:
    """Return how many connections a server has ever accepted."""
    return int(client.info("stats")["total_connections_received"])


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


def test_what_lasts_is_reported_by_the_longest(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis7.client()
    for lane, seconds in enumerate((240.0, 60.0)):
        ledger, recruiter = make(client), Recruiter()
        # Two processes may share a lane by chance; then the later one stands.
        ledger._reports.lane = lane
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
        ledger._reports.lane = lane
        for value in values:
            ledger.on_measured("audit", "replica_differences", value)
            ledger.on_measured("audit", "of: a.colon", value - 5)
        assert ledger.flush(PATIENCE)
    (found,) = [each.jobs["audit"] for each in read(client, minutes=2) if each.jobs]
    assert found.measured == {"replica_differences": 2.0, "of. a.colon": -3.0}
    assert total(read(client, minutes=2))["audit"].measured == found.measured


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
