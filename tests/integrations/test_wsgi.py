"""The middleware against PEP 3333, without a server."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest

import workstealing
from workstealing.errors import ConfigurationError
from workstealing.integrations.asgi import WorkStealingMiddleware as AsgiMiddleware
from workstealing.integrations.wsgi import (
    Headers,
    WorkStealingMiddleware,
    WsgiResponse,
    ends_by_itself,
)
from workstealing.recruiting import Recruiter
from workstealing.recruiting.deferral import current

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LENGTH_2 = [("Content-Type", "text/plain"), ("Content-Length", "2")]


def environment(**changes: Any) -> WSGIEnvironment:
    """Return the environ of a GET over HTTP/1.1 on a server that is not known to chunk."""
    environ: WSGIEnvironment = {"SERVER_PROTOCOL": "HTTP/1.1", "QUERY_STRING": ""}
    environ.update(changes)
    setup_testing_defaults(environ)
    return environ


class Server:
    """A server of one request that logs each thing it does."""

    def __init__(self, events: list[object]) -> None:
        self.events = events
        self.sent = False
        self.status: str | None = None

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        """Take a response's start, as PEP 3333 says."""
        if exc_info is not None:
            try:
                if self.sent:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None
        elif self.status is not None:
            raise AssertionError("headers already set")
        self.status = status
        return self.write

    def write(self, data: bytes) -> None:
        """Send a piece of body."""
        assert self.status is not None
        self.sent = True
        self.events.append(data)

    def serve(self, app: WSGIApplication, environ: WSGIEnvironment) -> None:
        """Run one request to its end."""
        result = app(environ, self.start_response)
        try:
            for data in result:
                self.write(data)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
        assert current.get() is None


class Body:
    """An iterable that notes its close."""

    def __init__(self, events: list[object], *chunks: bytes) -> None:
        self.events = events
        self.chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)

    def close(self) -> None:
        """Note it."""
        self.events.append("close")


def plain(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer "ok" with its length."""
    start_response("200 OK", LENGTH_2)
    return [b"ok"]


def test_enlists_after_the_last_byte_and_the_close(
    recruiter: Recruiter, events: list[object]
) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        return Body(events, b"o", b"k")

    Server(events).serve(WorkStealingMiddleware(app, recruiter), environment())
    assert events == [b"o", b"k", "close", "slice"]
    assert recruiter.stats()["enlisted"] == 1


def test_a_list_keeps_its_length(recruiter: Recruiter, events: list[object]) -> None:
    result = WorkStealingMiddleware(plain, recruiter)(environment(), Server(events).start_response)
    assert len(result) == 1  # type: ignore[arg-type]
    # gevent's pywsgi reads a list twice: once for its length.
    assert list(result) == [b"ok"]
    assert list(result) == [b"ok"]
    result.close()  # type: ignore[attr-defined]
    assert events == ["slice"]


def test_a_generator_has_no_length(recruiter: Recruiter, events: list[object]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", LENGTH_2)
        yield b"ok"

    result = WorkStealingMiddleware(app, recruiter)(environment(), Server(events).start_response)
    assert not hasattr(result, "__len__")


@pytest.mark.parametrize("chunks", [(), (b"",), (b"ok",), (b"o", b"k")])
@pytest.mark.parametrize("kind", ["list", "tuple", "generator", "closable", "write"])
def test_wsgiref_finds_no_fault(
    recruiter: Recruiter, events: list[object], kind: str, chunks: tuple[bytes, ...]
) -> None:
    def generate() -> Iterator[bytes]:
        yield from chunks

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        length = str(sum(map(len, chunks)))
        write = start_response(
            "200 OK", [("Content-Type", "text/plain"), ("Content-Length", length)]
        )
        match kind:
            case "list":
                return list(chunks)
            case "tuple":
                return chunks
            case "generator":
                return generate()
            case "closable":
                return Body(events, *chunks)
            case _:
                for chunk in chunks:
                    write(chunk)
                return []

    middleware = validator(WorkStealingMiddleware(validator(app), recruiter))
    Server(events).serve(middleware, environment())
    assert [event for event in events if isinstance(event, bytes)] == list(chunks)
    assert events[-1] == "slice"
    assert events.count("slice") == 1


def test_wsgiref_finds_no_fault_in_a_late_start(recruiter: Recruiter, events: list[object]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        events.append("running")
        start_response("200 OK", LENGTH_2)
        yield b"o"
        yield b"k"

    middleware = validator(WorkStealingMiddleware(validator(app), recruiter))
    server = Server(events)
    result = middleware(environment(), server.start_response)
    assert events == []
    iterator = iter(result)
    assert next(iterator) == b"o"
    assert events == ["running"]
    assert list(iterator) == [b"k"]
    result.close()  # type: ignore[attr-defined]
    assert events == ["running", "slice"]


def test_an_error_page_replaces_the_page(recruiter: Recruiter, events: list[object]) -> None:
    asked: list[int] = []

    def when(response: WsgiResponse) -> bool:
        asked.append(response.status_code)
        return response.status_code == 500

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        try:
            raise RuntimeError("no page")
        except RuntimeError:
            start_response("500 Sorry", LENGTH_2, sys.exc_info())
        return [b"no"]

    server = Server(events)
    server.serve(validator(WorkStealingMiddleware(validator(app), recruiter, when)), environment())
    assert server.status == "500 Sorry"
    assert asked == [200, 500]
    assert events == [b"no", "slice"]


def test_an_error_after_the_first_byte_goes_to_the_server(
    recruiter: Recruiter, events: list[object]
) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", LENGTH_2)
        yield b"o"
        try:
            raise RuntimeError("too late")
        except RuntimeError:
            start_response("500 Sorry", LENGTH_2, sys.exc_info())
        yield b"never"

    with pytest.raises(RuntimeError, match="too late"):
        Server(events).serve(WorkStealingMiddleware(app, recruiter), environment())
    assert events == [b"o"]
    assert current.get() is None


def test_a_second_start_without_an_error_is_the_servers_business(
    recruiter: Recruiter, events: list[object]
) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        start_response("200 OK", LENGTH_2)
        return [b"ok"]

    with pytest.raises(AssertionError, match="already set"):
        Server(events).serve(WorkStealingMiddleware(app, recruiter), environment())
    assert events == []


def test_an_app_that_raises(recruiter: Recruiter, events: list[object]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Server(events).serve(WorkStealingMiddleware(app, recruiter), environment())
    assert events == []
    assert current.get() is None


def test_a_body_that_raises_is_closed_and_enlists_nobody(
    recruiter: Recruiter, events: list[object]
) -> None:
    class Broken(Body):
        def __iter__(self) -> Iterator[bytes]:
            yield b"o"
            raise RuntimeError("broken")

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        return Broken(events)

    with pytest.raises(RuntimeError, match="broken"):
        Server(events).serve(WorkStealingMiddleware(app, recruiter), environment())
    assert events == [b"o", "close"]
    assert current.get() is None


def test_a_close_that_raises_enlists_nobody(recruiter: Recruiter, events: list[object]) -> None:
    class Broken(Body):
        def close(self) -> None:
            raise RuntimeError("broken")

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        return Broken(events, b"ok")

    with pytest.raises(RuntimeError, match="broken"):
        Server(events).serve(WorkStealingMiddleware(app, recruiter), environment())
    assert events == [b"ok"]
    assert current.get() is None


def test_a_client_that_left_early(recruiter: Recruiter, events: list[object]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        return Body(events, b"o", b"k")

    result = WorkStealingMiddleware(app, recruiter)(environment(), Server(events).start_response)
    assert next(iter(result)) == b"o"
    result.close()  # type: ignore[attr-defined]
    result.close()  # type: ignore[attr-defined]
    assert events == ["close", "slice", "close"]


def test_the_handlers_own_decision_governs(recruiter: Recruiter, events: list[object]) -> None:
    @recruiter.enlists(when=lambda response: response.headers.get("x-cache") == "hit")
    def page(start_response: StartResponse, cache: str) -> Iterable[bytes]:
        start_response("200 OK", [*LENGTH_2, ("X-Cache", cache)])
        return [b"ok"]

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return page(start_response, environ["PATH_INFO"].strip("/"))

    middleware = WorkStealingMiddleware(app, recruiter)
    Server(events).serve(middleware, environment(PATH_INFO="/miss"))
    assert events == [b"ok"]
    Server(events).serve(middleware, environment(PATH_INFO="/hit"))
    assert events == [b"ok", b"ok", "slice"]


def test_several_decorated_calls_enlist_once(recruiter: Recruiter, events: list[object]) -> None:
    @recruiter.enlists
    def part() -> bytes:
        events.append("part")
        return b"o"

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", LENGTH_2)
        yield part()
        yield part()

    middleware = WorkStealingMiddleware(app, recruiter, when=lambda response: False)
    Server(events).serve(middleware, environment())
    assert events == ["part", b"o", "part", b"o", "slice"]


def test_undecorated_requests_do_not_enlist_when_only_decorated_ones_shall(
    recruiter: Recruiter, events: list[object]
) -> None:
    middleware = WorkStealingMiddleware(plain, recruiter, when=lambda response: False)
    Server(events).serve(middleware, environment())
    assert events == [b"ok"]
    assert recruiter.stats()["enlisted"] == 0


def test_the_outermost_wins(recruiter: Recruiter, events: list[object]) -> None:
    inner = WorkStealingMiddleware(plain, recruiter)
    Server(events).serve(WorkStealingMiddleware(inner, recruiter), environment())
    assert events == [b"ok", "slice"]
    Server(events).serve(
        WorkStealingMiddleware(inner, recruiter, when=lambda response: False), environment()
    )
    assert events == [b"ok", "slice", b"ok"]


def test_the_default_recruiter(events: list[object]) -> None:
    before = workstealing.stats()["enlisted"]
    Server(events).serve(WorkStealingMiddleware(plain), environment())
    assert events == [b"ok"]
    assert workstealing.stats()["enlisted"] == before + 1


def test_two_requests_in_turns_on_one_thread(recruiter: Recruiter, events: list[object]) -> None:
    """Two half-sent streams, as under a server that interleaves them, do not see each other."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        name = environ["PATH_INFO"]

        class Named:
            def enlist(self) -> None:
                events.append(name)

        start_response("200 OK", LENGTH_2)
        yield b"o"
        deferral = current.get()
        assert deferral is not None
        deferral.offer(Named())
        yield b"k"

    middleware = WorkStealingMiddleware(app, recruiter)
    bodies = [
        middleware(environment(PATH_INFO=path), Server(events).start_response)
        for path in ("/a", "/b")
    ]
    for chunks in zip(*(iter(body) for body in bodies), strict=True):
        assert chunks[0] == chunks[1]
        assert current.get() is None
    for body in bodies:
        body.close()  # type: ignore[attr-defined]
    assert events == ["/a", "/b"]


def test_each_thread_has_its_own_request(recruiter: Recruiter) -> None:
    meet = threading.Barrier(2, timeout=120)
    seen: dict[str, object] = {}

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        meet.wait()
        seen[environ["PATH_INFO"]] = current.get()
        meet.wait()
        return plain(environ, start_response)

    middleware = WorkStealingMiddleware(app, recruiter)
    threads = [
        threading.Thread(target=Server([]).serve, args=(middleware, environment(PATH_INFO=path)))
        for path in ("/a", "/b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert seen["/a"] is not None
    assert seen["/b"] is not None
    assert seen["/a"] is not seen["/b"]


def test_each_greenlet_has_its_own_request(recruiter: Recruiter, events: list[object]) -> None:
    gevent = pytest.importorskip("gevent")
    seen: dict[str, list[object]] = {}

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", LENGTH_2)
        for chunk in (b"o", b"k"):
            seen.setdefault(environ["PATH_INFO"], []).append(current.get())
            gevent.sleep(0)
            yield chunk

    middleware = WorkStealingMiddleware(app, recruiter)
    paths = ["/a", "/b", "/c"]
    greenlets = [
        gevent.spawn(Server([]).serve, middleware, environment(PATH_INFO=path)) for path in paths
    ]
    gevent.joinall(greenlets, timeout=30, raise_error=True)
    for first, second in seen.values():
        assert first is second
        assert first is not None
    assert len({id(both[0]) for both in seen.values()}) == 3
    assert events == ["slice"] * 3


@pytest.mark.parametrize(
    ("changes", "status", "headers", "answer"),
    [
        ({}, "200 OK", {"Content-Length": "2"}, True),
        ({}, "200 OK", {"content-length": "0"}, True),
        ({"SERVER_PROTOCOL": "HTTP/1.0"}, "200 OK", {"Content-Length": "2"}, True),
        ({"SERVER_PROTOCOL": "HTTP/1.0", "SERVER_SOFTWARE": "gunicorn/23"}, "200 OK", {}, False),
        ({"SERVER_PROTOCOL": "HTTP/1.0"}, "200 OK", {"Transfer-Encoding": "chunked"}, False),
        ({}, "200 OK", {}, False),
        ({}, "200 OK", {"Transfer-Encoding": "chunked"}, True),
        ({"SERVER_SOFTWARE": "gunicorn/23.0.0"}, "200 OK", {}, True),
        ({"SERVER_SOFTWARE": "gevent/24.2 Python/3.11"}, "200 OK", {}, True),
        ({"SERVER_SOFTWARE": "WSGIServer/0.2 CPython/3.11"}, "200 OK", {}, False),
        ({"SERVER_SOFTWARE": "gunicorn/23", "SERVER_PROTOCOL": "HTTP/2.0"}, "200 OK", {}, False),
        ({"SERVER_PROTOCOL": "HTTP/1.0"}, "304 Not Modified", {}, True),
        ({"SERVER_PROTOCOL": "HTTP/1.0"}, "204 No Content", {}, True),
        ({"SERVER_PROTOCOL": "HTTP/1.0", "REQUEST_METHOD": "HEAD"}, "200 OK", {}, True),
        ({"SERVER_SOFTWARE": "gunicorn/23"}, "101 Switching Protocols", {}, False),
        ({"SERVER_SOFTWARE": "gunicorn/23"}, "nonsense", {}, False),
    ],
)
def test_which_responses_end_by_themselves(
    recruiter: Recruiter,
    events: list[object],
    *,
    changes: dict[str, str],
    status: str,
    headers: dict[str, str],
    answer: bool,
) -> None:
    environ = environment(**changes)
    assert ends_by_itself(environ, status, list(headers.items())) is answer

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(status, list(headers.items()))
        return []

    Server(events).serve(WorkStealingMiddleware(app, recruiter), environ)
    assert events == (["slice"] if answer else [])


def serve_file(
    make: Callable[[], Iterable[bytes]],
    middleware_of: Recruiter,
    events: list[object],
    **changes: Any,
) -> tuple[Iterable[bytes], Iterable[bytes]]:
    """Run an app that returns a file; return its result and the server's."""
    made: list[Iterable[bytes]] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", LENGTH_2)
        made.append(make())
        return made[0]

    environ = environment(**changes)
    result = WorkStealingMiddleware(app, middleware_of)(environ, Server(events).start_response)
    return made[0], result


class FileLike:
    """A file that notes its close."""

    def __init__(self, events: list[object]) -> None:
        self.events = events
        self.chunks = [b"ok", b""]

    def read(self, size: int = -1) -> bytes:
        """Return the next piece."""
        return self.chunks.pop(0)

    def close(self) -> None:
        """Note it."""
        self.events.append("file closed")


def test_the_servers_file_wrapper_stays_itself(recruiter: Recruiter, events: list[object]) -> None:
    returned, received = serve_file(
        lambda: FileWrapper(FileLike(events)),  # type: ignore[arg-type]
        recruiter,
        events,
        **{"wsgi.file_wrapper": FileWrapper, "SERVER_SOFTWARE": "gunicorn/23.0.0"},
    )
    assert received is returned
    received.close()  # type: ignore[attr-defined]
    received.close()  # type: ignore[attr-defined]
    assert events == ["file closed", "slice", "file closed"]


def test_a_file_wrapper_of_a_file_without_close(recruiter: Recruiter, events: list[object]) -> None:
    class Unclosable:
        def read(self, size: int = -1) -> bytes:
            return b""

    _, received = serve_file(
        lambda: FileWrapper(Unclosable()),  # type: ignore[arg-type]
        recruiter,
        events,
        **{"wsgi.file_wrapper": FileWrapper, "SERVER_SOFTWARE": "gunicorn/23.0.0"},
    )
    received.close()  # type: ignore[attr-defined]
    assert events == ["slice"]


def test_a_file_wrapper_of_an_unknown_server_is_left_alone(
    recruiter: Recruiter, events: list[object]
) -> None:
    returned, received = serve_file(
        lambda: FileWrapper(FileLike(events)),  # type: ignore[arg-type]
        recruiter,
        events,
        **{"wsgi.file_wrapper": FileWrapper, "SERVER_SOFTWARE": "waitress"},
    )
    assert received is returned
    received.close()  # type: ignore[attr-defined]
    assert events == ["file closed"]


def test_a_file_wrapper_that_takes_no_attribute_is_left_alone(
    recruiter: Recruiter, events: list[object]
) -> None:
    class Sealed:
        __slots__ = ()

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"ok"])

        def close(self) -> None:
            events.append("file closed")

    returned, received = serve_file(
        Sealed,
        recruiter,
        events,
        **{"wsgi.file_wrapper": Sealed, "SERVER_SOFTWARE": "gunicorn/23.0.0"},
    )
    assert received is returned
    received.close()  # type: ignore[attr-defined]
    assert events == ["file closed"]


def test_a_foreign_file_wrapper_is_an_ordinary_body(
    recruiter: Recruiter, events: list[object]
) -> None:
    # werkzeug brings its own where the server has none, and uWSGI's is a function.
    _, received = serve_file(
        lambda: FileWrapper(FileLike(events)),  # type: ignore[arg-type]
        recruiter,
        events,
        **{"wsgi.file_wrapper": lambda file, size: file},
    )
    assert list(received) == [b"ok"]
    received.close()  # type: ignore[attr-defined]
    assert events == ["file closed", "slice"]


def test_headers_are_found_in_any_case() -> None:
    headers = Headers([("ETag", '"1"'), ("Vary", "Accept"), ("vary", "Cookie")])
    assert headers["etag"] == headers["ETAG"] == '"1"'
    assert headers["Vary"] == "Accept, Cookie"
    assert "eTag" in headers
    assert not headers.__contains__(7)
    assert headers.get("X-Missing") is None
    assert dict(headers) == {"etag": '"1"', "vary": "Accept, Cookie"}
    assert len(headers) == 2
    with pytest.raises(KeyError):
        headers["X-Missing"]


@pytest.mark.parametrize("middleware", [WorkStealingMiddleware, AsgiMiddleware])
def test_arguments_in_another_order_are_refused(middleware: Any) -> None:
    def application(*_: object) -> list[bytes]:
        return []

    with pytest.raises(ConfigurationError, match=r"recruiter= is <function .* behind the applicat"):
        middleware(Recruiter(), application)
    with pytest.raises(ConfigurationError, match="when= is True; expected a function of the resp"):
        middleware(application, Recruiter(), when=True)


def test_a_response_can_only_be_read() -> None:
    response = WsgiResponse("404 Not Found", [("Content-Length", "0")])
    assert response.status == "404 Not Found"
    assert response.status_code == 404
    for name in ("status", "status_code", "headers"):
        with contextlib.suppress(AttributeError):
            setattr(response, name, None)
            pytest.fail(f"{name} could be set")
