"""The fixtures themselves: what every other test stands on."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import redis

from support.faulty_server import pack, parse_commands
from support.servers import AnyServer, FakeRedisServer, RedisCluster3, RedisServer, is_version

pytestmark = pytest.mark.contract


def test_any_server_keeps_and_forgets(any_server: AnyServer) -> None:
    client = any_server.client(decode_responses=True)
    assert client.set("key", "value")
    assert client.get("key") == "value"
    any_server.wipe()
    assert any_server.client().exists("key") == 0


async def test_any_server_has_an_asynchronous_client(any_server: AnyServer) -> None:
    async with any_server.async_client(decode_responses=True) as client:
        await client.set("key", "value")
        assert await client.get("key") == "value"


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("name", ["redis7", "cluster", "fakeredis_server"])
def test_a_server_is_wiped_although_it_was_not_asked_for_by_a_parameter(
    name: str, time: int, request: pytest.FixtureRequest
) -> None:
    server: AnyServer = request.getfixturevalue(name)
    assert server.size() == 0
    server.client().set("key", "value")
    assert server.size() == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_any_server_speaks_both_protocols(any_server: AnyServer, protocol: int) -> None:
    client = any_server.client(protocol=protocol)
    client.zadd("set", {"a": 1})
    assert client.execute_command("ZCARD", "set") == 1


def test_servers_are_what_their_names_say(
    redis7: RedisServer, redis8: RedisServer, valkey8: RedisServer
) -> None:
    assert (redis7.version[0], redis8.version[0], valkey8.version[0]) == (7, 8, 8)
    assert "valkey_version" in valkey8.client().info("server")
    assert redis8.client().hsetex("hash", mapping={"field": "value"}, ex=60) == 1


def test_minor_versions_are_told_apart(
    redis62: RedisServer, redis82: RedisServer, valkey9: RedisServer
) -> None:
    servers = (redis62, redis82, valkey9)
    assert [each.version[:2] for each in servers] == [(6, 2), (8, 2), (9, 1)]
    assert "valkey_version" in valkey9.client().info("server")
    for found, wanted, expected in (
        ((8, 2, 3), 8, True),
        ((8, 2, 3), "8.2", True),
        ((8, 2, 3), "8.0", False),
        ((8, 20, 3), "8.2", False),
    ):
        assert is_version(found, wanted) is expected


@pytest.mark.parametrize("fixture", ["cluster", "cluster8"])
def test_a_cluster_spreads_keys_over_three_masters(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    cluster: RedisCluster3 = request.getfixturevalue(fixture)
    client = cluster.client()
    for number in range(60):
        client.set(f"key:{number}", number)
    sizes = [node.client().dbsize() for node in cluster.nodes]
    assert sum(sizes) == 60
    assert all(sizes)
    slot = client.keyslot("key:1")
    assert cluster.node_of(slot).client().get("key:1") == b"1"
    cluster.wipe()
    assert [node.client().dbsize() for node in cluster.nodes] == [0, 0, 0]


def test_a_cluster_recovers_a_killed_node(cluster: RedisCluster3) -> None:
    cluster.nodes[1].kill()
    cluster.wipe()
    assert cluster.client().set("key", 1)


def test_own_server_takes_options_and_comes_back(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(7, maxmemory="3mb", maxmemory_policy="noeviction")
    client = server.client(decode_responses=True)
    assert client.config_get("maxmemory") == {"maxmemory": "3145728"}
    client.set("key", 1)
    port = server.port
    server.restart()
    assert server.port == port
    assert server.client().get("key") is None


def test_wipe_revives_a_stopped_server(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    server.kill()
    server.wipe()
    assert server.client().ping()


def test_stop_ends_the_process_and_removes_its_folder(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    server.process.send_signal(signal.SIGSTOP)
    server.stop()
    assert server.process.returncode is not None
    assert not server.directory.exists()
    server.stop()


def test_fakeredis_shares_data_among_its_clients(fakeredis_server: FakeRedisServer) -> None:
    fakeredis_server.client().set("key", 1)
    assert fakeredis_server.client().get("key") == b"1"
    with pytest.raises(redis.ResponseError):
        fakeredis_server.client().execute_command("NO-SUCH-COMMAND")


def test_a_faulty_server_takes_no_tls_handshake_for_commands() -> None:
    # Its random bytes are a line's end once in a hundred times.
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03P\xe4!\r\n\x99$1\r\n"
    assert parse_commands(hello) == ([], hello)
    assert parse_commands(pack((b"PING",)) + hello) == ([(b"PING",)], hello)
