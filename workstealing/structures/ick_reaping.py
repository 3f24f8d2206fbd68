"""Returning what was reserved by consumers that have gone, an attempt at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.errors import Aborted, OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.operations import as_layout_error
from workstealing.store.scripts import load
from workstealing.store.twin import Twin
from workstealing.structures.ick_dead import TIMES_KEPT, history_of
from workstealing.structures.ick_names import IckNames

WINDOW = 4
"""How many members are looked at for each that a slice may return."""
PIECE = 200
"""How many members one attempt handles at most: its scripts must not hold the server up."""
Step = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Reserved:
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
class Look:
    """What one look has found.

    Fields: now: the server's time in ms; token: of the reservation that holds; size: how many are
    reserved; members: some of them, none while the reservation is not stale; idle_attempts,
    idle_seen: entries whose member has gone; is_trimmable: nothing is reserved, but a list is left.
    """

    now: int
    token: bytes
    size: int
    members: list[Reserved]
    idle_attempts: list[bytes]
    idle_seen: list[bytes]
    is_trimmable: bool


class Reaper:
    """Reaps one Ick through a twin's one-attempt connections.

    Arguments: twin and names, of the Ick; stale_after: seconds; max_attempts: how often a member is
    returned at most; random: returns a float in [0, 1).
    """

    def __init__(
        self,
        twin: Twin,
        names: IckNames,
        stale_after: float,
        max_attempts: int,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._twin = twin
        self._names = names
        self._stale_ms = stale_after * 1000
        self._max_attempts = max_attempts
        self._random = random

    def reap(self, slice: Slice) -> int:
        """Return stale reservations, or set them aside, in attempts of at most 200 members.

        Returns: how many, with the entries cleared away that belong to no member; at most the
        slice's limit. Errors: Aborted, or OutOfTime, if that was so at once; LayoutError;
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
        names = self._names
        watched = (names.cset, names.held, names.attempts, names.dead)
        try:
            with attempt(self._twin, *watched, slice=slice) as current:
                (reply,) = self._checked(current.read, self._look_command(WINDOW * most, most))
                look = self._read(reply)
                steps = self._steps(look, most)
                if not steps:
                    return 0
                command = self._reap_command(look.token, steps)
                (done,) = self._checked(current.commit, command)
        except OutOfMemoryError:
            # A full server refuses all of a MULTI. The script alone begins by deleting.
            budget = Budget(slice.remaining())
            (done,) = self._checked(
                lambda sent: checked(self._twin.call_keys(names.all, [sent], budget)), command
            )
        if done < 0:
            raise Aborted("somebody has reserved since the look")
        return int(done)

    def count(self, slice: Slice) -> int:
        """Return how many members `reap` would return or set aside now; change nothing.

        One round trip.
        """
        look = self.look(WINDOW * slice.limit, Budget(slice.remaining()))
        return min(slice.limit, len(self.stale_ages(look)))

    def look(self, most_members: int, budget: Budget) -> Look:
        """Look at up to so many members without changing anything.

        Errors: LayoutError. One round trip.
        """
        command = self._look_command(most_members, 0)
        (reply,) = self._checked(
            lambda sent: checked(self._twin.call_keys(self._names.all, [sent], budget)), command
        )
        return self._read(reply)

    def stale_ages(self, look: Look) -> list[float]:
        """Return for how long each stale member of a look has been reserved, in seconds."""
        return [
            (look.now - found.since) / 1000
            for found in look.members
            if found.since is not None and self._is_stale(look, found)
        ]

    def _is_stale(self, look: Look, found: Reserved) -> bool:
        return found.since is not None and look.now - found.since >= self._stale_ms

    def _look_command(self, members: int, enough: int) -> tuple[Any, ...]:
        script, keys = load("ick_look"), self._names.all
        return ("EVAL", script.body, len(keys), *keys, members, self._stale_ms, enough)

    def _reap_command(self, token: bytes, steps: list[Step]) -> tuple[Any, ...]:
        script, keys = load("ick_reap"), self._names.all
        parts = [part for step in steps for part in step]
        return ("EVAL", script.body, len(keys), *keys, token, *parts)

    def _checked(
        self, call: Callable[[tuple[Any, ...]], list[Any]], command: tuple[Any, ...]
    ) -> list[Any]:
        """Call with a script's command; let a refusal of the script be a LayoutError."""
        try:
            return call(command)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def _read(self, reply: list[Any]) -> Look:
        now, token, held_since, size, length, flat, idle_attempts, idle_seen = reply
        members = []
        for i in range(0, len(flat), 6):
            member, score, listed, attempts, seen, dead = flat[i : i + 6]
            since = held_since if listed else _seen_since(seen, score)
            members.append(Reserved(member, score, since, _attempts(attempts), dead))
        is_trimmable = size == 0 and length > LENGTH_OF_AN_EMPTY_RESERVATION
        return Look(now, token, size, members, idle_attempts, idle_seen, is_trimmable)

    def _steps(self, look: Look, limit: int) -> list[Step]:
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

    def _end(self, look: Look, found: Reserved) -> Step:
        """Return the step that ends a stale reservation."""
        count, times = found.attempts
        count, times = count + 1, [*times, look.now][-TIMES_KEPT:]
        if count > self._max_attempts:
            history = history_of(found.score, count, times, found.dead)
            return ("bury", found.member, found.score, history)
        value = " ".join(map(str, (count, *times)))
        return ("return", found.member, found.score, value)


LENGTH_OF_AN_EMPTY_RESERVATION = 30


def _seen_since(seen: bytes, score: bytes) -> int | None:
    """Return since when a reaper knows a member with this score to be reserved."""
    time, _, noted = seen.partition(b" ")
    # With another score it has been committed and reserved again.
    return int(time) if noted == score and time.isdigit() else None


def _attempts(value: bytes) -> tuple[int, list[int]]:
    parts = value.split()
    if not parts or not all(part.isdigit() for part in parts):
        return 0, []
    count, *times = map(int, parts)
    return count, times
