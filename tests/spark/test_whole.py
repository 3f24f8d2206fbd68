"""Each part of workstealing.spark once: by Spark Connect, and on other versions of PySpark.

The versions are those of `make test-matrix`, whose environments ask for a session with a
SparkContext; here every part has tests of its own with one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.servers import RedisServer
from support.spark_connect import connect_server

TESTS = Path(__file__).resolve().parents[1]
KIND = os.environ.get("WORKSTEALING_TEST_SPARK", "remote")
# Of patience, on a busy machine; pytest ends a test that hangs.
PATIENCE = 1800.0


@pytest.mark.slow
def test_everything_works_or_is_refused_in_a_sentence(redis7: RedisServer, tmp_path: Path) -> None:
    # A process of its own: one that has had a session of Spark Connect has no other kind.
    variables = {
        "PYTHONPATH": str(TESTS),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "WORKSTEALING_REDIS_URL": redis7.url,
    }
    with ExitStack() as stack:
        if KIND == "remote":
            variables["SPARK_REMOTE"] = stack.enter_context(connect_server(tmp_path, variables))
        done = subprocess.run(
            [sys.executable, "-P", "-m", "support.spark_whole", KIND, str(tmp_path)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 5
    assert [f"{name}: {problem}" for name, problem in found.items() if problem] == []
