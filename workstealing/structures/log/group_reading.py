"""Handing out the entries of a log to the members of a group, once and by turns.

A group's offset says which blocks a read needs, but a script gets its keys before it can look. So a
member passes the blocks that it expects after its last read. If it is wrong, nothing is changed,
and it calls again with the block that the reply names.

Why no wake-up is lost. A look that finds nothing puts the member into the group's line in the same
script; an append gives as many turns as there are members in the line, or entries. If a turn is
given before the member blocks, BLPOP finds it. If it is given later, it goes to the member that has
been blocked longest, which is BLPOP's own rule. The whole wait uses one connection, so no member
loses its place.

A member may die with a turn. So each waiting member looks now and then, by the application's own
client, while its wait goes on: such a look gives unused turns anew, to the member that has waited
longest, and gives turns for pending entries whose time has come.

The reports on entries that are not done, pending and dead ones, are here, too.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, cast

from redis.exceptions import RedisError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import (
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    UndecodableEntryError,
)
from workstealing.store.grants import Receipt
from workstealing.store.keys import to_bytes
from workstealing.store.operations import AS_BYTES, Operation, Steps, Wait, command, same
from workstealing.structures.log.base import Known, checked_integer
from workstealing.structures.log.codecs import Codec, decode_all
from workstealing.structures.log.reading import BLOCKS_A_SCRIPT, BYTES_A_SCRIPT, ReadingEntries
from workstealing.structures.stored import stored_number, unbelieved

_GRAVE = re.compile(rb"(\d{1,16}) (\d{1,16}) (\d{1,9}):")


@dataclass(frozen=True, slots=True, init=False)
class GroupEntry:
    """An entry that was handed out: ``for offset, entry in mail.read(10): ...``.

    Fields: offset; entry: as the log's codec reads it; attempts: how often it has been handed out
    to the members of this group, this time included, always 1 in a plain group; delivery: the
    number of this delivery, by which `ack` knows whether it was the last one.
    """

    offset: int
    entry: Any
    attempts: int
    delivery: int

    def __init__(self, offset: int, entry: Any, attempts: int, delivery: int) -> None:
        # As that of any frozen dataclass, in half the time: a read makes hundreds of them.
        _set_offset(self, offset)
        _set_entry(self, entry)
        _set_attempts(self, attempts)
        _set_delivery(self, delivery)

    def __iter__(self) -> Iterator[Any]:
        """Give the offset and the entry."""
        yield self.offset
        yield self.entry


_set_offset, _set_entry, _set_attempts, _set_delivery = (
    getattr(GroupEntry, each).__set__ for each in GroupEntry.__slots__
)


class PendingEntry(NamedTuple):
    """An entry that was handed out and is not acknowledged.

    Fields: offset; member: the name given to `read`, None if there was none; attempts; handed_out:
    when, in Unix seconds; idle_seconds: for how long, by the server's clock.
    """

    offset: int
    member: str | None
    attempts: int
    handed_out: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class DeadLogEntry:
    """An entry that was handed out too often, with its contents.

    Fields: offset; entry: as the log's codec reads it, its bytes if the codec cannot, no bytes if
    its block was damaged; attempts; member: the last one to have it, None if `read` got no name;
    handed_out: for the last time, and set_aside: both in Unix seconds.
    """

    offset: int
    entry: Any
    attempts: int
    member: str | None
    handed_out: float
    set_aside: float


class GroupStats(NamedTuple):
    """How far a group is.

    Fields: offset: of the entry that is handed out next; lag: how many available entries have not
    been handed out, with the holes of `compact_by`; lost: how many were evicted before that;
    waiting: members that are blocked; pending and dead: entries, in an acknowledged group.
    """

    offset: int
    lag: int
    lost: int
    waiting: int
    pending: int
    dead: int


def pending_entries(key: bytes, reply: list[Any]) -> list[PendingEntry]:
    """Return a reply's pending entries: the server's time, then each offset, time and history.

    Arguments:
        key: of the histories.

    Raises: LayoutError for nonsense.
    """
    now, *flat = reply
    found = []
    for offset, handed, history in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        attempts, member = _history(key, history)
        since = int(float(handed))
        idle = max(0, int(now) - since) / 1000
        found.append(PendingEntry(int(offset), member, attempts, since / 1000, idle))
    return found


def dead_entries(key: bytes, flat: list[Any], codec: Codec) -> list[DeadLogEntry]:
    """Return a reply's dead entries: each offset is followed by the entry with its history.

    Arguments:
        key: of the dead.

    Raises: LayoutError for nonsense.
    """
    found = []
    for offset, grave in zip(flat[::2], flat[1::2], strict=True):
        head = _GRAVE.match(grave)
        split = head.end() + int(head[3]) if head else 0
        if head is None or split > len(grave):
            raise unbelieved(key, f"the dead entry {offset!r}", grave, "an entry and its history")
        attempts, member = _history(key, grave[head.end() : split])
        entry = grave[split:]
        place = stored_number(key, "the offset of a dead entry", offset)
        # An entry may be dead because no codec reads it: a person must see it all the same.
        with contextlib.suppress(UndecodableEntryError):
            (entry,) = decode_all(codec, [entry], place)
        found.append(
            DeadLogEntry(
                *(place, entry, attempts, member),
                *(int(head[1]) / 1000, int(head[2]) / 1000),
            )
        )
    return found


def _history(key: bytes, text: bytes) -> tuple[int, str | None]:
    attempts, _, rest = text.partition(b" ")
    member = rest.partition(b" ")[2]
    tries = stored_number(key, "the attempts of an entry", attempts) if text else 0
    return tries, member.decode(errors="backslashreplace") or None


MOST_AT_ONCE = 1000
"""The most entries that a call reads."""
A_SCRIPT = 200
"""The most entries that one script hands out, settles or lists, so that it is over soon."""
_LONGEST_LEASE = 365 * 86400.0
_MOST_ATTEMPTS = 1_000_000
_LEAST_SECONDS = 0.001

_FOUND, _NOTHING, _OTHER_BLOCK, _OTHER_RECEIPT = range(4)
_NO_GROUP, _OTHER_KIND = -1, -2
# How often one call makes a deleted group anew, and sets entries aside, before it gives up.
TRIES = 100
# Extra blocks for entries that others read meanwhile: twice as many at each try.
_MOST_SPARE_BLOCKS = 1023
_PLAIN = "plain"


class NoEntries(NamedTuple):
    """The answer of a look that found nothing.

    Fields: pause_ms: until the next look while waiting; due_ms: until a pending entry is to be
    handed out again, -1 if none is.
    """

    pause_ms: int
    due_ms: int

    def pause_seconds(self, chance: float) -> float:
        """Return when to look again.

        Arguments:
            chance: spreads the members' looks.
        """
        pause = self.pause_ms * (0.5 + chance / 2)
        if self.due_ms >= 0:
            # The server's clock has whole milliseconds; of many, a few look at the first moment.
            pause = min(pause, self.due_ms + 1 + chance * max(0, self.pause_ms - 1000) / 10)
        return max(_LEAST_SECONDS, pause / 1000)


class _Hole:
    """Stands for an entry that compaction by key has taken: it is done, for every group."""


_HOLE = _Hole()
# An entry's bytes, or why there are none; None: evicted.
_Raw = bytes | DamagedBlockError | _Hole | None


class GroupReading:
    """A group's settings, and the steps that hand out entries.

    Attributes: name: the group's, as a text; log; keys; start; acknowledged; lease: in seconds;
    max_attempts.
    """

    def __init__(  # noqa: PLR0917 - the settings that `Log.group` has in this order
        self,
        log: ReadingEntries,
        name: str | bytes,
        start: str | int = "first",
        ack: bool = False,
        lease: Duration = 60,
        max_attempts: int = 5,
    ) -> None:
        self.log = log
        self.client, self.job_client = log.client, log.job_client
        self.keys = log.keys.group(name)
        self.name = self.keys.group.decode(errors="backslashreplace")
        self.start = checked_place(start, "start")
        self.acknowledged = bool(ack)
        self.lease = seconds_of(lease, "lease", 0.001, _LONGEST_LEASE)
        self.max_attempts = checked_integer(max_attempts, "max_attempts", 1, _MOST_ATTEMPTS)
        self._kind = _PLAIN
        if self.acknowledged:
            self._kind = f"acknowledged:{round(self.lease * 1000)}:{self.max_attempts}"
        self._fixed = (log.keys.meta, *self.keys.all, log.keys.waiting, log.keys.news)
        # Where the next read is expected: a guess that only saves round trips.
        self._next = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.log.name!r}>"

    def wait_steps(self, count: int, seconds: float, member: bytes) -> Steps[list[GroupEntry]]:
        """Look, wait for a turn and look again, until something is found or the time is over."""
        if not seconds:
            found = yield from self.read_steps(count, member)
            return [] if isinstance(found, NoEntries) else found
        waiter, turn, end = secrets.token_hex(8), b"", self.monotonic() + seconds

        def look() -> Steps[float]:
            seen = yield from self.look_steps(0, member, waiter, True)
            assert isinstance(seen, NoEntries)
            return seen.pause_seconds(self.random())

        while True:
            left = end - self.monotonic()
            found = yield from self.read_steps(count, member, waiter, left > 0, turn)
            if not isinstance(found, NoEntries):
                return found
            if left <= 0:
                return []
            waiting = ("BLPOP", self.keys.turns, max(_LEAST_SECONDS, round(left, 3)))
            pause = found.pause_seconds(self.random())
            reply = yield Wait(self.log.keys.slot, waiting, left, look, pause)
            turn = to_bytes(reply[1]) if reply else b""

    def look_steps(
        self, count: int, member: bytes, waiter: str = "", waits: bool = False, turn: bytes = b""
    ) -> Steps[list[GroupEntry] | NoEntries]:
        """Look for entries once.

        Arguments:
            count: 0 only gives turns to others.
            waiter: its name in the line.
            waits: whether it enters the line if there is no entry.
            turn: the turn that woke it.

        One round trip if it goes as expected; one more for each stretch of entries that is handed
        out again.
        """
        tried = -1
        while (tried := tried + 1) < TRIES:
            known = self.log.known
            spare = min((1 << tried) - 1, _MOST_SPARE_BLOCKS)
            receipt = self.log.receipts.take()
            low, kept, operation = self._read(count, waiter, waits, turn, member, spare, receipt)
            reply = yield from self._call(operation)
            if reply[0] == _OTHER_RECEIPT:
                # Somebody else has written there, and may do so again.
                continue
            self.log.receipts.put_back(receipt)
            if reply[0] == _NOTHING:
                return NoEntries(int(reply[1]), int(reply[2]))
            if reply[0] == _OTHER_BLOCK:
                _, number, block, epoch = reply
                self._next = number * block
                self.log.note(block=block, epoch=epoch)
                continue
            found, holes = yield from self._found(reply[1:], known, kept, low)
            if found:
                return found
            # All due entries had been handed out too often, and used up the turn; or were holes.
            turn = b""
            if holes:
                # There are fewer now: however many there are, it comes to their end.
                tried = -1
                yield from self._skip_holes(reply[2])
        return NoEntries(1000, 0)

    def read_steps(
        self, count: int, member: bytes, waiter: str = "", waits: bool = False, turn: bytes = b""
    ) -> Steps[list[GroupEntry] | NoEntries]:
        """Look for entries once, piece by piece, as long as the pieces are full.

        Arguments as of `look_steps`; only the first piece stands in the line, or has a turn. A
        fault of the connection ends it with the entries read so far: the next call meets the fault
        again.
        """
        piece = yield from self.look_steps(min(count, A_SCRIPT), member, waiter, waits, turn)
        if isinstance(piece, NoEntries):
            return piece
        asked = min(count, A_SCRIPT)
        if len(piece) < asked or asked == count:
            return piece
        found = {each.offset: each for each in piece}
        # Long before the first ones come again.
        end = self.monotonic() + (self.lease / 2 if self.acknowledged else math.inf)
        while len(piece) == asked and len(found) < count and self.monotonic() < end:
            asked = min(count - len(found), A_SCRIPT)
            try:
                more = yield from self.look_steps(asked, member)
            except RedisError:
                break
            except (DamagedBlockError, UndecodableEntryError):
                # In a plain group they do not come again: so the error is raised.
                if not self.acknowledged:
                    raise
                break
            if isinstance(more, NoEntries):
                break
            piece = more
            found.update((each.offset, each) for each in piece)
        return list(found.values())

    def monotonic(self) -> float:
        """Return this process's own clock in seconds, by which a call waits."""
        return time.monotonic()

    def random(self) -> float:
        """Return a number from 0 to 1, so that waiting members look at different moments."""
        return random.random()

    def _read(  # noqa: PLR0917 - what a look and its try have
        self,
        count: int,
        waiter: str,
        waits: bool,
        turn: bytes,
        member: bytes,
        spare: int,
        receipt: Receipt,
    ) -> tuple[int, list[Any], Operation]:
        log = self.log
        known = log.known
        low, place = divmod(self._next, known.block)
        # One more than needed: others may have read since.
        number = 0
        if count:
            number = min((place + count - 1) // known.block + 2, BLOCKS_A_SCRIPT) + spare
        kept = [log.cache.get(known.epoch, low + each) for each in range(number)]
        operation = Operation(
            log.script("group_read"),
            (*self._fixed, receipt.key, *log.keys.blocks(low, number)),
            (
                *(self.keys.group, self._kind, count, waiter, int(waits), turn, member),
                *(known.block, low, BYTES_A_SCRIPT, known.epoch),
                "".join("0" if each is None else "1" for each in kept),
                receipt.number,
            ),
            same,
            AS_BYTES,
        )
        return low, kept, operation

    def _found(
        self, reply: list[Any], known: Known, kept: list[Any], low: int
    ) -> Steps[tuple[list[GroupEntry], int]]:
        """Return the entries of a reply, and how many holes there were; these are settled."""
        block, epoch, tail, start, read, delivery, attempts, again, condemned, kinds, *items = reply
        log = self.log
        if (block, epoch, tail) != (known.block, known.epoch, known.next):
            log.note(block=block, epoch=epoch, next=tail)
        # The blocks that were kept here may be another log's.
        is_sure = not log.has_lost(known, tail)
        if condemned:
            yield from self._bury(condemned)
        offsets: list[int] = []
        tries: list[int] = []
        numbers: list[int] = []
        raw: list[_Raw] = []
        if again:
            offsets = [int(each[0]) for each in again]
            tries = [each[1] for each in again]
            numbers = [each[2] for each in again]
            raw = yield from self._undamaged(offsets, [each[3] for each in again])
        if read:
            self._next = start + read
            offsets += range(start, start + read)
            tries += attempts or [1] * read
            numbers += range(delivery, delivery + read)
            try:
                fresh: list[_Raw] = []
                for kind, item in zip(kinds, items, strict=True):
                    some = log.entries_in(
                        *(kind, item, start + len(fresh), start + read, kept, low, block, epoch)
                    )
                    fresh += [_HOLE if each is None else each for each in some]
            except DamagedBlockError:
                is_sure = False
            if not is_sure:
                fresh = yield from self._undamaged(range(start, start + read), [None] * read)
            raw += fresh
        holes = [
            (offset, number)
            for offset, number, each in zip(offsets, numbers, raw, strict=True)
            if each is _HOLE
        ]
        if holes and self.acknowledged:
            # Nobody has to do anything about them.
            yield from self._acknowledging(holes)
        return self._entries_of(offsets, raw, tries, numbers), len(holes)

    def _acknowledging(self, pairs: list[tuple[int, Any]]) -> Steps[int]:
        """Acknowledge entries, by offset and delivery, `""` for any; return how many were pending.

        One round trip for each 200.
        """
        total = 0
        for first in range(0, len(pairs), A_SCRIPT):
            runs = _runs_of(pairs[first : first + A_SCRIPT])
            reply = yield from self._call(self._operation("ack", *runs))
            total += int(reply[1])
        return total

    def _skip_holes(self, epoch: bytes) -> Steps[None]:
        """Go over the further holes of the block at which the last read ended, if it is kept.

        One round trip. A hole is one for as long as its log lives, so it makes no difference when
        it is passed.
        """
        size = self.log.known.block
        number, place = divmod(self._next, size)
        block = self.log.cache.get(epoch, number)
        stop = place if block is None else block.behind_holes(place)
        if stop > place:
            target = number * size + stop
            reply = yield from self._call(self._operation("skip", self._next, target, epoch))
            self._next = int(reply[1])

    def _entries_of(
        self,
        offsets: Sequence[int],
        raw: Sequence[_Raw],
        tries: Sequence[int],
        numbers: Sequence[int],
    ) -> list[GroupEntry]:
        """Return the readable ones of entries that were handed out.

        In an acknowledged group the others come again, and are set aside in the end. In a plain
        group, or if no entry is readable, the error is raised.
        """
        if set(map(type, raw)) == {bytes}:
            # Of most reads all entries can be decoded at once.
            with contextlib.suppress(UndecodableEntryError):
                entries = decode_all(self.log.codec, cast("Sequence[bytes]", raw))
                return list(map(GroupEntry, offsets, entries, tries, numbers))
        found: list[GroupEntry] = []
        problem: Exception | None = None
        for offset, data, attempts, number in zip(offsets, raw, tries, numbers, strict=True):
            try:
                if isinstance(data, DamagedBlockError):
                    raise data
                # None: evicted in this very moment; the next look counts it as lost.
                if isinstance(data, bytes):
                    (entry,) = decode_all(self.log.codec, (data,), offset)
                    found.append(GroupEntry(offset, entry, attempts, number))
            except (DamagedBlockError, UndecodableEntryError) as error:
                problem = problem or error
        if problem is not None and not (found and self.acknowledged):
            raise problem
        return found

    def _undamaged(
        self, offsets: Sequence[int], known: Sequence[bytes | None]
    ) -> Steps[list[_Raw]]:
        """Return entries by their offsets, and an error for each entry of a damaged block.

        Arguments:
            known: revived entries, which came with the reply.

        One round trip for each stretch of offsets; if there is damage, one more for each block.
        """
        try:
            return [*(yield from self._raw_of(offsets, known))]
        except DamagedBlockError:
            pass
        found: list[_Raw] = []
        size = self.log.known.block
        pairs = zip(offsets, known, strict=True)
        for _, some in groupby(pairs, lambda pair: pair[0] // size):
            of_block = list(some)
            try:
                found += yield from self._raw_of(*map(list, zip(*of_block, strict=True)))
            except DamagedBlockError as error:
                found += [error] * len(of_block)
        return found

    def _raw_of(self, offsets: Sequence[int], known: Sequence[bytes | None]) -> Steps[list[_Raw]]:
        found: dict[int, _Raw] = {}
        wanted = []
        for offset, entry in zip(offsets, known, strict=True):
            if entry is None:
                wanted.append(offset)
            else:
                found[offset] = entry
        wanted.sort()
        while wanted:
            # Entries that were handed out together mostly stand together.
            number = 1
            while number < len(wanted) and wanted[number] == wanted[0] + number:
                number += 1
            there, entries = yield from self.log.read_steps(wanted[0], number)
            entries += [None] * (number - len(entries))
            for offset, entry in zip(wanted, entries, strict=False):
                is_hole = entry is None and there.first <= offset <= there.last
                found[offset] = _HOLE if is_hole else entry
            del wanted[:number]
        return [found[offset] for offset in offsets]

    def _bury(self, condemned: list[Any]) -> Steps[None]:
        """Set entries aside that were handed out too often, with their contents."""
        pairs = [
            (int(offset), history)
            for offset, history in zip(condemned[::2], condemned[1::2], strict=True)
        ]
        raw = yield from self._undamaged([offset for offset, _ in pairs], [None] * len(pairs))
        for (offset, history), entry in zip(pairs, raw, strict=True):
            if entry is _HOLE:
                kept = yield command("HGET", self.keys.revived, offset, options=AS_BYTES)
                if kept is None:
                    yield from self._acknowledging([(offset, int(history.split(b" ", 2)[1]))])
                    continue
            # An evicted or damaged entry has no text here; the script knows a revived entry's text.
            text = entry if isinstance(entry, bytes) else b""
            yield from self._call(self._operation("bury", offset, history, text))

    def _operation(self, script: str, *args: Any, whole: bool = True) -> Operation:
        first = (self.keys.group, self._kind) if whole else (self.keys.group,)
        script_ = self.log.script(f"group_{script}")
        return Operation(script_, self._fixed, (*first, *args), same, AS_BYTES)

    def _call(self, operation: Operation) -> Steps[Any]:
        """Run a script on the group, which is made if there is none."""
        for _ in range(TRIES):
            reply = yield operation
            if reply[0] == _NO_GROUP:
                reply = yield self._operation("join", self.start, self.log.known.block)
                if reply[0] != _OTHER_KIND:
                    continue
            if reply[0] == _OTHER_KIND:
                stored_settings(self.keys.state, reply[1])
                raise ConfigurationError(
                    f"the group {self.name!r} of the log {self.log.name!r} is"
                    f" {_kind_text(reply[1].decode())}, but was opened as {_kind_text(self._kind)}:"
                    " give every member the same settings, or delete() the group first; nothing"
                    " was changed"
                )
            return reply
        raise LayoutError(
            f"the group {self.name!r} of the log {self.log.name!r} is deleted as fast as it is"
            " made: stop the program that deletes it; nothing was changed"
        )


def stored_settings(key: bytes, kind: bytes | None) -> tuple[int, int] | None:
    """Return the lease in ms and the most attempts of a group, None of a plain one.

    Arguments:
        key: of the group's state.
        kind: as that has it.

    Raises: LayoutError for nonsense.
    """
    if kind == _PLAIN.encode():
        return None
    word, *settings = (kind or b"").split(b":")
    if word != b"acknowledged" or len(settings) != 2:
        raise unbelieved(key, "kind", kind, "the kind of a group of a log")
    lease, attempts = settings
    return (
        stored_number(key, "the lease in ms", lease, 1, int(_LONGEST_LEASE * 1000)),
        stored_number(key, "the most attempts", attempts, 1, _MOST_ATTEMPTS),
    )


def checked_place(offset: object, what: str) -> str | int:
    """Return a place in a log. Raises: ConfigurationError for anything else."""
    if offset in ("first", "last"):
        return str(offset)
    if isinstance(offset, str | bytes):
        raise ConfigurationError(
            f"{what}={offset!r} is no place in a log: give 'first', 'last' or an offset"
        )
    return checked_integer(offset, what, -(2**53) + 1)


def _kind_text(kind: str) -> str:
    if kind == _PLAIN:
        return "a plain one (ack=False)"
    _, idle, most = kind.split(":")
    return f"one with ack=True, lease={int(idle) / 1000:g} and max_attempts={most}"


def _runs_of(pairs: list[tuple[int, Any]]) -> list[Any]:
    """Return entries as runs: of each run the first offset, its length, and the first delivery.

    Arguments:
        pairs: of each entry its offset and its delivery, ``""`` for any.
    """
    runs: list[Any] = []
    following: tuple[Any, Any] | None = None
    for pair in pairs:
        offset, delivery = pair
        if pair == following:
            runs[-2] += 1
        else:
            runs += (offset, 1, delivery)
        following = (offset + 1, delivery if delivery == "" else delivery + 1)
    return runs
