"""Drivers of streaming queries on a ShardedIck that kill themselves (SIGKILL) where a test says.

A driver's parts run in several processes: its own Python, the JVM, a Python process that is asked
for offsets, and the workers of its tasks. All but the latter are of one process group, which is
killed as a whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import spark_jvms
from support.processes import spawn
from workstealing.spark.sources.ick import IckSource, IckStreamReader
from workstealing.structures.sharded_ick import Leases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES, PATIENT_SECONDS, POLL_SECONDS = 5, 600.0, 0.5
TESTS = Path(__file__).resolve().parents[1]
# By these a driver and its parts know where to die.
_PHASE, _GROUP = "WORKSTEALING_TEST_DIE_AT", "WORKSTEALING_TEST_DRIVER"

# Where the source may die, in the order of a batch. "first" is one that no checkpoint knows yet.
FIRST_LEASED, FIRST_RESERVED = "first: leased", "first: reserved"
WRITTEN, READ, SUNK = "offset written", "half read", "sunk"
ACKNOWLEDGED, RESERVED = "batch before acknowledged", "reserved"


def die(phase: str) -> None:
    """Kill the driver if it is to die here."""
    if os.environ.get(_PHASE) == phase:
        os.killpg(int(os.environ[_GROUP]), signal.SIGKILL)
        # A task's worker outlives the driver for a moment.
        os._exit(1)


class DyingReader(IckStreamReader):
    """The reader of a stream, which may die at each step."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Reserve as ever; die before or after that."""
        first = start["seq"] == 0
        reserve = Leases.reserve

        def dying(leases: Leases, counts: Any) -> Any:
            die(FIRST_LEASED if first else ACKNOWLEDGED)
            done = reserve(leases, counts)
            if done:
                die(FIRST_RESERVED if first else RESERVED)
            return done

        Leases.reserve = dying  # type: ignore[method-assign, assignment]
        try:
            return super().latestOffset(start, limit)
        finally:
            Leases.reserve = reserve  # type: ignore[method-assign]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        """Plan as ever; die before that."""
        die(WRITTEN)
        return super().partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        """Read as ever; die behind the first page."""
        for page in super().read(partition):
            yield page
            die(READ)


class DyingSource(IckSource):
    """The format "workstealing.ick" with such a reader."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def stream_reader(self, schema: Any) -> DyingReader:
        """Return the reader."""
        return DyingReader(super().stream_reader(schema)._options)


def session() -> SparkSession:
    """Return the session of a driver that a test has started."""
    os.environ[_GROUP] = str(os.getpid())
    made: SparkSession = (
        spark_jvms.builder("local[1]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


@dataclass
class Drivers:
    """Starts a script as a driver, again and again.

    Arguments:
        arguments: its own.
        log: takes what drivers say.
        environment: more of it.
    """

    script: Path
    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def killed_at(self, phase: str) -> None:
        """Start one, and wait until it has killed itself at a phase."""
        assert self._end(phase, lambda: False) == -signal.SIGKILL

    def work(self, until: Callable[[], bool]) -> None:
        """Start one that lives until something is so."""
        assert self._end("", until) is None

    def _end(self, phase: str, until: Callable[[], bool]) -> int | None:
        """Return how a driver has ended; None if it was ended here, because something is so."""
        for _ in range(TRIES):
            process = self._start(phase)
            try:
                status = _ended(process, until)
            finally:
                end_group(process)
            if status in (None, -signal.SIGKILL):
                return status
            said = self.log.read_text("utf-8", "replace")
            # Spark gives a Python process ten seconds to start, which a busy machine does not.
            busy = "failed to connect back" in said[-5000:]
            assert busy, f"{status} at {phase!r}: {said[-3000:]}"
            self.log.write_text("")
        raise AssertionError(f"Spark did not come to {phase!r} within {TRIES} tries")

    def _start(self, phase: str) -> subprocess.Popen[bytes]:
        paths = [str(TESTS), *filter(None, [self.environment.get("PYTHONPATH")])]
        with self.log.open("ab") as said:
            return spawn(
                [sys.executable, "-P", str(self.script), *self.arguments],
                stdout=said,
                stderr=said,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    **self.environment,
                    "PYTHONPATH": os.pathsep.join(paths),
                    _PHASE: phase,
                },
                start_new_session=True,
            )


def _ended(process: subprocess.Popen[bytes], until: Callable[[], bool]) -> int | None:
    give_up = time.monotonic() + PATIENT_SECONDS
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
        if until():
            return None
        assert time.monotonic() < give_up, "the driver does not come to its end"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver and the processes of its group, if any are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
