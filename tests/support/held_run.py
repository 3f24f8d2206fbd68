"""Tests that wait to be ended at a moment: while collecting, running or ending.

tests/suite/test_ended_runs.py runs them by `make test`. They start whatever tests start, and more
carelessly than a test may; then they say where all of it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import spark_jvms
from support.processes import spawn
from workstealing.store.embedded import EmbeddedServer

SAYS, MOMENT = Path(os.environ["HELD_RUN_SAYS"]), os.environ["HELD_RUN_MOMENT"]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def hold(moment: str, **facts: Any) -> None:
    """Say that this is the moment, and wait for the end."""
    if moment == MOMENT:
        part = SAYS.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({**facts, "folder": os.environ["TMPDIR"]}))
        part.replace(SAYS)
        time.sleep(600)


hold("collecting")


@pytest.fixture(scope="session")
def ending() -> Iterator[None]:
    yield
    hold("ending")


def test_that_is_held(ending: None, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if MOMENT != "running":
        return
    ports = [request.getfixturevalue(name).port for name in ("redis7", "cluster", "postgres")]
    spawn(SLEEPS)
    # Not as tests should: in a session of its own, which nothing binds to this process.
    subprocess.Popen(SLEEPS, start_new_session=True)
    tempfile.mkdtemp(prefix="left-behind-")
    spark_jvms.builder("local[1]").getOrCreate()
    with EmbeddedServer() as embedded:
        hold("running", ports=ports, socket=embedded.url.removeprefix("unix://"))
