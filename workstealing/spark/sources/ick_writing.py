"""How tasks write to an Ick: they add members, which doing it twice does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, IntegralType, StructType

from workstealing.spark.sources.arrow import checked_columns, is_number, is_text
from workstealing.spark.sources.ick_options import FORMAT, IckOptions

MEMBERS_AN_ADD = 1000
_REQUIRED: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "member": (
        lambda kind: is_text(kind) or isinstance(kind, IntegralType),
        "a string, binary or whole-number column",
    )
}
_OPTIONAL: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "score": (is_number, "a number, for instance seconds since the epoch")
}


@dataclass
class Written(WriterCommitMessage):
    """How many members a task has added: new ones, and others whose score became lower."""

    new: int
    changed: int


def check_schema(schema: StructType) -> None:
    """Raise a ConfigurationError for a table that cannot be written to an Ick."""
    checked_columns(f"format {FORMAT!r}", schema, _REQUIRED, _OPTIONAL)


def add_all(options: IckOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    """Add all rows, 1,000 in a call; a round trip each.

    Errors: ConfigurationError for a member that is null, and a score that is no number.
    """
    target = options.adder()
    new = changed = 0
    for batch in batches:
        members = batch.column(batch.schema.get_field_index("member")).to_pylist()
        at = batch.schema.get_field_index("score")
        scores = [None] * len(members) if at < 0 else batch.column(at).to_pylist()
        pairs = [_pair(options, *row) for row in zip(members, scores, strict=True)]
        for start in range(0, len(pairs), MEMBERS_AN_ADD):
            added = target.add(pairs[start : start + MEMBERS_AN_ADD])
            new, changed = new + added.new, changed + added.changed
    return Written(new, changed)


def _pair(options: IckOptions, member: Any, score: Any) -> tuple[Any, Any]:
    if member is None:
        raise options.wrong(
            "a member is null: leave such rows out before writing; rows before it were written"
        )
    if isinstance(member, int):
        member = str(member)
    return member, float(score) if isinstance(score, Decimal) else score


class IckWriter(DataSourceArrowWriter):
    """Adds the rows of a table."""

    def __init__(self, options: IckOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add the rows of a partition; a task that is tried again adds them again, as one."""
        return add_all(self._options, iterator)


class IckStreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of each batch of a stream."""

    def __init__(self, options: IckOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add the rows of a partition of a batch; see `IckWriter.write`."""
        return add_all(self._options, iterator)
