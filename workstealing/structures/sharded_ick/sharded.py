"""ShardedIck: one queue of what is dirty, for several consumers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any, Generic, Literal

from redis.exceptions import RedisError

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, NoLease
from workstealing.store.twin import AsyncClient, BlockingClient, ClientT, Twin, twin_for
from workstealing.structures.ick import AsyncIck, Ick
from workstealing.structures.ick.members import Member
from workstealing.structures.sharded_ick.core import Core
from workstealing.structures.sharded_ick.holding import Leases, reserved_page, take_all
from workstealing.structures.sharded_ick.leasing import (
    AsyncLeasedIck,
    LeasedIck,
    checked_holder,
    take_any,
)
from workstealing.structures.sharded_ick.pipeline import (
    AsyncShardedIckPipeline,
    ShardedIckPipeline,
)
from workstealing.structures.sharded_ick.resizing import resize
from workstealing.structures.sharded_ick.surface import Surface
from workstealing.structures.steps import Steps, drive, drive_async

PAUSE_SECONDS = 0.050


class _Object(Surface, Generic[ClientT]):
    _leased_kind: type[Any]
    _ick_kind: type[Any]

    def __init__(
        self,
        client: ClientT,
        name: Member,
        ick_shards: int | None = None,
        *,
        clock_shift_ms: int = 0,
    ) -> None:
        self.client: Any = client
        self.twin: Twin = twin_for(self, client)
        self.core = Core(name, ick_shards, clock_shift_ms)
        # Chance and pauses are set by tests.
        self._random = random.random
        self._clock = SYSTEM_CLOCK

    @property
    def name(self) -> str:
        """The name, as text."""
        return self.core.text

    @property
    def icks(self) -> list[Any]:
        """The Ick of each ick shard, as far as this process knows; for the reaper and for looking.

        Do not add or reserve by them. Errors: ConfigurationError if neither the constructor nor a
        call has said how many there are: call `open` first. No round trip.
        """
        layout = self.core.layout
        count = layout.all_shards if layout is not None else self.core.asked
        if count is None:
            raise ConfigurationError(
                f"nobody knows yet how many ick shards {self.core.text!r} has: call open() first"
            )
        names = map(self.core.names, range(count))
        return [self._ick_kind(self.client, each.version) for each in names]

    def lease_all(self, consumer: str, ttl: float = 30.0, *, take_over: bool = False) -> Any:
        """Take the leases of all ick shards, for a consumer that wants the whole, or none of them.

        Arguments: consumer: a name, for people to read; ttl: seconds after which the leases end by
        themselves, unless they are renewed; take_over: whether leases that a consumer of the same
        name holds are taken from it, which then gets LeaseLost: for one that was started again,
        under a name that is its alone. Returns: `Leases`, a list of `LeasedIck`, whose methods act
        on all of them. Errors: NoLease, which says who holds one and for how long, or that a resize
        is not finished; then nothing was taken, but where somebody came in between, leases taken
        over from the same name may have been given back. Two round trips.
        """
        holder = checked_holder(consumer, ttl, 0.0)[:2]
        return self._perform(self._lease_all(holder, take_over))

    def _lease_all(self, holder: tuple[str, float], take_over: bool) -> Steps[Leases]:
        layout, found = yield from take_all(self.core, holder, take_over)
        leased = [
            self._leased_kind(self.client, self.core, layout, holder, list(pair)) for pair in found
        ]
        return Leases(self.core, self._perform, leased, holder[1])

    def reserved(self, ick_shard: int, token: str, start: int = 0) -> Any:
        """Look at what a reservation holds; needs no lease and changes nothing.

        Arguments: ick_shard: 0 and up; token: of the `Batch`; start: how many members to pass over.
        Returns: up to 1,000 pairs (member as bytes, score), lowest scores first; empty behind the
        last one; None if the reservation does not hold any more. Errors: ConfigurationError. One
        round trip.
        """
        return self._perform(reserved_page(self.core, ick_shard, token, start))


class ShardedIck(_Object[BlockingClient]):
    """Several Icks behind one name, so that several consumers work at once.

    CRC-32 of a member chooses its ick shard; each ick shard lies in a cluster slot of its own, and
    has one consumer at a time, by a lease.

    Arguments: client: a redis.Redis or redis.RedisCluster (`AsyncShardedIck` takes an asyncio
    client); name: any; ick_shards: how many, 1 to 1,024; None: as many as there are;
    clock_shift_ms: for tests, how far this object's clock is ahead of the server's. The number is
    written down at the first use; another one is refused later, and changed by `resize`.
    """

    _is_async_client: Literal[False] = False

    def _perform(self, steps: Steps[Any]) -> Any:
        return drive(self.client, steps)

    _sleep = staticmethod(time.sleep)
    _leased_kind = LeasedIck
    _ick_kind = Ick

    def open(self) -> int:
        """Read the layout, or write it down; return the number of ick shards.

        Every call does this by itself. Errors: ConfigurationError if it is another number than the
        constructor's; LayoutError. One round trip the first time, then none.
        """
        return drive(self.client, self.core.open()).ick_shards

    def lease(self, consumer: str, ttl: float = 30.0, wait: float = 0.0) -> IckLease:
        """Return a context manager that gives one ick shard which nobody else holds.

        The neediest free one is taken: that whose oldest member has the lowest score; of equally
        needy ones that which was leased longest ago. One lease in five goes to the one with members
        that was leased longest ago, so that none starves. Empty ones come last.

        Arguments: consumer: a name, for people to read; ttl: seconds after which the lease ends by
        itself, unless it is renewed, as each reserve, exchange and ack does when less than half
        is left; wait: seconds to go on trying. Errors, on entering: NoLease; ConfigurationError.
        Two round trips; one at the end.

            with sharded.lease("worker 7", ttl=30) as ick:
                batch = ick.reserve(100)
                ...
                ick.ack(*batch.members)
        """
        return IckLease(self, *checked_holder(consumer, ttl, wait))

    def resize(self, ick_shards: int, limit: int = 10_000) -> Any:
        """Change the number of ick shards; move at most `limit` members there where they belong.

        Call it until it is done, in whatever process: it goes on where the last call, or a crash,
        has left it. From the first call until then producers go on, but no new lease is given, and
        those that there are get no more members: an ick shard is moved when its lease has ended.

        Returns: `Resized`, (done, moved, leased). Errors: ConfigurationError while it is being
        resized to another number; Aborted if another process has finished it meanwhile. Three round
        trips for each 500 members, and four for each ick shard.
        """
        return drive(self.client, resize(self.core, ick_shards, limit))

    def pipeline(self, transaction: bool = True) -> ShardedIckPipeline:
        """Return a pipeline: what is called on it is sent, with the user's own, by `execute`."""
        return ShardedIckPipeline(self, transaction)


class AsyncShardedIck(_Object[AsyncClient]):
    """A `ShardedIck` on a redis.asyncio client: its calls are awaited, its leases by async with."""

    _is_async_client: Literal[True] = True

    def _perform(self, steps: Steps[Any]) -> Any:
        return drive_async(self.client, steps)

    _sleep = staticmethod(asyncio.sleep)
    _leased_kind = AsyncLeasedIck
    _ick_kind = AsyncIck

    async def open(self) -> int:
        """Read the layout, or write it down; see `ShardedIck.open`."""
        return (await drive_async(self.client, self.core.open())).ick_shards

    def lease(self, consumer: str, ttl: float = 30.0, wait: float = 0.0) -> AsyncIckLease:
        """Return an asynchronous context manager; see `ShardedIck.lease`."""
        return AsyncIckLease(self, *checked_holder(consumer, ttl, wait))

    async def resize(self, ick_shards: int, limit: int = 10_000) -> Any:
        """Change the number of ick shards; see `ShardedIck.resize`."""
        return await drive_async(self.client, resize(self.core, ick_shards, limit))

    def pipeline(self, transaction: bool = True) -> AsyncShardedIckPipeline:
        """Return a pipeline whose `execute` is awaited; see `ShardedIck.pipeline`."""
        return AsyncShardedIckPipeline(self, transaction)


class _LeaseBase:
    def __init__(self, sharded: Any, consumer: str, ttl: float, wait: float) -> None:
        self._sharded = sharded
        self._consumer, self._ttl, self._wait = consumer, ttl, wait
        self._give_up = 0.0

    def _take(self) -> Steps[Any]:
        sharded = self._sharded
        return take_any(sharded.core, self._consumer, self._ttl, sharded._random)  # noqa: SLF001

    def _begin(self) -> None:
        self._give_up = self._now() + self._wait

    def _now(self) -> float:
        now: float = self._sharded._clock.monotonic()  # noqa: SLF001
        return now

    def _pause(self) -> float:
        """Return how long to wait, in seconds: other than others wait; 0 when time is up."""
        left = self._give_up - self._now()
        return max(0.0, min(left, PAUSE_SECONDS * (0.5 + random.random())))

    def _leased(self, kind: type[Any], found: tuple[Any, list[Any]]) -> Any:
        sharded = self._sharded
        holder = (self._consumer, self._ttl)
        return kind(sharded.client, sharded.core, found[0], holder, found[1])


class IckLease(_LeaseBase):
    """What `ShardedIck.lease` returns: enter it to have an ick shard, leave it to release it."""

    _ick: LeasedIck

    def __enter__(self) -> LeasedIck:
        """Take a lease; return its `LeasedIck`."""
        self._begin()
        while True:
            try:
                found = drive(self._sharded.client, self._take())
            except NoLease:
                pause = self._pause()
                if not pause:
                    raise
                self._sharded._sleep(pause)  # noqa: SLF001
            else:
                self._ick = self._leased(LeasedIck, found)
                return self._ick

    def __exit__(self, kind: object, *_: object) -> None:
        """Release it, if it is still held; a lease that cannot be released ends by itself."""
        with contextlib.suppress(RedisError) if kind else contextlib.nullcontext():
            self._ick.release()


class AsyncIckLease(_LeaseBase):
    """What `AsyncShardedIck.lease` returns, for ``async with``."""

    _ick: AsyncLeasedIck

    async def __aenter__(self) -> AsyncLeasedIck:
        """Take a lease; return its `AsyncLeasedIck`."""
        self._begin()
        while True:
            try:
                found = await drive_async(self._sharded.client, self._take())
            except NoLease:
                pause = self._pause()
                if not pause:
                    raise
                await self._sharded._sleep(pause)  # noqa: SLF001
            else:
                self._ick = self._leased(AsyncLeasedIck, found)
                return self._ick

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Release it, if it is still held."""
        with contextlib.suppress(RedisError) if kind else contextlib.nullcontext():
            await self._ick.release()
