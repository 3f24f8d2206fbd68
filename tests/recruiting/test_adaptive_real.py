"""Tenfold garbage on a real server, removed by real processes whose rates are adaptive."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from support.patience import GUARD_SECONDS
from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

TESTS = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.real, pytest.mark.slow]

LAG = 4.0
PROCESSES = 3
CALM_SECONDS, BUSY_SECONDS, KEPT_SECONDS = 8, 16, 4
FIELDS, HASHES_A_SECOND = 5, 20

PROCESS = textwrap.dedent(
    """
    import json, signal, sys, time
    sys.path.insert(0, sys.argv[3])
    import redis
    from support.patience import PATIENT_SECONDS
    from workstealing import Adaptive, Recruiter
    from workstealing.clock import SYSTEM_CLOCK
    from workstealing.jobs import HashFieldExpiry
    from workstealing.store.budget import Budget
    from workstealing.structures import VolatileHashes

    Budget.__init__.__defaults__ = (None, PATIENT_SECONDS, SYSTEM_CLOCK)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    port, lag = int(sys.argv[1]), float(sys.argv[2])
    hashes = VolatileHashes(redis.Redis(port=port), namespace="tenfold", backend="emulated")
    job = HashFieldExpiry(hashes, limit=5)
    recruiter = Recruiter(seconds=0.05)
    recruiter.install(job, rate=Adaptive(floor=0.0005, ceiling=0.4, lag=lag))
    while not told:
        recruiter.enlist()
        time.sleep(0.0025)
    print(json.dumps(recruiter.stats()["jobs"][job.name]))
    """
)


def test_tenfold_garbage_is_back_under_the_lag_target(redis7: RedisServer) -> None:
    """Sooner or later, as the machine allows: rates that stayed would lag more and more."""
    hashes: VolatileHashes = VolatileHashes(
        redis7.client(), namespace="tenfold", backend="emulated"
    )
    looking = HashFieldExpiry(hashes)
    command = [sys.executable, "-c", PROCESS, str(redis7.port), str(LAG), str(TESTS)]
    processes = [spawn(command, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    written = 0
    try:
        start = kept_from = time.monotonic()
        while True:
            now = time.monotonic() - start
            # What should have been written by now, calmly at first and then ten times as much.
            busy = max(0.0, now - CALM_SECONDS)
            due = round(HASHES_A_SECOND * (min(now, CALM_SECONDS) + 10 * busy))
            with hashes.pipeline() as pipe:
                for number in range(written, due):
                    pipe.hsetex(f"h{number}", mapping=dict.fromkeys("abcde", 1), px=300)
                pipe.execute()
            written = due
            age = looking.backlog().oldest_seconds
            # A busy server may not have said it.
            if age is None or age >= 2 * LAG:
                kept_from = time.monotonic()
            # With the calm time's rates it would lag by nine tenths of the busy time at least.
            if busy > BUSY_SECONDS and time.monotonic() - kept_from > KEPT_SECONDS:
                break
            assert busy < GUARD_SECONDS, f"the oldest is overdue by {age} s"
            time.sleep(0.1)
        for process in processes:
            process.terminate()
        answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            end(process)
    assert 0.9 * BUSY_SECONDS > 2 * LAG
    # The calm time's rates would have removed less than a quarter.
    assert sum(answer["items"] for answer in answers) > 0.5 * FIELDS * written
    for answer in answers:
        assert answer["worked"] > 0
        assert answer["adaptive"] is True
        assert answer["failed"] <= 0.05 * answer["recruited"]
