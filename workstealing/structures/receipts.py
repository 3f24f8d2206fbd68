"""Receipts of reads: which messages a read was granted, under a key that its reader has named.

A read whose reply is lost leaves its messages with nobody, until a reaper comes or a lease ends. So
a reader names a key before it asks, and the script that grants messages notes them there: the same
read, sent again, is answered by the same messages, and a shuffle queue is given them back by the
receipt alone. A reader uses its keys again, one for each read that is under way, so there are few
of them. The server removes a key a minute after its last read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from workstealing.store.grants import AskedPieces, new_nonce


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
