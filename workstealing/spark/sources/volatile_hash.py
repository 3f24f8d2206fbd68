"""``format("volatile_hash")``: hashes whose fields expire one by one, as source and sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from workstealing.spark.sources.volatile_hash_options import FORMAT, VolatileHashOptions
from workstealing.spark.sources.volatile_hash_read import VolatileHashReader, columns_of
from workstealing.spark.sources.volatile_hash_write import (
    VolatileHashStreamWriter,
    VolatileHashWriter,
    checked_for_writing,
)


class VolatileHashSource(DataSource):
    """Reads a namespace's live fields with their times left; appends fields with deadlines.

    Arguments: options: see `VolatileHashOptions`. Errors: ConfigurationError for wrong ones, before
    any task runs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = VolatileHashOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of a read."""
        return columns_of(self._options)

    def reader(self, schema: StructType) -> VolatileHashReader:
        """Return the reader; see `VolatileHashReader`."""
        return VolatileHashReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> VolatileHashWriter:
        """Return the writer, having checked options, columns and namespace."""
        return VolatileHashWriter(checked_for_writing(self._options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> VolatileHashStreamWriter:  # noqa: N802 - Spark's word
        """Return the writer of a streaming query, having checked the same."""
        return VolatileHashStreamWriter(checked_for_writing(self._options, schema, overwrite))
