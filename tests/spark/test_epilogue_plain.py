"""Epilogues without a JVM: what is enlisted when, what is pickled, and which faults harm nobody."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_type_hints

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads

from support import spark_recruits
from support.faulty_server import FaultyServer
from support.patience import PATIENT_SECONDS, set_timeout
from support.servers import RedisServer
from workstealing import connect
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.spark import enlist_batch, enlisting, installing, workers
from workstealing.spark.workers import VARIABLE, Epilogue, EpilogueSettings
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock, always

THIS = "support.spark_recruits"


def settings_for(factory: str = "make_counted", **options: Any) -> EpilogueSettings:
    return EpilogueSettings(f"{THIS}:{factory}", None, "app", 5.0, **options)


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has made no recruiter yet, and a driver where nothing is installed."""
    monkeypatch.setattr(workers, "_worker", None)
    monkeypatch.setattr(workers, "_last_attempt", None)
    monkeypatch.setattr(workers, "_told", None)
    monkeypatch.setattr(workers, "_IS_REUSED", True)
    monkeypatch.setattr(workers._faults, "_silent", {})
    monkeypatch.setattr(installing, "_installation", None)
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    TaskContext._setTaskContext(None)  # type: ignore[arg-type]


@pytest.fixture
def recruiter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recruiter of this process, installed for tasks and for the driver."""
    recruiter = always()
    recruiter.job(rate=1.0, name="count")(lambda slice: 1)
    monkeypatch.setattr(spark_recruits, "make_counted", lambda: recruiter, raising=False)
    monkeypatch.setenv(VARIABLE, settings_for().as_text())
    monkeypatch.setattr(installing, "_installation", installing.Installation(settings_for()))
    return recruiter


def enlisted(recruiter: Any) -> int:
    count: int = recruiter.stats()["enlisted"]
    return count


def begin(attempt: int) -> None:
    """Begin a task attempt in this process, as Spark's worker does."""
    TaskContext._setTaskContext(TaskContext(taskAttemptId=attempt))


class TestWhen:
    """When a wrapped function enlists."""

    def test_an_iterator_at_its_end(self, recruiter: Any) -> None:
        begin(1)
        items = enlisting(lambda rows: (row * 2 for row in rows))(iter([1, 2, 3]))
        assert next(items) == 2
        assert enlisted(recruiter) == 0
        assert list(items) == [4, 6]
        assert enlisted(recruiter) == 1

    def test_any_other_result_after_the_call(self, recruiter: Any) -> None:
        begin(1)
        assert enlisting(lambda rows: [sum(rows)])(iter([1, 2])) == [3]
        assert enlisted(recruiter) == 1

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
    def test_an_error_in_the_call(self, recruiter: Any, kind: type[BaseException]) -> None:
        def fail(rows: Any) -> Any:
            raise kind("mine")

        begin(1)
        with pytest.raises(kind, match="mine"):
            enlisting(fail)(())
        assert enlisted(recruiter) == 1

    def test_an_error_in_the_midst(self, recruiter: Any) -> None:
        @enlisting
        def fail(rows: Any) -> Iterator[int]:
            yield 1
            raise ValueError("mine")

        begin(1)
        items = fail(())
        assert next(items) == 1
        with pytest.raises(ValueError, match="mine"):
            next(items)
        assert enlisted(recruiter) == 1

    def test_rows_that_nobody_wants(self, recruiter: Any) -> None:
        closed = []

        @enlisting
        def endless(rows: Any) -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                closed.append(True)

        begin(1)
        items: Any = endless(())
        next(items)
        items.close()
        assert closed == [True]
        assert enlisted(recruiter) == 1

    def test_once_a_task_attempt(self, recruiter: Any) -> None:
        one, other = enlisting(lambda group: group), enlisting(lambda group: group)
        for attempt in (7, 8):
            begin(attempt)
            for _ in range(5):
                one(0)
                other(0)
        assert enlisted(recruiter) == 2

    def test_every_call_outside_of_a_task(self, recruiter: Any) -> None:
        wrapped = enlisting(lambda: 5)
        assert [wrapped(), wrapped()] == [5, 5]
        assert enlisted(recruiter) == 2

    def test_a_plain_call_without_install_is_just_the_function(self) -> None:
        assert enlisting(lambda: 5)() == 5
        assert list(enlisting(lambda: iter([5]))()) == [5]
        assert workers._worker is None

    def test_a_batch_of_the_driver(self, recruiter: Any) -> None:
        batches = []

        @enlist_batch
        def write(rows: Any, batch: int) -> None:
            batches.append(batch)
            if batch == 1:
                raise ValueError("mine")

        write(None, 0)
        with pytest.raises(ValueError, match="mine"):
            write(None, 1)
        assert batches == [0, 1]
        assert enlisted(recruiter) == 2


class TestWhatItLooksLike:
    """PySpark looks at a function's own parameters and type hints."""

    def test_a_function_with_the_signature_of_the_wrapped_one(self) -> None:
        def grow(key: Any, group: pd.DataFrame, by: int = 1) -> pd.DataFrame:
            """Grow."""
            return group

        wrapped = enlisting(grow)
        assert isinstance(wrapped, types.FunctionType)
        assert inspect.getfullargspec(wrapped) == inspect.getfullargspec(grow)
        assert get_type_hints(wrapped) == get_type_hints(grow)
        assert (wrapped.__name__, wrapped.__doc__) == ("grow", "Grow.")

    def test_functions_without_a_signature(self, recruiter: Any) -> None:
        begin(1)
        assert enlisting(max)([1, 3]) == 3
        assert enlisted(recruiter) == 1

    @pytest.mark.parametrize("wrap", [enlisting, enlist_batch])
    def test_what_is_no_function(self, wrap: Callable[[Any], Any]) -> None:
        async def coroutine() -> None: ...

        for wrong in (None, 5, coroutine):
            with pytest.raises(ConfigurationError, match="expects a plain function"):
                wrap(wrong)


class TestPickling:
    """What leaves the driver."""

    def test_names_and_plain_settings_alone(
        self, recruiter: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Decorated before; by value, as a function of a notebook is.
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", "redis://:hush-hush@db.internal:6399/0")
        monkeypatch.setenv("SECRET_TOKEN", "hush-hush")
        wrapped = enlisting(lambda rows: [sum(rows)])
        wrapped([1])
        pickled = dumps(wrapped)
        for secret in (b"hush-hush", b"db.internal", b"6399", b"Recruiter", b"redis", b"socket"):
            assert secret not in pickled
        assert f"{THIS}:make_counted".encode() in pickled
        again = loads(pickled)
        begin(1)
        assert again([1, 2]) == [3]
        assert enlisted(recruiter) == 2

    def test_the_settings_are_those_of_the_moment_of_pickling(
        self, recruiter: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        epilogue = Epilogue()
        other = settings_for("other")
        monkeypatch.setattr(installing, "_installation", installing.Installation(other))
        sent = pickle.loads(pickle.dumps(epilogue))
        assert sent.settings == other
        # A worker that pickles it once more passes on what it has got.
        monkeypatch.setattr(installing, "_installation", None)
        assert pickle.loads(pickle.dumps(sent)).settings == other

    def test_without_install_the_error_says_what_to_do(self) -> None:
        with pytest.raises(ConfigurationError, match=r"call workstealing\.spark\.install\(spark"):
            dumps(enlisting(lambda rows: rows))

    def test_a_batch_without_install_does_nothing_but_raise(self) -> None:
        done: list[int] = []
        with pytest.raises(ConfigurationError, match=r"call workstealing\.spark\.install\(spark"):
            enlist_batch(lambda rows, batch: done.append(batch))(None, 0)
        assert done == []

    def test_settings_and_their_text(self) -> None:
        settings = settings_for(accumulator=3)
        assert pickle.loads(pickle.dumps(settings)) == settings
        assert EpilogueSettings(**json.loads(settings.as_text())) == settings


class TestFaults:
    """A fault of ours fails no task, and leaves a line in the log."""

    @pytest.mark.parametrize(
        ("factory", "words"),
        [
            ("make_broken", "RuntimeError: broken"),
            ("make_nothing", "returned NoneType; expected a workstealing.Recruiter"),
            ("make_an_end", "SystemExit: 3"),
            ("no_such_name", "the module has no 'no_such_name'"),
        ],
    )
    def test_a_factory(
        self,
        factory: str,
        words: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        calls = []

        def broken() -> None:
            calls.append(1)
            raise RuntimeError("broken")

        monkeypatch.setattr(spark_recruits, "make_broken", broken)
        monkeypatch.setenv(VARIABLE, settings_for(factory).as_text())
        wrapped = enlisting(lambda rows: [sum(rows)])
        for attempt in range(50):
            begin(attempt)
            assert wrapped([1, 2]) == [3]
        (line,) = [each.getMessage() for each in caplog.records]
        assert words in line
        assert f"{THIS}:{factory}" in line
        assert len(calls) == (factory == "make_broken")

    def test_a_factory_is_called_again_after_a_minute(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recruiter = always()
        answers: list[Any] = [None, recruiter]
        monkeypatch.setattr(spark_recruits, "late", lambda: answers.pop(0), raising=False)
        clock = ManualClock()
        worker = workers.WorkerRecruiter(settings_for("late"), clock)
        assert worker.enlist() is None
        clock.advance(59.0)
        assert worker.enlist() is None
        clock.advance(1.0)
        assert worker.enlist() is not None
        assert enlisted(recruiter) == 1

    def test_a_factory_that_hangs_holds_up_no_task_but_the_first(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        recruiter, answered, calls = always(), threading.Event(), []

        def hang() -> Any:
            calls.append(1)
            assert answered.wait(120)
            return recruiter

        monkeypatch.setattr(spark_recruits, "hang", hang, raising=False)
        monkeypatch.setattr(workers, "_FACTORY_SECONDS", 0.01)
        clock = ManualClock()
        worker = workers.WorkerRecruiter(settings_for("hang"), clock)
        try:
            for _ in range(3):
                assert worker.enlist() is None
                clock.advance(60.0)
        finally:
            answered.set()
        assert [each.getMessage().count("has not returned") for each in caplog.records] == [1]
        assert worker._making is not None
        worker._making.join(120)
        assert worker.enlist() is not None
        assert (calls, enlisted(recruiter)) == ([1], 1)

    def test_a_module_that_executors_do_not_have(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = EpilogueSettings("no_such_package.module:make", None, "app", 5.0)
        monkeypatch.setenv(VARIABLE, settings.as_text())
        begin(1)
        assert enlisting(lambda: 1)() == 1
        assert "finds no module 'no_such_package'" in caplog.text

    @pytest.mark.parametrize("text", ["no json", "[]", '{"unknown": 1}', "7"])
    def test_a_garbled_environment(
        self, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv(VARIABLE, text)
        begin(1)
        assert enlisting(lambda: 1)() == 1
        assert VARIABLE in caplog.text

    def test_a_task_without_any_settings(self, caplog: pytest.LogCaptureFixture) -> None:
        wrapped = enlisting(lambda: 1)
        for attempt in range(5):
            begin(attempt)
            assert wrapped() == 1
        assert len(caplog.records) == 1
        assert "install() has not been called" in caplog.text

    def test_a_thread_that_cannot_be_started(
        self, recruiter: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == refused:
                raise RuntimeError("can't start new thread")
            start(thread)

        settings = replace(settings_for(), counters="workstealing:connect")
        monkeypatch.setenv(VARIABLE, settings.as_text())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        refused = "workstealing-factory"
        begin(0)
        assert enlisting(lambda: 1)() == 1
        assert enlisted(recruiter) == 0
        assert "can't start new thread" in caplog.text
        caplog.clear()
        monkeypatch.setattr(workers, "_worker", None)
        refused = "workstealing-counts"
        begin(1)
        assert enlisting(lambda: 1)() == 1
        begin(2)
        with pytest.raises(ZeroDivisionError):
            enlisting(lambda: 1 / 0)()
        assert enlisted(recruiter) == 2
        assert "can't start new thread" in caplog.text

    def test_a_job_that_fails(self, recruiter: Any, caplog: pytest.LogCaptureFixture) -> None:
        recruiter.uninstall("count")

        @recruiter.job(rate=1.0)
        def fails(slice: Any) -> None:
            raise ValueError("the job's")

        begin(1)
        assert enlisting(lambda: 1)() == 1
        assert recruiter.stats()["jobs"]["fails"]["failed"] == 1


class TestRecruited:
    """What a recruited epilogue sends."""

    def test_at_most_five_round_trips_with_the_real_job(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        day = 24 * 3600 * 1000
        now = VolatileHashes(redis7.client(), namespace="t", backend="emulated")
        for number in range(20):
            now.hsetex(f"item:{number}", mapping=dict.fromkeys("abcdefgh", "v"), ex=60)
        with FaultyServer(redis7.port) as socket:
            url = f"redis://127.0.0.1:{socket.port}/0"
            later = VolatileHashes(connect(url), namespace="t", clock_shift_ms=day)
            recruiter = always(seconds=30.0)
            recruiter.install(HashFieldExpiry(later, limit=5), rate=1.0)
            monkeypatch.setattr(spark_recruits, "make_counted", lambda: recruiter, raising=False)
            # The counters are on the same socket; their thread waits for its interval.
            monkeypatch.setattr(spark_recruits, "client_of", lambda: connect(url), raising=False)
            settings = replace(settings_for(), counters=f"{THIS}:client_of", interval=3600.0)
            wrapped = enlisting(lambda rows: (row for row in rows))
            monkeypatch.setenv(VARIABLE, settings.as_text())
            trips = []
            for task in range(3):
                begin(task)
                before = len(socket.seen)
                assert list(wrapped([1, 2])) == [1, 2]
                seen = socket.seen[before:]
                trips.append(len({(each.connection, each.batch) for each in seen}))
                assert "HINCRBY" not in socket.names()
            stats = recruiter.stats()["jobs"]["hash_field_expiry.t"]
            assert (stats["worked"], stats["items"]) == (3, 15)
            # The first one of a worker connects, and reads the layout.
            assert max(trips[1:]) <= 5, trips
            assert workers.flush(30.0)
            assert "HINCRBY" in socket.names()
            worker = workers._worker
            assert worker is not None
            worker.close()


class TestLastCounts:
    """Whose counts are sent at once: those of a worker that ends."""

    @pytest.fixture
    def flushed(self, recruiter: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many had enlisted at each flush."""
        calls: list[int] = []
        monkeypatch.setattr(
            workers.WorkerRecruiter,
            "flush",
            lambda *arguments: calls.append(enlisted(recruiter)) or True,
        )
        return calls

    def test_not_after_a_task_that_went_well(self, flushed: list[int]) -> None:
        begin(1)
        enlisting(lambda: 1)()
        assert flushed == []

    def test_after_a_task_that_failed_though_it_had_enlisted(self, flushed: list[int]) -> None:
        begin(1)
        enlisting(lambda: 1)()
        with pytest.raises(ZeroDivisionError):
            enlisting(lambda: 1 / 0)()
        assert flushed == [1]
        begin(2)
        with pytest.raises(ZeroDivisionError):
            enlisting(lambda: 1 / 0)()
        assert flushed == [1, 2]

    def test_after_every_task_of_a_worker_that_is_not_used_again(
        self, flushed: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workers, "_IS_REUSED", False)
        for task in range(2):
            begin(task)
            enlisting(lambda: 1)()
        assert flushed == [1, 2]

    def test_not_in_the_driver(self, flushed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workers, "_IS_REUSED", False)
        enlist_batch(lambda rows, batch: None)(None, 0)
        assert flushed == []


class TestOneWorker:
    """One recruiter in a process, and another one in its child."""

    def test_the_factory_is_called_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        monkeypatch.setattr(
            spark_recruits, "make_counted", lambda: calls.append(1) or always(), raising=False
        )
        wrapped = loads(dumps_installed(monkeypatch))
        for attempt in range(5):
            begin(attempt)
            wrapped()
        assert calls == [1]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_child_makes_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spark_recruits, "make_drawn", always, raising=False)
        settings = settings_for("make_drawn")
        begin(1)
        workers.finish(settings)
        mine = workers._worker
        assert mine is not None
        with workers._lock:  # as if another thread held it
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    # The same attempt number, but another process.
                    workers.finish(settings)
                    its = workers._worker
                    status = 0 if its is not None and its is not mine else 2
                finally:
                    os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def dumps_installed(monkeypatch: pytest.MonkeyPatch) -> bytes:
    installation = installing.Installation(settings_for())
    monkeypatch.setattr(installing, "_installation", installation)
    pickled: bytes = dumps(enlisting(lambda: 1))
    return pickled
