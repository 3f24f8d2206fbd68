"""The job client follows every kind of client: pools, passwords, TLS, protocols, sentinels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from support.certificates import make_certificates
from support.faulty_server import FaultyServer
from support.patience import (
    GUARD_SECONDS,
    FairSeconds,
    patient,  # noqa: F401 - an autouse fixture
)
from support.processes import free_port
from support.redis_py import take_connection
from support.servers import RedisServer, sentinel_of
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice import Slice
from workstealing.store import attempt
from workstealing.store.budget import Budget
from workstealing.store.job_client import JobClient, job_client_of
from workstealing.structures import AsyncVolatileHashes, VolatileHashes

HOUR_MS = 3_600_000

pytestmark = pytest.mark.real


def collects(client: Any) -> bool:
    """Say whether the job works through the job client of this client: fill by it, then collect."""
    filler = VolatileHashes(client, namespace="own", backend="emulated")
    filler.hsetex("h", mapping={"a": 1, "b": 2}, ex=60)
    hashes = VolatileHashes(client, namespace="own", backend="emulated", clock_shift_ms=HOUR_MS)
    return HashFieldExpiry(hashes).perform(Slice(5, 30.0)) == 2 and not client.exists("h")


class TestClients:
    @pytest.mark.parametrize("protocol", [None, 2, 3])
    @pytest.mark.parametrize("decode", [False, True])
    def test_protocols_and_decoding(
        self, redis7: RedisServer, protocol: int | None, decode: bool
    ) -> None:
        client = redis7.client(protocol=protocol, decode_responses=decode)
        assert collects(client)
        with attempt(client, "k") as current:
            current.commit(("SET", "k", b"\xff not text"))
        with attempt(client, "k") as current:
            # A job sees bytes, whatever form the application has chosen.
            assert current.read(("GET", "k")) == [b"\xff not text"]
            assert current.read(("HGETALL", "none")) == [[]]

    def test_a_blocking_pool_that_is_exhausted(self, redis7: RedisServer) -> None:
        pool = redis.BlockingConnectionPool(
            host="127.0.0.1", port=redis7.port, max_connections=1, timeout=1
        )
        client = redis.Redis(connection_pool=pool)
        assert collects(client)
        held = take_connection(pool)
        try:
            # The job client takes none of the application's connections.
            with attempt(client, "k") as current:
                assert current.read(("GET", "k")) == [None]
        finally:
            pool.release(held)
            client.close()

    def test_a_subclass_of_the_client(self, redis7: RedisServer) -> None:
        class OwnRedis(redis.Redis):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                self.calls: list[str] = []

            def execute_command(self, *args: Any, **options: Any) -> Any:
                self.calls.append(args[0])
                return super().execute_command(*args, **options)

        client = OwnRedis(host="127.0.0.1", port=redis7.port)
        assert collects(client)
        assert "WATCH" not in client.calls
        client.close()

    def test_a_subclass_of_the_connection(self, redis7: RedisServer) -> None:
        made = []

        class OwnConnection(Connection):
            def __init__(self, *, flavour: str, **options: Any) -> None:
                super().__init__(**options)
                made.append((type(self).__name__, flavour, self.socket_timeout))

        pool = redis.ConnectionPool(
            connection_class=OwnConnection, flavour="sweet", host="127.0.0.1", port=redis7.port
        )
        client = redis.Redis(connection_pool=pool)
        assert collects(client)
        assert ("OneAttemptOwnConnection", "sweet", 0.05) in made
        client.close()

    def test_a_client_with_every_habit(self, redis7: RedisServer) -> None:
        client = redis7.client(
            retry=Retry(NoBackoff(), 5),
            retry_on_error=[ConnectionResetError],
            health_check_interval=1,
            socket_timeout=30,
            socket_connect_timeout=30,
            socket_keepalive=True,
            client_name="application",
            single_connection_client=True,
        )
        assert collects(client)
        (job_client_connection,) = job_client_of(client)._idle[None]
        assert job_client_connection.retry._retries == 0
        assert job_client_connection.socket_timeout == 0.05
        assert client.client_getname() in ("application", b"application")
        with job_client_of(client).connection(None) as connection:
            assert connection.call([("CLIENT", "GETNAME")], Budget()) == [None]

    async def test_asyncio_clients(self, redis7: RedisServer) -> None:
        for options in ({}, {"protocol": 3, "decode_responses": True}, {"db": 3}):
            async with redis7.async_client(**options) as client:
                filler = AsyncVolatileHashes(client, namespace="own", backend="emulated")
                await filler.hsetex("h", mapping={"a": 1, "b": 2}, ex=60)
                hashes = AsyncVolatileHashes(
                    client, namespace="own", backend="emulated", clock_shift_ms=HOUR_MS
                )
                assert HashFieldExpiry(hashes).perform(Slice(5, 30.0)) == 2
                assert not await client.exists("h")

    def test_asyncio_connections_of_the_users_own_are_refused(self, redis7: RedisServer) -> None:
        class Own(redis.asyncio.Connection):
            pass

        pool: Any = redis.asyncio.ConnectionPool(connection_class=Own, port=redis7.port)
        client = redis.asyncio.Redis(connection_pool=pool)
        with pytest.raises(ConfigurationError, match="Own has no blocking counterpart"):
            job_client_of(client).call(None, [("PING",)], Budget())

    @pytest.mark.parametrize("other", [None, "redis://localhost", object(), redis.ConnectionPool()])
    def test_what_is_no_client_is_refused(self, other: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"a client of redis-py was expected"):
            job_client_of(other)

    def test_one_job_client_a_client_and_none_after_it(self, redis7: RedisServer) -> None:
        client = redis.Redis(port=redis7.port)
        job_client = job_client_of(client)
        assert job_client_of(client) is job_client
        assert job_client_of(job_client) is job_client
        job_client.call(None, [("PING",)], Budget())
        client.close()
        del client
        gc.collect()
        with pytest.raises(ConfigurationError, match="keep it alive"):
            job_client.nodes() and job_client.settings_of(None)
        job_client.close()

    def test_a_clients_job_client_is_not_kept_alive_by_our_table(self, redis7: RedisServer) -> None:
        from weakref import ref

        client = redis.Redis(port=redis7.port)
        job_client = ref(job_client_of(client))
        assert collects(client)
        client.close()
        del client
        gc.collect()
        assert job_client() is None


class TestHandshake:
    """The handshake is AUTH and SELECT alone, however the user gives the password."""

    @pytest.fixture
    def named(self, redis7: RedisServer) -> Iterator[RedisServer]:
        admin = redis7.client()
        admin.execute_command("ACL SETUSER worker on >secret ~* &* +@all")
        yield redis7
        redis7.client().execute_command("ACL DELUSER worker")

    @pytest.mark.parametrize("given", ["options", "provider", "url"])
    def test_name_and_password(self, named: RedisServer, faulty: FaultyServer, given: str) -> None:
        address = {"host": "127.0.0.1", "port": faulty.port}
        client: redis.Redis
        if given == "options":
            client = redis.Redis(**address, username="worker", password="secret", db=2)
        elif given == "provider":
            client = redis.Redis(**address, credential_provider=Provider(), db=2)
        else:
            client = redis.Redis.from_url(f"redis://worker:secret@127.0.0.1:{faulty.port}/2")
        assert job_client_of(client).call(None, [("ACL", "WHOAMI")], Budget()) == [b"worker"]
        assert [seen.command for seen in faulty.seen] == [
            (b"AUTH", b"worker", b"secret"),
            (b"SELECT", b"2"),
            (b"ACL", b"WHOAMI"),
        ]

    def test_a_password_alone(self, redis7: RedisServer, faulty: FaultyServer) -> None:
        admin = redis7.client()
        admin.config_set("requirepass", "secret")
        try:
            client = redis.Redis(host="127.0.0.1", port=faulty.port, password="secret")
            assert job_client_of(client).call(None, [("PING",)], Budget()) == [b"PONG"]
            # redis-py names the default user only where it may speak protocol 3.
            is_named = client.connection_pool.connection_kwargs.get("protocol") != 2
            user = (b"default",) if is_named else ()
            sent = [(b"AUTH", *user, b"secret"), (b"PING",)]
            assert [seen.command for seen in faulty.seen] == sent
        finally:
            admin.execute_command("AUTH", "secret")
            admin.config_set("requirepass", "")

    def test_nothing_at_all_where_nothing_is_needed(self, faulty: FaultyServer) -> None:
        client = redis.Redis(host="127.0.0.1", port=faulty.port, protocol=3)
        job_client_of(client).call(None, [("PING",)], Budget())
        assert faulty.names() == ["PING"]

    def test_a_database_that_does_not_exist(self, redis7: RedisServer) -> None:
        client = redis7.client(db=99)
        with pytest.raises(redis.ResponseError, match="DB index is out of range"):
            job_client_of(client).call(None, [("PING",)], Budget())
        assert job_client_of(client)._idle == {}


class Provider(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return ("worker", "secret")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 and its key, and another one that nobody uses."""
    return make_certificates(tmp_path_factory.mktemp("tls"), "server", "stranger")


class TestTls:
    @pytest.fixture
    def port(self, certificates: Path, start_redis: Callable[..., RedisServer]) -> Iterator[int]:
        port = free_port()
        start_redis(
            7,
            tls_port=port,
            tls_cert_file=certificates / "server.crt",
            tls_key_file=certificates / "server.key",
            tls_auth_clients="no",
        )
        return port

    def test_the_job_works_over_tls(self, port: int, certificates: Path) -> None:
        client = redis.Redis(
            host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=str(certificates / "server.crt")
        )
        assert collects(client)
        for _ in range(3):
            # The connection is kept between attempts, session tickets notwithstanding.
            with attempt(client, "k") as current:
                current.read(("GET", "k"))
        assert len(job_client_of(client)._idle[None]) == 1
        (connection,) = job_client_of(client)._idle[None]
        before = connection._sock
        with attempt(client, "k") as current:
            current.read(("GET", "k"))
        assert connection._sock is before
        client.close()

    def test_a_url(self, port: int, certificates: Path) -> None:
        from workstealing import connect

        url = f"rediss://127.0.0.1:{port}/1?ssl_ca_certs={certificates / 'server.crt'}"
        with connect(url) as client:
            assert collects(client)

    async def test_asyncio(self, port: int, certificates: Path) -> None:
        client = redis.asyncio.Redis(
            host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=str(certificates / "server.crt")
        )
        async with client:
            await client.set("k", "v")
            assert job_client_of(client).call(None, [("GET", "k")], Budget()) == [b"v"]

    def test_a_certificate_that_is_not_trusted(self, port: int, certificates: Path) -> None:
        client = redis.Redis(
            host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=str(certificates / "stranger.crt")
        )
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            job_client_of(client).call(None, [("PING",)], Budget())

    def test_a_server_that_falls_silent_in_the_tls_handshake(self, faulty: FaultyServer) -> None:
        client = redis.Redis(host="127.0.0.1", port=faulty.port, ssl=True, ssl_cert_reqs="none")
        with (
            FairSeconds() as held,
            pytest.raises((redis.TimeoutError, redis.ConnectionError)),
        ):
            # The slice's time is not used up, however long a busy machine keeps this from running.
            job_client_of(client).call(None, [("PING",)], Budget(GUARD_SECONDS, 0.05))
        assert held.seconds < 0.05 + 0.5

    @pytest.mark.parametrize("option", ["ssl_validate_ocsp", "ssl_validate_ocsp_stapled"])
    def test_ocsp_is_refused(self, option: str) -> None:
        # It would ask another server, for as long as that one likes.
        client = redis.Redis(ssl=True, **{option: True})
        with pytest.raises(ConfigurationError, match=option):
            job_client_of(client).call(None, [("PING",)], Budget())


class TestSentinel:
    @pytest.fixture
    def sentinel_port(self, redis7: RedisServer, tmp_path: Path) -> Iterator[int]:
        with sentinel_of(redis7, tmp_path) as port:
            yield port

    def test_the_job_client_takes_the_address_that_the_pool_has_learned(
        self,
        sentinel_port: int,
        redis7: RedisServer,
        start_redis: Callable[..., RedisServer],
    ) -> None:
        manager = Sentinel([("127.0.0.1", sentinel_port)])
        client = manager.master_for("main", db=2)
        # A process that does nothing but jobs sends no command of its own.
        assert job_client_of(client).nodes() == [("127.0.0.1", redis7.port)]
        assert client.connection_pool.master_address is None
        assert collects(client)
        assert job_client_of(client).nodes() == [("127.0.0.1", redis7.port)]
        # After a failover the job client knows the new master as soon as the application does.
        other = start_redis(7)
        admin = redis.Redis(port=sentinel_port)
        admin.execute_command("SENTINEL REMOVE", "main")
        admin.execute_command("SENTINEL MONITOR", "main", "127.0.0.1", other.port, 1)
        admin.close()
        client.connection_pool.disconnect()
        client.set("k", "on the new master")
        with attempt(client, "k") as current:
            assert current.read(("GET", "k")) == [b"on the new master"]
        client.close()

    async def test_asyncio(self, sentinel_port: int, redis7: RedisServer) -> None:
        manager = AsyncSentinel([("127.0.0.1", sentinel_port)])
        async with manager.master_for("main") as client:
            await client.set("k", "v")
            assert job_client_of(client).nodes() == [("127.0.0.1", redis7.port)]
            assert job_client_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]
        for each in manager.sentinels:
            await each.aclose()

    def test_replicas_are_refused(self) -> None:
        client = Sentinel([("127.0.0.1", 1)]).slave_for("main")
        with pytest.raises(ConfigurationError, match=r"sentinel\.master_for"):
            JobClient(client)

    def test_jobs_on_one_service_share_a_breaker(self) -> None:
        clients = [Sentinel([("a", 1), ("b", 2)]).master_for("main") for _ in range(2)]
        other = Sentinel([("a", 1), ("b", 2)]).master_for("other")
        first, second = (job_client_of(client).identity for client in clients)
        assert first == second != job_client_of(other).identity
