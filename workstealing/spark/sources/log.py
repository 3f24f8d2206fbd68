"""``format("workstealing.log")``: logs as a table, as a sink, and as the source of a stream.

Tasks append at least once, or each row exactly once. For exactly once, each log keeps for each
partition of a query: the batch, how many of its rows are in the log, and a digest of these. The
script that appends the rows writes this note of the batch, too. A task that is tried again counts
its rows, leaves out the rows that are there, checks by the digest that they were the same, and goes
on behind them. Two tasks that run at the same time do so too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import DataType, LongType, StringType, StructType

from workstealing.errors import ReplayDiffersError
from workstealing.spark.sources.arrow import (
    as_bytes,
    checked_columns,
    column_of,
    is_text,
    require_schema,
    text_type,
)
from workstealing.spark.sources.compat import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Format,
    InputPartition,
    OptionsKeeper,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    WriterCommitMessage,
)
from workstealing.spark.sources.log_offsets import (
    LogOffset,
    LogPlanner,
    Span,
    batch_offset,
    cut,
    looks,
    pages,
    spans_of,
    within,
)
from workstealing.spark.sources.log_options import FORMAT, LogOptions
from workstealing.spark.sources.options import runs
from workstealing.spark.sources.origins import Origin, origin_of
from workstealing.spark.sources.pushing import NUMBER, TEXT, Column, Pushing
from workstealing.store.operations import drive
from workstealing.structures import Log
from workstealing.structures.log.writing import MOST_BLOCKS, Marker, WrittenRows

# As many as fit even where each block has one entry.
ENTRIES_A_CALL = MOST_BLOCKS - 1
BYTES_A_CALL = 1024 * 1024
# Of all logs together, when rows go to many of them.
BYTES_KEPT = 8 * 1024 * 1024
DEFAULT_BLOCK = 1000


class Appender:
    """Appends the rows of one task to logs.

    Arguments:
        block: entries a block of a new log, None for the usual number.
        turn: for exactly once, None for at least once.
    """

    def __init__(self, client: Any, block: int | None, turn: Origin | None) -> None:
        self._client = client
        self._block = block or DEFAULT_BLOCK
        self._turn = turn
        self._parts: dict[str, _LogRows] = {}
        self._kept = 0

    def add(self, log: str, value: bytes) -> None:
        """Take a row, and append those of its log if they are enough for a call."""
        part = self._parts.get(log)
        if part is None:
            made: Any = Log(self._client, log, self._block)
            part = self._parts[log] = (_LogRows if self._turn is None else _OncePart)(
                self._client, made, self._turn
            )
        part.rows.append(value)
        part.size += len(value)
        self._kept += len(value)
        if len(part.rows) >= ENTRIES_A_CALL or part.size >= BYTES_A_CALL:
            self._flush([part])
        elif self._kept >= BYTES_KEPT:
            self._flush(self._parts.values())

    def finish(self) -> tuple[int, int]:
        """Append what is left. Returns: how many rows were appended, and how many were there."""
        self._flush(self._parts.values())
        for part in self._parts.values():
            part.finish()
        parts = self._parts.values()
        return sum(part.appended for part in parts), sum(part.passed for part in parts)

    def _flush(self, parts: Iterable[_LogRows]) -> None:
        for part in parts:
            if part.rows:
                self._kept -= part.size
                rows, part.rows, part.size = part.rows, [], 0
                part.append(rows)


class _LogRows:
    """The rows of a task that go to one log, at least once."""

    def __init__(self, client: Any, log: Any, turn: Origin | None) -> None:
        self.client, self.log, self.turn = client, log, turn
        self.rows: list[bytes] = []
        self.size = self.appended = self.passed = 0

    def append(self, rows: list[bytes]) -> None:
        """Append rows; one round trip."""
        drive(self.client, self.log.append_steps(rows, None))
        self.appended += len(rows)

    def finish(self) -> None:
        """Check what can be checked at the end."""


class _OncePart(_LogRows):
    """The rows of a task that go to one log, exactly once."""

    def __init__(self, client: Any, log: Any, turn: Origin | None) -> None:
        super().__init__(client, log, turn)
        self._digest = blake2b(digest_size=8)
        self._there = WrittenRows(0, 0, "")

    @property
    def _position(self) -> int:
        return self.appended + self.passed

    def append(self, rows: list[bytes]) -> None:
        """Append the rows that the log lacks; one round trip, two if the log has some of them."""
        while rows:
            if self._position < self._there.rows:
                rows = self._pass(rows)
                continue
            digest = _with(self._digest.copy(), rows)
            assert self.turn is not None
            query, batch, partition = self.turn
            marker = Marker(query, partition, batch, self._position, digest.hexdigest())
            reply = drive(self.client, self.log.append_steps(rows, None, marker))
            if isinstance(reply, WrittenRows):
                self._heed(reply)
                continue
            self._digest = digest
            self.appended += len(rows)
            return

    def finish(self) -> None:
        """Raise an error if the log has rows that did not come again."""
        if self._position < self._there.rows:
            raise self._differs(f"{self._there.rows:,} rows, now it has {self._position:,}")

    def _pass(self, rows: list[bytes]) -> list[bytes]:
        """Leave out the rows that are in the log already. Returns: the other rows."""
        count = min(len(rows), self._there.rows - self._position)
        _with(self._digest, rows[:count])
        self.passed += count
        if self._position == self._there.rows and self._digest.hexdigest() != self._there.digest:
            raise self._differs(
                f"{self._there.rows:,} rows, and now it has others, or in another order"
            )
        return rows[count:]

    def _heed(self, there: WrittenRows) -> None:
        """Go on behind the rows in the log. Raises: ReplayDiffersError if that cannot be."""
        assert self.turn is not None
        name = self.log.name
        if there.batch > self.turn.batch:
            raise ReplayDiffersError(
                f"format {FORMAT!r}: {self.turn} is not written to the log {name!r}: batch"
                f" {there.batch} has been, so this is a task that comes too late, or a query that"
                " began anew under an old name: give that one another name"
            )
        if there.batch < self.turn.batch or there.rows <= self._position:
            raise ReplayDiffersError(
                f"format {FORMAT!r}: the log {name!r} does not know any more of {self._position:,}"
                f" rows of {self.turn}, which were written into it: it was deleted meanwhile, or"
                " its server has lost them; the batch is to be written again"
            )
        self._there = there

    def _differs(self, what: str) -> ReplayDiffersError:
        return ReplayDiffersError(
            f"format {FORMAT!r}: {self.turn} had written to the log {self.log.name!r} {what}."
            " Exactly once needs the same rows in the same order in the same partition whenever a"
            " batch is run again (see docs/spark_log.md); to go on, write this batch without it"
        )


def _with(digest: Any, rows: Iterable[bytes]) -> Any:
    for row in rows:
        # With its length: what is cut in another way is something else.
        digest.update(len(row).to_bytes(8))
        digest.update(row)
    return digest


class LogPartition(InputPartition):
    """The part that one task reads.

    Arguments:
        number: the task's.
        spans: parts of logs, in this order.
    """

    def __init__(self, number: int, spans: tuple[Span, ...]) -> None:
        super().__init__(number)
        self.spans = spans


def _partitions(offset: LogOffset) -> list[InputPartition]:
    return [LogPartition(number, spans) for number, spans in enumerate(cut(offset))]


class _PartitionReader(OptionsKeeper[LogOptions]):
    """The task of the batch reader and of the stream reader."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the entries of one partition, page by page; see `log_access.pages`."""
        assert isinstance(partition, LogPartition)
        kind = "string" if self._options.is_text else "binary"
        remedy = "leave the option values=string out, for a binary column"
        for span in partition.spans:
            what = f"format {FORMAT!r}: the log {span.log!r} has an entry that"
            for offsets, entries in pages(self._options, span):
                columns = [
                    pa.array([span.log] * len(entries), pa.string()),
                    pa.array(offsets, pa.int64()),
                    column_of(entries, kind, what, remedy),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["log", "offset", "value"])


class LogReader(_PartitionReader, Pushing, DataSourceReader):
    """Reads a range of the entries of logs."""

    columns: ClassVar[Mapping[str, Column]] = {
        "log": Column(TEXT, prefix=True),
        "offset": Column(NUMBER, bounds=True),
    }

    def partitions(self) -> Sequence[InputPartition]:
        """Return tasks for what there is now; a round trip for each log that is wanted."""
        options, wanted = self._options, self.wanted_of("offset")
        names = list(filter(self.wanted_of("log").lets_pass, options.logs))
        offset = batch_offset(options, looks(options.client.connected(), names))
        offsets = wanted.chosen()
        if offsets is None:
            parts = _partitions(within(offset, wanted.least, wanted.most))
        else:
            spans = spans_of(offset, sorted(offsets))
            parts = [LogPartition(*each) for each in enumerate(runs(spans, options.tasks))]
        # There must be one.
        return parts or [LogPartition(0, ())]


class LogStreamReader(_PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as a stream: where it stands is in Spark's checkpoint alone."""

    def __init__(self, options: LogOptions) -> None:
        super().__init__(options)
        # Made at the driver, when it is first needed; tasks have copies of this object.
        self._planner: LogPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offset of a new query, in which no log has a place yet; no round trip.

        Spark may ask for it again after a restart, so it must not depend on what there is then.
        """
        return LogOffset(self._options.tasks).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit on a batch, in entries."""
        return ReadMaxRows(self._options.batch_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the logs end now; see `LogPlanner.prepare_available_now`."""
        self._planning().prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset behind the next batch; see `LogPlanner.latest`."""
        most: int | None = self._options.batch_size
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        elif isinstance(limit, ReadAllAvailable):
            most = None
        before = LogOffset.parse(start)
        end = self._planning().latest(before, most)
        # The very same where nothing is new: Spark compares texts.
        return start if end is before else end.as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the logs ended at the last look, for the query's progress; no round trip."""
        return None if self._planner is None else self._planner.seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, the same ones at every time; no round trip."""
        return [] if start == end else _partitions(LogOffset.parse(end))

    def _planning(self) -> LogPlanner:
        if self._planner is None:
            client = self._options.client.connected()
            self._planner = LogPlanner(self._options, lambda names: looks(client, names))
        return self._planner


_REQUIRED: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "value": (is_text, "a string or binary column, for instance to_json(struct('*'))")
}
_OPTIONAL: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "log": (lambda kind: isinstance(kind, StringType), "a string column with names of logs")
}


@dataclass(frozen=True, slots=True)
class Appended(WriterCommitMessage):
    """How many rows a task has appended, and how many another try of it had appended before."""

    rows: int
    before: int


def checked_for_writing(
    options: LogOptions, schema: StructType, overwrite: bool, is_stream: bool
) -> LogOptions:
    """Return options and a schema that can be written, before any task runs; no round trip.

    Raises: ConfigurationError for options, columns or a save mode that do not go with the sink.
    """
    if overwrite:
        raise options.wrong(
            "it only appends and never replaces what is there: write with"
            ' mode("append"), or as a stream with outputMode("append") or "update"'
        )
    checked_columns(f"format {FORMAT!r}", schema, _REQUIRED, _OPTIONAL)
    return options.for_writing(is_stream, "log" in schema.fieldNames())


def write_all(
    options: LogOptions, batches: Iterator[pa.RecordBatch], turn: Origin | None
) -> Appended:
    """Append all rows; a round trip for each 999 rows or 1 MiB of a log.

    Arguments:
        turn: whose rows they are, for exactly once.

    Raises: ConfigurationError for a value or a log that is null; ReplayDiffersError.
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


class LogWriter(OptionsKeeper[LogOptions], DataSourceArrowWriter):
    """Appends the rows of a table."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of a partition; see `write_all`."""
        return write_all(self._options, iterator, origin_of(self._options, is_stream=False))


class LogStreamWriter(OptionsKeeper[LogOptions], DataSourceStreamArrowWriter):
    """Appends the rows of each batch of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append the rows of a partition of a batch; see `write_all`.

        Raises: as `write_all`; ConfigurationError if exactlyOnce cannot be kept.
        """
        return write_all(self._options, iterator, origin_of(self._options, is_stream=True))


class LogSource(Format[LogOptions]):
    """Reads and appends entries of logs; see docs/spark_log.md.

    Options: logs (or a path); of reads: values, startingOffset, endingOffset, maxOffsetsPerTrigger,
    minOffsetsPerTrigger, maxTriggerDelay, failOnDataLoss, partitions; of writes: block,
    exactlyOnce, query and batch; client or url. Raises: ConfigurationError.
    """

    options_class = LogOptions

    def schema(self) -> StructType:
        """Return the columns: log, offset and value."""
        return (
            StructType()
            .add("log", StringType())
            .add("offset", LongType())
            .add("value", text_type(self._options.values or "binary"))
        )

    def reader(self, schema: StructType) -> LogReader:
        """Return what reads a range of entries once."""
        require_schema(FORMAT, schema, self.schema())
        return LogReader(self._options.for_reading(is_stream=False))

    def stream_reader(self, schema: StructType) -> LogStreamReader:
        """Return what reads logs as a stream."""
        require_schema(FORMAT, schema, self.schema())
        return LogStreamReader(self._options.for_reading(is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        """Return what appends the rows of a table."""
        return LogWriter(checked_for_writing(self._options, schema, overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: N802
        """Return what appends the rows of a stream."""
        return LogStreamWriter(
            checked_for_writing(self._options, schema, overwrite, is_stream=True)
        )
