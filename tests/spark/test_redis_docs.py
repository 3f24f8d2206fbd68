"""The Python blocks of docs/spark_redis.md run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.servers import RedisServer

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark_redis.md"


def test_the_blocks(spark: SparkSession, redis7: RedisServer, tmp_path: Path) -> None:
    given = f'"workstealing.redis"\\1).option("url", {redis7.url!r}'
    text = re.sub(r'"workstealing\.redis"(\n *)?', given, PAGE.read_text("utf-8"))
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 3
    names: dict[str, Any] = {"spark": spark, "checkpoint": str(tmp_path)}
    client = redis7.client()
    exec(compile(blocks[0], "docs", "exec"), names)
    assert client.hgetall("item:17") == {b"name": b"number 17", b"price": b"4.25"}
    assert 0 < client.ttl("item:17") <= 3600
    exec(compile(blocks[1], "docs", "exec"), names)
    assert names["items"].where("price > 100").count() == 599
    exec(compile(blocks[2], "docs", "exec"), names)
    assert names["query"].awaitTermination(300), "the query goes on"
    sizes = [each["numInputRows"] for each in names["query"].recentProgress]
    assert [size for size in sizes if size] == [40, 40, 20]
    # Two tasks have written at once, so the last entry may be any user's.
    ids = {fields[b"user"]: name for name, fields in client.xrange("clicks")}
    assert client.hget("user:99", "last_seen") == ids[b"99"]
