"""A pytest plugin: `--acl KIND` makes the library log in as a user with the rule of a structure.

`--acl KIND,AdoptHashes` adds what a job uses besides, and `--acl KIND,native` restricts the users
of servers that expire hash fields themselves, instead of those of Redis 7.

A command that a test itself sends still goes by the default user, because tests look at raw keys
and change the servers' settings: the frame that calls a client decides. At its end the run fails if
the rule allows commands that the library has not sent, as MONITOR shows.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import sys
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.connection import Connection

from support.servers import BUSY, RedisServer
from workstealing import jobs, structures
from workstealing.jobs import Leftovers
from workstealing.metrics.minutes import LEDGER
from workstealing.store.opening import BoundedTcp
from workstealing.structures.access import (
    CONNECTION,
    CONTAINERS,
    EXPIRING,
    JobAccess,
    access_by_kind,
    job_access,
    names_of,
    rule,
)
from workstealing.structures.structure import Structure

JOBS: dict[str, JobAccess] = {
    name: declared
    for name, each in ((name, getattr(jobs, name)) for name in jobs.__all__)
    if (declared := job_access(each)) and (each is Leftovers or not issubclass(each, Leftovers))
}
"""The rights of each public job by its name; those of all jobs of rules are one."""

USER, PASSWORD = "least", "privilege"
USERS_KEYS = ("[^w{]*", "w[^s]*", "{", "{}*", "{*}[^:]*", "{*}:[^w]*", "{*}:w[^s]*", "{*}", "")
_BETWEEN = ("redis", "support.acl", "functools", "contextlib", "asyncio")
# A line of MONITOR: the port, or none of a script; the command; its first argument.
_SENT = re.compile(rb'\+\S+ \[\d+ (?:lua|[^]]*:(\d+))\] "([^"]*)"(?: "([^"]*)")?')
# With these a test has chosen its own way to the server.
_OWN_WAY = {"username", "password", "credential_provider", "connection_pool", "unix_socket_path"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--acl", metavar="KIND,...", help="log in by the rules of these structures")


def pytest_configure(config: pytest.Config) -> None:
    """Start restricting, if it is asked for."""
    if given := config.getoption("--acl"):
        config.pluginmanager.register(Restricting(given.split(",")), "restricting")


def say_line(port: int, line: str) -> None:
    """Send a line as a person types it; the server parts and unquotes it as redis-cli does."""
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as server:
        server.sendall(f"{line}\r\n".encode())
        said = server.recv(4096)
    assert said == b"+OK\r\n", (said, line)


def _is_the_librarys() -> bool:
    """Say whether the library, and no test, calls a client."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _BETWEEN and name not in _BETWEEN:
            return bool(name.startswith("workstealing.") and ".testing" not in name)
        frame = frame.f_back
    return False


class _Split:
    """A client whose commands go by the default user if a test sends them."""

    admin: Any

    def execute_command(self, *args: Any, **options: Any) -> Any:
        by: Any = super() if _is_the_librarys() else self.admin
        return by.execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        by: Any = super() if _is_the_librarys() else self.admin
        return by.pipeline(*args, **options)

    def pubsub(self, **options: Any) -> Any:
        return self.admin.pubsub(**options)

    def monitor(self) -> Any:
        return self.admin.monitor()


class SplitRedis(_Split, redis.Redis):
    """The blocking one."""


class AsyncSplitRedis(_Split, redis.asyncio.Redis):
    """The asyncio one."""


class Restricting:
    """Gives the servers' clients the rules, and listens to what they send."""

    def __init__(self, kinds: list[str]) -> None:
        wanted = set(kinds)
        self.is_native = "native" in wanted
        self.kinds = {each.replace("_", " ") for each in wanted - {"native", *JOBS}}
        known = {**access_by_kind(), "ledger": LEDGER}
        self.access = [known[each] for each in self.kinds]
        of_jobs = wanted & set(JOBS)
        plain = frozenset().union(
            *(each.allowed(native=self.is_native and bool(of_jobs)) for each in self.access)
        )
        if self.kinds == {"ledger"}:
            # Other tests run its expiry job, and counters that are no numbers.
            plain = EXPIRING | {"HGET"}
        self.more = [more for each in of_jobs if (more := JOBS[each].more)]
        self.access += self.more
        self.allowed = frozenset().union(
            *(each.allowed(native=self.is_native) for each in self.access)
        )
        # The plain rule of a structure has a run of its own.
        is_plain = not of_jobs and not self.is_native and self.kinds != {"ledger"}
        self.judged = (self.allowed if is_plain else self.allowed - plain) - CONNECTION
        # Tests queue commands of an application's own on a structure's pipeline. Users' keys are
        # all but those of the forms of our own.
        self.patterns = {"*mine", "other"}
        if any(each.users_keys for each in self.access):
            self.patterns |= set(USERS_KEYS)
        if "ledger" in self.kinds:
            self.patterns |= {each.replace("NAME", "*") for each in LEDGER.keys}
        self.ports: set[int] = set()
        self.seen: set[str] = set()
        self.listened: set[int] = set()
        self._watch_servers()
        self._watch_structures()
        self._watch_connections()

    def _watch_servers(self) -> None:
        blocking, waiting = RedisServer.client, RedisServer.async_client

        def client(server: RedisServer, **options: Any) -> Any:
            admin = blocking(server, **options)
            if _OWN_WAY & set(options) or not self._restricts(server):
                return admin
            self._grant(server.port)
            split = SplitRedis(**self._options(server, options))
            split.admin = admin
            return server._clients.add(split)

        def async_client(server: RedisServer, **options: Any) -> Any:
            admin = waiting(server, **options)
            if _OWN_WAY & set(options) or not self._restricts(server):
                return admin
            self._grant(server.port)
            split = AsyncSplitRedis(**self._options(server, options))
            split.admin = admin
            return split

        RedisServer.client, RedisServer.async_client = client, async_client  # type: ignore[method-assign]

    def _restricts(self, server: RedisServer) -> bool:
        return "valkey" not in server.name and (server.version[0] >= 8) is self.is_native

    @staticmethod
    def _options(server: RedisServer, options: dict[str, Any]) -> dict[str, Any]:
        place = {"host": "127.0.0.1", "port": server.port, "username": USER, "password": PASSWORD}
        return {**BUSY, **options, **place}

    def _grant(self, port: int) -> None:
        self._say(port)
        if port not in self.listened:
            self.listened.add(port)
            began = threading.Event()
            self._start(port, began)
            assert began.wait(60)

    def _say(self, port: int) -> None:
        say_line(port, rule(USER, self.patterns, self.allowed).replace("PASSWORD", PASSWORD))

    def _watch_structures(self) -> None:
        for each in map(functools.partial(getattr, structures), structures.__all__):
            if isinstance(each, type) and issubclass(each, Structure) and each.kind in self.kinds:
                self._watch_structure(each)

    def _watch_structure(self, kind: type[Any]) -> None:
        made = kind.__init__

        @functools.wraps(made)
        def init(structure: Any, *args: Any, **options: Any) -> None:
            made(structure, *args, **options)
            if type(structure) is not kind:
                return
            access = structure.access
            for each in self.more:
                access = access.plus(each)
            if "\\x" in structure.name:
                # It has bytes that are no text, which no pattern can express.
                return
            patterns = access.patterns(*names_of(structure))
            self.patterns.update(patterns)
            for port in tuple(self.listened):
                # One of a test's own servers may have ended by now.
                with contextlib.suppress(ConnectionRefusedError):
                    self._say(port)

        kind.__init__ = init

    def _watch_connections(self) -> None:
        def watched(connects: Any) -> Any:
            def connect(connection: Any) -> Any:
                made = connects(connection)
                if connection.username == USER:
                    self.ports.add(made.getsockname()[1])
                return made

            return connect

        Connection._connect = watched(Connection._connect)  # type: ignore[method-assign]
        BoundedTcp._connect = watched(BoundedTcp._connect)  # type: ignore[method-assign]
        waits = redis.asyncio.Connection._connect

        async def connect(connection: Any) -> None:
            await waits(connection)
            if connection.username == USER:
                self.ports.add(connection._writer.get_extra_info("sockname")[1])

        redis.asyncio.Connection._connect = connect  # type: ignore[method-assign]

    def _start(self, port: int, began: threading.Event) -> None:
        # The name tells the plugin of leftovers that it may outlive a test.
        name = "workstealing-monitor"
        threading.Thread(target=self._listen, args=(port, began), name=name, daemon=True).start()

    def _listen(self, port: int, began: threading.Event) -> None:
        # redis-py takes each line apart, which costs as much as the tests do.
        try:
            with socket.create_connection(("127.0.0.1", port)) as server:
                server.sendall(b"MONITOR\r\n")
                for line in server.makefile("rb"):
                    began.set()
                    sent = _SENT.match(line)
                    if sent and (sent[1] is None or int(sent[1]) in self.ports):
                        self._note(*sent.group(2, 3))
        except OSError:
            pass
        # The server has ended, with its test.
        self.listened.discard(port)

    def _note(self, command: bytes, argument: bytes | None) -> None:
        name = command.decode().upper()
        if name in CONTAINERS and argument is not None:
            name += f"|{argument.decode().upper()}"
        self.seen.add(name)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run for commands that nothing has needed."""
        if self.judged - self.seen and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name these commands."""
        terminalreporter.write_line(f"acl: allowed and not sent: {sorted(self.judged - self.seen)}")
        terminalreporter.write_line(
            f"acl: sent and not allowed: {sorted(self.seen - self.allowed)}"
        )
