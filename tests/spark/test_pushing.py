"""Filters of Spark's are sorted out without a JVM: those of a source, and those left to Spark."""

from __future__ import annotations

import itertools
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceReader

from workstealing.spark.sources import pushing
from workstealing.spark.sources.pushing import (
    BYTES,
    FLAG,
    NUMBER,
    TEXT,
    Column,
    Pushing,
    Wanted,
    sorted_out,
)

filters = pytest.importorskip("pyspark.sql.datasource")

COLUMNS = {
    "key": Column(TEXT, prefix=True),
    "id": Column(BYTES),
    "offset": Column(NUMBER, bounds=True),
    "shard": Column(NUMBER),
    "reserved": Column(FLAG),
}


def of(column: str, kind: str, *value: Any) -> Any:
    """A filter, also on PySpark 4.0, which has none."""
    fields = ["attribute", "value"][: 1 + len(value)]
    made = getattr(filters, kind, None) or make_dataclass(kind, fields, frozen=True)
    return made((column,), *value)


class TestSortedOut:
    def test_filters_that_a_source_applies_are_kept_from_spark(self) -> None:
        wanted, left = sorted_out(
            [
                of("key", "IsNotNull"),
                of("key", "StringStartsWith", "item:"),
                of("key", "StringStartsWith", "item:1"),
                of("offset", "GreaterThan", 9),
                of("offset", "LessThanOrEqual", 20),
                of("offset", "LessThan", 19),
                of("id", "In", (b"a", None, b"b")),
                of("reserved", "EqualTo", True),
            ],
            COLUMNS,
        )
        assert left == []
        assert wanted == {
            "key": Wanted(prefix="item:1"),
            "offset": Wanted(least=10, most=18),
            "id": Wanted(values=frozenset({b"a", b"b"})),
            "reserved": Wanted(values=frozenset({True})),
        }

    def test_all_others_are_left_to_spark_as_they_are(self) -> None:
        given = [
            of("value", "EqualTo", "x"),
            of("shard", "GreaterThan", 3),
            of("id", "StringStartsWith", "x"),
            of("key", "StringEndsWith", "x"),
            of("key", "IsNull"),
            of("key", "EqualTo", 5),
            of("shard", "EqualTo", True),
            of("shard", "In", (1, "2")),
            getattr(filters, "Not", tuple)([of("key", "EqualTo", "x")]),
            type(of("key", "EqualTo", "x"))(("key", "part"), "x"),
        ]
        wanted, left = sorted_out(given, COLUMNS)
        assert wanted == {}
        assert len(left) == len(given)
        assert all(mine is theirs for mine, theirs in zip(left, given, strict=True))

    def test_filters_that_contradict_each_other_leave_nothing(self) -> None:
        wanted, _ = sorted_out(
            [of("key", "StringStartsWith", "a"), of("key", "StringStartsWith", "b")], COLUMNS
        )
        assert wanted["key"].chosen() == frozenset()
        wanted, _ = sorted_out([of("id", "EqualTo", b"a"), of("id", "In", (b"b",))], COLUMNS)
        assert wanted["id"].chosen() == frozenset()

    @given(st.lists(st.tuples(st.sampled_from("=<>≤≥i^"), st.integers(0, 12)), max_size=5))
    def test_what_passes_is_what_spark_would_let_pass(self, said: list[tuple[str, int]]) -> None:
        kinds = {
            "=": ("EqualTo", lambda value, mine: mine == value),
            "<": ("LessThan", lambda value, mine: mine < value),
            ">": ("GreaterThan", lambda value, mine: mine > value),
            "≤": ("LessThanOrEqual", lambda value, mine: mine <= value),
            "≥": ("GreaterThanOrEqual", lambda value, mine: mine >= value),
            "i": ("In", lambda value, mine: mine in (value, value + 2)),
            "^": ("EqualNullSafe", lambda value, mine: mine == value),
        }
        pushed = [
            of("offset", kinds[sign][0], (value, value + 2) if sign == "i" else value)
            for sign, value in said
        ]
        wanted, left = sorted_out(pushed, COLUMNS)
        assert left == []
        mine = wanted.get("offset", Wanted())
        for number in range(-1, 16):
            assert mine.lets_pass(number) == all(kinds[s][1](v, number) for s, v in said)
        chosen = mine.chosen()
        if chosen is not None:
            assert chosen == {number for number in range(16) if mine.lets_pass(number)}

    def test_a_prefix_lets_the_same_pass_as_spark(self) -> None:
        texts = ["", "a", "ab", "abc", "b", "ba"]
        for one, two in itertools.product(texts, repeat=2):
            pushed = [of("key", "StringStartsWith", each) for each in (one, two)]
            wanted, _ = sorted_out(pushed, COLUMNS)
            for text in texts:
                passes = text.startswith(one) and text.startswith(two)
                assert wanted.get("key", Wanted()).lets_pass(text) == passes


class Reader(Pushing, DataSourceReader):
    columns = COLUMNS

    def __init__(self, pushes: bool | None = True) -> None:
        self._options = SimpleNamespace(pushes=pushes)

    def read(self, partition: Any) -> Any:
        raise NotImplementedError


def test_a_reader_is_read_although_the_setting_is_off() -> None:
    reader = Reader()
    # Spark's own test, in `pyspark.sql.worker.plan_data_source_read`.
    theirs = getattr(DataSourceReader, "pushFilters", None)
    assert getattr(reader.pushFilters, "__func__", None) is theirs
    left = [of("key", "StringEndsWith", "x")]
    assert reader.pushFilters([of("key", "EqualTo", "x"), *left]) == left
    assert reader.wanted_of("key").chosen() == {"x"}
    assert reader.wanted_of("offset") == Wanted()
    assert Reader().wanted_of("key") == Wanted()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("given", [None, False, True])
def test_filters_are_taken_where_each_query_has_its_own_read(
    keeps: bool, given: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "KEEPS_READS_APART", keeps)
    filters = [of("key", "EqualTo", "x")]
    is_taken = keeps if given is None else given
    assert Reader(given).pushFilters(filters) == ([] if is_taken else filters)


class TestASettingThatIsOff:
    """As PySpark's planner looks at a reader: with its setting in a local variable."""

    @staticmethod
    def warnings(
        caplog: pytest.LogCaptureFixture, *, pushes: bool | None, is_on: bool
    ) -> list[str]:
        class Reader(Pushing):
            _options = SimpleNamespace(pushes=pushes, format="workstealing.redis")

        def plan(enable_pushdown: bool) -> Any:
            return getattr(Reader().pushFilters, "__func__", None), enable_pushdown

        caplog.clear()
        inherited = getattr(DataSourceReader, "pushFilters", None)
        assert plan(is_on) == (inherited, is_on)
        return [record.getMessage() for record in caplog.records]

    def test_an_option_that_does_nothing_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        (said,) = self.warnings(caplog, pushes=True, is_on=False)
        assert said.startswith("format 'workstealing.redis': the option pushFilters=true is given")
        assert "spark.conf.set('spark.sql.python.filterPushdown.enabled', True)" in said
        for pushes, is_on in ((True, True), (None, False), (False, False)):
            assert self.warnings(caplog, pushes=pushes, is_on=is_on) == []

    def test_this_pyspark_has_the_setting_where_it_is_looked_for(self) -> None:
        planner = pytest.importorskip("pyspark.sql.worker.plan_data_source_read")
        if not hasattr(DataSourceReader, "pushFilters"):
            pytest.skip("this PySpark pushes no filters")
        assert "enable_pushdown" in planner._main.__code__.co_varnames
