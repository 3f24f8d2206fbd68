"""What the tests of sweeps let executors make: jobs and tracked sets on a server, by its port."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from support.adoptions import KINDS, hashes_on
from workstealing.clock import SYSTEM_CLOCK
from workstealing.jobs import (
    HashFieldExpiry,
    MigrateToEmulated,
    TagSetLeftovers,
)
from workstealing.jobs.shared import backend_moves
from workstealing.recruiting import Slice
from workstealing.recruiting.job import FunctionJob, Job
from workstealing.store.budget import Budget
from workstealing.structures import TrackedSet, VolatileHashes

NAMESPACE = "swept"


def client_of(port: int, *, is_cluster: bool) -> Any:
    """Return a client; the jobs' own waits become long enough for a busy machine."""
    Budget.__init__.__defaults__ = (None, 5.0, SYSTEM_CLOCK)
    kind = redis.RedisCluster if is_cluster else redis.Redis
    return kind(host="127.0.0.1", port=port)


def tag_sets(server: Any) -> Callable[[], Job]:
    """Return a factory of a TagSetLeftovers."""
    port, is_cluster = server.port, server.is_cluster

    def make() -> Job:
        return TagSetLeftovers(client_of(port, is_cluster=is_cluster), dry_run=False)

    return make


def field_expiry(server: Any, ahead_ms: int) -> Callable[[], Job]:
    """Return a factory of a HashFieldExpiry whose clock is ahead."""
    port, is_cluster = server.port, server.is_cluster

    def make() -> Job:
        client = client_of(port, is_cluster=is_cluster)
        hashes: VolatileHashes = VolatileHashes(
            client, NAMESPACE, backend="emulated", clock_shift_ms=ahead_ms
        )
        return HashFieldExpiry(hashes)

    return make


SLICES = "slices"
"""A counter of the slices of `endless`."""


def endless(port: int) -> Callable[[], Job]:
    """Return a factory of a job that always finds something, and counts its slices."""

    def make() -> Job:
        ours = client_of(port, is_cluster=False)

        def find(_: Slice) -> int:
            time.sleep(0.01)
            ours.incr(SLICES)
            return 1

        return FunctionJob(find, name="endless")

    return make


ATTEMPTS = "attempts"
"""A set of the numbers of attempts, as `part:attempt`, that `straggling` has seen."""


def straggling(server: Any, ahead_ms: int) -> Callable[[], Job]:
    """Return a factory of the same job, of which a first attempt at the first part never ends.

    It goes on removing some fields while it hangs, and Spark's speculation has to start a second
    attempt.
    """
    port, make = server.port, field_expiry(server, ahead_ms)

    def straggler() -> Job:
        job = make()
        for_part = job.for_part  # type: ignore[attr-defined]

        def noted(part: Any) -> Any:
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None
            working = for_part(part)
            notes = client_of(port, is_cluster=False)
            notes.sadd(ATTEMPTS, f"{task.partitionId()}:{task.attemptNumber()}")
            give_up = time.monotonic() + 120.0
            # Speculation begins when others have ended: not before the first attempt is at work.
            while not notes.sismember(ATTEMPTS, "0:0") and time.monotonic() < give_up:
                time.sleep(0.1)
            if (task.partitionId(), task.attemptNumber()) == (0, 0):
                perform = working.perform

                def slowly(slice: Any) -> Any:
                    time.sleep(0.2)
                    perform(Slice(1, 5.0))
                    return slice and 1

                working.perform = slowly
            return working

        job.for_part = noted  # type: ignore[attr-defined]
        return job

    return straggler


def adoption(server: Any, number: int) -> Callable[[], Job]:
    """Return a factory of an AdoptHashes of the kind of that number."""
    port, is_cluster = server.port, server.is_cluster

    def make() -> Job:
        return KINDS[number].job(client_of(port, is_cluster=is_cluster))

    return make


def way_back(server: Any, wait: float = 6.0) -> Callable[[], Job]:
    """Return a factory of a MigrateToEmulated that waits for so long, instead of 15 seconds."""
    port, is_cluster = server.port, server.is_cluster

    def make() -> Job:
        backend_moves.GRACE_SECONDS = wait
        return MigrateToEmulated(hashes_on(client_of(port, is_cluster=is_cluster)), "hash:*")

    return make


def tracked_set(
    server: Any, key: str, make_source: Callable[[], Any] | None = None, sub_sets: int = 16
) -> Callable[[], TrackedSet]:
    """Return a factory of a tracked set, with the source that a function makes, if one is given."""
    port, is_cluster = server.port, server.is_cluster

    def make() -> TrackedSet:
        client = client_of(port, is_cluster=is_cluster)
        source = make_source() if make_source is not None else None
        tracked: TrackedSet = TrackedSet(client, key, source, sub_sets=sub_sets)
        return tracked

    return make


def idle_job() -> Job:
    """Return a plain job that finds nothing."""
    return FunctionJob(lambda _: 0, name="idle")


def no_job() -> str:
    """Return what is no job."""
    return "nothing"
