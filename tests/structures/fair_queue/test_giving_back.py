"""What a read was granted is given back by its receipt, and holds no slot; see `test_grants`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as redis_asyncio

from support.any_server import AnyServer
from support.delaying_relay import DelayingRelay
from support.fair_queues import got, leftovers
from support.faulty_server import FaultyServer
from support.grants import (
    eventually,
    every_cut,
    greenlets_killed,
    signals_at_random_moments,
)
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import FairQueueReaper
from workstealing.jobs.fair_queue_reaper import PARTS
from workstealing.recruiting import Slice
from workstealing.structures import AsyncFairQueue, FairQueue

MESSAGES = 6
ACCOUNTS = 2


def queue_on(client: Any, **options: Any) -> FairQueue:
    return FairQueue(client, "q", lease=600, **options)


def filled(client: Any) -> FairQueue:
    queue = queue_on(client)
    assert queue.read("first") is None
    write(queue)
    return queue


def write(queue: FairQueue) -> None:
    for number in range(MESSAGES):
        queue.write(f"t{number % ACCOUNTS}", {"n": number})


def pending(queue: FairQueue) -> set[str]:
    """Return the ids of the messages that a consumer has, as the server sees it."""
    return {each.decode() for each in queue.client.zrange(queue.keys.of("leases"), 0, -1)}


def slots(queue: FairQueue) -> int:
    """Return how many messages are in hand, as the accounts' records say."""
    return sum(each.in_flight for each in queue.accounts())


def as_written(queue: FairQueue) -> None:
    """Begin anew with messages that nobody has had."""
    own = [*queue.keys.parts, queue.keys.meta]
    # By none of the package's opcodes; the namespace knows the queue still.
    queue.client.delete(*(each for each in own if each != queue.keys.meta))
    write(queue)


def all_back(queue: FairQueue, had: int = 0) -> bool:
    """Say whether another consumer gets every message, for the first time."""
    found = queue.read_many("another", 2 * MESSAGES)
    numbers = {int(each.fields[b"n"]) for each in found}
    is_right = len(found) == len(numbers) == MESSAGES - had
    is_right &= {each.attempts for each in found} <= {1}
    is_right &= slots(queue) == MESSAGES
    as_written(queue)
    return is_right


class Repeating:
    """A client that does something about each read; see the same class of shuffle queues' tests."""

    def __init__(self, client: Any, then: Callable[[tuple[Any, ...], Any], Any]) -> None:
        self.client, self._send = client, client.execute_command
        digest = queue_on(client)._script("read").sha

        def send(*words: Any, **options: Any) -> Any:
            reply = self._send(*words, **options)
            if words[0] == "EVALSHA" and words[1] == digest:
                reply = then(words, reply)
            return reply

        client.execute_command = send

    def again(self, words: tuple[Any, ...]) -> Any:
        """Send a read once more, as a proxy might."""
        return self._send(*words)


@pytest.mark.contract
class TestTheSameReadAgain:
    def test_a_lease_that_was_about_to_end_begins_again(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()

        def later(words: tuple[Any, ...], reply: Any) -> Any:
            for each in pending(queue):
                queue.client.zadd(queue.keys.of("leases"), {each: 1})
            return repeating.again(words)

        repeating = Repeating(client, later)
        message = got(queue_on(client).read("c"))
        assert message.attempts == 1
        now, micros = queue.client.time()
        (score,) = queue.client.zmscore(queue.keys.of("leases"), [message.id])
        assert score > now * 1000 + micros // 1000 + 500_000


@pytest.mark.contract
class TestGivingBack:
    def withdraw(self, queue: FairQueue, commands: list[tuple[Any, ...]]) -> int:
        """Give back the last read of a queue's by its receipt."""
        receipt = next(each for each in commands[-1] if str(each).startswith("b'read:"))
        (free,) = (each for each in queue._receipts._free if each[0] == receipt)
        script = queue._script("withdraw").body
        keys = queue.all_keys()
        args = (free[1], 1, receipt)
        return int(queue.client.eval(script, len(keys), *keys, *args))  # type: ignore[arg-type]

    def test_by_the_receipt_alone(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        queue.set_rule("t0", max_in_flight=2, rate=100, burst=50)
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        repeating = Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        first = got(mine.read("c"))
        second = mine.read_many("c", 2)
        assert self.withdraw(mine, commands) == 2
        assert (pending(queue), slots(queue)) == ({first.id}, 1)
        # It may still be under way, and come twice.
        repeating.again(commands[-1])
        assert (pending(queue), slots(queue)) == ({first.id}, 1)
        assert self.withdraw(mine, commands) == 0
        assert mine.ack(first) == 1
        found: list[Any] = []
        while some := queue.read_many("another", MESSAGES):
            found += some
            assert queue.ack(*some) == len(some)
        assert len(found) == MESSAGES - 1
        assert {each.id for each in second} <= {each.id for each in found}
        # The delivery that nobody has had is forgotten.
        assert {each.attempts for each in found} == {1}
        assert leftovers(queue).keys() <= {"accounts", "idle"}

    def test_what_is_done_or_anothers_stays_so(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        done, given = mine.read_many("c", 2)
        assert mine.ack(done) == 1
        assert mine.nack(given) == 1
        assert self.withdraw(mine, commands) == 0
        found = queue.read_many("another", MESSAGES)
        assert sorted(each.attempts for each in found) == [1] * (MESSAGES - 2) + [2]
        assert slots(queue) == MESSAGES - 1

    def test_who_waits_is_woken(self, any_server: AnyServer) -> None:
        filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        assert len(mine.read_many("c", MESSAGES)) == MESSAGES
        found: list[Any] = []
        waiting = queue_on(any_server.client())
        assert waiting.read("another") is None
        reading = threading.Thread(target=lambda: found.append(waiting.read("another", block=60)))
        reading.start()
        assert self.withdraw(mine, commands) == MESSAGES
        reading.join(60)
        assert found[0] is not None

    def test_a_foreign_receipt_is_none(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        for nonsense in ("", "x", "9" * 40, "-5", "1 a-9-9:1", "nan a-0-0:1", "1 a-0-0:x"):
            queue.client.hset(queue.keys.meta, queue._receipts.take().key, nonsense)
            assert queue.read("c") is not None
            as_written(queue)

    def test_receipts_are_few_and_the_reaper_deletes_them(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        for _ in range(4):
            assert queue.read("c") is not None
        queue.read_many("c", 9)
        assert len(self.receipts(queue)) == 1
        part = PARTS.index("reads") / len(PARTS)
        for seconds, left in ((59, 1), (61, 0)):
            later = FairQueue(queue.client, "q", clock_shift_ms=seconds * 1000, lease=600)
            FairQueueReaper(later, random=lambda: part).perform(Slice(25, 60.0))
            assert len(self.receipts(queue)) == left

    def test_a_queue_that_has_gone_is_not_begun(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        assert mine.read("c") is not None
        queue.delete()
        assert self.withdraw(mine, commands) == 0
        assert not queue.client.exists(queue.keys.meta)

    @staticmethod
    def receipts(queue: FairQueue) -> list[bytes]:
        """Return the fields of meta that are receipts."""
        fields: Any = queue.client.hkeys(queue.keys.meta)
        return [each for each in fields if each.startswith(b"read:")]


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


@pytest.mark.real
class TestCutReplies:
    def test_without_retries_they_are_given_back(
        self, redis7: RedisServer, door: FaultyServer
    ) -> None:
        queue = filled(redis7.client())
        failed, had = 0, []

        def read(client: Any) -> None:
            mine = queue_on(client)
            had.clear()
            had.extend(mine.read("c") for _ in range(3))

        for answer in every_cut(door, read, retries=False):
            failed += isinstance(answer, redis.ConnectionError)
            assert pending(queue) == {each.id for each in had}, door.names()
            assert slots(queue) == len(had)
            assert all_back(queue, len(had))
        assert failed > 4

    def test_of_a_later_piece(
        self, redis7: RedisServer, door: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workstealing.structures.fair_queue.reading.MESSAGES_A_SCRIPT", 2)
        queue = filled(redis7.client())
        lengths = set()

        def read(client: Any) -> list[Any]:
            return queue_on(client).read_many("c", MESSAGES)

        for answer in every_cut(door, read, retries=False):
            found = [] if isinstance(answer, redis.ConnectionError) else answer
            assert pending(queue) == {each.id for each in found}, door.names()
            lengths.add(len(found))
            as_written(queue)
        assert {0, MESSAGES} < lengths


@pytest.mark.real
class TestCancelled:
    async def test_while_the_request_is_under_way(self, redis7: RedisServer) -> None:
        queue = filled(redis7.client())
        with DelayingRelay(redis7.port) as relay:
            async with redis_asyncio.Redis(port=relay.port) as client:
                mine = AsyncFairQueue(client, "q", lease=600)
                assert await mine.read("c")
                as_written(queue)
                relay.seconds = 0.1
                for seconds in (0.02, 0.06):
                    task = asyncio.ensure_future(mine.read_many("c", 3))
                    await asyncio.sleep(seconds)
                    task.cancel()
                    await asyncio.wait({task})
                    await eventually(lambda: all_back(queue), "the messages to be back")

    async def test_who_waits_has_nothing_to_give_back(self, redis7: RedisServer) -> None:
        watching = redis7.client()
        async with redis_asyncio.Redis(port=redis7.port) as client:
            mine = AsyncFairQueue(client, "q")
            task = asyncio.ensure_future(mine.read("c", block=60))
            await eventually(
                lambda: watching.info("clients")["blocked_clients"] == 1, "the reader to wait"
            )
            watching.config_resetstat()
            task.cancel()
            await asyncio.wait({task})
            await mine.aclose()
        calls = watching.info("commandstats")
        assert not {"cmdstat_eval", "cmdstat_evalsha"} & set(calls)


@pytest.mark.real
@pytest.mark.slow
class TestAtRandom:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_signals_at_random_moments(self, redis7: RedisServer) -> None:
        signals_at_random_moments(redis7, "fair queue")

    def test_greenlets_killed_at_random(self, redis7: RedisServer) -> None:
        greenlets_killed(redis7, "fair queue")
