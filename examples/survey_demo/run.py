"""Fill a Redis by real programs that are killed, survey it, and let recruits collect the garbage.

Run it by `make survey-demo`, or from the checkout: `.venv/bin/python examples/survey_demo/run.py`
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from workstealing import Recruiter, connect
from workstealing.jobs import (
    CeleryLeftovers,
    FamilyLeftovers,
    Leftovers,
    RqLeftovers,
    StreamLeftovers,
    TagSetLeftovers,
)
from workstealing.jobs.family_leftovers import OldScores, PastHashes
from workstealing.store import EmbeddedServer

HERE = Path(__file__).parent
PATIENCE = 60.0
# Two sightings of an item lie so far apart in this demo; an hour is usual.
GAP = 2.0
COLLECTING_SECONDS = 60.0
REPLIES = "_kombu.binding.reply.celery.pidbox"


class Processes:
    """The shop's processes, which end with this one."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._environment = {**os.environ, "REDIS_URL": url, "PYTHONPATH": str(HERE)}
        self._stack = stack
        self.kills = 0

    def start(self, *command: str, says_ready: bool = True) -> subprocess.Popen[str]:
        """Start a process, and wait until it is ready."""
        process = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, *command],
            cwd=HERE,
            env=self._environment,
            stdout=subprocess.PIPE if says_ready else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        if process.stdout is not None:
            process.stdout.readline()
        return process

    def role(self, *role: str) -> subprocess.Popen[str]:
        """Start a process of the shop."""
        # Not as __main__, whose functions RQ's workers could not find.
        return self.start("-c", "import shop; shop.main()", *role)

    def said_by(self, *role: str) -> str:
        """Run a process of the shop to its end; return what it has said."""
        process = self.start("-c", "import shop; shop.main()", *role)
        said, _ = process.communicate(timeout=4 * PATIENCE)
        if process.returncode:
            raise RuntimeError(f"the process {role[0]!r} of the shop failed")
        return said

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a process by SIGKILL, as the kernel does when memory is short."""
        process.kill()
        process.wait()
        self.kills += 1


@contextmanager
def redis_url() -> Iterator[str]:
    """Yield REDIS_URL, or the URL of a throw-away Redis."""
    if given := os.environ.get("REDIS_URL"):
        yield given
        return
    with EmbeddedServer() as server:
        yield server.url


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds. Raises: RuntimeError after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("a process of the demo did not come so far in a minute")
        time.sleep(0.02)


def answers(client: redis.Redis) -> int:
    """Return how many lists of a worker's answers there are."""
    return sum(1 for _ in client.scan_iter(f"*.{REPLIES.removeprefix('_kombu.binding.')}"))


def make_garbage(client: redis.Redis, processes: Processes, seconds: float) -> None:
    """Run the shop for so many seconds, and kill its processes one after the other."""
    worker = processes.start(
        *("-m", "celery", "-A", "shop", "worker", "--pool", "solo", "--loglevel", "CRITICAL"),
        "--without-gossip",
        "--without-mingle",
        says_ready=False,
    )
    client.xgroup_create("orders", "mailers", id="0", mkstream=True)
    processes.role("reader")
    web = processes.role("web", str(seconds))
    wait_for(lambda: client.exists("_kombu.binding.celery.pidbox"))
    while web.poll() is None:
        # The worker answers after its client has died: the list of replies stays for ever.
        known, answered = client.scard(REPLIES), answers(client)
        worker.send_signal(signal.SIGSTOP)
        dying = processes.role("remote")
        wait_for(lambda known=known: client.scard(REPLIES) > known)
        time.sleep(0.1)
        processes.kill(dying)
        worker.send_signal(signal.SIGCONT)
        wait_for(lambda answered=answered: answers(client) > answered)
        for role in ("rpc", "rq", "reader"):
            process = processes.role(role)
            time.sleep(0.5)
            processes.kill(process)
    processes.role("rq")
    processes.role("reader")


def jobs(client: redis.Redis) -> dict[str, Leftovers]:
    """Return the jobs, each with the lines that a user would install it by."""
    common: dict[str, Any] = {"dry_run": False, "limit": 200}
    return {
        "replies of Celery": CeleryLeftovers(client, gap=GAP, wait=GAP, undo=3_600, **common),
        "jobs and workers of RQ": RqLeftovers(client, gap=GAP, retention=1, undo=3_600, **common),
        "acknowledged orders": StreamLeftovers(client, "orders", **common),
        "tags of expired pages": TagSetLeftovers(client, **common),
        "old hits of rate limits": Leftovers(
            client, [OldScores("limit:*", window=5)], name="limits", **common
        ),
        "carts past their end": Leftovers(
            client, [PastHashes("cart:*", "ends")], name="carts", **common
        ),
        "previews without an end": FamilyLeftovers(client, "preview:*", ttl=86_400, **common),
    }


def waiting(job: Leftovers) -> int:
    """Count a job's garbage, however busy the machine is."""
    for _ in range(20):
        try:
            return job.backlog(seconds=30.0).count
        except redis.TimeoutError:
            continue
    raise RuntimeError("the Redis of the demo does not answer")


def collect(recruiter: Recruiter, installed: dict[str, Leftovers]) -> None:
    """Let callers enlist until nothing is left."""
    end = time.monotonic() + COLLECTING_SECONDS
    looked = 0.0
    while time.monotonic() < end:
        recruiter.enlist()
        if time.monotonic() - looked > 2.0:
            looked = time.monotonic()
            left = [waiting(job) for job in installed.values()]
            if not any(left) and looked > end - COLLECTING_SECONDS + 4 * GAP:
                return
            for job in installed.values():
                job.restart()


def main() -> int:
    """Print the survey, and each job's garbage before and after; 0 if nothing live was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the shop runs")
    options = parser.parse_args()
    with ExitStack() as stack:
        url = os.environ["REDIS_URL"] = stack.enter_context(redis_url())
        client = connect(url)
        processes = Processes(url, stack)
        print(f"a shop runs for {options.seconds:g} s on {client.info('server')['redis_version']}")
        make_garbage(client, processes, options.seconds)
        keys, used = client.dbsize(), client.info("memory")["used_memory"]
        print(
            f"{processes.kills} processes killed; {keys:,} keys in {used / 1e6:.1f} MB\n",
            flush=True,
        )
        page = HERE.parents[1] / ".cache" / "survey.html"
        page.parent.mkdir(exist_ok=True)
        subprocess.run(  # noqa: S603 - our own
            [sys.executable, "-m", "workstealing", "survey", "--url", url, "--html", page],
            check=True,
            stderr=subprocess.STDOUT,
        )
        print(flush=True)
        installed = jobs(client)
        recruiter = Recruiter()
        for job in installed.values():
            recruiter.install(job, rate=0.14, seconds=0.05)
        before = {name: waiting(job) for name, job in installed.items()}
        collect(recruiter, installed)
        print(f"{'garbage':30}{'seen at once':>14}{'removed':>10}{'left':>8}")
        for name, job in installed.items():
            items = recruiter.stats()["jobs"][job.name]["items"]
            print(f"{name:30}{before[name]:>14,}{items:>10,}{waiting(job):>8,}")
        used = client.info("memory")["used_memory"]
        print(f"\n{client.dbsize():,} keys in {used / 1e6:.1f} MB")
        troubles = processes.said_by("check")
        print(troubles or "nothing that lives was lost: Celery, RQ and the readers go on")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
