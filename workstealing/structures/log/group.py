"""A group of a log: its members share the entries, each of which goes to one of them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable
from typing import Any, Generic, TypeVar

from workstealing.store.blocking import checked_block
from workstealing.store.operations import Steps
from workstealing.store.paging import Page
from workstealing.structures.log.base import checked_integer
from workstealing.structures.log.group_entries import (
    DeadLogEntry,
    GroupEntry,
    GroupInfo,
    PendingEntry,
)
from workstealing.structures.log.group_reading import MOST_AT_ONCE, GroupReading, checked_member
from workstealing.structures.log.group_waiting import (
    Nothing,
    Place,
    TurnWaiter,
    wait_for_turn,
)

__all__ = [
    "AsyncLogGroup",
    "DeadLogEntry",
    "GroupEntry",
    "GroupInfo",
    "LogGroup",
    "PendingEntry",
]

# What a call gives back: the result, or something to await.
_EntriesT = TypeVar("_EntriesT")
_IntT = TypeVar("_IntT")
_PendingT = TypeVar("_PendingT")
_DeadT = TypeVar("_DeadT")
_InfoT = TypeVar("_InfoT")


class _Group(GroupReading, Generic[_EntriesT, _IntT, _PendingT, _DeadT, _InfoT]):
    """What the blocking and the asyncio form have in common."""

    def read(
        self, count: int = 1, block_ms: float = 0, member: str | bytes | None = None
    ) -> _EntriesT:
        """Return up to count entries that no other member gets.

        In an acknowledged group those that somebody has had for idle_s come first. Members that
        wait are served in the order in which they have come, one entry each before any gets two;
        who has got some goes to the end. Whoever does not wait gets what is nobody's turn. A member
        that dies or is late when it is its turn withholds nothing for longer than one second from
        those who read without waiting, two from those who wait (where more than ten wait, up to a
        tenth of a second for each, 30 at most).

        Arguments: count: 1 to 1,000; block_ms: how long to wait for the first entry, 0 for not at
        all; member: a name that `pending` and `dead` tell. Returns: a list of `GroupEntry`, each
        also a pair of offset and entry, empty if nothing came; it may be shorter than count though
        there is more, since a reply has a MiB or 8 blocks at most. Entries that were evicted before
        their turn are left out: the group goes on at the first available one, and `info` counts
        them as lost. What cannot be read is left out of an acknowledged group's reply as long as
        there are others; it comes again, and is set aside in the end. Errors: ConfigurationError;
        LayoutError; UndecodableEntryError, DamagedBlockError and MissingExtraError, where the
        entries of this call count as handed out. One round trip for each 200 entries, each about 20
        Redis commands and two for each entry to be acknowledged; one more where the group has moved
        to another block since, and one for each stretch of entries that is handed out again. Each
        200 are handed out by themselves: between them others may be served, and a member that dies
        there has got only what came before. A fault of the connection there returns that.
        """
        return self._read_on(  # type: ignore[no-any-return]
            checked_integer(count, "count", 1, MOST_AT_ONCE),
            checked_block(block_ms),
            checked_member(member),
        )

    def acknowledge(self, *entries: GroupEntry | int) -> _IntT:
        """Say that entries are done, so that nobody gets them again.

        Arguments: entries: what `read` returned: then only if it has not been handed out to anybody
        else since, so that a late member takes nothing from who works on it now; or offsets: then
        whoever has them. Returns: how many were still pending. Errors: ConfigurationError in a
        plain group; LayoutError. One round trip for each 200, four Redis commands an
        entry; if it breaks off in between, those before are done, and it may be called again.
        """
        return self._run(self.acknowledge_steps(entries))  # type: ignore[no-any-return]

    def offset(self) -> _IntT:
        """Return the offset of the entry that is handed out next.

        It makes the group if there is none: so ``start="last"`` counts from then. One round trip.
        """
        return self._run(self.offset_steps())  # type: ignore[no-any-return]

    def seek(self, offset: str | int) -> _IntT:
        """Move the group back or forth; who waits is woken if there is something now.

        What is pending stays so, and comes again unless it is acknowledged; entries that are handed
        out anew by this count as one attempt more as long as they are pending. Arguments: offset:
        of the entry to hand out next, beyond the end too, where it is waited for; negative from the
        end; ``"first"`` available, or ``"last"`` for the end. Returns: the offset. Errors:
        ConfigurationError; LayoutError. One round trip.
        """
        return self._run(self.seek_steps(offset))  # type: ignore[no-any-return]

    def info(self) -> _InfoT:
        """Say how far the group is, as a `GroupInfo`. One round trip."""
        return self._run(self.info_steps())  # type: ignore[no-any-return]

    def pending(self, n: int = 100) -> _PendingT:
        """List entries that are handed out and not acknowledged, the oldest first.

        Arguments: n: 1 to 10,000. Returns: a list of `PendingEntry`, empty in a plain group.
        Errors: ConfigurationError; LayoutError. One round trip for each 200, each a look of its
        own: what is acknowledged or handed out meanwhile may be in the list or not.
        """
        return self._run(self.pending_steps(n))  # type: ignore[no-any-return]

    def dead(self, n: int = 100) -> _DeadT:
        """List entries that were handed out max_attempts times in vain, those of longest ago first.

        They are kept apart from the log: evicting does not touch them. Arguments: n: 1 to 10,000.
        Returns: a `Page` of `DeadLogEntry`, a list whose `more` says how many others there are; of
        more than 1,000 (or n) so many are looked at. Errors: ConfigurationError; LayoutError. One
        round trip for each 100 that are looked at.
        """
        return self._run(self.dead_steps(n))  # type: ignore[no-any-return]

    def revive(self, *offsets: int) -> _IntT:
        """Hand dead entries out again at once, their attempts forgotten, evicted or not.

        Returns: how many were dead. Errors: ConfigurationError; LayoutError. One round trip for
        each 200; if it breaks off in between, those before are done, and it may be called again.
        """
        return self._run(self.of_the_dead_steps("revive", offsets))  # type: ignore[no-any-return]

    def discard(self, *offsets: int) -> _IntT:
        """Forget dead entries for good.

        Returns: how many were dead. Errors: ConfigurationError; LayoutError. One round trip for
        each 200; if it breaks off in between, those before are done, and it may be called again.
        """
        return self._run(self.of_the_dead_steps("discard", offsets))  # type: ignore[no-any-return]

    def delete(self) -> _IntT:
        """Delete the group with its pending and dead entries; the log stays.

        A member that reads or waits makes it anew, by its own settings. Returns: how many keys were
        deleted. Errors: LayoutError. One round trip.
        """
        return self._run(self.delete_steps())  # type: ignore[no-any-return]

    def random(self) -> float:
        """Return a number from 0 to 1, by which those who wait look at different moments."""
        return random.random()

    def _run(self, steps: Steps[Any]) -> Any:
        return self.log.run(steps)

    def _place(self, seconds: float, nothing: Nothing) -> Place:
        return Place(self.log.keys.slot, self.keys.turns, seconds, nothing)

    def _read_on(self, count: int, seconds: float, member: bytes) -> Any:
        """Look, wait for a turn and look again, until something is found or the time is over."""
        raise NotImplementedError


class LogGroup(_Group[list[GroupEntry], int, list[PendingEntry], Page[DeadLogEntry], GroupInfo]):
    """A group of a log's readers: each entry goes to one of them.

    Made by `Log.group`; no command before the first call, which makes the group in Redis, and the
    log if there is none yet. A plain group is at-most-once: what a member has got and not done when
    it dies is lost. One with ``acknowledged=True`` is at-least-once: what is not acknowledged
    within idle_s goes to the next who reads, and after max_attempts into the dead set.

    Arguments: log; name; start: where a new group begins: ``"first"`` available entry, ``"last"``
    for those that come from now on, or an offset, negative from the end; acknowledged; idle_s: how
    many seconds a member may take; max_attempts: how often an entry is handed out at most. All but
    start must be the same for every member. Safe under threads.

    Source: the RCP for Redis streams of 2016 (TREAD's GROUP with BLOCK), with acknowledgement,
    and turns that end, added.
    """

    def _read_on(self, count: int, seconds: float, member: bytes) -> list[GroupEntry]:
        if not seconds:
            found = self._run(self.read_steps(count, member))
            return [] if isinstance(found, Nothing) else found
        waiter, turn, end = secrets.token_hex(8), b"", self.monotonic() + seconds
        while True:
            left = end - self.monotonic()
            found = self._run(self.read_steps(count, member, waiter, left > 0, turn))
            if not isinstance(found, Nothing):
                return found  # type: ignore[no-any-return]
            if left <= 0:
                return []
            turn = wait_for_turn(
                self.log.twin,
                self._place(left, found),
                lambda: self._run(self.look_steps(0, member, waiter, True)),
                self.random,
            )


class AsyncLogGroup(
    _Group[
        Awaitable[list[GroupEntry]],
        Awaitable[int],
        Awaitable[list[PendingEntry]],
        Awaitable[Page[DeadLogEntry]],
        Awaitable[GroupInfo],
    ]
):
    """A `LogGroup` of an `AsyncLog`: every method is awaited.

    A `read` that is cancelled just as entries come may have been given them: they are then as those
    of a member that has died.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiter = TurnWaiter(self.log.twin)

    async def aclose(self) -> None:
        """Close the connections on which reads have waited."""
        await self._waiter.close()

    async def _read_on(self, count: int, seconds: float, member: bytes) -> list[GroupEntry]:
        if not seconds:
            found = await self._run(self.read_steps(count, member))
            return [] if isinstance(found, Nothing) else found
        waiter, turn, end = secrets.token_hex(8), b"", self.monotonic() + seconds
        while True:
            left = end - self.monotonic()
            found = await self._run(self.read_steps(count, member, waiter, left > 0, turn))
            if not isinstance(found, Nothing):
                return found  # type: ignore[no-any-return]
            if left <= 0:
                return []
            turn = await self._waiter.wait_for_turn(
                self._place(left, found),
                lambda: self._run(self.look_steps(0, member, waiter, True)),
                self.random,
            )
