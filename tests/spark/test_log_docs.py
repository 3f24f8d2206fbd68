"""The Python blocks of docs/spark_log.md run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.servers import RedisServer
from workstealing.structures import Log

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark_log.md"


def test_the_blocks(spark: SparkSession, redis7: RedisServer, tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8").replace(
        'format("workstealing.log")', f'format("workstealing.log").option("url", {redis7.url!r})'
    )
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    names: dict[str, Any] = {"spark": spark, "checkpoint": str(tmp_path)}
    exec(compile(first, "docs", "exec"), names)
    assert Log(redis7.client(), "activity").length() == 2
    exec(compile(second, "docs", "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    copied: Any = Log(redis7.client(), "users").read(0, 10)
    assert sorted(copied) == [b"17", b"4"]
