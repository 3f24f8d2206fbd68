"""What became of one caller who enlisted."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """What became of one caller who enlisted; every member is true in a condition."""

    # No __bool__ and no __len__, here or in a mixed-in type: the hot path tests a member's truth,
    # and without them that test never leaves C.

    DISMISSED = "dismissed"
    """The caller lost the draw and goes on at once."""

    WORKED = "worked"
    """The job handled at least one item."""

    IDLE = "idle"
    """The job found nothing to do."""

    ABORTED = "aborted"
    """Another writer came first, or a lock was held."""

    FAILED = "failed"
    """The job ended with an error."""

    OUT_OF_TIME = "out_of_time"
    """The slice's time was over before the job could handle anything: no fault, but too short."""

    SKIPPED = "skipped"
    """The job is paused, its breaker is open, another slice runs in this process, or the job said
    that it could not begin."""


OUTCOMES = tuple(each.value for each in Outcome if each is not Outcome.DISMISSED)
"""The names of all that can become of a recruit: every list of them is this one."""

PERFORMED = tuple(each for each in OUTCOMES if each != Outcome.SKIPPED.value)
"""Those of slices that were performed: shares are shares of these."""


def spoken(outcome: str) -> str:
    """Return the name of an outcome as people read it: "out of time"."""
    return outcome.replace("_", " ")
