"""NativeFieldAudit: what a sample of fields tells of servers that keep them wrongly."""

from __future__ import annotations

import gc
import json
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from support.dashboards import TOKEN, make_app
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing import Recruiter
from workstealing.cli import main
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, NativeFieldAudit
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.prometheus import PrometheusHooks
from workstealing.recruiting.slice import Outcome, Slice
from workstealing.structures import VolatileHashes

Start = Callable[..., RedisServer]
HASHES = 200

pytestmark = pytest.mark.real


@pytest.fixture
def pair(request: pytest.FixtureRequest, start_redis: Start) -> tuple[Any, Any]:
    """Clients of a primary that does not collect expired fields, and of its replica."""
    product, version = request.param
    config = {"enable_debug_command": "yes", "repl_diskless_sync_delay": 0}
    primary, replica = (start_redis(version, product, **config) for _ in range(2))
    client, follower = primary.client(), replica.client()
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    follower.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(
        lambda: follower.info("replication")["master_link_status"] == "up", "the replica to follow"
    )
    return client, follower


VALKEY, REDIS = ("valkey", "9.1"), ("redis", 8)
EITHER = pytest.mark.parametrize("pair", [VALKEY, REDIS], indirect=True, ids=["valkey", "redis"])


def heard(client: Any, follower: Any) -> None:
    """Wait until the replica has all that the primary has."""
    client.set("heard", "yes")
    wait_until(lambda: follower.get("heard") == b"yes", "the replica to hear")


def audit(hashes: VolatileHashes, follower: Any = None, limit: int = 25) -> NativeFieldAudit:
    return NativeFieldAudit(hashes, "item:*", follower, limit=limit, random=random.Random(7).random)


def within_300_commands(job: NativeFieldAudit) -> bool:
    """Say whether slices find it with 300 commands: 0.1 % of a minute at 5,000 a second."""
    spent = 0
    while spent < 300:
        slice = Slice(25, 10.0)
        found = job.perform(slice)
        spent += slice.operations
        assert slice.measured is not None
        if different := slice.measured.get("replica_differences"):
            assert found == different + slice.measured["kept_past_deadline"]
            return True
    return False


@pytest.mark.parametrize("pair", [VALKEY], indirect=True)
def test_valkeys_revived_fields_are_found(
    pair: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(HASHES):
        hashes.hset(f"item:{number}", mapping={"a": 1, "b": 2, "live": 3})
        hashes.hexpire(f"item:{number}", 600, "live")
    for number in range(0, HASHES, 5):
        hashes.hpexpire(f"item:{number}", 20, "a")
    wait_until(lambda: hashes.hget(f"item:{HASHES - 5}", "a") is None, "fields to expire")
    for number in range(0, HASHES, 5):
        assert hashes.hpersist(f"item:{number}", "a", "live") == [-2, 1]
    heard(client, follower)
    with caplog.at_level(logging.WARNING, "workstealing"):
        assert within_300_commands(audit(hashes, follower))
    (line,) = [each for each in caplog.messages if "on its replica" in each]
    assert "the deadline -2 on the primary and -1 on its replica" in line


@pytest.mark.parametrize("pair", [REDIS], indirect=True)
def test_redis_fields_without_their_deadline_are_found(pair: tuple[Any, Any]) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(HASHES):
        hashes.hsetex(f"item:{number}", mapping={"a": 1, "b": 2}, ex=600)
    for number in range(0, HASHES, 5):
        hashes.hincrbyfloat(f"item:{number}", "a", 1.5)
    heard(client, follower)
    assert within_300_commands(audit(hashes, follower))


@EITHER
def test_where_all_is_right_nothing_is_found(pair: tuple[Any, Any]) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(HASHES):
        hashes.hsetex(f"item:{number}", mapping={"a": 1, "b": 2}, ex=600)
        hashes.hset(f"item:{number}", "c", "for ever")
    for number in range(100):
        hashes.hset("item:large", mapping={f"f{number}": 1})
    heard(client, follower)
    job, compared = audit(hashes, follower), 0.0
    for _ in range(30):
        slice = Slice(25, 10.0)
        assert job.perform(slice) == 0
        assert slice.measured is not None
        compared += slice.measured.get("fields_compared", 0.0)
    assert compared > 300


@EITHER
def test_a_replica_that_lags_behind_is_not_judged(pair: tuple[Any, Any]) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(HASHES):
        hashes.hsetex(f"item:{number}", mapping={"a": 1}, ex=600)
    heard(client, follower)
    follower.execute_command("REPLICAOF", "NO", "ONE")
    for number in range(HASHES):
        hashes.hsetex(f"item:{number}", mapping={"a": 2}, ex=6_000)
    job = audit(hashes, follower)
    for _ in range(5):
        slice = Slice(25, 10.0)
        assert job.perform(slice) == 0
        assert slice.measured is not None
        assert slice.measured.get("fields_compared", 0.0) == 0.0


@pytest.mark.parametrize("pair", [VALKEY], indirect=True)
def test_fields_that_are_kept_too_long_are_counted(pair: tuple[Any, Any]) -> None:
    client, _ = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(10):
        hashes.hset(f"item:{number}", mapping={"a": 1, "b": 2})
        hashes.hpexpire(f"item:{number}", 20, "a")
    wait_until(lambda: hashes.hget("item:9", "a") is None, "fields to expire")
    slice = Slice(100, 10.0)
    assert audit(hashes, limit=100).perform(slice) > 0
    assert slice.measured is not None
    assert set(slice.measured) == {"kept_past_deadline"}


def test_other_namespaces_and_keys_are_left_alone(redis8: RedisServer) -> None:
    client = redis8.client()
    emulated = VolatileHashes(client, "e", backend="emulated")
    emulated.hsetex("item:1", "a", 1, ex=600)
    assert audit(emulated).perform(Slice(25, 10.0)) == 0
    hashes = VolatileHashes(client, "n", backend="native")
    assert audit(hashes).perform(Slice(25, 10.0)) == 0
    hashes.open()
    client.set("item:2", "no hash")
    before = {key: client.type(key) for key in client.scan_iter()}
    assert audit(hashes).perform(Slice(25, 10.0)) == 0
    assert {key: client.type(key) for key in client.scan_iter()} == before


@pytest.mark.slow
@EITHER
def test_no_command_looks_at_a_whole_large_hash(pair: tuple[Any, Any]) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(20):
        hashes.hset(f"item:{number}", mapping={f"f{each}": 1 for each in range(2_000)})
        hashes.hexpire(f"item:{number}", 600, *(f"f{each}" for each in range(2_000)))
    heard(client, follower)
    for each in (client, follower):
        each.config_resetstat()
    job, compared = audit(hashes, follower), 0.0
    for _ in range(20):
        slice = Slice(25, 10.0)
        assert job.perform(slice) == 0
        assert slice.measured is not None
        compared += slice.measured.get("fields_compared", 0.0)
    assert compared > 50
    # HRANDFIELD and HKEYS would: the former while it meets fields that have expired.
    for each in (client, follower):
        sent = {name.removeprefix("cmdstat_") for name in each.info("commandstats")}
        assert {name for name in sent if name.startswith("h")} <= {
            *("hello", "hgetall", "hlen", "hmget", "hpexpiretime", "hscan")
        }


class Meddled(NativeFieldAudit):
    """Another writer puts texts, or nothing, in the places of hashes between two looks."""

    def _keys(self, *args: Any) -> list[bytes]:
        keys = super()._keys(*args)
        client = self.hashes.client
        for number, key in enumerate(keys):
            client.delete(key)
            if number % 2:
                client.set(key, "no hash")
        self.met = len(keys)
        return keys


@EITHER
@pytest.mark.parametrize("fields", [1, 100])
def test_keys_that_are_hashes_no_more_harm_no_slice(pair: tuple[Any, Any], fields: int) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(HASHES):
        hashes.hset(f"item:{number}", mapping={f"f{each}": 1 for each in range(fields)})
    heard(client, follower)
    job = Meddled(hashes, "item:*", follower, random=random.Random(7).random)
    met = 0
    while not met:
        assert job.perform(Slice(25, 10.0)) == 0
        met = job.met


@pytest.mark.slow
def test_the_job_keeps_its_replicas_client(redis8: RedisServer) -> None:
    hashes = VolatileHashes(redis8.client(), "n", backend="native")
    for number in range(HASHES):
        hashes.hset(f"item:{number}", "f", 1)
    job = audit(hashes, redis.Redis(port=redis8.port))
    gc.collect()
    for _ in range(5):
        assert job.perform(Slice(25, 10.0)) == 0


def test_a_replica_that_is_down_holds_no_other_job_back(
    redis8: RedisServer, start_redis: Start
) -> None:
    hashes = VolatileHashes(redis8.client(), "n", backend="native")
    for number in range(HASHES):
        hashes.hset(f"item:{number}", "f", 1)
    replica = start_redis(8)
    recruiter = Recruiter()
    job, other = audit(hashes, replica.client()), HashFieldExpiry(hashes)
    recruiter.install(job, rate=1e-9)
    recruiter.install(other, rate=1e-9)
    replica.kill()
    outcomes = [recruiter.perform(job.name, seconds=5.0) for _ in range(5)]
    assert Outcome.FAILED in outcomes
    assert outcomes[-1] is Outcome.SKIPPED
    assert recruiter.perform(other.name, seconds=5.0) is Outcome.IDLE


@pytest.mark.parametrize("pair", [VALKEY], indirect=True)
def test_its_figures_are_seen_in_status_on_the_dashboard_and_by_prometheus(
    pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    client, follower = pair
    hashes = VolatileHashes(client, "n", backend="native")
    for number in range(10):
        hashes.hset(f"item:{number}", mapping={"a": 1, "b": 2, "live": 3})
        hashes.hexpire(f"item:{number}", 600, "live")
        hashes.hpexpire(f"item:{number}", 20, "a")
    wait_until(lambda: hashes.hget("item:9", "a") is None, "fields to expire")
    for number in range(10):
        hashes.hpersist(f"item:{number}", "a", "live")
    heard(client, follower)
    recruiter, registry = Recruiter(), CollectorRegistry()
    ledger = Ledger(client)
    recruiter.add_hook(ledger)
    recruiter.add_hook(PrometheusHooks(registry=registry))
    job = audit(hashes, follower, limit=100)
    recruiter.install(job, rate=1e-9)
    recruiter.install(HashFieldExpiry(hashes), rate=1e-9)
    try:
        for name in (job.name, "hash_field_expiry.n"):
            recruiter.perform(name, seconds=5.0)
        own = recruiter.stats()["jobs"][job.name]["measured"]
        assert set(own) == {"fields_compared", "replica_differences", "kept_past_deadline"}
        assert own["replica_differences"]["value"] > 0
        assert ledger.flush(10.0)
        # The doctor says the like of the server: expired-passed-on.
        expected = {job.name: set(own), "hash_field_expiry.n": {"server_faults"}}
        port = client.connection_pool.connection_kwargs["port"]
        main(["status", "--url", f"redis://127.0.0.1:{port}", "--json"])
        seen = json.loads(capsys.readouterr().out)
        assert {
            each["name"]: {one["name"] for one in each["measured"]} for each in seen["jobs"]
        } == expected
        main(["status", "--url", f"redis://127.0.0.1:{port}"])
        text = capsys.readouterr().out
        assert "figure of one slice: of its sample" in text
        assert "replica_differences" in text
        pages = make_app(recruiter, client, token=TOKEN).test_client()
        header = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}
        view = json.loads(pages.get("/ws/view.json", headers=header).text)
        shown = {each["name"]: each["measured"] for each in view["jobs"]}
        assert {
            name: {line.split()[0] for line in lines} for name, lines in shown.items()
        } == expected
        labels = {"job_name": job.name, "what": "replica_differences"}
        assert registry.get_sample_value("workstealing_measured", labels) == pytest.approx(
            own["replica_differences"]["value"]
        )
    finally:
        ledger.close(10.0)


def test_a_cluster_is_audited_without_replicas(cluster8: RedisCluster3) -> None:
    hashes = VolatileHashes(cluster8.client(), "n", backend="native")
    for number in range(30):
        hashes.hsetex(f"item:{number}", "a", 1, ex=600)
    job = audit(hashes)
    for _ in range(10):
        assert job.perform(Slice(25, 10.0)) == 0


def test_wrong_arguments(redis8: RedisServer, cluster8: RedisCluster3) -> None:
    with pytest.raises(ConfigurationError, match="is no pattern"):
        NativeFieldAudit(VolatileHashes(redis8.client(), "n"), "")
    with pytest.raises(ConfigurationError, match="expected VolatileHashes"):
        NativeFieldAudit(redis8.client(), "item:*")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cluster's replicas"):
        NativeFieldAudit(VolatileHashes(cluster8.client(), "n"), "item:*", redis8.client())
