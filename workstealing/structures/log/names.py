"""What the keys of a log are called."""

from __future__ import annotations

from workstealing.store.keys import to_bytes
from workstealing.structures.names import NamesBeside, checked_text

LOG_VERSION = "1"
"""What the field `mark` of a log's `meta`, and of a group's state, says."""


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
        # What an append needs, in the order in which `log_wake` takes them.
        self.waking = (self.state, self.line, self.turns, self.granted)
        self.all = (*self.waking, self.pending, self.attempts, self.dead, self.revived)


class LogNames(NamesBeside[LogGroupNames]):
    """The keys of one log; all share the slot of its name.

    Arguments: name: of the log. Errors: ConfigurationError for what is no name.
    """

    def __init__(self, name: object) -> None:
        super().__init__(to_bytes(checked_text(name, "log's name")), b"log", LogGroupNames)
        self.text = self.name.decode()
        self.news = self.base + b"news"
        self.full = self.base + b"full"
        self.raw = self.base + b"raw"
        self.times = self.base + b"times"
        self.waiting = self.base + b"waiting"

    def block(self, number: int) -> bytes:
        """Return the key of a block."""
        return b"%sb%d" % (self.base, number)

    def blocks(self, first: int, number: int) -> list[bytes]:
        """Return the keys of so many blocks in a row."""
        return [b"%sb%d" % (self.base, each) for each in range(first, first + number)]

    def written(self, query: object) -> bytes:
        """Return the key of what a query of Spark has written.

        Errors: ConfigurationError for what is no query's name.
        """
        return self.base + b"written:" + to_bytes(checked_text(query, "query"))
