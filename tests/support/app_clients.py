"""How the source of an application connects to a test's server."""

from __future__ import annotations

from support.servers import RedisCluster3, RedisServer


def client_source(server: RedisServer | RedisCluster3) -> str:
    """Return the expression that makes a client, for a module that imports `redis`."""
    kind = "RedisCluster" if server.is_cluster else "Redis"
    return f"redis.{kind}.from_url({server.url.replace('redis+cluster', 'redis')!r})"
