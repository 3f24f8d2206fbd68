"""Tracked sets: one SISMEMBER says whether an id has work; see ``sets.py``."""

from workstealing.structures.tracked_set.drift import Drift, Share
from workstealing.structures.tracked_set.sets import (
    AsyncTrackedSet,
    TrackedSet,
)

__all__ = [
    "AsyncTrackedSet",
    "Drift",
    "Share",
    "TrackedSet",
]
