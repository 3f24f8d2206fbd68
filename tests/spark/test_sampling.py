"""`schema_of` guesses columns of a sample, and a read takes what it has said."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from typing import TYPE_CHECKING

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.spark import register, schema_of
from workstealing.spark.sampling import kind_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ("1 -5 0", "bigint"),
        ("1 2.5 1e-07", "double"),
        ("9223372036854775808", "double"),
        ("007 1", "string"),
        ("true false", "boolean"),
        ("true 1", "string"),
        ("2026-11-24", "date"),
        ("20261124", "bigint"),
        ("2026-11-24T22:00:00Z", "timestamp"),
        ("2026-11-24T22:00:00 2026-11-24T22:00:00.5", "timestamp_ntz"),
        ("1,5 a", "string"),
        ("[1,2] []", "array<bigint>"),
        ('{"a":1} {"a":2.5,"b-c":["x"],"d":null}', "struct<a:double,`b-c`:array<string>,d:string>"),
        ('{"a":1} {"a":"x"}', "string"),
        ("{} {}", "map<string,string>"),
        ("[1] 7", "string"),
        ("[" * 100_000, "string"),
    ],
)
def test_the_narrowest_type_that_all_fit(texts: str, kind: str) -> None:
    assert kind_of([text.encode() for text in texts.split()]) == kind


def test_bytes_are_binary() -> None:
    assert kind_of([b"1", b"\xff"]) == "binary"


def test_a_sample_is_printed_and_can_be_read(
    spark: SparkSession, redis7: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    register(spark)
    client = redis7.client()
    for number in range(300):
        fields = {"name": f"n{number}", "price": number / 4, "tags": f'["a{number}"]', "a b": "x"}
        client.hset(f"item:{number}", mapping=fields)
    given = {"url": redis7.url, "keyPrefix": "item:", "keyColumn": "id"}
    columns = schema_of(spark, rows=100, **given)
    said = "id bigint, name string, price double, tags array<string>, `a b` string"
    assert columns == said
    assert capsys.readouterr().out == f'.schema("{said}")\n'
    read = spark.read.format("workstealing.redis").options(type="hash", **given)
    row = read.schema(columns).load().where("id = 17").first()
    assert row == (17, "n17", 4.25, ["a17"], "x")

    client.xadd("clicks", {"user": 7, "page": "/"})
    found = schema_of(spark, type="stream", keys="clicks", url=redis7.url)
    assert found == "key string, id string, user bigint, page string"
    client.zadd("board", {"17": 1})
    found = schema_of(spark, "board", type="zset", url=redis7.url)
    assert found == "key string, member bigint, score double"
    with pytest.raises(ConfigurationError, match="there is no key of type=list to sample"):
        schema_of(spark, type="list", match="*", url=redis7.url)
    client.hset("other", "key", "1")
    with pytest.raises(ConfigurationError, match="there is a field 'key'"):
        schema_of(spark, "other", url=redis7.url)
