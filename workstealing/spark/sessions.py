"""The two kinds of sessions: with a SparkContext in this process, and of Spark Connect.

A client of Spark Connect has no SparkContext, no RDDs and no JVM. Such a client sends plans to a
server, which runs them. This module has the parts of a session that this package needs, for both
kinds.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from workstealing.errors import SessionStoppedError, WorkStealingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOCAL = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
# Enough rows for a row in each partition of any server.
_ROWS = 100_000
_CANCEL_SECONDS = 10.0
_OPTIMIZED, _PHYSICAL = "== Optimized Logical Plan ==", "== Physical Plan =="


def is_remote(spark: object) -> bool:
    """Say whether a session is one of Spark Connect; nothing is imported."""
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    return module is not None and isinstance(spark, module.SparkSession)


def is_stopped(spark: Any) -> bool:
    """Say whether somebody has stopped a session; False, too, where nobody tells."""
    if is_remote(spark):
        return bool(spark.is_stopped)
    with suppress(Exception):
        # A context has let go of its JVM's one when it is stopped; until then that one tells.
        context = spark.sparkContext._jsc  # noqa: SLF001 - there is no public way
        return context is None or bool(context.sc().isStopped())
    return False


F = TypeVar("F", bound=Callable[..., Any])


def told_of_a_stop(name: str) -> Callable[[F], F]:
    """Let a function say in a sentence that its session was stopped meanwhile.

    Spark and PySpark raise a dozen different errors then, from the JVM's to an AttributeError. The
    function's first argument is the session.

    Arguments:
        name: what the caller has called, for the error.

    Raises: SessionStoppedError; of a session that goes on, and of this package, the error itself.
    """

    def wrap(call: F) -> F:
        @wraps(call)
        def told(spark: Any, *args: Any, **options: Any) -> Any:
            try:
                return call(spark, *args, **options)
            except WorkStealingError:
                raise
            except Exception as error:
                if not is_stopped(spark):
                    raise
                raise SessionStoppedError(
                    f"the session of Spark was stopped before {name} had ended: what it has done"
                    f" stays done; call {name} in a new session, which does the rest"
                ) from error

        return cast("F", told)

    return wrap


def will_be_remote(builder: Any) -> bool:
    """Say whether a builder makes sessions of Spark Connect."""
    # There is no public way to look.
    options: dict[str, Any] = getattr(builder, "_options", {})
    return "spark.remote" in options or "SPARK_REMOTE" in os.environ


def cores_of(spark: Any) -> int:
    """Return how many tasks Spark runs at a time, as it sees it itself.

    Of a session of Spark Connect by one small job: nothing else tells.
    """
    if not is_remote(spark):
        return int(spark.sparkContext.defaultParallelism)
    parts = spark.range(_ROWS).selectExpr("spark_partition_id() AS part")
    return int(parts.distinct().count())


def run_each(spark: Any, items: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """Do something with each item in a task of its own; return the results in order.

    Items and results must be such that they can be pickled.
    """
    items = list(items)
    if not is_remote(spark):
        result: list[Any] = spark.sparkContext.parallelize(items, len(items)).map(do).collect()
        return result

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            positions = batch.column(0).to_pylist()
            results = [pickle.dumps(do(items[position])) for position in positions]
            yield pa.RecordBatch.from_arrays(
                [pa.array(positions, pa.int64()), pa.array(results, pa.binary())],
                ["position", "result"],
            )

    # A row in each partition.
    rows = spark.range(0, len(items), 1, len(items))
    found = rows.mapInArrow(run, "position long, result binary").collect()
    results = {row["position"]: pickle.loads(row["result"]) for row in found}  # noqa: S301 - ours
    return [results[position] for position in range(len(items))]


def cancel_group(spark: Any, group: str) -> None:
    """End the stages of a group that `named` has named. Raises: Spark's errors."""
    if is_remote(spark):
        spark.interruptTag(group)
    else:
        spark.sparkContext.cancelJobGroup(group)


def make_active(spark: Any) -> None:
    """Let Spark find this session, and so its sources of Python, for this thread.

    Spark looks for them in the active session of its own thread, one for each of Python. A thread
    that the session has not begun in has none there. After Ctrl-C, PySpark closes the connection
    that waited, and the next one has a new thread without it. Nothing public but this call names
    the session. It makes no job.
    """
    if not is_remote(spark):
        spark.createDataFrame([], "id int")


@contextmanager
def named(spark: Any, group: str, description: str) -> Iterator[None]:
    """Name the stages that this thread starts meanwhile, and end them if it is interrupted.

    By a job group with a description. A session of Spark Connect has neither: there the group is a
    tag, for `spark.interruptTag`.
    """
    if is_remote(spark):
        is_new = group not in spark.getTags()
        spark.addTag(group)
        try:
            with _ending(lambda: cancel_group(spark, group)):
                yield
        finally:
            if is_new:
                spark.removeTag(group)
        return
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _LOCAL}
    # Not with interruptOnCancel: Spark would end the task at once, and forget the Python worker,
    # which would go on with its turn. Without it, Spark kills the worker after two seconds.
    context.setJobGroup(group, description)
    try:
        with _ending(lambda: cancel_group(spark, group)):
            yield
    except BaseException:
        # The session may be at its end.
        with suppress(Exception):
            make_active(spark)
        raise
    finally:
        # Of a context that was stopped meanwhile nothing is left to restore.
        with suppress(Exception):
            for name, value in before.items():
                context.setLocalProperty(name, value)


@contextmanager
def _ending(cancel: Callable[[], Any]) -> Iterator[None]:
    """Cancel what this thread waits for, if it stops to wait: by Ctrl-C, or an error."""
    try:
        yield
    except BaseException:
        # PySpark's own handler of Ctrl-C tries so, too, on this thread's connection to the JVM,
        # which is waiting for the stage. Another thread has another connection.
        other = threading.Thread(target=_quietly, args=(cancel,), name="workstealing cancel")
        other.start()
        other.join(_CANCEL_SECONDS)
        raise


def _quietly(cancel: Callable[[], Any]) -> None:
    # The session may be at its end.
    with suppress(Exception):
        cancel()


def optimized_plan(table: DataFrame) -> str:
    """Return a table's plan as Spark would run it now, its caches included."""
    if hasattr(table, "_jdf"):
        # A table of its own: of one that was run before, Spark keeps the plan of that moment.
        anew: Any = table.select("*")._jdf  # noqa: SLF001 - explain() prints it
        return str(anew.queryExecution().withCachedData().toString())
    remote: Any = table
    plans: str = remote._explain_string(extended=True)  # noqa: SLF001 - the same
    return plans.partition(_OPTIMIZED)[2].partition(_PHYSICAL)[0]
