"""A client of valkey-py works wherever one of redis-py does, with the settings that it has."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import valkey
import valkey.asyncio
import valkey.asyncio.sentinel
import valkey.sentinel
from valkey.backoff import ExponentialBackoff
from valkey.retry import Retry

from support.certificates import make_certificates
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import free_port
from support.servers import BUSY, RedisCluster3, RedisServer, find_server, sentinel_of
from workstealing import Outcome
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, IckReaper, KeyExpiry
from workstealing.metrics.ledger import Ledger
from workstealing.recruiting import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.job_client import job_client_of
from workstealing.store.valkey_clients import redis_client
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.durable_keys import AsyncDurableKeys
from workstealing.structures.volatile_hashes import AsyncVolatileHashes
from workstealing.testing import always

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000


def _port(server: Any) -> int:
    """Return the port of a server, or of a node of a cluster."""
    return int(server.port)


@pytest.fixture(params=["redis7", "valkey8", "cluster"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = request.getfixturevalue(request.param)
    kind: Any = valkey.ValkeyCluster if server.is_cluster else valkey.Valkey
    made = kind(host="127.0.0.1", port=_port(server), **BUSY)
    yield made
    made.close()


def test_hashes_and_their_job(client: Any) -> None:
    hashes = VolatileHashes(client, namespace="v", backend="emulated")
    assert hashes.hsetex("item", mapping={"a": 1, "b": 2}, ex=60) == 1
    assert hashes.hgetex("item", "a") == [b"1"]
    with hashes.pipeline() as pipeline:
        assert pipeline.hset("item", "c", 3).plain.set("own", "x").execute() == [1, True]
    # The user's own client sees the same data.
    assert client.hget("item", "b") == b"2"
    later = VolatileHashes(client, namespace="v", backend="emulated", clock_shift_ms=HOUR_MS)
    recruiter = always(seconds=60.0)
    recruiter.install(HashFieldExpiry(later), rate=1.0)
    assert recruiter.enlist() is Outcome.WORKED
    assert client.hgetall("item") == {b"c": b"3"}


def test_every_structure_takes_it(client: Any) -> None:
    keys = DurableKeys(client)
    assert keys.set("k", "v", ex=100) is True
    token = keys.acquire("{lock}", lease=30)
    assert token is not None
    assert keys.release("{lock}", token) is True
    assert KeyExpiry(keys).perform(Slice(5, 60.0)) == 0
    ick = Ick(client, "{i}")
    ick.add({"m": 1.0})
    assert IckReaper(ick, lease=60).perform(Slice(5, 60.0)) == 0
    sharded = ShardedIck(client, "s", 2)
    sharded.add({"m": 1.0})
    log = Log(client, "{log}")
    assert log.append(b"entry") == 0
    assert log.read(0) == [b"entry"]
    tracked = TrackedSet(client, "t")
    tracked.track(7)
    assert tracked.is_tracked(7)
    queue = ShuffleQueue(client, "{q}")
    queue.write("tenant", {"f": "v"})
    assert queue.read("workers", "worker 1") is not None
    fair = FairQueue(client, "{f}")
    fair.write("tenant", {"f": "v"})
    taken = fair.read("worker 1", block=0.01)
    assert taken is not None
    assert fair.ack(taken) == 1
    assert fair.read("worker 1", block=0.01) is None
    shards = TimeShardQueue(RedisStore(client), "times")
    shards.put(b"m")
    for structure in (keys, ick, sharded, log, tracked, queue, fair):
        assert structure.client is redis_client(client)
    Ledger(client)


def test_an_attempt_and_the_errors_of_redis_py(client: Any) -> None:
    with attempt(client, "k") as current:
        assert current.read(("GET", "k")) == [None]
        current.commit(("SET", "k", "v"))
    assert client.get("k") == b"v"
    hashes = VolatileHashes(client, namespace="v", backend="emulated")
    client.rpush("list", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        hashes.hset("list", "f", "v")


@pytest.mark.parametrize("fixture", ["redis7", "cluster"])
async def test_asyncio(request: pytest.FixtureRequest, fixture: str) -> None:
    server = request.getfixturevalue(fixture)
    kind: Any = valkey.asyncio.ValkeyCluster if server.is_cluster else valkey.asyncio.Valkey
    client = kind(host="127.0.0.1", port=_port(server), **BUSY)
    hashes = AsyncVolatileHashes(client, namespace="v", backend="emulated")
    try:
        assert await hashes.hsetex("item", "f", "v", ex=60) == 1
        assert await hashes.hgetall("item") == {b"f": b"v"}
        assert await client.hgetall("item") == {b"f": b"v"}
        assert HashFieldExpiry(hashes).perform(Slice(5, 60.0)) == 0
        keys = AsyncDurableKeys(client)
        assert keys.client is hashes.client
        assert await keys.set("k", "v") is True
        with pytest.raises(ConfigurationError, match="AsyncDurableKeys"):
            DurableKeys(client)
    finally:
        await hashes.client.aclose()
        await client.aclose()


def test_a_blocking_client_belongs_to_the_blocking_class(redis7: RedisServer) -> None:
    with pytest.raises(ConfigurationError, match="give it to VolatileHashes"):
        AsyncVolatileHashes(valkey.Valkey(port=redis7.port))


class Provider(valkey.CredentialProvider):
    """A provider of the user's own."""

    def get_credentials(self) -> tuple[str, str]:
        return ("worker", "secret")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, int, Path]]:
    """A server with TLS, a user and a socket."""
    folder = make_certificates(tmp_path_factory.mktemp("tls"), "server", "client", "stranger")
    port = free_port()
    with RedisServer(
        find_server("redis", 7),
        7,
        tls_port=port,
        tls_cert_file=folder / "server.crt",
        tls_key_file=folder / "server.key",
        tls_ca_cert_file=folder / "client.crt",
        tls_auth_clients="yes",
    ) as server:
        server.client().execute_command("ACL SETUSER worker on >secret ~* &* +@all")
        yield server, port, folder


@pytest.mark.parametrize(
    "given",
    [
        {"username": "worker", "password": "secret"},
        {"credential_provider": Provider()},
        {"credential_provider": valkey.UsernamePasswordCredentialProvider("worker", "secret")},
        {"valkey_connect_func": None, "username": "worker", "password": "secret"},
        {"protocol": 3, "username": "worker", "password": "secret"},
        {"tls": True, "username": "worker", "password": "secret"},
        {"unix": True, "username": "worker", "password": "secret"},
        {"blocking": True, "username": "worker", "password": "secret"},
    ],
)
def test_settings(place: tuple[RedisServer, int, Path], given: dict[str, Any]) -> None:
    server, tls_port, folder = place
    options: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "db": 3, **BUSY, **given}
    if options.pop("tls", False):
        options |= {
            "port": tls_port,
            "ssl": True,
            "ssl_ca_certs": str(folder / "server.crt"),
            "ssl_certfile": str(folder / "client.crt"),
            "ssl_keyfile": str(folder / "client.key"),
        }
    if options.pop("unix", False):
        options["unix_socket_path"] = str(server.socket)
    if options.pop("blocking", False):
        options = {"connection_pool": valkey.BlockingConnectionPool(2, 5, **options)}
    client = valkey.Valkey(**options)
    client.set("k", "v")
    ours = redis_client(client)
    assert isinstance(ours, redis.Redis)
    assert (ours.get("k"), ours.acl_whoami()) in ((b"v", "worker"), (b"v", b"worker"))
    assert job_client_of(client).call(
        None, [("GET", "k"), ("ACL", "WHOAMI")], Budget(60.0, 60.0)
    ) == [
        b"v",
        b"worker",
    ]
    pool, theirs = ours.connection_pool, client.connection_pool
    assert pool.max_connections == theirs.max_connections
    assert type(pool).__name__ == type(theirs).__name__
    ours.close()
    client.close()


def test_retries_and_text_are_those_of_the_client(redis7: RedisServer) -> None:
    client = valkey.Valkey(
        port=redis7.port,
        decode_responses=True,
        retry=Retry(ExponentialBackoff(cap=1, base=0.1), 4),
        retry_on_error=[valkey.ConnectionError, ConnectionResetError],
    )
    options = redis_client(client).connection_pool.connection_kwargs
    assert options["retry"]._retries == 4
    assert options["retry_on_error"] == [redis.ConnectionError, ConnectionResetError]
    hashes = VolatileHashes(client, namespace="v", backend="emulated")
    hashes.hset("item", "f", "v")
    assert hashes.hgetall("item") == {"f": "v"}


def test_sentinels(redis7: RedisServer, tmp_path: Path) -> None:
    with sentinel_of(redis7, tmp_path) as port:
        manager = valkey.sentinel.Sentinel([("127.0.0.1", port)], sentinel_kwargs=dict(BUSY))
        client = manager.master_for("main", **BUSY)
        keys = DurableKeys(client)
        assert keys.set("k", "v") is True
        assert client.get("k") == b"v"
        assert KeyExpiry(keys).perform(Slice(5, 60.0)) == 0
        with pytest.raises(ConfigurationError, match="Sentinel's replicas"):
            DurableKeys(manager.slave_for("main"))


async def test_sentinels_asyncio(redis7: RedisServer, tmp_path: Path) -> None:
    with sentinel_of(redis7, tmp_path) as port:
        manager = valkey.asyncio.sentinel.Sentinel(
            [("127.0.0.1", port)], sentinel_kwargs=dict(BUSY)
        )
        keys = AsyncDurableKeys(manager.master_for("main", **BUSY))
        assert await keys.set("k", "v") is True
        assert redis7.client().get("k") == b"v"
        await keys.client.aclose()


def test_a_connection_class_of_the_users_own_is_refused(redis7: RedisServer) -> None:
    class Own(valkey.Connection):
        pass

    pool = valkey.ConnectionPool(connection_class=Own, port=redis7.port)
    with pytest.raises(ConfigurationError, match="Own is not valkey-py's own"):
        DurableKeys(valkey.Valkey(connection_pool=pool))


def test_a_client_of_redis_py_and_anything_else_comes_back_as_it_is(redis7: RedisServer) -> None:
    client = redis7.client()
    assert redis_client(client) is client
    with pytest.raises(ConfigurationError, match="a client of redis-py was expected"):
        DurableKeys("redis://")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a client of redis-py was expected"):
        DurableKeys(valkey.ConnectionPool())


def test_one_client_stands_for_one_client_and_goes_with_it(redis7: RedisServer) -> None:
    client = valkey.Valkey(port=redis7.port)
    ours = redis_client(client)
    assert redis_client(client) is ours
    assert job_client_of(client) is job_client_of(ours)
    seen = weakref.ref(ours)
    del client, ours
    gc.collect()
    assert seen() is None


def test_valkey_py_is_not_imported_without_one_of_its_clients() -> None:
    code = (
        "import sys, redis; from workstealing.structures import DurableKeys;"
        "DurableKeys(redis.Redis()); assert 'valkey' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_the_clusters_settings(cluster: RedisCluster3) -> None:
    client = valkey.ValkeyCluster(
        host="127.0.0.1", port=cluster.port, decode_responses=True, read_from_replicas=True, **BUSY
    )
    ours: Any = redis_client(client)
    ours.set("k", "v")
    assert ours.get("k") == "v"
    assert ours.read_from_replicas is True
    assert ours.nodes_manager.connection_kwargs["socket_timeout"] == BUSY["socket_timeout"]
    ours.close()
    client.close()
