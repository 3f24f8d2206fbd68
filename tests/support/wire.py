"""A few commands to a server without a client: no pool, no handshake, one round trip.

What stands between two tests is said thousands of times, and a client costs ten times as much.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from workstealing.store.redis_versions import CONNECTION_OPTIONS


def ask(port: int, *commands: str, seconds: float = 60.0) -> list[Any]:
    """Say commands, their words parted by spaces, and return the raw replies.

    Arguments:
        seconds: for the connection and for each reply.

    Raises: any redis.RedisError.
    """
    connection = redis.Connection(
        host="127.0.0.1",
        port=port,
        protocol=2,
        **CONNECTION_OPTIONS,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        connection.connect()
        connection.send_packed_command(
            connection.pack_commands([command.split() for command in commands])
        )
        return [connection.read_response() for _ in commands]
    finally:
        connection.disconnect()
