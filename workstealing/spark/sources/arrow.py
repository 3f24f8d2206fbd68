"""Between Arrow's columns and what Redis holds: bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, NumericType, StringType, StructType

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.json_columns import as_json, way_to


def is_text(kind: DataType) -> bool:
    """Say whether a column's type is text or bytes."""
    return isinstance(kind, StringType | BinaryType)


def is_number(kind: DataType) -> bool:
    """Say whether a column's type is a number."""
    return isinstance(kind, NumericType)


def checked_columns(
    what: str,
    schema: StructType,
    required: dict[str, tuple[Callable[[DataType], bool], str]],
    optional: dict[str, tuple[Callable[[DataType], bool], str]],
) -> None:
    """Check that a DataFrame has the columns that a sink takes.

    Arguments:
        what: the sink, for errors.
        schema: of the DataFrame.
        required: column -> (whether its type is right, what it should be).
        optional: column -> (whether its type is right, what it should be).

    Raises: ConfigurationError if it has not.
    """
    known = {**required, **optional}
    names = schema.fieldNames()
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"{what}: the column {repeated[0]!r} is there twice: rename one")
    if missing := [name for name in required if name not in names]:
        raise ConfigurationError(
            f"{what}: the column {missing[0]!r} is missing from {', '.join(names)}: give"
            f" {known[missing[0]][1]} of that name"
        )
    for field in schema.fields:
        if field.name not in known:
            raise ConfigurationError(
                f"{what}: the column {field.name!r} is unknown: select {', '.join(known)} alone"
            )
        is_right, wanted = known[field.name]
        if not is_right(field.dataType):
            raise ConfigurationError(
                f"{what}: the column {field.name!r} has the type {field.dataType.simpleString()}:"
                f" give {wanted}{way_to(wanted, field)}"
            )


def require_schema(name: str, wanted: StructType, own: StructType) -> None:
    """Check that Spark wants to read the columns that a source has.

    Raises: ConfigurationError if it wants others.
    """
    pairs = [[(each.name, each.dataType) for each in schema.fields] for schema in (wanted, own)]
    if pairs[0] != pairs[1]:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in own.fields)
        raise ConfigurationError(
            f"format {name!r} has the columns {columns}: leave .schema(...) out"
        )


def text_type(kind: str) -> DataType:
    """Return the type of a column that an option calls "string" or "binary"."""
    return BinaryType() if kind == "binary" else StringType()


def as_bytes(column: Any) -> list[bytes | None]:
    """Return a column as Redis would hold it; an array, a map or a struct is JSON.

    Whole numbers and decimals are written as they are, others as the
    shortest text that reads back as the same number; true and false as these words; a date and a
    timestamp as ISO 8601 has them, the latter with a Z for UTC unless it has no time zone.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return list(column.cast(pa.binary()).to_pylist())
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return list(column.cast(pa.large_binary()).to_pylist())
    if pa.types.is_boolean(kind):
        return [_WORDS[value] for value in column.to_pylist()]
    if pa.types.is_date(kind):
        return [None if value is None else str(value).encode() for value in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        # Without the zone's name, which Python may not know; Arrow counts from UTC in any.
        zone, times = "Z" if kind.tz else "", column.cast(pa.timestamp("us")).to_pylist()
        return [None if value is None else f"{value.isoformat()}{zone}".encode() for value in times]
    if pa.types.is_nested(kind):
        return as_json(column)
    if pa.types.is_float32(kind):
        # As a double it would be written with digits that the column never had.
        column = column.cast(pa.string()).cast(pa.float64())
    return [None if value is None else _number(value) for value in column.to_pylist()]


_WORDS = {None: None, True: b"true", False: b"false"}


def _number(value: Any) -> bytes:
    if isinstance(value, int | float):
        return repr(value).encode()
    return format(value, "f").encode()


def column_of(
    values: Sequence[bytes], kind: str, what: str | Callable[[int], str], remedy: str
) -> Any:
    """Return bytes as an Arrow column.

    Arguments:
        kind: "string" or "binary".
        what: they are, or what names one by its position where it must not be shown.
        remedy: for what is no UTF-8.

    Raises: ConfigurationError.
    """
    column = pa.array(values, pa.binary())
    if kind == "binary":
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        foreign = _first_foreign(values)
        named = f"{what} {values[foreign][:100]!r}" if isinstance(what, str) else what(foreign)
        raise ConfigurationError(f"{named} is not UTF-8 text: {remedy}") from None


def _first_foreign(values: Sequence[bytes]) -> int:
    for position, value in enumerate(values):
        try:
            value.decode()
        except UnicodeDecodeError:
            return position
    raise AssertionError("unreachable: Arrow found one that is no UTF-8")
