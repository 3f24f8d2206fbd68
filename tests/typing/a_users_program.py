"""A typed program of a user; `make types` checks it beside the package.

Nothing runs it. Its claims are for mypy, in strict mode and by `assert_type`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, assert_type

import flask
import redis
import redis.asyncio
import sqlalchemy

import workstealing
from workstealing import (
    Adaptive,
    Hooks,
    Job,
    Outcome,
    Recruiter,
    Slice,
    connect,
    jobs,
    structures,
)
from workstealing.integrations.flask import WorkStealing
from workstealing.integrations.wsgi import WorkStealingMiddleware
from workstealing.jobs import (
    Backlog,
    FairQueueReaper,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    LogCompactor,
    LogTrimmer,
    QueueExpiry,
    ShuffleQueueReaper,
    TimeShardSweeper,
    TrackQueued,
    UntrackDone,
)
from workstealing.recruiting.job import Backlog as JobBacklog
from workstealing.store import connect_async
from workstealing.structures import (
    Acked,
    Added,
    AsyncDurableKeys,
    AsyncFairQueue,
    AsyncIck,
    AsyncLease,
    AsyncLeasedIck,
    AsyncLog,
    AsyncRedisStore,
    AsyncShardedIck,
    AsyncShuffleQueue,
    AsyncTimeShardQueue,
    AsyncTrackedSet,
    AsyncVolatileHashes,
    Batch,
    DeadMember,
    Drift,
    DurableKeys,
    FairQueue,
    Ick,
    Lease,
    LeasedIck,
    LeaseLost,
    Log,
    Message,
    NoLease,
    Page,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    Taken,
    TimeShardQueue,
    TimeShardStats,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.durable_keys.keys import AsyncKeyPipeline, KeyPipeline
from workstealing.structures.fair_queue import (
    AccountRule,
    AccountState,
    DeadFairMessage,
    Exchanged,
    FairMessage,
    NewMessage,
    WaitReason,
)
from workstealing.structures.fair_queue.queue import FairQueuePipeline
from workstealing.structures.ick.ick import AsyncIckPipeline, IckPipeline
from workstealing.structures.log import GroupEntry, GroupStats, LogRange, LogStats, PendingEntry
from workstealing.structures.log.group import LogGroupPipeline
from workstealing.structures.log.log import AsyncLogPipeline, LogPipeline
from workstealing.structures.sharded_ick.sharded import ShardedIckPipeline
from workstealing.structures.shuffle_queue import DeadMessage, OverdueMessage
from workstealing.structures.shuffle_queue.queue import ShuffleQueuePipeline
from workstealing.structures.time_shard_queue.queue import TimeShardQueuePipeline
from workstealing.structures.tracked_set.sets import TrackedSetPipeline
from workstealing.structures.tracked_set.sources import Source, SqlSource
from workstealing.structures.volatile_hashes.hashes import HashPipeline

items = VolatileHashes(connect("redis://localhost:6379/0"), namespace="items")
recruiter = Recruiter(
    seconds=timedelta(milliseconds=10), breaker=timedelta(seconds=5), longest=0.25
)
followed = Adaptive(0.001, 0.01, lag=timedelta(minutes=1))
assert_type(followed.lag, float)
job = HashFieldExpiry(items, limit=5)
recruiter.install(job, rate=0.003)


def blocking() -> None:
    assert_type(items, VolatileHashes)
    assert_type(items.hset("item:17", "likes", 42), int)
    assert_type(items.hget("item:17", "likes"), bytes | str | None)
    assert_type(items.hsetex("item:17", mapping={"likes": 42}, ex=300), int)
    assert_type(items.expire("item:17", 300), bool)
    assert_type(items.ttl("item:17"), int)
    assert_type(items.hscan_iter("item:17"), Iterator[Any])
    assert_type(job.backlog(timedelta(seconds=5)), Backlog)
    with items.pipeline() as pipeline:
        assert_type(pipeline, HashPipeline)
        pipeline.hgetex("item:17", "likes")
        pipeline.incr("visits")
        pipeline.execute()


async def asynchronous(client: redis.asyncio.Redis) -> None:
    hashes = AsyncVolatileHashes(client, namespace="items")
    assert_type(await hashes.hget("item:17", "likes"), bytes | str | None)
    assert_type(await hashes.hsetex("item:17", "likes", 42, px=300), int)
    assert_type(await hashes.expire("item:17", 300), bool)
    assert_type(hashes.hscan_iter("item:17"), AsyncIterator[Any])
    async with hashes.pipeline() as pipeline:
        pipeline.hget("item:17", "likes")
        await pipeline.execute()


def clients(one: redis.Redis, cluster: redis.RedisCluster) -> None:
    assert_type(VolatileHashes(one, "items", allow_eviction=["allkeys-lru"]), VolatileHashes)
    assert_type(DurableKeys(cluster), DurableKeys)
    # The class follows the client, for type checkers too.
    assert_type(AsyncVolatileHashes(connect_async()), AsyncVolatileHashes)
    assert_type(AsyncDurableKeys(connect_async(), namespace="leases"), AsyncDurableKeys)
    assert_type(AsyncIck(connect_async(), "dirty"), AsyncIck)


class Pages(VolatileHashes):
    """Hashes of the user's own kind."""


assert_type(Pages(redis.Redis()), Pages)

keys = DurableKeys(connect(), namespace="reports")
recruiter.install(KeyExpiry(keys, limit=25), rate=0.01)


def durable() -> None:
    assert_type(keys.set("report:7", b"text", ex=60, get=True), bool | str | bytes | None)
    assert_type(keys.get("report:7"), bytes | str | None)
    assert_type(keys.expire("report:7", 30), bool)
    assert_type(keys.pttl("report:7"), int)
    assert_type(keys.delete("report:7", "report:8"), int)
    assert_type(KeyExpiry(keys).backlog(), Backlog)
    with keys.pipeline() as pipeline:
        assert_type(pipeline, KeyPipeline)
        pipeline.set("report:7", "text", px=60)
        pipeline.acquire("report:8", 30)
        pipeline.incr("visits")
        assert_type(pipeline.execute(), list[Any])


def leases() -> int | None:
    token = keys.acquire("report:8", lease=30)
    assert_type(token, int | None)
    if token is not None:
        assert_type(keys.extend("report:8", token, lease=30), bool)
        assert_type(keys.release("report:8", token), bool)
    try:
        with keys.lock("report:9", lease=0.5) as lease:
            assert_type(lease, Lease)
            assert_type(lease.token, int)
            assert_type(lease.extend(), bool)
    except workstealing.Aborted:
        return None
    return lease.token if lease.kept else None


async def asynchronous_durable(client: redis.asyncio.Redis) -> None:
    keys = AsyncDurableKeys(client, namespace="reports")
    assert_type(await keys.get("report:7"), bytes | str | None)
    assert_type(await keys.set("report:7", 1, ex=60), bool | str | bytes | None)
    assert_type(await keys.acquire("report:8", lease=30), int | None)
    assert_type(await keys.release("report:8", 17), bool)
    async with keys.lock("report:9", lease=30) as lease:
        assert_type(lease, AsyncLease)
        assert_type(await lease.extend(60), bool)
    async with keys.pipeline(transaction=False) as pipeline:
        assert_type(pipeline, AsyncKeyPipeline)
        pipeline.get("report:7")
        assert_type(await pipeline.execute(), list[Any])


class FilesWithWork:
    """A source of the user's own: no database, but the same two questions."""

    def rows_after(self, cursor: str, n: int, seconds: float) -> list[tuple[str, str]]:
        """Return the next files with work."""
        return [(name, name) for name in ("a", "b") if name > cursor][:n]

    def with_work(self, ids: Sequence[str], seconds: float) -> set[str]:
        """Return which files still have work."""
        return {name for name in ids if name < "c"}


def tracked(engine: sqlalchemy.Engine) -> None:
    table = SqlSource(engine, "tasks", id="item_id", cursor=["updated", "id"], where={"done": 0})
    table.warm_up(2.0)
    table.warm_up(timedelta(seconds=2))
    source: Source = FilesWithWork()
    for each in (table, source):
        queued = TrackedSet(connect(), "queued", each, sub_sets=16)
        recruiter.install(TrackQueued(queued), rate=0.01)
        recruiter.install(UntrackDone(queued, limit=5), rate=0.01)
        is_tracked: bool = queued.is_tracked(17)
        both: list[bool] = queued.are_tracked(["17", 18])
        new: int = queued.track([17, "18"]) + queued.untrack(17) + queued.count()
        assert is_tracked or any(both) or new
        assert_type(queued.drift(sample=100), Drift)
        assert_type(queued.drift().stale.share, float)
        with queued.pipeline() as pipeline:
            assert_type(pipeline, TrackedSetPipeline)
            pipeline.track(17)
            pipeline.execute()


async def asynchronous_tracked(client: redis.asyncio.RedisCluster, source: Source) -> bool:
    queued = AsyncTrackedSet(client, "queued", source=source)
    assert_type(queued, AsyncTrackedSet)
    await queued.track([17, 18])
    assert_type(await queued.drift(), Drift)
    async with queued.pipeline() as pipeline:
        pipeline.untrack(17)
        await pipeline.execute()
    is_tracked: bool = await queued.is_tracked("17")
    return is_tracked


def dirty_list() -> None:
    ick = Ick(connect(), "dirty")
    assert_type(ick, Ick)
    assert_type(ick.add({"document:1": 1.5}), Added)
    ick.add([("document:2", 2), ("document:3", 3)])
    assert_type(ick.add("document:4").new, int)
    batch = ick.reserve(10, backwash=True)
    assert_type(batch, Batch)
    for member, score in batch:
        assert_type(score, float)
        committed = ick.ack(member, token=batch.token)
        assert_type(committed, Acked)
        assert_type(committed.ignored, int)
    assert_type(ick.exchange(10, *batch.members), Batch)
    dead: Page[DeadMember] = ick.dead()
    assert_type([each.times for each in dead], list[tuple[float, ...]])
    reaper = IckReaper(ick, lease=60)
    assert_type(reaper.backlog(timedelta(seconds=5)), JobBacklog)
    recruiter.install(reaper, rate=0.01)
    with ick.pipeline() as pipeline:
        assert_type(pipeline, IckPipeline)
        assert_type(pipeline.add({"document:5": 5}).reserve(10), IckPipeline)
        pipeline.execute()
    assert_type(ick.delete(), int)


async def asynchronous_dirty_list(client: redis.asyncio.Redis) -> None:
    ick = AsyncIck(client, b"dirty")
    assert_type(await ick.add(["document:1"]), Added)
    batch = await ick.reserve(10)
    assert_type(batch, Batch)
    assert_type(await ick.ack(*batch.members), Acked)
    async with ick.pipeline() as pipeline:
        assert_type(pipeline.add({"document:5": 5}), AsyncIckPipeline)
        await pipeline.execute()


def consume() -> None:
    sharded = ShardedIck(connect(), "documents", ick_shards=4)
    assert_type(sharded.open(), int)
    added: Added = sharded.add({"document:1": 1.5})
    try:
        with sharded.lease("worker 7", lease=30, wait=1.0) as ick:
            assert_type(ick, LeasedIck)
            batch: Batch = ick.reserve(100)
            ick.extend()
            ick.ack(*batch.members)
            assert_type(ick.release(), bool)
    except NoLease:
        assert added.new
    except LeaseLost as error:
        raise SystemExit(1) from error
    recruiter.install(IckReaper(sharded, lease=60, max_attempts=3), rate=0.01)
    with sharded.pipeline() as pipeline:
        assert_type(pipeline, ShardedIckPipeline)
        pipeline.add("document:2")
        pipeline.execute()


async def asynchronous_consume(client: redis.asyncio.Redis) -> None:
    sharded = AsyncShardedIck(client, "documents")
    assert_type(sharded, AsyncShardedIck)
    assert_type(await sharded.open(), int)
    await sharded.add({"document:1": 1.5})
    async with sharded.lease("worker 7") as ick:
        assert_type(ick, AsyncLeasedIck)
        batch: Batch = await ick.reserve(100)
        await ick.ack(*batch.members)


def tenants() -> None:
    client = connect()
    queue = ShuffleQueue(client, "predictions", streams=128, ttl=86_400)
    assert_type(queue, ShuffleQueue)
    assert_type(queue.write("tenant", {"number": 1}, deadline=2e9), str)
    message = queue.read("workers", "worker 7", block=0.1)
    assert_type(message, Message | None)
    if message is not None:
        assert_type(message.pickup_delay_ms, int)
        assert_type(queue.ack(message), int)
        assert_type(queue.nack(message, delay=2.5), int)
    assert_type(queue.read_many("workers", "worker 7", 10), list[Message])
    assert_type(queue.cancel("request 17"), bool)
    with queue.pipeline() as pipeline:
        assert_type(pipeline, ShuffleQueuePipeline)
        assert_type(pipeline.write("tenant", {"number": 2}), ShuffleQueuePipeline)
        assert_type(pipeline.read("workers", "worker 7"), ShuffleQueuePipeline)
        pipeline.incr("visits")
        assert_type(pipeline.execute(), list[Any])
    assert_type(queue.groups(), list[str])
    assert_type(queue.stats("workers"), dict[str, Any])
    dead = queue.dead("workers")
    assert_type(dead, Page[DeadMessage])
    assert_type(queue.overdue(10, start=20), Page[OverdueMessage])
    assert_type(dead.more, int)
    assert_type(queue.revive("workers", *[each.id for each in dead]), int)
    assert_type(queue.discard("workers", dead[0].id), int)
    assert_type(queue.delete(), int)
    assert_type(ShuffleQueueReaper(queue, lease=timedelta(minutes=1)).backlog(), Backlog)
    assert_type(QueueExpiry(client).backlog(), Backlog)
    recruiter.install(ShuffleQueueReaper(queue, lease=60), rate=0.01)
    recruiter.install(QueueExpiry(client), rate=0.001)


def accounts() -> None:
    queue = FairQueue(connect(), "predictions", lease=timedelta(minutes=1), max_attempts=3)
    assert_type(queue, FairQueue)
    assert_type(queue.pipeline().read_many("worker 7", 2), FairQueuePipeline)
    queue.set_rule("bulk-*", weight=0.5, max_in_flight=8, rate=10, estimate=timedelta(seconds=2))
    assert_type(queue.rules(), dict[str, AccountRule])
    assert_type(queue.remove_rule("bulk-*"), bool)
    written = queue.write("tenant", {"number": 1}, account="bulk-1", ttl=60, dedupe=("key", 60))
    assert_type(written, str)
    assert_type(queue.write_many([NewMessage("tenant", {"number": 2}, priority=1)]), list[str])
    message = queue.read("worker 7", block=0.1)
    assert_type(message, FairMessage | None)
    if message is not None:
        assert_type(message.account, str)
        assert_type(queue.extend(message), int)
        assert_type(queue.nack(message, delay=2.5), int)
        exchanged = queue.exchange(message, consumer="worker 7", n=2)
        assert_type(exchanged, Exchanged[FairMessage])
        assert_type(exchanged.messages, list[FairMessage])
        assert_type(queue.ack(*exchanged.messages), int)
    assert_type(queue.read_many("worker 7", 10, same_account=True), list[FairMessage])
    assert_type(queue.peek("bulk-1"), list[FairMessage])
    assert_type(queue.purge("bulk-1"), int)
    assert_type(queue.cancel("request 17"), bool)
    assert_type(queue.stats(), dict[str, Any])
    assert_type(queue.accounts(), list[AccountState])
    assert_type(queue.explain_wait("bulk-1"), WaitReason)
    dead = queue.dead()
    assert_type(dead, Page[DeadFairMessage])
    assert_type(queue.overdue(10, start=20), Page[OverdueMessage])
    assert_type(queue.revive(*[each.id for each in dead]), int)
    assert_type(queue.discard(dead[0].id), int)
    assert_type(queue.delete(), int)
    assert_type(FairQueueReaper(queue, consumer_idle=60).backlog(), Backlog)
    recruiter.install(FairQueueReaper(queue), rate=0.01)
    recruiter.install(QueueExpiry(queue), rate=0.001)


async def accounts_awaited() -> None:
    queue = AsyncFairQueue(connect_async(), "predictions")
    assert_type(queue, AsyncFairQueue)
    assert_type(await queue.write("tenant", {"number": 1}), str)
    message = await queue.read("worker 7")
    assert_type(message, FairMessage | None)
    if message is not None:
        exchanged = await queue.exchange(message, consumer="worker 7")
        assert_type(exchanged, Exchanged[FairMessage])
        assert_type(await queue.ack(*exchanged.messages), int)
    assert_type(await queue.length(), int)
    assert_type(await queue.dead(), Page[DeadFairMessage])
    assert_type(await queue.explain_wait("tenant"), WaitReason)
    # Without `await` they are no results.
    queue.stats()["length"]  # type: ignore[index]
    queue.delete() + 1  # type: ignore[operator]
    recruiter.install(FairQueueReaper(queue), rate=0.01)
    await queue.aclose()


async def tenants_awaited() -> None:
    queue = AsyncShuffleQueue(connect_async(), "predictions")
    assert_type(queue, AsyncShuffleQueue)
    assert_type(await queue.read("workers", "worker 7"), Message | None)
    assert_type(await queue.length(), int)
    assert_type(await queue.stats("workers"), dict[str, Any])
    assert_type(await queue.dead("workers"), Page[DeadMessage])
    assert_type(await queue.overdue(), Page[OverdueMessage])
    assert_type(await queue.revive("workers", "3-1-0"), int)
    assert_type(await queue.discard("workers", "3-1-0"), int)
    assert_type(await queue.delete(), int)
    # Without `await` they are no results.
    queue.stats("workers")["length"]  # type: ignore[index]
    queue.delete() + 1  # type: ignore[operator]
    await queue.aclose()


def time_shards() -> None:
    queue = TimeShardQueue(RedisStore(connect()), "reminders", shards=6, period=60)
    assert_type(queue, TimeShardQueue)
    assert_type(queue.put("remind 17", due=0.5), str)
    taken = queue.take("worker 7")
    assert_type(taken, Taken | None)
    if taken is not None:
        assert_type(queue.ack(taken, taken.id), int)
        assert_type(queue.release(taken), bool)
        assert_type(queue.extend(taken, 60.0), bool)
    assert_type(queue.take_many("worker 7", 10, drain_all=True), list[Taken])
    assert_type(queue.stats(), list[TimeShardStats])
    assert_type(queue.pipeline().take("worker 7").put("remind 18"), TimeShardQueuePipeline)
    assert_type(queue.cancel("1-ab"), bool)
    recruiter.install(TimeShardSweeper(queue), rate=0.05)
    assert_type(queue.delete(), int)


async def time_shards_awaited() -> None:
    queue = AsyncTimeShardQueue(AsyncRedisStore(connect_async()), "reminders")
    assert_type(queue, AsyncTimeShardQueue)
    assert_type(await queue.take("worker 7"), Taken | None)
    assert_type(await queue.cancel("1-ab"), bool)
    assert_type(await queue.stats(), list[TimeShardStats])
    assert_type(await queue.delete(), int)
    assert_type(await queue.put("remind 17"), str)


def logs(client: redis.Redis) -> None:
    log = Log(client, "activity", codec="json")
    assert_type(log, Log)
    assert_type(log.append({"path": "/"}, keep=1000), int)
    assert_type(log.read(-1, block=0.05), list[Any])
    assert_type(log.read_range(0, 0), tuple[LogRange, list[Any]])
    assert_type(log.read(0, 10, dt.timedelta(seconds=1)), list[Any])
    assert_type(log.delete(), bool)
    assert_type(log.iterate(-10, reverse=True), Iterator[Any])
    assert_type(log.stats(), LogStats)
    assert_type(log.evict(keep=1000), int)
    group = log.group("mail", ack=True)
    found = group.read(10, block=0.05)
    assert_type(found, list[GroupEntry])
    assert_type(group.ack(*found), int)
    assert_type(group.pending(), list[PendingEntry])
    assert_type(log.pipeline().append(b"a").read(0), LogPipeline)
    assert_type(group.pipeline().read(2).ack(*found), LogGroupPipeline)
    recruiter.install(LogCompactor(log), rate=0.003)
    assert_type(LogCompactor([log]).backlog(), Backlog)
    assert_type(LogTrimmer(log, max_age=60).backlog(), Backlog)


async def asynchronous_logs(client: redis.asyncio.Redis) -> None:
    log = AsyncLog(client, "activity")
    assert_type(log, AsyncLog)
    assert_type(await log.append(b"entry"), int)
    assert_type(await log.read_range(0), tuple[LogRange, list[Any]])
    async for _ in log.iterate(5):
        pass
    async with log.pipeline(transaction=False) as pipeline:
        assert_type(pipeline.append(b"entry"), AsyncLogPipeline)
        assert_type(await pipeline.execute(), list[Any])
    group = log.group("mail")
    assert_type(await group.read(10), list[GroupEntry])
    assert_type(await group.stats(), GroupStats)


class DropDrafts(Job):
    """A job of the user's own."""

    name = "drop_drafts"
    limit = 3

    def perform(self, slice: Slice) -> int:
        """Handle nothing."""
        return 0 if slice.expired else slice.limit


class CountOutcomes(Hooks):
    """Hooks of the user's own."""

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Do nothing."""


@recruiter.job(rate=0.001)
def drop_stale_drafts(slice: Slice) -> int:
    return slice.limit


@workstealing.enlists(when=lambda answer: answer == "1")
async def answer(number: int) -> str:
    return str(number)


def recruiting() -> None:
    recruiter.install(DropDrafts(), rate=0.1)
    recruiter.add_hook(CountOutcomes())
    assert_type(recruiter.enlist(), Outcome)
    assert_type(workstealing.enlist(), Outcome)
    assert_type(recruiter.stats()["jobs"]["drop_drafts"]["worked"], int)
    assert_type(drop_stale_drafts(Slice(5, 0.01)), int)


async def decorated() -> None:
    assert_type(await answer(1), str)


app = flask.Flask(__name__)
WorkStealing(app, recruiter, when=lambda response: False)


@app.get("/item/<number>")
@recruiter.enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
def item(number: str) -> dict[str, str]:
    return {"number": number}


application = WorkStealingMiddleware(app, recruiter)


def cached_functions(
    hashes: VolatileHashes, late: AsyncVolatileHashes
) -> tuple[int, Coroutine[Any, Any, str]]:
    @hashes.cached(ttl=60, key="item:{item}")
    def price(item: int, currency: str = "EUR") -> int:
        return item

    @late.cached(ttl=60, key="item:{item}", early=1.0)
    async def name(item: int) -> str:
        return str(item)

    class Shop:
        @hashes.cached(ttl=60, key="item:{item}")
        def price(self, item: int) -> int:
            return item

        @late.cached(ttl=60, key="item:{item}")
        async def name(self, item: int) -> str:
            return str(item)

    assert_type(Shop().price(1), int)
    assert_type(Shop().price.invalidate(item=1), bool)
    assert_type(Shop().name.place(1), tuple[str, str])
    Shop().price("1")  # type: ignore[arg-type]
    assert_type(Shop.price(Shop(), 1), int)
    assert_type(price.__name__, str)
    price(1, 2)  # type: ignore[arg-type]
    forgotten: bool = price.invalidate(1)
    again: int = price.refresh(1, currency="USD")
    return again if forgotten else price(1), name(2)


def names_of_packages() -> None:
    """A package loads its names late, and a checker knows them all the same, and no others."""
    assert_type(jobs.KeyExpiry.limit, int)
    assert_type(structures.Ick(redis.Redis(), "list"), structures.Ick)
    assert_type(VolatileHashes.namespace, str)
    jobs.KeyExpiri  # type: ignore[attr-defined]  # noqa: B018
    structures.Heap  # type: ignore[attr-defined]  # noqa: B018
    workstealing.enroll  # type: ignore[attr-defined]  # noqa: B018
