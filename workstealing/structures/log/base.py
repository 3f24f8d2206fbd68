"""What all calls on a log stand on: its keys, its settings, and how steps are run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError

from workstealing.errors import ConfigurationError
from workstealing.store.operations import Operation, Plain, Steps
from workstealing.store.scripts import Script, load
from workstealing.store.twin import Twin, is_cluster, twin_for
from workstealing.structures.log.cache import BlockCache
from workstealing.structures.log.codecs import codec_of
from workstealing.structures.log.names import LogNames

MOST_OFFSET = 2**53 - 1
"""Lua's numbers are exact up to here."""
MOST_BLOCK = 100_000
AS_BYTES: dict[str, Any] = {NEVER_DECODE: True}
"""The option by which a reply comes as bytes, whatever the client makes of others."""


@dataclass(frozen=True, slots=True)
class Known:
    """What this process knows of a log: a guess that only saves round trips.

    Fields: block: entries a block; next: the offset of the next entry; kept: the lowest block that
    may take memory; groups: the names of those in which somebody waits; epoch: of the log's making,
    empty before it.
    """

    block: int
    next: int = 0
    kept: int = 0
    groups: tuple[bytes, ...] = ()
    epoch: bytes = b""


def same(reply: Any) -> Any:
    """Return a reply as it is."""
    return reply


def as_bytes(operation: Operation) -> Steps[Any]:
    """Run a script whose reply holds entries, which are bytes whatever the client makes of replies.

    One round trip; one more the first time that a server sees the script.
    """
    try:
        reply = yield Plain(operation.by_digest(), AS_BYTES)
    except NoScriptError:
        reply = yield Plain(operation.by_text(), AS_BYTES)
    return operation.read(reply)


class LogBase:
    """A client, a log's name and settings, and what this process knows of the log.

    Attributes: name: the log's, as a text; keys; codec; cache: the blocks that were read last;
    clock_shift_ms.
    """

    def __init__(
        self,
        client: Any,
        name: str | bytes,
        block: int = 1000,
        *,
        codec: Any = None,
        cache_blocks: int = 16,
        clock_shift_ms: int = 0,
    ) -> None:
        # Checks that this is a client of redis-py; makes no connection.
        self.twin: Twin = twin_for(self, client)
        self.client = client
        self.keys = LogNames(name)
        self.name = self.keys.text
        if is_cluster(client):
            self.keys.require_one_slot()
        self.known = Known(checked_integer(block, "block", 1, MOST_BLOCK))
        self.codec = codec_of(codec)
        self.cache = BlockCache(cache_blocks)
        self.clock_shift_ms = clock_shift_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def script(self, name: str) -> Script:
        """Return a script of logs, with this object's clock."""
        return load(f"log_{name}", self.clock_shift_ms)

    def operation(self, name: str, keys: tuple[Any, ...], *args: Any) -> Operation:
        """Return one script on keys of the log, whose reply is taken as it is."""
        return Operation(self.script(name), keys, args, same)

    def note(self, **facts: Any) -> None:
        """Remember what a reply has told of the log."""
        known = self.known
        if facts.get("block", known.block) != known.block:
            # Another log of this name, before this one or after it: which, the next read says.
            facts.setdefault("epoch", b"")
        # One assignment: threads see all of it or nothing.
        self.known = replace(known, **facts)

    def has_lost(self, asked: Known, tail: int) -> bool:
        """Say whether the log ends sooner than it did; then let go of what is kept of its blocks.

        For its server has come back with older data and gives offsets again, or it is another log.
        Arguments: asked: what was known before the question; tail: where the log ends by the reply.
        """
        if tail >= asked.next:
            return False
        self.cache.clear()
        return True

    def run(self, steps: Steps[Any]) -> Any:
        """Run steps: at once, or as something to await."""
        raise NotImplementedError


def checked_integer(value: object, what: str, least: int, most: int = MOST_OFFSET) -> int:
    """Return a whole number within its bounds. Errors: ConfigurationError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(
            f"{what}={value!r} is not usable: give a whole number from {least} to {most}"
        )
    return value
