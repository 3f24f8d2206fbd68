"""Garbage of some libraries: Huey's revocations and results, LangGraph's writes, Feast's views."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.jobs.leftovers import (
    CLIENT,
    DECLARED,
    LIVE,
    Declared,
    Garbage,
    Item,
    Leftovers,
    Offer,
    Removal,
    Rule,
    Unknown,
    Verdicts,
    call,
    keys,
    look,
    members,
    seen_twice,
)
from workstealing.jobs.leftovers.rule import DAY
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation
from workstealing.store.scripts import load

__all__ = [
    "FeastLeftovers",
    "HueyLeftovers",
    "HueyResults",
    "HueyRevocations",
    "LangGraphLeftovers",
    "OrphanedWrites",
    "StaleViews",
]

# A longer queue is not looked through.
_MOST_TASKS = 500
_UUID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_REVOCATION = re.compile(rb"r:(" + _UUID + rb")")
_HUEY = re.compile(rb"huey\.(redis|schedule|results|r)\.([A-Za-z0-9_]+)(?:\..*)?", re.DOTALL)
_RESULT = re.compile(_UUID)
# checkpoint_write:<thread>:<namespace>:<checkpoint>:<task>:<index>; thread and namespace may hold
# colons, the rest does not. A checkpoint's id is a UUID or a ULID, and a task's id a UUID.
_WRITE = re.compile(
    rb"checkpoint_write:(.+:(?:" + _UUID + rb"|[0-9A-HJKMNP-TV-Z]{26})):" + _UUID + rb":-?\d+",
    re.DOTALL,
)
# A protobuf Timestamp: field 1 the seconds, field 2 the nanoseconds, each left out if it is 0.
_TIMESTAMP = re.compile(rb"(?:\x08([\x80-\xff]*[\x00-\x7f]))?(?:\x10[\x80-\xff]*[\x00-\x7f])?")

# Feast's number for the type of a join key's name.
_STRING = 2


def _queue_in(key: bytes) -> dict[str, Any] | None:
    """Return a queue of Huey, where a key tells one, and whether its revocations are keys."""
    found = _HUEY.fullmatch(key) if key.startswith(b"huey.") else None
    if found is None:
        return None
    own = {"expiring": True} if found[1] == b"r" else {}
    return {"queue": found[2].decode("ascii"), **own}


class _OfHuey(Rule):
    """The part that the rules of Huey share: each queue has its own, and a key tells its name."""

    owner = "Huey"
    versions = "Huey 2.5 to 3.5"
    tells = staticmethod(_queue_in)
    _name: str
    _options: Mapping[str, Any]

    @classmethod
    def surveyed(cls, told: Mapping[str, Any]) -> Sequence[Rule]:
        """Return the rule of a queue that a key has told."""
        return [cls(**told)] if told else []

    def offer(self) -> Offer:
        """Offer the job of this queue."""
        return Offer(call(HueyLeftovers, CLIENT, self._name, **self._options))


class HueyRevocations(_OfHuey):
    """Huey's revocations of tasks that are in no queue and in no schedule.

    Arguments:
        queue: the name that was given to Huey.
        expiring: whether it is one of Huey's RedisExpireStorages, which keep revocations as keys.
        gap: between the sightings, in seconds or as a timedelta: longer than any task runs, as a
            running one may be queued again.

    Revocations of ids that are no UUIDs are unknown, and all of them while the queue or the
    schedule is longer than 500 tasks, or holds compressed ones. Revocations of classes of tasks
    stay.
    """

    name = "huey.revocations"
    finds = "Revocations of tasks that are in no queue and no schedule."

    def __init__(self, queue: str, *, expiring: bool = False, gap: Duration = DAY) -> None:
        name = re.sub("[^A-Za-z0-9_]", "", queue)
        self.certainty = seen_twice(gap)
        self._name, self._options = queue, {"expiring": True} if expiring else {}
        self._prefix = f"huey.r.{name}.".encode() if expiring else b""
        self.where = (
            keys(f"huey.r.{name}.r:*", "string")
            if expiring
            else members(f"huey.results.{name}", "hash")
        )
        self._queue, self._schedule = (
            f"huey.redis.{name}".encode(),
            f"huey.schedule.{name}".encode(),
        )

    def verdict(self, item: Item) -> Verdicts:
        """Judge a revocation: its task's id is in no message of the queue and the schedule."""
        field = item.key.removeprefix(self._prefix) if item.member is None else item.member
        found = _REVOCATION.fullmatch(field)
        if found is None:
            return LIVE if item.member is not None else Unknown("its id is no UUID")
        value: Any = ("GET", item.key) if item.member is None else ("HGET", item.key, field)
        watched = (item.key, self._queue, self._schedule)
        value, kind = yield look(value, ("TYPE", self._queue), watch=watched)
        to = _MOST_TASKS
        read = "ZRANGE" if kind == b"zset" else "LRANGE"
        queued, later = yield look(
            (read, self._queue, 0, to), ("ZRANGE", self._schedule, 0, to), watch=watched
        )
        skipped = 8 if kind == b"zset" else 0
        tasks = [*(each[skipped:] for each in queued), *later]
        if max(len(queued), len(later)) > to or not all(each[:1] == b"\x80" for each in tasks):
            return Unknown("the queue is too long to look through, or compressed")
        if value is None or any(found[1] in each for each in tasks):
            return LIVE
        kind = None if item.member is None else "hash"
        return Garbage((Removal(item.key, kind, item.member or b""),), _digest(value))


class HueyResults(_OfHuey):
    """Results of Huey's tasks that nobody has fetched for long.

    Arguments:
        queue: the name that was given to Huey.
        retention: for how long a result must have been there unchanged, in seconds or as a
            timedelta.

    A result of a RedisExpireStorage ends by itself. Fields that are no UUIDs (locks, windows of
    rate limits, parts of chords) stay.
    """

    name = "huey.results"
    finds = "Results of tasks that nobody has fetched for long."
    can_undo = False

    def __init__(self, queue: str, retention: Duration) -> None:
        self.certainty = seen_twice(retention)
        name = re.sub("[^A-Za-z0-9_]", "", queue)
        self.where, self._name = members(f"huey.results.{name}", "hash"), queue
        self._options = {"retention": Declared("RETENTION", self.certainty.gap)}

    @classmethod
    def surveyed(cls, told: Mapping[str, Any]) -> Sequence[Rule]:
        """Return the rule of a queue that a key has told, unless its results end by themselves."""
        return [cls(told["queue"], 30 * DAY)] if told and "expiring" not in told else []

    def verdict(self, item: Item) -> Verdicts:
        """Judge a field by its name; one script compares the value, as others come all the time."""
        if item.member is None or not _RESULT.fullmatch(item.member):
            return LIVE
        (value,) = yield look(("HGET", item.key, item.member))
        if value is None:
            return LIVE
        own = (item.member, value)
        script = Operation(load("leftovers/remove_field"), (item.key,), own)
        return Garbage((), _digest(value), script)


class OrphanedWrites(Rule):
    """Writes of LangGraph's Redis checkpointer whose checkpoint is gone.

    Arguments:
        gap: between the sightings, in seconds or as a timedelta: a write may come before its
            checkpoint.
        of_type: of the keys.

    A write of a thread with a shallow checkpoint stays, because the shallow saver's checkpoints
    have no ids. Where the checkpointer was given other prefixes, it finds nothing. The write's
    entry in its register goes with it.
    """

    name = "langgraph.writes"
    owner = "LangGraph"
    versions = "langgraph-checkpoint-redis 0.5"
    finds = "Writes whose checkpoint is gone."
    asked = ({},)

    def __init__(self, gap: Duration = DAY, of_type: Any = "ReJSON-RL") -> None:
        self.certainty = seen_twice(gap)
        self.where = keys("checkpoint_write:*", of_type)

    def offer(self) -> Offer:
        """Offer the job of LangGraph."""
        return Offer(call(LangGraphLeftovers, CLIENT))

    def verdict(self, item: Item) -> Verdicts:
        """Judge a write: neither its checkpoint nor its thread's shallow one is there."""
        found = _WRITE.fullmatch(item.key)
        if found is None:
            return Unknown("its name is none of the checkpointer's")
        checkpoint = b"checkpoint:" + found[1]
        shallow, register = checkpoint.rpartition(b":")[0], b"write_keys_zset:" + found[1]
        watched = (item.key, checkpoint, shallow)
        (there,) = yield look(("EXISTS", checkpoint, shallow), watch=watched)
        if there:
            return LIVE
        (content,) = yield look(("DUMP", item.key), watch=item.key)
        if content is None:
            return LIVE
        entry = Removal(register, "zset", item.key)
        return Garbage((Removal(item.key), entry), _digest(content))


class StaleViews(Rule):
    """Feast's feature views in an entity's hash whose values are older than you declare.

    Arguments:
        project: of Feast.
        view: the feature view's name (with ``_v2`` and so on if Feast's registry adds versions).
        features: the names of its features.
        age: of the values' event time, in seconds or as a timedelta: the view's own ttl at least,
            after which Feast says OUTSIDE_MAX_AGE.

    Feast writes a view's values and its time by one HSET, so the WATCHed hash changes with it. A
    key is read to its last byte, for Feast puts the project behind it without a separator. Keys of
    serialization version 2 do not say where the project begins: they are unknown.
    """

    owner = "Feast"
    versions = "Feast 0.66 and 0.67, entity_key_serialization_version 3"
    finds = "Values of feature views that are older than declared."
    certainty = DECLARED

    def __init__(self, project: str, view: str, features: Sequence[str], age: Duration) -> None:
        self.name = "feast.views." + re.sub("[^a-z0-9_.]", "_", view.lower())
        escaped = re.sub(r"([\\*?\[\]^])", r"\\\1", project)
        self.where = keys(f"*{escaped}", "hash")
        self._project, self._time = project.encode(), f"_ts:{view}".encode()
        self._fields = [_field_of(f"{view}:{each}") for each in features]
        self._age = seconds_of(age, "age", 1.0)

    def verdict(self, item: Item) -> Verdicts:
        """Judge a hash by the view's event time."""
        if _behind_entity(item.key) != self._project:
            return Unknown("its key is none of that project's, in version 3")
        (stamp,) = yield look(("HGET", item.key, self._time), watch=item.key)
        if stamp is None:
            return LIVE
        found = _TIMESTAMP.fullmatch(stamp)
        if found is None:
            return Unknown("its event time is no Timestamp")
        seconds = sum((byte & 127) << 7 * n for n, byte in enumerate(found[1] or b"\0"))
        if seconds >= item.now - self._age:
            return LIVE
        there = yield look(*(("HEXISTS", item.key, each) for each in self._fields))
        gone = [each for each, one in zip(self._fields, there, strict=True) if one]
        return Garbage(tuple(Removal(item.key, "hash", each) for each in (*gone, self._time)))


def _behind_entity(key: bytes) -> bytes | None:
    """Return what stands behind the entity in a key of Feast; None if the key is of another form.

    A count of names, then each name and each value: its type, its length, and its bytes.
    """
    count = int.from_bytes(key[:4], "little")
    at = 4
    for number in range(2 * count):
        kind, size = (int.from_bytes(key[at + n : at + n + 4], "little") for n in (0, 4))
        at += 8 + size
        if at > len(key) or not kind or (number < count and kind != _STRING):
            return None
    return key[at:] if count else None


class HueyLeftovers(Leftovers):
    """Removes Huey's revocations of tasks that are gone, and results that nobody fetches.

    Arguments:
        queue: see `HueyRevocations`.
        expiring: see `HueyRevocations`.
        gap: see `HueyRevocations`.
        retention: see `HueyResults`, None: results stay; further ones: of `Leftovers`, with a
            retention but for undo.
    """

    def __init__(
        self,
        client: Any,
        queue: str,
        *,
        expiring: bool = False,
        gap: Duration = DAY,
        retention: Duration | None = None,
        name: str = "huey_leftovers",
        **options: Any,
    ) -> None:
        rules: list[Rule] = [HueyRevocations(queue, expiring=expiring, gap=gap)]
        if retention is not None:
            rules.append(HueyResults(queue, retention))
        super().__init__(client, rules, name=name, **options)


class LangGraphLeftovers(Leftovers):
    """Removes writes of LangGraph's Redis checkpointer whose checkpoint is gone.

    Arguments:
        gap: see `OrphanedWrites`; further ones: of `Leftovers`.
    """

    def __init__(
        self,
        client: Any,
        *,
        gap: Duration = DAY,
        name: str = "langgraph_leftovers",
        **options: Any,
    ) -> None:
        super().__init__(client, (OrphanedWrites(gap),), name=name, **options)


class FeastLeftovers(Leftovers):
    """Removes stale feature views from the hashes of Feast's Redis online store.

    Arguments:
        project: of Feast.
        views: by its name, each view's features and the age of stale values; see `StaleViews`;
            further ones: of `Leftovers`.
    """

    def __init__(
        self,
        client: Any,
        project: str,
        views: Mapping[str, tuple[Sequence[str], Duration]],
        *,
        name: str = "feast_leftovers",
        **options: Any,
    ) -> None:
        rules = [StaleViews(project, view, *about) for view, about in views.items()]
        super().__init__(client, rules, name=name, **options)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _field_of(name: str) -> bytes:
    """Return the field that Feast writes for a feature: MurmurHash3 of 32 bits, little-endian."""
    data, mask = to_bytes(name), 0xFFFFFFFF
    hashed = 0
    for at in range(0, len(data), 4):
        block = data[at : at + 4]
        mixed = int.from_bytes(block, "little") * 0xCC9E2D51 & mask
        mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & mask
        hashed ^= mixed
        if len(block) == 4:
            hashed = ((hashed << 13 | hashed >> 19) * 5 + 0xE6546B64) & mask
    hashed ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ hashed >> shift) * factor & mask
    return hashed.to_bytes(4, "little")
