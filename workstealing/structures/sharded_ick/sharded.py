"""ShardedIck, its asyncio form and its pipelines: one queue of dirty members, several consumers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Never, TypeVar

from redis.exceptions import RedisError

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, NoLease
from workstealing.store.fleet import placed
from workstealing.store.grants import (
    Asking,
    AsynchronousAsks,
    BlockingAsks,
    asks,
    give_back,
    give_back_async,
)
from workstealing.store.job_client import (
    AsyncClient,
    BlockingClient,
    ClientT,
    JobClient,
    job_client_for,
)
from workstealing.store.operations import (
    Operation,
    Queued,
    Sleep,
    Steps,
    operation,
)
from workstealing.store.pipeline import AsyncPipeline, BlockingPipeline
from workstealing.store.scripts import load
from workstealing.structures.access import QUEUED, Access
from workstealing.structures.ick import AsyncIck, Ick
from workstealing.structures.ick.ick import DeadMembers, description, warn_of_units
from workstealing.structures.ick.members import (
    Added,
    Debounce,
    Member,
    Members,
    Pairs,
    adding,
    checked_reservation,
    checked_rest,
    in_chunks,
    pairs_of,
    require_one,
    waiting_pairs,
)
from workstealing.structures.sharded_ick.layout import (
    MOST_ICK_SHARDS,
    Core,
    ShardedLayout,
    checked_ick_shards,
    shard_of,
)
from workstealing.structures.sharded_ick.leasing import (
    MOST_PASSED_OVER,
    AskedLeases,
    AsyncLeasedIck,
    AsyncLeases,
    Holder,
    LeasedIck,
    Leases,
    Reserved,
    checked_holder,
    checked_wait,
    is_no_count,
    reserved_page,
    shard_look,
    take_all,
    take_any,
)
from workstealing.structures.sharded_ick.resizing import Resized, checked_limit, resize
from workstealing.structures.structure import NOTE, OK, Check, DeadLetters, Structure

PAUSE_SECONDS = 0.050
IckT = TypeVar("IckT", Ick, AsyncIck)
LeasesT = TypeVar("LeasesT", Leases, AsyncLeases)
T = TypeVar("T")


class _ShardedIckOperations:
    """The operations that a pipeline has too."""

    core: Core

    @operation
    def add(
        self,
        members: Members | Member,
        *others: Never,
        quiet: Duration | None = None,
        at_most: Duration | None = None,
    ) -> Steps[Added]:
        """Add members, each to its ick shard; of two scores of a member the lower one wins.

        Arguments and returns: as of `Ick.add`. Raises: ConfigurationError; LayoutError. One round
        trip; one script for each ick shard and 1,000 members, each atomic by itself.
        """
        require_one(others)
        return _adding(self.core, pairs_of(members), checked_rest(quiet, at_most))

    @operation
    def stats(self) -> Steps[dict[str, Any]]:
        """Describe the whole, and each ick shard.

        Returns: a dict: ick_shards; pset_size, cset_size, dead_size, waiting_size (members that
        wait for their rest), moving_size (set aside by a resize) and total_size (without those that
        wait), summed up; pset_min, pset_max, cset_min, cset_max, total_min and total_max if there
        are members; mixed_units; shards: for each ick shard the fields of `Ick.stats`, with
        moving_size, consumer (None: nobody has leased it) and lease_ms. During a resize a member
        may be counted twice. Raises: ConfigurationError if there is no layout yet; LayoutError. One
        round trip.
        """
        return _describing(self.core)

    @operation
    def delete(self) -> Steps[int]:
        """Delete all members, and the keys beside them.

        The layout stays, with a mark and a lease for each ick shard, so that running processes
        still agree. Returns: how many keys of redis-ick's layout were deleted, up to three for each
        ick shard. Raises: ConfigurationError if there is no layout yet; LayoutError. One round
        trip.
        """
        return _deleting(self.core)


class _EitherShardedIck(_ShardedIckOperations, Structure, Generic[ClientT, IckT, LeasesT]):
    """The operations of both forms that a pipeline does not have."""

    kind = "sharded Ick"
    access = Access(
        keys=("ws:sharded_ick:layout:NAME", "{*}:NAME:*"),
        scripts=("sharded_ick", "ick"),
        commands=QUEUED,
    )
    # Chance and time, as tests set them.
    _random = staticmethod(random.random)
    _clock: Clock = SYSTEM_CLOCK
    _ick_kind: Any
    _leases_kind: Any
    _leased_kind: Any

    def __init__(
        self,
        client: ClientT,
        name: Member,
        ick_shards: int | None = None,
        *,
        clock_shift_ms: int = 0,
    ) -> None:
        self.client = client = placed(client, name)
        self.job_client: JobClient = job_client_for(self, client)
        self.core = Core(name, ick_shards, clock_shift_ms)
        self.name = self.core.text

    @property
    def icks(self) -> list[IckT]:
        """The Ick of each ick shard, as far as this process knows; for the reaper and inspection.

        Do not add or reserve by them. Raises: ConfigurationError if the number is not known yet:
        call `open` first. No round trip.
        """
        layout = self.core.layout
        count = layout.all_shards if layout is not None else self.core.asked
        if count is None:
            raise ConfigurationError(
                f"nobody knows yet how many ick shards {self.name!r} has: call open() first"
            )
        names = map(self.core.names, range(count))
        return [self._ick_kind(self.client, each.version) for each in names]

    @operation
    def open(self) -> Steps[int]:
        """Read the layout, or write it down; return the number of ick shards.

        Every other operation opens the layout by itself. Raises: ConfigurationError if the layout
        has another number than the constructor was given, or if there is neither a layout nor such
        a number; LayoutError. One round trip the first time, then none.
        """
        return self._opening()

    @asks
    def resize(self, ick_shards: int, limit: int = 10_000) -> Asking[Resized]:
        """Change the number of ick shards; move at most `limit` members there where they belong.

        Call it until it is done, in any process: it goes on where the last call, or a crash, has
        left it. Until it is done producers go on, but no new lease is given, and holders of leases
        get no more members. An ick shard is moved when its lease has ended.

        Returns: `Resized`, (done, moved, leased). Raises: ConfigurationError while it is being
        resized to another number, or there is none yet; Aborted if another process has finished it
        meanwhile; LayoutError. Three round trips for each 500 members, and four for each ick shard.
        A call that is interrupted gives the lease back that it works under.
        """
        asked, checked = AskedLeases(), (checked_ick_shards(ick_shards), checked_limit(limit))
        return self._asking(resize(self.core, *checked, asked), asked)

    @asks
    def lease_all(
        self, consumer: str, lease: Duration = 30.0, *, take_over: bool = False
    ) -> Asking[LeasesT]:
        """Take the leases of all ick shards, or none of them, for a consumer that wants the whole.

        Arguments:
            consumer: a name, for people to read.
            lease: how long the leases hold unless they are extended, seconds or a timedelta.
            take_over: take leases from a consumer of the same name, which then gets LeaseLost; for
                a restarted process under a name of its own.

        Returns: `Leases`, a list of `LeasedIck`, whose methods act on all of them. Raises: NoLease,
        which names a holder and how long it holds its lease, or says that a resize is not finished.
        Then nothing was taken, but if another consumer came in between, leases taken over from the
        same name may have been given back. Also raises ConfigurationError; LayoutError. Two round
        trips. A call that is interrupted or cut off gives back what it was granted.
        """
        asked = AskedLeases()
        return self._asking(
            self._leasing_all(checked_holder(consumer, lease), take_over, asked), asked
        )

    @operation
    def reserved(self, ick_shard: int, token: str, start: int = 0) -> Steps[Reserved | None]:
        """Return the members of a reservation; needs no lease and changes nothing.

        Arguments:
            ick_shard: 0 and up.
            token: of the `Batch`.
            start: how many members to pass over.

        Returns: up to 1,000 pairs (member as bytes, score), lowest scores first; empty after the
        last one; None if the reservation no longer holds. Raises: ConfigurationError; LayoutError.
        One round trip.
        """
        if is_no_count(ick_shard) or ick_shard >= MOST_ICK_SHARDS:
            raise ConfigurationError(
                f"ick_shard={ick_shard!r} is none: give a number from 0 to {MOST_ICK_SHARDS - 1}"
            )
        if is_no_count(start) or start > MOST_PASSED_OVER:
            raise ConfigurationError(f"start={start!r} is no number of members: give 0 or more")
        return reserved_page(self.core, ick_shard, checked_reservation(token), start)

    def size_steps(self) -> Steps[int]:
        """Return how many members wait or are reserved in all ick shards."""
        parts = yield from _parts(self.core)
        return sum(
            part.stats.get("total_size", 0) + part.stats.get("waiting_size", 0) + part.moving
            for part in parts
        )

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return a part for each ick shard that has dead members."""
        parts = yield from _parts(self.core)
        return [
            DeadMembers(self.core.names(shard), part.stats["dead_size"], f"ick shard {shard}")
            for shard, part in enumerate(parts)
            if part.stats.get("dead_size")
        ]

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether its layout is one that this release may write, and how far a resize is."""
        named = f"{self.kind} {self.name}"
        layout = yield from self.core.read_layout()
        if layout is None:
            return [Check("", NOTE, f"{named}: nothing has been written yet")]
        self.core.require_writable()
        yield from _parts(self.core)
        shards = f"{layout.ick_shards} ick shards"
        if layout.moving_from:
            said = f"{named}: members are being moved from {layout.moving_from} to {shards}"
            return [Check("", NOTE, f"{said}; finish it with resize({layout.ick_shards})")]
        return [Check("", OK, f"{named}: {shards}")]

    def _opening(self) -> Steps[int]:
        return (yield from self.core.open()).ick_shards

    def asking(self, holder: Holder, wait: float) -> Asking[Any]:
        """Return what asks for a lease, and waits for one; for the package itself."""
        asked = AskedLeases()
        return self._asking(self._leasing(holder, wait, asked), asked)

    def _asking(self, steps: Steps[T], asked: AskedLeases) -> Asking[T]:
        return Asking(steps, lambda: asked.give_back(self.core))

    def _leasing_all(
        self, holder: Holder, take_over: bool, asked: AskedLeases | None = None
    ) -> Steps[LeasesT]:
        layout, found = yield from take_all(self.core, holder, take_over, asked)
        leased = [self._leased_kind(self, layout, holder, each) for each in found]
        return self._leases_kind(self, leased, holder.lease_ms)  # type: ignore[no-any-return]

    def _leasing(self, holder: Holder, wait: float, asked: AskedLeases) -> Steps[Any]:
        """Take a lease, and wait for one for at most so many seconds; return the leased Ick."""
        give_up = self._clock.monotonic() + wait
        while True:
            try:
                layout, found = yield from take_any(self.core, holder, self._random, asked)
                return self._leased_kind(self, layout, holder, found)
            except NoLease:
                left = give_up - self._clock.monotonic()
                if left <= 0:
                    raise
                # Not as long as others wait.
                yield Sleep(min(left, PAUSE_SECONDS * (0.5 + random.random())))


class ShardedIck(_EitherShardedIck[BlockingClient, Ick, Leases], BlockingAsks):
    """Several Icks behind one name, so that several consumers work at once.

    CRC-32 of a member chooses its ick shard; each ick shard lies in a cluster slot of its own, and
    has one consumer at a time, by a lease.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncShardedIck` takes an asyncio client).
        name: any.
        ick_shards: how many, 1 to 1,024; None: as many as the layout says.
        clock_shift_ms: for tests, how far this object's clock is ahead of the server's.

    The number is written down at the first use. Later, another number is refused; `resize` changes
    the number. Raises: ConfigurationError for a wrong argument.
    """

    _ick_kind, _leases_kind, _leased_kind = Ick, Leases, LeasedIck

    def lease(self, consumer: str, lease: Duration = 30.0, wait: Duration = 0.0) -> IckLease:
        """Return a context manager that gives one ick shard which nobody else holds.

        The neediest free ick shard is taken, whose oldest member has the lowest score of all. Of
        several that are equally needy, the one that was leased longest ago goes first. Of the ick
        shards with members, the one that was leased longest ago gets one lease in five, so that
        none starves. Empty ick shards come last.

        Arguments:
            consumer: a name, for people to read.
            lease: how long the lease holds, seconds or a timedelta, unless it is extended, as each
                reserve, exchange and ack does when less than half is left.
            wait: how long to go on trying.

        Raises, on entering: NoLease; LayoutError; ConfigurationError, at once for a wrong argument.
        Two round trips; one at the end.

            with sharded.lease("worker 7", lease=30) as ick:
                batch = ick.reserve(100)
                ...
                ick.ack(*batch.members)
        """
        return IckLease(self, checked_holder(consumer, lease), checked_wait(wait))

    def pipeline(self, transaction: bool = True) -> ShardedIckPipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`."""
        return ShardedIckPipeline(self, transaction)


class AsyncShardedIck(_EitherShardedIck[AsyncClient, AsyncIck, AsyncLeases], AsynchronousAsks):
    """A `ShardedIck` on a redis.asyncio client: its calls are awaited, its leases by async with."""

    _ick_kind, _leases_kind, _leased_kind = AsyncIck, AsyncLeases, AsyncLeasedIck

    def lease(self, consumer: str, lease: Duration = 30.0, wait: Duration = 0.0) -> AsyncIckLease:
        """Return an asynchronous context manager; see `ShardedIck.lease`."""
        return AsyncIckLease(self, checked_holder(consumer, lease), checked_wait(wait))

    def pipeline(self, transaction: bool = True) -> AsyncShardedIckPipeline:
        """Return a pipeline whose `execute` is awaited; see `ShardedIck.pipeline`."""
        return AsyncShardedIckPipeline(self, transaction)


class IckLease:
    """The result of `ShardedIck.lease`: enter it to have an ick shard, leave it to release it."""

    def __init__(self, sharded: ShardedIck, holder: Holder, wait: float) -> None:
        self._sharded, self._holder, self._wait = sharded, holder, wait

    def __enter__(self) -> LeasedIck:
        """Take a lease; return its `LeasedIck`."""
        sharded = self._sharded
        self._asking: Asking[LeasedIck] = sharded.asking(self._holder, self._wait)
        try:
            return self._begin(sharded._ask(self._asking))  # noqa: SLF001 - of the same module
        except BaseException as error:
            give_back(sharded.client, self._asking, error)
            raise

    def _begin(self, ick: LeasedIck) -> LeasedIck:
        # As a function begins, the interpreter looks for signals: here they still give it back.
        self._ick = ick
        return ick

    def __exit__(self, kind: object, *_: object) -> None:
        """Release the lease, if still held; a lease that cannot be released ends by itself."""
        try:
            self._ick.release()
        except BaseException as error:
            give_back(self._sharded.client, self._asking, error)
            # The block's own error says more.
            if not (kind and isinstance(error, RedisError)):
                raise


class AsyncIckLease:
    """The result of `AsyncShardedIck.lease`, for ``async with``."""

    def __init__(self, sharded: AsyncShardedIck, holder: Holder, wait: float) -> None:
        self._sharded, self._holder, self._wait = sharded, holder, wait

    async def __aenter__(self) -> AsyncLeasedIck:
        """Take a lease; return its `AsyncLeasedIck`."""
        sharded = self._sharded
        self._asking: Asking[AsyncLeasedIck] = sharded.asking(self._holder, self._wait)
        try:
            self._ick = await sharded._ask(self._asking)  # noqa: SLF001 - of the same module
            return self._ick
        except BaseException as error:
            await give_back_async(sharded.client, self._asking, error)
            raise

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Release the lease, if it is still held."""
        try:
            await self._ick.release()
        except BaseException as error:
            await give_back_async(self._sharded.client, self._asking, error)
            # The block's own error says more.
            if not (kind and isinstance(error, RedisError)):
                raise


class _QueuedShardedIck(_ShardedIckOperations, Queued):
    """Both forms of a pipeline read the layout before anything is queued.

    A call whose first round trip an ick shard has refused, because the layout has changed since
    this process read it, is finished after that: nothing of what was refused had been done.
    """

    def _opening(self) -> Steps[Any]:
        return self.core.open()


class ShardedIckPipeline(_QueuedShardedIck, BlockingPipeline):
    """The calls of a `ShardedIck`, and the user's own commands, sent together by `execute`.

    One round trip; one more if the layout is not known yet, or has changed.
    """

    def __init__(self, sharded: ShardedIck, transaction: bool) -> None:
        super().__init__(sharded.client, transaction)
        self.core = sharded.core


class AsyncShardedIckPipeline(_QueuedShardedIck, AsyncPipeline):
    """A `ShardedIckPipeline` whose `execute` is awaited."""

    def __init__(self, sharded: AsyncShardedIck, transaction: bool) -> None:
        super().__init__(sharded.client, transaction)
        self.core = sharded.core


def _adding(core: Core, pairs: Pairs, rest: Debounce | None) -> Steps[Added]:
    """Add pairs of a member and a score (None: the server's time), each to its ick shard."""
    new = changed = 0
    layout = yield from core.open_to_write()
    # Nothing to add makes, or checks, every ick shard.
    chunks = _chunks(pairs, layout) if pairs else _nothing(layout)
    while chunks:
        replies = yield [_addition(core, layout, *chunk, rest) for chunk in chunks]
        refused = [chunk for chunk, reply in zip(chunks, replies, strict=True) if reply is None]
        for reply in replies:
            if reply is not None:
                new, changed = new + reply[0], changed + reply[1]
        if not refused:
            break
        layout = yield from core.reopen(layout)
        again = [pair for _, chunk in refused for pair in chunk]
        chunks = _chunks(again, layout) if pairs else _nothing(layout)
    return Added(new, changed)


def _addition(
    core: Core, layout: ShardedLayout, shard: int, chunk: Pairs, rest: Debounce | None
) -> Operation:
    names = core.names(shard)
    if rest is not None:
        keys = (*names.sets, names.mark, *names.resting)
        given = (layout.mark, *rest, *waiting_pairs(chunk))
        return Operation(core.script("sharded_ick/add_waiting"), keys, given)
    script, args = adding(chunk)
    return Operation(load(f"sharded_{script}"), (*names.sets, names.mark), (layout.mark, *args))


def _nothing(layout: ShardedLayout) -> list[tuple[int, Pairs]]:
    return [(shard, []) for shard in range(layout.ick_shards)]


def _chunks(pairs: Iterable[tuple[bytes, Any]], layout: ShardedLayout) -> list[tuple[int, Pairs]]:
    """Split pairs by ick shard, into chunks for one script each."""
    groups: dict[int, Pairs] = {}
    for pair in pairs:
        groups.setdefault(shard_of(pair[0], layout.ick_shards), []).append(pair)
    return [(shard, chunk) for shard, group in groups.items() for chunk in in_chunks(group)]


@dataclass(frozen=True, slots=True)
class _DescribedShard:
    """An ick shard described.

    Fields: stats: those of its Ick, with the dead that a resize has set aside, empty for none;
    moving: how many members a resize has set aside; consumer: None if nobody holds its lease;
    lease_ms: what is left of it.
    """

    stats: dict[str, Any]
    moving: int
    consumer: str | None
    lease_ms: int


def _parts(core: Core) -> Steps[list[_DescribedShard]]:
    """Describe all ick shards; two operations for each, one round trip."""
    shards = range((yield from core.open()).all_shards)
    replies = yield [
        *(description(core.names(shard)) for shard in shards),
        *(shard_look(core, shard) for shard in shards),
    ]
    parts = []
    for (found, units), seen in zip(replies[: len(shards)], replies[len(shards) :], strict=True):
        if len(units) > 1 and not core.has_warned:
            core.has_warned = True
            warn_of_units(core.text, units)
        stats = {**(found or {})}
        stats["dead_size"] = stats.get("dead_size", 0) + seen.moving_dead
        consumer = seen.consumer if seen.left_ms else None
        parts.append(_DescribedShard(stats, seen.moving, consumer, seen.left_ms))
    return parts


def _describing(core: Core) -> Steps[dict[str, Any]]:
    parts = yield from _parts(core)
    layout = core.layout
    assert layout is not None
    each = [
        {
            **part.stats,
            "moving_size": part.moving,
            "consumer": part.consumer,
            "lease_ms": part.lease_ms,
        }
        for part in parts
    ]
    total: dict[str, Any] = {
        name: sum(stats.get(name, 0) for stats in each)
        for name in (
            "pset_size",
            "cset_size",
            "total_size",
            "dead_size",
            "waiting_size",
            "moving_size",
        )
    }
    total["total_size"] += total["moving_size"]
    for kind in ("pset", "cset", "total"):
        for end, pick in (("min", min), ("max", max)):
            known = [stats[f"{kind}_{end}"] for stats in each if f"{kind}_{end}" in stats]
            if known:
                total[f"{kind}_{end}"] = pick(known)
    total["mixed_units"] = any(stats.get("mixed_units", False) for stats in each)
    return {**total, "ick_shards": layout.ick_shards, "shards": each}


def _deleting(core: Core) -> Steps[int]:
    """Delete all members; one operation for each ick shard, one round trip."""
    layout = yield from core.open_to_write()
    deleted = 0
    while True:
        replies = yield [_deletion(core, layout, shard) for shard in range(layout.all_shards)]
        deleted += sum(reply or 0 for reply in replies)
        if None not in replies:
            return deleted
        layout = yield from core.reopen(layout)


def _deletion(core: Core, layout: ShardedLayout, shard: int) -> Operation:
    names = core.names(shard)
    moving = (names.moving, names.moving_dead, names.moving_attempts)
    beside = (*names.all[3:], *moving, names.moving_waiting, names.moving_terms)
    return Operation(load("sharded_ick/delete"), (*names.sets, names.mark, *beside), (layout.mark,))
