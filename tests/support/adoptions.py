"""Old programs of each kind that `AdoptHashes` takes over, and what becomes of their hashes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from workstealing.errors import Aborted
from workstealing.jobs import AdoptHashes
from workstealing.recruiting.slice import Slice
from workstealing.structures import VolatileHashes

HOUR = 3600
NAMESPACE = "a"


def hashes_on(client: Any, **options: Any) -> VolatileHashes:
    return VolatileHashes(client, namespace=NAMESPACE, **options)


def until(key: bytes, field: bytes, value: bytes) -> float | None:
    """Return the deadline that stands in a value behind its last blank."""
    assert key.startswith(b"hash:")
    assert field
    text = value.rpartition(b" ")[2]
    return float(text) if text.isdigit() else None


@dataclass(frozen=True)
class Kind:
    """A way in which the old program keeps deadlines.

    Fields: name; options: of `AdoptHashes`; keeps: whether it keeps a deadline for each field.
    """

    name: str
    options: dict[str, Any]
    keeps: bool = True

    def job(self, client: Any, **options: Any) -> AdoptHashes:
        return AdoptHashes(hashes_on(client), "hash:*", **self.options, **options)

    def store(self, client: Any, who: str, fields: dict[Any, int], n: int = 0) -> dict[Any, bytes]:
        """Write as the old program does: fields and their ends in seconds; return the values."""
        values = {
            name: b"%d %d" % (n, end) if self.name == "values" else b"%d" % n
            for name, end in fields.items()
        }
        with client.pipeline(transaction=True) as p:
            p.hset(f"hash:{who}", mapping=values)
            if self.name == "sorted sets":
                p.zadd(f"zset:{who}", fields)
            p.execute()
        return values

    def is_due(self, at: int, end: int) -> bool:
        """Say whether an adopted field's deadline in ms is the one of that end in seconds."""
        return at == 1000 * end if self.keeps else at > 1000 * (time.time() + 8 * HOUR)


KINDS = [
    Kind("sorted sets", {"sorted_sets": "zset:*"}),
    Kind("values", {"deadline_of": until}),
    Kind("none", {"ttl": 9 * HOUR}, keeps=False),
]


def to_the_end(job: Any, most: int = 3000) -> int:
    """Do slices of a job or of a part of it until it is idle; return how many items it handled."""
    handled = 0
    for _ in range(most):
        one = Slice(job.limit, 10.0)
        try:
            handled += job.perform(one)
        except Aborted:
            continue
        if one.backlog == 0 or getattr(job, "is_drained", False):
            return handled
    raise AssertionError(f"the walk has not ended after {most} slices")


def everything(client: Any) -> dict[bytes, Any]:
    """Return the contents of all keys but the walk's places and the deadlines of the server."""
    read = {
        b"hash": client.hgetall,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"string": client.get,
        b"set": client.smembers,
    }
    return {
        key: read[client.type(key)](key) for key in client.scan_iter("*") if b":adopt:" not in key
    }
