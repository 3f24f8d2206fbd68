"""The offsets of a query on Redis' streams, the entries of its batches, and what was lost of them.

Ids say where a query stands, but not how many entries lie between two of them. A batch with a limit
is therefore walked at the driver, in bounded pages, to find the id at which it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.spark.sources.batches import Rest, report_losses, wrong_offset
from workstealing.spark.sources.compat import InputPartition
from workstealing.spark.sources.options import runs
from workstealing.spark.sources.pipelines import FIRST_PAGE, KeyCalls, next_page
from workstealing.spark.sources.redis_options import FORMAT, RedisOptions
from workstealing.spark.sources.redis_reading import id_of, number_of


class StreamLook(NamedTuple):
    """The findings of a look at a stream; ids are numbers of `number_of`.

    Fields: last: the greatest id that it ever had, 0 of one that is not there; first: the id of its
    first entry, None without any; length: in entries; added: how many it ever had, None on servers
    before Redis 7; deleted: the greatest id that XDEL has removed.
    """

    last: int = 0
    first: int | None = None
    length: int = 0
    added: int | None = 0
    deleted: int = 0


class StreamPlace(NamedTuple):
    """The part of one stream in a batch, and where the batch after it goes on.

    Fields: start: the id behind which the batch begins; next: its last one; before and added: how
    many entries the stream ever had up to these two, -1 where that is not known.
    """

    start: int
    next: int
    before: int
    added: int


@dataclass(frozen=True)
class StreamOffset:
    """The offset of a query: behind the batch that it describes in full.

    Fields: places: the name of a stream -> its part.
    """

    places: Mapping[str, StreamPlace] = field(default_factory=dict)

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> StreamOffset:
        """Read what `as_dict` has made. Raises: ConfigurationError for anything else."""
        try:
            return cls(
                {
                    str(name): StreamPlace(
                        number_of(each["from"]),
                        number_of(each["next"]),
                        int(each["before"]),
                        int(each["added"]),
                    )
                    for name, each in offset["streams"].items()
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise wrong_offset(FORMAT, offset) from None

    def as_dict(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint, as JSON."""
        return {
            "streams": {
                name: {
                    "from": id_of(place.start),
                    "next": id_of(place.next),
                    "before": place.before,
                    "added": place.added,
                }
                for name, place in sorted(self.places.items())
            }
        }


def looks(options: RedisOptions, calls: KeyCalls) -> dict[str, StreamLook]:
    """Look at all streams of a query, also at those that are not there; one round trip a node.

    Raises: ConfigurationError for a key of another type; connection faults.
    """
    names = options.keys or ()
    groups = [(key, (("XINFO", "STREAM", key),)) for key in (_key(options, name) for name in names)]
    return {
        name: _look(options, key, reply)
        for name, (key, _), (reply,) in zip(names, groups, calls.on_keys(groups), strict=True)
    }


def _key(options: RedisOptions, name: str) -> bytes:
    return options.prefix + name.encode()


def _look(options: RedisOptions, key: bytes, reply: Any) -> StreamLook:
    if isinstance(reply, ResponseError):
        if "no such key" in str(reply):
            return StreamLook()
        if str(reply).startswith("WRONGTYPE"):
            raise options.wrong(f"the key {key!r} is no stream: leave it out of the option 'keys'")
        raise ResponseError(f"the stream {key!r} was not looked at: {reply}") from reply
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    first = found[b"first-entry"]
    return StreamLook(
        last=number_of(found[b"last-generated-id"]),
        first=None if first is None else number_of(first[0]),
        length=found[b"length"],
        added=found.get(b"entries-added"),
        deleted=number_of(found.get(b"max-deleted-entry-id", b"0-0")),
    )


def begun(
    options: RedisOptions, name: str, place: StreamPlace | None, look: StreamLook
) -> tuple[int, int, str | None]:
    """Return behind which id the next batch begins, how many entries there were, and a loss.

    Arguments:
        name: of the stream.
        place: its part in the last batch, None for one that is new to the query.

    The loss is a sentence, or None if no entries were lost.
    """
    first = -1 if look.added is None else look.added - look.length
    if place is None:
        starting = "earliest" if options.starting is None else options.starting.of(name)
        if starting == "earliest":
            return 0, first, None
        if starting == "latest":
            return look.last, -1 if look.added is None else look.added, None
        place = StreamPlace(0, number_of(str(starting)), -1, -1)
        if place.next > look.last:
            # Entries that come with these ids are not wanted.
            return place.next, -1, None
    at, added = place.next, place.added
    what = f"the stream {name!r}"
    if look.last == 0 and at:
        return 0, 0, f"{what} was deleted; it had been read up to {id_of(at)}"
    if look.last < at or (look.added is not None and look.added < added):
        why = "was deleted and made anew, or its server has lost its last entries; it had been read"
        return 0, first, f"{what} {why} up to {id_of(at)}"
    is_behind = at and look.last > at and (look.first is None or look.first > at)
    if is_behind and (look.added is None or added < 0 or look.added - added > look.length):
        until = "its end" if look.first is None else id_of(look.first)
        where = f"between {id_of(at)} and {until}"
        why = f"may have lost entries {where}: they were trimmed or deleted unread"
        return at, first, f"{what} {why}"
    return at, added, None


class StreamPlanner:
    """Plans the batches of one query.

    Arguments:
        sleep: waits, for tests.
    """

    def __init__(
        self,
        options: RedisOptions,
        calls: KeyCalls,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._calls = calls
        self._sleep = sleep
        self._rest = Rest()
        # For AvailableNow: where each stream ended when the run began.
        self._ends: Mapping[str, StreamLook] | None = None
        self._seen: Mapping[str, StreamLook] | None = None
        self._turn = 0

    def prepare_available_now(self) -> None:
        """Note where the streams end now; entries that come later are not read. Costs one look."""
        self._ends = looks(self._options, self._calls)

    def latest(self, start: StreamOffset, limit: int | None) -> StreamOffset:
        """Return the offset behind the next batch, or `start` itself if there is nothing to read.

        Arguments:
            limit: how many entries at most, shared out evenly among the streams, None for all.

        Raises: LostEntriesError if entries that were to be read are gone and the user has not said
        that this may be. Costs one look, and with a limit a page of entries for each 5,000 of them
        or 4 MB.
        """
        if self._ends is None:
            self._rest.wait(self._sleep)
        self._seen = found = looks(self._options, self._calls)
        places, losses, ends = dict(start.places), [], {}
        for name, look in found.items():
            at, added, loss = begun(self._options, name, start.places.get(name), look)
            if loss is not None:
                losses.append(loss)
            places[name] = StreamPlace(at, at, added, added)
            end = look if self._ends is None else self._ends.get(name, StreamLook())
            if at < min(end.last, look.last):
                ends[name] = end if end.last <= look.last else look
        report_losses(FORMAT, losses, self._options.fails_on_loss)
        if limit is None:
            for name, end in ends.items():
                places[name] = _ended(places[name], end)
        else:
            self._walk(places, ends, limit)
        known = {name: place.next for name, place in start.places.items()}
        if known == {name: place.next for name, place in places.items()}:
            self._rest.begin()
            return start
        for name in set(places) - set(found):
            # The query does not read it any more; should it do so again, it goes on there.
            kept = places[name]
            places[name] = StreamPlace(kept.next, kept.next, kept.added, kept.added)
        return StreamOffset(places)

    def _walk(
        self, places: dict[str, StreamPlace], ends: Mapping[str, StreamLook], limit: int
    ) -> None:
        """Move the places on by as many entries as the limit allows, an even share of each."""
        names = sorted(ends)
        if names:
            # Where there are more streams than entries, each has its turn.
            turn = self._turn % len(names)
            names = names[turn:] + names[:turn]
            self._turn += min(limit, len(names))
        pages = dict.fromkeys(names, FIRST_PAGE)
        while names and limit > 0:
            share = max(1, limit // len(names))
            for name in list(names):
                asked = min(share, pages[name], limit)
                if not asked:
                    return
                place, end = places[name], ends[name]
                key = _key(self._options, name)
                entries = _page(self._calls, key, place.next, end.last, asked)
                limit -= len(entries)
                if len(entries) < asked:
                    places[name] = _ended(place, end)
                    names.remove(name)
                    continue
                pages[name] = next_page(_sizes(entries))
                last = number_of(entries[-1][0])
                added = place.added + asked if place.added >= 0 else -1
                places[name] = place._replace(next=last, added=added)
                if last == end.last:
                    places[name] = _ended(place, end)
                    names.remove(name)

    def seen(self) -> dict[str, str] | None:
        """Return the last id of each stream at the last look, None before it; no round trip."""
        if self._seen is None:
            return None
        return {name: id_of(look.last) for name, look in self._seen.items()}


def _ended(place: StreamPlace, end: StreamLook) -> StreamPlace:
    return place._replace(next=end.last, added=-1 if end.added is None else end.added)


def _page(calls: KeyCalls, key: bytes, start: int, stop: int, count: int) -> list[Any]:
    """Return so many entries behind an id, up to another one; one round trip."""
    command = ("XRANGE", key, id_of(start + 1), id_of(stop), "COUNT", count)
    ((reply,),) = calls.on_keys([(key, (command,))])
    if isinstance(reply, ResponseError):
        raise ResponseError(f"the stream {key!r} was not read: {reply}") from reply
    entries: list[Any] = reply
    return entries


def _sizes(entries: Sequence[Any]) -> list[int]:
    return [sum(map(len, fields or ())) for _, fields in entries]


class StreamSpan(NamedTuple):
    """Entries of one stream: those behind start, up to stop; size: how many, -1 if unknown."""

    name: str
    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class StreamSpans(InputPartition):
    """The part of a batch that one task reads."""

    spans: tuple[StreamSpan, ...]

    def entries(self, options: RedisOptions, calls: KeyCalls) -> Iterator[list[tuple[bytes, Any]]]:
        """Yield the entries page by page, each with its key.

        Raises: LostEntriesError for entries that were there when the batch was planned and are
        gone, unless the user has said that this may be; connection faults. A round trip for each
        5,000 entries or 4 MB.
        """
        for span in self.spans:
            key, at, read, asked = _key(options, span.name), span.start, 0, FIRST_PAGE
            while at < span.stop:
                entries = _page(calls, key, at, span.stop, asked)
                if entries:
                    yield [(key, entry) for entry in entries]
                    read += len(entries)
                    at = number_of(entries[-1][0])
                if len(entries) < asked:
                    break
                asked = next_page(_sizes(entries))
            if 0 <= read < span.size:
                _report_gone(options, calls, span, read)


def _report_gone(options: RedisOptions, calls: KeyCalls, span: StreamSpan, read: int) -> None:
    look = looks(options, calls)[span.name]
    # XDEL takes single entries out on purpose; a trim takes all up to an id, and leaves no trace.
    if not span.start < look.deleted <= span.stop:
        lost = f"{span.size - read:,} of the {span.size:,} entries of this batch"
        why = "they were trimmed after it was planned"
        losses = [f"the stream {span.name!r} has lost {lost}: {why}"]
        report_losses(FORMAT, losses, options.fails_on_loss)


def cut(offset: StreamOffset, tasks: int) -> list[StreamSpans]:
    """Return the tasks of the batch that an offset ends: a stream is read by one of them.

    Arguments:
        tasks: how many at most.

    O(streams). The same offset gives the same tasks.
    """
    spans = [
        StreamSpan(name, place.start, place.next, _size(place))
        for name, place in sorted(offset.places.items())
        if place.next > place.start
    ]
    return [StreamSpans(some) for some in runs(spans, tasks)]


def _size(place: StreamPlace) -> int:
    return place.added - place.before if min(place.added, place.before) >= 0 else -1
