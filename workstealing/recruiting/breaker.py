"""Breakers: after a connection fault, nobody touches what has failed for a while."""

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
    """A dependency whose own connections say when it has failed, by `blame()`.

    So a fault on which nothing is noted is none of its own. Two of them are equal if their parts
    are.
    """

    def round_trip(self) -> float | None:
        """Return how many seconds a round trip to it takes lately; None: unknown. No command."""
        return None

    def confirm(self, slice: Slice) -> None:
        """Raise an error if what this server did not find may well be there; see `Twin.confirm`."""


class Breaker:
    """Closed until a connection fault, then open for a period, then closed again.

    One slow reply in a slice of 10 ms is a fault too; so the first period is a tenth of the
    longest, and each further fault, without a slice in between that went well, doubles it. A period
    is jittered between half and one and a half times its length, so that the processes of a fleet
    do not all try a recovering server at once. Whoever asks a breaker holds the one slice of its
    process; so the first slice after the period is the only trial there is.

    Arguments: seconds, the longest period, on average; random, what the jitter is drawn with. (It
    is not the lottery's own, which tests script.)
    """

    __slots__ = ("__weakref__", "_longest", "_next", "_open_until", "_random", "_since")

    def __init__(self, seconds: float, random: Callable[[], float] = _random.random) -> None:
        self._longest = seconds
        self._next = seconds * _FIRST_SHARE
        self._random = random
        self._open_until: float | None = None
        # When the first fault was after which nothing went well.
        self._since: float | None = None

    def is_open(self, now: float) -> bool:
        """Say whether the server is to be left alone at that moment (monotonic seconds)."""
        return self._open_until is not None and now < self._open_until

    def trip(self, now: float) -> None:
        """Open, or stay open, for one period from that moment (monotonic seconds)."""
        self._since = now if self._since is None else self._since
        self._open_until = now + self._next * (0.5 + self._random())
        self._next = min(self._longest, 2 * self._next)

    def recover(self) -> None:
        """Note that a slice met no fault: the next one will be the first again."""
        self._since = None
        self._next = self._longest * _FIRST_SHARE

    def open_seconds(self, now: float) -> float | None:
        """Return for how long no slice has gone well, trials included; None: the last one did."""
        return None if self._since is None else max(0.0, now - self._since)


class Breakers:
    """The breakers of one recruiter, by dependency; each lives for as long as a job has met it.

    Arguments: seconds, as of `Breaker`.
    """

    __slots__ = ("_breakers", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._breakers: WeakValueDictionary[Hashable, Breaker] = WeakValueDictionary()

    def of(self, dependency: Hashable) -> Breaker:
        """Return the breaker of a dependency."""
        return self._breakers.setdefault(dependency, Breaker(self._seconds))


class Guard:
    """The breakers that hold one job back: its dependency's, and those of what has failed it.

    A fault counts for the dependency that is blamed for it. One that nobody is blamed for (a
    database's, a web service's, a user's own function's) counts for the job's dependency, but never
    for a `Server`: there it holds back this job alone.

    Arguments: dependency, the job's; name, the job's; breakers, the recruiter's.
    """

    __slots__ = ("_breakers", "_dependency", "_known", "_others")

    def __init__(self, dependency: Hashable, name: str, breakers: Breakers) -> None:
        self._breakers = breakers
        self._dependency = dependency
        self._others: Hashable = (
            ("others of", name) if isinstance(dependency, Server) else dependency
        )
        self._known: dict[Hashable, Breaker] = {dependency: breakers.of(dependency)}

    def is_open(self, now: float) -> bool:
        """Say whether the job is to be held back at that moment (monotonic seconds)."""
        # A copy: another thread may learn of one more.
        return any(each.is_open(now) for each in list(self._known.values()))

    def trip(self, error: BaseException, now: float) -> None:
        """Open the breaker of what has failed by this error."""
        failed = blamed(error)
        if failed is None:
            failed = self._others
        known = self._known.get(failed)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                oldest = next(each for each in self._known if each != self._dependency)
                self._known.pop(oldest, None)
            known = self._known[failed] = self._breakers.of(failed)
        known.trip(now)

    def recover(self) -> None:
        """Note that a slice met no fault."""
        for each in list(self._known.values()):
            each.recover()

    def open_seconds(self, now: float) -> float | None:
        """Return for how long something that the job needs has failed; None: nothing has."""
        lengths = (each.open_seconds(now) for each in list(self._known.values()))
        return max((each for each in lengths if each is not None), default=None)
