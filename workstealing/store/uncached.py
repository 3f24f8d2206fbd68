"""Reads that bypass redis-py's client-side cache.

A client with a `CacheConfig` answers a command from a reply that it has kept. Such a client needs
the keys of each command as an option, and what it has kept outlives the deadline of a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workstealing.store.connection import spelled
from workstealing.store.job_client import is_cluster


def keeps_replies(client: Any) -> bool:
    """Say whether a blocking client, or that of a cluster, has a client-side cache."""
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        return getattr(pool, "cache", None) is not None
    return getattr(getattr(client, "nodes_manager", None), "_cache", None) is not None


def ask(client: Any, words: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Run one of Redis's commands on a blocking client; the reply is the server's own.

    Arguments:
        words: the command.
        options: those of redis-py by which the reply is parsed.

    One round trip.
    """
    words = spelled(words)
    if not keeps_replies(client):
        return client.execute_command(*words, **options)
    # A pipeline has a form of its own on the wire, which the cache does not look into.
    options = {name: value for name, value in options.items() if name != "keys"}
    pipeline = client.pipeline(**({} if is_cluster(client) else {"transaction": False}))
    pipeline.execute_command(*words, **options)
    (reply,) = pipeline.execute(raise_on_error=False)
    if isinstance(reply, Exception):
        raise reply
    return reply
