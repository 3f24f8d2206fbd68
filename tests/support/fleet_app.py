"""A small application of real processes, to be broken: `python -m support.fleet_app`.

Three jobs: `leases` and `carts`, each on a Redis of its own, and `mail`, a function. The
environment names the servers (LEDGER_URL, LEASES_URL, CARTS_URL), and what is wrong from the
beginning (FLEET_STATE: raises, stuck or restarts). Reports come twice a second here, and the watch
looks ten times a second: what is seen is under test, and not how long ten seconds are.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import support.ahead  # noqa: F401 - it sets the clock before the library reads it
from support.patience import be_patient
from workstealing import Recruiter
from workstealing.jobs.key_expiry import KeyExpiry
from workstealing.metrics import watching
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.prometheus import PrometheusHooks
from workstealing.metrics.shared_settings import follow
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys

be_patient(pytest.MonkeyPatch())
STATE = os.environ.get("FLEET_STATE", "")
RESTARTS = 300

watching.LONG_SECONDS = 0.5
watching.WATCH._seconds = 0.1


def client_of(variable: str) -> Redis:
    """Return a client of the server that a variable names."""
    waits = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
    return Redis.from_url(os.environ[variable], retry=Retry(NoBackoff(), 0), **waits)


recruiter = Recruiter()
leases = DurableKeys(client_of("LEASES_URL"), namespace="leases")
carts = DurableKeys(client_of("CARTS_URL"), namespace="carts")
recruiter.install(KeyExpiry(leases, name="leases", limit=5), rate=0.05, seconds=1.0)
recruiter.install(KeyExpiry(carts, name="carts"), rate=0.05, seconds=1.0)


@recruiter.job(rate=0.05)
def mail(slice: Slice) -> int:
    """Handle one item, fail or never return."""
    if STATE == "raises":
        raise ValueError("no such template")
    while STATE == "stuck":
        time.sleep(0.1)
    slice.observe(backlog=1, oldest_seconds=1.0)
    return 1


ledger = Ledger(client_of("LEDGER_URL"), interval=0.5)
recruiter.add_hook(ledger)
follow(recruiter, ledger)
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    recruiter.add_hook(PrometheusHooks())


def work() -> None:
    """Enlist for ever."""
    while True:
        recruiter.enlist()
        time.sleep(0.01)


def restart() -> None:
    """Let 300 processes come, report once, and be killed."""
    for _ in range(RESTARTS):
        child = os.fork()
        if not child:
            while not ledger._reports.at:
                recruiter.enlist()
                ledger.flush(1.0)
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    if STATE == "restarts":
        restart()
    work()
