"""The whole surface of a TimeShardQueue, on every kind of server.

Turns come by a clock that is set; leases end by scripts whose clock is ahead.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.patience import GUARD_SECONDS
from support.servers import AnyServer, RedisServer
from support.set_clock import ApartClock, SetClock
from support.time_shard_queues import (
    TURN,
    ahead_of,
    async_store_on,
    everything,
    keeps_litter,
    queue_on,
    store_on,
    totals,
)
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.structures import (
    AsyncTimeShardQueue,
    RedisStore,
    Taken,
    TimeShardQueue,
)

pytestmark = pytest.mark.contract


class TestTurns:
    @pytest.mark.every_store
    def test_a_message_is_taken_at_its_time_shards_turn_and_not_before(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        message_id = queue.put("hello")
        assert message_id.startswith("0-")
        for _ in range(2):
            assert queue.take("reader") is None
            clock.go(60)
        taken = queue.take("reader")
        assert isinstance(taken, Taken)
        assert taken[:2] == (message_id, b"hello")
        assert (taken.attempts, taken.time_shard) == (1, 0)
        assert queue.take("reader") is None

    @pytest.mark.every_store
    def test_what_missed_its_turn_waits_for_the_next(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("hello")
        clock.go(TURN + 60)
        for _ in range(5):
            assert queue.take("reader") is None
            clock.go(60)
        assert queue.take("reader") is not None

    @pytest.mark.every_store
    def test_many_are_put_and_taken_in_their_order(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        early = timedelta(seconds=-5)
        some: list[Any] = [f"usual {n}" for n in range(230)]
        some[7] = (b"early", early)
        some[9] = ("late", timedelta(hours=1))
        ids = queue.put_many(iter(some), due=timedelta(seconds=-1))
        assert len(set(ids)) == 230
        assert {each.split("-")[0] for each in ids} == {"0"}
        clock.go(120)
        taken = queue.take_many("reader", 1000)
        assert taken[0][:2] == (ids[7], b"early")
        usual = [n for n in range(230) if n not in {7, 9}]
        # Of scripts with clocks of their own, each has its own moment.
        assert [each.id for each in taken[1:]] == [ids[n] for n in usual]
        assert [each.message for each in taken[1:]] == [b"usual %d" % n for n in usual]
        assert queue.cancel(ids[9])
        assert queue.ack(*taken) == 229
        assert queue.put_many([]) == []

    @pytest.mark.parametrize("shards", [4, 6, 7, 16])
    def test_all_comes_by_over_the_ends_of_hours_days_and_years(
        self, redis7: RedisServer, shards: int
    ) -> None:
        """Each is taken two minutes later, where the published arithmetic would jump away."""
        for end in (datetime(2026, 11, 21, 10, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)):
            clock = SetClock(end.timestamp() - 300)
            queue = queue_on(redis7, clock, shards, name=f"{shards} {end}")
            written: list[str] = []
            for minute in range(12):
                written.append(queue.put(f"minute {minute}"))
                taken = queue.take("reader")
                assert (taken.id if taken else None) == (written[-3] if minute > 1 else None)
                clock.go(60)

    @pytest.mark.parametrize("shards", [4, 7])
    @pytest.mark.parametrize("apart", [-59, 59])
    def test_producers_and_consumers_59_s_apart_never_touch_the_same_time_shard(
        self, redis7: RedisServer, shards: int, apart: int
    ) -> None:
        clock = SetClock()
        producer = queue_on(redis7, clock, shards)
        consumer = queue_on(redis7, ApartClock(clock, apart), shards)
        written: set[str] = set()
        taken: set[str] = set()
        for _ in range(0, 60 * (shards + 4), 2):
            mark = producer.put("hello")
            written.add(mark)
            for each in consumer.take_many("reader", 1000):
                assert each.time_shard != int(mark.split("-")[0])
                assert each.id not in taken
                taken.add(each.id)
            clock.go(2)
        assert taken < written
        # What is left are the last periods'; nothing was passed over.
        assert len(written) - len(taken) <= 3 * 30

    @pytest.mark.every_store
    def test_drain_all_looks_at_every_time_shard(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        ids = []
        for _ in range(6):
            ids.append(queue.put("hello"))
            clock.go(60)
        first = queue.take("reader", drain_all=True)
        assert first is not None
        # The consumers' own comes first.
        assert first.id == ids[4]
        rest = queue.take_many("reader", 100, drain_all=True)
        assert sorted(each.id for each in [first, *rest]) == sorted(ids)
        assert queue.take("reader", drain_all=True) is None


@pytest.mark.every_store
class TestOrder:
    def test_the_lowest_due_time_comes_first_and_the_future_stays(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        now = time.time()
        queue.put("third", due=datetime.fromtimestamp(now - 10, UTC))
        queue.put("first", due=now - 1000)
        queue.put("much later", due=timedelta(hours=1))
        queue.put("second", due=timedelta(seconds=-20))
        queue.put("later", due=now + 3000)
        clock.go(TURN)
        taken = [queue.take("reader") for _ in range(4)]
        assert [each and each.message for each in taken] == [b"first", b"second", b"third", None]
        assert taken[0] is not None
        assert abs(taken[0].due.timestamp() - (now - 1000)) < 0.002
        ahead = ahead_of(queue, clock, 3_601_000)
        assert [each.message for each in ahead.take_many("reader", 9, lease=9)][:2] == [
            *(b"later", b"much later"),
        ]

    def test_of_equal_due_times_the_first_one_put_comes_first(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        due = time.time() - 5
        for number in range(20):
            queue.put(str(number), due=due)
            clock.go(0.001)
        clock.go(TURN)
        taken = queue.take_many("reader", 100)
        assert [int(each.message) for each in taken] == list(range(20))

    def test_many_at_once(self, queue: TimeShardQueue, clock: SetClock) -> None:
        ids = {queue.put(str(number), due=1000.0 + number) for number in range(150)}
        clock.go(TURN)
        first = queue.take_many("reader", 100)
        assert [int(each.message) for each in first] == list(range(100))
        second = queue.take_many("reader", 100)
        assert [int(each.message) for each in second] == list(range(100, 150))
        assert {each.id for each in first + second} == ids
        assert queue.ack(*first, *second) == 150

    def test_what_is_deleted_does_not_stand_in_the_way(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        """More of it than one look of the script clears away."""
        for number in range(60):
            assert queue.cancel(queue.put(str(number), due=1000.0))
        last = queue.put("last", due=2000.0)
        clock.go(TURN)
        taken = queue.take("reader")
        assert taken is not None
        assert taken.id == last
        assert totals(queue) == {"leased": 1}


@pytest.mark.every_store
class TestObserving:
    def test_what_it_counts(
        self, any_server: AnyServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        for number in range(5):
            queue.put(str(number), due=time.time() - 50)
        queue.put("later", due=timedelta(hours=1))
        clock.go(TURN)
        queue.put("elsewhere")
        first, second = queue.take_many("reader", 2)
        queue.ack(first)
        queue.release(second, due=timedelta(hours=1))
        found = queue.stats()
        assert [each.time_shard for each in found] == list(range(6))
        assert [each.role for each in found] == [
            *("consuming", "quiet", "producing", "quiet", "quiet", "quiet"),
        ]
        assert found[0][2:7] == ((5, 3, 1, 1, 0) if keeps_litter(any_server) else (5, 3, 0, 0, 0))
        assert 45 < found[0].overdue_seconds < 50 + GUARD_SECONDS
        assert found[0].total == 5
        assert found[2][2:7] == (1, 1, 0, 0, 0)
        assert found[1][2:] == (0, 0, 0, 0, 0, 0.0)

    def test_it_changes_nothing(
        self, any_server: AnyServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("hello")
        clock.go(TURN)
        queue.take("reader")
        before = everything(any_server)
        queue.stats()
        queue.dead()
        assert everything(any_server) == before

    def test_nothing_but_a_put_writes_down_what_a_new_queue_is_like(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        """Whoever looks with another number of time shards decides nothing for the others."""
        other = queue_on(any_server, clock, shards=16)
        assert totals(other) == {}
        assert other.take("reader", drain_all=True) is None
        assert other.dead() == []
        assert other.ack("1-ab") == other.revive("1-ab") == other.discard("1-ab") == 0
        assert other.release("1-ab") is other.cancel("1-ab") is False
        assert everything(any_server) == {}
        queue_on(any_server, clock).put("hello")
        with pytest.raises(ConfigurationError, match="give shards=6"):
            other.stats()


class TestMessages:
    @pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
    @pytest.mark.every_store
    def test_text_and_any_bytes(
        self, any_server: AnyServer, clock: SetClock, options: dict[str, Any]
    ) -> None:
        queue = queue_on(any_server, clock, **options)
        messages = [b"", b"\xff\x00{}\r\n", b"%", "snow \u2603".encode(), b"x" * 1_000_000]
        for number, message in enumerate(messages):
            queue.put(message, due=1000.0 + number)
        queue.put("\u2603", due=2000.0)
        queue.put(bytearray(b"array"), due=2001.0)  # type: ignore[arg-type]
        clock.go(TURN)
        taken = queue.take_many("r\u2603ader\n1", 100)
        assert [each.message for each in taken] == [*messages, "\u2603".encode(), b"array"]
        assert all(type(each.id) is str and type(each.token) is str for each in taken)
        assert queue.release(taken[0])
        assert queue.ack(*taken) == 7
        assert [each.total for each in queue.stats()] == [0] * 6
        assert queue.dead() == []

    @pytest.mark.parametrize("message", [None, 17, ["a"], "\ud800"])
    @pytest.mark.every_store
    def test_what_is_no_message(self, queue: TimeShardQueue, message: Any) -> None:
        with pytest.raises(ConfigurationError, match="message"):
            queue.put(message)

    @pytest.mark.parametrize(
        "due",
        [
            *(True, "now", float("nan"), float("inf"), 1e12, -1e12, [], timedelta.max),
            datetime(2026, 1, 1),  # noqa: DTZ001 - what is refused
        ],
    )
    @pytest.mark.every_store
    def test_what_is_no_due_time(self, queue: TimeShardQueue, due: Any) -> None:
        with pytest.raises(ConfigurationError, match="due="):
            queue.put("hello", due=due)

    @pytest.mark.every_store
    def test_due_times_at_the_ends_of_what_there_is(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("before the epoch", due=-5.5)
        queue.put("long ago", due=timedelta(days=-40_000))
        queue.put("in the year 9999", due=datetime(9999, 12, 31, tzinfo=UTC))
        clock.go(TURN)
        assert len(queue.take_many("reader", 9)) == 2


class TestArguments:
    @pytest.mark.every_store
    def test_what_cannot_be_used_changes_nothing(
        self, any_server: AnyServer, queue: TimeShardQueue
    ) -> None:
        bad: list[tuple[Any, ...]] = [
            *((queue.take, ""), (queue.take, None), (queue.take, "c", 0), (queue.take, "c", -1)),
            *((queue.take, "c", float("nan")), (queue.take_many, "c", 0)),
            *((queue.take_many, "c", 1001), (queue.take_many, "c", True), (queue.dead, 0)),
            *((queue.ack, "6-ab"), (queue.ack, "00-ab"), (queue.ack, "x"), (queue.ack, 5)),
            *((queue.cancel, "1-AB"), (queue.release, "1-"), (queue.release, "1-ab", "soon")),
            *((queue.revive, b"1-ab"), (queue.discard, "-1-ab")),
        ]
        for method, *arguments in bad:
            with pytest.raises(ConfigurationError):
                method(*arguments)
        assert everything(any_server) == {}

    def test_what_is_no_queue(self, any_server: AnyServer) -> None:
        store = RedisStore(any_server.client())
        with pytest.raises(ConfigurationError, match="too few: give 4 or more"):
            TimeShardQueue(store, "name", 3)
        with pytest.raises(ConfigurationError, match="name"):
            TimeShardQueue(store, "")
        with pytest.raises(ConfigurationError, match="max_attempts"):
            TimeShardQueue(store, "name", max_attempts=0)
        queue = TimeShardQueue(store, "name")
        for wrong, says in (
            ("text", "are no messages"),
            ([("a", 1, 2)], "is no message to be put"),
            ([("a", "soon")], "is no time"),
            (["a", 7], "cannot be kept"),
        ):
            with pytest.raises(ConfigurationError, match=says):
                queue.put_many(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="RedisStore"):
            TimeShardQueue(any_server.client(), "name")  # type: ignore[call-overload]

    @pytest.mark.parametrize(("shards", "period"), [(7, 60), (6, 61), (4, 30)])
    @pytest.mark.every_store
    def test_another_number_or_period_is_refused_by_name(
        self, any_server: AnyServer, clock: SetClock, shards: int, period: int
    ) -> None:
        queue_on(any_server, clock).put("hello")
        before = everything(any_server)
        store = store_on(any_server)
        other: TimeShardQueue = TimeShardQueue(store, "letters", shards, period, clock=clock)
        for call in (lambda: other.put("x"), lambda: other.take("c"), other.stats, other.open):
            with pytest.raises(ConfigurationError, match="give shards=6 and period=60"):
                call()
        assert everything(any_server) == before

    @pytest.mark.every_store
    def test_a_process_that_has_looked_already_is_stopped_by_the_mark(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock)
        message_id = queue.put("hello")
        any_server.wipe()
        other = queue_on(any_server, clock, shards=4)
        other.put("other")
        before = everything(any_server)
        for call in (
            lambda: queue.put("x"),
            lambda: queue.ack(message_id),
            lambda: queue.release(message_id),
            lambda: queue.revive(message_id),
            lambda: queue.discard(message_id),
            lambda: queue.take("c", drain_all=True),
            queue.dead,
            queue.stats,
        ):
            with pytest.raises(LayoutError, match="1:4:60000"):
                call()
        assert everything(any_server) == before

    @pytest.mark.parametrize("kind", ["text", "other", "newer"])
    def test_a_foreign_or_newer_layout_changes_nothing(
        self, any_server: AnyServer, clock: SetClock, kind: str
    ) -> None:
        client, key = any_server.client(), "ws:time_shard_queue:layout:letters"
        if kind == "text":
            client.set(key, "mine")
        else:
            client.hset(
                key,
                mapping={
                    "structure": "time_shard_queue" if kind == "newer" else "other",
                    "version": 2,
                    "readable_from": 2,
                    "writable_from": 2,
                    "time_shards": 6,
                    "period_ms": 60000,
                },
            )
        before = everything(any_server)
        queue = queue_on(any_server, clock)
        with pytest.raises(LayoutError, match="layout"):
            queue.put("hello")
        assert everything(any_server) == before

    @pytest.mark.parametrize(
        "part",
        ["mark", "waiting", "leased", "messages", "history", "consumed", "released", "dead"],
    )
    def test_a_foreign_key_in_a_parts_place_changes_nothing(
        self, any_server: AnyServer, clock: SetClock, part: str
    ) -> None:
        queue = queue_on(any_server, clock)
        queue.open()
        clock.go(-TURN)
        client = any_server.client()
        client.rpush(getattr(queue.time_shards.names(4), part), "mine")
        before = everything(any_server)
        calls = [
            (lambda: queue.put("x"), {"mark", "waiting", "messages"}),
            (lambda: queue.ack("4-ab"), {"mark", "messages", "consumed"}),
            (lambda: queue.release("4-ab"), {"mark", "history", "consumed", "dead", "released"}),
            (lambda: queue.take("c", drain_all=True), {part}),
            (queue.stats, {"mark", "waiting", "leased", "consumed", "released", "dead"}),
            (queue.dead, {"mark", "messages", "history", "consumed", "dead"}),
        ]
        for call, parts in calls:
            if part in parts:
                with pytest.raises(LayoutError, match=f"time_shard:{part}:4:letters"):
                    call()
                assert everything(any_server) == before


class TestAsyncio:
    @pytest.mark.every_store
    async def test_the_same_awaited(self, any_server: AnyServer, clock: SetClock) -> None:
        async with async_store_on(any_server) as store:
            queue = AsyncTimeShardQueue(store, "letters", 6, 60, clock=clock)
            assert isinstance(queue, AsyncTimeShardQueue)
            ids = [await queue.put(str(number), due=1000.0 + number) for number in range(5)]
            assert await queue.take("reader") is None
            clock.go(TURN)
            first = await queue.take("reader")
            assert first is not None
            assert first.id == ids[0]
            rest = await queue.take_many("reader", 9)
            assert [each.id for each in rest] == ids[1:]
            assert await queue.release(rest[0]) is True
            assert await queue.ack(first, rest[1]) == 2
            assert await queue.cancel(ids[3]) is True
            assert await queue.dead() == []
            counted = (1, 1, 4, 3, 0) if keeps_litter(any_server) else (1, 1, 1, 0, 0)
            assert (await queue.stats())[0][2:7] == counted
            assert await queue.revive("1-ab") == await queue.discard("1-ab") == 0
            drained = await queue.take("reader", drain_all=True)
            assert drained is not None
            assert drained.id == ids[1]
            with pytest.raises(ConfigurationError):
                await AsyncTimeShardQueue(store, "letters", 4, 60, clock=clock).open()
