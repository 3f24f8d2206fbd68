"""All live fields of a namespace, page by page: for exports, not for slices.

An emulated namespace's due index names its hashes; a native one has none, so there the keyspace of
each node is scanned by a pattern. Nothing here is a snapshot: a field that changes during the scan
may be seen before or after the change. A field that the server moves between its tables meanwhile
may be seen twice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import Node
from workstealing.store.keys import is_in_share, key_slot, to_bytes
from workstealing.store.operations import Operation
from workstealing.store.paging import BEGINNING, paged
from workstealing.structures.due_index import DueIndex
from workstealing.structures.namespace import Layout, read_layout
from workstealing.structures.volatile_hashes.hashes import VolatileHashes

# The number of index shards, and of hashes, that one round trip asks; and the approximate number of
# entries, fields and keys in a reply.
SHARDS_A_CALL, ENTRIES_A_PAGE = 32, 100
HASHES_A_CALL, FIELDS_A_PAGE = 256, 128
KEYS_A_PAGE = 1000
# An export waits for a busy server, unlike a slice.
TIMEOUT_SECONDS = 30.0
# HPTTL's answer for a field that is not there.
_GONE = -2


class LiveFields(NamedTuple):
    """Fields that had not expired when they were read, as columns: objects would cost more.

    Fields: keys: of their hashes; fields; values; left_ms: the rest of their lives in ms, -1
    without a deadline.
    """

    keys: list[bytes]
    fields: list[bytes]
    values: list[bytes]
    left_ms: list[int]


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """The keys whose hashes a scan is narrowed to.

    Fields: named: these alone, None for all; prefix: the beginning of each; share and shares: of
    a node's keys those of this share, see `is_in_share`.
    """

    named: frozenset[bytes] | None = None
    prefix: bytes = b""
    share: int = 0
    shares: int = 1

    def lets_pass(self, key: bytes) -> bool:
        """Say whether a key is among them."""
        return key.startswith(self.prefix) and (self.named is None or key in self.named)


class HashScan:
    """Reads the live fields of a namespace through one-attempt connections, in bounded replies.

    Arguments:
        match: a pattern of Redis's for the keys, needed for a native namespace.
        chosen: the keys to read of those that match.

    Where they are named, and the pattern is a mere beginning ("item:*") or there is none, nothing
    else is looked at. Raises, in every method: LayoutError for a namespace that is being migrated
    or is foreign; ConfigurationError for a native namespace without a pattern; connection faults. A
    namespace that nobody has used yet has no fields, and its layout is not written down.
    """

    def __init__(
        self,
        hashes: VolatileHashes,
        match: str | bytes | None = None,
        chosen: KeyChoice = KeyChoice(),
    ) -> None:
        self._hashes = hashes
        self._match = match
        self._chosen = chosen
        beginning = _beginning_of(match)
        # Keys that need not be looked for; the pattern that the server goes by.
        self._named: list[bytes] | None = None
        self._pattern = match
        if beginning is not None:
            if chosen.named is not None:
                named = filter(chosen.lets_pass, chosen.named)
                self._named = sorted(key for key in named if key.startswith(beginning))
            elif len(chosen.prefix) > len(beginning):
                # Keys that begin with this, but not with that, are left out here.
                self._pattern = _SPECIAL.sub(rb"\\\g<0>", chosen.prefix) + b"*"
        self._beginning = beginning or b""
        self._index = DueIndex(hashes.job_client, hashes.names, 0, random.random, SYSTEM_CLOCK)

    def layout(self) -> Layout | None:
        """Return the layout by which the hashes can be found, or None for a namespace without one.

        Three or four round trips.
        """
        layout = self._index.drive(read_layout(self._hashes.names), _budget())
        if layout is None:
            return None
        layout = self._hashes.open()
        if layout.is_moving and not layout.is_native:
            raise LayoutError(
                f"the namespace {layout.namespace!r} is being migrated, so that its hashes can be"
                " found neither by its due index nor without it: read when the migration has"
                " finished"
            )
        if layout.is_native and self._match is None:
            raise ConfigurationError(
                f"the namespace {layout.namespace!r} is native and has no due index that names its"
                ' hashes: give the pattern of their keys as match ("item:*")'
            )
        return layout

    def shards(self, layout: Layout) -> list[int]:
        """Return the index shards of an emulated namespace, in the order of their nodes."""
        by_node = self._index.shards_by_node(layout, _budget())
        found = [shard for shards in by_node.values() for shard in sorted(shards)]
        if self._named is None:
            return found
        wanted = {layout.shard_of(key_slot(key)) for key in self._named}
        return [shard for shard in found if shard in wanted]

    def nodes(self) -> list[Node]:
        """Return the nodes whose keyspaces hold a native namespace's hashes; no round trip."""
        nodes = self._hashes.job_client.nodes()
        if self._named is None:
            return nodes
        wanted = {self._hashes.job_client.node_of(key_slot(key)) for key in self._named}
        return [node for node in nodes if node in wanted]

    def of_shards(self, layout: Layout, shards: Sequence[int]) -> Iterator[LiveFields]:
        """Yield the live fields of the hashes that index shards of an emulated namespace name.

        Hashes without any deadline are not found. One round trip for some dozen index shards, and
        two for up to 256 hashes or pages of large hashes.
        """
        by_node: dict[Node, list[int]] = {}
        for shard in shards:
            by_node.setdefault(self._node_of(layout, shard), []).append(shard)
        for node, its_shards in by_node.items():
            for keys in self._due_keys(layout, node, its_shards):
                yield from self._fields(layout, node, keys)

    def of_node(self, layout: Layout, node: Node) -> Iterator[LiveFields]:
        """Yield the live fields of the hashes on one node whose keys match the pattern.

        One round trip for each thousand keys of the node, and two for up to 256 hashes found.
        """
        cursor = BEGINNING
        own = self._hashes.names.layout
        share, shares = self._chosen.share, self._chosen.shares
        if self._named is not None:
            node_of = self._hashes.job_client.node_of
            keys = [
                key
                for key in self._named
                if key != own and node_of(key_slot(key)) == node and is_in_share(key, share, shares)
            ]
            yield from self._fields(layout, node, keys)
            return
        while True:
            command = (
                *("SCAN", cursor, "MATCH", self._pattern),
                *("COUNT", KEYS_A_PAGE, "TYPE", "hash"),
            )
            ((cursor, keys),) = self._ask(node, [command])
            if shares > 1:
                keys = [key for key in keys if is_in_share(key, share, shares)]
            keys = [key for key in keys if key != own and self._is_wanted(key)]
            yield from self._fields(layout, node, keys)
            if cursor == BEGINNING:
                return

    def _is_wanted(self, key: bytes) -> bool:
        return self._chosen.lets_pass(key) and key.startswith(self._beginning)

    def _node_of(self, layout: Layout, shard: int) -> Node:
        if layout.registers_shards:
            return self._hashes.job_client.node_of(shard)
        return self._hashes.job_client.nodes()[0]

    def _due_keys(self, layout: Layout, node: Node, shards: Sequence[int]) -> Iterator[list[bytes]]:
        names = self._hashes.names
        if self._named is not None:
            yield from self._due_of_named(layout, node, shards)
            return
        match = () if self._pattern is None else ("MATCH", self._pattern)

        def ask(asked: list[tuple[bytes, bytes]]) -> list[Any]:
            # By ZSCAN: a range by score or rank would miss entries that move down meanwhile.
            replies = self._ask(
                node, [("ZSCAN", *each, *match, "COUNT", ENTRIES_A_PAGE) for each in asked]
            )
            self._check_due([due for due, _ in asked], replies)
            return replies

        for pages in paged(map(names.due, shards), SHARDS_A_CALL, ask):
            found = dict.fromkeys(key for _, entries in pages for key in entries[::2])
            yield [key for key in found if self._is_wanted(key)]

    def _due_of_named(
        self, layout: Layout, node: Node, shards: Sequence[int]
    ) -> Iterator[list[bytes]]:
        """Yield those of the named keys that the due index has."""
        own = set(shards)
        places = [(layout.shard_of(key_slot(key)), key) for key in self._named or ()]
        mine = [(self._hashes.names.due(shard), key) for shard, key in places if shard in own]
        for start in range(0, len(mine), ENTRIES_A_PAGE):
            asked = mine[start : start + ENTRIES_A_PAGE]
            replies = self._ask(node, [("ZSCORE", due, key) for due, key in asked])
            self._check_due([due for due, _ in asked], replies)
            yield [key for (_, key), score in zip(asked, replies, strict=True) if score is not None]

    def _check_due(self, keys: Sequence[bytes], replies: Sequence[Any]) -> None:
        for due, reply in zip(keys, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise LayoutError(
                    f"the key {due!r} does not hold a due index of the namespace"
                    f" {self._hashes.names.namespace!r}: {reply}"
                ) from reply

    def _fields(self, layout: Layout, node: Node, keys: Sequence[bytes]) -> Iterator[LiveFields]:

        def ask(asked: list[tuple[bytes, bytes]]) -> list[Any]:
            # None: another type stands there by now.
            commands: list[Command] = [("HSCAN", *each, "COUNT", FIELDS_A_PAGE) for each in asked]
            return self._read(layout, node, commands)

        for pages in paged(keys, HASHES_A_CALL, ask):
            found = [(key, _as_dict(values)) for key, values in pages if values]
            replies = self._read(
                layout,
                node,
                [("HPTTL", key, "FIELDS", len(values), *values) for key, values in found],
            )
            page = LiveFields([], [], [], [])
            for (key, seen), times in zip(found, replies, strict=True):
                if not times:
                    continue
                lasts = [left != _GONE for left in times]
                # It may have expired between the two looks, and so may all of a hash.
                values = seen if all(lasts) else dict(compress(seen.items(), lasts))
                page.keys.extend([key] * len(values))
                page.fields.extend(values)
                page.values.extend(values.values())
                page.left_ms.extend(compress(times, lasts))
            if page.keys:
                yield page

    def _read(self, layout: Layout, node: Node, commands: list[Command]) -> list[Any]:
        """Run reading commands on hashes of one node; a key of another type gives None."""
        translate = self._hashes.translator.translate
        operations = [translate(layout, each, {}) for each in commands if layout.is_emulated]
        replies = self._ask(node, _by_digest(operations) if operations else commands)
        results: list[Any] = []
        for position, reply in enumerate(replies):
            if isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply):
                results.append(None)
                continue
            (found,) = checked([reply])
            results.append(operations[position].read(found) if operations else found)
        return results

    def _ask(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        return self._hashes.job_client.call(node, commands, _budget()) if commands else []


def _beginning_of(match: str | bytes | None) -> bytes | None:
    """Return the text that a pattern asks keys to begin with, None if it asks for anything else."""
    pattern = b"*" if match is None else to_bytes(match)
    beginning = pattern[:-1]
    return beginning if pattern.endswith(b"*") and not _SPECIAL.search(beginning) else None


# The characters that mean something in a pattern of Redis's.
_SPECIAL = re.compile(rb"[*?\[\]\\]")


def _by_digest(operations: Sequence[Operation]) -> list[Command]:
    """Return commands; the first command of each script carries the script's text."""
    sent: set[str] = set()
    commands: list[Command] = []
    for operation in operations:
        known = operation.sha in sent
        commands.append(operation.by_digest() if known else operation.by_text())
        sent.add(operation.sha)
    return commands


def _as_dict(values: Any) -> dict[bytes, bytes]:
    if isinstance(values, dict):
        return values
    return dict(zip(values[::2], values[1::2], strict=True))


def _budget() -> Budget:
    return Budget(None, TIMEOUT_SECONDS)
