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

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "Aborted": "workstealing.errors",
    "Adaptive": "workstealing.recruiting",
    "AsyncFleet": "workstealing.store",
    "Fleet": "workstealing.store",
    "Hooks": "workstealing.recruiting",
    "Job": "workstealing.recruiting",
    "Outcome": "workstealing.recruiting",
    "Recruiter": "workstealing.recruiting",
    "Slice": "workstealing.recruiting",
    "WorkStealingError": "workstealing.errors",
    "connect": "workstealing.store",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, and keep it: the next use costs nothing extra."""
    value: Any
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        value = import_module("workstealing.errors")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        default = import_module("workstealing.recruiting.recruiter").default_recruiter
        value = default if name == "default_recruiter" else getattr(default, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
