"""The exact difference between a tracked set and its table, and its removal in small steps.

The order is the point. The generations of all sub-sets are read before the table is, and come to
the driver, so that no task that is repeated can read newer ones:

- An id is removed if the table did not have it. Suppose that it has work now, with its `track()`
  done. That work was committed after the table was read. So its `track()` came after the generation
  was read, and has changed it: the step does nothing.
- An id is added if the table had it and the set did not. Had the application untracked it since,
  the generation would have changed as well.
- The moment at which the set's ids are read does not matter: each change by the application changes
  the generation. A task reads those of its sub-sets when it has the table's, so they never go
  through Spark, and a task that is repeated or runs twice reads them anew.

Where the tracked set has a source, a step asks it once more between WATCH and EXEC, and needs none
of this: then a table that is older, or cached, costs questions and nothing else.

A sub-set that the application changes meanwhile is tried again, for a bounded time. With a source
its step is, in halves. Without one all begins anew for the sub-sets that are left: their
generations are read, then the table, then the set.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError, TooManyRemovals
from workstealing.jobs.shared.settling import require_layout
from workstealing.recruiting.checks import checked_count, checked_seconds
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.spark.comparing import (
    COUNTS,
    IDS_OF_A_SAMPLE,
    PATIENCE_SECONDS,
    SAMPLES,
    applied,
)
from workstealing.spark.making import Factory, Recipe
from workstealing.spark.sessions import (
    cores_of,
    named,
    optimized_plan,
    run_each,
    told_of_a_stop,
)
from workstealing.spark.stages import Refusal, refusal_of
from workstealing.store.budget import Budget
from workstealing.structures.tracked_set import TrackedSet
from workstealing.structures.tracked_set.layout import id_text
from workstealing.structures.tracked_set.sub_sets import generations

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

MOST_REMOVED = 0.5
"""The share of the tracked ids that a reconciliation removes without being told to."""
ANY_SHARE = 1.0
TRY_SECONDS = 60.0
VAIN_ROUNDS = 3
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)

_log = logging.getLogger("workstealing.spark")


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result of a reconciliation.

    Fields: tracked: how many ids the set had; in_table: how many ids the table had; added, removed:
    how many ids were changed; left_to_jobs: how many were found different and were not changed,
    because they had changed meanwhile or their step failed; failed: how many steps failed; error:
    of one of them, "" for none; added_sample, removed_sample: up to 10 ids that only the table had,
    and that only the set had, as text; dry_run: nothing was changed, and added and removed are what
    the comparison has found (a source, which has the last word, was not asked); rounds: how often
    the table was read; busy_sub_sets: how many were changed by others at each try, and so left.
    """

    tracked: int
    in_table: int
    added: int
    removed: int
    left_to_jobs: int
    failed: int = 0
    error: str = ""
    added_sample: tuple[str, ...] = ()
    removed_sample: tuple[str, ...] = ()
    dry_run: bool = False
    rounds: int = 1
    busy_sub_sets: int = 0


@dataclass(frozen=True, slots=True)
class _RoundResult:
    """The result of one round: its counts, and the sub-sets that others kept from being settled.

    Fields: found; busy: the sub-sets; busy_ids: how many of the ids that are left are in these.
    """

    found: Reconciled
    busy: frozenset[int] = frozenset()
    busy_ids: int = 0


@dataclass(frozen=True, slots=True)
class _FirstFindings:
    """The first task's findings: sub-sets' generations and a source, or why `reconcile` stops."""

    generations: Mapping[int, bytes]
    has_source: bool
    refusal: Refusal | None = None


@told_of_a_stop("reconcile()")
def reconcile(
    spark: SparkSession,
    tracked: Factory,
    table: DataFrame,
    *,
    id_column: str | None = None,
    seconds: Duration = 30.0,
    partitions: int | None = None,
    dry_run: bool = False,
    max_removed: float = MOST_REMOVED,
    try_seconds: Duration = TRY_SECONDS,
) -> Reconciled:
    """Make a tracked set equal to a database table, but for what changes meanwhile.

    Arguments:
        tracked: the import path of a function without arguments that returns the `TrackedSet`, best
            with its source ("package.module:function"), or such a function that can be pickled;
            called once in each Python worker.
        table: a DataFrame of the rows with work, read when Spark runs it (``spark.read.jdbc``),
            from the primary.
        id_column: its column of ids, needed if there are several: text, whole numbers or bytes;
            null is no id.
        seconds: how long a step of at most 500 ids may take, in seconds or a timedelta, its
            question included.
        partitions: how many tasks, by default twice as many as cores.
        dry_run: count the difference, and change nothing.
        max_removed: the most ids that may be missing from the table, a whole number, or a share of
            the tracked ids as a float. 1.0 allows every removal, and saves the reading of the set
            that counts them first.
        try_seconds: how long sub-sets that others have changed meanwhile are tried again, in
            seconds or a timedelta; 0 tries each once. Without a source the table is read again for
            each further round, as long as a round as long as the last one fits in.

    Returns: `Reconciled`. Raises: TooManyRemovals, before anything is changed, if the table lacks
    more ids than max_removed; ConfigurationError and LayoutError, before anything is changed;
    ConfigurationError if Spark already holds the table's rows (a cache, local rows), which may be
    old, while the tracked set has no source; ConnectionError if the first look cannot be made;
    SessionStoppedError; Spark's own errors. Steps that abort to the end or fail are left to
    TrackQueued and UntrackDone, and counted, and `error` says why. Safe beside the application, the
    jobs and itself; a step is two round trips and a question, or one round trip without a source.
    """
    recipe = Recipe(tracked, "tracked")
    seconds = checked_seconds(seconds, "a step's length")
    ids = _ids_of(table, id_column)
    if partitions is None:
        partitions = 2 * cores_of(spark)
    partitions = checked_count(partitions, "partitions", 1)
    max_removed = _checked_removed(max_removed)
    try_seconds = seconds_of(try_seconds, "try_seconds", least=0.0)
    group = f"workstealing-reconcile-{recipe.token}"

    def look(numbers: frozenset[int] | None) -> _FirstFindings:
        with named(spark, group, "workstealing reconcile: generations"):
            first: _FirstFindings = run_each(spark, [None], lambda _: _look(recipe, numbers))[0]
        return first

    first = look(None)
    if first.refusal is not None:
        raise first.refusal.error()
    if not first.has_source and _is_old(table):
        raise ConfigurationError(
            "the table's rows are held by Spark already, and may be older than the tracked set:"
            " give a table that is read anew, or give the tracked set a source"
        )
    sub_sets = len(first.generations)
    brake = None if _is_any(max_removed) else _Brake(max_removed)

    def work(known: Mapping[int, bytes]) -> _RoundResult:
        """Compare and settle these sub-sets. Raises: TooManyRemovals, before the first step."""
        by_sub_set = _by_sub_set(spark, ids, sub_sets, known, partitions)
        counts_first = dry_run or brake is not None
        if counts_first:
            # The table is read once: what the brake has judged is what the steps go by.
            by_sub_set = by_sub_set.persist()
        try:
            if counts_first:
                with named(spark, group, "workstealing reconcile: difference"):
                    found = _done(by_sub_set, recipe, known, None, 0.0)
                if dry_run:
                    return found
                if brake is not None:
                    brake.judge(found.found)
            with named(spark, group, "workstealing reconcile: steps"):
                done = _done(by_sub_set, recipe, known, seconds, try_seconds)
        finally:
            if counts_first:
                # A session that was stopped meanwhile holds nothing any more.
                with suppress(Exception):
                    by_sub_set.unpersist()
        if brake is not None:
            brake.removed += done.found.removed
        return done

    if dry_run:
        done = replace(work(first.generations).found, dry_run=True)
        _log.info("compared: %s", done)
        return done
    done = rounds_of_reconcile(first, look, work, try_seconds)
    _log.log(logging.WARNING if done.error else logging.INFO, "reconciled: %s", done)
    return done


def rounds_of_reconcile(
    first: _FirstFindings,
    look: Callable[[frozenset[int]], _FirstFindings],
    work: Callable[[Mapping[int, bytes]], _RoundResult],
    try_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Reconciled:
    """Do rounds until no sub-set is left, nothing moves any more, or the next one has no time.

    Arguments:
        first: the generations of all sub-sets.
        look: reads generations anew.
        work: settles the sub-sets of these generations.
    """
    began = clock()
    turn = work(first.generations)
    total, lasted = turn.found, clock() - began
    # The first round is not counted: without a further one it has all the time that it takes.
    end, vain, why = clock() + try_seconds, 0, ""
    while turn.busy and not first.has_source and vain < VAIN_ROUNDS and clock() + lasted < end:
        sleep(random.random() * min(lasted, 1.0))
        began = clock()
        again = look(turn.busy)
        if again.refusal is not None:
            why = again.refusal.text
            break
        before = turn
        try:
            turn = work(again.generations)
        except TooManyRemovals as error:
            why = str(error)
            break
        lasted = clock() - began
        vain = 0 if len(turn.busy) < len(before.busy) else vain + 1
        found = turn.found
        total = replace(
            total,
            added=total.added + found.added,
            removed=total.removed + found.removed,
            left_to_jobs=total.left_to_jobs - before.busy_ids + found.left_to_jobs,
            failed=total.failed + found.failed,
            error=total.error or found.error,
            rounds=total.rounds + 1,
        )
    return replace(
        total,
        busy_sub_sets=len(turn.busy),
        error=total.error or why or (_busy(turn, first.has_source) if turn.busy else ""),
    )


def _busy(turn: _RoundResult, has_source: bool) -> str:
    advice = "" if has_source else "; a tracked set with a source needs no such rest"
    return (
        f"{len(turn.busy):,} sub-sets were changed by others each time that they were compared, so"
        f" {turn.busy_ids:,} ids are left to the jobs{advice}"
    )


def _by_sub_set(
    spark: SparkSession,
    ids: DataFrame,
    sub_sets: int,
    wanted: Collection[int],
    partitions: int,
) -> DataFrame:
    """Return the ids of some sub-sets, sorted by them."""
    asked = ids.select((f.crc32(f.col("id")) % sub_sets).cast("int").alias("sub_set"), "id")
    # A row without an id tells a task of a sub-set of which the table has nothing.
    named_ones = spark.range(sub_sets).select(
        f.col("id").cast("int").alias("sub_set"), f.lit(None).cast("binary").alias("id")
    )
    both = asked.unionByName(named_ones)
    if len(wanted) < sub_sets:
        both = both.where(f.col("sub_set").isin(sorted(wanted)))
    return both.repartition(partitions, "sub_set").sortWithinPartitions("sub_set")


def _done(
    by_sub_set: DataFrame,
    recipe: Recipe,
    known: Mapping[int, bytes],
    seconds: float | None,
    try_seconds: float,
) -> _RoundResult:
    """Compare all sub-sets, in tasks, and apply the differences; seconds=None: only count them."""

    def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return applied(recipe, known, seconds, try_seconds, batches)

    columns = [f"{name} long" for name in COUNTS]
    columns += [f"{name} array<binary>" for name in SAMPLES]
    columns += ["busy array<int>", "error string"]
    rows = by_sub_set.mapInArrow(apply, ", ".join(columns)).collect()
    total = {name: sum(int(row[name]) for row in rows) for name in COUNTS}
    added_sample, removed_sample = (
        tuple(id_text(bytes(each)) for row in rows for each in row[name])[:IDS_OF_A_SAMPLE]
        for name in SAMPLES
    )
    found = Reconciled(
        total["tracked"],
        total["in_table"],
        total["added"],
        total["removed"],
        total["left"],
        total["failed"],
        next((str(row["error"]) for row in rows if row["error"]), ""),
        added_sample,
        removed_sample,
    )
    busy = frozenset(int(number) for row in rows for number in row["busy"])
    return _RoundResult(found, busy, total["busy_ids"])


def _checked_removed(most: Any) -> float:
    is_number = isinstance(most, int | float) and not isinstance(most, bool)
    if is_number and most >= 0 and (isinstance(most, int) or most <= ANY_SHARE):
        allowed: float = most
        return allowed
    raise ConfigurationError(
        f"max_removed is {most!r}; expected a number of ids, 0 or more, or a share of the tracked"
        " ids as a float, 0.0 to 1.0"
    )


def _is_any(most: float) -> bool:
    """Say whether every removal is allowed."""
    return isinstance(most, float) and most >= ANY_SHARE


class _Brake:
    """Refuses to remove more than was allowed, of all rounds together."""

    __slots__ = ("_allowed", "_most", "removed")

    def __init__(self, most: float) -> None:
        self._most = most
        self._allowed: float | None = None
        self.removed = 0

    def judge(self, found: Reconciled) -> None:
        """Judge the difference that the next steps would apply. Raises: TooManyRemovals."""
        if self._allowed is None:
            # A share is one of the whole set, which the first round has counted.
            is_number = isinstance(self._most, int)
            self._allowed = self._most if is_number else self._most * found.tracked
        if self.removed + found.removed <= self._allowed:
            return
        said = f"the table lacks {found.removed:,} of {found.tracked:,} tracked ids"
        kept = "nothing was changed" if not self.removed else "no more was changed"
        ANNOUNCEMENTS.tell("braked", "a reconcile by Spark", f"{said}, and {kept}")
        sample = ", ".join(map(repr, found.removed_sample[:3]))
        before = f" beside the {self.removed:,} that are removed" if self.removed else ""
        raise TooManyRemovals(
            f"{said}, such as {sample}, and has {found.in_table:,} ids itself;"
            f" max_removed={self._most!r} allows {self._allowed:,.0f}{before}, so {kept}: see"
            " whether it is the right table, and spells its ids as the application does, or allow"
            " more"
        )


def _ids_of(table: DataFrame, id_column: str | None) -> DataFrame:
    """Return the table's ids as a tracked set stores them: bytes, in a column `id`."""
    if id_column is None:
        if len(table.columns) != 1:
            raise ConfigurationError(
                f"the table has the columns {', '.join(table.columns)}: say which one has the ids,"
                " by id_column"
            )
        id_column = table.columns[0]
    if id_column not in table.columns:
        raise ConfigurationError(
            f"the table has no column {id_column!r}, but {', '.join(table.columns)}"
        )
    # Spark's type is string; the table's own stands beside it.
    kind = table.schema[id_column].metadata.get("__CHAR_VARCHAR_TYPE_STRING", "")
    if kind.startswith("char("):
        raise ConfigurationError(
            f"the column {id_column!r} holds {kind}, whose ids are filled up with blanks: give"
            f' table.selectExpr("rtrim({id_column}) AS id"), as the application writes its ids'
        )
    column = f.col("`" + id_column.replace("`", "``") + "`")
    raw = _bytes_of(column, table.schema[id_column].dataType, id_column)
    return table.select(raw.alias("id")).where(f.col("id").isNotNull())


def _bytes_of(column: Column, kind: DataType, name: str) -> Column:
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StringType):
        return column.cast("binary")
    if isinstance(kind, _INTEGERS) or (isinstance(kind, DecimalType) and kind.scale == 0):
        return column.cast("string").cast("binary")
    raise ConfigurationError(
        f"the column {name!r} holds {kind.simpleString()}, which has no one form as text: cast it"
        " to text, as the application writes its ids"
    )


def _is_old(table: DataFrame) -> bool:
    """Say whether rows of the table have been read already, and would not be read anew."""
    plan = optimized_plan(table)
    # A cache; rows that the driver brought; a checkpoint, or rows of an RDD.
    return any(node in plan for node in ("InMemoryRelation", "LocalRelation", "LogicalRDD"))


def _look(recipe: Recipe, numbers: frozenset[int] | None) -> _FirstFindings:
    """Read the generations of sub-sets, None for all, in a Python worker."""
    try:
        tracked = recipe.made(TrackedSet)
        budget = Budget(60.0, PATIENCE_SECONDS)
        require_layout(tracked, budget)
        wanted = range(tracked.names.sub_sets) if numbers is None else sorted(numbers)
        return _FirstFindings(
            generations(tracked.job_client, tracked.names, wanted, budget),
            tracked.source is not None,
        )
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return _FirstFindings({}, has_source=False, refusal=refusal)
