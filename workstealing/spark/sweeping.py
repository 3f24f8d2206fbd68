"""Sweeps: a job over its whole keyspace, by as many processes as Spark has, until nothing is left.

Spark schedules, shows and repeats the tasks. A task that is repeated, or runs twice at once, is
harmless: all it does is slices, and each of them is exact by itself.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError, is_connection_fault
from workstealing.recruiting.checks import checked_count, checked_limit, checked_seconds
from workstealing.recruiting.job import DivisibleJob, Job
from workstealing.spark.holding import SweepHandle, SweepWatch
from workstealing.spark.making import Factory, Recipe
from workstealing.spark.sessions import cores_of, named, run_each, told_of_a_stop
from workstealing.spark.stages import (
    Orders,
    Refusal,
    TurnResult,
    checked_share,
    refusal_of,
    take_turn,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 1_000
TURN_SECONDS = 60.0
PARTS_A_CORE = 4
VAIN_ROUNDS = 3
_PAUSE_SECONDS = 1.0

_log = logging.getLogger("workstealing.spark")

SCHEMA = StructType(
    [
        StructField("part", LongType(), nullable=False),
        StructField("items", LongType(), nullable=False),
        StructField("slices", LongType(), nullable=False),
        StructField("aborted", LongType(), nullable=False),
        StructField("failed", LongType(), nullable=False),
        StructField("operations", LongType(), nullable=False),
        StructField("seconds", DoubleType(), nullable=False),
        StructField("drained", BooleanType(), nullable=False),
        StructField("error", StringType(), nullable=False),
        StructField("rounds", LongType(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The result of a look at the job.

    Fields: name: of the job; limit: the items of a slice; parts: None for a job that cannot be
    divided; refusal: why the job cannot be swept.
    """

    name: str = ""
    limit: int = LIMIT
    parts: tuple[Any, ...] | None = None
    refusal: Refusal | None = None


@overload
def sweep(
    spark: SparkSession,
    make_job: Factory,
    *,
    limit: int | None = None,
    seconds: Duration = 5.0,
    max_ops: float | None = None,
    max_share: float | None = None,
    partitions: int | None = None,
    max_rounds: int = 100,
    turn_seconds: Duration = TURN_SECONDS,
    wait: Literal[True] = True,
) -> DataFrame: ...


@overload
def sweep(
    spark: SparkSession,
    make_job: Factory,
    *,
    limit: int | None = None,
    seconds: Duration = 5.0,
    max_ops: float | None = None,
    max_share: float | None = None,
    partitions: int | None = None,
    max_rounds: int = 100,
    turn_seconds: Duration = TURN_SECONDS,
    wait: Literal[False],
) -> SweepHandle: ...


def sweep(
    spark: SparkSession,
    make_job: Factory,
    *,
    limit: int | None = None,
    seconds: Duration = 5.0,
    max_ops: float | None = None,
    max_share: float | None = None,
    partitions: int | None = None,
    max_rounds: int = 100,
    turn_seconds: Duration = TURN_SECONDS,
    wait: bool = True,
) -> DataFrame | SweepHandle:
    """Run a job over its whole keyspace, in parallel, until what it found at the start is done.

    Arguments:
        make_job: the import path of a function without arguments that returns the job
            ("package.module:function"), or such a function that can be pickled: called once in each
            Python worker, which connects by its own environment.
        limit: items a slice, by default 1,000, or the job's own if it does not divide.
        seconds: the longest slice.
        max_ops: Redis commands a second of the whole sweep, None for no bound.
        max_share: the share of a server's time that the whole sweep may take, by the length of its
            round trips, None for no bound.
        partitions: by default 4 for each core, or 1 with max_ops or max_share.
        max_rounds: how many stages at most.
        turn_seconds: after how long a task reports, and the next round goes on.
        wait: False returns at once, while the sweep goes on in a thread.

    Both times are seconds or a timedelta.

    Returns: a DataFrame of one row for each part: part, items, slices, aborted, failed, operations,
    seconds, drained, error, rounds. With wait=False a `SweepHandle`, with `progress()`, `cancel()`,
    `is_done` and `result()`, which returns the DataFrame or raises. Parts that are not drained are
    logged as well. Raises: ConfigurationError and LayoutError before anything is changed;
    ConnectionError if the first look cannot be made; SessionStoppedError.

    Safe beside live traffic, the jobs and other sweeps. A job that divides (HashFieldExpiry,
    KeyExpiry, QueueExpiry, MigrateToNative, MigrateToEmulated, AdoptHashes, FleetRebalance,
    Leftovers and its kinds, IckReaper, ShuffleQueueReaper, LogCompactor, LogTrimmer) is swept part
    by part. Every task of any other job does the same until it has found nothing several times in a
    row.
    """
    recipe = Recipe(make_job, "make_job")
    orders = Orders(
        checked_limit(limit) if limit is not None else 0,
        checked_seconds(seconds, "a slice's length"),
        checked_seconds(turn_seconds, "turn_seconds"),
        None if max_ops is None else _checked_rate(max_ops),
        None if max_share is None else checked_share(max_share, "max_share"),
    )
    max_rounds = checked_count(max_rounds, "max_rounds", 1)
    if partitions is not None:
        partitions = checked_count(partitions, "partitions", 1)
    group = f"workstealing-sweep-{recipe.token}"

    def run(watch: SweepWatch) -> DataFrame:
        return _run(
            spark,
            recipe,
            orders,
            partitions=partitions,
            max_rounds=max_rounds,
            group=group,
            watch=watch,
        )

    return run(SweepWatch()) if wait else SweepHandle(spark, group, run)


@told_of_a_stop("sweep()")
def _run(
    spark: SparkSession,
    recipe: Recipe,
    orders: Orders,
    *,
    partitions: int | None,
    max_rounds: int,
    group: str,
    watch: SweepWatch,
) -> DataFrame:
    """Do a sweep; return its rows."""
    if partitions is None:
        # A bound is divided among the parts, and only those that run can use their shares.
        is_bounded = orders.max_ops is not None or orders.max_share is not None
        partitions = cores_of(spark) * (1 if is_bounded else PARTS_A_CORE)
    with named(spark, group, "workstealing sweep: division"):
        plan = run_each(spark, [partitions], lambda n: _divide(recipe, n))[0]
    if plan.refusal is not None:
        raise plan.refusal.error()
    orders = replace(orders, limit=orders.limit or plan.limit)
    parts = [None] * partitions if plan.parts is None else list(plan.parts)
    watch.begun(plan.name, len(parts))

    def report(number: int, left: int) -> Any:
        text = f"workstealing sweep of {plan.name}: round {number}, {left} of {len(parts)} parts"
        return named(spark, group, text)

    def work(left: Sequence[tuple[int, Any]], told: Orders) -> list[tuple[int, TurnResult]]:
        is_divided = plan.parts is not None
        return run_each(
            spark, left, lambda each: (each[0], _work(recipe, each[1], is_divided, told))
        )

    rows = rounds_of(
        plan.name, parts, orders, max_rounds=max_rounds, work=work, report=report, watch=watch
    )
    return spark.createDataFrame(rows, SCHEMA)


def rounds_of(
    name: str,
    parts: Sequence[Any],
    orders: Orders,
    *,
    max_rounds: int,
    work: Callable[[Sequence[tuple[int, Any]], Orders], list[tuple[int, TurnResult]]],
    report: Callable[[int, int], Any],
    watch: SweepWatch | None = None,
) -> list[tuple[Any, ...]]:
    """Do rounds until every part is drained, or nothing moves any more; return the rows."""
    watch = watch or SweepWatch()
    totals = [TurnResult() for _ in parts]
    rounds = [0] * len(parts)
    left = list(enumerate(parts))
    number = vain = 0
    while left and number < max_rounds and vain < VAIN_ROUNDS:
        if vain:
            watch.sleep(_PAUSE_SECONDS * 2**vain * (0.5 + random.random() / 2))
        watch.require_going()
        number += 1
        with report(number, len(left)):
            turns = work(left, shared(orders, len(left)))
        for part, turn in turns:
            totals[part] = added(totals[part], turn)
            rounds[part] = number
        drained = {part for part, turn in turns if turn.is_drained}
        items = sum(turn.items for _, turn in turns)
        _log.info(
            "sweep of %s, round %d: %d items by %d parts, %d aborted slices, %d parts failed;"
            " %d of %d parts are left",
            name,
            number,
            items,
            len(left),
            sum(turn.aborted for _, turn in turns),
            sum(turn.failed for _, turn in turns),
            len(left) - len(drained),
            len(parts),
        )
        vain = 0 if items or drained else vain + 1
        left = [each for each in left if each[0] not in drained]
        watch.ended_round(number, len(left), totals)
    if left:
        _log.warning(
            "sweep of %s ended after %d rounds with %d of %d parts not drained; an error: %s",
            name,
            number,
            len(left),
            len(parts),
            next((totals[part].error for part, _ in left if totals[part].error), "none"),
        )
    return [(n, *astuple(total), rounds[n]) for n, total in enumerate(totals)]


def shared(orders: Orders, parts: int) -> Orders:
    """Return the orders of each of so many parts.

    All of them may run at once: the number of cores is unknown.
    """
    return replace(
        orders,
        max_ops=None if orders.max_ops is None else orders.max_ops / parts,
        max_share=None if orders.max_share is None else orders.max_share / parts,
    )


def added(total: TurnResult, turn: TurnResult) -> TurnResult:
    """Return the sum of what a part has done so far and in one more turn."""
    return TurnResult(
        total.items + turn.items,
        total.slices + turn.slices,
        total.aborted + turn.aborted,
        total.failed + turn.failed,
        total.operations + turn.operations,
        total.seconds + turn.seconds,
        turn.is_drained,
        # The last error, if there is one, kept the part from being drained.
        "" if turn.is_drained else turn.error,
    )


def _divide(recipe: Recipe, n: int) -> SweepPlan:
    """Look at the job, in a Python worker: the driver may not even reach its server."""
    from workstealing.jobs import TrackQueued, UntrackDone

    try:
        job = recipe.made(Job)  # type: ignore[type-abstract]
        if isinstance(job, TrackQueued | UntrackDone):
            raise ConfigurationError(
                f"the job {job.name!r} walks or samples: reconcile() compares the set with the"
                " whole table"
            )
        if isinstance(job, DivisibleJob):
            return SweepPlan(job.name, LIMIT, tuple(job.parts(n)))
        return SweepPlan(job.name, job.limit)
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return SweepPlan(refusal=refusal)


def _work(recipe: Recipe, part: Any, is_divided: bool, orders: Orders) -> TurnResult:
    """Take a turn, in a Python worker."""
    try:
        job = recipe.made(Job)  # type: ignore[type-abstract]
    except Exception as error:
        # A cluster's client asks for its map: a fault then is as one in a slice.
        if not is_connection_fault(error):
            raise
        return TurnResult(failed=1, error=f"{type(error).__name__}: {error}")
    if is_divided and isinstance(job, DivisibleJob):
        job = job.for_part(part)
    return take_turn(job, orders)


def _checked_rate(rate: object) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise ConfigurationError(f"max_ops is {rate!r}; expected commands a second, above 0")
    return float(rate)
