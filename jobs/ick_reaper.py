"""The job that returns what consumers of an Ick have reserved and never committed."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_attempts, checked_limit, checked_seconds
from workstealing.recruiting.job import (
    DivisibleJob,
    InTurn,
    PartJob,
    drawn,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.ick import AsyncIck, Ick
from workstealing.structures.ick_names import as_text
from workstealing.structures.ick_reaping import Reaper

__all__ = ["IckBacklog", "IckReaper"]


@dataclass(frozen=True, slots=True)
class IckBacklog:
    """How many reservations are stale now.

    Fields: members: how many; oldest_seconds: since when the oldest of those that were looked at
    has been reserved; exact: False when there were so many that a part was looked at, and
    multiplied.
    """

    members: int
    oldest_seconds: float
    exact: bool = True


class IckReaper(DivisibleJob):
    """Returns stale reservations to the producer set; sets aside what goes stale again and again.

    Arguments: ick: an `Ick`, or what has several of them as ``icks`` or ``shards()``, of which each
    slice serves one, chosen at random; stale_after: the age in seconds from which a reservation is
    stale: longer than the longest batch takes; limit: the most members a slice handles;
    max_attempts: how often a member is returned at most; when its reservation goes stale once
    more, it goes to the dead (`Ick.dead`, `Ick.revive`, `Ick.discard`), and nothing is ever
    dropped; dry_run: count what would be returned or set aside, and change nothing; name: what the
    job is called, by default ``ick_reaper.<key>``; random: returns a float in [0, 1).

    A commit of what was returned is ignored, and says so. While the reservation that holds is not
    stale nothing is returned: its consumer gets whatever else is reserved with its next reserve. A
    client without tokens (Ruby's) leaves no time behind; its members are noted when a slice first
    sees them, and judged by that. See ``docs/ick.md`` for what is not guaranteed there.

    One slice: one round trip to look and one to return, in one attempt; with a limit above 200, as
    many attempts as that takes.
    """

    def __init__(
        self,
        ick: Any,
        stale_after: float,
        limit: int = 5,
        *,
        max_attempts: int = 5,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        stale_after = checked_seconds(stale_after, "stale_after")
        self.ick = ick
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self._random = random
        first = self._icks()[0]
        self.dependency: Hashable = first.twin.identity
        key = getattr(ick, "name", None) or as_text(first.names.version)
        self.name = f"ick_reaper.{key}" if name is None else name
        self._settings = (stale_after, checked_attempts(max_attempts), random)

    def perform(self, slice: Slice) -> int:
        """Return up to ``slice.limit`` stale reservations of one Ick, up to 200 in one attempt.

        Returns: how many members it returned or set aside (would, on a dry run), and entries it
        cleared away that belong to no member. Errors: Aborted if somebody committed or reserved
        meanwhile, and OutOfTime, before anything was handled; LayoutError; connection faults.
        """
        icks = self._icks()
        reaper = self._reaper(icks[drawn(len(icks), self._random)])
        return reaper.count(slice) if self.dry_run else reaper.reap(slice)

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self._icks()[0].twin.warm_up("ick_")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide for a sweep: each part is a group of Icks, by number. No round trip."""
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return groups_of(range(len(self._icks())), n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that reaps some of the Icks in turn, one in each slice."""
        return InTurn(self.name, self.limit, self.reap, part)

    def reap(self, number: int, slice: Slice) -> int:
        """Do a slice of one Ick by its number, as `perform`; 0 for one that is no more."""
        icks = self._icks()
        return self._reaper(icks[number]).reap(slice) if number < len(icks) else 0

    def backlog(self, most_members: int = 1000, seconds: float = 5.0) -> IckBacklog:
        """Count stale reservations, and say how old the oldest is.

        Arguments: most_members: how many of each Ick are looked at (beyond that the count is a
        projection, and says so); seconds: how long it may take. One round trip for each Ick.
        """
        budget = Budget(seconds, timeout=1.0)
        members, oldest, exact = 0, 0.0, True
        for ick in self._icks():
            reaper = self._reaper(ick)
            look = reaper.look(max(1, most_members), budget)
            ages = reaper.stale_ages(look)
            if ages:
                members += round(look.size * len(ages) / len(look.members))
                oldest = max(oldest, *ages)
                exact = exact and len(look.members) == look.size
        return IckBacklog(members, oldest, exact)

    def _reaper(self, ick: Ick | AsyncIck) -> Reaper:
        return Reaper(ick.twin, ick.names, *self._settings)

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
                f"{ick!r} cannot be reaped: give an Ick, or what has Icks as .icks or .shards()"
            )
        return icks
