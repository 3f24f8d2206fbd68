"""The job that returns stale reservations of an Ick, an attempt at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import Aborted, ConfigurationError, OutOfTime
from workstealing.recruiting.checks import checked_attempts
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    InTurn,
    PartJob,
    drawn,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.scripts import load
from workstealing.structures.access import JobAccess
from workstealing.structures.ick import AsyncIck, Ick
from workstealing.structures.ick.members import TIMES_KEPT, history_of
from workstealing.structures.structure import Structure

__all__ = ["IckReaper"]

WHAT = "stale reservations"
WINDOW = 4
"""A slice looks at this many members for each that it may return."""
PIECE = 200
"""The most members that one attempt handles: its scripts must not hold the server up."""
LENGTH_OF_AN_EMPTY_RESERVATION = 30
_Decision = tuple[Any, Any, Any, Any]

_DIGITS = 16
"""No time in ms has more, and no number that Lua must read."""
_MOST_ATTEMPTS = 1_000_000_000


class IckReaper(DivisibleJob):
    """Returns stale reservations to the producer set; sets members aside that go stale repeatedly.

    Arguments:
        ick: an `Ick`, or a structure that has several of them as ``icks`` or ``shards()``, of which
            each slice serves one, chosen at random.
        lease: how long a reservation holds, seconds or a timedelta: longer than the longest batch
            takes.
        limit: the most members a slice handles.
        max_attempts: how often a member is returned at most; when its reservation goes stale once
            more, it goes to the dead (`Ick.dead`, `Ick.revive`, `Ick.discard`), and nothing is ever
            dropped.
        dry_run: count the members that would be returned or set aside, and change nothing.
        name: of the job, by default ``ick_reaper.<key>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError for a wrong argument.

    A late `ack` of a returned member is ignored, and its result says so. While the current
    reservation is not stale, nothing is returned: its consumer gets all other reserved members with
    its next reserve. A client without tokens (Ruby's) leaves no time behind; a slice notes its
    members when it first sees them, and judges them by that. ``docs/ick.md`` says what is not
    guaranteed there.

    Debounced members that have rested are moved to the producer set, too, and count as handled: a
    client of redis-ick's, which does not know of them, finds them there. Consumers of this package
    move them by themselves.

    A slice costs one round trip to look and one to return, in one attempt, and one more where
    members have rested; with a limit above 200 it makes several attempts of up to 200 members.
    """

    access = JobAccess(("Ick", "sharded Ick"))
    unit = "reservations"

    def __init__(
        self,
        ick: Any,
        lease: Duration,
        limit: int = 5,
        *,
        max_attempts: int = 5,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        seconds = seconds_of(lease, "lease", 0.001)
        self.ick = ick
        self._random = random
        icks = self._icks()
        default = f"ick_reaper.{getattr(ick, 'name', None) or icks[0].name}"
        served = (ick,) if isinstance(ick, Structure) else icks
        self._keep_clean(*served, limit=limit, name=name, default=default, dry_run=dry_run)
        self._settings = (seconds, checked_attempts(max_attempts), random)

    def perform(self, slice: Slice) -> int:
        """Return up to ``slice.limit`` stale reservations of one Ick, up to 200 in one attempt.

        Returns: how many members it returned, set aside or moved as rested (would, on a dry run),
        and entries it cleared away that belong to no member. Raises: Aborted if somebody
        acknowledged or reserved meanwhile, and OutOfTime, before anything was handled; LayoutError;
        connection faults.
        """
        icks = self._icks()
        reaper = self._reaper(icks[drawn(len(icks), self._random)], of=len(icks))
        return reaper.count(slice) if self.dry_run else reaper.reap(slice)

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self._icks()[0].job_client.warm_up("ick/")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide for a sweep: each part is a group of Icks, by number. No round trip.

        Raises: ConfigurationError for a dry run, or a wrong n.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return groups_of(range(len(self._icks())), n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that reaps some of the Icks in turn, one in each slice."""
        return InTurn(self.name, self.limit, self.reap, part)

    def reap(self, number: int, slice: Slice) -> int:
        """Do a slice of one Ick by its number, as `perform`; 0 for an Ick that is gone."""
        icks = self._icks()
        return self._reaper(icks[number]).reap(slice) if number < len(icks) else 0

    def backlog(self, seconds: Duration = 5.0, most_members: int = 1000) -> Backlog:
        """Count stale reservations, and say how long ago the oldest went stale.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta.
            most_members: how many of each Ick are looked at (beyond that the count is a projection,
                and says so).

        Raises: LayoutError; OutOfTime; connection faults. One round trip for each Ick.
        """
        budget = Budget.whole(seconds)
        count, oldest, exact = 0, 0.0, True
        for ick in self._icks():
            reaper = self._reaper(ick)
            found = reaper.backlog_of(reaper.look(max(1, most_members), budget))
            count, oldest = count + found.count, max(oldest, found.oldest_seconds or 0.0)
            exact = exact and found.exact
        return Backlog(count, oldest, WHAT, exact)

    def _reaper(self, ick: Ick | AsyncIck, of: int = 1) -> _Reaper:
        return _Reaper(ick, *self._settings, of)

    def _icks(self) -> Sequence[Ick | AsyncIck]:
        """Return the Icks as they are now: a `ShardedIck` may change their number."""
        ick = self.ick
        if isinstance(ick, Ick | AsyncIck):
            return (ick,)
        found = getattr(ick, "icks", None)
        if found is None and hasattr(ick, "shards"):
            found = ick.shards()
        icks = tuple(found or ())
        if not icks or not all(isinstance(one, Ick | AsyncIck) for one in icks):
            raise ConfigurationError(
                f"{ick!r} cannot be reaped: give an Ick, a ShardedIck, or an object with Icks in"
                " .icks or from .shards()"
            )
        return icks


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A reserved member that a look has come across, as the server wrote it down.

    Fields: member; score; since: the time in ms from which its reservation counts, or None if a
    reaper sees it for the first time; attempts: how often it has gone stale, and when, in ms; dead:
    its history, if it has been dead before.
    """

    member: bytes
    score: bytes
    since: int | None
    attempts: tuple[int, list[int]]
    dead: bytes


@dataclass(frozen=True, slots=True)
class _IckFindings:
    """The findings of one look.

    Fields: now: the server's time in ms; token: of the present reservation; size: how many members
    are reserved; members: some of the reserved members, none while the reservation is not stale;
    idle_attempts, idle_seen: entries of attempts and of first sightings whose member has gone;
    is_trimmable: nothing is reserved, but the reservation still has a list; ripe: how many members
    that waited have rested; ripe_since: the time in ms when the first of them had, or None.
    """

    now: int
    token: bytes
    size: int
    members: list[_Reserved]
    idle_attempts: list[bytes]
    idle_seen: list[bytes]
    is_trimmable: bool
    ripe: int
    ripe_since: float | None


class _Reaper:
    """Reaps one Ick through a job client's one-attempt connections.

    Arguments:
        lease: seconds.
        max_attempts: how often a member is returned at most.
        random: returns a float in [0, 1).
        of: one of how many Icks it is.
    """

    def __init__(
        self,
        ick: Ick | AsyncIck,
        lease: float,
        max_attempts: int,
        random: Callable[[], float],
        of: int,
    ) -> None:
        self._job_client, self._names = ick.job_client, ick.names
        self._lease_ms = lease * 1000
        self._max_attempts = max_attempts
        self._random = random
        self._of = of

    def reap(self, slice: Slice) -> int:
        """Return stale reservations, or set them aside, in attempts of at most 200 members.

        Returns: how many, with the entries cleared away that belong to no member; at most the
        slice's limit. Raises: Aborted or OutOfTime, if the first attempt ended so; LayoutError;
        connection faults. Two round trips an attempt.
        """
        done = 0
        while done < slice.limit:
            most = min(PIECE, slice.limit - done)
            try:
                found = self._reap(slice, most)
            except (Aborted, OutOfTime):
                if not done:
                    raise
                break
            done += found
            if found < most:
                break
        return done

    def _reap(self, slice: Slice, most: int) -> int:
        """Make one attempt; return how many were returned, set aside or cleared away."""
        names, ripened = self._names, 0
        watched = (names.cset, names.held, names.attempts, names.dead)
        try:
            with attempt(self._job_client, *watched, slice=slice) as current:
                (reply,) = current.read(self._look_command(WINDOW * most, most))
                look = self._read(reply)
                self._observe(slice, look)
                if look.ripe:
                    # By a script of its own: whatever a consumer does meanwhile, they are moved.
                    ripened = self._ripen(slice, min(look.ripe, most))
                steps = self._steps(look, most - ripened)
                if not steps:
                    return ripened
                command = self._reap_command(look.token, steps)
                (done,) = current.commit(command)
        except OutOfMemoryError:
            # A full server refuses all of a MULTI. The script alone begins by deleting.
            budget = Budget(slice.remaining())
            (done,) = checked(self._job_client.call_keys(names.all, [command], budget))
        except Aborted:
            if not ripened:
                raise
            return ripened
        if done < 0 and not ripened:
            raise Aborted("somebody has reserved since the look")
        return ripened + max(0, int(done))

    def _ripen(self, slice: Slice, most: int) -> int:
        """Move up to so many members that have rested to the producer set; return how many."""
        names = self._names
        script, keys = load("ick/ripen"), (*names.sets, *names.resting)
        command = ("EVAL", script.body, len(keys), *keys, most)
        budget = Budget(slice.remaining())
        slice.spend(1)
        (moved,) = checked(self._job_client.call_keys(keys, [command], budget))
        return int(moved)

    def count(self, slice: Slice) -> int:
        """Return how many members `reap` would return or set aside now; change nothing.

        One round trip.
        """
        look = self.look(WINDOW * slice.limit, Budget(slice.remaining()))
        self._observe(slice, look)
        stale = sum(self._is_stale(look, found) for found in look.members)
        return min(slice.limit, stale + look.ripe)

    def look(self, most_members: int, budget: Budget) -> _IckFindings:
        """Look at up to so many members without changing anything.

        Raises: LayoutError. One round trip.
        """
        command = self._look_command(most_members, 0)
        (reply,) = checked(self._job_client.call_keys(self._names.all, [command], budget))
        return self._read(reply)

    def backlog_of(self, look: _IckFindings) -> Backlog:
        """Return the backlog that a look makes known, projected from the members looked at."""
        overdue = [
            look.now - found.since - self._lease_ms
            for found in look.members
            if found.since is not None and self._is_stale(look, found)
        ]
        count, is_exact = look.ripe, True
        if overdue:
            count += round(look.size * len(overdue) / len(look.members))
            is_exact = len(look.members) == look.size
        if look.ripe_since is not None:
            overdue.append(look.now - look.ripe_since)
        return Backlog(count, max(overdue, default=0.0) / 1000, WHAT, is_exact)

    def _observe(self, slice: Slice, look: _IckFindings) -> None:
        """Tell metrics what a look has found; another Ick of several may well hold as much."""
        found = self.backlog_of(look)
        slice.observe(oldest_seconds=found.oldest_seconds, backlog=found.count * self._of)

    def _is_stale(self, look: _IckFindings, found: _Reserved) -> bool:
        return found.since is not None and look.now - found.since >= self._lease_ms

    def _look_command(self, members: int, enough: int) -> tuple[Any, ...]:
        script, keys = load("ick/look"), self._names.all
        return ("EVAL", script.body, len(keys), *keys, members, self._lease_ms, enough)

    def _reap_command(self, token: bytes, steps: list[_Decision]) -> tuple[Any, ...]:
        script, keys = load("ick/reap"), self._names.all
        parts = [part for step in steps for part in step]
        return ("EVAL", script.body, len(keys), *keys, token, *parts)

    def _read(self, reply: list[Any]) -> _IckFindings:
        now, token, held_since, size, length, flat, idle_attempts, idle_seen, ripe, first = reply
        members = []
        for i in range(0, len(flat), 6):
            member, score, listed, attempts, seen, dead = flat[i : i + 6]
            since = held_since if listed else _seen_since(seen, score)
            members.append(_Reserved(member, score, since, _attempts(attempts), dead))
        is_trimmable = size == 0 and length > LENGTH_OF_AN_EMPTY_RESERVATION
        idle, since = (idle_attempts, idle_seen), float(first) if first else None
        return _IckFindings(now, token, size, members, *idle, is_trimmable, ripe, since)

    def _steps(self, look: _IckFindings, limit: int) -> list[_Decision]:
        """Decide what to do after a look: at most `limit` steps."""
        # Where few are reserved, a window is all of them in one order: two reapers must differ.
        found = sorted(look.members, key=lambda _: self._random())
        steps = [self._end(look, one) for one in found if self._is_stale(look, one)]
        if look.is_trimmable:
            steps.append(("trim", b"", b"", b""))
        steps += [("forget_attempts", member, b"", b"") for member in look.idle_attempts]
        steps += [("forget_seen", member, b"", b"") for member in look.idle_seen]
        steps += [
            ("note", one.member, one.score, b"%d %s" % (look.now, one.score))
            for one in found
            if one.since is None
        ]
        return steps[:limit]

    def _end(self, look: _IckFindings, found: _Reserved) -> _Decision:
        """Return the step that ends a stale reservation."""
        count, times = found.attempts
        count, times = count + 1, [*times, look.now][-TIMES_KEPT:]
        if count > self._max_attempts:
            history = history_of(self._names.dead, found.score, count, times, found.dead)
            return ("bury", found.member, found.score, history)
        value = " ".join(map(str, (count, *times)))
        return ("return", found.member, found.score, value)


def _seen_since(seen: bytes, score: bytes) -> int | None:
    """Return since when a reaper knows a member with this score to be reserved."""
    time, _, noted = seen.partition(b" ")
    # With another score it has been acknowledged and reserved again.
    return int(time) if noted == score and time.isdigit() and len(time) <= _DIGITS else None


def _attempts(value: bytes) -> tuple[int, list[int]]:
    """Return how often a member has gone stale, and when; what is no such note counts for nothing.

    Then the member is returned once more often than it should be, and never dropped or buried.
    """
    parts = value.split()
    if not parts or not all(part.isdigit() and len(part) <= _DIGITS for part in parts):
        return 0, []
    count, *times = map(int, parts)
    return (count, times) if count <= _MOST_ATTEMPTS else (0, [])
