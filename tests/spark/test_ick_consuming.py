"""Streams from a ShardedIck without a JVM: the reader is called in Spark's order, and killed.

`Run` is one run of a query: it calls the reader as Spark's micro-batch engine does, and stops
between any two calls; its `Checkpoint` outlives it, as Spark's does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import NoLease, ShardedIck
from workstealing.structures.sharded_ick import Leases

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from workstealing.spark.sources.ick import IckOptions, IckStreamReader
from workstealing.spark.sources.ick_stream import BEGINNING_SECONDS

MEMBERS = {f"member {i}": float(i) for i in range(100)}
MINUTE_MS = 60_000
Process = Callable[[str, Any], None]


class Checkpoint:
    """What Spark keeps of a query: the offsets of batches that were begun, and what is done."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.done = 0


class Clock:
    """How far the servers' clock is ahead, for all who take leases."""

    ahead_ms = 0


class Run:
    """One run of a query; `step` goes on to the next call, and returns what it was."""

    def __init__(
        self,
        url: str,
        checkpoint: Checkpoint,
        process: Process | None = None,
        *,
        see: Callable[[str], Any] = str,
        clock: Clock | None = None,
        limit: ReadLimit | None = None,
        available_now: bool = False,
        ick_shards: int | None = None,
        patience: int | None = None,
    ) -> None:
        options = {"name": "orders", "url": url}
        if patience:
            options["waitForLeaseSeconds"] = str(patience)
        if ick_shards:
            options["ickShards"] = str(ick_shards)
        self.reader = IckStreamReader(IckOptions.parse(options))
        self.checkpoint = checkpoint
        self.rows: list[str] = []
        self.see = see
        self.process: Process = process or (lambda row, _: self.rows.append(row))
        self.clock = clock or Clock()
        self.limit = limit or self.reader.getDefaultReadLimit()
        self.available_now = available_now
        self.batches = self.idle = 0
        # How long it has waited for, by the servers' clock, and others' doings meanwhile.
        self.slept = 0.0
        self.meanwhile: Callable[[], object] = str
        self._steps = self._run()

    def step(self) -> str | None:
        """Do what Spark does next; None when the query has ended."""
        consumer = self.reader._consuming()
        consumer._sleep = self._sleep
        consumer._sharded.core.clock_shift_ms = self.clock.ahead_ms
        return next(self._steps, None)

    def _sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.clock.ahead_ms += round(seconds * 1000)
        self.meanwhile()
        self.reader._consuming()._sharded.core.clock_shift_ms = self.clock.ahead_ms

    def until(self, wanted: str | None) -> None:
        """Go on until a step has been done."""
        while (done := self.step()) != wanted:
            assert done is not None or wanted is None

    def idle_twice(self) -> None:
        """Go on until there was nothing to read, two times in a row."""
        while self.idle < 2:
            assert self.step()

    def _run(self) -> Iterator[str]:
        log, reader = self.checkpoint, self.reader
        if self.available_now:
            reader.prepareForTriggerAvailableNow()
            yield "prepared"
        known = len(log.offsets)
        if known > log.done:
            start = log.offsets[-2] if known > 1 else json.dumps(reader.initialOffset())
            yield from self._batch(start, log.offsets[-1])
        while True:
            known = len(log.offsets)
            start = log.offsets[-1] if known else json.dumps(reader.initialOffset())
            end = json.dumps(reader.latestOffset(json.loads(start), self.limit))
            yield "latest"
            if known != len(log.offsets):
                # Spark's logs are written once: a run that was overtaken ends here.
                return
            if end == start:
                if self.available_now:
                    return
                self.idle += 1
                yield "idle"
                continue
            self.idle = 0
            log.offsets.append(end)
            yield "offset"
            if known:
                reader.commit(json.loads(start))
                yield "commit"
                # Spark may ask for it again.
                start = start if known else json.dumps(reader.initialOffset())
            yield from self._batch(start, end)

    def _batch(self, start: str, end: str) -> Iterator[str]:
        log = self.checkpoint
        number = len(log.offsets)
        partitions = self.reader.partitions(json.loads(start), json.loads(end))
        yield "partitions"
        rows: list[tuple[str, Any]] = []
        for partition in partitions:
            for batch in self.reader.read(partition):
                rows += [(row, self.see(row)) for row in batch.column(0).to_pylist()]
            yield "read"
        for row, seen in rows:
            self.process(row, seen)
        yield "sink"
        if number != len(log.offsets):
            return
        log.done = max(log.done, number)
        self.batches += 1
        yield "done"


def sharded_on(server: AnyServer, ick_shards: int | None = 3, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(server.client(), "orders", ick_shards, clock_shift_ms=ahead_ms)
    made.open()
    return made


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A single server, and a cluster."""
    made = request.getfixturevalue(request.param)
    yield made
    made.wipe()


STEPS = ["latest", "offset", "commit", "partitions", "read", "sink", "done"]


class TestRestarts:
    @pytest.mark.parametrize("last", STEPS)
    @pytest.mark.parametrize("batch", [1, 2])
    def test_a_run_that_dies_is_gone_on_with(
        self, server: RedisServer | RedisCluster3, last: str, batch: int
    ) -> None:
        sharded = sharded_on(server)
        sharded.add(MEMBERS)
        checkpoint, limit = Checkpoint(), ReadMaxRows(30)
        first = Run(server.url, checkpoint, limit=limit)
        for _ in range(batch):
            first.until(last)
        # Dead: it never gets to its next step.
        sharded.add({"member 3": 3.0, "late": 1.0})
        # Only leases whose name no checkpoint knows are waited for, and these are short.
        most = 1.0 if checkpoint.offsets else BEGINNING_SECONDS + 1
        second = Run(server.url, checkpoint, limit=limit)
        second.idle_twice()
        assert second.slept < most
        assert {*first.rows, *second.rows} == {*MEMBERS, "late"}
        assert "late" in second.rows
        assert "member 3" in second.rows
        assert sharded.stats()["total_size"] == 0
        # What its sink had finished did not come again, but for what was dirtied.
        if last == "done":
            assert {*first.rows} & {*second.rows} <= {"member 3"}

    def test_a_batch_that_is_run_again_is_the_same(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        checkpoint = Checkpoint()
        first = Run(redis7.url, checkpoint, limit=ReadMaxRows(30))
        first.until("sink")
        sharded.add({"lower than all": -1.0})
        second = Run(redis7.url, checkpoint, limit=ReadMaxRows(30))
        second.until("sink")
        assert second.rows == first.rows
        assert len(first.rows) == 30

    def test_a_zombie_is_fenced_by_its_successor(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        checkpoint = Checkpoint()
        zombie = Run(redis7.url, checkpoint, limit=ReadMaxRows(30))
        zombie.until("sink")
        second = Run(redis7.url, checkpoint, limit=ReadMaxRows(30))
        second.until("done")
        second.until("offset")
        zombie.checkpoint = Checkpoint()
        zombie.checkpoint.offsets = checkpoint.offsets[:1]
        with pytest.raises(NoLease, match=r"another run of this query .* has taken over"):
            zombie.idle_twice()
        before = sharded.stats()
        second.idle_twice()
        assert before["cset_size"] == 30
        assert sorted({*second.rows}) == sorted(MEMBERS)
        assert sharded.stats()["total_size"] == 0

    def test_a_query_that_read_nothing_does_not_stand_in_its_own_way(
        self, redis7: RedisServer
    ) -> None:
        sharded = sharded_on(redis7)
        checkpoint = Checkpoint()
        Run(redis7.url, checkpoint).idle_twice()
        assert {each["lease_ms"] for each in sharded.stats()["shards"]} == {0}
        sharded.add(MEMBERS)
        second = Run(redis7.url, checkpoint)
        second.idle_twice()
        assert sorted(second.rows) == sorted(MEMBERS)

    def test_a_fault_in_the_first_batch_leaves_no_lease(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint())
        with monkeypatch.context() as patch:
            patch.setattr(
                "workstealing.structures.sharded_ick.leasing.Leases.reserve", _connection_lost
            )
            with pytest.raises(redis.ConnectionError):
                run.step()
        assert {each["lease_ms"] for each in sharded.stats()["shards"]} == {0}
        Run(redis7.url, Checkpoint()).idle_twice()

    def test_a_commit_is_quiet_about_faults_and_redone(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint())
        run.until("done")
        offset = json.loads(run.checkpoint.offsets[-1])
        with monkeypatch.context() as patch:
            patch.setattr(
                "workstealing.structures.sharded_ick.leasing.Leases.ack_all", _connection_lost
            )
            run.reader.commit(offset)
        assert sharded.stats()["cset_size"] == 100
        run.reader.commit(offset)
        assert sharded.stats()["cset_size"] == 0
        # A reader that has begun nothing has nothing to commit.
        IckStreamReader(IckOptions.parse({"name": "orders"})).commit(offset)


def _connection_lost(*_: object, **__: object) -> None:
    raise redis.ConnectionError("lost")


class TestLeases:
    def test_two_queries(self, server: RedisServer | RedisCluster3) -> None:
        sharded = sharded_on(server)
        sharded.add(MEMBERS)
        clock = Clock()
        first = Run(server.url, Checkpoint(), clock=clock)
        first.until("partitions")
        second = Run(server.url, Checkpoint(), clock=clock)
        with pytest.raises(NoLease, match=r"'orders' is being read by another consumer, 'spark qu"):
            second.step()
        first.idle_twice()
        # With nothing to read, too.
        third = Run(server.url, Checkpoint(), clock=clock)
        with pytest.raises(NoLease, match=r"last for another \d+ s, and longer while it runs"):
            third.step()
        sharded.add({"one more": 1.0})
        clock.ahead_ms += 2 * MINUTE_MS
        fourth = Run(server.url, Checkpoint(), clock=clock)
        fourth.idle_twice()
        assert fourth.rows == ["one more"]
        # The first one has lost its leases meanwhile, to another one.
        first.idle = 0
        with pytest.raises(
            NoLease, match=r"is being read by another consumer.*waitForLeaseSeconds"
        ):
            first.idle_twice()

    def test_a_second_query_waits_for_one_that_begins_and_then_fails(
        self, redis7: RedisServer
    ) -> None:
        sharded_on(redis7).add(MEMBERS)
        clock = Clock()
        first = Run(redis7.url, Checkpoint(), clock=clock)
        first.until("latest")
        second = Run(redis7.url, Checkpoint(), clock=clock)
        second.meanwhile = first.step
        with pytest.raises(NoLease, match=r"'orders' is being read by another consumer, 'spark qu"):
            second.step()
        assert 0 < second.slept < BEGINNING_SECONDS
        # It did no harm to the first one.
        first.idle_twice()
        assert sorted(first.rows) == sorted(MEMBERS)
        # One that begins when nothing is there waits, too.
        third = Run(redis7.url, Checkpoint(), clock=clock)
        with pytest.raises(NoLease, match="is being read by another consumer"):
            third.step()

    def test_short_leases_that_are_renewed_are_not_waited_for_without_end(
        self, redis7: RedisServer
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        with sharded.lease("worker 7", lease=5) as ick:
            second = Run(redis7.url, Checkpoint())

            def go_on() -> None:
                sharded.core.clock_shift_ms = second.clock.ahead_ms
                ick.extend()

            second.meanwhile = go_on
            with pytest.raises(NoLease, match="another consumer, 'worker 7'"):
                second.step()
        assert second.slept <= BEGINNING_SECONDS + 1

    @pytest.mark.slow
    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_query_with_patience_waits_for_long_leases(
        self, redis7: RedisServer, available_now: bool
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        sharded.lease_all("worker 7", 600)
        second = Run(redis7.url, Checkpoint(), patience=1200, available_now=available_now)
        while len(second.rows) < len(MEMBERS):
            assert second.step()
        assert sorted(second.rows) == sorted(MEMBERS)
        # Moments pass by themselves on a busy machine.
        assert 300 < second.slept <= 602

    def test_a_query_of_one_batch_waits_in_one_piece(self, redis7: RedisServer) -> None:
        """With once=True an empty batch would be its end, as if nothing had been there."""
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        sharded.lease_all("worker 6", 30)
        run = Run(redis7.url, Checkpoint(), patience=1200, limit=ReadAllAvailable())
        assert [run.step(), run.step()] == ["latest", "offset"]
        assert 15 < run.slept <= 32
        run.until("done")
        assert sorted(run.rows) == sorted(MEMBERS)

    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_query_that_has_waited_for_long_enough_fails(
        self, redis7: RedisServer, available_now: bool
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        leased = sharded.lease_all("worker 8", 36_000)
        third = Run(redis7.url, Checkpoint(), patience=100, available_now=available_now)
        with pytest.raises(NoLease, match="another consumer, 'worker 8'"):
            third.until("offset")
        assert 100 <= third.slept <= 102
        assert not leased.release(), "some lease was lost"

    def test_a_waiting_query_can_be_asked_again_and_again(self, redis7: RedisServer) -> None:
        """Spark can stop it between two empty batches."""
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        leased = sharded.lease_all("worker 9", 36_000)
        run = Run(redis7.url, Checkpoint(), patience=7200)
        for _ in range(20):
            slept = run.slept
            run.until("idle")
            assert run.slept <= slept + 2
        leased.release()
        while len(run.rows) < len(MEMBERS):
            assert run.step()
        assert run.slept < 60

    def test_one_of_two_that_wait_for_a_lease_waits_on(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), patience=1200)
        take, others = ShardedIck.lease_all, []

        def late(self: ShardedIck, *args: Any, **options: Any) -> Any:
            if not others:
                # Another one has come between the look and this.
                others.append(take(sharded, "spark query other", 600))
            return take(self, *args, **options)

        monkeypatch.setattr(ShardedIck, "lease_all", late)
        while len(run.rows) < len(MEMBERS):
            assert run.step()
        assert others
        assert 300 < run.slept <= 602

    @pytest.mark.parametrize("available_now", [False, True])
    def test_one_that_always_comes_late_has_waited_for_long_enough_at_last(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, available_now: bool
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), patience=40, available_now=available_now)
        take, others = ShardedIck.lease_all, []

        def late(self: ShardedIck, *args: Any, **options: Any) -> Any:
            assert len(others) < 9, "it waits without end"
            sharded.core.clock_shift_ms = run.clock.ahead_ms
            others.append(take(sharded, f"worker {len(others)}", 25))
            return take(self, *args, **options)

        monkeypatch.setattr(ShardedIck, "lease_all", late)
        with pytest.raises(NoLease, match="another consumer, 'worker 1'"):
            run.until("offset")
        assert 40 <= run.slept <= 42

    def test_a_query_that_begins_holds_its_leases_for_long_only_when_its_checkpoint_knows_it(
        self, server: RedisServer | RedisCluster3
    ) -> None:
        sharded = sharded_on(server)
        sharded.add(MEMBERS)

        def are_short() -> set[bool]:
            return {each["lease_ms"] <= 10_000 for each in sharded.stats()["shards"]}

        run = Run(server.url, Checkpoint())
        run.until("offset")
        assert are_short() == {True}
        run.until("partitions")
        assert are_short() == {False}

    def test_leases_that_could_not_be_prolonged_are_prolonged_by_the_next_batch(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), limit=ReadMaxRows(60))
        run.until("offset")
        with monkeypatch.context() as patch:
            patch.setattr(ShardedIck, "lease_all", _connection_lost)
            # The batch goes on without.
            run.until("done")
        run.until("done")
        assert sorted(run.rows) == sorted(MEMBERS)
        assert min(each["lease_ms"] for each in sharded.stats()["shards"]) > 10_000

    def test_one_ick_shard_that_somebody_consumes(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        with sharded.lease("worker 7", lease=3600):
            with pytest.raises(NoLease, match="another consumer, 'worker 7'"):
                Run(redis7.url, Checkpoint()).step()
            sharded.add(MEMBERS)
            with pytest.raises(NoLease, match="another consumer, 'worker 7'"):
                Run(redis7.url, Checkpoint()).step()

    def test_a_batch_longer_than_the_lease(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), limit=ReadMaxRows(60))
        run.until("read")
        run.clock.ahead_ms += 5 * MINUTE_MS
        run.idle_twice()
        # Nobody came in between, so nothing came twice.
        assert sorted(run.rows) == sorted(MEMBERS)
        assert sharded.stats()["total_size"] == 0

    def test_leases_are_renewed_while_there_is_nothing_to_read(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint())
        run.idle_twice()
        tokens = [each.lease_token for each in run.reader._consuming()._leases or ()]
        for _ in range(10):
            run.clock.ahead_ms += MINUTE_MS * 2 // 3
            run.step()
            run.step()
        assert [each.lease_token for each in run.reader._consuming()._leases or ()] == tokens

    def test_somebody_else_has_had_the_batch_meanwhile(
        self, redis7: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint())
        run.until("partitions")
        run.clock.ahead_ms += 2 * MINUTE_MS
        other = sharded_on(redis7, ahead_ms=run.clock.ahead_ms)
        with other.lease("worker 7", lease=3600) as ick:
            taken = ick.reserve(1000)
        with caplog.at_level(logging.WARNING, "workstealing.spark"):
            run.until("done")
        # It is passed over, said once, and comes again, since that one has committed nothing.
        assert sorted(run.rows) == sorted(set(MEMBERS) - {m.decode() for m in taken.members})
        assert [text.count("does not hold any more") for text in caplog.messages] == [1]
        run.idle_twice()
        assert sorted(run.rows) == sorted(MEMBERS)
        assert sharded.stats()["total_size"] == 0


class TestLimits:
    def test_batches_are_as_large_as_was_asked_for(self, redis7: RedisServer) -> None:
        sharded_on(redis7).add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), limit=ReadMaxRows(30))
        for count in (30, 60, 90, 100):
            run.until("done")
            assert len(run.rows) == count

    def test_the_backlog_is_known_after_each_look(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), limit=ReadMaxRows(30))
        assert run.reader.reportLatestOffset() is None
        run.until("latest")
        assert run.reader.reportLatestOffset() == {"membersInBatch": 30, "membersBehind": 70}
        sharded.add({f"more {i}": float(i) for i in range(7)})
        run.until("done")
        run.until("latest")
        assert run.reader.reportLatestOffset() == {"membersInBatch": 30, "membersBehind": 47}
        run.idle_twice()
        assert run.reader.reportLatestOffset() == {"membersInBatch": 0, "membersBehind": 0}

    def test_all_that_there_is(self, redis7: RedisServer) -> None:
        sharded_on(redis7).add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), limit=ReadAllAvailable())
        run.until("done")
        assert len(run.rows) == 100

    @pytest.mark.parametrize("available_now", [False, True])
    def test_no_script_reserves_without_bound(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, available_now: bool
    ) -> None:
        # A million of one ick shard took the server longer than its clients wait, every time again.
        monkeypatch.setattr("workstealing.spark.sources.ick_stream.MOST_OF_A_SHARD", 10)
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        run = Run(redis7.url, Checkpoint(), limit=ReadAllAvailable(), available_now=available_now)
        run.until("done")
        assert len(run.rows) == 30
        run.until(None) if available_now else run.idle_twice()
        assert sorted(run.rows) == sorted(MEMBERS)
        assert sharded.stats()["total_size"] == 0

    def test_the_default(self, redis7: RedisServer) -> None:
        options = {"name": "orders", "maxMembersPerTrigger": "70"}
        reader = IckStreamReader(IckOptions.parse(options))
        assert reader.getDefaultReadLimit() == ReadMaxRows(70)
        assert reader.initialOffset() == reader.initialOffset()

    def test_redis_is_not_asked_a_hundred_times_a_second(self, redis7: RedisServer) -> None:
        sharded_on(redis7)
        run = Run(redis7.url, Checkpoint())
        run.step()
        consumer = run.reader._consuming()
        slept: list[float] = []
        consumer._sleep = slept.append
        start = run.reader.initialOffset()
        assert run.reader.latestOffset(start, ReadMaxRows(5)) is start
        assert len(slept) == 1
        assert 0 < slept[0] <= 0.1


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_that_decodes_may_read_members_that_are_no_text(
    redis7: RedisServer, protocol: int
) -> None:
    sharded = sharded_on(redis7)
    sharded.add([b"\xff\xfe", b"text"])
    run = Run(f"{redis7.url}?protocol={protocol}&decode_responses=True", Checkpoint())
    run.reader = IckStreamReader(replace(run.reader._options, members="binary"))
    run.idle_twice()
    assert {*run.rows} == {b"\xff\xfe", b"text"}
    assert sharded.stats()["total_size"] == 0


class TestAvailableNow:
    def test_it_ends_with_nothing_held(self, server: RedisServer | RedisCluster3) -> None:
        sharded = sharded_on(server)
        sharded.add(MEMBERS)
        checkpoint = Checkpoint()
        run = Run(server.url, checkpoint, available_now=True, limit=ReadMaxRows(30))
        more = iter(range(10_000))
        while (done := run.step()) is not None:
            if done != "prepared":
                sharded.add(str(next(more)))
        assert len(run.rows) == 100
        stats = sharded.stats()
        assert stats["cset_size"] == 0
        assert {each["lease_ms"] for each in stats["shards"]} == {0}
        assert stats["pset_size"] + 100 == 100 + next(more) + 0
        # The next run reads the rest, and another query may, too.
        rest = Run(server.url, Checkpoint(), available_now=True)
        rest.until(None)
        assert sharded.stats()["total_size"] == 0
        again = Run(server.url, checkpoint, available_now=True)
        again.until(None)
        assert again.rows == []

    @pytest.mark.parametrize("last", STEPS)
    def test_a_run_that_died_is_finished_by_the_next(self, redis7: RedisServer, last: str) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        checkpoint = Checkpoint()
        first = Run(redis7.url, checkpoint, available_now=True, limit=ReadMaxRows(30))
        first.until(last)
        first.until(last)
        second = Run(redis7.url, checkpoint, available_now=True, limit=ReadMaxRows(30))
        second.until(None)
        assert {*first.rows, *second.rows} == {*MEMBERS}
        stats = sharded.stats()
        assert stats["total_size"] == 0
        assert {each["lease_ms"] for each in stats["shards"]} == {0}

    @pytest.mark.parametrize("script", ["reserve", "ack_all"])
    def test_leases_that_run_out_in_the_midst_are_no_end(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, script: str
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        times, call = 1, getattr(Leases, script)

        def late(leases: Leases, wanted: Any) -> Any:
            nonlocal times
            if wanted and times:
                times -= 1
                for shard in range(3):
                    redis7.client().hset(sharded.core.names(shard).lease, "deadline", 1)
            return call(leases, wanted)

        monkeypatch.setattr(Leases, script, late)
        run = Run(redis7.url, Checkpoint(), available_now=True)
        run.until(None)
        assert sorted(run.rows) == sorted(MEMBERS)
        assert sharded.stats()["total_size"] == 0
        # Who is never given the time to do anything says so.
        sharded.add(MEMBERS)
        times = 100
        with pytest.raises(NoLease, match=r"ran out .*'leaseSeconds'"):
            Run(redis7.url, Checkpoint(), available_now=True).until(None)
        assert sharded.stats()["total_size"] == 100

    def test_a_release_that_answers_nothing_is_no_end_either(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        left, reserve, release = ["late", "cut"], Leases.reserve, Leases.release

        def late(leases: Leases, wanted: Any) -> Any:
            if wanted and "late" in left:
                left.remove("late")
                for shard in range(3):
                    redis7.client().hset(sharded.core.names(shard).lease, "deadline", 1)
            return reserve(leases, wanted)

        def cut(leases: Leases) -> Any:
            found = release(leases)
            if "cut" in left:
                left.remove("cut")
                raise redis.ConnectionError("cut")
            return found

        monkeypatch.setattr(Leases, "reserve", late)
        monkeypatch.setattr(Leases, "release", cut)
        run = Run(redis7.url, Checkpoint(), available_now=True)
        run.until(None)
        assert left == []
        assert sorted(run.rows) == sorted(MEMBERS)

    def test_an_empty_one(self, redis7: RedisServer) -> None:
        run = Run(redis7.url, Checkpoint(), available_now=True, ick_shards=2)
        run.until(None)
        assert run.rows == []
        assert ShardedIck(redis7.client(), "orders").open() == 2


class TestResize:
    @pytest.mark.parametrize("ick_shards", [2, 5])
    @pytest.mark.parametrize("last", ["idle", "offset", "read", "done"])
    def test_a_query_makes_way_and_goes_on(
        self, server: RedisServer | RedisCluster3, last: str, ick_shards: int
    ) -> None:
        sharded = sharded_on(server)
        sharded.add(MEMBERS)
        run = Run(server.url, Checkpoint(), limit=ReadMaxRows(60))
        run.until(last)
        other: ShardedIck = ShardedIck(server.client(), "orders")
        resized = other.resize(ick_shards, limit=20)
        assert (resized.leased, resized.done) == (3, False)
        rounds = 0
        while not other.resize(ick_shards, limit=20).done:
            run.step()
            rounds += 1
            assert rounds < 50
        sharded.add({"late": 1.0})
        run.idle = 0
        run.idle_twice()
        assert {*run.rows} == {*MEMBERS, "late"}
        # What it had in hand was finished before it made way.
        assert len(run.rows) == 101
        stats = sharded_on(server, None).stats()
        assert (stats["total_size"], stats["ick_shards"]) == (0, ick_shards)

    def test_a_restart_in_between(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        checkpoint, clock = Checkpoint(), Clock()
        Run(redis7.url, checkpoint, clock=clock).until("done")
        other: ShardedIck = ShardedIck(redis7.client(), "orders", clock_shift_ms=2 * MINUTE_MS)
        clock.ahead_ms = 2 * MINUTE_MS
        assert not other.resize(5, limit=10).done
        second = Run(redis7.url, checkpoint, clock=clock)
        second.idle_twice()
        while not other.resize(5).done:
            pass
        second.idle = 0
        second.idle_twice()
        # Its reservation was lost, so what it had read came again.
        assert sorted(second.rows) == sorted(MEMBERS)
        assert sharded_on(redis7, None).stats()["total_size"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("available_now", [False, True])
def test_a_driver_killed_before_and_after_each_of_its_commands(
    redis7: RedisServer, tmp_path: Path, available_now: bool
) -> None:
    log, seen = tmp_path / "log", tmp_path / "seen"
    with FaultyServer(redis7.port) as door:
        url = f"redis://127.0.0.1:{door.port}/0?protocol=2"

        def prepare() -> None:
            redis7.client().flushall()
            sharded_on(redis7).add({f"member {i}": float(i) for i in range(12)})
            log.write_text('{"offsets": [], "done": 0}')
            seen.write_text("")

        def work() -> None:
            # A file is as good as Spark's: it is written between two commands.
            with seen.open("a", 1) as rows:
                run = Run(
                    *(url, Checkpoint(), lambda row, _: print(row, file=rows)),
                    limit=ReadMaxRows(7),
                    available_now=available_now,
                )
                while run.idle < 1 and run.step():
                    log.write_text(json.dumps(vars(run.checkpoint)))

        for death in every_death([door], work, prepare):
            checkpoint = Checkpoint()
            vars(checkpoint).update(json.loads(log.read_text()))
            sharded = sharded_on(redis7)
            sharded.add("late")
            run = Run(redis7.url, checkpoint, available_now=True)
            run.until(None)
            read = seen.read_text().splitlines()
            assert {*read, *run.rows} == {f"member {i}" for i in range(12)} | {"late"}, death
            stats = sharded.stats()
            assert stats["total_size"] == 0, death


class Anything(RuleBasedStateMachine):
    """Whatever happens to two queries, their successors and others: nothing is lost."""

    server: RedisServer

    @initialize()
    def begin(self) -> None:
        self.server.wipe()
        self.clock = Clock()
        self.dirty: set[str] = set()
        self.versions: dict[str, int] = {}
        self.checkpoints = [Checkpoint(), Checkpoint()]
        self.runs: list[Run | None] = [None, None]
        self.sharded = sharded_on(self.server)
        self.target = 3
        self.last: str | None = None

    def _shifted(self) -> ShardedIck:
        self.sharded.core.clock_shift_ms = self.clock.ahead_ms
        return self.sharded

    def _processed(self, member: str, seen: int) -> None:
        # As it was when it was read: what was dirtied since must come again.
        if self.versions[member] == seen:
            self.dirty.discard(member)

    def _started(self, query: int) -> Run:
        return Run(
            self.server.url,
            self.checkpoints[query],
            self._processed,
            see=self.versions.__getitem__,
            clock=self.clock,
            limit=ReadMaxRows(4),
        )

    @rule(members=st.sets(st.integers(0, 30), min_size=1, max_size=8))
    def add(self, members: set[int]) -> None:
        names = {f"member {i}": float(i) for i in members}
        for name in names:
            self.versions[name] = self.versions.get(name, 0) + 1
        self.dirty |= set(names)
        self._shifted().add(names)

    @rule(query=st.integers(0, 1), steps=st.integers(1, 9))
    def go_on(self, query: int, steps: int) -> None:
        for _ in range(steps):
            run = self.runs[query] or self._started(query)
            self.runs[query] = run
            try:
                self.last = done = run.step()
            except NoLease:
                # The query has failed, and is started again later.
                self.runs[query] = None
                return
            if done is None:
                self.runs[query] = None
            if done == "idle":
                return

    @rule(
        query=st.integers(0, 1),
        last=st.sampled_from(STEPS),
        seconds=st.sampled_from([0, 70]),
        members=st.sets(st.integers(0, 30), min_size=5),
        dies=st.booleans(),
    )
    def be_slow(self, query: int, last: str, seconds: int, members: set[int], dies: bool) -> None:
        """Let a batch take longer than the leases, and let somebody come in between."""
        self.add(members)
        for _ in range(30):
            self.go_on(query, 1)
            if self.runs[query] is None or self.last == last:
                break
        self.wait(seconds)
        for _ in range(3):
            self.somebody_consumes(commits=False)
        if dies:
            self.kill(query)

    @rule(query=st.integers(0, 1))
    def kill(self, query: int) -> None:
        self.runs[query] = None

    @rule(seconds=st.sampled_from([10, 40, 70]))
    def wait(self, seconds: int) -> None:
        self.clock.ahead_ms += seconds * 1000

    @rule(commits=st.booleans())
    def somebody_consumes(self, commits: bool) -> None:
        try:
            with self._shifted().lease("worker 7", lease=5) as ick:
                batch = ick.reserve(8)
                if commits and ick.ack(*batch.members) == len(batch):
                    self.dirty -= {member.decode() for member in batch.members}
        except NoLease:
            pass

    @rule()
    def reap(self) -> None:
        IckReaper(self._shifted(), lease=0.001, limit=5, max_attempts=10_000).perform(Slice(5, 5.0))

    @rule(ick_shards=st.integers(1, 5))
    def resize(self, ick_shards: int) -> None:
        sharded = self._shifted()
        layout = sharded.core.layout
        if layout is not None and not layout.moving_from:
            self.target = ick_shards
        sharded.resize(self.target, limit=3)

    @invariant()
    def what_is_dirty_is_there(self) -> None:
        if not hasattr(self, "sharded"):
            return
        client, core = self.server.client(decode_responses=True), self.sharded.core
        there: set[str] = set()
        for shard in range(5):
            names = core.names(shard)
            for key in (names.pset, names.cset, names.moving):
                there.update(client.zrange(key, 0, -1))
        assert self.dirty <= there
        client.close()

    def teardown(self) -> None:
        if not hasattr(self, "sharded"):
            return
        self.runs = [None, None]
        self.clock.ahead_ms += 10 * MINUTE_MS
        sharded = self._shifted()
        while not sharded.resize(self.target).done:
            pass
        last = self._started(0)
        last.idle_twice()
        # The other one's last batch is its own to finish, once the leases are free.
        assert self.dirty == set()
        assert sharded.stats()["total_size"] == 0


@pytest.mark.slow
def test_anything(redis7: RedisServer) -> None:
    class OnThis(Anything):
        server = redis7

    run_state_machine_as_test(OnThis, settings=settings(max_examples=30, stateful_step_count=40))
