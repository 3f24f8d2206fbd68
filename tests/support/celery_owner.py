"""Celery's workers and clients that the tests of its leftovers kill.

REDIS_URL; OPTIONS: the transport's, in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from celery import Celery
from kombu.pidbox import Mailbox

URL = os.environ["REDIS_URL"]
ABSENT = "nobody@nowhere"

app = Celery("owner", broker=URL, backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    broker_transport_options=json.loads(os.environ.get("OPTIONS", "{}")),
)


@app.task
def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


@app.task(acks_late=True)
def wait(seconds: float) -> None:
    """Hold a message."""
    time.sleep(seconds)


def die(*_: Any, **__: Any) -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_before_it_collects(destination: list[str] | None) -> None:
    """Ask for a reply, and be killed where the client would wait for it."""
    Mailbox._collect = die
    app.control.inspect(destination=destination, timeout=60).ping()


def dies_before_its_result() -> None:
    """Send three tasks, and be killed before their results are read."""
    for number in range(3):
        add.delay(number, 1)
    die()


def lives(rounds: int) -> None:
    """Ask for replies and results; fail unless each arrives."""
    for number in range(rounds):
        assert add.delay(number, 1).get(timeout=120) == number + 1
        assert len(app.control.inspect(timeout=120, limit=1).ping() or ()) == 1


def main(kind: str, *args: str) -> None:
    """Do what a kind of client does."""
    if kind == "replies":
        dies_before_it_collects(None)
    elif kind == "binding":
        dies_before_it_collects([ABSENT])
    elif kind == "results":
        dies_before_its_result()
    elif kind == "holds":
        wait.delay(600)
    elif kind == "lives":
        lives(int(args[0]))
    else:
        app.worker_main(["worker", "--pool=solo", "--loglevel=WARNING", f"--hostname={args[0]}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
