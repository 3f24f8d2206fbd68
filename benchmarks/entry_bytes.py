"""The bytes that one entry of each structure takes, beside the plain Redis type."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from figures import Figure
from servers import RedisServer

from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    NewMessage,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
)

STORED, A_CALL = 20_000, 500
SECONDS = 86_400
# A value, a member or a message has so many bytes; a name has 12.
BYTES = 32
Fill = Callable[[Any, int], None]


def measure(server: RedisServer, stored: int = STORED) -> list[Figure]:
    """Measure the bytes an entry, by used_memory, and their ratio to the plain type's."""
    figures = []
    for name, (ours, plain, reference) in SIDES.items():
        mine, theirs = (_bytes(server, fill, stored) / stored for fill in (ours, plain))
        ratio = round(mine / theirs, 2)
        values = {"ours": round(mine, 1), "reference": round(theirs, 1)}
        figures.append(
            Figure(f"entry_bytes_{name}", ratio, ratio, ratio, 1, reference, None, values)
        )
    return figures


def _bytes(server: RedisServer, fill: Fill, stored: int) -> int:
    client: Any = server.client()
    client.flushall()
    # What a structure takes without an entry is no part of the entries: its scripts above all.
    fill(client, 1)
    before = int(client.info("memory")["used_memory"])
    fill(client, stored + 1)
    # What connections hold is no part of them either.
    client.client_kill_filter(_type="normal", skipme=True)
    used = int(client.info("memory")["used_memory"]) - before
    client.flushall()
    return used


def _names(stored: int) -> Iterator[list[str]]:
    for first in range(0, stored, A_CALL):
        yield [f"name:{each:07}" for each in range(first, min(first + A_CALL, stored))]


def _value(rng: random.Random) -> str:
    return rng.randbytes(BYTES // 2).hex()


def _durable_keys(client: Any, stored: int) -> None:
    keys, rng = DurableKeys(client, "bytes"), random.Random(1)
    for names in _names(stored):
        with keys.pipeline() as p:
            for name in names:
                p.set(name, _value(rng), ex=SECONDS)
            p.execute()


def _keys(client: Any, stored: int) -> None:
    rng = random.Random(1)
    for names in _names(stored):
        with client.pipeline(transaction=False) as p:
            for name in names:
                p.set(name, _value(rng), ex=SECONDS)
            p.execute()


def _tracked_set(client: Any, stored: int) -> None:
    tracked = TrackedSet(client, "bytes")
    for names in _names(stored):
        tracked.track(names)


def _set(client: Any, stored: int) -> None:
    for names in _names(stored):
        client.sadd("plain", *names)


def _ick(client: Any, stored: int) -> None:
    dirty = Ick(client, "bytes")
    for number, names in enumerate(_names(stored)):
        dirty.add({name: 1.7e9 + number + at / 1000 for at, name in enumerate(names)})


def _reserved(client: Any, stored: int) -> None:
    _ick(client, stored)
    Ick(client, "bytes").reserve(stored)


def _sorted_set(client: Any, stored: int) -> None:
    for number, names in enumerate(_names(stored)):
        client.zadd("plain", {name: 1.7e9 + number + at / 1000 for at, name in enumerate(names)})


def _shuffle_queue(client: Any, stored: int) -> None:
    queue, rng = ShuffleQueue(client, "bytes"), random.Random(1)
    for each in range(stored):
        queue.write(f"tenant {each % 100}", {"text": _value(rng)})


def _fair_queue(client: Any, stored: int, accounts: int = 100) -> None:
    queue, rng = FairQueue(client, "bytes"), random.Random(1)
    for first in range(0, stored, A_CALL):
        queue.write_many(
            NewMessage(f"tenant {each % accounts}", {"text": _value(rng)})
            for each in range(first, min(first + A_CALL, stored))
        )


def _fair_queue_alone(client: Any, stored: int) -> None:
    _fair_queue(client, stored, stored)


def _stream(client: Any, stored: int) -> None:
    rng = random.Random(1)
    for names in _names(stored):
        with client.pipeline(transaction=False) as p:
            for _ in names:
                p.xadd("plain", {"text": _value(rng)})
            p.execute()


def _time_shard_queue(client: Any, stored: int) -> None:
    queue, rng = TimeShardQueue(RedisStore(client), "bytes"), random.Random(1)
    for _ in range(stored):
        queue.put(_value(rng), 1.7e9 + rng.random() * 1e6)


def _due_set(client: Any, stored: int) -> None:
    rng = random.Random(1)
    for names in _names(stored):
        client.zadd("plain", {_value(rng): 1.7e9 + rng.random() * 1e6 for _ in names})


def _log(client: Any, stored: int) -> None:
    log, rng = Log(client, "bytes"), random.Random(1)
    for names in _names(stored):
        log.append(*(_value(rng) for _ in names))


SIDES: dict[str, tuple[Fill, Fill, str]] = {
    "durable_keys": (_durable_keys, _keys, "SET EX"),
    "tracked_set": (_tracked_set, _set, "SADD"),
    "ick": (_ick, _sorted_set, "ZADD"),
    "ick_reserved": (_reserved, _sorted_set, "ZADD"),
    "shuffle_queue": (_shuffle_queue, _stream, "XADD"),
    "fair_queue": (_fair_queue, _stream, "XADD"),
    "fair_queue_an_account_each": (_fair_queue_alone, _stream, "XADD"),
    "time_shard_queue": (_time_shard_queue, _due_set, "ZADD"),
    "log_list": (_log, _stream, "XADD"),
}
