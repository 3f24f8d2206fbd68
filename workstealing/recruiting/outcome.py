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

    SKIPPED = "skipped"
    """The job is paused, its breaker is open, another slice runs in this process, or the job said
    that it could not begin."""
