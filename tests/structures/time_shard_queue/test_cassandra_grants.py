"""Takes on Cassandra whose answer is lost, or whose taker is interrupted: nobody's lease stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from operator import call
from types import SimpleNamespace
from typing import Any

import pytest

from support.cassandra import KEYSPACE, CassandraServer
from support.grants import eventually
from support.interruptions import Interruption
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.proof import seed, tried
from support.set_clock import SetClock
from workstealing.errors import Aborted
from workstealing.store.operations import Steps, drive
from workstealing.structures import AsyncTimeShardQueue, TimeShardQueue
from workstealing.structures.time_shard_queue import AsyncCassandraStore, CassandraStore
from workstealing.structures.time_shard_queue.cassandra_rows import (
    NOTHING,
    Changes,
    FoundLeases,
    Lock,
    Opened,
    RowBatch,
)
from workstealing.structures.time_shard_queue.cassandra_time_shards import CassandraTimeShards
from workstealing.structures.time_shard_queue.rotation import Rotation
from workstealing.structures.time_shard_queue.store import AskedTakes, Held

pytestmark = pytest.mark.cassandra

TURN = 120.0
MESSAGES = 4
UNSURE = "an answer that does not say whether a transaction was applied"


def write_timeout() -> Exception:
    from cassandra import WriteTimeout

    return WriteTimeout("the test wants it", write_type=6)


class Unsure(CassandraStore):
    """A store whose n-th conditional batch, from now on, is answered by an error.

    Attributes: left: how many go well before that, None for ever; fate: 'applied' before the error,
    'lost', or 'late': applied by `send_late`; error: makes it; between: called before the error.
    """

    left: int | None = None
    fate = "applied"
    error: Any = staticmethod(write_timeout)
    late: Any = None
    between: Any = None
    asks_again = True

    @property
    def unsure(self) -> tuple[type[Exception], ...]:
        """The errors after which a batch is asked for."""
        return super().unsure if self.asks_again else ()

    def sender(self, end: float | None = None) -> Any:
        """Return a function that sends a step, or has its fault."""
        send = super().sender(end)

        def faulty(step: Any) -> Any:
            if not (isinstance(step, RowBatch) and step.conditional) or self.left is None:
                return send(step)
            if self.left:
                self.left -= 1
                return send(step)
            self.left = None
            if self.fate == "applied":
                send(step)
            elif self.fate == "late":
                self.late = lambda: send(step)
            if self.between:
                self.between()
            tried(UNSURE)
            raise self.error()

        return faulty


def queue_on(store: Any, clock: SetClock) -> TimeShardQueue:
    return TimeShardQueue(store, "letters", 6, 60, clock=clock)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def queue(cassandra: CassandraServer, clock: SetClock) -> TimeShardQueue:
    queue = queue_on(cassandra.store(), clock)
    for number in range(MESSAGES):
        queue.put(f"letter {number}")
    clock.go(TURN)
    return queue


@pytest.fixture
def unsure(cassandra: CassandraServer) -> Unsure:
    return Unsure(cassandra.session, KEYSPACE, cassandra.table)


def all_back(queue: TimeShardQueue) -> bool:
    """Say whether another consumer gets every message, for the first time; give them back."""
    taken = queue.take_many("another", 10)
    for each in taken:
        assert queue.release(each)
    return len(taken) == MESSAGES and {each.attempts for each in taken} == {1}


@pytest.mark.parametrize("fate", ["applied", "lost", "late"])
def test_a_take_whose_answer_is_unsure_takes_its_messages_once(
    queue: TimeShardQueue, unsure: Unsure, clock: SetClock, fate: str
) -> None:
    mine = queue_on(unsure, clock)
    unsure.left, unsure.fate = 0, fate
    taken = mine.take_many("reader", 2)
    assert len(taken) == 2
    assert {each.attempts for each in taken} == {1}
    if unsure.late is not None:
        # It was still on its way.
        assert not unsure.late()[0][0]
    rest = queue.take_many("another", 10)
    assert len({each.id for each in (*taken, *rest)}) == MESSAGES
    for each in (*taken, *rest):
        assert queue.release(each)
    assert all_back(queue)


@pytest.mark.parametrize("fate", ["applied", "lost"])
@pytest.mark.parametrize("call", ["release", "extend", "revive"])
def test_other_changes_too_know_what_they_have_done(
    queue: TimeShardQueue, unsure: Unsure, clock: SetClock, fate: str, call: str
) -> None:
    mine = queue_on(unsure, clock)
    (taken, *_) = queue.take_many("reader", MESSAGES)
    unsure.left, unsure.fate = 0, fate
    if call == "release":
        assert mine.release(taken) is True
    elif call == "extend":
        assert mine.extend(taken, 600) is True
    else:
        once = TimeShardQueue(unsure, "dead", 6, 60, max_attempts=1, clock=clock)
        once.put("poison")
        clock.go(TURN)
        unsure.left = None
        assert once.take("reader", lease=0.001)
        while not once.dead():
            once.take("reader")
        (dead,) = once.dead()
        unsure.left = 0
        assert once.revive(dead.id) == 1


@pytest.mark.parametrize("others", [1, 3, 40])
def test_others_who_come_meanwhile(
    queue: TimeShardQueue, unsure: Unsure, clock: SetClock, others: int
) -> None:
    """After a few others the lock knows still; after many it says that nobody knows."""
    mine = queue_on(unsure, clock)

    def between() -> None:
        unsure.between = None
        for _ in range(others):
            (each,) = queue.take_many("another", 1)
            assert queue.release(each)

    unsure.left, unsure.fate, unsure.between = 0, "applied", between
    if others < 8:
        taken = mine.take_many("reader", 2)
        assert len(taken) == 2
        for each in taken:
            assert queue.release(each)
        assert all_back(queue)
    else:
        with pytest.raises(Aborted, match="nobody knows"):
            mine.take_many("reader", 2)


@pytest.mark.parametrize("fate", ["applied", "lost", "late"])
def test_who_is_interrupted_gives_back(
    queue: TimeShardQueue, unsure: Unsure, clock: SetClock, fate: str
) -> None:
    mine = queue_on(unsure, clock)
    unsure.left, unsure.fate, unsure.error = 0, fate, Interruption
    with pytest.raises(Interruption):
        mine.take_many("reader", 3)
    if unsure.late is not None:
        assert not unsure.late()[0][0]
    assert all_back(queue)


def test_a_later_piece_that_nobody_knows_of_is_given_back(
    queue: TimeShardQueue, unsure: Unsure, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "workstealing.structures.time_shard_queue.cassandra_time_shards"
    monkeypatch.setattr(f"{where}.TAKEN_A_PIECE", 2)
    mine = queue_on(unsure, clock)
    unsure.left, unsure.asks_again = 1, False
    taken = mine.take_many("reader", MESSAGES)
    assert len(taken) == 2
    rest = queue.take_many("another", 10)
    assert len(rest) == MESSAGES - 2
    assert {each.attempts for each in (*taken, *rest)} == {1}


def test_a_take_of_many_pieces_is_given_back() -> None:
    """The first ones had left the lock's memory, and then nothing was given back at all."""
    shards = CassandraTimeShards(SimpleNamespace(unsure=()), b"letters", Rotation(6, 60_000))
    asked, given, number = AskedTakes(), [], -1
    lock = Lock.of(Lock().written("first").text)

    def look(_: Any) -> Steps[Changes[FoundLeases]]:
        yield from ()
        held = [Held(f"0-{number}", b"", 0, 1, "1", 9)]
        return Changes(FoundLeases(True, held), replace(lock, again=number))

    def read(_: int) -> Steps[Any]:
        yield from ()
        return Opened(0, lock, 0, 0)

    def release(_: int, held: Sequence[Held]) -> Steps[int]:
        yield from ()
        given.extend(each.id for each in held)
        return len(held)

    shards.read, shards._release_all = read, release  # type: ignore[method-assign]
    for number in range(20):
        steps = shards.committed(0, look, NOTHING, asked=asked)
        batch = next(steps)
        lock = Lock.of(batch.queries[0].args[0])
        with pytest.raises((StopIteration, Interruption)):
            # The answer to the last one is lost, and it was applied.
            steps.throw(Interruption) if number == 19 else steps.send([(True,)])

    def answer(step: Any) -> Any:
        assert step.name == "settled_mark"
        return [(b"", lock.text)]

    assert drive(answer, shards.give_back(asked), call) == 20
    assert given == [f"0-{number}" for number in range(20)]


async def test_cancelled_at_random_moments(
    queue: TimeShardQueue, cassandra: CassandraServer, clock: SetClock
) -> None:
    chance = random.Random(seed())
    store = AsyncCassandraStore(cassandra.session, KEYSPACE, cassandra.table)
    mine = AsyncTimeShardQueue(store, "letters", 6, 60, clock=clock)
    for each in await mine.take_many("reader", 3):
        await mine.release(each)
    cancelled = 0
    for _ in range(60):
        task = asyncio.ensure_future(mine.take_many("reader", 3))
        await asyncio.sleep(chance.random() * 0.03)
        cancelled += task.cancel()
        await asyncio.wait({task})
        tried("a task that is cancelled at an await while it asks for a grant")
        if not task.cancelled():
            for each in task.result():
                assert await mine.release(each)
        await eventually(lambda: all_back(queue), "the messages to be back")
    assert cancelled > 10


def test_no_token_goes_back(queue: TimeShardQueue) -> None:
    """A message's token grows with each lease, whatever came between."""
    last: dict[str, int] = {}
    for turn in range(8):
        for each in queue.take_many("reader", 1 + turn % MESSAGES, lease=600):
            assert int(each.token) > last.get(each.id, 0)
            last[each.id] = int(each.token)
            assert queue.release(each)
    assert len(last) == MESSAGES


def test_a_lock_of_an_earlier_release_is_read(queue: TimeShardQueue) -> None:
    opened: Any = queue.store.run(
        queue.time_shards.read(queue.rotation.consuming(queue.now_ms()))  # type: ignore[attr-defined]
    )
    text = opened.lock.text.replace('"recent"', '"unknown"').replace('"of"', '"else"')
    earlier = Lock.of(text)
    assert (earlier.nonce, earlier.recent) == ("", ())
    assert not earlier.knows(opened.lock.nonce)
