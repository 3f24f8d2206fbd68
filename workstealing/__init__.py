"""Background maintenance of Redis without a background process.

Processes enlist when they have just finished early. A few in a thousand are recruited: they do one
small, bounded slice of a job, and go. See Recruiter.

    import workstealing

    @workstealing.job(rate=0.003)
    def drop_stale_drafts(slice): ...   # returns the number of items handled

    workstealing.enlist()               # at a cache hit, a 304, an empty queue

The functions here are the methods of `default_recruiter`. An import of this package loads only the
standard library; each name loads its modules at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing import errors
    from workstealing.errors import Aborted, WorkStealingError
    from workstealing.recruiting import Adaptive, Hooks, Job, Outcome, Recruiter, Slice
    from workstealing.recruiting.recruiter import default_recruiter
    from workstealing.store import AsyncFleet, Fleet, connect

    add_hook = default_recruiter.add_hook
    enlist = default_recruiter.enlist
    enlists = default_recruiter.enlists
    explain = default_recruiter.explain
    flush = default_recruiter.flush
    install = default_recruiter.install
    job = default_recruiter.job
    pause = default_recruiter.pause
    reraise = default_recruiter.reraise
    resume = default_recruiter.resume
    set_rate = default_recruiter.set_rate
    stats = default_recruiter.stats
    uninstall = default_recruiter.uninstall

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "Adaptive",
    "AsyncFleet",
    "Fleet",
    "Hooks",
    "Job",
    "Outcome",
    "Recruiter",
    "Slice",
    "WorkStealingError",
    "__version__",
    "add_hook",
    "connect",
    "default_recruiter",
    "enlist",
    "enlists",
    "errors",
    "explain",
    "flush",
    "install",
    "job",
    "pause",
    "reraise",
    "resume",
    "set_rate",
    "stats",
    "uninstall",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.errors": "Aborted WorkStealingError",
            "workstealing.recruiting.adaptive": "Adaptive",
            "workstealing.recruiting.hooks": "Hooks",
            "workstealing.recruiting.job": "Job",
            "workstealing.recruiting.recruiter": "Recruiter default_recruiter",
            "workstealing.recruiting.recruiter:default_recruiter": (
                "add_hook enlist enlists explain flush install job pause reraise resume set_rate"
                " stats uninstall"
            ),
            "workstealing.recruiting.slice": "Outcome Slice",
            "workstealing.store.client": "connect",
            "workstealing.store.fleet": "AsyncFleet Fleet",
        },
    )
