"""How long one use of a connection may take, and what cannot be interrupted within it.

A slice ends at its deadline, so each wait is bounded: for a reply, for a connection to open, and,
in a thread of its own, for a name to be resolved or credentials to be given.
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from redis.exceptions import TimeoutError

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import OutOfTime, Unanswered

TIMEOUT_SECONDS = 0.050
# A command that cannot be answered in the time left would only break a good connection.
_LEAST_SECONDS = 0.0005
_LAST_WAIT_SECONDS = 0.001
# From which share of a time-out on a wait counts as a whole one.
_WHOLE = 0.98
# How far a slower round trip raises what is expected, and how much a command that was not begun
# leaves of it.
_RISE, _BELIEF = 0.25, 0.8


class Trip:
    """How long a round trip to one node takes, as far as this process has seen.

    It goes by the quick ones: a slow reply may be the fault of a busy machine, and a command that
    is not begun for its sake teaches nothing. `seconds` is None as long as nothing was seen.
    """

    __slots__ = ("_belief", "_is_guessed", "seconds")

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._is_guessed = True
        self._belief = 1.0

    @property
    def expected(self) -> float:
        """How many seconds must be left for a round trip to be begun; 0 where nothing is known."""
        return (self.seconds or 0.0) * self._belief

    def guess(self, seconds: float) -> None:
        """Take what a connection took to open for a round trip, until there is a real one."""
        if self.seconds is None:
            self.seconds = seconds

    def took(self, seconds: float) -> None:
        """Note a round trip."""
        known, self._belief = self.seconds, 1.0
        if known is None or seconds < known or self._is_guessed:
            self.seconds, self._is_guessed = seconds, False
        else:
            self.seconds = known + _RISE * (seconds - known)

    def lasts(self, seconds: float) -> None:
        """Note one that was not over after so many seconds."""
        self.seconds, self._belief = max(seconds, self.seconds or 0.0), 1.0

    def was_not_begun(self) -> None:
        """Believe it a little less, so that after a few commands that were not sent one is."""
        self._belief *= _BELIEF


class Budget:
    """How long one use of a connection may take: a deadline for all of it, a bound for each wait.

    Arguments: seconds: the length of the whole use, None for no end; timeout: the longest single
    wait, in seconds.
    """

    __slots__ = ("clock", "deadline", "timeout", "trips")

    trips: int
    """How many round trips must fit in for the next one to be of use."""

    def __init__(
        self,
        seconds: float | None = None,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.trips = 1
        self.deadline = None if seconds is None else clock.monotonic() + seconds

    def require(self, trip: Trip | None = None) -> None:
        """Raise OutOfTime if too little is left for one more command, or for `trips` round trips.

        Arguments: trip: how long one takes.
        """
        if self.deadline is None:
            return
        left = self.deadline - self.clock.monotonic()
        if left < _LEAST_SECONDS:
            raise OutOfTime("the slice's time is used up; the next recruit goes on from here")
        if trip is not None and left < self.trips * trip.expected:
            took = trip.seconds or 0.0
            trip.was_not_begun()
            raise OutOfTime(
                f"{1000 * left:.1f} ms of the slice are left, too little for {self.trips} round"
                f" trips of {1000 * took:.1f} ms; the next recruit goes on from here"
            )

    def wait_seconds(self) -> float:
        """Return how long the next wait may last; raise `late` when nothing is left.

        A busy machine may take the processor away past the deadline although the answer is there:
        so each wait gets a last moment, up to one time-out after the deadline.
        """
        if self.deadline is None:
            return self.timeout
        remaining = self.deadline - self.clock.monotonic()
        if remaining < _LAST_WAIT_SECONDS:
            if remaining <= -self.timeout:
                raise self.late()
            return _LAST_WAIT_SECONDS
        return min(self.timeout, remaining)

    def cuts(self, waited: float) -> bool:
        """Say whether so many seconds of waiting are less than a whole time-out."""
        return waited < _WHOLE * self.timeout

    def late(self) -> Exception:
        """Return what stands for a reply that has not come by the deadline."""
        return Unanswered(
            "the slice's time ended before the reply was there: whether the command was done is"
            " not known; the next recruit goes on from what there is"
        )


class Opening(Budget):
    """The bound on opening a connection: one time-out for all of it, whatever the slice has left.

    A slice that is shorter than the way to the server could not connect at all, and neither could
    the next one. What does not open in a whole time-out is a fault.
    """

    __slots__ = ()

    def cuts(self, waited: float) -> bool:  # noqa: ARG002 - see Budget
        """Return False: there is no deadline to cut a wait short."""
        return False

    def late(self) -> Exception:
        """Return what stands for a connection that did not open in time."""
        return TimeoutError("the server has not accepted the connection in time")


# How long a result is of use to those who come when nobody waits for it any more, in seconds.
_KEPT_SECONDS = 30.0
_asides: dict[Hashable, _Aside] = {}


class _Aside:
    """One call in a thread of its own, because it cannot be interrupted."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.done = threading.Event()
        self.ended = math.inf
        self.result: Any = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def is_of_use(self) -> bool:
        """Say whether to wait for it: a host's time-out may have come before its thread began."""
        if self.done.is_set():
            return time.monotonic() - self.ended <= _KEPT_SECONDS
        return self.thread.is_alive()

    def run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:  # noqa: BLE001 - raised where somebody waits for it
            self.error = error
        finally:
            self.ended = time.monotonic()
            self.done.set()


def aside(key: Hashable, function: Callable[[], Any], budget: Budget, unmet: str) -> Any:
    """Return what a function returns that nothing else could interrupt, within the budget.

    It runs in a thread of its own, one for each key at a time. If it takes longer than the budget,
    it goes on, and its result is for whoever asks next. Arguments: unmet: what the time-out says.
    Errors: TimeoutError; those of the function.
    """
    call = _asides.get(key)
    if call is None or not call.is_of_use():
        call = _asides[key] = _Aside(function)
        call.thread.name = f"workstealing-{key}"
        call.thread.start()
    if not call.done.wait(budget.wait_seconds()):
        raise TimeoutError(f"{unmet} in time")
    _asides.pop(key, None)
    if call.error is not None:
        raise call.error
    return call.result


def resolve(host: str, port: int, budget: Budget) -> list[Any]:
    """Return the addresses of a host as getaddrinfo() does, within the budget.

    A resolver that hangs is waited for by at most one thread a name. Errors: OSError, a time-out
    among them.
    """
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        pass
    else:
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]
    addresses: list[Any] = aside(
        ("resolve", host, port),
        lambda: socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM),
        budget,
        f"the name {host} was not resolved",
    )
    return addresses


# A child of fork() has no such threads: what its parent waited for would never come.
os.register_at_fork(after_in_child=_asides.clear)
