"""What a batch of ``format("workstealing.log")`` reads, and how tasks are cut; without a server."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstealing.errors import ConfigurationError, LostEntriesError
from workstealing.spark.sources.log_offsets import (
    LogLook,
    LogOffset,
    LogPlanner,
    Place,
    Span,
    batch_offset,
    cut,
    planned,
)
from workstealing.spark.sources.log_options import EARLIEST, LATEST, LogOptions
from workstealing.spark.sources.options import Positions

EPOCH = "0000000000000001"
NEXT_EPOCH = "0000000000000002"


def look(first: int = 0, next_: int = 100, epoch: str = EPOCH, block: int = 10) -> LogLook:
    return LogLook(epoch, first, next_, block)


def ranges(offset: LogOffset) -> dict[str, tuple[int, int]]:
    return {log: (place.start, place.next) for log, place in offset.places.items()}


def after(next_: int, epoch: str = EPOCH) -> LogOffset:
    return LogOffset(4, {"a": Place(epoch, 0, next_, 10)})


class TestOffsets:
    def test_they_go_through_json(self) -> None:
        offset = LogOffset(3, {"b": Place(EPOCH, 5, 17, 10), "a": Place("", 0, 0, 1)})
        text = json.dumps(offset.as_dict())
        assert LogOffset.parse(json.loads(text)) == offset
        assert json.dumps(LogOffset.parse(json.loads(text)).as_dict()) == text

    @pytest.mark.parametrize(
        "found", [{}, [], {"tasks": 1}, {"tasks": 1, "logs": {"a": 5}}, {"tasks": "x", "logs": {}}]
    )
    def test_foreign_ones_are_refused(self, found: object) -> None:
        with pytest.raises(ConfigurationError, match="checkpoint of its own"):
            LogOffset.parse(found)  # type: ignore[arg-type]


class TestPlanning:
    @pytest.mark.parametrize(
        ("position", "start"),
        [("earliest", 7), ("latest", 100), (50, 50), (-3, 97), (-99, 7), (100, 100)],
    )
    def test_where_a_query_begins(self, position: int | str, start: int) -> None:
        end, losses = planned(LogOffset(4), {"a": look(7)}, Positions(position), None, 4)
        assert (ranges(end), losses) == ({"a": (start, 100)}, [])
        assert end.places["a"].epoch == EPOCH

    def test_an_entry_that_is_to_come_is_waited_for(self) -> None:
        end, losses = planned(LogOffset(4), {"a": look()}, Positions(120), None, 4)
        assert (ranges(end), losses) == ({"a": (120, 120)}, [])
        assert planned(end, {"a": look(0, 110)}, LATEST, None, 4) == (end, [])
        end, losses = planned(end, {"a": look(0, 130)}, LATEST, None, 4)
        assert (ranges(end), losses) == ({"a": (120, 130)}, [])

    def test_batches_follow_each_other_within_the_limit(self) -> None:
        offset, looks = LogOffset(4), {"a": look(), "b": look(0, 5)}
        seen = []
        while True:
            end, _ = planned(offset, looks, EARLIEST, 30, 4)
            if end is offset:
                break
            seen.append(ranges(end))
            offset = end
        assert seen == [
            {"a": (0, 25), "b": (0, 5)},
            {"a": (25, 55), "b": (5, 5)},
            {"a": (55, 85), "b": (5, 5)},
            {"a": (85, 100), "b": (5, 5)},
        ]

    def test_each_of_many_logs_has_its_turn(self) -> None:
        looks = {f"log {i}": look() for i in range(7)}
        offset, touched = LogOffset(4), set()
        for _ in range(4):
            end, _ = planned(offset, looks, EARLIEST, 2, 4)
            touched |= {log for log, place in end.places.items() if place.next > place.start}
            offset = end
        assert touched == set(looks)

    def test_a_log_that_comes_later(self) -> None:
        offset, _ = planned(LogOffset(4), {"a": look(), "b": LogLook()}, LATEST, None, 4)
        assert ranges(offset) == {"a": (100, 100), "b": (0, 0)}
        offset, losses = planned(offset, {"a": look(), "b": look(0, 5)}, LATEST, None, 4)
        assert (ranges(offset), losses) == ({"a": (100, 100), "b": (0, 5)}, [])
        # A log that is new to the query begins where the query's options say now.
        offset, _ = planned(offset, {"a": look(), "c": look()}, Positions(90), None, 4)
        assert ranges(offset) == {"a": (100, 100), "b": (5, 5), "c": (90, 100)}
        # One that it did not read for a while goes on.
        offset, _ = planned(offset, {"b": look(0, 9)}, LATEST, None, 4)
        assert ranges(offset) == {"a": (100, 100), "b": (5, 9), "c": (100, 100)}

    def test_an_end_that_was_noted(self) -> None:
        ends = {"a": (EPOCH, 40), "b": ("", 0)}
        looks = {"a": look(), "b": look()}
        offset, _ = planned(LogOffset(4), looks, EARLIEST, None, 4, ends=ends)
        assert ranges(offset) == {"a": (0, 40), "b": (0, 0)}
        assert planned(offset, looks, EARLIEST, None, 4, ends=ends)[0] is offset

    @pytest.mark.parametrize(
        ("before", "now", "goes_on", "why"),
        [
            (after(10), look(20), (20, 100), r"lost its entries 10 to 19: they were evicted"),
            (after(0), look(100), (100, 100), r"lost its entries 0 to 99"),
            (after(10), look(5, 50, NEXT_EPOCH), (5, 50), "was deleted and made anew"),
            (after(10), LogLook(), (0, 0), "was deleted; those before offset 10"),
            (after(90), look(0, 80), (80, 80), "ends before offset 80, but was read up to 89"),
            (LogOffset(4), look(60), (60, 100), "lost its entries 55 to 59"),
        ],
    )
    def test_what_is_lost_is_found(
        self,
        before: LogOffset,
        now: LogLook,
        goes_on: tuple[int, int],
        why: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def planner(fails: str) -> LogPlanner:
            options = LogOptions.parse(
                {"logs": "a", "startingOffset": "55", "failOnDataLoss": fails}
            )
            return LogPlanner(options, lambda _: {"a": now})

        with pytest.raises(LostEntriesError, match=f"^format .*'a' .*{why}.*failOnDataLoss=false"):
            planner("true").latest(before, None)
        assert caplog.messages == []
        with caplog.at_level(logging.WARNING, "workstealing.spark"):
            end = planner("false").latest(before, None)
        assert ranges(end) == {"a": goes_on}
        assert [why.split(maxsplit=1)[0] in text for text in caplog.messages][:1] == [True]
        # It is said once.
        caplog.clear()
        planner("true").latest(end, None)
        assert not [text for text in caplog.messages if "going on" in text]

    def test_a_log_that_is_remade_ends_available_now(self) -> None:
        looks: dict[str, LogLook] = {"a": look()}
        options = LogOptions.parse({"logs": "a", "failOnDataLoss": "false"})
        planner = LogPlanner(options, lambda _: looks)
        planner.prepare_available_now()
        offset = planner.latest(LogOffset(4), 50)
        looks["a"] = look(0, 500, NEXT_EPOCH)
        offset = planner.latest(offset, 50)
        assert ranges(offset) == {"a": (0, 0)}
        assert planner.latest(offset, 50) is offset

    def test_a_run_that_died_amid_available_now_is_finished_by_the_next(self) -> None:
        looks = {"a": look(), "b": look(0, 30)}
        options = LogOptions.parse({"logs": "a,b"})
        first = LogPlanner(options, lambda _: looks)
        first.prepare_available_now()
        offset = first.latest(LogOffset(4), 60)
        assert ranges(offset) == {"a": (0, 30), "b": (0, 30)}
        # Killed. Its batch is run again by what the checkpoint holds of it, and then:
        offset = LogOffset.parse(json.loads(json.dumps(offset.as_dict())))
        looks = {"a": look(0, 150), "b": look(0, 40)}
        second = LogPlanner(options, lambda _: looks)
        second.prepare_available_now()
        looks = {"a": look(0, 1_000), "b": look(0, 1_000)}
        read = []
        while (end := second.latest(offset, 60)) is not offset:
            read.append(ranges(end))
            offset = end
        assert read == [
            {"a": (30, 80), "b": (30, 40)},
            {"a": (80, 140), "b": (40, 40)},
            {"a": (140, 150), "b": (40, 40)},
        ]

    def test_the_backlog_is_known_after_each_look(self) -> None:
        looks = {"a": look(), "b": look(10, 30)}
        planner = LogPlanner(LogOptions.parse({"logs": "a,b"}), lambda _: looks)
        assert planner.seen() is None
        offset = planner.latest(LogOffset(4), 50)
        assert ranges(offset) == {"a": (0, 30), "b": (10, 30)}
        logs = {"a": 100, "b": 30}
        assert planner.seen() == {"logs": logs, "offsetsBehindLatest": 70}
        offset = planner.latest(offset, None)
        assert planner.seen() == {"logs": logs, "offsetsBehindLatest": 0}

    def test_redis_does_not_hear_each_question_of_an_idle_query(self) -> None:
        looks: list[Mapping[str, LogLook]] = []
        naps: list[float] = []

        def asked(_: object) -> Mapping[str, LogLook]:
            looks.append({"a": look()})
            return looks[-1]

        planner = LogPlanner(LogOptions.parse({"logs": "a"}), asked, naps.append)
        offset = planner.latest(LogOffset(4), None)
        assert planner.latest(offset, None) is offset
        assert naps == []
        assert planner.latest(offset, None) is offset
        assert len(naps) == 1
        assert 0 < naps[0] <= 0.1


class TestBatches:
    def read(self, now: LogLook, **options: str) -> tuple[int, int]:
        parsed = LogOptions.parse({"logs": "a", **options})
        return ranges(batch_offset(parsed, {"a": now}))["a"]

    def test_ranges(self) -> None:
        assert self.read(look(7)) == (7, 100)
        assert self.read(look(), startingOffset="10", endingOffset="20") == (10, 20)
        assert self.read(look(), startingOffset="-10", endingOffset="-5") == (90, 95)
        assert self.read(look(), startingOffset="latest") == (100, 100)
        # As slices are: what is there of it.
        assert self.read(look(), startingOffset="90", endingOffset="200") == (90, 100)
        assert self.read(look(), startingOffset="150") == (150, 150)
        assert self.read(look(), startingOffset="90", endingOffset="-50") == (90, 90)

    def test_what_is_not_there(self) -> None:
        with pytest.raises(ConfigurationError, match="there is no log 'a'"):
            self.read(LogLook())
        with pytest.raises(LostEntriesError, match="lost its entries 3 to 6"):
            self.read(look(7), startingOffset="3")
        assert self.read(look(7), startingOffset="3", failOnDataLoss="false") == (7, 100)


PLACES = st.builds(
    lambda start, size, block: Place(EPOCH, start, start + size, block),
    st.integers(0, 200),
    st.integers(0, 300),
    st.integers(1, 60),
)


class TestCutting:
    @given(st.dictionaries(st.sampled_from("abcdefgh"), PLACES), st.integers(1, 20))
    def test_each_entry_is_read_by_one_task(self, places: dict[str, Place], tasks: int) -> None:
        offset = LogOffset(tasks, places)
        found = cut(offset)
        assert len(found) <= tasks
        assert all(found)
        spans = [span for task in found for span in task]
        rows = [(span.log, at) for span in spans for at in range(span.start, span.stop)]
        assert rows == [(log, at) for log in sorted(places) for at in range(*places[log][1:3])]
        for span in spans:
            place = places[span.log]
            assert span.epoch == EPOCH
            assert span.start < span.stop
            # No block is read twice.
            assert span.start == place.start or span.start % place.block == 0
        assert cut(LogOffset.parse(json.loads(json.dumps(offset.as_dict())))) == found

    def test_evenly(self) -> None:
        offset = LogOffset(4, {"a": Place(EPOCH, 995, 5_000, 1_000)})
        assert [task[0][2:] for task in cut(offset)] == [
            (995, 1_000),
            (1_000, 2_000),
            (2_000, 3_000),
            (3_000, 5_000),
        ]

    def test_little_is_one_task(self) -> None:
        offset = LogOffset(4, {name: Place(EPOCH, 0, 5, 1_000) for name in "ab"})
        assert cut(offset) == [(Span("a", EPOCH, 0, 5), Span("b", EPOCH, 0, 5))]
        assert cut(LogOffset(4, {"a": Place(EPOCH, 5, 5, 1_000)})) == []
