"""RQ's workers that the tests of its leftovers kill, and the jobs that they run."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import redis
import rq
from redis.client import Pipeline


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


def fail() -> None:
    """Fail."""
    raise ValueError("mine")


def wait() -> None:
    """Run until the worker dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    while os.getppid() != 1:
        time.sleep(0.05)


class Here(rq.SimpleWorker):
    """A worker of the test's own process, which takes no signals and starts no thread."""

    def subscribe(self) -> None:
        """Take no orders."""

    def unsubscribe(self) -> None:
        """Have taken none."""

    def _install_signal_handlers(self) -> None:
        pass


def die_after_the_heartbeat_of_a_deleted_job() -> None:
    """Let this worker be killed between the two pipelines of its heartbeat."""
    original: Any = Pipeline.execute

    def execute(self: Any, *args: Any, **options: Any) -> Any:
        beats = [each[0][1] for each in self.command_stack if each[0][:1] == ("HSET",)]
        done = original(self, *args, **options)
        client = redis.Redis(connection_pool=self.connection_pool)
        for key in beats:
            # RQ 2.0 gives them as bytes, later ones as text.
            is_job = key.startswith(b"rq:job:" if isinstance(key, bytes) else "rq:job:")
            if is_job and client.hkeys(key) == [b"last_heartbeat"]:
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    Pipeline.execute = execute


def main(url: str, kind: str) -> None:
    """Work.

    Arguments:
        kind: "dying", or anything else.
    """
    if kind == "dying":
        die_after_the_heartbeat_of_a_deleted_job()
    connection = redis.Redis.from_url(url)
    make = rq.Worker if kind == "dying" else rq.SimpleWorker
    worker = make([rq.Queue(connection=connection)], connection=connection)
    worker.job_monitoring_interval = 1
    worker.work(logging_level="WARNING")


if __name__ == "__main__":
    main(*sys.argv[1:])
