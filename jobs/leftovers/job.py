"""The job that removes the garbage of another program, by the rules for its kinds of garbage.

Each rule has a walk of its own over each node. All recruits share its place, which stands in Redis.
A slice takes the next page of one walk, judges its items, and removes some of those that are
garbage by one attempt.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import Aborted, ConfigurationError, OutOfTime
from workstealing.jobs.leftovers.removing import Keeping, Removed, Remover, SideKeys
from workstealing.jobs.leftovers.rule import (
    Basis,
    Garbage,
    Item,
    Rule,
    checked_rules,
)
from workstealing.jobs.leftovers.walk import Judging, Pages, RulePlace, Step, parts_of
from workstealing.jobs.shared.key_walk import WALKING, KeyShare, move_place, read_place
from workstealing.recruiting.checks import checked_limit, checked_name
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
from workstealing.store.job_client import JobClient, Node, job_client_of
from workstealing.store.keys import key_slot
from workstealing.structures.access import ALWAYS, ATTEMPT, Access, JobAccess

_log = logging.getLogger("workstealing.jobs")

OF_RULES = Access(
    keys=("{*}:ws:leftovers:NAME:*",),
    scripts=("leftovers", "walk"),
    # Scripts are told by the rules which of these they send; a rule may read by others, too.
    commands=ALWAYS
    | ATTEMPT
    | WALKING
    | {"SSCAN", "ZSCAN", "GET", "SET", "EXPIRE", "PEXPIRE", "PTTL", "XADD", "XTRIM", "XRANGE"}
    | {"XREVRANGE", "XDEL", "DUMP", "RESTORE", "UNLINK", "SREM", "ZREM", "HDEL", "LREM", "SADD"}
    | {"ZADD", "HSET", "MEMORY|USAGE", "EXISTS", "TYPE", "HLEN", "HEXISTS", "HMGET", "LLEN"}
    | {"LINDEX", "LRANGE", "SISMEMBER", "SCARD", "ZSCORE", "ZRANGE", "ZCARD", "STRLEN", "XLEN"}
    | {"ZCOUNT", "XPENDING", "XINFO|GROUPS", "XINFO|CONSUMERS", "XINFO|STREAM"},
    users_keys=True,
)
"""The rights of a job of rules, on the keys of the other program."""

PAGES_A_SLICE = 3
# After a lap that found nothing, the next one begins so many seconds later for each of its pages: a
# look at a small keyspace costs little. After one that found this share or more, it begins at once.
REST_A_PAGE, LEAST_REST, MOST_REST, RICH_SHARE = 0.25, 1.0, 60.0, 0.1
# A sighting is kept for this many gaps, and for a week at least.
_GAPS_KEPT, _LEAST_KEPT = 4, 7 * 86_400.0
# After a full load of a rule's script the next slice serves the same page, but for once in so many.
_STAYS = 8
# A place that nobody has moved for so long is gone, and its walk begins anew.
_PLACE_SECONDS = 30 * 86_400


class Leftovers(DivisibleJob):
    """Removes the garbage of another program, as rules tell.

    Arguments:
        client: any client of redis-py or valkey-py.
        name: by default ``leftovers`` and the first rule's owner.
        limit: the most items of a slice.
        dry_run: by default True: a slice counts the garbage that it meets, and removes nothing.
        undo: for how long removed items are kept for `workstealing undo`, in seconds or as a
            timedelta, by default not at all.
        undo_largest: the most bytes of an item that is kept.
        undo_room: the most bytes of all kept items, in each stream (one on a server, one for each
            hash slot on a cluster); an item that is too large stays.
        ttl: instead of being removed, a key is given this time to live, between half and double of
            it by chance.
        larger_ttl: the same, for keys that are too large to be kept.
        random: returns a float in [0, 1).

    Keys of the owner are never written except by the removal itself. The job's own keys have times
    to live: the places of its walks, the sightings, the audit stream of its last 10,000 removals
    (30 days), and the items kept for undo. A dry run has a place of its own, and sightings.

    Raises: ConfigurationError for arguments that do not fit together.
    """

    access = JobAccess(more=OF_RULES)

    def __init__(
        self,
        client: Any,
        rules: Sequence[Rule],
        *,
        name: str | None = None,
        limit: int = 100,
        dry_run: bool = True,
        undo: Duration | None = None,
        undo_largest: int = 1 << 20,
        undo_room: int = 64 << 20,
        ttl: Duration | None = None,
        larger_ttl: Duration | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.rules = checked_rules(rules)
        self.name = checked_name(f"leftovers.{self.rules[0].owner}" if name is None else name)
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.keeping = Keeping(
            0.0 if undo is None else seconds_of(undo, "undo", 1.0),
            _checked_bytes(undo_largest, "undo_largest"),
            _checked_bytes(undo_room, "undo_room"),
            None if ttl is None else seconds_of(ttl, "ttl", 1.0),
            None if larger_ttl is None else seconds_of(larger_ttl, "larger_ttl", 1.0),
        )
        for rule in self.rules:
            if undo is not None and not rule.can_undo:
                raise ConfigurationError(
                    f"the rule {rule.name!r} removes parts that cannot come back to their place:"
                    " leave undo out"
                )
            if ttl is None and rule.needs_ttl:
                raise ConfigurationError(
                    f"nothing proves the rule {rule.name!r}, so its keys are never deleted: give"
                    " ttl, the time to live that they get"
                )
        # The job client does not keep its client alive.
        self.client = client
        self._job_client = job_client_of(client)
        self.dependency = self._job_client.identity
        self.random, self._clock = random, clock
        self._said = False

    def perform(self, slice: Slice) -> int:
        """Judge the next items of one rule, and remove at most ``slice.limit`` that are garbage.

        Returns: how many were removed, in `unit`; in a dry run, how many garbage items it has met:
        a lap of a dry run counts each of them once, and a page, or a key with many parts, as a
        whole, so one slice may count more than its limit. Raises: Aborted if their owner
        wrote to all of them meanwhile, or another recruit moved the place; Skipped if the server is
        full, and what is removed should be kept; OutOfTime; connection faults. One round trip for
        the place, one or two for each page of 250 keys or 50 members (3 pages at most), three for
        the removal, and one for the new place.
        """
        self._say()
        rules = self._counting
        if not rules:
            return 0
        rule = rules[drawn(len(rules), self.random)]
        nodes = self._job_client.nodes()
        node = nodes[drawn(len(nodes), self.random)]
        walk = RuleWalk(self, rule, node, slice)
        return walk.go(KeyShare(), dry_run=bool(self.dry_run))

    @property
    def unit(self) -> str:
        """The units of the rules that count now, such as "entries", or "entries and consumers"."""
        return " and ".join(dict.fromkeys(each.unit for each in self._counting or self.rules))

    @property
    def _counting(self) -> list[Rule]:
        """The rules whose garbage a slice counts: a rule that only reports counts in a dry run."""
        return [each for each in self.rules if not each.reports_only or self.dry_run]

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the garbage that all rules find now; a lower bound if there was not time for all.

        A rule that only reports counts in a dry run. Items that must be seen twice are counted once
        they have been.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Raises: as `perform`. One or two round trips for each page of 250 keys or 50 members.
        """
        found, is_all = 0, True
        slice = Slice(1, seconds, self._clock)
        for rule in self._counting:
            for node in self._job_client.nodes():
                counted, ended = RuleWalk(self, rule, node, slice).count()
                found, is_all = found + counted, is_all and ended
        age = None if found or not is_all else 0.0
        return Backlog(found, age, self.unit, is_all)

    def restart(self) -> None:
        """Begin the walks of all rules anew, with no rest; one round trip for each, and node."""
        for rule in self.rules:
            for node in self._job_client.nodes():
                for dry_run in (False, True):
                    key = self.place_key(rule, node, dry_run=dry_run)
                    checked(self._job_client.call_keys((key,), [("DEL", key)], Budget(None, 1.0)))

    def place_key(self, rule: Rule, node: Node, *, dry_run: bool) -> bytes:
        """Return the key of the place of a rule's walk on a node."""
        where = "" if node is None else f":{node[0]}:{node[1]}"
        kind = "dry" if dry_run else "place"
        return self.side_keys.beside(None, f"{kind}:{rule.name}{where}".encode())

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self._job_client.warm_up("leftovers/", "walk/")

    def parts(self, n: int) -> list[LeftoversPart]:
        """Divide the keyspace for a sweep: by rules, by nodes, and by the names of the keys.

        Every part scans all keys of its node, and serves its share. No round trip.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        nodes = self._job_client.nodes()
        rules = [number for number, each in enumerate(self.rules) if not each.reports_only]
        shares = max(1, checked_parts(n) // max(1, len(nodes) * len(rules)))
        return [
            LeftoversPart(rule, node, KeyShare(share, shares))
            for share in range(shares)
            for rule in rules
            for node in nodes
        ]

    def for_part(self, part: LeftoversPart) -> PartJob:
        """Return the job of one part. No round trip."""
        return _LeftoversPartJob(self, part)

    @property
    def job_client(self) -> JobClient:
        """The one-attempt connections of the job."""
        return self._job_client

    @property
    def side_keys(self) -> SideKeys:
        """The names of the job's side keys."""
        return SideKeys(self.name, self._job_client)

    @property
    def remover(self) -> Remover:
        """The remover of its garbage."""
        return Remover(self._job_client, self.side_keys, self.keeping, self.random)

    def _say(self) -> None:
        if self.dry_run and not self._said:
            self._said = True
            _log.warning(
                "%s is a dry run and removes nothing: give dry_run=False when its counts are right",
                self.name,
            )


@dataclass(frozen=True, slots=True)
class LeftoversPart:
    """A part of a sweep. Fields: rule: its number; node; share: of the node's keys."""

    rule: int
    node: Node
    share: KeyShare


class RuleWalk:
    """One slice of the walk of a rule over a node."""

    def __init__(self, job: Leftovers, rule: Rule, node: Node, slice: Slice) -> None:
        self._job, self._rule, self._node, self._slice = job, rule, node, slice
        self._job_client = job.job_client
        self.handled = self.left = self._aborted = 0

    def go(self, share: KeyShare, *, dry_run: bool) -> int:
        """Serve the shared walk from its place on; see `Leftovers.perform`.

        Raises: Aborted if other writers left nothing to handle; OutOfTime; connection faults.
        """
        key = self._job.place_key(self._rule, self._node, dry_run=dry_run)
        raw = read_place(self._job_client, key, self._slice)
        place = RulePlace.read(raw)
        self._slice.observe(backlog=max(place.found, place.last_found))
        try:
            after = self.walk(place, share, dry_run=dry_run)
        except OutOfTime:
            if self.handled:
                return self.handled
            raise
        if after != place:
            try:
                move_place(
                    self._job_client, key, raw, after.fields(), self._slice, keep=_PLACE_SECONDS
                )
            except (Aborted, OutOfTime):
                if self.handled:
                    return self.handled
                raise
        if self._aborted and not self.handled:
            raise Aborted("the owner wrote to the items met between WATCH and EXEC")
        return self.handled

    def walk(self, place: RulePlace, share: KeyShare, *, dry_run: bool) -> RulePlace:
        """Handle up to the limit of items from a place on; return the place to go on from."""
        slice = self._slice
        pages = Pages(self._job_client, self._node, self._rule, slice, share)
        for number, step in enumerate(pages.steps(place), 1):
            # No lap rests for longer: a later moment is nonsense.
            if step.now < place.rests <= step.now + MOST_REST:
                return place
            found = self._found(step)
            room = max(0, slice.limit - self.handled)
            if dry_run:
                removed, rest = self._count(found, step.now, room)
            else:
                some = self._in_random_order(found) if self._has_scripts(found) else found[:room]
                removed, rest = self._remove(some, room, step.now), b""
            self.handled += removed.items
            counted = replace(
                place, rests=0.0, found=place.found + removed.items, size=place.size + removed.size
            )
            if rest:
                # The next slice of the dry run goes on at this key of the page.
                return replace(counted, inside=rest)
            if not dry_run and removed.items and (len(some) < len(found) or self._stays(removed)):
                # The rest of this page comes in the next slice: what was removed is not met again.
                return counted
            after = step.after
            place = replace(
                counted,
                facts=after.facts,
                cursor=after.cursor,
                inside=after.inside,
                at=after.at,
                pages=counted.pages + 1,
                judged=counted.judged + len(step.items),
            )
            if step.is_end:
                return self._lapped(place, step.now)
            # Most of one more page would be judged now, and again by the next slice.
            is_full = 2 * self.handled > slice.limit
            if is_full or slice.expired or number >= PAGES_A_SLICE:
                break
        return place

    def _stays(self, removed: Removed) -> bool:
        """Say whether to come back to a page; sometimes not, or a busy key would hold the walk."""
        return removed.has_more and drawn(_STAYS, self._job.random) < _STAYS - 1

    def _in_random_order(self, found: list[tuple[Item, Garbage]]) -> list[tuple[Item, Garbage]]:
        """Return garbage from a random one on, so that a busy key is not always the first."""
        at = drawn(len(found), self._job.random)
        return [*found[at:], *found[:at]]

    @staticmethod
    def _has_scripts(found: list[tuple[Item, Garbage]]) -> bool:
        return any(garbage.script is not None for _, garbage in found)

    def count(self) -> tuple[int, bool]:
        """Count a lap's garbage; return the number, and whether the lap was finished in time."""
        found = 0
        pages = Pages(self._job_client, self._node, self._rule, self._slice, KeyShare())
        try:
            for step in pages.steps(RulePlace()):
                garbage = self._found(step, notes=False)
                found += self._count(garbage, step.now, None)[0].items
                if self._slice.expired and not step.is_end:
                    return found, False
        except OutOfTime:
            return found, False
        return found, True

    def _count(
        self, found: Sequence[tuple[Item, Garbage]], now: float, room: int | None
    ) -> tuple[Removed, bytes]:
        """Count garbage in the rule's unit, a key with many parts as a whole.

        Arguments:
            room: from which on no further key is counted, where counting takes commands of its own;
                None: all are.

        Returns: the number, and the first key that was not counted, if any.
        """
        if not self._rule.counted_in:
            return Removed(len(found)), b""
        counted = Removed()
        for number, (item, _) in enumerate(found):
            if number and room is not None and (counted.items >= room or self._slice.expired):
                return counted, item.key
            one_slot = self._job_client.is_cluster
            (parts,) = parts_of(
                self._rule, [item], now, lambda commands, _: self._read(commands), one_slot=one_slot
            )
            counted.items += parts.number
        return counted, b""

    def _lapped(self, place: RulePlace, now: float) -> RulePlace:
        share = place.found / max(1, place.judged)
        rest = min(MOST_REST, max(LEAST_REST, REST_A_PAGE * place.pages))
        rest *= max(0.0, 1.0 - share / RICH_SHARE)
        return RulePlace(
            place.facts,
            rests=now + rest if rest else 0.0,
            laps=place.laps + 1,
            last_found=place.found,
            last_size=place.size,
        )

    def _found(self, step: Step, *, notes: bool = True) -> list[tuple[Item, Garbage]]:
        """Return the garbage among the items of a step, as far as it may be removed now."""
        if not step.items:
            return []
        judging = Judging(self._rule, step.items, step.now, one_slot=self._job_client.is_cluster)
        verdicts = judging.run(lambda commands, _: self._read(commands))
        found = [
            (item, verdict)
            for item, verdict in zip(step.items, verdicts, strict=True)
            if isinstance(verdict, Garbage)
        ]
        if found and self._rule.certainty.basis is Basis.SEEN_TWICE:
            return self._seen_twice(found, step.now, notes=notes)
        return found

    def _read(self, commands: Sequence[Command]) -> list[Any]:
        self._slice.spend(len(commands))
        replies: list[Any] = self._job_client.call(
            self._node, commands, Budget(self._slice.remaining())
        )
        return replies

    def _seen_twice(
        self, found: list[tuple[Item, Garbage]], now: float, *, notes: bool
    ) -> list[tuple[Item, Garbage]]:
        """Return the items whose fingerprint has been the same for the gap; note the others."""
        names = [self._sighting(item) for item, _ in found]
        seen = checked(self._read([("GET", each) for each in names]))
        gap = self._rule.certainty.gap
        kept = int(1000 * max(_GAPS_KEPT * gap, _LEAST_KEPT))
        again: list[tuple[Item, Garbage]] = []
        writes: list[Command] = []
        for name, noted, (item, garbage) in zip(names, seen, found, strict=True):
            since, _, fingerprint = (noted or b"").partition(b":")
            if noted and fingerprint == garbage.fingerprint:
                if now - float(since) >= gap:
                    again.append((item, garbage))
            else:
                text = b"%d:%b" % (int(now) + 1, garbage.fingerprint)
                writes.append(("SET", name, text, "PX", kept))
        if writes and notes:
            # A full server takes none: then nothing is seen twice.
            checked(self._read(writes))
        return again

    def _sighting(self, item: Item) -> bytes:
        name = b"%b\0%b\0%b" % (self._rule.name.encode(), item.key, item.member or b"")
        digest = hashlib.blake2b(name, digest_size=16).hexdigest()
        return self._job.side_keys.beside(item.key, b"seen:" + digest.encode())

    def _remove(self, found: Sequence[tuple[Item, Garbage]], room: int, now: float) -> Removed:
        """Remove garbage by one attempt for each hash slot on a cluster, else by a single one.

        That of a rule with scripts is removed by one for each item, until there is no room left.
        """
        total = Removed()
        remover = self._job.remover
        groups: dict[int, list[tuple[Item, Garbage]]] = {}
        for item, garbage in found:
            if garbage.script is not None:
                if total.items >= room:
                    total.has_more = True
                    break
                try:
                    left = room - total.items
                    total.add(remover.run_script(self._rule, item, garbage, left, self._slice))
                except OutOfTime:
                    if not total.items:
                        raise
                    total.has_more = True
                    break
                continue
            slot = key_slot(item.key) if self._job_client.is_cluster else 0
            groups.setdefault(slot, []).append((item, garbage))
        for group in groups.values():
            items, verdicts = zip(*group, strict=True)
            fingerprints = [each.fingerprint for each in verdicts]
            try:
                total.add(remover.remove(self._rule, items, fingerprints, now, self._slice))
            except Aborted:
                self._aborted += 1
            except OutOfTime:
                if not total.items:
                    raise
                break
        self.left += total.left
        return total


class _LeftoversPartJob(PartJob):
    """Walks one part once; it is drained when a lap ends that found nothing."""

    def __init__(self, job: Leftovers, part: LeftoversPart) -> None:
        self.name, self.limit = job.name, job.limit
        self._job, self._part = job, part
        self._place = RulePlace()
        self._drained = False

    @property
    def is_drained(self) -> bool:
        """Whether a whole lap has found nothing."""
        return self._drained

    def perform(self, slice: Slice) -> int:
        """Handle up to ``slice.limit`` items. Raises: as `Leftovers.perform`."""
        rule = self._job.rules[self._part.rule]
        walk = RuleWalk(self._job, rule, self._part.node, slice)
        before = self._place.laps
        self._place = replace(
            walk.walk(replace(self._place, rests=0.0), self._part.share, dry_run=False), rests=0.0
        )
        self._drained = self._place.laps > before and not self._place.last_found
        return walk.handled


def _checked_bytes(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}; expected a number of bytes, 1 or more")
    return value
