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
from functools import partial
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, roughly
from workstealing.dashboard.figures import (
    JobFigures,
    covered_seconds,
    is_written,
    job_figures,
    ledger_name,
    recent_of,
    span_seconds,
    window,
)
from workstealing.dashboard.fleet_state import (
    DENIALS,
    DENIED,
    SILENT,
    FleetState,
    Why,
    emptied,
    fleet_state,
    merged,
    then,
    time_of_day,
    unexplained,
    where,
)
from workstealing.dashboard.rules import QueueRules, SeenRules, rules_of
from workstealing.dashboard.watched import SetsAside, Watched, item_key, payload_text, weight
from workstealing.errors import is_connection_fault
from workstealing.metrics.events import CLEARED, RESUMED, FleetEvent, sent
from workstealing.metrics.events import PAUSED as PAUSE
from workstealing.metrics.minutes import CacheMinute, Minute, Process, total_of_caches
from workstealing.recruiting.job import Backlog
from workstealing.safe_text import LONGEST_SHOWN, visible

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
# The last hour of a ledger is read; figures of less than that must be there still.
_EMPTIED_SECONDS = 3000.0


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
    """List at most `most` of a structure's dead items, the longest dead first.

    If there are more, the structure chooses. A few round trips for each of its parts.
    """
    found: list[ListedItem] = []
    for part, box in list(watched.dead())[:PARTS_LISTED] if watched.dead is not None else ():
        if len(found) < most:
            found += [_listed_item(part, each) for each in listed(box, most - len(found))]
    return sorted(found, key=lambda item: (item.died is None, item.died or 0.0, item.member))


def listed(box: SetsAside, most: int, most_bytes: int = _BYTES) -> list[Any]:
    """Return at most `most` dead items, and fewer if they are large.

    The items' size is unknown beforehand, so the function asks for a few first, and then for more.
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
    the name of the error that kept a question from being answered; away: the same, if its server
    did not answer at all; rules: of the fair queues that have answered. An unknown field is None.
    """

    watched: Watched
    size: int | None
    due: Backlog | None
    dead_size: int | None
    dead: list[ListedItem]
    trouble: str | None
    away: str | None = None
    rules: list[SeenRules] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole content of a page.

    Fields: at: its time, in seconds since the epoch; is_fleet: True for the fleet's figures from a
    ledger, False for this process's own; processes: how many wrote the last minute; times: the
    beginnings of the last 60 minutes; traffic: the enlisted per second in each minute, None for a
    minute that nobody wrote; enlisted_per_second: now; jobs; structures; troubles: the questions
    that were not answered; reported: the processes that have reported recently, with host and
    version; enlisted: in each minute, None as in traffic; caches: by name, those that were called
    in the last hour; state: of the fleet's processes; warnings: sentences about the whole: servers
    out of reach with their jobs, a fleet that has fallen silent, reports that are refused; heard:
    the time that the fleet's figures are of, None: unknown; old_seconds: how old they are, None:
    they are of now; fault: the error that keeps the ledger from answering, None: it answers; spans:
    the seconds that the counts of each minute are of; events: of the fleet, the newest first;
    slots: the last 60 minutes, None for one that nobody wrote; is_away: whether the ledger's server
    did not answer at all; notes: sentences about the whole that need nobody's attention.
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
    state: FleetState = field(default_factory=FleetState)
    warnings: list[str] = field(default_factory=list)
    heard: float | None = None
    old_seconds: float | None = None
    fault: str | None = None
    spans: list[float] = field(default_factory=list)
    events: list[FleetEvent] = field(default_factory=list)
    slots: list[Minute | None] = field(default_factory=list)
    is_away: bool = False
    notes: list[str] = field(default_factory=list)


class Cached:
    """Remembers an answer for some seconds; while one thread asks, the others get the old one.

    Arguments:
        ask: the function to call.
        seconds: how long its answer stays good.
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

    Arguments:
        stats: as `Recruiter.stats`.
        minutes: returns the ledger's last minutes.
        own_minutes: turns stats into this process's minutes, for want of a ledger.
        settings: returns the fleet's setting of each job.
        watched: returns the structures.
        processes: returns the ledger's processes, None: they are unknown.
        server_now: returns the time of the ledger's server, None: its clock is this machine's.
        where: the address of the ledger's server.
        refusal: returns why the ledger refuses reports, asked about a fleet that is silent.
        own_refusals: returns a sentence for each ledger that refuses this process's reports.
        events: returns the fleet's, the newest first.
        describe: returns a fault of the ledger's server in words, by default its class alone,
            because a text may name a user.
        clock: for the remembered answers.
        now: the time of day in seconds since the epoch.
    """

    def __init__(
        self,
        stats: Callable[[], Mapping[str, Any]],
        minutes: Callable[[], list[Any]],
        own_minutes: Callable[[Mapping[str, Any]], list[Any]],
        settings: Callable[[], Mapping[str, Any]],
        watched: Callable[[], Iterable[Watched]],
        *,
        processes: Callable[[], list[Process]] | None = None,
        server_now: Callable[[], float] | None = None,
        where: str | None = None,
        refusal: Callable[[], Why] = Why,
        own_refusals: Callable[[], list[str]] = list,
        events: Callable[[], list[FleetEvent]] = list,
        describe: Callable[[Exception], str] = lambda error: type(error).__name__,
        clock: Clock = SYSTEM_CLOCK,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._stats, self._minutes, self._own_minutes = stats, minutes, own_minutes
        self._settings, self._watched, self._now = settings, watched, now
        self._processes, self._server_now = processes, server_now
        self._where, self._refusal, self._own_refusals = where, refusal, own_refusals
        self._events, self._describe = events, describe
        # The last answers of the ledger: they are shown as old while it does not answer.
        self._told: _Told | None = None
        # When the fleet was last heard of, and its number of processes then.
        self._was_heard: tuple[float, int] | None = None
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

    def rules(self, id: str) -> QueueRules | None:  # noqa: A002 - the word of forms
        """Return the rules of the fair queue with this id, or None."""
        found = (rules for each in self._watched() for rules in rules_of(each.structures))
        return next((each for each in found if each.id == id), None)

    def _ask(self) -> Snapshot:
        troubles: list[str] = []
        stats = self._stats()
        own = self._own_minutes(stats)
        told = self._ask_ledger(troubles)
        is_fleet = any(map(is_written, told.minutes))
        now = told.now if is_fleet else self._now()
        times, slots = window(told.minutes if is_fleet else own, now)
        covered = covered_seconds(slots, times, now)
        # Old figures are of their own time: nobody knows whether a slice still runs.
        state = fleet_state(told.processes or (), now if told.fault is None else told.answered)
        names = {ledger_name(name): name for name in (*told.settings, *stats["jobs"])}
        for slot in slots:
            if slot is not None:
                names = {**dict(zip(slot.jobs, slot.jobs, strict=True)), **names}
        structures = self._structures.get()
        due = {each.watched.job: each.due for each in structures if each.due is not None}
        away: dict[str | None, dict[str, float]] = {}
        for each in structures:
            if each.away is not None and each.watched.server is not None:
                away.setdefault(each.watched.job, {})[each.watched.server] = 0.0
        heard = _heard(state, told) if is_fleet else None
        old = None if heard is None else self._old_seconds(state, told, heard)
        silence = state.silence()
        gone = self._gone(heard, len(state.present), told)
        why = self._why(state, told, is_fleet=is_fleet)
        written = (time for time, slot in zip(times, slots, strict=True) if slot is not None)
        loss = emptied(told.events, next(written, None), now) if is_fleet else None
        local = stats["jobs"]
        jobs = [
            job_figures(
                name,
                slots,
                covered,
                local.get(name),
                told.settings.get(name),
                due=due.get(name),
                state=state,
                away=away.get(name),
                unknown_since=None if old is None else roughly(old),
                pause=_pause(name, told.events),
                emptied=loss,
            )
            for name in names.values()
        ]
        recent = [slot for slot in slots[recent_of(slots)] if slot is not None]
        newest = next((slot for slot in reversed(slots[-2:]) if slot is not None), None)
        spans = [span_seconds(slots, times, now, number) for number in range(len(slots))]
        # The present minute is not over, and has a part of the reports only.
        shown = [*slots[:-1], None] if recent_of(slots).stop == -1 else slots
        return Snapshot(
            at=now,
            is_fleet=is_fleet,
            processes=(newest.processes if newest is not None else 0)
            if told.processes is None
            else len(state.present),
            times=times,
            traffic=[
                None if slot is None else slot.enlisted / span
                for slot, span in zip(shown, spans, strict=True)
            ],
            enlisted=[None if slot is None else slot.enlisted for slot in slots],
            enlisted_per_second=sum(slot.enlisted for slot in recent) / covered,
            jobs=jobs,
            structures=structures,
            troubles=troubles,
            reported=[*state.present, *state.silent],
            caches=total_of_caches([slot for slot in slots if slot is not None]),
            state=state,
            warnings=[*gone, *self._warnings(state, told, structures, old, why)],
            heard=heard,
            old_seconds=old,
            fault=told.fault,
            spans=spans,
            events=told.events,
            slots=slots,
            is_away=told.is_away,
            notes=[*_notes(why, silence, is_fleet=is_fleet), *([] if loss is None else [loss])],
        )

    def _gone(self, heard: float | None, count: int, told: _Told) -> list[str]:
        """Return a sentence about a ledger that has lost its figures since the last look."""
        if heard is not None:
            if told.fault is None:
                self._was_heard = heard, max(1, count)
            return []
        if self._was_heard is None or told.fault is not None:
            return []
        at, number = self._was_heard
        if told.now - at > _EMPTIED_SECONDS:
            # The last hour's figures are looked at, and they have ended by themselves.
            self._was_heard = None
            return []
        had = "1 process" if number == 1 else f"{number:,} processes"
        place = "" if self._where is None else f" at {self._where}"
        said = (
            f"the ledger{place} has no figures any more: {had} had reported by"
            f" {time_of_day(at)}, and none has since: was the server emptied?"
        )
        return [f"{said}{then(SILENT)}"]

    def _why(self, state: FleetState, told: _Told, *, is_fleet: bool) -> Why:
        """Return why reports do not arrive, as far as the server says; nothing where they do."""
        if told.fault is not None or (is_fleet and not state.silent):
            return Why()
        return self._refusal()

    def _ask_ledger(self, troubles: list[str]) -> _Told:
        """Ask the ledger; of a part that does not answer, return the last answer."""
        began, before = self._now(), self._told
        faults: list[Exception] = []
        said: list[str] = []

        def answer(ask: Callable[[], Any], otherwise: Any, what: str) -> Any:
            try:
                return ask()
            except Exception as error:  # noqa: BLE001 - whatever a server says
                faults.append(error)
                return _answer(_raising(error), otherwise, what, said)

        unknown = _Told(began, began) if before is None else before
        minutes = answer(self._minutes, unknown.minutes, "the ledger")
        settings = answer(self._settings, unknown.settings, "the fleet's settings")
        processes = None
        if self._processes is not None:
            processes = answer(self._processes, unknown.processes, "the fleet's processes")
        # Without them the figures are whole all the same.
        events = _answer(self._events, unknown.events, "the fleet's events", said)
        # Only a ledger that somebody writes has a time of its own.
        server_now = began + unknown.ahead
        if self._server_now is not None and (processes or any(map(is_written, minutes))):
            at = answer(self._server_now, None, "the ledger's time")
            server_now = began + unknown.ahead if at is None else at
        fault = next(iter(faults), None)
        if len({type(each) for each in faults}) == 1 and said[:1] and len(said) >= len(faults):
            # One cause is one sentence.
            said = said[:1]
        told = _Told(
            server_now,
            unknown.answered if fault is not None else server_now,
            minutes,
            settings,
            processes,
            events,
            server_now - began,
            None if fault is None else self._describe(fault),
            fault is not None and is_connection_fault(fault),
        )
        if fault is None:
            self._told = told
        if not (told.is_away and self._where is not None):
            # Otherwise one sentence about the server says it.
            troubles += said
        return told

    def _old_seconds(self, state: FleetState, told: _Told, heard: float) -> float | None:
        """Return how old the fleet's figures are, None: they are of now."""
        is_silent = told.processes is not None and not state.present
        return max(0.0, told.now - heard) if is_silent or told.fault is not None else None

    def _warnings(
        self,
        state: FleetState,
        told: _Told,
        structures: list[StructureFigures],
        old: float | None,
        why: Why,
    ) -> list[str]:
        """Return sentences about the whole, one for each cause."""
        here: dict[str, tuple[str, list[str]]] = {}
        if told.is_away and told.fault is not None and self._where is not None:
            here[self._where] = (told.fault, ["the ledger"])
        for each in structures:
            if each.away is not None and each.watched.server is not None:
                _, parts = here.setdefault(each.watched.server, (each.away, []))
                part = each.watched.job or each.watched.name
                if part not in parts:
                    parts.append(part)
        answering = {
            each.watched.server
            for each in structures
            if each.watched.server is not None and each.away is None and each.trouble is None
        }
        answering |= {self._where} if told.fault is None and self._where is not None else set()
        said = list(merged(state.away, here, answering))
        at = "" if self._where is None else f" (the ledger is at {self._where})"
        said += [f"{state.lost}{at}"] if state.lost is not None else []
        said += [state.short_lived] if state.short_lived is not None else []
        if told.fault is None and old is not None and state.silent and state.reported is not None:
            count = len(state.silent)
            them = "its last process has" if count == 1 else f"all {count} processes have"
            said.append(
                f"the fleet is silent: {them} not reported for {roughly(old)}, since"
                f" {time_of_day(state.reported)}{_reason(why)}"
            )
        elif why.known is not None:
            silence = state.silence() or "no process has reported to the ledger"
            said.append(f"{silence}: {why.known}")
        if told.fault is None:
            said += self._own_refusals()
        return said

    def _ask_structures(self) -> list[StructureFigures]:
        found: list[StructureFigures] = []
        left = MOST_DEAD
        # A server that does not answer is asked once, and not for each of its structures.
        away: dict[str, str] = {}
        for each in self._watched():
            if (said := away.get(each.server or "")) is not None:
                trouble = f"the {each.kind} {each.name!r} could not be asked: {said}"
                found.append(StructureFigures(each, None, None, None, [], trouble, said))
                continue
            found.append(structure_figures(each, max(_FEWEST_DEAD, left)))
            left -= len(found[-1].dead)
            if found[-1].away is not None and each.server is not None:
                away[each.server] = found[-1].away
        return found


@dataclass(frozen=True, slots=True)
class _Told:
    """The ledger's answers.

    Fields: now: the time of its server; answered: the time of its last whole answer; minutes,
    settings and processes, None: unknown; events; ahead: of its server's clock before this
    machine's, in seconds; fault: the error that kept it from answering now, in words; is_away:
    whether its server did not answer at all.
    """

    now: float
    answered: float
    minutes: list[Any] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: list[Process] | None = None
    events: list[FleetEvent] = field(default_factory=list)
    ahead: float = 0.0
    fault: str | None = None
    is_away: bool = False


def _heard(state: FleetState, told: _Told) -> float:
    """Return the time that the fleet's figures are of."""
    if state.reported is not None:
        return state.reported
    written = [each.minute for each in told.minutes if is_written(each)]
    return min(told.answered, max(written) + 60.0) if written else told.answered


def _reason(why: Why) -> str:
    if why.known is not None:
        return f": {why.known}"
    told = ". They have been killed, have no way to the server, or are refused: their logs say it"
    unknown = f"; {why.unknown}" if why.unknown else ""
    return f"{told}{unknown}{then(SILENT)}"


def _notes(why: Why, silence: str | None, *, is_fleet: bool) -> list[str]:
    """Return sentences that need nobody's attention."""
    if why.known is None and silence is not None:
        return [f"{silence}{unexplained(why)}"]
    return [why.unknown] if why.unknown and not is_fleet else []


def _pause(job: str, events: list[FleetEvent]) -> str:
    """Return since when a job is paused in the whole fleet, and by whom, as far as it is known."""
    for each in events:
        if each.subject == sent(ledger_name(job)) and each.kind in (PAUSE, RESUMED, CLEARED):
            is_known = each.kind == PAUSE
            return f" since {time_of_day(each.first)}, by {where(each)}" if is_known else ""
    return ""


def _raising(error: Exception) -> Callable[[], Any]:
    def ask() -> Any:
        raise error

    return ask


def structure_figures(watched: Watched, most_dead: int = MOST_LISTED) -> StructureFigures:
    """Ask a structure; a missing answer is None, and `trouble` names the error.

    Arguments:
        most_dead: how many dead items are listed at most.
    """
    troubles: list[str] = []
    faults: list[str] = []
    what = f"the {watched.kind} {watched.name!r}"

    def noting(ask: Callable[[], Any] | None) -> Callable[[], Any] | None:
        return None if ask is None else lambda: _noted(ask, faults)

    size = _answer(noting(_checked(watched.size, _count)), None, what, troubles)
    due = None
    if not troubles:
        due = _answer(noting(_checked(watched.due, _due)), None, what, troubles)
    ask = noting(_checked(watched.dead_size, _count))
    dead_size = _answer(ask, None, what, troubles) if not troubles else None
    dead: list[ListedItem] = []
    if watched.dead is not None and not troubles and (dead_size or watched.dead_size is None):
        ask = noting(lambda: list_dead(watched, min(MOST_LISTED, most_dead)))
        dead = _answer(ask, [], what, troubles)
    halt = None
    if not troubles:
        halt = _answer(noting(_checked(watched.halt, _text)), None, what, troubles)
    rules: list[SeenRules] = []
    for each in () if troubles else rules_of(watched.structures):
        ask = noting(partial(_look_at_rules, each))
        rules += _answer(ask, [], what, troubles)
    trouble = troubles[0] if troubles else halt
    away = faults[0] if faults and watched.server is not None else None
    return StructureFigures(watched, size, due, dead_size, dead, trouble, away, rules)


def _look_at_rules(rules: QueueRules) -> list[SeenRules]:
    return [rules.look()]


def _noted(ask: Callable[[], Any], faults: list[str]) -> Any:
    """Return the answer, and note a server that does not answer at all."""
    try:
        return ask()
    except Exception as error:
        if is_connection_fault(error):
            faults.append(type(error).__name__)
        raise


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
        name = type(error).__name__
        step = then(DENIED) if name in DENIALS else ""
        troubles.append(f"{what} could not be asked: {name}{step}")
        logger.warning("%s could not be asked: %s", what[:200], type(error).__name__)
        return otherwise
