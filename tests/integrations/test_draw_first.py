"""A dismissed request's response goes out as the application returned it; a recruit's waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

import flask
import pytest
from werkzeug.wsgi import ClosingIterator

from workstealing.integrations import asgi, wsgi
from workstealing.integrations.flask import WorkStealing
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.deferral import current
from workstealing.testing import RecordingHooks, never

HEADERS = [("Content-Type", "text/plain"), ("Content-Length", "5")]


def environment(**changes: Any) -> dict[str, Any]:
    environ: dict[str, Any] = {"SERVER_PROTOCOL": "HTTP/1.1", **changes}
    setup_testing_defaults(environ)
    return environ


def start_response(*_: Any) -> Any:
    return None


@pytest.fixture
def dismissing() -> Recruiter:
    """Return a recruiter that recruits nobody."""
    recruiter = never()
    recruiter.job(rate=1.0)(lambda slice: 1)
    return recruiter


def whole(environ: dict[str, Any], start: Any) -> list[bytes]:
    start("200 OK", HEADERS)
    return BODY


BODY = [b"hello"]


class TestWsgi:
    def test_the_response_of_a_dismissed_request_is_the_applications_own(
        self, dismissing: Recruiter
    ) -> None:
        app: Any = wsgi.WorkStealingMiddleware(whole, dismissing)  # type: ignore[arg-type]
        assert app(environment(), start_response) is BODY
        assert dismissing.stats()["enlisted"] == 1

    def test_a_recruits_response_is_followed_by_the_slice(
        self, recruiter: Recruiter, events: list[object]
    ) -> None:
        app: Any = wsgi.WorkStealingMiddleware(whole, recruiter)  # type: ignore[arg-type]
        body = app(environment(), start_response)
        assert (list(body), len(body), events) == (BODY, 1, [])
        body.close()
        body.close()
        assert events == ["slice"]
        assert recruiter.stats()["enlisted"] == 1

    @pytest.mark.parametrize("headers", [[], [("Content-Type", "text/plain")]])
    def test_a_response_whose_client_would_wait_does_not_draw(
        self, recruiter: Recruiter, headers: list[tuple[str, str]]
    ) -> None:
        def app(environ: dict[str, Any], start: Any) -> list[bytes]:
            start("200 OK", headers)
            return BODY

        wrapped: Any = wsgi.WorkStealingMiddleware(app, recruiter)  # type: ignore[arg-type]
        assert wrapped(environment(), start_response) is BODY
        assert recruiter.stats()["enlisted"] == 0

    def test_a_body_with_code_of_its_own_still_belongs_to_the_request(
        self, dismissing: Recruiter, recruiter: Recruiter, events: list[object]
    ) -> None:
        """What it calls must not make the client wait."""

        @recruiter.enlists
        def part() -> bytes:
            events.append("part")
            return b"hello"

        def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            start("200 OK", HEADERS)
            return (part() for _ in range(1))

        wrapped: Any = wsgi.WorkStealingMiddleware(app, dismissing, when=lambda response: False)  # type: ignore[arg-type]
        body = wrapped(environment(), start_response)
        assert list(body) == BODY
        assert events == ["part"]
        body.close()
        assert events == ["part", "slice"]

    def test_a_recruit_whose_body_breaks_is_skipped(self, recruiter: Recruiter) -> None:
        hooks = RecordingHooks()
        recruiter.add_hook(hooks)

        app: Any = wsgi.WorkStealingMiddleware(whole, recruiter)  # type: ignore[arg-type]
        body = app(environment(), start_response)
        body._exchange.drop()
        body.close()
        (figures,) = recruiter.stats()["jobs"].values()
        assert (figures["recruited"], figures["skipped"], figures["worked"]) == (1, 1, 0)

    def test_an_enlister_without_a_draw_is_asked_afterwards(self, events: list[object]) -> None:
        class Own:
            def enlist(self) -> None:
                events.append("enlisted")

        app: Any = wsgi.WorkStealingMiddleware(whole, Own())  # type: ignore[arg-type]
        body = app(environment(), start_response)
        assert (list(body), events) == (BODY, [])
        body.close()
        assert events == ["enlisted"]

    def test_a_whole_response_is_judged_by_the_last_word_of_its_application(
        self, dismissing: Recruiter
    ) -> None:
        seen: list[int] = []

        def app(environ: dict[str, Any], start: Any) -> list[bytes]:
            start("200 OK", HEADERS)
            start("500 Oops", HEADERS, (None, None, None))
            return BODY

        def when(response: wsgi.WsgiResponse) -> bool:
            seen.append(response.status_code)
            return response.status_code < 500

        wrapped: Any = wsgi.WorkStealingMiddleware(app, dismissing, when=when)  # type: ignore[arg-type]
        assert wrapped(environment(), start_response) is BODY
        assert seen == [200, 500]
        assert dismissing.stats()["enlisted"] == 0


class TestFlask:
    def answer(
        self, recruiter: Recruiter, view: Callable[[], Any], **options: Any
    ) -> tuple[flask.Flask, Any]:
        app = flask.Flask("shop")
        app.get("/")(view)
        WorkStealing(app, recruiter, **options)
        return app, app(environment(), start_response)

    def test_the_response_of_a_dismissed_request_is_flasks_own(self, dismissing: Recruiter) -> None:
        _, body = self.answer(dismissing, lambda: "hello")
        assert type(body) is ClosingIterator
        assert dismissing.stats()["enlisted"] == 1

    def test_what_is_called_on_close_still_belongs_to_the_request(
        self, dismissing: Recruiter, recruiter: Recruiter, events: list[object]
    ) -> None:
        @recruiter.enlists
        def tidy() -> None:
            events.append("tidy")

        def view() -> flask.Response:
            response = flask.make_response("hello")
            response.call_on_close(tidy)
            return response

        _, body = self.answer(dismissing, view, when=lambda response: False)
        assert (b"".join(body), events) == (b"hello", [])
        body.close()
        assert events == ["tidy", "slice"]

    @pytest.mark.parametrize("way", ["class", "iteration", "list", "patched", "wrapped", "foreign"])
    def test_code_that_runs_while_a_response_is_sent_belongs_to_the_request(
        self, dismissing: Recruiter, recruiter: Recruiter, events: list[object], way: str
    ) -> None:
        """It has a decorated function: the client must not wait for its slice."""

        @recruiter.enlists
        def tidy() -> None:
            events.append("tidy")

        class Closing(flask.Response):
            def close(self) -> None:
                super().close()
                tidy()

        class Iterating(flask.Response):
            def iter_encoded(self) -> Any:
                tidy()
                yield from super().iter_encoded()

        class Parts(list[bytes]):
            def close(self) -> None:
                tidy()

        def view() -> flask.Response:
            if way == "class":
                return Closing("hello")
            if way == "iteration":
                return Iterating("hello")
            response = flask.Response("hello")
            if way == "list":
                response.response = Parts(BODY)
            elif way == "patched":
                response.close = tidy  # type: ignore[method-assign]
            return response

        app = flask.Flask("shop")
        app.get("/")(view)
        if way == "wrapped":
            inner = app.wsgi_app
            app.wsgi_app = lambda environ, start: ClosingIterator(inner(environ, start), tidy)  # type: ignore[method-assign]
        elif way == "foreign":
            # A middleware's own iterable that ends like Flask's result.
            inner = app.wsgi_app

            def outer(environ: Any, start: Any) -> Any:
                result: Any = inner(environ, start)

                def parts() -> Any:
                    tidy()
                    yield from result

                return ClosingIterator(parts(), result._callbacks[-1])

            app.wsgi_app = outer  # type: ignore[method-assign]
        WorkStealing(app, dismissing)
        body: Any = app(environment(), start_response)
        events.append(b"".join(body))
        body.close()
        assert events[-1] == "slice"
        assert sorted(map(str, events[:2])) == ["b'hello'", "tidy"]
        assert (dismissing.stats()["enlisted"], recruiter.stats()["enlisted"]) == (0, 1)

    def test_a_recruits_response_is_followed_by_the_slice(
        self, recruiter: Recruiter, events: list[object]
    ) -> None:
        _, body = self.answer(recruiter, lambda: "hello")
        assert (b"".join(body), events) == (b"hello", [])
        body.close()
        assert events == ["slice"]

    def test_when_sees_the_response_once_with_its_request(self, dismissing: Recruiter) -> None:
        seen: list[tuple[str, int]] = []

        def when(response: flask.Response) -> bool:
            seen.append((flask.request.path, response.status_code))
            return True

        app = flask.Flask("shop")
        app.get("/")(lambda: "hello")

        @app.after_request
        def later(response: flask.Response) -> flask.Response:
            response.status_code = 203
            return response

        WorkStealing(app, dismissing, when=when)
        list(app(environment(), start_response))
        assert seen == [("/", 203)]
        assert dismissing.stats()["enlisted"] == 1


class TestAsgi:
    @staticmethod
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def run(self, recruiter: Recruiter, **options: Any) -> list[str]:
        sent: list[str] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        async def receive() -> Any:
            return {}

        wrapped: Any = asgi.WorkStealingMiddleware(self.app, recruiter, **options)
        await wrapped({"type": "http"}, receive, send)
        assert current.get() is None
        return sent

    async def test_a_dismissed_request_enlists_once(self, dismissing: Recruiter) -> None:
        assert len(await self.run(dismissing)) == 2
        assert dismissing.stats()["enlisted"] == 1

    async def test_a_recruits_slice_runs_in_a_thread(self) -> None:
        recruiter, done = Recruiter(), asyncio.Event()
        loop = asyncio.get_running_loop()

        @recruiter.job(rate=1.0)
        def tidy(slice: Slice) -> int:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            loop.call_soon_threadsafe(done.set)
            return 1

        await self.run(recruiter)
        async with asyncio.timeout(60):
            await done.wait()
