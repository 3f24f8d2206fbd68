"""The Python blocks of docs/spark_ick.md run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.servers import RedisServer
from workstealing.structures import ShardedIck

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark_ick.md"


def test_the_blocks(spark: SparkSession, redis7: RedisServer, tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8").replace(
        'format("workstealing.ick")', f'format("workstealing.ick").option("url", {redis7.url!r})'
    )
    # Fewer ick shards are fewer tasks.
    text = text.replace('"ickShards", 8', '"ickShards", 2')
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    found: set[str] = set()
    names: dict[str, Any] = {"spark": spark, "search": found, "checkpoint": str(tmp_path)}
    exec(compile(first, "docs", "exec"), names)
    assert ShardedIck(redis7.client(), "documents").stats()["pset_size"] == 2
    exec(compile(second, "docs", "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert found == {"17", "4"}
    assert ShardedIck(redis7.client(), "documents").stats()["total_size"] == 0
