"""One run of the survey's demo: a shop whose processes are killed, its survey, its collection."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis

from workstealing import Recruiter, connect
from workstealing.cli.output import note, print_json, say, table
from workstealing.errors import ConfigurationError, WorkStealingError
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
from workstealing.store.embedded import die_with_parent

SHOP = "workstealing.cli.survey_demo.shop"
PATIENCE = 60.0
LAST_BYTES = 10_000
# Two sightings of an item lie so far apart in this demo; an hour is usual.
GAP = 2.0
COLLECTING_SECONDS = 60.0
COUNTS = ("seen at once", "removed", "left")
# Remote control by Celery: the channel of the questions, and the ending of the answers' lists.
QUESTIONS, ANSWERS = "/0.celery.pidbox", ".reply.celery.pidbox"


class Processes:
    """The shop's processes, which end with this one."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._environment = {**os.environ, "REDIS_URL": url}
        self._stack = stack
        self._log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self.kills = 0

    def start(self, *command: str, says_ready: bool = True) -> subprocess.Popen[str]:
        """Start a process, and wait until it is ready."""
        process = subprocess.Popen(  # noqa: S603 - our own
            [*die_with_parent(), sys.executable, "-P", *command],
            env=self._environment,
            stdout=subprocess.PIPE if says_ready else subprocess.DEVNULL,
            stderr=self._log,
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
        return self.start("-c", f"from {SHOP} import main; main()", *role)

    def said_by(self, *role: str) -> str:
        """Run a process of the shop to its end; return what it has said.

        Raises: WorkStealingError if it fails.
        """
        process = self.role(*role)
        said, _ = process.communicate(timeout=4 * PATIENCE)
        if process.returncode:
            raise WorkStealingError(
                f"the process {role[0]!r} of the shop failed{self._last_words()}"
            )
        return said

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a process by SIGKILL, as the kernel does when memory is short."""
        process.kill()
        process.wait()
        self.kills += 1

    def wait_for(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds.

        Arguments:
            what: is waited for, for the error.

        Raises: WorkStealingError after PATIENCE seconds.
        """
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                late = f"the demo has waited for {what} for {PATIENCE:g} s"
                raise WorkStealingError(f"{late}{self._last_words()}")
            time.sleep(0.02)

    def wait_until_more(self, what: str, known: int, count: Callable[[], Any]) -> None:
        """Wait until there are more than the known ones. Raises: as of wait_for."""
        self.wait_for(what, lambda: count() > known)

    def _last_words(self) -> str:
        """Return the last line that a process wrote on stderr, behind a colon."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f": {said[-1]}" if said else ""


def answers(client: redis.Redis) -> int:
    """Return how many lists of a worker's answers there are."""
    found = client.scan_iter(f"*{ANSWERS}", _type="list")
    # The set of the lists' names ends alike, and is there when a client has only asked.
    return sum(1 for _ in found)


def make_garbage(client: redis.Redis, processes: Processes, seconds: float) -> None:
    """Run the shop for so many seconds, and kill its processes one after the other."""
    worker = processes.start(
        *("-m", "celery", "-A", SHOP, "worker", "--pool", "solo", "--loglevel", "CRITICAL"),
        "--without-gossip",
        "--without-mingle",
        says_ready=False,
    )
    client.xgroup_create("orders", "mailers", id="0", mkstream=True)
    processes.role("reader")
    # It subscribes to the questions last: it would never hear an earlier one.
    processes.wait_for("Celery's worker", client.pubsub_numpat)
    web = processes.role("web", str(seconds))
    is_over = False
    # One round at least: a busy machine may be slower than the shop is open.
    while not is_over:
        # The worker answers after its client has died: the list of replies stays for ever.
        answered = answers(client)
        worker.send_signal(signal.SIGSTOP)
        with client.pubsub(ignore_subscribe_messages=True) as questions:
            questions.subscribe(QUESTIONS)
            dying = processes.role("remote")
            processes.wait_for("a client's question", questions.get_message)
        processes.kill(dying)
        worker.send_signal(signal.SIGCONT)
        processes.wait_until_more("the worker's answer", answered, lambda: answers(client))
        for role in ("rpc", "rq", "reader"):
            process = processes.role(role)
            time.sleep(0.5)
            processes.kill(process)
        is_over = web.poll() is not None
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
    """Count a job's garbage, however busy the machine is.

    Raises: WorkStealingError if the server does not answer.
    """
    for _ in range(20):
        try:
            return job.backlog(seconds=30.0).count
        except redis.TimeoutError:
            continue
    raise WorkStealingError("the Redis of the demo does not answer")


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


def run(options: argparse.Namespace) -> int:
    """Print the survey, and each job's garbage before and after; 0 if nothing live was lost.

    Raises: ConfigurationError without a real server; WorkStealingError if a process fails.
    """
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        if not server.is_real:
            raise ConfigurationError(
                f"the programs of this demo need a real server, and here is {server.kind}; run:"
                " pip install 'workstealing[server]'"
            )
        client: Any = connect(server.url)
        processes = Processes(server.url, stack)
        tell = note if options.json else say
        tell(f"a shop runs for {options.seconds:g} s on an embedded {server.kind}")
        make_garbage(client, processes, options.seconds)
        tell(f"{processes.kills} processes killed; {used(client)}\n")
        html = () if options.html is None else ("--html", options.html)
        survey = [sys.executable, "-P", "-m", "workstealing", "survey", "--url", server.url, *html]
        output = sys.stderr if options.json else None
        if subprocess.run(survey, check=False, stdout=output).returncode:  # noqa: S603 - our own
            raise WorkStealingError("the survey of the demo failed")
        installed = jobs(client)
        recruiter = Recruiter()
        for job in installed.values():
            recruiter.install(job, rate=0.14, seconds=0.05)
        before = {name: waiting(job) for name, job in installed.items()}
        collect(recruiter, installed)
        removed = recruiter.stats()["jobs"]
        figures = {
            name: (before[name], removed[job.name]["items"], waiting(job))
            for name, job in installed.items()
        }
        at_the_end = used(client)
        troubles = processes.said_by("check").splitlines()
    if options.json:
        garbage = {name: dict(zip(COUNTS, of, strict=True)) for name, of in figures.items()}
        print_json({"kills": processes.kills, "garbage": garbage, "lost": troubles})
    else:
        rows = [(name, *map("{:,}".format, of)) for name, of in figures.items()]
        say(f"\n{table(('garbage', *COUNTS), rows)}\n\n{at_the_end}")
        say("\n".join(troubles) or "nothing that lives was lost: Celery, RQ and the readers go on")
    return 1 if troubles else 0


def used(client: redis.Redis) -> str:
    """Return how many keys the server has, and their memory, for people."""
    return f"{client.dbsize():,} keys in {client.info('memory')['used_memory'] / 1e6:.1f} MB"
