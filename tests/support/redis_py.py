"""What the tests ask redis-py 8's own clients for, on an older redis-py, too."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest
import redis
import redis.asyncio
from redis._parsers.commands import CommandsParser

from support.servers import AsyncClient, AsyncClusterClient, Client, ClusterClient
from workstealing.store import redis_versions


def supply() -> None:
    """Give the tests' clients the methods on fields that they lack: nothing for redis-py 8's."""
    later = redis_versions._LaterHashCommands
    kinds: list[Any] = [redis.Redis, redis.RedisCluster]
    kinds += [redis.asyncio.Redis, redis.asyncio.RedisCluster]
    kinds += [Client, ClusterClient, AsyncClient, AsyncClusterClient]
    for kind in kinds:
        for name in dir(later):
            if name.startswith("h") and not hasattr(kind, name):
                setattr(kind, name, getattr(later, name))


def share_commands() -> None:
    """Let all clients of a cluster share what its nodes have once said of their commands.

    Each client asks anew otherwise: a third of what it costs, and a megabyte of lists.
    """
    known: dict[Any, Any] = {}
    ask = CommandsParser.initialize

    def initialize(self: Any, client: Any) -> None:
        # A port is one server's for the whole run.
        port = client.get_default_node().port
        if port not in known or self.commands:
            ask(self, client)
            known[port] = self.commands
        self.commands = known[port]

    CommandsParser.initialize = initialize


def take_connection(pool: Any) -> Any:
    """Return a connection of a pool, which older ones give for a command only."""
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("PING")


def lack(what: str) -> NoReturn:
    """Skip a test that is about something which came with a later redis-py.

    tests/support/skips.py expects it of those before 8 alone.
    """
    pytest.skip(f"redis-py {redis.__version__} has no {what}")


def skip_without(options: Iterable[str], kind: type[Any]) -> None:
    """Skip a test whose client takes an option that this redis-py does not have."""
    known = inspect.signature(kind).parameters
    for name in options:
        if name not in known:
            lack(f"{name} in {kind.__module__}")
