"""A standalone Spark cluster from the pip package: one master and some workers, on loopback.

Every process of it, and every process that those start (executors, Python daemons, Python workers),
inherits a mark in its environment: so a test can say exactly what belongs to the cluster, and that
nothing of it is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from support import spark_jvms
from support.processes import RUN, end, free_port, spawn

# Of patience: three JVMs on a busy machine take their time.
START_SECONDS = 300.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1
_MARK = "WORKSTEALING_TEST_CLUSTER"
_EXECUTOR = "CoarseGrainedExecutorBackend"


class ClusterBrokenError(Exception):
    """The cluster did not come to the state that was waited for."""


@dataclass(frozen=True)
class Process:
    """A process of the cluster: its id, its parent's, and its command line."""

    pid: int
    parent: int
    command: str

    @property
    def is_executor(self) -> bool:
        """Whether this is the JVM of an executor."""
        return _EXECUTOR in self.command

    def option(self, name: str) -> str:
        """Return what follows an option on the command line."""
        words = self.command.split("\0")
        return words[words.index(name) + 1]


def marked(name: str, value: str) -> list[Process]:
    """Return all living processes that have a variable in their environment, by inheritance."""
    mark = f"{name}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # It may end while it is looked at.
        with contextlib.suppress(OSError, IndexError):
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                found.append(Process(int(folder.name), int(fields[1]), command))
    return found


class StandaloneCluster:
    """A master and workers; they run when the constructor returns.

    Arguments:
        workers: how many.
        cores: of each.
        environment: what the master, the workers and so the executors find in theirs beside this
            process's own.
        apart: whether each worker has an address of its own: Spark starts no second attempt of a
            task on the same host.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 2,
        environment: Mapping[str, str] | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self.directory = Path(tempfile.mkdtemp(prefix="workstealing-spark-", dir=RUN))
        self._mark = uuid.uuid4().hex
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        self._home = Path(spec.origin).parent
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": spark_jvms.SHORT_LIVED,
            # Executors have it too, which inherit what a worker finds.
            "JAVA_TOOL_OPTIONS": spark_jvms.options(),
            # Its REST server has a fixed port, on which the cluster of another run may listen.
            "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=10 -Dspark.port.maxRetries=0"
            " -Dspark.master.rest.enabled=false",
            "SPARK_WORKER_OPTS": "-Dspark.worker.timeout=10",
            "PYSPARK_PYTHON": sys.executable,
            **(environment or {}),
            _MARK: self._mark,
        }
        self.master: subprocess.Popen[bytes]
        self.workers: list[subprocess.Popen[bytes]] = []
        try:
            self._start_master()
            for number in range(workers):
                self.workers.append(self._start_worker(number, cores))
            self.wait(lambda: self.alive_workers() == workers, f"{workers} workers to register")
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The master's address, as a session takes it."""
        return f"spark://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """Return what the master says of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=60) as page:
            state: dict[str, Any] = json.load(page)
        return state

    def alive_workers(self) -> int:
        """Return how many workers the master holds for alive."""
        return sum(each["state"] == "ALIVE" for each in self.state()["workers"])

    def processes(self) -> list[Process]:
        """Return all living processes that the cluster has started, in whatever generation."""
        return marked(_MARK, self._mark)

    def executors(self) -> list[Process]:
        """Return the living executors; their parents are workers."""
        return [each for each in self.processes() if each.is_executor]

    def executor_of(self, pid: int) -> Process | None:
        """Return the executor among a process's ancestors, itself included; None without one."""
        known = {each.pid: each for each in self.processes()}
        while pid in known:
            if known[pid].is_executor:
                return known[pid]
            pid = known[pid].parent
        return None

    def kill_worker(self, pid: int) -> None:
        """Kill one worker as a crash would; its executors notice by themselves."""
        (worker,) = [each for each in self.workers if each.pid == pid]
        worker.kill()
        worker.wait()

    def kill_executor(self, executor: Process) -> None:
        """Kill one executor as a crash would; its Python processes notice by themselves."""
        assert executor.is_executor
        os.kill(executor.pid, signal.SIGKILL)

    def wait(
        self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS
    ) -> None:
        """Wait until a condition holds. Errors: ClusterBrokenError when it does not in time."""
        give_up = time.monotonic() + seconds
        while True:
            # The master's page opens late, and a process may end while it is asked about.
            with contextlib.suppress(OSError, ValueError):
                if condition():
                    return
            if self.master.poll() is not None or time.monotonic() > give_up:
                raise ClusterBrokenError(f"waited in vain for {what}: {self._last_words()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> list[Process]:
        """End the cluster; return what did not end by itself with it, and was killed for that."""
        for process in [*self.workers, *([self.master] if hasattr(self, "master") else [])]:
            end(process, patience=10.0)
        give_up = time.monotonic() + STOP_SECONDS
        while (left := self.processes()) and time.monotonic() < give_up:
            time.sleep(POLL_SECONDS)
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)
        return left

    def _start_master(self) -> None:
        for _ in range(3):
            self.port, self.web_port = free_port(), free_port()
            self.master = self._start(
                "master",
                *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"),
                *("--port", str(self.port), "--webui-port", str(self.web_port)),
            )
            try:
                self.wait(lambda: self.state()["status"] == "ALIVE", "the master to be alive")
            except ClusterBrokenError:
                # Another process took one of the ports in between: only then is another try right.
                if self.master.poll() is None or "in use" not in self._last_words():
                    raise
            else:
                return
        raise ClusterBrokenError(f"the master found no free ports: {self._last_words()}")

    def _start_worker(self, number: int, cores: int) -> subprocess.Popen[bytes]:
        return self._start(
            f"worker{number}",
            *("org.apache.spark.deploy.worker.Worker", "--host"),
            f"127.0.0.{1 + number * self._apart}",
            *("--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", "1g"),
            *("--work-dir", str(self.directory / f"work{number}"), self.url),
        )

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            return spawn(
                [self._home / "bin" / "spark-class", *arguments],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self._environment,
                # A Ctrl-C at the terminal is for the tests, which end the cluster themselves.
                start_new_session=True,
            )

    def _last_words(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return " | ".join(f"{log.stem}: {log.read_text(errors='replace')[-500:]}" for log in logs)


@contextlib.contextmanager
def standalone_cluster(
    workers: int = 2,
    cores: int = 2,
    environment: Mapping[str, str] | None = None,
    *,
    apart: bool = False,
) -> Iterator[StandaloneCluster]:
    """Start a cluster, end it, and fail if anything of it outlived its end.

    Arguments: as of `StandaloneCluster`.
    """
    running = StandaloneCluster(workers, cores, environment, apart=apart)
    try:
        yield running
    except BaseException:
        running.stop()
        raise
    left = running.stop()
    assert not left, f"outlived their cluster: {left}"
