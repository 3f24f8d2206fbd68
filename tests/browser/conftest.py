"""The dashboard in a real browser: Debian's chromium, and a web server on a free loopback port."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def _missing(what: str) -> None:
    said = f"{what} is not here, so no page can be opened; run: make setup"
    if IN_CI:
        pytest.fail(said)
    pytest.skip(said)


# Not for the session: while playwright is there, an event loop runs in this thread, and no test
# after these could start one.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for a module; each test opens pages of its own in it."""
    path = shutil.which("chromium")
    if path is None:
        _missing("Debian's chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _missing("the Python package playwright")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Keep requests out of the tests' output."""


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve apps: `serve(app, threaded=True)` returns the address; they end with the test."""
    servers = []

    def start(app: flask.Flask, *, threaded: bool = True) -> str:
        server = make_server("127.0.0.1", 0, app, threaded=threaded, request_handler=_Quiet)
        if threaded:
            # A stream that a browser still holds must not hold up the end of the test.
            server.daemon_threads = True
            server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/ws/"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join(120)
        server.server_close()
    # A request that is still answered may write, and the Redis is wiped next.
    for thread in threading.enumerate():
        if "process_request" in thread.name:
            thread.join(120)


class Watch:
    """The faults of a page: errors in its console, and requests to another server."""

    def __init__(self, page: Any, address: str) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)
        page.on("request", lambda request: self._asked(request.url, address))

    def _said(self, message: Any) -> None:
        # The login page is a 401 and a refusal a 409, on purpose; the browser reports both.
        is_meant = any(f"status of {code}" in message.text for code in (401, 409))
        if message.type in ("error", "warning") and not is_meant:
            self.errors.append(message.text)

    def _asked(self, url: str, address: str) -> None:
        if not url.startswith(address):
            self.strangers.append(url)


@pytest.fixture
def open_page(chromium: Any, serve: Callable[..., str]) -> Iterator[Callable[..., Any]]:
    """Open an address in a context of its own: `open_page(address, token=..., **options)`.

    At the end no page may have had an error or have asked anybody but its own server. They are
    closed before the servers, which they would hold up.
    """
    contexts, watches = [], []

    def opened(address: str, token: str | None = None, **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        watches.append(Watch(page, address))
        page.goto(address)
        if token is not None:
            page.fill("#token", token)
            page.click("button")
            # Until its script is there, a page posts its forms as it does without JavaScript.
            page.wait_for_load_state("load")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [error for watch in watches for error in watch.errors] == []
    assert [url for watch in watches for url in watch.strangers] == []
