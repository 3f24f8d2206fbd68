"""The sink of ``format("workstealing.log")``: a partition's rows become entries, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, StringType, StructType

from workstealing.spark.sources.arrow import as_bytes, checked_columns, is_text
from workstealing.spark.sources.log_once import Appender, Turn
from workstealing.spark.sources.log_options import FORMAT, LogOptions

_REQUIRED: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "value": (is_text, "a string or binary column, for instance to_json(struct('*'))")
}
_OPTIONAL: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "log": (lambda kind: isinstance(kind, StringType), "a string column with names of logs")
}
# What Spark tells each task of a streaming query.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Appended(WriterCommitMessage):
    """How many rows a task has appended, and how many another try of it had appended before."""

    rows: int
    before: int


def checked_for_writing(
    options: LogOptions, schema: StructType, overwrite: bool, is_stream: bool
) -> LogOptions:
    """Return options and a schema that can be written, before any task runs; no round trip.

    Errors: ConfigurationError for options, columns or a save mode that do not go with the sink.
    """
    if overwrite:
        raise options.wrong(
            "it only appends and never replaces what is there: write with"
            ' mode("append"), or as a stream with outputMode("append") or "update"'
        )
    checked_columns(f"format {FORMAT!r}", schema, _REQUIRED, _OPTIONAL)
    return options.for_writing(is_stream, "log" in schema.fieldNames())


def write_all(
    options: LogOptions, batches: Iterator[pa.RecordBatch], turn: Turn | None
) -> Appended:
    """Append all rows; a round trip for each 999 rows or 1 MiB of a log.

    Arguments: options; batches; turn: whose rows they are, for exactly once. Errors:
    ConfigurationError for a value or a log that is null; ReplayDiffersError.
    """
    appender = Appender(options.client.connected(), options.block, turn)
    for batch in batches:
        values = as_bytes(batch.column(batch.schema.get_field_index("value")))
        at = batch.schema.get_field_index("log")
        logs = list(options.logs) * len(values) if at < 0 else batch.column(at).to_pylist()
        for log, value in zip(logs, values, strict=True):
            if value is None or log is None:
                raise options.wrong(
                    f"a {'value' if value is None else 'log'} is null: leave such rows out before"
                    " writing; rows before it may be written"
                )
            appender.add(log, value)
    return Appended(*appender.finish())


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


class LogWriter(DataSourceArrowWriter):
    """Appends the rows of a table."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of a partition; see `write_all`."""
        options, turn = self._options, None
        if options.query is not None and options.batch is not None:
            turn = Turn(options.query, options.batch, _partition())
        return write_all(options, iterator, turn)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each batch of a stream."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of a partition of a batch; see `write_all`."""
        options, turn = self._options, None
        if options.exactly_once:
            context = TaskContext.get()
            assert context is not None
            query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
            if query is None or batch is None:
                raise options.wrong(
                    "Spark does not say which query and batch this is, so that exactlyOnce=true"
                    " cannot be kept: leave it out"
                )
            turn = Turn(query, int(batch), _partition())
        return write_all(options, iterator, turn)
