"""How long the parts of an item live, and the rate that the traffic calls for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workstealing.cli.demo.traffic import Request

# Seconds in real life, and as a share of the demo's run: most fields expire while it runs.
REAL_SECONDS = {"content": 12 * 3600.0, "related": 3600.0, "likes": 300.0}
SHARES = {"content": 0.3, "related": 0.15, "likes": 0.05}

# What a recruiter's default of 10 s becomes: all times of the demo are scaled to its run, and a
# worker that rests for 10 of 20 seconds would show nothing but that.
BREAKER_SHARE = 0.025

LIMIT = 25
SLICE_SECONDS = 0.010
# fakeredis takes ten times as long as a redis-server for each command.
SLOW_SLICE_SECONDS = 0.050
# Slices are rarely full: many hashes have one expired field only, and time may run out first.
SAFETY = 3.0
HIGHEST_RATE = 0.5


def lifetimes(seconds: float) -> dict[str, int]:
    """Return the time to live of each part, in milliseconds, for a run of that many seconds."""
    return {
        part: round(1000 * min(REAL_SECONDS[part], share * seconds))
        for part, share in SHARES.items()
    }


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the traffic will bring: enlisted a second, and expiring fields a second."""

    enlisted: float
    garbage: float

    def rate(self, limit: int = LIMIT) -> float:
        """Return the rate at which slices keep up with the garbage, SAFETY times over.

        Arguments: limit, the fields of a slice. Returns: SAFETY * garbage / (enlisted * limit), and
        at most HIGHEST_RATE.
        """
        if not self.garbage:
            return 1.0 / 1000
        if not self.enlisted:
            return HIGHEST_RATE
        return min(HIGHEST_RATE, SAFETY * self.garbage / (self.enlisted * limit))

    def explain(self, limit: int = LIMIT) -> str:
        """Return the formula with its numbers, as one line."""
        return (
            f"rate = {SAFETY:g} x inflow / (enlisted x limit)"
            f" = {SAFETY:g} x {self.garbage:.0f} fields/s"
            f" / ({self.enlisted:.0f}/s x {limit} fields)"
            f" = {self.rate(limit):.4f}"
        )


def forecast(requests: Sequence[Request], pace: float, lives: Mapping[str, int]) -> Forecast:
    """Walk through the traffic once, as the app will, and count.

    Arguments: requests; pace, how many are sent a second; lives, the parts' times to live in
    milliseconds. O(requests).
    """
    deadlines: dict[str, dict[str, float]] = {}
    enlisted = expiring = 0
    end = len(requests) / pace
    for number, request in enumerate(requests):
        now = number / pace
        seen = deadlines.get(request.target)
        if seen is None:
            seen = deadlines[request.target] = {}
            enlisted -= request.conditional
        missing = [part for part in lives if seen.get(part, 0.0) <= now]
        enlisted += request.conditional or not missing
        for part in missing:
            seen[part] = now + lives[part] / 1000
            expiring += seen[part] <= end
    return Forecast(enlisted / end, expiring / end)
