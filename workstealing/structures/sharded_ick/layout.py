"""Where a ShardedIck keeps what: the keys of its ick shards, and the layout that says how many."""

from __future__ import annotations

from binascii import crc32
from dataclasses import dataclass

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.keys import require_users_name, spread_tag, to_bytes
from workstealing.structures.ick.members import IckNames
from workstealing.structures.layout import as_pairs

VERSION = 1
MOST_ICK_SHARDS = 1024


def shard_of(member: bytes, ick_shards: int) -> int:
    """Return the ick shard of a member: CRC-32 of its bytes modulo their number.

    Part of the layout: every process, in whatever language, must find the same one.
    """
    return crc32(member) % ick_shards


class ShardNames(IckNames):
    """The keys of one ick shard, all in its own slot; see the catalogue in ``lua/README.md``.

    Arguments: name: the ShardedIck's; shard: 0 and up. No two share a slot: see `spread_tag`.
    """

    def __init__(self, name: bytes, shard: int) -> None:
        super().__init__(b"{%s}:%s:%d" % (spread_tag(name, shard), name, shard))
        prefix = self.held.removesuffix(b"held")
        self.lease, self.mark = prefix + b"lease", prefix + b"mark"
        self.moving, self.moving_dead = prefix + b"moving", prefix + b"moving-dead"
        self.moving_attempts = prefix + b"moving-attempts"
        self.begun = prefix + b"begun"


@dataclass(frozen=True)
class Layout:
    """How many ick shards there are.

    Fields: generation: digits, a number that grows with every change; ick_shards; moving_from: how
    many there were before, while members are being moved, else 0.
    """

    generation: str
    ick_shards: int
    moving_from: int

    @property
    def mark(self) -> str:
        """What the mark of an ick shard says when it was written by one who knows this layout."""
        return f"{VERSION}:{self.generation}:{self.ick_shards}"

    @property
    def all_shards(self) -> int:
        """How many ick shards may hold members, those that are to be emptied included."""
        return max(self.ick_shards, self.moving_from)


def checked_name(name: object) -> bytes:
    """Return the name as bytes. Errors: ConfigurationError for what is no name."""
    if not isinstance(name, str | bytes) or not name:
        raise ConfigurationError(f"the name {name!r} is not usable: give a text or bytes")
    raw = to_bytes(name)
    require_users_name(raw)
    return raw


def checked_ick_shards(ick_shards: object) -> int:
    """Return a number of ick shards. Errors: ConfigurationError for what is none."""
    if (
        isinstance(ick_shards, bool)
        or not isinstance(ick_shards, int)
        or not 1 <= ick_shards <= MOST_ICK_SHARDS
    ):
        raise ConfigurationError(
            f"ick_shards={ick_shards!r} is no number of ick shards: give 1 to {MOST_ICK_SHARDS}"
        )
    return ick_shards


def new_fields(ick_shards: int) -> tuple[str | int, ...]:
    """Return the fields of a new layout; the server adds its generation."""
    return (
        *("structure", "sharded_ick", "version", VERSION),
        *("readable_from", 1, "writable_from", 1),
        *("ick_shards", ick_shards, "moving_from", 0),
    )


def parse(key: bytes, reply: object) -> Layout | None:
    """Return the layout that a reply says, or None if there is none yet.

    Errors: LayoutError for a foreign or newer one.
    """
    pairs = as_pairs(reply)
    if not pairs:
        return None
    try:
        if pairs["structure"] != "sharded_ick":
            raise _foreign(key)
        version, writable_from = int(pairs["version"]), int(pairs["writable_from"])
        layout = Layout(pairs["generation"], int(pairs["ick_shards"]), int(pairs["moving_from"]))
        checked_ick_shards(layout.all_shards)
    except (KeyError, ValueError) as error:
        raise _foreign(key) from error
    if writable_from > VERSION:
        raise LayoutError(
            f"the ShardedIck at {key.decode(errors='backslashreplace')} has layout version"
            f" {version}, which this release cannot write: upgrade workstealing"
        )
    return layout


def _foreign(key: bytes) -> LayoutError:
    return LayoutError(
        f"the key {key.decode(errors='backslashreplace')} does not hold the layout of a ShardedIck:"
        " use another name, or remove the key if it is not needed"
    )
