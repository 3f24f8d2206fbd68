"""Fixtures of the jobs' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.faulty_server import FaultyServer
from support.servers import RedisServer


@pytest.fixture
def backend(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A Redis 7 with a user who has a password and may do everything."""
    server = start_redis(7)
    user = server.client()
    user.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all")
    return server


@pytest.fixture
def faulty(backend: RedisServer) -> Iterator[FaultyServer]:
    """A socket in front of that server that can misbehave."""
    with FaultyServer(backend.port) as server:
        yield server
