"""The job that samples tracked ids and untracks those whose work is done."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any

from redis.exceptions import OutOfMemoryError

from workstealing.clock import Duration
from workstealing.errors import OutOfTime, Skipped
from workstealing.jobs.shared.settling import Settled, require_layout, settle
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.recruiting.job import Backlog, Job
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.keys import key_slot
from workstealing.structures.access import JobAccess
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.tracked_set import AsyncTrackedSet, TrackedSet
from workstealing.structures.tracked_set.layout import id_text
from workstealing.structures.tracked_set.sets import checked_tracked, draw_tracked, halted, sizes_of
from workstealing.structures.tracked_set.sources.asking import blaming

__all__ = ["UntrackDone"]

_log = logging.getLogger("workstealing.jobs")

SUB_SETS_LOOKED_AT = 32
SAMPLE = 400
HALT_AFTER = 500
"""After so many ids in a row without work the job pauses itself: the table may be a wrong one."""
HALTED = "halted"
WITHOUT_WORK = "tracked ids without work"
# The ids that slices of this process must have asked about before they project a backlog, and the
# number at which earlier ones begin to count less.
_ENOUGH, _MANY = 50, 400


class UntrackDone(Job):
    """Samples ids of a tracked set, asks the source, and untracks those without work.

    Arguments:
        tracked: the set, with a source.
        limit: the most ids of a slice.
        dry_run: count the ids without work, and change nothing.
        name: of the job, by default ``untrack_done.<key>``.
        random: returns a float in [0, 1).

    After 500 ids in a row of which the source knew no work, the job pauses itself in all processes,
    until `TrackedSet.resume`: its slices are SKIPPED, a warning is logged, the slice measures
    "halted", and `workstealing status` says that the job has paused itself.

    WATCH comes before the question, so an id that is tracked meanwhile is not removed: the slice is
    ABORTED. A slice takes three round trips (to find sub-sets with ids, to WATCH one and sample it,
    and to remove ids) and one question to the database.

    Source: Jim Nelson's talk on work stealing at the Internet Archive; two additions are the
    generation and the sub-sets; without them, all removals from a busy set would abort.
    """

    access = JobAccess(("tracked set",))
    unit = "ids"

    def __init__(
        self,
        tracked: TrackedSet | AsyncTrackedSet,
        limit: int = 5,
        *,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.tracked = checked_tracked(tracked)
        default = f"untrack_done.{id_text(tracked.names.key)}"
        self._keep_clean(tracked, limit=limit, name=name, default=default, dry_run=dry_run)
        self._random = random
        self._asked = self._stale = 0.0
        # The ids in a row without work, and whether the others know that it was too many.
        self._in_a_row = 0
        self._is_told = False

    def perform(self, slice: Slice) -> int:
        """Look at up to ``slice.limit`` ids of one sub-set.

        Once this process has asked about 50 ids, its slices tell a projected backlog.

        Returns: how many were untracked; on a dry run, how many would be. Raises: Aborted if
        another writer came first; Skipped if the database cannot be asked now, or while the job
        has paused itself; OutOfTime; LayoutError; connection faults.
        """
        source = self.tracked.require_source()
        with blaming(source):
            getattr(source, "require_ready", lambda: None)()
        require_layout(self.tracked, Budget(slice.remaining()))
        if not self.dry_run:
            self._require_trust(slice)
        sub_set, tracked = self._choose(slice)
        if sub_set is None:
            return 0
        dry_run = bool(self.dry_run)
        done = settle(self.tracked, sub_set, slice, sample=slice.limit, dry_run=dry_run)
        self._project(done, tracked, slice)
        if not dry_run and done.asked:
            self._in_a_row = self._in_a_row + done.asked if done.removed == done.asked else 0
            if self._in_a_row >= HALT_AFTER:
                # If the time is up, or the memory full, the next slice tells, or fails.
                with contextlib.suppress(OutOfTime, OutOfMemoryError):
                    self._halt(slice)
        return done.removed

    def _halt(self, slice: Slice) -> None:
        """Tell all processes that the table may be the wrong one."""
        brake = self.tracked.names.brake
        command = ("SET", brake, self._in_a_row)
        checked(self.tracked.job_client.call_keys((brake,), [command], Budget(slice.remaining())))
        self._is_told = True
        slice.measure(HALTED, 1)
        _log.warning("%s", halted(self.tracked.name))
        ANNOUNCEMENTS.tell("braked", self.name, "its source knew work of none of the last ids")

    def _require_trust(self, slice: Slice) -> None:
        """Raise Skipped while the job has paused itself. One round trip then, else none."""
        if self._in_a_row < HALT_AFTER:
            return
        if not self._is_told:
            self._halt(slice)
        else:
            brake = self.tracked.names.brake
            budget = Budget(slice.remaining())
            (found,) = checked(
                self.tracked.job_client.call_keys((brake,), [("GET", brake)], budget)
            )
            if found is None:
                self._in_a_row, self._is_told = 0, False
                ANNOUNCEMENTS.tell("unbraked", self.name, "")
                return
        raise Skipped(halted(self.tracked.name))

    def _project(self, done: Settled, tracked: float, slice: Slice) -> None:
        """Tell a backlog: the share of ids without work in the latest samples, of all ids."""
        # Threads may lose each other's counts here, which only makes the sample a little smaller.
        keep = _MANY / (_MANY + done.asked) if self._asked >= _MANY else 1.0
        self._asked = self._asked * keep + done.asked
        self._stale = self._stale * keep + done.removed
        if self._asked >= _ENOUGH:
            slice.observe(backlog=round(tracked * min(1.0, self._stale / self._asked)))

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Project the number of tracked ids without work from a sample of 400.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Returns: a projection without an age, which is unknown. Raises: the source's errors;
        LayoutError; connection faults. Three round trips to each node, and one question to the
        database.
        """
        budget = Budget.whole(seconds)
        job_client, names = self.tracked.job_client, self.tracked.names
        total = sum(sizes_of(job_client, names, budget).values())
        drawn = list(map(id_text, draw_tracked(job_client, names, SAMPLE, budget)))
        if not drawn:
            return Backlog(0, 0.0, WITHOUT_WORK)
        source = self.tracked.require_source()
        with blaming(source):
            work = set(source.with_work(list(set(drawn)), budget.timeout))
        stale = sum(each not in work for each in drawn)
        oldest = None if stale else 0.0
        return Backlog(round(total * stale / len(drawn)), oldest, WITHOUT_WORK, exact=False)

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.tracked.job_client.warm_up("tracked_set/", LAYOUT_SCRIPTS)

    def _choose(self, slice: Slice) -> tuple[int | None, float]:
        """Choose a sub-set with ids, a larger one with more chance.

        Returns: the sub-set, None if none was found; and about how many ids all sub-sets have. One
        round trip to one node, for up to 32 sub-sets there.
        """
        job_client, names = self.tracked.job_client, self.tracked.names
        first = int(self._random() * names.sub_sets)
        node = job_client.node_of(names.slot(first))
        # Any arc of the circle of sub-sets will do; neighbours lie on the same node.
        window = [(first + i) % names.sub_sets for i in range(SUB_SETS_LOOKED_AT)]
        window = [
            each for each in dict.fromkeys(window) if job_client.node_of(names.slot(each)) == node
        ]
        commands: list[tuple[Any, ...]] = [("SCARD", names.keys(each)[0]) for each in window]
        if not self.dry_run and job_client.node_of(key_slot(names.brake)) == node:
            commands.append(("GET", names.brake))
        with names.asked():
            sizes = checked(job_client.call(node, commands, Budget(slice.remaining())))
        if len(sizes) > len(window) and sizes.pop() is not None:
            # Another process has said so.
            self._in_a_row, self._is_told = HALT_AFTER, True
            raise Skipped(halted(self.tracked.name))
        total = sum(sizes)
        if not total:
            # As with other sizes, those that were looked at stand for all.
            slice.observe(backlog=0)
            return None, 0.0
        tracked = total * names.sub_sets / len(window)
        point = self._random() * total
        for each, size in zip(window, sizes, strict=True):
            point -= size
            if point < 0:
                return each, tracked
        return window[-1], tracked
