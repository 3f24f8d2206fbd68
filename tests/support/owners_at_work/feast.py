"""Feast's online store by its layout: HMGET of the event time, HSET of values and time, EXPIRE.

A key is that of serialization version 3, with one entity of an integer, as Feast 0.66 writes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from support.killed_journal import Work
from support.owners_at_work.owner import Owner
from workstealing.jobs import FeastLeftovers

# A view is stale two seconds after its event time.
AGE = 2.0
# MurmurHash3 of 32 bits of "stats:rate", "stats:trips" and "plan:name", by mmh3, little-endian.
RATE, TRIPS, PLAN = (bytes.fromhex(each) for each in ("3433b125", "eb342a65", "02ecfce9"))
_FIELDS = {"stats": (RATE, TRIPS), "plan": (PLAN,)}


class Feast(Owner):
    """The online store, with a view whose values are stale soon, and one with a day."""

    name = "feast"

    def jobs(self, client: Any) -> list[Any]:
        """Return the job."""
        views = {"stats": (["rate", "trips"], AGE), "plan": (["name"], 86_400)}
        return [FeastLeftovers(client, "shop", views, dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Write a view of an entity of this process' own; some event times come late."""
        client = self.connected()
        newest: dict[str, int] = {}

        def operate() -> None:
            user = 100 * work.life + work.draw.randrange(20)
            view = work.draw.choice(["stats", "plan"])
            at = client.time()[0] - work.draw.choice([0, 0, 0, 1, 5])
            item = f"{view} {user}"
            stored = client.hmget(entity(user), f"_ts:{view}")[0]
            if stored is not None and newest.get(item, 0) > at:
                return
            newest[item] = at
            work.journal.moves(item)
            values: dict[bytes, Any] = dict.fromkeys(_FIELDS[view], work.life)
            client.hset(entity(user), mapping={**values, f"_ts:{view}".encode(): stamp(at)})
            client.expire(entity(user), 86_400)
            work.journal.live(item, f"{at + (AGE if view == 'stats' else 86_400):.3f}")

        return operate

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return the views that lack a field, and are not stale after that look."""
        names = [(name, *name.split()) for name in items]
        with client.pipeline(transaction=False) as block:
            for _, view, user in names:
                block.hmget(entity(int(user)), *_FIELDS[view], f"_ts:{view}")
            found = block.execute()
        now = client.time()[0] + 1
        return [
            name
            for (name, _, _), values in zip(names, found, strict=True)
            if None in values and now < float(items[name])
        ]

    def finish(self, client: Any, work: Work) -> None:
        """Wait until each of the short views is stale."""
        end = client.time()[0] + AGE + 1
        while client.time()[0] <= end:
            time.sleep(0.05)

    def left(self, client: Any) -> list[str]:
        """Return the fields of stale views."""
        left = []
        for key in client.scan_iter(count=1_000, _type="hash"):
            if key.endswith(b"shop"):
                stale = [RATE, TRIPS, b"_ts:stats"]
                left += [f"{key!r}" for each in client.hmget(key, *stale) if each is not None]
        return left


def entity(user: int) -> bytes:
    """Return the key of an entity of the project "shop"."""
    name, value = b"user_id", user.to_bytes(8, "little")
    key = b"\x01\0\0\0\x02\0\0\0" + len(name).to_bytes(4, "little") + name
    return key + b"\x04\0\0\0" + len(value).to_bytes(4, "little") + value + b"shop"


def stamp(seconds: int) -> bytes:
    """Return a protobuf Timestamp of whole seconds."""
    parts = [8]
    while seconds > 127:
        parts.append(seconds & 127 | 128)
        seconds >>= 7
    return bytes([*parts, seconds])
