"""Takes that wait: none misses a message, whatever falls between the look and the wait."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import redis

from support.faulty_server import FaultyServer
from support.grants import every_cut
from support.patience import (
    GUARD_SECONDS,
    ROUNDING_SECONDS,
    patient,  # noqa: F401 - an autouse fixture
)
from support.servers import AnyServer, RedisServer, wait_until
from support.set_clock import ApartClock, SetClock
from support.time_shard_queues import TURN, ahead_of, async_store_on, keeps_litter, queue_on
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.store.operations import drive
from workstealing.structures import (
    AsyncTimeShardQueue,
    RedisStore,
    Taken,
    TimeShardQueue,
    queue_place,
)
from workstealing.structures.time_shard_queue import AsyncRedisStore, redis_waiting, taking
from workstealing.structures.time_shard_queue.store import AskedTakes

# Far beyond what a busy machine may take, far below the block.
BLOCK_SECONDS, SOON_S = 150.0, GUARD_SECONDS
# A turn is a minute: so late comes a sleeper that nobody tells.
UNTOLD_S = 50.0
SOON = timedelta(seconds=0.05)


class Scene:
    """What stands before the look, and what comes between the look and the wait.

    Attributes: drain_all; on_cluster: whether a sleeper of a cluster is told.
    """

    drain_all, on_cluster = True, True

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        """Make a queue from which nothing may be taken."""

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        """Let something be there to take, now or soon."""


class Put(Scene):
    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")


class PutMany(Scene):
    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put_many([("later", timedelta(hours=1)), "a", "b"])


class PutWithDedupe(Scene):
    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a", dedupe=("key", 60))


class PutForSoon(Scene):
    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a", SOON)


class PutBeforeALaterOne(Scene):
    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("later", timedelta(hours=1))

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("much later", timedelta(hours=2))
        queue.put("a")


class PutByAnotherClock(Scene):
    """Its producers' time shard is the sleeper's next."""

    on_cluster = False

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        apart: Any = ApartClock(clock, 60)
        TimeShardQueue(queue.store, queue.name, 6, 60, clock=apart).put("a")


class BecomesDue(Scene):
    """It was there at the look, and nobody tells when its time comes."""

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a", SOON)


class BecomesDueInItsTurn(BecomesDue):
    drain_all = False

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        super().before(queue, clock)
        clock.go(TURN)


class LeaseEnds(Scene):
    drain_all = False

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        clock.go(TURN)
        assert queue.take("other", 0.05) is not None


class LeaseEndsThatCameLater(Scene):
    """A message comes, and another consumer takes it, before the sleeper sleeps."""

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        assert queue.take("other", 0.05, drain_all=True) is not None


class LeaseBehindALongOne(LeaseEndsThatCameLater):
    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("long")
        assert queue.take("other", 600, drain_all=True) is not None


class Held(Scene):
    """A message is in another's hand, in the consumers' time shard."""

    drain_all = False

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        queue.put("b")
        clock.go(TURN)
        taken = queue.take("other", 600)
        assert taken is not None
        self.taken: Taken = taken
        assert queue.take("another", 600) is not None


class Released(Held):
    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        assert queue.release(self.taken)


class ReleasedForSoon(Held):
    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        assert queue.release(self.taken, SOON)


class ReleasedElsewhere(Released):
    """The sleeper looks at all time shards; a cluster's listens to the producers' alone."""

    drain_all, on_cluster = True, False


class ReleasedBeforeTheLook(Held):
    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        super().before(queue, clock)
        assert queue.release(self.taken, SOON)


class ExtendedAndEnds(Held):
    """The end that the sleeper knows is not the lease's last one."""

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        clock.go(TURN)
        taken = queue.take("other", 0.05)
        assert taken is not None
        self.taken = taken

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.extend(self.taken, 0.1)


class Withdrawn(Held):
    """Another's take was cut off, and is given back."""

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        clock.go(TURN)
        self.asked = AskedTakes()
        shards: Any = queue.time_shards
        steps = shards.take(0, "other", 600_000, 1, 5, is_turn=True, asked=self.asked)
        assert len(drive(queue.store.client, steps)) == 1

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        shards: Any = queue.time_shards
        assert drive(queue.store.client, shards.give_back(self.asked)) == 1


class Swept(Held):
    """A sweeper lets the message wait whose lease has ended."""

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        clock.go(TURN)
        assert queue.take("other", 0.05) is not None

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        elsewhere: Any = ApartClock(clock, 180)
        mine = ahead_of(queue, elsewhere, 60)
        TimeShardSweeper(mine, limit=10).perform(Slice(10, 5.0))


class Revived(Held):
    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        clock.go(TURN)
        dying = TimeShardQueue(queue.store, queue.name, 6, 60, max_attempts=1, clock=clock)
        assert dying.take("other", 0.001) is not None
        time.sleep(0.01)
        assert dying.take("other") is None

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        (dead,) = queue.dead()
        assert queue.revive(dead.id) == 1


class TurnEnds(Scene):
    """The message's time shard has its turn within the wait, and nobody tells."""

    drain_all = False

    def before(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("a")
        clock.go(TURN - 0.05)

    def between(self, queue: TimeShardQueue, clock: SetClock) -> None:
        clock.go(0.05)


SCENES = (
    *(Put, PutMany, PutWithDedupe, PutForSoon, PutBeforeALaterOne, PutByAnotherClock, BecomesDue),
    *(BecomesDueInItsTurn, LeaseEnds, LeaseEndsThatCameLater, LeaseBehindALongOne, Released),
    *(ReleasedForSoon, ReleasedElsewhere, ReleasedBeforeTheLook, ExtendedAndEnds, Withdrawn),
    *(Swept, Revived, TurnEnds),
)


@pytest.fixture(autouse=True)
def never_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sleeper that is not told sleep to its end."""
    monkeypatch.setattr(redis_waiting, "UNTOLD_SECONDS", 1000.0)
    monkeypatch.setattr(redis_waiting, "APART_SECONDS", 1000.0)
    monkeypatch.setattr(taking, "MOST_SECONDS", 1000.0)
    monkeypatch.setattr(queue_place, "MOST_SECONDS", 1000.0)


def on_cluster(server: AnyServer) -> bool:
    return server.client().__class__.__name__ == "RedisCluster"


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("kind", SCENES)
def test_what_comes_between_the_look_and_the_wait_ends_the_wait(
    any_server: AnyServer, clock: SetClock, monkeypatch: pytest.MonkeyPatch, kind: type[Scene]
) -> None:
    """A sleeper that waits from the newest notification on sleeps through what came before it."""
    if on_cluster(any_server) and not kind.on_cluster:
        monkeypatch.setattr(redis_waiting, "APART_SECONDS", 0.2)
    queue, other = (queue_on(any_server, clock) for _ in range(2))
    scene = kind()
    scene.before(other, clock)
    queue.open()
    waits: list[float] = []
    real = RedisStore._wait

    def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            scene.between(other, clock)
        return real(self, step)

    monkeypatch.setattr(RedisStore, "_wait", wait)
    started = time.monotonic()
    taken = queue.take("c", drain_all=kind.drain_all, block=BLOCK_SECONDS)
    assert taken is not None
    assert time.monotonic() - started < UNTOLD_S
    # It does not spin instead of sleeping.
    assert len(waits) <= 10


@pytest.mark.parametrize("kind", SCENES)
async def test_on_asyncio_too(
    redis7: RedisServer, clock: SetClock, monkeypatch: pytest.MonkeyPatch, kind: type[Scene]
) -> None:
    other = queue_on(redis7, clock)
    scene = kind()
    scene.before(other, clock)
    waits: list[float] = []
    real = AsyncRedisStore._wait

    async def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            scene.between(other, clock)
        return await real(self, step)

    monkeypatch.setattr(AsyncRedisStore, "_wait", wait)
    async with redis7.async_client() as client:
        queue = AsyncTimeShardQueue(AsyncRedisStore(client), "letters", 6, 60, clock=clock)
        started = time.monotonic()
        found = await queue.take_many("c", 1, drain_all=kind.drain_all, block=BLOCK_SECONDS)
        assert len(found) == 1
        assert time.monotonic() - started < UNTOLD_S
        assert len(waits) <= 10
        await queue.aclose()


@pytest.mark.contract
@pytest.mark.parametrize("drain_all", [False, True])
def test_what_has_nothing_to_wait_for_sleeps_long(
    any_server: AnyServer, clock: SetClock, monkeypatch: pytest.MonkeyPatch, *, drain_all: bool
) -> None:
    monkeypatch.undo()
    queue = queue_on(any_server, clock)
    queue.put("later", timedelta(hours=1))
    clock.go(0.5)
    waits: list[float] = []

    def wait(_: Any, step: Any) -> Any:
        waits.append(step.seconds)
        raise TimeoutError

    monkeypatch.setattr(RedisStore, "_wait", wait)
    with pytest.raises(TimeoutError):
        queue.take("c", drain_all=drain_all, block=BLOCK_SECONDS)
    assert waits == [1.0 if on_cluster(any_server) and drain_all else 5.0]
    clock.go(56.5)
    with pytest.raises(TimeoutError):
        queue.take("c", block=BLOCK_SECONDS)
    assert waits[1] == pytest.approx(3.0), "what is left of the turn"


@pytest.mark.contract
def test_an_older_process_does_not_notify_and_is_heard_all_the_same(
    any_server: AnyServer, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_waiting, "UNTOLD_SECONDS", 0.1)
    monkeypatch.setattr(redis_waiting, "APART_SECONDS", 0.1)
    queue, other = (queue_on(any_server, clock) for _ in range(2))
    queue.open()
    client, names = any_server.client(), queue.time_shards.names(3)  # type: ignore[attr-defined]
    real = RedisStore._wait
    waits: list[float] = []

    def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 2:
            client.hset(names.messages, "3-00", "old")
            client.zadd(names.waiting, {"3-00": 1})
        return real(self, step)

    monkeypatch.setattr(RedisStore, "_wait", wait)
    taken = queue.take("c", drain_all=True, block=BLOCK_SECONDS)
    assert taken is not None
    assert (taken.message, len(waits)) == (b"old", 2)
    assert other.ack(taken) == 1


@pytest.mark.every_store
@pytest.mark.contract
def test_every_store_waits_for_what_comes(any_server: AnyServer, clock: SetClock) -> None:
    queue, other = (queue_on(any_server, clock) for _ in range(2))
    putting = threading.Timer(0.3, lambda: other.put("a", timedelta(seconds=0.2)))
    putting.start()
    taken = queue.take("c", drain_all=True, block=BLOCK_SECONDS)
    putting.join()
    assert taken is not None
    assert taken.message == b"a"
    assert queue.ack(taken) == 1
    started = time.monotonic()
    assert queue.take("c", block=0.12) is None
    assert queue.take_many("c", 3, drain_all=True, block=timedelta(seconds=0.001)) == []
    assert 0.12 - ROUNDING_SECONDS <= time.monotonic() - started < SOON_S


@pytest.mark.every_store
@pytest.mark.contract
async def test_every_store_waits_on_asyncio(any_server: AnyServer, clock: SetClock) -> None:
    async with async_store_on(any_server) as store:
        queue: Any = AsyncTimeShardQueue(store, "letters", 6, 60, clock=clock)
        await queue.open()
        sleeper = asyncio.ensure_future(queue.take("c", drain_all=True, block=BLOCK_SECONDS))
        await asyncio.sleep(0.1)
        assert not sleeper.done()
        await queue.put("a")
        taken = await sleeper
        assert taken.message == b"a"
        assert await queue.take("c", block=0.05) is None
        await queue.aclose()


@pytest.mark.every_store
@pytest.mark.contract
def test_the_last_look_comes_when_the_time_is_over(any_server: AnyServer, clock: SetClock) -> None:
    """A message that becomes due while the last sleep lasts is taken."""
    queue = queue_on(any_server, clock)
    queue.put("a", timedelta(seconds=0.2))
    if keeps_litter(any_server):
        assert queue.take("c", drain_all=True, block=0.205) is not None
    else:
        assert queue.take("c", drain_all=True, block=5) is not None


@pytest.mark.real
def test_each_of_several_sleepers_is_woken_and_has_its_own(
    redis7: RedisServer, clock: SetClock
) -> None:
    admin = redis7.client()
    found: list[Taken | None] = []

    def take(number: int) -> None:
        queue = queue_on(redis7, clock)
        found.append(queue.take(f"c{number}", drain_all=True, block=BLOCK_SECONDS))

    takers = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for each in takers:
        each.start()
    wait_until(lambda: admin.info("clients")["blocked_clients"] == 4, "all to sleep")
    # One script, one notification.
    queue_on(redis7, clock).put_many(["0", "1", "2", "3"])
    for each in takers:
        each.join(SOON_S)
        assert not each.is_alive()
    assert sorted(each.message for each in found if each) == [b"0", b"1", b"2", b"3"]


@pytest.mark.real
def test_sleepers_at_work_lose_nothing(redis7: RedisServer) -> None:
    """Turns of a fifth of a second; producers, releasers, and consumers that always wait."""
    served: list[bytes] = []

    def queue_of() -> TimeShardQueue:
        return TimeShardQueue(RedisStore(redis7.client()), "busy", 6, 0.2)

    def work(number: int) -> None:
        queue = queue_of()
        drain_all = number % 2 == 0
        while True:
            taken = queue.take(f"c{number}", drain_all=drain_all, block=BLOCK_SECONDS)
            assert taken is not None
            if taken.message.startswith(b"stop"):
                queue.ack(taken)
                return
            if taken.attempts == 1 and len(served) % 7 == 3 and queue.release(taken, SOON):
                served.append(b"released")
                continue
            served.append(taken.message)
            queue.ack(taken)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    producer = queue_of()
    for n in range(100):
        producer.put(f"{n:03}", SOON if n % 5 == 0 else None)
    expected = {b"%03d" % n for n in range(100)}
    wait_until(lambda: expected <= set(served), "all to be served")
    producer.put_many([f"stop {n}" for n in range(4)])
    for each in workers:
        each.join(SOON_S)
        assert not each.is_alive()
    assert sorted(each for each in served if each != b"released") == sorted(expected)


@pytest.mark.real
async def test_a_sleeper_that_is_cancelled_takes_nothing(
    redis7: RedisServer, clock: SetClock
) -> None:
    admin = redis7.client()
    async with redis7.async_client() as client:
        queue: Any = AsyncTimeShardQueue(AsyncRedisStore(client), "letters", 6, 60, clock=clock)
        await queue.open()
        before = set(admin.scan_iter())
        for _ in range(10):
            task = asyncio.ensure_future(queue.take("c", drain_all=True, block=60))
            await asyncio.to_thread(
                wait_until, lambda: admin.info("clients")["blocked_clients"] == 1, "it to sleep"
            )
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert set(admin.scan_iter()) == before, "a sleeper writes nothing"
        await queue.put("a")
        taken = await queue.take("other", drain_all=True)
        assert taken.attempts == 1
        await queue.aclose()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("retries", [True, False])
def test_a_wait_whose_reply_is_cut_off_keeps_no_message(
    redis7: RedisServer, clock: SetClock, *, retries: bool
) -> None:
    """At each command of it: the looks, the wait, and the take."""
    other = queue_on(redis7, clock)
    other.put("a", timedelta(seconds=0.3))

    def take(client: Any) -> Taken | None:
        queue = TimeShardQueue(RedisStore(client), "letters", 6, 60, clock=clock)
        return queue.take("c", 600, drain_all=True, block=BLOCK_SECONDS)

    with FaultyServer(redis7.port) as door:
        cuts = 0
        for answer in every_cut(door, take, retries=retries):
            if isinstance(answer, redis.ConnectionError):
                cuts += 1
                # Whether it was leased or not, the next one has it at once.
                wait_until(
                    lambda: bool(other.time_shards and any(each.due for each in other.stats())),
                    "the message to be due",
                )
                taken = other.take("other", drain_all=True)
            else:
                taken = answer
            assert taken is not None
            assert taken.attempts == 1
            assert other.ack(taken) == 1
            other.put("a", timedelta(seconds=0.3))
        assert (cuts == 0) is retries


@pytest.mark.real
def test_a_sleeper_hears_of_a_queue_that_was_made_anew(
    redis7: RedisServer, clock: SetClock
) -> None:
    admin, queue, other = redis7.client(), queue_on(redis7, clock), queue_on(redis7, clock)
    other.ack(other.put("before"))
    found: list[Any] = []
    taker = threading.Thread(
        target=lambda: found.append(queue.take("c", drain_all=True, block=BLOCK_SECONDS))
    )
    taker.start()
    wait_until(lambda: admin.info("clients")["blocked_clients"] == 1, "it to sleep")
    other.delete()
    other.put("after")
    taker.join(SOON_S)
    assert [each.message for each in found] == [b"after"]


def test_foreign_notifications_are_refused(redis7: RedisServer, clock: SetClock) -> None:
    queue, client = queue_on(redis7, clock), redis7.client()
    queue.open()
    shards: Any = queue.time_shards
    for number in range(6):
        client.set(shards.names(number).notifications, "foreign")
    with pytest.raises(LayoutError, match="notifications"):
        queue.take("c", block=1)
    with pytest.raises(LayoutError, match="notifications"):
        queue.put("a")
    assert client.exists(*(shards.names(number).messages for number in range(6))) == 0


def test_a_store_that_cannot_wait_says_so(redis7: RedisServer) -> None:
    class Plain:
        """A store of somebody's own, without waits and dedupe keys."""

        asynchronous = False

        def bind(self, name: bytes, rotation: Any) -> Any:
            return object()

    queue = TimeShardQueue(Plain(), "q")
    with pytest.raises(ConfigurationError, match="have no wait"):
        queue.take("c", block=1)
    with pytest.raises(ConfigurationError, match="dedupe"):
        queue.put("a", dedupe=("key", 60))


@pytest.mark.contract
@pytest.mark.parametrize("filled", [(), (0,), (0, 3), tuple(range(6))])
def test_a_take_of_all_is_one_round_trip_for_each_time_shard(
    any_server: AnyServer, clock: SetClock, filled: tuple[int, ...]
) -> None:
    queue = queue_on(any_server, clock)
    for turn in range(6):
        if turn in filled:
            queue.put_many([f"{turn} {n}" for n in range(5)])
        clock.go(60)
    # Every node knows the scripts by now.
    queue.open()
    queue.take("warm", drain_all=True, lease=0.001)
    queue.ack(*(f"{number}-00" for number in range(6)))
    time.sleep(0.01)
    client = queue.store.client
    trips: list[Any] = []
    send = client.execute_command

    def counted(*words: Any, **options: Any) -> Any:
        trips.append(words[0])
        return send(*words, **options)

    client.execute_command = counted
    try:
        taken = queue.take_many("c", 90, drain_all=True)
        assert len(taken) == 5 * len(filled)
        assert trips == ["EVALSHA"] * 6
        trips.clear()
        assert queue.take("c", drain_all=True) is None
        assert trips == ["EVALSHA"] * 6
        trips.clear()
        assert queue.take_many("c", 90) == []
        assert trips == ["EVALSHA"]
        # An acknowledgement, too, is one for each time shard.
        trips.clear()
        assert queue.ack(*taken) == len(taken)
        assert trips == ["EVALSHA"] * len(filled)
    finally:
        client.execute_command = send
