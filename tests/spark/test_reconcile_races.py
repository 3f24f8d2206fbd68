"""A reconciliation and the application at once, on a real server: whatever the order of the steps.

Without a JVM: what Spark's tasks do is done here in the order that `reconcile` gives it, by
greenlets that stop before every command and around every look at the table. Hypothesis chooses
what the application does in between. A repeated task reads the set once more, late.
"""

from __future__ import annotations

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
from support.table_races import IDS, SUB_SETS, TableRace, pause
from support.table_source import TableSource
from workstealing.spark.comparing import one_step
from workstealing.store.budget import Budget
from workstealing.store.connection import OneAttempt
from workstealing.structures import TrackedSet
from workstealing.structures.tracked_set.sub_sets import generations, scan

pytestmark = pytest.mark.real


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    call = OneAttempt.call

    def paused(self: Any, *args: Any, **options: Any) -> Any:
        pause()
        replies = call(self, *args, **options)
        pause()
        return replies

    monkeypatch.setattr(OneAttempt, "call", paused)


def reconcile_by_hand(tracked: TrackedSet, table: TableSource, *, reads_late: bool) -> list[str]:
    """Do what the tasks do, with the generations first; return the errors of the steps."""
    names, every = tracked.names, range(SUB_SETS)
    known = generations(tracked.job_client, tracked.names, every, Budget(60.0))

    def members() -> set[bytes]:
        return {each for _, ids in scan(tracked.job_client, names, every) for each in ids}

    found = members()
    pause()
    work = {each.encode() for each in table.work}
    pause()
    if reads_late:
        # Spark has lost what the task had read, and reads the set again.
        found = members()
    errors = []
    for sub_set in every:
        mine = [sorted(e for e in ids if names.sub_set_of(e) == sub_set) for ids in (found, work)]
        stale = [each for each in mine[0] if each not in work]
        missing = [each for each in mine[1] if each not in found]
        if stale or missing:
            errors.append(one_step(tracked, sub_set, known[sub_set], (stale, missing), 60.0)[1])
    return [error for error in errors if error]


class Racing(TableRace):
    """The table, the set, the application, and up to two reconciliations."""

    # Safe are ids with committed work whose track() came after it.

    def __init__(self) -> None:
        super().__init__()
        self.tracked.open()
        self.under_way: list[greenlet.greenlet] = []

    @initialize(
        members=st.sets(st.sampled_from([*IDS, "garbage"])), work=st.sets(st.sampled_from(IDS))
    )
    def begin_anywhere(self, members: set[str], work: set[str]) -> None:
        self.table.work = set(work)
        if members:
            self.tracked.track(sorted(members))
        self.safe = members & work

    @rule(late=st.booleans(), steps=st.integers(0, 9))
    def begin(self, late: bool, steps: int) -> None:
        if len(self.under_way) == 2:
            return
        task = greenlet.greenlet(
            lambda: reconcile_by_hand(self.tracked, self.table, reads_late=late)
        )
        self.under_way.append(task)
        self.go_on(len(self.under_way) - 1, steps + 1)

    @rule(which=st.integers(0, 1), steps=st.integers(1, 9))
    def go_on(self, which: int, steps: int) -> None:
        if not self.under_way:
            return
        task = self.under_way[which % len(self.under_way)]
        for _ in range(steps):
            if not task.dead:
                said = task.switch()
                assert not (task.dead and said), said
                self.nothing_with_work_is_gone()
        self.under_way = [each for each in self.under_way if not each.dead]

    @invariant()
    def nothing_with_work_is_gone(self) -> None:
        assert self.safe <= self.members(), "an id with work was removed"

    def teardown(self) -> None:
        while self.under_way:
            self.go_on(0, 1)
        # In peace one reconciliation makes them equal.
        self.begin(late=False, steps=0)
        while self.under_way:
            self.go_on(0, 1)
        assert self.members() == self.table.work


@pytest.mark.slow
@pytest.mark.parametrize("has_source", [True, False], ids=["source", "generation"])
def test_no_id_with_work_is_removed_whatever_happens_in_between(
    redis7: RedisServer, stepped: None, has_source: bool
) -> None:
    machine = type("Machine", (Racing,), {"server": redis7, "has_source": has_source})
    examples = 2 * settings().max_examples
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=30)
    )
