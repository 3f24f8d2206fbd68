"""docs/spark_install.md: the three ways to bring the package to executors, on one cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.servers import RedisServer
from support.spark_cluster import StandaloneCluster
from support.spark_ways import environment_in, packages_of, tarred, unpack, wheel_in, zipped
from workstealing import connect
from workstealing.structures import VolatileHashes

pytestmark = [pytest.mark.spark_cluster, pytest.mark.slow]

FACTORY = """
from workstealing import connect
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes
from workstealing.testing import always


def make():
    recruiter = always(seconds=5.0)
    hashes = VolatileHashes(connect(), namespace="items")
    recruiter.install(HashFieldExpiry(hashes, limit=1), rate=1.0)
    return recruiter
"""

DRIVER = """
import json
import sys
import time
from pyspark.sql import SparkSession
from workstealing.spark import enlisting, install, recruits

every_task = sys.argv[1] == "every_task"
builder = SparkSession.builder.config("spark.ui.enabled", "false")
if every_task:
    spark = install(builder, "shop_recruiting:make", every_task=True).getOrCreate()
else:
    spark = install(builder.getOrCreate(), "shop_recruiting:make")


def where(_):
    import sys
    import workstealing

    yield workstealing.__file__, sys.executable


look = where if every_task else enlisting(where)
give_up = time.monotonic() + 300
items = 0
# On a busy machine the factory's first call may take longer than a task waits for it.
while items < 2 and time.monotonic() < give_up:
    seen = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()
    time.sleep(0.2)
    items = sum(job.items for job in recruits(spark).jobs.values())
said = {"seen": seen, "items": items}
print(json.dumps(said), flush=True)
spark.stop()
"""


def test_a_zip_an_archive_and_an_installation_serve_tasks(
    spark_cluster: Callable[..., StandaloneCluster], redis7: RedisServer, tmp_path: Path
) -> None:
    wheel = wheel_in(tmp_path / "wheel")
    unpack(wheel, tmp_path / "files")
    archived, installed = tmp_path / "archived", tmp_path / "installed"
    bare = environment_in(tmp_path / "bare")
    for environment in (archived, installed):
        environment_in(environment)
        unpack(wheel, packages_of(environment))
    (tmp_path / "shop_recruiting.py").write_text(FACTORY)
    (tmp_path / "driver.py").write_text(DRIVER)
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    submit = Path(spec.origin).parent / "bin" / "spark-submit"
    cluster = spark_cluster(workers=1, environment={"WORKSTEALING_REDIS_URL": redis7.url})
    # More garbage than the slices of all ways take, one field each.
    hashes = VolatileHashes(connect(redis7.url), namespace="items")
    hashes.hsetex("item", mapping={str(field): "v" for field in range(10_000)}, px=1)

    def run(python: str, *options: str, mode: str = "enlisting") -> dict[str, object]:
        done = subprocess.run(
            [
                *(str(submit), "--master", cluster.url, "--conf", "spark.driver.host=127.0.0.1"),
                *("--conf", "spark.driver.bindAddress=127.0.0.1"),
                *("--driver-memory", "512m", "--executor-memory", "512m"),
                *("--executor-cores", "1", "--conf", "spark.cores.max=1"),
                *(*options, str(tmp_path / "driver.py"), mode),
            ],
            env={
                **os.environ,
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "WORKSTEALING_REDIS_URL": redis7.url,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        said: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
        return said

    factory = str(tmp_path / "shop_recruiting.py")
    files = zipped(tmp_path / "files")
    ways = {
        "files": run(str(bare), "--py-files", f"{files},{factory}"),
        "archive": run(
            "./environment/bin/python",
            *("--archives", f"{tarred(archived)}#environment", "--py-files", factory),
            mode="every_task",
        ),
        "library": run(str(installed / "bin" / "python"), "--py-files", factory, mode="every_task"),
    }
    for way, said in ways.items():
        # Recruited tasks took fields by the Lua scripts that the package brings.
        assert said["items"] >= 2, way  # type: ignore[operator]
    homes = {way: {home for home, _ in said["seen"]} for way, said in ways.items()}  # type: ignore[attr-defined]
    assert all("files.zip/workstealing" in home for home in homes["files"])
    assert all("/environment/lib/" in home for home in homes["archive"])
    assert all(str(installed) in home for home in homes["library"])
