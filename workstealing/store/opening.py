"""The opening of a one-attempt connection: by the application's settings, within a budget.

The classes in `connection` are made from these bases: a bounded socket, TCP, TLS and the handshake.
Resolving a name and giving credentials cannot be interrupted, so they run in threads of their own.
Here is also the function that an application wants to be called with each new connection.
"""

from __future__ import annotations

import inspect
import ipaddress
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.connection import AbstractConnection, Connection
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.exceptions import TimeoutError

from workstealing.errors import ConfigurationError
from workstealing.store.budget import Budget
from workstealing.store.redis_versions import SSLConnection


class BoundedSocket:
    """A socket whose every wait is bounded by the budget of the moment.

    A socket's own time-out starts anew with every byte, so a reply that drips in would hold the
    caller for ever. A wait that the deadline cuts short is no fault: it raises Unanswered, which
    the parsers let through, and after which they can go on.
    """

    def __init__(self, sock: Any, connection: Any) -> None:
        self._sock = sock
        self._connection = connection

    def recv(self, *args: Any) -> Any:
        """Receive as the socket does, within the budget."""
        return self._bounded(self._sock.recv, *args)

    def recv_into(self, *args: Any) -> Any:
        """Receive as the socket does, within the budget."""
        return self._bounded(self._sock.recv_into, *args)

    def sendall(self, data: Any) -> None:
        """Send as the socket does, within the budget."""
        self._bounded(self._sock.sendall, data)

    def _bounded(self, work: Any, *args: Any) -> Any:
        connection = self._connection
        budget = connection.budget
        wait = budget.wait_seconds()
        self._sock.settimeout(wait)
        try:
            done = work(*args)
        except OSError as error:
            if not isinstance(error, socket.timeout):
                raise
            # Earlier slices' waits for the same reply count, too, so that a server which has fallen
            # silent costs one time-out in all.
            connection.waited += wait
            if budget.cuts(connection.waited):
                raise budget.late() from None
            raise
        connection.waited = 0.0
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Tls:
    """A TLS context that a job client's connections share: making one takes longer than a slice.

    Fields: context; files: the state of the user's files when the context was made from them.
    """

    __slots__ = ("context", "files")

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.files: Any = None


class Handshake(AbstractConnection):
    """Authenticates and selects the database in one round trip, and does nothing else.

    This class is a base behind the application's own class, whose handshake comes first.
    """

    budget: Budget

    # redis-py names the default user, because HELLO 3 takes a user name besides the password. A
    # server without a password accepts that name, and refuses a password alone.
    names_default_user = True

    def on_connect(self) -> None:
        """Do the handshake: redis-py before 6.3 asks for it by this name."""
        self.on_connect_check_health()

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: ARG002 - redis-py's own signature
        """Authenticate and select the database."""
        self._parser.on_connect(self)
        handshake: list[tuple[Any, ...]] = []
        credentials = self._credentials()
        if len(credentials) == 1 and self.names_default_user:
            credentials = ("default", *credentials)
        if credentials:
            handshake.append(("AUTH", *credentials))
        if self.db:
            handshake.append(("SELECT", self.db))
        self._demand(handshake)

    def _credentials(self) -> tuple[str, ...]:
        provider = self.credential_provider
        if provider is None:
            if not self.username and not self.password:
                return ()
            provider = UsernamePasswordCredentialProvider(self.username, self.password)
        if type(provider) is UsernamePasswordCredentialProvider:
            return tuple(provider.get_credentials())
        # The provider may ask another server, and no other bound would apply.
        given: Any = aside(
            ("credentials", id(provider)),
            lambda: _given_by(provider),
            self.budget,
            f"the credentials of {type(provider).__name__} were not given",
        )
        return tuple(given)

    def _demand(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Send commands in one round trip; raise the first error reply."""
        raise NotImplementedError


def _given_by(provider: Any) -> Any:
    """Return a credential provider's credentials; called in a thread without an event loop."""
    blocking = getattr(type(provider), "get_credentials", None)
    # By its name, because valkey-py has a base of its own.
    if (
        blocking is not None
        and blocking.__qualname__ != CredentialProvider.get_credentials.__qualname__
    ):
        return provider.get_credentials()
    import asyncio

    return asyncio.run(provider.get_credentials_async())


class BoundedTcp(Connection):
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


class SharedTls(SSLConnection):
    """Wraps a socket by the context that redis-py makes of the options, but makes it once.

    Making it reads all certificates of the system, which takes some 20 ms. The context is made anew
    when a file that the options name has changed.
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


def connect_function(options: Mapping[str, Any]) -> Callable[[Any], None] | None:
    """Return the application's function for a new connection, for a blocking one, or None.

    A cluster's client has a function of its own, which prepares a connection for replicas after the
    handshake. Only the application's addition to it is kept.
    """
    wanted = options.get("redis_connect_func")
    owner = getattr(wanted, "__self__", None)
    is_clusters = isinstance(owner, RedisCluster | AsyncRedisCluster)
    if is_clusters:
        wanted = getattr(owner, "user_on_connect_func", None)
    if wanted is None:
        return None
    decodes = bool(options.get("decode_responses"))

    def ready(connection: Any) -> None:
        with connection.decoding(decodes):
            if is_clusters:
                connection.on_connect()
            if inspect.iscoroutinefunction(wanted):
                _run_through(wanted(_AsyncFace(connection)))
            else:
                wanted(connection)

    return ready


class _AsyncFace:
    """A blocking connection with an asynchronous one's methods, none of which has to wait."""

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
        "redis_connect_func waits for something else than its connection, but a job's blocking"
        " connection cannot wait: give the jobs a client of their own without it"
    )


# For how many seconds a result serves later callers when nobody waits for it any more.
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
    """Return the result of a function that cannot be interrupted, within the budget.

    The function runs in a thread of its own, one for each key at a time. If it takes longer than
    the budget, it goes on, and the next caller gets its result.

    Arguments:
        unmet: the beginning of the time-out's sentence.

    Raises: TimeoutError; the function's own errors.
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

    At most one thread for each name waits for a resolver that hangs. Raises: OSError, of which the
    time-out is one.
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


# A child of fork() has no such threads, so the parent's results would never come.
os.register_at_fork(after_in_child=_asides.clear)
