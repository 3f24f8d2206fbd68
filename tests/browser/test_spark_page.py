"""The page beside Spark's own, in a browser: the picture of docs/spark_listener.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.processes import spawn
from support.servers import wait_until

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"
LARGEST_PICTURE = 100_000
DRIVER = """
import sys
from support.spark_jvms import builder
from workstealing.spark import listen
from workstealing.testing import always

spark = (
    builder("local[1]")
    .config("spark.ui.enabled", "true")
    .config("spark.ui.port", "0")
    .getOrCreate()
)
recruiter = always(seconds=5.0)
for name, rate, items in (
    ("HashFieldExpiry", 0.6, 64), ("KeyExpiry", 0.3, 0), ("LogTrimmer", 0.1, 5)
):
    recruiter.job(rate=rate, name=name)(lambda slice, items=items: items)
listener = listen(spark, recruiter, stages=False)
for _ in range(40):
    spark.range(10).count()
print(spark.sparkContext.uiWebUrl, flush=True)
sys.stdin.read()
listener.stop()
spark.stop()
"""


def test_a_picture_of_the_page_beside_sparks_own(chromium: Any, tmp_path: Path) -> None:
    """With WORKSTEALING_SCREENSHOTS=1 the picture in docs/ is made anew."""
    pytest.importorskip("pyspark")
    driver = spawn(
        [sys.executable, "-P", "-c", DRIVER],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with driver:
        try:
            assert driver.stdin is not None
            assert driver.stdout is not None
            ui = driver.stdout.readline().strip()
            assert ui.startswith("http://127.0.0.1:")

            def enlisted() -> int:
                with urllib.request.urlopen(f"{ui}/workstealing/json", timeout=60) as page:
                    figures: dict[str, Any] = json.load(page)
                count: int = figures["totals"]["enlisted"]
                return count

            wait_until(lambda: enlisted() == 40, "the page's figures")
            page = chromium.new_page(viewport={"width": 1000, "height": 330})
            page.goto(f"{ui}/workstealing/")
            assert page.locator("tbody tr").count() >= 3
            assert "40 enlisted, 40 recruited" in page.content()
            picture = tmp_path / "spark_listener.png"
            page.screenshot(path=picture)
            page.close()
            driver.stdin.close()
            assert driver.wait(60) == 0
        finally:
            driver.kill()
    assert 10_000 < picture.stat().st_size < LARGEST_PICTURE
    if os.environ.get("WORKSTEALING_SCREENSHOTS") == "1":
        shutil.copyfile(picture, DOCS / picture.name)
    assert (DOCS / picture.name).stat().st_size < LARGEST_PICTURE
