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
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
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

from workstealing.clock import Duration
from workstealing.errors import Aborted, ConfigurationError, TooManyRemovals, is_abort
from workstealing.jobs.shared.settling import (
    Settled,
    require_layout,
    settle,
    settle_unchanged,
)
from workstealing.recruiting.checks import checked_count, checked_seconds
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.recruiting.slice import Slice
from workstealing.spark.making import Factory, Recipe
from workstealing.spark.sessions import cores_of, named, optimized_plan, run_each
from workstealing.spark.stages import Refusal, refusal_of
from workstealing.store.budget import Budget
from workstealing.structures.tracked_set import TrackedSet
from workstealing.structures.tracked_set.layout import id_text
from workstealing.structures.tracked_set.sub_sets import generations, scan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

IDS_A_STEP = 500
PATIENCE_SECONDS = 5.0
MOST_REMOVED = 0.5
"""The share of the tracked ids that a reconciliation removes without being told to."""
ANY_SHARE = 1.0
IDS_OF_A_SAMPLE = 10
_COUNTS = ("tracked", "in_table", "added", "removed", "left", "failed")
_SAMPLES = ("added_sample", "removed_sample")
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
    the comparison has found (a source, which has the last word, was not asked).
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


@dataclass(frozen=True, slots=True)
class _FirstFindings:
    """The first task's findings: sub-sets' generations and a source, or why `reconcile` stops."""

    generations: Mapping[int, bytes]
    has_source: bool
    refusal: Refusal | None = None


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

    Returns: `Reconciled`. Raises: TooManyRemovals, before anything is changed, if the table lacks
    more ids than max_removed; ConfigurationError and LayoutError, before anything is changed;
    ConfigurationError if Spark already holds the table's rows (a cache, local rows), which may be
    old, while the tracked set has no source; ConnectionError if the first look cannot be made;
    Spark's own errors. Steps that abort or fail are left to TrackQueued and UntrackDone, and
    counted. Safe beside the application, the jobs and itself; a step is two round trips and a
    question, or one round trip without a source.
    """
    recipe = Recipe(tracked, "tracked")
    seconds = checked_seconds(seconds, "a step's length")
    ids = _ids_of(table, id_column)
    if partitions is None:
        partitions = 2 * cores_of(spark)
    partitions = checked_count(partitions, "partitions", 1)
    max_removed = _checked_removed(max_removed)
    group = f"workstealing-reconcile-{recipe.token}"
    with named(spark, group, "workstealing reconcile: generations"):
        look: _FirstFindings = run_each(spark, [None], lambda _: _look(recipe))[0]
    if look.refusal is not None:
        raise look.refusal.error()
    if not look.has_source and _is_old(table):
        raise ConfigurationError(
            "the table's rows are held by Spark already, and may be older than the tracked set:"
            " give a table that is read anew, or give the tracked set a source"
        )
    known = dict(look.generations)
    sub_sets = len(known)
    asked = ids.select((f.crc32(f.col("id")) % sub_sets).cast("int").alias("sub_set"), "id")
    # A row without an id tells a task of a sub-set of which the table has nothing.
    named_ones = spark.range(sub_sets).select(
        f.col("id").cast("int").alias("sub_set"), f.lit(None).cast("binary").alias("id")
    )
    by_sub_set = (
        asked.unionByName(named_ones)
        .repartition(partitions, "sub_set")
        .sortWithinPartitions("sub_set")
    )

    is_any_allowed = isinstance(max_removed, float) and max_removed >= ANY_SHARE
    counts_first = dry_run or not is_any_allowed
    if counts_first:
        # The table is read once: what the brake has judged is what the steps go by.
        by_sub_set = by_sub_set.persist()
    try:
        if counts_first:
            with named(spark, group, "workstealing reconcile: difference"):
                found = _done(by_sub_set, recipe, known, None)
            if dry_run:
                done = replace(found, dry_run=True)
                _log.info("compared: %s", done)
                return done
            _brake(found, max_removed)
        with named(spark, group, "workstealing reconcile: steps"):
            done = _done(by_sub_set, recipe, known, seconds)
    finally:
        if counts_first:
            # A session that was stopped meanwhile holds nothing any more.
            with suppress(Exception):
                by_sub_set.unpersist()
    _log.log(logging.WARNING if done.failed else logging.INFO, "reconciled: %s", done)
    return done


def _done(
    by_sub_set: DataFrame,
    recipe: Recipe,
    known: Mapping[int, bytes],
    seconds: float | None,
) -> Reconciled:
    """Compare all sub-sets, in tasks, and apply the differences; seconds=None: only count them."""

    def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _applied(recipe, known, seconds, batches)

    columns = [f"{name} long" for name in _COUNTS]
    columns += [f"{name} array<binary>" for name in _SAMPLES]
    rows = by_sub_set.mapInArrow(apply, ", ".join([*columns, "error string"])).collect()
    total = {name: sum(int(row[name]) for row in rows) for name in _COUNTS}
    added_sample, removed_sample = (
        tuple(id_text(bytes(each)) for row in rows for each in row[name])[:IDS_OF_A_SAMPLE]
        for name in _SAMPLES
    )
    return Reconciled(
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


def _checked_removed(most: Any) -> float:
    is_number = isinstance(most, int | float) and not isinstance(most, bool)
    if is_number and most >= 0 and (isinstance(most, int) or most <= ANY_SHARE):
        allowed: float = most
        return allowed
    raise ConfigurationError(
        f"max_removed is {most!r}; expected a number of ids, 0 or more, or a share of the tracked"
        " ids as a float, 0.0 to 1.0"
    )


def _brake(found: Reconciled, most: float) -> None:
    """Refuse to remove more than was allowed. Raises: TooManyRemovals."""
    allowed = most if isinstance(most, int) else most * found.tracked
    if found.removed > allowed:
        said = f"the table lacks {found.removed:,} of {found.tracked:,} tracked ids"
        ANNOUNCEMENTS.tell("braked", "a reconcile by Spark", f"{said}, and nothing was changed")
        sample = ", ".join(map(repr, found.removed_sample[:3]))
        raise TooManyRemovals(
            f"{said}, such as {sample}, and has {found.in_table:,} ids itself;"
            f" max_removed={most!r} allows {allowed:,.0f}, so nothing was changed: see whether it"
            " is the right table, and spells its ids as the application does, or allow more"
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


def _look(recipe: Recipe) -> _FirstFindings:
    """Read the generations of all sub-sets, in a Python worker."""
    try:
        tracked = recipe.made(TrackedSet)
        budget = Budget(60.0, PATIENCE_SECONDS)
        require_layout(tracked, budget)
        return _FirstFindings(
            generations(tracked.job_client, tracked.names, range(tracked.names.sub_sets), budget),
            tracked.source is not None,
        )
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        return _FirstFindings({}, has_source=False, refusal=refusal)


def _applied(
    recipe: Recipe,
    known: Mapping[int, bytes],
    seconds: float | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Compare sub-sets and apply the differences, in steps of at most 500 ids; yield the counts.

    Arguments:
        seconds: of a step; None: the differences are counted alone, as if all were applied.
    """
    import pyarrow as pa

    from workstealing.spark.differences import difference, whole_sub_sets

    kinds = {name: pa.int64() for name in _COUNTS}
    kinds |= {name: pa.list_(pa.binary()) for name in _SAMPLES}
    schema = pa.schema({**kinds, "error": pa.string()})
    tracked = recipe.made(TrackedSet)
    for table in whole_sub_sets(batches):
        found = difference(table, lambda numbers: scan(tracked.job_client, tracked.names, numbers))
        different = Settled(
            sum(len(missing) for _, _, missing in found.steps),
            sum(len(stale) for _, stale, _ in found.steps),
        )
        done, errors = Settled(), []
        if seconds is None:
            done = different
        else:
            for sub_set, stale, missing in found.steps:
                for ids in _steps_of(stale, missing):
                    settled, error = _step(tracked, sub_set, known[sub_set], ids, seconds)
                    done = Settled(done.added + settled.added, done.removed + settled.removed)
                    errors += [error] if error else []
        left = different.added + different.removed - done.added - done.removed
        counts = (found.tracked, found.in_table, done.added, done.removed, left, len(errors))
        row: dict[str, Any] = dict(zip(_COUNTS, counts, strict=True))
        missing_ids = (each for _, _, missing in found.steps for each in missing)
        stale_ids = (each for _, stale, _ in found.steps for each in stale)
        for name, side in zip(_SAMPLES, (missing_ids, stale_ids), strict=True):
            row[name] = list(islice(side, IDS_OF_A_SAMPLE))
        row["error"] = errors[0] if errors else ""
        yield pa.RecordBatch.from_pylist([row], schema)


def _steps_of(
    stale: list[bytes], missing: list[bytes]
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield stale and missing ids of one sub-set, at most 500 together."""
    for start in range(0, len(stale) + len(missing), IDS_A_STEP):
        end = start + IDS_A_STEP
        yield stale[start:end], missing[max(0, start - len(stale)) : max(0, end - len(stale))]


def _step(
    tracked: TrackedSet,
    sub_set: int,
    generation: bytes,
    ids: tuple[list[bytes], list[bytes]],
    seconds: float,
) -> tuple[Settled, str]:
    """Make one step; return what it changed, and the error that kept it from doing so."""
    stale, missing = ids
    slice = Slice(IDS_A_STEP, seconds)
    try:
        if tracked.source is None:
            return settle_unchanged(
                tracked,
                sub_set,
                generation,
                slice,
                stale=stale,
                missing=missing,
                timeout=PATIENCE_SECONDS,
            ), ""
        getattr(tracked.source, "warm_up", lambda _: None)(seconds)
        return settle(tracked, sub_set, slice, stale=stale, missing=missing), ""
    except Aborted:
        return Settled(), ""
    except Exception as error:  # noqa: BLE001 - the step is left to the jobs, and says why
        if is_abort(error):
            return Settled(), ""
        return Settled(), f"{type(error).__name__}: {error}"
