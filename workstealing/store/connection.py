"""A connection that makes one attempt: bounded in time, closed for good at the first fault.

It is redis-py's own connection (its packing, its parser, its TLS) without the habits that would
hold a host up: no retries, no handshake beyond AUTH and SELECT, no reply waited for past the
budget, and no name resolution that can hang the caller.
"""

from __future__ import annotations

import inspect
import ipaddress
import os
import select
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from redis._parsers.socket import SocketBuffer
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import (
    AskError,
    ConnectionError,
    InvalidResponse,
    MovedError,
    ResponseError,
)
from redis.retry import Retry

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError, Moved, OutOfTime

TIMEOUT_SECONDS = 0.050
# A command that cannot be answered in the time left would only break a good connection.
_LEAST_SECONDS = 0.0005
_LAST_WAIT_SECONDS = 0.001

Command = tuple[Any, ...]


class Sent:
    """What this process's one-attempt connections have sent so far.

    Fields: commands; round_trips. Threads that send at the same moment may lose a count: it is for
    pacing a process that does one slice at a time, and for tests.
    """

    __slots__ = ("commands", "round_trips")

    def __init__(self) -> None:
        self.commands = self.round_trips = 0


SENT = Sent()


class Budget:
    """How long one use of a connection may take: a deadline for all of it, a bound for each wait.

    Arguments: seconds: the length of the whole use, None for no end; timeout: the longest single
    wait, in seconds.
    """

    __slots__ = ("clock", "deadline", "timeout")

    def __init__(
        self,
        seconds: float | None = None,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.deadline = None if seconds is None else clock.monotonic() + seconds

    def require(self) -> None:
        """Raise OutOfTime if too little is left for one more command."""
        if self.deadline is not None and self.deadline - self.clock.monotonic() < _LEAST_SECONDS:
            raise OutOfTime("the slice's time is used up; the next recruit goes on from here")

    def wait_seconds(self) -> float:
        """Return how long the next wait may last; raise a time-out when nothing is left.

        A busy machine may take the processor away past the deadline although the answer is there:
        so each wait gets a last moment, up to one time-out after the deadline.
        """
        if self.deadline is None:
            return self.timeout
        remaining = self.deadline - self.clock.monotonic()
        if remaining < _LAST_WAIT_SECONDS:
            if remaining <= -self.timeout:
                raise TimeoutError("the slice's deadline has passed")
            return _LAST_WAIT_SECONDS
        return min(self.timeout, remaining)


class _BoundedSocket:
    """A socket each of whose waits is bounded by the budget of the moment.

    A socket's own time-out starts anew with every byte that arrives; a reply that drips in would
    hold the caller for ever.
    """

    def __init__(self, sock: Any, connection: OneAttempt) -> None:
        self._sock = sock
        self._connection = connection

    def recv(self, *args: Any) -> Any:
        self._sock.settimeout(self._connection.budget.wait_seconds())
        return self._sock.recv(*args)

    def recv_into(self, *args: Any) -> Any:
        self._sock.settimeout(self._connection.budget.wait_seconds())
        return self._sock.recv_into(*args)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._connection.budget.wait_seconds())
        self._sock.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _BoundedTcp(Connection):
    """Opens the TCP connection: name resolution and all addresses together within the budget."""

    budget: Budget

    def _connect(self) -> socket.socket:
        last: OSError | None = None
        for family, kind, proto, _, address in resolve(self.host, self.port, self.budget):
            sock = socket.socket(family, kind, proto)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(self.budget.wait_seconds())
                sock.connect(address)
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise last or OSError(f"no address was found for {self.host}")


class OneAttempt(AbstractConnection):
    """What every one-attempt connection adds to the redis-py class that it is made from."""

    budget: Budget

    def _connect(self) -> Any:
        sock = super()._connect()  # type: ignore[safe-super]
        # fakeredis' connections have a queue in place of a socket, and nothing to wait for.
        return _BoundedSocket(sock, self) if isinstance(sock, socket.socket) else sock

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: ARG002 - redis-py's own signature
        """Authenticate and select the database, in one round trip and without anything else."""
        self._parser.on_connect(self)
        handshake: list[Command] = []
        provider = self.credential_provider
        if provider is None and (self.username or self.password):
            provider = UsernamePasswordCredentialProvider(self.username, self.password)
        if provider is not None:
            handshake.append(("AUTH", *provider.get_credentials()))
        if self.db:
            handshake.append(("SELECT", self.db))
        for reply in self._round_trip(handshake):
            if isinstance(reply, Exception):
                raise reply

    def call(self, commands: Sequence[Command], budget: Budget) -> list[Any]:
        """Send the commands in one write and read as many replies, once.

        Arguments: commands: tuples of name and arguments; budget: the time that is left. Returns:
        the replies in order, an error reply as an exception object in its place. Errors: OutOfTime
        before anything was sent; Moved when the slot is elsewhere; a ConnectionError or a
        TimeoutError, after which the socket is closed and not used again. One round trip, and a
        connection attempt before it if there is none.
        """
        budget.require()
        self.budget = budget
        try:
            if self._sock is None:
                self.connect_check_health(check_health=False, retry_socket_connect=False)
            elif self.is_stale():
                raise ConnectionError("the server closed the connection, or sent what nobody asked")
            replies = self._round_trip(commands)
        except InvalidResponse as error:
            self.disconnect()
            raise ConnectionError(f"the server does not speak Redis' protocol: {error}") from error
        except BaseException:
            # Whatever it was, a host's own time-out included: an answer may still be under way.
            self.disconnect()
            raise
        elsewhere = [reply for reply in replies if isinstance(reply, AskError)]
        if elsewhere:
            gone = {
                reply.slot_id: (reply.host, reply.port)
                for reply in elsewhere
                if isinstance(reply, MovedError)
            }
            raise Moved(f"the cluster has moved the slot: {elsewhere[0]}", gone) from elsewhere[0]
        return replies

    @property
    def is_open(self) -> bool:
        """Whether there is a socket that the next call would use."""
        return self._sock is not None

    def is_stale(self) -> bool:
        """Say whether an idle connection was closed by the other side, without waiting."""
        sock = self._sock
        if sock is None:
            return False
        raw = getattr(sock, "_sock", None)
        if raw is None:
            return False
        # Nothing is owed to an idle connection: what can be read is its end, or garbage.
        return self._has_unread() or _is_readable(raw)

    def _has_unread(self) -> bool:
        """Say whether the parser holds bytes beyond the replies that were asked for."""
        reader = getattr(self._parser, "_reader", None)
        if reader is not None:
            return bool(reader.has_data())
        buffer = getattr(self._parser, "_buffer", None)
        return isinstance(buffer, SocketBuffer) and buffer.unread_bytes() > 0

    def _round_trip(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        SENT.commands += len(commands)
        SENT.round_trips += 1
        pack = self._command_packer.pack
        text = b"".join(part for command in commands for part in pack(*command))
        self.send_packed_command([text], check_health=False)
        replies = [self._reply() for _ in commands]
        if self._has_unread():
            raise ConnectionError("the server sent more replies than there were commands")
        return replies

    def _reply(self) -> Any:
        try:
            return self.read_response()
        except ConnectionError:
            raise
        except ResponseError as error:
            return error


def checked(replies: list[Any]) -> list[Any]:
    """Return replies as they are, or raise the first error reply among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _is_readable(sock: socket.socket) -> bool:
    """Say, without waiting, whether a read would return at once."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    # select() refuses the high descriptors of a process with many files open.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


_classes: dict[type[Any], type[OneAttempt]] = {}


def one_attempt_class(kind: type[Any]) -> type[OneAttempt]:
    """Return the one-attempt sibling of one of redis-py's (blocking) connection classes."""
    known = _classes.get(kind)
    if known is not None:
        return known
    bases: tuple[type, ...] = (OneAttempt, kind)
    if kind is Connection:
        bases = (OneAttempt, _BoundedTcp)
    elif issubclass(kind, Connection):
        # The subclass (TLS, say) wraps the socket that the bounded base opens.
        bases = (OneAttempt, kind, _BoundedTcp)
    made: type[OneAttempt] = type(f"OneAttempt{kind.__name__}", bases, {})
    return _classes.setdefault(kind, made)


def one_attempt_options(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return an application connection's options, less its retries, hooks and handshake extras."""
    for name in ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"):
        if options.get(name):
            raise ConfigurationError(
                f"{name} asks another server, which nothing bounds: give the jobs a client of their"
                " own without it"
            )
    kept = {name: value for name, value in options.items() if name not in _DROPPED}
    if issubclass(kind, Connection) and kind.__module__.startswith("redis."):
        accepted = _parameters(kind)
        kept = {name: value for name, value in kept.items() if name in accepted}
    return {
        **kept,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": TIMEOUT_SECONDS,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 2,
        "driver_info": None,
    }


_DROPPED = frozenset(
    {
        "client_name",
        "connection_class",
        "driver_info",
        "event_dispatcher",
        "himport_registry",
        "lib_name",
        "lib_version",
        "maint_notifications_config",
        "maint_notifications_pool_handler",
        "oss_cluster_maint_notifications_handler",
        "orig_host_address",
        "orig_socket_connect_timeout",
        "orig_socket_timeout",
        "parser_class",
        "redis_connect_func",
        "retry_on_timeout",
        "ssl",
    }
)


def _parameters(kind: type[Any]) -> frozenset[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in base.__dict__:
            names.update(inspect.signature(base).parameters)
    return frozenset(names)


_lookups: dict[tuple[str, int], _Lookup] = {}


class _Lookup:
    """One name resolution, in a thread of its own, because it cannot be interrupted."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.done = threading.Event()
        self.addresses: list[Any] = []
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            self.addresses = socket.getaddrinfo(*self._target, 0, socket.SOCK_STREAM)
        except OSError as error:
            self.error = error
        finally:
            _lookups.pop(self._target, None)
            self.done.set()


def resolve(host: str, port: int, budget: Budget) -> list[Any]:
    """Return the addresses of a host as getaddrinfo() does, within the budget.

    A resolver that hangs is waited for by at most one thread a name. Errors: OSError, a time-out
    among them.
    """
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        pass
    else:
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]
    lookup = _lookups.get((host, port))
    if lookup is None:
        lookup = _lookups[host, port] = _Lookup(host, port)
        threading.Thread(target=lookup.run, name="workstealing-resolve", daemon=True).start()
    if not lookup.done.wait(budget.wait_seconds()):
        raise TimeoutError(f"the name {host} was not resolved in time")
    if lookup.error is not None:
        raise lookup.error
    return lookup.addresses


# A child of fork() has no resolving threads: what its parent waited for would never come.
os.register_at_fork(after_in_child=_lookups.clear)
