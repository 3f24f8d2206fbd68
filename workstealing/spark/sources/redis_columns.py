"""The columns of plain Redis keys: the columns of each key type, and the values made of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.json_columns import (
    is_nested,
    json_reader,
    leaves,
    time_of,
    way_to,
)
from workstealing.spark.sources.redis_options import RedisOptions

_TEXT = "a string or binary"
_SCALAR = (
    "a string, binary, boolean, tinyint, smallint, int, bigint, float, double, decimal, date,"
    " timestamp or timestamp_ntz"
)
_VALUE = f"{_SCALAR}, or an array, a map with keys of text or a struct of these (written as JSON),"
_FIELDS = "a map<string,string> or map<string,binary>"

# Of each type the columns of its elements beside the key, and the kinds that they may have.
_OWN: dict[str, dict[str, str]] = {
    "hash": {"field": _TEXT, "value": _VALUE},
    "string": {"value": _VALUE},
    "list": {"position": "a bigint", "value": _VALUE},
    "set": {"member": _VALUE},
    "zset": {"member": _VALUE, "score": "a double"},
    "stream": {"id": "a string", "fields": _FIELDS},
}
_DEFAULTS: dict[str, DataType] = {
    "position": LongType(),
    "score": DoubleType(),
    "fields": MapType(StringType(), StringType()),
}
_ARROW: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    TimestampNTZType: pa.timestamp("us"),
}


def default_schema(options: RedisOptions) -> StructType:
    """Return the columns of a read without .schema(...): the key and what each element has.

    Strings have their time to live as well, in seconds.
    """
    schema = StructType().add(options.key_column, StringType())
    for name in _OWN[options.kind]:
        schema = schema.add(name, _DEFAULTS.get(name, StringType()))
    return schema.add(options.ttl_column, DoubleType()) if options.kind == "string" else schema


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a column, as Spark wants it from a source."""
    if isinstance(kind, MapType):
        value = pa.field("value", arrow_type(kind.valueType), nullable=kind.valueContainsNull)
        return pa.map_(arrow_type(kind.keyType), value)
    if isinstance(kind, ArrayType):
        return pa.list_(
            pa.field("element", arrow_type(kind.elementType), nullable=kind.containsNull)
        )
    if isinstance(kind, StructType):
        return pa.struct(
            [
                pa.field(each.name, arrow_type(each.dataType), nullable=each.nullable)
                for each in kind.fields
            ]
        )
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[type(kind)]


def _is(wanted: str, kind: DataType) -> bool:
    if wanted == _FIELDS:
        return (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType | BinaryType)
        )
    if wanted == _TEXT:
        return isinstance(kind, StringType | BinaryType)
    if wanted == _SCALAR:
        return isinstance(kind, DecimalType) or type(kind) in _ARROW
    if wanted == _VALUE:
        return all(_is(_SCALAR, leaf) for leaf in leaves(kind))
    return kind.simpleString() == wanted.removeprefix("a ")


@dataclass(frozen=True, slots=True)
class Shape:
    """The part that each column of a schema plays.

    Fields: kind: the type of the keys; columns: of the whole schema; has_key, has_ttl; own: the
    columns of elements that are there; named: fields of hashes or of streams' entries that are
    columns of their own.
    """

    kind: str
    columns: StructType
    has_key: bool
    has_ttl: bool
    own: tuple[str, ...]
    named: tuple[str, ...]

    @property
    def is_a_row_a_key(self) -> bool:
        """Whether one row is all that a key holds: a string, or a hash as columns."""
        return self.kind == "string" or (self.kind == "hash" and not self.own)

    def type_of(self, column: str) -> DataType:
        """Return the type of a column."""
        return self.columns[column].dataType


def shape_of(options: RedisOptions, schema: StructType) -> Shape:
    """Return what the columns of a schema mean.

    Arguments:
        schema: of the user's .schema(...), of a DataFrame to write, or our own.

    Raises: ConfigurationError for a column that the type does not have, or of a wrong type.
    """
    names = schema.fieldNames()
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise options.wrong(f"the column {repeated[0]!r} is there twice: rename one")
    special = (options.key_column, options.ttl_column)
    rest = [name for name in names if name not in special]
    known = dict(_OWN[options.kind])
    if options.kind == "hash" and not _is_as_rows(options, rest):
        known = {}
    takes_named = options.kind == "stream" or (options.kind == "hash" and not known)
    own, named = [], []
    for column in schema.fields:
        name = column.name
        if name == options.key_column:
            _require(options, column, _SCALAR)
        elif name == options.ttl_column:
            _require(options, column, "a double")
        elif name in known:
            _require(options, column, known[name])
            own.append(name)
        elif takes_named:
            _require(options, column, _VALUE)
            named.append(name)
        else:
            columns = ", ".join((options.key_column, *known, options.ttl_column))
            raise options.wrong(
                f"the column {name!r} is none of type={options.kind}: it has {columns}"
            )
    if "fields" in own and named:
        raise options.wrong(
            f"both the column 'fields' and the column {named[0]!r} are given, which both hold an"
            " entry's fields: leave one out"
        )
    return Shape(
        options.kind,
        schema,
        options.key_column in names,
        options.ttl_column in names,
        tuple(own),
        tuple(named),
    )


def _is_as_rows(options: RedisOptions, names: Sequence[str]) -> bool:
    if options.hash_as is not None:
        return options.hash_as == "rows"
    return "field" in names and set(names) <= {"field", "value"}


def _require(options: RedisOptions, column: StructField, wanted: str) -> None:
    if not _is(wanted, column.dataType):
        raise options.wrong(
            f"the column {column.name!r} has the type {column.dataType.simpleString()}: give"
            f" {wanted} column{way_to(wanted, column)}"
        )


def typed(
    values: Sequence[bytes | None],
    kind: DataType,
    place: Callable[[int], str],
    *,
    is_permissive: bool,
) -> Any:
    """Return bytes as an Arrow column of a type.

    Arguments:
        place: names a value by its position, because errors are logged and must not show it.
        is_permissive: whether one that does not fit becomes null.

    Raises: ConfigurationError for one that does not fit.
    """
    raw = pa.array(values, pa.binary())
    if isinstance(kind, BinaryType):
        return raw
    wanted = arrow_type(kind)
    read = _reader(wanted)
    with suppress(*_DOES_NOT_FIT, pa.ArrowNotImplementedError):
        if is_nested(kind):
            return pa.array([None if value is None else read(value) for value in values], wanted)
        return raw.cast(pa.string()).cast(wanted)
    found: list[Any] = []
    for position, value in enumerate(values):
        try:
            found.append(None if value is None else pa.array([read(value)], wanted)[0].as_py())
        except _DOES_NOT_FIT:
            if not is_permissive:
                raise ConfigurationError(
                    f"{place(position)} is no {kind.simpleString()}: read that column as a"
                    f" {'binary' if isinstance(kind, StringType) else 'string'}, or give the option"
                    " mode=permissive, for null"
                ) from None
            found.append(None)
    return pa.array(found, wanted)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Arrow's errors are ValueErrors.
_DOES_NOT_FIT = (ValueError, ArithmeticError, RecursionError)


def _reader(wanted: pa.DataType) -> Callable[[bytes], Any]:
    """Return what reads one value, for those that Arrow cannot read all at once."""
    if pa.types.is_nested(wanted):
        return json_reader(wanted)
    if pa.types.is_timestamp(wanted):
        return lambda value: _time(value.decode(), has_zone=wanted.tz is not None)
    return lambda value: pa.array([value], pa.binary()).cast(pa.string()).cast(wanted)[0].as_py()


def _time(text: str, *, has_zone: bool) -> datetime:
    try:
        # A number is seconds since the epoch, with or without a fraction.
        time = _EPOCH + timedelta(seconds=float(text))
    except ValueError:
        return time_of(text, has_zone=has_zone)
    return time if has_zone else time.replace(tzinfo=None)
