"""The difference between a set and a table in Arrow's columns, beside sets of Python's: no JVM."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstealing.spark.comparing import IDS_A_STEP, steps_of
from workstealing.spark.differences import difference, whole_sub_sets

SUB_SETS = 5
IDS = st.lists(st.binary(max_size=3), max_size=60)


def sub_set_of(each: bytes) -> int:
    return zlib.crc32(each) % SUB_SETS


def batches_of(rows: list[tuple[int, bytes | None]], size: int) -> list[Any]:
    kinds = pa.schema([("sub_set", pa.int32()), ("id", pa.binary())])
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(column, kind.type) for column, kind in zip(columns, kinds, strict=True)],
            schema=kinds,
        )
        for columns in (
            tuple(zip(*rows[start : start + size], strict=True))
            for start in range(0, len(rows), size)
        )
    ]


class Pages:
    """Reads a set page by page; some ids twice, as SSCAN may."""

    def __init__(self, of: dict[int, list[bytes]]) -> None:
        self.of = of
        self.asked: list[int] = []

    def __call__(self, numbers: list[int]) -> Iterator[tuple[list[int], list[bytes]]]:
        self.asked += numbers
        for number in numbers:
            ids = self.of.get(number, [])
            for start in range(0, len(ids), 7):
                page = ids[start : start + 7] + ids[:1]
                yield [number] * len(page), page


@given(in_set=IDS, in_table=IDS, batch=st.integers(1, 50), at_once=st.integers(1, 50))
def test_every_id_is_on_one_side_or_on_both(
    in_set: list[bytes], in_table: list[bytes], batch: int, at_once: int
) -> None:
    held: dict[int, list[bytes]] = {}
    for each in in_set:
        held.setdefault(sub_set_of(each), []).append(each)
    rows: list[tuple[int, bytes | None]] = [(sub_set_of(each), each) for each in in_table]
    rows = sorted([*rows, *((number, None) for number in range(SUB_SETS))], key=lambda row: row[0])
    scan = Pages(held)
    stale: list[bytes] = []
    missing: list[bytes] = []
    tracked = found = 0
    for table in whole_sub_sets(batches_of(rows, batch), at_once):
        some = difference(table, scan)
        tracked += some.tracked
        found += some.in_table
        for number, gone, new in some.steps:
            assert all(sub_set_of(each) == number for each in gone + new)
            stale += gone
            missing += new
    # Each sub-set is read once, however the batches are cut.
    assert scan.asked == list(range(SUB_SETS))
    assert (tracked, found) == (len(set(in_set)), len(set(in_table)))
    assert len(stale) == len(set(stale))
    assert set(stale) == set(in_set) - set(in_table)
    assert len(missing) == len(set(missing))
    assert set(missing) == set(in_table) - set(in_set)


def test_an_id_in_a_foreign_sub_set_is_another_one() -> None:
    # Somebody has written "a" by hand into the sub-set 4, where nobody looks for it.
    (table,) = whole_sub_sets(batches_of([(1, b"a"), (1, b"b"), (4, None)], 10))
    found = difference(table, Pages({4: [b"a"], 1: [b"b"]}))
    assert (found.tracked, found.in_table) == (2, 2)
    assert found.steps == [(1, [], [b"a"]), (4, [b"a"], [])]


def test_tables_are_cut_where_a_sub_set_ends() -> None:
    rows: list[tuple[int, bytes | None]] = [(n // 100, b"%d" % n) for n in range(1_000)]
    tables = list(whole_sub_sets(batches_of(rows, 30), 250))
    numbers = [sorted(set(table["sub_set"].to_pylist())) for table in tables]
    assert [each for some in numbers for each in some] == list(range(10))
    assert all(table.num_rows <= 300 for table in tables)
    # One that is larger than the bound comes as one.
    large: list[tuple[int, bytes | None]] = [(3, b"%d" % n) for n in range(1_000)]
    assert [table.num_rows for table in whole_sub_sets(batches_of(large, 30), 100)] == [1_000]
    assert list(whole_sub_sets([])) == []


@pytest.mark.parametrize(("stale", "missing"), [(0, 0), (3, 0), (0, 500), (499, 2), (700, 801)])
def test_steps_have_each_id_once(stale: int, missing: int) -> None:
    gone, new = [b"s%d" % n for n in range(stale)], [b"m%d" % n for n in range(missing)]
    steps = list(steps_of(gone, new))
    assert [each for some, _ in steps for each in some] == gone
    assert [each for _, some in steps for each in some] == new
    assert all(0 < len(some) + len(others) <= IDS_A_STEP for some, others in steps)
