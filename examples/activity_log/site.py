"""The site: it appends an entry for each request, and its fast exits enlist."""

from __future__ import annotations

import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self

import flask
from redis.exceptions import RedisError
from werkzeug.serving import WSGIRequestHandler, make_server

from activity_log.entries import PAGES, Visit, entry, visit
from workstealing import Recruiter
from workstealing.integrations.flask import WorkStealing

WORDS = ("harbour", "winter", "letter", "market", "engine", "garden", "silver", "bridge")


def create_app(
    log: Any, recruiter: Recruiter, show: Callable[[], str], answers: Counter[int]
) -> flask.Flask:
    """Return the site's app.

    Arguments:
        log: a Log whose codec is JSON.
        recruiter: whom a 304 enlists with, after it has gone out.
        show: returns the page /memory, which is not logged.
        answers: counts the others by status.
    """
    app = flask.Flask(__name__)
    counting = threading.Lock()
    WorkStealing(app, recruiter, when=lambda response: response.status_code == 304)
    exports = iter(range(1_000_000_000))

    @app.get("/page/<int:number>")
    def page(number: int) -> flask.Response:
        if not 1 <= number <= PAGES:
            flask.abort(404)
        chance = random.Random(number)
        text = " ".join(chance.choices(WORDS, k=chance.randrange(100, 900)))
        response = flask.make_response(f"<!doctype html><title>{number}</title><p>{text}")
        response.add_etag()
        return response.make_conditional(flask.request)

    @app.get("/export")
    def export() -> tuple[str, int]:
        return ("busy", 503) if next(exports) % 2 else ("exported", 200)

    @app.get("/memory")
    def memory() -> str:
        return show()

    @app.before_request
    def begin() -> None:
        flask.g.began = time.perf_counter()

    @app.after_request
    def note(response: flask.Response) -> flask.Response:
        request = flask.request
        if request.path == "/memory":
            return response
        seen = Visit(
            request.full_path.removesuffix("?"),
            # Its own clients' addresses: a site behind no proxy of its own must not believe that.
            request.headers.get("X-Forwarded-For", request.remote_addr or "-"),
            request.headers.get("Referer", "-"),
            request.headers.get("User-Agent", "-"),
            response.status_code == 304,
        )
        ms = 1000 * (time.perf_counter() - flask.g.began)
        length = 0 if response.status_code == 304 else response.content_length or 0
        made = entry(datetime.now(UTC), seen, response.status_code, length, ms)
        try:
            log.append({**made, "method": request.method})
        except RedisError:
            # Whoever reads a page must not suffer from what is written about it.
            app.logger.exception("an entry was not written")
        with counting:
            answers[response.status_code] += 1
        return response

    return app


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        """Print no line for each request: they are in the log."""


@contextmanager
def served(app: flask.Flask, port: int) -> Iterator[str]:
    """Serve the app on loopback meanwhile; yield its address. Port 0 is any free one."""
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Visitors:
    """People who visit the site, so many requests a second together.

    Enter it to begin, leave it to stop.
    """

    def __init__(self, address: str, pace: float, people: int = 2) -> None:
        self._address = address
        self._pause = people / pace
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._browse, args=(random.Random(seed),), daemon=True)
            for seed in range(people)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _browse(self, chance: random.Random) -> None:
        tags: dict[str, str] = {}
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._pause, time.monotonic() - 1)
            seen = visit(chance)
            headers = {
                "X-Forwarded-For": seen.host,
                "Referer": seen.referrer,
                "User-Agent": seen.agent,
            }
            if seen.again and seen.path in tags:
                headers["If-None-Match"] = tags[seen.path]
            request = urllib.request.Request(self._address + seen.path, headers=headers)  # noqa: S310 - ours
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                    answer.read()
                    if tag := answer.headers.get("ETag"):
                        tags[seen.path] = tag
            except urllib.error.HTTPError as error:
                with error:
                    error.read()  # a 304 is one of them
