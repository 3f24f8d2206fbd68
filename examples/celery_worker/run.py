"""Run a Celery worker with two children, give it tasks, and then nothing: it cleans up meanwhile.

Run it from the checkout: `.venv/bin/python examples/celery_worker/run.py`
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workstealing import connect
from workstealing.jobs import HashFieldExpiry
from workstealing.store import EmbeddedServer
from workstealing.structures import VolatileHashes

HERE = Path(__file__).parent
TASKS = 100
GARBAGE = 1_000
PATIENCE = 60.0


@contextmanager
def redis_url() -> Iterator[str]:
    """Yield REDIS_URL, or the URL of a throw-away Redis."""
    if given := os.environ.get("REDIS_URL"):
        yield given
        return
    with EmbeddedServer() as server:
        yield server.url


def run_tasks(task: Any, items: VolatileHashes) -> None:
    """Send the tasks, and wait until the cache has what they work out."""
    for item in range(TASKS):
        task.delay(item)
    prices = [f"item:{item}" for item in range(TASKS)]
    deadline = time.monotonic() + PATIENCE
    while items.exists(*prices) < TASKS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the worker has not done {TASKS} tasks in {PATIENCE:g} s")
        time.sleep(0.05)


def main() -> None:
    """Print what was there, what the tasks left, and what the idle worker left."""
    with redis_url() as url:
        os.environ["REDIS_URL"] = url
        import shop  # what the worker imports, too

        # Written by a clock that is two hours late, they have expired at once.
        late = VolatileHashes(connect(url), namespace="items", clock_shift_ms=-7_200_000)
        for item in range(GARBAGE):
            late.hsetex(f"item:{TASKS + item}", mapping={"price": "0.00"}, ex=3600)
        sweep = HashFieldExpiry(shop.items)

        def expired() -> int:
            return sweep.backlog(PATIENCE).count

        print(f"expired fields at first: {expired()}")
        command = [
            "celery",
            "-q",
            "-A",
            "shop",
            "worker",
            "--concurrency",
            "2",
            "--loglevel",
            "ERROR",
        ]
        worker = subprocess.Popen([sys.executable, "-m", *command], cwd=HERE)  # noqa: S603 - our own
        try:
            run_tasks(shop.price, shop.items)
            print(f"after {TASKS} tasks: {expired()}")
            deadline = time.monotonic() + PATIENCE
            while expired() and time.monotonic() < deadline:
                time.sleep(0.1)
            print(f"after some idle seconds: {expired()}")
        finally:
            worker.terminate()
            try:
                worker.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.kill()
                raise


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
