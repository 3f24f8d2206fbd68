"""``format("tracked_set")``: the ids that have work, as a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, StructType

from workstealing.spark.sources.arrow import column_of, require_schema, text_type
from workstealing.spark.sources.options import runs
from workstealing.spark.sources.tracked_set_options import FORMAT, TrackedSetOptions
from workstealing.structures.tracked_set.scanning import laid_out_sub_sets, scan


class TrackedSetSource(DataSource):
    """Reads a tracked set's ids and their sub-sets.

    Arguments: options: see `TrackedSetOptions`. Errors: ConfigurationError for wrong ones, before
    any task runs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = TrackedSetOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns."""
        return _columns_of(self._options)

    def reader(self, schema: StructType) -> TrackedSetReader:
        """Return the reader; see `TrackedSetReader`."""
        return TrackedSetReader(self._options, schema)


@dataclass(frozen=True, slots=True)
class SubSets(InputPartition):
    """Some sub-sets of a tracked set that is laid out over so many of them."""

    sub_sets: tuple[int, ...]
    of: int


class TrackedSetReader(DataSourceReader):
    """Reads a tracked set by runs of sub-sets.

    Arguments: options; schema: as Spark wants to read, which must be the source's own.
    """

    def __init__(self, options: TrackedSetOptions, schema: StructType) -> None:
        self._options = options
        require_schema(FORMAT, schema, _columns_of(options))

    def partitions(self) -> Sequence[InputPartition]:
        """Return runs of sub-sets; none where nobody has used the tracked set.

        At the driver, before any task. Errors: LayoutError for a foreign layout, and for another
        number of sub-sets than the option says. One round trip.
        """
        options = self._options
        names = options.tracked_names(options.sub_sets or 1)
        found = laid_out_sub_sets(options.twin(), names)
        if found is None:
            return [SubSets((), 1)]
        options.require_sub_sets(found)
        return [SubSets(each, found) for each in runs(range(found), options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the ids of one partition, page by page."""
        if not isinstance(partition, SubSets) or not partition.sub_sets:
            return
        options = self._options
        names = options.tracked_names(partition.of)
        remedy = "give the option ids=binary, for a binary column"
        for sub_sets, ids in scan(options.twin(), names, partition.sub_sets):
            if ids:
                columns = [
                    column_of(ids, options.ids, "the id", remedy),
                    pa.array(sub_sets, pa.int32()),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["id", "sub_set"])


def _columns_of(options: TrackedSetOptions) -> StructType:
    return StructType().add("id", text_type(options.ids)).add("sub_set", IntegerType())
