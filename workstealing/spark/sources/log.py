"""``format("workstealing.log")``: logs as a table, as a stream, and as a sink."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StringType, StructType

from workstealing.spark.sources.arrow import require_schema, text_type
from workstealing.spark.sources.log_options import FORMAT, LogOptions
from workstealing.spark.sources.log_reading import LogReader, LogStreamReader
from workstealing.spark.sources.log_writing import (
    LogStreamWriter,
    LogWriter,
    checked_for_writing,
)


class LogSource(DataSource):
    """Reads and appends entries of logs; see docs/spark_log.md.

    Options: logs (or a path); of reads: values, startingOffset, endingOffset, maxEntriesPerBatch,
    failOnDataLoss, partitions; of writes: block, exactlyOnce, query and batch; client or url.
    Errors: ConfigurationError.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = LogOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return "workstealing.log"."""
        return FORMAT

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

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
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
