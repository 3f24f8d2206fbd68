"""Grants: what a server gives to one asker until it ends, and how it is asked for.

A lease, a turn, a message for one reader: a grant whose reply is lost stays granted, and nobody has
its token. So every asker chooses a nonce before it asks, and the server keeps the nonce beside the
grant. Asked again with the same nonce, as redis-py's retries do, it answers the same grant. By the
nonce alone the grant is given back, when the asker is interrupted before it has the reply.

Receipts say which messages a read was granted. A read whose reply is lost leaves its messages with
nobody, until a reaper comes or a lease ends. So a reader names a key before it asks, and the script
that grants messages notes them there: the same read, sent again, is answered by the same messages,
and a shuffle queue is given them back by the receipt alone. A reader uses its keys again, one for
each read that is under way, so there are few of them. The server removes a key a minute after its
last read.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar
from typing import overload as _overload

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.connection import is_elsewhere, moved_of
from workstealing.store.job_client import JobClient, Node, job_client_of
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import (
    Asynchronous,
    Blocking,
    Queued,
    Steps,
    command,
    drive,
    drive_async,
    read_all,
)
from workstealing.store.sending import finish, leaves_open, send_aside, send_aside_async

T = TypeVar("T")
P = ParamSpec("P")
QueuedT = TypeVar("QueuedT", bound=Queued)
ReceiptT = TypeVar("ReceiptT")
# So that a nonce of a user's own takes no more memory than a name should.
_LONGEST = 64


def new_nonce() -> bytes:
    """Return a nonce that nobody else uses: 16 hexadecimal digits."""
    return secrets.token_hex(8).encode()


def checked_nonce(nonce: str | bytes | None) -> bytes:
    """Return a nonce as bytes; a new one for None.

    Raises: ConfigurationError unless it is a text of 1 to 64 bytes.
    """
    if nonce is None:
        return new_nonce()
    raw = to_bytes(nonce) if isinstance(nonce, str | bytes) else b""
    if not 1 <= len(raw) <= _LONGEST:
        raise ConfigurationError(
            f"the nonce {nonce!r} is not usable: give a text of 1 to {_LONGEST} bytes that nobody"
            " else uses, uuid.uuid4().hex for instance"
        )
    return raw


class AskedPieces(Generic[ReceiptT]):
    """The record that a call keeps of the grants that it asks for, piece by piece.

    Attributes: receipts: by which each piece is given back if the call is interrupted; cut: the
    fault by which a piece was cut off, if one was, although the call returns the others.
    """

    __slots__ = ("_lost", "cut", "receipts")

    def __init__(self) -> None:
        self.receipts: list[ReceiptT] = []
        self._lost: list[ReceiptT] = []
        self.cut: Exception | None = None

    def note_cut(self, receipt: ReceiptT, error: Exception) -> None:
        """Note that a piece was cut off, and that the call goes on, or ends, without it."""
        if self.cut is None or not leaves_open(self.cut):
            # A later fault may be certain, and says nothing of this piece.
            self.cut = error
        if receipt not in self._lost:
            self._lost.append(receipt)

    def leave_lost(self) -> None:
        """Leave only the pieces that were cut off to be given back: the others have come."""
        self.receipts = self._lost


class Asking(Generic[T]):
    """Steps that ask for a grant, and the steps that give it back although nobody knows its token.

    Whoever asks chooses a nonce before, which the server keeps beside the grant. If the caller is
    interrupted before it has the reply, the grant is given back by this nonce alone.

    Arguments:
        giving_back: makes the steps that give it back, which must do nothing where nothing was
            granted. They are run once at most.
        asked: of steps that ask for several pieces.
        preparing: makes the steps that a pipeline takes before, so that the first one of `steps` is
            the one that asks.
    """

    __slots__ = ("asked", "giving_back", "is_over", "preparing", "steps")

    def __init__(
        self,
        steps: Steps[T],
        giving_back: Callable[[], Steps[Any]],
        asked: AskedPieces[Any] | AskedTogether | None = None,
        preparing: Callable[[], Steps[Any]] | None = None,
    ) -> None:
        self.steps = steps
        self.giving_back = giving_back
        self.asked = asked
        self.preparing = preparing
        self.is_over = False

    def begins_to_end(self, error: BaseException) -> bool:
        """Say whether an error leaves a grant to be given back; from then on somebody does it."""
        if self.is_over or not leaves_open(error):
            return False
        self.is_over = True
        return True

    @contextmanager
    def cut_off(self) -> Iterator[Exception | None]:
        """Give the fault by which a piece was cut off, if one was, to give back what was lost.

        An interruption meanwhile keeps the other pieces from their caller: then all of them are to
        be given back.
        """
        asked = self.asked
        if asked is None or asked.cut is None:
            yield None
            return
        every = asked.receipts
        try:
            asked.leave_lost()
            yield asked.cut
        except BaseException:
            asked.receipts, self.is_over = every, False
            raise


class AskedTogether:
    """The askings of one pipeline, as one: it is cut off where one of them is.

    Attribute: askings: in the order in which they were queued.
    """

    __slots__ = ("askings",)

    def __init__(self) -> None:
        self.askings: list[Asking[Any]] = []

    def _pieces(self) -> Iterator[AskedPieces[Any] | AskedTogether]:
        return (each.asked for each in self.askings if each.asked is not None)

    @property
    def cut(self) -> Exception | None:
        """The fault by which a piece of one of them was cut off, if one was."""
        cuts = [each.cut for each in self._pieces() if each.cut is not None]
        # A later fault may be certain, and says nothing of the others.
        return next((each for each in cuts if leaves_open(each)), cuts[0] if cuts else None)

    @property
    def receipts(self) -> list[Any]:
        """The receipts of each."""
        return [each.receipts for each in self._pieces()]

    @receipts.setter
    def receipts(self, receipts: list[Any]) -> None:
        for each, some in zip(self._pieces(), receipts, strict=True):
            each.receipts = some

    def note_lost(self, steps: Steps[Any], error: Exception) -> None:
        """Note that the caller has an error in place of all that some steps have asked for."""
        if not leaves_open(error):
            return
        for each in self.askings:
            if each.steps is steps and isinstance(each.asked, AskedPieces):
                for receipt in each.asked.receipts:
                    each.asked.note_cut(receipt, error)

    def leave_lost(self) -> None:
        """Leave only the pieces that were cut off to be given back."""
        for each in self._pieces():
            each.leave_lost()

    def preparing(self) -> Steps[None]:
        """Take the steps that must come before those of the askings."""
        for each in self.askings:
            if each.preparing is not None:
                yield from each.preparing()

    def giving_back(self) -> Steps[None]:
        """Give back what was granted; what a server refuses ends by itself."""
        for each in self.askings:
            with suppress(ResponseError, LayoutError):
                yield from each.giving_back()


def ask_by(
    run: Callable[[Steps[T]], T], back: Callable[[BaseException], object], asking: Asking[T]
) -> T:
    """Run steps that ask for a grant; if that is interrupted, give it back.

    Arguments:
        run: runs steps, and returns their result.
        back: gives back, once, what an error has left open.
    """
    try:
        granted = run(asking.steps)
        with asking.cut_off() as cut:
            if cut is not None:
                back(cut)
        return granted
    except BaseException as error:
        back(error)
        raise


async def ask_by_async(
    run: Callable[[Steps[T]], Awaitable[T]],
    back: Callable[[BaseException], Awaitable[object]],
    asking: Asking[T],
) -> T:
    """Run steps that ask for a grant, by what is awaited; see `ask_by`."""
    try:
        granted = await run(asking.steps)
        with asking.cut_off() as cut:
            if cut is not None:
                await back(cut)
        return granted
    except BaseException as error:
        await back(error)
        raise


def ask_for(client: Any, asking: Asking[T]) -> T:
    """Run steps that ask for a grant on a client; if that is interrupted, give it back.

    Errors: as of `drive`.
    """
    return ask_by(partial(drive, client), partial(give_back, client, asking), asking)


async def ask_for_async(client: Any, asking: Asking[T]) -> T:
    """Run steps that ask for a grant on an asyncio client; see `ask_for`."""
    back = partial(give_back_async, client, asking)
    return await ask_by_async(partial(drive_async, client), back, asking)


def give_back(client: Any, asking: Asking[Any], error: BaseException) -> bool:
    """Give a grant back, once, after an error that leaves open whether there is one.

    Within the time-out of the application's client, on a connection of its own. Returns: whether
    it was given back now. Raises nothing about it: the grant ends by itself.
    """
    return asking.begins_to_end(error) and run_aside(client, asking.giving_back())


def run_aside(client: Any, steps: Steps[Any]) -> bool:
    """Run steps that give something back; the steps have a connection that nobody else uses.

    Arguments:
        client: the application's, whose time-out bounds each step.

    Returns: whether they came to their end; if not, it raises nothing.
    """
    try:
        drive(job_client_of(client), steps, _send_aside)
    except Exception:  # noqa: BLE001 - the caller's own error says more
        return False
    return True


async def give_back_async(client: Any, asking: Asking[Any], error: BaseException) -> bool:
    """Give a grant back as `give_back` does, in a task of its own."""
    if not asking.begins_to_end(error):
        return False
    aside = drive_async(job_client_of(client), asking.giving_back(), _send_aside_async)
    return await finish(aside, error)


def _send_aside(job_client: JobClient, step: Any) -> Any:
    return drive(
        job_client, _aside(job_client, step), lambda _, trip: send_aside(job_client, *trip)
    )


def _send_aside_async(job_client: JobClient, step: Any) -> Awaitable[Any]:
    return drive_async(
        job_client, _aside(job_client, step), lambda _, trip: send_aside_async(job_client, *trip)
    )


def _aside(job_client: JobClient, step: Any) -> Steps[Any]:
    """Send the operations of a step, each to the node of its key; return the step's reply.

    A slot that has moved is followed once.
    """
    is_several = isinstance(step, list)
    operations = step if is_several else [command(*step) if isinstance(step, tuple) else step]
    replies: list[Any] = [None] * len(operations)
    left: Sequence[int] = range(len(operations))
    for _ in range(2):
        by_node: dict[Node, list[int]] = {}
        for place in left:
            slot = key_slot(to_bytes(operations[place].keys[0]))
            by_node.setdefault(job_client.node_of(slot), []).append(place)
        left = []
        for node, places in by_node.items():
            found = yield node, [operations[place].by_text() for place in places]
            for place, reply in zip(places, found, strict=True):
                replies[place] = reply
                if is_elsewhere(reply):
                    left.append(place)
            moved = moved_of(found)
            if moved is not None:
                job_client.note_moved(node, moved)
        if not left:
            break
    results = read_all(operations, replies)
    return results if is_several else results[0]


class BlockingAsks(Blocking):
    """A `Blocking` form of a class that asks for grants."""

    def _ask(self, asking: Asking[T]) -> T:
        return ask_by(self._run, partial(give_back, self.client, asking), asking)


class AsynchronousAsks(Asynchronous):
    """An `Asynchronous` form of a class that asks for grants."""

    async def _ask(self, asking: Asking[T]) -> T:
        back = partial(give_back_async, self.client, asking)
        return await ask_by_async(self._run, back, asking)


if TYPE_CHECKING:

    class asks(Generic[P, T]):  # noqa: N801 - used as a decorator
        """As `operation`, of a function that returns an `Asking`."""

        def __init__(self, asking: Callable[Concatenate[Any, P], Asking[T]]) -> None:
            self.asking = asking

        @_overload
        def __get__(self, instance: None, owner: Any) -> Self: ...
        @_overload
        def __get__(self, instance: BlockingAsks, owner: Any) -> Callable[P, T]: ...
        @_overload
        def __get__(
            self, instance: AsynchronousAsks, owner: Any
        ) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @_overload
        def __get__(self, instance: QueuedT, owner: Any) -> Callable[P, QueuedT]: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...

else:

    def asks(asking: Any) -> Any:
        """Make a public method of a function that returns an `Asking`; see `operation`."""
        returned = asking.__annotations__.get("return", "")
        if isinstance(returned, str) and returned.startswith("Asking["):
            asking.__annotations__["return"] = returned[len("Asking[") : -1]

        @functools.wraps(asking)
        def call(self: Any, /, *args: Any, **options: Any) -> Any:
            return self._ask(asking(self, *args, **options))

        call.asking = asking
        return call


class Receipt:
    """The receipt of a read.

    Attributes: key: of the receipt; number: of the read, which grows with each read that uses the
    key; streams: the streams that each script of a shuffle queue's read was told. Every message
    that the read was granted is in one of these streams.
    """

    __slots__ = ("key", "number", "streams")

    def __init__(self, key: bytes, number: int) -> None:
        self.key, self.number = key, number
        self.streams: list[Iterable[int | str]] = []


class Receipts:
    """The receipts of one object, for all of its threads.

    Arguments:
        key_of: a nonce.
    """

    def __init__(self, key_of: Callable[[bytes], bytes]) -> None:
        self._key_of = key_of
        # Appending and taking one are whole for every thread.
        self._free: deque[tuple[bytes, int]] = deque()
        self._pid = os.getpid()

    def take(self) -> Receipt:
        """Return a receipt that nobody else uses, for another read."""
        if self._pid != os.getpid():
            # A process that was forked off has no part in its parent's reads.
            self._free, self._pid = deque(), os.getpid()
        try:
            key, last = self._free.pop()
        except IndexError:
            key, last = self._key_of(new_nonce()), 0
        return Receipt(key, last + 1)

    def put_back(self, receipt: Receipt) -> None:
        """Let another read use a key: nobody waits for a reply to this one any more."""
        self._free.append((receipt.key, receipt.number))


class AskedReads(AskedPieces[Receipt]):
    """The reads of one call, each of which may be granted a piece of its messages.

    Arguments:
        known: the receipts of the object.
        consumer: its name.

    Attribute: consumer.
    """

    __slots__ = ("_known", "consumer")

    def __init__(self, known: Receipts, consumer: str | bytes) -> None:
        super().__init__()
        self._known, self.consumer = known, consumer

    def begin(self) -> Receipt:
        """Begin another read, after one that was granted something; return its receipt."""
        self.receipts.append(self._known.take())
        return self.receipts[-1]

    def ask(self, streams: Iterable[int | str]) -> Receipt:
        """Return the receipt of the read at hand, for a script that is told some streams."""
        receipt = self.receipts[-1]
        receipt.streams.append(streams)
        return receipt

    def note_nothing(self) -> None:
        """Note that the read at hand was granted nothing, or nothing that is to be given back."""
        self.receipts[-1].streams.clear()

    def renew(self) -> None:
        """Make another read of the one at hand: what it was granted has gone to others since."""
        self.note_nothing()
        self.receipts[-1].number += 1

    def end(self) -> None:
        """Note that the replies of all reads were there."""
        if self.cut is None:
            for receipt in self.receipts:
                self._known.put_back(receipt)

    def open(self) -> Iterator[tuple[Receipt, list[int]]]:
        """Yield the receipts that may have been granted something, and the streams of each."""
        for receipt in self.receipts:
            if receipt.streams:
                yield receipt, sorted({int(number) for some in receipt.streams for number in some})
