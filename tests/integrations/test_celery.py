"""Celery: workers of every kind that can be run here, with a real broker and with one in memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states
from celery.app.trace import trace_task
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Ignore, Reject
from celery.worker import state as worker_state

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, spawn
from support.servers import RedisServer, ServerBrokenError, wait_until
from workstealing.errors import ConfigurationError
from workstealing.integrations.celery import Finished, WorkStealing
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.deferral import current
from workstealing.testing import always

PATIENCE = 120.0
HERE = Path(__file__).parent
NUMBERS = itertools.count()


def make_app() -> Celery:
    """Return an app whose broker and results are in memory, its own of each."""
    number = next(NUMBERS)
    app = Celery(f"memory{number}", broker="memory://", backend="cache+memory://", set_as_current=0)
    app.conf.update(
        broker_transport_options={"polling_interval": 0.005},
        task_default_queue=f"queue{number}",
        task_store_errors_even_if_ignored=True,
    )
    return app


@contextlib.contextmanager
def worker(app: Celery, pool: str = "solo") -> Iterator[Any]:
    """Run a worker of the app in a thread; it takes some seconds to start and to stop."""
    # Celery makes the process's logging its own, and would leave it so for the tests that follow.
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        with start_worker(
            app,
            pool=pool,
            concurrency=1,
            perform_ping_check=False,
            shutdown_timeout=PATIENCE,
        ) as running:
            yield running
        # A worker that is terminated leaves its threads.
        with contextlib.suppress(AttributeError):
            running.pool.executor.shutdown()
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def run(task: Any, *args: object, **request: Any) -> Any:
    """Run a task as a worker's process does, by Celery's own tracer; return its result."""
    number = str(next(NUMBERS))
    sent = {"id": number, "delivery_info": {}, **request}
    trace_task(task, number, args, {}, sent, app=task.app)
    return task.AsyncResult(number)


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


@pytest.fixture
def app() -> Celery:
    return make_app()


class Tasks:
    """The tasks of an app; `done` runs one that comes after all others to its end."""

    def __init__(self, app: Celery, events: list[object]) -> None:
        @app.task(name=f"{app.main}.note")
        def note(what: object) -> object:
            events.append(what)
            return what

        @app.task(name=f"{app.main}.raises", bind=True)
        def raises(task: Any, kind: str) -> None:
            events.append(kind)
            if kind == "retry":
                if task.request.retries < 2:
                    raise task.retry(countdown=0)
                return
            raise {"fails": ValueError, "ignored": Ignore, "rejected": Reject}[kind](kind)

        self.note = note
        self.raises = raises


@pytest.fixture
def tasks(app: Celery, events: list[object]) -> Tasks:
    return Tasks(app, events)


class TestAfterATask:
    @pytest.mark.parametrize("pool", ["solo", "threads"])
    def test_each_task_enlists_once_after_its_end(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter, events: list[object], pool: str
    ) -> None:
        WorkStealing(app, recruiter, idle_interval=None)
        with worker(app, pool):
            for number in (1, 2):
                assert tasks.note.delay(number).get(timeout=PATIENCE) == number
                # The result is stored before the slice.
                wait_until(lambda number=number: events.count("slice") == number, "the slice")
        assert events == [1, "slice", 2, "slice"]
        assert enlisted(recruiter) == 2
        assert current.get() is None

    @pytest.mark.parametrize("kind", ["fails", "ignored", "rejected", "retry"])
    def test_only_success_enlists(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter, events: list[object], kind: str
    ) -> None:
        WorkStealing(app, recruiter, idle_interval=None)
        run(tasks.raises, kind)
        assert events == [kind]
        assert enlisted(recruiter) == 0
        # The last attempt of a task that was tried again.
        run(tasks.raises, "retry", retries=2)
        assert enlisted(recruiter) == 1

    def test_when_reads_the_finished_task(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter
    ) -> None:
        seen: list[Finished] = []

        def when(finished: Finished) -> bool:
            seen.append(finished)
            return finished.result == "hit"

        WorkStealing(app, recruiter, when=when, idle_interval=None)
        missed = run(tasks.note, "miss")
        assert enlisted(recruiter) == 0
        run(tasks.note, "hit")
        assert enlisted(recruiter) == 1
        assert seen[0].task.name == tasks.note.name
        assert seen[0].task_id == missed.id
        assert list(seen[0].args) == ["miss"]
        assert seen[0].kwargs == {}

    def test_a_decorated_task_decides_for_itself(self, app: Celery, recruiter: Recruiter) -> None:
        WorkStealing(app, recruiter, when=lambda _: False, idle_interval=None)

        @app.task(name=f"{app.main}.load")
        @recruiter.enlists(when=lambda finished: finished.result == "hit")
        def load(what: str) -> str:
            return what

        assert run(load, "miss").get(timeout=PATIENCE) == "miss"
        assert enlisted(recruiter) == 0
        assert run(load, "hit").get(timeout=PATIENCE) == "hit"
        assert enlisted(recruiter) == 1

    @pytest.mark.parametrize(("limit", "count"), [(0.9, 0), (3600, 1)])
    @pytest.mark.parametrize("where", ["time_limit", "soft_time_limit", "call"])
    def test_a_task_near_its_time_limit_is_left_alone(
        self, app: Celery, recruiter: Recruiter, where: str, limit: float, count: int
    ) -> None:
        WorkStealing(app, recruiter, idle_interval=None)

        @app.task(name=f"{app.main}.limited", **({} if where == "call" else {where: limit}))
        def limited() -> int:
            return 1

        request = {"timelimit": [None, limit]} if where == "call" else {}
        assert run(limited, **request).get(timeout=PATIENCE) == 1
        assert enlisted(recruiter) == count

    def test_an_eager_task_is_no_worker(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter
    ) -> None:
        WorkStealing(app, recruiter)
        assert tasks.note.apply(args=["eager"]).get() == "eager"
        assert enlisted(recruiter) == 0

    def test_an_eager_task_inside_a_task_counts_once(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter, events: list[object]
    ) -> None:
        WorkStealing(app, recruiter, idle_interval=None)

        @app.task(name=f"{app.main}.outer")
        def outer() -> str:
            tasks.note.apply(args=["inner"])
            events.append("still outer")
            return "outer"

        run(outer)
        assert events == ["inner", "still outer", "slice"]

    def test_a_task_whose_end_was_cut_short_stops_no_other_one(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter
    ) -> None:
        stealing = WorkStealing(app, recruiter, idle_interval=None)

        @app.task(name=f"{app.main}.again", bind=True)
        def again(task: Any) -> None:
            # As if a time-out had been raised into the end of an earlier task.
            stealing.start(task, "an earlier one")

        run(again)
        assert enlisted(recruiter) == 0
        run(tasks.note, "next")
        assert enlisted(recruiter) == 1
        assert current.get() is None


class TestHarm:
    def test_a_slice_that_raises(
        self, app: Celery, tasks: Tasks, caplog: pytest.LogCaptureFixture
    ) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def fails(slice: Slice) -> int:
            raise OSError("no such server")

        WorkStealing(app, recruiter, idle_interval=0.01)
        with worker(app):
            for number in range(3):
                sent = tasks.note.delay(number)
                assert sent.get(timeout=PATIENCE) == number
                assert sent.state == states.SUCCESS
        assert recruiter.stats()["jobs"]["fails"]["failed"] >= 1


class TestIdle:
    def test_a_worker_that_has_nothing_to_do(self, app: Celery, recruiter: Recruiter) -> None:
        WorkStealing(app, recruiter, idle_interval=0.01)
        with worker(app):
            wait_until(lambda: enlisted(recruiter) >= 3, "three idle moments")

    def test_not_while_a_task_is_reserved_or_the_worker_stops(
        self, app: Celery, recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stealing = WorkStealing(app, recruiter)
        monkeypatch.setattr(worker_state, "reserved_requests", {"one"})
        stealing.idle()
        monkeypatch.setattr(worker_state, "reserved_requests", set())
        for name in ("should_stop", "should_terminate"):
            # 0 is the exit status of a worker that stops in order.
            monkeypatch.setattr(worker_state, name, 0)
            stealing.idle()
            monkeypatch.setattr(worker_state, name, None)
        assert enlisted(recruiter) == 0
        stealing.idle()
        assert enlisted(recruiter) == 1

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1"])
    def test_a_wrong_duration(self, app: Celery, recruiter: Recruiter, seconds: Any) -> None:
        with pytest.raises(ConfigurationError, match="idle_interval"):
            WorkStealing(app, recruiter, idle_interval=seconds)
        WorkStealing(app, recruiter)


class TestOnce:
    def test_an_app_takes_it_once(self, app: Celery, tasks: Tasks, recruiter: Recruiter) -> None:
        WorkStealing(app, recruiter, idle_interval=None)
        with pytest.raises(ConfigurationError, match="install it once"):
            WorkStealing(app, recruiter)
        run(tasks.note, "one")
        assert enlisted(recruiter) == 1

    def test_two_apps_keep_apart(
        self, app: Celery, tasks: Tasks, recruiter: Recruiter, events: list[object]
    ) -> None:
        """Signals are the process's: the second connection must not count tasks of the first."""
        other, others = make_app(), always()
        WorkStealing(app, recruiter, idle_interval=None)
        WorkStealing(other, others, idle_interval=None)
        run(tasks.note, "one")
        assert (enlisted(recruiter), enlisted(others)) == (1, 0)
        run(Tasks(other, events).note, "two")
        assert (enlisted(recruiter), enlisted(others)) == (1, 1)


class TaskFailedError(Exception):
    """A task of the worker has failed."""


class Prefork:
    """A worker with one child process, on a real broker."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self._log = folder / "celery.log"
        self._file = self._log.open("wb")
        environment = {**os.environ, "REDIS_URL": server.url}
        environment.pop("WORKSTEALING_DISABLED", None)
        self.process = spawn(
            [
                *(sys.executable, "-m", "celery", "-A", "celery_app", "worker"),
                *("--pool", "prefork", "--concurrency", "1", "--loglevel", "INFO"),
                *("--without-gossip", "--without-mingle"),
            ],
            cwd=HERE,
            env=environment,
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )
        self._client = server.client(decode_responses=True)
        # Of the same names as the worker's tasks, and none of its code.
        self._app = Celery("tests", broker=server.url, set_as_current=False)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def call(self, name: str, *args: object) -> Any:
        """Send a task, wait until the worker has stored its result, and return it."""
        sent = self._app.send_task(f"celery_app.{name}", args)
        key = f"celery-task-meta-{sent.id}"

        def stored() -> Any:
            found = json.loads(self._client.get(key) or "{}")
            return found if found.get("status") in states.READY_STATES else None

        self.wait_until(lambda: stored() is not None, f"the result of {name}")
        if stored()["status"] != states.SUCCESS:
            raise TaskFailedError(stored())
        return stored()["result"]

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Ask until it is so. Raises: AssertionError with the worker's log if it does not come."""

        def is_so_or_dead() -> bool:
            return is_so() or self.process.poll() is not None

        try:
            wait_until(is_so_or_dead, what, PATIENCE)
        except ServerBrokenError as error:
            raise AssertionError(f"{error}; the worker said: {self.log}") from None
        assert is_so(), f"no {what}: the worker is dead; it said: {self.log}"

    def slices(self) -> list[int]:
        """Return the ids of the processes that did a slice, in order."""
        return [int(each) for each in self._client.lrange("slices", 0, -1)]

    def cut_a_slice_of(self, process: int) -> None:
        """Raise a soft time limit into the next slice of a child."""
        self._client.set(f"cut:{process}", 1)

    def stop(self) -> None:
        end(self.process, PATIENCE)
        self._app.close()
        self._file.close()


@pytest.fixture
def prefork(redis7: RedisServer, tmp_path: Path) -> Iterator[Prefork]:
    running = Prefork(redis7, tmp_path)
    yield running
    running.stop()


class TestPrefork:
    @pytest.mark.slow
    def test_children_enlist_after_tasks_and_the_main_process_when_idle(
        self, prefork: Prefork
    ) -> None:
        prefork.wait_until(lambda: prefork.process.pid in prefork.slices(), "an idle slice")
        total, child = prefork.call("add", 2, 3)
        assert total == 5
        assert child != prefork.process.pid
        prefork.wait_until(lambda: child in prefork.slices(), "the child's slice")
        figures = prefork.call("figures")
        # The child counts its own: the parent's idle moments are none of them.
        assert figures["enlisted"] == 1
        assert prefork.call("stubborn") == 2
        with pytest.raises(TaskFailedError, match="mine"):
            prefork.call("fails")
        # add, figures and the last attempt of stubborn.
        assert prefork.call("figures")["enlisted"] == 3

    @pytest.mark.slow
    def test_a_soft_time_limit_in_a_slice_passes_and_harms_nobody(self, prefork: Prefork) -> None:
        _, child = prefork.call("add", 1, 1)
        prefork.cut_a_slice_of(child)
        assert prefork.call("add", 2, 3) == [5, child]
        # The next tasks of the same child are none the worse for it.
        figures = prefork.call("figures")
        assert figures["jobs"]["note"]["failed"] == 1
        assert figures["jobs"]["note"]["worked"] == 1
        assert prefork.call("add", 2, 4) == [6, child]
        assert "SoftTimeLimitExceeded" in prefork.log


def test_without_celery_the_error_names_the_extra(run_python: Callable[[str], str]) -> None:
    program = (
        "import sys\n"
        "sys.modules['celery'] = None\n"
        "from workstealing.errors import MissingExtraError\n"
        "try:\n"
        "    import workstealing.integrations.celery\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'workstealing[celery]'" in run_python(program)
