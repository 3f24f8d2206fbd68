"""Both jobs and the application at once, on a real server: whatever the order of the commands.

Jobs run as greenlets that stop before every command and around every question, so Hypothesis
chooses what happens in between.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import greenlet
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.table_races import IDS, TableRace, pause
from workstealing.errors import Aborted
from workstealing.jobs import TrackQueued, UntrackDone
from workstealing.recruiting import Slice
from workstealing.store.connection import OneAttempt

LIMIT = 3
CHANCE = random.Random()

pytestmark = pytest.mark.real


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    call = OneAttempt.call

    def paused(self: Any, commands: Any, *args: Any, **options: Any) -> Any:
        pause()
        # The server's own choice would differ from run to run, and Hypothesis repeats runs.
        drawn = {i: each[2] for i, each in enumerate(commands) if each[0] == "SRANDMEMBER"}
        sent = [("SORT", c[1], "ALPHA") if i in drawn else c for i, c in enumerate(commands)]
        replies = call(self, sent, *args, **options)
        offset = len(replies) - len(sent)
        for i, most in drawn.items():
            members = replies[i + offset]
            replies[i + offset] = CHANCE.sample(members, min(most, len(members)))
        return replies

    monkeypatch.setattr(OneAttempt, "call", paused)


def perform(job: Any) -> None:
    with contextlib.suppress(Aborted):
        job.perform(Slice(LIMIT, 600.0))


class Racing(TableRace):
    """The table, the set, the application, and up to three recruits at a time."""

    # Safe are ids that have had work without a break since they came into the set or were tracked.

    def __init__(self) -> None:
        super().__init__()
        CHANCE.seed(3)
        self.jobs = (
            TrackQueued(self.tracked, LIMIT),
            UntrackDone(self.tracked, LIMIT, random=CHANCE.random),
        )
        self.recruits: list[greenlet.greenlet] = []
        self.seen: set[str] = set()

    @initialize(
        members=st.sets(st.sampled_from([*IDS, "garbage"])),
        work=st.sets(st.sampled_from(IDS)),
        cursor=st.sampled_from([None, "", "id2", "zzz", b"\xff\x00"]),
    )
    def begin_anywhere(self, members: set[str], work: set[str], cursor: Any) -> None:
        self.table.work = set(work)
        for member in members:
            ids, _ = self.tracked.names.keys(self.tracked.names.sub_set_of(member.encode()))
            self.client.sadd(ids, member)
        if cursor is not None:
            self.client.set(self.tracked.names.cursor, cursor)
        self.seen = self.members()
        self.safe = self.seen & self.table.work

    @rule()
    def work_comes_again(self) -> None:
        # For what a recruit may just have been told to have none.
        for idle in sorted(self.seen - self.table.work):
            self.work_comes(idle, tracks=True)

    @rule(name=st.sampled_from(IDS))
    def untrack(self, name: str) -> None:
        self.tracked.untrack(name)
        self.safe.discard(name)

    @rule(what=st.sampled_from(["cursor", "table", "cursor and garbage"]))
    def something_is_lost(self, what: str) -> None:
        if what == "table":
            self.table.work.clear()
            self.safe.clear()
        else:
            self.client.set(self.tracked.names.cursor, what)

    @rule(which=st.integers(0, 1), steps=st.integers(0, 9), again=st.booleans())
    def recruit(self, which: int, steps: int, again: bool) -> None:
        if len(self.recruits) == 3:
            return
        recruit = greenlet.greenlet(perform)
        self.recruits.append(recruit)
        recruit.switch(self.jobs[which])
        self.go_on(len(self.recruits) - 1, steps)
        if again:
            self.work_comes_again()

    @rule(which=st.integers(0, 2), steps=st.integers(1, 9))
    def go_on(self, which: int, steps: int) -> None:
        if not self.recruits:
            return
        recruit = self.recruits[which % len(self.recruits)]
        for _ in range(steps):
            if not recruit.dead:
                recruit.switch()
                self.note()
        self.forget_the_finished()

    def forget_the_finished(self) -> None:
        self.recruits = [each for each in self.recruits if not each.dead]

    @invariant()
    def note(self) -> None:
        members = self.members()
        assert self.safe <= members, "an id with work was removed"
        self.safe |= (members - self.seen) & self.table.work
        self.seen = members

    def teardown(self) -> None:
        while self.recruits:
            self.go_on(0, 1)
        # The application rests: set and table come together.
        for _ in range(len(IDS) + 2):
            for job in self.jobs:
                for _ in self.run(job):
                    pass
        for _ in range(300):
            if self.members() == self.table.work:
                break
            for _ in self.run(self.jobs[1]):
                pass
        assert self.members() == self.table.work

    def run(self, job: Any) -> Iterator[None]:
        recruit = greenlet.greenlet(perform)
        recruit.switch(job)
        while not recruit.dead:
            yield
            recruit.switch()


@pytest.mark.slow
def test_set_and_table_come_together_and_no_id_with_work_is_removed(
    redis7: RedisServer, stepped: None
) -> None:
    machine = type("Machine", (Racing,), {"server": redis7})
    # Many short runs: the moments that matter lie between two commands of one slice.
    examples = 4 * settings().max_examples
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=40)
    )
