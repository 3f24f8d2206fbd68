"""RQ: its workers with and without a work horse, on a real server."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rq
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

import workstealing
from support import rq_jobs
from support.patience import (
    ROUNDING_SECONDS,
    patient,  # noqa: F401 - an autouse fixture
)
from support.processes import end, spawn
from support.servers import RedisServer, wait_until
from workstealing.errors import ConfigurationError
from workstealing.integrations.rq import SimpleWorker, WorkStealing
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.deferral import current
from workstealing.testing import always, always_recruiting

PATIENCE = 60.0
TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.usefixtures("rq_here")


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


@pytest.fixture
def events() -> Iterator[list[object]]:
    """Return the log that the jobs write, too."""
    rq_jobs.events.clear()
    yield rq_jobs.events
    rq_jobs.events.clear()


@pytest.fixture
def queue(redis7: RedisServer) -> rq.Queue:
    return rq.Queue(connection=redis7.client())


def simple(queue: rq.Queue, recruiter: Any, **members: Any) -> Any:
    """Return a worker of a class of its own."""
    kind = type("Mine", (SimpleWorker,), {"recruiter": recruiter, **members})
    return kind([queue], connection=queue.connection)


class TestSimpleWorker:
    def test_it_enlists_after_each_job_and_at_an_empty_queue(
        self, queue: rq.Queue, recruiter: Recruiter, events: list[object]
    ) -> None:
        good, bad = queue.enqueue(rq_jobs.add, 1, 2), queue.enqueue(rq_jobs.fail)
        assert simple(queue, recruiter).work(burst=True)
        assert events == ["job", "slice", "job", "slice", "slice"]
        assert enlisted(recruiter) == 3
        assert good.return_value() == (3, os.getpid())
        assert bad.get_status() is JobStatus.FAILED
        assert current.get() is None

    def test_the_result_is_stored_before_the_slice(self, queue: rq.Queue) -> None:
        recruiter, seen = always(), []
        job = queue.enqueue(rq_jobs.add, 1, 2)

        @recruiter.job(rate=1.0)
        def look(slice: Slice) -> int:
            seen.append((job.get_status(), worker.get_state()))
            return 1

        worker = simple(queue, recruiter)
        worker.work(burst=True)
        assert seen[0] == (JobStatus.FINISHED, "idle")

    def test_when(
        self, queue: rq.Queue, recruiter: Recruiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        def when(self: Any, job: Job) -> bool:
            if job.func_name.endswith("fail"):
                raise LookupError("of when")
            return bool(job.args[0])

        for args in ((0, 1), (1, 1)):
            queue.enqueue(rq_jobs.add, *args)
        queue.enqueue(rq_jobs.fail)
        with caplog.at_level(logging.WARNING):
            simple(queue, recruiter, when=when).work(burst=True)
        # One job, and the empty queue.
        assert enlisted(recruiter) == 2

    def test_a_decorated_function_counts_once(
        self, queue: rq.Queue, recruiter: Recruiter, events: list[object]
    ) -> None:
        before = enlisted(rq_jobs.recruiter)
        queue.enqueue(rq_jobs.decorated)
        simple(queue, recruiter).work(burst=True)
        assert events == ["job", "slice", "slice"]
        assert enlisted(recruiter) == 2
        assert enlisted(rq_jobs.recruiter) == before
        # Under a worker of RQ's own it enlists for itself.
        queue.enqueue(rq_jobs.decorated)
        rq.SimpleWorker([queue], connection=queue.connection).work(burst=True)
        assert enlisted(rq_jobs.recruiter) == before + 1

    def test_the_mixin_twice_counts_once(self, queue: rq.Queue, recruiter: Recruiter) -> None:
        class Once(SimpleWorker):
            pass

        class Twice(WorkStealing, rq.SimpleWorker):
            pass

        class Both(Once, Twice):
            pass

        Both.recruiter = recruiter
        queue.enqueue(rq_jobs.add, 1, 2)
        Both([queue], connection=queue.connection).work(burst=True)
        assert enlisted(recruiter) == 2

    def test_the_default_recruiter(self, queue: rq.Queue) -> None:
        before = workstealing.stats()["enlisted"]
        with always_recruiting(workstealing.default_recruiter):
            SimpleWorker([queue], connection=queue.connection).work(burst=True)
        assert workstealing.stats()["enlisted"] == before + 1

    def test_an_idle_worker_enlists_and_still_leaves_in_time(
        self, queue: rq.Queue, recruiter: Recruiter
    ) -> None:
        worker = simple(queue, recruiter, idle_interval=1)
        started = time.monotonic()
        assert not worker.work(max_idle_time=2)
        assert time.monotonic() - started >= 2 - ROUNDING_SECONDS
        assert enlisted(recruiter) >= 2

    def test_a_job_that_comes_while_the_worker_is_idle(
        self, queue: rq.Queue, events: list[object]
    ) -> None:
        worker = simple(queue, always(), idle_interval=1)

        @worker.recruiter.job(rate=1.0)
        def send(slice: Slice) -> int:
            if not events:
                queue.enqueue(rq_jobs.add, 1, 2)
            return 1

        assert worker.work(max_jobs=1)
        assert events == ["job"]

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1", None])
    def test_a_wrong_duration(self, seconds: Any) -> None:
        with pytest.raises(ConfigurationError, match="idle_interval of Mine"):
            type("Mine", (SimpleWorker,), {"idle_interval": seconds})


class TestHarm:
    def test_a_slice_that_raises(self, queue: rq.Queue) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def fails(slice: Slice) -> int:
            raise OSError("no such server")

        jobs = [queue.enqueue(rq_jobs.add, n, n) for n in range(3)]
        assert simple(queue, recruiter).work(burst=True)
        assert [job.get_status() for job in jobs] == [JobStatus.FINISHED] * 3
        figures = recruiter.stats()["jobs"]["fails"]
        assert figures["failed"] + figures["skipped"] == 4
        assert figures["failed"] >= 1

    def test_what_is_no_exception_passes_and_the_job_is_done(self, queue: rq.Queue) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def leaves(slice: Slice) -> int:
            raise SystemExit(3)

        job = queue.enqueue(rq_jobs.add, 1, 2)
        with pytest.raises(SystemExit):
            simple(queue, recruiter).work(burst=True)
        assert job.get_status() is JobStatus.FINISHED
        assert rq.Worker.all(connection=queue.connection) == []

    def test_a_jobs_own_time_out_passes_through_a_slice(self, queue: rq.Queue) -> None:
        def hold(slice: Slice) -> int:
            while not slice.expired:
                time.sleep(0.01)
            return 1

        rq_jobs.recruiter.job(rate=1.0, name="hold", seconds=PATIENCE)(hold)
        try:
            job = queue.enqueue(rq_jobs.enlist_too_long, job_timeout=1)
            simple(queue, always()).work(burst=True)
        finally:
            rq_jobs.recruiter.uninstall("hold")
        assert job.id in FailedJobRegistry(queue=queue)
        assert "JobTimeoutException" in str(job.latest_result().exc_string)


class Running:
    """A worker in a process of its own, started by RQ's command."""

    def __init__(self, server: RedisServer, folder: Path, kind: str) -> None:
        self.client = server.client(decode_responses=True)
        self._log = (folder / "rq.log").open("wb")
        environment = {**os.environ, "RQ_REDIS_URL": server.url, "PYTHONPATH": str(TESTS)}
        environment.pop("WORKSTEALING_DISABLED", None)
        self.process = spawn(
            [
                *(sys.executable, "-m", "rq.cli", "worker", "--url", server.url),
                *("--worker-class", f"support.rq_jobs.{kind}"),
            ],
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def slices(self) -> list[int]:
        """Return the ids of the processes that did a slice, in order."""
        return [int(each) for each in self.client.lrange("slices", 0, -1)]

    def stop(self) -> None:
        end(self.process, PATIENCE)
        self._log.close()


@pytest.fixture
def start(redis7: RedisServer, tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    started: list[Running] = []

    def start(kind: str) -> Running:
        started.append(Running(redis7, tmp_path, kind))
        return started[-1]

    yield start
    for each in started:
        each.stop()


class TestProcesses:
    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "horses"), [("Forking", True), ("Simple", False)])
    def test_the_worker_enlists_and_never_its_work_horse(
        self, start: Callable[[str], Running], queue: rq.Queue, kind: str, horses: bool
    ) -> None:
        worker = start(kind)
        wait_until(worker.slices, "an idle slice", PATIENCE)
        job = queue.enqueue(rq_jobs.add, 2, 3)
        wait_until(lambda: job.get_status() is JobStatus.FINISHED, "the job", PATIENCE)
        total, process = job.return_value()
        assert total == 5
        assert (process != worker.process.pid) is horses
        count = len(worker.slices())
        wait_until(lambda: len(worker.slices()) > count, "another slice", PATIENCE)
        assert set(worker.slices()) == {worker.process.pid}

    @pytest.mark.slow
    def test_a_request_to_stop_ends_a_slice_and_the_worker(
        self, start: Callable[[str], Running], queue: rq.Queue
    ) -> None:
        queue.connection.set("hold", 1)
        worker = start("Forking")
        wait_until(worker.slices, "a slice", PATIENCE)
        # The slice would last for twice as long as the test's patience.
        worker.process.terminate()
        assert worker.process.wait(PATIENCE) == 0
        assert rq.Worker.all(connection=queue.connection) == []


def test_without_rq_the_error_names_the_extra(run_python: Callable[[str], str]) -> None:
    program = (
        "import sys\n"
        "sys.modules['rq'] = None\n"
        "from workstealing.errors import MissingExtraError\n"
        "try:\n"
        "    import workstealing.integrations.rq\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'workstealing[rq]'" in run_python(program)
