"""The servers that the benchmarks measure on: those of the tests, each private to this run."""

from __future__ import annotations

import sys
from pathlib import Path

# The tests' servers are no part of the installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.many_owners import LIVE_KEYS, fill_by_many
from support.postgres import PostgresServer
from support.servers import RedisCluster3, RedisServer, ServerMissingError, find_server

__all__ = [
    "LIVE_KEYS",
    "PostgresServer",
    "RedisCluster3",
    "RedisServer",
    "ServerMissingError",
    "fill_by_many",
    "find_server",
    "newest_redis",
]


def newest_redis() -> RedisServer:
    """Return a running Redis 8, or a Redis 7 where there is no Redis 8 at hand."""
    try:
        return RedisServer(find_server("redis", 8), 8, name="redis 8", hz=10)
    except ServerMissingError:
        return RedisServer(find_server("redis", 7), 7, name="redis 7", hz=10)


def expires_fields(server: RedisServer) -> bool:
    """Say whether the server expires hash fields itself."""
    return server.version >= (8,)
