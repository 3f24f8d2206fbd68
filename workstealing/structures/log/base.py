"""The base of all calls on a log: its keys, its settings, and the facts that this process knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError
from workstealing.store.fleet import placed
from workstealing.store.grants import Receipts
from workstealing.store.job_client import JobClient, is_cluster, job_client_for
from workstealing.store.keys import to_bytes
from workstealing.store.operations import AS_BYTES, Operation, same
from workstealing.store.scripts import Script, load
from workstealing.structures.access import QUEUED, Access
from workstealing.structures.layout import NamesBeside, checked_text
from workstealing.structures.log.blocks import BlockCache
from workstealing.structures.log.codecs import codec_of
from workstealing.structures.log.entry_keys import CompactBy, entry_keys
from workstealing.structures.log.ids import checked_window
from workstealing.structures.structure import Structure

LOG_VERSION = "1"
"""The value of the field `mark` of a log's `meta`, and of a group's state."""
HOLES_VERSION = "2"
"""The value of that field in the `meta` of a log some of whose blocks have holes."""
MOST_OFFSET = 2**53 - 1
"""Lua's numbers are exact up to here."""
MOST_BLOCK = 100_000


class LogGroupNames:
    """The keys of one group of one log; see the catalogue in ``lua/README.md``."""

    __slots__ = (
        "all",
        "attempts",
        "dead",
        "granted",
        "group",
        "line",
        "pending",
        "revived",
        "state",
        "turns",
        "waking",
    )

    def __init__(self, base: bytes, group: bytes) -> None:
        self.group = group
        self.state = base + b"group:" + group
        self.line = base + b"line:" + group
        self.turns = base + b"turns:" + group
        self.granted = base + b"granted:" + group
        self.pending = base + b"pending:" + group
        self.attempts = base + b"attempts:" + group
        self.dead = base + b"dead:" + group
        self.revived = base + b"revived:" + group
        # The keys that an append needs, in the order in which `wake` in Lua takes them.
        self.waking = (self.state, self.line, self.turns, self.granted)
        self.all = (*self.waking, self.pending, self.attempts, self.dead, self.revived)


class LogNames(NamesBeside[LogGroupNames]):
    """The keys of one log; all share the slot of its name.

    Arguments:
        name: of the log.

    Raises: ConfigurationError for an unusable name.
    """

    def __init__(self, name: object) -> None:
        super().__init__(to_bytes(checked_text(name, "log's name")), b"log", LogGroupNames)
        self.text = self.name.decode()
        self.news = self.base + b"news"
        self.full = self.base + b"full"
        self.raw = self.base + b"raw"
        self.times = self.base + b"times"
        self.waiting = self.base + b"waiting"
        self.producers = self.base + b"producers"
        self.latest = self.base + b"latest"
        self.superseded = self.base + b"superseded"

    def receipt(self, nonce: bytes) -> bytes:
        """Return the key of the receipts that a member of a group names by a nonce."""
        return self.base + b"read." + nonce

    def block(self, number: int) -> bytes:
        """Return the key of a block."""
        return b"%sb%d" % (self.base, number)

    def blocks(self, first: int, number: int) -> list[bytes]:
        """Return the keys of so many blocks in a row."""
        return [b"%sb%d" % (self.base, each) for each in range(first, first + number)]

    def ids(self, producer: str | bytes) -> bytes:
        """Return the key of a producer's ids."""
        return self.base + b"ids:" + to_bytes(producer)

    def written(self, query: object) -> bytes:
        """Return the key of the marks of a query of Spark.

        Raises: ConfigurationError for an unusable name of a query.
        """
        return self.base + b"written:" + to_bytes(checked_text(query, "query"))


class Known(NamedTuple):
    """The facts of a log that this process knows: a guess that only saves round trips.

    Fields: block: how many entries a block has; next: the offset of the next entry; kept: the
    lowest block that may take memory; groups: the names of groups in which members wait; epoch: of
    the log's making, empty before that.
    """

    block: int
    next: int = 0
    kept: int = 0
    groups: tuple[bytes, ...] = ()
    epoch: bytes = b""


class LogBase(Structure):
    """A client, a log's name and settings, and the facts that this process knows of the log.

    Attributes: name: the log's, as a text; keys; codec; cache: the blocks that were read last;
    receipts: of the reads of all its groups' members here; entry_keys: what finds the keys of
    entries, None without `compact_by`; clock_shift_ms.
    """

    kind: ClassVar[str] = "log"
    # Of RCP 11, the proposal that it comes from.
    other_names: ClassVar[Mapping[str, str]] = {
        "twrite": "append(*entries, keep=100)",
        "tread": "read(offset, count, block=seconds)",
        "tevict": "evict(offset), or evict(keep=100) for TEVICT -100",
        "backlog": "append(*entries, keep=100), or LogTrimmer(log, max_entries=100) as a job",
    }
    access = Access(
        keys=("NAME/log/{NAME}/*",),
        scripts=("log",),
        commands=QUEUED
        | {"BLPOP", "XREAD", "EXISTS", "GET", "SET", "GETRANGE", "HGET", "HKEYS", "HLEN", "HMGET"}
        | {"HGETALL", "LRANGE", "TYPE", "TIME", "ZADD", "ZCARD", "ZCOUNT", "ZRANGE", "ZREM"}
        | {"ZSCORE", "MEMORY|USAGE", "OBJECT|IDLETIME"}
        | {"HDEL", "HSCAN", "HSET", "ZINCRBY"},
    )

    def __init__(
        self,
        client: Any,
        name: str | bytes,
        block: int = 1000,
        *,
        codec: Any = None,
        cache_blocks: int = 16,
        id_window: Duration = 3600,
        most_ids: int = 1000,
        compact_by: CompactBy | None = None,
        clock_shift_ms: int = 0,
    ) -> None:
        # Checks that this is a client of redis-py; makes no connection.
        client = placed(client, name)
        self.job_client: JobClient = job_client_for(self, client)
        self.client = client
        self.keys = LogNames(name)
        self.name = self.keys.text
        if is_cluster(client):
            self.keys.require_one_slot()
        self.known = Known(checked_integer(block, "block", 1, MOST_BLOCK))
        self.codec = codec_of(codec)
        self.cache = BlockCache(cache_blocks)
        self.id_window = checked_window(id_window, most_ids)
        self.entry_keys = entry_keys(compact_by, self.codec)
        self.receipts = Receipts(self.keys.receipt)
        self.clock_shift_ms = clock_shift_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def script(self, name: str) -> Script:
        """Return a script of logs, with this object's clock."""
        return load(f"log/{name}", self.clock_shift_ms)

    def on_keys(
        self, name: str, keys: tuple[Any, ...], *args: Any, once: bool = False
    ) -> Operation:
        """Return a script on keys of the log; its reply holds bytes, whatever the client decodes.

        Arguments:
            name: of the script.
            once: as of `Operation`.
        """
        return Operation(self.script(name), keys, args, same, AS_BYTES, once=once)

    def note(self, **facts: Any) -> None:
        """Remember the facts that a reply has told of the log."""
        known = self.known
        if facts.get("block", known.block) != known.block:
            # Another log of this name, older or newer: the next read tells which.
            facts.setdefault("epoch", b"")
        # One assignment: threads see all of it or nothing.
        self.known = known._replace(**facts)

    def has_lost(self, asked: Known, tail: int) -> bool:
        """Say whether the log ends sooner than it did; then forget the cached blocks.

        In that case either the log's server has come back with older data and gives offsets again,
        or the key holds another log.

        Arguments:
            asked: the facts known before the question.
            tail: the log's end by the reply.
        """
        if tail >= asked.next:
            return False
        self.cache.clear()
        return True


_OPTIONS = {
    "backlog": "append(*entries, keep=100) for how many entries stay",
    "entries": "append(*entries)",
    "group": "log.group(name).read(count)",
    "withinfo": "read_range(offset, count)",
}


def refuse_options(names: Iterable[object]) -> None:
    """Refuse unknown options. Raises: ConfigurationError for RCP 11's, TypeError for others."""
    for name in names:
        here = _OPTIONS.get(str(name).lower())
        if here is None:
            raise TypeError(f"a log's method got an unexpected keyword argument {name!r}")
        raise ConfigurationError(f"a log's methods have no {name!s}=: write {here}")


def checked_integer(value: object, what: str, least: int, most: int = MOST_OFFSET) -> int:
    """Return a whole number within its bounds. Raises: ConfigurationError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(
            f"{what}={value!r} is not usable: give a whole number from {least} to {most}"
        )
    # redis-py does not send an IntEnum as its number.
    return int(value)
