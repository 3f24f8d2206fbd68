"""How Spark reads logs, at once or as a stream: tasks read what offsets say, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from workstealing.spark.sources.arrow import column_of
from workstealing.spark.sources.log_access import looks, pages
from workstealing.spark.sources.log_offsets import Offset, Span, cut
from workstealing.spark.sources.log_options import FORMAT, LogOptions
from workstealing.spark.sources.log_planning import LogPlanner, batch_offset


class LogPartition(InputPartition):
    """What one task reads.

    Arguments: number: the task's; spans: parts of logs, in this order.
    """

    def __init__(self, number: int, spans: tuple[Span, ...]) -> None:
        super().__init__(number)
        self.spans = spans


def _partitions(offset: Offset) -> list[InputPartition]:
    return [LogPartition(number, spans) for number, spans in enumerate(cut(offset))]


class _Reader:
    """What the batch and the stream reader share: what a task does."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

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


class LogReader(_Reader, DataSourceReader):
    """Reads a range of the entries of logs."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return tasks for what there is now; a round trip for each log."""
        options = self._options
        return _partitions(batch_offset(options, looks(options.client.connected(), options.logs)))


class LogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as a stream: where it stands is in Spark's checkpoint alone."""

    def __init__(self, options: LogOptions) -> None:
        super().__init__(options)
        # Made at the driver, when it is first needed; tasks have copies of this object.
        self._planner: LogPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offset of a new query, in which no log has a place yet; no round trip.

        Spark may ask for it again after a restart, so it must not depend on what there is then.
        """
        return Offset(self._options.tasks).as_dict()

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
        before = Offset.parse(start)
        end = self._planning().latest(before, most)
        # The very same where nothing is new: Spark compares texts.
        return start if end is before else end.as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the logs ended at the last look, for the query's progress; no round trip."""
        return None if self._planner is None else self._planner.seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, the same ones at every time; no round trip."""
        return [] if start == end else _partitions(Offset.parse(end))

    def _planning(self) -> LogPlanner:
        if self._planner is None:
            client = self._options.client.connected()
            self._planner = LogPlanner(self._options, lambda names: looks(client, names))
        return self._planner
