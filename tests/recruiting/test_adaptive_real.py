"""Tenfold garbage on a real server, removed by real processes whose rates are adaptive."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time

import pytest

from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

pytestmark = [pytest.mark.real, pytest.mark.slow]

LAG = 4.0
PROCESSES = 3
CALM_SECONDS, BUSY_SECONDS = 8, 36
FIELDS, HASHES_A_SECOND = 5, 20

PROCESS = textwrap.dedent(
    """
    import json, sys, time
    import redis
    from workstealing import Adaptive, Recruiter
    from workstealing.jobs import HashFieldExpiry
    from workstealing.structures import VolatileHashes

    port, lag, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    hashes = VolatileHashes(redis.Redis(port=port), namespace="tenfold", backend="emulated")
    job = HashFieldExpiry(hashes, limit=5)
    recruiter = Recruiter(seconds=0.05)
    recruiter.install(job, rate=Adaptive(floor=0.0005, ceiling=0.4, lag=lag))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        recruiter.enlist()
        time.sleep(0.0025)
    print(json.dumps(recruiter.stats()["jobs"][job.name]))
    """
)


def test_tenfold_garbage_is_back_under_the_lag_target(redis7: RedisServer) -> None:
    hashes: VolatileHashes = VolatileHashes(
        redis7.client(), namespace="tenfold", backend="emulated"
    )
    looking = HashFieldExpiry(hashes)
    seconds = CALM_SECONDS + BUSY_SECONDS
    command = [sys.executable, "-c", PROCESS, str(redis7.port), str(LAG), str(seconds + 2)]
    processes = [spawn(command, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    ages: list[tuple[float, float]] = []
    written = 0
    try:
        start = time.monotonic()
        while (now := time.monotonic() - start) < seconds:
            # What should have been written by now, calmly at first and then ten times as much.
            busy = max(0.0, now - CALM_SECONDS)
            due = round(HASHES_A_SECOND * (min(now, CALM_SECONDS) + 10 * busy))
            with hashes.pipeline() as pipe:
                for number in range(written, due):
                    pipe.hsetex(f"h{number}", mapping=dict.fromkeys("abcde", 1), px=300)
                pipe.execute()
            written = due
            ages.append((now, looking.backlog().oldest_seconds))
            time.sleep(0.1)
        answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            end(process)
    late = sorted(age for now, age in ages if now > seconds - 8)
    # Generous: the cores may be busy with something else. Rates that stayed would lag by the whole
    # busy time.
    assert late[len(late) // 2] < 2 * LAG
    assert late[-1] < 4 * LAG
    assert sum(answer["items"] for answer in answers) > 0.8 * FIELDS * written
    for answer in answers:
        assert answer["worked"] > 0
        assert answer["adaptive"] is True
        assert answer["failed"] <= 0.05 * answer["recruited"]
