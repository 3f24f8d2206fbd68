"""Recruiting: who does a slice of which job, when, and what became of it. No Redis here."""

from __future__ import annotations

from workstealing.recruiting.adaptive import Adaptive, Spending
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.job import FunctionJob, Job
from workstealing.recruiting.recruiter import JobStats, Recruiter, Stats
from workstealing.recruiting.slice import Outcome, Slice

__all__ = [
    "Adaptive",
    "FunctionJob",
    "Hooks",
    "Job",
    "JobStats",
    "Outcome",
    "Recruiter",
    "Slice",
    "Spending",
    "Stats",
]
