"""connect() and connect_async(): every scheme, and one clear sentence for each mistake."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing import connect
from workstealing.errors import ConfigurationError
from workstealing.store import connect_async, twin_of
from workstealing.store.budget import Budget


@pytest.fixture(autouse=True)
def _no_url_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


def answers(client: Any) -> bool:
    """Say whether both the client and its twin reach the server."""
    said = twin_of(client).call_keys((b"k",), [("SET", "k", "v")], Budget())
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
            assert twin_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]

    async def test_async_unix(self, redis7: RedisServer) -> None:
        client = connect_async(f"unix://{redis7.socket}")
        async with client:
            await client.set("k", "v")
            assert twin_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]

    async def test_async_cluster(self, cluster: RedisCluster3) -> None:
        client = connect_async(f"redis+cluster://127.0.0.1:{cluster.port}")
        assert isinstance(client, redis.asyncio.RedisCluster)
        async with client:
            await client.set("k", "v")
            assert twin_of(client).call_keys((b"k",), [("GET", "k")], Budget()) == [b"v"]

    async def test_async_environment(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", redis7.url)
        async with connect_async() as client:
            assert await client.ping()


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
        ],
    )
    def test_a_wrong_url_is_one_clear_sentence(self, make: Any, url: str, sentence: str) -> None:
        with pytest.raises(ConfigurationError, match=sentence):
            make(url)

    def test_an_unknown_option(self, make: Any) -> None:
        for url in ("redis://localhost", "unix:///nowhere", "redis+cluster://localhost"):
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
    twin = twin_of(client)
    with pytest.raises(redis.AuthenticationError) as caught:
        twin.call(None, [("PING",)], Budget())
    assert "verysecret" not in str(caught.value)
    assert "verysecret" not in repr(twin)
    client.close()
