"""Budgets of time for a connection, and the pace of long work.

A slice ends at its deadline, so each wait is bounded: the wait for a reply and the wait for a
connection to open. Long work, such as a survey or a sweep, keeps a pace, so that it takes only a
share of a server's time.
"""

from __future__ import annotations

from typing import Any, Self

from redis.exceptions import TimeoutError

from workstealing.clock import SYSTEM_CLOCK, Clock, seconds_of
from workstealing.errors import OutOfTime, Unanswered

TIMEOUT_SECONDS = 0.050
# A command that cannot be answered in the time left would only break a good connection.
_LEAST_SECONDS = 0.0005
_LAST_WAIT_SECONDS = 0.001
# A wait of at least this share of a time-out counts as a whole time-out.
_WHOLE = 0.98
# A slower round trip raises the expectation by the first share. A command that was not begun leaves
# the second share of it.
_RISE, _BELIEF = 0.25, 0.8
# A reply that waits for so long, and for so many times as long as usual, means that the server is
# busy with others; then the pause is longer, up to so many times.
_LATE, _SLOW, _MOST_PATIENCE = 0.005, 4.0, 4.0


# The time that two TIMEs do not see: a batch is read, and its replies are written.
_AROUND = 30e-6


def server_seconds(first: Any, last: Any, trip: float) -> float:
    """Return how many seconds of its time a server took for a batch between two TIMEs.

    Arguments:
        first: the reply to the TIME before it.
        last: the reply to the TIME behind it.
        trip: the length of the round trip, in seconds, which is the answer where a reply is an
            error or missing, or the server's clock was set back.
    """
    if not isinstance(first, list) or not isinstance(last, list):
        return trip
    took = time_of(last) - time_of(first)
    return min(trip, took + _AROUND) if took >= 0 else trip


def time_of(reply: Any) -> float:
    """Return the seconds since 1970 of a reply to TIME."""
    seconds, micros = reply
    return int(seconds) + int(micros) / 1e6


class RoundTripTime:
    """The length of a round trip to one node, as far as this process has seen.

    The quick round trips decide. A slow reply may be the fault of a busy machine, and a command
    that is not begun for that reason teaches nothing. `seconds` is None until the first round trip.
    """

    __slots__ = ("_belief", "_is_guessed", "seconds")

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._is_guessed = True
        self._belief = 1.0

    @property
    def expected(self) -> float:
        """How many seconds must be left to begin a round trip; 0.0 if nothing is known."""
        return (self.seconds or 0.0) * self._belief

    def guess(self, seconds: float) -> None:
        """Use a connection's opening time as the estimate until a real round trip is known."""
        if self.seconds is None:
            self.seconds = seconds

    def took(self, seconds: float) -> None:
        """Note the length of a round trip."""
        known, self._belief = self.seconds, 1.0
        if known is None or seconds < known or self._is_guessed:
            self.seconds, self._is_guessed = seconds, False
        else:
            self.seconds = known + _RISE * (seconds - known)

    def lasts(self, seconds: float) -> None:
        """Note a round trip that had not ended after so many seconds."""
        self.seconds, self._belief = max(seconds, self.seconds or 0.0), 1.0

    def was_not_begun(self) -> None:
        """Lower the expectation a little, so that after a few refused commands one is sent."""
        self._belief *= _BELIEF


class Pace:
    """The pace of batches that take at most a share of a server's time: a pause follows each.

    Arguments:
        share: 0 < share <= 1.
        first: how many commands or items a batch has at first, at least and at most.
        least: how many commands or items a batch has at first, at least and at most.
        most: how many commands or items a batch has at first, at least and at most.
        longest: the seconds of the server's time that a batch should take at most, because others
            wait behind it.

    Attributes: room: the size of the next batch; next_at: the time on the caller's monotonic clock
    at which it may begin.
    """

    __slots__ = ("_least", "_longest", "_most", "_share", "_usual", "next_at", "room")

    def __init__(self, share: float, *, first: int, least: int, most: int, longest: float) -> None:
        self._share, self._longest = share, longest
        self._least, self._most = least, most
        self.room = first
        self.next_at = 0.0
        self._usual = 0.0

    def paid(self, began: float, cost: float, trip: float, size: int) -> None:
        """Note the cost of a batch, and set the time and the size of the next one.

        Arguments:
            began: when, on the caller's clock.
            cost: the seconds of the server's time.
            trip: the seconds until the replies were there.
            size: how many commands or items it had.
        """
        waited = max(0.0, trip - cost)
        slow = waited / self._usual if self._usual else 1.0
        # Quick replies decide what is usual; a server that becomes slow for good becomes usual.
        self._usual = waited if not self._usual else min(waited, self._usual * 1.02 + 1e-9)
        is_late = waited > _LATE and slow > _SLOW
        patience = min(_MOST_PATIENCE, slow / _SLOW) if is_late else 1.0
        # From the batch's beginning, so that this process's own work is a part of the pause.
        self.next_at = began + patience * cost / self._share
        if size >= self.room // 2:
            if cost > self._longest:
                self.room = max(self._least, int(self.room * self._longest / cost * 0.8))
            elif cost < self._longest * 3 / 4:
                self.room = min(self._most, self.room + self.room // 4)


class Budget:
    """The time for one use of a connection: a deadline for all of it, a bound for each wait.

    Arguments:
        seconds: the length of the whole use, None for no end.
        timeout: the longest single wait, in seconds.
    """

    __slots__ = ("clock", "deadline", "timeout", "trips")

    trips: int
    """How many round trips must fit in, or the next one is useless."""

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

    @classmethod
    def whole(cls, duration: object, name: str = "seconds") -> Self:
        """Return a budget of which one late reply may take all, as a backlog's.

        Arguments:
            duration: a number of seconds, or a timedelta.
            name: of the argument, for the error.

        Raises: ConfigurationError for anything else.
        """
        seconds = seconds_of(duration, name)
        return cls(seconds, timeout=seconds)

    def require(self, trip: RoundTripTime | None = None) -> None:
        """Check that enough time is left for a command or `trips` round trips.

        Arguments:
            trip: the known length of a round trip.

        Raises: OutOfTime if too little is left.
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
        """Return how many seconds the next wait may last. Raises: `late()` when nothing is left.

        A busy machine may take the processor away past the deadline although the answer is there.
        Therefore each wait gets a last moment, up to one time-out after the deadline.
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
        """Return the error for a reply that has not come by the deadline."""
        return Unanswered(
            "the slice's time ended before the reply was there: whether the command was done is"
            " not known; the next recruit goes on from what there is"
        )


class Opening(Budget):
    """The bound on opening a connection: one time-out, whatever the slice has left.

    A slice shorter than the way to the server could never connect, and neither could the next one.
    A connection that does not open in a whole time-out is a fault.
    """

    __slots__ = ()

    def cuts(self, waited: float) -> bool:  # noqa: ARG002 - see Budget
        """Return False: there is no deadline to cut a wait short."""
        return False

    def late(self) -> Exception:
        """Return the error for a connection that did not open in time."""
        return TimeoutError("the server has not accepted the connection in time")
