"""Who waits for a slice under a real server, proved by a slice that the test itself holds."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gunicorn.config import make_settings

from support.processes import spawn

PATIENCE = 60.0
HERE = Path(__file__).parent

WORKERS = {
    "sync": ["--worker-class", "sync"],
    "gthread": ["--worker-class", "gthread", "--threads", "2"],
    "gevent": ["--worker-class", "gevent"],
    "pywsgi": ["--worker-class", "gevent_pywsgi"],
}

# Newer ones listen on a socket for their own commands.
WITHOUT_SOCKET = ["--no-control-socket"] if "control_socket" in make_settings() else []


class HeldSlice:
    """A slice that has begun and does not end before it is let go."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self._connection = connection
        line = connection.makefile("rb").readline()
        self.ended_before = int(line)

    def let_go(self) -> None:
        """Let the slice end."""
        self._connection.sendall(b".")
        self._connection.close()


class Server:
    """A gunicorn with one worker process, and the control port of its job."""

    def __init__(self, kind: str, folder: Path, app: str = "gunicorn_app:quiet") -> None:
        self.file = folder / "file.txt"
        self.file.write_bytes(b"0123456789" * 20_000)
        self._control = socket.create_server(("127.0.0.1", 0))
        self._control.settimeout(PATIENCE)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self._log = (folder / "gunicorn.log").open("wb")
        environment = {
            **os.environ,
            "CONTROL_PORT": str(self._control.getsockname()[1]),
            "SERVED_FILE": str(self.file),
        }
        environment.pop("WORKSTEALING_DISABLED", None)
        self._process = spawn(
            [
                sys.executable,
                *("-m", "gunicorn", "--bind", f"fd://{listener.fileno()}", "--workers", "1"),
                *("--chdir", str(HERE), "--keep-alive", "60", "--timeout", "0"),
                *(*WITHOUT_SOCKET, "--graceful-timeout", "5"),
                *WORKERS[kind],
                app,
            ],
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        listener.close()
        self._held: list[HeldSlice] = []

    def slice(self) -> HeldSlice:
        """Wait until a slice begins."""
        connection, _ = self._control.accept()
        held = HeldSlice(connection)
        self._held.append(held)
        return held

    def no_slice(self) -> bool:
        """Say whether no slice has asked for the control port."""
        return not select.select([self._control], [], [], 0)[0]

    def stop(self) -> None:
        """End the server and everything that hangs on it."""
        self._control.close()
        for held in self._held:
            held._connection.close()
        # Arbiter and worker at once: gunicorn's own ways out take a second, or, now and then, hang
        # when the signal finds the worker in its thread pool's lock.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


class Client:
    """One connection, with the bytes that were read from it."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(server.address, timeout=PATIENCE)
        self.reader = self.socket.makefile("rb")

    def ask(self, path: str, version: str = "1.1", method: str = "GET", headers: str = "") -> None:
        """Send a request."""
        request = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n"
        self.socket.sendall(request.encode())

    def head(self) -> dict[str, str]:
        """Read the status line and the headers."""
        lines: list[str] = []
        while (raw := self.reader.readline()) not in {b"\r\n", b""}:
            lines.append(raw.decode().strip())
        found = {"status": lines[0].split(" ", 2)[1]}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        return found

    def answer(self) -> bytes:
        """Read a response to the end that its own framing names; never to the connection's."""
        head = self.head()
        if "content-length" in head:
            return self.reader.read(int(head["content-length"]))
        assert head.get("transfer-encoding") == "chunked"
        body = b""
        while (size := int(self.reader.readline(), 16)) > 0:
            body += self.reader.read(size)
            assert self.reader.read(2) == b"\r\n"
        assert self.reader.readline() == b"\r\n"
        return body

    def silent(self) -> bool:
        """Say whether nothing has arrived so far."""
        return not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        """Close the connection."""
        self.reader.close()
        self.socket.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Start a server of a kind; it ends with the test."""
    servers: list[Server] = []

    def start(kind: str) -> Server:
        server = Server(kind, tmp_path)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[Server], Client]]:
    """Open connections; they close with the test."""
    clients: list[Client] = []

    def connect(server: Server) -> Client:
        client = Client(server)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


Start = Callable[[str], Server]
Connect = Callable[[Server], Client]


@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("path", ["/", "/unmeasured"])
def test_the_client_has_its_last_byte_before_the_slice_ends(
    start: Start, connect: Connect, kind: str, path: str
) -> None:
    """With a length and with chunks: the whole response can be read while the slice is held."""
    server = start(kind)
    client = connect(server)
    client.ask(path)
    assert client.answer() == b"ended=0 sendfile=[]\n"
    held = server.slice()
    assert held.ended_before == 0
    held.let_go()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/empty", "304"), ("HEAD", "/unmeasured", "200")]
)
def test_a_response_without_a_body_has_gone_out_too(
    start: Start, connect: Connect, *, kind: str, method: str, path: str, status: str
) -> None:
    server = start(kind)
    client = connect(server)
    client.ask(path, method=method)
    assert client.head()["status"] == status
    held = server.slice()
    assert held.ended_before == 0
    held.let_go()


@pytest.mark.parametrize("kind", WORKERS)
def test_case_1_a_response_that_ends_with_its_connection_is_left_alone(
    start: Start, connect: Connect, kind: str
) -> None:
    server = start(kind)
    client = connect(server)
    client.ask("/unmeasured", version="1.0")
    head = client.head()
    assert "content-length" not in head
    assert "transfer-encoding" not in head
    # To the end of the connection, which no slice puts off: none has begun that could.
    assert client.reader.read() == b"ended=0 sendfile=[]\n"
    assert server.no_slice()
    client.close()

    # An HTTP/1.0 client that is told the length does not wait, so its request enlists.
    client = connect(server)
    client.ask("/", version="1.0")
    assert client.answer() == b"ended=0 sendfile=[]\n"
    held = server.slice()
    assert held.ended_before == 0
    held.let_go()
    assert client.reader.read() == b""


@pytest.mark.parametrize("kind", ["gthread", "gevent", "pywsgi"])
def test_case_2_the_next_request_on_the_same_connection_waits(
    start: Start, connect: Connect, kind: str
) -> None:
    server = start(kind)
    client = connect(server)
    client.ask("/")
    assert client.answer() == b"ended=0 sendfile=[]\n"
    held = server.slice()
    client.ask("/quiet")
    # Another connection is served meanwhile, so it is not for want of a thread that this one waits.
    other = connect(server)
    other.ask("/quiet", headers="Connection: close\r\n")
    assert other.answer() == b"ended=0 sendfile=[]\n"
    other.close()
    assert client.silent()
    held.let_go()
    assert client.answer() == b"ended=1 sendfile=[]\n"


def test_case_3_every_client_of_a_worker_with_one_thread_waits(
    start: Start, connect: Connect
) -> None:
    server = start("sync")
    client = connect(server)
    client.ask("/")
    assert client.answer() == b"ended=0 sendfile=[]\n"
    held = server.slice()
    other = connect(server)
    other.ask("/quiet")
    assert other.silent()
    held.let_go()
    client.close()  # gunicorn looks for two seconds whether its client hangs up
    assert other.answer() == b"ended=1 sendfile=[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
@pytest.mark.parametrize("path", ["/file", "/file/unmeasured"])
def test_sendfile_survives(start: Start, connect: Connect, kind: str, path: str) -> None:
    """The server sends the file itself, with a length or in a chunk, and the slice is last."""
    server = start(kind)
    client = connect(server)
    client.ask(path)
    assert client.answer() == server.file.read_bytes()
    held = server.slice()
    assert held.ended_before == 0
    held.let_go()
    client.close()
    client = connect(server)
    client.ask("/quiet")
    assert client.answer().endswith(b"sendfile=[True]\n")


def test_a_file_that_ends_with_its_connection_is_left_alone(start: Start, connect: Connect) -> None:
    server = start("sync")
    client = connect(server)
    client.ask("/file/unmeasured", version="1.0")
    assert "content-length" not in client.head()
    assert client.reader.read() == server.file.read_bytes()
    assert server.no_slice()
    client.close()
    client = connect(server)
    client.ask("/quiet")
    assert client.answer() == b"ended=0 sendfile=[True]\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "gthread"])
@pytest.mark.parametrize("path", ["/", "/unmeasured", "/file"])
def test_django_answers_before_the_slice_ends(
    connect: Connect, tmp_path: Path, kind: str, path: str
) -> None:
    """Its file, too, which gunicorn sends by sendfile as it does without us."""
    server = Server(kind, tmp_path, app="gunicorn_django:application")
    try:
        client = connect(server)
        client.ask(path)
        expected = server.file.read_bytes() if path == "/file" else b"ended=0 sendfile=[]\n"
        assert client.answer() == expected
        held = server.slice()
        assert held.ended_before == 0
        held.let_go()
        if path == "/file":
            # gthread keeps the connection, and answers it after the slice; its second thread would
            # answer another connection before.
            if kind == "sync":
                client = connect(server)
            client.ask("/")
            assert client.answer() == b"ended=1 sendfile=[True]\n"
    finally:
        server.stop()
