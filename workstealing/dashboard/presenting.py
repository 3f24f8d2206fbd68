"""From figures to what a page says: the text of each cell, with and without script the same."""

from __future__ import annotations

import base64
import datetime as dt
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from workstealing.dashboard.figures import MINUTE, OLD_SECONDS, JobFigures, job_figures
from workstealing.dashboard.queries import DeadItem, Snapshot, StructureFigures
from workstealing.dashboard.watched import short_id
from workstealing.recruiting.outcome import OUTCOMES, spoken

LONGEST_SHOWN = 120
CHARTED = 8
"""How many jobs the charts show, those with the oldest garbage first."""

_EXACT_BYTES = 192
# A structure of the user's may hold text; text and bytes are not the same item to it.
_KINDS: dict[type, str] = {bytes: "is", str: "says"}
_MOST_MARKS = 4
_UNKNOWN = "\N{EN DASH}"


def page(snapshot: Snapshot, name: str, role: str) -> dict[str, Any]:
    """Return everything that a page says, as plain data for JSON and for templates.

    Arguments: snapshot; name: the ledger's; role: of who looks.
    """
    jobs = sorted(snapshot.jobs, key=lambda job: (not job.problems, job.name))
    dead = [each for each in snapshot.structures if each.dead_size or each.dead]
    bad = [job for job in jobs if job.problems]
    alarms = [f"{visible(job.name)}: {'; '.join(job.problems)}" for job in bad]
    alarms += [visible(trouble) for trouble in snapshot.troubles]
    alarms += [visible(each.trouble) for each in snapshot.structures if each.trouble]
    alarms += [
        f"{each['name']}: {each['count']:,} dead items wait for a person"
        for each in map(_dead, dead)
    ]
    return {
        "name": visible(name),
        "role": role,
        "at": _time(snapshot.at),
        "source": _source(snapshot),
        "alarms": alarms,
        "fine": _fine(snapshot),
        "tiles": _tiles(snapshot),
        "jobs": [_job(job) for job in jobs],
        "structures": [_structure(each) for each in snapshot.structures],
        "dead": [_dead(each) for each in dead],
        "charts": _charts(snapshot),
    }


def visible(text: Any, longest: int = LONGEST_SHOWN) -> str:
    """Return a name from elsewhere as text of bounded length, with what is invisible spelled out.

    Control characters, line ends, those that turn the direction of writing, and marks that are
    piled up on one letter become escapes.
    """
    if isinstance(text, bytes):
        text = text[: 4 * longest + 4].decode("utf-8", "backslashreplace")
    shown = str(text)
    cut = shown[:longest]
    plain, marks = "", 0
    for each in cut:
        # A script may need a few marks on one letter; a tower of them hides the lines above.
        marks = marks + 1 if unicodedata.category(each) in {"Mn", "Me"} else 0
        spell_out = _is_invisible(each) or marks > _MOST_MARKS
        plain += each.encode("unicode_escape").decode("ascii") if spell_out else each
    return plain + ("…" if len(shown) > longest else "")


def _is_invisible(character: str) -> bool:
    category = unicodedata.category(character)
    return category in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def item_key(member: Any) -> str:
    """Return what stands for a dead item in a form: itself if it is short, else its digest."""
    raw = member if isinstance(member, bytes) else str(member).encode("utf-8", "surrogatepass")
    kind = _KINDS.get(type(member))
    if kind is not None and len(raw) <= _EXACT_BYTES:
        return f"{kind}." + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return "like." + short_id(raw)


def exact_item(key: str) -> bytes | str | None:
    """Return the item that a form's text stands for, or None where it is a digest or nonsense."""
    kind, _, encoded = key.partition(".")
    if kind not in _KINDS.values() or len(encoded) > 2 * _EXACT_BYTES:
        return None
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return raw if kind == _KINDS[bytes] else raw.decode("utf-8", "surrogatepass")
    except ValueError:
        return None


def number(value: float | None) -> str:
    """Return a figure with three digits that count, and k or M where it is large."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{value / scale:.3g} {unit}" if value / scale < 1000 else f"{value:.3g}"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Return seconds as people say them."""
    if seconds is None or not math.isfinite(seconds):
        return _UNKNOWN
    if seconds <= 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 2 * MINUTE:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 2 * 86400 else f"{seconds / 86400:,.3g} d"


def rate_text(rate: float | None) -> str:
    """Return a rate as the number that a person would type."""
    return _UNKNOWN if rate is None else f"{rate:.4g}"


def _time(epoch: float | None, form: str = "%H:%M:%S UTC") -> str:
    if epoch is None:
        return _UNKNOWN
    try:
        return dt.datetime.fromtimestamp(epoch, dt.UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return _UNKNOWN


def _source(snapshot: Snapshot) -> str:
    if not snapshot.is_fleet:
        return "this process only: no ledger"
    count = snapshot.processes
    return f"fleet of {count} process{'' if count == 1 else 'es'}"


def _fine(snapshot: Snapshot) -> str:
    unknown = sum(1 for job in snapshot.jobs if job.keeps_up is None)
    if not snapshot.jobs:
        return "Nothing is known to be wrong: no job is known."
    if unknown:
        return (
            f"Nothing is known to be wrong; whether {unknown} of {len(snapshot.jobs)} jobs keep up"
            " is not known yet."
        )
    return "Nothing is wrong: every job keeps up."


def _tiles(snapshot: Snapshot) -> list[dict[str, Any]]:
    ages = [job.oldest_seconds for job in snapshot.jobs if job.oldest_seconds is not None]
    backlog = [job.backlog for job in snapshot.jobs if job.backlog is not None]
    counted = {job.name for job in snapshot.jobs}
    backlog += [
        each.due.count
        for each in snapshot.structures
        if each.due is not None and each.watched.job not in counted
    ]
    dead = sum(each.dead_size or len(each.dead) for each in snapshot.structures)
    unknown = not dead and any(each.trouble for each in snapshot.structures)
    behind = sum(1 for job in snapshot.jobs if job.keeps_up is False)
    recruits = sum(job.recruited_per_minute for job in snapshot.jobs)
    return [
        _tile("Jobs behind", number(behind), f"of {len(snapshot.jobs)}", bad=behind > 0),
        _tile("Oldest garbage", duration(max(ages, default=None)), "now", bad=behind > 0),
        _tile("Backlog", number(sum(backlog) if backlog else None), "items"),
        _tile("Traffic", number(snapshot.enlisted_per_second), "enlisted/s"),
        _tile("Recruits", number(recruits), "a minute"),
        _tile("Collected", number(sum(job.items_per_second for job in snapshot.jobs)), "items/s"),
        _tile("Dead", number(None if unknown else dead), "items", bad=dead > 0),
    ]


def _tile(label: str, value: str, unit: str, *, bad: bool = False) -> dict[str, Any]:
    return {"label": label, "value": value, "unit": unit, "bad": bad}


def _job(job: JobFigures) -> dict[str, Any]:
    worst = max((age for age in job.lag if age is not None), default=None)
    keeps = {True: ("yes", "good"), False: ("NO", "bad"), None: ("unknown", "dim")}[job.keeps_up]
    rate = rate_text(job.rate)
    if job.adaptive:
        rate += " adaptive"
    if job.fleet_rate is not None:
        rate += f" (fleet: {rate_text(job.fleet_rate)})"
    lag_kind = "bad" if job.keeps_up is False else ""
    badges = []
    if job.fleet_paused:
        badges.append({"text": "paused", "kind": "warn"})
    elif job.paused:
        badges.append({"text": "paused in this process", "kind": "warn"})
    if job.breaker_open:
        badges.append({"text": "breaker open", "kind": "bad"})
    return {
        "id": short_id(job.name),
        "name": visible(job.name),
        "bad": bool(job.problems),
        "problem": "; ".join(job.problems),
        "badges": badges,
        "paused": job.fleet_paused,
        "here": job.is_here,
        "elsewhere": "" if job.is_here else "Not installed in this process: no slice runs here.",
        "rate": "" if job.rate is None else rate_text(job.fleet_rate or job.rate),
        "cells": [
            _cell(*keeps),
            _cell(duration(job.oldest_seconds), lag_kind),
            _cell(duration(worst)),
            _cell(number(job.backlog)),
            _cell(number(job.items_per_second)),
            _cell(number(job.recruited_per_minute)),
            _cell(rate),
            _cell(duration(job.slice_seconds or None)),
        ],
        "outcomes": _outcomes(job.outcomes),
    }


def blank_job() -> dict[str, Any]:
    """Return a job of which nothing is known, for the script to fill in."""
    return _job(job_figures("", [], 1.0, None, None))


JOB_HEADINGS = (
    "Keeps up",
    "Oldest garbage",
    "Worst, last hour",
    "Backlog",
    "Items/s",
    "Recruits/min",
    "Rate",
    "Slice",
)
"""What the cells of a job are, in their order."""

STRUCTURE_HEADINGS = ("Size", "Due or stale", "Oldest", "Dead")
"""What the cells of a structure are, in their order."""


def _cell(text: str, kind: str = "") -> dict[str, str]:
    return {"text": text, "kind": kind}


def _outcomes(outcomes: dict[str, int]) -> dict[str, Any]:
    """Return a bar of 100 units with a part for each outcome, and the same as text."""
    total = sum(outcomes.values())
    bar, x = [], 0.0
    for kind in OUTCOMES:
        width = 100 * outcomes[kind] / total if total else 0.0
        bar.append({"kind": kind, "x": round(x, 2), "width": round(width, 2)})
        x += width
    said = [f"{number(outcomes[kind])} {spoken(kind)}" for kind in OUTCOMES if outcomes[kind]]
    return {"bar": bar, "text": ", ".join(said) or "none"}


def _structure(figures: StructureFigures) -> dict[str, Any]:
    due = figures.due
    due_text = _UNKNOWN
    if due is not None:
        due_text = f"{'' if due.exact else 'about '}{number(due.count)} {visible(due.what)}"
    dead = figures.dead_size
    oldest = due.oldest_seconds if due is not None and due.count else None
    return {
        "id": figures.watched.id,
        "name": visible(figures.watched.name),
        "kind": visible(figures.watched.kind),
        "bad": bool(dead) or figures.trouble is not None,
        "problem": visible(figures.trouble or ""),
        "cells": [
            _cell(number(figures.size)),
            _cell(due_text),
            _cell(
                duration(oldest), "bad" if oldest is not None and oldest > 60 * OLD_SECONDS else ""
            ),
            _cell(number(dead), "bad" if dead else ""),
        ],
    }


def _dead(figures: StructureFigures) -> dict[str, Any]:
    shown = len(figures.dead)
    count = shown if figures.dead_size is None else figures.dead_size
    return {
        "id": figures.watched.id,
        "name": visible(figures.watched.name),
        "kind": visible(figures.watched.kind),
        "count": count,
        "note": f"{number(count)} dead" + (f", {shown} of them shown" if shown < count else ""),
        "items": [_dead_item(item) for item in figures.dead],
    }


def _dead_item(item: DeadItem) -> dict[str, str]:
    return {
        "key": item_key(item.member),
        "member": visible(item.member),
        "part": visible(item.part),
        "attempts": _UNKNOWN if item.attempts is None else number(item.attempts),
        "last": _time(item.last, "%Y-%m-%d %H:%M UTC"),
    }


def _charts(snapshot: Snapshot) -> dict[str, Any]:
    def age(job: JobFigures) -> float:
        return max((each for each in job.lag if each is not None), default=-1.0)

    charted = sorted(snapshot.jobs, key=lambda job: (-age(job), job.name))[:CHARTED]
    charted.sort(key=lambda job: job.name)
    left_out = len(snapshot.jobs) - len(charted)
    spans = [max(1.0, min(MINUTE, snapshot.at - time)) for time in snapshot.times]
    return {
        "note": f"{CHARTED} of {len(snapshot.jobs)} jobs" if left_out else "",
        "times": snapshot.times,
        "names": [visible(job.name, 40) for job in charted],
        "lag": [_rounded(job.lag) for job in charted],
        "items": [
            _rounded(
                [
                    # A minute that nobody wrote is a gap, not a minute without work.
                    None if enlisted is None else items / span
                    for items, span, enlisted in zip(
                        job.items, spans, snapshot.traffic, strict=True
                    )
                ]
            )
            for job in charted
        ],
        "traffic": _rounded(snapshot.traffic),
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [
        None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
        for value in values
    ]
