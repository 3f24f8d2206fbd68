"""Which keys a read of plain Redis has: patterns, names, pushed filters, and the tasks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import BinaryType, StringType

from workstealing.spark.sources.compat import InputPartition
from workstealing.spark.sources.options import runs, shares_of_a_node
from workstealing.spark.sources.pipelines import KeyCalls
from workstealing.spark.sources.pushing import ANYTHING, BYTES, TEXT, Column, Wanted, as_key
from workstealing.spark.sources.redis_columns import Shape
from workstealing.spark.sources.redis_options import PARTITIONS, RedisOptions
from workstealing.store.connection import checked
from workstealing.store.job_client import Node
from workstealing.store.keys import is_in_share, key_slot
from workstealing.store.paging import BEGINNING

KEYS_A_PAGE = 1000
# A task costs Spark about as long as so many keys cost it.
LEAST_KEYS_A_TASK = 1000
_KINDS: dict[type, type] = {StringType: TEXT, BinaryType: BYTES}
_SPECIAL = re.compile(rb"[*?\[\\]")
# A pattern without any of them: each stands for itself, or is escaped.
_LITERAL = re.compile(rb"(?:[^*?\[\\]|\\.)*", re.DOTALL)


def escaped(text: bytes) -> bytes:
    r"""Return a pattern of Redis's that matches a text alone: ``item[1]*`` is ``item\[1]\*``."""
    return _SPECIAL.sub(rb"\\\g<0>", text)


def matcher(pattern: bytes) -> re.Pattern[bytes]:
    """Return a regular expression for a pattern of Redis's, as the server reads it."""
    parts: list[bytes] = []
    at, end = 0, len(pattern)
    while at < end:
        char = pattern[at : at + 1]
        at += 1
        if char == b"*":
            parts.append(b".*")
        elif char == b"?":
            parts.append(b".")
        elif char == b"[":
            part, at = _class(pattern, at)
            parts.append(part)
        else:
            if char == b"\\" and at < end:
                char = pattern[at : at + 1]
                at += 1
            parts.append(re.escape(char))
    return re.compile(b"".join(parts), re.DOTALL)


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return the expression for what follows a ``[``, and where it ends."""
    is_not = pattern[at : at + 1] == b"^"
    at += is_not
    ranges: list[bytes] = []
    end = len(pattern)
    # As in the server: a class that nothing ends goes to the end of the pattern.
    while at < end and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < end:
            at += 1
            ranges.append(re.escape(pattern[at : at + 1]))
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < end:
            low, high = sorted((pattern[at], pattern[at + 2]))
            ranges.append(b"\\x%02x-\\x%02x" % (low, high))
            at += 2
        else:
            ranges.append(re.escape(pattern[at : at + 1]))
        at += 1
    if not ranges:
        # Nothing is in the empty class, and everything out of it.
        return (b"." if is_not else b"(?!)"), at + 1
    return b"[%s%s]" % (b"^" if is_not else b"", b"".join(ranges)), at + 1


@dataclass(frozen=True, slots=True)
class Pushed:
    """The filters that Spark has left to the source.

    Fields: keys: the only ones, None for all; prefix: with which all of them begin; fields: of
    hashes that are read as rows, None for all.
    """

    keys: frozenset[bytes] | None = None
    prefix: bytes = b""
    fields: frozenset[bytes] | None = None


def columns_of(options: RedisOptions, shape: Shape) -> dict[str, Column]:
    """Return the columns by which a read chooses its rows.

    These columns are the column of the keys, and the column of the fields of hashes that are read
    as rows. No column of numbers is among them, because many texts may be the same number.
    """
    found = {}
    for name in (options.key_column, "field"):
        is_key = name == options.key_column
        if name in shape.columns.fieldNames() and (is_key or "field" in shape.own):
            kind = _KINDS.get(type(shape.type_of(name)))
            if kind is not None:
                found[name] = Column(kind, prefix=is_key)
    return found


def pushed_of(options: RedisOptions, wanted: Mapping[str, Wanted]) -> Pushed:
    """Return the filters that Spark has left to the source, as they say which keys are read."""
    of_keys = wanted.get(options.key_column, ANYTHING)
    keys, fields = of_keys.chosen(), wanted.get("field", ANYTHING).chosen()
    return Pushed(
        None if keys is None else frozenset(options.prefix + as_key(key) for key in keys),
        options.prefix + as_key(of_keys.prefix) if of_keys.prefix else b"",
        None if fields is None else frozenset(map(as_key, fields)),
    )


@dataclass(frozen=True, slots=True)
class ListedKeys(InputPartition):
    """Keys by name.

    Fields: keys; is_strict: whether a key of another type is an error.
    """

    keys: tuple[bytes, ...]
    is_strict: bool


@dataclass(frozen=True, slots=True)
class ScannedKeys(InputPartition):
    """A share of the keys of one node that a SCAN finds.

    Fields: node: None for the only server; pattern: None for all; prefix: with which the keys
    begin as well; share and shares: the task takes the keys of this share, see `is_in_share`.
    """

    node: Node
    pattern: bytes | None
    prefix: bytes
    share: int = 0
    shares: int = 1


def tasks(
    options: RedisOptions, pushed: Pushed, nodes: Callable[[], Sequence[Node]]
) -> list[InputPartition]:
    """Return the tasks of a read, at least one.

    Arguments:
        nodes: says which there are.

    No round trip but for a cluster's map.
    """
    keys, is_strict = pushed.keys, False
    if options.keys is not None:
        named = frozenset(options.prefix + key.encode() for key in options.keys)
        keys, is_strict = (named if keys is None else named & keys), True
    pattern = _pattern(options)
    if keys is None:
        pattern = _narrowed(pattern, pushed.prefix)
        found = nodes()
        shares = shares_of_a_node(options.partitions, len(found))
        return [
            ScannedKeys(node, pattern, pushed.prefix, share, shares)
            for node in found
            for share in range(shares)
        ]
    match = None if pattern is None or options.keys is not None else matcher(pattern)
    kept = [
        key
        for key in keys
        if key.startswith(pushed.prefix) and (match is None or match.fullmatch(key) is not None)
    ]
    most = options.partitions or min(PARTITIONS, -(-len(kept) // LEAST_KEYS_A_TASK) or 1)
    in_order = sorted(kept, key=lambda key: (key_slot(key), key))
    return [ListedKeys(some, is_strict) for some in runs(in_order, most)] or [
        ListedKeys((), is_strict)
    ]


def _pattern(options: RedisOptions) -> bytes | None:
    match = None if options.match is None else options.match.encode()
    if options.key_prefix:
        return escaped(options.prefix) + (b"*" if match is None else match)
    return None if match == b"*" else match


def _narrowed(pattern: bytes | None, prefix: bytes) -> bytes | None:
    """Return a pattern for the server; keys are compared with the prefix besides."""
    if not prefix:
        return pattern
    longest = escaped(prefix)
    # Of "item:*" and the prefix "item:1" the server can look for both at once.
    if pattern is None or (
        pattern.endswith(b"*")
        and longest.startswith(pattern[:-1])
        and _LITERAL.fullmatch(pattern[:-1]) is not None
    ):
        pattern = longest + b"*"
    return pattern


def scanned(calls: KeyCalls, part: ScannedKeys, kind: str) -> Iterator[list[bytes]]:
    """Yield the keys of a task, page by page; one round trip for each thousand keys of the node.

    Arguments:
        kind: the type that the keys must have.

    A key may come twice if the server resizes its table meanwhile. Raises: connection faults.
    """
    match = () if part.pattern is None else ("MATCH", part.pattern)
    cursor: Any = BEGINNING
    while True:
        command = ("SCAN", cursor, *match, "COUNT", KEYS_A_PAGE, "TYPE", kind)
        ((cursor, keys),) = checked(calls.on_node(part.node, [command]))
        if part.prefix:
            keys = [key for key in keys if key.startswith(part.prefix)]
        if part.shares > 1:
            keys = [key for key in keys if is_in_share(key, part.share, part.shares)]
        yield keys
        if int(cursor) == 0:
            return
