"""The Python blocks of docs/spark_epilogues.md run in order, as a reader would put them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.servers import RedisServer, wait_until
from workstealing.spark import installing, recruits
from workstealing.spark.workers import VARIABLE

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark_epilogues.md"


def test_the_blocks(
    spark: SparkSession,
    redis7: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    module, tasks, totals, batch, every_task = blocks
    monkeypatch.setattr(installing, "_installation", None)
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    environment: dict[str, Any] = spark.sparkContext.environment
    monkeypatch.setitem(environment, "WORKSTEALING_REDIS_URL", redis7.url)
    monkeypatch.setitem(environment, VARIABLE, "")
    (tmp_path / "shop_recruiting.py").write_text(module, "utf-8")
    # For the driver, whose stream enlists, and for the workers.
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(tmp_path / "shop_recruiting.py"))

    names: dict[str, Any] = {"spark": spark, "__name__": "notebook"}
    exec(tasks, names)
    wait_until(lambda: recruits(spark).enlisted == 4, "the four tasks")
    exec(totals, names)
    assert names["totals"].enlisted == 4
    exec(batch, names)
    names["write"](spark.range(3), 0)
    assert recruits(spark).enlisted == 5
    compile(every_task, "docs", "exec")
    assert "every_task=True" in every_task
