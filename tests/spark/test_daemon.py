"""The hook in Spark's Python daemon: every task enlists once, and a fault means no hook."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import TaskContext
from pyspark import daemon as spark_daemon

from support.servers import RedisServer
from workstealing.spark import daemon, workers

TESTS = Path(__file__).resolve().parents[1]
PATIENCE = 900.0


@pytest.mark.slow
def test_every_kind_of_task_enlists_once(redis7: RedisServer) -> None:
    # Executors read the setting when they start, so this takes an application of its own.
    done = subprocess.run(
        [sys.executable, "-m", "support.spark_every_task", str(TESTS)],
        cwd=TESTS,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "WORKSTEALING_REDIS_URL": redis7.url,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    report = json.loads(done.stdout.splitlines()[-1])
    for kind, (tasks, slices) in report["kinds"].items():
        assert slices == tasks, kind
        assert sum(tasks.values()) == (1 if kind == "failing" else 3), kind
    assert report["enlisted"] == report["tasks"] == 3 * (len(report["kinds"]) - 1) + 1
    assert len(report["kinds"]) == (6 if pyspark.__version__.startswith("3.") else 7)
    assert set(report["factories"].values()) == {1}
    # Its tasks have all given the right results, or the program would have failed.
    assert report["slices_of_a_broken_factory"] == 0
    assert "the factory is broken" in done.stderr


def test_the_daemon_loads_sparks_own_and_the_standard_library_only() -> None:
    program = (
        "import sys\n"
        "import pyspark.daemon\n"
        "before = set(sys.modules)\n"
        "import workstealing.spark.daemon\n"
        "import threading\n"
        "new = {name for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)), threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    loaded, _, threads = done.stdout.strip().rpartition(" ")
    assert threads == "1"
    foreign = [
        name
        for name in json.loads(loaded.replace("'", '"'))
        if not name.startswith("workstealing")
        and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []


class TestRunning:
    """What main() does to Spark's daemon."""

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
        """Run main() for a worker module; return what the daemon calls for each task then."""
        own = spark_daemon.worker

        def start(*modules: str) -> Any:
            seen: list[Any] = []
            monkeypatch.setattr(sys, "argv", ["daemon", *modules])
            monkeypatch.setattr(spark_daemon, "worker", own)
            monkeypatch.setattr(spark_daemon, "manager", lambda: seen.append(spark_daemon.worker))
            daemon.main()
            assert len(seen) == 1
            return None if seen[0] is own else seen[0]

        yield start
        assert spark_daemon.worker is not None

    def test_tasks_are_hooked(self, started: Callable[[str], Any]) -> None:
        assert started("pyspark.worker") is not None

    def test_a_daemon_that_is_told_no_module_runs_tasks(
        self, started: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pyspark, "__version__", "3.5.9")
        assert started() is not None

    def test_planning_and_foreign_workers_are_not(self, started: Callable[[str], Any]) -> None:
        assert started("pyspark.sql.worker.plan_data_source_read") is None

    @pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0", "unknown"])
    def test_an_untested_version_is_not(
        self,
        started: Callable[[str], Any],
        version: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(pyspark, "__version__", version)
        assert started("pyspark.worker") is None
        streams = capsys.readouterr()
        assert version in streams.err
        # Standard output is the daemon's line to the JVM.
        assert streams.out == ""

    def test_a_fault_means_no_hook(
        self,
        started: Callable[[str], Any],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def fail(run_task: Any) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr(daemon, "hooked", fail)
        assert started("pyspark.worker") is None
        assert "no hook: RuntimeError: broken" in capsys.readouterr().err


class TestAfterATask:
    """What the hook does when a call of Spark's own function has ended."""

    @pytest.fixture(autouse=True)
    def _no_task(self) -> Iterator[None]:
        yield
        TaskContext._setTaskContext(None)  # type: ignore[arg-type]

    @pytest.fixture
    def finished(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """How often the hook has enlisted, and whether the tasks had ended badly."""
        calls: list[bool] = []
        monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
        monkeypatch.setattr(
            workers, "finish", lambda settings, *, ends_badly: calls.append(ends_badly)
        )
        return calls

    @staticmethod
    def run(task: Callable[[], int]) -> int:
        near, far = socket.socketpair()
        with near, far:
            return daemon.hooked(lambda sock, authenticated: task())(near, True)

    def test_a_task_that_went_well(self, finished: list[bool]) -> None:
        assert self.run(lambda: 0) == 0
        assert finished == [False]

    def test_a_worker_that_is_not_used_again(
        self, finished: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SPARK_REUSE_WORKER")
        assert self.run(lambda: 0) == 0
        assert finished == [True]

    def test_a_task_that_failed(self, finished: list[bool]) -> None:
        def task() -> int:
            TaskContext._setTaskContext(TaskContext(taskAttemptId=5))
            return -1

        assert self.run(task) == -1
        assert finished == [True]

    def test_a_task_that_is_cut_short(self, finished: list[bool]) -> None:
        """As by LIMIT: Spark closes the socket, and the worker fails to send what is left."""

        def task() -> int:
            TaskContext._setTaskContext(TaskContext(taskAttemptId=5))
            raise BrokenPipeError(32, "Broken pipe")

        with pytest.raises(BrokenPipeError):
            self.run(task)
        assert finished == [True]

    def test_an_idle_worker_that_is_told_to_end(self, finished: list[bool]) -> None:
        assert self.run(lambda: -1) == -1
        assert finished == []

    def test_a_task_that_has_enlisted_already(
        self, finished: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def task() -> int:
            monkeypatch.setattr(workers, "_attempts", workers._attempts + 1)
            return 0

        assert self.run(task) == 0
        assert finished == []

    def test_a_fault_is_told_on_standard_error_only(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(workers, "finish", fail)
        assert self.run(lambda: 0) == 0
        streams = capsys.readouterr()
        assert "could not enlist after a task: RuntimeError: broken" in streams.err
        assert streams.out == ""

    def test_what_spark_raises_passes(self, finished: list[bool]) -> None:
        def task() -> int:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(task)
        assert finished == []
