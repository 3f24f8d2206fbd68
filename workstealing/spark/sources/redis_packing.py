"""Rows that are each all of a key, as commands in the form that the server reads.

Arrow makes the text of all commands of a batch at once. A command a row, packed one by one, costs
several times as much as the server takes for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute

from workstealing.spark.sources.arrow import as_bytes
from workstealing.spark.sources.pipelines import BYTES_A_CALL, FIELDS_A_COMMAND
from workstealing.spark.sources.redis_columns import Shape
from workstealing.spark.sources.redis_options import RedisOptions
from workstealing.store.connection import Command, Packed

_LARGE = pa.large_binary()


def packed_rows(
    options: RedisOptions,
    shape: Shape,
    columns: Mapping[str, Any],
    keys: Sequence[bytes],
    lefts: Sequence[int | None],
) -> Iterator[tuple[bytes, Packed]] | None:
    """Return the commands of each row, with its key.

    Arguments:
        columns: of the batch, by name.
        keys: of its rows, as the server has them.
        lefts: how long each key lives, in milliseconds; of keys that are appended to, the caller
            sets it.

    Returns: None for a batch of which a row needs several commands for its fields, or has none: its
    rows are to be packed one by one. No round trip.
    """
    key = pa.array(keys, _LARGE)
    if shape.kind == "string":
        if shape.has_ttl:
            return None
        head: list[Any] = [b"*%d\r\n" % (3 if lefts[0] is None else 5), *_word(b"SET"), *_word(key)]
        head += _word(_texts(columns["value"]))
        if lefts[0] is not None:
            head += [*_word(b"PX"), *_word(b"%d" % lefts[0])]
        return _rows(keys, _joined(head), [1] * len(keys))
    fields = _fields(columns, shape.named)
    if fields is None:
        return None
    parts: list[Any] = []
    if options.replaces:
        parts += [b"*2\r\n", *_word(b"UNLINK"), *_word(key)]
    words, text = fields
    parts += [b"*", words, b"\r\n", *_word(b"HSET"), *_word(key), *text]
    counts = [1 + (options.replaces is True)] * len(keys)
    if options.replaces and any(left is not None for left in lefts):
        some = pa.array(lefts, pa.int64())
        expires = _joined([b"*3\r\n", *_word(b"PEXPIRE"), *_word(key), *_word(_texts(some))])
        parts.append(_or_nothing(expires))
        counts = [count + (left is not None) for count, left in zip(counts, lefts, strict=True)]
    whole = _joined(parts)
    if compute.max(compute.binary_length(whole)).as_py() > BYTES_A_CALL:
        return None
    return _rows(keys, whole, counts)


def packed(command: Command) -> Packed:
    """Return a command in the form that the server reads."""
    words = (each if isinstance(each, bytes) else str(each).encode() for each in command)
    parts = [b"*%d\r\n" % len(command)]
    for each in words:
        parts += _word(each)
    return Packed(b"".join(parts), 1)


def _fields(columns: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, list[Any]] | None:
    """Return how many words HSET has, and these beside the key; None if one HSET cannot have them.

    The number is a text, or a column of texts.
    """
    if not 0 < len(names) <= FIELDS_A_COMMAND:
        return None
    text: list[Any] = []
    count: Any = 0
    for name in names:
        word = [*_word(name.encode()), *_word(_texts(columns[name]))]
        missing = columns[name].null_count
        text += [_or_nothing(_joined(word))] if missing else word
        there = compute.is_valid(columns[name]).cast(pa.int64()) if missing else 1
        count = compute.add(count, there) if missing or not isinstance(count, int) else count + 1
    if isinstance(count, int):
        return b"%d" % (2 + 2 * count), text
    if compute.min(count).as_py() == 0:
        return None
    return _texts(compute.add(compute.multiply(count, 2), 2)), text


def _texts(column: Any) -> Any:
    """Return a column as `as_bytes` has it, in Arrow."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return column.cast(_LARGE)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).cast(_LARGE)
    return pa.array(as_bytes(column), _LARGE)


def _word(text: Any) -> list[Any]:
    """Return the parts of one word of a command: its length and itself."""
    if isinstance(text, bytes):
        return [b"$%d\r\n%b\r\n" % (len(text), text)]
    return [b"$", _texts(compute.binary_length(text)), b"\r\n", text, b"\r\n"]


def _joined(parts: Sequence[Any]) -> Any:
    """Join texts and columns row by row; a null in one makes the row null."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    scalars = [pa.scalar(part, _LARGE) if isinstance(part, bytes) else part for part in merged]
    return compute.binary_join_element_wise(*scalars, pa.scalar(b"", _LARGE))


def _or_nothing(column: Any) -> Any:
    return compute.fill_null(column, pa.scalar(b"", _LARGE))


def _rows(
    keys: Sequence[bytes], whole: Any, counts: Sequence[int]
) -> Iterator[tuple[bytes, Packed]]:
    return zip(keys, map(Packed, whole.to_pylist(), counts), strict=True)
