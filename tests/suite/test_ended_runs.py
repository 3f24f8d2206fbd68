"""A run of the tests that is ended leaves nothing: no process, no port, no folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import GUARD_SECONDS
from support.processes import spawn
from support.servers import wait_until
from support.spark_cluster import marked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HELD = "tests/support/held_run.py"
MARK = "RUN_OF_WORKSTEALING_TESTS"


@contextlib.contextmanager
def held(moment: str, folder: Path) -> Iterator[tuple[subprocess.Popen[Any], dict[str, Any]]]:
    """Run `make test` until that moment; yield it, and what is known of it then."""
    says = folder / "says"
    environment = {
        name: value
        for name, value in os.environ.items()
        # Those of the run to which this test belongs.
        if not name.startswith(("MAKE", "MFLAGS", "PYTEST_", "WORKSTEALING_", "RUN_OF_", "TMPDIR"))
    }
    with (folder / "output").open("wb") as output:
        process = spawn(
            ["make", "test", f"TEST_ARGS={HELD}", "TEST_WORKERS=1"],
            cwd=ROOT,
            env={**environment, "HELD_RUN_SAYS": str(says), "HELD_RUN_MOMENT": moment},
            stdout=output,
            stderr=output,
            # As a terminal would, so that SIGINT reaches all of its group.
            start_new_session=True,
        )
    try:

        def is_held() -> bool:
            assert process.poll() is None, (folder / "output").read_text()
            return says.exists()

        wait_until(is_held, f"the moment {moment}")
        yield process, json.loads(says.read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("moment", ["collecting", "running", "ending"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(number: signal.Signals, moment: str, tmp_path: Path) -> None:
    with held(moment, tmp_path) as (process, facts):
        folder = Path(facts["folder"])
        assert marked(MARK, str(folder))
        assert folder.is_dir()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.wait(GUARD_SECONDS)
        # A killed make cannot wait for the rest.
        wait_until(lambda: not folder.exists(), "the run's folder to be removed")
        assert [each.command for each in marked(MARK, str(folder))] == []
        for port in facts.get("ports", []):
            with (
                pytest.raises(ConnectionRefusedError),
                socket.create_connection(("127.0.0.1", port), timeout=10),
            ):
                pass
        assert not Path(facts.get("socket", "/no/such/socket")).exists()
        assert process.returncode != 0


def test_a_run_that_ends_by_itself_leaves_nothing(tmp_path: Path) -> None:
    with held("running", tmp_path) as (process, facts):
        folder = Path(facts["folder"])
        # The controller of xdist is told to end as by its own failure.
        (pytest_itself,) = [
            each
            for each in marked(MARK, str(folder))
            if "--part=quick" in each.command
            and "xdist" not in each.command
            and "-n\0" in each.command
        ]
        os.kill(pytest_itself.pid, signal.SIGKILL)
        process.wait(GUARD_SECONDS)
        assert not folder.exists()
        assert [each.command for each in marked(MARK, str(folder))] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_part_ends_with_the_script_that_runs_it(number: signal.Signals, tmp_path: Path) -> None:
    """The part is a shell that says that it has begun: its own end is tested above."""
    begun, mark = tmp_path / "begun", "HELD_PART_OF_WORKSTEALING_TESTS"
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import parts;"
        f" parts.run(['sh', '-c', 'echo > {begun}; exec sleep 600'])"
    )
    with (tmp_path / "output").open("wb") as output:
        process = spawn(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, mark: str(tmp_path)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_until(begun.exists, "the part to begin")
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.wait(GUARD_SECONDS)
        wait_until(lambda: not marked(mark, str(tmp_path)), "the part to end")
    finally:
        for each in marked(mark, str(tmp_path)):
            os.kill(each.pid, signal.SIGKILL)
