"""The tasks of a reconciliation: each compares whole sub-sets and settles their differences.

A step that meets another writer is made again, in halves, if the tracked set has a source, because
it then asks anew. Without a source the driver begins anew: `reconciling` says why.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from workstealing.errors import Aborted, is_abort
from workstealing.jobs.shared.settling import Settled, settle, settle_unchanged
from workstealing.recruiting.slice import Slice
from workstealing.spark.making import Recipe
from workstealing.structures.tracked_set import TrackedSet
from workstealing.structures.tracked_set.sub_sets import scan

if TYPE_CHECKING:
    import pyarrow as pa

IDS_A_STEP = 500
IDS_OF_A_SAMPLE = 10
PATIENCE_SECONDS = 5.0
COUNTS = ("tracked", "in_table", "added", "removed", "left", "failed", "busy_ids")
SAMPLES = ("added_sample", "removed_sample")
_SMALL_STEP = 20
_FIRST_PAUSE_SECONDS = 0.002
_MOST_DOUBLED = 6


def applied(
    recipe: Recipe,
    known: Mapping[int, bytes],
    seconds: float | None,
    try_seconds: float,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Compare sub-sets and apply the differences, in steps of at most 500 ids; yield the counts.

    Arguments:
        seconds: of a step; None: the differences are counted alone, as if all were applied.
        try_seconds: how long all further tries of this task may take together.
    """
    import pyarrow as pa

    from workstealing.spark.differences import difference, whole_sub_sets

    kinds = {name: pa.int64() for name in COUNTS}
    kinds |= {name: pa.list_(pa.binary()) for name in SAMPLES}
    schema = pa.schema({**kinds, "busy": pa.list_(pa.int32()), "error": pa.string()})
    tracked = recipe.made(TrackedSet)
    tries = Tries(try_seconds)
    for table in whole_sub_sets(batches):
        found = difference(table, lambda numbers: scan(tracked.job_client, tracked.names, numbers))
        different = Settled(
            sum(len(missing) for _, _, missing in found.steps),
            sum(len(stale) for _, stale, _ in found.steps),
        )
        done, errors = Settled(), []
        busy, busy_ids = [], 0
        if seconds is None:
            done = different
        else:
            for sub_set, stale, missing in found.steps:
                busy_here = 0
                for ids in steps_of(stale, missing):
                    settled, error, left = tries.settled(
                        tracked, sub_set, known[sub_set], ids, seconds
                    )
                    done = _sum(done, settled)
                    errors += [error] if error else []
                    busy_here += left
                busy += [sub_set] if busy_here else []
                busy_ids += busy_here
        left = different.added + different.removed - done.added - done.removed
        counts = (found.tracked, found.in_table, done.added, done.removed, left, len(errors))
        row: dict[str, Any] = dict(zip(COUNTS, (*counts, busy_ids), strict=True))
        missing_ids = (each for _, _, missing in found.steps for each in missing)
        stale_ids = (each for _, stale, _ in found.steps for each in stale)
        for name, side in zip(SAMPLES, (missing_ids, stale_ids), strict=True):
            row[name] = list(islice(side, IDS_OF_A_SAMPLE))
        row["busy"] = busy
        row["error"] = errors[0] if errors else ""
        yield pa.RecordBatch.from_pylist([row], schema)


def _sum(one: Settled, other: Settled) -> Settled:
    return Settled(one.added + other.added, one.removed + other.removed)


class Tries:
    """Bounds what the further tries of one task take, in seconds."""

    __slots__ = ("_clock", "_in_a_row", "_left", "_sleep")

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._left, self._in_a_row = seconds, 0
        self._clock, self._sleep = clock, sleep

    def settled(
        self,
        tracked: TrackedSet,
        sub_set: int,
        generation: bytes,
        ids: tuple[list[bytes], list[bytes]],
        seconds: float,
    ) -> tuple[Settled, str, int]:
        """Make a step, with a source again in halves if others change the sub-set meanwhile.

        Without a source a further try would meet the same generation, so the driver begins anew.

        Returns: what was changed; an error; how many ids the others kept from being settled.
        """
        pieces, done, busy = [ids], Settled(), 0
        while pieces:
            piece = pieces.pop()
            began = self._clock()
            settled, error, was_aborted = one_step(tracked, sub_set, generation, piece, seconds)
            done = _sum(done, settled)
            if error:
                return done, error, busy
            if not was_aborted:
                self._in_a_row = 0
            elif tracked.source is not None and self._may_go_on(began):
                pieces += _halves(piece)
            else:
                busy += len(piece[0]) + len(piece[1])
        return done, "", busy

    def _may_go_on(self, began: float) -> bool:
        """Pause, and say whether there is time for one more try, after one that began then."""
        if self._left <= 0:
            return False
        self._in_a_row = min(self._in_a_row + 1, _MOST_DOUBLED)
        self._sleep(random.random() * _FIRST_PAUSE_SECONDS * 2**self._in_a_row)
        self._left -= self._clock() - began
        return True


def _halves(
    piece: tuple[list[bytes], list[bytes]],
) -> list[tuple[list[bytes], list[bytes]]]:
    """Return a piece in two, for shorter questions; a small one as it is."""
    stale, missing = piece
    if len(stale) + len(missing) <= _SMALL_STEP:
        return [piece]
    odd = [(stale[start::2], missing[start::2]) for start in (0, 1)]
    return [each for each in odd if any(each)]


def steps_of(stale: list[bytes], missing: list[bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield stale and missing ids of one sub-set, at most 500 together."""
    for start in range(0, len(stale) + len(missing), IDS_A_STEP):
        end = start + IDS_A_STEP
        yield stale[start:end], missing[max(0, start - len(stale)) : max(0, end - len(stale))]


def one_step(
    tracked: TrackedSet,
    sub_set: int,
    generation: bytes,
    ids: tuple[list[bytes], list[bytes]],
    seconds: float,
) -> tuple[Settled, str, bool]:
    """Make one step; return what it changed, an error, and whether another writer came first."""
    stale, missing = ids
    slice = Slice(IDS_A_STEP, seconds)
    try:
        if tracked.source is None:
            return (
                settle_unchanged(
                    tracked,
                    sub_set,
                    generation,
                    slice,
                    stale=stale,
                    missing=missing,
                    timeout=PATIENCE_SECONDS,
                ),
                "",
                False,
            )
        getattr(tracked.source, "warm_up", lambda _: None)(seconds)
        return settle(tracked, sub_set, slice, stale=stale, missing=missing), "", False
    except Aborted:
        return Settled(), "", True
    except Exception as error:  # noqa: BLE001 - the step is left to the jobs, and says why
        if is_abort(error):
            return Settled(), "", True
        return Settled(), f"{type(error).__name__}: {error}", False
