"""A private, throw-away server: for the demo, the examples and whoever asks for ``embedded://``.

A real redis-server where one is on PATH, with nothing written to disk, otherwise fakeredis' server.
Either listens on a UNIX socket in a temporary folder that only its user can enter, and on no port:
any user of the machine can reach a port.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis

from workstealing.errors import MissingExtraError, WorkStealingError
from workstealing.store.folders import make_folder, remove_abandoned, remove_folder

START_SECONDS = 15.0
STOP_SECONDS = 5.0
_FOLDER_PREFIX = "workstealing-embedded-"
_SOCKET = "redis.sock"
# What the kernel takes for the address of a UNIX socket, less a little.
_LONGEST_SOCKET_PATH = 100

# Run by a Python of its own, so that several processes can talk to it.
_FAKE = """
import sys
import itertools
import socket
from fakeredis import TcpFakeServer
from redis import ResponseError

class Server(TcpFakeServer):
    address_family = socket.AF_UNIX
    numbers = itertools.count(1)

    def get_request(self):
        # Clients of a UNIX socket have no address, by which it tells them apart.
        return self.socket.accept()[0], ("unix", next(self.numbers))

server = Server(sys.argv[1], server_type="redis", server_version=(6, 2))

class Handler(server.RequestHandlerClass):
    def setup(self):
        super().setup()
        read = self.current_client.read_response

        def answer():
            # After an error that is raised it closes the connection; one that is returned is sent.
            try:
                return read()
            except ResponseError as error:
                return error

        self.current_client.read_response = answer

server.RequestHandlerClass = Handler
server.serve_forever()
"""


class EmbeddedServer:
    """A server that lives as long as this object, or this process at the most.

    `start` it, connect to its `url`, `stop` it; as a context manager it does both. Its process, its
    socket and its temporary folder are gone after `stop`. Other users cannot reach it. Where this
    process is killed outright, the server ends too, and its folder is removed when anybody starts
    the next one.
    """

    def __init__(self) -> None:
        self.url = ""
        self.kind = ""
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., EmbeddedServer] | None = None

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Returns: this object; `kind` says which server it is. Errors: MissingExtraError if there is
        neither a redis-server on PATH nor fakeredis; WorkStealingError if it does not answer;
        OSError if no temporary folder can be had with a path short enough for a socket.
        """
        binary = shutil.which("redis-server")
        if binary is None and importlib.util.find_spec("fakeredis") is None:
            raise MissingExtraError("demo", "no redis-server is on PATH, and fakeredis")
        remove_abandoned(_FOLDER_PREFIX)
        self._folder, lock = make_folder(_FOLDER_PREFIX, _LONGEST_SOCKET_PATH - len(_SOCKET) - 1)
        path = str(Path(self._folder) / _SOCKET)
        self.url = f"unix://{quote(path)}"
        command = _killed_with_parent("KILL")
        if binary is None:
            command += [sys.executable, "-c", _FAKE, path]
        else:
            command += [binary, "--port", "0", "--unixsocket", path, "--unixsocketperm", "700"]
            command += ["--save", "", "--appendonly", "no", "--dir", self._folder]
        try:
            self._process = _started(command, self._folder, lock)
        except BaseException:
            remove_folder(self._folder, lock)
            raise
        folder = (self._folder, lock)
        self._finalizer = weakref.finalize(self, _end, self._process, folder, os.getpid())
        atexit.register(self._finalizer)
        try:
            version = self._wait()
        except BaseException:
            self.stop()
            raise
        self.kind = "fakeredis" if binary is None else f"redis-server {version}"
        return self

    def stop(self) -> None:
        """End the server and remove its folder; nothing happens the second time."""
        if self._finalizer is not None:
            atexit.unregister(self._finalizer)
            self._finalizer()

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()

    def _wait(self) -> str:
        assert self._process is not None
        give_up = time.monotonic() + START_SECONDS
        with redis.Redis.from_url(self.url, socket_timeout=1.0) as client:
            while True:
                try:
                    client.ping()
                except (redis.ConnectionError, redis.TimeoutError):
                    ended = self._process.poll()
                    if ended is not None or time.monotonic() > give_up:
                        log = (Path(self._folder) / "server.log").read_text(errors="replace")
                        raise WorkStealingError(
                            f"the embedded server did not start: {log.strip()[-500:] or ended}"
                        ) from None
                    time.sleep(0.02)
                else:
                    break
            try:
                return str(client.info("server").get("redis_version", ""))
            except redis.ResponseError:
                return ""


def _started(command: Sequence[str], folder: str, lock: int) -> subprocess.Popen[bytes]:
    """Start a process from a thread that lives as long as it does: see `die_with_parent`."""
    if threading.current_thread() is threading.main_thread():
        return _popen(command, folder, lock)
    done: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

    def keep() -> None:
        try:
            process = _popen(command, folder, lock)
        except BaseException as error:  # noqa: BLE001 - raised where the process was wanted
            done.put(error)
            return
        done.put(process)
        process.wait()

    threading.Thread(target=keep, name="workstealing-embedded", daemon=True).start()
    result = done.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _popen(command: Sequence[str], folder: str, lock: int) -> subprocess.Popen[bytes]:
    with (Path(folder) / "server.log").open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            # Nobody removes the folder as long as the server lives.
            pass_fds=(lock,),
            # A Ctrl-C at the terminal is for the program, which ends the server itself.
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes], folder: tuple[str, int], owner: int) -> None:
    if os.getpid() != owner:
        # A forked child, such as a web server's worker, ends: the server is still its parent's.
        return
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    remove_folder(*folder)


def die_with_parent(signal_name: str = "KILL") -> list[str]:
    """Return the command prefix that ends a child even if this process is killed outright.

    Arguments: signal_name: what the child gets then, without the SIG. Returns: an empty list where
    setpriv is missing. The kernel ties the signal to the thread that started the process, so it is
    of use for the main thread alone, which lives as long as the process does.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    return _killed_with_parent(signal_name)


def _killed_with_parent(signal_name: str) -> list[str]:
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", signal_name]
