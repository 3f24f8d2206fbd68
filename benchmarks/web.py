"""What the integrations cost a request whose caller is dismissed, in empty Python calls.

Each figure is the time of a request with the integration, less that of the same request without it,
beside an empty call of the same run: a microsecond is about 38 of them.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

import django
from django.conf import settings
from django.http import HttpResponse
from enlist import recruiter_of
from figures import Figure, Target, cost_figure
from flask import Flask

from workstealing.integrations import asgi, wsgi
from workstealing.integrations.django import WorkStealingMiddleware
from workstealing.integrations.flask import WorkStealing
from workstealing.recruiting import Recruiter

ROUNDS, CALLS = 400, 100
PLAIN, FRAMEWORK = Target(most=38.0), Target(most=76.0)
Environ = dict[str, Any]
Batch = Callable[[], float]
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", "5")]


def measure() -> list[Figure]:
    """Time each integration around an application that answers five bytes."""
    recruiter = recruiter_of(1)
    wrapped: Any = wsgi.WorkStealingMiddleware(_hello, recruiter)  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    try:
        return [
            _extra("wsgi", _wsgi(wrapped), _wsgi(_hello), PLAIN),
            _extra(
                "asgi",
                _asgi(loop, asgi.WorkStealingMiddleware(_hello_async, recruiter)),
                _asgi(loop, _hello_async),
                PLAIN,
            ),
            _extra("flask", _wsgi(_flask(recruiter)), _wsgi(_flask(None)), FRAMEWORK),
            _extra("django", _django(recruiter), _django(None), FRAMEWORK),
        ]
    finally:
        loop.close()


def _extra(name: str, ours: Batch, bare: Batch, target: Target) -> Figure:
    """Return the extra cost in empty calls: of neighbouring batches, the quickest third counts.

    The extra is a hundredth of a framework's own time, which differs by more from batch to batch.
    """
    batches: dict[Batch, list[float]] = {ours: [], bare: [], _empty: []}
    for number in range(ROUNDS):
        for batch in (ours, bare, _empty)[:: -1 if number % 2 else 1]:
            batches[batch].append(batch())
    best = {batch: sorted(costs)[: ROUNDS // 3] for batch, costs in batches.items()}
    extra = [mine - theirs for mine, theirs in zip(best[ours], best[bare], strict=True)]
    return cost_figure(
        f"web_dismissed_{name}", "an empty Python call", (extra, best[_empty]), target
    )


def _empty() -> float:
    def empty() -> None:
        pass

    start = time.perf_counter()
    for _ in range(CALLS):
        empty()
    return (time.perf_counter() - start) / CALLS


def _start_response(*_: object) -> Any:
    return None


def _hello(_: Environ, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", HEADERS)
    return [b"hello"]


def _flask(recruiter: Recruiter | None) -> Any:
    app = Flask("bench")
    app.get("/")(lambda: "hello")
    if recruiter is not None:
        WorkStealing(app, recruiter)
    return app


def _wsgi(app: Any) -> Batch:
    def run() -> float:
        environs: list[Environ] = []
        for _ in range(CALLS):
            environ: Environ = {"SERVER_PROTOCOL": "HTTP/1.1", "wsgi.input": io.BytesIO()}
            setup_testing_defaults(environ)
            environs.append(environ)
        start = time.perf_counter()
        for environ in environs:
            body = app(environ, _start_response)
            for _chunk in body:
                pass
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return (time.perf_counter() - start) / CALLS

    return run


async def _hello_async(_: Any, __: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain"), (b"content-length", b"5")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello"})


def _asgi(loop: asyncio.AbstractEventLoop, app: Any) -> Batch:
    async def send(_: Any) -> None:
        pass

    async def receive() -> Any:
        return {}

    async def requests() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            await app({"type": "http"}, receive, send)
        return (time.perf_counter() - start) / CALLS

    return lambda: loop.run_until_complete(requests())


def _django(recruiter: Recruiter | None) -> Batch:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"])
        django.setup()

    class Request:
        def __init__(self) -> None:
            self.environ: Environ = {"SERVER_PROTOCOL": "HTTP/1.1"}

    def view(_: Any) -> HttpResponse:
        return HttpResponse(b"hello", headers={"Content-Length": "5"})

    answer: Any = view
    if recruiter is not None:
        settings.WORKSTEALING = {"RECRUITER": recruiter}
        answer = WorkStealingMiddleware(view)

    def run() -> float:
        request = Request()
        start = time.perf_counter()
        for _ in range(CALLS):
            answer(request).close()
        return (time.perf_counter() - start) / CALLS

    return run
