"""Run an RQ worker, give it jobs, and then nothing: it cleans up meanwhile.

Run it from the checkout: `.venv/bin/python examples/rq_worker/run.py`
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import rq

from workstealing import connect
from workstealing.jobs import HashFieldExpiry
from workstealing.store import EmbeddedServer
from workstealing.structures import VolatileHashes

HERE = Path(__file__).parent
JOBS = 30
GARBAGE = 400
PATIENCE = 60.0


@contextmanager
def redis_url() -> Iterator[str]:
    """Yield REDIS_URL, or the URL of a throw-away Redis."""
    if given := os.environ.get("REDIS_URL"):
        yield given
        return
    with EmbeddedServer() as server:
        yield server.url


def main() -> None:
    """Print what was there, what the jobs left, and what the idle worker left."""
    with redis_url() as url:
        os.environ["REDIS_URL"] = url
        import shop  # what the worker imports, too

        # Written by a clock that is two hours late, they have expired at once.
        late = VolatileHashes(connect(url), namespace="items", clock_shift_ms=-7_200_000)
        for item in range(GARBAGE):
            late.hsetex(f"item:{JOBS + item}", mapping={"price": "0.00"}, ex=3600)
        sweep = HashFieldExpiry(shop.items)

        def expired() -> int:
            return sweep.backlog(PATIENCE).count

        print(f"expired fields at first: {expired()}")
        queue = rq.Queue("shop", connection=redis.Redis.from_url(url))
        before = queue.finished_job_registry.count
        for item in range(JOBS):
            queue.enqueue(shop.price, item)
        command = ["rq.cli", "worker", "shop", "--url", url, "--worker-class", "shop.Worker"]
        worker = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", *command, "--quiet", "--path", str(HERE)], cwd=HERE
        )
        try:
            wait_for(lambda: queue.finished_job_registry.count >= before + JOBS)
            print(f"after {JOBS} jobs: {expired()}")
            wait_for(lambda: not expired())
            print(f"after some idle seconds: {expired()}")
        finally:
            worker.terminate()
            try:
                worker.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                worker.kill()
                raise


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, or PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
