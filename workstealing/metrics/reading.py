"""Reading a ledger: the fleet's minutes, its processes, and the time of their server."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.metrics.minutes import (
    MINUTE,
    MINUTES_OF_A_DAY,
    Minute,
    Process,
    checked_ledger_name,
    minute_key,
    namespace_of,
    parsed,
    parsed_processes,
    processes_key,
    texts,
)
from workstealing.store.fleet import one_server
from workstealing.store.job_client import is_async
from workstealing.store.keys import to_bytes
from workstealing.structures.stored import holding_ours
from workstealing.structures.volatile_hashes import VolatileHashes

_MINUTES_A_ROUND_TRIP = 180


def read(
    client: Any,
    name: str = "default",
    minutes: int = 60,
    *,
    before: int | None = None,
    allow_eviction: Collection[str] = (),
) -> list[Minute]:
    """Return the fleet's last minutes, the oldest first, the present one last.

    Arguments:
        client: a blocking client of redis-py.
        name: of the ledger.
        minutes: their number, 1 to 1,440 (a minute without a report, or an expired one, has zeros).
        before: the last minutes before this time, in seconds since the epoch, None: up to the
            present one.
        allow_eviction: as of `VolatileHashes`.

    Raises: ConfigurationError; errors of redis-py. One round trip for each 180 minutes begun, one
    for the server's time unless `before` is given, and two or three for the namespace's layout.
    """
    name = checked_ledger_name(name)
    is_whole = isinstance(minutes, int) and not isinstance(minutes, bool)
    if not is_whole or not 1 <= minutes <= MINUTES_OF_A_DAY:
        raise ConfigurationError(f"minutes is {minutes!r}; expected a whole number from 1 to 1440")
    client = one_server(client, "a ledger")
    if is_async(client):
        raise ConfigurationError("a ledger is read with a blocking client, not with an asyncio one")
    hashes = VolatileHashes(client, namespace=namespace_of(name), allow_eviction=allow_eviction)
    end = _server_seconds(client, name) if before is None else before - 1
    present = end // MINUTE * MINUTE
    wanted = [present - MINUTE * ago for ago in reversed(range(minutes))]
    found: list[Minute] = []
    for start in range(0, minutes, _MINUTES_A_ROUND_TRIP):
        chunk = wanted[start : start + _MINUTES_A_ROUND_TRIP]
        with hashes.pipeline(transaction=False) as pipeline:
            for minute in chunk:
                pipeline.hgetall(minute_key(name, minute))
            with holding_ours(minute_key(name, 0)[:-1]):
                replies = pipeline.execute()
        found += [parsed(m, texts(reply)) for m, reply in zip(chunk, replies, strict=True)]
    return found


def processes(
    client: Any, name: str = "default", *, allow_eviction: Collection[str] = ()
) -> list[Process]:
    """Return the processes that have reported in the last three minutes, by host and pid.

    Arguments as of `read`. Raises: as of `read`. One round trip, and two or three for the
    namespace's layout.
    """
    name = checked_ledger_name(name)
    client = one_server(client, "a ledger")
    if is_async(client):
        raise ConfigurationError("a ledger is read with a blocking client, not with an asyncio one")
    hashes = VolatileHashes(client, namespace=namespace_of(name), allow_eviction=allow_eviction)
    with holding_ours(to_bytes(processes_key(name))):
        reported = hashes.hgetall(processes_key(name))
    return parsed_processes(texts(reported).values())


def server_time(client: Any, name: str = "default") -> float:
    """Return the time of the server that holds a ledger, in seconds since the epoch.

    Arguments as of `read`. Raises: errors of redis-py. One round trip.
    """
    client = one_server(client, "a ledger")
    return float(_server_seconds(client, checked_ledger_name(name)))


_TIME = "redis.call('EXISTS', KEYS[1]) return redis.call('TIME')[1]"


def _server_seconds(client: Any, name: str) -> int:
    """Return the time of the server that holds a ledger's keys."""
    return int(client.execute_command("EVAL", _TIME, 1, minute_key(name, 0)))
