"""The Python blocks of docs/spark_ick.md run in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.pages import running
from support.servers import RedisServer
from workstealing.structures import ShardedIck

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_blocks(spark: SparkSession, redis7: RedisServer, tmp_path: Path) -> None:
    here = {
        'format("workstealing.ick")': f'format("workstealing.ick").option("url", "{redis7.url}")',
        # Fewer ick shards are fewer tasks.
        '"ickShards", 8': '"ickShards", 2',
        "checkpoints/documents": str(tmp_path),
    }
    with running("docs/spark_ick.md", replace=here) as page:
        page.run(spark=spark)
        assert ShardedIck(redis7.client(), "documents").stats()["pset_size"] == 2
        names = page.run()
    names["query"].processAllAvailable()
    names["query"].stop()
    assert names["search"] == {"17", "4"}
    assert ShardedIck(redis7.client(), "documents").stats()["total_size"] == 0
