"""The batch read of ``format("volatile_hash")``: the live fields of a namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DoubleType, StructType

from workstealing.errors import LayoutError
from workstealing.spark.sources.arrow import column_of, require_schema, text_type
from workstealing.spark.sources.options import runs
from workstealing.spark.sources.volatile_hash_options import (
    FORMAT,
    PARTITIONS,
    VolatileHashOptions,
)
from workstealing.store.twin import Node
from workstealing.structures.volatile_hashes.scanning import HashScan, LiveField


@dataclass(frozen=True, slots=True)
class IndexShards(InputPartition):
    """Index shards of an emulated namespace."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeKeys(InputPartition):
    """The keys of a native namespace on one node; None: the only server."""

    node: Node


def columns_of(options: VolatileHashOptions) -> StructType:
    """Return the columns that a read has."""
    names, values = text_type(options.names or "string"), text_type(options.values or "string")
    return (
        StructType()
        .add("key", names)
        .add("field", names)
        .add("value", values)
        .add("ttl", DoubleType())
    )


class VolatileHashReader(DataSourceReader):
    """Reads a namespace: by runs of index shards, or native ones by nodes.

    Arguments: options; schema: as Spark wants to read, which must be the source's own.
    """

    def __init__(self, options: VolatileHashOptions, schema: StructType) -> None:
        self._options = options.for_reading()
        require_schema(FORMAT, schema, columns_of(options))

    def partitions(self) -> Sequence[InputPartition]:
        """Return runs of index shards, or nodes; none where nobody has used the namespace.

        At the driver, before any task. Errors: those of `HashScan.layout`. Some five round trips.
        """
        scan = self._scan()
        layout = scan.layout()
        if layout is None:
            return [IndexShards(())]
        if layout.is_native:
            return [NodeKeys(node) for node in scan.nodes()]
        shards = scan.shards(layout)
        return [IndexShards(each) for each in runs(shards, self._options.partitions or PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the live fields of one partition, page by page."""
        scan = self._scan()
        if isinstance(partition, NodeKeys):
            layout = scan.layout()
            if layout is None or not layout.is_native:
                raise _changed(self._options)
            pages = scan.of_node(layout, partition.node)
        elif isinstance(partition, IndexShards) and partition.shards:
            layout = scan.layout()
            if layout is None or not layout.is_emulated:
                raise _changed(self._options)
            pages = scan.of_shards(layout, partition.shards)
        else:
            return
        for fields in pages:
            if fields:
                yield self._batch(fields)

    def _scan(self) -> HashScan:
        return HashScan(self._options.hashes(), self._options.match)

    def _batch(self, fields: Sequence[LiveField]) -> pa.RecordBatch:
        names, values = self._options.names or "string", self._options.values or "string"
        as_names = "give the option names=binary, for binary columns"
        as_values = "give the option values=binary, for a binary column"

        def value_of(position: int) -> str:
            # Not the value itself: errors are logged.
            each = fields[position]
            return f"format {FORMAT!r}: a value of the key {each.key!r}, field {each.field!r},"

        lefts = [None if each.left_ms is None else each.left_ms / 1000 for each in fields]
        columns = [
            column_of([each.key for each in fields], names, "the key", as_names),
            column_of([each.field for each in fields], names, "the field", as_names),
            column_of([each.value for each in fields], values, value_of, as_values),
            pa.array(lefts, pa.float64()),
        ]
        return pa.RecordBatch.from_arrays(columns, ["key", "field", "value", "ttl"])


def _changed(options: VolatileHashOptions) -> LayoutError:
    return LayoutError(
        f"the namespace {options.namespace!r} was laid out anew while it was read: read it again"
    )
