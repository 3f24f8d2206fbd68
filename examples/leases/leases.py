"""Workers that share reports by leases, on a Redis that may be under memory pressure.

Each report is rebuilt by whoever holds its lease. A worker that finds it held has nothing to do and
enlists: that is where the leases of workers that died are cleared away. A worker that stalls past
its lease is stopped where it matters, by the fencing token, at the archive.

Run it from the checkout: `.venv/bin/python examples/leases/leases.py`
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from workstealing import Recruiter, connect
from workstealing.jobs import KeyExpiry
from workstealing.structures import DurableKeys

LEASE_SECONDS = 0.25
REPORTS = 5
PATIENT_SECONDS = 60.0
MEANINGS = {
    "held by another": "tries that found the report taken, and enlisted",
    "died": "workers that ended with a lease in their hands",
    "stored": "reports that the archive took from the holder of the lease",
    "refused, too late": "results of a worker whose lease had ended; its token was too small",
}


class Archive:
    """Where reports end up. It refuses a token smaller than one that it has seen."""

    def __init__(self) -> None:
        self.reports: dict[str, str] = {}
        self._tokens: dict[str, int] = {}
        self._lock = threading.Lock()

    def store(self, name: str, text: str, token: int) -> bool:
        """Store a report, unless its writer's lease has gone to somebody else since."""
        with self._lock:
            if token < self._tokens.get(name, 0):
                return False
            self._tokens[name] = token
            self.reports[name] = text
            return True


class Worker:
    """Rebuilds reports; `counts` says what became of its tries."""

    def __init__(self, keys: DurableKeys, recruiter: Recruiter, archive: Archive) -> None:
        self.keys = keys
        self.recruiter = recruiter
        self.archive = archive
        self.counts: Counter[str] = Counter()

    def rebuild(self, name: str, work: Callable[[], object], *, dies: bool = False) -> str:
        """Try once to rebuild a report by some work; return what became of it."""
        token = self.keys.acquire(f"report:{name}", LEASE_SECONDS)
        if token is None:
            self.recruiter.enlist()  # a fast exit
            became = "held by another"
        elif dies:
            became = "died"  # and gave nothing back
        else:
            work()
            stored = self.archive.store(name, f"{name} by lease {token}", token)
            became = "stored" if stored else "refused, too late"
            self.keys.release(f"report:{name}", token)
        self.counts[became] += 1
        return became


def brief() -> None:
    """Do the work of a report that takes no time to speak of."""
    time.sleep(0.01)


def run(client: Any) -> tuple[Counter[str], int]:
    """Let workers share the reports; return what became of all tries, and the leases left over."""
    keys: DurableKeys = DurableKeys(client, namespace="leases")
    recruiter = Recruiter(seconds=0.1)
    recruiter.install(KeyExpiry(keys, limit=5), rate=0.5)  # so many, to be seen at once
    archive = Archive()
    worker = Worker(keys, recruiter, archive)

    # One stalls for longer than its lease: meanwhile another takes the report, and finishes it.
    begun, finished = threading.Event(), threading.Event()

    def stall() -> None:
        begun.set()
        finished.wait(PATIENT_SECONDS)

    stalled = threading.Thread(target=worker.rebuild, args=("stalled", stall))
    stalled.start()
    begun.wait(PATIENT_SECONDS)
    try:
        while not archive.reports:
            worker.rebuild("stalled", brief)
            time.sleep(0.01)
    finally:
        finished.set()
        stalled.join()

    # Some die with the lease in their hands, and nobody ever asks for their reports again.
    for number in range(REPORTS):
        worker.rebuild(f"abandoned {number}", brief, dies=True)
    time.sleep(LEASE_SECONDS)

    # The others go on. Whoever finds a report held enlists, and the leases of the dead are gone. A
    # slice that fails on a busy machine lets its job rest, so they may take more tries.
    expiry, give_up = KeyExpiry(keys), time.monotonic() + PATIENT_SECONDS
    with keys.lock("report:busy", lease=2 * PATIENT_SECONDS):
        tries = 0
        while tries < 100 or (expiry.backlog().count and time.monotonic() < give_up):
            worker.rebuild("busy", brief)
            tries += 1
    return worker.counts, expiry.backlog().count


def main() -> None:
    """Run it on a throw-away Redis, unless REDIS_URL names another."""
    client = connect(os.environ.get("REDIS_URL", "embedded://"))
    counts, left = run(client)
    for became, meaning in MEANINGS.items():
        print(f"{counts[became]:5}  {became}: {meaning}")
    print(f"{left:5}  leases of the dead left in Redis: recruits have removed the others")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
