"""The Flask extension, through Flask's own test client."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest
from werkzeug.test import Client

from workstealing.errors import ConfigurationError
from workstealing.integrations.flask import WorkStealing
from workstealing.integrations.wsgi import WorkStealingMiddleware
from workstealing.recruiting import Recruiter
from workstealing.recruiting.deferral import When, current
from workstealing.recruiting.slice import Slice


@pytest.fixture
def app(recruiter: Recruiter, events: list[object]) -> flask.Flask:
    """Return an app without the extension; its views note that they ran."""
    app = flask.Flask("shop")

    @app.get("/")
    def home() -> str:
        events.append("home")
        return "home"

    @app.get("/always")
    @recruiter.enlists
    def always() -> str:
        events.append("always")
        return "always"

    @app.get("/cached/<int:status>")
    @recruiter.enlists(when=lambda response: response.status_code == 304)
    def cached(status: int) -> tuple[str, int]:
        events.append("cached")
        return "", status

    @app.get("/stream")
    def stream() -> flask.Response:
        @recruiter.enlists
        def lines() -> Iterator[bytes]:
            for number in range(2):
                events.append(number)
                yield b"line"

        return flask.Response(lines(), headers={"Content-Length": "8"})

    @app.get("/unmeasured")
    def unmeasured() -> flask.Response:
        return flask.Response(iter([b"some", b"thing"]))

    @app.get("/broken")
    def broken() -> str:
        raise RuntimeError("broken")

    @app.get("/file")
    def file() -> flask.Response:
        return flask.send_file(io.BytesIO(b"file"), mimetype="text/plain")

    return app


def noting(seen: list[Any], read: Callable[[flask.Response], object]) -> When:
    """Return a `when` that always says yes and notes something of the response."""

    def when(response: flask.Response) -> bool:
        seen.append(read(response))
        return True

    return when


def get(app: Any, path: str, **options: Any) -> tuple[int, bytes]:
    """Run one request to its end, as a server does; return status and body."""
    environ = flask.Flask("client").test_request_context(path, **options).request.environ
    said: list[str] = []

    def start_response(status: str, _: Any, __: Any = None) -> Callable[[bytes], object]:
        said[:] = [status]
        return lambda data: None

    body = app(environ, start_response)
    try:
        data = b"".join(body)
    finally:
        close = getattr(body, "close", None)
        if close is not None:
            close()
    assert current.get() is None
    return int(said[0][:3]), data


def test_a_request_enlists_once(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter)
    assert get(app, "/") == (200, b"home")
    assert events == ["home", "slice"]
    assert get(app, "/always") == (200, b"always")
    assert events == ["home", "slice", "always", "slice"]
    assert recruiter.stats()["enlisted"] == 2


def test_the_slice_comes_after_the_close(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter)

    @app.get("/closing")
    def closing() -> flask.Response:
        response = flask.Response("ok")
        response.call_on_close(lambda: events.append("closed"))
        return response

    get(app, "/closing")
    assert events == ["closed", "slice"]


def test_init_app_later(app: flask.Flask, recruiter: Recruiter, events: list[object]) -> None:
    extension = WorkStealing(recruiter=recruiter)
    extension.init_app(app)
    assert app.extensions["workstealing"] is extension
    get(app, "/")
    assert events == ["home", "slice"]


def test_twice_is_an_error_and_changes_nothing(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    extension = WorkStealing(app, recruiter)
    before = app.wsgi_app
    with pytest.raises(ConfigurationError, match="recruiter= is <Flask 'shop'>; expected a Recr"):
        WorkStealing(Recruiter(), app)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"'shop'.*once"):
        WorkStealing(app, recruiter)
    assert app.extensions["workstealing"] is extension
    assert app.wsgi_app == before
    get(app, "/")
    assert events == ["home", "slice"]


def test_one_extension_on_two_apps(recruiter: Recruiter, events: list[object]) -> None:
    extension = WorkStealing(recruiter=recruiter)
    for name in ("one", "two"):
        app = flask.Flask(name)
        extension.init_app(app)
        assert get(app, "/")[0] == 404
    assert events == ["slice", "slice"]


def test_decorated_views_alone(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter, when=lambda response: False)
    get(app, "/")
    get(app, "/cached/200")
    assert "slice" not in events
    get(app, "/cached/304")
    get(app, "/always")
    assert events == ["home", "cached", "cached", "slice", "always", "slice"]


def test_without_the_extension_the_caller_waits(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    @app.after_request
    def note(response: flask.Response) -> flask.Response:
        events.append("response")
        return response

    get(app, "/always")
    assert events == ["always", "slice", "response"]


def test_when_receives_the_flask_response_while_the_request_is_at_hand(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    def when(response: flask.Response) -> bool:
        assert isinstance(response, flask.Response)
        events.append((flask.request.path, response.status_code, response.content_length))
        return False

    WorkStealing(app, recruiter, when)
    get(app, "/")
    assert events == ["home", ("/", 200, 4)]


@pytest.mark.parametrize("path", ["/decorated", "/streamed"])
def test_a_decorators_when_receives_flasks_own_response(
    app: flask.Flask, recruiter: Recruiter, events: list[object], path: str
) -> None:
    """The extension has no `when`, so the app hands its responses over from this request on."""
    made: list[flask.Response] = []
    seen: list[flask.Response] = []

    @recruiter.enlists(when=noting(seen, lambda response: response))
    def part() -> str:
        return "part"

    @app.get("/decorated")
    def decorated() -> flask.Response:
        made.append(flask.Response(part()))
        return made[0]

    @app.get("/streamed")
    def streamed() -> flask.Response:
        made.append(flask.Response((part() for _ in "1"), headers={"Content-Length": "4"}))
        return made[0]

    WorkStealing(app, recruiter)
    assert get(app, path) == (200, b"part")
    assert len(made) == len(seen) == 1
    assert seen[0] is made[0]
    assert events == ["slice"]


def test_a_response_that_is_handed_over_twice_is_asked_about_once(
    app: flask.Flask, recruiter: Recruiter
) -> None:
    """Two threads may both find that the app does not hand its responses over yet."""
    seen: list[object] = []
    WorkStealing(app, recruiter, when=noting(seen, lambda response: response))
    application = app.wsgi_app.__self__  # type: ignore[attr-defined]
    application._is_telling = False
    application.tell()
    get(app, "/")
    assert len(seen) == 1


@pytest.mark.parametrize("early", [True, False])
def test_when_sees_what_after_request_made_of_the_response(
    app: flask.Flask, recruiter: Recruiter, events: list[object], early: bool
) -> None:
    extension = WorkStealing(recruiter=recruiter, when=lambda response: response.status_code == 304)
    if early:
        extension.init_app(app)

    @app.after_request
    def tag(response: flask.Response) -> flask.Response:
        response.set_etag("1")
        response.make_conditional(flask.request)
        return response

    if not early:
        extension.init_app(app)
    assert get(app, "/") == (200, b"home")
    assert get(app, "/", headers={"If-None-Match": '"1"'}) == (304, b"")
    assert events == ["home", "home", "slice"]


@pytest.mark.parametrize(("path", "status"), [("/missing", 404), ("/broken", 500)])
def test_error_pages_enlist(
    app: flask.Flask, recruiter: Recruiter, events: list[object], path: str, status: int
) -> None:
    seen: list[int] = []
    WorkStealing(app, recruiter, when=noting(seen, lambda response: response.status_code))
    assert get(app, path)[0] == status
    assert seen == [status]
    assert events == ["slice"]


def test_a_failing_after_request_still_shows_its_error_page(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    seen: list[object] = []
    WorkStealing(app, recruiter, when=noting(seen, lambda response: response))

    @app.after_request
    def fail(response: flask.Response) -> flask.Response:
        raise RuntimeError("broken")

    assert get(app, "/")[0] == 500
    assert len(seen) == 1
    assert isinstance(seen[0], flask.Response)
    assert seen[0].status_code == 500
    assert events == ["home", "slice"]


def test_an_exception_that_reaches_the_server_enlists_nobody(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    app.testing = True
    WorkStealing(app, recruiter)
    with pytest.raises(RuntimeError, match="broken"):
        get(app, "/broken")
    assert events == []
    assert current.get() is None


def test_a_stream_that_runs_after_its_view(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter, when=lambda response: False)
    assert get(app, "/stream") == (200, b"lineline")
    assert events == [0, 1, "slice"]


def test_a_stream_without_a_length_is_left_alone(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter)
    assert get(app, "/unmeasured") == (200, b"something")
    assert events == []


def test_head_and_file(app: flask.Flask, recruiter: Recruiter, events: list[object]) -> None:
    WorkStealing(app, recruiter)
    assert get(app, "/", method="HEAD") == (200, b"")
    assert events == ["home", "slice"]
    # Without the server's own file wrapper Flask brings werkzeug's.
    assert get(app, "/file") == (200, b"file")
    assert events == ["home", "slice", "slice"]


def test_the_outermost_wins(app: flask.Flask, recruiter: Recruiter, events: list[object]) -> None:
    asked: list[str] = []
    WorkStealing(app, recruiter, when=noting(asked, lambda _: "inner"))
    outside = WorkStealingMiddleware(app, recruiter, when=noting(asked, lambda _: "outer"))
    assert get(outside, "/") == (200, b"home")
    assert asked == ["outer"]
    assert events == ["home", "slice"]
    assert recruiter.stats()["enlisted"] == 1


def test_a_request_inside_a_request_belongs_to_it(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter, when=lambda response: response.data == b"outer")
    other = flask.Flask("other")
    WorkStealing(other, recruiter)

    @other.get("/")
    def inner() -> str:
        return "inner"

    @app.get("/outer")
    def outer() -> str:
        assert other.test_client().get("/").data == b"inner"
        events.append("still outer")
        return "outer"

    get(app, "/outer")
    assert events == ["still outer", "slice"]


def test_the_test_client_enlists(
    app: flask.Flask, recruiter: Recruiter, events: list[object]
) -> None:
    WorkStealing(app, recruiter)
    with app.test_client() as client:
        client.get("/").close()
    assert events == ["home", "slice"]


class TestResponsesThatNobodyCloses:
    """As most tests leave those of Flask's client."""

    def test_each_runs_a_slice(
        self, app: flask.Flask, recruiter: Recruiter, events: list[object]
    ) -> None:
        WorkStealing(app, recruiter)
        client = app.test_client()
        kept = [client.get("/") for _ in range(3)]
        assert events == ["home", "slice"] * 3
        figures = recruiter.stats()
        (job,) = figures["jobs"].values()
        assert figures["enlisted"] == job["recruited"] == job["worked"] == 3
        for response in kept:
            assert response.data == b"home"
            response.close()
        assert events == ["home", "slice"] * 3

    def test_a_stream_does_at_its_end(
        self, app: flask.Flask, recruiter: Recruiter, events: list[object]
    ) -> None:
        WorkStealing(app, recruiter)
        response = app.test_client().get("/stream")
        assert "slice" not in events
        assert response.data == b"lineline"
        assert events == [0, 1, "slice"]
        response.close()
        assert events == [0, 1, "slice"]

    def test_a_fixture_of_the_plugin(self, always_recruiter: Recruiter) -> None:
        app, ran = flask.Flask("shop"), []
        app.get("/")(lambda: "home")

        @always_recruiter.job(rate=0.5)
        def each(slice: Slice) -> int:
            ran.append(slice)
            return 1

        WorkStealing(app, always_recruiter)
        for _ in range(10):
            app.test_client().get("/")
        assert len(ran) == 10

    def test_a_middleware_alone(self, recruiter: Recruiter, events: list[object]) -> None:
        def plain(_: Any, start_response: Any) -> list[bytes]:
            events.append("plain")
            start_response("200 OK", [("Content-Length", "5")])
            return [b"plain"]

        client = Client(WorkStealingMiddleware(plain, recruiter))
        client.get("/")
        assert events == ["plain", "slice"]


def test_without_flask_the_error_names_the_extra() -> None:
    program = (
        "import sys\n"
        "sys.modules['flask'] = None\n"
        "from workstealing.errors import MissingExtraError\n"
        "try:\n"
        "    import workstealing.integrations.flask\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert "pip install 'workstealing[flask]'" in done.stdout


@pytest.mark.parametrize("default", [None, lambda response: True])
def test_a_decorated_view_that_raises_or_aborts_does_not_enlist(
    recruiter: Recruiter, default: When | None
) -> None:
    app = flask.Flask("shop")
    WorkStealing(app, recruiter, when=default)

    @recruiter.enlists
    def look_up(key: str) -> str:
        raise KeyError(key)

    @app.get("/raises")
    @recruiter.enlists
    def raises() -> str:
        raise LookupError

    @app.get("/aborts")
    @recruiter.enlists
    def aborts() -> str:
        flask.abort(404)

    @app.get("/handled")
    @recruiter.enlists(when=lambda response: True)
    def handled() -> str:
        raise ZeroDivisionError

    @app.errorhandler(ZeroDivisionError)
    def answer(error: ZeroDivisionError) -> str:
        return "infinite"

    @app.get("/caught")
    @recruiter.enlists
    def caught() -> str:
        try:
            return look_up("k")
        except KeyError:
            return "none"

    @app.get("/answers")
    @recruiter.enlists
    def answers() -> tuple[str, int]:
        return "broken", 500

    for path, status in (("/raises", 500), ("/aborts", 404), ("/handled", 200)):
        assert get(app, path)[0] == status
        assert recruiter.stats()["enlisted"] == 0, path
    # Of two decorated functions the one that has not raised governs.
    assert get(app, "/caught")[0] == 200
    assert recruiter.stats()["enlisted"] == 1
    # A response is no exception, whatever its status.
    assert get(app, "/answers")[0] == 500
    assert recruiter.stats()["enlisted"] == 2
