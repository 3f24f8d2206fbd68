"""The job that walks a table and tracks the ids that have work."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from workstealing.errors import Aborted
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import Job
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.scripts import load
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.sources.asking import blaming
from workstealing.structures.tracked_set import AsyncTrackedSet, TrackedSet
from workstealing.structures.tracked_set.drift import ask_sub_sets
from workstealing.structures.tracked_set.layout import id_bytes, id_text
from workstealing.structures.tracked_set.sets import checked_tracked
from workstealing.structures.tracked_set.settling import require_layout

__all__ = ["TrackQueued"]


class TrackQueued(Job):
    """Walks the table behind a tracked set and tracks what has work and is not tracked.

    Arguments: tracked: the set, with a source; limit: the most rows of a slice; name: what the job
    is called, by default ``track_queued.<key>``.

    The walk goes on from a cursor in Redis and starts again at the end, so that the set heals after
    a loss. A slice must be long enough for two questions to the database. Round trips: one for the
    cursor, one to each node to look, one more to each if something is missing, one to move the
    cursor. One question to the database, two if something is missing.

    Source: Jim Nelson's talk on work stealing at the Internet Archive.
    """

    def __init__(
        self,
        tracked: TrackedSet | AsyncTrackedSet,
        limit: int = 50,
        *,
        name: str | None = None,
    ) -> None:
        self.tracked = checked_tracked(tracked)
        self.limit = checked_limit(limit)
        key = id_text(tracked.names.key)
        self.name = f"track_queued.{key}" if name is None else name
        self.dependency: Hashable = tracked.twin.identity

    def perform(self, slice: Slice) -> int:
        """Look at the next ``slice.limit`` rows.

        Returns: how many ids were added. Errors: Aborted if another recruit has moved the cursor,
        or if the application tracked or untracked meanwhile and nothing was added; Skipped if the
        database cannot be asked now; OutOfTime; LayoutError; connection faults.
        """
        names, source = self.tracked.names, self.tracked.require_source()
        with blaming(source):
            getattr(source, "require_ready", lambda: None)()
        require_layout(self.tracked, Budget(slice.remaining()))
        with attempt(self.tracked.twin, names.cursor, slice=slice) as current:
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
            if len(rows) == slice.limit:
                current.commit(("SET", names.cursor, rows[-1][1].encode()))
            elif stored is not None:
                current.commit(("DEL", names.cursor))
            return added

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.tracked.twin.warm_up("tracked_set/", LAYOUT_SCRIPTS)

    def _add(self, members: list[bytes], slice: Slice) -> tuple[int, bool]:
        """Add those that are missing; return how many, and whether all were dealt with.

        The rows' sub-sets lie in many slots, which no WATCH can join. So the generations are read
        before the deciding question, and a script adds only where they are still the same.
        """
        twin, names = self.tracked.twin, self.tracked.names
        groups = names.grouped(dict.fromkeys(members))
        looks: dict[int, tuple[Any, ...]] = {
            each: ("SMISMEMBER", names.keys(each)[0], *group) for each, group in groups.items()
        }
        present = ask_sub_sets(twin, names, looks, slice)
        missing: dict[int, list[bytes]] = {}
        for each, group in groups.items():
            gone = [m for m, here in zip(group, present[each], strict=True) if not here]
            if gone:
                missing[each] = gone
        if not missing:
            return 0, True
        states = ask_sub_sets(
            twin,
            names,
            {each: ("HMGET", names.keys(each)[1], "mark", "generation") for each in missing},
            slice,
        )
        asked = [id_text(member) for group in missing.values() for member in group]
        source = self.tracked.require_source()
        with blaming(source):
            work = set(source.with_work(asked, slice.remaining()))
        body = load("tracked_set/found").body
        adds: dict[int, tuple[Any, ...]] = {}
        for each, group in missing.items():
            mark, generation = states[each]
            names.check_mark(each, mark)
            still = [member for member in group if id_text(member) in work]
            if still:
                keys = names.keys(each)
                adds[each] = ("EVAL", body, 2, *keys, names.mark, generation or b"", *still)
        replies = ask_sub_sets(twin, names, adds, slice).values()
        return sum(count for count in replies if count > 0), all(count >= 0 for count in replies)
