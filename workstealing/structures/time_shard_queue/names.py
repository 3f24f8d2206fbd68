"""Where a TimeShardQueue on Redis keeps what: the keys of its time shards, and its layout."""

from __future__ import annotations

from workstealing.errors import LayoutError
from workstealing.store.keys import spread_tag
from workstealing.structures.layout import as_pairs
from workstealing.structures.time_shard_queue.rotation import Rotation

VERSION = 1
STRUCTURE = "time_shard_queue"


class TimeShardNames:
    """The keys of one time shard, all in its own slot; see the catalogue in ``lua/README.md``.

    Arguments: name: the queue's; time_shard: 0 and up.
    """

    def __init__(self, name: bytes, time_shard: int) -> None:
        prefix = b"{%s}:ws:time_shard:" % spread_tag(name, time_shard)
        end = b":%d:%s" % (time_shard, name)
        self.mark = prefix + b"mark" + end
        self.waiting = prefix + b"waiting" + end
        self.leased = prefix + b"leased" + end
        self.messages = prefix + b"messages" + end
        self.history = prefix + b"history" + end
        self.consumed = prefix + b"consumed" + end
        self.released = prefix + b"released" + end
        self.dead = prefix + b"dead" + end
        self.watched = (self.waiting, self.leased)
        """What the sweeper WATCHes: acknowledgements and releases write none of these."""
        self.all = (
            *(self.mark, self.waiting, self.leased, self.messages, self.history),
            *(self.consumed, self.released, self.dead),
        )


def layout_key(name: bytes) -> bytes:
    """Return the key of a queue's layout."""
    return b"ws:time_shard_queue:layout:" + name


def mark_of(rotation: Rotation) -> str:
    """Return what the mark of a time shard says: `version:time shards:period in ms`."""
    return f"{VERSION}:{rotation.time_shards}:{rotation.period_ms}"


def new_fields(rotation: Rotation) -> tuple[str | int, ...]:
    """Return the fields of a new layout."""
    return (
        *("structure", STRUCTURE, "version", VERSION, "readable_from", 1, "writable_from", 1),
        *("time_shards", rotation.time_shards, "period_ms", rotation.period_ms),
    )


def parse(key: bytes, reply: object, *, dropped: bool = False) -> Rotation | None:
    """Return the rotation that a layout says, or None if there is none yet.

    Arguments: dropped: whether the layout of a queue that is being dropped is accepted too. Errors:
    LayoutError for a foreign or newer one.
    """
    text = key.decode(errors="backslashreplace")
    pairs = as_pairs(reply)
    if not pairs:
        return None
    try:
        if pairs["structure"] != STRUCTURE:
            raise ValueError(pairs["structure"])
        version, writable_from = int(pairs["version"]), int(pairs["writable_from"])
        rotation = Rotation(int(pairs["time_shards"]), int(pairs["period_ms"]))
    except (KeyError, ValueError) as error:
        raise LayoutError(
            f"the key {text} does not hold the layout of a TimeShardQueue: use another name, or"
            " remove the key if it is not needed"
        ) from error
    if writable_from > VERSION:
        raise LayoutError(
            f"the TimeShardQueue at {text} has layout version {version}, which this release cannot"
            " write: upgrade workstealing"
        )
    if "dropping" in pairs and not dropped:
        raise LayoutError(
            f"the TimeShardQueue at {text} is being dropped: if whoever began that has died, call"
            " drop() once more"
        )
    return rotation
