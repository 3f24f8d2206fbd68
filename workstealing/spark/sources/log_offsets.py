"""The offsets of a query on logs, the entries of its batches and tasks, and their pages."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.batches import Admission, Rest, report_losses, wrong_offset
from workstealing.spark.sources.log_options import FORMAT, LogOptions
from workstealing.spark.sources.options import Position, Positions, shared_out
from workstealing.spark.sources.pipelines import FIRST_PAGE, next_page
from workstealing.store.operations import Steps, drive
from workstealing.structures import Log


class LogLook(NamedTuple):
    """The findings of a look at a log.

    Fields: epoch: the one that the log was given when it was made, "" if there is no log; first:
    the first available offset; next: the offset that the next entry gets; block: entries a block.
    """

    epoch: str = ""
    first: int = 0
    next: int = 0
    block: int = 1


class Place(NamedTuple):
    """The part of one log in a batch, and where the batch after it goes on.

    Fields: epoch: that of the log, "" as long as the log did not reach `start`; start: the first
    offset of the batch; next: the first offset behind the batch; block: entries a block.
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
class LogOffset:
    """The offset of a stream: behind the batch that it describes in full.

    Fields: tasks: how many the batch has at most; places: log -> its part.
    """

    tasks: int
    places: Mapping[str, Place] = field(default_factory=dict)

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> LogOffset:
        """Read what `as_dict` has made. Raises: ConfigurationError for anything else."""
        try:
            places = {
                str(log): Place(
                    str(each["epoch"]), int(each["from"]), int(each["next"]), int(each["block"])
                )
                for log, each in offset["logs"].items()
            }
            return cls(int(offset["tasks"]), places)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise wrong_offset(FORMAT, offset) from None

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


def resolved(position: Position, look: LogLook) -> int:
    """Return the offset that a position means now; it may be beyond the end, or evicted."""
    if position == "earliest":
        return look.first
    if position == "latest":
        return look.next
    number = int(position)
    # As in Log.read: counted from the end, but before the first there is nothing to lose.
    return number if number >= 0 else max(look.first, look.next + number)


def begun(
    log: str, place: Place | None, look: LogLook, starting: Positions
) -> tuple[int, Loss | None]:
    """Return where the next batch begins in a log, and what was lost before that.

    Arguments:
        place: where the last batch ended, None for a log that is new to the query.
        starting: the query's option.
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
    start: LogOffset,
    looks: Mapping[str, LogLook],
    starting: Positions,
    limit: int | None,
    tasks: int,
    *,
    ends: Mapping[str, tuple[str, int]] | None = None,
) -> tuple[LogOffset, list[Loss]]:
    """Return the offset behind the next batch, and what was lost before it.

    Arguments:
        start: the offset before it.
        looks: at all logs of the query.
        starting: where new logs begin.
        limit: how many entries at most, shared out evenly, None for all.
        tasks: how many at most.
        ends: log -> (epoch, offset) beyond which nothing is read now, None without such ends.

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
    return LogOffset(tasks, places), losses


def behind(end: LogOffset, looks: Mapping[str, LogLook]) -> int:
    """Return how many entries of the logs at hand a batch leaves to later ones.

    Arguments:
        end: the offset behind the batch.
        looks: at the logs of the query.
    """
    return sum(
        max(0, look.next - end.places[log].next) for log, look in looks.items() if log in end.places
    )


def cut(offset: LogOffset) -> list[tuple[Span, ...]]:
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


logger = logging.getLogger("workstealing.spark")


class LogPlanner:
    """Plans the batches of one query.

    Arguments:
        look: says what is there now, of names of logs log -> LogLook.
        sleep: waits, for tests.
    """

    def __init__(
        self,
        options: LogOptions,
        look: Callable[[Sequence[str]], Mapping[str, LogLook]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._look = look
        self._sleep = sleep
        self._rest = Rest()
        self._admission = Admission(options.minimum)
        # For AvailableNow: log -> (epoch, offset) where it ended when the run began.
        self._ends: dict[str, tuple[str, int]] | None = None
        self._seen: dict[str, Any] | None = None
        self._missed: set[str] = set()

    def prepare_available_now(self) -> None:
        """Note where the logs end now; what comes later is not read. Costs one look."""
        looks = self._look(self._options.logs)
        self._ends = {log: (look.epoch, look.next) for log, look in looks.items()}

    def latest(self, start: LogOffset, limit: int | None) -> LogOffset:
        """Return the offset behind the next batch, or `start` itself if there is nothing to read.

        Arguments:
            limit: how many entries at most, None for all.

        Raises: LostEntriesError if entries that were to be read are gone and the user has not said
        that this may be. Fewer than the option minOffsetsPerTrigger are held back, unless all are
        asked for. Costs one look.
        """
        if self._ends is None:
            self._rest.wait(self._sleep)
        options = self._options
        looks = self._look(options.logs)
        end, losses = planned(
            start, looks, options.positions()[0], limit, options.tasks, ends=self._ends
        )
        said = [str(loss) for loss in losses]
        if options.fails_on_loss:
            report_losses(FORMAT, said, fails=True)
        left = there = behind(end, looks)
        if end is not start:
            there += sum(each.next - each.start for each in end.places.values())
        asked_for_all = limit is None or self._ends is not None
        if not asked_for_all and self._admission.holds_back(there):
            end, left = start, there
        elif not options.fails_on_loss:
            # Once, when the batch that goes on behind them begins.
            report_losses(FORMAT, said, fails=False)
        self._seen = {
            "logs": {log: look.next for log, look in looks.items()},
            "offsetsBehindLatest": left,
        }
        self._warn_of_missing(looks)
        if end is start:
            self._rest.begin()
        return end

    def seen(self) -> dict[str, Any] | None:
        """Return the backlog at the last look, None before it; no round trip.

        Returns: logs: the offset behind the last entry of each log; offsetsBehindLatest: how many
        entries are left for later batches.
        """
        return self._seen

    def _warn_of_missing(self, looks: Mapping[str, LogLook]) -> None:
        for log, look in looks.items():
            if look.epoch or log in self._missed:
                continue
            self._missed.add(log)
            logger.warning("there is no log %r yet: this query waits for its first entry", log)


def batch_offset(options: LogOptions, looks: Mapping[str, LogLook]) -> LogOffset:
    """Return what a batch read reads, as an offset whose parts `cut` makes tasks of.

    Arguments:
        looks: at all of its logs.

    Raises: ConfigurationError for a log that is not there; LostEntriesError as of
    `LogPlanner.latest`.
    """
    starting, ending = options.positions()
    places, losses = {}, []
    for log, look in looks.items():
        if not look.epoch:
            raise ConfigurationError(
                f"format {FORMAT!r}: there is no log {log!r}: a read makes none; write to it first,"
                " or look whether the name and the server are right"
            )
        start, loss = begun(log, None, look, starting)
        if loss is not None:
            losses.append(str(loss))
        stop = min(resolved(ending.of(log), look), look.next)
        places[log] = Place(look.epoch, start, max(start, stop), look.block)
    report_losses(FORMAT, losses, options.fails_on_loss)
    return LogOffset(options.tasks, places)


def within(offset: LogOffset, least: int | None, most: int | None) -> LogOffset:
    """Return a batch without the entries outside of bounds, which belong to it; None: no bound."""
    places = {}
    for log, place in offset.places.items():
        start = place.start if least is None else max(place.start, least)
        stop = place.next if most is None else min(place.next, most + 1)
        places[log] = place._replace(start=start, next=max(start, stop))
    return LogOffset(offset.tasks, places)


def spans_of(offset: LogOffset, offsets: Sequence[int]) -> list[Span]:
    """Return those parts of a batch that have given offsets: neighbours are one part.

    Arguments:
        offsets: in ascending order, each once.
    """
    spans: list[Span] = []
    for log, place in sorted(offset.places.items()):
        for each in offsets[bisect_left(offsets, place.start) : bisect_left(offsets, place.next)]:
            if spans and (spans[-1].log, spans[-1].stop) == (log, each):
                spans[-1] = spans[-1]._replace(stop=each + 1)
            else:
                spans.append(Span(log, place.epoch, each, each + 1))
    return spans


# Offsets, and the entries that have them.
Page = tuple[list[int], list[bytes]]


def looks(client: Any, names: Sequence[str]) -> dict[str, LogLook]:
    """Look at logs, also at those that do not exist yet; one round trip each."""
    return {name: drive(client, _look(Log(client, name))) for name in names}


def _look(log: Any) -> Steps[LogLook]:
    # No entries: the keys of no blocks, and the number of none.
    reply = yield log.on_keys("read", (log.keys.meta, log.keys.news), 0, 0, 1, 0, 1, b"", "")
    end, first, _, block, epoch = reply[:5]
    return LogLook(epoch.decode(), int(first), int(end), int(block))


def pages(options: LogOptions, span: Span) -> Iterator[Page]:
    """Yield the entries of a part of a log; a round trip for each 4 MiB or 5,000 entries.

    Holes, where `compact_by` has taken entries, are passed over. Raises: LostEntriesError for
    entries that are not there any more, unless the user has said that this may be: then they are
    passed over with a line in the log.
    """
    client = options.client.connected()
    log: Any = Log(client, span.log)
    at, most = span.start, FIRST_PAGE
    while at < span.stop:
        asked = min(most, span.stop - at)
        there, found = drive(client, log.read_steps(at, asked))
        if log.known.epoch != span.epoch.encode():
            # Deleted, or made anew: then what was found belongs to another log.
            found = []
        if not found:
            _report_lost(options, span, at, span.stop)
            return
        # It may be more than was asked for. From there on None is a hole.
        first = min(there.first, span.stop)
        if found[0] is None and at < first:
            _report_lost(options, span, at, first)
            found, at = found[first - at :], first
        evicted = found[: max(0, first - at)]
        if None in evicted:
            # Evicted between two parts of this read: what was read before goes first.
            found = evicted[: evicted.index(None)]
        present = [(at + place, each) for place, each in enumerate(found) if each is not None]
        at += len(found)
        if present:
            offsets, entries = zip(*present, strict=True)
            yield list(offsets), list(entries)
            most = next_page(list(map(len, entries)))


def _report_lost(options: LogOptions, span: Span, start: int, stop: int) -> None:
    why = f"has no entries {start:,} to {stop - 1:,} any more, which this batch was to read"
    loss = f"the log {span.log!r} {why}: they were evicted, or the log was deleted"
    report_losses(FORMAT, [loss], options.fails_on_loss)
