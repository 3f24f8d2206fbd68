"""``format("workstealing.volatile_hashes")``: hashes whose fields expire, as a sink and a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DoubleType, StructType, TimestampType
from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.arrow import (
    as_bytes,
    checked_columns,
    column_of,
    is_number,
    is_text,
    require_schema,
    text_type,
)
from workstealing.spark.sources.compat import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    Format,
    InputPartition,
    OptionsKeeper,
    WriterCommitMessage,
)
from workstealing.spark.sources.options import (
    MOST_SECONDS,
    OptionReader,
    ParsedOptions,
    runs,
    shares_of_a_node,
    without_path,
)
from workstealing.spark.sources.pipelines import Bounded, of_one_command
from workstealing.spark.sources.pushing import BYTES, TEXT, Column, Pushing, as_key
from workstealing.store.job_client import Node
from workstealing.structures.volatile_hashes import VolatileHashes
from workstealing.structures.volatile_hashes.hashes import HashPipeline
from workstealing.structures.volatile_hashes.scanning import HashScan, KeyChoice, LiveFields
from workstealing.structures.volatile_hashes.server_faults import LAST_DEADLINE_MS

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from workstealing.structures.volatile_hashes import VolatileHashes


FORMAT = "workstealing.volatile_hashes"
PARTITIONS = 16
_KINDS = ("string", "binary")
_BACKENDS = ("auto", "emulated", "native")


@dataclass(frozen=True, slots=True)
class VolatileHashOptions(ParsedOptions):
    """The options of a namespace of volatile hashes; hashable and safe to pickle.

    Fields: namespace; client; backend and allow_eviction: as `VolatileHashes` takes them. For
    writing: ttl_seconds: of every row. For reading: names and values: "string" or "binary", the
    type of the columns key and field, and of the column value; match: a pattern for the keys;
    partitions: the most; pushes: the option `pushFilters`. None: not given.
    """

    format: ClassVar[str] = FORMAT

    namespace: str
    client: ClientSettings
    backend: str = "auto"
    allow_eviction: tuple[str, ...] = ()
    ttl_seconds: float | None = None
    names: str | None = None
    values: str | None = None
    match: str | None = None
    partitions: int | None = None
    pushes: bool | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> VolatileHashOptions:
        """Return what Spark's options say.

        Raises: ConfigurationError for unknown, missing or contradictory options. No round trip.
        """
        from workstealing.structures.volatile_hashes.commands import HashNames

        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "namespace"))
        with reader.naming():
            namespace = reader.required("namespace", 'a namespace, or a path as in load("items")')
            HashNames(namespace)
        ttl_seconds = reader.seconds("ttlSeconds")
        parsed = cls(
            namespace=namespace,
            client=reader.client(),
            backend=reader.choice("backend", _BACKENDS),
            allow_eviction=reader.words("allowEviction"),
            ttl_seconds=ttl_seconds,
            names=reader.choice_or_none("names", _KINDS),
            values=reader.choice_or_none("values", _KINDS),
            match=reader.text("match"),
            partitions=reader.number("partitions", 0) or None,
            pushes=reader.boolean_or_none("pushFilters"),
        )
        reader.finish()
        return parsed

    def for_reading(self) -> VolatileHashOptions:
        """Return these options, or raise an error for one that says how to write."""
        self.refuse({"ttlSeconds": self.ttl_seconds}, "writing, and this is a read")
        return self

    def for_writing(self) -> VolatileHashOptions:
        """Return these options, or raise an error for one that says how to read."""
        given = {
            "names": self.names,
            "values": self.values,
            "match": self.match,
            "partitions": self.partitions,
            "pushFilters": self.pushes,
        }
        self.refuse(given, "reading, and this is a write")
        return self

    def hashes(self) -> VolatileHashes:
        """Return the namespace on this process's client; no round trip but a cluster's map."""
        from workstealing.structures.volatile_hashes import VolatileHashes

        made: VolatileHashes = VolatileHashes(
            self.client.connected(),
            self.namespace,
            backend=self.backend,
            allow_eviction=self.allow_eviction,
        )
        return made


@dataclass(frozen=True, slots=True)
class IndexShards(InputPartition):
    """Index shards of an emulated namespace."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeKeys(InputPartition):
    """A share of the keys of a native namespace on one node.

    Fields: node: None for the only server; share and shares: as of `KeyChoice`.
    """

    node: Node
    share: int
    shares: int


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


class VolatileHashReader(Pushing, DataSourceReader):
    """Reads a namespace: by runs of index shards, or native ones by nodes.

    Arguments:
        schema: as Spark wants to read, which must be the source's own.
    """

    def __init__(self, options: VolatileHashOptions, schema: StructType) -> None:
        self._options = options.for_reading()
        require_schema(FORMAT, schema, columns_of(options))

    def chooses_by(self) -> Mapping[str, Column]:
        """Return the column key: only these hashes are read."""
        is_text = self._options.names != "binary"
        return {"key": Column(TEXT if is_text else BYTES, prefix=is_text)}

    def partitions(self) -> Sequence[InputPartition]:
        """Return runs of index shards, or shares of nodes.

        At the driver, before any task. Raises: LayoutError for a namespace that is not there; those
        of `HashScan.layout`. Some five round trips.
        """
        scan = self._scan()
        layout = scan.layout()
        if layout is None:
            raise LayoutError(
                f"format {FORMAT!r}: there is no namespace {self._options.namespace!r} on this"
                " server: see whether its name and the server are right; its first use, such as"
                " open(), lays it out"
            )
        if layout.is_native:
            nodes = scan.nodes()
            shares = shares_of_a_node(self._options.partitions, len(nodes))
            found = [NodeKeys(node, share, shares) for node in nodes for share in range(shares)]
            return found or [IndexShards(())]
        shards = scan.shards(layout)
        most = self._options.partitions or PARTITIONS
        return [IndexShards(each) for each in runs(shards, most)] or [IndexShards(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the live fields of one partition, page by page.

        Raises: LayoutError if the namespace was changed meanwhile; the errors of `HashScan`.
        """
        if isinstance(partition, NodeKeys):
            scan = self._scan(partition.share, partition.shares)
            layout = scan.layout()
            if layout is None or not layout.is_native:
                raise _changed(self._options)
            pages = scan.of_node(layout, partition.node)
        elif isinstance(partition, IndexShards) and partition.shards:
            scan = self._scan()
            layout = scan.layout()
            if layout is None or not layout.is_emulated:
                raise _changed(self._options)
            pages = scan.of_shards(layout, partition.shards)
        else:
            return
        yield from map(self._batch, pages)

    def _scan(self, share: int = 0, shares: int = 1) -> HashScan:
        wanted = self.wanted_of("key")
        named = wanted.chosen()
        keys = None if named is None else frozenset(map(as_key, named))
        choice = KeyChoice(keys, as_key(wanted.prefix), share, shares)
        return HashScan(self._options.hashes(), self._options.match, choice)

    def _batch(self, page: LiveFields) -> pa.RecordBatch:
        names, values = self._options.names or "string", self._options.values or "string"
        as_names = "give the option names=binary, for binary columns"
        as_values = "give the option values=binary, for a binary column"

        def value_of(position: int) -> str:
            # Not the value itself: errors are logged.
            key, field = page.keys[position], page.fields[position]
            return f"format {FORMAT!r}: a value of the key {key!r}, field {field!r},"

        left = pa.array(page.left_ms, pa.int64())
        seconds = pc.divide(left.cast(pa.float64()), 1000.0)
        columns = [
            column_of(page.keys, names, "the key", as_names),
            column_of(page.fields, names, "the field", as_names),
            column_of(page.values, values, value_of, as_values),
            pc.if_else(pc.less(left, 0), pa.scalar(None, pa.float64()), seconds),
        ]
        return pa.RecordBatch.from_arrays(columns, ["key", "field", "value", "ttl"])


def _changed(options: VolatileHashOptions) -> LayoutError:
    return LayoutError(
        f"the namespace {options.namespace!r} was laid out anew while it was read: read it again"
    )


# Arrow batches have the names and types of the session's columns.
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

    Raises: ConfigurationError for options, columns or a save mode that do not go with the sink; as
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
class WrittenByTask(WriterCommitMessage):
    """The result of one task: how many rows it wrote, and by how many commands."""

    rows: int
    commands: int


class _VolatileHashSink(OptionsKeeper[VolatileHashOptions]):
    """The common part of the batch writer and the stream writer."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write one partition; see `write_batch`."""
        hashes = self._options.hashes()
        rows = commands = 0
        for batch in iterator:
            commands += write_batch(hashes, batch, self._options.ttl_seconds)
            rows += batch.num_rows
        return WrittenByTask(rows, commands)


class VolatileHashWriter(_VolatileHashSink, DataSourceArrowWriter):
    """Writes a DataFrame's rows; what one task has written stays if another fails."""


class VolatileHashStreamWriter(_VolatileHashSink, DataSourceStreamArrowWriter):
    """Writes the rows of every micro-batch, each at least once."""


def write_batch(
    hashes: VolatileHashes, batch: RecordBatch, ttl_seconds: float | None = None
) -> int:
    """Write one Arrow batch, of which later rows replace earlier ones of the same field.

    Arguments:
        batch: with the columns of the sink.
        ttl_seconds: of every row.

    Returns: how many commands it took. Raises: ConfigurationError for a row that cannot be written,
    before anything of the batch is; those of redis-py. A round trip for some hundred commands or 4
    MB; each sets up to 500 fields of one hash and one deadline.
    """
    groups: dict[tuple[bytes, Deadline], list[tuple[bytes, bytes]]] = {}
    for (key, field), (value, deadline) in _last_rows(batch, ttl_seconds).items():
        groups.setdefault((key, deadline), []).append((field, value))
    commands = 0
    with hashes.pipeline(transaction=False) as pipe:
        calls: Bounded[tuple[bytes, Sequence[Any]]] = Bounded(lambda items: _send(pipe, items))
        for (key, deadline), pairs in groups.items():
            for some, size in of_one_command(pairs):
                command: Sequence[Any] = ("HSET", key, *some)
                if deadline is not None:
                    command = ("HSETEX", key, *deadline, "FIELDS", len(some) // 2, *some)
                calls.add((key, command), size)
                commands += 1
        calls.flush()
    return commands


def _send(pipe: HashPipeline, items: Sequence[tuple[bytes, Sequence[Any]]]) -> None:
    for _, command in items:
        pipe.execute_command(*command)
    for (key, _), result in zip(items, pipe.execute(raise_on_error=False), strict=True):
        if isinstance(result, ResponseError):
            raise ResponseError(f"the hash {key!r} was not written: {result}") from result
        if isinstance(result, Exception):
            raise result


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


class VolatileHashSource(Format[VolatileHashOptions]):
    """Reads a namespace's live fields with their times left; appends fields with deadlines.

    Arguments:
        options: see `VolatileHashOptions`.

    Raises: ConfigurationError for wrong options, before any task runs.
    """

    options_class = VolatileHashOptions

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
