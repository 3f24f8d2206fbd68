"""Streams under gunicorn: a worker with one thread is not held, one with threads streams on."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.processes import end, spawn
from support.servers import RedisServer

pytestmark = pytest.mark.real

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def gunicorn(redis7: RedisServer) -> Iterator[Callable[..., str]]:
    """Start gunicorn with one worker of a class; returns the dashboard's address."""
    started = []

    def start(*arguments: str) -> str:
        # The socket is bound here: questions before the start wait in the backlog.
        listener = socket.create_server(("127.0.0.1", 0))
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "DASHBOARD_TEST_URL": redis7.url}
        for name in ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY"):
            environment.pop(name, None)
        command = [
            *(sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}"),
            *("--workers", "1", "--log-level", "error", *arguments),
            "support.dashboard_app:make()",
        ]
        with listener:
            started.append(spawn(command, env=environment, pass_fds=[listener.fileno()]))
            return f"http://127.0.0.1:{listener.getsockname()[1]}/ws/"

    yield start
    for process in started:
        end(process)


@pytest.mark.slow
def test_a_worker_with_one_thread_answers_others_at_once(gunicorn: Callable[..., str]) -> None:
    address = gunicorn()
    with urllib.request.urlopen(address + "events", timeout=120) as stream:
        # It ends by itself, long before the minute that it may last.
        assert stream.read().count(b"\n\ndata: ") == 1
    with urllib.request.urlopen(address, timeout=120) as page:
        assert b">tidy</bdi>" in page.read()


def test_a_worker_with_threads_streams_and_answers(gunicorn: Callable[..., str]) -> None:
    address = gunicorn("--worker-class", "gthread", "--threads", "4")
    with urllib.request.urlopen(address + "events", timeout=120) as stream:
        seen = 0
        while seen < 3:
            seen += stream.readline().startswith(b"data: ")
        with urllib.request.urlopen(address, timeout=120) as page:
            assert b">tidy</bdi>" in page.read()
        while seen < 5:
            seen += stream.readline().startswith(b"data: ")
