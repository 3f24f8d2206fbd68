"""Which items have work queued? A set in Redis, kept in step with a table by page views."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

import sqlalchemy as sa

from workstealing import Recruiter, connect
from workstealing.jobs import TrackQueued, UntrackDone
from workstealing.recruiting.slice import OUTCOMES, spoken
from workstealing.structures import TrackedSet
from workstealing.structures.tracked_set.sources import SqlSource

BATCH = 500
TASKS = sa.Table(
    "tasks",
    sa.MetaData(),
    sa.Column("task_id", sa.Integer, primary_key=True),
    sa.Column("identifier", sa.Text, nullable=False, index=True),
    sa.Column("state", sa.Text, nullable=False),
)


def fill(engine: sa.Engine, items: int) -> None:
    """Make the table; every tenth item has a task queued, the others had one."""
    TASKS.metadata.create_all(engine)
    rows = [
        {"identifier": f"item{i}", "state": "done" if i % 10 else "queued"} for i in range(items)
    ]
    with engine.begin() as connection:
        connection.execute(TASKS.insert(), rows)


class Site:
    """Pages that say whether their item has work queued, and let their worker enlist."""

    def __init__(self, tracked: TrackedSet, items: int) -> None:
        self.tracked = tracked
        self.items = items
        self.recruiter = Recruiter()
        # A question to the database takes longer than one to Redis: a longer slice.
        self.recruiter.install(TrackQueued(tracked), rate=0.05, seconds=0.25)
        self.recruiter.install(UntrackDone(tracked), rate=0.10, seconds=0.25)

    def page(self, item: str) -> str:
        """Answer a page view."""
        text = f"{item} is being worked on" if self.tracked.is_tracked(item) else item
        self.recruiter.enlist()
        return text

    def heal(self, most: int = 200_000) -> None:
        """Answer page views of random items until set and table agree; say how many it took."""
        for count in range(0, most, BATCH):
            drift = self.tracked.drift(500)
            if not drift.missing.found and not drift.stale.found:
                self.report(f"after {count} page views")
                return
            for _ in range(BATCH):
                self.page(f"item{random.randrange(self.items)}")
        self.report(f"not healed after {most} page views")

    def report(self, when: str) -> None:
        """Print how far set and table are apart."""
        drift = self.tracked.drift(1000)
        print(
            f"{when:<34} {self.tracked.count():>5} tracked,"
            f" {drift.missing.share:>4.0%} of the queued missing"
            f" (up to {drift.missing.high:.0%}),"
            f" {drift.stale.share:>4.0%} of the tracked done (up to {drift.stale.high:.0%})"
        )


def main() -> None:
    """Queue, finish and lose; look at the set each time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5000)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        engine = sa.create_engine(f"sqlite:///{Path(folder) / 'tasks.sqlite'}")
        fill(engine, options.items)
        source = SqlSource(engine, TASKS, "identifier", cursor="task_id", where={"state": "queued"})
        source.warm_up()
        client = connect(os.environ.get("REDIS_URL", "embedded://"))
        # A small site: with fewer sub-sets each slice finds more ids in the one that it looks at.
        tracked = TrackedSet(client, "example:queued", source, sub_sets=16)
        site = Site(tracked, options.items)

        site.report("at first")
        site.heal()

        with engine.begin() as connection:
            half = TASKS.c.task_id > options.items // 2
            connection.execute(TASKS.update().where(half).values(state="done"))
        site.report("half of the tasks are done")
        site.heal()

        for sub_set in range(tracked.names.sub_sets):
            client.delete(*tracked.names.keys(sub_set))
        site.report("the set is lost")
        site.heal()

        for name, figures in site.recruiter.stats()["jobs"].items():
            print(name, *(f"{figures[kind]} {spoken(kind)}" for kind in OUTCOMES), sep=", ")
        source.close()
        engine.dispose()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
