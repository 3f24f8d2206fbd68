"""The dashboard: one page that shows all jobs and structures, and lets an admin steer them.

app.register_blueprint(create_dashboard(recruiter, client, token=...))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.dashboard.views import Streams, create_dashboard
    from workstealing.dashboard.watched import SetsAside, Watched
    from workstealing.recruiting.job import Backlog

__all__ = [
    "Backlog",
    "SetsAside",
    "Streams",
    "Watched",
    "create_dashboard",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.dashboard.views": "Streams create_dashboard",
            "workstealing.dashboard.watched": "SetsAside Watched",
            "workstealing.recruiting.job": "Backlog",
        },
        needs={"flask": "Streams create_dashboard"},
    )
