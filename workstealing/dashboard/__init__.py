"""The dashboard: one page that shows all jobs and structures, and lets an admin steer them.

app.register_blueprint(create_dashboard(recruiter, client, token=...))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workstealing.dashboard.watched import DeadBox, Watched
from workstealing.dashboard.watching import watch
from workstealing.recruiting.job import Backlog

if TYPE_CHECKING:
    from workstealing.dashboard.views import create_dashboard

__all__ = ["Backlog", "DeadBox", "Watched", "create_dashboard", "watch"]


def __getattr__(name: str) -> Any:
    """Load the page when it is first used: the command line shows its figures without Flask."""
    if name == "create_dashboard":
        from workstealing.dashboard.views import create_dashboard

        return create_dashboard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
