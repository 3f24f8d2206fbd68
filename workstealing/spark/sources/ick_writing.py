"""How tasks write to an Ick: they add members, which doing it twice does not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from workstealing.spark.sources.ick_options import IckOptions

MEMBERS_AN_ADD = 1000
_WHOLE: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_MEMBERS: tuple[type[DataType], ...] = (StringType, BinaryType, *_WHOLE)
_SCORES: tuple[type[DataType], ...] = (DoubleType, FloatType, DecimalType, *_WHOLE)


@dataclass
class Written(WriterCommitMessage):
    """How many members a task has added: new ones, and others whose score became lower."""

    new: int
    changed: int


def check_schema(options: IckOptions, schema: StructType) -> None:
    """Raise ConfigurationError for a table that cannot be written to an Ick."""
    found = {field.name: field.dataType for field in schema.fields}
    unknown = [name for name in found if name not in ("member", "score")]
    if "member" not in found or unknown:
        raise options.wrong(
            f"the table has the columns {', '.join(found) or 'none'}: give 'member' and, if you"
            " like, 'score', and no others"
        )
    for name, kinds, wanted in (
        ("member", _MEMBERS, "a string, binary or a whole number"),
        ("score", _SCORES, "a number, for instance seconds since the epoch"),
    ):
        if name in found and not isinstance(found[name], kinds):
            raise options.wrong(
                f"the column {name!r} is {found[name].simpleString()}: make it {wanted}"
            )


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
