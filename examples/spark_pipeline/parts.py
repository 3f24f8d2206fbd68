"""What application, tasks and page share: where things are, and what they are called.

Every process makes these for itself, from its own environment: nothing that holds a connection or a
password travels with a task.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
import sqlalchemy as sa

from workstealing import Recruiter, connect
from workstealing.jobs import HashFieldExpiry, IckReaper, TrackQueued, UntrackDone
from workstealing.structures import ShardedIck, TrackedSet, VolatileHashes
from workstealing.structures.tracked_set.sources import SqlSource

DATABASE_VARIABLE = "PIPELINE_DATABASE"
REDIS_VARIABLE = "WORKSTEALING_REDIS_URL"

DIRTY = "pipeline:dirty"
SUMMARIES = "pipeline"
BEHIND = "pipeline:behind"
ICK_SHARDS = 4
# Few, because the example is small: a slice looks at the ids of one.
SUB_SETS = 8
# Longer than a batch takes, even one whose executor has died.
STALE_SECONDS = 120.0

# A view: the documents whose search row is missing or old.
BEHIND_VIEW = sa.Table(
    "behind", sa.MetaData(), sa.Column("id", sa.Text, primary_key=True, nullable=False)
)


def summary_key(document: str) -> str:
    """Return the key of a document's summary, a volatile hash."""
    return f"summary:{document}"


def database_url() -> str:
    """Return the address of PostgreSQL, out of this process's environment."""
    return os.environ[DATABASE_VARIABLE]


def open_database(name: str = "pipeline", **options: Any) -> psycopg.Connection[Any]:
    """Open a connection of psycopg's; the name is what PostgreSQL shows of it."""
    return psycopg.connect(database_url(), application_name=name, **options)


@dataclass(frozen=True)
class Parts:
    """The structures in Redis.

    Fields: dirty: the ids of documents to index; summaries: one hash for each document, whose
    fields expire one by one; behind: the ids of documents whose search row is behind, for the page.
    """

    dirty: ShardedIck
    summaries: VolatileHashes
    behind: TrackedSet


@cache
def parts() -> Parts:
    """Return this process's structures."""
    client = connect()
    engine = sa.create_engine(database_url().replace("postgresql://", "postgresql+psycopg://"))
    return Parts(
        ShardedIck(client, DIRTY, ICK_SHARDS),
        # Emulated: a server that expires fields by itself would leave nothing to collect.
        VolatileHashes(client, SUMMARIES, backend="emulated"),
        TrackedSet(client, BEHIND, SqlSource(engine, BEHIND_VIEW), sub_sets=SUB_SETS),
    )


def make_recruiter() -> Recruiter:
    """Return the recruiter of a Python worker of Spark's.

    The example runs a few tasks a second, a cluster thousands: so the rates are a hundred times
    what a site would choose, and the slices larger.
    """
    mine = parts()
    recruiter = Recruiter(seconds=0.25)
    recruiter.install(HashFieldExpiry(mine.summaries, limit=200), rate=0.45)
    recruiter.install(IckReaper(mine.dirty, lease=STALE_SECONDS, limit=50), rate=0.10)
    recruiter.install(TrackQueued(mine.behind, limit=200), rate=0.10)
    recruiter.install(UntrackDone(mine.behind, limit=100), rate=0.25)
    return recruiter
