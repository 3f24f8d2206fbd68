"""The dashboard's content as plain data, from the ledger, the recruiter and the structures.

However many people look, a process asks at most once every two seconds, and the structures once
every ten. Dead items are listed within two bounds: their number and their size.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.dashboard.figures import (
    MINUTE,
    RECENT,
    JobFigures,
    covered_seconds,
    is_written,
    job_figures,
    ledger_name,
    window,
)
from workstealing.dashboard.safe_text import LONGEST_SHOWN, item_key, payload_text, visible, weight
from workstealing.dashboard.watched import SetsAside, Watched
from workstealing.metrics.minutes import CacheMinute, Process, total_of_caches
from workstealing.recruiting.job import Backlog

logger = logging.getLogger("workstealing")

MOST_LISTED = 1000
"""How many dead items of one structure a page lists at most."""

PARTS_LISTED = 50
_FIRST_ASKED = 2
_GROWTH = 32
_BYTES = 4 * 2**20

FIGURES_SECONDS = 2.0
STRUCTURES_SECONDS = 10.0
MOST_DEAD = 5000
"""How many dead items of all structures together a page lists at most."""

_FEWEST_DEAD = 10


@dataclass(frozen=True, slots=True)
class ListedItem:
    """A dead item, as text of bounded length.

    Fields: key: its text in forms; member: its name; part: its place in the structure; payload;
    tenant; error: why it died; attempts: how often it failed; died: when it was set aside, in
    seconds since the epoch. An unknown field is None, or an empty text.
    """

    key: str
    member: str
    part: str
    payload: str
    tenant: str
    error: str
    attempts: int | None
    died: float | None


def list_dead(watched: Watched, most: int = MOST_LISTED) -> list[ListedItem]:
    """List at most so many of a structure's dead items, the longest dead first.

    If there are more, the structure chooses. A few round trips for each of its parts.
    """
    found: list[ListedItem] = []
    for part, box in list(watched.dead())[:PARTS_LISTED] if watched.dead is not None else ():
        if len(found) < most:
            found += [_listed_item(part, each) for each in listed(box, most - len(found))]
    return sorted(found, key=lambda item: (item.died is None, item.died or 0.0, item.member))


def listed(box: SetsAside, most: int, most_bytes: int = _BYTES) -> list[Any]:
    """Return at most so many dead items, and fewer if they are large.

    Their size is unknown beforehand, so it asks for a few first, and then for more.
    """
    asked = min(_FIRST_ASKED, most)
    while True:
        found = list(box.dead(asked))
        if len(found) < asked or asked >= most:
            return found[:most]
        mean = sum(_weight(each) for each in found) / len(found)
        affordable = int(most_bytes / max(1.0, mean))
        if affordable <= asked:
            return found[:most]
        asked = min(most, asked * _GROWTH, affordable)


def member_of(item: Any) -> Any:
    """Return the part of a listed item that `revive` and `discard` take."""
    return getattr(item, "member", item)


def _weight(item: Any) -> int:
    return weight(member_of(item)) + weight(getattr(item, "payload", None))


def _listed_item(part: str, item: Any) -> ListedItem:
    member, payload = member_of(item), getattr(item, "payload", None)
    shown = getattr(item, "shown", None)
    name = member if shown is None else shown
    if payload is None and weight(name) > LONGEST_SHOWN:
        # The item carries nothing but its name, which is too long for a name's place.
        payload = name
    tenant, error = (getattr(item, field, None) for field in ("tenant", "error"))
    times = getattr(item, "times", ())
    return ListedItem(
        key=item_key(member),
        member=visible(name),
        part=visible(part),
        payload=payload_text(payload),
        tenant="" if tenant is None else visible(tenant),
        error="" if error is None else visible(error, 200),
        attempts=getattr(item, "attempts", None),
        died=float(times[-1]) if times else None,
    )


@dataclass(frozen=True, slots=True)
class StructureFigures:
    """The figures of one structure, as a page shows them.

    Fields: watched; size; due; dead_size; dead: some dead items, the longest dead first; trouble:
    the name of the error that kept a question from being answered. An unknown field is None.
    """

    watched: Watched
    size: int | None
    due: Backlog | None
    dead_size: int | None
    dead: list[ListedItem]
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole content of a page.

    Fields: at: its time, in seconds since the epoch; is_fleet: True for the fleet's figures from a
    ledger, False for this process's own; processes: how many wrote the last minute; times: the
    beginnings of the last 60 minutes; traffic: the enlisted per second in each minute, None for a
    minute that nobody wrote; enlisted_per_second: now; jobs; structures; troubles: the questions
    that were not answered; reported: the processes that have reported recently, with host and
    version; enlisted: in each minute, None as in traffic; caches: by name, those that were called
    in the last hour.
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
    enlisted: list[int | None] = field(default_factory=list)
    caches: dict[str, CacheMinute] = field(default_factory=dict)


class Cached:
    """Remembers an answer for some seconds; while one thread asks, the others get the old one.

    Arguments: ask: the function to call; seconds: how long its answer stays good; clock.
    """

    def __init__(self, ask: Callable[[], Any], seconds: float, clock: Clock) -> None:
        self._ask, self._seconds, self._clock = ask, seconds, clock
        self._lock = threading.Lock()
        self._answer: Any = None
        self._good_until = float("-inf")
        self._forgotten = 0

    def get(self) -> Any:
        """Return the answer, and ask if it is too old. Raises: the errors of asking."""
        answer = self._answer
        if self._clock.monotonic() < self._good_until and answer is not None:
            return answer
        # A thread without an answer, or after a change, waits for the thread that asks.
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
                # Otherwise a change came meanwhile, and the answer may be older than it.
                break
        self._answer, self._good_until = answer, self._clock.monotonic() + self._seconds
        return answer

    def forget(self) -> None:
        """Forget the answer, because something has changed."""
        self._forgotten += 1
        self._answer = None


class Queries:
    """Asks for the content of a page.

    Arguments: stats: as `Recruiter.stats`; minutes: returns the ledger's last minutes; own_minutes:
    turns stats into this process's minutes, for want of a ledger; settings: returns the fleet's
    setting of each job; watched: returns the structures; processes: returns the ledger's processes;
    clock: for the remembered answers; now: the time of day in seconds since the epoch.
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
        """Return the content of a page; a question without an answer is among its troubles."""
        found: Snapshot = self._snapshot.get()
        return found

    def forget(self) -> None:
        """Forget all answers."""
        self._structures.forget()
        self._snapshot.forget()

    def structure(self, id: str) -> Watched | None:  # noqa: A002 - the word of forms
        """Return the structure with this id, or None."""
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
        covered = covered_seconds(slots, times, now)
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
            enlisted=[None if slot is None else slot.enlisted for slot in slots],
            enlisted_per_second=sum(slot.enlisted for slot in recent) / covered,
            jobs=jobs,
            structures=structures,
            troubles=troubles,
            reported=reported,
            caches=total_of_caches([slot for slot in slots if slot is not None]),
        )

    def _ask_structures(self) -> list[StructureFigures]:
        found: list[StructureFigures] = []
        left = MOST_DEAD
        for each in self._watched():
            found.append(structure_figures(each, max(_FEWEST_DEAD, left)))
            left -= len(found[-1].dead)
        return found


def structure_figures(watched: Watched, most_dead: int = MOST_LISTED) -> StructureFigures:
    """Ask a structure; a missing answer is None, and `trouble` names the error.

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
    halt = _answer(_checked(watched.halt, _text), None, what, troubles) if not troubles else None
    trouble = troubles[0] if troubles else halt
    return StructureFigures(watched, size, due, dead_size, dead, trouble)


def _checked(
    ask: Callable[[], Any] | None, check: Callable[[Any], Any]
) -> Callable[[], Any] | None:
    # A user's structure that answers nonsense must not take the page down.
    return None if ask is None else lambda: check(ask())


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


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
