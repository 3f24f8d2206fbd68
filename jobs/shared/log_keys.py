"""Compaction of a log by key: of the entries with one key only the newest one stays for good.

Two steps, of which each attempt does one, on one block:

- *Note*: a cursor goes over the full blocks, from the oldest to the newest. Of each entry with a
  key the hash `latest` is told the offset, by a digest of the key; an older offset that stood there
  counts, in the sorted set `superseded`, for the block that has it.
- *Rewrite*: a block many of whose entries are superseded is replaced by one with holes.

Why no newest entry goes: an entry becomes a hole only if `latest` has a greater offset for its key.
That offset is an entry of a full block of this log with this key, as the cursor has seen it, and a
full block loses an entry only in this way or from the old end. So of all entries of a key in full
blocks, the one with the greatest offset is never taken. Where the cursor has not been, entries only
stay for longer. Each step is one MULTI/EXEC that WATCHes the block and `latest`: an eviction, a
deletion, a block that another compactor has replaced, and a cursor that another one has moved abort
it. So a compactor that dies leaves either step done or not done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.errors import (
    Aborted,
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    OutOfTime,
)
from workstealing.jobs.shared.log_jobs import LogEngine
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.structures.log.base import HOLES_VERSION, LOG_VERSION, MOST_BLOCK, LogBase
from workstealing.structures.log.blocks import (
    MOST_COMPRESSED_BYTES,
    compress,
    entries_of,
    head_of,
    seal,
)
from workstealing.structures.log.entry_keys import DIGEST_BYTES, EntryKeys
from workstealing.structures.stored import holding_ours, stored_number, unbelieved

MOST_NOTED = 500
"""The most entries that one attempt notes."""
_FORGOTTEN = 100
"""About how many notes an attempt looks at for those whose entries are evicted."""
_WINDOW = 8
"""A slice takes one of so many blocks, those with the most superseded entries."""
_LONGEST_CURSOR = len(str(2**64))
_WHAT = "blocks to compact by key"
_FACTS = ("mark", "epoch", "block", "next", "first", "kept")
_NOTES = ("epoch", "rule", "noted", "scan")


class KeySettings(NamedTuple):
    """The settings of a compactor that compaction by key needs, checked.

    Fields: codec and level: of the compression; most_bytes: the most that a slice reads;
    superseded: the share of a block's entries that must be superseded before it is rewritten.
    """

    codec: str
    level: int | None
    most_bytes: int
    superseded: float


class KeyLook(NamedTuple):
    """What one look has found: facts of the log and its notes.

    Fields: mark, epoch, block, end and first: of the log; noted: the offset up to which entries are
    noted; rewritable: how many blocks are to be rewritten, without a log 1 if there are notes;
    is_new: whether `latest` is another log's, or not there; scan: the cursor that looks for notes
    to be forgotten.
    """

    mark: bytes
    epoch: bytes
    block: int
    end: int
    first: int
    noted: int
    rewritable: int
    is_new: bool
    scan: bytes

    @property
    def unnoted(self) -> int:
        """How many full blocks have entries that are not noted."""
        return max(0, self.end // self.block - self.noted // self.block)

    @property
    def waiting(self) -> int:
        """How many blocks wait."""
        return self.unnoted + self.rewritable


class KeyCompactor(LogEngine):
    """Compacts one log by key through its job client's one-attempt connections."""

    def __init__(
        self,
        log: LogBase,
        entry_keys: EntryKeys,
        settings: KeySettings,
        random: Callable[[], float],
    ) -> None:
        super().__init__(log, random)
        self._entry_keys = entry_keys
        self._settings = settings
        self._block = log.known.block
        self.too_large = 0

    def backlog(self, budget: Budget) -> Backlog:
        """Count the blocks to be noted and to be rewritten; see `look`."""
        return self.backlog_of(self.look(budget), budget)

    def backlog_of(self, look: KeyLook, budget: Budget, slice: Slice | None = None) -> Backlog:
        """Return what a look has found, and for how long the oldest block is not noted.

        One round trip if there are such blocks.
        """
        waited = 0.0
        if look.unnoted:
            with holding_ours(self._keys.times):
                since, time = self._call(
                    budget,
                    slice,
                    ("ZSCORE", self._keys.times, look.noted // look.block),
                    ("TIME",),
                )
            if since is not None:
                came = stored_number(self._keys.times, "when an entry came", since)
                waited = max(0.0, (self._now_in(time) - came) / 1000)
        return Backlog(look.waiting, waited, _WHAT)

    def look(self, budget: Budget, slice: Slice | None = None) -> KeyLook:
        """Look at the log and its notes.

        Raises: ConfigurationError if other compactors of the log go by another key; LayoutError;
        connection faults. One round trip, two where the log has another number of entries a block.
        """
        for _ in range(2):
            with holding_ours(self._keys.base):
                replies = self._call(budget, slice, *self._look_commands())
            look = self._look_in(replies)
            if look.block == self._block:
                break
            self._block = look.block
        return look

    def work(self, slice: Slice, *, dry_run: bool) -> int:
        """Note or rewrite up to ``slice.limit`` blocks, each in one attempt.

        Returns: how many (would be, on a dry run). Raises: ConfigurationError, as of `look`;
        Aborted; OutOfTime; LayoutError; DamagedBlockError; the server's error if it is full;
        connection faults. Four round trips a block, or one where nothing is to be done.
        """
        done = 0
        while done < slice.limit and (not done or slice.remaining() > slice.seconds / 2):
            try:
                look = self.look(Budget(slice.remaining()), slice)
                if dry_run or not look.waiting:
                    return min(slice.limit, look.waiting) if dry_run else done
                # Both go on, however much there is of the other.
                if not look.mark:
                    did = self._free_notes(slice)
                elif look.rewritable and (not look.unnoted or self._random() < 0.5):
                    did = self._rewrite(slice)
                else:
                    did = self._note(look, slice)
            except (Aborted, OutOfTime):
                if not done:
                    raise
                break
            if not did:
                break
            done += 1
        return done

    def _look_commands(self) -> list[Command]:
        keys = self._keys
        return [
            ("HMGET", keys.meta, *_FACTS),
            ("HMGET", keys.latest, *_NOTES),
            ("ZCOUNT", keys.superseded, repr(self._threshold(self._block)), "+inf"),
        ]

    def _now_in(self, time: Sequence[Any]) -> int:
        return int(time[0]) * 1000 + int(time[1]) // 1000 + self._log.clock_shift_ms

    def _offset_in(self, text: Any) -> int:
        return stored_number(self._keys.latest, "the offset of a key", text)

    def _number_in(self, text: Any) -> int:
        return stored_number(self._keys.superseded, "the number of a block", text)

    def _threshold(self, block: int) -> float:
        return max(1.0, self._settings.superseded * block)

    def _look_in(self, replies: Sequence[Any]) -> KeyLook:
        facts, (noted_epoch, rule, noted, scan), rewritable = replies
        mark, epoch, block, end, first, _ = facts
        meta = self._keys.meta
        if mark is None:
            # A release that knows no notes leaves them behind when it deletes the log.
            left = int(noted_epoch is not None)
            return KeyLook(b"", b"", self._block, 0, 0, 0, left, True, b"0")
        size = stored_number(meta, "block", block, 1, MOST_BLOCK)
        tail = stored_number(meta, "next", end)
        begin = stored_number(meta, "first", first, 0, tail)
        is_new = noted_epoch != epoch
        if not is_new and rule != self._entry_keys.rule:
            other = (rule or b"").decode(errors="backslashreplace")
            raise ConfigurationError(
                f"the log {self._log.name!r} is compacted by {other!r}, and this compactor goes by"
                f" {self._entry_keys.rule.decode()!r}: give all compactors of a log the same"
                " compact_by; nothing was changed"
            )
        at = 0 if is_new else stored_number(self._keys.latest, "noted", noted, 0, tail)
        if scan is not None and not (scan.isdigit() and len(scan) <= _LONGEST_CURSOR):
            raise unbelieved(self._keys.latest, "scan", scan, "a cursor")
        waiting = 0 if is_new else int(rewritable)
        return KeyLook(
            *(mark, epoch, size, tail, begin, max(at, begin), waiting, is_new, scan or b"0")
        )

    def _attempt_look(self, current: Attempt, key: bytes) -> tuple[KeyLook, bytes, int | None]:
        """WATCH, and look again; return that, a block's type, and its bytes if they are told."""
        commands: list[Command] = [*self._look_commands(), ("TYPE", key)]
        *replies, size = current.read_each(*commands, ("MEMORY", "USAGE", key, "SAMPLES", 0))
        facts, notes, rewritable, kind = checked(replies)
        # Some servers have no MEMORY USAGE, or forbid it.
        told = None if size is None or isinstance(size, Exception) else int(size)
        return self._look_in((facts, notes, rewritable)), kind, told

    def _block_of(
        self, current: Attempt, seen: KeyLook, key: bytes, kind: bytes
    ) -> tuple[Any, list[bytes | None]]:
        """Return a block as the server has it, and its entries."""
        try:
            command: Command = ("LRANGE", key, 0, -1) if kind == b"list" else ("GET", key)
            content = current.read(command)[0]
            return content, self._entries_in(seen, key, kind, content)
        except (LayoutError, DamagedBlockError, ResponseError):
            # Damage, or a writer between two of our reads? EXEC knows.
            current.commit(("EXISTS", key))
            raise

    def _entries_in(
        self, seen: KeyLook, key: bytes, kind: bytes, content: Any
    ) -> list[bytes | None]:
        entries = content if kind == b"list" else entries_of(content or b"")
        if len(entries) != seen.block:
            raise LayoutError(
                f"the key {key!r} has {len(entries)} entries where a block of the log has"
                f" {seen.block}: restore it from a backup, or evict() its entries; nothing was"
                " changed"
            )
        return list(entries)

    def _is_too_large(self, size: int | None) -> bool:
        if size is None or size <= self._settings.most_bytes:
            return False
        self.too_large += 1
        return True

    def _note(self, look: KeyLook, slice: Slice) -> bool:
        """Note the entries of the cursor's block, or the first ones of them; say whether it did."""
        keys = self._keys
        number = look.noted // look.block
        key = keys.block(number)
        with attempt(
            self._log.job_client, keys.latest, keys.superseded, key, slice=slice
        ) as current:
            seen, kind, size = self._attempt_look(current, key)
            if seen.epoch != look.epoch or seen.noted != look.noted:
                # Another compactor, an eviction or a deletion came first.
                return False
            stop = (number + 1) * look.block
            entries: list[bytes | None] = []
            if kind in (b"list", b"string") and not self._is_too_large(size):
                place = seen.noted - number * look.block
                _, entries = self._block_of(current, seen, key, kind)
                entries = entries[place : place + MOST_NOTED]
                stop = seen.noted + len(entries)
            # A block that is lost, or too large, is passed: its entries stay, and so do older ones.
            newest, older = self._entry_keys.newest(entries, seen.noted)
            commands: list[Command] = []
            if seen.is_new:
                commands.append(("UNLINK", keys.latest, keys.superseded))
            else:
                commands += self._forgetting(current, seen)
            known: list[Any] = [None] * len(newest)
            if newest and not seen.is_new:
                (known,) = current.read(("HMGET", keys.latest, *newest))
            gone = Counter(offset // look.block for offsets in older.values() for offset in offsets)
            for digest, before in zip(list(newest), known, strict=True):
                if before is None:
                    continue
                offset = self._offset_in(before)
                if offset >= newest[digest]:
                    del newest[digest]
                elif offset >= seen.first:
                    gone[offset // look.block] += 1
            facts = {"epoch": seen.epoch, "rule": self._entry_keys.rule, "noted": stop}
            pairs = [each for pair in (*facts.items(), *newest.items()) for each in pair]
            commands.append(("HSET", keys.latest, *pairs))
            commands += [("ZINCRBY", keys.superseded, many, each) for each, many in gone.items()]
            current.commit(*commands)
        return True

    def _free_notes(self, slice: Slice) -> bool:
        """Free the notes of a log that is no more; say whether it did."""
        keys = self._keys
        with attempt(self._log.job_client, keys.latest, keys.superseded, slice=slice) as current:
            seen, _, _ = self._attempt_look(current, keys.latest)
            if seen.mark or not seen.rewritable:
                return False
            current.commit(("UNLINK", keys.latest, keys.superseded))
        return True

    def _forgetting(self, current: Attempt, seen: KeyLook) -> list[Command]:
        """Return what forgets some notes about entries that are evicted, and goes on with that."""
        keys = self._keys
        if not seen.first:
            return []
        (cursor, flat), number = current.read(
            ("HSCAN", keys.latest, seen.scan, "COUNT", _FORGOTTEN), ("ZCARD", keys.superseded)
        )
        start = int(self._random() * max(1, number - _FORGOTTEN + 1))
        (blocks,) = current.read(("ZRANGE", keys.superseded, start, start + _FORGOTTEN - 1))
        past = [
            digest
            for digest, offset in zip(flat[::2], flat[1::2], strict=True)
            if len(digest) == DIGEST_BYTES and self._offset_in(offset) < seen.first
        ]
        freed = [each for each in blocks if self._number_in(each) < seen.first // seen.block]
        commands: list[Command] = [("HSET", keys.latest, "scan", cursor)]
        if past:
            commands.append(("HDEL", keys.latest, *past))
        if freed:
            commands.append(("ZREM", keys.superseded, *freed))
        return commands

    def _rewrite(self, slice: Slice) -> bool:
        """Replace a block with many superseded entries by one with holes; say whether it did.

        It is one of those with the most.
        """
        keys = self._keys
        with holding_ours(keys.superseded):
            flat, time = self._call(
                Budget(slice.remaining()),
                slice,
                ("ZRANGE", keys.superseded, -_WINDOW, -1, "WITHSCORES"),
                ("TIME",),
            )
        found = [
            name
            for name, many in zip(flat[::2], flat[1::2], strict=True)
            if float(many) >= self._threshold(self._block)
        ]
        if not found:
            return False
        name = found[int(self._random() * len(found))]
        number = self._number_in(name)
        key = keys.block(number)
        with attempt(
            self._log.job_client, keys.latest, keys.superseded, key, slice=slice
        ) as current:
            seen, kind, size = self._attempt_look(current, key)
            if seen.is_new:
                return False
            commands: list[Command] = [("ZREM", keys.superseded, number)]
            is_there = (number + 1) * seen.block <= seen.noted and kind in (b"list", b"string")
            if is_there and not self._is_too_large(size):
                content, entries = self._block_of(current, seen, key, kind)
                left = self._without_superseded(current, entries, number * seen.block, slice)
                if left is not None:
                    now = self._now_in(time)
                    commands += self._replacing(seen, number, kind, content, left, now, slice)
            current.commit(*commands)
        return True

    def _without_superseded(
        self, current: Attempt, entries: list[bytes | None], first: int, slice: Slice
    ) -> list[bytes | None] | None:
        """Return the entries with holes for those that are superseded, or None if none is."""
        left = list(entries)
        for start in range(0, len(entries), MOST_NOTED):
            if slice.expired:
                raise OutOfTime(
                    f"the slice of {slice.seconds * 1000:g} ms was over when {start} of"
                    f" {len(entries)} entries of a block of the log {self._log.name!r} had been"
                    " looked at: give the compactor longer slices, or make logs with a smaller"
                    " block; nothing was changed"
                )
            digests = {
                place: digest
                for place, data in enumerate(entries[start : start + MOST_NOTED], start)
                if (digest := self._entry_keys.digest_of(data, first + place)) is not None
            }
            if not digests:
                continue
            (known,) = current.read(("HMGET", self._keys.latest, *digests.values()))
            for place, offset in zip(digests, known, strict=True):
                if offset is not None:
                    newest = self._offset_in(offset)
                    if newest > first + place:
                        left[place] = None
        return None if left == entries else left

    def _replacing(  # noqa: PLR0917 - a block, as it was and as it will be
        self,
        seen: KeyLook,
        number: int,
        kind: bytes,
        content: Any,
        left: list[bytes | None],
        now: int,
        slice: Slice,
    ) -> list[Command]:
        keys = self._keys
        form = seal(left)
        commands: list[Command] = []
        if kind == b"list":
            commands.append(("ZREM", keys.full, number))
        is_compressed = kind == b"string" and head_of(content).codec != "raw"
        if is_compressed and self._settings.codec != "none" and len(form) <= MOST_COMPRESSED_BYTES:

            def between(done: int) -> None:
                if slice.expired:
                    raise OutOfTime(
                        f"the slice of {slice.seconds * 1000:g} ms was over when {done} bytes of a"
                        f" block of the log {self._log.name!r} were compressed: give the compactor"
                        " longer slices; nothing was changed"
                    )

            smaller = compress(form, self._settings.codec, self._settings.level, between=between)
            form = min(form, smaller, key=len)
        elif kind == b"list" or is_compressed:
            # It waits to be compressed, like any block that has been sealed.
            commands.append(("ZADD", keys.raw, now, number))
        if seen.mark == LOG_VERSION.encode():
            # Releases that do not know holes refuse the log before they hand out an entry.
            marks = ("mark", "readable_from", "writable_from")
            fields = [each for mark in marks for each in (mark, HOLES_VERSION)]
            commands.append(("HSET", keys.meta, *fields))
        return [*commands, ("SET", keys.block(number), form)]


def checked_share(share: object) -> float:
    """Return a share of a block's entries. Raises: ConfigurationError."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ConfigurationError(f"superseded={share!r} is no share: give a number from 0 to 1")
    return float(share)
