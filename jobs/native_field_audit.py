"""The job that samples fields of a native namespace, and tells where its servers differ.

A native namespace trusts its server to expire fields, on the primary and on its replicas alike. A
recruit looks at a few fields at a time, so the whole costs as little as one wants.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError
from workstealing.jobs.shared.key_walk import is_users_key
from workstealing.recruiting.faults import FaultLog, shown
from workstealing.recruiting.job import Job
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import BlockingClient, JobClient, Node, job_client_of
from workstealing.structures.access import Access, JobAccess
from workstealing.structures.due_index import DueIndex
from workstealing.structures.namespace import Layout, read_layout
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.hashes import checked_hashes

__all__ = ["NativeFieldAudit"]

_KEYS_A_PAGE = 100
_FIELDS_A_HASH = 5
# A hash of more fields is sampled, and the fields that it keeps too long are not counted.
_SMALL = 64
# The clocks of a primary and its replica may differ by so much.
_SKEW_MS = 1_000
# SCAN and HSCAN take any number for a place; more bits than a table of keys has buckets.
_CURSOR_BITS = 48

_faults = FaultLog(SYSTEM_CLOCK)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_faults.after_fork)


@dataclass(frozen=True, slots=True)
class _SampledField:
    """A field as one server has it. Fields: value; at: its deadline in ms, -1 none, -2 no field."""

    value: bytes | None
    at: int

    def agrees_with(self, other: _SampledField, now: int) -> bool:
        """Say whether two servers have the same, apart from a deadline that is just passing."""
        if self == other:
            return True
        return any(0 <= each.at < now + _SKEW_MS for each in (self, other))


class NativeFieldAudit(Job):
    """Samples fields of a native namespace: compares a replica with its primary, and counts.

    A slice looks at the hashes of a random part of the keyspace. The slice reads a few fields of
    each hash on the primary, on the replica, and on the primary again: what was the same both times
    there, and differs on a replica that has come as far, is a difference. Small hashes are read
    whole, so a server that frees expired fields only when they are read frees them.

    Arguments:
        hashes: the namespace.
        match: a pattern of Redis's for its keys, such as ``"item:*"``: a native namespace has no
            list of them.
        replica: a client of a replica, None: nothing is compared.
        limit: a slice looks at a fifth as many hashes, and at one at least.
        name: by default ``native_field_audit.<namespace>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError, also for a replica beside a cluster's client.

    Figures of a slice: `fields_compared`; `replica_differences`; `kept_past_deadline`, the expired
    fields of small hashes that were in memory still.
    """

    access = JobAccess(
        ("volatile hashes",),
        Access(
            keys=(),
            commands=frozenset({"SCAN", "HSCAN", "HLEN", "HMGET", "INFO", "TIME"}),
            native=frozenset({"HPEXPIRETIME"}),
        ),
        native=True,
    )
    unit = "fields"

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        match: str | bytes,
        replica: BlockingClient | None = None,
        limit: int = 25,
        *,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        if not isinstance(match, str | bytes) or not match:
            raise ConfigurationError(f'match={match!r} is no pattern: give one, such as "item:*"')
        if replica is not None and hashes.job_client.is_cluster:
            raise ConfigurationError(
                "a cluster's replicas cannot be compared: leave out replica=, and the job counts"
                " the fields that are kept past their deadline"
            )
        default = f"native_field_audit.{hashes.namespace}"
        self._keep_clean(hashes, limit=limit, name=name, default=default)
        self._match = match
        # A job client does not keep its client alive.
        self._client = replica
        self._replica: JobClient | None = None if replica is None else job_client_of(replica)
        self._random = random
        self._index = DueIndex(hashes.job_client, hashes.names, 0, random, SYSTEM_CLOCK)

    def perform(self, slice: Slice) -> int:
        """Look at fields of up to ``slice.limit`` / 5 hashes, or of one if that is less.

        Returns: how many differ on the replica or were kept too long; 0 for a namespace that is not
        native. Raises: OutOfTime; LayoutError; connection faults, the replica's too. Four round
        trips, or five if the first page of the walk has no hash of the namespace; four more if
        there is a replica.
        """
        job_client = self.hashes.job_client
        layout: Layout | None = self._index.drive(
            read_layout(self.hashes.names), Budget(slice.remaining())
        )
        if layout is None or not layout.is_native:
            return 0
        nodes = job_client.nodes()
        node = nodes[int(self._random() * len(nodes))]
        keys = self._keys(node, slice)
        kept, fields = self._fields(node, keys, slice)
        slice.measure("kept_past_deadline", kept)
        if self._replica is None or not fields:
            return kept
        compared, different = self._compared(node, fields, self._replica, slice)
        slice.measure("fields_compared", compared)
        slice.measure("replica_differences", different)
        return kept + different

    def _keys(self, node: Node, slice: Slice) -> list[bytes]:
        """Return some hashes of the namespace from a random place on."""
        scan = ("SCAN", self._place(), "MATCH", self._match, "COUNT", _KEYS_A_PAGE, "TYPE", "hash")
        ((rest, keys),) = self._call(self.hashes.job_client, node, [scan], slice)
        if not keys and rest != b"0":
            # So that a namespace among many other keys is met, too.
            ((_, keys),) = self._call(
                self.hashes.job_client, node, [(scan[0], rest, *scan[2:])], slice
            )
        users = [key for key in keys if is_users_key(key)]
        start = int(self._random() * len(users))
        return (users[start:] + users[:start])[: max(1, slice.limit // _FIELDS_A_HASH)]

    def _fields(
        self, node: Node, keys: Sequence[bytes], slice: Slice
    ) -> tuple[int, dict[bytes, list[bytes]]]:
        """Return how many expired fields were in memory still, and the fields to compare."""
        if not keys:
            return 0, {}
        lengths = self._call(self.hashes.job_client, node, [("HLEN", key) for key in keys], slice)
        sizes = [length or 0 for length in lengths]
        asked = [
            _scan(key, 0 if size <= _SMALL else self._place())
            for key, size in zip(keys, sizes, strict=True)
        ]
        kept, fields = 0, {}
        replies = self._call(self.hashes.job_client, node, asked, slice)
        for key, size, reply in zip(keys, sizes, replies, strict=True):
            cursor, live = reply or (b"0", [])
            if size <= _SMALL and cursor == b"0":
                kept += max(0, size - len(live))
            fields[key] = self._some(live)
        if self._replica is not None:
            # Also the fields that the primary has not.
            replies = self._call(self._replica, None, asked, slice)
            for key, reply in zip(keys, replies, strict=True):
                _, there = reply or (b"0", [])
                fields[key] = list(dict.fromkeys([*fields[key], *self._some(there)]))
        return kept, {key: names for key, names in fields.items() if names}

    def _place(self) -> int:
        return int(self._random() * 2**_CURSOR_BITS)

    def _some(self, names: Sequence[bytes]) -> list[bytes]:
        start = int(self._random() * len(names))
        return [*names[start:], *names[:start]][:_FIELDS_A_HASH]

    def _compared(
        self, node: Node, fields: dict[bytes, list[bytes]], replica: JobClient, slice: Slice
    ) -> tuple[int, int]:
        """Return how many fields were compared, and how many of them differ on the replica."""
        job_client = self.hashes.job_client
        reads: list[Command] = []
        for key, names in fields.items():
            reads.append(("HMGET", key, *names))
            reads.append(("HPEXPIRETIME", key, "FIELDS", len(names), *names))
        asks = ("INFO", "replication")
        *before, told = self._call(job_client, node, [*reads, asks], slice)
        # Its place is read first: the fields are of that moment or of a later one.
        here, *copied = self._call(replica, None, [asks, *reads], slice)
        *after, clock = self._call(job_client, node, [*reads, ("TIME",)], slice)
        wanted, come = _offset(told, b"master_repl_offset"), _offset(here, b"slave_repl_offset")
        if wanted is None or come is None or come < wanted:
            # It lags behind, or is no replica: nobody knows.
            return 0, 0
        now = int(clock[0]) * 1_000
        compared = different = 0
        for at, (key, names) in enumerate(fields.items()):
            rows = [_seen(replies, at, len(names)) for replies in (before, copied, after)]
            for name, first, there, last in zip(names, *rows, strict=True):
                if first != last:
                    continue
                compared += 1
                if not first.agrees_with(there, now):
                    different += 1
                    self._tell(key, name, first, there)
        return compared, different

    def _tell(self, key: bytes, name: bytes, here: _SampledField, there: _SampledField) -> None:
        _faults.warn(
            f"the native namespace {self.hashes.namespace!r}",
            f"the field {shown(name)} of {shown(key)} has the deadline {here.at} on the primary and"
            f" {there.at} on its replica (-1: none, -2: no field), or another value: see the"
            " servers' own faults in docs/volatile_hashes.md, and move the namespace by"
            " MigrateToEmulated",
        )

    def _call(
        self, job_client: JobClient, node: Node, commands: Sequence[Command], slice: Slice
    ) -> list[Any]:
        slice.spend(len(commands))
        where = job_client.nodes()[0] if job_client is self._replica else node
        replies = job_client.call(where, commands, Budget(slice.remaining()))
        return list(checked([None if _is_other_type(each) else each for each in replies]))


def _scan(key: bytes, place: int) -> Command:
    """Return the command that reads some fields of a hash.

    HRANDFIELD would look for live fields among all that have expired: Redis 8 takes 70 ms for it
    where it has not freed 200,000 of them, longer than a slice waits.
    """
    return ("HSCAN", key, place, "COUNT", _SMALL, "NOVALUES")


def _is_other_type(reply: Any) -> bool:
    """Say whether a key was found to hold no hash any more, and so has no fields."""
    return isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")


def _seen(replies: Sequence[Any], at: int, count: int) -> list[_SampledField]:
    """Return the fields of the hash number `at`; a hash that is not there has none."""
    values, times = replies[2 * at] or [None] * count, replies[2 * at + 1] or [-2] * count
    return [_SampledField(value, int(time)) for value, time in zip(values, times, strict=True)]


def _offset(info: Any, name: bytes) -> int | None:
    for line in bytes(info).splitlines():
        if line.startswith(name + b":"):
            number = line.partition(b":")[2]
            return int(number) if number.isdigit() else None
    return None
