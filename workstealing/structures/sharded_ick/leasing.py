"""Leases: the right to consume an ick shard, or all; it ends by itself, fenced by a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from workstealing.clock import Duration, milliseconds_of, seconds_of
from workstealing.errors import ConfigurationError, LeaseLost, NoLease
from workstealing.recruiting.checks import checked_count
from workstealing.store.grants import new_nonce
from workstealing.store.keys import to_bytes
from workstealing.store.operations import (
    AS_BYTES,
    Asynchronous,
    Blocking,
    Operation,
    Steps,
    operation,
)
from workstealing.store.scripts import load
from workstealing.structures.ick.members import (
    MEMBERS_A_CHUNK,
    Acked,
    Batch,
    Member,
    ReservedMembers,
    checked_reservation,
)
from workstealing.structures.layout import as_text
from workstealing.structures.sharded_ick.layout import Core, ShardedLayout

# How many leases in a hundred go to the ick shard that has waited longest for one, however needy
# others are: a member that is never acknowledged would otherwise keep its ick shard the neediest.
LONGEST_WITHOUT_PERCENT = 20
# How many members one script acknowledges, so that no other client waits long for it.
MEMBERS_AN_ACK = 5000
MEMBERS_A_PAGE = 1000
# The largest integers that a number of Lua holds exactly.
MOST_PASSED_OVER = 2**53 - MEMBERS_A_PAGE
# A year: a longer lease was given in another unit.
_LONGEST_SECONDS = 31_536_000.0

Reserved = list[tuple[bytes, float]]
LeasedT = TypeVar("LeasedT", bound="_LeasedOperations")


class Holder(NamedTuple):
    """The consumer that has a lease, or wants one, and for how many milliseconds."""

    consumer: str
    lease_ms: int


class AskedLeases:
    """The leases that one call asks for, each with the same nonce.

    Attributes: nonce; ick_shards: those whose lease this call may hold.
    """

    def __init__(self) -> None:
        self.nonce = new_nonce()
        self.ick_shards: set[int] = set()

    def give_back(self, core: Core) -> Steps[None]:
        """Release the leases by the nonce alone. One round trip."""
        if self.ick_shards:
            script = core.script("sharded_ick/withdraw")
            yield [
                Operation(script, (core.names(shard).lease,), (self.nonce,), int)
                for shard in sorted(self.ick_shards)
            ]


def checked_holder(consumer: object, lease: Duration) -> Holder:
    """Return the holder of a lease. Raises: ConfigurationError for a wrong name or duration."""
    if not isinstance(consumer, str) or not consumer:
        raise ConfigurationError(
            f"the consumer {consumer!r} has no name: give a text, a host's name and process id"
        )
    return Holder(consumer, milliseconds_of(lease, "lease", _LONGEST_SECONDS))


def checked_wait(wait: Duration) -> float:
    """Return how long to wait for a lease, in seconds. Raises: ConfigurationError."""
    return seconds_of(wait, "wait", 0.0, _LONGEST_SECONDS)


class _LeasedOperations:
    """The operations of a leased Ick, for the blocking and the asyncio form.

    Attributes: ick_shard: which one, 0 and up; key: of its Ick; consumer; lease_token: digits, a
    number greater than those of all earlier holders, for other writes that are to be fenced by it;
    token: of this object's last reservation.
    """

    def __init__(
        self, sharded: Any, layout: ShardedLayout, holder: Holder, found: tuple[int, str]
    ) -> None:
        self.client, self.job_client = sharded.client, sharded.job_client
        self._core: Core = sharded.core
        self._mark = layout.mark
        self.consumer, self._lease_ms = holder
        self.ick_shard, self.lease_token = found
        self._names = self._core.names(self.ick_shard)
        self.key = self._names.version
        self.token = ""

    @operation
    def reserve(self, n: int, backwash: bool = False) -> Steps[Batch]:
        """Top up the consumer set to n members, and return its n lowest-scored members.

        As `Ick.reserve`, also in pieces of 1,000 and with reserve(0). Renews the lease if less than
        half of it is left. Returns: a `Batch`, which is empty while a resize waits for this lease
        to end, and shorter if the lease is lost between two pieces. Raises: LeaseLost;
        ConfigurationError; LayoutError.
        """
        return self._exchanging(checked_count(n, "n"), (), backwash)

    @operation
    def ack(self, *members: Member) -> Steps[Acked]:
        """Acknowledge members whose work is done: remove them from the consumer set.

        As `Ick.ack`; extends the lease if less than half of it is left. Returns: `Acked`, whose
        `ignored` counts the members that were not removed: all, once the lease or the reservation
        no longer holds. Raises: LayoutError. One round trip.
        """
        return self._acking([to_bytes(member) for member in members])

    @operation
    def ack_all(self, token: str) -> Steps[int]:
        """Acknowledge everything that a reservation holds, without naming its members.

        Arguments:
            token: of the `Batch`.

        All reserved members count as done. So the batch must have been reserved with backwash, or
        all earlier reservations must have been acknowledged. Renews the lease if less than half of
        it is left. Returns: how many were removed; 0, with nothing changed, once the lease or the
        reservation no longer holds. Raises: ConfigurationError; LayoutError. One round trip for
        each 5,000.
        """
        return self._acking_all(checked_reservation(token))

    @operation
    def exchange(self, n: int, *members: Member, backwash: bool = False) -> Steps[Batch]:
        """Acknowledge members and then reserve, in one round trip for up to 1,000 members to ack.

        Arguments and returns: as of `Ick.exchange`. Raises: LeaseLost, with none of the last 1,000
        acknowledged; ConfigurationError; LayoutError.
        """
        done = [to_bytes(member) for member in members]
        return self._exchanging(checked_count(n, "n"), done, backwash)

    @operation
    def extend(self) -> Steps[None]:
        """Let the lease last for its whole duration from now on.

        Raises: LeaseLost if the lease has run out; LayoutError. One round trip.
        """
        return self._extending()

    @operation
    def release(self) -> Steps[bool]:
        """Let others have the ick shard.

        Returns: whether the lease was still held. Raises: LayoutError. One round trip.
        """
        return self._releasing()

    def _exchanging(self, n: int, members: Sequence[bytes], backwash: bool) -> Steps[Batch]:
        split = max(0, len(members) - MEMBERS_A_CHUNK)
        acked = yield from self._acking(members[:split])
        reply = yield self.exchanging(n, members[split:], backwash)
        if reply is None:
            if n or backwash:
                raise self._lost()
            # A mere acknowledgement shows by its figures that it came too late.
            reply = (0, "", "", 0, "")
        removed, token, text, count, left = reply
        if token:
            self.token = as_token(token)
        reserved = ReservedMembers(self._names, self.token, text)
        yield from reserved.add(text, count)
        while left:
            reply = yield self.going_on(n, left, reserved.count)
            if reply is None:
                break
            text, count, left = reply
            yield from reserved.add(text, count)
        total = removed + acked
        # After a batch is handed back, nothing is reserved under its token.
        made = self.token if n else ""
        return Batch(reserved.pairs(), made, Acked(total, len(members) - total))

    def exchanging(
        self, n: int, members: Sequence[bytes], backwash: bool, *, counts: bool = False
    ) -> Operation:
        """Return an exchange's operation, which returns the reply; for the package itself.

        Arguments as of `exchange`; counts: reply with their number, without the members.
        """
        names = self._names
        return Operation(
            self._core.script("sharded_ick/exchange"),
            (*names.reserved, names.lease, names.mark, *names.resting),
            (
                *(n, int(bool(backwash)), self.token, self.lease_token, self._lease_ms),
                *(self._mark, int(counts), *members),
            ),
        )

    def going_on(self, n: int, left: Any, first: int, *, counts: bool = False) -> Operation:
        """Return the operation that goes on with a large reservation; for the package itself.

        Arguments:
            n: as of `exchanging`.
            counts: as of `exchanging`.
            left: the rest, by its reply.
            first: how many members have been returned.

        The operation returns the reply; None once lease or reservation is over.
        """
        names = self._names
        return Operation(
            self._core.script("sharded_ick/reserve_on"),
            (*names.reserved, names.lease, names.mark, *names.resting),
            (
                *(self.token, self.lease_token, self._lease_ms, self._mark, int(counts)),
                *(n, left, first),
            ),
        )

    def _acking(self, members: Sequence[bytes]) -> Steps[Acked]:
        if not members:
            return Acked(0, 0)
        names = self._names
        keys = (*names.sets, names.held, names.attempts, names.lease)
        fixed = (self.token, self.lease_token, self._lease_ms)
        replies = yield [
            Operation(
                self._core.script("sharded_ick/ack"),
                keys,
                (*fixed, *members[start : start + MEMBERS_A_CHUNK]),
                int,
            )
            for start in range(0, len(members), MEMBERS_A_CHUNK)
        ]
        return Acked(sum(replies), len(members) - sum(replies))

    def _acking_all(self, token: str) -> Steps[int]:
        both = {self.ick_shard: (self.lease_token, token)}
        done = yield from _acking_reservations(self._core, both, self._lease_ms)
        return done[self.ick_shard]

    def _extending(self) -> Steps[None]:
        if not (yield self.on_lease("sharded_ick/extend", self._lease_ms)):
            raise self._lost()

    def _releasing(self) -> Steps[bool]:
        return bool((yield self.on_lease("sharded_ick/release")))

    def on_lease(self, script: str, *args: Any) -> Operation:
        """Return the operation that extends or releases the lease; for the package itself."""
        return _on_lease(self._core, script, self.ick_shard, self.lease_token, *args)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"{self.consumer} does not hold ick shard {self.ick_shard} of {self._core.text!r} any"
            " more: its lease ran out; take a new one, and extend it while working"
        )


class LeasedIck(_LeasedOperations, Blocking):
    """The Ick of one ick shard, for as long as nobody else holds it; see `ShardedIck.lease`."""


class AsyncLeasedIck(_LeasedOperations, Asynchronous):
    """A `LeasedIck` on a redis.asyncio client: every method is awaited."""


class _LeasesOperations(list[LeasedT], Generic[LeasedT]):
    """The operations on the leases of all ick shards, each in one round trip."""

    def __init__(self, sharded: Any, leased: Iterable[LeasedT], lease_ms: int) -> None:
        super().__init__(leased)
        self.client, self.job_client = sharded.client, sharded.job_client
        self._core: Core = sharded.core
        self._lease_ms = lease_ms

    @operation
    def extend(self) -> Steps[list[int]]:
        """Let all leases that are still held last for their whole duration from now on.

        Returns: the ick shards whose lease is lost. Raises: LayoutError. One round trip.
        """
        return self._each("sharded_ick/extend", self._lease_ms)

    @operation
    def release(self) -> Steps[list[int]]:
        """Let others have the ick shards.

        Returns: the ick shards that were no longer held. Raises: LayoutError. One round trip.
        """
        return self._each("sharded_ick/release")

    @operation
    def reserve(self, counts: Mapping[int, int]) -> Steps[dict[int, tuple[str, int]]]:
        """Reserve in several ick shards at once, with backwash: as `LeasedIck.reserve`.

        Arguments:
            counts: ick shard -> number of members.

        Returns: ick shard -> (token, number of members), for each ick shard with reserved members.
        If a lease is lost, or a resize waits for it, its ick shard is left out and not changed.
        Raises: ConfigurationError; LayoutError. One round trip for up to 1,000 members in each, one
        or two more for each 1,000 beyond.
        """
        if not isinstance(counts, Mapping) or any(map(is_no_count, counts.values())):
            raise ConfigurationError(
                f"counts={counts!r} does not say how much to reserve: give a dict of ick shards and"
                " numbers of members, 0 or more"
            )
        return self._reserving(counts)

    @operation
    def ack_all(self, tokens: Mapping[int, str]) -> Steps[dict[int, int]]:
        """Acknowledge everything that reservations hold: as `LeasedIck.ack_all`.

        Arguments:
            tokens: ick shard -> token of the reservation; ick shards that are not leased here are
                passed over.

        Returns: ick shard -> how many members were removed. Raises: ConfigurationError;
        LayoutError. One round trip for each 5,000 members of the largest reservation.
        """
        if not isinstance(tokens, Mapping):
            raise ConfigurationError(
                f"tokens={tokens!r} names no reservations: give a dict of ick shards and the tokens"
                " of their Batches"
            )
        both = {
            leased.ick_shard: (leased.lease_token, checked_reservation(tokens[leased.ick_shard]))
            for leased in self
            if leased.ick_shard in tokens
        }
        return _acking_reservations(self._core, both, self._lease_ms)

    def _each(self, script: str, *args: Any) -> Steps[list[int]]:
        held = yield [leased.on_lease(script, *args) for leased in self]
        return [leased.ick_shard for leased, is_held in zip(self, held, strict=True) if not is_held]

    def _reserving(self, counts: Mapping[int, int]) -> Steps[dict[int, tuple[str, int]]]:
        wanted = [leased for leased in self if counts.get(leased.ick_shard, 0) > 0]
        if not wanted:
            return {}
        operations = [
            # Members are not sent: they may be many, and may be no text for the client.
            leased.exchanging(counts[leased.ick_shard], (), backwash=True, counts=True)
            for leased in wanted
        ]
        counted: dict[int, int] = {}
        unfinished: list[tuple[Any, Any]] = []
        for leased, reply in zip(wanted, (yield operations), strict=True):
            if reply is not None and reply[1]:
                leased.token = as_token(reply[1])
                counted[leased.ick_shard] = reply[3]
                if reply[4]:
                    unfinished.append((leased, reply[4]))
        while unfinished:
            replies = yield [
                leased.going_on(
                    counts[leased.ick_shard], left, counted[leased.ick_shard], counts=True
                )
                for leased, left in unfinished
            ]
            going = []
            for (leased, _), reply in zip(unfinished, replies, strict=True):
                # None: the lease was lost in between, and with it the reservation's use.
                if reply is not None:
                    counted[leased.ick_shard] += reply[1]
                    if reply[2]:
                        going.append((leased, reply[2]))
            unfinished = going
        return {
            leased.ick_shard: (leased.token, counted[leased.ick_shard])
            for leased in wanted
            if counted.get(leased.ick_shard)
        }


class Leases(_LeasesOperations[LeasedIck], Blocking):
    """The leased Icks of all ick shards of one ShardedIck, in order; see `ShardedIck.lease_all`."""


class AsyncLeases(_LeasesOperations[AsyncLeasedIck], Asynchronous):
    """The `Leases` of an AsyncShardedIck: its methods are awaited."""


@dataclass(frozen=True)
class ShardLook:
    """The state of one ick shard.

    Fields: lowest: the lowest score of its members, None without any; waiting, reserved: how many
    members; members that a resize has set aside count as waiting; left_ms: of its lease, 0 if
    nobody holds it; taken: when it was leased last, in ms since the epoch; consumer: its holder
    now, or the last one; lease_token; moving, moving_dead: how many members a resize has set aside.
    """

    lowest: float | None
    waiting: int
    reserved: int
    left_ms: int
    taken: int
    consumer: str
    lease_token: str
    moving: int
    moving_dead: int


def shard_look(core: Core, shard: int) -> Operation:
    """Return the operation that asks for the state of an ick shard and of its lease."""
    names = core.names(shard)
    keys = (*names.sets, names.lease, names.moving, names.moving_dead, *names.resting)
    return Operation(core.script("sharded_ick/look"), (*keys, names.moving_waiting), (), _look_of)


def _look_of(reply: list[Any]) -> ShardLook:
    producer, consumer, left, taken, holder, token, moving, moving_dead, waiting, reserved = reply
    scores = [float(score) for score in (producer, consumer) if score]
    return ShardLook(
        min(scores) if scores else None,
        waiting + moving,
        reserved,
        left,
        int(taken),
        as_text(holder),
        as_token(token),
        moving,
        moving_dead,
    )


def look(core: Core) -> Steps[tuple[ShardedLayout, list[ShardLook]]]:
    """Look at the layout as it is now, and at all its ick shards.

    Raises: ConfigurationError; LayoutError. One round trip, two if the layout has changed.
    """
    layout = yield from core.open()
    while True:
        shards = range(layout.all_shards)
        now, *looks = yield [core.reading(), *(shard_look(core, shard) for shard in shards)]
        if now is None or now == layout:
            return layout, looks
        layout = now


def take_any(
    core: Core, holder: Holder, random: Callable[[], float], asked: AskedLeases | None = None
) -> Steps[tuple[ShardedLayout, tuple[int, str]]]:
    """Take the lease of the neediest free ick shard; return the layout, and (ick shard, token).

    Arguments:
        random: see `in_order_of_need`.
        asked: takes note of what the call may hold.

    Raises: NoLease; LayoutError. Two round trips, one more for each ick shard that another consumer
    takes first.
    """
    asked = AskedLeases() if asked is None else asked
    layout = yield from core.open_to_write()
    while True:
        if layout.moving_from:
            # Another consumer may have finished since.
            layout = (yield core.reading()) or layout
            core.require_writable()
        if layout.moving_from:
            raise _being_moved(core, layout)
        looks = yield [shard_look(core, shard) for shard in range(layout.ick_shards)]
        is_outdated = False
        for shard in in_order_of_need(looks, random):
            (token,) = yield from taking(core, layout, [shard], holder, asked)
            if token:
                return layout, (shard, token)
            is_outdated = token is None
            if is_outdated:
                break
        if not is_outdated:
            raise NoLease(
                f"all {layout.ick_shards} ick shards of {core.text!r} are leased: come again, or"
                " wait for one with lease(..., wait=seconds)"
            )
        layout = yield from core.reopen(layout)


def take_all(
    core: Core, holder: Holder, take_over: bool, asked: AskedLeases | None = None
) -> Steps[tuple[ShardedLayout, list[tuple[int, str]]]]:
    """Take the leases of all ick shards, or none; return the layout and each (ick shard, token).

    Arguments:
        take_over: whether leases of a consumer of the same name are taken from it.
        asked: takes note of what the call may hold.

    Raises: NoLease; LayoutError. Two round trips, one more if another consumer took a lease in
    between.
    """
    asked = AskedLeases() if asked is None else asked
    yield from core.open_to_write()
    while True:
        layout, looks = yield from look(core)
        core.require_writable()
        if layout.moving_from:
            raise _being_moved(core, layout)
        for shard, seen in enumerate(looks):
            if seen.left_ms and not (take_over and seen.consumer == holder.consumer):
                raise NoLease(
                    f"ick shard {shard} of {core.text!r} is leased by {seen.consumer!r} for another"
                    f" {seen.left_ms / 1000:.0f} s, or longer if it extends the lease; nothing was"
                    " taken"
                )
        shards = range(len(looks))
        tokens = yield from taking(core, layout, shards, holder, asked, take_over=take_over)
        taken = [(shard, token) for shard, token in enumerate(tokens) if token]
        if len(taken) == len(tokens):
            return layout, taken
        yield [_on_lease(core, "sharded_ick/release", shard, token) for shard, token in taken]
        asked.ick_shards.clear()
        # Another consumer came in between, or a resize has begun: the next look tells which.


def taking(
    core: Core,
    layout: ShardedLayout,
    shards: Iterable[int],
    holder: Holder,
    asked: AskedLeases,
    *,
    take_over: bool = False,
) -> Steps[list[str | None]]:
    """Take the leases of ick shards; one round trip.

    Arguments:
        asked: takes note of those that the caller may hold from now on.
        take_over: take them from a holder of the same name, too.

    Returns: for each ick shard the token, "" if the lease is held, None if the layout is out of
    date.
    """
    wanted = list(shards)
    asked.ick_shards.update(wanted)
    tokens = yield [
        Operation(
            core.script("sharded_ick/take"),
            (*names.sets, names.lease, names.mark),
            (layout.mark, *holder, int(take_over), asked.nonce),
            as_token,
        )
        for names in map(core.names, wanted)
    ]
    asked.ick_shards.difference_update(
        shard for shard, token in zip(wanted, tokens, strict=True) if not token
    )
    return tokens  # type: ignore[no-any-return]


def _on_lease(core: Core, script: str, shard: int, token: str, *args: Any) -> Operation:
    return Operation(core.script(script), (core.names(shard).lease,), (token, *args), int)


def _being_moved(core: Core, layout: ShardedLayout) -> NoLease:
    return NoLease(
        f"the members of {core.text!r} are being moved to {layout.ick_shards} ick shards:"
        f" come again, or finish it with resize({layout.ick_shards})"
    )


def as_token(reply: Any) -> Any:
    """Return a token as text, None as it is."""
    return reply.decode() if isinstance(reply, bytes) else reply


def _acking_reservations(
    core: Core, reservations: Mapping[int, tuple[str, str]], lease_ms: int
) -> Steps[dict[int, int]]:
    """Acknowledge all that reservations hold, in several ick shards at once.

    Arguments:
        reservations: ick shard -> the tokens of the lease and of the reservation.

    Returns: ick shard -> how many members were removed. One round trip for each 5,000 members of
    the largest.
    """
    done = dict.fromkeys(reservations, 0)
    todo = list(reservations)
    while todo:
        operations = []
        for shard in todo:
            names = core.names(shard)
            lease_token, token = reservations[shard]
            operations.append(
                Operation(
                    core.script("sharded_ick/ack_all"),
                    (*names.sets, names.held, names.attempts, names.lease),
                    (token, lease_token, lease_ms, MEMBERS_AN_ACK),
                    lambda reply: reply or (0, 0),
                )
            )
        left = dict(zip(todo, (yield operations), strict=True))
        for shard, (removed, _) in left.items():
            done[shard] += removed
        todo = [shard for shard, (_, more) in left.items() if more]
    return done


def in_order_of_need(looks: Sequence[ShardLook], random: Callable[[], float]) -> list[int]:
    """Return the free ick shards, in the order in which to lease them.

    Arguments:
        random: draws whether the neediest goes first, or the one among those with members that was
            leased longest ago.
    """
    free = [(shard, seen) for shard, seen in enumerate(looks) if not seen.left_ms]
    waiting = sorted(
        (seen.lowest, seen.taken, shard) for shard, seen in free if seen.lowest is not None
    )
    empty = sorted((seen.taken, shard) for shard, seen in free if seen.lowest is None)
    if waiting and random() * 100 < LONGEST_WITHOUT_PERCENT:
        first = min(waiting, key=lambda need: need[1])
        waiting.remove(first)
        waiting.insert(0, first)
    return [shard for *_, shard in waiting] + [shard for *_, shard in empty]


def reserved_page(core: Core, shard: int, token: str, start: int) -> Steps[Reserved | None]:
    """Return a page of a reservation, or None if it no longer holds; one round trip."""
    names = core.names(shard)
    # As bytes, for every client.
    flat = yield Operation(
        load("ick/reserved"),
        (*names.sets, names.held),
        (token, start, MEMBERS_A_PAGE),
        options=AS_BYTES,
    )
    if flat is None:
        return None
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def is_no_count(number: object) -> bool:
    """Say whether a value is no number of members."""
    return isinstance(number, bool) or not isinstance(number, int) or number < 0
