"""All ick shards held by one consumer: what is done to all their leases, each in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.client import NEVER_DECODE

from workstealing.errors import ConfigurationError, NoLease
from workstealing.store.operations import Operation, Plain
from workstealing.store.scripts import load
from workstealing.structures.ick.members import checked_reservation
from workstealing.structures.sharded_ick.core import Core
from workstealing.structures.sharded_ick.layout import MOST_ICK_SHARDS, Layout, parse
from workstealing.structures.sharded_ick.leasing import (
    ack_all_steps,
    as_token,
    milliseconds,
    taking,
)
from workstealing.structures.steps import Steps

MEMBERS_A_PAGE = 1000
# What a number of Lua holds exactly.
MOST_PASSED_OVER = 2**53 - MEMBERS_A_PAGE
Page = list[tuple[bytes, float]]


class Leases(list[Any]):
    """The leased Icks of all ick shards of one ShardedIck, in order; see `ShardedIck.lease_all`.

    On an asyncio client its methods are awaited.
    """

    def __init__(
        self, core: Core, perform: Callable[[Steps[Any]], Any], leased: Iterable[Any], ttl: float
    ) -> None:
        super().__init__(leased)
        self._core, self._perform = core, perform
        self._ttl_ms = milliseconds(ttl)

    def renew(self) -> Any:
        """Let all leases that are still held last for their whole time to live from now on.

        Returns: the ick shards whose lease is lost. One round trip.
        """
        return self._perform(self._each("sharded_ick_renew", self._ttl_ms))

    def release(self) -> Any:
        """Let others have the ick shards.

        Returns: those that were not held any more. One round trip.
        """
        return self._perform(self._each("sharded_ick_release"))

    def reserve(self, counts: Mapping[int, int]) -> Any:
        """Reserve in several ick shards at once, with backwash: as `LeasedIck.reserve`.

        Arguments: counts: of each ick shard how many members. Returns: of each ick shard where
        something was reserved (token, number of members); an ick shard whose lease is lost, or that
        a resize waits for, is left out, with nothing changed. Errors: ConfigurationError. One round
        trip for up to 1,000 members in each, one or two more for each 1,000 beyond.
        """
        if not isinstance(counts, Mapping) or any(map(_is_no_count, counts.values())):
            raise ConfigurationError(
                f"counts={counts!r} does not say how much to reserve: give a dict of ick shards and"
                " numbers of members, 0 or more"
            )
        return self._perform(self._reserve(counts))

    def ack_all(self, tokens: Mapping[int, str]) -> Any:
        """Acknowledge everything that reservations hold: as `LeasedIck.ack_all`.

        Arguments: tokens: of each ick shard that of the reservation; those of ick shards that are
        not leased here are passed over. Returns: of each ick shard how many members were removed.
        One round trip for each 5,000 members of the largest reservation.
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
        return self._perform(ack_all_steps(self._core, both, self._ttl_ms))

    def _each(self, script: str, *args: Any) -> Steps[list[int]]:
        if not self:
            return []
        held = yield [
            Operation(
                self._core.script(script),
                (self._core.names(leased.ick_shard).lease,),
                (leased.lease_token, *args),
                int,
            )
            for leased in self
        ]
        return [leased.ick_shard for leased, is_held in zip(self, held, strict=True) if not is_held]

    def _reserve(self, counts: Mapping[int, int]) -> Steps[dict[int, tuple[str, int]]]:
        wanted = [leased for leased in self if counts.get(leased.ick_shard, 0) > 0]
        if not wanted:
            return {}
        operations = [
            # Members stay where they are: they may be many, and no text that the client can read.
            leased.exchanging(counts[leased.ick_shard], (), backwash=True, counts=True)
            for leased in wanted
        ]
        counted: dict[int, int] = {}
        unfinished: list[tuple[Any, Any]] = []
        for leased, reply in zip(wanted, (yield operations), strict=True):
            if reply is not None and reply[1]:
                leased.token = as_token(reply[1])
                counted[leased.ick_shard] = reply[2]
                if reply[3]:
                    unfinished.append((leased, reply[3]))
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
                    counted[leased.ick_shard] += reply[0]
                    if reply[1]:
                        going.append((leased, reply[1]))
            unfinished = going
        return {
            leased.ick_shard: (leased.token, counted[leased.ick_shard])
            for leased in wanted
            if counted.get(leased.ick_shard)
        }


@dataclass(frozen=True)
class ShardLook:
    """What one ick shard looks like.

    Fields: waiting, reserved: how many members, those that a resize has set aside among the
    waiting; left_ms: of its lease, 0 if nobody holds it; consumer: who does, or did; lease_token.
    """

    waiting: int
    reserved: int
    left_ms: int
    consumer: str
    lease_token: str


def look(core: Core) -> Steps[tuple[Layout, list[ShardLook]]]:
    """Look at the layout as it is now, and at all its ick shards.

    Errors: ConfigurationError; LayoutError. One round trip, two if the layout has changed.
    """
    layout = yield from core.open()
    while True:
        reading = Operation(load("sharded_ick_open"), (core.layout_key,), (), lambda reply: reply)
        needs = [core.need(shard) for shard in range(layout.all_shards)]
        found, *replies = yield [reading, *needs]
        now = parse(core.layout_key, found)
        if now is None or now == layout:
            return layout, [_look_of(reply) for reply in replies]
        core.layout = layout = now


def _look_of(reply: list[Any]) -> ShardLook:
    _, _, left, _, consumer, token, moving, _, waiting, reserved = reply
    if isinstance(consumer, bytes):
        consumer = consumer.decode(errors="backslashreplace")
    return ShardLook(waiting + moving, reserved, left, consumer, as_token(token))


def take_all(
    core: Core, holder: tuple[str, float], take_over: bool
) -> Steps[tuple[Layout, list[tuple[int, str]]]]:
    """Take the leases of all ick shards, or none; return the layout and each (ick shard, token).

    Arguments: holder: the consumer and the time to live in seconds; take_over: whether leases of a
    consumer of the same name are taken from it. Errors: NoLease. Two round trips, one more if
    another took one in between.
    """
    while True:
        layout, shards = yield from look(core)
        if layout.moving_from:
            raise NoLease(
                f"the members of {core.text!r} are being moved to {layout.ick_shards} ick shards:"
                f" come again, or finish it with resize({layout.ick_shards})"
            )
        for shard, seen in enumerate(shards):
            if seen.left_ms and not (take_over and seen.consumer == holder[0]):
                raise _held_by_another(core, shard, seen)
        tokens = yield [
            taking(core, layout, shard, holder, take_over) for shard in range(len(shards))
        ]
        if all(tokens):
            return layout, list(enumerate(tokens))
        taken = [(shard, token) for shard, token in enumerate(tokens) if token]
        if taken:
            release = core.script("sharded_ick_release")
            yield [
                Operation(release, (core.names(shard).lease,), (token,), int)
                for shard, token in taken
            ]
        # Somebody came in between, or a resize has begun: the next look says who.


def _held_by_another(core: Core, shard: int, seen: ShardLook) -> NoLease:
    return NoLease(
        f"ick shard {shard} of {core.text!r} is leased by {seen.consumer!r} for another"
        f" {seen.left_ms / 1000:.0f} s, or longer if it renews the lease; nothing was taken"
    )


def reserved_page(core: Core, shard: int, token: str, start: int) -> Steps[Page | None]:
    """Return a page of a reservation, or None if it does not hold any more; one round trip.

    Errors: ConfigurationError.
    """
    if _is_no_count(shard) or shard >= MOST_ICK_SHARDS:
        raise ConfigurationError(
            f"ick_shard={shard!r} is none: give a number from 0 to {MOST_ICK_SHARDS - 1}"
        )
    if _is_no_count(start) or start > MOST_PASSED_OVER:
        raise ConfigurationError(f"start={start!r} is no number of members: give 0 or more")
    checked_reservation(token)
    names = core.names(shard)
    # As bytes, whatever the client makes of replies.
    flat = yield Plain(
        (
            *("EVAL", load("sharded_ick_reserved").body, 4, *names.sets, names.held),
            *(token, start, MEMBERS_A_PAGE),
        ),
        {NEVER_DECODE: True},
    )
    if flat is None:
        return None
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def _is_no_count(number: object) -> bool:
    return isinstance(number, bool) or not isinstance(number, int) or number < 0
