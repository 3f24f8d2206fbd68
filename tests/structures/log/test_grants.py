"""A member's turn whose reply is cut off comes again: it lasts a second, and its member looks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.faulty_server import FaultyServer
from support.grants import every_async_cut, every_cut
from support.patience import GUARD_SECONDS
from support.servers import RedisServer, wait_until
from workstealing.structures.log.log import AsyncLog, Log

pytestmark = pytest.mark.real

# Far beyond what a busy machine may take, far below the block.
BLOCK, SOON_S = 600, GUARD_SECONDS
# What is handed out under a reply that is cut off is handed out again after that.
LEASE = 0.2


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


class Appender:
    """Appends an entry as soon as a member sleeps, on a connection without faults."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()
        self._log = Log(self._client, "l", 10)
        self._log.delete()

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._append)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()
        self._log.delete()

    def _append(self) -> None:
        wait_until(lambda: self._client.info("clients")["blocked_clients"] == 1, "it to sleep")
        self._log.append(b"e0")


def is_turn(door: FaultyServer) -> bool:
    """Say whether it was the turn whose reply was cut off: then it is asked for twice."""
    return door.names().count("BLPOP") > 1


def test_whose_turn_is_cut_off_is_served_nevertheless(
    redis7: RedisServer, door: FaultyServer
) -> None:
    turns = 0
    appender = Appender(redis7)

    def ask(client: redis.Redis) -> list[Any]:
        appender.begin()
        found = Log(client, "l", 10).group("mail", ack=True, lease=LEASE).read(block=BLOCK)
        appender.end()
        return found

    for found in every_cut(door, ask):
        assert [each.offset for each in found] == [0], door.names()
        turns += is_turn(door)
    assert turns


async def test_on_an_asyncio_client(redis7: RedisServer, door: FaultyServer) -> None:
    turns = 0
    appender = Appender(redis7)

    async def ask(client: Any) -> list[Any]:
        appender.begin()
        log = AsyncLog(client, "l", 10)
        group = log.group("mail", ack=True, lease=LEASE)
        found = await group.read(block=BLOCK)
        await asyncio.to_thread(appender.end)
        await group.aclose()
        await log.aclose()
        return found

    async for found in every_async_cut(door, ask):
        assert [each.offset for each in found] == [0], door.names()
        turns += is_turn(door)
    assert turns
