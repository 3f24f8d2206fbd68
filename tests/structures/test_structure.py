"""Questions to structures: on one-attempt connections, in bounded time, errors to the asker."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from support.servers import RedisCluster3, RedisServer
from workstealing.errors import LayoutError
from workstealing.store.budget import TIMEOUT_SECONDS
from workstealing.store.operations import Steps, command
from workstealing.structures.ick import AsyncIck, Ick


def test_a_silent_server_costs_one_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ick = Ick(redis.Redis(port=silent.getsockname()[1]), "list")
        with pytest.raises(RedisError):
            ick.inspect(ick.size_steps(), 0.2)
        silent.settimeout(5)
        silent.accept()[0].close()
        silent.settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent.accept()


def test_a_slow_reply_is_waited_for(redis7: RedisServer) -> None:
    """A person asks, not a host: four times a job's longest wait for a reply is no silence."""
    ick = Ick(redis7.client(), "list")
    assert ick.inspect(ick.size_steps()) == 0
    redis7.client().client_pause(int(4000 * TIMEOUT_SECONDS))
    assert ick.inspect(ick.size_steps()) == 0


def _several() -> Steps[Any]:
    found = yield [("GET", b"a"), command("HGETALL", b"h"), ("STRLEN", b"b")]
    with pytest.raises(ResponseError, match=r"^WRONGTYPE"):
        yield [("GET", b"a"), ("LPUSH", b"a", b"x"), ("GET", b"b")]
    nothing = yield []
    return found, nothing


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
def test_replies_are_bytes_and_errors_go_to_the_question(
    redis7: RedisServer, options: dict[str, Any]
) -> None:
    redis7.client().mset({"a": "1", "b": "22"})
    with redis.Redis(port=redis7.port, **options) as client:
        asked = Ick(client, "list")
        assert asked.inspect(_several()) == ([b"1", [], 2], [])
    late = AsyncIck(redis.asyncio.Redis(port=redis7.port, **options), "list")
    assert late.inspect(_several()) == ([b"1", [], 2], [])


def test_nodes_of_a_cluster_are_each_asked(cluster: RedisCluster3) -> None:
    client = cluster.client()
    for n in range(20):
        client.set(f"k{n}", n)

    def steps() -> Steps[Any]:
        return (yield [("GET", f"k{n}".encode()) for n in range(20)])

    assert Ick(client, "list").inspect(steps()) == [b"%d" % n for n in range(20)]


def test_a_foreign_key_is_a_layout_error(redis7: RedisServer) -> None:
    redis7.client().set("list", "no ick")
    ick = Ick(redis7.client(), "list")
    with pytest.raises(LayoutError):
        ick.inspect(Ick.stats.steps(ick))
