"""Breakers: after a connection fault a server is left alone for a while. No I/O.

A job names its server, and each server has one breaker in a process. Jobs and the host's cached
calls share it: a fault of either opens it for both, and a success of either closes it.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import blamed
from workstealing.recruiting.slice import Slice

LONGEST_SECONDS = 10.0
"""The mean length of the longest period, unless a recruiter says something else."""

_FIRST_PERIOD_SHARE = 0.1
_MOST_BREAKERS = 8
# A period has reached its longest length by then.
_MOST_DOUBLINGS = 10


class Server(tuple[Hashable, ...]):
    """A dependency whose connections mark its own faults by `blame()`.

    A fault without such a mark belongs to another dependency. Two servers are equal if their parts
    are equal.
    """

    def round_trip(self) -> float | None:
        """Return the seconds that its last round trips took; None: unknown. No command."""
        return None

    def confirm(self, slice: Slice) -> None:
        """Raise an error if the server may hold the items that it did not find; see `JobClient`."""


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


class Outage:
    """One time of being open. Fields: until, its end for slices; calls_from, when a call may try.

    tries: an item for the one call that may try then: to take it is one step for every thread,
    without a lock, because a signal's handler may ask as well.
    """

    __slots__ = ("calls_from", "tries", "until")

    def __init__(self, until: float, calls_from: float) -> None:
        self.until = until
        self.calls_from = calls_from
        self.tries = [True]


class Breaker:
    """Closed until a connection fault, then open for a period, then tried again.

    One slow reply in a slice of 10 ms is a fault too. So the first period is a tenth of the longest
    one. Each further fault doubles it, unless there was a success in between. Jitter makes a
    period half to one and a half times as long, so the processes of a fleet do not all try a
    recovering server at once. A process runs one slice at a time, so the first slice after the
    period is a trial; calls run beside each other, so `admits` lets one of them try.

    A slice waits for 50 ms, and a call for as long as its client says. So a fault of a slice tells
    calls less: one of them may try at once, and no further one before the period is over.

    Arguments:
        seconds: the mean length of the longest period.
        random: it draws the jitter.

    The breaker's random is not the lottery's, because tests script the lottery's. Attribute:
    outage, None: closed, and a call needs to know no more.
    """

    __slots__ = (
        "__weakref__",
        "_calls_failed",
        "_faults",
        "_longest",
        "_random",
        "_since",
        "outage",
    )

    def __init__(
        self, seconds: float = LONGEST_SECONDS, random: Callable[[], float] = _random.random
    ) -> None:
        self._longest = seconds
        self._random = random
        # Faults in a row.
        self._faults = 0
        # Whether a call has failed since the last success.
        self._calls_failed = False
        self.outage: Outage | None = None
        # The time of the first fault since the last success.
        self._since: float | None = None

    def is_open(self, now: float) -> bool:
        """Say whether slices leave the server alone at that moment (monotonic seconds)."""
        outage = self.outage
        return outage is not None and now < outage.until

    def admits(self, now: float) -> bool:
        """Say whether a call may ask the server; after a fault that is so for one at a time."""
        outage = self.outage
        if outage is None:
            return True
        if now < outage.calls_from:
            return False
        try:
            outage.tries.pop()
        except IndexError:
            return False
        # Slices wait for it. If it never comes back, another may try after a period.
        until = max(outage.until, now + self._length(self._longest))
        self.outage = Outage(until, until)
        return True

    def trip(self, now: float, longest: float | None = None) -> None:
        """Open, or stay open, for one period from that moment, after the fault of a slice.

        Arguments:
            now: (monotonic seconds).
            longest: the mean length of the longest period in seconds, None: the breaker's own.
        """
        until = self._lengthened(now, longest)
        self.outage = Outage(until, until if self._calls_failed else now)

    def fail(self, now: float, seen: Outage | None) -> None:
        """Open after the fault of a call, unless another fault was noted while it ran.

        Arguments:
            now: (monotonic seconds).
            seen: the `outage` when the call began.
        """
        if self.outage is seen:
            until = self._lengthened(now, None)
            self._calls_failed = True
            self.outage = Outage(until, until)

    def _lengthened(self, now: float, longest: float | None) -> float:
        """Return the end of the next period, and make the one after it longer."""
        self._since = now if self._since is None else self._since
        until = now + self._length(self._longest if longest is None else longest)
        self._faults += 1
        return until

    def _length(self, longest: float) -> float:
        doubled = _FIRST_PERIOD_SHARE * 2.0 ** min(self._faults, _MOST_DOUBLINGS)
        return longest * min(1.0, doubled) * (0.5 + self._random())

    def recover(self) -> None:
        """Note a success, which closes it: the next fault opens the shortest period again."""
        self._since = self.outage = None
        self._faults, self._calls_failed = 0, False

    @property
    def faults(self) -> int:
        """The number of faults in a row."""
        return self._faults

    def open_seconds(self, now: float) -> float | None:
        """Return the seconds since the first fault; None: the last attempt went well."""
        since = self._since
        return None if since is None else max(0.0, now - since)


class ServerBreakers:
    """The breakers of this process's servers; each lives while a job or a cache knows it.

    Attribute: clock, by which calls measure.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._breakers: WeakValueDictionary[Hashable, Breaker] = WeakValueDictionary()

    def of(self, server: Hashable) -> Breaker:
        """Return the breaker of a server, by the parts that distinguish it from others."""
        found = self._breakers.get(server)
        return self._breakers.setdefault(server, Breaker()) if found is None else found

    def knows(self, server: Hashable) -> bool:
        """Say whether a job or a cache uses the breaker of a server."""
        return server in self._breakers

    def unreached(self) -> dict[str, float]:
        """Return, by the server's name, the seconds since the first fault of the open ones."""
        now, found = self.clock.monotonic(), {}
        for server, breaker in list(self._breakers.items()):
            seconds = breaker.open_seconds(now)
            if seconds is not None:
                found[server_name(server)] = seconds
        return found

    def faults(self) -> dict[str, int]:
        """Return, by the server's name, how many faults the open ones have had in a row."""
        known = list(self._breakers.items())
        return {server_name(server): each.faults for server, each in known if each.faults}

    def reset(self) -> None:
        """Close all of them, as if nothing had failed; for tests."""
        for breaker in list(self._breakers.values()):
            breaker.recover()


SERVER_BREAKERS = ServerBreakers()


def server_name(server: Hashable) -> str:
    """Return a server's name for people, without credentials: its address in most cases."""
    if not (isinstance(server, tuple) and len(server) > 1):
        return str(server)
    kind, *parts = server
    if kind == "server":
        address = parts[0]
        if not isinstance(address, tuple):
            return str(address)
        host, port = address
        # A client's URL may name neither.
        return f"{host or 'localhost'}:{port or 6379}"
    return f"{kind} {', '.join(map(str, parts))}"


class Breakers:
    """The breakers of one recruiter, by dependency; each lives while a job knows it.

    The breakers of servers are shared by the whole process. A recruiter with another clock shares
    none.

    Arguments:
        seconds: as of `Breaker`.
        clock: the recruiter's.
    """

    __slots__ = ("_breakers", "_clock", "seconds")

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self._clock = clock
        self._breakers: WeakValueDictionary[Hashable, Breaker] = WeakValueDictionary()

    def of(self, dependency: Hashable) -> Breaker:
        """Return the breaker of a dependency."""
        is_server = isinstance(dependency, Server) or SERVER_BREAKERS.knows(dependency)
        if is_server and self._clock is SERVER_BREAKERS.clock:
            return SERVER_BREAKERS.of(dependency)
        return self._breakers.setdefault(dependency, Breaker(self.seconds))


class JobBreakers:
    """The breakers that hold one job back: its dependency's, and those of other faulty servers.

    A fault counts for its blamed dependency. A fault without one, such as a database's or a web
    service's, counts for the job's dependency. If that is a `Server`, it is innocent, and the fault
    holds back this job alone. Of several `Servers`, the others are served while one is left alone.

    Arguments:
        dependency: the job's.
        name: the job's.
        breakers: the recruiter's.
    """

    __slots__ = ("_breakers", "_job", "_known", "_others", "_servers")

    def __init__(self, dependency: Hashable, name: str, breakers: Breakers) -> None:
        self._breakers = breakers
        self._job = name
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
            if len(self._known) >= _MOST_BREAKERS + len(self._servers) - 1:
                oldest = next(each for each in self._known if each not in self._servers)
                self._known.pop(oldest, None)
            known = self._known[failed] = self._breakers.of(failed)
        known.trip(now, self._breakers.seconds)

    def recover(self, served: Hashable = None) -> None:
        """Note a slice without a fault.

        Arguments:
            served: the server, None: all of the job's.
        """
        for name, each in list(self._known.items()):
            if served is None or name == served or name not in self._servers:
                each.recover()

    def open_seconds(self, now: float) -> float | None:
        """Return the seconds since the oldest open fault of the job's servers; None: no fault."""
        return _longest(now, [self._known[each] for each in self._servers])

    def unreached(self, now: float) -> dict[str, float]:
        """Return the servers that this job needs and that were not reached at the last attempt.

        Returns: by the server's name, the seconds since the first fault. A dependency without an
        address is "something that the job uses".
        """
        found = {}
        for name, each in list(self._known.items()):
            seconds = each.open_seconds(now)
            if seconds is not None:
                is_named = name not in (self._job, ("others of", self._job))
                shown = server_name(name) if is_named else f"something that {self._job} uses"
                found[shown] = seconds
        return found

    def others_seconds(self, now: float) -> float | None:
        """Return the seconds since the oldest open fault of other dependencies; None: no fault."""
        known = [each for name, each in list(self._known.items()) if name not in self._servers]
        return _longest(now, [each for each in known if each.is_open(now)])


def _longest(now: float, breakers: list[Breaker]) -> float | None:
    lengths = (each.open_seconds(now) for each in breakers)
    return max((each for each in lengths if each is not None), default=None)
