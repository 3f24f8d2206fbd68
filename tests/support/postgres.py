"""A private PostgreSQL on a free loopback port, for the tests that take the `postgres` fixture."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from support.processes import RUN, end, free_port, spawn
from support.servers import ServerBrokenError, ServerMissingError, wait_until

_FOLDERS = (Path("/usr/lib/postgresql"), Path("/usr/local/pgsql"))


def find_postgres() -> Path:
    """Return the folder of PostgreSQL's programs, the newest. Raises: ServerMissingError."""
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).parent
    found = [path.parent for folder in _FOLDERS for path in folder.glob("**/bin/postgres")]
    if not found:
        raise ServerMissingError("no PostgreSQL is on this machine; install postgresql")
    return max(found, key=lambda path: float(path.parent.name))


class PostgresServer:
    """One PostgreSQL process without persistence; `url` is its address as SQLAlchemy takes it."""

    def __init__(self) -> None:
        self._programs = find_postgres()
        self.directory = Path(tempfile.mkdtemp(prefix="workstealing-pg-", dir=RUN))
        self._engines: list[sa.Engine] = []
        self.process: subprocess.Popen[bytes]
        try:
            self._make()
            self._start_somewhere()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The address."""
        return f"postgresql+psycopg://workstealing@127.0.0.1:{self.port}/postgres"

    def engine(self, **options: Any) -> sa.Engine:
        """Return an engine; it is disposed of with the server."""
        engine = sa.create_engine(self.url, **options)
        self._engines.append(engine)
        return engine

    def stop(self) -> None:
        """End the process and remove its folder; a second call does nothing."""
        for engine in self._engines:
            engine.dispose()
        if hasattr(self, "process"):
            # SIGINT: do not wait for clients.
            if self.process.poll() is None:
                self.process.send_signal(2)
            end(self.process)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _as_user(self) -> list[str]:
        """Return what goes before a command: PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return []
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]

    def _make(self) -> None:
        command = [
            *self._as_user(),
            self._programs / "initdb",
            *("--pgdata", self.directory / "data", "--username", "workstealing"),
            *("--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.directory
        )
        if done.returncode:
            raise ServerBrokenError(f"initdb failed: {done.stderr[-800:]}")

    def _start_somewhere(self) -> None:
        for _ in range(10):
            self.port = free_port()
            if self._start():
                return
        raise ServerBrokenError(f"PostgreSQL did not start: {self._log[-800:]}")

    @property
    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def _start(self) -> bool:
        """Start it; return False if another process has the port."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        options = [part for each in settings.items() for part in ("-c", "=".join(map(str, each)))]
        command = [
            *self._as_user(),
            # setpriv clears the signal that ends a child with its parent: ask for it once more.
            *(["--pdeathsig", "KILL"] if os.geteuid() == 0 else []),
            self._programs / "postgres",
            *("-D", self.directory / "data"),
            *options,
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = spawn(command, stdout=log, stderr=log, cwd=self.directory)
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)

        def is_answering() -> bool:
            if self.process.poll() is not None:
                return True
            try:
                with engine.connect() as connection:
                    connection.exec_driver_sql("SELECT 1")
            except sa.exc.OperationalError:
                return False
            return True

        wait_until(is_answering, "PostgreSQL to answer")
        if self.process.poll() is None:
            return True
        if "could not bind" not in self._log and "lock file" not in self._log:
            raise ServerBrokenError(f"PostgreSQL ended while starting: {self._log[-800:]}")
        return False
