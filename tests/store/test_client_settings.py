"""A job's connections accept every setting of an application's client: one setting at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.asyncio import connection as async_connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import ExponentialBackoff
from redis.connection import Connection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from support.certificates import make_certificates
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import free_port
from support.redis_py import lack, skip_without
from support.servers import RedisCluster3, RedisServer, find_server, sentinel_of, wait_until
from workstealing.errors import ConfigurationError
from workstealing.store import connect
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.job_client import JobClient, job_client_of
from workstealing.store.redis_versions import DEFAULT_PROTOCOL

# redis-py advises against some of its own options; applications have them all the same.
pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Place:
    """A server on TCP, TLS and a UNIX socket, with and without a user's name."""

    def __init__(self, server: RedisServer, tls_port: int, certificates: Path) -> None:
        self.server = server
        self.tls_port = tls_port
        self.certificates = certificates

    @property
    def tcp(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.server.port}

    @property
    def tls(self) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.tls_port,
            "ssl": True,
            "ssl_ca_certs": str(self.certificates / "server.crt"),
            "ssl_certfile": str(self.certificates / "client.crt"),
            "ssl_keyfile": str(self.certificates / "client.key"),
        }

    @property
    def unix(self) -> dict[str, Any]:
        return {"unix_socket_path": str(self.server.socket)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = make_certificates(tmp_path_factory.mktemp("tls"), "server", "client", "stranger")
    # The server knows the owner of this certificate.
    tls_port = free_port()
    with RedisServer(
        find_server("redis", 7),
        7,
        tls_port=tls_port,
        tls_cert_file=folder / "server.crt",
        tls_key_file=folder / "server.key",
        tls_ca_cert_file=folder / "client.crt",
        tls_auth_clients="yes",
    ) as server:
        server.client().execute_command("ACL SETUSER worker on >secret ~* &* +@all")
        yield Place(server, tls_port, folder)


@pytest.fixture(scope="module")
def locked() -> Iterator[Place]:
    """A server that asks everybody for a password."""
    with RedisServer(find_server("redis", 7), 7) as server:
        server.client().config_set("requirepass", "secret")
        yield Place(server, 0, Path())


class Rotating(CredentialProvider):
    """Gives other credentials each time."""

    def __init__(self) -> None:
        self.given = 0

    def get_credentials(self) -> tuple[str, str]:
        self.given += 1
        return ("worker", "secret") if self.given % 2 else ("default", "anything")


class ForAsyncioAlone(CredentialProvider):
    """Has to wait for its credentials, on an event loop."""

    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0)
        return ("worker", "secret")


class Named(Connection):
    """A connection class of the user's own, with a handshake of its own."""

    def on_connect_check_health(self, check_health: bool = True) -> None:
        super().on_connect_check_health(check_health)
        self._log_in()

    if not hasattr(Connection, "on_connect_check_health"):

        def on_connect(self) -> None:
            super().on_connect()
            self._log_in()

    def _log_in(self) -> None:
        self.send_command("AUTH", "worker", "secret")
        assert self.read_response() in (b"OK", "OK")


def log_in(connection: Any) -> None:
    """Prepare a connection as an application without a credential provider may do."""
    connection.on_connect()
    connection.send_command("AUTH", "worker", "secret", check_health=False)
    # The replies have the client's form: text or bytes.
    wanted = "OK" if connection.encoder.decode_responses else b"OK"
    if connection.read_response() != wanted:
        raise redis.ConnectionError("not logged in")


async def log_in_async(connection: Any) -> None:
    await connection.on_connect()
    await connection.send_command("AUTH", "worker", "secret", check_health=False)
    if await connection.read_response() != b"OK":
        raise redis.ConnectionError("not logged in")


def with_class(kind: type[Any]) -> Callable[[Place], dict[str, Any]]:
    return lambda p: {"connection_pool": redis.ConnectionPool(connection_class=kind, **p.tcp)}


def driver(name: str) -> Any:
    """Return a library's description, or None where redis-py knows no such class."""
    kind: Any = getattr(redis, "DriverInfo", None)
    return kind and kind(name, "1.0")


PING_S = 7
Settings = Callable[[Place], Mapping[str, Any]]
# The options that the clients of both kinds have.
BOTH: dict[str, Settings] = {
    "plain": lambda p: p.tcp,
    "localhost": lambda p: {**p.tcp, "host": "localhost"},
    "unix": lambda p: p.unix,
    "unix, a user": lambda p: {**p.unix, "username": "worker", "password": "secret"},
    "unix, a password for nothing": lambda p: {**p.unix, "password": "for nothing"},
    "a password for nothing": lambda p: {**p.tcp, "password": "for nothing"},
    "a password for nothing, protocol 3": lambda p: {
        **p.tcp,
        "password": "for nothing",
        "protocol": 3,
    },
    "a name and a password for nothing": lambda p: {
        **p.tcp,
        "username": "default",
        "password": "for nothing",
    },
    "a user": lambda p: {**p.tcp, "username": "worker", "password": "secret"},
    "a user, protocol 2": lambda p: {
        **p.tcp,
        "username": "worker",
        "password": "secret",
        "protocol": 2,
    },
    "a plain provider": lambda p: {
        **p.tcp,
        "credential_provider": UsernamePasswordCredentialProvider("worker", "secret"),
    },
    "a provider of a password for nothing": lambda p: {
        **p.tcp,
        "credential_provider": UsernamePasswordCredentialProvider(None, "for nothing"),
    },
    "protocol 2": lambda p: {**p.tcp, "protocol": 2},
    "protocol 3": lambda p: {**p.tcp, "protocol": 3},
    "protocol as text": lambda p: {**p.tcp, "protocol": "3"},
    "old replies": lambda p: {**p.tcp, "legacy_responses": False},
    "a database": lambda p: {**p.tcp, "db": 3},
    "a database as text": lambda p: {**p.tcp, "db": "3"},
    "a client's name": lambda p: {**p.tcp, "client_name": "application"},
    "a library's name": lambda p: {**p.tcp, "driver_info": driver("lib")},
    "no library's name": lambda p: {**p.tcp, "driver_info": None},
    "text": lambda p: {**p.tcp, "decode_responses": True},
    "text in latin-1": lambda p: {
        **p.tcp,
        "decode_responses": True,
        "encoding": "latin-1",
        "encoding_errors": "replace",
    },
    "keepalive": lambda p: {
        **p.tcp,
        "socket_keepalive": True,
        "socket_keepalive_options": {socket.TCP_KEEPIDLE: PING_S},
    },
    "no keepalive": lambda p: {**p.tcp, "socket_keepalive": False},
    "socket's time-outs": lambda p: {
        **p.tcp,
        "socket_timeout": 3.0,
        "socket_connect_timeout": 2.0,
        "socket_read_size": 1024,
    },
    "no socket's time-outs": lambda p: {
        **p.tcp,
        "socket_timeout": None,
        "socket_connect_timeout": None,
    },
    "health checks": lambda p: {**p.tcp, "health_check_interval": 1},
    "retry on errors": lambda p: {**p.tcp, "retry_on_error": [redis.ConnectionError]},
    "retry on time-outs": lambda p: {**p.tcp, "retry_on_timeout": True},
    "one connection": lambda p: {**p.tcp, "single_connection_client": True},
    "few connections": lambda p: {**p.tcp, "max_connections": 2},
    "TLS": lambda p: p.tls,
    "TLS, localhost": lambda p: {**p.tls, "host": "localhost"},
    "TLS, a user": lambda p: {**p.tls, "username": "worker", "password": "secret"},
    "TLS, no check of the name": lambda p: {**p.tls, "ssl_check_hostname": False},
    "TLS, no check at all": lambda p: {
        **p.tls,
        "ssl_cert_reqs": "none",
        "ssl_check_hostname": False,
        "ssl_ca_certs": None,
    },
    "TLS, a number for the check": lambda p: {**p.tls, "ssl_cert_reqs": ssl.CERT_REQUIRED},
    "TLS, certificates as text": lambda p: {
        **p.tls,
        "ssl_ca_certs": None,
        "ssl_ca_data": (p.certificates / "server.crt").read_text(),
    },
    "TLS, a locked key": lambda p: {
        **p.tls,
        "ssl_keyfile": str(p.certificates / "client.locked.key"),
        "ssl_password": "secret",
    },
    "TLS 1.3": lambda p: {**p.tls, "ssl_min_version": ssl.TLSVersion.TLSv1_3},
    "TLS, ciphers": lambda p: {**p.tls, "ssl_ciphers": "ECDHE+AESGCM"},
    "TLS, flags": lambda p: {
        **p.tls,
        "ssl_include_verify_flags": [ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST],
        "ssl_exclude_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT],
    },
}
BLOCKING: dict[str, Settings] = {
    **BOTH,
    "a rotating provider": lambda p: {**p.tcp, "credential_provider": Rotating()},
    "a retry": lambda p: {**p.tcp, "retry": Retry(ExponentialBackoff(), 5)},
    "a connect function": lambda p: {**p.tcp, "redis_connect_func": log_in},
    "a connect function, text": lambda p: {
        **p.tcp,
        "redis_connect_func": log_in,
        "decode_responses": True,
    },
    "a connect function, protocol 2": lambda p: {
        **p.tcp,
        "redis_connect_func": log_in,
        "protocol": 2,
    },
    "a class": with_class(Named),
    "a blocking pool": lambda p: {
        "connection_pool": redis.BlockingConnectionPool(timeout=1, max_connections=2, **p.tcp)
    },
    "a URL with a password for nothing": lambda p: {
        "connection_pool": redis.ConnectionPool.from_url(
            f"redis://:for%20nothing@127.0.0.1:{p.server.port}/2"
        )
    },
    "a URL of a socket with a password for nothing": lambda p: {
        "connection_pool": redis.ConnectionPool.from_url(f"unix://:nothing@{p.server.socket}?db=2")
    },
}
ASYNC: dict[str, Settings] = {
    **BOTH,
    "a provider for asyncio": lambda p: {**p.tcp, "credential_provider": ForAsyncioAlone()},
    "a retry": lambda p: {**p.tcp, "retry": AsyncRetry(ExponentialBackoff(), 5)},
    "a connect function": lambda p: {**p.tcp, "redis_connect_func": log_in_async},
    "a blocking pool": lambda p: {
        "connection_pool": redis.asyncio.BlockingConnectionPool(timeout=1, **p.tcp)
    },
    "a URL with a password for nothing": lambda p: {
        "connection_pool": redis.asyncio.ConnectionPool.from_url(
            f"redis://:for%20nothing@127.0.0.1:{p.server.port}/2"
        )
    },
}
# Of one who says nothing of the protocol. Under protocol 2 the server refuses the client itself.
ALONE = {
    "unix, a password for nothing",
    "a password for nothing",
    "a provider of a password for nothing",
    "a URL with a password for nothing",
    "a URL of a socket with a password for nothing",
}


def let_in(names: Iterable[str]) -> list[str]:
    """Return the settings whose client a server lets in."""
    return [name for name in names if DEFAULT_PROTOCOL == 3 or name not in ALONE]


ASKED: list[tuple[Any, ...]] = [("GET", "k"), ("ACL", "WHOAMI")]


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def agrees(job_client: JobClient, value: Any, user: Any) -> None:
    """See that the jobs find the application's data under the same name."""
    got, name = job_client.call_keys((b"k",), ASKED, Budget())
    assert (got, text(name)) == (text(value).encode(), text(user))
    # The kept connection gives the same result.
    assert job_client.call_keys((b"k",), ASKED, Budget())[0] == got


@pytest.mark.slow
@pytest.mark.parametrize("name", let_in(BLOCKING))
def test_a_blocking_clients_settings(place: Place, name: str) -> None:
    options = BLOCKING[name](place)
    skip_without(options, redis.Redis)
    with redis.Redis(**options) as client:
        client.set("k", name)
        user = client.execute_command("ACL WHOAMI")
        if name == "a rotating provider":
            # It goes on with the next credentials, as any new connection of the client does.
            user = "default"
        agrees(job_client_of(client), name, user)


@pytest.mark.slow
@pytest.mark.parametrize("name", let_in(ASYNC))
async def test_an_asyncio_clients_settings(place: Place, name: str) -> None:
    options = ASYNC[name](place)
    skip_without(options, redis.asyncio.Redis)
    if name == "a provider for asyncio" and not hasattr(
        CredentialProvider, "get_credentials_async"
    ):
        lack("get_credentials_async in redis.credentials")
    numbers = async_connection.RedisSSLContext(cert_reqs=ssl.CERT_REQUIRED)  # type: ignore[arg-type]
    if name == "TLS, a number for the check" and not hasattr(numbers, "cert_reqs"):
        lack("such a number in redis.asyncio")
    async with redis.asyncio.Redis(**options) as client:
        await client.set("k", name)
        user = await client.execute_command("ACL WHOAMI")
        agrees(job_client_of(client), name, user)


def test_a_client_with_a_cache(redis8: RedisServer) -> None:
    skip_without(["cache_config"], redis.Redis)
    from redis.cache import CacheConfig

    client = redis8.client(protocol=3, cache_config=CacheConfig())
    client.set("k", "v")
    assert client.get("k") == b"v"
    agrees(job_client_of(client), "v", "default")


def test_an_address_of_ipv6(place: Place) -> None:
    try:
        place.server.client().config_set("bind", "127.0.0.1 ::1")
    except redis.ResponseError:
        pytest.skip("this machine has no address ::1")
    for options in (place.tcp, place.tls):
        with redis.Redis(**{**options, "host": "::1"}) as client:
            client.set("k", "v")
            agrees(job_client_of(client), "v", "default")


@pytest.mark.parametrize("protocol", [None, 2, 3])
@pytest.mark.parametrize("given", ["password", "user", "provider"])
def test_a_server_with_a_password(locked: Place, given: str, protocol: int | None) -> None:
    options = {
        "password": {"password": "secret"},
        "user": {"username": "default", "password": "secret"},
        "provider": {"credential_provider": UsernamePasswordCredentialProvider(None, "secret")},
    }[given]
    with redis.Redis(**locked.tcp, **options, protocol=protocol) as client:
        client.set("k", "v")
        agrees(job_client_of(client), "v", "default")


@pytest.mark.parametrize("options", [{}, {"password": "wrong"}, {"username": "nobody"}])
def test_what_the_server_refuses_the_client_it_refuses_the_jobs(
    locked: Place, options: dict[str, Any]
) -> None:
    with redis.Redis(**locked.tcp, **options) as client:
        with pytest.raises(redis.AuthenticationError) as refused:
            client.get("k")
        with pytest.raises(type(refused.value)):
            checked(job_client_of(client).call(None, [("GET", "k")], Budget()))


@pytest.mark.parametrize("given", [{"protocol": 2}, *([{}] if DEFAULT_PROTOCOL == 2 else [])])
def test_a_password_for_nothing_under_protocol_2_is_refused_to_both(
    place: Place, given: dict[str, Any]
) -> None:
    # redis-py names no user there either, and some proxies know a password alone.
    with redis.Redis(**place.tcp, password="for nothing", **given) as client:
        for call in (
            lambda: client.get("k"),
            lambda: job_client_of(client).call(None, [("GET", "k")], Budget()),
        ):
            with pytest.raises(redis.AuthenticationError, match="without any password"):
                call()


def test_fakeredis_asks_nobody_for_a_password() -> None:
    client = fakeredis.FakeRedis(username="nobody", password="for nothing")
    try:
        client.set("k", "v")
    except redis.AuthenticationError:
        lack("client that fakeredis lets in with any password")
    assert job_client_of(client).call(None, [("GET", "k")], Budget()) == [b"v"]


def test_a_certificate_that_has_changed_is_read_anew(place: Place, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("client.crt", "client.key")}

    def take(name: str) -> None:
        for kind in ("crt", "key"):
            data = (place.certificates / f"{name}.{kind}").read_bytes()
            files[f"client.{kind}"].write_bytes(data)

    take("stranger")
    options = {
        **place.tls,
        "ssl_certfile": str(files["client.crt"]),
        "ssl_keyfile": str(files["client.key"]),
    }
    with redis.Redis(**options) as client:
        job_client = job_client_of(client)
        with pytest.raises(redis.ConnectionError):
            job_client.call(None, [("PING",)], Budget())
        take("client")
        assert job_client.call(None, [("PING",)], Budget()) == [b"PONG"]
        context = job_client._tls.context
        job_client.close()
        assert job_client.call(None, [("PING",)], Budget()) == [b"PONG"]
        assert job_client._tls.context is context


def test_a_connect_function_that_waits_for_something_else_is_refused(place: Place) -> None:
    async def slow(connection: Any) -> None:
        await connection.on_connect()
        await asyncio.sleep(0.01)

    client = redis.asyncio.Redis(**place.tcp, redis_connect_func=slow)
    with pytest.raises(ConfigurationError, match="redis_connect_func waits for something else"):
        job_client_of(client).call(None, [("PING",)], Budget())


def test_credentials_that_come_late_are_there_for_the_next_slice(place: Place) -> None:
    asked, may_go = threading.Event(), threading.Event()

    class Slow(Rotating):
        def get_credentials(self) -> tuple[str, str]:
            asked.set()
            may_go.wait()
            return super().get_credentials()

    provider = Slow()
    job_client = JobClient(client := redis.Redis(**place.tcp, credential_provider=provider))
    for _ in range(2):
        with pytest.raises(redis.TimeoutError, match="were not given in time"):
            job_client.call(None, [("PING",)], Budget(None, 0.05))
    assert asked.is_set()
    may_go.set()
    wait_until(lambda: provider.given == 1, "the credentials")
    assert job_client.call(None, [("ACL", "WHOAMI")], Budget()) == [b"worker"]
    assert provider.given == 1
    client.close()


@pytest.mark.parametrize("name", ["a retry", "retry on errors", "health checks", "plain"])
def test_jobs_never_retry_whatever_the_application_does(place: Place, name: str) -> None:
    with FaultyServer(place.server.port) as server:
        server.fail(1, "cut")
        options = {**BLOCKING[name](place), "port": server.port}
        with redis.Redis(**options) as client:
            with pytest.raises(redis.ConnectionError):
                job_client_of(client).call(None, [("PING",)], Budget())
            assert server.names() == ["PING"]


CLUSTERED: dict[str, dict[str, Any]] = {
    "plain": {},
    "a password for nothing": {"password": "for nothing"},
    "a user": {"username": "worker", "password": "secret"},
    "protocol 2": {"protocol": 2},
    "protocol 3": {"protocol": 3},
    "text": {"decode_responses": True},
    "a client's name": {"client_name": "application"},
    "reads from replicas": {"read_from_replicas": True},
    "health checks": {"health_check_interval": 1},
}


@pytest.fixture
def nodes(cluster: RedisCluster3) -> Iterator[RedisCluster3]:
    for node in cluster.nodes:
        with node.probe() as admin:
            admin.execute_command("ACL SETUSER worker on >secret ~* &* +@all")
    yield cluster
    for node in cluster.nodes:
        with node.probe() as admin:
            admin.execute_command("ACL DELUSER worker")


@pytest.mark.cluster
class TestCluster:
    @pytest.mark.parametrize("name", [*let_in(CLUSTERED), "a connect function"])
    def test_blocking(self, nodes: RedisCluster3, name: str) -> None:
        options = CLUSTERED.get(name, {"redis_connect_func": log_in})
        client = nodes.client(**options)
        client.set("k", name)
        user = client.execute_command("ACL WHOAMI", target_nodes=client.get_primaries()[0])
        agrees(job_client_of(client), name, user)

    @pytest.mark.parametrize("name", let_in(CLUSTERED))
    async def test_asyncio(self, nodes: RedisCluster3, name: str) -> None:
        async with nodes.async_client(**CLUSTERED[name]) as client:
            await client.set("k", name)
            user = "worker" if name == "a user" else "default"
            agrees(job_client_of(client), name, user)


class TestSentinel:
    @pytest.fixture
    def sentinels(self, place: Place, tmp_path: Path) -> Iterator[list[tuple[str, int]]]:
        with sentinel_of(place.server, tmp_path) as port:
            yield [("127.0.0.1", port)]

    @pytest.mark.parametrize("name", sorted({*let_in(CLUSTERED)} - {"reads from replicas"}))
    def test_blocking(self, sentinels: list[tuple[str, int]], name: str) -> None:
        manager = Sentinel(sentinels)
        with manager.master_for("main", **CLUSTERED[name]) as client:
            client.set("k", name)
            agrees(job_client_of(client), name, client.execute_command("ACL WHOAMI"))

    @pytest.mark.parametrize("name", sorted({*let_in(CLUSTERED)} - {"reads from replicas"}))
    async def test_asyncio(self, sentinels: list[tuple[str, int]], name: str) -> None:
        manager = AsyncSentinel(sentinels)
        async with manager.master_for("main", **CLUSTERED[name]) as client:
            await client.set("k", name)
            agrees(job_client_of(client), name, await client.execute_command("ACL WHOAMI"))
        for each in manager.sentinels:
            await each.aclose()


class TestUrls:
    """TLS with certificates of clients, and UNIX sockets, by URLs alone."""

    @staticmethod
    def files(place: Place, owner: str = "client") -> str:
        folder = place.certificates
        return (
            f"ssl_ca_certs={folder}/server.crt&ssl_certfile={folder}/{owner}.crt"
            f"&ssl_keyfile={folder}/{owner}.key"
        )

    def test_tls_with_a_certificate(self, place: Place) -> None:
        url = f"rediss://worker:secret@127.0.0.1:{place.tls_port}/2?{self.files(place)}"
        with connect(url) as client:
            client.set("by", "tls")
            assert client.acl_whoami() == "worker"
            assert job_client_of(client).call_keys((b"by",), [("GET", "by")], Budget()) == [b"tls"]

    @pytest.mark.parametrize("owner", ["stranger", None])
    def test_tls_without_the_right_certificate(self, place: Place, owner: str | None) -> None:
        given = self.files(place, owner) if owner else self.files(place).partition("&")[0]
        with connect(f"rediss://127.0.0.1:{place.tls_port}?{given}") as client:
            with pytest.raises((redis.ConnectionError, OSError)):
                client.ping()
            with pytest.raises((redis.ConnectionError, OSError)):
                job_client_of(client).call(None, [("PING",)], Budget())

    def test_a_sentinel_by_tls(self, place: Place, tmp_path: Path) -> None:
        tls_port, folder = free_port(), place.certificates
        settings = (
            f"tls-port {tls_port}",
            f"tls-cert-file {folder}/server.crt",
            f"tls-key-file {folder}/server.key",
            f"tls-ca-cert-file {folder}/client.crt",
            "tls-auth-clients yes",
        )
        with sentinel_of(place.server, tmp_path, *settings) as port:
            admin = redis.Redis(port=port)
            admin.execute_command("SENTINEL REMOVE", "main")
            admin.execute_command("SENTINEL MONITOR", "main", "127.0.0.1", place.tls_port, 1)
            admin.close()
            url = f"rediss+sentinel://127.0.0.1:{tls_port}/main?{self.files(place)}"
            with connect(url) as client:
                # A job comes first, so that its connection asks the sentinel.
                job_client = job_client_of(client)
                assert job_client.call_keys((b"k",), [("SET", "k", "v")], Budget()) == [b"OK"]
                assert client.get("k") == b"v"
                assert client.connection_pool.master_address == ("127.0.0.1", place.tls_port)

    def test_a_socket(self, place: Place) -> None:
        url = f"unix://worker:secret@{place.server.socket}?db=3"
        with connect(url) as client:
            client.set("by", "socket")
            assert client.acl_whoami() == "worker"
            assert job_client_of(client).call_keys((b"by",), [("GET", "by")], Budget()) == [
                b"socket"
            ]
