"""The job that walks a table and tracks the ids that have work."""

from __future__ import annotations

from typing import Any

from workstealing.clock import Duration
from workstealing.errors import Aborted, OutOfTime
from workstealing.jobs.shared.settling import require_layout
from workstealing.recruiting.job import Backlog, Job
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.scripts import load
from workstealing.structures.access import JobAccess
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.stored import holding_ours
from workstealing.structures.tracked_set import AsyncTrackedSet, TrackedSet
from workstealing.structures.tracked_set.layout import id_bytes, id_text
from workstealing.structures.tracked_set.sets import checked_tracked
from workstealing.structures.tracked_set.sources.asking import blaming
from workstealing.structures.tracked_set.sub_sets import ask_sub_sets

__all__ = ["TrackQueued"]

LOOKED_AT = 1000
"""The number of rows that a backlog looks at."""


class TrackQueued(Job):
    """Walks the table behind a tracked set and tracks the ids that have work and are not tracked.

    Arguments:
        tracked: the set, with a source.
        limit: the most rows of a slice.
        dry_run: count the missing ids, and change nothing, not even the cursor.
        name: of the job, by default ``track_queued.<key>``.

    A slice goes on from a cursor in Redis, and the walk begins again at the table's end, so that
    the set recovers after a loss. A slice must be long enough for two questions to the database. A
    slice takes one round trip for the cursor, one to each node to look, two more to each if ids are
    missing, and one to move the cursor. A slice asks the database once, and twice if ids are
    missing.

    Source: Jim Nelson's talk on work stealing at the Internet Archive.
    """

    access = JobAccess(("tracked set",))
    unit = "ids"

    def __init__(
        self,
        tracked: TrackedSet | AsyncTrackedSet,
        limit: int = 50,
        *,
        dry_run: bool = False,
        name: str | None = None,
    ) -> None:
        self.tracked = checked_tracked(tracked)
        default = f"track_queued.{id_text(tracked.names.key)}"
        self._keep_clean(tracked, limit=limit, name=name, default=default, dry_run=dry_run)

    def perform(self, slice: Slice) -> int:
        """Look at the next ``slice.limit`` rows.

        Returns: how many ids were added; on a dry run, how many would be. Raises: Aborted if
        nothing was added because another recruit has moved the cursor, or the application tracked
        or untracked meanwhile; Skipped if the database cannot be asked now; OutOfTime; LayoutError;
        connection faults.
        """
        names, source = self.tracked.names, self.tracked.require_source()
        with blaming(source):
            getattr(source, "require_ready", lambda: None)()
        require_layout(self.tracked, Budget(slice.remaining()))
        with attempt(self.tracked.job_client, names.cursor, slice=slice) as current:
            with holding_ours(names.cursor):
                (stored,) = current.read(("GET", names.cursor))
            cursor = id_text(stored or b"")
            with blaming(source):
                rows = source.rows_after(cursor, slice.limit, slice.remaining())
            added, is_complete = self._add([id_bytes(each) for each, _ in rows], slice)
            if not is_complete:
                # The cursor stays: the next recruit looks at these rows again.
                if added:
                    return added
                raise Aborted("the application tracked or untracked ids of the same sub-sets")
            if self.dry_run:
                # The cursor stays: only a slice that adds moves it.
                return added
            try:
                if len(rows) == slice.limit:
                    current.commit(("SET", names.cursor, rows[-1][1].encode()))
                elif stored is not None:
                    current.commit(("DEL", names.cursor))
            except (Aborted, OutOfTime):
                # The scripts have added ids before this attempt, and these stay.
                if not added:
                    raise
            return added

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the ids that are not tracked among the table's first 1,000 rows with work.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Returns: a lower bound if the table has more rows; their age is unknown. Raises: the
        source's errors; LayoutError; connection faults. One question to the database, and one round
        trip to each node.
        """
        budget = Budget.whole(seconds)
        source = self.tracked.require_source()
        with blaming(source):
            rows = source.rows_after("", LOOKED_AT, budget.timeout)
        members = dict.fromkeys(id_bytes(each) for each, _ in rows)
        missing = self._missing(self.tracked.names.grouped(members), budget)
        count = sum(map(len, missing.values()))
        is_all = len(rows) < LOOKED_AT
        return Backlog(count, None if count else 0.0, "ids to track", exact=is_all)

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.tracked.job_client.warm_up("tracked_set/", LAYOUT_SCRIPTS)

    def _add(self, members: list[bytes], slice: Slice) -> tuple[int, bool]:
        """Add the missing ids; return how many, and whether all were dealt with.

        The rows' sub-sets lie in many slots, and no WATCH covers several slots. So the generations
        are read before the deciding question, and a script adds ids only if the generation is still
        the same.
        """
        job_client, names = self.tracked.job_client, self.tracked.names
        budget = Budget(slice.remaining())
        groups = names.grouped(dict.fromkeys(members))
        missing = self._missing(groups, budget)
        # This page alone counts: the number of rows after it is unknown.
        slice.observe(backlog=sum(map(len, missing.values())))
        if not missing:
            return 0, True
        states = ask_sub_sets(
            job_client,
            names,
            {each: ("HMGET", names.keys(each)[1], "mark", "generation") for each in missing},
            budget,
        )
        asked = [id_text(member) for group in missing.values() for member in group]
        source = self.tracked.require_source()
        with blaming(source):
            work = set(source.with_work(asked, slice.remaining()))
        body = load("tracked_set/track_queued").body
        adds: dict[int, tuple[Any, ...]] = {}
        found = 0
        for each, group in missing.items():
            mark, generation = states[each]
            names.check_mark(each, mark)
            still = [member for member in group if id_text(member) in work]
            found += len(still)
            if still:
                keys = names.keys(each)
                adds[each] = ("EVAL", body, 2, *keys, names.mark, generation or b"", *still)
        if self.dry_run:
            return found, True
        replies = ask_sub_sets(job_client, names, adds, budget).values()
        return sum(count for count in replies if count > 0), all(count >= 0 for count in replies)

    def _missing(self, groups: dict[int, list[bytes]], budget: Budget) -> dict[int, list[bytes]]:
        """Return the ids that are not tracked, by sub-set."""
        names = self.tracked.names
        looks = {
            each: ("SMISMEMBER", names.keys(each)[0], *group) for each, group in groups.items()
        }
        present = ask_sub_sets(self.tracked.job_client, names, looks, budget)
        missing = {
            each: [m for m, here in zip(group, present[each], strict=True) if not here]
            for each, group in groups.items()
        }
        return {each: group for each, group in missing.items() if group}
