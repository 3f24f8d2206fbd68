"""connect() and connect_async(): every scheme, and one clear sentence for each mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from support.pages import running
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer, sentinel_of
from workstealing import connect
from workstealing.errors import ConfigurationError
from workstealing.store import connect_async
from workstealing.store.budget import Budget
from workstealing.store.job_client import job_client_of


@pytest.fixture(autouse=True)
def _no_url_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


def answers(client: Any) -> bool:
    """Say whether both the client and its job client reach the server."""
    said = job_client_of(client).call_keys((b"k",), [("SET", "k", "v")], Budget())
    return client.get("k") == b"v" and said == [b"OK"]


@pytest.mark.real
class TestSchemes:
    def test_redis(self, redis7: RedisServer) -> None:
        with connect(f"redis://127.0.0.1:{redis7.port}/3") as client:
            assert isinstance(client, redis.Redis)
            assert answers(client)
        assert redis7.client(db=3).get("k") == b"v"

    def test_a_scheme_in_capitals(self, redis7: RedisServer) -> None:
        with connect(f"REDIS://127.0.0.1:{redis7.port}") as client:
            assert answers(client)

    def test_options_are_redis_pys(self, redis7: RedisServer) -> None:
        with connect(redis7.url, decode_responses=True, protocol=3, db=2) as client:
            client.set("k", "v")
            assert client.get("k") == "v"

    def test_unix(self, redis7: RedisServer) -> None:
        with connect(f"unix://{redis7.socket}?db=2") as client:
            assert answers(client)
        assert redis7.client(db=2).get("k") == b"v"

    def test_cluster(self, cluster: RedisCluster3) -> None:
        client = connect(f"redis+cluster://127.0.0.1:{cluster.port}")
        assert isinstance(client, redis.RedisCluster)
        assert answers(client)
        client.close()

    @pytest.mark.parametrize("variable", ["WORKSTEALING_REDIS_URL", "REDIS_URL"])
    def test_the_environment(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv(variable, redis7.url)
        with connect() as client:
            assert answers(client)

    def test_our_own_variable_comes_first(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", "redis://elsewhere.invalid")
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
        with connect() as client:
            assert answers(client)

    async def test_async(self, redis7: RedisServer) -> None:
        client = connect_async(redis7.url)
        assert isinstance(client, redis.asyncio.Redis)
        async with client:
            await client.set("k", "v")
            assert job_client_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]

    async def test_async_unix(self, redis7: RedisServer) -> None:
        client = connect_async(f"unix://{redis7.socket}")
        async with client:
            await client.set("k", "v")
            assert job_client_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]

    async def test_async_cluster(self, cluster: RedisCluster3) -> None:
        client = connect_async(f"redis+cluster://127.0.0.1:{cluster.port}")
        assert isinstance(client, redis.asyncio.RedisCluster)
        async with client:
            await client.set("k", "v")
            assert job_client_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]

    async def test_async_environment(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", redis7.url)
        async with connect_async() as client:
            assert await client.ping()


@pytest.mark.real
class TestSentinels:
    @pytest.fixture
    def sentinel(self, redis7: RedisServer, tmp_path: Path) -> Iterator[int]:
        with sentinel_of(redis7, tmp_path) as port:
            yield port

    def test_the_master_of_a_service(self, sentinel: int, redis7: RedisServer) -> None:
        # The first one is not there, so the second one is asked.
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel}/main/3?socket_timeout=5"
        with connect(url, decode_responses=True) as client:
            assert isinstance(client, redis.Redis)
            client.set("k", "v")
            assert client.get("k") == "v"
            assert job_client_of(client).nodes() == [("127.0.0.1", redis7.port)]
            assert job_client_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]
        assert redis7.client(db=3).get("k") == b"v"

    async def test_async(self, sentinel: int, redis7: RedisServer) -> None:
        client = connect_async(f"redis+sentinel://127.0.0.1:{sentinel}/main")
        assert isinstance(client, redis.asyncio.Redis)
        async with client:
            await client.set("k", "v")
            assert job_client_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]
        for each in client.connection_pool.sentinel_manager.sentinels:
            await each.aclose()
        assert redis7.client().get("k") == b"v"

    def test_passwords_of_the_master_and_of_the_sentinels(
        self, redis7: RedisServer, tmp_path: Path
    ) -> None:
        admin = redis7.client()
        admin.execute_command("ACL SETUSER us/er on >p@ss:,w ~* &* +@all")
        settings = ("requirepass sec,ret",)
        try:
            with sentinel_of(redis7, tmp_path, *settings) as port:
                place = f"redis+sentinel://us%2Fer:p%40ss%3A%2Cw@127.0.0.1:{port}/main"
                with connect(f"{place}?sentinel_password=sec%2Cret") as client:
                    assert client.acl_whoami() == "us/er"
                    assert answers(client)
                with connect(place, sentinel_password="sec,ret") as client:
                    assert answers(client)
                with connect(place) as client, pytest.raises(redis.RedisError):
                    client.ping()
        finally:
            admin.execute_command("ACL DELUSER us/er")

    @pytest.mark.parametrize(
        ("place", "username", "password", "db"),
        [
            (":p%40ss%2Cw@a/m", None, "p@ss,w", None),
            (":p@ss@a/m", None, "p@ss", None),
            (":p,w@a/m", None, "p,w", None),
            (":p%zz+%20@a/m/0", None, "p%zz+ ", 0),
            ("u:@a/m/", "u", "", None),
            (":пароль@a/m/003", None, "пароль", 3),
            # As of redis-py's own URLs.
            ("a/m/3?db=2", None, None, 2),
            ("u:p@a/m?username=v&password=q", "u", "p", None),
        ],
    )
    def test_odd_passwords_and_databases(
        self, place: str, username: str | None, password: str | None, db: int | None
    ) -> None:
        known = connect(f"redis+sentinel://{place}").connection_pool.connection_kwargs
        found = [known.get(each) for each in ("username", "password", "db")]
        assert found == [username, password, db]

    def test_the_parts_of_a_url(self) -> None:
        client = connect(
            "rediss+sentinel://u:p@[::1]:7,host/a%2Fb/4?socket_timeout=2&ssl_ca_certs=ca&"
            "sentinel_socket_timeout=3&sentinel_username=s",
            retry_on_timeout=True,
        )
        known = client.connection_pool.connection_kwargs
        assert client.connection_pool.service_name == "a/b"
        assert (known["username"], known["password"], known["db"]) == ("u", "p", 4)
        assert (known["socket_timeout"], known["ssl_ca_certs"]) == (2.0, "ca")
        asked = [each.connection_pool for each in client.connection_pool.sentinel_manager.sentinels]
        places = [
            (each.connection_kwargs["host"], each.connection_kwargs["port"]) for each in asked
        ]
        assert places == [("::1", 7), ("host", 26379)]
        for each in asked:
            assert issubclass(each.connection_class, redis.SSLConnection)
            its = each.connection_kwargs
            assert (its["socket_timeout"], its["ssl_ca_certs"]) == (3.0, "ca")
            assert (its["username"], its["password"]) == ("s", None)


@pytest.mark.parametrize("make", [connect, connect_async])
class TestRefusals:
    def test_no_url_is_an_error_and_starts_no_server(self, make: Any) -> None:
        with pytest.raises(ConfigurationError, match="no Redis URL was given"):
            make()

    @pytest.mark.parametrize(
        ("url", "sentence"),
        [
            ("", "begins with no scheme: give redis://"),
            ("localhost:6379", "begins with no scheme: give redis://"),
            ("http://localhost", "begins with http://: give redis://"),
            ("redis:/localhost", "begins with no scheme"),
            ("redis://", "names no host: give redis://host:port/database"),
            ("redis://:6379", "names no host"),
            ("rediss:///0", "names no host: give rediss://host:port/database"),
            ("redis+cluster://", r"names no host: give redis\+cluster://host:port"),
            ("redis://localhost:port", "malformed"),
            ("redis://localhost:0", "malformed"),
            ("redis://localhost:70000", "malformed"),
            ("redis://[::1", "malformed"),
            ("redis://localhost/zero", "malformed"),
            ("redis://localhost/0/1", "malformed"),
            ("redis+cluster://localhost/a", "malformed"),
            ("unix://", "names no path: give unix:///path/of/redis.sock"),
            ("redis://localhost?socket_timeout=soon", "options of the redis:// URL are wrong"),
            ("redis://localhost?nonsense=1", "options .* are wrong: .*nonsense"),
            ("redis+cluster://localhost?nonsense=1", "options .* are wrong: .*nonsense"),
            ("redis+sentinel://", r"names no host: give redis\+sentinel://host:port,host:port/"),
            ("redis+sentinel:///main", "names no host"),
            ("redis+sentinel://localhost", "names no service"),
            ("redis+sentinel://localhost/", "names no service"),
            ("redis+sentinel://localhost//0", "names no service"),
            ("redis+sentinel://localhost/main/zero", "malformed"),
            ("redis+sentinel://localhost/main/0/1", "malformed"),
            ("redis+sentinel://localhost:0/main", "malformed"),
            ("redis+sentinel://localhost:70000/main", "malformed"),
            ("redis+sentinel://localhost,,other/main", "malformed"),
            ("redis+sentinel://localhost,/main", "malformed"),
            ("redis+sentinel://[::1/main", "malformed"),
            ("redis+sentinel://localhost/main#0", "malformed"),
            ("redis+sentinel://localhost/main?nonsense=1", "options .* are wrong: .*nonsense"),
            ("redis+sentinel://a/m?sentinel_nonsense=1", "options .* are wrong: .*nonsense"),
            ("redis+sentinel://a/m?socket_timeout=soon", "options of the .* are wrong"),
            ("redis+sentinel://a/m?protocol=9", "options of the .* are wrong: protocol must"),
            ("redis://localhost?protocol=9", "options of the .* are wrong: protocol must"),
            ("redis+sentinel://u:p@a,v:q@b/m", "malformed"),
        ],
    )
    def test_a_wrong_url_is_one_clear_sentence(self, make: Any, url: str, sentence: str) -> None:
        with pytest.raises(ConfigurationError, match=sentence):
            make(url)

    def test_an_unknown_option(self, make: Any) -> None:
        for url in (
            "redis://localhost",
            "unix:///nowhere",
            "redis+cluster://localhost",
            "redis+sentinel://localhost/main",
        ):
            with pytest.raises(ConfigurationError, match=r"options .* are wrong: .*nonsense"):
                make(url, nonsense=True)

    @pytest.mark.parametrize("url", [5, b"redis://localhost", redis.Redis()])
    def test_what_is_no_text(self, make: Any, url: Any) -> None:
        with pytest.raises(ConfigurationError, match="expected as text"):
            make(url)

    @pytest.mark.parametrize(
        "url",
        [
            "redis://user:secret@localhost:port",
            "redis://user:sec/secret@localhost:1",
            "redis://user:secret#secret@localhost:1",
            "redis://user:secret?secret@localhost:1",
            "redis://user:12/secret@localhost:1",
            "redis://:secret@localhost:1x",
            "redis://user:secret@[localhost",
            "secret:secret@localhost://",
            "redis+cluster://:secret/@localhost",
            "redis://:secret@localhost?nonsense=1",
            "redis+cluster://:secret@localhost?nonsense=1",
            "rediss://:secret@",
            "redis+sentinel://:secret@",
            "redis+sentinel://:secret@localhost",
            "redis+sentinel://:sec/secret@localhost:1/main",
            "redis+sentinel://:sec#secret@localhost:1/main",
            "redis+sentinel://:secret@localhost,:sec@other/main",
            "redis+sentinel://:secret@localhost/main?nonsense=1",
            "unix://user:secret@",
        ],
    )
    def test_no_password_gets_into_an_error(self, make: Any, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            make(url)
        error: BaseException | None = caught.value
        # The traceback would show the cause, too.
        while error is not None:
            assert "sec" not in str(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_embedded_is_for_blocking_clients() -> None:
    with pytest.raises(ConfigurationError, match="blocking clients"):
        connect_async("embedded://")


def test_embedded_takes_no_host() -> None:
    with pytest.raises(ConfigurationError, match="stands alone"):
        connect("embedded://localhost:6379")


@pytest.mark.real
def test_a_password_that_is_refused_is_not_shown(redis7: RedisServer) -> None:
    client = connect(f"redis://nobody:verysecret@127.0.0.1:{redis7.port}")
    job_client = job_client_of(client)
    with pytest.raises(redis.AuthenticationError) as caught:
        job_client.call(None, [("PING",)], Budget())
    assert "verysecret" not in str(caught.value)
    assert "verysecret" not in repr(job_client)
    client.close()


def test_the_code_of_the_page_on_servers() -> None:
    """No connection is made before its first command, so the page's addresses may stay."""
    with running("docs/servers.md") as page:
        client = page.run()["client"]
        there = client.connection_pool.sentinel_manager.sentinels
        hosts = [each.connection_pool.connection_kwargs["host"] for each in there]
        assert hosts == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        kwargs = client.connection_pool.connection_kwargs
        assert (kwargs["username"], kwargs["password"]) == ("app", "secret")
        assert page.run()["client"].connection_pool.service_name == "main"
        pool = page.run()["client"].connection_pool
    assert issubclass(pool.connection_class, redis.SSLConnection)
    assert pool.connection_kwargs["host"] == "redis.example"
    assert pool.connection_kwargs["ssl_keyfile"] == "/etc/redis/client.key"
