"""What web workers and Spark tasks share: where things are, and who does which maintenance.

Every process makes these for itself, from its own environment: nothing that holds a connection or a
password travels with a task.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from archive.store import Store
from workstealing import Recruiter, connect
from workstealing.jobs import HashFieldExpiry, IckReaper, KeyExpiry, TrackQueued, UntrackDone
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.statsd import StatsDHooks
from workstealing.recruiting.slice import Slice
from workstealing.structures import DurableKeys, Ick, TrackedSet, VolatileHashes
from workstealing.structures.tracked_set.sources import SqlSource

DATABASE_VARIABLE = "ARCHIVE_DATABASE"
STATSD_VARIABLE = "ARCHIVE_STATSD_PORT"

TASKS = sa.Table(
    "tasks",
    sa.MetaData(),
    sa.Column("task", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
# A reservation that is older than this belongs to a driver that has died.
STALE_SECONDS = 3.0
# A page that has been queued for longer than this may have been forgotten.
FORGOTTEN_SECONDS = 2.0


def page_key(page: str) -> str:
    """Return the key of a page's cached parts, a volatile hash."""
    return f"page:{page}"


def lock_name(page: str) -> str:
    """Return the durable key that is held by the worker that captures a page."""
    return f"capture:{page}"


@dataclass(frozen=True)
class Parts:
    """What a process of the archive works with.

    Fields: client: of Redis; store: the database; pages: the cache, one hash for each page, whose
    fields expire one by one; dirty: the pages to index; queued: those with a task, for the answer
    "is it being indexed?" by one command; locks: held by the worker that captures a page.
    """

    client: Any
    store: Store
    pages: VolatileHashes
    dirty: Ick
    queued: TrackedSet
    locks: DurableKeys


@cache
def parts() -> Parts:
    """Return this process's parts."""
    client, path = connect(), os.environ[DATABASE_VARIABLE]
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    source = SqlSource(engine, TASKS, "id", cursor="task", where={"state": "queued"})
    return Parts(
        client,
        Store(path),
        # Emulated: a server that expires fields by itself would leave nothing to collect.
        VolatileHashes(client, namespace="archive", backend="emulated"),
        Ick(client, "archive:dirty"),
        # Few sub-sets, because the archive is small: a slice looks at the ids of one.
        TrackedSet(client, "archive:queued", source, sub_sets=8),
        DurableKeys(client, namespace="archive-locks"),
    )


def web_recruiter() -> Recruiter:
    """Return the recruiter of a web worker, whose cache hits enlist."""
    return make_recruiter("web", share=0.2, seconds=0.1)


def spark_recruiter() -> Recruiter:
    """Return the recruiter of a Python worker of Spark's, whose finished partitions enlist."""
    return make_recruiter("spark", share=1.0, seconds=0.25)


def make_recruiter(side: str, share: float, seconds: float) -> Recruiter:
    """Return a recruiter with all the archive's maintenance; both sides do the same.

    Arguments:
        side: by which its figures are told apart.
        share: of the enlisted that are recruited, at most 1. An example has a few hundred fast
            exits a second; a site with thousands would take a hundredth of it.
        seconds: the length of a slice. In Spark nobody waits for it.
    """
    mine = parts()
    recruiter = with_jobs(Recruiter(seconds=seconds), mine, share)
    # Both only count in the caller's time. A thread sends: to StatsD, and to the fleet's ledger,
    # which the dashboard shows.
    recruiter.add_hook(StatsDHooks(port=int(os.environ[STATSD_VARIABLE]), prefix=f"archive.{side}"))
    recruiter.add_hook(Ledger(mine.client))
    return recruiter


def with_jobs(recruiter: Recruiter, mine: Parts, share: float) -> Recruiter:
    """Install all the archive's maintenance on a recruiter, and return it.

    Arguments:
        share: as of `make_recruiter`.
    """
    recruiter.install(HashFieldExpiry(mine.pages, limit=50), rate=0.3 * share)
    recruiter.install(IckReaper(mine.dirty, lease=STALE_SECONDS, limit=50), rate=0.1 * share)
    recruiter.install(KeyExpiry(mine.locks), rate=0.1 * share)
    # A question to the database takes longer than one to Redis: a longer slice.
    recruiter.install(TrackQueued(mine.queued), rate=0.1 * share, seconds=0.25)
    recruiter.install(UntrackDone(mine.queued, limit=25), rate=0.25 * share, seconds=0.25)

    @recruiter.job(rate=0.1 * share, limit=50, seconds=0.25)
    def mark_forgotten(slice: Slice) -> int:
        """Mark pages that were captured by a worker that died before it could mark them.

        A page that is marked already stays as it is, for an Ick keeps the lower score.
        """
        pages = mine.store.overdue(FORGOTTEN_SECONDS, slice.limit)
        return mine.dirty.add(pages).new if pages else 0

    return recruiter
