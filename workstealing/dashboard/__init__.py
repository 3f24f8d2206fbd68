"""The dashboard: one page that shows all jobs and structures, and lets an admin steer them.

app.register_blueprint(create_dashboard(recruiter, client, token=...))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workstealing.dashboard.watched import SetsAside, Watched
from workstealing.recruiting.job import Backlog

if TYPE_CHECKING:
    from workstealing.dashboard.views import Streams, create_dashboard

__all__ = ["Backlog", "SetsAside", "Streams", "Watched", "create_dashboard"]


def __getattr__(name: str) -> Any:
    """Load the page at its first use, because the command line shows its figures without Flask."""
    if name in ("Streams", "create_dashboard"):
        from workstealing.dashboard import views

        return getattr(views, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
