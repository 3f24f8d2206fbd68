"""Jobs of rules in tests: served until they find nothing."""

from __future__ import annotations

from typing import Any

from workstealing.errors import Aborted
from workstealing.jobs.leftovers import Leftovers
from workstealing.recruiting import Slice


def to_the_end(job: Leftovers, limit: int = 10_000, slices: int = 60) -> int:
    """Do slices until laps find nothing; return how many items were removed."""
    total = 0
    for _ in range(slices):
        total += laps(job, limit, 4)
        if not job.backlog(60.0).count:
            return total
    raise AssertionError(f"after {slices} rounds there is still {job.backlog(60.0)}")


def laps(job: Leftovers, limit: int = 10_000, slices: int = 12) -> int:
    """Do some slices on each node, as if no walk ever rested; return how many items were removed.

    An aborted slice counts as one that removed nothing.
    """
    total = 0
    for _ in range(slices * len(job.rules) * len(job.job_client.nodes())):
        try:
            total += job.perform(Slice(limit, 10.0))
        except Aborted:
            continue
    job.restart()
    return total


def age_sightings(client: Any, seconds: int = 7_200) -> None:
    """Let all sightings of items be older by so many seconds, and live as long as before."""
    for each in list(client.scan_iter("*:seen:*", count=1000)):
        since, _, fingerprint = client.get(each).partition(b":")
        client.set(each, b"%d:%b" % (int(since) - seconds, fingerprint), keepttl=True)
