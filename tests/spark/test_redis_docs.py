"""The Python blocks of docs/spark_redis.md and docs/from_spark_redis.md run in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.pages import running
from support.servers import RedisServer

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_blocks(
    spark: SparkSession,
    redis7: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = 'format("workstealing.redis")'
    here = {
        text: f'{text}.option("url", "{redis7.url}")',
        "schema_of(spark, ": f"schema_of(spark, url={redis7.url!r}, ",
        "checkpoints/last_seen": str(tmp_path),
    }
    client = redis7.client()
    with running("docs/spark_redis.md", replace=here) as page:
        page.run(spark=spark)
        assert client.hgetall("item:17") == {b"name": b"number 17", b"price": b"4.25"}
        assert 0 < client.ttl("item:17") <= 3600
        names = page.run()
        assert names["items"].where("price > 100").count() == 599
        page.run()
        assert '.schema("key string, name string, price double")' in capsys.readouterr().out
        page.run()
    assert names["query"].awaitTermination(300), "the query goes on"
    sizes = [each["numInputRows"] for each in names["query"].recentProgress]
    assert [size for size in sizes if size] == [40, 40, 20]
    # Two tasks have written at once, so the last entry may be any user's.
    ids = {fields[b"user"]: name for name, fields in client.xrange("clicks")}
    assert client.hget("user:99", "last_seen") == ids[b"99"]


def test_the_table_of_spark_redis(
    spark: SparkSession, redis7: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'format("workstealing.redis")'
    here = {text: f'{text}.option("url", "{redis7.url}")'}
    client = redis7.client()
    # As spark-redis leaves a table.
    client.set("_spark:person:schema", b"\xac\xed")
    client.hset("person:Anna", mapping={"age": "41"})
    with running("docs/from_spark_redis.md", replace=here) as page:
        page.run(spark=spark)
    assert client.hgetall("person:John") == {b"age": b"30"}
    assert 0 < client.ttl("person:John") <= 3600
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()]
    found = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    assert found == {"name": "age", "John": "30", "Peter": "45", "Anna": "41"}
