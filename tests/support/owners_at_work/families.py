"""Families of keys: carts without a time to live, a pool, sessions in hashes, a rate limiter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from support.killed_journal import Work
from support.owners_at_work.owner import Owner
from workstealing.jobs import FamilyLeftovers
from workstealing.jobs.family_leftovers import OldScores, PastFields, PastHashes
from workstealing.jobs.leftovers import Leftovers

TTL, OWN_TTL, LIFE, WINDOW = 10_000, 90_000, 1.5, 2.0


class Families(Owner):
    """A shop. Each key is written by one process alone."""

    name = "families"

    def jobs(self, client: Any) -> list[Any]:
        """Return a job for each of the rules."""
        rules = [
            OldScores("limit:*", WINDOW),
            PastFields("pool", ends_of),
            PastHashes("session:*", "expires_at"),
        ]
        given = FamilyLeftovers(client, "cart:*", TTL, dry_run=False)
        return [given, Leftovers(client, rules, name="past", dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Write to one of the families."""
        return Process(self.connected(), work).operate

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return what is not as it was written, before its deadline and after the look at it."""
        names = [(name, *name.split(":", 1)) for name in items]
        with client.pipeline(transaction=False) as block:
            for _, kind, rest in names:
                look_at(block, kind, rest)
            found = block.execute()
        now = at_server(client)
        absent = []
        for (name, kind, _), reply in zip(names, found, strict=True):
            note, _, deadline = items[name].partition("|")
            if now < float(deadline or "inf") and reply != expected(kind, note):
                absent.append(name)
        return absent

    def broken(self, client: Any) -> list[str]:
        """Return the carts whose owner's time to live was made another one."""
        keys = list(client.scan_iter(match="cart:own-*", count=1_000))
        with client.pipeline(transaction=False) as block:
            for each in keys:
                block.ttl(each)
            return [f"{k!r}: {n}" for k, n in zip(keys, block.execute(), strict=True) if n < 80_000]

    def finish(self, client: Any, work: Work) -> None:
        """Wait until all deadlines are past."""
        time.sleep(max(LIFE, WINDOW) + 0.1)

    def left(self, client: Any) -> list[str]:
        """Return carts without a time to live, and all that has a deadline."""
        keys = list(client.scan_iter(match="cart:*", count=1_000))
        with client.pipeline(transaction=False) as block:
            for each in keys:
                block.ttl(each)
            left = [f"{key!r}" for key, n in zip(keys, block.execute(), strict=True) if n == -1]
        left += [f"{each!r}" for each in client.hkeys("pool")]
        for pattern in ("session:*", "limit:*"):
            left += [f"{each!r}" for each in client.scan_iter(match=pattern, count=1_000)]
        return left


class Process:
    """A process of the shop."""

    def __init__(self, client: Any, work: Work) -> None:
        self._client, self._work = client, work

    def operate(self) -> None:
        """Write to one of the families."""
        some = (self.fill_a_cart, self.hold, self.log_in, self.ask)
        self._work.draw.choice(some)(f"{self._work.life}-{self._work.draw.randrange(10)}")

    def fill_a_cart(self, name: str) -> None:
        """Write a cart, which some have with a time to live of their own."""
        own, value = self._work.draw.random() < 0.3, self._work.name()
        item = f"cart:own-{name}" if own else f"cart:{name}"
        self._work.journal.moves(item)
        self._client.set(item, value, ex=OWN_TTL if own else None)
        self._work.journal.live(item, value)

    def hold(self, name: str) -> None:
        """Say that a session of the pool is there."""
        item, now = f"pool:{name}", at_server(self._client)
        value = json.dumps({"last_seen_at": now})
        self._work.journal.moves(item)
        self._client.hset("pool", name, value)
        self._work.journal.live(item, f"{value}|{now + LIFE}")

    def log_in(self, name: str) -> None:
        """Renew a session."""
        item, ends = f"session:{name}", at_server(self._client) + LIFE
        self._work.journal.moves(item)
        self._client.hset(item, mapping={"user": name, "expires_at": repr(ends)})
        self._work.journal.live(item, f"{ends!r}|{ends}")

    def ask(self, name: str) -> None:
        """Count a call, in a window."""
        call, now = self._work.name(), at_server(self._client)
        self._client.zadd(f"limit:{name}", {call: now})
        self._work.journal.live(f"limit:{name}:{call}", f"{now!r}|{now + WINDOW - 0.1}")


def ends_of(value: bytes) -> float:
    """Return when a session of the pool ends."""
    return float(json.loads(value)["last_seen_at"]) + LIFE


def look_at(block: Any, kind: str, rest: str) -> None:
    """Ask for an item."""
    if kind == "cart":
        block.get(f"cart:{rest}")
    elif kind == "pool":
        block.hget("pool", rest)
    elif kind == "session":
        block.hget(f"session:{rest}", "expires_at")
    else:
        name, _, call = rest.rpartition(":")
        block.zscore(f"limit:{name}", call)


def expected(kind: str, note: str) -> Any:
    """Return what a look at a live item must find."""
    return float(note) if kind == "limit" else note.encode()


def at_server(client: Any) -> float:
    """Return the server's time."""
    seconds, micros = client.time()
    return float(seconds + micros / 1e6)
