"""The Python blocks of docs/spark_epilogues.md run in order, as a reader would put them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.pages import running
from support.servers import RedisServer, wait_until
from workstealing.spark import installing, recruits
from workstealing.spark.workers import VARIABLE

pytestmark = pytest.mark.slow


def test_the_blocks(
    spark: SparkSession,
    redis7: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = running("docs/spark_epilogues.md")
    monkeypatch.setattr(installing, "_installation", None)
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    environment: dict[str, Any] = spark.sparkContext.environment
    monkeypatch.setitem(environment, "WORKSTEALING_REDIS_URL", redis7.url)
    monkeypatch.setitem(environment, VARIABLE, "")
    (tmp_path / "shop_recruiting.py").write_text(page.take(), "utf-8")
    # For the driver, whose stream enlists, and for the workers.
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(tmp_path / "shop_recruiting.py"))

    with page:
        names = page.run(spark=spark)
        wait_until(lambda: recruits(spark).enlisted == 4, "the four tasks")
        page.run()
        assert names["totals"].enlisted == 4
        page.run()
        names["write"](spark.range(3), 0)
        assert recruits(spark).enlisted == 5
