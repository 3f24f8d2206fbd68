"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.faulty_server import FaultyServer
from support.servers import RedisServer


@pytest.fixture
def faulty(redis7: RedisServer) -> Iterator[FaultyServer]:
    """A socket in front of Redis 7 that can misbehave."""
    with FaultyServer(redis7.port) as server:
        yield server


@pytest.fixture
def backend(redis7: RedisServer) -> Iterator[RedisServer]:
    """Redis 7 with a user who has a password and may do everything."""
    admin = redis7.client()
    admin.execute_command("ACL SETUSER worker on >secret ~* &* +@all")
    yield redis7
    redis7.client().execute_command("ACL DELUSER worker")
