"""Settling brings ids of one sub-set in step with the table, while the application writes.

The table is asked between WATCH and EXEC. Or it was asked before, and a script compares the
generation that was read before the question. In both cases, an id that the application has tracked
or untracked since then stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import OutOfMemoryError

from workstealing.errors import Aborted
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.scripts import load
from workstealing.structures.tracked_set.layout import TrackedSetNames, id_text
from workstealing.structures.tracked_set.sets import AsyncTrackedSet, TrackedSet
from workstealing.structures.tracked_set.sources.asking import blaming


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of a step.

    Fields: added: how many ids; removed: how many; asked: about how many the source was asked.
    """

    added: int = 0
    removed: int = 0
    asked: int = 0


def settle(
    tracked: TrackedSet | AsyncTrackedSet,
    sub_set: int,
    slice: Slice,
    *,
    sample: int = 0,
    dry_run: bool = False,
    stale: Sequence[bytes] = (),
    missing: Sequence[bytes] = (),
) -> Settled:
    """Ask the source about ids of a sub-set in one attempt; add or remove them accordingly.

    Arguments:
        sample: the number of tracked ids to draw at random, instead of `stale`.
        stale: tracked ids, removed if they have no work.
        missing: ids that may not be tracked, added if they have work.
        dry_run: change nothing, only count.

    Raises: Aborted if another writer came first; the source's errors; LayoutError; connection
    faults. Two round trips and one question.
    """
    names = tracked.names
    ids, state = names.keys(sub_set)
    done: list[bytes] = []
    asked: list[str] = []
    generation: Any = None
    try:
        # WATCH comes before the question, and every track() changes the state, even if it adds no
        # id. So an id whose work was committed after the question is not removed.
        with attempt(tracked.job_client, ids, state, slice=slice) as current:
            reads: list[tuple[Any, ...]] = [("HMGET", state, "mark", "generation")]
            if sample:
                reads.append(("SRANDMEMBER", ids, sample))
            with names.asked():
                (mark, generation), *drawn = current.read(*reads)
            names.check_mark(sub_set, mark)
            if sample:
                stale = drawn[0]
            asked = [id_text(each) for each in (*stale, *missing)]
            if not asked:
                return Settled()
            source = tracked.require_source()
            with blaming(source):
                work = set(source.with_work(asked, slice.remaining()))
            done = [each for each in stale if id_text(each) not in work]
            found = [each for each in missing if id_text(each) in work]
            commands: list[tuple[Any, ...]] = []
            if done:
                commands.append(("SREM", ids, *done))
            if found:
                commands.append(("SADD", ids, *found))
                if mark is None:
                    commands.append(("HSET", state, "mark", names.mark))
            if not commands or dry_run:
                return Settled(len(found), len(done), len(asked))
            replies = current.commit(*commands)
            removed = int(replies[0]) if done else 0
            added = int(replies[len(done) > 0]) if found else 0
            return Settled(added, removed, len(asked))
    except OutOfMemoryError:
        # A full server runs deletes inside a script, though it refuses the transaction (law 3).
        settled = settle_unchanged(tracked, sub_set, generation, slice, stale=done)
        return replace(settled, asked=len(asked))


def settle_unchanged(
    tracked: TrackedSet | AsyncTrackedSet,
    sub_set: int,
    generation: bytes | None,
    slice: Slice,
    *,
    stale: Sequence[bytes] = (),
    missing: Sequence[bytes] = (),
    timeout: float | None = None,
) -> Settled:
    """Remove and add ids of a sub-set unless its generation has changed since the table was read.

    Arguments:
        generation: as it was read before the table.
        stale: ids to remove.
        missing: ids to add.
        timeout: the longest single wait in seconds; None: as for every job.

    Raises: Aborted if the application has tracked or untracked ids of the sub-set, and nothing was
    changed; LayoutError; connection faults. One round trip.
    """
    names = tracked.names
    keys = names.keys(sub_set)
    commands = [
        ("EVAL", load(f"tracked_set/{script}").body, 2, *keys, names.mark, generation or b"", *ids)
        for script, ids in (("untrack_done", stale), ("track_queued", missing))
        if ids
    ]
    if not commands:
        return Settled()
    remaining = slice.remaining()
    budget = Budget(remaining) if timeout is None else Budget(remaining, timeout)
    counts = [int(count) for count in checked(tracked.job_client.call_keys(keys, commands, budget))]
    if all(count < 0 for count in counts):
        raise Aborted("the application has tracked or untracked ids meanwhile")
    removed = max(0, counts[0]) if stale else 0
    return Settled(max(0, counts[-1]) if missing else 0, removed)


def require_layout(tracked: TrackedSet | AsyncTrackedSet, budget: Budget) -> None:
    """Check the layout by a job's own connection, or write it down; once in a process."""
    names: TrackedSetNames = tracked.names
    if not tracked.is_open:
        (reply,) = checked(tracked.job_client.call_keys((names.layout,), [names.opening()], budget))
        names.check(reply)
        tracked.is_open = True
    names.require_writable()
