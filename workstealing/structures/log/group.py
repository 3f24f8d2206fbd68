"""A group of a log: its members share the entries, each of which goes to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.store.operations import (
    Asynchronous,
    AsynchronousWaiting,
    BlockingWaiting,
    Steps,
    operation,
)
from workstealing.store.paging import LOOKED_AT, Page, oldest
from workstealing.store.pipeline import (
    AsyncPipeline,
    BlockingPipeline,
    OwnedPipeline,
    queued_operations,
)
from workstealing.structures.layout import checked_text
from workstealing.structures.log.base import checked_integer
from workstealing.structures.log.group_reading import (
    A_SCRIPT,
    MOST_AT_ONCE,
    TRIES,
    DeadLogEntry,
    GroupEntry,
    GroupReading,
    GroupStats,
    PendingEntry,
    checked_place,
    dead_entries,
    pending_entries,
)
from workstealing.structures.log.reading import ReadingEntries
from workstealing.structures.structure import DeadItem, DeadLetters, times_text

MOST_LISTED = 10_000
_DEAD_A_SCRIPT = 100
_LONGEST_MEMBER_SHOWN = 60


class _GroupOperations(GroupReading):
    """The operations of a group."""

    @operation
    def read(
        self, count: int = 1, block: Duration = 0, member: str | bytes | None = None
    ) -> Steps[list[GroupEntry]]:
        """Return up to count entries that no other member gets.

        In a group with ack, entries that a member has held for longer than the lease come first.
        Waiting members are served in the order in which they came, one entry each before any gets
        two; a member that has got entries goes to the end. A member that does not wait gets the
        entries for which no turn is given. A member that dies or is late at its turn withholds
        entries from the others: for one second at most from members that read without waiting, and
        for two from waiting members. If more than ten wait, it is up to a tenth of a second for
        each, 30 at most.

        Arguments:
            count: 1 to 1,000.
            block: how long to wait for the first entry, in seconds or as a timedelta, 0 not to
                wait.
            member: a name that `pending` and `dead` show.

        Returns: a list of `GroupEntry`, each also a pair of offset and entry, empty if nothing
        came. The list may be shorter than count though more entries are there, because a reply has
        a MiB or 8 blocks at most. Entries that were evicted before their turn are left out: the
        group goes on at the first available entry, and `stats` counts the evicted ones as lost. A
        read that redis-py sends twice is answered by the same entries. With ack, unreadable entries
        are left out as long as there are others; they come again, and are set aside in the end.
        Raises: ConfigurationError; LayoutError; UndecodableEntryError, DamagedBlockError and
        MissingExtraError, after which the entries of this call count as handed out. One round trip
        for each 200 entries, each about 15 Redis commands, or up to 40 if a member waits or entries
        are handed out again, and three for each of these; one more round trip if the group has
        moved to another block since, and one for each stretch of entries that is handed out again.
        Each 200 are handed out by themselves, and others may be served in between. A member that
        dies there has got only the entries before. If the connection fails there, the call returns
        the entries before.
        """
        return self.wait_steps(
            checked_integer(count, "count", 1, MOST_AT_ONCE),
            seconds_of(block, "block"),
            _checked_member(member),
        )

    @operation
    def ack(self, *entries: GroupEntry | int) -> Steps[int]:
        """Acknowledge entries, so that nobody gets them again.

        Arguments:
            entries: as `read` returned them: if an entry has been handed out to another member
                since, it stays that member's; or offsets: then any member's.

        Returns: how many were still pending. Raises: ConfigurationError in a plain group;
        LayoutError if the keys hold a foreign or a newer layout. One round trip for each 200, each
        eight Redis commands, or about 20 if a member waits; if it breaks off in between, the pieces
        before are done, and it may be called again.
        """
        if not self.acknowledged:
            raise ConfigurationError(
                f"the group {self.name!r} is a plain one, in which nothing is acknowledged: open it"
                " with ack=True"
            )
        if any(isinstance(each, list) for each in entries):
            raise ConfigurationError(
                "ack() was given a list: give its entries, as in ack(*entries)"
            )
        return self._acknowledging(
            [
                (entry.offset, entry.delivery)
                if isinstance(entry, GroupEntry)
                else (checked_integer(entry, "offset", 0), "")
                for entry in entries
            ]
        )

    @operation
    def offset(self) -> Steps[int]:
        """Return the offset of the entry that is handed out next.

        The call makes the group if there is none, so ``start="last"`` counts from this call on.
        Raises: ConfigurationError; LayoutError. One round trip.
        """
        return self._offset()

    @operation
    def seek(self, offset: str | int) -> Steps[int]:
        """Move the group back or forth; waiting members are woken if there are entries now.

        Pending entries stay pending, and come again unless they are acknowledged. If such an entry
        is handed out anew after a seek, that counts as one more attempt.

        Arguments:
            offset: of the entry to hand out next, which may be beyond the end; negative: from the
                end; ``"first"`` available, or ``"last"`` for the end.

        Returns: the offset. Raises: ConfigurationError; LayoutError. One round trip.
        """
        return self._seeking(checked_place(offset, "offset"))

    @operation
    def stats(self) -> Steps[GroupStats]:
        """Return how far the group is, as a `GroupStats`.

        Raises: ConfigurationError; LayoutError. One round trip.
        """
        return self._stats()

    @operation
    def pending(self, n: int = 100) -> Steps[list[PendingEntry]]:
        """List entries that are handed out and not acknowledged, the oldest first.

        Arguments:
            n: 1 to 10,000.

        Returns: a list of `PendingEntry`, empty in a plain group. Raises: ConfigurationError;
        LayoutError. One round trip for each 200, each a look of its own: if an entry is
        acknowledged or handed out meanwhile, the list may have it or not.
        """
        return self._pending(checked_integer(n, "n", 1, MOST_LISTED))

    @operation
    def dead(self, n: int = 100) -> Steps[Page[DeadLogEntry]]:
        """List entries that were handed out max_attempts times in vain, the oldest first.

        Dead entries are kept apart from the log: evicting does not touch them.

        Arguments:
            n: 1 to 10,000.

        Returns: a `Page` of `DeadLogEntry`, a list whose `more` says how many others there are; of
        more than 1,000 (or n) it looks at that many only. Raises: ConfigurationError; LayoutError.
        One round trip for each 100 of these.
        """
        return self._dead(checked_integer(n, "n", 1, MOST_LISTED))

    @operation
    def revive(self, *offsets: int) -> Steps[int]:
        """Hand dead entries out again at once, their attempts forgotten, evicted or not.

        Returns: how many were dead. Raises: ConfigurationError; LayoutError. One round trip for
        each 200; if it breaks off in between, the pieces before are done, and it may be called
        again.
        """
        return self._in_chunks("revive", _checked_offsets(offsets))

    @operation
    def discard(self, *offsets: int) -> Steps[int]:
        """Forget dead entries for good.

        Returns: how many were dead. Raises: ConfigurationError; LayoutError. One round trip for
        each 200; if it breaks off in between, the pieces before are done, and it may be called
        again.
        """
        return self._in_chunks("discard", _checked_offsets(offsets))

    @operation
    def delete(self) -> Steps[int]:
        """Delete the group with its pending and dead entries; the log stays.

        A member that reads or waits makes the group anew, by its own settings. Returns: how many
        keys were deleted. Raises: LayoutError. One round trip.
        """
        return self._deleting()

    def _offset(self) -> Steps[int]:
        return (yield from self._stats()).offset

    def _seeking(self, place: str | int) -> Steps[int]:
        reply = yield from self._call(self._operation("seek", place))
        self._next = int(reply[1])
        return self._next

    def _stats(self) -> Steps[GroupStats]:
        reply = yield from self._call(self._operation("stats"))
        offset, tail, first, *counts = map(int, reply[1:])
        return GroupStats(offset, max(0, tail - max(offset, first)), *counts)

    def _pending(self, n: int) -> Steps[list[PendingEntry]]:
        found: dict[int, PendingEntry] = {}
        last: tuple[Any, ...] = ("", "")
        for _ in range(-(-n // A_SCRIPT) + TRIES):
            asked = min(n - len(found), A_SCRIPT)
            _, *listed = yield from self._call(self._operation("pending", asked, *last))
            # If the last one has gone, entries of the same moment come once more.
            for entry in pending_entries(self.keys.attempts, listed):
                found.setdefault(entry.offset, entry)
            if len(found) >= n or len(listed) < 1 + 3 * asked:
                break
            last = tuple(listed[-3:-1])
        return list(found.values())

    def _dead(self, n: int) -> Steps[Page[DeadLogEntry]]:
        found: dict[Any, Any] = {}
        cursor, total = b"0", 0
        while True:
            reply = yield from self._call(self._operation("dead", cursor, _DEAD_A_SCRIPT))
            _, total, cursor, *listed = reply
            found.update(zip(listed[::2], listed[1::2], strict=True))
            if not int(cursor) or len(found) >= max(n, LOOKED_AT):
                break
        flat = [part for pair in found.items() for part in pair]
        entries = dead_entries(self.keys.dead, flat, self.log.codec)
        return oldest(entries, n, lambda each: (each.set_aside, each.offset), int(total))

    def _deleting(self) -> Steps[int]:
        return int((yield self._operation("delete", whole=False)))

    def _in_chunks(self, script: str, values: list[Any]) -> Steps[int]:
        total = 0
        for first in range(0, len(values), A_SCRIPT):
            some = values[first : first + A_SCRIPT]
            reply = yield from self._call(self._operation(script, *some))
            total += int(reply[1])
        return total


class LogGroup(_GroupOperations, BlockingWaiting):
    """A group of a log's readers: each entry goes to one of them.

    Made by `Log.group`; no command before the first call, which makes the group in Redis, and the
    log if there is none yet. A plain group delivers at most once: if a member dies before an entry
    is done, the entry is lost. A group with ``ack=True`` delivers at least once: an entry that is
    not acknowledged within the lease goes to the next member that reads, and after max_attempts
    into the dead set.

    Arguments:
        log: the log that is read.
        name: the group's.
        start: where a new group begins: ``"first"`` available entry, ``"last"`` for entries that
            come from now on, or an offset, negative from the end.
        ack: whether an entry is handed out again unless it was acknowledged.
        lease: how long a member may take, in seconds or as a timedelta.
        max_attempts: how often an entry is handed out at most.

    All but start must be the same for every member. Safe under threads.

    Source: the RCP for Redis streams of 2016 (TREAD's GROUP with BLOCK), with acknowledgement,
    and turns that end, added.
    """

    def pipeline(self, transaction: bool = True) -> LogGroupPipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`."""
        return LogGroupPipeline(self, transaction)


class AsyncLogGroup(_GroupOperations, AsynchronousWaiting):
    """A `LogGroup` of an `AsyncLog`: every method is awaited.

    If a `read` is cancelled just as entries come, it may have got them. Then the group treats them
    as the entries of a member that has died.
    """

    def pipeline(self, transaction: bool = True) -> AsyncLogGroupPipeline:
        """Return a pipeline whose `execute` is awaited; see `LogGroup.pipeline`."""
        return AsyncLogGroupPipeline(self, transaction)


if TYPE_CHECKING:

    class _QueuedLogGroup(OwnedPipeline, _GroupOperations):
        pass

else:
    _QueuedLogGroup = queued_operations(_GroupOperations)


class LogGroupPipeline(_QueuedLogGroup, BlockingPipeline):
    """The methods of a `LogGroup`, and the user's own commands, sent together by `execute`.

    One round trip, and those that a call needs more by itself: a read, if the group has moved to
    another block since, outside of the transaction. Entries of a read whose reply is lost are those
    of a member that has died.
    """


class AsyncLogGroupPipeline(_QueuedLogGroup, AsyncPipeline):
    """A `LogGroupPipeline` whose `execute` is awaited."""


class GroupDead(DeadLetters):
    """The dead entries of one group of a log, as `Structure.dead_steps` gives them.

    Arguments:
        name: of the group.
        lease_ms: its settings, as the group says.
        max_attempts: its settings, as the group says.
        size: how many there are.
    """

    def __init__(
        self, log: ReadingEntries, name: bytes, lease_ms: int, max_attempts: int, size: int
    ) -> None:
        kind = AsyncLogGroup if isinstance(log, Asynchronous) else LogGroup
        self._group = kind(log, name, "first", True, lease_ms / 1000, max_attempts)
        self.name = f"group {self._group.name}"
        self.size = size

    def list_steps(self, n: int) -> Steps[Sequence[DeadItem]]:
        """List up to n dead entries, the oldest first: a `Page`."""
        listed = yield from _GroupOperations.dead.steps(self._group, min(n, MOST_LISTED))
        items = [
            DeadItem(
                each.offset,
                each.attempts,
                (each.set_aside,),
                payload=each.entry,
                error=_why(each),
                shown=f"entry {each.offset}",
            )
            for each in listed
        ]
        return Page(items, listed.total)

    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Hand dead entries out again; return how many were dead."""
        return _GroupOperations.revive.steps(self._group, *map(int, members))

    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Forget dead entries for good; return how many were dead."""
        return _GroupOperations.discard.steps(self._group, *map(int, members))


def _why(entry: DeadLogEntry) -> str:
    last = "" if entry.member is None else f"; {entry.member[:_LONGEST_MEMBER_SHOWN]} had it last"
    return f"handed out {times_text(entry.attempts)} and never acknowledged{last}"


def _checked_member(member: object) -> bytes:
    if member is None:
        return b""
    name = checked_text(member, "member")
    return name if isinstance(name, bytes) else name.encode()


def _checked_offsets(offsets: Sequence[int]) -> list[int]:
    return [checked_integer(offset, "offset", 0) for offset in offsets]
