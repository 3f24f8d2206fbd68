"""The Python blocks of docs/spark_log.md run in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pages import running
from support.servers import RedisServer
from workstealing.structures import Log

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_blocks(spark: SparkSession, redis7: RedisServer, tmp_path: Path) -> None:
    text = 'format("workstealing.log")'
    here = {
        text: f'{text}.option("url", "{redis7.url}")',
        "checkpoints/users": str(tmp_path),
    }
    with running("docs/spark_log.md", replace=here) as page:
        names = page.run(spark=spark)
        assert Log(redis7.client(), "activity").length() == 2
        page.run()
    names["query"].processAllAvailable()
    names["query"].stop()
    copied: Any = Log(redis7.client(), "users").read(0, 10)
    assert sorted(copied) == [b"17", b"4"]
