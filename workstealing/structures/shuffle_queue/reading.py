"""Reading: the ring of a group says whose turn it is, whatever the number of streams.

A script must be told its keys before it knows whose turn it is. So a reader passes the few streams
that it expects next, which every reply names; if it was wrong, nothing is changed, and it calls
again with those that the reply names then; the third time it passes all of them.

The usual read has a small script of its own: it goes by the plan that the last full read has left
in the queue, of whom is served next while no other stream gets messages. Whoever makes another
stream come in, or an entry return, removes the plan in the same script, so that it is always right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Operation, Steps
from workstealing.structures.names import checked_text
from workstealing.structures.shuffle_queue.base import QueueBase, same
from workstealing.structures.shuffle_queue.delays import PickupDelays
from workstealing.structures.shuffle_queue.message import (
    Message,
    as_text,
    note_pickup_delay,
    read_message,
)
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    MESSAGES_A_SCRIPT,
    MOST_STREAMS,
    RETURNED,
    GroupNames,
)
from workstealing.structures.shuffle_queue.plan import Plan

ANNOUNCE_SECONDS = 5.0
CONSUMERS_KNOWN = 4096
MOST_MESSAGES = 1000
LEAST_WINDOW = 2
# After so many reads that found what they expected, a quarter fewer streams are passed: what an
# empty stretch of the ring has let it grow to costs the server more than the read itself.
_HITS_TO_SHRINK = 16
_FOUND, _NOTHING, _UNEXPECTED, _AGAIN, _UNKNOWN_GROUP = range(5)


@dataclass(slots=True)
class View:
    """What this process knows of one group: a guess that only saves round trips.

    Fields: names: of the group's keys; fixed: the keys that every read passes; text: the group's
    name; heads: numbers of the streams that are expected next; window: how many are passed;
    plan: of who is served next, if there is one; last: the number of the stream that was served
    last, as a text; span: how many streams there are; delays: pickup delays to be counted; hits:
    reads since the window was changed; fresh: whether the heads are those of the last reply;
    is_short: whether the ring was shorter than the window; announced: consumer -> when it was last
    announced, by this process's clock.
    """

    names: GroupNames
    fixed: tuple[bytes, ...]
    text: str
    heads: tuple[int, ...]
    span: int
    delays: PickupDelays
    plan: Plan | None = None
    last: str = ""
    window: int = LEAST_WINDOW
    hits: int = 0
    fresh: bool = False
    is_short: bool = True
    announced: dict[str | bytes, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nothing:
    """What a look that found nothing says, so that not a moment is missed after it.

    Fields: notification and legacy: the last ids of these streams at the very look; wait_ms: until
    a delayed message returns, None if none does.
    """

    notification: str
    legacy: str
    wait_ms: int | None


class Reading(QueueBase):
    """The steps of a look for messages, which never waits."""

    @cached_property
    def _views(self) -> dict[str | bytes, View]:
        return {}

    def view(self, group: str | bytes) -> View:
        """Return what this process knows of a group.

        Errors: ConfigurationError for what is no group's name.
        """
        try:
            known = self._views.get(group)
        except TypeError:
            known = None
        if known is None:
            keys = self.keys
            names = keys.group(group)
            fixed = (
                *(keys.meta, keys.notifications, keys.legacy, names.ring, names.state),
                *(names.pending, names.returned, names.delayed, keys.tracking),
                keys.deadlines,
            )
            first = tuple(range(min(self.streams, LEAST_WINDOW)))
            known = self._views[group] = View(
                names, fixed, as_text(group), first, self.streams, self.delays_of(names)
            )
        return known

    def look_steps(
        self,
        view: View,
        consumer: str | bytes,
        n: int,
        prefer: int | None,
        woken: int | None = None,
    ) -> Steps[list[Message] | Nothing]:
        """Look for at most n messages, at most `MESSAGES_A_SCRIPT` by each script.

        Arguments: view: of the group; consumer: its name; n; prefer: the number of a stream that
        goes first, or None; woken: the number of the stream that a notification has named, or None.
        Returns: the messages, or `Nothing`. Errors: LayoutError. One round trip for each piece, if
        it goes as expected.
        """
        piece = min(n, MESSAGES_A_SCRIPT)
        found = yield from self._look_once(view, consumer, piece, prefer, woken)
        if isinstance(found, Nothing):
            return found
        messages, is_more = found
        while is_more and len(messages) < n:
            piece = min(n - len(messages), MESSAGES_A_SCRIPT)
            try:
                found = yield from self._look_once(view, consumer, piece, None)
            except Exception:  # noqa: BLE001 - what was delivered must not be lost by what was not
                break
            if isinstance(found, Nothing):
                break
            more, is_more = found
            messages += more
        return messages

    def _look_once(
        self,
        view: View,
        consumer: str | bytes,
        n: int,
        prefer: int | None,
        woken: int | None = None,
    ) -> Steps[tuple[list[Message], bool] | Nothing]:
        """Look once, for one piece; say too whether there may be more than was found."""
        announced = view.announced.get(consumer)
        # A queue that is read is in use, however short its time to live.
        often = min(ANNOUNCE_SECONDS, self.ttl / 4)
        # A plan may go round for ever; a full look, by which a legacy stream comes in, is due both
        # after so many messages and after so long.
        is_due = view.delays.is_full
        if announced is None or self.monotonic() - announced >= often:
            yield from self.announce_steps(view, consumer)
            is_due = True
        left = ""
        if n == 1 and prefer is None and view.plan and not is_due:
            found = yield from self._next(view, consumer)
            if isinstance(found, Message):
                return [found], False
            left = found
        elif view.plan:
            self._expect(view, view.plan, view.last)
        counts = view.delays.take()
        try:
            looked = yield from self._full_look(view, consumer, n, prefer, woken, left, counts)
        except (ResponseError, LayoutError):
            view.delays.put_back(counts)
            raise
        return looked

    def _next(self, view: View, consumer: str | bytes) -> Steps[Message | str]:
        """Read as planned.

        Returns: the message; or, for a full look to come, the id of the entry of the first expected
        stream that was read but is not to be served, empty if there is none.
        """
        keys = self.keys
        # One reader alone knows exactly whose turn it is.
        window = view.window - 1
        for _ in range(2):
            # Another thread may change the view; what is sent is of one moment.
            plan, last = view.plan, view.last
            numbers = plan.following(last, window) if plan else ()
            if plan is None or not numbers:
                break
            reply = yield Operation(
                self.script("next"),
                (keys.meta, *[keys.stream(int(number)) for number in numbers]),
                (view.names.group, consumer, plan.name, last),
                same,
            )
            if isinstance(reply, list):
                seconds, micros, first, entry = reply
                number = as_text(first)
                if seconds:
                    now = int(seconds) * 1000 + int(micros) // 1000 + self.clock_shift_ms
                    view.last = number
                    self._note_hit(view)
                    # Those of all other looks are counted where they are served.
                    found = [(number, entry[0], 1, entry[1])]
                    (message,) = self._messages(view, consumer, now, found)
                    view.delays.add(message.pickup_delay_ms)
                    return message
                self._expect(view, plan, number, number)
                view.plan = None
                return as_text(entry)
            if not reply:
                # Most often the stream whose turn it is has nothing left.
                self._expect(view, plan, last)
                view.plan = None
                return ""
            last, _, planned = as_text(reply).partition(" ")
            view.plan, view.last = Plan.of(planned), last
            self._note_miss(view)
            window = MOST_STREAMS
        if view.plan:
            self._expect(view, view.plan, view.last)
        return ""

    def _expect(self, view: View, plan: Plan, last: str, *first: str) -> None:
        """Expect the streams that come by a plan after the one that was served last."""
        heads = (*first, *plan.following(last, MOST_STREAMS))
        if plan.end is not None:
            heads += (plan.end,)
        view.heads = tuple(map(int, dict.fromkeys(heads)))

    def _full_look(  # noqa: PLR0917 - one caller, which has these
        self,
        view: View,
        consumer: str | bytes,
        n: int,
        prefer: int | None,
        woken: int | None,
        left: str,
        counts: str,
    ) -> Steps[tuple[list[Message], bool] | Nothing]:
        """Look by the script for all cases, which makes the next plan."""
        script = self.script("read")
        keys = self.keys
        first = "" if prefer is None else prefer
        missed = 0
        expected = view.heads[: max(view.window, n)]
        if woken is not None and not left:
            # What filled an empty ring is most likely the one that is in it.
            expected = () if woken == LEGACY else (woken,)
        while True:
            if prefer is not None and prefer not in expected:
                expected = (prefer, *expected)
            window = max(view.window, n)
            reply = yield Operation(
                script,
                (*view.fixed, *[keys.stream(number) for number in expected]),
                (
                    *(view.names.group, consumer, n, window, first),
                    *(int(view.is_short), counts, left, *expected),
                ),
                same,
            )
            kind, now, next_heads, *rest = reply
            left, view.plan = "", None
            heads = tuple(number for number in map(int, next_heads) if number != LEGACY)
            if kind == _FOUND:
                text, *rest = rest
                view.heads = heads
                view.is_short = len(heads) < window
                plan = Plan.of(as_text(text))
                if plan:
                    # A plan goes round where it has seen the whole ring.
                    view.plan, view.last = plan, as_text(rest[-1][0])
                    view.is_short = plan.end is None
                    self._expect(view, plan, view.last)
                    heads = view.heads
                view.fresh = True
                self._note_hit(view)
                is_cut = bool(heads) and heads[0] not in expected
                return self._messages(view, consumer, now, rest), len(rest) >= n or is_cut
            if kind == _NOTHING:
                # Whoever was served before is the likeliest to be next, but that is a guess.
                view.fresh = False
                wait = int(rest[2])
                return Nothing(as_text(rest[0]), as_text(rest[1]), None if wait < 0 else wait)
            if kind == _UNKNOWN_GROUP:
                # The queue was deleted, or lost, since this process was here; its namespace too,
                # perhaps, without which no job finds it.
                self.forget()
                yield from self.join_steps(view)
            elif kind == _UNEXPECTED:
                missed += 1
                view.span = max(view.span, int(rest[0]))
                if view.fresh or missed > 1:
                    self._note_miss(view)
                expected = heads
                if missed > 1:
                    # Others are faster: with all of them none can be missing.
                    expected = tuple({*range(view.span), *heads})
            else:
                expected = heads or expected

    def _note_hit(self, view: View) -> None:
        view.hits += 1
        if view.hits >= _HITS_TO_SHRINK:
            view.hits = 0
            view.window = max(LEAST_WINDOW, view.window * 3 // 4)

    def _note_miss(self, view: View) -> None:
        # Many readers move the ring on by as many turns between two reads of one of them.
        view.hits = 0
        view.window = min(MOST_STREAMS, view.window * 2)

    def _messages(
        self, view: View, consumer: str | bytes, now: int, found: list[Any]
    ) -> list[Message]:
        name = as_text(consumer)
        messages = [
            read_message(
                int(number), as_text(entry), flat, view.text, name, attempts=int(count), now=now
            )
            for number, entry, count, flat in found
        ]
        for message in messages:
            note_pickup_delay(message)
        return messages

    def announce_steps(self, view: View, consumer: str | bytes) -> Steps[None]:
        """Say that a consumer is alive, and let its group read the queue.

        Arguments: view: of the group; consumer: its name. Returns: nothing; the pickup delays that
        were seen are handed over too. Errors: LayoutError. One round trip; two more for a group
        that is not registered.
        """
        is_new = self._place is None
        due, mark, text = self._place or (yield from self.place_steps())
        keys, names = self.keys, view.names
        counts = view.delays.take()
        for _ in range(2):
            try:
                known = yield self.operation(
                    "announce",
                    (
                        *(keys.meta, due, mark, names.consumers, names.ring, names.state),
                        *(names.pending, names.returned, names.delayed, keys.tracking, names.dead),
                        keys.deadlines,
                    ),
                    *(text, keys.name, self.ttl_ms, names.group, consumer, counts),
                )
            except (ResponseError, LayoutError):
                view.delays.put_back(counts)
                raise
            if known > 0:
                break
            if known < 0 and not is_new:
                # Where there is no queue any more there may be no namespace.
                self.forget()
            yield from self.join_steps(view)
            due, mark, text = self._place or (yield from self.place_steps())
        if len(view.announced) >= CONSUMERS_KNOWN:
            # Whoever still reads is announced once more.
            view.announced = {}
        view.announced[consumer] = self.monotonic()

    def join_steps(self, view: View) -> Steps[None]:
        """Register a group, and find what the streams hold already.

        Arguments: view: of the group. Returns: nothing. Errors: LayoutError. One round trip, or two
        where there are more streams than this process knew.
        """
        due, mark, text = self._place or (yield from self.place_steps())
        keys, names = self.keys, view.names
        fixed = (keys.meta, due, mark, keys.notifications, keys.legacy, names.ring)
        while True:
            done, span = yield self.operation(
                "join",
                (*fixed, *keys.streams(view.span)),
                *(text, keys.name, self.ttl_ms, names.group, self.streams),
            )
            view.span = int(span)
            if done:
                return


def checked_consumer(consumer: object) -> str | bytes:
    """Return a consumer's name. Errors: ConfigurationError for what is none."""
    name = checked_text(consumer, "consumer")
    if name in {RETURNED, RETURNED.encode()}:
        raise ConfigurationError(f"the consumer {consumer!r} is the queue's own: give another name")
    return name


def checked_count(n: object) -> int:
    """Return how many messages to read. Errors: ConfigurationError for what is no such number."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_MESSAGES:
        raise ConfigurationError(
            f"n={n!r} messages cannot be read: give a number from 1 to {MOST_MESSAGES}"
        )
    return n


def checked_stream(stream: object) -> int | None:
    """Return the number of a preferred stream. Errors: ConfigurationError for what is none."""
    if stream is None:
        return None
    if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream < MOST_STREAMS:
        raise ConfigurationError(
            f"prefer_stream={stream!r} is no stream: give a number from 0 to {MOST_STREAMS - 1}"
        )
    return stream
