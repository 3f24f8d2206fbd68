"""What to do next about each kind of alarm: one table for `status`, `explain` and the page. No I/O.

A step is one clause, and names the section of docs/runbook.md where there is one.
"""

from __future__ import annotations

AWAY, WAY, SILENT, FULL, SHORT_LIVED = "away", "way", "silent", "full", "short_lived"
DENIED, FAILED, BEHIND, PAUSED = "denied", "failed", "behind", "paused"

STEPS = {
    AWAY: "start it, or mend the way to it; docs/runbook.md#workstealingunreached",
    WAY: "mend the way from there to it; docs/runbook.md#workstealingunreached",
    SILENT: "look at the processes and their logs; docs/runbook.md#workstealingfleetsilent",
    FULL: "raise its maxmemory, or free some; docs/runbook.md#workstealingnotreported",
    SHORT_LIVED: "their logs and their supervisor say why; docs/runbook.md#workstealingfleetsilent",
    DENIED: "`workstealing acl` prints the rights that its user needs",
    FAILED: "the log there says why; docs/runbook.md#workstealingmanyfailures",
    BEHIND: "see docs/runbook.md#workstealingcannotkeepup",
    PAUSED: "resume it on the dashboard, or by SharedSettings",
}
"""By kind of alarm: what a person does next."""

DENIALS = frozenset({"NoPermissionError", "AuthenticationError"})
"""The classes of errors by which a server refuses a user."""


def then(kind: str) -> str:
    """Return the end of an alarm's sentence: what to do next."""
    return f"; next: {STEPS[kind]}"
