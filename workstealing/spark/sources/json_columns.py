"""Columns of arrays, maps and structs as JSON texts, as Spark's own to_json writes them."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from json.encoder import encode_basestring as quoted
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

# Makes of a value something that json takes, or the other way round; never called with null.
_Turn = Callable[[Any], Any]

_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DIGITS_OF_A_FLOAT = 9
# The type to cast to, by the first word of the type that an error asks for.
_CASTS = {
    "string": "string",
    "bigint": "bigint",
    "double": "double",
    "number": "double",
    "timestamp": "timestamp",
}


def is_nested(kind: DataType) -> bool:
    """Say whether a column's type is an array, a map or a struct."""
    return isinstance(kind, ArrayType | MapType | StructType)


def way_to(wanted: str, column: StructField) -> str:
    """Return the end of an error about a column's type: what makes a column of the right one.

    Arguments:
        wanted: the right type, as the error says it: "a double", "a string or binary column".
    """
    first, name = wanted.split()[1].strip(","), column.name
    if first == "string" and is_nested(column.dataType):
        return f", such as to_json({name})"
    return f", such as CAST({name} AS {_CASTS[first]})" if first in _CASTS else ""


def leaves(kind: DataType) -> list[DataType]:
    """Return the types that a nested type holds in the end; any other type is its own leaf.

    A map whose keys are not text is a leaf, because JSON cannot hold it.
    """
    if isinstance(kind, ArrayType):
        return leaves(kind.elementType)
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return leaves(kind.valueType)
    if isinstance(kind, StructType):
        return [leaf for each in kind.fields for leaf in leaves(each.dataType)]
    return [kind]


def as_json(column: Any) -> list[bytes | None]:
    """Return a nested column as JSON texts in UTF-8.

    A null in a struct is left out, as to_json does, and binary is base64.
    """
    write = _writer(column.type)
    return [None if value is None else write(value).encode() for value in column.to_pylist()]


def json_reader(wanted: pa.DataType) -> Callable[[bytes], Any]:
    """Return what makes of a JSON text a value that Arrow takes for a nested type.

    It raises: ValueError for text that is no JSON, or that does not fit; RecursionError.
    """
    turn = _or_none(_of_json(wanted))
    # A decimal must not become a double on its way.
    decode = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant).decode
    return lambda text: turn(decode(text.decode()))


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _or_none(turn: _Turn) -> _Turn:
    return lambda value: None if value is None else turn(value)


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    """Return what writes a value that is not null."""
    if pa.types.is_map(kind):
        write = _or_null(_writer(kind.item_type))
        return lambda value: _object((f"{quoted(name)}:{write(each)}" for name, each in value))
    if pa.types.is_struct(kind):
        writes = [(field.name, quoted(field.name), _writer(field.type)) for field in kind]
        return lambda value: _object(
            f"{name}:{write(value[field])}"
            for field, name, write in writes
            if value[field] is not None
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        write = _or_null(_writer(kind.value_type))
        return lambda value: f"[{','.join(map(write, value))}]"
    if pa.types.is_timestamp(kind):
        return _zoned if kind.tz else lambda value: f'"{value.isoformat()}"'
    if pa.types.is_date(kind):
        return lambda value: f'"{value}"'
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_float32(kind):
        return lambda value: _number(_short(value))
    if pa.types.is_floating(kind):
        return _number
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_integer(kind):
        return repr
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    return quoted


def _or_null(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "null" if value is None else write(value)


def _object(members: Iterable[str]) -> str:
    return f"{{{','.join(members)}}}"


def _zoned(value: datetime) -> str:
    return f'"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"'


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _short(value: float) -> float:
    """Return the shortest number that is the same float: as a double it has digits of its own."""
    if math.isfinite(value):
        packed = struct.pack("f", value)
        for digits in range(6, _DIGITS_OF_A_FLOAT):
            short = float(f"{value:.{digits}g}")
            if struct.pack("f", short) == packed:
                return short
    return value


def _of_json(kind: pa.DataType) -> _Turn:
    if pa.types.is_map(kind):
        turn = _or_none(_of_json(kind.item_type))
        return lambda value: [(name, turn(each)) for name, each in _a(dict, value).items()]
    if pa.types.is_struct(kind):
        turns = [(field.name, _or_none(_of_json(field.type))) for field in kind]
        return lambda value: {name: turn(_a(dict, value).get(name)) for name, turn in turns}
    if pa.types.is_list(kind):
        turn = _or_none(_of_json(kind.value_type))
        return lambda value: [turn(each) for each in _a(list, value)]
    if pa.types.is_timestamp(kind):
        return lambda value: time_of(_a(str, value), has_zone=kind.tz is not None)
    if pa.types.is_date(kind):
        return lambda value: date.fromisoformat(_a(str, value))
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(_a((int, Decimal), value))
    if pa.types.is_integer(kind):
        return lambda value: _a(int, value)
    if pa.types.is_boolean(kind):
        return lambda value: _a(bool, value)
    if pa.types.is_binary(kind):
        return lambda value: base64.b64decode(_a(str, value), validate=True)
    return lambda value: _a(str, value)


def _a(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError("the JSON holds another type")
    return value


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value not in _NOT_NUMBERS:
            raise ValueError("the JSON holds no number")
        return _NOT_NUMBERS[value]
    return float(_a((int, Decimal), value))


def time_of(text: str, *, has_zone: bool) -> datetime:
    """Return the time that an ISO 8601 text names.

    Arguments:
        has_zone: whether it is a moment (UTC without a zone), or a time on no clock in particular.

    Raises: ValueError for other text, and for a zone where there is to be none.
    """
    time = datetime.fromisoformat(text.strip())
    if has_zone:
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    if time.tzinfo:
        raise ValueError("the time has a zone")
    return time
