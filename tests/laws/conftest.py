"""What the laws' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.faulty_server import FaultyServer
from support.servers import RedisServer


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    """A faulty server before Redis 7."""
    with FaultyServer(redis7.port) as server:
        yield server
