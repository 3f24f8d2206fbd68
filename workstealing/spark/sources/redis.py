"""``format("workstealing.redis")``: plain keys of Redis as a table, a sink, and a stream.

The sink appends rows to keys, or puts them in place of what each key held before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructType

from workstealing.spark.sources.compat import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Format,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    WriterCommitMessage,
)
from workstealing.spark.sources.origins import origin_of
from workstealing.spark.sources.pipelines import KeyCalls
from workstealing.spark.sources.pushing import Column, Pushing
from workstealing.spark.sources.redis_columns import Shape, default_schema, shape_of
from workstealing.spark.sources.redis_keys import (
    ListedKeys,
    Pushed,
    ScannedKeys,
    columns_of,
    pushed_of,
    tasks,
)
from workstealing.spark.sources.redis_options import RedisOptions
from workstealing.spark.sources.redis_reading import PlainRead
from workstealing.spark.sources.redis_stream import StreamOffset, StreamPlanner, StreamSpans, cut
from workstealing.spark.sources.redis_writing import PlainWrite, checked_for_writing
from workstealing.store.job_client import Node

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class RedisReader(Pushing, DataSourceReader):
    """Reads keys by a pattern or by their names.

    Arguments:
        schema: of the user, or our own; see `shape_of`.
    """

    def __init__(self, options: RedisOptions, schema: StructType) -> None:
        self._options = options.for_reading(is_stream=False)
        self._shape = shape_of(options, schema)

    def chooses_by(self) -> Mapping[str, Column]:
        """Return the column of keys, and that of the fields of hashes that are read as rows."""
        return columns_of(self._options, self._shape)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; see `redis_keys.tasks`. At the driver, before any task."""
        return tasks(self._options, self._pushed(), self._nodes)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a task, page by page; see `PlainRead.of_part`."""
        assert isinstance(partition, ListedKeys | ScannedKeys)
        reading = PlainRead(self._options, self._shape, self._pushed().fields, self._calls())
        yield from reading.of_part(partition)

    def _pushed(self) -> Pushed:
        return pushed_of(self._options, self.wanted)

    def _nodes(self) -> list[Node]:
        return self._calls().job_client.nodes()

    def _calls(self) -> KeyCalls:
        return KeyCalls(self._options.client.connected())


class RedisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads Redis' streams: where a query stands is in Spark's checkpoint alone.

    Arguments as of `RedisReader`. Raises: ConfigurationError for options or columns that do not go
    with a stream.
    """

    def __init__(self, options: RedisOptions, schema: StructType) -> None:
        self._options = options.for_reading(is_stream=True)
        self._shape = shape_of(options, schema)
        if self._shape.has_ttl:
            raise options.wrong(
                f"a stream is read without the column {options.ttl_column!r}: leave it out"
            )
        # Made at the driver, when it is first needed; tasks have copies of this object.
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offset of a new query, in which no stream has a place yet; no round trip."""
        return StreamOffset().as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit on a batch, in entries; without maxOffsetsPerTrigger there is none."""
        most = self._options.most_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the streams end now; see `StreamPlanner.prepare_available_now`."""
        self._planning().prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset behind the next batch; see `StreamPlanner.latest`."""
        before = StreamOffset.parse(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._planning().latest(before, most)
        # The very same where nothing is new: Spark compares texts.
        return start if end is before else end.as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the streams ended at the last look, for the progress; no round trip."""
        return None if self._planner is None else self._planner.seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, the same ones at every time; no round trip."""
        if start == end:
            return []
        return [*cut(StreamOffset.parse(end), self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the entries of a task; see `StreamSpans.entries`."""
        assert isinstance(partition, StreamSpans)
        calls = KeyCalls(self._options.client.connected())
        reading = PlainRead(self._options, self._shape, None, calls)
        for entries in partition.entries(self._options, calls):
            yield reading.batch_of(entries)

    def _planning(self) -> StreamPlanner:
        if self._planner is None:
            calls = KeyCalls(self._options.client.connected())
            self._planner = StreamPlanner(self._options, calls)
        return self._planner


class _RedisSink:
    """The common part of the batch writer and the stream writer.

    Attribute: is_stream: whether the rows are a stream's.
    """

    is_stream: ClassVar[bool] = False

    def __init__(self, options: RedisOptions, shape: Shape) -> None:
        self._options = options
        self._shape = shape

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition; see `PlainWrite.write`.

        Raises: as that; ConfigurationError if exactlyOnce cannot be kept.
        """
        calls = KeyCalls(self._options.client.connected())
        turn = origin_of(self._options, is_stream=self.is_stream)
        return PlainWrite(self._options, self._shape, calls, turn).write(iterator)


class RedisWriter(_RedisSink, DataSourceArrowWriter):
    """Writes a DataFrame's rows; what one task has written stays if another fails."""


class RedisStreamWriter(_RedisSink, DataSourceStreamArrowWriter):
    """Writes the rows of every micro-batch, each at least once, or exactly once into streams."""

    is_stream = True


class RedisSource(Format[RedisOptions]):
    """Reads and writes plain keys of one type; see docs/spark_redis.md.

    Arguments:
        options: see `RedisOptions`.

    Raises: ConfigurationError for wrong options, before any task runs.
    """

    options_class = RedisOptions

    def schema(self) -> StructType:
        """Return the columns of a read without .schema(...)."""
        return default_schema(self._options)

    def reader(self, schema: StructType) -> RedisReader:
        """Return what reads keys once."""
        return RedisReader(self._options, schema)

    def stream_reader(self, schema: StructType) -> RedisStreamReader:
        """Return what reads Redis' streams as a stream."""
        return RedisStreamReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> RedisWriter:
        """Return what writes the rows of a table, having checked options and columns."""
        shape = checked_for_writing(self._options, schema, overwrite, is_stream=False)
        return RedisWriter(self._options, shape)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RedisStreamWriter:  # noqa: N802
        """Return what writes the rows of a stream, having checked the same."""
        shape = checked_for_writing(self._options, schema, overwrite, is_stream=True)
        return RedisStreamWriter(self._options, shape)
