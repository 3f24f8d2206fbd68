"""The keys of a ShardedIck's ick shards, and the layout that says how many there are."""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.keys import require_users_name, spread_tag, to_bytes
from workstealing.store.operations import Operation, Steps
from workstealing.store.scripts import Script, load
from workstealing.structures.ick.members import IckNames
from workstealing.structures.layout import Kind, Versioned, read_pairs
from workstealing.structures.stored import stored_number, unbelieved

KIND = Kind("sharded_ick", "a ShardedIck")
MOST_ICK_SHARDS = 1024
_GENERATION = re.compile(r"[0-9]{16,20}")


def shard_of(member: bytes, ick_shards: int) -> int:
    """Return a member's ick shard: CRC-32 of the bytes modulo the number of ick shards.

    Part of the layout: every process, in whatever language, must find the same one.
    """
    return crc32(member) % ick_shards


class ShardNames(IckNames):
    """The keys of one ick shard, all in its own slot; see the catalogue in ``lua/README.md``.

    Arguments:
        name: the ShardedIck's.
        shard: 0 and up.

    No two share a slot: see `spread_tag`.
    """

    def __init__(self, name: bytes, shard: int) -> None:
        super().__init__(b"{%s}:%s:%d" % (spread_tag(name, shard), name, shard))
        prefix = self.held.removesuffix(b"held")
        self.lease, self.mark = prefix + b"lease", prefix + b"mark"
        self.moving, self.moving_dead = prefix + b"moving", prefix + b"moving-dead"
        self.moving_attempts = prefix + b"moving-attempts"
        self.moving_waiting = prefix + b"moving-waiting"
        self.moving_terms = prefix + b"moving-terms"
        self.begun = prefix + b"begun"


@dataclass(frozen=True)
class ShardedLayout:
    """How many ick shards there are.

    Fields: generation: digits, a number that grows with every change; ick_shards; moving_from: how
    many there were before, while members are being moved, else 0; version: of the layout.
    """

    generation: str
    ick_shards: int
    moving_from: int
    version: int = KIND.version

    @property
    def mark(self) -> str:
        """The mark of an ick shard, as a process that knows this layout writes it."""
        return f"{self.version}:{self.generation}:{self.ick_shards}"

    @property
    def all_shards(self) -> int:
        """How many ick shards may hold members, those that are to be emptied included."""
        return max(self.ick_shards, self.moving_from)


def checked_name(name: object) -> bytes:
    """Return the name as bytes. Raises: ConfigurationError for anything else."""
    if not isinstance(name, str | bytes) or not name:
        raise ConfigurationError(f"the name {name!r} is not usable: give a text or bytes")
    raw = to_bytes(name)
    require_users_name(raw)
    return raw


def checked_ick_shards(ick_shards: object) -> int:
    """Return a number of ick shards. Raises: ConfigurationError for a wrong one."""
    if (
        isinstance(ick_shards, bool)
        or not isinstance(ick_shards, int)
        or not 1 <= ick_shards <= MOST_ICK_SHARDS
    ):
        raise ConfigurationError(
            f"ick_shards={ick_shards!r} is no number of ick shards: give 1 to {MOST_ICK_SHARDS}"
        )
    return int(ick_shards)


class Core:
    """The layout of one ShardedIck as this process knows it; all users of the object share it.

    Arguments:
        ick_shards: the number that was asked for, None for that of the layout.
        clock_shift_ms: for tests, how far this object's clock is ahead of the server's.
    """

    def __init__(self, name: Any, ick_shards: int | None, clock_shift_ms: int) -> None:
        self.name = checked_name(name)
        self.text = self.name.decode(errors="backslashreplace")
        self.asked = None if ick_shards is None else checked_ick_shards(ick_shards)
        self.clock_shift_ms = clock_shift_ms
        self.layout_key = b"ws:sharded_ick:layout:" + self.name
        self.has_warned = False
        self._found: Versioned[ShardedLayout] | None = None
        self._names: dict[int, ShardNames] = {}

    @property
    def layout(self) -> ShardedLayout | None:
        """The layout, None before it was read."""
        return None if self._found is None else self._found.own

    def names(self, shard: int) -> ShardNames:
        """Return the keys of an ick shard."""
        names = self._names.get(shard)
        if names is None:
            names = self._names[shard] = ShardNames(self.name, shard)
        return names

    def script(self, name: str) -> Script:
        """Return a script, with this object's clock."""
        return load(name, self.clock_shift_ms)

    def reading(self, *fields: str | int) -> Operation:
        """Return the operation that reads the layout, or writes these fields down if none is there.

        The operation's result is a `ShardedLayout`, which this object uses from then on, or None.
        """
        return Operation(load("sharded_ick/open"), (self.layout_key,), fields, self._read)

    def _read(self, reply: Any) -> ShardedLayout | None:
        key = self.layout_key
        self._found = read_pairs(
            KIND, key, f"the ShardedIck at {self.text}", reply, lambda pairs: _own(key, pairs)
        )
        return self.layout

    def read_layout(self) -> Steps[ShardedLayout | None]:
        """Read the layout; one round trip."""
        return (yield self.reading())  # type: ignore[no-any-return]

    def open(self) -> Steps[ShardedLayout]:
        """Return the layout as this process knows it; one round trip the first time.

        Raises: ConfigurationError if the layout has another number of ick shards than was given, or
        if there is no layout and no number was given; LayoutError.
        """
        layout = self.layout
        if layout is not None:
            return layout
        new = () if self.asked is None else _new_fields(self.asked)
        layout = yield self.reading(*new)
        if layout is None:
            raise ConfigurationError(
                f"there is no ShardedIck {self.text!r} yet: say how many ick_shards it is to have"
            )
        if self.asked not in (None, layout.ick_shards, layout.moving_from or None):
            self._found = None
            raise ConfigurationError(
                f"the ShardedIck {self.text!r} has {layout.ick_shards} ick shards, not"
                f" {self.asked}: leave ick_shards out, or change their number with"
                f" resize({self.asked})"
            )
        return layout  # type: ignore[no-any-return]

    def open_to_write(self) -> Steps[ShardedLayout]:
        """Return the layout, as `open`. Raises: LayoutError also for a read-only layout."""
        layout = yield from self.open()
        self.require_writable()
        return layout

    def require_writable(self) -> None:
        """Raise a LayoutError if the layout is one that this release may only read."""
        if self._found is not None:
            self._found.require_writable()

    def reopen(self, outdated: ShardedLayout) -> Steps[ShardedLayout]:
        """Read the layout again, after an ick shard has refused an outdated one.

        Raises: LayoutError if the layout is lost or overwritten, or may only be read.
        """
        layout = self.layout
        # Another user of this object may have done it already.
        if layout is None or layout == outdated:
            layout = yield self.reading()
        if layout is None or int(layout.generation) <= int(outdated.generation):
            raise LayoutError(
                f"an ick shard of {self.text!r} has a newer layout than the key"
                f" {self.layout_key.decode(errors='backslashreplace')} says: the key was lost or"
                " overwritten, put it back; nothing was changed"
            )
        self.require_writable()
        return layout


def _new_fields(ick_shards: int) -> tuple[str | int, ...]:
    # The server adds the generation.
    return KIND.fields("ick_shards", ick_shards, "moving_from", 0)


def _own(key: bytes, pairs: Mapping[str, str]) -> ShardedLayout:
    generation = pairs["generation"]
    if not _GENERATION.fullmatch(generation):
        raise unbelieved(key, "generation", generation, "a number of 16 digits")
    return ShardedLayout(
        generation,
        stored_number(key, "ick_shards", pairs["ick_shards"], 1, MOST_ICK_SHARDS),
        stored_number(key, "moving_from", pairs["moving_from"], 0, MOST_ICK_SHARDS),
        stored_number(key, "version", pairs["version"]),
    )
