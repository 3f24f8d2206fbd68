"""``format("ick")``: an Ick or a ShardedIck as a table, as a sink, and as a stream."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BooleanType, DoubleType, IntegerType, StructType

from workstealing.spark.sources.arrow import require_schema, text_type
from workstealing.spark.sources.ick_options import FORMAT, IckOptions
from workstealing.spark.sources.ick_reading import IckReader, IckStreamReader
from workstealing.spark.sources.ick_writing import IckStreamWriter, IckWriter, check_schema


class IckSource(DataSource):
    """Reads and writes members of an Ick or a ShardedIck; see docs/spark_ick.md.

    Options: name (or a path) of a ShardedIck, or key of a single Ick; ickShards, for a ShardedIck
    that is not there yet; members: string or binary; maxMembersPerBatch and leaseSeconds, of a
    streaming read; client or url. Errors: ConfigurationError.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = IckOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return "ick"."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns: member, score, reserved (always true in a stream) and ick_shard."""
        return (
            StructType()
            .add("member", text_type(self._options.members))
            .add("score", DoubleType())
            .add("reserved", BooleanType())
            .add("ick_shard", IntegerType())
        )

    def _check_write(self, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise self._options.wrong(
                "it only adds members and never replaces what is there: write with"
                ' mode("append"), or as a stream with outputMode("append") or "update"'
            )
        self._options.refuse_stream_options("a write")
        check_schema(schema)
        # What is not there, or another number of ick shards, is refused before any task runs.
        self._options.adder()

    def reader(self, schema: StructType) -> IckReader:
        """Return what reads all members once."""
        require_schema(FORMAT, schema, self.schema())
        self._options.refuse_stream_options("a batch read")
        return IckReader(self._options)

    def streamReader(self, schema: StructType) -> IckStreamReader:  # noqa: N802 - Spark's name
        """Return what reads a ShardedIck as a stream."""
        require_schema(FORMAT, schema, self.schema())
        self._options.refuse_key()
        return IckStreamReader(self._options)

    def writer(self, schema: StructType, overwrite: bool) -> IckWriter:
        """Return what adds the rows of a table."""
        self._check_write(schema, overwrite)
        return IckWriter(self._options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> IckStreamWriter:  # noqa: N802
        """Return what adds the rows of a stream."""
        self._check_write(schema, overwrite)
        return IckStreamWriter(self._options)
