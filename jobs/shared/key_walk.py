"""Walks over the keyspace of a node by SCAN, whose place stands in Redis and is shared by all.

A cursor of SCAN holds for one process of the server, and in a cluster for one map of its slots.
So each page comes with these facts: the server's run id and, in a cluster, the epoch of its map. A
walk whose facts have changed begins again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from redis.exceptions import ResponseError

from workstealing.errors import Aborted, ConfigurationError
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import require_users_key
from workstealing.store.paging import CURSOR
from workstealing.store.scripts import load
from workstealing.structures.stored import wrong_type

WALKING = frozenset({"SCAN", "HSCAN", "INFO", "TIME", "HGET", "HGETALL", "DEL"})
"""The commands of a job that walks the keyspace; its place on each node stands in a hash."""

_FORMS: Mapping[str | type, re.Pattern[bytes]] = {
    "cursor": CURSOR,
    "at": CURSOR,
    bool: re.compile(rb"[01]"),
    int: re.compile(rb"[0-9]{1,15}"),
    float: re.compile(rb"[0-9]{1,12}(\.[0-9]{1,20})?"),
    bytes: re.compile(rb".*", re.DOTALL),
}


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A share of a node's keys, told by their names: one of so many."""

    number: int = 0
    of: int = 1

    def has(self, key: bytes) -> bool:
        """Say whether a key is of this share."""
        if self.of == 1:
            return True
        return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest()) % self.of == self.number


class ScannedPage(NamedTuple):
    """One page of a walk.

    Fields: facts: for which the cursor holds; cursor: of the next page; keys; replies: to the
    further commands.
    """

    facts: bytes
    cursor: bytes
    keys: list[bytes]
    replies: list[Any]


class StoredPlace:
    """The place of a walk on one node, as a hash in Redis holds it: the base of frozen dataclasses.

    Each of their fields has a default, whose type says which values the hash may have for it.
    """

    @classmethod
    def read(cls, reply: Sequence[bytes]) -> Self:
        """Return the place that a reply of HGETALL holds; the beginning for one of nonsense."""
        found = dict(zip(reply[::2], reply[1::2], strict=True))
        place = {}
        for name, default in vars(cls()).items():
            value = found.get(name.encode())
            if value is None:
                continue
            kind = type(default)
            if not _FORMS[name if name in _FORMS else kind].fullmatch(value):
                # It only spares some steps.
                return cls()
            place[name] = value == b"1" if kind is bool else kind(value)
        return cls(**place)

    def fields(self) -> tuple[bytes | str | int | float, ...]:
        """Return the names and values of the hash that holds the place."""
        return tuple(
            part
            for name, value in vars(self).items()
            for part in (name, int(value) if isinstance(value, bool) else value)
        )


def scan_page(
    job_client: JobClient, node: Node, scan: Command, slice: Slice, *further: Command
) -> ScannedPage:
    """Read a page of a node's keys. One round trip.

    Arguments:
        scan: the command SCAN.
        further: commands for the same round trip.

    Raises: error replies of SCAN and of the further commands; OutOfTime; connection faults.
    """
    commands: list[Command] = [("INFO", "server"), scan, *further]
    if job_client.is_cluster:
        commands.append(("CLUSTER", "INFO"))
    slice.spend(len(commands))
    info, *others = job_client.call(node, commands, Budget(slice.remaining()))
    cluster = others.pop() if job_client.is_cluster else None
    found, *replies = checked(others)
    # A service may forbid INFO: then nobody can tell that its process is another one.
    facts = _line(info, b"run_id")
    if job_client.is_cluster:
        facts += b":" + _line(cluster, b"cluster_current_epoch")
    return ScannedPage(facts, found[0], found[1], replies)


def read_place(job_client: JobClient, key: bytes, slice: Slice) -> list[bytes]:
    """Return the names and values of the hash that holds a walk's place. One round trip.

    Raises: LayoutError if the key holds no hash; OutOfTime; connection faults.
    """
    slice.spend(1)
    (place,) = job_client.call_keys((key,), [("HGETALL", key)], Budget(slice.remaining()))
    if isinstance(place, ResponseError):
        raise wrong_type(key, place)
    return list(place)


def move_place(
    job_client: JobClient,
    key: bytes,
    raw: Sequence[bytes],
    fields: Sequence[bytes | str | int | float],
    slice: Slice,
    *,
    keep: int | None = None,
) -> None:
    """Write a walk's place down, unless it was moved since it was read. One round trip.

    Arguments:
        key: of the hash.
        raw: as `read_place` returned it.
        fields: the new names and values.
        keep: the seconds after which a place that nobody moves is gone, None: never.

    Raises: Aborted if another recruit has moved it; OutOfTime; connection faults.
    """
    seconds = "" if keep is None else keep
    command = ("EVAL", load("walk/place").body, 1, key, seconds, len(raw), *raw, *fields)
    slice.spend(1)
    (moved,) = checked(job_client.call_keys((key,), [command], Budget(slice.remaining())))
    if not moved:
        raise Aborted("another recruit has moved the place of the walk")


def _line(reply: Any, name: bytes) -> bytes:
    """Return a value of an INFO reply; empty if the server refuses the command."""
    text = reply if isinstance(reply, bytes) else b""
    found = re.search(rb"^" + name + rb":(\S+)", text, re.MULTILINE)
    return found[1] if found else b""


def is_users_key(key: bytes) -> bool:
    """Say whether a key is none of this package's own."""
    try:
        require_users_key(key)
    except ConfigurationError:
        return False
    return True
