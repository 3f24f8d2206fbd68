"""Reading: the ring of a group says whose turn it is, whatever the number of streams.

A script must be told its keys before it knows whose turn it is. Every reply names the streams that
come next, so a reader passes those few. If it is wrong, the script changes nothing, and the reader
calls again with the streams that the new reply names. The third time it passes all streams.

The usual read has a small script of its own. The script follows a plan that the last full read has
left in the queue: the streams that are served next while no other stream gets messages. A script
that lets another stream in, or an entry return, removes the plan, so the plan is always right.

Why no wake-up is lost. A script that puts a stream into an empty ring adds a notification. A look
that finds nothing has left the ring empty, and returns the last id of the notifications. So a
stream that comes in after the look comes with a notification of a greater id. XREAD BLOCK from that
id returns at once if the notification was added before it, however many other notifications came:
the stream keeps the last one, and one is enough, because each reader that wakes looks for itself.
The writers of the legacy stream add no notification, so the same XREAD waits on that stream too,
from its last id at the look. A delayed message returns at its time without a notification, so a
look tells when the next one returns. A script that delays a message adds a notification, so that
waiting readers learn the time.

A notification names the stream that came in, and a reader that wakes looks there first. The name is
only a guess: the look serves the stream whose turn it is, and finds nothing only if the ring is
empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redis.exceptions import RedisError, ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.recruiting.checks import checked_count
from workstealing.store.blocking import block_ms
from workstealing.store.grants import AskedReads, Asking, Receipts, asks
from workstealing.store.operations import Operation, Steps, Wait
from workstealing.structures.layout import as_text, checked_text
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT, Patience
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.message import Message, note_pickup_delay, read_message
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    MOST_STREAMS,
    RETURNED,
    QueueNames,
)
from workstealing.structures.shuffle_queue.streams import LEAST_WINDOW, Turns, View

ANNOUNCE_SECONDS = 5.0
CONSUMERS_KNOWN = 4096
MOST_MESSAGES = 1000
# After so many reads that found what they expected, a quarter fewer streams are passed: what an
# empty stretch of the ring has let it grow to costs the server more than the read itself.
_HITS_TO_SHRINK = 16
_FOUND, _NOTHING, _UNEXPECTED, _AGAIN, _UNKNOWN_GROUP = range(5)


@dataclass(frozen=True, slots=True)
class NoMessages:
    """The reply of a look that found nothing; a wait from here misses no moment.

    Fields: notification and legacy: the last ids of these streams at the very look; wait_ms: until
    a delayed message returns, None if none does.
    """

    notification: str
    legacy: str
    wait_ms: int | None


def block_command(keys: QueueNames, nothing: NoMessages, seconds: float) -> tuple[Any, ...]:
    """Return the command that waits from the very moment of a look."""
    return (
        *("XREAD", "COUNT", 1, "BLOCK", block_ms(seconds)),
        *("STREAMS", keys.notifications, keys.legacy, nothing.notification, nothing.legacy),
    )


def woken_by(keys: QueueNames, reply: Any) -> int | None:
    """Return the number of the stream that a wait's reply names, None if it names none."""
    if not reply:
        return None
    # A dict of streams by RESP3, a list of pairs by RESP2.
    found = dict(reply.items() if isinstance(reply, dict) else reply)
    if keys.legacy in found:
        return LEGACY
    try:
        ((_, (_, number)),) = found[keys.notifications]
        named = int(number)
    except (KeyError, TypeError, ValueError):
        # Others may have written anything there.
        return None
    return named if LEGACY <= named < MOST_STREAMS else None


class ReadingMessages(QueueBase):
    """The operations `read` and `read_many`, and this process's knowledge of the groups."""

    @asks
    def read(
        self,
        group: str | bytes,
        consumer: str | bytes,
        block: Duration = 0,
        prefer_stream: int | None = None,
    ) -> Asking[Message | None]:
        """Return the message whose turn it is, or None; never take more than one.

        The streams that have messages for the group take turns, one order for all readers. A
        message stays pending until `ack`; `nack` gives it back.

        Arguments:
            group: it is created if needed, and gets every message that the queue holds.
            consumer: a name of this reader's own.
            block: how long to wait for a message, in seconds or a timedelta, 0 not to wait.
            prefer_stream: the number of a stream that goes first, if it has messages.

        Raises: ConfigurationError; LayoutError. One round trip and about ten Redis commands,
        however many streams there are, if the read before has seen the streams that are next in
        turn; two more round trips at worst. One more round trip every five seconds, to show that
        the consumer is alive.

        A read that redis-py sends twice is answered by the same message. A call that is interrupted
        or cut off gives back what it was granted, within the client's own time-out.
        """
        return self._looking_on(group, consumer, None, block, prefer_stream)

    @asks
    def read_many(
        self,
        group: str | bytes,
        consumer: str | bytes,
        n: int,
        block: Duration = 0,
        prefer_stream: int | None = None,
    ) -> Asking[list[Message]]:
        """Return up to n messages, in turn: one of each stream, and round again.

        Arguments:
            n: 1 to 1,000; others as of `read`.

        Returns: a list, empty if nothing came. The call waits for the first message only. Raises:
        as `read`. More than 100 are read in pieces of up to 100, each by a script of its own; other
        consumers may read in between. A fault after the first piece ends the call with the messages
        that were read. If the process is killed after the first piece, the messages that it has
        read stay pending until the reaper returns them. Round trips as of `read` for each piece;
        about six Redis commands a message.
        """
        return self._looking_on(
            group, consumer, checked_count(n, "n", 1, MOST_MESSAGES), block, prefer_stream
        )

    def _looking_on(
        self,
        group: str | bytes,
        consumer: str | bytes,
        n: int | None,
        block: Duration,
        prefer_stream: int | None,
    ) -> Asking[Any]:
        """Check the arguments of a read, and return what it asks; n: None for one message alone."""
        view = self._view(group)
        consumer = checked_consumer(consumer)
        prefer = checked_stream(prefer_stream)
        seconds = seconds_of(block, "block") if block else 0.0
        # A sleeper uses the queue too.
        patience = Patience(seconds, self.ttl / 3, not self.notify, self.monotonic)
        asked = AskedReads(self._receipts, consumer)
        steps = self._reading_on(view, asked, n, prefer, patience)
        return Asking(
            steps,
            lambda: self._withdrawing(view, asked),
            asked,
            lambda: self._preparing(view, consumer),
        )

    def _preparing(self, view: View, consumer: str | bytes) -> Steps[None]:
        if (yield from self._announced_anew(view, consumer)) and view.plan:
            # A full look is due.
            self._expect(view, view.plan, view.last)
            view.plan = None

    @cached_property
    def _receipts(self) -> Receipts:
        return Receipts(self.keys.receipt)

    def _withdrawing(self, view: View, asked: AskedReads) -> Steps[None]:
        """Give back what the reads of a call were granted, by their receipts; one round trip."""
        keys, names = self.keys, view.names
        beside = (names.ring, names.returned, names.delayed, keys.legacy)
        fixed = (keys.meta, keys.notifications, *beside)
        operations = [
            self._step(
                "withdraw",
                (*fixed, receipt.key, *map(keys.stream, streams)),
                *(names.group, asked.consumer, receipt.number, *streams),
            )
            for receipt, streams in asked.open()
        ]
        if operations:
            yield operations

    def _reading_on(
        self,
        view: View,
        asked: AskedReads,
        n: int | None,
        prefer: int | None,
        patience: Patience,
    ) -> Steps[Any]:
        """Look, wait and look again, until something is found or the time is over."""
        woken = None
        asked.begin()
        while True:
            try:
                found = yield from self._looking(view, asked, n or 1, prefer, woken)
            except UnicodeDecodeError:
                # The reply was there. Given back at once, the message would go round for ever.
                asked.note_nothing()
                raise
            if not isinstance(found, NoMessages):
                asked.end()
                return found[0] if n is None else found
            asked.note_nothing()
            seconds = patience.next_seconds(found.wait_ms)
            if seconds is None:
                asked.end()
                return None if n is None else []
            command = block_command(self.keys, found, seconds)
            woken = woken_by(self.keys, (yield Wait(self.keys.slot, command, seconds)))

    @cached_property
    def _views(self) -> dict[str | bytes, View]:
        return {}

    def _view(self, group: str | bytes) -> View:
        """Return this process's knowledge of a group.

        Raises: ConfigurationError for anything but a group's name.
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
                names, fixed, as_text(group), first, self.streams, self._delays_of(names)
            )
        return known

    def _looking(
        self,
        view: View,
        asked: AskedReads,
        n: int,
        prefer: int | None,
        woken: int | None = None,
    ) -> Steps[list[Message] | NoMessages]:
        """Look for at most n messages, at most `MESSAGES_A_SCRIPT` by each script.

        Arguments:
            view: of the group.
            asked: of the call.
            prefer: the number of a stream that goes first, or None.
            woken: the number of the stream that a notification named, or None.

        Returns: the messages, or `NoMessages`. Raises: LayoutError. One round trip for each piece,
        if it goes as expected.
        """
        piece = min(n, MESSAGES_A_SCRIPT)
        found = yield from self._look_once(view, asked, piece, prefer, woken)
        if isinstance(found, NoMessages):
            return found
        messages, is_more = found
        while is_more and len(messages) < n:
            piece = min(n - len(messages), MESSAGES_A_SCRIPT)
            receipt = asked.begin()
            try:
                found = yield from self._look_once(view, asked, piece, None)
            except (RedisError, OSError, LayoutError) as error:
                # What was delivered must not be lost by what was not. The next call meets the
                # fault again; a host's time-out passes.
                asked.note_cut(receipt, error)
                break
            if isinstance(found, NoMessages):
                asked.note_nothing()
                break
            more, is_more = found
            messages += more
        return messages

    def _look_once(
        self,
        view: View,
        asked: AskedReads,
        n: int,
        prefer: int | None,
        woken: int | None = None,
    ) -> Steps[tuple[list[Message], bool] | NoMessages]:
        """Look once, for n messages at most; say too whether more may be left."""
        # A plan may go round for ever. A full look, which lets a legacy stream in, is due both
        # after so many messages and after so long.
        is_due = (yield from self._announced_anew(view, asked.consumer)) or view.delays.is_full
        left = ""
        if n == 1 and prefer is None and view.plan and not is_due:
            found = yield from self._next(view, asked)
            if isinstance(found, Message):
                return [found], False
            left = found
        elif view.plan:
            self._expect(view, view.plan, view.last)
        counts = view.delays.take()
        try:
            looked = yield from self._full_look(view, asked, n, prefer, woken, left, counts)
        except (ResponseError, LayoutError):
            view.delays.put_back(counts)
            raise
        return looked

    def _next(self, view: View, asked: AskedReads) -> Steps[Message | str]:
        """Read as planned.

        Returns: the message; or, for a full look to come, the id of an entry of the first expected
        stream that was read but must not be served, empty if there is none.
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
            receipt = asked.ask(numbers)
            reply = yield Operation(
                self._script("next"),
                (keys.meta, receipt.key, *[keys.stream(int(number)) for number in numbers]),
                (view.names.group, asked.consumer, plan.name, last, receipt.number),
            )
            if isinstance(reply, list):
                seconds, micros, first, entry = reply
                number = as_text(first)
                if seconds:
                    now = int(seconds) * 1000 + int(micros) // 1000 + self.clock_shift_ms
                    view.last = number
                    self._note_hit(view)
                    # Other looks' delays are counted by the scripts that serve them.
                    found = [(number, entry[0], 1, entry[1])]
                    (message,) = self._messages(view, asked.consumer, now, found)
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
            view.plan, view.last = Turns.of(planned), last
            self._note_miss(view)
            window = MOST_STREAMS
        if view.plan:
            self._expect(view, view.plan, view.last)
        return ""

    def _expect(self, view: View, plan: Turns, last: str, *first: str) -> None:
        """Expect the streams that follow the last served one in a plan."""
        heads = (*first, *plan.following(last, MOST_STREAMS))
        if plan.end is not None:
            heads += (plan.end,)
        view.heads = tuple(map(int, dict.fromkeys(heads)))

    def _full_look(  # noqa: PLR0917 - one caller, which has these
        self,
        view: View,
        asked: AskedReads,
        n: int,
        prefer: int | None,
        woken: int | None,
        left: str,
        counts: str,
    ) -> Steps[tuple[list[Message], bool] | NoMessages]:
        """Look by the script for all cases, which makes the next plan."""
        script = self._script("read")
        keys = self.keys
        first = "" if prefer is None else prefer
        missed = 0
        expected = view.heads[: max(view.window, n)]
        if woken is not None and not left:
            # The stream that filled an empty ring is most likely the one that is in it.
            expected = () if woken == LEGACY else (woken,)
        while True:
            if prefer is not None and prefer not in expected:
                expected = (prefer, *expected)
            window = max(view.window, n)
            receipt = asked.ask((LEGACY, *expected))
            reply = yield Operation(
                script,
                (*view.fixed, receipt.key, *[keys.stream(number) for number in expected]),
                (
                    *(view.names.group, asked.consumer, n, window, first),
                    *(int(view.is_short), counts, left, receipt.number, *expected),
                ),
            )
            kind, now, next_heads, *rest = reply
            left, view.plan = "", None
            heads = tuple(number for number in map(int, next_heads) if number != LEGACY)
            if kind == _FOUND:
                text, *rest = rest
                view.heads = heads
                view.is_short = len(heads) < window
                plan = Turns.of(as_text(text))
                if plan:
                    # A plan goes round where it has seen the whole ring.
                    view.plan, view.last = plan, as_text(rest[-1][0])
                    view.is_short = plan.end is None
                    self._expect(view, plan, view.last)
                    heads = view.heads
                view.fresh = True
                self._note_hit(view)
                is_cut = bool(heads) and heads[0] not in expected
                messages = self._messages(view, asked.consumer, now, rest)
                return messages, len(rest) >= n or is_cut
            if kind == _NOTHING:
                # The stream that was served before is the likeliest next one, but that is a guess.
                view.fresh = False
                wait = int(rest[2])
                return NoMessages(as_text(rest[0]), as_text(rest[1]), None if wait < 0 else wait)
            if kind == _UNKNOWN_GROUP:
                # The queue was deleted, or lost, since this process was here; its namespace too,
                # perhaps, without which no job finds it.
                self.forget()
                yield from self._joining(view)
            elif kind == _UNEXPECTED:
                missed += 1
                view.span = max(view.span, int(rest[0]))
                if view.fresh or missed > 1:
                    self._note_miss(view)
                expected = heads
                if missed > 1:
                    # Others are faster: with all streams passed, none can be missing.
                    expected = tuple({*range(view.span), *heads})
            else:
                asked.renew()
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

    def _announced_anew(self, view: View, consumer: str | bytes) -> Steps[bool]:
        """Say that a consumer is alive if that is due; return whether it was."""
        announced = view.announced.get(consumer)
        # A queue that is read is in use, however short its time to live.
        often = min(ANNOUNCE_SECONDS, self.ttl / 4)
        if announced is not None and self.monotonic() - announced < often:
            return False
        yield from self._announcing(view, consumer)
        return True

    def _announcing(self, view: View, consumer: str | bytes) -> Steps[None]:
        """Say that a consumer is alive, and let its group read the queue.

        Arguments:
            view: of the group.
            consumer: its name.

        The same command sends the pickup delays that the view has noted so far. Raises:
        LayoutError. One round trip; two more for a group that is not registered.
        """
        is_new = self._place is None
        due, mark, text = self._place or (yield from self._placing())
        keys, names = self.keys, view.names
        counts = view.delays.take()
        for _ in range(2):
            try:
                known = yield self._step(
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
                # If the queue is gone, the namespace may be gone too.
                self.forget()
            yield from self._joining(view)
            due, mark, text = self._place or (yield from self._placing())
        if len(view.announced) >= CONSUMERS_KNOWN:
            # Consumers that still read are announced once more.
            view.announced = {}
        view.announced[consumer] = self.monotonic()

    def _joining(self, view: View) -> Steps[None]:
        """Register a group, and find the streams that hold messages already.

        Arguments:
            view: of the group.

        Raises: LayoutError. One round trip, or two if there are more streams than this process
        knew.
        """
        due, mark, text = self._place or (yield from self._placing())
        keys, names = self.keys, view.names
        fixed = (keys.meta, due, mark, keys.notifications, keys.legacy, names.ring)
        while True:
            done, span = yield self._step(
                "join",
                (*fixed, *keys.streams(view.span)),
                *(text, keys.name, self.ttl_ms, names.group, self.streams),
            )
            view.span = int(span)
            if done:
                # The writers' view of the groups is an old one now.
                self._has_learned = False
                return


def checked_consumer(consumer: object) -> str | bytes:
    """Return a consumer's name. Raises: ConfigurationError for anything else."""
    name = checked_text(consumer, "consumer")
    if name in {RETURNED, RETURNED.encode()}:
        raise ConfigurationError(f"the consumer {consumer!r} is the queue's own: give another name")
    return name


def checked_stream(stream: object) -> int | None:
    """Return the number of a preferred stream. Raises: ConfigurationError for anything else."""
    if stream is None:
        return None
    if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream < MOST_STREAMS:
        raise ConfigurationError(
            f"prefer_stream={stream!r} is no stream: give a number from 0 to {MOST_STREAMS - 1}"
        )
    return int(stream)
