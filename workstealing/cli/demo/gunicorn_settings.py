"""Gunicorn's settings for the demo's app; gunicorn reads the names of this module."""

from __future__ import annotations

import os
import shutil
from typing import Any

from workstealing.cli.demo.app import close
from workstealing.cli.demo.plan import FOLDER_VARIABLE

worker_class = "sync"
# One import for all workers, and the proof that a recruiter survives a fork.
preload_app = True
# Gunicorn kills a worker that hangs for longer; a worker whose parent has gone ends in half of it.
timeout = 10
graceful_timeout = 5
# Otherwise a file in the user's home.
control_socket_disable = True
loglevel = "warning"

_PARENT = os.getppid()


def worker_exit(server: Any, worker: Any) -> None:  # noqa: ARG001 - gunicorn's own signature
    """Write down the worker's last figures."""
    close(worker.app.wsgi())


def on_exit(server: Any) -> None:  # noqa: ARG001 - gunicorn's own signature
    """Remove the temporary folder if the demo was killed and cannot do it any more."""
    if os.getppid() != _PARENT:
        shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
