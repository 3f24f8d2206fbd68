"""The sink of plain Redis keys: the rows of a task as commands, in bounded pipelines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from redis.exceptions import NoPermissionError, ResponseError

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.arrow import as_bytes
from workstealing.spark.sources.compat import WriterCommitMessage
from workstealing.spark.sources.options import MOST_SECONDS
from workstealing.spark.sources.origins import Origin
from workstealing.spark.sources.pipelines import (
    BYTES_A_CALL,
    FIELDS_A_COMMAND,
    Bounded,
    Group,
    KeyCalls,
    of_one_command,
)
from workstealing.spark.sources.redis_columns import Shape, shape_of
from workstealing.spark.sources.redis_once import EntriesOnce, is_known_id, of_each_key
from workstealing.spark.sources.redis_options import FORMAT, RedisOptions
from workstealing.spark.sources.redis_remembering import KeysTogether
from workstealing.store.connection import Command, Commands, Packed
from workstealing.store.keys import require_users_key
from workstealing.store.scripts import load

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A key that is replaced is written by one transaction, which the server runs in one go.
MOST_OF_A_KEY = 64 * 1024 * 1024
# A script gives a command up to some 8,000 arguments, as many as its Lua can hand on at once.
MOST_FIELDS_OF_AN_ENTRY = 3_900
# Another text at the place of an id would be an option of XADD: MAXLEN, for instance. Redis 6.2
# knows no "7-*".
_ID = re.compile(rb"\*|[0-9]{1,20}(-[0-9]{1,20})?")
_MOST_OF_AN_ID = (1 << 64) - 1
# The commands that tell a key of each type from others.
_LENGTHS = {"hash": "HLEN", "list": "LLEN", "set": "SCARD", "zset": "ZCARD", "stream": "XLEN"}
_NEEDED = {
    "string": ("value",),
    "list": ("value",),
    "set": ("member",),
    "zset": ("member", "score"),
    "stream": (),
}


def checked_for_writing(
    options: RedisOptions, schema: StructType, overwrite: bool, *, is_stream: bool
) -> Shape:
    """Return what the columns of a DataFrame mean to the sink, before any task runs.

    Raises: ConfigurationError for options, columns or a save mode that do not go with the sink. No
    round trip.
    """
    if overwrite:
        raise options.wrong(
            "it never empties a server or a pattern of keys: give"
            ' mode("append"), and the option writeMode=overwrite to replace each key of the'
            " DataFrame"
        )
    options.for_writing(is_stream=is_stream)
    shape = shape_of(options, schema)
    if not shape.has_key:
        raise options.wrong(
            f"the column {options.key_column!r} is missing from"
            f" {', '.join(schema.fieldNames())}: give the keys in it, or name it by the option"
            " 'keyColumn'"
        )
    if options.kind == "hash":
        needed: tuple[str, ...] = ("field", "value") if shape.own else ()
    else:
        needed = _NEEDED[options.kind]
    if missing := [name for name in needed if name not in shape.own]:
        raise options.wrong(f"the column {missing[0]!r} is missing: type={options.kind} needs it")
    if options.kind in ("hash", "stream") and not (shape.named or needed or "fields" in shape.own):
        raise options.wrong(
            "there is no column with a field: give columns beside the key, named as the fields"
        )
    if options.is_once and "id" in shape.own:
        raise options.wrong(
            "written exactly once, entries have ids by their batch, but there is a column 'id':"
            " leave it out"
        )
    if options.is_once and (shape.has_ttl or options.ttl_seconds is not None):
        # A stream whose ids are refused may be another program's, and would get our deadline.
        raise options.wrong(
            "written exactly once, streams do not get a time to live: leave out the column"
            f" {options.ttl_column!r} and the option 'ttlSeconds'"
        )
    if shape.has_ttl and options.ttl_seconds is not None:
        raise options.wrong(
            f"both the column {options.ttl_column!r} and the option 'ttlSeconds' say how long keys"
            " live: give one"
        )
    return shape


@dataclass(frozen=True, slots=True)
class WrittenKeys(WriterCommitMessage):
    """The result of one task: how many rows it wrote, and by how many commands."""

    rows: int
    commands: int


@dataclass(slots=True)
class _Content:
    """The rows of one key that are written together.

    Fields: items: of each row what its type makes of it; ttl_ms: None for none; size: in bytes.
    """

    items: list[Any] = field(default_factory=list)
    ttl_ms: int | None = None
    size: int = 0


# The arguments that each row adds, and commands with their sizes in bytes.
_Items = Sequence[Any]
_Made = Iterator[tuple[Command, int]]
_Maker = Callable[[bytes, _Items, int | None], _Made]


class _Write(NamedTuple):
    """The commands that write a key, and after how many milliseconds it is to go, None: not set."""

    key: bytes
    commands: Commands
    left: int | None


class PlainWrite:
    """Writes the rows of a task.

    Arguments:
        shape: of the DataFrame.
        turn: whose rows they are, for exactly once.
    """

    def __init__(
        self, options: RedisOptions, shape: Shape, calls: KeyCalls, turn: Origin | None = None
    ) -> None:
        self._options = options
        self._shape = shape
        self._once = None if turn is None else EntriesOnce(options, calls, turn)
        # Without a transaction a task that dies would leave a key that never ends, or half of one.
        is_whole = shape.kind != "string" and (
            shape.has_ttl or options.ttl_seconds is not None or options.replaces is True
        )
        call = calls.in_transactions if is_whole or self._once is not None else calls.on_keys
        self._calls: Bounded[_Write] = Bounded(lambda writes: self._send(call, writes))
        self._rows = self._commands = 0
        self._plain, self._may_expire = calls, False
        # The server refuses an id that is not above all others of the stream.
        self._has_ids = shape.kind == "stream" and "id" in shape.own
        # Then a script writes the entries.
        self._is_narrow = self._has_ids and is_whole and not options.replaces
        # Of a key that is replaced, the rows must be there all at once.
        self._is_gathering = options.replaces is True and not shape.is_a_row_a_key
        self._waiting: dict[bytes, _Content] = {}
        self._together = KeysTogether(options)
        makers: dict[str, _Maker] = {
            "string": self._strings,
            "hash": self._rows_of_hashes if shape.own else self._hashes,
            "list": self._lists,
            "set": self._sets,
            "zset": self._sorted_sets,
            "stream": self._entries,
        }
        self._make = makers[shape.kind]

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenKeys:
        """Write all rows; a round trip to each node for 256 commands or 4 MB.

        Raises: ConfigurationError for a row that cannot be written, before anything of its Arrow
        batch is; ResponseError if the server refuses a command; connection faults. The rows before
        stay.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            self._rows += batch.num_rows
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            keys = self._keys(columns[self._options.key_column])
            lefts = self._ttls(columns, keys)
            if self._shape.is_a_row_a_key and self._put_packed(columns, keys, lefts):
                continue
            items = list(self._items(columns, keys))
            if self._shape.is_a_row_a_key:
                for key, left, item in zip(keys, lefts, items, strict=True):
                    self._put(key, left, self._make(key, [item], left))
                continue
            if self._is_gathering:
                self._together.check(columns[self._options.key_column], keys)
            contents = _by_key(keys, lefts, items)
            if self._is_gathering:
                self._gather(contents, keys[-1])
            else:
                for key, content in contents.items():
                    self._put_content(key, content)
        for key, content in self._waiting.items():
            self._put_content(key, content)
        self._calls.flush()
        if self._once is not None:
            self._once.finish()
        return WrittenKeys(self._rows, self._commands)

    def _gather(self, contents: dict[bytes, _Content], last: bytes) -> None:
        """Write the keys that are complete, which the last one of a batch is not yet."""
        for key, content in contents.items():
            known = self._waiting.setdefault(key, content)
            content.size = sum(map(_size, content.items))
            if known is not content:
                known.items += content.items
                known.size += content.size
                known.ttl_ms = known.ttl_ms if content.ttl_ms is None else content.ttl_ms
            if known.size > MOST_OF_A_KEY:
                raise self._options.wrong(
                    f"the key {key!r} has more than {MOST_OF_A_KEY >> 20} MiB, too much to replace"
                    " in one go: append to a new key instead, and rename it"
                )
        for key in [key for key in self._waiting if key != last]:
            self._put_content(key, self._waiting.pop(key))

    def _put_content(self, key: bytes, content: _Content) -> None:
        self._put(key, content.ttl_ms, self._make(key, content.items, content.ttl_ms))

    def _put_packed(
        self, columns: dict[str, Any], keys: list[bytes], lefts: list[int | None]
    ) -> bool:
        """Queue the rows of a batch in the server's own form; False if they cannot be."""
        if self._shape.kind == "string" and columns["value"].null_count:
            return False
        # Not where a planner imports this module: Arrow's functions take long to load.
        from workstealing.spark.sources.redis_packing import packed_rows

        rows = packed_rows(self._options, self._shape, columns, keys, lefts)
        if rows is None:
            return False
        self._calls.flush()
        # A string has its deadline by SET, and a key that is replaced by what is packed with it.
        is_set = self._shape.kind == "string" or self._options.replaces is True
        for (key, commands), left in zip(rows, lefts, strict=True):
            self._commands += commands.count
            write = _Write(key, commands, None if is_set else left)
            self._calls.add(write, len(commands.text), commands.count)
        self._calls.flush()
        return True

    def _put(self, key: bytes, ttl_ms: int | None, made: Iterable[tuple[Command, int]]) -> None:
        """Queue the commands that write a key."""
        if self._shape.kind != "string" and (ttl_ms is not None or self._options.replaces):
            made = list(made)
            if self._options.replaces:
                # Nothing of another type is left there, so the deadline is that of our key alone.
                if made and ttl_ms is not None:
                    made.append((("PEXPIRE", key, ttl_ms), 0))
                made.insert(0, (("UNLINK", key), 0))
            if self._options.replaces or self._has_ids:
                # The commands set the deadline.
                ttl_ms = None
            if made:
                size = sum(size for _, size in made)
                self._add(key, [command for command, _ in made], size, ttl_ms)
            return
        for command, size in made:
            self._add(key, (command,), size)

    def _add(
        self, key: bytes, commands: Sequence[Command], size: int, left: int | None = None
    ) -> None:
        self._commands += len(commands)
        self._calls.add(_Write(key, commands, left), size + len(key), len(commands))

    def _send(
        self, call: Callable[[Sequence[Group]], list[list[Any]]], writes: Sequence[_Write]
    ) -> None:
        groups = self._with_deadlines(writes)
        if self._once is not None:
            groups = of_each_key(groups)
            self._once.before(groups)
        known: list[tuple[bytes, Command]] = []
        for (key, commands), replies in zip(groups, call(groups), strict=True):
            for number, reply in enumerate(replies):
                if isinstance(reply, Exception):
                    if self._once is None or not is_known_id(reply):
                        raise self._not_written(key, reply) from reply
                    known.append((key, [*commands][number]))  # type: ignore[misc]
        if self._once is not None and known:
            self._once.compare(known)

    def _with_deadlines(self, writes: Sequence[_Write]) -> list[Group]:
        """Return the commands, with those that set deadlines: one for a server, or one a key."""
        groups: list[Group] = [(write.key, write.commands) for write in writes]
        lefts = [(write.key, write.left) for write in writes if write.left is not None]
        if not lefts:
            return groups
        if not self._may_expire:
            self._check_right(lefts[0][0])
        if not self._plain.job_client.is_cluster:
            # The keys are all there when it comes, whatever was refused.
            return [*groups, (lefts[0][0], self._expiring(lefts, writes[0].commands))]
        return [
            (key, _both(commands, self._expiring([(key, write.left)], commands)))
            if write.left is not None
            else (key, commands)
            for (key, commands), write in zip(groups, writes, strict=True)
        ]

    def _expiring(self, lefts: Sequence[tuple[bytes, int | None]], like: Commands) -> Commands:
        """Return the command that sets deadlines, packed if the others are."""
        self._commands += 1
        keys, times = zip(*lefts, strict=True)
        text = load("plain_keys/expire").body
        command: Command = ("EVAL", text, len(keys), *keys, _LENGTHS[self._shape.kind], *times)
        if not isinstance(like, Packed):
            return (command,)
        from workstealing.spark.sources.redis_packing import packed

        return packed(command)

    def _check_right(self, key: bytes) -> None:
        """Ask once whether this user may set deadlines. A script is refused behind its writes."""
        # No number, so the server changes nothing.
        ((reply,),) = self._plain.on_keys([(key, (("PEXPIRE", key, ""),))])
        if isinstance(reply, NoPermissionError):
            raise self._not_written(key, reply) from reply
        self._may_expire = True

    def _not_written(self, key: bytes, error: Exception) -> ResponseError:
        return ResponseError(f"the {self._shape.kind} {key!r} was not written: {error}")

    # The content of a batch.

    def _keys(self, column: Any) -> list[bytes]:
        prefix, keys = self._options.prefix, as_bytes(column)
        found: list[bytes] = []
        for number, key in enumerate(keys):
            if key is None:
                raise _wrong(number, "the key is null: leave such rows out")
            require_users_key(prefix + key)
            found.append(prefix + key)
        return found

    def _ttls(self, columns: dict[str, Any], keys: list[bytes]) -> list[int | None]:
        if not self._shape.has_ttl:
            seconds = self._options.ttl_seconds
            return [None if seconds is None else max(1, round(seconds * 1000))] * len(keys)
        found: list[int | None] = []
        for number, left in enumerate(columns[self._options.ttl_column].to_pylist()):
            if left is not None and not (math.isfinite(left) and 0 < left <= MOST_SECONDS):
                raise _wrong(
                    number,
                    f"the time to live of the key {keys[number]!r} is {left}: give seconds above 0"
                    f" and up to {MOST_SECONDS:,}, or null for a key that does not expire",
                )
            found.append(None if left is None else max(1, round(left * 1000)))
        return found

    def _items(self, columns: dict[str, Any], keys: list[bytes]) -> Iterable[Any]:
        """Return what each row holds: the arguments that it adds to a command."""
        kind = self._shape.kind
        if self._shape.named:
            return self._named_items(columns, keys)
        if kind == "stream":
            ids = self._ids(columns, keys)
            return zip(ids, self._maps(columns["fields"], keys), strict=True)
        if kind == "hash":
            first, second = "field", "value"
        elif kind == "zset":
            first, second = "score", "member"
        elif "position" in self._shape.own:
            first, second = "position", "value"
        else:
            return zip(self._required(columns, _NEEDED[kind][0], keys))
        firsts, seconds = (self._required(columns, name, keys) for name in (first, second))
        if kind == "zset" and b"nan" in firsts:
            # The server would refuse it behind the others, and a deadline could be set meanwhile.
            number = firsts.index(b"nan")
            raise _wrong(
                number,
                f"the score of a member of {keys[number]!r} is NaN: give a number, or leave such"
                " rows out",
            )
        return zip(firsts, seconds, strict=True)

    def _named_items(self, columns: dict[str, Any], keys: list[bytes]) -> Iterable[Any]:
        """Return each row's fields and values as one flat sequence, without nulls."""
        names = [name.encode() for name in self._shape.named]
        values = [as_bytes(columns[name]) for name in self._shape.named]
        if any(columns[name].null_count for name in self._shape.named):
            rows: Iterable[Any] = (
                [
                    part
                    for name, value in zip(names, row, strict=True)
                    if value is not None
                    for part in (name, value)
                ]
                for row in zip(*values, strict=True)
            )
        else:
            pairs = zip(map(repeat, names), values, strict=True)
            # The names have no end.
            rows = zip(*chain.from_iterable(pairs), strict=False)
        if self._shape.kind == "hash":
            return rows
        return zip(self._ids(columns, keys), self._some_fields(rows, keys), strict=True)

    def _some_fields(self, rows: Iterable[Any], keys: list[bytes]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if not row:
                raise _wrong(
                    number,
                    f"an entry of the stream {keys[number]!r} has no field that is not null: leave"
                    " such rows out",
                )
            if self._is_narrow and len(row) > 2 * MOST_FIELDS_OF_AN_ENTRY:
                raise _wrong(
                    number,
                    f"an entry of the stream {keys[number]!r} has {len(row) // 2:,} fields, but"
                    f" with ids and a time to live {MOST_FIELDS_OF_AN_ENTRY:,} are the most: leave"
                    " one of these two out, or write writeMode=overwrite",
                )
            yield row

    def _ids(self, columns: dict[str, Any], keys: list[bytes]) -> list[bytes]:
        if self._once is not None:
            return self._once.ids(keys)
        if "id" not in columns:
            return [b"*"] * len(keys)
        found = [b"*" if each is None else each for each in as_bytes(columns["id"])]
        for number, each in enumerate(found):
            if not _ID.fullmatch(each):
                raise _wrong(
                    number,
                    f"the id of an entry of the stream {keys[number]!r} is none: give two numbers,"
                    " as in 1700000000000-0, or null for the server's next one",
                )
        return found

    def _maps(self, column: Any, keys: list[bytes]) -> Iterator[Any]:
        rows = (
            [
                _text(part)
                for name, value in row or ()
                if value is not None
                for part in (name, value)
            ]
            for row in column.to_pylist()
        )
        return self._some_fields(rows, keys)

    def _required(self, columns: dict[str, Any], name: str, keys: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for number, value in enumerate(as_bytes(columns[name])):
            if value is None:
                raise _wrong(
                    number, f"the {name} of the key {keys[number]!r} is null: leave such rows out"
                )
            found.append(value)
        return found

    # The commands of a key, each with its size.

    def _strings(self, key: bytes, items: _Items, ttl_ms: int | None) -> _Made:
        ((value,),) = items
        left = () if ttl_ms is None else ("PX", ttl_ms)
        yield ("SET", key, value, *left), len(value)

    def _hashes(self, key: bytes, items: _Items, _: int | None) -> _Made:
        (flat,) = items
        size = sum(map(len, flat))
        if len(flat) <= 2 * FIELDS_A_COMMAND and size <= BYTES_A_CALL:
            if flat:
                yield ("HSET", key, *flat), size
            return
        for some, size in of_one_command(zip(flat[::2], flat[1::2], strict=True)):
            yield ("HSET", key, *some), size

    def _rows_of_hashes(self, key: bytes, items: _Items, _: int | None) -> _Made:
        # Later rows replace earlier ones.
        for some, size in of_one_command(dict(items).items()):
            yield ("HSET", key, *some), size

    def _lists(self, key: bytes, items: _Items, _: int | None) -> _Made:
        if "position" in self._shape.own:
            items = [(value,) for _, value in sorted(items, key=lambda item: int(item[0]))]
        for some, size in of_one_command(items):
            yield ("RPUSH", key, *some), size

    def _sets(self, key: bytes, items: _Items, _: int | None) -> _Made:
        for some, size in of_one_command(items):
            yield ("SADD", key, *some), size

    def _sorted_sets(self, key: bytes, items: _Items, _: int | None) -> _Made:
        for some, size in of_one_command(items):
            yield ("ZADD", key, *some), size

    def _entries(self, key: bytes, items: _Items, ttl_ms: int | None) -> _Made:
        most = self._options.max_length
        if self._has_ids and ttl_ms is not None and not self._options.replaces:
            if not self._may_expire:
                self._check_right(key)
            text, kept = load("plain_keys/append").body, b"" if most is None else most
            entries = ((entry_id, b"%d" % len(flat), *flat) for entry_id, flat in items)
            for some, size in of_one_command(entries):
                yield ("EVAL", text, 1, key, ttl_ms, kept, *some), size
            return
        if self._has_ids and self._options.replaces:
            items = self._by_id(key, items)
        trim = () if most is None else ("MAXLEN", "~", most)
        for entry_id, flat in items:
            yield ("XADD", key, *trim, entry_id, *flat), sum(map(len, flat))

    def _by_id(self, key: bytes, items: _Items) -> _Items:
        """Return all entries of a stream in the order of their ids.

        Raises: ConfigurationError for one that the server would refuse, when the old stream is
        gone.
        """
        ordered = sorted(items, key=lambda item: _place(item[0]))
        last = (0.0, 0.0)
        for entry_id, _ in ordered:
            place = _place(entry_id)
            if math.inf not in place and not (last < place and max(place) <= _MOST_OF_AN_ID):
                raise self._options.wrong(
                    f"the stream {key!r} is to have the id {entry_id.decode()!r} twice, or it is"
                    " out of bounds: leave such rows out; the stream is as it was"
                )
            last = place
        return ordered


def _place(entry_id: bytes) -> tuple[float, float]:
    """Return an id as numbers, the server's own ones behind those that are given."""
    first, _, second = entry_id.partition(b"-")
    return _number(first), _number(second)


def _number(part: bytes) -> float:
    return math.inf if part == b"*" else int(part or 0)


def _by_key(
    keys: Sequence[bytes], lefts: Sequence[int | None], items: Iterable[Any]
) -> dict[bytes, _Content]:
    """Return the rows of a batch by their keys; the last ttl that is not null counts."""
    contents: dict[bytes, _Content] = {}
    for key, left, item in zip(keys, lefts, items, strict=True):
        content = contents.get(key)
        if content is None:
            content = contents[key] = _Content()
        content.items.append(item)
        if left is not None:
            content.ttl_ms = left
    return contents


def _both(first: Commands, second: Commands) -> Commands:
    if isinstance(first, Packed) and isinstance(second, Packed):
        return Packed.joined([first, second])
    return [*first, *second]  # type: ignore[misc]


def _size(item: Any) -> int:
    return len(item) if isinstance(item, bytes) else sum(map(_size, item))


def _text(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _wrong(number: int, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"format {FORMAT!r}: row {number + 1} of a batch: {problem}; nothing of the batch was"
        " written"
    )
