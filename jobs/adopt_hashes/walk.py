"""The walk over the keys of one node: finds the hashes to adopt, and remembers its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from workstealing.errors import Aborted, NotAdopted
from workstealing.jobs.adopt_hashes.adopter import Pattern
from workstealing.jobs.shared.key_walk import KeyShare, StoredPlace, is_users_key, scan_page
from workstealing.recruiting.slice import Slice
from workstealing.store.job_client import Node
from workstealing.store.paging import BEGINNING
from workstealing.structures.due_index import DueIndex
from workstealing.structures.namespace import Layout

KEYS_A_PAGE, PAGES_A_SLICE = 100, 10
EXAMPLES = 5

PLACES = ("ws:NAME:adopt:*",)
"""The form of the keys where the walks of all processes have their places."""


@dataclass(frozen=True, slots=True)
class AdoptionExample:
    """A field that an adoption would give a deadline.

    Fields: key: of its hash; field; deadline_ms: milliseconds since the epoch; expired: whether the
    deadline has passed.
    """

    key: bytes
    field: bytes
    deadline_ms: int
    expired: bool


@dataclass(frozen=True)
class AdoptionReport:
    """The finding of a look at hashes that could be adopted.

    Fields: scanned: keys that match the pattern and hold a hash; hashes: those of them that have a
    field to adopt; fields: to adopt; expired: those of them that have expired, and that no reader
    sees after the adoption; refused: hashes that are left as they are; examples: some fields;
    refusals: some refused keys, with the reasons; is_all: whether every key was looked at.
    """

    scanned: int = 0
    hashes: int = 0
    fields: int = 0
    expired: int = 0
    refused: int = 0
    examples: tuple[AdoptionExample, ...] = ()
    refusals: Mapping[bytes, str] = field(default_factory=dict)
    is_all: bool = True


@dataclass(frozen=True)
class WalkPlace(StoredPlace):
    """The place of the walk on one node.

    Fields: facts: the server's process and the cluster's epoch, for which the cursor holds; cursor:
    of SCAN; left: whether this lap left hashes that were being written; inside: a hash that the
    walk is in the middle of, and at: its cursor of HSCAN; done: the facts for which the walk has
    ended; over: whether it has ended on every node.
    """

    facts: bytes = b""
    cursor: bytes = BEGINNING
    left: bool = False
    inside: bytes = b""
    at: bytes = BEGINNING
    done: bytes = b""
    over: bool = False


class Serves(Protocol):
    """Serves single hashes that a walk finds, such as `Adopter`, whose methods are these."""

    pattern: Pattern

    def unfinished(
        self, layout: Layout | None, node: Node, keys: Sequence[bytes], slice: Slice, /
    ) -> list[bytes]:
        """Return the hashes that may need something."""
        ...

    def adopt(
        self, layout: Layout | None, key: bytes, slice: Slice, most: int, start: bytes, /
    ) -> tuple[int, bytes | None]:
        """Handle at most about `most` fields of a hash; see `Adopter.adopt`."""
        ...

    def looked_at(
        self, layout: Layout | None, key: bytes, slice: Slice, /
    ) -> Iterator[tuple[bytes, int, int]]:
        """Yield the fields that would be handled; see `Adopter.looked_at`."""
        ...


class Walk:
    """A walk over the keys of one node, from a place on.

    Arguments:
        index: of the namespace, for its connections.
        share: serve only its keys.
    """

    def __init__(
        self, index: DueIndex, adopter: Serves, node: Node, place: WalkPlace, share: KeyShare
    ) -> None:
        self._index, self._adopter, self._node = index, adopter, node
        self._share = share
        self.place = place
        self.adopted = self.aborted = self.scanned = self.hashes = self.expired = 0
        self.refused: dict[bytes, str] = {}
        self.examples: list[AdoptionExample] = []

    def go(self, layout: Layout | None, slice: Slice, *, dry_run: bool = False) -> None:
        """Adopt up to ``slice.limit`` fields; `place` is where the next slice goes on.

        A cursor holds for one process of the server. After a restart, and after slots have moved,
        the walk begins again: hashes that were adopted need nothing.
        """
        for _ in range(PAGES_A_SLICE):
            facts, cursor, keys = self._page(slice)
            if facts != self.place.facts:
                is_new = not self.place.facts
                self.place = WalkPlace(facts=facts)
                if not is_new:
                    continue
            if self.place.done:
                return
            if not self._serve(layout, keys, slice, dry_run=dry_run):
                return
            self.place = replace(self.place, cursor=cursor, inside=b"", at=BEGINNING)
            if cursor == BEGINNING:
                done = b"" if self.place.left else facts or b"?"
                self.place = replace(self.place, left=False, done=done)
                return
            if self.adopted >= slice.limit or slice.expired:
                return

    def look(self, layout: Layout | None, slice: Slice, most: int) -> bool:
        """Look at hashes without changing any; return whether all of them were looked at."""
        cursor = BEGINNING
        while self.scanned < most:
            _, cursor, keys = self._page(slice, cursor)
            some = keys[: most - self.scanned]
            needing = self._adopter.unfinished(layout, self._node, some, slice)
            self.scanned += len(some)
            for key in needing:
                self._look_at(layout, key, slice)
            if len(some) < len(keys):
                return False
            if cursor == BEGINNING:
                return True
        return False

    def added_to(self, found: AdoptionReport, *, is_all: bool) -> AdoptionReport:
        """Return a report with the findings of this walk added."""
        refusals = dict(list({**found.refusals, **self.refused}.items())[:EXAMPLES])
        return AdoptionReport(
            found.scanned + self.scanned,
            found.hashes + self.hashes,
            found.fields + self.adopted,
            found.expired + self.expired,
            found.refused + len(self.refused),
            (*found.examples, *self.examples)[:EXAMPLES],
            refusals,
            found.is_all and is_all,
        )

    def _page(self, slice: Slice, cursor: bytes | None = None) -> tuple[bytes, bytes, list[bytes]]:
        """Return the facts for which a cursor holds, the next cursor, and the users' hashes."""
        scan = (
            *("SCAN", self.place.cursor if cursor is None else cursor),
            *("MATCH", self._adopter.pattern.text, "COUNT", KEYS_A_PAGE, "TYPE", "hash"),
        )
        page = scan_page(self._index.job_client, self._node, scan, slice)
        keys = [
            key for key in dict.fromkeys(page.keys) if is_users_key(key) and self._share.has(key)
        ]
        self._index.shuffle(keys)
        return page.facts, page.cursor, keys

    def _serve(
        self, layout: Layout | None, keys: Sequence[bytes], slice: Slice, *, dry_run: bool
    ) -> bool:
        """Adopt the hashes of a page; return whether all were dealt with.

        A hash that is being written is left for another lap.
        """
        for key in self._adopter.unfinished(layout, self._node, keys, slice):
            rest: bytes | None = self.place.at if key == self.place.inside else BEGINNING
            while rest is not None:
                if self.adopted >= slice.limit or slice.expired:
                    if rest != BEGINNING:
                        self.place = replace(self.place, inside=key, at=rest)
                    return False
                most = slice.limit - self.adopted
                try:
                    if dry_run:
                        self._look_at(layout, key, slice, most)
                        break
                    fields, rest = self._adopter.adopt(layout, key, slice, most, rest)
                    self.adopted += fields
                except Aborted:
                    self.aborted += 1
                    self.place = replace(self.place, left=True)
                    break
                except NotAdopted as error:
                    self.refused[key] = str(error)
                    break
        return True

    def _look_at(
        self, layout: Layout | None, key: bytes, slice: Slice, most: int | None = None
    ) -> None:
        """Count the fields of a hash that would be handled, at most so many."""
        before = self.adopted
        try:
            for name, deadline, now in self._adopter.looked_at(layout, key, slice):
                self.adopted += 1
                self.expired += deadline <= now
                if len(self.examples) < EXAMPLES:
                    self.examples.append(AdoptionExample(key, name, deadline, deadline <= now))
                if self.adopted - before == most:
                    break
        except NotAdopted as error:
            self.refused[key] = str(error)
        self.hashes += self.adopted > before
