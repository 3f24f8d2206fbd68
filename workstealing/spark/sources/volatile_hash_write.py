"""The sink of ``format("volatile_hash")``: fields and their deadlines, written in pipelines.

Every row says what a field is in the end, so a task that is run again writes the same; of a time to
live, which counts from the write, the deadline moves by the delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, TimestampType
from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.arrow import as_bytes, checked_columns, is_number, is_text
from workstealing.spark.sources.volatile_hash_options import (
    FORMAT,
    MOST_SECONDS,
    VolatileHashOptions,
)
from workstealing.structures.volatile_hashes import HashPipeline, VolatileHashes

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

FIELDS_A_COMMAND = 500
COMMANDS_A_CALL, BYTES_A_CALL = 256, 4 * 1024 * 1024
LAST_DEADLINE_MS = 2**46 - 1
# What Arrow batches have of a session's own are the names and types of its columns.
_REQUIRED: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "key": (is_text, "a string or binary column"),
    "field": (is_text, "a string or binary column"),
    "value": (lambda kind: is_text(kind) or is_number(kind), "a string, binary or number column"),
}
_OPTIONAL: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "ttl": (is_number, "a number of seconds"),
    "expire_at": (lambda kind: isinstance(kind, TimestampType), "a timestamp (with time zone)"),
}

# A field, and until when it lives: the redis-py option and its ms, None without a deadline.
Place = tuple[bytes, bytes]
Deadline = tuple[str, int] | None


def checked_for_writing(
    options: VolatileHashOptions, schema: StructType, overwrite: bool
) -> VolatileHashOptions:
    """Return options and a schema that can be written, before any task runs.

    Errors: ConfigurationError for options, columns or a save mode that do not go with the sink; as
    of `VolatileHashes.open`, which writes a new namespace's layout down. At most five round trips.
    """
    what = f"format {FORMAT!r}"
    if overwrite:
        raise ConfigurationError(
            f"{what} only appends, which replaces fields of the same key and name: give"
            ' mode("append"), or outputMode("append") of a stream'
        )
    options.for_writing()
    checked_columns(what, schema, _REQUIRED, _OPTIONAL)
    ways = [name for name in _OPTIONAL if name in schema.fieldNames()]
    ways += ["the option 'ttlSeconds'"] if options.ttl_seconds is not None else []
    if len(ways) > 1:
        raise ConfigurationError(
            f"{what}: {' and '.join(ways)} are given, which all say when a field expires: give one"
        )
    options.hashes().open()
    return options


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task has written: how many rows, and by how many commands."""

    rows: int
    commands: int


class _Sink:
    """What the batch and the stream writer share."""

    def __init__(self, options: VolatileHashOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write one partition; see `write_batch`."""
        hashes = self._options.hashes()
        rows = commands = 0
        for batch in iterator:
            commands += write_batch(hashes, batch, self._options.ttl_seconds)
            rows += batch.num_rows
        return Written(rows, commands)


class VolatileHashWriter(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame's rows; what one task has written stays if another fails."""


class VolatileHashStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Writes the rows of every micro-batch, each at least once."""


def write_batch(
    hashes: VolatileHashes, batch: RecordBatch, ttl_seconds: float | None = None
) -> int:
    """Write one Arrow batch, of which later rows replace earlier ones of the same field.

    Arguments: hashes; batch: with the columns of the sink; ttl_seconds: of every row. Returns: how
    many commands it took. Errors: ConfigurationError for a row that cannot be written, before
    anything of the batch is; those of redis-py. A round trip for some hundred commands or 4 MB;
    each sets up to 500 fields of one hash and one deadline.
    """
    groups: dict[tuple[bytes, Deadline], list[tuple[bytes, bytes]]] = {}
    for (key, field), (value, deadline) in _last_rows(batch, ttl_seconds).items():
        groups.setdefault((key, deadline), []).append((field, value))
    commands = size = 0
    with hashes.pipeline(transaction=False) as pipe:
        queued: list[bytes] = []
        for (key, deadline), pairs in groups.items():
            for some, some_bytes in _of_one_command(pairs):
                if size and size + some_bytes > BYTES_A_CALL:
                    _send(pipe, queued)
                    size = 0
                if deadline is None:
                    pipe.execute_command("HSET", key, *_flat(some))
                else:
                    pipe.execute_command(
                        "HSETEX", key, *deadline, "FIELDS", len(some), *_flat(some)
                    )
                queued.append(key)
                commands += 1
                size += some_bytes
                if len(queued) == COMMANDS_A_CALL:
                    _send(pipe, queued)
                    size = 0
        _send(pipe, queued)
    return commands


def _of_one_command(
    pairs: list[tuple[bytes, bytes]],
) -> Iterator[tuple[dict[bytes, bytes], int]]:
    """Divide fields into what one command sets, and how many bytes that is."""
    some: dict[bytes, bytes] = {}
    size = 0
    for field, value in pairs:
        more = len(field) + len(value)
        # A server stands still for a large command, and refuses one of a gigabyte.
        if len(some) == FIELDS_A_COMMAND or (some and size + more > BYTES_A_CALL):
            yield some, size
            some, size = {}, 0
        some[field] = value
        size += more
    yield some, size


def _flat(pairs: dict[bytes, bytes]) -> Iterator[bytes]:
    for pair in pairs.items():
        yield from pair


def _send(pipe: HashPipeline, keys: list[bytes]) -> None:
    for key, result in zip(keys, pipe.execute(raise_on_error=False), strict=True):
        if isinstance(result, ResponseError):
            raise ResponseError(f"the hash {key!r} was not written: {result}") from result
        if isinstance(result, Exception):
            raise result
    keys.clear()


def _last_rows(
    batch: RecordBatch, ttl_seconds: float | None
) -> dict[Place, tuple[bytes, Deadline]]:
    """Return what each field is to be in the end; raise a ConfigurationError for a bad row."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    texts = {name: as_bytes(columns[name]) for name in _REQUIRED}
    for name, column in texts.items():
        if None in column:
            number = column.index(None)
            place = "" if name == "key" else f" of the key {texts['key'][number]!r}"
            raise _wrong(number, f"the {name}{place} is null: leave such rows out")
    deadlines = _deadlines(columns, texts["key"], ttl_seconds, batch.num_rows)
    rows: Any = zip(texts["key"], texts["field"], texts["value"], deadlines, strict=True)
    return {(key, field): (value, deadline) for key, field, value, deadline in rows}


def _deadlines(
    columns: dict[str, Any], keys: list[bytes | None], ttl_seconds: float | None, rows: int
) -> list[Deadline]:
    if "ttl" in columns:
        return [
            None if seconds is None else _in(seconds, number, keys[number])
            for number, seconds in enumerate(columns["ttl"].to_pylist())
        ]
    if "expire_at" in columns:
        microseconds = columns["expire_at"].cast("timestamp[us]").cast("int64").to_pylist()
        return [
            None if time is None else _at(time // 1000, number, keys[number])
            for number, time in enumerate(microseconds)
        ]
    every = None if ttl_seconds is None else _in(ttl_seconds, 0, None)
    return [every] * rows


def _in(seconds: Any, number: int, key: bytes | None) -> Deadline:
    """Return a time to live as the server takes it: whole ms, and never none of them."""
    time = float(seconds)
    if not (math.isfinite(time) and 0 < time <= MOST_SECONDS):
        raise _wrong(
            number,
            f"the ttl of the key {key!r} is {seconds}: give seconds above 0 and up to"
            f" {MOST_SECONDS:,}, or null for a field that does not expire",
        )
    return "PX", max(1, round(time * 1000))


def _at(milliseconds: int, number: int, key: bytes | None) -> Deadline:
    """Return a time as the server takes it; one that has passed stays one."""
    if milliseconds > LAST_DEADLINE_MS:
        raise _wrong(
            number,
            f"the expire_at of the key {key!r} is beyond the year 4199, the servers' last: give an"
            " earlier one, or null for a field that does not expire",
        )
    return "PXAT", max(1, milliseconds)


def _wrong(number: int, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"format {FORMAT!r}: row {number + 1} of a batch: {problem}; nothing of the batch was"
        " written"
    )
