"""Tracked sets: one SISMEMBER says whether an id has work; see ``sets.py``."""

from workstealing.structures.tracked_set.sets import (
    AsyncTrackedSet,
    Drift,
    Share,
    TrackedSet,
)

__all__ = [
    "AsyncTrackedSet",
    "Drift",
    "Share",
    "TrackedSet",
]
