"""The job that makes volatile hashes of hashes that another program has written.

The program kept deadlines its own way, or kept none. The job walks the keyspace of each node by
SCAN, and gives the fields of each hash their deadlines in one attempt, so that a write by the
program in between aborts the attempt. The walk's place stands in Redis, and all recruits share it.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from redis.exceptions import OutOfMemoryError, TimeoutError

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import Aborted, ConfigurationError, OutOfTime, Skipped
from workstealing.jobs.adopt_hashes.adopter import (
    Adopter,
    DeadlineOf,
    Ends,
    Pattern,
    full,
)
from workstealing.jobs.adopt_hashes.walk import PLACES, AdoptionReport, Serves, Walk, WalkPlace
from workstealing.jobs.shared.key_walk import WALKING, KeyShare, move_place, read_place
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    checked_parts,
    drawn,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import Node
from workstealing.store.keys import to_bytes
from workstealing.store.paging import BEGINNING
from workstealing.store.scripts import load
from workstealing.structures.access import ATTEMPT, Access, JobAccess
from workstealing.structures.due_index import DueIndex
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.namespace import Layout
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.hashes import checked_hashes

__all__ = ["AdoptHashes"]

_log = logging.getLogger("workstealing.jobs")

UNITS = {"seconds": 1000, "milliseconds": 1}
_LEAST_TTL, _SERVED_SECONDS = 0.001, 1.0
# So long the place of a sweep's part is kept: longer than a sweep lasts.
_PART_SECONDS = 86_400


class AdoptHashes(DivisibleJob):
    """Takes over the hashes of another program: gives their fields deadlines, slice by slice.

    Arguments:
        hashes: the namespace that adopts them.
        pattern: of their keys, such as ``"hash:*"``.
        sorted_sets: where the program keeps a hash's deadlines, a pattern too (``"zset:*"``): the
            same text stands for both asterisks.
        unit: of the scores there, "seconds" or "milliseconds" since the epoch.
        deadline_of: a function of a key, a field and its value, all bytes, that returns the
            deadline as seconds since the epoch or an aware datetime, or None.
        ttl: the time to live, from the adoption on, of a field without any deadline; by default it
            lives for ever.
        limit: the most fields of a slice.
        dry_run: count the fields that a slice would adopt, and change nothing.
        name: by default ``adopt_hashes.<namespace>``.
        random: returns a float in [0, 1).

    A field that has a deadline in the namespace keeps the later one. The members of the program's
    sorted set go as they are adopted. A hash with a deadline before 2009 or after 4199 (a mistaken
    unit), a key of workstealing's own, and a sorted set that is none are refused and stay as they
    are. When the walk has come to its end, slices are idle; `restart` begins another one.

    Source: the layout of the sorted sets is that of Jim Nelson's talk on work stealing at the
    Internet Archive. Raises: ConfigurationError for arguments that do not fit together.
    """

    access = JobAccess(
        ("volatile hashes",),
        Access(
            keys=PLACES,
            scripts=("volatile_hashes/adopt", "walk"),
            commands=ATTEMPT
            | WALKING
            | {"EXISTS", "HEXISTS", "HLEN", "ZCARD", "ZMSCORE", "ZRANGE", "ZREM"},
            native=frozenset({"HPEXPIREAT", "HPEXPIRETIME"}),
        ),
    )
    unit = "fields"

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        pattern: str | bytes,
        *,
        sorted_sets: str | bytes | None = None,
        unit: str = "seconds",
        deadline_of: DeadlineOf | None = None,
        ttl: Duration | None = None,
        limit: int = 25,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        default = f"adopt_hashes.{hashes.namespace}"
        self._keep_clean(hashes, limit=limit, name=name, default=default, dry_run=dry_run)
        if sorted_sets is None and deadline_of is None and ttl is None:
            raise ConfigurationError(
                "nothing says when the fields end: give sorted_sets, deadline_of or ttl"
            )
        if not (deadline_of is None or callable(deadline_of)):
            raise ConfigurationError(
                f"deadline_of={deadline_of!r} is no function: give one that takes a key, a field"
                " and its value"
            )
        if unit not in tuple(UNITS):
            raise ConfigurationError(f"unit={unit!r} is unknown: give one of {', '.join(UNITS)}")
        self._pattern = Pattern(pattern, sorted_sets)
        ttl_ms = None if ttl is None else int(1000 * seconds_of(ttl, "ttl", _LEAST_TTL))
        index = DueIndex(
            hashes.job_client, hashes.names, hashes.translator.clock_shift_ms, random, clock
        )
        ends = Ends(UNITS[unit], deadline_of, ttl_ms)
        adopter = Adopter(self.hashes, index, self._pattern, ends)
        self._adoption = Adoption(self.name, self.hashes, index, adopter)
        self._random = random
        self._clock = clock

    def perform(self, slice: Slice) -> int:
        """Adopt up to ``slice.limit`` fields, from the walk's place on one node on.

        Returns: how many; 0 also where the walk only met keys that need nothing. Raises: Aborted
        if another recruit moved the place, or if all hashes met were written meanwhile; Skipped if
        the server's memory is full, or if the namespace is moving between backends; LayoutError;
        connection faults; the errors of `deadline_of`. One round trip for the place, up
        to five for each 100 keys, one for the new place, and two or three for each hash that needs
        something, or has more than 64 fields.
        """
        layout = self._adoption.layout(Budget(slice.remaining()), changes=not self.dry_run)
        return self._adoption.serve(layout, slice, self._random, dry_run=bool(self.dry_run))[0]

    def adopt(self, key: str | bytes) -> int:
        """Adopt one hash now, for instance before a process of the new kind first uses it.

        Arguments:
            key: matches the pattern.

        Returns: how many fields were given a deadline. Raises: ConfigurationError for a key that
        does not match; NotAdopted for a hash that is refused; as `perform`. Two or three round
        trips for each 1,000 fields.
        """
        raw = to_bytes(key)
        if not self._pattern.matches(raw):
            raise ConfigurationError(
                f"the key {key!r} does not match the pattern {self._pattern.text!r}"
            )
        adopted = 0
        rest: bytes | None = BEGINNING
        slice = Slice(1000, _SERVED_SECONDS, self._clock)
        layout = self._adoption.layout(Budget(slice.remaining()), changes=True)
        while rest is not None:
            slice = Slice(1000, _SERVED_SECONDS, self._clock)
            fields, rest = self._adoption.adopter.adopt(layout, raw, slice, slice.limit, rest)
            adopted += fields
        return adopted

    def report(self, most: int = 10_000, seconds: Duration = 30.0) -> AdoptionReport:
        """Look at hashes that match, and tell what an adoption would do; change nothing.

        Arguments:
            most: the most hashes to look at.
            seconds: the most time, in seconds or a timedelta.

        Raises: as `perform`. One round trip for each 100 keys, and two or three for each hash.
        """
        slice = Slice(max(1, most), seconds, self._clock)
        layout = self._adoption.layout(Budget(slice.remaining(), _SERVED_SECONDS), changes=False)
        return self._adoption.report(layout, slice, most)

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the fields to adopt; a lower bound if there was not time for all hashes.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Raises: as `perform`. Cost: that of `report`.
        """
        found = self.report(seconds=seconds)
        age = None if found.fields or not found.is_all else 0.0
        return Backlog(found.fields, age, "fields to adopt", found.is_all)

    def restart(self) -> None:
        """Begin the walk again, on every node; one round trip to each.

        Hashes that were adopted need nothing. Do it when the last process of the old program has
        ended, or after a resharding.
        """
        self._adoption.forget_places()

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.hashes.job_client.warm_up("volatile_hashes/", "walk/", LAYOUT_SCRIPTS)

    def parts(self, n: int) -> list[WalkPart]:
        """Divide the keyspace for a sweep: by nodes, and on each by the names of the keys.

        Every part of a node scans all of its keys, and adopts its share. No round trip.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return self._adoption.parts(n)

    def for_part(self, part: WalkPart) -> PartJob:
        """Return the job that adopts the hashes of one part; its place is its own."""
        return _AdoptingPart(self.name, self.limit, self._adoption, part)


@dataclass(frozen=True, slots=True)
class WalkPart:
    """A part of a sweep's walk: its nodes, the share of their keys, and the name of the sweep."""

    nodes: tuple[Node, ...]
    share: KeyShare
    lap: str


class Adoption:
    """The part that a job and its parts share.

    Arguments:
        name: of the job.
        index: of the namespace.
    """

    def __init__(
        self,
        name: str,
        hashes: VolatileHashes | AsyncVolatileHashes,
        index: DueIndex,
        adopter: Serves,
    ) -> None:
        self._name, self._hashes, self._index = name, hashes, index
        self.adopter = adopter
        self._refused_said = False

    def layout(self, budget: Budget, *, changes: bool) -> Layout | None:
        """Return the namespace's layout; None if it has none yet and nothing may be changed.

        Raises: LayoutError; OutOfTime; Skipped if the namespace is migrating, or if the server's
        memory is full.
        """
        layout = self._index.layout(budget)
        if layout is None and changes:
            try:
                layout = self._index.drive(self._hashes.layout_steps(again=True), budget)
            except OutOfMemoryError as error:
                raise full(error) from error
        if layout is not None:
            layout.require_writable()
            if layout.is_moving:
                raise Skipped(
                    f"the namespace {layout.namespace!r} is {layout.backend}: it adopts hashes"
                    " when the migration has ended"
                )
        return layout

    def serve(
        self,
        layout: Layout | None,
        slice: Slice,
        random: Callable[[], float],
        *,
        dry_run: bool = False,
    ) -> tuple[int, bool]:
        """Do a slice of the shared walk, on one node; see `AdoptHashes.perform`.

        Returns: how many fields were handled, and whether the walk has ended on every node. Raises:
        as `AdoptHashes.perform`; Aborted if another slice moved the place first.
        """
        nodes = self._hashes.job_client.nodes()
        node = nodes[drawn(len(nodes), random)]
        key = self._place_key(node)
        job_client = self._hashes.job_client
        raw = read_place(job_client, key, slice)
        place = WalkPlace.read(raw)
        if place.over:
            slice.observe(backlog=0)
            return 0, True
        walk = self.walk(node, place)
        try:
            walk.go(layout, slice, dry_run=dry_run)
        except (OutOfTime, Skipped):
            if walk.adopted:
                return walk.adopted, False
            raise
        self.say_refused(walk.refused)
        if dry_run:
            return min(walk.adopted, slice.limit), False
        if place.done and place.done == walk.place.done:
            if not self._all_done(nodes, slice):
                return 0, False
            walk.place = replace(walk.place, over=True)
        if walk.place != place:
            try:
                move_place(job_client, key, raw, walk.place.fields(), slice)
            except (Aborted, OutOfTime):
                if walk.adopted:
                    return walk.adopted, False
                raise
        if not walk.adopted and walk.aborted:
            raise Aborted("the hashes met were written between WATCH and EXEC")
        return walk.adopted, False

    def report(self, layout: Layout | None, slice: Slice, most: int) -> AdoptionReport:
        """Look at hashes; see `AdoptHashes.report`."""
        found = AdoptionReport()
        for node in self._hashes.job_client.nodes():
            walk = self.walk(node, WalkPlace())
            try:
                is_all = walk.look(layout, slice, most - found.scanned)
            except OutOfTime:
                is_all = False
            except TimeoutError:
                # The report so far holds. A server that answers nothing is a fault.
                if not found.scanned + walk.scanned:
                    raise
                is_all = False
            found = walk.added_to(found, is_all=is_all)
        return found

    def forget_places(self) -> None:
        """Begin the walk again on every node; one round trip to each."""
        job_client = self._hashes.job_client
        for node in job_client.nodes():
            key = self._place_key(node)
            checked(job_client.call_keys((key,), [("DEL", key)], Budget(None, _SERVED_SECONDS)))

    def parts(self, n: int) -> list[WalkPart]:
        """Divide the walk: by nodes, and on each by the names of the keys. No round trip."""
        nodes = self._hashes.job_client.nodes()
        shares = max(1, checked_parts(n) // len(nodes))
        lap = secrets.token_hex(6)
        if n < len(nodes):
            return [WalkPart(tuple(nodes[each::n]), KeyShare(), lap) for each in range(n)]
        return [
            WalkPart((node,), KeyShare(share, shares), lap)
            for share in range(shares)
            for node in nodes
        ]

    def part_place(self, part: WalkPart, node: Node) -> WalkPlace:
        """Return the place of a part's walk on a node; one round trip."""
        key = self._part_key(part.lap, part.share.number, part.share.of, node)
        budget = Budget(None, _SERVED_SECONDS)
        (raw,) = checked(self._hashes.job_client.call_keys((key,), [("HGETALL", key)], budget))
        return WalkPlace.read(raw)

    def keep_part_place(self, part: WalkPart, node: Node, place: WalkPlace) -> None:
        """Write a part's place down for a day; one round trip.

        A task that Spark runs twice writes a place, too: all before it has been served.
        """
        key = self._part_key(part.lap, part.share.number, part.share.of, node)
        commands: list[Command] = [
            ("DEL", key),
            ("EVAL", load("walk/place").body, 1, key, _PART_SECONDS, 0, *place.fields()),
        ]
        checked(self._hashes.job_client.call_keys((key,), commands, Budget(None, _SERVED_SECONDS)))

    def all_parts_over(self, part: WalkPart) -> bool:
        """Say whether the walk of each part of a sweep has ended; one round trip to each."""
        job_client, of = self._hashes.job_client, part.share.of
        for node in job_client.nodes():
            for number in range(of):
                key = self._part_key(part.lap, number, of, node)
                budget = Budget(None, _SERVED_SECONDS)
                (done,) = checked(job_client.call_keys((key,), [("HGET", key, "done")], budget))
                if not done:
                    return False
        return True

    def _part_key(self, lap: str, number: int, of: int, node: Node) -> bytes:
        return b"%b:%b:%d:%d" % (self._place_key(node), lap.encode(), of, number)

    def _place_key(self, node: Node) -> bytes:
        return self._hashes.names.adoption(self.adopter.pattern.digest, node)

    def _all_done(self, nodes: Sequence[Node], slice: Slice) -> bool:
        """Say whether the walk has ended on every node."""
        for node in nodes:
            key = self._place_key(node)
            budget = Budget(slice.remaining())
            slice.spend(1)
            (done,) = checked(
                self._hashes.job_client.call_keys((key,), [("HGET", key, "done")], budget)
            )
            if not done:
                return False
        return True

    def walk(self, node: Node, place: WalkPlace, share: KeyShare | None = None) -> Walk:
        """Return a walk on a node from a place on."""
        return Walk(self._index, self.adopter, node, place, share or KeyShare())

    def say_refused(self, refused: Mapping[bytes, str]) -> None:
        if refused and not self._refused_said:
            self._refused_said = True
            key, reason = next(iter(refused.items()))
            _log.warning("%s leaves hashes as they are, such as %r: %s", self._name, key, reason)


class PartWalk:
    """The walk of one part. A later turn goes on at its place on each node, which Redis keeps."""

    def __init__(self, adoption: Adoption, part: WalkPart) -> None:
        self._adoption, self._part = adoption, part
        self._places: dict[Node, WalkPlace] = {}

    @property
    def is_over(self) -> bool:
        """Whether the walk has come to its end on each node."""
        return all(each in self._places and self._places[each].done for each in self._part.nodes)

    def go(self, layout: Layout, slice: Slice) -> int:
        """Handle up to ``slice.limit`` fields. Raises: as `AdoptHashes.perform`."""
        for node in self._part.nodes:
            if node not in self._places:
                self._places[node] = self._adoption.part_place(self._part, node)
            if not self._places[node].done:
                return self._go_on(node, layout, slice)
        return 0

    def _go_on(self, node: Node, layout: Layout, slice: Slice) -> int:
        walk = self._adoption.walk(node, self._places[node], self._part.share)
        try:
            walk.go(layout, slice)
        except (OutOfTime, Skipped):
            if not walk.adopted:
                raise
        finally:
            self._places[node] = walk.place
        self._adoption.keep_part_place(self._part, node, walk.place)
        self._adoption.say_refused(walk.refused)
        if not walk.adopted and walk.aborted:
            raise Aborted("the hashes met were written between WATCH and EXEC")
        return walk.adopted


class _AdoptingPart(PartJob):
    """Adopts the hashes of one part."""

    def __init__(self, name: str, limit: int, adoption: Adoption, part: WalkPart) -> None:
        self.name, self.limit = name, limit
        self._adoption, self._walk = adoption, PartWalk(adoption, part)

    @property
    def is_drained(self) -> bool:
        """Whether the walk has come to its end on each node."""
        return self._walk.is_over

    def perform(self, slice: Slice) -> int:
        """Adopt up to ``slice.limit`` fields. Raises: as `AdoptHashes.perform`."""
        layout = self._adoption.layout(Budget(slice.remaining(), _SERVED_SECONDS), changes=True)
        assert layout is not None, "it is written down where there is none"
        return self._walk.go(layout, slice)
