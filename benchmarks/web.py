"""What the WSGI middleware costs a request whose caller is dismissed."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

from enlist import recruiter_of
from figures import Figure, cost_figure, in_turn
from flask import Flask

from workstealing.integrations.wsgi import WorkStealingMiddleware

ROUNDS, CALLS = 40, 500
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def measure() -> list[Figure]:
    """Time a bare WSGI application and a small Flask one, each with and without the middleware."""
    flask = Flask("bench")
    flask.get("/")(lambda: "hello")
    return [
        _compare("wsgi_middleware", "the same call of a bare WSGI function", _hello),
        _compare("wsgi_middleware_flask", "the same request to a Flask app", flask.wsgi_app),
    ]


def _compare(name: str, reference: str, app: App) -> Figure:
    wrapped = WorkStealingMiddleware(app, recruiter_of(1))
    return cost_figure(name, reference, in_turn(_batch(wrapped), _batch(app), ROUNDS))


def _hello(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


def _batch(app: App) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            environ: dict[str, Any] = {"SERVER_PROTOCOL": "HTTP/1.1", "wsgi.input": io.BytesIO()}
            setup_testing_defaults(environ)
            body = app(environ, lambda *_: None)
            for _chunk in body:
                pass
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return (time.perf_counter() - start) / CALLS

    return run
