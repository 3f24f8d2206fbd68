"""What one task of a sweep does, and when rounds end: without Spark, and by a clock to set."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstealing.errors import Aborted, ConfigurationError, Moved, OutOfTime
from workstealing.recruiting import Slice
from workstealing.recruiting.job import FunctionJob, Job, PartJob
from workstealing.spark.making import Recipe
from workstealing.spark.stages import (
    IDLE_IN_A_ROW,
    SLICE_SECONDS,
    VAIN_IN_A_ROW,
    CommandRate,
    Orders,
    TurnResult,
    checked_share,
    take_turn,
)
from workstealing.store.connection import SENT
from workstealing.testing import ManualClock

ORDERS = Orders(limit=100, seconds=1.0, turn_seconds=60.0)


class Sleeper:
    """A clock that sleeping moves on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.clock.advance(seconds)


class Scripted(PartJob):
    """A part that does what a list says: items, or an error; drained at its end."""

    name = "scripted"

    def __init__(self, steps: Iterable[Any], during: Callable[[], None] = lambda: None) -> None:
        self.steps = list(steps)
        self.during = during
        self.limits: list[int] = []

    @property
    def is_drained(self) -> bool:
        return not self.steps

    def perform(self, slice: Slice) -> int:
        self.limits.append(slice.limit)
        self.during()
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return int(step)


def turn_of(job: Job, orders: Orders = ORDERS) -> TurnResult:
    sleeper = Sleeper()
    return take_turn(job, orders, clock=sleeper.clock, sleep=sleeper.sleep, random=lambda: 0.5)


def test_a_turn_goes_on_until_its_part_is_drained() -> None:
    turn = turn_of(Scripted([100, 0, 7, 0]))
    assert (turn.items, turn.slices, turn.is_drained, turn.error) == (107, 4, True, "")


def test_what_aborts_is_left_for_the_next_slice() -> None:
    turn = turn_of(Scripted([Aborted("late"), 3, Moved("gone"), OutOfTime("slow"), 2]))
    assert (turn.items, turn.aborted, turn.failed, turn.is_drained) == (5, 2, 0, True)


def test_a_turn_ends_when_everything_aborts() -> None:
    sleeper = Sleeper()
    job = Scripted([Aborted("busy")] * 100)
    turn = take_turn(job, ORDERS, clock=sleeper.clock, sleep=sleeper.sleep, random=lambda: 1.0)
    assert (turn.slices, turn.aborted, turn.is_drained) == (VAIN_IN_A_ROW, VAIN_IN_A_ROW, False)
    assert "busy" in turn.error
    # It paused longer each time.
    assert sleeper.slept == pytest.approx(sum(0.005 * 2**n for n in range(1, VAIN_IN_A_ROW + 1)))


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), ValueError("wrong")])
def test_a_failure_ends_the_turn(error: Exception) -> None:
    turn = turn_of(Scripted([4, error, 9]))
    assert (turn.items, turn.slices, turn.failed, turn.is_drained) == (4, 2, 1, False)
    assert turn.error == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("answer", ["x", 1.5, -3, True])
def test_what_is_no_count_fails_the_slice(answer: Any) -> None:
    turn = turn_of(FunctionJob(lambda _: answer, name="odd"))
    assert (turn.items, turn.slices, turn.failed, turn.is_drained) == (0, 1, 1, False)
    assert "WrongAnswerError" in turn.error


def test_a_failure_in_the_last_slice_is_no_success() -> None:
    assert not turn_of(Scripted([ValueError("wrong")])).is_drained


def test_a_turn_ends_when_its_time_is_up() -> None:
    sleeper = Sleeper()
    job = Scripted([1] * 100, during=lambda: sleeper.clock.advance(0.3))
    turn = take_turn(
        job, Orders(10, 1.0, turn_seconds=2.0), clock=sleeper.clock, sleep=sleeper.sleep
    )
    assert turn.slices == 7
    assert not turn.is_drained


def test_a_job_that_does_not_divide_is_drained_when_idle_in_a_row() -> None:
    found = [1, 0, 0, 1, None, 0, 0, 0, 0, 0, 0]
    turn = turn_of(FunctionJob(lambda _: found.pop(0), name="plain"))
    assert turn.is_drained
    assert turn.items == 2
    assert turn.slices == 4 + IDLE_IN_A_ROW


def test_a_script_for_many_keys_counts_as_many_commands() -> None:
    def perform(slice: Slice) -> int:
        SENT.commands += 1
        slice.spend(64)
        return 0

    assert turn_of(FunctionJob(perform, name="plain")).operations == 64 * IDLE_IN_A_ROW


def test_commands_are_counted_by_the_connections_or_by_the_items() -> None:
    def send() -> None:
        SENT.commands += 30

    assert turn_of(Scripted([5, 0], send)).operations == 60
    # Nothing of it went over a connection that counts.
    assert turn_of(Scripted([5, 0])).operations == 5 + 1


@given(
    rate=st.floats(0.5, 10_000),
    slices=st.lists(st.tuples(st.integers(0, 500), st.floats(0, 0.5)), min_size=1, max_size=40),
)
def test_no_window_has_more_than_its_share_and_one_slice(
    rate: float, slices: list[tuple[int, float]]
) -> None:
    sleeper = Sleeper()
    pace = CommandRate(rate, sleeper.clock, sleeper.sleep)
    sent: list[tuple[float, int]] = []
    for commands, seconds in slices:
        pace.wait()
        # The worst case: all of a slice's commands at its end.
        sleeper.clock.advance(seconds)
        sent.append((sleeper.clock.monotonic(), commands))
        pace.pay(commands)
    largest = max(commands for commands, _ in slices)
    for first, (begin, _) in enumerate(sent):
        total = 0
        for end, commands in sent[first:]:
            total += commands
            assert total <= rate * (end - begin) + largest + 1e-3


def test_no_rate_waits_for_nothing() -> None:
    sleeper = Sleeper()
    pace = CommandRate(None, sleeper.clock, sleeper.sleep)
    pace.pay(10**9)
    pace.wait()
    assert sleeper.slept == 0


def test_a_paced_turn_sends_its_share_a_second() -> None:
    sleeper = Sleeper()

    def send() -> None:
        SENT.commands += 50

    job = Scripted([10] * 40, send)
    turn = take_turn(
        job, Orders(1_000, 1.0, 600.0, max_ops=100.0), clock=sleeper.clock, sleep=sleeper.sleep
    )
    assert turn.is_drained
    assert turn.operations == 2_000
    # All but the last slice are paid for by waiting.
    assert sleeper.slept == pytest.approx((2_000 - 50) / 100)
    assert set(job.limits) == {100}


@given(
    share=st.floats(0.01, 1.0),
    slices=st.lists(
        st.tuples(st.integers(0, 200), st.floats(0, 0.05), st.floats(0, 0.1)),
        min_size=1,
        max_size=40,
    ),
)
def test_round_trips_take_no_more_than_their_share_and_one_slice(
    share: float, slices: list[tuple[int, float, float]]
) -> None:
    sleeper, todo = Sleeper(), list(slices)
    spent: list[tuple[float, float]] = []

    def work() -> None:
        _, trips, own = todo.pop(0)
        spent.append((sleeper.clock.monotonic(), trips))
        SENT.seconds += trips
        SENT.server_seconds += trips
        SENT.commands += 1
        # The process's own work is a part of the pause.
        sleeper.clock.advance(trips + own)

    turn = take_turn(
        Scripted([items for items, _, _ in slices], work),
        Orders(200, 1.0, 1e9, max_share=share),
        clock=sleeper.clock,
        sleep=sleeper.sleep,
    )
    assert turn.is_drained
    longest = max(trips for _, trips in spent)
    for first, (begin, _) in enumerate(spent):
        total = 0.0
        for began, trips in spent[first:]:
            total += trips
            assert total <= share * (began + trips - begin) + longest + 1e-6


def test_a_share_cuts_slices_until_their_round_trips_are_short() -> None:
    sleeper = Sleeper()
    job = Scripted([])

    def work() -> None:
        # 100 us an item, so that 1,000 would hold others up for 100 ms.
        assert SENT.asks_time
        SENT.seconds += 0.0001 * job.limits[-1]
        SENT.server_seconds += 0.0001 * job.limits[-1]
        sleeper.clock.advance(0.0001 * job.limits[-1])

    job.steps, job.during = [1_000] * 60, work
    # What it answers does not matter, only that it fills its slices.
    orders = Orders(1_000, 1.0, 1e9, max_share=0.2)
    take_turn(job, orders, clock=sleeper.clock, sleep=sleeper.sleep)
    assert job.limits[0] == 64
    assert all(0.0001 * limit <= SLICE_SECONDS for limit in job.limits[1:])
    quick = Scripted([1_000] * 60, lambda: sleeper.clock.advance(1e-6))
    take_turn(quick, orders, clock=sleeper.clock, sleep=sleeper.sleep)
    assert quick.limits[-1] == 1_000


def test_a_long_way_to_the_server_cuts_no_slices() -> None:
    sleeper = Sleeper()

    def work() -> None:
        SENT.seconds += 0.05
        SENT.server_seconds += 0.0001
        sleeper.clock.advance(0.05)

    job = Scripted([1_000] * 60, work)
    orders = Orders(1_000, 1.0, 1e9, max_share=0.2)
    take_turn(job, orders, clock=sleeper.clock, sleep=sleeper.sleep)
    assert job.limits[-1] == 1_000
    # A fifth of the server's time is less than the way takes.
    assert sleeper.slept == 0
    assert not SENT.asks_time


def test_a_server_that_refuses_to_tell_its_time_is_not_asked_again() -> None:
    asked: list[bool] = []

    def work() -> None:
        asked.append(SENT.asks_time)
        SENT.asks_time = False

    sleeper = Sleeper()
    orders = Orders(10, 1.0, 1e9, max_share=0.2)
    take_turn(Scripted([10] * 3, work), orders, clock=sleeper.clock, sleep=sleeper.sleep)
    assert asked[:3] == [True, False, False]


def test_a_share_takes_the_whole_slice_of_a_job_with_a_client_of_its_own() -> None:
    sleeper = Sleeper()
    job = Scripted([5] * 11, lambda: sleeper.clock.advance(0.01))
    turn = take_turn(
        job, Orders(10, 1.0, 1e9, max_share=0.2), clock=sleeper.clock, sleep=sleeper.sleep
    )
    assert turn.items == 55
    assert sleeper.slept == pytest.approx(10 * 0.04)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, True, "0.2", float("nan"), None])
def test_what_is_no_share_is_refused(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="0 < share <= 1"):
        checked_share(share, "max_share")


class Rounds:
    """Runs the driver's part of a sweep, on turns that a list says."""

    def __init__(self, script: dict[Any, list[TurnResult]]) -> None:
        self.script = script
        self.told: list[Orders] = []
        self.worked: list[list[int]] = []
        self.pauses: list[float] = []

    def work(self, left: Any, orders: Orders) -> list[tuple[int, TurnResult]]:
        self.told.append(orders)
        self.worked.append([number for number, _ in left])
        return [(number, self.script[part].pop(0)) for number, part in left]

    def run(self, max_rounds: int = 100, orders: Orders = ORDERS) -> list[tuple[Any, ...]]:
        pytest.importorskip("pyspark")
        from workstealing.spark.holding import SweepWatch
        from workstealing.spark.sweeping import rounds_of

        watch = SweepWatch()
        watch.sleep = self.pauses.append  # type: ignore[method-assign]
        return rounds_of(
            "job",
            list(self.script),
            orders,
            max_rounds=max_rounds,
            work=self.work,
            report=lambda *_: nullcontext(),
            watch=watch,
        )


def test_rounds_go_on_with_what_is_left() -> None:
    drained = TurnResult(items=1, slices=2, seconds=0.5, is_drained=True)
    half = TurnResult(items=5, slices=1, aborted=1, seconds=0.5, error="late")
    rounds = Rounds({"a": [half, half, drained], "b": [drained], "c": [half, drained]})
    rows = rounds.run(orders=Orders(100, 1.0, 60.0, max_ops=90.0, max_share=0.6))
    assert rounds.worked == [[0, 1, 2], [0, 2], [0]]
    # However many run at once, together they keep the bound.
    assert [told.max_ops for told in rounds.told] == [30.0, 45.0, 90.0]
    assert [told.max_share for told in rounds.told] == pytest.approx([0.2, 0.3, 0.6])
    assert rows == [
        (0, 11, 4, 2, 0, 0, 1.5, True, "", 3),
        (1, 1, 2, 0, 0, 0, 0.5, True, "", 1),
        (2, 6, 3, 1, 0, 0, 1.0, True, "", 2),
    ]
    assert rounds.pauses == []


def test_rounds_end_when_nothing_moves(caplog: pytest.LogCaptureFixture) -> None:
    stuck = TurnResult(failed=1, slices=1, error="ConnectionError: down")
    rounds = Rounds({"a": [TurnResult(items=1, is_drained=True)], "b": [stuck] * 50})
    rows = rounds.run()
    # One round in which something moved, and three in vain, with pauses that grow.
    assert len(rounds.worked) == 4
    assert len(rounds.pauses) == 2
    assert rows[1][7:] == (False, "ConnectionError: down", 4)
    assert "ended after 4 rounds with 1 of 2 parts not drained" in caplog.text
    assert "ConnectionError: down" in caplog.text


def test_rounds_are_bounded_where_everything_moves_for_ever() -> None:
    rounds = Rounds({"a": [TurnResult(items=1)] * 50})
    assert rounds.run(max_rounds=7)[0][:2] == (0, 7)


made: list[int] = []


def make_job() -> Job:
    made.append(1)
    return FunctionJob(lambda _: 0, name="made")


def test_a_worker_makes_its_job_once_a_sweep() -> None:
    made.clear()
    recipe = Recipe(make_job, "make_job")
    again = pickle.loads(pickle.dumps(recipe))
    assert recipe.made(Job) is again.made(Job)  # type: ignore[type-abstract]
    assert len(made) == 1
    assert Recipe(make_job, "make_job").made(Job) is not recipe.made(Job)  # type: ignore[type-abstract]


def test_an_import_path_is_made_too() -> None:
    job = Recipe("support.sweep_jobs:idle_job", "make_job").made(Job)  # type: ignore[type-abstract]
    assert job.name == "idle"


@pytest.mark.parametrize("factory", [None, 17, "no path", "__main__:job"])
def test_what_names_no_factory_is_refused(factory: Any) -> None:
    with pytest.raises(ConfigurationError, match="make_job"):
        Recipe(factory, "make_job")


@pytest.mark.parametrize("name", ["seconds", "turn_seconds"])
def test_the_times_of_a_sweep_are_seconds_or_timedeltas(name: str) -> None:
    pytest.importorskip("pyspark")
    from workstealing.spark import sweep

    spark: Any = None
    for wrong in (-1, 0, "5", timedelta(seconds=-1)):
        with pytest.raises(ConfigurationError, match="is no such time"):
            sweep(spark, "a:b", **{name: wrong})
    for right in (5, timedelta(seconds=5)):
        # The next argument is looked at.
        with pytest.raises(ConfigurationError, match="max_rounds"):
            sweep(spark, "a:b", max_rounds=0, **{name: right})


def test_the_time_of_a_step_of_reconcile_is_seconds_or_a_timedelta() -> None:
    pytest.importorskip("pyspark")
    from workstealing.spark import reconcile

    spark: Any = None
    table: Any = SimpleNamespace(columns=[])
    for wrong in (-1, 0, "5", timedelta(seconds=-1)):
        with pytest.raises(ConfigurationError, match="is no such time"):
            reconcile(spark, "a:b", table, seconds=wrong)
    for right in (5, timedelta(seconds=5)):
        # The next argument is looked at.
        with pytest.raises(ConfigurationError, match="id_column"):
            reconcile(spark, "a:b", table, seconds=right)


def make_behind_a_fault() -> Job:
    raise ConnectionError("the server is restarting")


def test_a_job_that_cannot_be_made_for_a_fault_waits_for_the_next_round() -> None:
    pytest.importorskip("pyspark")
    from workstealing.spark.sweeping import _work

    recipe = Recipe(make_behind_a_fault, "make_job")
    turn = _work(recipe, None, is_divided=False, orders=ORDERS)
    assert turn == TurnResult(failed=1, error="ConnectionError: the server is restarting")
    # What no later round could mend is Spark's to show.
    with pytest.raises(ConfigurationError, match="has no 'nowhere'"):
        _work(Recipe("support.sweep_jobs:nowhere", "make_job"), None, False, ORDERS)
