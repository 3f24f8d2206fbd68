"""The values of plain Redis keys, page by page, as Arrow batches: no reply is unbounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StringType
from redis.exceptions import ResponseError

from workstealing.spark.sources.pipelines import BYTES_A_CALL, KeyCalls
from workstealing.spark.sources.redis_columns import Shape, arrow_type, typed
from workstealing.spark.sources.redis_keys import ListedKeys, ScannedKeys, scanned
from workstealing.spark.sources.redis_options import FORMAT, RedisOptions
from workstealing.store.connection import Command
from workstealing.store.paging import paged

FIRST_CHUNK, MOST_OF_A_CHUNK = 100, 2000
ELEMENTS_A_PAGE = 256

# An item of a page, and the reply with its elements.
Pages = list[tuple[bytes, Any]]


class Elements(NamedTuple):
    """Some rows: the key of each, and the column of each part by name, bytes or numbers."""

    keys: list[bytes]
    columns: Mapping[str, Sequence[Any]]


class PlainRead:
    """Reads the rows of a task.

    Arguments:
        shape: of the schema.
        fields: of hashes as rows, None for all.
    """

    def __init__(
        self,
        options: RedisOptions,
        shape: Shape,
        fields: frozenset[bytes] | None,
        calls: KeyCalls,
    ) -> None:
        self._options = options
        self._shape = shape
        self._fields = None if fields is None else sorted(fields)
        self._calls = calls
        self._schema = pa.schema(
            [
                pa.field(column.name, arrow_type(column.dataType), nullable=column.nullable)
                for column in shape.columns.fields
            ]
        )
        readers: dict[str, Callable[[list[bytes]], Iterator[Elements]]] = {
            "string": self._strings,
            "hash": self._rows_of_hashes if shape.own else self._hashes,
            "list": self._lists,
            "set": self._sets,
            "zset": self._sorted_sets,
            "stream": self._streams,
        }
        self._elements = self._keys_alone if self._reads_no_value else readers[shape.kind]

    @property
    def _reads_no_value(self) -> bool:
        return not self._shape.own and not self._shape.named

    def of_part(self, part: ListedKeys | ScannedKeys) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        Raises: ConfigurationError for a value that does not fit its column, and for a named key of
        another type; connection faults. One round trip for each thousand keys of a node that is
        scanned, and one or more for up to 2,000 keys or about 4 MB that are read.
        """
        if isinstance(part, ScannedKeys):
            pages: Iterable[Sequence[bytes]] = scanned(self._calls, part, self._shape.kind)
        else:
            pages = [part.keys]
        chunk = _Chunk()
        for keys in chunk.of(pages):
            there = list(dict.fromkeys(keys))
            if isinstance(part, ListedKeys):
                there = self._of_the_type(there, is_strict=part.is_strict)
            for batch in self._batches(there):
                chunk.saw(batch)
                if batch.num_rows:
                    yield batch

    def _of_the_type(self, keys: list[bytes], *, is_strict: bool) -> list[bytes]:
        """Return the keys that are there and of the type."""
        wanted = self._shape.kind
        there = []
        for key, kind in zip(keys, self._ask([(key, ("TYPE", key)) for key in keys]), strict=True):
            found = kind.decode()
            if found == wanted:
                there.append(key)
            elif found != "none" and is_strict:
                raise self._options.wrong(
                    f"the key {key!r} is a {found}, and type={wanted} is given: leave the key out,"
                    " or read it by itself"
                )
        return there

    def _ask(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        """Send one command for each key; a key that has another type by now gives None."""
        replies = self._calls.on_keys([(key, (command,)) for key, command in commands])
        results: list[Any] = []
        for (key, _), (reply,) in zip(commands, replies, strict=True):
            if isinstance(reply, ResponseError):
                if not str(reply).startswith("WRONGTYPE"):
                    raise ResponseError(f"the key {key!r} was not read: {reply}") from reply
                results.append(None)
            else:
                results.append(reply)
        return results

    def _batches(self, keys: list[bytes]) -> Iterator[pa.RecordBatch]:
        if not keys:
            return
        lefts: dict[bytes, float | None] | None = None
        if self._shape.has_ttl:
            times = self._ask([(key, ("PTTL", key)) for key in keys])
            # -2: gone since it was found.
            lefts = {
                key: time / 1000 if time >= 0 else None
                for key, time in zip(keys, times, strict=True)
                if time != -2
            }
            keys = list(lefts)
        for elements in self._elements(keys):
            yield self._batch(elements, lefts)

    def _batch(self, elements: Elements, lefts: dict[bytes, float | None] | None) -> pa.RecordBatch:
        columns = []
        for column in self._schema:
            if column.name == self._options.key_column:
                columns.append(self._key_column(elements.keys))
            elif column.name == self._options.ttl_column:
                assert lefts is not None
                columns.append(pa.array([lefts[key] for key in elements.keys], pa.float64()))
            else:
                columns.append(self._column(column, elements))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _key_column(self, keys: list[bytes]) -> Any:
        prefix = self._options.prefix
        kind = self._shape.type_of(self._options.key_column)
        bare = [key[len(prefix) :] for key in keys] if prefix else keys
        return typed(
            bare,
            kind,
            lambda position: f"format {FORMAT!r}: the key {keys[position][:200]!r}",
            is_permissive=self._options.permissive is True,
        )

    def _column(self, column: Any, elements: Elements) -> Any:
        values, kind = elements.columns[column.name], self._shape.type_of(column.name)
        if column.name in self._shape.own and column.name in ("position", "score"):
            return pa.array(values, column.type)
        is_permissive = self._options.permissive is True
        if column.name == "fields" and column.name in self._shape.own:
            return self._map_column(column.type, elements, is_permissive=is_permissive)

        def place(position: int) -> str:
            # Not the value itself: errors are logged.
            return (
                f"format {FORMAT!r}: a value of the {self._shape.kind}"
                f" {elements.keys[position][:200]!r}, column {column.name!r},"
            )

        return typed(values, kind, place, is_permissive=is_permissive)

    def _map_column(self, kind: pa.MapType, elements: Elements, *, is_permissive: bool) -> Any:
        values = elements.columns["fields"]
        sizes, owners = [0], list[bytes]()
        flat: list[tuple[bytes, bytes]] = []
        for key, row in zip(elements.keys, values, strict=True):
            # Redis allows a field twice in one entry, and Spark's maps do not: the last one stays.
            pairs = dict(zip(row[::2], row[1::2], strict=True))
            flat += pairs.items()
            owners += [key] * len(pairs)
            sizes.append(len(flat))

        def place(position: int) -> str:
            return f"format {FORMAT!r}: a field of the stream {owners[position][:200]!r}"

        names = typed([name for name, _ in flat], StringType(), place, is_permissive=False)
        whole = self._shape.type_of("fields")
        assert hasattr(whole, "valueType")
        texts = [value for _, value in flat]
        items = typed(texts, whole.valueType, place, is_permissive=is_permissive)
        return pa.MapArray.from_arrays(pa.array(sizes, pa.int32()), names, items).cast(kind)

    # A row for each key.

    def _keys_alone(self, keys: list[bytes]) -> Iterator[Elements]:
        yield Elements(keys, {})

    def _strings(self, keys: list[bytes]) -> Iterator[Elements]:
        job_client = self._calls.job_client
        if job_client.is_cluster:
            values = self._ask([(key, ("GET", key)) for key in keys])
        else:
            # Of another type by now: nil, as of one that is gone.
            (values,) = self._ask([(keys[0], ("MGET", *keys))])
        found = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        yield Elements([key for key, _ in found], {"value": [value for _, value in found]})

    def _hashes(self, keys: list[bytes]) -> Iterator[Elements]:
        names, asked = [name.encode() for name in self._shape.named], keys
        rows = self._ask([(key, ("HMGET", key, *names)) for key in keys])
        gone = self._gone(keys, rows)
        if gone:
            keys = [key for key in keys if key not in gone]
            rows = [row for key, row in zip(asked, rows, strict=True) if key not in gone]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        yield Elements(keys, dict(zip(self._shape.named, columns, strict=True)))

    def _gone(self, keys: list[bytes], rows: list[Any]) -> set[bytes]:
        """Return the keys that are no hashes any more; those without any of the fields stay."""
        nothing = [None] * len(self._shape.named)
        empty = [key for key, row in zip(keys, rows, strict=True) if row == nothing]
        there = self._ask([(key, ("EXISTS", key)) for key in empty]) if empty else []
        gone = {key for key, is_there in zip(empty, there, strict=True) if not is_there}
        return gone | {key for key, row in zip(keys, rows, strict=True) if row is None}

    # A row for each element.

    def _rows_of_hashes(self, keys: list[bytes]) -> Iterator[Elements]:
        if self._fields is not None:
            yield from self._fields_of_hashes(keys, self._fields)
            return
        for pages in self._scans("HSCAN", keys):
            yield self._pairs(pages, "field", "value")

    def _fields_of_hashes(self, keys: list[bytes], fields: list[bytes]) -> Iterator[Elements]:
        if not fields:
            return
        rows = self._ask([(key, ("HMGET", key, *fields)) for key in keys])
        found = [
            (key, field, value)
            for key, row in zip(keys, rows, strict=True)
            for field, value in zip(fields, row or (), strict=bool(row))
            if value is not None
        ]
        columns = {"field": [each[1] for each in found], "value": [each[2] for each in found]}
        yield Elements([each[0] for each in found], columns)

    def _sets(self, keys: list[bytes]) -> Iterator[Elements]:
        for pages in self._scans("SSCAN", keys):
            owners = _owners(pages, 1)
            yield Elements(owners, {"member": list(chain.from_iterable(p for _, p in pages))})

    def _sorted_sets(self, keys: list[bytes]) -> Iterator[Elements]:
        for pages in self._scans("ZSCAN", keys):
            found = self._pairs(pages, "member", "score")
            scores = [float(score) for score in found.columns["score"]]
            yield Elements(found.keys, {**found.columns, "score": scores})

    def _lists(self, keys: list[bytes]) -> Iterator[Elements]:
        starts: dict[bytes, int] = {}

        def ask(asked: list[tuple[bytes, bytes]]) -> list[Any]:
            commands = []
            for key, cursor in asked:
                starts[key] = int(cursor)
                last = starts[key] + ELEMENTS_A_PAGE - 1
                commands.append((key, ("LRANGE", key, starts[key], last)))
            return [
                None if page is None else (_following(starts[key], page), page)
                for (key, _), page in zip(commands, self._ask(commands), strict=True)
            ]

        for pages in paged(keys, len(keys), ask):
            positions = [
                position
                for key, page in pages
                for position in range(starts[key], starts[key] + len(page))
            ]
            values = list(chain.from_iterable(page for _, page in pages))
            yield Elements(_owners(pages, 1), {"position": positions, "value": values})

    def _streams(self, keys: list[bytes]) -> Iterator[Elements]:
        def ask(asked: list[tuple[bytes, bytes]]) -> list[Any]:
            commands = [
                (key, ("XRANGE", key, id_of(int(cursor)), "+", "COUNT", ELEMENTS_A_PAGE))
                for key, cursor in asked
            ]
            return [
                None if page is None else (_following_id(page), page)
                for page in self._ask(commands)
            ]

        for pages in paged(keys, len(keys), ask):
            entries = [(key, entry) for key, page in pages for entry in page]
            yield self.entries(entries)

    def entries(self, entries: Sequence[tuple[bytes, Any]]) -> Elements:
        """Return entries of streams as rows; each is a key with an id and its fields in a row."""
        columns: dict[str, Sequence[Any]] = {
            "id": [entry[0] for _, entry in entries],
            "fields": [entry[1] or () for _, entry in entries],
        }
        if self._shape.named:
            rows = [dict(zip(each[::2], each[1::2], strict=True)) for each in columns["fields"]]
            for name in self._shape.named:
                columns[name] = list(map(_getter(name.encode()), rows))
        return Elements([key for key, _ in entries], columns)

    def batch_of(self, entries: Sequence[tuple[bytes, Any]]) -> pa.RecordBatch:
        """Return entries of streams as an Arrow batch; no round trip."""
        return self._batch(self.entries(entries), None)

    def _scans(self, command: str, keys: list[bytes]) -> Iterator[Pages]:
        def ask(asked: list[tuple[bytes, bytes]]) -> list[Any]:
            return self._ask(
                [(key, (command, key, cursor, "COUNT", ELEMENTS_A_PAGE)) for key, cursor in asked]
            )

        yield from paged(keys, len(keys), ask)

    @staticmethod
    def _pairs(pages: Pages, first: str, second: str) -> Elements:
        firsts: list[bytes] = []
        seconds: list[bytes] = []
        for _, page in pages:
            firsts += page[::2]
            seconds += page[1::2]
        return Elements(_owners(pages, 2), {first: firsts, second: seconds})


class _Chunk:
    """Divides keys into chunks that are read together, as large as their values allow."""

    def __init__(self) -> None:
        self._size = FIRST_CHUNK
        self._bytes = 0

    def of(self, pages: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
        waiting: list[bytes] = []
        for page in pages:
            waiting += page
            while len(waiting) >= self._size:
                yield from self._take(waiting)
        while waiting:
            yield from self._take(waiting)

    def _take(self, waiting: list[bytes]) -> Iterator[list[bytes]]:
        keys = waiting[: self._size]
        del waiting[: self._size]
        self._bytes = 0
        yield keys
        each = self._bytes // len(keys) + 1
        # Slowly up, because the next ones may be larger.
        self._size = max(1, min(MOST_OF_A_CHUNK, 4 * self._size, BYTES_A_CALL // each))

    def saw(self, batch: pa.RecordBatch) -> None:
        self._bytes += batch.nbytes


def _owners(pages: Pages, width: int) -> list[bytes]:
    owners: list[bytes] = []
    for key, page in pages:
        owners += [key] * (len(page) // width)
    return owners


def _getter(name: bytes) -> Callable[[dict[bytes, bytes]], bytes | None]:
    return lambda row: row.get(name)


def _following(start: int, page: Sequence[Any]) -> int:
    """Return where a list goes on, 0 where it does not."""
    return start + len(page) if len(page) == ELEMENTS_A_PAGE else 0


def number_of(entry_id: bytes | str) -> int:
    """Return the id of a stream's entry as one number, in the same order."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    time, _, sequence = text.partition("-")
    return (int(time) << 64) | int(sequence or 0)


def id_of(number: int) -> str:
    """Return the id of a number of `number_of`."""
    return f"{number >> 64}-{number & 0xFFFF_FFFF_FFFF_FFFF}"


def _following_id(page: Sequence[Any]) -> int:
    return number_of(page[-1][0]) + 1 if len(page) == ELEMENTS_A_PAGE else 0
