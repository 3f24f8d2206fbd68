"""The offsets of a stream from logs: what a batch reads is written in them, and nowhere else.

Nothing here asks a server. `planned` makes the next offset from what was seen of the logs; `cut`
makes tasks from an offset alone, so that a batch which is run again has the same rows in the same
tasks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.ick_offsets import shared_out
from workstealing.spark.sources.log_options import FORMAT, Position, Positions


class Look(NamedTuple):
    """What was seen of a log.

    Fields: epoch: of its making, "" if it is not there; first: the first available offset; next:
    the offset that the next entry gets; block: entries a block.
    """

    epoch: str = ""
    first: int = 0
    next: int = 0
    block: int = 1


class Place(NamedTuple):
    """The part of one log in a batch, and where the batch after it goes on.

    Fields: epoch: of the log, "" as long as it did not reach `start`; start: the first offset of
    the batch; next: the first one behind it; block: entries a block.
    """

    epoch: str
    start: int
    next: int
    block: int


class Span(NamedTuple):
    """Entries of one log that one task reads: from start up to, but not including, stop."""

    log: str
    epoch: str
    start: int
    stop: int


@dataclass(frozen=True)
class Offset:
    """Where a stream stands: behind the batch of which it says all.

    Fields: tasks: how many the batch has at most; places: log -> its part.
    """

    tasks: int
    places: Mapping[str, Place] = field(default_factory=dict)

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Offset:
        """Read what `as_dict` has made. Errors: ConfigurationError for anything else."""
        try:
            places = {
                str(log): Place(
                    str(each["epoch"]), int(each["from"]), int(each["next"]), int(each["block"])
                )
                for log, each in offset["logs"].items()
            }
            return cls(int(offset["tasks"]), places)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ConfigurationError(
                f"the offset {offset!r} in the checkpoint is not one of format {FORMAT!r}: give"
                " this query a checkpoint of its own"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint, as JSON."""
        logs = {
            log: {
                "epoch": place.epoch,
                "from": place.start,
                "next": place.next,
                "block": place.block,
            }
            for log, place in sorted(self.places.items())
        }
        return {"tasks": self.tasks, "logs": logs}


@dataclass(frozen=True)
class Loss:
    """Entries of a log that cannot be read any more: which, and why."""

    log: str
    why: str

    def __str__(self) -> str:
        return f"the log {self.log!r} {self.why}"


def resolved(position: Position, look: Look) -> int:
    """Return the offset that a position means now; it may be beyond the end, or evicted."""
    if position == "earliest":
        return look.first
    if position == "latest":
        return look.next
    number = int(position)
    # As in Log.read: counted from the end, but before the first there is nothing to lose.
    return number if number >= 0 else max(look.first, look.next + number)


def begun(
    log: str, place: Place | None, look: Look, starting: Positions
) -> tuple[int, Loss | None]:
    """Return where the next batch begins in a log, and what was lost before that.

    Arguments: log; place: where the last batch ended, None for a log that is new to the query;
    look; starting: the query's option.
    """
    if place is None:
        at = resolved(starting.of(log), look)
    elif place.epoch in ("", look.epoch):
        at = place.next
    elif not look.epoch:
        return 0, Loss(log, f"was deleted; {_before(place.next)} of its entries had been read")
    else:
        why = "was deleted and made anew: its entries are others than those before, of which"
        return look.first, Loss(log, f"{why} {_before(place.next)} had been read")
    if at < look.first:
        why = f"has lost its entries {at:,} to {look.first - 1:,}: they were evicted unread"
        return look.first, Loss(log, why)
    if place is not None and place.epoch and look.next < at:
        why = (
            f"ends before offset {look.next:,}, but was read up to {at - 1:,}: its server has lost"
        )
        return look.next, Loss(log, f"{why} the last entries, in a restart or a failover")
    return at, None


def planned(
    start: Offset,
    looks: Mapping[str, Look],
    starting: Positions,
    limit: int | None,
    tasks: int,
    *,
    ends: Mapping[str, tuple[str, int]] | None = None,
) -> tuple[Offset, list[Loss]]:
    """Return the offset behind the next batch, and what was lost before it.

    Arguments: start: the offset before it; looks: at all logs of the query; starting: where new
    logs begin; limit: how many entries at most, shared out evenly, None for all; tasks: how many
    at most; ends: log -> (epoch, offset) beyond which nothing is read now, None without such ends.
    Returns: `start` itself, the very same, if nothing has changed. O(logs).
    """
    places, losses, sizes = dict(start.places), [], {}
    names = sorted(looks)
    for index, log in enumerate(names):
        look, before = looks[log], start.places.get(log)
        at, loss = begun(log, before, look, starting)
        if loss is not None:
            losses.append(loss)
        epoch = look.epoch if at <= look.next else ""
        places[log] = Place(epoch, at, at, look.block)
        most = look.next
        if ends is not None:
            of, end = ends.get(log, ("", 0))
            most = min(most, end) if of == look.epoch else 0
        sizes[index] = max(0, most - at)
    total = sum(sizes.values())
    most = total if limit is None else limit
    # Where there are more logs than entries each has its turn: full batches differ in this by one.
    turn = sum(place.next for place in places.values()) // max(most, 1)
    for index, count in shared_out(sizes, most, turn).items():
        place = places[names[index]]
        places[names[index]] = place._replace(next=place.next + count)
    now = {log: (each.epoch, each.next) for log, each in places.items()}
    if now == {log: (each.epoch, each.next) for log, each in start.places.items()}:
        return start, losses
    for log in set(places) - set(looks):
        # The query does not read it any more; should it do so again, it goes on there.
        places[log] = places[log]._replace(start=places[log].next)
    return Offset(tasks, places), losses


def cut(offset: Offset) -> list[tuple[Span, ...]]:
    """Return the tasks of the batch that an offset ends: of each what it reads, in order.

    Tasks have about as many entries each, and begin where a block does, so that no two read the
    same one. O(tasks + logs). No two offsets of the same text give other tasks.
    """
    places = [(log, each) for log, each in sorted(offset.places.items()) if each.next > each.start]
    if not places:
        return []
    ends = list(accumulate(each.next - each.start for _, each in places))
    total, smallest = ends[-1], min(each.block for _, each in places)
    count = min(offset.tasks, -(-total // smallest))
    cuts = {0, total}
    for number in range(1, count):
        index = bisect_right(ends, total * number // count)
        place, base = places[index][1], ends[index - 1] if index else 0
        at = place.start + total * number // count - base
        cuts.add(base + max(0, at - at % place.block - place.start))
    return [_spans(places, ends, low, high) for low, high in pairwise(sorted(cuts))]


def _spans(
    places: Sequence[tuple[str, Place]], ends: Sequence[int], low: int, high: int
) -> tuple[Span, ...]:
    """Return what lies between two points of all entries in a row."""
    spans = []
    index = bisect_right(ends, low)
    while low < high:
        log, place = places[index]
        base = ends[index - 1] if index else 0
        stop = min(high, ends[index])
        spans.append(Span(log, place.epoch, place.start + low - base, place.start + stop - base))
        low, index = stop, index + 1
    return tuple(spans)


def _before(offset: int) -> str:
    return f"those before offset {offset:,}" if offset else "none"
