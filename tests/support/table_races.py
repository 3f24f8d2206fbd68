"""What races of a tracked set with its table share: the application, and steps in between.

Whoever works on the set runs as a greenlet that stops before every command and around every look at
the table, so that Hypothesis chooses what the application does in between.
"""

from __future__ import annotations

from typing import Any

import greenlet
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from support.servers import RedisServer
from support.table_source import TableSource
from workstealing.structures import TrackedSet

IDS = [f"id{i}" for i in range(5)]
SUB_SETS = 2


def pause(*_: Any) -> None:
    """Let others go on, if this is somebody who runs step by step."""
    parent = greenlet.getcurrent().parent
    if parent is not None:
        parent.switch()


class TableRace(RuleBasedStateMachine):
    """The table, the set, and the application that changes both.

    Attributes: server; has_source: whether the set knows the table; table; tracked; safe: the ids
    with work that nobody may remove, as far as the application knows.
    """

    server: RedisServer
    has_source = True

    def __init__(self) -> None:
        super().__init__()
        self.client = self.server.client()
        self.client.flushall()
        self.table = TableSource()
        self.table.before = self.table.after = pause
        source = self.table if self.has_source else None
        self.tracked = TrackedSet(self.client, "queued", source, sub_sets=SUB_SETS)
        self.safe: set[str] = set()

    @rule(name=st.sampled_from(IDS), tracks=st.booleans())
    def work_comes(self, name: str, tracks: bool) -> None:
        """Let an id have work, which is tracked or forgotten."""
        self.table.work.add(name)
        if tracks:
            self.track(name)

    @rule(name=st.sampled_from(IDS))
    def track(self, name: str) -> None:
        """Track an id, whether or not it has work."""
        self.tracked.track(name)
        if name in self.table.work:
            self.safe.add(name)

    @rule(name=st.sampled_from(IDS), untracks=st.booleans())
    def work_ends(self, name: str, untracks: bool) -> None:
        """Let an id have no work any more, which is said or forgotten."""
        self.table.work.discard(name)
        self.safe.discard(name)
        if untracks:
            self.tracked.untrack(name)

    def members(self) -> set[str]:
        """Return the ids in the set."""
        keys = [self.tracked.names.keys(each)[0] for each in range(SUB_SETS)]
        return {member.decode() for key in keys for member in self.client.smembers(key)}
