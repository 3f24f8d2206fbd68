"""Ids by which a producer appends once: what a call says of them, checked.

The log keeps, for each producer, its last ids with the offsets that they were given. An append with
an id that is there writes nothing and returns that offset, so it may be sent as often as its caller
likes: by the client's own retries, by a process that begins anew, by another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.structures.layout import checked_text

MOST_WINDOW_SECONDS = 30 * 86400
"""The longest window: log/ids.lua believes no longer one."""
MOST_IDS = 100_000
"""The most ids of one producer."""
LONGEST_ID = 256
"""The most bytes of an id."""


class IdWindow(NamedTuple):
    """For how long a writer wants ids to be known, and how many of each producer."""

    ms: int
    most: int


class EntryIds(NamedTuple):
    """The ids of a call: one for all of its entries, or one for each.

    Fields: producer; ids; is_each: whether each entry has its own.
    """

    producer: str | bytes
    ids: list[bytes]
    is_each: bool


def checked_window(window: Duration, most: int) -> IdWindow:
    """Return the window of a log's ids. Raises: ConfigurationError."""
    seconds = seconds_of(window, "id_window", 0.001, MOST_WINDOW_SECONDS)
    return IdWindow(round(seconds * 1000), checked_count(most, "most_ids", 1, MOST_IDS))


def checked_id(producer: object, name: object) -> EntryIds | None:
    """Return the id of a call's entries, None without one. Raises: ConfigurationError."""
    if name is None and producer is None:
        return None
    if name is None or producer is None:
        given, missing = ("id", "producer") if producer is None else ("producer", "id")
        raise ConfigurationError(
            f"an append with {given}= needs {missing}=, too: an id names the entries of one"
            " producer"
        )
    return EntryIds(checked_text(producer, "producer"), [_id_in_bytes(name)], is_each=False)


def checked_each(producer: object, ids: Any, number: int, window: IdWindow) -> EntryIds:
    """Return the ids of a call, one for each of so many entries. Raises: ConfigurationError."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise ConfigurationError(
            f"ids is a {type(ids).__name__}: give a list with one id for each entry"
        )
    if len(ids) != number:
        raise ConfigurationError(
            f"{len(ids)} ids do not go with {number} entries: give one id for each entry"
        )
    if number > window.most:
        raise ConfigurationError(
            f"{number} ids do not fit into a window of {window.most}: make the log with"
            f" most_ids={number} or more, or append fewer entries by one call"
        )
    found = [_id_in_bytes(each) for each in ids]
    return EntryIds(checked_text(producer, "producer"), found, is_each=True)


def _id_in_bytes(name: object) -> bytes:
    try:
        raw = name.encode() if isinstance(name, str) else name
    except UnicodeError:
        raw = None
    if not isinstance(raw, bytes) or not 1 <= len(raw) <= LONGEST_ID:
        raise ConfigurationError(
            f"the id {name!r} is not usable: give a text or bytes, of 1 to {LONGEST_ID} bytes"
        )
    return raw
