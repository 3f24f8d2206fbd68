"""The dashboard: one page that shows all jobs and structures, and lets an admin steer them.

app.register_blueprint(create_dashboard(recruiter, client, token=...))
"""

from __future__ import annotations

from workstealing.dashboard.views import create_dashboard
from workstealing.dashboard.watching import DeadBox, Due, Watched

__all__ = ["DeadBox", "Due", "Watched", "create_dashboard"]
