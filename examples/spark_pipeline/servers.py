"""A private PostgreSQL on a free loopback port, which ends with the example."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg

START_SECONDS = 30.0
STOP_SECONDS = 10.0
_FOLDERS = (Path("/usr/lib/postgresql"), Path("/usr/local/pgsql"))


class PrivatePostgres:
    """One PostgreSQL without persistence; `url` is its address as libpq takes it.

    Enter it to start it, from the main thread; leave it to end it and to remove its folder.
    """

    def __init__(self) -> None:
        self.url = ""
        self._programs = _find_programs()
        # In /tmp whatever TMPDIR says: another user must be able to come there.
        self._folder = Path(tempfile.mkdtemp(prefix="workstealing-pipeline-", dir="/tmp"))
        self._user = _other_user()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._make()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            # It does not wait for clients then.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def version(self) -> str:
        """The major version, as text."""
        return (self._folder / "data" / "PG_VERSION").read_text().strip()

    def _prefix(self) -> list[str]:
        """Return what goes before a command: PostgreSQL refuses to run as root."""
        end = ["--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        user = self._user
        if user is not None:
            end += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return ["setpriv", *end] if end else []

    def _make(self) -> None:
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        command = [
            *self._prefix(),
            *(str(self._programs / "initdb"), "--pgdata", str(self._folder / "data")),
            *("--username", "pipeline", "--auth", "trust"),
            *("--encoding", "UTF8", "--no-locale", "--no-sync"),
        ]
        done = subprocess.run(  # noqa: S603 - our own command line
            command, capture_output=True, text=True, check=False, cwd=self._folder
        )
        if done.returncode:
            raise RuntimeError(f"PostgreSQL's initdb failed: {done.stderr[-800:]}")

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"postgresql://pipeline@127.0.0.1:{port}/postgres"
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = self._folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [
                    *self._prefix(),
                    *(str(self._programs / "postgres"), "-D", str(self._folder / "data")),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                # A Ctrl-C at the terminal is for the example, which ends the server itself.
                start_new_session=True,
            )
        give_up = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    words = log.read_text(errors="replace").strip()[-500:]
                    raise RuntimeError(f"PostgreSQL did not start: {words}") from None
                time.sleep(0.05)
            else:
                return


def _find_programs() -> Path:
    """Return the folder of PostgreSQL's programs, the newest."""
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).parent
    found = [path.parent for folder in _FOLDERS for path in folder.glob("**/bin/postgres")]
    if not found:
        raise SystemExit("no PostgreSQL is on this machine: install the package postgresql")
    return max(found, key=lambda path: float(path.parent.name))


def _other_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")
