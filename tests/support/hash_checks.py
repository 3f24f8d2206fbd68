"""What holds for every namespace of volatile hashes, whatever has happened to it."""

from __future__ import annotations

from workstealing.errors import Aborted
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes


def collect_all(job: HashFieldExpiry, limit: int = 100) -> int:
    """Collect until nothing is left to be found; return how many fields that were."""
    total, idle, aborted = 0, 0, 0
    # On a cluster a slice sees one node, and may have drawn an empty one.
    enough = 60 if any(each.job_client.is_cluster for each in job.structures) else 20
    while idle < enough:
        try:
            handled = job.perform(Slice(limit, 5.0))
        except Aborted:
            # A hash that the server ends by its own time to live is another writer, too.
            aborted += 1
            assert aborted < 100
            continue
        total += handled
        idle = 0 if handled else idle + 1
    return total


def check_index(hashes: VolatileHashes) -> None:
    """Assert that the due index finds every hash no later than its earliest deadline."""
    layout = hashes.layout
    if layout is None or layout.is_native:
        return
    client = hashes.client
    for deadlines in client.keys("*:ttl:*"):
        key = deadlines.split(b":ttl:", 1)[1]
        first = client.zrange(deadlines, 0, 0, withscores=True)
        due = client.zscore(hashes.names.due(layout.shard_of(key_slot(key))), key)
        if first:
            assert due is not None, f"{key!r} has deadlines and is not in the due index"
            assert due <= first[0][1], f"{key!r} is due {due - first[0][1]} ms after its deadline"
