"""The health of jobs: whether a job keeps up and why not. No I/O.

One rule says whether a job keeps up, for a process and for a fleet. A process has its own slices, a
page has the minutes of a ledger. The process and the page sum their figures up in spans of time,
the oldest first, and ask `assess`. A `Tally` keeps the spans of one process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workstealing.clock import roughly
from workstealing.recruiting.slice import PERFORMED, Outcome, spoken

AGE_LIMIT = 600.0
"""A job with older garbage does not keep up, unless it has a lag target of its own."""

HISTORY_SECONDS = 300.0
"""A shorter history gives no answer."""

TREND_SECONDS = 600.0
"""The time over which the growth of the oldest garbage's age is read."""

OLD_SECONDS = 60.0
"""Younger garbage may age at any speed: it comes and goes."""

STALE_SECONDS = 900.0
"""A gap of this length ends the known history, also the gap after the last slice."""

REACH_SECONDS = 3600.0
"""A job that will catch up within this time is not behind for good."""

FEWEST_SLICES = 20
"""Fewer slices than this make no share."""

FEWEST_FAULTS = 5
"""So many slices in a row without a result are no chance."""

FAULTY_SHARE = 0.5
"""A job does not keep up if a larger share of its slices have no result."""

FULL_SHARE = 0.95
"""At this share of full slices and above, the age of the oldest garbage decides."""

_FASTEST_GROWTH = 0.5
_FULL_GROWTH = 0.02
GOOD = (Outcome.WORKED.value, Outcome.IDLE.value, Outcome.ABORTED.value)
"""Outcomes of slices that have reached their server."""

_BAD = (Outcome.FAILED.value, Outcome.OUT_OF_TIME.value)


@dataclass(slots=True)
class Findings:
    """The findings of all slices in a span of time.

    Fields: at: its time, in seconds of any clock; counts: of recruits by the name of their outcome;
    full: the number of slices, of those that worked or were idle, that ended by their limit or
    deadline, None: unknown; oldest_seconds: the highest age of garbage seen, None: unknown; until:
    the latest moment at which its last good slice may have been, or its first one if none was good,
    None: `at`.
    """

    at: float
    counts: Counter[str] = field(default_factory=Counter)
    full: int | None = None
    oldest_seconds: float | None = None
    until: float | None = None

    @property
    def performed(self) -> int:
        """The number of performed slices."""
        return sum(self.counts[each] for each in PERFORMED)

    @property
    def good(self) -> int:
        """The number of slices without a fault; another writer is no fault."""
        return sum(self.counts[each] for each in GOOD)


class Health(NamedTuple):
    """Whether a job keeps up.

    Fields: keeps_up, None: unknown; why: the reason for False or None; is_old: whether its oldest
    garbage is older than its limit.
    """

    keeps_up: bool | None
    why: str = ""
    is_old: bool = False

    def of_dry_run(self) -> Health:
        """Return the health for a job that only counts: unknown, unless its slices fail."""
        is_faulty = self.keeps_up is False and not self.is_old
        return self if is_faulty else Health(None, "it is a dry run, which removes nothing")

    def without(self, servers: Mapping[str, float]) -> Health:
        """Return the health while servers are not reached: unknown, unless it is a no.

        Arguments:
            servers: by name, the seconds since the first fault.
        """
        if self.keeps_up is False or not servers:
            return self
        name, seconds = max(servers.items(), key=lambda each: each[1])
        more = f" and {len(servers) - 1} more" if len(servers) > 1 else ""
        has = "have" if more else "has"
        why = f"{name}{more} {has} not been reached for {roughly(seconds)}"
        if seconds < 1.0:
            why = f"{name}{more} {'do' if more else 'does'} not answer"
        return Health(None, why, self.is_old)

    def while_held(self, why: str | None) -> Health:
        """Return the health while something else hides the present: unknown, unless it is a no.

        Arguments:
            why: nobody knows, None: the present is known.
        """
        return self if why is None or self.keeps_up is False else Health(None, why, self.is_old)


def assess(
    spans: Sequence[Findings], now: float, limit: float | None = None, error: str | None = None
) -> Health:
    """Say whether a job keeps up with its garbage, and why not.

    A job does not keep up if its slices have no result, or if its garbage is older than the limit
    or keeps growing older. The answer is unknown until slices have run for five minutes, and as
    soon as no slice has run for a quarter of an hour. The answer is also unknown if the last age
    was too old and was read a quarter of an hour ago.

    Arguments:
        spans: the oldest first.
        now: by their clock.
        limit: the highest age of garbage in seconds, None: ten minutes, and ageing garbage counts
            from a minute on.
        error: the class of the last error, None: unknown.

    No command.
    """
    spans = [each for each in spans if each.counts]
    barren = _barren(spans, now, error) or _faulty(spans, error)
    if barren is not None:
        return Health(False, barren)
    looks = _unbroken([each for each in spans if each.performed])
    if not looks:
        return Health(None, "no slice has been performed")
    if now - looks[-1].at > STALE_SECONDS:
        return Health(None, f"no slice has been performed for {roughly(now - looks[-1].at)}")
    ages = [(each.at, each.oldest_seconds) for each in looks if each.oldest_seconds is not None]
    most = AGE_LIMIT if limit is None else limit
    before = _last_age(spans)
    if before is not None and looks[-1].at - before[0] > STALE_SECONDS:
        # Garbage that was young then may be old now, and garbage that was old may still be there.
        at, age = before
        if age > most:
            old = f"oldest garbage {roughly(age)} old, limit {roughly(most)}"
            return Health(None, f"{old}, when it was last seen, {roughly(now - at)} ago", True)
        ages = []
    lasted = looks[-1].at - looks[0].at
    if ages:
        lasted = ages[-1][0] - ages[0][0]
    is_old = bool(ages) and ages[-1][1] > most
    said = f"oldest garbage {roughly(ages[-1][1])} old, limit {roughly(most)}" if is_old else ""
    if lasted < HISTORY_SECONDS:
        history = f"{roughly(lasted)} of history"
        return Health(None, f"{history}; {said}" if said else history, is_old)
    if not ages:
        return _by_slices(looks)
    return _by_age(looks, ages, limit, said)


def growth(ages: Sequence[tuple[float, float]]) -> float | None:
    """Return an age's growth in seconds a second, by least squares; None: unknown.

    Arguments:
        ages: pairs of a time and an age in seconds.
    """
    if len(ages) < 2:
        return None
    count = len(ages)
    middle = sum(at for at, _ in ages) / count
    mean = sum(age for _, age in ages) / count
    spread = sum((at - middle) ** 2 for at, _ in ages)
    if not spread:
        return None
    return sum((at - middle) * (age - mean) for at, age in ages) / spread


def _barren(spans: Sequence[Findings], now: float, error: str | None) -> str | None:
    """Return a complaint if no slice has worked lately; skipped recruits count too."""
    found: Counter[str] = Counter()
    since = None
    for span in reversed(spans):
        since = span.at if span.until is None else span.until
        if span.good:
            break
        found.update(span.counts)
    if since is None:
        return None
    # Within a minute nobody knows when the last good slice was, so it is at least that long ago.
    bad, lasted = sum(found[each] for each in _BAD), max(0.0, now - since)
    skipped = found[Outcome.SKIPPED.value]
    if bad < FEWEST_FAULTS and (bad + skipped < FEWEST_FAULTS or lasted < HISTORY_SECONDS):
        return None
    said = _came_to_nothing(found, bad, error) if bad else ""
    if skipped:
        said += f"{', ' if said else ''}{skipped:,} recruits were skipped"
    if lasted < OLD_SECONDS:
        return said
    # Rounded down, because it is a least.
    lasted -= lasted % (60.0 if lasted < 7200.0 else 3600.0) if lasted >= 120.0 else 0.0
    return f"nothing has worked for at least {roughly(lasted)}: {said}"


def _faulty(spans: Sequence[Findings], error: str | None) -> str | None:
    """Return a complaint if most of the newest slices had no result."""
    found: Counter[str] = Counter()
    performed = 0
    for span in reversed(spans):
        found.update(span.counts)
        performed += span.performed
        if performed >= FEWEST_SLICES:
            break
    bad = sum(found[each] for each in _BAD)
    if performed < FEWEST_SLICES or bad <= FAULTY_SHARE * performed:
        return None
    return _came_to_nothing(found, performed, error)


def _came_to_nothing(found: Counter[str], performed: int, error: str | None) -> str:
    kinds = [f"{found[each]:,} {spoken(each)}" for each in _BAD if found[each]]
    if len(kinds) == 1:
        (kind,) = (each for each in _BAD if found[each])
        verb = "failed" if kind == Outcome.FAILED.value else f"were {spoken(kind)}"
        said = f"{found[kind]:,} of {performed:,} slices {verb}"
    else:
        said = f"of {performed:,} slices {' and '.join(kinds)}"
    return f"{said}, {error}" if error and found[Outcome.FAILED.value] else said


def _unbroken(looks: Sequence[Findings]) -> list[Findings]:
    """Return the newest looks, back to the first gap."""
    found: list[Findings] = []
    for span in reversed(looks):
        if found and (
            found[-1].at - span.at > STALE_SECONDS or found[0].at - span.at > REACH_SECONDS
        ):
            break
        found.append(span)
    return found[::-1]


def _last_age(spans: Sequence[Findings]) -> tuple[float, float] | None:
    """Return the newest age that a slice has read, after its time."""
    for span in reversed(spans):
        if span.oldest_seconds is not None:
            return span.at, span.oldest_seconds
    return None


def _slices(looks: Sequence[Findings]) -> tuple[int, int]:
    """Return the number of slices known to be full or not, and of full ones."""
    known = [each for each in looks if each.full is not None]
    slices = sum(
        each.counts[outcome.value] for each in known for outcome in (Outcome.WORKED, Outcome.IDLE)
    )
    return slices, sum(each.full or 0 for each in known)


def _by_slices(looks: Sequence[Findings]) -> Health:
    """Judge a job that never reports an age by its share of full slices."""
    slices, full = _slices(looks)
    if slices < FEWEST_SLICES:
        return Health(None, "it does not say how old its garbage is")
    if full < FULL_SHARE * slices:
        return Health(True)
    return Health(False, f"{full:,} of {slices:,} slices were full")


def _by_age(
    looks: Sequence[Findings], ages: Sequence[tuple[float, float]], limit: float | None, said: str
) -> Health:
    newest, age = ages[-1]
    trend = [each for each in ages if newest - each[0] <= TREND_SECONDS]
    if newest - trend[0][0] < HISTORY_SECONDS:
        trend = list(ages)
    grows = growth(trend) or 0.0
    is_old = bool(said)
    if grows > _FASTEST_GROWTH and (is_old or (limit is None and age > OLD_SECONDS)):
        more = f"; {said}" if said else f", now {roughly(age)}"
        return Health(False, f"garbage grows older by {grows:.2g} s a second{more}", is_old)
    if is_old:
        most = AGE_LIMIT if limit is None else limit
        recent = [each for at, each in ages if newest - at <= HISTORY_SECONDS]
        if sum(recent) / len(recent) <= most:
            return Health(None, f"{said}, but only just now", is_old)
        if grows < 0.0 and (age - most) / -grows <= REACH_SECONDS:
            return Health(None, f"it catches up: {said}", is_old)
        return Health(False, said, is_old)
    slices, full = _slices(looks)
    are_full = slices >= FEWEST_SLICES and full >= FULL_SHARE * slices
    # A backlog that is being drained grows younger, one that is lost grows older.
    if limit is None and are_full and grows > _FULL_GROWTH and age > OLD_SECONDS:
        why = (
            f"{full:,} of {slices:,} slices were full, and garbage grows older, now {roughly(age)}"
        )
        return Health(False, why)
    return Health(True)
