"""QueueWorker in a program of one's own: spans, ends, races, and what is no argument."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.faulty_server import FaultyServer
from support.pages import running
from support.patience import GUARD_SECONDS
from support.servers import RedisServer, client_at, wait_until
from workstealing import queue_worker
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.queue_worker import QueueWorker
from workstealing.recruiting import Recruiter
from workstealing.structures import AsyncFairQueue, FairQueue, ShuffleQueue
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Start = Callable[..., QueueWorker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start workers, which are stopped after the test."""
    made: list[QueueWorker] = []

    def started(queue: Any, handler: Any, **options: Any) -> QueueWorker:
        made.append(QueueWorker(queue, handler, **options))
        made[-1].start()
        return made[-1]

    yield started
    for each in made:
        each.stop(0)


def has(worker: QueueWorker, **ends: int) -> None:
    """Wait until the worker's messages have ended so."""

    def is_so() -> bool:
        return {name: count for name, count in worker.ends.items() if count} == ends

    wait_until(is_so, f"{ends} of {worker.ends}", GUARD_SECONDS)


class Holding:
    """A handler that says that it has begun, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, message: Any) -> None:
        self.begun.set()
        assert self.go.wait(GUARD_SECONDS)


class TestSpans:
    @pytest.fixture
    def spans(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """An exporter in memory, of a provider that only this test has."""
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
        return exporter

    @pytest.mark.parametrize("kind", ["shuffle", "fair", "time"])
    def test_a_message_has_one(
        self, redis7: RedisServer, start: Start, spans: Any, kind: str
    ) -> None:
        from opentelemetry import trace

        client = redis7.client()
        queue: Any
        if kind == "time":
            queue = TimeShardQueue(RedisStore(client), "q", period=36_000)
            known = queue.put("x")
        else:
            queue = (ShuffleQueue if kind == "shuffle" else FairQueue)(
                client, "q", *([60.0][: kind == "fair"])
            )
            known = queue.write("t", {"n": 1, "traceparent": PARENT})
        seen: list[Any] = []

        async def handler(message: Any) -> None:
            await asyncio.sleep(0)
            seen.append(trace.get_current_span().get_span_context().span_id)

        worker = start(queue, handler, drain_all=kind == "time")
        has(worker, done=1)
        (span,) = spans.get_finished_spans()
        assert (span.name, span.kind) == ("process q", trace.SpanKind.CONSUMER)
        assert seen == [span.context.span_id]
        attributes = dict(span.attributes)
        assert attributes.pop("queue.pickup_delay_ms") >= 0
        group = {"messaging.consumer.group.name": "consumers"} if kind == "shuffle" else {}
        assert attributes == {
            "messaging.system": "redis",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "q",
            "messaging.message.id": known,
            "queue.attempts": 1,
            **group,
        }
        assert span.status.status_code is trace.StatusCode.UNSET
        if kind == "time":
            assert span.parent is None
        else:
            assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
            assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]

    def test_an_error_is_recorded(self, redis7: RedisServer, start: Start, spans: Any) -> None:
        from opentelemetry import trace

        queue = FairQueue(redis7.client(), "q", 60.0)
        queue.write("t", {"n": 1})

        def fail(message: Any) -> None:
            raise ValueError("no")

        has(start(queue, fail, backoff=3600.0), failed=1)
        (span,) = spans.get_finished_spans()
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.attributes["error.type"] == "ValueError"
        assert [event.name for event in span.events] == ["exception"]

    def test_none_without_opentelemetry(
        self, redis7: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [each for each in sys.modules if each.split(".")[0] == "opentelemetry"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        queue = FairQueue(redis7.client(), "q", 60.0)
        queue.write("t", {"n": 1})
        has(start(queue, print), done=1)


class TestEnds:
    @pytest.fixture
    def queue(self, redis7: RedisServer) -> FairQueue:
        made = FairQueue(redis7.client(), "q", 3600.0)
        made.write("t", {"n": 1})
        return made

    @pytest.mark.parametrize(
        "case",
        [
            (redis.ConnectionError("cut off"), "unknown"),
            (redis.TimeoutError("no reply"), "unknown"),
            (redis.ResponseError("OOM"), "refused"),
            (LayoutError("foreign"), "refused"),
        ],
    )
    def test_a_failed_acknowledgement_is_sent_once(
        self,
        queue: FairQueue,
        start: Start,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        case: tuple[Exception, str],
    ) -> None:
        error, expected = case
        asked: list[Any] = []

        def ack(message: Any) -> int:
            asked.append(message)
            raise error

        monkeypatch.setattr(queue, "ack", ack)
        worker = start(queue, print)
        has(worker, **{expected: 1})
        assert worker.stop(5.0)
        assert len(asked) == 1
        told = "nobody knows" if expected == "unknown" else "was not settled"
        assert told in caplog.text

    def test_nobody_listens_so_it_was_not_settled(
        self, queue: FairQueue, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ack(message: Any) -> int:
            raise redis.ConnectionError("no connection") from ConnectionRefusedError()

        monkeypatch.setattr(queue, "ack", ack)
        has(start(queue, print), refused=1)

    def test_a_reply_that_was_cut_off(self, redis7: RedisServer, start: Start) -> None:
        """The server has done it, and the worker does not know."""
        for number in (1, 2):
            FairQueue(redis7.client(), "q", 3600.0).write("t", {"n": number})
        with FaultyServer(redis7.port) as door:
            # RESP2, so that the relay understands it; and no retries, as the command's client.
            client = client_at(door.port, protocol=2, retry=Retry(NoBackoff(), 0))

            def handler(message: Any) -> None:
                # The first acknowledgement loads the script.
                if message.fields[b"n"] == b"2":
                    door.fail(len(door.seen) + 1, "cut")

            worker = start(FairQueue(client, "q", 3600.0), handler)
            has(worker, done=1, unknown=1)
            door.settle()
            worker.stop(GUARD_SECONDS)
        assert FairQueue(redis7.client(), "q", 3600.0).length() == 0

    def test_an_exit_of_the_handler_is_a_failure(self, queue: FairQueue, start: Start) -> None:
        worker = start(queue, lambda message: sys.exit("bye"), backoff=3600.0)
        has(worker, failed=1)
        assert worker.failure is None

    def test_a_bug_of_ours_ends_it_and_is_shown(
        self, queue: FairQueue, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ack(message: Any) -> int:
            raise ZeroDivisionError

        monkeypatch.setattr(queue, "ack", ack)
        worker = start(queue, print)
        wait_until(lambda: worker.failure is not None, "the failure", GUARD_SECONDS)
        assert isinstance(worker.failure, ZeroDivisionError)
        assert worker.stop(0)

    def test_a_read_without_rights_ends_it_and_is_shown(
        self, queue: FairQueue, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: Any, **options: Any) -> Any:
            raise redis.exceptions.NoPermissionError("no right to run 'evalsha'")

        monkeypatch.setattr(FairQueue, "read", refuse)
        worker = start(queue, lambda message: None)
        wait_until(lambda: worker.failure is not None, "the failure", GUARD_SECONDS)
        assert isinstance(worker.failure, redis.exceptions.NoPermissionError)

    def test_an_undecodable_message_holds_up_no_other(
        self, redis7: RedisServer, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer = FairQueue(redis7.client(), "q", 3600.0)
        writer.write("t", {"n": b"\xff"})
        writer.write("t", {"n": b"well"})
        found: list[Any] = []
        texts = FairQueue(redis7.client(decode_responses=True), "q", 3600.0)
        worker = start(texts, lambda message: found.append(message.fields["n"]))
        has(worker, done=1)
        assert found == ["well"]
        assert "cannot be read by this client" in caplog.text

    def test_an_acknowledgement_that_finds_nothing_is_late(
        self, redis7: RedisServer, start: Start
    ) -> None:
        queue = FairQueue(redis7.client(), "q", 3600.0)
        queue.write("t", {"n": 1})
        holding = Holding()
        worker = start(queue, holding)
        assert holding.begun.wait(GUARD_SECONDS)
        queue.delete()
        holding.go.set()
        has(worker, late=1)

    def test_an_error_that_cannot_be_shown_is_a_failure(
        self, queue: FairQueue, start: Start
    ) -> None:
        class MuteError(Exception):
            def __str__(self) -> str:
                raise TypeError("no text")

        def fail(message: Any) -> None:
            raise MuteError

        worker = start(queue, fail, backoff=3600.0)
        has(worker, failed=1)
        assert worker.failure is None


class TestHeartbeats:
    def test_a_message_that_was_settled_meanwhile_is_not_lost(
        self,
        redis7: RedisServer,
        start: Start,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The heartbeat has asked, its handler returns and acknowledges, the reply says: gone."""
        queue = FairQueue(redis7.client(), "q", 0.5)
        queue.write("t", {"n": 1})
        holding, extend, asked = Holding(), queue.extend, threading.Event()

        def late(message: Any) -> int:
            holding.go.set()
            has(worker, done=1)
            asked.set()
            return extend(message)

        monkeypatch.setattr(queue, "extend", late)
        # Its lease may end on a busy machine, and then it is done by nobody else.
        worker = start(queue, holding)
        assert asked.wait(GUARD_SECONDS)
        worker.stop(GUARD_SECONDS)
        assert "was lost" not in caplog.text
        assert worker.ends["done"] == 1

    def test_they_go_on_after_a_fault(
        self, redis7: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = FairQueue(redis7.client(), "q", 0.9)
        queue.write("t", {"n": 1})
        holding, calls = Holding(), []

        def flaky(message: Any) -> int:
            calls.append(message)
            if len(calls) < 3:
                raise redis.ConnectionError("away")
            return 1

        monkeypatch.setattr(queue, "extend", flaky)
        worker = start(queue, holding)
        wait_until(lambda: len(calls) >= 4, "heartbeats", GUARD_SECONDS)
        assert worker.in_hand == 1
        holding.go.set()

    def test_a_beat_that_asks_nothing_says_nothing_of_the_server(
        self,
        redis7: RedisServer,
        start: Start,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The server is away, and the last handler has ended meanwhile."""
        queue = FairQueue(redis7.client(), "q", 0.3)
        queue.write("t", {"n": 1})
        holding, acking, go = Holding(), threading.Event(), threading.Event()

        def extend(message: Any) -> int:
            holding.go.set()
            raise redis.ConnectionError("away")

        def ack(message: Any) -> int:
            acking.set()
            assert go.wait(GUARD_SECONDS)
            raise redis.ConnectionError("away")

        monkeypatch.setattr(queue, "extend", extend)
        monkeypatch.setattr(queue, "ack", ack)
        worker = start(queue, holding)
        assert acking.wait(GUARD_SECONDS)
        beats: list[Any] = []
        known = worker._extend
        monkeypatch.setattr(worker, "_extend", lambda hands: beats.append(hands) or known(hands))
        wait_until(lambda: len(beats) > 1, "beats without a message", GUARD_SECONDS)
        assert not any(beats)
        assert "cannot be reached" in caplog.text
        assert "can be reached again" not in caplog.text
        # A read that succeeds speaks for the heartbeats, too.
        go.set()
        wait_until(lambda: "can be reached again" in caplog.text, "a read", GUARD_SECONDS)

    def test_they_go_on_while_a_stop_waits(self, redis7: RedisServer, start: Start) -> None:
        queue = FairQueue(redis7.client(), "q", 3600.0)
        queue.write("t", {"n": 1})
        holding = Holding()
        worker = start(queue, holding)
        assert holding.begun.wait(GUARD_SECONDS)
        stopping = threading.Thread(target=worker.stop, args=(GUARD_SECONDS,))
        stopping.start()
        assert not worker.is_abandoned
        assert worker.in_hand == 1
        holding.go.set()
        stopping.join(GUARD_SECONDS)
        has(worker, done=1)


class TestStop:
    def test_a_message_of_the_last_read_is_given_back(
        self, redis7: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The read was under way when the stop came: no handler begins."""
        queue = FairQueue(redis7.client(), "q", 3600.0)
        queue.write("t", {"n": 1})
        read, reading, go = queue.read, threading.Event(), threading.Event()

        def late(*arguments: Any, **options: Any) -> Any:
            reading.set()
            assert go.wait(GUARD_SECONDS)
            return read(*arguments, **options)

        monkeypatch.setattr(queue, "read", late)
        handled: list[Any] = []
        worker = start(queue, handled.append)
        assert reading.wait(GUARD_SECONDS)
        stopping = threading.Thread(target=worker.stop, args=(GUARD_SECONDS,))
        stopping.start()
        wait_until(worker._stopping.is_set, "the stop")
        go.set()
        stopping.join(GUARD_SECONDS)
        assert handled == []
        has(worker, given_back=1)
        again = read("rival")
        assert again is not None
        assert again.attempts == 2

    def test_a_handler_that_ends_after_it_sends_nothing(
        self, redis7: RedisServer, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = FairQueue(redis7.client(), "q", 3600.0)
        queue.write("t", {"n": 1})
        holding = Holding()
        worker = start(queue, holding)
        assert holding.begun.wait(GUARD_SECONDS)
        assert worker.stop(0)
        assert worker.is_abandoned
        mine = queue.read("rival")
        assert mine is not None
        holding.go.set()
        wait_until(lambda: not worker.is_abandoned, "the handler's end", GUARD_SECONDS)
        assert "nothing was sent" in caplog.text
        assert {name: count for name, count in worker.ends.items() if count} == {"given_back": 1}
        assert queue.ack(mine) == 1

    def test_it_says_what_could_not_be_given_back(
        self, redis7: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = FairQueue(redis7.client(), "q", 3600.0)
        queue.write("t", {"n": 1})

        def nack(message: Any, **options: Any) -> int:
            raise redis.ConnectionError("away")

        monkeypatch.setattr(queue, "nack", nack)
        holding = Holding()
        worker = start(queue, holding)
        assert holding.begun.wait(GUARD_SECONDS)
        assert not worker.stop(0)
        has(worker, unknown=1)
        holding.go.set()

    @pytest.mark.parametrize("call", ["ack", "nack"])
    def test_it_says_what_could_not_be_settled_meanwhile(
        self, redis7: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """The handler ends in time, and nobody knows whether its end has reached the queue."""
        queue = FairQueue(redis7.client(), "q", 3600.0)
        queue.write("t", {"n": 1})

        def cut(message: Any, **options: Any) -> int:
            raise redis.ConnectionError("cut off")

        monkeypatch.setattr(queue, call, cut)
        begun, go = threading.Event(), threading.Event()

        def handler(message: Any) -> None:
            begun.set()
            assert go.wait(GUARD_SECONDS)
            if call == "nack":
                raise ValueError("no")

        worker = start(queue, handler)
        assert begun.wait(GUARD_SECONDS)
        answers: list[bool] = []
        stopping = threading.Thread(target=lambda: answers.append(worker.stop(GUARD_SECONDS)))
        stopping.start()
        wait_until(worker._stopping.is_set, "the stop")
        go.set()
        stopping.join(GUARD_SECONDS)
        has(worker, unknown=1)
        assert answers == [False]

    def test_a_worker_that_was_not_started(self, redis7: RedisServer) -> None:
        worker = QueueWorker(FairQueue(redis7.client(), "q", 60.0), print)
        assert worker.stop(0)
        assert redis7.client().dbsize() == 0


class TestPauses:
    def test_the_backoff_doubles_up_to_its_cap(self, redis7: RedisServer) -> None:
        queue = FairQueue(redis7.client(), "q", 60.0)
        worker = QueueWorker(queue, print, backoff=2.0, backoff_cap=15.0, chance=lambda: 1.0)
        assert [worker._backoff(n) for n in (1, 2, 3, 4, 9_999)] == [2.0, 4.0, 8.0, 15.0, 15.0]
        half = QueueWorker(queue, print, backoff=2.0, chance=lambda: 0.5)
        assert half._backoff(3) == 4.0

    def test_a_server_that_is_away_is_asked_ever_more_rarely(self) -> None:
        pauses = [queue_worker._pause(n, 1.0) for n in range(20)]
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (0.1, 5.0)
        assert queue_worker._pause(1000, 0.0) == 2.5

    def test_a_read_that_fails_is_tried_after_a_pause(
        self, redis7: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        queue = FairQueue(redis7.client(), "q", 60.0)
        queue.write("t", {"n": 1})
        read, paused = queue.read, []
        monkeypatch.setattr(
            queue_worker, "_pause", lambda faults, chance: paused.append(faults) or 0.001
        )

        def flaky(*arguments: Any, **options: Any) -> Any:
            if len(paused) < 5:
                raise redis.ConnectionError("away")
            return read(*arguments, **options)

        monkeypatch.setattr(queue, "read", flaky)
        with caplog.at_level(logging.INFO, "workstealing"):
            has(start(queue, print), done=1)
        assert paused == [0, 1, 2, 3, 4]
        assert caplog.text.count("the queue cannot be reached, trying on") == 1
        assert caplog.text.count("the queue can be reached again") == 1


@pytest.mark.parametrize(
    ("backoff", "said"),
    [(1.0, "again when its lease has ended, within 90 s"), (200.0, "within 3.33 min")],
)
def test_of_a_time_shard_queue_the_log_says_when_it_comes_again(
    redis7: RedisServer, start: Start, caplog: Any, backoff: float, said: str
) -> None:
    """A release would be no attempt, so a failed message waits for the end of its lease."""
    queue = TimeShardQueue(RedisStore(redis7.client()), "q", period=36_000)
    queue.put("x")
    options = {"lease": 90.0, "backoff": backoff, "chance": lambda: 1.0}
    worker = start(queue, int, drain_all=True, **options)  # int(a Taken) raises
    has(worker, failed=1)
    assert said in caplog.text


def test_it_enlists_only_with_nothing_in_hand(redis7: RedisServer, start: Start) -> None:
    queue = TimeShardQueue(RedisStore(redis7.client()), "q", period=36_000)
    queue.put("x")
    recruiter, seen = Recruiter(), []

    @recruiter.job(rate=1.0)
    def tidy(slice: Any) -> int:
        seen.append(worker.in_hand)
        return 0

    worker = QueueWorker(queue, print, drain_all=True, recruiter=recruiter)
    worker.start()
    wait_until(lambda: len(seen) >= 2, "recruits", GUARD_SECONDS)
    worker.stop(0)
    assert set(seen) == {0}


def _yields(message: Any) -> Iterator[None]:
    yield


async def _yields_later(message: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"handler": 7}, "7 cannot be called"),
        ({"handler": _yields}, "is a generator, whose body no call runs"),
        ({"handler": _yields_later}, "is a generator, whose body no call runs"),
        ({"concurrency": 0}, "concurrency is 0; expected a whole number, 1 to 1000"),
        ({"concurrency": True}, "concurrency is True"),
        ({"backoff": -1}, "backoff=-1 is no such time"),
        ({"backoff_cap": "x"}, "backoff_cap='x' is no such time"),
        ({"lease": 5.0}, "the lease of this FairQueue is 60 s, and not 5 s"),
        ({"group": "g"}, "group='g' is for a ShuffleQueue, and this is a FairQueue"),
        ({"drain_all": True}, "drain_all is for a TimeShardQueue, and this is a FairQueue"),
        ({"queue": "q"}, "no worker is for 'q'"),
        ({"queue": None}, "no worker is for None"),
    ],
)
def test_what_is_no_argument(redis7: RedisServer, options: dict[str, Any], expected: str) -> None:
    given = {"queue": FairQueue(redis7.client(), "q", 60.0), "handler": print, **options}
    with pytest.raises(ConfigurationError, match=expected):
        QueueWorker(given.pop("queue"), given.pop("handler"), **given)


async def test_an_asyncio_queue_is_refused(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        with pytest.raises(ConfigurationError, match="each in its blocking form"):
            QueueWorker(AsyncFairQueue(client, "q", 60.0), print)  # type: ignore[arg-type]


def test_it_is_started_once(redis7: RedisServer, start: Start) -> None:
    worker = start(FairQueue(redis7.client(), "q", 60.0), print)
    with pytest.raises(ConfigurationError, match="a worker is started once"):
        worker.start()


def test_the_page(redis7: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opentelemetry")
    with running("docs/queue_worker.md", replace={"redis.Redis()": "the_tests_client"}) as page:
        names = page.run(the_tests_client=redis7.client())
        names["queue"].write("shop", {"to": "bob@shop.test"})
        has(names["worker"], done=1)
        page.run()
        page.run()
    said = capsys.readouterr().out
    assert "to bob@shop.test\n" in said
    assert "'done': 1" in said
    message = names["queue"].read("c")
    assert message.fields[b"to"] == b"ann@shop.test"
