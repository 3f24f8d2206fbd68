"""Small batches wait for more, in the words of Kafka's source: options, and both streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.structures import ShardedIck

pytest.importorskip("pyspark")

from workstealing.spark.sources.batches import Admission, Minimum
from workstealing.spark.sources.ick import IckOptions
from workstealing.spark.sources.ick_stream import IckConsumer, IckOffset
from workstealing.spark.sources.log_offsets import LogLook, LogOffset, LogPlanner
from workstealing.spark.sources.log_options import LogOptions

FIVE_OR_A_MINUTE = Minimum(5, 60.0)


class Time:
    """A clock to set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Iterator[Time]:
    return Time()


class TestOptions:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("90", 90), ("250ms", 0.25), ("30s", 30), ("2 m", 120), ("1.5h", 5400)],
    )
    def test_the_delay(self, text: str, seconds: float) -> None:
        given = {"minMembersPerTrigger": "5", "maxTriggerDelay": text}
        assert IckOptions.parse({"name": "a", **given}).minimum == Minimum(5, seconds)

    def test_defaults(self) -> None:
        assert IckOptions.parse({"name": "a"}).minimum is None
        assert LogOptions.parse({"logs": "a"}).minimum is None
        found = LogOptions.parse({"logs": "a", "minOffsetsPerTrigger": "5"}).minimum
        assert found == Minimum(5, 900)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"maxTriggerDelay": "5m"}, "does not say which is small"),
            ({"minOffsetsPerTrigger": "0"}, "'minOffsetsPerTrigger' is '0'"),
            ({"minOffsetsPerTrigger": "100001"}, "is 100,001, but a batch has 100,000 at most"),
            ({"minOffsetsPerTrigger": "7", "maxOffsetsPerTrigger": "6"}, "is 7, but a batch has 6"),
            ({"minOffsetsPerTrigger": "7", "maxTriggerDelay": "soon"}, "such as 30s, 15m or 1h"),
            ({"minOffsetsPerTrigger": "7", "maxTriggerDelay": "0s"}, "a time above 0"),
        ],
    )
    def test_what_is_wrong_is_said(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            LogOptions.parse({"logs": "a", **options})

    def test_they_are_for_streams(self) -> None:
        log = LogOptions.parse({"logs": "a", "minOffsetsPerTrigger": "7"})
        with pytest.raises(ConfigurationError, match="'minOffsetsPerTrigger' is for readStream"):
            log.for_reading(is_stream=False)
        assert log.for_reading(is_stream=True) is log
        with pytest.raises(ConfigurationError, match="'minOffsetsPerTrigger' is for reading"):
            log.for_writing(is_stream=True, has_log_column=False)
        with pytest.raises(
            ConfigurationError, match="'minMembersPerTrigger' belongs to readStream"
        ):
            IckOptions.parse({"name": "a", "minMembersPerTrigger": "7"}).refuse_stream_options("x")


def test_a_small_batch_waits_but_for_the_first_one_and_not_for_ever(time: Time) -> None:
    admission = Admission(FIVE_OR_A_MINUTE, time)
    assert [admission.holds_back(count) for count in (0, 1, 1, 4, 5, 4)] == [
        *(False, False, True, True, False, True)
    ]
    time.now += 59
    assert admission.holds_back(4)
    time.now += 1
    assert not admission.holds_back(4)
    assert admission.holds_back(4)
    assert not any(Admission(None, time).holds_back(count) for count in range(9))


class TestLog:
    def planner(self, time: Time, ends: dict[str, int], **options: str) -> LogPlanner:
        parsed = LogOptions.parse({"logs": "a,b", **options})
        made = LogPlanner(
            replace(parsed, minimum=FIVE_OR_A_MINUTE),
            lambda names: {name: LogLook("epoch", 0, ends[name], 10) for name in names},
            lambda _: None,
        )
        made._admission = Admission(FIVE_OR_A_MINUTE, time)
        return made

    def test_it_waits(self, time: Time) -> None:
        ends = {"a": 2, "b": 0}
        planner = self.planner(time, ends)
        first = planner.latest(LogOffset(4), 100)
        assert first.places["a"].next == 2
        ends.update(a=4, b=2)
        assert planner.latest(first, 100) is first
        assert planner.seen() == {"logs": {"a": 4, "b": 2}, "offsetsBehindLatest": 4}
        ends.update(b=3)
        second = planner.latest(first, 100)
        assert {log: each.next for log, each in second.places.items()} == {"a": 4, "b": 3}
        ends.update(b=4)
        assert planner.latest(second, 100) is second
        time.now += 60
        third = planner.latest(second, 100)
        assert third.places["b"].next == 4
        # Trigger.Once asks for all that there is.
        ends.update(b=5)
        assert planner.latest(third, None).places["b"].next == 5

    def test_available_now_does_not(self, time: Time) -> None:
        ends = {"a": 2, "b": 0}
        planner = self.planner(time, ends)
        planner.prepare_available_now()
        offset = planner.latest(LogOffset(4), 1)
        offset = planner.latest(offset, 1)
        assert offset.places["a"].next == 2
        assert planner.latest(offset, 1) is offset


def test_an_ick_waits_and_acknowledges_meanwhile(time: Time, redis7: RedisServer) -> None:
    sharded: ShardedIck = ShardedIck(redis7.client(), "orders", 2)
    sharded.add({f"member {number}": 1.0 for number in range(3)})

    def consumer() -> IckConsumer:
        admission = Admission(FIVE_OR_A_MINUTE, time)
        return IckConsumer(ShardedIck(redis7.client(), "orders"), 60.0, admission, lambda _: None)

    def stats(name: str) -> Any:
        return sharded.stats()[name]

    reader = consumer()
    first = reader.latest(IckOffset.new(), 100)
    assert first.seq == 1
    sharded.add({f"later {number}": 1.0 for number in range(4)})
    # What was read is done with, although nothing new is reserved.
    assert reader.latest(first, 100) is first
    assert (stats("cset_size"), stats("total_size")) == (0, 4)
    assert reader.seen() == {"membersInBatch": 0, "membersBehind": 4}
    assert reader.latest(first, 100) is first
    sharded.add({"the fifth": 1.0})
    second = reader.latest(first, 100)
    assert stats("cset_size") == 5
    sharded.add({"one more": 1.0})
    assert reader.latest(second, 100) is second
    time.now += 60
    third = reader.latest(second, 100)
    assert (third.seq, stats("cset_size")) == (3, 1)
    # Another run waits for nothing at its beginning, nor does one that asks for all.
    sharded.add({"and one more": 1.0})
    assert consumer().latest(third, 100).seq == 4


def test_available_now_waits_for_nothing(time: Time, redis7: RedisServer) -> None:
    sharded: ShardedIck = ShardedIck(redis7.client(), "orders", 1)
    sharded.add({f"member {number}": 1.0 for number in range(3)})
    reader = IckConsumer(sharded, 60.0, Admission(FIVE_OR_A_MINUTE, time), lambda _: None)
    reader.prepare_available_now()
    offset = IckOffset.new()
    for number in range(1, 4):
        offset = reader.latest(offset, 1)
        assert offset.seq == number
    assert reader.latest(offset, 1) is offset
    assert sharded.stats()["total_size"] == 0
