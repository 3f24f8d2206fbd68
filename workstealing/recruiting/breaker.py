"""Breakers: after a connection fault its server is left alone for a while."""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from workstealing.errors import blamed

if TYPE_CHECKING:
    from workstealing.recruiting.slice import Slice

_FIRST_SHARE = 0.1
_MOST_KNOWN = 8


class Server(tuple[Hashable, ...]):
    """A dependency whose connections mark its own faults by `blame()`.

    A fault without such a mark belongs to another dependency. Two servers are equal if their parts
    are equal.
    """

    def round_trip(self) -> float | None:
        """Return the seconds that its last round trips took; None: unknown. No command."""
        return None

    def confirm(self, slice: Slice) -> None:
        """Raise an error if the server may hold the items that it did not find; see `Twin`."""


class Servers(Server):
    """Several servers, of which each slice serves one; each has a breaker of its own."""

    def round_trip(self) -> float | None:
        """Return the round trip of the slowest; None: unknown."""
        known = [each.round_trip() for each in self if isinstance(each, Server)]
        return max((each for each in known if each is not None), default=None)

    def confirm(self, slice: Slice) -> None:
        """Confirm the server that the slice has served."""
        if isinstance(slice.served, Server):
            slice.served.confirm(slice)


class Breaker:
    """Closed until a connection fault, then open for a period, then closed again.

    One slow reply in a slice of 10 ms is a fault too. So the first period is a tenth of the longest
    one. Each further fault doubles it, unless a slice has gone well in between. Jitter makes a
    period half to one and a half times as long, so the processes of a fleet do not all try a
    recovering server at once. A process runs one slice at a time, so the first slice after the
    period is the only trial.

    Arguments: seconds, the mean length of the longest period; random, which draws the jitter. It is
    not the lottery's random, because tests script that one.
    """

    __slots__ = ("__weakref__", "_longest", "_next", "_open_until", "_random", "_since")

    def __init__(self, seconds: float, random: Callable[[], float] = _random.random) -> None:
        self._longest = seconds
        self._next = seconds * _FIRST_SHARE
        self._random = random
        self._open_until: float | None = None
        # The time of the first fault since the last good slice.
        self._since: float | None = None

    def is_open(self, now: float) -> bool:
        """Say whether slices leave the server alone at that moment (monotonic seconds)."""
        return self._open_until is not None and now < self._open_until

    def trip(self, now: float) -> None:
        """Open, or stay open, for one period from that moment (monotonic seconds)."""
        self._since = now if self._since is None else self._since
        self._open_until = now + self._next * (0.5 + self._random())
        self._next = min(self._longest, 2 * self._next)

    def recover(self) -> None:
        """Note a slice without a fault: the next fault opens the shortest period again."""
        self._since = None
        self._next = self._longest * _FIRST_SHARE

    def open_seconds(self, now: float) -> float | None:
        """Return the seconds since the first fault; None: the last slice went well."""
        return None if self._since is None else max(0.0, now - self._since)


class Breakers:
    """The breakers of one recruiter, by dependency; each lives while a job knows it.

    Arguments: seconds, as of `Breaker`.
    """

    __slots__ = ("_breakers", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._breakers: WeakValueDictionary[Hashable, Breaker] = WeakValueDictionary()

    def of(self, dependency: Hashable) -> Breaker:
        """Return the breaker of a dependency."""
        return self._breakers.setdefault(dependency, Breaker(self._seconds))


class JobBreakers:
    """The breakers that hold one job back: its dependency's, and those of other faulty servers.

    A fault counts for its blamed dependency. A fault without one, such as a database's or a web
    service's, counts for the job's dependency. If that is a `Server`, it is innocent, and the fault
    holds back this job alone. Of several `Servers`, the others are served while one is left alone.

    Arguments: dependency, the job's; name, the job's; breakers, the recruiter's.
    """

    __slots__ = ("_breakers", "_known", "_others", "_servers")

    def __init__(self, dependency: Hashable, name: str, breakers: Breakers) -> None:
        self._breakers = breakers
        self._others: Hashable = (
            ("others of", name) if isinstance(dependency, Server) else dependency
        )
        self._servers: tuple[Hashable, ...] = (
            tuple(dependency) if isinstance(dependency, Servers) else (dependency,)
        )
        self._known: dict[Hashable, Breaker] = {each: breakers.of(each) for each in self._servers}

    def is_open(self, now: float) -> bool:
        """Say whether the job is held back at that moment (monotonic seconds)."""
        # A copy: another thread may add a breaker.
        known = list(self._known.items())
        if any(each.is_open(now) for name, each in known if name not in self._servers):
            return True
        return all(self._known[each].is_open(now) for each in self._servers)

    @property
    def servers(self) -> int:
        """How many servers the job has; each slice serves one."""
        return len(self._servers)

    def held_back(self, now: float) -> frozenset[Hashable]:
        """Return the job's servers that are left alone at that moment (monotonic seconds)."""
        return frozenset(each for each in self._servers if self._known[each].is_open(now))

    def trip(self, error: BaseException, now: float) -> None:
        """Open the breaker of the dependency that this error blames."""
        failed = blamed(error)
        if failed is None:
            failed = self._others
        known = self._known.get(failed)
        if known is None:
            if len(self._known) >= _MOST_KNOWN + len(self._servers) - 1:
                oldest = next(each for each in self._known if each not in self._servers)
                self._known.pop(oldest, None)
            known = self._known[failed] = self._breakers.of(failed)
        known.trip(now)

    def recover(self, served: Hashable = None) -> None:
        """Note a slice without a fault. Arguments: served, the server, None: all of the job's."""
        for name, each in list(self._known.items()):
            if served is None or name == served or name not in self._servers:
                each.recover()

    def open_seconds(self, now: float) -> float | None:
        """Return the seconds since the oldest open fault of the job's servers; None: no fault."""
        return _longest(now, [self._known[each] for each in self._servers])

    def others_seconds(self, now: float) -> float | None:
        """Return the seconds since the oldest fault of others that holds the job back; or None."""
        known = [each for name, each in list(self._known.items()) if name not in self._servers]
        return _longest(now, [each for each in known if each.is_open(now)])


def _longest(now: float, breakers: list[Breaker]) -> float | None:
    lengths = (each.open_seconds(now) for each in breakers)
    return max((each for each in lengths if each is not None), default=None)
