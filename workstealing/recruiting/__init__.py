"""Recruiting: which caller does a slice of which job, and its outcome. No Redis here.

Each module imports modules of lower lines only; a test reads these lines and holds them:

    recruiter                 Recruiter: the jobs, their rates and figures
    decorators explaining     functions that enlist when they have ended; why a job ran
    enlisting                 enlist(): the countdown of the dismissed, and the draw
    performing                a recruit's slice, from the slot to the outcome
    lottery                   the installed jobs, and the draw among them
    tally                     a job's findings and errors in this process
    breakers                  after a fault a server is left alone
    adaptive health hooks     rates; does a job keep up; listeners
    deferral job              enlists after a response; Job
    slice_slot                one slice a process
    slice                     Slice, its length, Outcome
    cache_figures             hits and misses of caches, which listeners send
    checks faults forecast    arguments; errors; what a rate achieves
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.recruiting.adaptive import Adaptive, Spending
    from workstealing.recruiting.explaining import Explanation
    from workstealing.recruiting.hooks import Hooks
    from workstealing.recruiting.job import FunctionJob, Job
    from workstealing.recruiting.recruiter import JobStats, Recruiter, Stats
    from workstealing.recruiting.slice import Outcome, Slice

__all__ = [
    "Adaptive",
    "Explanation",
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

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.recruiting.adaptive": "Adaptive Spending",
            "workstealing.recruiting.explaining": "Explanation",
            "workstealing.recruiting.hooks": "Hooks",
            "workstealing.recruiting.job": "FunctionJob Job",
            "workstealing.recruiting.recruiter": "JobStats Recruiter Stats",
            "workstealing.recruiting.slice": "Outcome Slice",
        },
    )
