"""What the dashboard shows, as plain data: asked of the ledger, the recruiter and the structures.

However many people look, a process asks at most once every two seconds, and the structures once
every ten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.dashboard.dead_listing import MOST_LISTED, ListedItem, list_dead
from workstealing.dashboard.figures import (
    MINUTE,
    RECENT,
    JobFigures,
    is_written,
    job_figures,
    ledger_name,
    seconds_of,
    window,
)
from workstealing.dashboard.watched import Watched
from workstealing.metrics.minutes import Process
from workstealing.recruiting.job import Backlog

logger = logging.getLogger("workstealing")

FIGURES_SECONDS = 2.0
STRUCTURES_SECONDS = 10.0
MOST_DEAD = 5000
"""Of how many dead items of all structures a page knows."""

_FEWEST_DEAD = 10


@dataclass(frozen=True, slots=True)
class StructureFigures:
    """What a page says of one structure.

    Fields: watched; size; due; dead_size; dead: some of
    them, those of longest ago first; trouble: why a question was not
    answered, the name of an error. What is unknown is None.
    """

    watched: Watched
    size: int | None
    due: Backlog | None
    dead_size: int | None
    dead: list[ListedItem]
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a page shows.

    Fields: at: when, in seconds since the epoch; is_fleet: whether the figures are the fleet's,
    from a ledger, or this process's own; processes: how many wrote the last minute; times: the
    beginning of each of the last 60 minutes; traffic: the enlisted a second, by minute, None:
    nothing was written; enlisted_per_second: now; jobs; structures; troubles: what could not be
    asked; reported: the processes that have reported of late, with host and version.
    """

    at: float
    is_fleet: bool
    processes: int
    times: list[int]
    traffic: list[float | None]
    enlisted_per_second: float
    jobs: list[JobFigures]
    structures: list[StructureFigures]
    troubles: list[str]
    reported: list[Process] = field(default_factory=list)


class Cached:
    """Remembers an answer for some seconds; while one thread asks, the others get the old one.

    Arguments: ask: what to call; seconds: for how long its answer is good; clock.
    """

    def __init__(self, ask: Callable[[], Any], seconds: float, clock: Clock) -> None:
        self._ask, self._seconds, self._clock = ask, seconds, clock
        self._lock = threading.Lock()
        self._answer: Any = None
        self._good_until = float("-inf")
        self._forgotten = 0

    def get(self) -> Any:
        """Return the answer, asking if it is too old. Errors: those of asking."""
        answer = self._answer
        if self._clock.monotonic() < self._good_until and answer is not None:
            return answer
        # Who has no answer yet, or has just changed something, waits for the thread that asks.
        if not self._lock.acquire(blocking=answer is None):
            return answer
        try:
            answer = self._answer
            if answer is None or self._clock.monotonic() >= self._good_until:
                answer = self._renew()
            return answer
        finally:
            self._lock.release()

    def _renew(self) -> Any:
        for _ in range(2):
            forgotten = self._forgotten
            answer = self._ask()
            if forgotten == self._forgotten:
                # Otherwise something was changed meanwhile, and the answer may be from before.
                break
        self._answer, self._good_until = answer, self._clock.monotonic() + self._seconds
        return answer

    def forget(self) -> None:
        """Ask anew when asked next: something has been changed."""
        self._forgotten += 1
        self._answer = None


class Queries:
    """Asks for what a page shows.

    Arguments: stats: as `Recruiter.stats`; minutes: returns the ledger's last minutes; own_minutes:
    takes stats and returns this process's, for where there is no ledger; settings: returns what the
    fleet is told, by job; watched: the structures; processes: returns the ledger's; clock: for what
    is remembered; now: the time of day in seconds since the epoch.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[str, Any]],
        minutes: Callable[[], list[Any]],
        own_minutes: Callable[[Mapping[str, Any]], list[Any]],
        settings: Callable[[], Mapping[str, Any]],
        watched: Callable[[], Iterable[Watched]],
        *,
        processes: Callable[[], list[Process]] = list,
        clock: Clock = SYSTEM_CLOCK,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._stats, self._minutes, self._own_minutes = stats, minutes, own_minutes
        self._settings, self._watched, self._now = settings, watched, now
        self._processes = processes
        self._structures = Cached(self._ask_structures, STRUCTURES_SECONDS, clock)
        self._snapshot = Cached(self._ask, FIGURES_SECONDS, clock)

    def snapshot(self) -> Snapshot:
        """Return everything that a page shows; what cannot be asked is among its troubles."""
        found: Snapshot = self._snapshot.get()
        return found

    def forget(self) -> None:
        """Ask for everything anew when asked next."""
        self._structures.forget()
        self._snapshot.forget()

    def structure(self, id: str) -> Watched | None:  # noqa: A002 - the word of forms
        """Return the structure that an id stands for."""
        return next((each for each in self._watched() if each.id == id), None)

    def _ask(self) -> Snapshot:
        troubles: list[str] = []
        stats = self._stats()
        own = self._own_minutes(stats)
        minutes = _answer(self._minutes, [], "the ledger", troubles)
        settings = _answer(self._settings, {}, "the fleet's settings", troubles)
        reported = _answer(self._processes, [], "the fleet's processes", troubles)
        is_fleet = any(map(is_written, minutes))
        now = self._now()
        times, slots = window(minutes if is_fleet else own, now)
        covered = seconds_of(slots, times, now)
        names = {ledger_name(name): name for name in (*settings, *stats["jobs"])}
        for slot in slots:
            if slot is not None:
                names = {**dict(zip(slot.jobs, slot.jobs, strict=True)), **names}
        structures = self._structures.get()
        due = {each.watched.job: each.due for each in structures if each.due is not None}
        local = stats["jobs"]
        jobs = [
            job_figures(
                name, slots, covered, local.get(name), settings.get(name), due=due.get(name)
            )
            for name in names.values()
        ]
        recent = [slot for slot in slots[-RECENT:] if slot is not None]
        newest = next((slot for slot in reversed(slots[-2:]) if slot is not None), None)
        return Snapshot(
            at=now,
            is_fleet=is_fleet,
            processes=newest.processes if newest is not None else 0,
            times=times,
            # The present minute is not over.
            traffic=[
                None if slot is None else slot.enlisted / max(1.0, min(MINUTE, now - time))
                for time, slot in zip(times, slots, strict=True)
            ],
            enlisted_per_second=sum(slot.enlisted for slot in recent) / covered,
            jobs=jobs,
            structures=structures,
            troubles=troubles,
            reported=reported,
        )

    def _ask_structures(self) -> list[StructureFigures]:
        found: list[StructureFigures] = []
        left = MOST_DEAD
        for each in self._watched():
            found.append(structure_figures(each, max(_FEWEST_DEAD, left)))
            left -= len(found[-1].dead)
        return found


def structure_figures(watched: Watched, most_dead: int = MOST_LISTED) -> StructureFigures:
    """Ask a structure; what it cannot answer is None, with the error's name as `trouble`.

    Arguments: watched; most_dead: how many dead items are listed at most.
    """
    troubles: list[str] = []
    what = f"the {watched.kind} {watched.name!r}"
    size = _answer(_checked(watched.size, _count), None, what, troubles)
    due = _answer(_checked(watched.due, _due), None, what, troubles) if not troubles else None
    ask = _checked(watched.dead_size, _count)
    dead_size = _answer(ask, None, what, troubles) if not troubles else None
    dead: list[ListedItem] = []
    if watched.dead is not None and not troubles and (dead_size or watched.dead_size is None):
        dead = _answer(lambda: list_dead(watched, min(MOST_LISTED, most_dead)), [], what, troubles)
    return StructureFigures(watched, size, due, dead_size, dead, troubles[0] if troubles else None)


def _checked(
    ask: Callable[[], Any] | None, check: Callable[[Any], Any]
) -> Callable[[], Any] | None:
    # A structure of the user's that answers nonsense must not take the page down.
    return None if ask is None else lambda: check(ask())


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _due(value: Any) -> Backlog | None:
    if value is None:
        return None
    oldest = None if value.oldest_seconds is None else float(value.oldest_seconds)
    return Backlog(int(value.count), oldest, str(value.what), bool(value.exact))


def _answer(ask: Callable[[], Any] | None, otherwise: Any, what: str, troubles: list[str]) -> Any:
    if ask is None:
        return otherwise
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - whatever a server or a structure of the user's says
        # Only the error's kind: its text may quote an address, a user or a command.
        troubles.append(f"{what} could not be asked: {type(error).__name__}")
        logger.warning("%s could not be asked: %s", what[:200], type(error).__name__)
        return otherwise
