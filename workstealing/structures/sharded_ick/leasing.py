"""Leases: the right to consume one ick shard, which ends by itself and is fenced by a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workstealing.errors import ConfigurationError, LeaseLost, NoLease
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation
from workstealing.structures.ick.members import (
    MEMBERS_A_CHUNK,
    Acked,
    Batch,
    Member,
    checked_reservation,
    scored,
)
from workstealing.structures.sharded_ick.core import Core
from workstealing.structures.sharded_ick.layout import Layout
from workstealing.structures.steps import Steps, drive, drive_async

# How many leases in a hundred go to the ick shard that has waited longest for one, whoever is
# neediest: a member that is never acknowledged would otherwise keep its ick shard the neediest.
LONGEST_WITHOUT_PERCENT = 20
# How many members one script acknowledges, so that no other client waits long for it.
MEMBERS_AN_ACK = 5000
# A year: whoever needs longer has mistaken the unit.
_LONGEST_SECONDS = 31_536_000.0


class _Leased:
    """What the blocking and the asyncio form of a leased Ick have in common.

    Attributes: ick_shard: which one, 0 and up; key: of its Ick; consumer; lease_token: digits, a
    number greater than those of all earlier holders, for whatever else is to be fenced by it.
    """

    def __init__(
        self, client: Any, core: Core, layout: Layout, holder: tuple[str, float], found: list[Any]
    ) -> None:
        self.client = client
        self._core = core
        self._mark = layout.mark
        self.consumer, ttl = holder
        self._ttl_ms = milliseconds(ttl)
        self.ick_shard, self.lease_token = found
        self._names = core.names(self.ick_shard)
        self.key = self._names.version
        self.token = ""

    def _perform(self, steps: Steps[Any]) -> Any:
        raise NotImplementedError

    def reserve(self, n: int, backwash: bool = False) -> Any:
        """Top up the consumer set to n members, and return its n lowest-scored members.

        As `Ick.reserve`, in pieces of 1,000 and reserve(0) too; renews the lease if less than half
        of it is left. Returns: a `Batch`, which is empty while a resize waits for this lease to
        end, and shorter if the lease is lost between two pieces. Errors: LeaseLost.
        """
        return self.exchange(n, backwash=backwash)

    def ack(self, *members: Member) -> Any:
        """Acknowledge members whose work is done: remove them from the consumer set.

        As `Ick.ack`; renews the lease if less than half of it is left. Returns: `Acked`,
        whose `ignored` counts what was not removed: all, once the lease or the reservation does not
        hold any more. One round trip.
        """
        return self._perform(self._ack_steps(members))

    def ack_all(self, token: str) -> Any:
        """Acknowledge everything that a reservation holds, without naming its members.

        Arguments: token: of the `Batch`. It must have been reserved with backwash, or everything
        that was reserved before it acknowledged: all that is reserved counts as done. Renews the
        lease if less than half of it is left. Returns: how many were removed; 0, with nothing
        changed, once the lease or the reservation does not hold any more. One round trip for each
        5,000.
        """
        return self._perform(self._ack_all_steps(checked_reservation(token)))

    def exchange(self, n: int, *members: Member, backwash: bool = False) -> Any:
        """Acknowledge members and then reserve, in one round trip for up to 1,000 members to ack.

        Arguments and returns: as of `Ick.exchange`. Errors: LeaseLost, with none of the last
        1,000 acknowledged; ConfigurationError.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ConfigurationError(
                f"n={n!r} members cannot be reserved: give a number, 0 or more"
            )
        return self._perform(self._exchange_steps(n, members, backwash))

    def renew(self) -> Any:
        """Let the lease last for its whole time to live from now on.

        Errors: LeaseLost if it has run out. One round trip.
        """
        return self._perform(self._renew_steps())

    def _exchange_steps(self, n: int, members: Sequence[Member], backwash: bool) -> Steps[Batch]:
        split = max(0, len(members) - MEMBERS_A_CHUNK)
        acked = yield from self._ack_steps(members[:split])
        raw = [to_bytes(member) for member in members[split:]]
        (reply,) = yield [self.exchanging(n, raw, backwash)]
        if reply is None:
            if n or backwash:
                raise self._lost()
            # An acknowledgement alone says by its figures that it came too late.
            reply = (0, "", [], "")
        removed, token, flat, left = reply
        if token:
            self.token = as_token(token)
        if left:
            flat = yield from _whole(flat, left, lambda left, first: self.going_on(n, left, first))
        total = removed + acked
        # Nothing is reserved under the token of a batch that was handed back.
        made = self.token if n else ""
        return Batch(scored(flat), made, Acked(total, len(members) - total))

    def exchanging(
        self, n: int, members: Sequence[bytes], backwash: bool, *, counts: bool = False
    ) -> Operation:
        """Return the operation of an exchange; for the package itself. Its result is the reply.

        Arguments: as of `exchange`; counts: reply how many members were reserved, and not which.
        """
        names = self._names
        return Operation(
            self._core.script("sharded_ick_exchange"),
            (*names.sets, names.held, names.attempts, names.lease, names.mark),
            (
                *(n, int(bool(backwash)), self.token, self.lease_token, self._ttl_ms),
                *(self._mark, int(counts), *members),
            ),
            lambda reply: reply,
        )

    def going_on(self, n: int, left: Any, first: int, *, counts: bool = False) -> Operation:
        """Return the operation that goes on with a large reservation; for the package itself.

        Arguments: n and counts: as of `exchanging`; left: what it has said is left to be done;
        first: how many members have been returned. Its result is the reply, None once it is over.
        """
        names = self._names
        return Operation(
            self._core.script("sharded_ick_reserve_on"),
            (*names.sets, names.held, names.attempts, names.lease, names.mark),
            (
                *(self.token, self.lease_token, self._ttl_ms, self._mark, int(counts)),
                *(n, left, first),
            ),
            lambda reply: reply,
        )

    def _ack_steps(self, members: Sequence[Member]) -> Steps[Acked]:
        raw = [to_bytes(member) for member in members]
        if not raw:
            return Acked(0, 0)
        names = self._names
        keys = (*names.sets, names.held, names.attempts, names.lease)
        fixed = (self.token, self.lease_token, self._ttl_ms)
        replies = yield [
            Operation(
                self._core.script("sharded_ick_commit"),
                keys,
                (*fixed, *raw[start : start + MEMBERS_A_CHUNK]),
                int,
            )
            for start in range(0, len(raw), MEMBERS_A_CHUNK)
        ]
        return Acked(sum(replies), len(raw) - sum(replies))

    def _ack_all_steps(self, token: str) -> Steps[int]:
        done = yield from ack_all_steps(
            self._core, {self.ick_shard: (self.lease_token, token)}, self._ttl_ms
        )
        return done[self.ick_shard]

    def _renew_steps(self) -> Steps[None]:
        (held,) = yield [self._on_lease("sharded_ick_renew", self.lease_token, self._ttl_ms)]
        if not held:
            raise self._lost()

    def _release_steps(self) -> Steps[bool]:
        (held,) = yield [self._on_lease("sharded_ick_release", self.lease_token)]
        return bool(held)

    def _on_lease(self, script: str, *args: Any) -> Operation:
        return Operation(self._core.script(script), (self._names.lease,), args, int)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"{self.consumer} does not hold ick shard {self.ick_shard} of {self._core.text!r} any"
            " more: its lease ran out; take a new one, and renew it while working"
        )


class LeasedIck(_Leased):
    """The Ick of one ick shard, for as long as nobody else holds it; see `ShardedIck.lease`."""

    def _perform(self, steps: Steps[Any]) -> Any:
        return drive(self.client, steps)

    def release(self) -> bool:
        """Let others have the ick shard; return whether it was still held. One round trip."""
        return drive(self.client, self._release_steps())


class AsyncLeasedIck(_Leased):
    """A `LeasedIck` on a redis.asyncio client: every method is awaited."""

    def _perform(self, steps: Steps[Any]) -> Any:
        return drive_async(self.client, steps)

    async def release(self) -> bool:
        """Let others have the ick shard; return whether it was still held."""
        return await drive_async(self.client, self._release_steps())


def _whole(
    flat: list[Any], left: Any, going_on: Callable[[Any, int], Operation]
) -> Steps[list[Any]]:
    while left:
        reply = yield going_on(left, len(flat) // 2)
        if reply is None:
            break
        more, left = reply
        flat = flat + more
    return flat


def take_any(
    core: Core, consumer: str, ttl: float, random: Callable[[], float]
) -> Steps[tuple[Layout, list[Any]]]:
    """Take the lease of the neediest free ick shard; return the layout, and (ick shard, token).

    Errors: NoLease. Two round trips, one more for each ick shard that somebody else takes first.
    """
    layout = yield from core.open()
    while True:
        if layout.moving_from:
            # Somebody may have finished since.
            layout = (yield from core.read_layout()) or layout
        if layout.moving_from:
            raise NoLease(
                f"the members of {core.text!r} are being moved to {layout.ick_shards} ick shards:"
                f" come again, or finish it with resize({layout.ick_shards})"
            )
        needs = yield [core.need(shard) for shard in range(layout.ick_shards)]
        is_outdated = False
        for shard in in_order_of_need(needs, random):
            token = yield from take(core, layout, shard, consumer, ttl)
            if token:
                return layout, [shard, token]
            is_outdated = token is None
            if is_outdated:
                break
        if not is_outdated:
            raise NoLease(
                f"all {layout.ick_shards} ick shards of {core.text!r} are leased: come again, or"
                " wait for one with lease(..., wait=seconds)"
            )
        layout = yield from core.reopen(layout)


def take(core: Core, layout: Layout, shard: int, consumer: str, ttl: float) -> Steps[str | None]:
    """Take one ick shard's lease; return its token, "" if it is held, None if layout is old."""
    (token,) = yield [taking(core, layout, shard, (consumer, ttl))]
    return token  # type: ignore[no-any-return]


def taking(
    core: Core, layout: Layout, shard: int, holder: tuple[str, float], take_over: bool = False
) -> Operation:
    """Return the operation that takes one ick shard's lease; it returns what `take` does.

    Arguments: holder: the consumer and its time to live in seconds; take_over: take it from a
    holder of the same name, too.
    """
    names = core.names(shard)
    consumer, ttl = holder
    return Operation(
        core.script("sharded_ick_take"),
        (*names.sets, names.lease, names.mark),
        (layout.mark, consumer, milliseconds(ttl), int(take_over)),
        as_token,
    )


def as_token(reply: Any) -> Any:
    """Return a token as text, whatever the client makes of replies."""
    return reply.decode() if isinstance(reply, bytes) else reply


def ack_all_steps(
    core: Core, reservations: Mapping[int, tuple[str, str]], ttl_ms: int
) -> Steps[dict[int, int]]:
    """Commit all that reservations hold, in several ick shards at once.

    Arguments: reservations: of each ick shard the token of the lease and that of the reservation.
    Returns: of each ick shard how many members were removed. One round trip for each 5,000 members
    of the largest.
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
                    core.script("sharded_ick_finish"),
                    (*names.sets, names.held, names.attempts, names.lease),
                    (token, lease_token, ttl_ms, MEMBERS_AN_ACK),
                    lambda reply: reply or (0, 0),
                )
            )
        replies = yield operations
        left = dict(zip(todo, replies, strict=True))
        for shard, (removed, _) in left.items():
            done[shard] += removed
        todo = [shard for shard, (_, more) in left.items() if more]
    return done


def in_order_of_need(needs: Sequence[Sequence[Any]], random: Callable[[], float]) -> list[int]:
    """Return the free ick shards, the one that is to be leased first at the front.

    Arguments: needs: replies of `Core.need`; random: draws whether the neediest goes first, or the
    one among those with members that was leased longest ago.
    """
    waiting: list[tuple[float, int, int]] = []
    empty: list[tuple[int, int]] = []
    for shard, (producer, consumer, left, taken, *_) in enumerate(needs):
        if left:
            continue
        if producer or consumer:
            lowest = min(float(score) for score in (producer, consumer) if score)
            waiting.append((lowest, int(taken), shard))
        else:
            empty.append((int(taken), shard))
    waiting.sort()
    if waiting and random() * 100 < LONGEST_WITHOUT_PERCENT:
        first = min(waiting, key=lambda need: need[1])
        waiting.remove(first)
        waiting.insert(0, first)
    return [shard for *_, shard in waiting] + [shard for *_, shard in sorted(empty)]


def checked_holder(consumer: object, ttl: object, wait: object) -> tuple[str, float, float]:
    """Return a consumer's name, time to live and time to wait, or raise ConfigurationError."""
    if not isinstance(consumer, str) or not consumer:
        raise ConfigurationError(
            f"the consumer {consumer!r} has no name: give a text, a host's name and process id"
        )
    for name, seconds, least in (("ttl", ttl, 0.001), ("wait", wait, 0.0)):
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not (least <= seconds <= _LONGEST_SECONDS)
        ):
            raise ConfigurationError(
                f"{name}={seconds!r} is no time: give seconds, {least:g} to {_LONGEST_SECONDS:g}"
            )
    return consumer, float(ttl), float(wait)  # type: ignore[arg-type]


def milliseconds(seconds: float) -> int:
    """Return a time to live as the scripts take it."""
    return max(1, round(seconds * 1000))
