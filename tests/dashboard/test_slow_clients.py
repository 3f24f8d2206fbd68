"""`workstealing dashboard` and clients that stop in the middle, or that never read."""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.dashboards import TOKEN
from support.patience import GUARD_SECONDS
from support.servers import RedisServer
from workstealing.cli import dashboard

HALF_A_FORM = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken="
)


@pytest.fixture
def address(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The address of the command's own server, which has little patience."""
    monkeypatch.delenv("WORKSTEALING_DASHBOARD_VIEW_TOKEN", raising=False)
    monkeypatch.setenv("WORKSTEALING_DASHBOARD_TOKEN", TOKEN)
    monkeypatch.delenv("WORKSTEALING_APP", raising=False)
    monkeypatch.setattr(dashboard, "CLIENT_SECONDS", 0.5)
    yield from serving(redis7)


@pytest.fixture
def patient_address(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    """The address of a server that waits longer than a test does."""
    monkeypatch.setenv("WORKSTEALING_DASHBOARD_TOKEN", TOKEN)
    monkeypatch.delenv("WORKSTEALING_APP", raising=False)
    monkeypatch.setattr(dashboard, "CLIENT_SECONDS", 2 * GUARD_SECONDS)
    yield from serving(redis7)


def serving(redis7: RedisServer) -> Iterator[tuple[str, int]]:
    """Serve, and end the server afterwards."""
    options = argparse.Namespace(
        app=None,
        url=redis7.url,
        ledger="default",
        host="127.0.0.1",
        port=0,
        token_file=None,
        survey=None,
    )
    server, _ = dashboard.make_server(options)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_address[:2]
    server.shutdown()
    thread.join(120)
    server.server_close()


def answer_of(address: Any, path: str) -> bytes:
    """Ask again where a busy machine has taken longer to ask than the server waits."""
    found = b""
    while not found:
        with (
            socket.create_connection(address, timeout=120) as client,
            contextlib.suppress(ConnectionError),
        ):
            client.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
            found = client.recv(65536)
    return found


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: local",
        HALF_A_FORM,
    ],
    ids=["nothing", "half a header", "half a form"],
)
def test_who_stops_in_the_midst_is_left(address: Any, said: bytes) -> None:
    with (
        socket.create_connection(address, timeout=120) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(said)
        while client.recv(65536):
            pass
    # The others are answered.
    assert answer_of(address, "/").startswith(b"HTTP/1.1 401")


def test_a_byte_now_and_then_holds_no_thread(address: Any) -> None:
    begun = time.monotonic()
    with (
        socket.create_connection(address, timeout=0.1) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(b"GET / HTTP/1.1\r\nX: ")
        # Each byte comes within the server's patience, and all of them together do not.
        while time.monotonic() - begun < GUARD_SECONDS:
            client.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if not client.recv(65536):
                    break
    assert time.monotonic() - begun < GUARD_SECONDS
    assert answer_of(address, "/").startswith(b"HTTP/1.1 401")


def test_answers_do_not_name_the_versions_beneath(address: Any) -> None:
    head = answer_of(address, "/nothing").partition(b"\r\n\r\n")[0]
    assert b"Server: workstealing\r\n" in head
    assert b"Content-Security-Policy: default-src 'none'" in head


def answering() -> int:
    """Count the threads that answer clients in this process."""
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_many_slow_connections_hold_a_bounded_number_of_threads(patient_address: Any) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(3 * dashboard.MOST_CONNECTIONS):
            client = stack.enter_context(socket.create_connection(patient_address, timeout=120))
            client.sendall(HALF_A_FORM if number % 2 else b"GET / HTTP/1.1\r\nHost: local")
        # The server takes connections in turn, so all of these have been taken before this one.
        assert answer_of(patient_address, "/").startswith(b"HTTP/1.1 401")
        assert answering() <= dashboard.MOST_CONNECTIONS
        # Whoever asks at once is answered at once: the slowest have made room.
        for _ in range(5):
            assert answer_of(patient_address, "/").startswith(b"HTTP/1.1 401")


def test_where_nobody_waits_a_connection_too_many_is_told_so(
    patient_address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Semaphore(0), threading.Event()

    def answer(self: Any) -> None:
        held.release()
        go_on.wait(GUARD_SECONDS)

    monkeypatch.setattr("werkzeug.serving.WSGIRequestHandler.run_wsgi", answer)
    with contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        for _ in range(dashboard.MOST_CONNECTIONS):
            client = stack.enter_context(socket.create_connection(patient_address, timeout=120))
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(dashboard.MOST_CONNECTIONS):
            assert held.acquire(timeout=GUARD_SECONDS)
        said = answer_of(patient_address, "/")
        assert said.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 5\r\n" in said
    monkeypatch.undo()
    # Places come back.
    while not answer_of(patient_address, "/nothing").startswith(b"HTTP/1.1 4"):
        pass
