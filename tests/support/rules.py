"""Rules for tests of the job that goes by them."""

from __future__ import annotations

from typing import Any

from workstealing.jobs.leftovers import (
    DECLARED,
    LIVE,
    Garbage,
    Item,
    Removal,
    Rule,
    Unknown,
    Verdicts,
    key_removed,
    keys,
    look,
    members,
    seen_twice,
)


class Replies(Rule):
    """Lists that nobody empties."""

    name = "test.replies"
    owner = "a test"
    finds = "Lists that nobody empties."
    certainty = seen_twice(3600)
    where = keys("reply:*", "list")

    def verdict(self, item: Item) -> Verdicts:
        size, last = yield look(("LLEN", item.key), ("LINDEX", item.key, -1), watch=item.key)
        return key_removed(item.key, b"%d:%b" % (size, last)) if size else LIVE


class Past(Rule):
    """Hashes that say when they end."""

    name = "test.past"
    owner = "a test"
    finds = "Hashes whose field 'ends' is past."
    certainty = DECLARED
    where = keys("session:*", "hash")

    def verdict(self, item: Item) -> Verdicts:
        (ends,) = yield look(("HGET", item.key, "ends"), watch=item.key)
        if ends is None:
            return Unknown("no field 'ends'")
        return key_removed(item.key) if float(ends) < item.now else LIVE


class Fields(Rule):
    """Fields of hashes, and members of sorted sets, that say 0."""

    name = "test.fields"
    owner = "a test"
    finds = "Fields that say 0."
    certainty = DECLARED

    def __init__(self, of_type: Any) -> None:
        self.name = f"test.{of_type}"
        self.where = members("pool:*", of_type)

    def verdict(self, item: Item) -> Verdicts:
        read = "HGET" if self.where.type == "hash" else "ZSCORE"
        (value,) = yield look((read, item.key, item.member), watch=item.key)
        if value is None or float(value):
            return LIVE
        return Garbage((Removal(item.key, self.where.type, item.member or b""),))


def everything_else(client: Any) -> dict[bytes, Any]:
    """Return all keys but the job's own, with their values."""
    return {key: client.dump(key) for key in client.scan_iter(count=1000) if b":ws:" not in key}


def age_sightings(client: Any, seconds: int) -> None:
    """Let the job have seen all that it has noted so much earlier."""
    for key in client.scan_iter("*:ws:leftovers:*:seen:*", count=1000):
        at, _, fingerprint = client.get(key).partition(b":")
        client.set(key, b"%d:%b" % (int(at) - seconds, fingerprint), keepttl=True)
