"""Removing: one attempt on some items of a rule, with a note of each in the audit stream.

The attempt WATCHes the keys that the rule names, judges the items anew, and removes those that are
still garbage. If that is wanted, the same MULTI keeps the removed items for `undo`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import OutOfMemoryError

from workstealing.errors import ConfigurationError, Skipped
from workstealing.jobs.leftovers.rule import Garbage, Item, Removal, Rule
from workstealing.jobs.leftovers.walk import Judging, keys_of
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import JobClient
from workstealing.store.keys import SLOT_TAGS, key_slot
from workstealing.store.operations import Operation
from workstealing.store.scripts import load
from workstealing.structures.stored import holding_ours

FULL_LOAD = 100
"""A rule's script that removes so many parts, or all for which there is room, may leave some."""
# The audit stream holds the last removals, and ends so long after the last one.
AUDITED, AUDIT_MS = 10_000, 30 * 86_400_000
_REMOVERS = {"set": "SREM", "zset": "ZREM", "hash": "HDEL"}
# A jittered time to live is between this share of the given one and the double of it.
_LEAST_SHARE, _MOST_SHARE = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """The treatment of garbage.

    Fields: undo: for how many seconds it is kept for `undo`, 0: not at all; largest: the most bytes
    of an item that is kept; room: the most bytes of all that is kept, in one stream (there is one
    on a server, and one for each hash slot on a cluster); ttl: the seconds of a jittered time to
    live that a key gets instead of its removal, None: it is removed; larger_ttl: the same, for keys
    that are too large to be kept; None: they are left alone.
    """

    undo: float = 0.0
    largest: int = 1 << 20
    room: int = 64 << 20
    ttl: float | None = None
    larger_ttl: float | None = None


@dataclass(slots=True)
class Removed:
    """The result of an attempt.

    Fields: items; size: in bytes, as far as known; left: too large; has_more: whether a script may
    have left garbage behind.
    """

    items: int = 0
    size: int = 0
    left: int = 0
    has_more: bool = False

    def add(self, other: Removed) -> None:
        """Add the result of another attempt."""
        self.items += other.items
        self.size += other.size
        self.left += other.left
        self.has_more |= other.has_more


@dataclass(frozen=True, slots=True)
class _State:
    """The state of something before its removal.

    Fields: size: in bytes; ends: when it would have ended, in ms since the epoch, 0: never;
    content: that brings it back.
    """

    size: int
    ends: int = 0
    content: bytes = b""


@dataclass(slots=True)
class _Order:
    """The removals that an attempt has decided on.

    Fields: whole: keys that go; later: keys with the ms after which they go; parts: members by key
    and type; removed: the result, if it is done.
    """

    whole: list[Removal] = field(default_factory=list)
    later: dict[Removal, int] = field(default_factory=dict)
    parts: dict[tuple[bytes, str], list[Removal]] = field(default_factory=dict)
    removed: Removed = field(default_factory=Removed)

    def add(self, removal: Removal, ms: int | None) -> None:
        """Add a removal.

        Arguments:
            ms: after which a key goes, None: now.
        """
        if removal.type is not None:
            self.parts.setdefault((removal.key, removal.type), []).append(removal)
        elif ms is None:
            self.whole.append(removal)
        else:
            self.later[removal] = ms

    def commands(self) -> list[Command]:
        """Return the commands that remove."""
        commands: list[Command] = [("UNLINK", each.key) for each in self.whole]
        commands += [("PEXPIRE", each.key, ms) for each, ms in self.later.items()]
        for (key, kind), some in self.parts.items():
            if kind == "list":
                commands += [("LREM", key, 0, each.member) for each in some]
            else:
                commands.append((_REMOVERS[kind], key, *(each.member for each in some)))
        return commands


class SideKeys:
    """The names of a job's own side keys.

    Arguments:
        job: its name.
        job_client: of its client.
    """

    def __init__(self, job: str, job_client: JobClient) -> None:
        self._job = job.encode()
        self._home = key_slot(self._job)
        self._job_client = job_client

    def removed(self, key: bytes) -> bytes:
        """Return the audit stream for removals of a key."""
        return self.beside(key, b"removed")

    def kept(self, key: bytes) -> bytes:
        """Return the stream that keeps what is removed of a key."""
        return self.beside(key, b"kept")

    def every_kept(self) -> bytes:
        """Return the pattern of all streams that keep what is removed."""
        return b"{*}:ws:leftovers:%b:kept" % re.sub(rb"([\\*?\[\]^])", rb"\\\1", self._job)

    def beside(self, key: bytes | None, kind: bytes) -> bytes:
        """Return the name of a side key: on a cluster in the slot of the key, if one is given."""
        slot = key_slot(key) if key is not None and self._job_client.is_cluster else self._home
        return b"{%b}:ws:leftovers:%b:%b" % (SLOT_TAGS[slot], self._job, kind)


class Remover:
    """Removes garbage of one server or cluster.

    Arguments:
        random: returns a float in [0, 1), for the jitter.
    """

    def __init__(
        self,
        job_client: JobClient,
        side_keys: SideKeys,
        keeping: Keeping,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._job_client, self._side_keys, self._keeping = job_client, side_keys, keeping
        self._random = random

    def remove(
        self,
        rule: Rule,
        items: Sequence[Item],
        fingerprints: Sequence[bytes],
        now: float,
        slice: Slice,
    ) -> Removed:
        """Remove those of the items that are still garbage.

        Arguments:
            items: in one hash slot on a cluster.
            fingerprints: of a rule of SEEN_TWICE, that each item must still have.
            now: the server's time when they were met, in seconds since the epoch: what had ended
                then has ended still.

        Raises: Aborted if the owner wrote to one of the keys WATCHed; Skipped if the server is
        full, and what is removed should be kept; OutOfTime; connection faults. Three round trips,
        and one for each further look of the rule.
        """
        judging = Judging(rule, items, now, one_slot=self._job_client.is_cluster)
        watched = judging.watched()
        if not judging.looks:
            return Removed()
        if not watched:
            raise ConfigurationError(
                f"the rule {rule.name!r} WATCHes no key before it removes: its first look must"
                " name the keys that its owner writes"
            )
        try:
            with attempt(self._job_client, *watched, slice=slice, in_any_slot=True) as tried:

                def send(commands: list[Command], watch: tuple[bytes, ...]) -> list[Any]:
                    more = tuple(each for each in watch if each not in watched)
                    if not more:
                        return tried.read_each(*commands)
                    done, *replies = tried.read_each(("WATCH", *more), *commands)
                    checked([done])
                    return replies

                found = _still(items, judging.run(send), fingerprints)
                order, notes = self._decide(rule, found, now, tried.read_each)
                removing = order.commands()
                if removing:
                    tried.commit(*removing, *notes)
                return order.removed
        except OutOfMemoryError as error:
            if self._keeping.undo:
                raise Skipped(
                    "the server's memory is full, so what is removed could not be kept for undo;"
                    " free some, or install the job without undo"
                ) from error
            return self._remove_by_script(rule, items, fingerprints, now, slice)

    def run_script(
        self, rule: Rule, item: Item, garbage: Garbage, room: int, slice: Slice
    ) -> Removed:
        """Remove by a rule's own script. Raises: error replies; OutOfTime; connection faults.

        Arguments:
            room: the most parts that it removes.

        One round trip.
        """
        given = garbage.script
        assert given is not None, "only garbage with a script comes here"
        about = ("rule", rule.name, "owner", rule.owner, "key", item.key, "type", rule.where.type)
        operation = Operation(
            given.script,
            (*given.keys, self._side_keys.removed(item.key)),
            (len(given.args) + 1, *given.args, room, AUDITED, AUDIT_MS, *about),
        )
        slice.spend(1)
        budget = Budget(slice.remaining())
        # Another program's key lies in a slot of its own choice: that matters on a cluster alone.
        keys = tuple(operation.keys) if self._job_client.is_cluster else (item.key,)
        (parts,) = checked(self._job_client.call_keys(keys, [operation.by_text()], budget))
        return Removed(int(parts), has_more=int(parts) >= min(FULL_LOAD, room))

    def _decide(
        self,
        rule: Rule,
        found: Sequence[tuple[Item, Garbage]],
        now: float,
        read: Callable[..., list[Any]],
    ) -> tuple[_Order, list[Command]]:
        """Return what to remove, and the commands that note and keep it."""
        order = _Order()
        removals = list(dict.fromkeys(each for _, garbage in found for each in garbage.removals))
        if not removals:
            return order, []
        keeping = self._keeping
        states, used = self._states(removals, read)
        for _, garbage in found:
            size = sum(len(states[each].content) + len(each.member) for each in garbage.removals)
            ttl = keeping.ttl
            # A list's member could not come back to its place.
            is_list = any(each.type == "list" for each in garbage.removals)
            fits = not is_list and size <= keeping.largest and used + size <= keeping.room
            if keeping.undo and ttl is None and not fits:
                ttl = keeping.larger_ttl
                if ttl is None or any(each.type is not None for each in garbage.removals):
                    order.removed.left += 1
                    continue
            used += 0 if ttl is not None else size
            order.removed.items += 1
            for each in garbage.removals:
                if ttl is None or each.type is None:
                    order.add(each, None if ttl is None else self._jittered(ttl))
                    order.removed.size += states[each].size
        return order, self._notes(rule, order, states, now)

    def _states(
        self, removals: Sequence[Removal], read: Callable[..., list[Any]]
    ) -> tuple[dict[Removal, _State], int]:
        """Return the state of each removal's object, and the size of all that is kept so far.

        Raises: LayoutError if what is removed could not be noted or kept, because something else
        stands there: in a transaction the removal itself would still be done.
        """
        undo, side_keys, key = self._keeping.undo, self._side_keys, removals[0].key
        asked = [_before(each, undo=bool(undo)) for each in removals]
        commands = [command for some in asked for command in some]
        streams = [side_keys.removed(key), *([side_keys.kept(key)] if undo else [])]
        commands += [("XLEN", each) for each in streams]
        if undo:
            # Rests of times to live count from the server's time now.
            commands += [("MEMORY", "USAGE", streams[-1]), ("TIME",)]
        found = read(*commands)
        at = len(commands) - len(streams) - (2 if undo else 0)
        for stream, reply in zip(streams, found[at:], strict=False):
            with holding_ours(stream):
                checked([reply])
        del found[at : at + len(streams)]
        seconds, micros = found.pop() if undo else (0, 0)
        now_ms = 1000 * int(seconds) + int(micros) // 1000
        replies = iter(found)
        states = {}
        for removal, some in zip(removals, asked, strict=True):
            got = [next(replies) for _ in some]
            content = got[-1] if got and isinstance(got[-1], bytes) else b""
            if removal.type is None:
                size = got[0] if isinstance(got[0], int) else 0
                left = got[1] if len(got) > 1 and isinstance(got[1], int) else -1
                ends = now_ms + left if left >= 0 else 0
                states[removal] = _State(size, ends, content)
            else:
                states[removal] = _State(len(removal.member) + len(content), 0, content)
        used = next(replies, 0)
        return states, used if isinstance(used, int) else 0

    def _notes(
        self, rule: Rule, order: _Order, states: Mapping[Removal, _State], now: float
    ) -> list[Command]:
        """Return the commands that write the audit stream, and that keep what is removed."""
        groups: list[tuple[bytes, str, list[Removal]]] = [
            *((each.key, "key", [each]) for each in (*order.whole, *order.later)),
            *((key, kind, some) for (key, kind), some in order.parts.items()),
        ]
        if not groups:
            return []
        audit, kept = self._side_keys.removed(groups[0][0]), self._side_keys.kept(groups[0][0])
        notes: list[Command] = []
        is_kept = False
        for key, kind, some in groups:
            size = sum(states[each].size for each in some)
            about = (
                "rule",
                rule.name,
                "owner",
                rule.owner,
                "key",
                key,
                "type",
                kind,
                "bytes",
                size,
            )
            ms = order.later.get(some[0])
            named = tuple(part for each in some if each.type for part in ("member", each.member))
            ttl = () if ms is None else ("ttl_ms", ms)
            notes.append(("XADD", audit, "MAXLEN", "~", AUDITED, "*", *about, *ttl, *named))
            if self._keeping.undo and ms is None:
                is_kept = True
                parts = tuple(
                    part
                    for each in some
                    for part in ("member", each.member, "content", states[each].content)
                )
                ends = ("ends", states[some[0]].ends)
                notes.append(("XADD", kept, "*", *about, *ends, *parts))
        notes.append(("PEXPIRE", audit, AUDIT_MS))
        if is_kept:
            ms = int(1000 * self._keeping.undo)
            notes.append(("XTRIM", kept, "MINID", int(1000 * now) - ms))
            notes.append(("PEXPIRE", kept, ms))
        return notes

    def _jittered(self, ttl: float) -> int:
        share = _LEAST_SHARE + self._random() * (_MOST_SHARE - _LEAST_SHARE)
        return max(1, int(1000 * ttl * share))

    def _remove_by_script(
        self,
        rule: Rule,
        items: Sequence[Item],
        fingerprints: Sequence[bytes],
        now: float,
        slice: Slice,
    ) -> Removed:
        """Remove on a full server: read by a script, and remove by one if all reads the same."""
        looks: list[tuple[bytes, list[Command]]] = []

        def send(commands: list[Command], watch: tuple[bytes, ...]) -> list[Any]:
            replies: list[Any]
            *replies, digest = self._eval("read", commands, watch, _words(commands), slice)
            looks.append((digest, commands))
            return replies

        def read(*commands: Command) -> list[Any]:
            slice.spend(len(commands))
            keys = keys_of(commands[0])
            budget = Budget(slice.remaining())
            replies: list[Any] = self._job_client.call_keys(keys, list(commands), budget)
            return replies

        judging = Judging(rule, items, now, one_slot=self._job_client.is_cluster)
        found = _still(items, judging.run(send), fingerprints)
        order, notes = self._decide(rule, found, now, read)
        removing = order.commands()
        if not removing:
            return order.removed
        words: list[Any] = [len(looks)]
        for digest, commands in looks:
            words += (digest, *_words(commands))
        words += _words([*removing, *notes])
        looked = [each for _, commands in looks for each in commands]
        done = self._eval("remove", [*looked, *removing, *notes], (), words, slice)
        return order.removed if done else Removed()

    def _eval(
        self,
        script: str,
        commands: Sequence[Command],
        others: Sequence[bytes],
        words: Sequence[Any],
        slice: Slice,
    ) -> Any:
        keys = tuple(dict.fromkeys([*others, *(k for each in commands for k in keys_of(each))]))
        command = ("EVAL", load(f"leftovers/{script}").body, len(keys), *keys, *words)
        slice.spend(1)
        (reply,) = checked(
            self._job_client.call_keys(keys[:1], [command], Budget(slice.remaining()))
        )
        return reply


def _before(removal: Removal, *, undo: bool) -> list[Command]:
    """Return what is read of something before its removal: its size, and its content for undo."""
    key, kind, member = removal
    if kind is None:
        size: Command = ("MEMORY", "USAGE", key)
        return [size, ("PTTL", key), ("DUMP", key)] if undo else [size]
    if undo and kind == "zset":
        return [("ZSCORE", key, member)]
    return [("HGET", key, member)] if undo and kind == "hash" else []


def _words(commands: Sequence[Command]) -> list[Any]:
    """Return commands as `leftovers/commands.lua` reads them."""
    words: list[Any] = [len(commands)]
    for each in commands:
        words += (len(each), *each)
    return words


def _still(
    items: Sequence[Item], verdicts: Sequence[Any], fingerprints: Sequence[bytes]
) -> list[tuple[Item, Garbage]]:
    """Return the items that are garbage now, and were so when they were seen."""
    return [
        (item, verdict)
        for item, verdict, seen in zip(items, verdicts, fingerprints, strict=True)
        if isinstance(verdict, Garbage) and verdict.fingerprint == seen and verdict.script is None
    ]
