"""A connection that makes one attempt: bounded in time, closed for good at the first fault.

It is redis-py's own connection (its packing, its parser, its TLS) without the habits that would
hold a host up: no retries, no handshake beyond AUTH and SELECT, no reply waited for past the
budget, and no name resolution that can hang the caller.
"""

from __future__ import annotations

import inspect
import ipaddress
import math
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from redis._parsers.socket import SocketBuffer
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
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


class Tls:
    """A TLS context, which takes longer to make than a slice has: shared by a twin's connections.

    Fields: context; files: which files of the user's it was made from, as they were then.
    """

    __slots__ = ("context", "files")

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.files: Any = None


class _Handshake(AbstractConnection):
    """Authenticates and selects the database in one round trip, and does nothing else.

    It stands behind the application's own class: if that has a way of its own, that way holds.
    """

    budget: Budget

    # Since HELLO 3 takes a user name besides the password, redis-py names the default one; a server
    # without a password accepts that, and refuses a password alone.
    names_default_user = True

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: ARG002 - redis-py's own signature
        """Authenticate and select the database."""
        self._parser.on_connect(self)
        handshake: list[Command] = []
        credentials = self._credentials()
        if len(credentials) == 1 and self.names_default_user:
            credentials = ("default", *credentials)
        if credentials:
            handshake.append(("AUTH", *credentials))
        if self.db:
            handshake.append(("SELECT", self.db))
        checked(self._round_trip(handshake))

    def _credentials(self) -> tuple[str, ...]:
        provider = self.credential_provider
        if provider is None:
            if not self.username and not self.password:
                return ()
            provider = UsernamePasswordCredentialProvider(self.username, self.password)
        if type(provider) is UsernamePasswordCredentialProvider:
            return tuple(provider.get_credentials())
        # It may ask another server, which nothing else bounds.
        given: Any = aside(
            ("credentials", id(provider)),
            lambda: _given_by(provider),
            self.budget,
            f"the credentials of {type(provider).__name__} were not given",
        )
        return tuple(given)

    def _round_trip(self, commands: Sequence[Command]) -> list[Any]:
        raise NotImplementedError


def _given_by(provider: Any) -> Any:
    """Return what a credential provider gives; called in a thread without an event loop."""
    blocking = getattr(type(provider), "get_credentials", None)
    if blocking is not None and blocking is not CredentialProvider.get_credentials:
        return provider.get_credentials()
    import asyncio

    return asyncio.run(provider.get_credentials_async())


class _BoundedTcp(Connection):
    """Opens the TCP connection: name resolution and all addresses together within the budget."""

    budget: Budget

    def _connect(self) -> socket.socket:
        last: OSError | None = None
        for family, kind, proto, _, address in resolve(self.host, self.port, self.budget):
            sock = socket.socket(family, kind, proto)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.socket_keepalive:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for name, value in self.socket_keepalive_options.items():
                        sock.setsockopt(socket.IPPROTO_TCP, name, value)
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


class _SharedTls(SSLConnection):
    """Wraps a socket by the context that redis-py makes of the options, but makes it once.

    Making it reads all certificates of the system, for some 20 ms. It is made anew when a file that
    the options name has changed.
    """

    budget: Budget
    tls: Tls

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        context = self.tls_context()
        sock.settimeout(self.budget.wait_seconds())
        return context.wrap_socket(sock, server_hostname=self.host)

    def tls_context(self) -> ssl.SSLContext:
        """Return the context, made if need be; no round trip."""
        files = [
            _state(path) for path in (self.certfile, self.keyfile, self.ca_certs, self.ca_path)
        ]
        context = self.tls.context
        if context is None or self.tls.files != files:
            # Around a socket that is not connected, redis-py's own method sends nothing.
            with super()._wrap_socket_with_ssl(socket.socket()) as unconnected:
                context = unconnected.context
            self.tls.context, self.tls.files = context, files
        return context


def _state(path: str | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    facts = os.stat(path)  # noqa: PTH116 - it may be bytes
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)


class OneAttempt(AbstractConnection):
    """What every one-attempt connection adds to the redis-py class that it is made from."""

    budget: Budget

    watching = False
    """Whether WATCH may still hold on this connection; for `Attempt`, which sets it."""

    # Set before the first byte that asks for an answer, cleared when all answers have been read. A
    # host's time-out between any two steps, in what closes the socket as well, leaves it set.
    _is_owed = False

    def warm_up(self) -> None:
        """Do what connecting has to do and needs no server for; no round trip."""
        if isinstance(self, Connection):
            # The first use of this codec imports it.
            str(self.host).encode("idna")
        if isinstance(self, _SharedTls):
            self.tls_context()

    def _connect(self) -> Any:
        sock = super()._connect()  # type: ignore[safe-super]
        # fakeredis' connections have a queue in place of a socket, and nothing to wait for.
        return _BoundedSocket(sock, self) if isinstance(sock, socket.socket) else sock

    @contextmanager
    def decoding(self, decodes: bool) -> Iterator[None]:
        """Read replies as the application has chosen, in the block; as bytes ever after."""
        self.encoder.decode_responses = decodes
        try:
            yield
        finally:
            self.encoder.decode_responses = False
        # The parser has kept how it was to read.
        self._parser.on_connect(self)

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
                self._is_owed = True
                self.connect_check_health(check_health=False, retry_socket_connect=False)
            elif self._is_owed:
                raise ConnectionError("this connection was cut short in the midst of a use")
            elif self.is_stale():
                raise ConnectionError("the server closed the connection, or sent what nobody asked")
            self._is_owed = True
            replies = self._round_trip(commands)
            self._is_owed = False
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
        return self._sock is not None and not self._is_owed

    @property
    def is_at_rest(self) -> bool:
        """Whether others may use the connection: open, no reply owed, nothing WATCHed."""
        return self.is_open and not self.watching

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
        text = b"".join(part for command in commands for part in pack(*map(_as_text, command)))
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


def _as_text(argument: Any) -> Any:
    """Return a number as text: hiredis crashes when a signal's handler raises as it makes one."""
    kind = type(argument)
    return repr(argument) if kind is int or kind is float else argument


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
    bases: list[type] = [OneAttempt]
    if kind not in (Connection, SSLConnection):
        bases.append(kind)
    # Behind the application's own class, which may wrap the socket that the bounded base opens.
    if issubclass(kind, SSLConnection):
        bases.append(_SharedTls)
    if issubclass(kind, Connection):
        bases.append(_BoundedTcp)
    made: type[OneAttempt] = type(f"OneAttempt{kind.__name__}", (*bases, _Handshake), {})
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
        accepted = _parameters(kind)  # type: ignore[arg-type] # its classes do have a hash
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
        "redis_connect_func": connect_function(options),
    }


def connect_function(options: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Return what the application wants done with a new connection, for a blocking one, or None.

    A cluster's client has a function of its own, which readies a connection for replicas after the
    handshake: of that, only what the application has added is left.
    """
    wanted = options.get("redis_connect_func")
    owner = getattr(wanted, "__self__", None)
    is_clusters = isinstance(owner, RedisCluster | AsyncRedisCluster)
    if is_clusters:
        wanted = getattr(owner, "user_on_connect_func", None)
    if wanted is None:
        return None
    decodes = bool(options.get("decode_responses"))

    def ready(connection: OneAttempt) -> None:
        with connection.decoding(decodes):
            if is_clusters:
                connection.on_connect()
            if inspect.iscoroutinefunction(wanted):
                _run_through(wanted(_AsyncFace(connection)))
            else:
                wanted(connection)

    return ready


class _AsyncFace:
    """A blocking connection with the methods of an asynchronous one, none of which has to wait."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if not callable(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return found(*args, **options)

        return call


def _run_through(coroutine: Any) -> None:
    """Run a coroutine that waits for nothing but its connection."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    except RuntimeError as error:
        if "event loop" not in str(error):
            raise
    finally:
        coroutine.close()
    raise ConfigurationError(
        "redis_connect_func waits for more than its connection, which a job's blocking connection"
        " cannot do: give the jobs a client of their own without it"
    )


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


@cache
def _parameters(kind: type[Any]) -> frozenset[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in base.__dict__:
            names.update(inspect.signature(base).parameters)
    return frozenset(names)


# How long a result is of use to those who come when nobody waits for it any more, in seconds.
_KEPT_SECONDS = 30.0
_asides: dict[Hashable, _Aside] = {}


class _Aside:
    """One call in a thread of its own, because it cannot be interrupted."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.done = threading.Event()
        self.ended = math.inf
        self.result: Any = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def is_of_use(self) -> bool:
        """Say whether to wait for it: a host's time-out may have come before its thread began."""
        if self.done.is_set():
            return time.monotonic() - self.ended <= _KEPT_SECONDS
        return self.thread.is_alive()

    def run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:  # noqa: BLE001 - raised where somebody waits for it
            self.error = error
        finally:
            self.ended = time.monotonic()
            self.done.set()


def aside(key: Hashable, function: Callable[[], Any], budget: Budget, unmet: str) -> Any:
    """Return what a function returns that nothing else could interrupt, within the budget.

    It runs in a thread of its own, one for each key at a time. If it takes longer than the budget,
    it goes on, and its result is for whoever asks next. Arguments: unmet: what the time-out says.
    Errors: TimeoutError; those of the function.
    """
    call = _asides.get(key)
    if call is None or not call.is_of_use():
        call = _asides[key] = _Aside(function)
        call.thread.name = f"workstealing-{key}"
        call.thread.start()
    if not call.done.wait(budget.wait_seconds()):
        raise TimeoutError(f"{unmet} in time")
    _asides.pop(key, None)
    if call.error is not None:
        raise call.error
    return call.result


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
    addresses: list[Any] = aside(
        ("resolve", host, port),
        lambda: socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM),
        budget,
        f"the name {host} was not resolved",
    )
    return addresses


# A child of fork() has no such threads: what its parent waited for would never come.
os.register_at_fork(after_in_child=_asides.clear)
