"""Three servers for the nodes of a fleet, one set for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fleet_moves import NEW
from support.servers import RedisServer


@pytest.fixture(scope="module")
def shared_servers(shared_redis7: RedisServer) -> Iterator[dict[str, RedisServer]]:
    servers = {name: RedisServer(shared_redis7.binary, name=f"node {name}") for name in NEW}
    yield servers
    for each in servers.values():
        each.stop()


@pytest.fixture
def servers(shared_servers: dict[str, RedisServer]) -> dict[str, RedisServer]:
    for each in shared_servers.values():
        each.wipe()
    return shared_servers
