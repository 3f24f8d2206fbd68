"""The ASGI middleware, spoken to in ASGI's own messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import workstealing
from support.held_slices import HeldSlices, until
from workstealing.integrations.asgi import (
    AsgiResponse,
    Message,
    Receive,
    Scope,
    Send,
    WorkStealingMiddleware,
)
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.deferral import current
from workstealing.testing import always, always_recruiting

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}


class Connection:
    """A client of one ASGI application, with the messages that it received."""

    def __init__(self, app: Any, events: list[object] | None = None) -> None:
        self.app = app
        self.sent: list[Message] = []
        self.events = events if events is not None else []
        self.gone = False

    async def receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        if self.gone:
            raise OSError("the client has gone")
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.events.append("last byte")

    async def get(self, **scope: Any) -> bytes:
        """Run one request to its end; return its body."""
        await self.app({**SCOPE, **scope}, self.receive, self.send)
        return b"".join(message.get("body", b"") for message in self.sent)


def start(status: int = 200, *headers: tuple[bytes, bytes], **more: Any) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers), **more}


def body(content: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def sending(*messages: Message) -> Any:
    """Return an application that answers with these messages."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
            await asyncio.sleep(0)

    return app


def wrapped(app: Any, recruiter: Recruiter, **options: Any) -> Any:
    return WorkStealingMiddleware(app, recruiter, **options)


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


@pytest.fixture
def held() -> Iterator[HeldSlices]:
    """Slices that the test holds; they are let go when it is over."""
    held = HeldSlices()
    yield held
    held.go.set()


class TestWhen:
    async def test_a_request_enlists_after_its_last_byte(
        self, recruiter: Recruiter, events: list[object]
    ) -> None:
        app = wrapped(sending(start(), body(b"a", more=True), body(b"b")), recruiter)
        assert await Connection(app, events).get() == b"ab"
        await until(lambda: "slice" in events)
        assert events == ["last byte", "slice"]
        assert enlisted(recruiter) == 1

    async def test_nothing_is_changed_on_the_way(self, recruiter: Recruiter) -> None:
        messages = [start(201, (b"x", b"y"), trailers=False), body(b"a", more=True), body(b"b")]
        connection = Connection(wrapped(sending(*messages), recruiter))
        await connection.get()
        assert all(sent is message for sent, message in zip(connection.sent, messages, strict=True))

    async def test_it_enlists_after_what_the_application_does_in_the_background(
        self, recruiter: Recruiter, events: list[object]
    ) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await send(body())
            assert enlisted(recruiter) == 0
            await asyncio.sleep(0)
            events.append("background")

        await Connection(wrapped(app, recruiter), events).get()
        await until(lambda: "slice" in events)
        assert events == ["last byte", "background", "slice"]

    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            ([start(), body()], 1),
            ([start(), {"type": "http.response.body"}], 1),
            ([start(), body(b"a", more=True)], 0),
            ([start()], 0),
            ([], 0),
            ([start(), {"type": "http.response.pathsend", "path": "/dev/null"}], 1),
            ([start(), {"type": "http.response.zerocopysend", "file": 0}], 1),
            ([start(), {"type": "http.response.zerocopysend", "file": 0, "more_body": True}], 0),
            ([start(trailers=True), {"type": "http.response.pathsend", "path": "/dev/null"}], 0),
            ([start(trailers=True), body()], 0),
            ([start(trailers=True), body(), {"type": "http.response.trailers"}], 1),
            (
                [
                    start(trailers=True),
                    body(),
                    {"type": "http.response.trailers", "more_trailers": True},
                ],
                0,
            ),
            ([{"type": "http.response.early_hint", "links": []}, start(), body()], 1),
            ([start(), body(), {"type": "http.response.debug", "info": {}}], 1),
        ],
    )
    async def test_only_a_finished_response_enlists(
        self, recruiter: Recruiter, messages: list[Message], expected: int
    ) -> None:
        await Connection(wrapped(sending(*messages), recruiter)).get()
        assert enlisted(recruiter) == expected

    async def test_when_reads_status_and_headers(self, recruiter: Recruiter) -> None:
        seen: list[AsgiResponse] = []

        def when(response: AsgiResponse) -> bool:
            seen.append(response)
            return response.headers.get("x-cache") == "hit"

        for value in (b"miss", b"hit"):
            answer = sending(start(200, (b"X-Cache", value), (b"a", b"1"), (b"a", b"2")), body())
            await Connection(wrapped(answer, recruiter, when=when)).get()
        assert enlisted(recruiter) == 1
        assert [each.status_code for each in seen] == [200, 200]
        assert seen[0].status == "200 OK"
        assert seen[0].headers["A"] == "1, 2"
        assert AsgiResponse(299, []).status == "299"

    async def test_a_when_that_raises_is_a_no(
        self, recruiter: Recruiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        def when(response: AsgiResponse) -> bool:
            raise ValueError("mine")

        with caplog.at_level(logging.WARNING):
            await Connection(wrapped(sending(start(), body(b"a")), recruiter, when=when)).get()
        assert enlisted(recruiter) == 0

    async def test_the_default_recruiter(self) -> None:
        before = workstealing.stats()["enlisted"]
        with always_recruiting(workstealing.default_recruiter):
            await Connection(WorkStealingMiddleware(sending(start(), body()))).get()
        assert workstealing.stats()["enlisted"] == before + 1


class TestPassing:
    @pytest.mark.parametrize("kind", ["websocket", "lifespan", "something new"])
    async def test_what_is_no_http_request_passes_untouched(
        self, recruiter: Recruiter, kind: str
    ) -> None:
        got: list[object] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            got.extend((scope, receive, send, current.get()))
            await send(start())
            await send(body())

        connection = Connection(None)
        scope = {"type": kind}
        receive, send = connection.receive, connection.send
        await wrapped(app, recruiter)(scope, receive, send)
        assert got[0] is scope
        assert got[1] is receive
        assert got[2] is send
        assert got[3] is None
        assert enlisted(recruiter) == 0

    async def test_an_error_passes_and_nobody_enlists(self, recruiter: Recruiter) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await send(body(b"all of it"))
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await Connection(wrapped(app, recruiter)).get()
        assert enlisted(recruiter) == 0
        assert current.get() is None

    async def test_a_client_that_has_gone(self, recruiter: Recruiter) -> None:
        connection = Connection(wrapped(sending(start(), body(b"a")), recruiter))
        connection.gone = True
        with pytest.raises(OSError, match="gone"):
            await connection.get()
        assert enlisted(recruiter) == 0

    async def test_a_cancelled_request_does_not_enlist(self, recruiter: Recruiter) -> None:
        waiting = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await send(body(b"a", more=True))
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(Connection(wrapped(app, recruiter)).get())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert enlisted(recruiter) == 0


class TestOnce:
    async def test_middleware_twice(self, recruiter: Recruiter) -> None:
        asked: list[str] = []
        inner = wrapped(sending(start(), body()), recruiter, when=lambda _: asked.append("inner"))
        outer = wrapped(inner, recruiter, when=lambda _: asked.append("outer") or True)
        await Connection(outer).get()
        assert asked == ["outer"]
        assert enlisted(recruiter) == 1

    async def test_middleware_and_decorators(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        async def load() -> bytes:
            return b"a"

        @recruiter.enlists
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(start())
            await send(body(await load()))

        for count in (1, 2):
            await Connection(wrapped(app, recruiter, when=lambda _: False)).get()
            assert enlisted(recruiter) == count

    async def test_a_decorated_handler_decides_for_its_own_request_among_many(self) -> None:
        recruiter = always()
        together = asyncio.Barrier(20)

        @recruiter.enlists(when=lambda response: response.status_code == 304)
        async def handler(number: int) -> int:
            await together.wait()
            return 304 if number % 4 == 0 else 200

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            number = int(scope["path"])
            # Odd requests have no decorated handler, so that the middleware's own `when` is asked.
            if number % 2:
                await together.wait()
                status = 200
            else:
                status = await handler(number)
            await send(start(status))
            await together.wait()
            await send(body())

        middle = wrapped(app, recruiter, when=lambda _: False)
        await asyncio.gather(*(Connection(middle).get(path=str(n)) for n in range(20)))
        assert enlisted(recruiter) == 5
        assert current.get() is None

    async def test_a_task_that_outlives_its_request_enlists_for_itself(
        self, recruiter: Recruiter
    ) -> None:
        over = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        @recruiter.enlists
        async def later() -> None: ...

        async def rest() -> None:
            await over.wait()
            await later()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            tasks.append(asyncio.create_task(rest()))
            await send(start())
            await send(body())

        await Connection(wrapped(app, recruiter, when=lambda _: False)).get()
        assert enlisted(recruiter) == 0
        over.set()
        await tasks[0]
        assert enlisted(recruiter) == 1


class TestNobodyWaits:
    async def test_the_loop_goes_on_while_a_slice_runs(self, held: HeldSlices) -> None:
        app = wrapped(sending(start(), body(b"a")), held.recruiter)
        assert await Connection(app).get() == b"a"
        await until(held.begun.is_set)
        # Neither another task nor other requests stand still while it lasts.
        counted = 0

        async def count() -> None:
            nonlocal counted
            for _ in range(1_000):
                await asyncio.sleep(0)
                counted += 1

        counter = asyncio.create_task(count())
        for _ in range(10):
            assert await Connection(app).get() == b"a"
        await counter
        assert counted == 1_000
        assert held.worked == 0
        held.go.set()
        await until(lambda: held.worked)
        assert held.enlisted == 11

    async def test_a_slice_that_raises_harms_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def fails(slice: Slice) -> int:
            raise OSError("no such server")

        app = wrapped(sending(start(), body(b"a")), recruiter)
        assert await Connection(app).get() == b"a"
        await until(lambda: "no such server" in caplog.text)
        assert recruiter.stats()["jobs"]["fails"]["failed"] == 1

    async def test_a_base_exception_of_a_slice_ends_neither_loop_nor_request(self) -> None:
        recruiter = always()

        @recruiter.job(rate=1.0)
        def leaves(slice: Slice) -> int:
            raise SystemExit(3)

        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        app = wrapped(sending(start(), body(b"a")), recruiter)
        assert await Connection(app).get() == b"a"
        await until(lambda: recruiter.stats()["jobs"]["leaves"]["failed"])
        assert await Connection(app).get() == b"a"

    async def test_an_enlister_of_the_users_own(self) -> None:
        class Mine:
            count = 0

            def enlist(self) -> None:
                self.count += 1

        mine = Mine()
        await Connection(WorkStealingMiddleware(sending(start(), body()), mine)).get()
        assert mine.count == 1


def test_it_needs_no_framework(run_python: Callable[[str], str]) -> None:
    program = (
        "import sys; import workstealing.integrations.asgi\n"
        "print([name for name in ('starlette', 'fastapi', 'aiohttp', 'redis', 'asyncio')"
        " if name in sys.modules])"
    )
    assert run_python(program) == "[]"
