"""docs/from_spark_redis.md: fields that a program of the JVM has written are read as it says."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    TimestampType,
)

from workstealing.spark.sources.redis_columns import typed

AT = dt.datetime(2026, 11, 24, 22, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (b"1.0E10", DoubleType(), 1e10),
        (b"Infinity", DoubleType(), float("inf")),
        (b"true", BooleanType(), True),
        (b"-7", LongType(), -7),
        (b"1E+2", DecimalType(10, 2), Decimal(100)),
        (b"2026-11-24", DateType(), dt.date(2026, 11, 24)),
        (b"2026-11-24 22:00:00.0", TimestampType(), AT),
        (b"2026-11-24 22:00:00.12345", TimestampType(), AT.replace(microsecond=123_450)),
    ],
)
def test_a_value_as_java_writes_it(text: bytes, kind: DataType, value: Any) -> None:
    (found,) = typed([text], kind, lambda _: "the value", is_permissive=False).to_pylist()
    assert found == value
