"""Queues and job libraries that put messages, take them and acknowledge them, as workers do.

It is also the program that `benchmarks/job_libraries.py` starts, in a process that sees the
libraries of job_libraries.txt: it puts all messages, by batches of each side in turn, then takes
them all, and prints what each batch cost. Each library is called by its public API, as its own
worker calls it, but for the function of a job, which does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import os
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, ClassVar

import redis
import redis.asyncio

from workstealing.structures import (
    AsyncShuffleQueue,
    FairQueue,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
)
from workstealing.structures.fair_queue import NewMessage

BODY = "x" * 100
FIELDS = {"body": BODY}
TENANTS = [f"tenant-{number}" for number in range(16)]
WORKER, GROUP = "worker-1", "workers"
# Of calls for many messages.
MANY = 100


def _nothing(_: str) -> None:
    """Be the function of a job."""


class Side:
    """One way to put messages, and to take them with an acknowledgement.

    Arguments:
        url: of the server.

    Attributes: package: what has to be installed, None for what is always there.
    """

    package: ClassVar[str | None] = None

    def __init__(self, url: str) -> None:
        self.url = url
        self.tenants = itertools.cycle(TENANTS)
        self.begin()

    def begin(self) -> None:
        """Make the queue, and let the consumer be known."""

    def put(self, n: int) -> None:
        """Put n messages."""
        raise NotImplementedError

    def take(self, n: int) -> None:
        """Take n messages, which must be there, and acknowledge each."""
        raise NotImplementedError

    def left(self) -> int:
        """Return how many messages wait or are unacknowledged, for tests."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what the side has opened."""


class _OnClient(Side):
    """A side with a client of redis-py."""

    def begin(self) -> None:
        self.client = redis.Redis.from_url(self.url)

    def close(self) -> None:
        self.client.close()


def _entry(found: Any) -> Any:
    """Return the one entry of a reply of XREADGROUP, of either protocol."""
    ((_, entries),) = found.items() if isinstance(found, dict) else found
    # RESP3 wraps them once more.
    entry = entries[0][0] if isinstance(entries[0], list) else entries[0]
    assert entry[1][b"body"]
    return entry


class _Stream(_OnClient):
    """The reference: a plain stream group."""

    name = "stream"

    def begin(self) -> None:
        super().begin()
        self.client.xgroup_create(self.name, GROUP, id="0", mkstream=True)

    def put(self, n: int) -> None:
        for _ in range(n):
            self.client.xadd(self.name, FIELDS)

    def take(self, n: int) -> None:
        for _ in range(n):
            found = self.client.xreadgroup(GROUP, WORKER, {self.name: ">"}, count=1)
            assert self.client.xack(self.name, GROUP, _entry(found)[0])

    def left(self) -> int:
        (group,) = self.client.xinfo_groups(self.name)
        return int(group["pending"] + group["lag"])


class _Shuffle(_OnClient):
    """A `ShuffleQueue`."""

    def begin(self) -> None:
        super().begin()
        self.queue = ShuffleQueue(self.client, "shuffle")
        self.queue.read(GROUP, WORKER)

    def put(self, n: int) -> None:
        for _ in range(n):
            self.queue.write(next(self.tenants), FIELDS)

    def take(self, n: int) -> None:
        for _ in range(n):
            message = self.queue.read(GROUP, WORKER)
            assert message is not None
            self.queue.ack(message)

    def left(self) -> int:
        stats = self.queue.stats(GROUP)
        return int(stats["waiting"] + stats["pending"])


class _Fair(_OnClient):
    """A `FairQueue`, a call for each of put, take and ack."""

    name = "fair"

    def begin(self) -> None:
        super().begin()
        self.queue = FairQueue(self.client, self.name)

    def put(self, n: int) -> None:
        for _ in range(n):
            self.queue.write(next(self.tenants), FIELDS)

    def take(self, n: int) -> None:
        for _ in range(n):
            message = self.queue.read(WORKER)
            assert message is not None
            self.queue.ack(message)

    def left(self) -> int:
        return self.queue.length()


class _FairExchange(_Fair):
    """A `FairQueue`, where one call acknowledges a message and takes the next."""

    name = "fair-exchange"

    def take(self, n: int) -> None:
        hand: list[Any] = []
        for _ in range(n):
            hand = self.queue.exchange(*hand, consumer=WORKER).messages
            assert len(hand) == 1
        self.queue.ack(*hand)


class _FairMany(_Fair):
    """A `FairQueue`, 100 messages a call."""

    name = "fair-many"

    def put(self, n: int) -> None:
        for first in range(0, n, MANY):
            some = range(first, min(first + MANY, n))
            self.queue.write_many([NewMessage(next(self.tenants), FIELDS) for _ in some])

    def take(self, n: int) -> None:
        while n:
            messages = self.queue.read_many(WORKER, min(MANY, n))
            assert messages
            self.queue.ack(*messages)
            n -= len(messages)


class _HandClock:
    """A clock that stands until it is set: producers' and consumers' time shards are fixed."""

    def __init__(self) -> None:
        self.seconds = time.time()

    def time(self) -> float:
        return self.seconds


class _TimeShards(_OnClient):
    """A `TimeShardQueue`, whose messages are taken two periods after they were put."""

    def begin(self) -> None:
        super().begin()
        self.clock = _HandClock()
        self.start = self.clock.seconds
        self.queue = TimeShardQueue(
            RedisStore(self.client), "time-shards", shards=6, period=60, clock=self.clock
        )
        self.queue.open()

    def put(self, n: int) -> None:
        self.clock.seconds = self.start
        for _ in range(n):
            self.queue.put(BODY)

    def take(self, n: int) -> None:
        self.clock.seconds = self.start + 120
        for _ in range(n):
            taken = self.queue.take(WORKER)
            assert taken is not None
            assert self.queue.ack(taken) == 1

    def left(self) -> int:
        stats = self.queue.stats()
        # Consumed ones count as leased until a sweeper clears them.
        return sum(each.waiting + each.leased - each.consumed for each in stats)


class _Rq(_OnClient):
    """RQ, by the calls of a SimpleWorker's loop, which runs jobs in its own process; no results.

    It calls no `work()`, which waits up to a second for a thread of its own at its end.
    """

    package = "rq"
    name = "default"

    def begin(self) -> None:
        from rq import Queue, SimpleWorker

        super().begin()
        self.queue = Queue(self.name, connection=self.client)
        self.worker = SimpleWorker([self.queue], connection=self.client)
        self.worker.register_birth()

    def put(self, n: int) -> None:
        for _ in range(n):
            self.queue.enqueue("builtins.len", BODY, result_ttl=0)

    def take(self, n: int) -> None:
        for _ in range(n):
            found = self.worker.dequeue_job_and_maintain_ttl(None)
            assert found is not None
            self.worker.execute_job(*found)
            self.worker.heartbeat()
        assert self.queue.failed_job_registry.count == 0

    def left(self) -> int:
        return self.queue.count + self.queue.started_job_registry.count


class _RqTake(_Rq):
    """RQ, by the call alone with which a worker takes a job from the queue; there is no ack."""

    name = "taken"

    def take(self, n: int) -> None:
        for _ in range(n):
            assert self.queue.dequeue_any([self.queue], None, connection=self.client)


class _Celery(Side):
    """Celery, by the consumer of its worker and kombu's Redis transport; no result."""

    package = "celery"

    def begin(self) -> None:
        import celery

        self.app = celery.Celery("bench", broker=self.url, set_as_current=False)
        self.app.conf.task_ignore_result = True
        self.connection = self.app.connection_for_read()
        channel = self.connection.default_channel
        self.taken = 0
        self.consumer = self.app.amqp.TaskConsumer(channel, on_message=self._on_message)
        # What a worker with one process prefetches.
        self.consumer.qos(prefetch_count=self.app.conf.worker_prefetch_multiplier)
        self.is_consuming = False

    def _on_message(self, message: Any) -> None:
        assert message.payload
        message.ack()
        self.taken += 1

    def put(self, n: int) -> None:
        for _ in range(n):
            self.app.send_task("bench.job", args=(BODY,))

    def take(self, n: int) -> None:
        if not self.is_consuming:
            self.consumer.consume()
            self.is_consuming = True
        wanted = self.taken + n
        while self.taken < wanted:
            self.connection.drain_events(timeout=5)

    def left(self) -> int:
        client = redis.Redis.from_url(self.url)
        return int(client.llen("celery")) + int(client.hlen("unacked"))

    def close(self) -> None:
        self.connection.close()
        self.app.close()


class _Dramatiq(Side):
    """dramatiq, by the consumer of its worker, one message fetched at a time."""

    package = "dramatiq"
    prefetch = 1

    def begin(self) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self.broker = RedisBroker(url=self.url, namespace=f"dramatiq-{self.prefetch}")
        self.actor = dramatiq.actor(_nothing, actor_name="job", broker=self.broker)
        self.consumer = self.broker.consume("default", prefetch=self.prefetch)

    def put(self, n: int) -> None:
        for _ in range(n):
            self.actor.send(BODY)

    def take(self, n: int) -> None:
        for _ in range(n):
            message = next(self.consumer)
            assert message is not None
            self.consumer.ack(message)

    def left(self) -> int:
        return int(self.broker.client.hlen(f"{self.broker.namespace}:default.msgs"))

    def close(self) -> None:
        self.broker.close()


class _DramatiqPrefetch(_Dramatiq):
    """The same, with what a worker of dramatiq's usual eight threads prefetches."""

    prefetch = 16


class _Asynchronous(Side):
    """A side that is called by asyncio: each batch is one coroutine."""

    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.run(self.open())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in this side's loop."""
        return self.runner.run(coroutine)

    async def open(self) -> None:
        """Make the queue."""

    async def putting(self, n: int) -> None:
        """Put n messages."""
        raise NotImplementedError

    async def taking(self, n: int) -> None:
        """Take n messages, and acknowledge each."""
        raise NotImplementedError

    async def shut(self) -> None:
        """Close what is open."""

    def put(self, n: int) -> None:
        self.run(self.putting(n))

    def take(self, n: int) -> None:
        self.run(self.taking(n))

    def close(self) -> None:
        self.run(self.shut())
        self.runner.close()


class _StreamAsync(_Asynchronous):
    """The plain stream group again, by redis.asyncio."""

    name = "stream-async"

    async def open(self) -> None:
        self.client = redis.asyncio.Redis.from_url(self.url)
        await self.client.xgroup_create(self.name, GROUP, id="0", mkstream=True)

    async def putting(self, n: int) -> None:
        for _ in range(n):
            await self.client.xadd(self.name, FIELDS)

    async def taking(self, n: int) -> None:
        for _ in range(n):
            found = await self.client.xreadgroup(GROUP, WORKER, {self.name: ">"}, count=1)
            assert await self.client.xack(self.name, GROUP, _entry(found)[0])

    def left(self) -> int:
        (group,) = self.run(self.client.xinfo_groups(self.name))
        return int(group["pending"] + group["lag"])

    async def shut(self) -> None:
        await self.client.aclose()


class _ShuffleAsync(_Asynchronous):
    """An `AsyncShuffleQueue`."""

    async def open(self) -> None:
        self.client = redis.asyncio.Redis.from_url(self.url)
        self.queue = AsyncShuffleQueue(self.client, "shuffle-async")
        await self.queue.read(GROUP, WORKER)

    async def putting(self, n: int) -> None:
        for _ in range(n):
            await self.queue.write(next(self.tenants), FIELDS)

    async def taking(self, n: int) -> None:
        for _ in range(n):
            message = await self.queue.read(GROUP, WORKER)
            assert message is not None
            await self.queue.ack(message)

    def left(self) -> int:
        stats = self.run(self.queue.stats(GROUP))
        return int(stats["waiting"] + stats["pending"])

    async def shut(self) -> None:
        await self.client.aclose()


class _Taskiq(_Asynchronous):
    """taskiq-redis, by its broker for streams with its defaults: up to 100 entries a fetch."""

    package = "taskiq_redis"

    async def open(self) -> None:
        from taskiq_redis import RedisStreamBroker

        self.broker = RedisStreamBroker(self.url)
        self.task = self.broker.register_task(_nothing, task_name="bench.job")
        await self.broker.startup()
        self.listening = self.broker.listen()

    async def putting(self, n: int) -> None:
        for _ in range(n):
            await self.task.kiq(BODY)

    async def taking(self, n: int) -> None:
        for _ in range(n):
            message = await anext(self.listening)
            assert self.broker.formatter.loads(message.data).args
            acked = message.ack()
            assert isinstance(acked, Awaitable)
            await acked

    def left(self) -> int:
        client = redis.Redis.from_url(self.url)
        (group,) = client.xinfo_groups("taskiq")
        return int(group["pending"] + group["lag"])

    async def shut(self) -> None:
        await self.listening.aclose()
        await self.broker.shutdown()


class _Bullmq(_Asynchronous):
    """BullMQ, by the two calls of its worker's loop; completed jobs are removed."""

    package = "bullmq"

    async def open(self) -> None:
        from bullmq import Queue, Worker

        options = {"connection": self.url, "removeOnComplete": True, "autorun": False}
        self.queue = Queue("bench", {"connection": self.url})
        self.worker = Worker("bench", self._job, options)
        self.completed = 0
        self.worker.on("completed", self._on_completed)

    @staticmethod
    async def _job(*_: Any) -> None:
        return None

    def _on_completed(self, *_: Any) -> None:
        self.completed += 1

    async def putting(self, n: int) -> None:
        for _ in range(n):
            await self.queue.add("job", FIELDS)

    async def taking(self, n: int) -> None:
        wanted = self.completed + n
        for _ in range(n):
            job = await self.worker.getNextJob(self.worker.id)
            assert job is not None
            await self.worker.processJob(job, self.worker.id)
        # It emits failures, and does not raise them.
        assert self.completed == wanted

    def left(self) -> int:
        counts = self.run(self.queue.getJobCounts("wait", "active", "failed"))
        return sum(counts.values())

    async def shut(self) -> None:
        await self.worker.close()
        await self.queue.close()


SIDES: dict[str, type[Side]] = {
    "stream": _Stream,
    "shuffle_queue": _Shuffle,
    "fair_queue": _Fair,
    "fair_queue_exchange": _FairExchange,
    "fair_queue_by_100": _FairMany,
    "time_shard_queue": _TimeShards,
    "stream_async": _StreamAsync,
    "shuffle_queue_async": _ShuffleAsync,
    "rq": _Rq,
    "rq_take_without_ack": _RqTake,
    "celery": _Celery,
    "dramatiq": _Dramatiq,
    "dramatiq_prefetch_16": _DramatiqPrefetch,
    "taskiq": _Taskiq,
    "bullmq": _Bullmq,
}
PACKAGES = ("redis", "hiredis", "rq", "celery", "kombu", "dramatiq", "taskiq-redis", "bullmq")

Costs = dict[str, list[float]]
"""Seconds a message of each batch, by what was done: put, and take_ack."""


def is_installed(name: str) -> bool:
    """Say whether a side's library can be imported."""
    package = SIDES[name].package
    return package is None or importlib.util.find_spec(package) is not None


def costs_of(url: str, names: list[str], messages: int, batch: int) -> dict[str, Costs]:
    """Put so many messages on each side, then take them all; return what each batch cost.

    Arguments:
        url: of a server that is empty.
        names: of sides.
        messages: of each side.
        batch: messages a batch; the sides take turns after each.
    """
    sides = {name: SIDES[name](url) for name in names}
    costs: dict[str, Costs] = {name: {"put": [], "take_ack": []} for name in names}
    for what in ("put", "take_ack"):
        for turn in range(messages // batch):
            # Each is first in its turn.
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                do = sides[name].put if what == "put" else sides[name].take
                began = time.perf_counter()
                do(batch)
                costs[name][what].append((time.perf_counter() - began) / batch)
    for side in sides.values():
        side.close()
    return costs


def _versions() -> dict[str, str]:
    found = {}
    for each in PACKAGES:
        try:
            found[each] = importlib.metadata.version(each)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Measure, and print the costs and the versions as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--url", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--cpu", type=int, help="run on this one alone")
    options = parser.parse_args()
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    logging.disable(logging.WARNING)
    names = [name for name in SIDES if is_installed(name)]
    costs = costs_of(options.url, names, options.messages, options.batch)
    print(json.dumps({"costs": costs, "versions": _versions()}))


if __name__ == "__main__":
    main()
