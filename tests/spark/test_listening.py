"""The driver's listener without a JVM: what it enlists for, what it logs, and what harms nobody."""

from __future__ import annotations

import json
import logging
import os
import threading
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from support.servers import wait_until
from workstealing.errors import ConfigurationError
from workstealing.spark import hearing, installing, listen, listening
from workstealing.spark.counting import JobTotals, Recruits
from workstealing.spark.hearing import Ending, QueryProxy, StreamEar, StreamProxy
from workstealing.spark.listening import (
    LINE_SECONDS,
    LOOK_SECONDS,
    MOST_WAITING,
    READ_SECONDS,
    DriverListener,
    as_json,
    as_page,
    figures_of,
    recruits_of_stats,
)
from workstealing.testing import ManualClock, always

AT = datetime(2026, 11, 24, 23, 5, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening._faults, "_silent", {})
    monkeypatch.setattr(hearing._faults, "_silent", {})
    monkeypatch.setattr(installing, "_installation", None)
    monkeypatch.setattr(listening, "_listener", None)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines that the listener has logged."""
    caplog.set_level(logging.INFO, "workstealing.spark")
    return lambda: [
        each.getMessage() for each in caplog.records if each.name == "workstealing.spark"
    ]


class Driver:
    """A driver whose enlists and totals a test sets."""

    def __init__(self) -> None:
        self.enlisted = 0
        self.stages: set[int] = set()
        self.shown: list[int] = []
        self.reads = 0
        self.is_over = False
        self.error: Exception | None = None
        self.clock = ManualClock()
        self.listener = DriverListener(
            self.enlist,
            self.totals,
            stages=lambda: self.stages,
            shows=[lambda totals: self.shown.append(totals.enlisted)],
            has_ended=lambda: self.is_over,
            clock=self.clock,
        )

    def enlist(self) -> None:
        self.enlisted += 1

    def totals(self) -> Recruits:
        self.reads += 1
        if self.error is not None:
            raise self.error
        job = JobTotals(recruited=self.enlisted, worked=self.enlisted, items=2 * self.enlisted)
        return Recruits(self.enlisted, {"note": job} if self.enlisted else {})


@pytest.fixture
def driver() -> Driver:
    return Driver()


class TestLines:
    """One line a batch query, one a minute of a stream, one at its end."""

    def test_a_query_has_a_line_with_what_was_done_since_the_last_one(
        self, driver: Driver, lines: Callable[[], list[str]]
    ) -> None:
        driver.listener.serve(Ending("query count ended after 1.50 s"))
        driver.listener.serve(Ending())
        driver.listener.serve(Ending("query collect failed"))
        assert lines() == [
            (
                "query count ended after 1.50 s; since the last line: 1 enlisted, 1 recruited,"
                " 2 items, 0 aborted, 0 failed"
            ),
            (
                "query collect failed; since the last line: 2 enlisted, 2 recruited,"
                " 4 items, 0 aborted, 0 failed"
            ),
        ]

    def test_a_stream_has_one_a_minute_and_one_at_its_end(
        self, driver: Driver, lines: Callable[[], list[str]]
    ) -> None:
        def serve(text: str, run: str, **options: Any) -> None:
            driver.listener.serve(Ending(text, run, **options))

        serve("stream a has done batch 0", "1")
        serve("stream b has done batch 0", "2")
        driver.clock.advance(LINE_SECONDS - 1)
        serve("stream a has done batch 1", "1")
        driver.clock.advance(1)
        serve("stream a has done batch 2", "1")
        serve("stream a ended", "1", is_last=True)
        assert [line.partition(";")[0] for line in lines()] == [
            "stream a has done batch 0",
            "stream b has done batch 0",
            "stream a has done batch 2",
            "stream a ended",
        ]
        # Each of them was a fast exit all the same.
        assert driver.enlisted == 5
        # An ended run is not remembered.
        assert set(driver.listener._spoken_at) == {"2"}

    def test_without_the_level_nothing_is_read_for_a_line(self, driver: Driver) -> None:
        logging.getLogger("workstealing.spark").setLevel(logging.WARNING)
        try:
            driver.listener.serve(Ending("query count ended"))
        finally:
            logging.getLogger("workstealing.spark").setLevel(logging.NOTSET)
        assert (driver.enlisted, driver.reads) == (1, 0)

    def test_counters_that_cannot_be_read_cost_a_try_in_ten_seconds(
        self, driver: Driver, lines: Callable[[], list[str]]
    ) -> None:
        driver.error = ConnectionError("nobody there")
        for _ in range(3):
            driver.listener.serve(Ending("query count ended"))
        assert driver.reads == 1
        assert lines() == ["query count ended; the counts could not be read"] * 3
        driver.error = None
        driver.clock.advance(READ_SECONDS)
        driver.listener.serve(Ending("query count ended"))
        assert "4 enlisted, 4 recruited, 8 items" in lines()[-1]

    def test_counters_that_begin_again_count_from_zero(
        self, driver: Driver, lines: Callable[[], list[str]]
    ) -> None:
        driver.listener.serve(Ending("one"))
        driver.enlisted = -1
        driver.listener.serve(Ending("two"))
        assert "0 enlisted, 0 recruited, 0 items" in lines()[-1]
        driver.listener.serve(Ending("three"))
        assert "1 enlisted, 1 recruited, 2 items" in lines()[-1]


class TestLooks:
    """Stages are asked for each second, totals are shown each ten."""

    def test_an_ended_stage_enlists_once_a_second(self, driver: Driver) -> None:
        driver.stages = {3, 4}
        driver.listener.look()
        driver.listener.look()
        assert driver.enlisted == 1
        driver.clock.advance(LOOK_SECONDS)
        driver.listener.look()
        assert driver.enlisted == 2
        driver.stages = set()
        driver.clock.advance(LOOK_SECONDS)
        driver.listener.look()
        assert driver.enlisted == 2

    def test_totals_are_shown_every_ten_seconds(self, driver: Driver) -> None:
        driver.listener.look()
        driver.listener.look()
        assert driver.shown == [0]
        driver.enlisted = 7
        driver.clock.advance(READ_SECONDS)
        driver.listener.look()
        assert driver.shown == [0, 7]


class TestThread:
    """The listener's own thread."""

    def test_it_serves_what_it_hears_and_ends_with_stop(self, driver: Driver) -> None:
        left = []
        listener = driver.listener.start(lambda: left.append("left"))
        assert listener.is_running
        for _ in range(20):
            listener.heard(Ending())
        listener.stop()
        assert driver.enlisted == 20
        assert left == ["left"]
        assert not listener.is_running
        listener.heard(Ending())
        listener.stop()
        assert (driver.enlisted, left) == (20, ["left"])
        assert not listener._thread.is_alive()  # type: ignore[union-attr]

    def test_it_ends_by_itself_with_its_session(self, driver: Driver) -> None:
        left: list[str] = []
        listener = driver.listener.start(lambda: left.append("left"))
        driver.is_over = True
        listener.heard(Ending())
        wait_until(lambda: not listener.is_running, "the listener to end")
        listener.stop()
        # There is no JVM any more in which it could leave.
        assert left == []

    def test_hearing_never_waits_for_a_slice(self, driver: Driver) -> None:
        goes_on, entered = threading.Event(), threading.Event()

        def enlist() -> None:
            entered.set()
            goes_on.wait()

        driver.listener._enlist = enlist
        listener = driver.listener.start()
        listener.heard(Ending())
        entered.wait()
        # The slice does not end, and yet each call returns; beyond a bound they are passed over.
        for _ in range(MOST_WAITING + 5):
            listener.heard(Ending())
        assert len(listener._waiting) == MOST_WAITING
        goes_on.set()
        listener.stop()

    def test_errors_of_everything_are_logged_and_end_nothing(
        self, driver: Driver, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> Any:
            raise ValueError("broken")

        driver.listener._enlist = driver.listener._stages = fail
        driver.listener._shows = [lambda totals: fail()]
        driver.error = ValueError("broken")
        listener = driver.listener.start(fail)
        listener.heard(Ending("query"))
        wait_until(lambda: "looking for ended stages" in caplog.text, "a look")
        assert listener.is_running
        listener.stop()
        assert not listener.is_running
        assert "an enlist of Spark's driver failed: ValueError: broken" in caplog.text

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_child_of_a_fork_has_none(self, driver: Driver) -> None:
        listener = driver.listener.start()
        with listener._changed:
            # As if another thread held the lock at the moment of the fork.
            pid = os.fork()
            if pid == 0:
                listener.heard(Ending("not heard"))
                os._exit(0 if not listener.is_running and not listener._waiting else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert listener.is_running
        listener.stop()


class FakeJava:
    """What Py4J hands over, as far as the proxies ask it."""

    def __init__(self, **answers: Any) -> None:
        for name, answer in answers.items():
            setattr(self, name, lambda answer=answer: answer)


def event(run: str, **answers: Any) -> FakeJava:
    return FakeJava(runId=FakeJava(toString=run), **answers)


class TestProxies:
    """What Spark calls never raises, and tells of each ending once."""

    def test_queries_of_the_session_have_a_text_and_those_of_its_copies_none(self) -> None:
        heard: list[Ending] = []
        proxy = QueryProxy(heard.append, lambda query: query == "mine")
        proxy.onSuccess("count", "mine", 1_234_567_890)
        proxy.onSuccess("count", "a stream's", 1)
        proxy.onFailure("collectToPython", "mine", "an error")
        assert heard == [
            Ending("query count ended after 1.23 s"),
            Ending(),
            Ending("query collectToPython failed"),
        ]
        assert proxy.equals(proxy)
        assert not proxy.equals(QueryProxy(heard.append, bool))
        assert -(2**31) <= proxy.hashCode() < 2**31

    def test_streams(self) -> None:
        heard: list[Ending] = []
        proxy = StreamProxy(StreamEar(heard.append))
        run = "0a0a0a0a-1111"
        proxy.onQueryStarted(event(run, name="likes"))
        batch = json.dumps({"runId": run, "name": "likes", "batchId": 7})
        proxy.onQueryProgress(FakeJava(progress=FakeJava(json=batch)))
        proxy.onQueryIdle(event(run))
        proxy.onQueryTerminated(event(run, exception=FakeJava(isDefined=True)))
        assert heard == [
            Ending("stream likes has done batch 7", run),
            Ending(),
            Ending("stream likes failed", run, is_last=True),
        ]
        # One that was there before, without a name.
        proxy.onQueryProgress(
            FakeJava(progress=FakeJava(json=json.dumps({"runId": run, "batchId": 1})))
        )
        assert heard[-1] == Ending("stream 0a0a0a0a has done batch 1", run)

    def test_an_error_stays_here(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(_: Any) -> Any:
            raise ValueError("broken")

        QueryProxy(lambda _: None, fail).onSuccess("count", None, 1)
        StreamProxy(StreamEar(lambda _: None)).onQueryProgress(None)
        assert "hearing that something of Spark's has ended failed" in caplog.text


class Cells(HTMLParser):
    """The texts of a page, and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.elements: set[str] = set()
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.add(tag)


class TestPages:
    """The page and its JSON, of the same totals."""

    TOTALS = Recruits(
        1_000,
        {
            "<script>alert(1)</script>": JobTotals(recruited=3, worked=2, failed=1, items=1_200),
            "b": JobTotals(recruited=1, idle=1, seconds=0.25),
        },
    )

    def test_the_page_shows_each_job_and_all_together_and_no_foreign_element(self) -> None:
        cells = Cells(as_page(self.TOTALS, "app-1", AT))
        assert {"<script>alert(1)</script>", "b", "all", "1,200", "0.250"} <= set(cells.texts)
        assert "script" not in cells.elements
        assert any("1,000 enlisted, 4 recruited, 1,200 items" in text for text in cells.texts)
        assert any("2026-11-24 23:05:09 UTC" in text for text in cells.texts)

    def test_the_json_has_the_same(self) -> None:
        said = json.loads(as_json(self.TOTALS, "app-1", AT))
        assert said["application"] == "app-1"
        assert said["at"] == "2026-11-24T23:05:09+00:00"
        assert said["totals"] == figures_of(self.TOTALS)
        assert said["totals"] == {
            "enlisted": 1_000,
            "recruited": 4,
            "worked": 2,
            "idle": 1,
            "aborted": 0,
            "failed": 1,
            "out_of_time": 0,
            "skipped": 0,
            "items": 1_200,
        }
        assert said["jobs"]["b"]["seconds"] == 0.25


class TestArguments:
    """listen() refuses before anything is changed."""

    def test_no_session(self) -> None:
        with pytest.raises(ConfigurationError, match="expects a SparkSession, not str"):
            listen("local[2]", always())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("recruiter", "error"),
        [
            (None, "install"),
            (17, "expected a Recruiter"),
            ("no path", "give the import path"),
        ],
    )
    def test_no_recruiter(
        self, recruiter: Any, error: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listening, "_require_session", lambda spark: None)
        with pytest.raises(ConfigurationError, match=error):
            listen(object(), recruiter)  # type: ignore[arg-type]

    def test_a_recruiters_own_figures_have_an_applications_shape(self) -> None:
        recruiter = always()
        recruiter.job(rate=1.0, name="count")(lambda slice: 3)
        recruiter.enlist()
        totals = recruits_of_stats(recruiter)
        assert (totals.enlisted, totals.jobs["count"].worked, totals.jobs["count"].items) == (
            1,
            1,
            3,
        )
        assert recruits_of_stats(None) == Recruits(0, {})


class ConnectStreams:
    """A stream manager of Spark Connect's, which calls listeners in this process."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.addListener = self.listeners.append
        self.removeListener = self.listeners.remove


@pytest.fixture
def connect_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session that is taken for one of Spark Connect's."""
    session = types.SimpleNamespace(streams=ConnectStreams(), is_stopped=False)
    monkeypatch.setattr(listening, "is_remote", lambda spark: spark is session)
    yield session
    if listening._listener is not None:
        listening._listener.stop()


class TestConnect:
    """Of Spark Connect only streams are heard."""

    def test_its_streams(self, connect_session: Any, lines: Callable[[], list[str]]) -> None:
        recruiter = always()
        recruiter.job(rate=1.0, name="count")(lambda slice: 3)
        listener = listen(connect_session, recruiter)
        (streams,) = connect_session.streams.listeners
        streams.onQueryStarted(FakeEvent(runId="r1", name="likes"))
        streams.onQueryProgress(FakeEvent(progress=FakeEvent(runId="r1", name="likes", batchId=3)))
        streams.onQueryIdle(FakeEvent(runId="r1"))
        streams.onQueryTerminated(FakeEvent(runId="r1", exception=None))
        listener.stop()
        assert recruiter.stats()["jobs"]["count"]["worked"] == 3
        assert [line.partition(";")[0] for line in lines()] == [
            "stream likes has done batch 3",
            "stream likes ended",
        ]
        assert connect_session.streams.listeners == []

    def test_a_later_call_ends_the_earlier_listener(self, connect_session: Any) -> None:
        first = listen(connect_session, always())
        second = listen(connect_session, always())
        assert not first.is_running
        assert second.is_running
        assert len(connect_session.streams.listeners) == 1
        connect_session.is_stopped = True
        wait_until(lambda: not second.is_running, "the listener to end with its session")


class FakeEvent:
    """An event as PySpark makes it."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
