"""The events of a fleet as a page shows them: rows of a table, and marks on the charts. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workstealing.clock import roughly
from workstealing.dashboard.watched import short_id
from workstealing.metrics.events import FAULTS, FleetEvent
from workstealing.safe_text import visible

SHOWN_SECONDS = 86_400.0
"""Older events are left to `workstealing events`."""
MOST_SHOWN = 50
_MOST_MARKS = 30
_LONGEST = 300


def event_rows(events: Sequence[FleetEvent], now: float) -> dict[str, Any]:
    """Return the table of the last day's events, the newest first.

    Arguments:
        events: the newest first.
        now: in seconds since the epoch, by the server's clock.
    """
    recent = [each for each in events if now - each.at <= SHOWN_SECONDS]
    more = f"; the newest {MOST_SHOWN} shown" if len(recent) > MOST_SHOWN else ""
    return {
        "text": f"{len(recent):,} in the last day{more}",
        "rows": [
            {
                "id": short_id(f"{each.kind} {each.subject} {each.first}"),
                "ago": f"{roughly(max(0.0, now - each.at))} ago",
                "said": visible(each.sentence, _LONGEST),
                "where": visible(where(each), _LONGEST),
                "bad": each.kind in FAULTS,
            }
            for each in recent[:MOST_SHOWN]
        ],
    }


def where(event: FleetEvent) -> str:
    """Return who did it, if somebody did, and on which hosts it was told."""
    hosts = ", ".join(event.hosts) or "an unknown host"
    return f"{event.user} on {hosts}" if event.user else hosts


def event_marks(events: Sequence[FleetEvent], times: Sequence[int]) -> list[dict[str, Any]]:
    """Return the events in the time of the charts, the newest ones, as marks on them.

    Arguments:
        events: the newest first.
        times: the beginnings of the charts' minutes, ascending.
    """
    first = times[0] if times else 0
    return [
        {"at": each.at, "said": visible(each.sentence, 120), "bad": each.kind in FAULTS}
        for each in events
        if each.at >= first
    ][:_MOST_MARKS]


def newest_of(job: str, events: Sequence[FleetEvent], now: float) -> str:
    """Return the newest event of a job within the last day in a few words; "": there is none."""
    for each in events:
        if each.subject == job and now - each.at <= SHOWN_SECONDS:
            ago = roughly(max(0.0, now - each.at))
            return f"{ago} ago: {each.sentence}, told by {where(each)}"
    return ""
