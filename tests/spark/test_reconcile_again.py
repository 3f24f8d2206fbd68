"""A reconciliation beside a writer tries what is busy again, for a bounded time, and says the rest.

Without a JVM: the driver's rounds, and the tasks' further tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from support.servers import RedisServer
from support.table_source import TableSource
from workstealing.errors import LayoutError, TooManyRemovals
from workstealing.spark.comparing import Tries
from workstealing.spark.reconciling import (
    Reconciled,
    _Brake,
    _FirstFindings,
    _RoundResult,
    rounds_of_reconcile,
)
from workstealing.spark.stages import Refusal
from workstealing.structures import TrackedSet

FIRST = _FirstFindings(dict.fromkeys(range(4), b"1"), has_source=False)


class Driver:
    """The driver of a reconciliation; each round takes a second.

    Arguments:
        busy: of each round, the sub-sets that are busy; one id waits in each sub-set.
    """

    def __init__(self, *busy: set[int]) -> None:
        self.busy = list(busy)
        self.now = 0.0
        self.looked: list[set[int]] = []
        self.worked: list[set[int]] = []

    def look(self, numbers: frozenset[int]) -> _FirstFindings:
        self.looked.append(set(numbers))
        return _FirstFindings(dict.fromkeys(numbers, b"2"), has_source=False)

    def work(self, known: Mapping[int, bytes]) -> _RoundResult:
        self.worked.append(set(known))
        self.now += 1.0
        busy = frozenset(self.busy.pop(0) if len(self.busy) > 1 else self.busy[0]) & set(known)
        done = len(known) - len(busy)
        # One more is left because its source, or a step, said so.
        found = Reconciled(9, 13, done, 0, len(busy) + (len(self.worked) == 1))
        return _RoundResult(found, busy, len(busy))

    def run(self, try_seconds: float, first: _FirstFindings = FIRST) -> Reconciled:
        return rounds_of_reconcile(
            first,
            self.look,
            self.work,
            try_seconds,
            clock=lambda: self.now,
            sleep=lambda seconds: None,
        )


class TestRounds:
    def test_what_is_busy_is_read_anew_until_it_is_settled(self) -> None:
        driver = Driver({1, 2, 3}, {3}, set())
        done = driver.run(60.0)
        assert driver.worked == [{0, 1, 2, 3}, {1, 2, 3}, {3}]
        assert driver.looked == [{1, 2, 3}, {3}]
        assert (done.tracked, done.in_table, done.added, done.rounds) == (9, 13, 4, 3)
        assert (done.left_to_jobs, done.busy_sub_sets, done.error) == (1, 0, "")

    def test_a_writer_that_never_rests_is_told(self) -> None:
        driver = Driver({0, 1, 2, 3})
        done = driver.run(60.0)
        assert len(driver.worked) == 4
        assert (done.added, done.left_to_jobs, done.busy_sub_sets) == (0, 5, 4)
        assert done.error.startswith("4 sub-sets were changed by others each time")
        assert "so 4 ids are left to the jobs; a tracked set with a source" in done.error

    @pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (0.9, 1), (1.5, 2), (2.5, 3)])
    def test_a_round_that_has_no_time_is_not_begun(self, seconds: float, rounds: int) -> None:
        driver = Driver({1, 2, 3}, {1, 2}, {1}, {1})
        assert driver.run(seconds).rounds == rounds

    def test_with_a_source_the_tasks_have_tried_already(self) -> None:
        driver = Driver({1})
        done = driver.run(60.0, replace(FIRST, has_source=True))
        assert (done.rounds, done.busy_sub_sets) == (1, 1)
        assert done.error.endswith("so 1 ids are left to the jobs")

    def test_a_later_round_that_cannot_be_made_ends_it_in_words(self) -> None:
        driver = Driver({1})
        driver.look = lambda _: replace(FIRST, refusal=Refusal(LayoutError, "gone"))  # type: ignore[method-assign]
        done = driver.run(60.0)
        assert (done.error, done.added, done.busy_sub_sets) == ("gone", 3, 1)

    def test_the_brake_counts_all_rounds(self) -> None:
        brake = _Brake(0.5)
        brake.judge(Reconciled(100, 0, 0, 30, 0))
        brake.removed += 30
        brake.judge(Reconciled(10, 0, 0, 20, 0))
        with pytest.raises(
            TooManyRemovals, match="allows 50 beside the 30 that are removed, so no"
        ):
            brake.judge(Reconciled(10, 0, 0, 21, 0))
        driver = Driver({1})
        work = driver.work

        def braked(known: Mapping[int, bytes]) -> _RoundResult:
            if driver.worked:
                raise TooManyRemovals("too many")
            return work(known)

        driver.work = braked  # type: ignore[method-assign]
        done = driver.run(60.0)
        assert (done.error, done.busy_sub_sets, done.rounds) == ("too many", 1, 1)


@pytest.mark.parametrize(("times", "seconds", "added"), [(3, 60.0, 100), (9_999, 0.0, 0)])
def test_a_step_with_a_source_is_made_again_in_halves(
    redis7: RedisServer, times: int, seconds: float, added: int
) -> None:
    ids = [f"new{i}" for i in range(100)]
    other: TrackedSet = TrackedSet(redis7.client(), "t", sub_sets=1)
    other.track(["busy"])
    source = TableSource([*ids, "busy"])
    asked: list[int] = []

    def disturb(_: str) -> None:
        asked.append(1)
        if len(asked) <= times:
            other.track(["busy"])

    source.before = disturb
    tracked: TrackedSet = TrackedSet(redis7.client(), "t", source, sub_sets=1)
    tries = Tries(seconds, sleep=lambda seconds: None)
    missing = [each.encode() for each in ids]
    done, error, busy = tries.settled(tracked, 0, b"", ([], missing), 30.0)
    assert (done.added, error, busy) == (added, "", 100 - added)
    assert tracked.count() == 1 + added
    # Too late about 100, 50 and 25; then about the two halves of each.
    assert len(asked) == (7 if added else 1)


def test_further_tries_have_an_end() -> None:
    now = 0.0
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += 1.0

    tries = Tries(3.0, lambda: now, sleep)
    began = now
    while tries._may_go_on(began):
        began = now
    assert len(pauses) == 3
