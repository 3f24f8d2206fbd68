"""Messages with a dedupe key: one is there while it holds, wherever a producer is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from support.faulty_server import FaultyServer
from support.grants import every_cut
from support.servers import AnyServer, RedisServer
from support.set_clock import SetClock
from support.time_shard_queues import TURN, ahead_of, is_receipt, queue_on, totals
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.store.operations import Sleep, Steps, drive, send_step
from workstealing.structures import RedisStore, TimeShardQueue
from workstealing.structures.time_shard_queue import redis_dedupe
from workstealing.structures.time_shard_queue.redis_dedupe import note_key
from workstealing.structures.time_shard_queue.store import Due, Entry

KEY: Any = ("invoice 7", 3600)


def steps_of(queue: TimeShardQueue, text: bytes = b"late") -> Steps[str]:
    """Return the steps of a put with the key, for a producer that is stopped between them."""
    shards: Any = queue.time_shards
    now_s = queue.clock.time()
    shard = queue.rotation.producing(int(now_s * 1000))
    steps: Steps[str] = shards.put_once(
        shard, Entry(text, Due(0, True)), now_s, b"invoice 7", 3.6e6
    )
    return steps


def go(queue: TimeShardQueue, steps: Steps[str], count: int) -> Any:
    """Run so many steps of a put; return the next one, which is not run."""
    step = next(steps)
    for _ in range(count):
        step = steps.send(send_step(queue.store.client, step))
    return step


def finish(queue: TimeShardQueue, steps: Steps[str], step: Any) -> str:
    """Run the rest of a put."""
    while True:
        try:
            step = steps.send(send_step(queue.store.client, step))
        except StopIteration as done:
            said: str = done.value
            return said


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for a put that may be under way."""
    monkeypatch.setattr(redis_dedupe, "YOUNG_MS", -1)


@pytest.mark.contract
class TestOneIsThere:
    def test_the_second_is_answered_by_the_first(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue, other = queue_on(any_server, clock), queue_on(any_server, clock)
        first = queue.put("a", dedupe=KEY)
        assert queue.put("a", dedupe=KEY) == first
        # In whichever time shard it would be.
        for _ in range(7):
            clock.go(60)
            assert other.put("b", timedelta(hours=1), dedupe=KEY) == first
        assert other.put("b", dedupe=("invoice 8", 3600)) != first
        assert other.put("c") not in {first, ""}
        assert totals(queue)["waiting"] == 3
        taken = queue.take_many("c", 9, drain_all=True)
        assert sorted(each.message for each in taken) == [b"a", b"b", b"c"]
        # It is still in the queue.
        assert queue.put("a", dedupe=KEY) == first
        assert queue.release(next(each for each in taken if each.id == first))
        assert queue.put("a", dedupe=KEY) == first

    @pytest.mark.parametrize("end", ["ack", "late ack", "cancel", "dead", "discard", "swept"])
    def test_every_end_frees_the_key(
        self, any_server: AnyServer, clock: SetClock, end: str
    ) -> None:
        queue = queue_on(any_server, clock)
        first = queue.put("a", dedupe=KEY)
        clock.go(TURN)
        if end == "cancel":
            assert queue.cancel(first)
        elif end in {"dead", "discard"}:
            dying = TimeShardQueue(queue.store, queue.name, 6, 60, max_attempts=1, clock=clock)
            assert dying.take("c", 0.001) is not None
            time.sleep(0.01)
            assert dying.take("c") is None
            assert [each.id for each in queue.dead()] == [first]
            assert end == "dead" or queue.discard(first) == 1
        else:
            taken = queue.take("c", 0.001 if end == "late ack" else 60)
            assert taken is not None
            assert queue.ack(taken) == 1
            if end == "swept":
                # The take that finds the lease ended clears it away.
                assert ahead_of(queue, clock, 70_000).take("c") is None
                assert queue.cancel(first) is False
        second = queue.put("a", dedupe=KEY)
        assert second != first
        assert queue.put("a", dedupe=KEY) == second
        taken = queue.take("c", drain_all=True)
        assert taken is not None
        assert taken.id == second
        assert queue.take("c", drain_all=True) is None

    def test_the_key_holds_for_its_window(self, any_server: AnyServer, clock: SetClock) -> None:
        queue = queue_on(any_server, clock)
        first = queue.put("a", dedupe=("key", 10))
        assert ahead_of(queue, clock, 9_000).put("a", dedupe=("key", 10)) == first
        second = ahead_of(queue, clock, 10_500).put("a", dedupe=("key", timedelta(seconds=10)))
        assert second != first
        assert ahead_of(queue, clock, 19_000).put("a", dedupe=("key", 10)) == second
        assert totals(queue)["waiting"] == 2
        left = any_server.client().pttl(note_key(b"letters", b"key"))
        assert 0 < left <= 70_000, "the server removes it"

    def test_any_text_is_a_key(self, any_server: AnyServer, clock: SetClock) -> None:
        queue = queue_on(any_server, clock)
        keys = ["{", "}", "{}a", "a", "a ", "a b c", b"\x00", "ä", "x" * 10_000]
        ids = [queue.put("a", dedupe=(each, 60)) for each in keys]
        assert len(set(ids)) == len(keys)
        assert [queue.put("a", dedupe=(each, 60)) for each in keys] == ids

    def test_a_queue_made_anew_has_its_own(self, any_server: AnyServer, clock: SetClock) -> None:
        clock.go(5 * 60)
        queue = queue_on(any_server, clock)
        assert queue.put("a", dedupe=KEY).startswith("5-")
        queue.delete()
        remade = queue_on(any_server, clock, shards=4)
        second = remade.put("a", dedupe=KEY)
        assert remade.put("a", dedupe=KEY) == second
        assert totals(remade) == {"waiting": 1, "due": 1}

    @pytest.mark.parametrize(
        "wrong", ["key", ("key",), ("", 1), ("key", 0), ("key", -1), ("key", 1e9), (7, 1), 7]
    )
    def test_what_is_no_key(self, any_server: AnyServer, clock: SetClock, wrong: Any) -> None:
        queue = queue_on(any_server, clock)
        with pytest.raises(ConfigurationError, match="dedupe"):
            queue.put("a", dedupe=wrong)
        assert list(any_server.client().scan_iter()) == []

    def test_a_foreign_note_is_refused(self, any_server: AnyServer, clock: SetClock) -> None:
        queue, client = queue_on(any_server, clock), any_server.client()
        note = note_key(b"letters", b"invoice 7")
        for make in (
            lambda: client.set(note, "foreign"),
            # Neither of them is an id, so no time shard could be asked.
            lambda: client.set(note, b"\xff 1 2"),
            lambda: client.set(note, "foreign 1 2"),
            lambda: client.hset(note, "a", "b"),
        ):
            client.delete(note)
            make()
            before = client.dump(note)
            with pytest.raises(LayoutError, match="claimed"):
                queue.put("a", dedupe=KEY)
            assert client.dump(note) == before
        assert totals(queue) == {}


@pytest.mark.usefixtures("impatient")
@pytest.mark.contract
class TestKills:
    """A producer is stopped after any of its steps, for ever or for a while."""

    @pytest.mark.parametrize("reached", [0, 1])
    def test_a_note_without_a_message_blocks_nobody(
        self, any_server: AnyServer, clock: SetClock, reached: int
    ) -> None:
        queue, other = queue_on(any_server, clock), queue_on(any_server, clock)
        queue.open(), other.open()
        steps = steps_of(queue)
        step = go(queue, steps, reached)
        clock.go(60)
        second = other.put("a", dedupe=KEY)
        # It was not killed, only slow: its put is refused, and it learns of the other.
        assert finish(queue, steps, step) == second
        assert totals(queue) == {"waiting": 1, "due": 1}
        assert other.put("a", dedupe=KEY) == second

    def test_a_killed_producers_message_is_put_by_the_next(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue, other = queue_on(any_server, clock), queue_on(any_server, clock)
        queue.open(), other.open()
        for reached in (1, 2, 3):
            # The second one is killed after its bar or its takeover; the third finds that.
            go(queue, steps_of(queue), reached)
        last = other.put("a", dedupe=KEY)
        assert other.put("a", dedupe=KEY) == last
        assert totals(other) == {"waiting": 1, "due": 1}

    @pytest.mark.parametrize("reached", [1, 2, 3])
    def test_whoever_bars_and_is_killed_harms_nobody(
        self, any_server: AnyServer, clock: SetClock, reached: int
    ) -> None:
        first, second = queue_on(any_server, clock), queue_on(any_server, clock)
        first.open(), second.open()
        slow = steps_of(first)
        step = go(first, slow, 1)
        taking_over = steps_of(second)
        theirs = go(second, taking_over, reached)
        mine = finish(first, slow, step)
        assert totals(first) == {"waiting": 1, "due": 1}
        # And now the one who was taken for dead goes on, too.
        assert finish(second, taking_over, theirs) == mine
        assert totals(first) == {"waiting": 1, "due": 1}

    def test_a_put_that_comes_a_minute_late_is_refused(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock)
        queue.open()
        shards: Any = queue.time_shards
        steps = steps_of(queue)
        step = go(queue, steps, 1)
        # The note and the bar may have gone by then: nobody knows of it any more.
        shards.clock_shift_ms = 61_000
        ahead = queue_on(any_server, clock, ahead_ms=61_000)
        any_server.client().delete(note_key(b"letters", b"invoice 7"))
        second = ahead.put("a", dedupe=KEY)
        client = queue.store.client
        late = shards._operation("put", step.keys[1:], 0, step.args[1:], int)
        assert drive(client, one(late)) == redis_dedupe.UNTIMELY
        assert finish(queue, steps, late) == second
        assert totals(queue) == {"waiting": 1, "due": 1}

    @pytest.mark.parametrize("is_done", [False, True])
    def test_a_put_that_is_sent_again_a_minute_late_was_done(
        self, any_server: AnyServer, clock: SetClock, is_done: bool
    ) -> None:
        """As redis-py sends it, whose first reply was lost only after a long time-out."""
        queue = queue_on(any_server, clock)
        # So that the time shard has its mark.
        queue.cancel(queue.put("warm"))
        shards: Any = queue.time_shards
        steps = steps_of(queue)
        step = go(queue, steps, 1)
        assert drive(queue.store.client, one(step)) == 1
        if is_done:
            assert queue.cancel(step.args[3].decode())
            # The next producer bars the put that has ended.
            go(queue, steps_of(queue), 2)
        shards.clock_shift_ms = 61_000
        again = shards._operation("put", step.keys[1:], 0, step.args[1:], int)
        assert finish(queue, steps, again) == step.args[3].decode()
        assert totals(queue).get("waiting", 0) - totals(queue).get("consumed", 0) == 1 - is_done

    def test_a_clock_that_was_set_back_blocks_nobody(
        self, any_server: AnyServer, clock: SetClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_dedupe, "YOUNG_MS", 200)
        queue = queue_on(any_server, clock)
        queue.open()
        ahead = queue_on(any_server, clock, ahead_ms=3_600_000)
        slow = steps_of(ahead)
        step = go(ahead, slow, 1)
        # A minute before its claim a put is refused, as it is a minute after it.
        shards: Any = queue.time_shards
        early = shards._operation("put", step.keys[1:], 0, step.args[1:], int)
        assert drive(queue.store.client, one(early)) == redis_dedupe.UNTIMELY
        steps = steps_of(queue)
        step = next(steps)
        for _ in range(3):
            step = steps.send(send_step(queue.store.client, step))
            assert not isinstance(step, Sleep), "it waits for the clock to come up"
        mine = finish(queue, steps, step)
        assert queue.put("a", dedupe=KEY) == mine
        assert totals(queue) == {"waiting": 1, "due": 1}

    @pytest.mark.parametrize("apart", [-61_000, 61_000])
    def test_clocks_of_nodes_that_differ_are_named(
        self, any_server: AnyServer, clock: SetClock, apart: int
    ) -> None:
        queue = queue_on(any_server, clock)
        queue.open()
        shards: Any = queue.time_shards
        put_as = shards.put_as

        def on_another_node(*args: Any) -> Steps[int]:
            shards.clock_shift_ms = apart
            new: int = yield from put_as(*args)
            shards.clock_shift_ms = 0
            return new

        shards.put_as = on_another_node
        with pytest.raises(Aborted, match=r"clocks .* nothing was put") as said:
            queue.put("a", dedupe=KEY)
        assert "others" not in str(said.value)
        shards.put_as = put_as
        assert totals(queue) == {}
        queue.put("a", dedupe=KEY)
        assert totals(queue) == {"waiting": 1, "due": 1}


def one(step: Any) -> Steps[Any]:
    return (yield step)


@pytest.mark.contract
def test_a_put_under_way_is_waited_for(any_server: AnyServer, clock: SetClock) -> None:
    """A young note's put is not barred: both producers come to an end, by one message."""
    first, second = queue_on(any_server, clock), queue_on(any_server, clock)
    first.open(), second.open()
    steps = steps_of(first)
    step = go(first, steps, 1)
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(second.put("a", dedupe=KEY)))
    asking.start()
    mine = finish(first, steps, step)
    asking.join(60)
    # On a busy machine the first may have come too late, and has learnt of the second.
    assert found == [mine]
    assert totals(first) == {"waiting": 1, "due": 1}


@pytest.mark.real
def test_many_producers_of_one_key_put_one_message(redis7: RedisServer, clock: SetClock) -> None:
    for key in range(20):
        found: list[str] = []
        start = threading.Barrier(6)

        def put(apart: int, key: int, found: list[str], start: threading.Barrier) -> None:
            mine = SetClock(clock.now + 60 * (apart % 3))
            queue = queue_on(redis7, mine)
            queue.open()
            start.wait()
            found.append(queue.put("a", dedupe=(f"key {key}", 60)))

        threads = [
            threading.Thread(target=put, args=(each, key, found, start)) for each in range(6)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert len(found) == 6
        assert len(set(found)) == 1
    assert totals(queue_on(redis7, clock))["waiting"] == 20


@pytest.mark.real
@pytest.mark.usefixtures("impatient")
def test_while_consumers_end_them_no_two_are_there(redis7: RedisServer, clock: SetClock) -> None:
    """Even where every producer takes every other for dead at once."""
    ended = threading.Event()
    most: list[int] = []
    acked: list[str] = []
    put: set[str] = set()

    def produce() -> None:
        queue = queue_on(redis7, clock)
        for _ in range(60):
            put.add(queue.put("a", dedupe=KEY))

    def consume() -> None:
        queue = queue_on(redis7, clock)
        while not ended.is_set():
            taken = queue.take_many("c", 10, drain_all=True)
            most.append(len(taken))
            queue.ack(*taken)
            acked.extend(each.id for each in taken)

    producers = [threading.Thread(target=produce) for _ in range(4)]
    consumer = threading.Thread(target=consume)
    for each in (*producers, consumer):
        each.start()
    for each in producers:
        each.join(120)
    ended.set()
    consumer.join(60)
    assert max(most) == 1
    assert set(acked) <= put
    left = queue_on(redis7, clock).take_many("c", 10, drain_all=True)
    assert len(left) <= 1
    assert put == {*acked, *(each.id for each in left)}


@pytest.mark.real
@pytest.mark.usefixtures("impatient")
def test_a_reply_that_is_lost_leaves_one_message(redis7: RedisServer, clock: SetClock) -> None:
    """Whoever does not know whether the message was put, puts it again."""
    with FaultyServer(redis7.port) as door:
        unsure = 0
        for retries in (True, False):
            for number, answer in enumerate(
                every_cut(door, putting(clock), retries=retries), start=1
            ):
                unsure += isinstance(answer, redis.ConnectionError)
                queue = queue_on(redis7, clock)
                mine = queue.put("a", dedupe=KEY)
                assert isinstance(answer, redis.ConnectionError) or answer == mine
                assert totals(queue) == {"waiting": 1, "due": 1}, number
                redis7.client().flushall()
        assert unsure >= 2


def putting(clock: SetClock) -> Callable[[Any], str]:
    return lambda client: TimeShardQueue(RedisStore(client), "letters", 6, 60, clock=clock).put(
        "a", dedupe=KEY
    )


@pytest.mark.real
def test_a_full_server_refuses_it_and_is_none_the_worse(
    start_redis: Callable[..., RedisServer], clock: SetClock
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    queue, client = queue_on(server, clock), server.client()
    first = queue.put("a", dedupe=KEY)
    steps = steps_of(queue)
    client.config_set("maxmemory", 1)
    for key in (KEY, ("another", 60)):
        if key != KEY:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                queue.put("a", dedupe=key)
    assert totals(queue) == {"waiting": 1, "due": 1}
    assert queue.cancel(first)
    client.config_set("maxmemory", 0)
    second = finish(queue, steps, next(steps))
    assert queue.put("a", dedupe=KEY) == second != first


def test_what_it_costs(redis7: RedisServer, clock: SetClock) -> None:
    """The page's figures: round trips, and the memory of a note and of a bar."""
    queue, client = queue_on(redis7, clock), redis7.client()
    queue.ack(queue.put("warm", dedupe=("warm", 60)))
    queue.put("warm", dedupe=("warm", 60))
    trips = 0
    send = queue.store.client.execute_command

    def counted(*words: Any, **options: Any) -> Any:
        nonlocal trips
        trips += 1
        return send(*words, **options)

    queue.store.client.execute_command = counted
    first = queue.put("a", dedupe=KEY)
    assert trips == 2
    assert queue.put("a", dedupe=KEY) == first
    assert trips == 4
    queue.ack(first)
    trips = 0
    assert queue.put("a", dedupe=KEY) != first
    assert trips == 4
    note = client.memory_usage(note_key(b"letters", b"invoice 7"))
    shards: Any = queue.time_shards
    bar = client.memory_usage(shards.names(0).bar(first.encode()))
    assert 0 < note <= 300
    assert 0 < bar <= 300
    assert 0 < client.pttl(shards.names(0).bar(first.encode())) <= 120_000
    assert not is_receipt(client, note_key(b"letters", b"invoice 7"))
