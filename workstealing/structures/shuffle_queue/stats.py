"""The state of a shuffle queue: how many messages wait, for whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.store.operations import Operation, Steps, operation
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.names import (
    DELAY_PREFIX,
    LEGACY,
    RETURNED,
    GroupNames,
    QueueNames,
)
from workstealing.structures.shuffle_queue.streams import PickupDelays

MOST_MESSAGES = 10_000
"""How many messages `stats` looks at by default, to tell the tenants apart."""
MOST_CONSUMERS = 1_000
_GROUPS_NAMED = 8
STREAMS_A_SCRIPT, ENTRIES_A_STREAM, ENTRIES_A_SCRIPT = 64, 32, 256

COUNTERS = ("redelivered", "overdue")
TOPS = tuple(2**i for i in range(53))
STANDINGS = ("waiting", "pending", "returned", "delayed")
T = TypeVar("T")


def percentile(histogram: Mapping[int, int], share: float) -> int | None:
    """Return the number of ms within which a share of the messages was picked up.

    Arguments:
        histogram: `stats(group)["pickup_delay_ms"]`.
        share: more than 0, at most 1; 0.99 for the 99th percentile.

    Returns: the top of the histogram's bucket, so at most twice the true value; None for a
    histogram without a message. Raises: ConfigurationError for any other share.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigurationError(f"share={share!r} is no share: give more than 0 and at most 1")
    wanted = share * sum(histogram.values())
    seen = 0
    for top in sorted(histogram):
        seen += histogram[top]
        if seen and seen >= wanted:
            return top
    return None


class Describing(QueueBase):
    """The operation `stats`."""

    @operation
    def stats(
        self, group: str | bytes, most_messages: int = MOST_MESSAGES
    ) -> Steps[dict[str, Any]]:
        """Describe the queue as one group sees it.

        Arguments:
            group: if no group has read yet, it sees every message as waiting.
            most_messages: how many messages to look at, at most, to count the tenants' messages (0:
                leave the tenants out).

        Returns a dict:

        - length: messages in all streams, acknowledged by some groups or not;
        - waiting: messages that the group was never given; pending: messages that its consumers
          have in hand; returned: messages that are served again at their stream's turn; delayed:
          messages that `nack` has put off; dead: messages that failed too often;
        - oldest_waiting_seconds: for how long, in seconds by the server's clock, the oldest of the
          waiting and the returned ones has been in the queue; None if there is none;
        - delivered, redelivered: deliveries of a message for the first time, and again; overdue:
          messages that were dropped at their deadline; cancelled: messages that `cancel` has
          deleted, for all groups;
        - pickup_delay_ms: the histogram of first deliveries: top -> how many had a pickup delay
          of at most top ms, and of more than half of it (tops are powers of two; not cumulative);
          see `percentile`;
        - consumers: name -> pending, and seen_seconds, for how long it has not been seen (None: its
          name is no longer known); the last 1,000 seen, and all with pending messages;
        - tenants: tenant (None: entries of the legacy stream without one) -> waiting, pending,
          returned and delayed;
        - exact: whether all messages were looked at. If not, the tenants' counts are those of the
          oldest messages, and `waiting` may count messages that this group has acknowledged and
          another one has not;
        - streams: number -> length, waiting, pending, returned and delayed, of streams with any;
          legacy: the same for the legacy stream, None if it is empty.

        Each script is exact for its moment; a busy queue moves on between two scripts. Raises:
        ConfigurationError for unusable arguments, and for a group that has never read the queue,
        although others have; LayoutError. Costs one script, one more for each
        64 streams, and one more for each 256 messages that it looks at (it reads them whole), with
        a round trip each.
        """
        if (
            isinstance(most_messages, bool)
            or not isinstance(most_messages, int)
            or most_messages < 0
        ):
            raise ConfigurationError(
                f"most_messages={most_messages!r} is no number of messages to look at: give a whole"
                " number from 0 on"
            )
        names = self.keys.group(group)
        delays = self._delays_of(names)
        return _Looking(self.keys, self._step, delays, names, int(most_messages)).steps()


@dataclass(slots=True)
class _Seen:
    """One stream, as far as it is known."""

    number: int
    length: int = 0
    pending: int = 0
    # Pending entries to be served again, at once or later, and the number of them that may be
    # served now.
    kept: int = 0
    returned: int = 0
    oldest: int | None = None
    delivered: int = 0
    waiting: int = 0
    # From where to count on; None when all is counted.
    cursor: str | None = "-"

    @property
    def all_waiting(self) -> int:
        """How many wait: the count, or else all but the entries that are known not to wait."""
        if self.cursor is None:
            return self.waiting
        return max(self.waiting, self.length - max(self.delivered, self.pending))


@dataclass(slots=True)
class _Looking:
    """One call of `stats`, step by step."""

    keys: QueueNames
    step: Callable[..., Operation]
    delays: PickupDelays
    group: GroupNames
    budget: int
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict)
    tenants: dict[str | None, list[int]] = field(default_factory=dict)

    def steps(self) -> Steps[dict[str, Any]]:
        """Look, and return what `stats` returns."""
        head = yield self._head()
        now, span, cancelled, returned, delayed, dead, known, seen, state, has_read = head
        if not has_read:
            yield from self._require_group()
        for name, at in _pairs(seen):
            self.consumers[as_text(name)] = {"pending": 0, "seen_seconds": _seconds(now, float(at))}
        streams = [_Seen(number) for number in (LEGACY, *range(span))]
        yield from self._look(streams)
        ages = [_seconds(now, each.oldest) for each in streams if each.oldest is not None]
        # In order, without streams that have no message.
        delays = zip(TOPS, state[len(COUNTERS) :], strict=True)
        histogram = {top: count for top, count in delays if count}
        described = {
            each.number: {
                "length": each.length,
                "waiting": each.all_waiting,
                "pending": each.pending - each.kept,
                "returned": each.returned,
                "delayed": max(0, each.kept - each.returned),
            }
            for each in streams
            if each.length or each.pending
        }
        return {
            "group": as_text(self.group.group),
            "length": sum(each.length for each in streams),
            "waiting": sum(each.all_waiting for each in streams),
            "pending": sum(each.pending - each.kept for each in streams),
            "returned": returned,
            "delayed": delayed,
            "dead": dead,
            "oldest_waiting_seconds": max(ages, default=None),
            "delivered": sum(histogram.values()),
            **dict(zip(COUNTERS, state[: len(COUNTERS)], strict=True)),
            "cancelled": cancelled,
            "pickup_delay_ms": histogram,
            "consumers": self.consumers,
            "known_consumers": known,
            "tenants": {
                tenant: dict(zip(STANDINGS, count, strict=True))
                for tenant, count in self.tenants.items()
            },
            "exact": all(each.cursor is None for each in streams),
            "legacy": described.pop(LEGACY, None),
            "streams": described,
        }

    def _require_group(self) -> Steps[None]:
        """Refuse a group that has never read a queue of others: its zeros would be no answer."""
        groups = yield self.step("groups", (self.keys.meta,))
        if groups:
            shown = ", ".join(sorted(repr(as_text(each)) for each in groups)[:_GROUPS_NAMED])
            more = ", ..." if len(groups) > _GROUPS_NAMED else ""
            raise ConfigurationError(
                f"the group {as_text(self.group.group)!r} has never read this queue, so nothing is"
                f" known of it: give one of its groups ({shown}{more})"
            )

    def _head(self) -> Operation:
        group = self.group
        keys = (
            *(self.keys.meta, group.state, group.returned),
            *(group.delayed, group.consumers, group.dead),
        )
        tops = (f"{DELAY_PREFIX}{top}" for top in TOPS)
        counts = self.delays.take()
        fixed = (MOST_CONSUMERS, group.group, counts)
        return self.step("stats", keys, *fixed, *COUNTERS, *tops)

    def _look(self, streams: Sequence[_Seen]) -> Steps[None]:
        """Look at all streams once, then at streams with more, as far as the budget goes."""
        share = min(ENTRIES_A_STREAM, self.budget // len(streams))
        yield from self._round(streams, share, is_first=True)
        while self.budget and (left := [each for each in streams if each.cursor is not None]):
            share = max(1, min(ENTRIES_A_SCRIPT, self.budget // len(left)))
            yield from self._round(left[: self.budget // share], share, is_first=False)

    def _round(self, streams: Sequence[_Seen], share: int, *, is_first: bool) -> Steps[None]:
        """Look once at some streams, and count at most so many entries of each."""
        size = min(STREAMS_A_SCRIPT, ENTRIES_A_SCRIPT // max(share, 1))
        for page in _runs(streams, size):
            described = yield self._page(page, share)
            for seen, reply in zip(page, described, strict=True):
                self._note(seen, reply, is_first=is_first)
                if not share and seen.length:
                    seen.cursor = "-"

    def _page(self, page: Sequence[_Seen], share: int) -> Operation:
        keys, group = self.keys, self.group
        args: list[Any] = [RETURNED]
        for seen in page:
            own = keys.name if seen.number == LEGACY else group.group
            args += (seen.number, own, seen.cursor, share)
        streams = (keys.stream(seen.number) for seen in page)
        return self.step(
            "stats_streams", (keys.meta, group.returned, group.delayed, *streams), *args
        )

    def _note(self, seen: _Seen, reply: Sequence[Any], *, is_first: bool) -> None:
        length, pending, returned, *oldest, consumers, delivered, last, tenants = reply
        if is_first:
            seen.length, seen.pending, seen.returned = length, pending, returned
            times = [int(as_text(each).split("-")[0]) for each in oldest if each]
            seen.oldest = min(times, default=None)
            for name, count in _pairs(consumers):
                if as_text(name) == RETURNED:
                    seen.kept = count
                else:
                    known = self.consumers.setdefault(
                        as_text(name), {"pending": 0, "seen_seconds": None}
                    )
                    known["pending"] += count
        looked = delivered
        seen.delivered += delivered
        for name, counts in _pairs(tenants):
            text = as_text(name)
            tenant = text[1:] if text else None
            before = self.tenants.get(tenant, [0] * len(STANDINGS))
            self.tenants[tenant] = [a + b for a, b in zip(before, counts, strict=True)]
            seen.waiting += counts[0]
            looked += counts[0]
        self.budget -= looked
        # An entry that came in after the first look need not be found.
        is_all = seen.delivered + seen.waiting >= seen.length
        seen.cursor = f"({as_text(last)}" if last and not is_all else None


def _seconds(now: int, then: float) -> float:
    return float(max(0.0, (now - then) / 1000))


def _pairs(flat: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a flat reply."""
    return zip(flat[::2], flat[1::2], strict=True)


def _runs(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
