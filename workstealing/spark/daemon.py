"""Spark's Python daemon with a hook: every Python task enlists, with its code untouched.

Executors run it in place of `pyspark.daemon` when `spark.python.daemon.module` names it, which
`install(builder, ..., every_task=True)` sees to. That setting is undocumented, so the hook is there
on the versions of Spark alone that it has been tested with, and any fault of it means: no hook.

The daemon itself forks a worker for each task that runs at a time, so it loads the standard library
and Spark's own daemon only, and has no threads; everything else happens in the worker.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

MODULE = "workstealing.spark.daemon"
SETTING = "spark.python.daemon.module"
_TESTED = ("3.5.", "4.0.", "4.1.", "4.2.", "4.3.")
_TASKS = "pyspark.worker"
_REUSE = "SPARK_REUSE_WORKER"


def is_tested(version: str) -> bool:
    """Say whether the hook has been tested with this version of Spark."""
    return version.startswith(_TESTED)


def hooked(run_task: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    """Return the daemon's function `worker`, which runs one task, with an enlist after it.

    The returned function is called in the worker, once for each task, and once more when an idle
    worker is to end.
    """

    def worker(sock: socket.socket, authenticated: bool) -> int:
        before = _attempts()
        try:
            code = run_task(sock, authenticated)
        except OSError:
            # Spark has closed the socket, because it wants no more rows: the worker ends now, and
            # its generators are never told.
            _safely_after(1, before)
            raise
        _safely_after(code, before)
        return code

    return worker


def _safely_after(code: int, before: int) -> None:
    try:
        _after(code, before)
    except Exception as error:  # noqa: BLE001 - a fault of the hook may not end the worker
        _say(f"could not enlist after a task: {type(error).__name__}: {error}")


def _attempts() -> int:
    # A worker that has not enlisted yet has not loaded it.
    workers: Any = sys.modules.get("workstealing.spark.workers")
    return 0 if workers is None else int(workers.attempts())


def _after(code: int, before: int) -> None:
    from pyspark import TaskContext

    # Spark forgets a task's context when it has succeeded. If the call ended badly and there is
    # none either, there was no task: an idle worker was told to end.
    has_failed = code != 0
    if has_failed and TaskContext.get() is None:
        return
    if _attempts() != before:
        return
    from workstealing.spark.workers import finish

    # Without a context it cannot see that there was a task, whose worker may end now.
    finish(None, ends_badly=has_failed or not os.environ.get(_REUSE))


def _say(message: str) -> None:
    # Standard output belongs to the daemon's protocol.
    sys.stderr.write(f"{MODULE}: {message}\n")


def main() -> None:
    """Run Spark's daemon, with the hook if this is a version that it was tested with."""
    import pyspark
    from pyspark import daemon

    try:
        if not is_tested(pyspark.__version__):
            _say(f"no hook: it has not been tested with Spark {pyspark.__version__}")
        elif _TASKS in sys.argv[1:] or not sys.argv[1:]:
            # Spark 3.5 names no module, because its daemon runs tasks alone.
            # manager() looks `worker` up for each task.
            daemon.worker = hooked(daemon.worker)  # type: ignore[assignment]
    except Exception as error:  # noqa: BLE001 - without the hook, tasks run as they always do
        _say(f"no hook: {type(error).__name__}: {error}")
    daemon.manager()


if __name__ == "__main__":
    main()
