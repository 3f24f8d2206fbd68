"""Gunicorn's settings for the demo's app; gunicorn reads the names of this module."""

from __future__ import annotations

from typing import Any

from workstealing.cli.demo.app import close

worker_class = "sync"
# One import for all workers, and the proof that a recruiter survives a fork.
preload_app = True
# Gunicorn kills a worker that hangs for longer; a worker whose parent has gone ends in half of it.
timeout = 10
graceful_timeout = 5
# Otherwise a file in the user's home.
control_socket_disable = True
loglevel = "warning"


def worker_exit(server: Any, worker: Any) -> None:  # noqa: ARG001 - gunicorn's own signature
    """Write down the worker's last figures."""
    close(worker.app.wsgi())
