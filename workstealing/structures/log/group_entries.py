"""Entries that a group of a log hands out, and its reports on entries that are not done."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from workstealing.errors import UndecodableEntryError
from workstealing.structures.log.codecs import Codec, decode_all
from workstealing.structures.stored import stored_number, unbelieved

_GRAVE = re.compile(rb"(\d{1,16}) (\d{1,16}) (\d{1,9}):")


@dataclass(frozen=True, slots=True)
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

    def __iter__(self) -> Iterator[Any]:
        """Give the offset and the entry."""
        yield self.offset
        yield self.entry


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
    been handed out; lost: how many were evicted before that; waiting: members that are blocked;
    pending and dead: entries, in an acknowledged group.
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
