"""Garbage that readers leave in streams: read entries, consumers that are gone, unread groups."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.jobs.leftovers import (
    CLIENT,
    DECLARED,
    LIVE,
    PATTERN,
    Counting,
    Declared,
    Garbage,
    Item,
    Leftovers,
    Offer,
    Parts,
    Rule,
    Unknown,
    Verdicts,
    call,
    exactly,
    keys,
    look,
    seen_twice,
)
from workstealing.jobs.leftovers.rule import DAY, Looks
from workstealing.store.connection import Command
from workstealing.store.operations import Operation
from workstealing.store.scripts import load

__all__ = [
    "AbandonedEntries",
    "AcknowledgedEntries",
    "EntriesBeyond",
    "IdleConsumers",
    "StreamLeftovers",
    "UnreadGroups",
]

VERSIONS = "any reader in groups: taskiq-redis, FastStream, Prefect, XREADGROUP"
_CONSUMERS_AT_ONCE, _MOST_CONSUMERS, _MOST_GROUPS = 100, 5_000, 1_000
# So many entries are read at most from each side of a boundary, to count those before it.
_COUNTED = 500
# Ids that are times lie behind the year 2000, and not far in the future.
_YEAR_2000_MS, _FUTURE_MS = 946_684_800_000, 366 * 86_400_000


class _OfStreams(Rule):
    """The part that the rules of streams share: a survey asks them for every stream."""

    owner = "streams"
    versions = VERSIONS
    certainty = DECLARED
    counted_in = "entries"
    asked = ({"pattern": "*"},)

    def offer(self) -> Offer:
        """Offer a job on the streams of a family."""
        return self._offer()

    def _offer(self, *, strangers: bool = False, sized: bool = True, **options: Any) -> Offer:
        job = call(StreamLeftovers, CLIENT, PATTERN, **options)
        return Offer(job, strangers=strangers, sized=sized)


class AcknowledgedEntries(_OfStreams):
    """Entries of streams that every group has been given, and has acknowledged.

    Arguments:
        pattern: of the streams' names.
        groups: the least number of groups; a stream with fewer stays as it is, because a group that
            is yet to come may want its entries.

    A stream with more than 1,000 groups is unknown.

    Declared: by the pattern you say that these streams are read by groups alone. Proof of the rest:
    take an entry before each group's first pending one, and not behind the last one that any group
    was given. Such an entry is given to no consumer again, unless somebody moves a group back by
    XGROUP SETID, or makes a new one that begins at the first entry. A single script looks and
    removes, because reads of a group break no WATCH.
    """

    finds = "Entries of streams that every group has acknowledged."
    can_undo = False

    def __init__(
        self, pattern: str | bytes, groups: int = 1, name: str = "streams.acknowledged"
    ) -> None:
        self.name, self.where, self._groups = name, keys(pattern, "stream"), max(1, groups)

    def offer(self) -> Offer:
        """Offer a job on the streams of a family."""
        return self._offer(groups=self._groups) if self._groups > 1 else self._offer()

    def verdict(self, item: Item) -> Verdicts:
        """Judge a stream: it has garbage if its first entry is needed by no group."""
        groups, first = yield look(
            ("XINFO", "GROUPS", item.key), ("XRANGE", item.key, "-", "+", "COUNT", 1)
        )
        about = [_as_dict(each) for each in groups]
        if len(about) > _MOST_GROUPS:
            return Unknown(f"it has more than {_MOST_GROUPS:,} groups")
        if len(about) < self._groups or not first:
            return LIVE
        names = [each[b"name"] for each in about]
        pending = yield look(*(("XPENDING", item.key, each, "-", "+", 1) for each in names))
        needed = [_number(each[0][0]) for each in pending if each]
        given = min(_number(each[b"last-delivered-id"]) for each in about)
        oldest = _number(first[0][0])
        if oldest > given or any(oldest >= each for each in needed):
            return LIVE
        own = (self._groups, _MOST_GROUPS)
        return Garbage(script=Operation(load("leftovers/trim_stream"), (item.key,), own))

    def parts(self, item: Item) -> Counting:
        """Count the entries before the first that some group still needs; see `_acknowledged`."""
        return (yield from _acknowledged(item.key))


class _OfConsumers(_OfStreams):
    """The part that the rules of consumers share that have asked for nothing for long.

    Arguments:
        name: by default the class's own.
        most: see `IdleConsumers`.
    """

    def __init__(
        self,
        pattern: str | bytes,
        idle: Duration,
        name: str | None = None,
        most: int = _MOST_CONSUMERS,
    ) -> None:
        self.name, self.where = name or type(self).name, keys(pattern, "stream")
        self._idle, self._most = int(1000 * seconds_of(idle, "idle", 1.0)), most

    def verdict(self, item: Item) -> Verdicts:
        """Judge a stream by its consumers, if there are not too many to look at."""
        (groups,) = yield look(("XINFO", "GROUPS", item.key))
        about = [_as_dict(each) for each in groups]
        unknown = _too_many(about, self._most)
        return (yield from self._judged(item, about)) if unknown is None else unknown

    @abc.abstractmethod
    def _judged(self, item: Item, about: Sequence[Mapping[bytes, Any]]) -> Verdicts:
        """Judge a stream.

        Arguments:
            about: what the server says of its groups.
        """

    def offer(self) -> Offer:
        """Offer a job on the streams of a family, for the time that the user declares."""
        # Consumers lie beside the entries, and nothing tells how many bytes they take.
        is_sized = self.counted_in == "entries"
        return self._offer(sized=is_sized, idle=Declared("LONGEST_IDLE", self._idle / 1000))


class IdleConsumers(_OfConsumers):
    """Consumers without pending entries that have asked for nothing for long.

    Arguments:
        pattern: of the streams' names.
        idle: for how long, in seconds or as a timedelta; name.
        most: the most consumers of all groups of a stream that the server is asked to list (about 1
            ms for 1,000); a stream with more is unknown.

    A consumer that waits in one long BLOCK is idle, too. Such a consumer loses nothing: the server
    makes it anew when it is given an entry, and when it asks again.
    """

    name = "streams.idle_consumers"
    finds = "Consumers of streams that are idle for long and have nothing pending."
    can_undo = False
    counted_in = "consumers"
    asked = ({"pattern": "*", "idle": 7 * DAY},)

    def _judged(self, item: Item, about: Sequence[Mapping[bytes, Any]]) -> Verdicts:
        some = [each[b"name"] for each in about if each[b"consumers"]]
        listed = yield look(*(("XINFO", "CONSUMERS", item.key, each) for each in some))
        for name, consumers in zip(some, listed, strict=True):
            found = [_as_dict(each) for each in consumers]
            idle = [each for each in found if not each[b"pending"] and each[b"idle"] >= self._idle]
            if idle:
                own = (name, *(each[b"name"] for each in idle[:_CONSUMERS_AT_ONCE]))
                script = load("leftovers/delete_consumers")
                return Garbage(script=Operation(script, (item.key,), own))
        return LIVE

    def parts(self, item: Item) -> Counting:
        """Count such consumers of all groups of a stream."""
        consumers = yield from _consumers_of(item.key)
        idle = [each for each in consumers if not each[b"pending"] and each[b"idle"] >= self._idle]
        return exactly(len(idle), len(consumers))


class AbandonedEntries(_OfConsumers):
    """Entries that consumers have pending who have asked for nothing for long: only reported.

    Arguments:
        pattern: of the streams' names.
        idle: for how long, in seconds or as a timedelta; name.
        most: as of `IdleConsumers`.

    The server knows no more of a consumer than that: it may be dead, wait in one long BLOCK, or
    still work on the entry. Removing it would lose its entries, so nothing is removed: XAUTOCLAIM
    gives them to another one.
    """

    name = "streams.abandoned"
    finds = "Entries pending for consumers that have asked for nothing for long: XAUTOCLAIM's work."
    reports_only = True
    asked = ({"pattern": "*", "idle": 3_600.0},)

    def _judged(self, item: Item, about: Sequence[Mapping[bytes, Any]]) -> Verdicts:
        if not any(each[b"pending"] for each in about):
            return LIVE
        count, *_ = yield from self.parts(item)
        return Garbage() if count else LIVE

    def parts(self, item: Item) -> Counting:
        """Count the entries that such consumers have pending."""
        consumers = yield from _consumers_of(item.key)
        held = [each[b"pending"] for each in consumers if each[b"idle"] >= self._idle]
        return exactly(sum(held), sum(each[b"pending"] for each in consumers))


class UnreadGroups(_OfStreams):
    """Groups that nobody reads, and that keep a stream's entries from being removed: only reported.

    Arguments:
        pattern: of the streams' names.
        idle: for how long nobody has asked, in seconds or as a timedelta.

    Such a group has entries to read or to acknowledge, and no consumer has asked for any at both
    sightings. The group's reader may be away for a holiday, so nothing is removed: XGROUP DESTROY
    is yours to send.
    """

    finds = "Streams with a group that nobody reads, and that keeps their entries."
    reports_only = True
    counted_in = "streams"
    asked = ({"pattern": "*", "idle": 7 * DAY},)

    def __init__(
        self, pattern: str | bytes, idle: Duration, name: str = "streams.unread_groups"
    ) -> None:
        self.name, self.where = name, keys(pattern, "stream")
        self.certainty = seen_twice(idle)
        self._idle = int(1000 * self.certainty.gap)

    def offer(self) -> Offer:
        """Offer a job on the streams of a family, for the time that the user declares."""
        return self._offer(idle=Declared("LONGEST_IDLE", self.certainty.gap))

    def verdict(self, item: Item) -> Verdicts:
        """Judge a stream: it counts if one of its groups has something to read, and no reader."""
        groups, last = yield look(
            ("XINFO", "GROUPS", item.key), ("XREVRANGE", item.key, "+", "-", "COUNT", 1)
        )
        about = [_as_dict(each) for each in groups]
        if unknown := _too_many(about, _MOST_CONSUMERS):
            return unknown
        newest = _number(last[0][0]) if last else (0, 0)
        behind = [
            each
            for each in about
            if each[b"pending"] or _number(each[b"last-delivered-id"]) < newest
        ]
        listed = yield look(*(("XINFO", "CONSUMERS", item.key, each[b"name"]) for each in behind))
        unread = [
            b"%b %b" % (each[b"name"], each[b"last-delivered-id"])
            for each, consumers in zip(behind, listed, strict=True)
            if all(_as_dict(one)[b"idle"] >= self._idle for one in consumers)
        ]
        return Garbage((), hashlib.sha256(b"\0".join(unread)).digest()) if unread else LIVE


class EntriesBeyond(_OfStreams):
    """Entries of streams beyond a bound that you declare, read or unread, as MAXLEN removes them.

    Arguments:
        pattern: of the streams' names.
        most: the entries that stay at most.
        age: after which an entry goes, by the time in its id, in seconds or as a timedelta; at
            least one of the two.

    Raises: ConfigurationError without a usable bound. With an age, a stream whose last id is no
    time of this century is unknown.
    """

    versions = "any stream"
    finds = "Entries of streams beyond a declared number or age."
    can_undo = False
    asked = ({"pattern": "*", "most": 100_000},)

    def __init__(
        self,
        pattern: str | bytes,
        *,
        most: int | None = None,
        age: Duration | None = None,
        name: str = "streams.beyond",
    ) -> None:
        if (most is None and age is None) or (most is not None and most < 0):
            raise ConfigurationError(
                f"the bound of streams is most={most!r} and age={age!r}; expected a number of"
                " entries, 0 or more, or a time, or both"
            )
        self.name, self.where = name, keys(pattern, "stream")
        self._most = -1 if most is None else most
        self._age = -1 if age is None else int(1000 * seconds_of(age, "age", 1.0))

    def offer(self) -> Offer:
        """Offer a job on the streams of a family of nobody that is known."""
        most, age = Declared("MOST_ENTRIES", self._most), Declared("OLDEST_AGE", self._age / 1000)
        bounds = {"most": most, "age": age}
        given: dict[str, Any] = {n: each for n, each in bounds.items() if each.assumed >= 0}
        return self._offer(strangers=True, **given)

    def verdict(self, item: Item) -> Verdicts:
        """Judge a stream: it has garbage if it is too long, or its first entry too old."""
        size, first, last = yield look(("XLEN", item.key), *_ends(item.key))
        is_over = 0 <= self._most < size
        if self._age >= 0 and first:
            now = 1000 * item.now
            if not _YEAR_2000_MS <= _number(last[0][0])[0] <= now + _FUTURE_MS:
                return Unknown("its ids are no times")
            is_over |= _number(first[0][0])[0] < now - self._age
        if not is_over:
            return LIVE
        script, own = load("leftovers/bound_stream"), (self._most, self._age)
        return Garbage(script=Operation(script, (item.key,), own))

    def parts(self, item: Item) -> Counting:
        """Count the entries beyond the bounds; those before an age as `_before` does."""
        return (yield from _beyond(item.key, self._most, 1000 * item.now - self._age, self._age))


class StreamLeftovers(Leftovers):
    """Removes acknowledged entries from streams, gone consumers, and entries beyond bounds.

    Arguments:
        pattern: of the streams' names.
        idle: after which a consumer counts as gone, and a group as unread, which a dry run counts,
            like the entries that such consumers have pending, None: none does.
        groups: see `AcknowledgedEntries`.
        most: see `EntriesBeyond`, None: any.
        age: see `EntriesBeyond`, None: any.
        limit: the most entries, or consumers, that a slice removes, by default 1,000: the server
            frees whole nodes of a stream; further ones: of `Leftovers`, but for undo: an entry
            cannot come back to its place.
    """

    def __init__(
        self,
        client: Any,
        pattern: str | bytes,
        *,
        idle: Duration | None = None,
        groups: int = 1,
        most: int | None = None,
        age: Duration | None = None,
        name: str = "stream_leftovers",
        limit: int = 1_000,
        **options: Any,
    ) -> None:
        rules: list[Rule] = [AcknowledgedEntries(pattern, groups)]
        if idle is not None:
            rules += (
                IdleConsumers(pattern, idle),
                UnreadGroups(pattern, idle),
                AbandonedEntries(pattern, idle),
            )
        if most is not None or age is not None:
            rules.append(EntriesBeyond(pattern, most=most, age=age))
        super().__init__(client, rules, name=name, limit=limit, **options)


def _too_many(about: Sequence[Mapping[bytes, Any]], most: int) -> Unknown | None:
    """Return the verdict if a stream has more groups, or consumers, than a rule looks at."""
    if len(about) <= _MOST_GROUPS and sum(each[b"consumers"] for each in about) <= most:
        return None
    return Unknown(f"it has more than {_MOST_GROUPS:,} groups, or {most:,} consumers in them")


def _consumers_of(key: bytes) -> Looks[list[Mapping[bytes, Any]]]:
    """Return what the server says of all consumers of a stream."""
    (groups,) = yield look(("XINFO", "GROUPS", key))
    names = [about[b"name"] for about in map(_as_dict, groups) if about[b"consumers"]]
    listed = yield look(*(("XINFO", "CONSUMERS", key, each) for each in names))
    return [_as_dict(one) for each in listed for one in each]


def _acknowledged(key: bytes) -> Counting:
    """Count a stream's entries before the first that some group still needs.

    From Redis 7 on a group says how many entries lie behind the last one that it was given. The
    other entries are read, 500 at most from each side; with more on both sides, the count is an
    estimate between two bounds: see `_before`.
    """
    groups, length = yield look(("XINFO", "GROUPS", key), ("XLEN", key))
    about = [_as_dict(each) for each in groups]
    if not about or not length or len(about) > _MOST_GROUPS:
        return exactly(0, length)
    pending = yield look(*(("XPENDING", key, each[b"name"], "-", "+", 1) for each in about))
    needed = [each[0][0] for each in pending if each]
    last = min(about, key=lambda each: _number(each[b"last-delivered-id"]))
    given, lag = last[b"last-delivered-id"], last.get(b"lag")
    known = length - lag if isinstance(lag, int) and 0 <= lag <= length else None
    first_needed = min(needed, key=_number, default=None)
    if first_needed is None or _number(first_needed) > _number(given):
        if known is not None:
            return exactly(known, length)
        return (yield from _before(key, length, given, (b"(" + given, b"+"), length))
    if known is None:
        known, given = length, b"+"
    end = b"(" + first_needed
    return (yield from _before(key, length, end, (first_needed, given), known))


def _beyond(key: bytes, most: int, since_ms: float, age: int) -> Counting:
    """Count the entries that `EntriesBeyond` removes: a bound below 0 is none."""
    (length,) = yield look(("XLEN", key))
    beyond = max(0, length - most) if most >= 0 else 0
    if age < 0:
        return exactly(beyond, length)
    oldest = b"%d-0" % max(0, int(since_ms))
    old = yield from _before(key, length, b"(" + oldest, (oldest, b"+"), length)
    # Both bounds remove from the beginning on, so the larger number is that of both.
    number, low, high = (max(beyond, each) for each in (old.number, old.low, old.high))
    return Parts(number, length, low, high)


def _before(
    key: bytes, length: int, end: bytes, behind: tuple[bytes, bytes], known: int
) -> Counting:
    """Count the first entries of a stream, up to an end of a range.

    Arguments:
        length: of the stream.
        end: of the range from the first entry on.
        behind: the two ends of the range of those behind it.
        known: how many entries both ranges have together.

    At most 500 entries of each range are read. Returns: the exact number where one of them is
    shorter; else bounds that are certain, and between them what the times in the ids tell, as if
    the entries had come evenly.
    """
    front, rest, first, newest = yield look(
        ("XRANGE", key, "-", end, "COUNT", _COUNTED),
        ("XRANGE", key, *behind, "COUNT", _COUNTED),
        *_ends(key),
    )
    if len(front) < _COUNTED:
        return exactly(len(front), length)
    if len(rest) < _COUNTED:
        return exactly(max(0, known - len(rest)), length)
    low, high = len(front), max(len(front), known - len(rest))
    began, ended = (_number(each[0][0])[0] for each in (first, newest))
    at = _number(end.removeprefix(b"("))[0]
    share = (at - began) / (ended - began) if ended > began else 1.0
    return Parts(min(high, max(low, round(share * length))), length, low, high)


def _ends(key: bytes) -> tuple[Command, Command]:
    """Return the commands that read the first and the last entry of a stream."""
    return ("XRANGE", key, "-", "+", "COUNT", 1), ("XREVRANGE", key, "+", "-", "COUNT", 1)


def _as_dict(reply: Any) -> Mapping[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _number(name: bytes) -> tuple[int, int]:
    ms, _, sequence = name.partition(b"-")
    return int(ms), int(sequence)
