"""The keys of a tracked set, its layout, and the mark of its sub-sets."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.keys import SLOT_TAGS, SLOTS, key_slot, require_users_name, to_bytes
from workstealing.store.operations import Steps
from workstealing.structures.layout import (
    Kind,
    Versioned,
    ask_policy,
    opening,
    read_pairs,
    require_policy,
)
from workstealing.structures.stored import holding_ours

KIND = Kind(
    "tracked_set",
    "a tracked set",
    evicted="a sub-set, whose ids would seem to have no work",
)
MOST_SUB_SETS = 4096

Id = str | int | bytes


class TrackedSetNames:
    """The keys of one tracked set; see the catalogue in ``lua/README.md``.

    Arguments:
        key: the tracked set's name.
        sub_sets: the number of sub-sets of its ids.

    Raises: ConfigurationError for an unusable name or number.
    """

    def __init__(self, key: str | bytes, sub_sets: int) -> None:
        if not isinstance(key, str | bytes) or not key:
            raise ConfigurationError(
                f"the key {key!r} is not usable: give a text or bytes, not empty"
            )
        require_users_name(to_bytes(key))
        if isinstance(sub_sets, bool) or not isinstance(sub_sets, int):
            sub_sets = 0
        if not 1 <= sub_sets <= MOST_SUB_SETS:
            raise ConfigurationError(f"give sub_sets as a number from 1 to {MOST_SUB_SETS}")
        self.key = to_bytes(key)
        self.sub_sets = int(sub_sets)
        # Until the layout is read, this release's own; then that of the layout.
        self.mark = f"{KIND.version}:{sub_sets}".encode()
        self._found: Versioned[Any] | None = None
        self.layout = b"ws:tracked:layout:" + self.key
        self.cursor = b"ws:tracked:cursor:" + self.key
        self._first_slot = key_slot(self.key)
        # In the first sub-set's slot, so that a look at sub-sets can look at it, too.
        self.brake = b"{" + SLOT_TAGS[self._first_slot] + b"}:ws:tracked:brake:" + self.key
        self._keys: dict[int, tuple[bytes, bytes]] = {}

    def asked(self) -> AbstractContextManager[None]:
        """Ask keys of sub-sets. Raises: LayoutError if one holds something else."""
        return holding_ours(b"{...}:ws:tracked:...:" + self.key)

    def slot(self, sub_set: int) -> int:
        """Return the hash slot of a sub-set; the sub-sets are spread evenly over the slots."""
        return (self._first_slot + sub_set * SLOTS // self.sub_sets) % SLOTS

    def keys(self, sub_set: int) -> tuple[bytes, bytes]:
        """Return the keys of a sub-set: its ids and its state."""
        keys = self._keys.get(sub_set)
        if keys is None:
            prefix = b"{" + SLOT_TAGS[self.slot(sub_set)] + b"}:ws:tracked:"
            number = b"%d:" % sub_set
            keys = (prefix + b"ids:" + number + self.key, prefix + b"state:" + number + self.key)
            self._keys[sub_set] = keys
        return keys

    def sub_set_of(self, member: bytes) -> int:
        """Return the sub-set of an id, by a hash function that is part of the layout."""
        return zlib.crc32(member) % self.sub_sets

    def grouped(self, members: Collection[bytes]) -> dict[int, list[bytes]]:
        """Return ids, grouped by sub-set."""
        groups: dict[int, list[bytes]] = {}
        for member in members:
            groups.setdefault(self.sub_set_of(member), []).append(member)
        return groups

    def opening(self) -> tuple[Any, ...]:
        """Return the command that reads the layout, and writes it down first if there is none."""
        return opening(self.layout, KIND.fields("sub_sets", self.sub_sets))

    def check(self, reply: Any) -> None:
        """Raise a LayoutError unless the layout that was read is this one."""
        found = read_pairs(
            KIND, self.layout, f"the tracked set {self.key!r}", reply, lambda pairs: pairs
        )
        laid_out = None if found is None else found.own.get("sub_sets")
        if laid_out != str(self.sub_sets):
            raise LayoutError(
                f"the tracked set {self.key!r} was laid out over {laid_out} sub-sets:"
                f" give that number as sub_sets, not {self.sub_sets}"
            )
        assert found is not None, "it names the sub-sets"
        # A newer layout that this release may write has marks of its own version.
        self._found = found
        self.mark = f"{found.version}:{self.sub_sets}".encode()

    def require_writable(self) -> None:
        """Raise a LayoutError if this release may only read the layout that was checked."""
        if self._found is not None:
            self._found.require_writable()

    def check_mark(self, sub_set: int, mark: Any) -> None:
        """Raise a LayoutError unless a sub-set's mark, as it was read, is this layout's."""
        if mark is not None and mark != self.mark:
            raise LayoutError(
                f"the key {self.keys(sub_set)[1]!r} says {mark!r} where {self.mark!r} was expected:"
                " upgrade workstealing if a newer release has written it, or else use another name;"
                " nothing was changed"
            )


def open_layout(names: TrackedSetNames, allowed_policies: Collection[str]) -> Steps[None]:
    """Check the layout, or write it down at the first use.

    Raises: LayoutError for a foreign layout; EvictionPolicyError. Two round trips, once.
    """
    names.check((yield names.opening()))
    policy = yield from ask_policy(names.layout)
    require_policy(KIND, policy, allowed_policies)


def read_layout(names: TrackedSetNames) -> Steps[bool]:
    """Check the layout if there is one; return whether there is. Nothing is written.

    Raises: LayoutError for a foreign layout. One round trip.
    """
    reply = yield opening(names.layout)
    if reply:
        names.check(reply)
    return bool(reply)


def id_bytes(value: Id) -> bytes:
    """Return an id as it is stored: as text, in UTF-8.

    Raises: ConfigurationError for an id that is no str, int or bytes, or that UTF-8 cannot hold.
    """
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"the id {value!r} cannot be written in UTF-8: give its bytes, or another text"
            ) from None
    if isinstance(value, bytes):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    raise ConfigurationError(f"the id {value!r} is not usable: give text, an int or bytes")


def id_text(member: bytes) -> str:
    """Return a stored id as the text that sources take."""
    return member.decode("utf-8", "surrogateescape")


def text(value: Any) -> str:
    """Return a reply as text."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
