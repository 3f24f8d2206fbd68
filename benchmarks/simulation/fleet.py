"""A fleet of processes whose callers enlist, on simulated time."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from random import Random

from simulation.garbage import Found, Garbage, Steps
from simulation.records import Record
from workstealing.recruiting import Outcome
from workstealing.recruiting.adaptive import Adaptive, Controller, Traffic
from workstealing.recruiting.slice import Report

_ROUND_TRIP_SECONDS = 0.0001
_SLICE_SECONDS = 0.010
# A process looks at its traffic once a second. A large fleet does so less often here, except for a
# while after the traffic has changed, or a simulation would do little else.
_TICKS_A_SECOND = 50
_WATCHFUL_SECONDS = 20.0


class SimulatedClock:
    """The clock of a simulation, which goes as fast as events are handled."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the simulated seconds."""
        return self.now


class _Process:
    """One process: the real controller, on simulated traffic and time."""

    __slots__ = ("_controller", "_enlisted", "_limit", "_ticked", "_traffic", "rate")

    def __init__(self, rate: Adaptive | float, limit: int, clock: SimulatedClock) -> None:
        self._controller = Controller(rate, limit, clock) if isinstance(rate, Adaptive) else None
        self.rate = rate.start if isinstance(rate, Adaptive) else rate
        self._limit = limit
        self._traffic = Traffic(0.0)
        self._enlisted = 0
        self._ticked = 0.0

    @property
    def limit(self) -> int:
        return self._limit if self._controller is None else self._controller.limit

    def tick(self, now: float, frequency: float, random: Random) -> None:
        """Count who has enlisted since the last tick, and let the rate follow."""
        if self._controller is None:
            return
        self._enlisted += _count(frequency * (now - self._ticked), random)
        self._ticked = now
        self._traffic.update(now, self._enlisted)
        self.rate = self._controller.move_rate(now, self._traffic)

    def see(self, now: float, limit: int, found: Found) -> None:
        """Let the controller see what a slice has found."""
        if self._controller is None:
            return
        took = found.round_trips * _ROUND_TRIP_SECONDS
        outcome = Outcome.WORKED if found.items else Outcome.IDLE
        self._controller.see(
            now,
            Report(
                outcome,
                found.items,
                limit,
                took,
                _SLICE_SECONDS,
                found.oldest_seconds,
                found.operations,
            ),
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet: how many processes, enlists a second of them all, the rate and limit of the job."""

    processes: int
    traffic: Steps
    rate: Adaptive | float
    limit: int


def run_fleet(
    fleet: Fleet, seconds: float, garbage: Garbage, random: Random, record: Record
) -> None:
    """Let a fleet work off garbage.

    Arguments:
        seconds: how long.
        record: where every slice is noted.

    O(log processes) for each slice, and for each tick.
    """
    clock = SimulatedClock()
    processes, traffic = fleet.processes, fleet.traffic
    each_process = [_Process(fleet.rate, fleet.limit, clock) for _ in range(processes)]
    usual_interval = max(1.0, processes / _TICKS_A_SECOND)
    # When, whose, and whether it is a tick, not a recruit. Waiting times have no memory, so each
    # event draws the process's next recruit anew.
    events = [(random.random(), number, True) for number in range(processes)]
    heapq.heapify(events)
    changes = [*traffic.changes, math.inf]
    frequency = traffic(0.0) / processes
    watchful_until = _WATCHFUL_SECONDS
    while True:
        now, number, is_tick = events[0]
        if now >= changes[0]:
            now = changes.pop(0)
            # What was enlisted before the change counts as such.
            for process in each_process:
                process.tick(now, frequency, random)
            frequency = traffic(now) / processes
            events = [(now + random.random(), each, True) for each in range(processes)]
            heapq.heapify(events)
            watchful_until = now + _WATCHFUL_SECONDS
            continue
        if now >= seconds:
            return
        clock.now = now
        process = each_process[number]
        if not is_tick:
            garbage.arrive(now)
            size = process.limit
            found = garbage.take(now, size)
            record.add(now, found.items, found.operations)
            process.see(now, size, found)
        process.tick(now, frequency, random)
        tick = now + (1.0 if now < watchful_until else usual_interval)
        pace = process.rate * frequency
        recruit = now + random.expovariate(pace) if pace > 0.0 else math.inf
        heapq.heapreplace(events, (min(recruit, tick), number, tick <= recruit))


def _count(mean: float, random: Random) -> int:
    """Draw a Poisson number; from 30 on its normal approximation will do."""
    if mean >= 30.0:
        return max(0, round(random.gauss(mean, math.sqrt(mean))))
    count, left = -1, mean
    while left >= 0.0:
        left -= random.expovariate(1.0)
        count += 1
    return count
