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
    MasterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError, Moved, OutOfTime, Unanswered, blame

TIMEOUT_SECONDS = 0.050
# A command that cannot be answered in the time left would only break a good connection.
_LEAST_SECONDS = 0.0005
_LAST_WAIT_SECONDS = 0.001
# From which share of a time-out on a wait counts as a whole one.
_WHOLE = 0.98
# How far a slower round trip raises what is expected, and how much a command that was not begun
# leaves of it.
_RISE, _BELIEF = 0.25, 0.8

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


class Trip:
    """How long a round trip to one node takes, as far as this process has seen.

    It goes by the quick ones: a slow reply may be the fault of a busy machine, and a command that
    is not begun for its sake teaches nothing. `seconds` is None as long as nothing was seen.
    """

    __slots__ = ("_belief", "_is_guessed", "seconds")

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._is_guessed = True
        self._belief = 1.0

    @property
    def expected(self) -> float:
        """How many seconds must be left for a round trip to be begun; 0 where nothing is known."""
        return (self.seconds or 0.0) * self._belief

    def guess(self, seconds: float) -> None:
        """Take what a connection took to open for a round trip, until there is a real one."""
        if self.seconds is None:
            self.seconds = seconds

    def took(self, seconds: float) -> None:
        """Note a round trip."""
        known, self._belief = self.seconds, 1.0
        if known is None or seconds < known or self._is_guessed:
            self.seconds, self._is_guessed = seconds, False
        else:
            self.seconds = known + _RISE * (seconds - known)

    def lasts(self, seconds: float) -> None:
        """Note one that was not over after so many seconds."""
        self.seconds, self._belief = max(seconds, self.seconds or 0.0), 1.0

    def was_not_begun(self) -> None:
        """Believe it a little less, so that after a few commands that were not sent one is."""
        self._belief *= _BELIEF


class Budget:
    """How long one use of a connection may take: a deadline for all of it, a bound for each wait.

    Arguments: seconds: the length of the whole use, None for no end; timeout: the longest single
    wait, in seconds.
    """

    __slots__ = ("clock", "deadline", "timeout", "trips")

    trips: int
    """How many round trips must fit in for the next one to be of use."""

    def __init__(
        self,
        seconds: float | None = None,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.trips = 1
        self.deadline = None if seconds is None else clock.monotonic() + seconds

    def require(self, trip: Trip | None = None) -> None:
        """Raise OutOfTime if too little is left for one more command, or for `trips` round trips.

        Arguments: trip: how long one takes.
        """
        if self.deadline is None:
            return
        left = self.deadline - self.clock.monotonic()
        if left < _LEAST_SECONDS:
            raise OutOfTime("the slice's time is used up; the next recruit goes on from here")
        if trip is not None and left < self.trips * trip.expected:
            took = trip.seconds or 0.0
            trip.was_not_begun()
            raise OutOfTime(
                f"{1000 * left:.1f} ms of the slice are left, too little for {self.trips} round"
                f" trips of {1000 * took:.1f} ms; the next recruit goes on from here"
            )

    def wait_seconds(self) -> float:
        """Return how long the next wait may last; raise `late` when nothing is left.

        A busy machine may take the processor away past the deadline although the answer is there:
        so each wait gets a last moment, up to one time-out after the deadline.
        """
        if self.deadline is None:
            return self.timeout
        remaining = self.deadline - self.clock.monotonic()
        if remaining < _LAST_WAIT_SECONDS:
            if remaining <= -self.timeout:
                raise self.late()
            return _LAST_WAIT_SECONDS
        return min(self.timeout, remaining)

    def cuts(self, waited: float) -> bool:
        """Say whether so many seconds of waiting are less than a whole time-out."""
        return waited < _WHOLE * self.timeout

    def late(self) -> Exception:
        """Return what stands for a reply that has not come by the deadline."""
        return Unanswered(
            "the slice's time ended before the reply was there: whether the command was done is"
            " not known; the next recruit goes on from what there is"
        )


class _Opening(Budget):
    """The bound on opening a connection: one time-out for all of it, whatever the slice has left.

    A slice that is shorter than the way to the server could not connect at all, and neither could
    the next one. What does not open in a whole time-out is a fault.
    """

    __slots__ = ()

    def cuts(self, waited: float) -> bool:  # noqa: ARG002 - see Budget
        return False

    def late(self) -> Exception:
        return TimeoutError("the server has not accepted the connection in time")


class _BoundedSocket:
    """A socket each of whose waits is bounded by the budget of the moment.

    A socket's own time-out starts anew with every byte that arrives; a reply that drips in would
    hold the caller for ever. A wait that the deadline has cut short is no fault: it raises
    Unanswered, which the parsers let through and after which they can go on.
    """

    def __init__(self, sock: Any, connection: OneAttempt) -> None:
        self._sock = sock
        self._connection = connection

    def recv(self, *args: Any) -> Any:
        return self._bounded(self._sock.recv, *args)

    def recv_into(self, *args: Any) -> Any:
        return self._bounded(self._sock.recv_into, *args)

    def sendall(self, data: Any) -> None:
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
            # What earlier slices have waited for the same reply counts, too: in all it is one
            # time-out that a server which has fallen silent costs.
            connection.waited += wait
            if budget.cuts(connection.waited):
                raise budget.late() from None
            raise
        connection.waited = 0.0
        return done

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
    """What every one-attempt connection adds to the redis-py class that it is made from.

    `dependency` is what its faults are blamed on, and `trip` what its round trips are noted in;
    whoever makes it may set them. A reply that comes after its caller's deadline is owed: the next
    caller takes it off the connection before it sends anything.
    """

    budget: Budget
    dependency: Hashable = None
    waited = 0.0
    _trip: Trip | None = None
    _owed = 0
    _still_watches = False

    @property
    def trip(self) -> Trip:
        """How long a round trip of this connection takes."""
        if self._trip is None:
            self._trip = Trip()
        return self._trip

    @trip.setter
    def trip(self, trip: Trip) -> None:
        self._trip = trip

    @property
    def owes(self) -> bool:
        """Whether replies are still under way that a deadline has cut off."""
        return self._owed > 0

    def unwatch_later(self) -> None:
        """Send UNWATCH before the next command, in the same write."""
        self._still_watches = True
        self.watching = False

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Close the socket, with all that is owed on it."""
        self._owed, self._still_watches, self.waited = 0, False, 0.0
        super().disconnect(*args, **options)

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
        begun = SYSTEM_CLOCK.monotonic()
        sock = super()._connect()  # type: ignore[safe-super]
        # fakeredis' connections have a queue in place of a socket, and nothing to wait for.
        if not isinstance(sock, socket.socket):
            return sock
        self.trip.guess(SYSTEM_CLOCK.monotonic() - begun)
        return _BoundedSocket(sock, self)

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
        before anything was sent; Unanswered, one of them, if the deadline came before the replies,
        which leaves the connection good; Moved when the slot is elsewhere; READONLY and the like
        as they come, after which the socket is closed; a ConnectionError or a TimeoutError after a
        cut, garbage or a whole time-out of waiting without a byte, after which it is closed and not
        used again. One round trip, and a connection attempt of at most one time-out before it if
        there is none.
        """
        is_opening = False
        try:
            if self._sock is None:
                self._is_owed = is_opening = True
                budget.require(self.trip)
                self.budget = _Opening(budget.timeout, budget.timeout, budget.clock)
                self.connect_check_health(check_health=False, retry_socket_connect=False)
                is_opening = False
            elif self._is_owed:
                raise ConnectionError("this connection was cut short in the midst of a use")
            elif self._owed:
                self._is_owed = True
                self._settle(budget)
            elif self.is_stale():
                raise ConnectionError("the server closed the connection, or sent what nobody asked")
            budget.require(self.trip)
            self.budget = budget
            self._is_owed = True
            replies = self._round_trip(commands)
            self._is_owed = False
        except OutOfTime:
            # No fault: the connection stays, and what it owes is taken off it next time.
            if is_opening:
                self.disconnect()
            self._is_owed = False
            raise
        except InvalidResponse as error:
            self.disconnect()
            fault = ConnectionError(f"the server does not speak Redis' protocol: {error}")
            blame(fault, self.dependency)
            raise fault from error
        except BaseException as error:
            # Whatever it was, a host's own time-out included: an answer may still be under way.
            self.disconnect()
            if isinstance(error, ConnectionError | TimeoutError | OSError):
                blame(error, self.dependency)
            raise
        self._refuse(replies)
        return replies

    def _settle(self, budget: Budget) -> None:
        """Take the replies that are owed off the connection, as far as the time goes."""
        self.budget = budget
        try:
            while self._owed:
                self._reply()
                self._owed -= 1
        except Unanswered as error:
            raise OutOfTime("the reply to an earlier slice is still under way") from error
        if self._has_unread():
            raise ConnectionError("the server sent more replies than there were commands")

    def _refuse(self, replies: list[Any]) -> None:
        """Raise what says that another node is to be asked."""
        elsewhere: list[AskError] = []
        for reply in replies:
            if not isinstance(reply, ResponseError):
                continue
            if isinstance(reply, AskError):
                elsewhere.append(reply)
            elif isinstance(reply, TryAgainError):
                raise Moved(f"the cluster is moving the slot: {reply}") from reply
            elif takes_no_writes(reply):
                # A new socket may lead to the new primary: by its name, or by what sentinels say.
                self.disconnect()
                raise reply
        if elsewhere:
            gone = {
                reply.slot_id: (reply.host, reply.port)
                for reply in elsewhere
                if isinstance(reply, MovedError)
            }
            raise Moved(f"the cluster has moved the slot: {elsewhere[0]}", gone) from elsewhere[0]

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
        before: list[Command] = [("UNWATCH",)] if self._still_watches else []
        SENT.commands += len(before) + len(commands)
        SENT.round_trips += 1
        pack = self._command_packer.pack
        text = b"".join(
            part for command in (*before, *commands) for part in pack(*map(_as_text, command))
        )
        begun = SYSTEM_CLOCK.monotonic()
        self.send_packed_command([text], check_health=False)
        self._still_watches = False
        self._owed = len(before) + len(commands)
        replies: list[Any] = []
        try:
            while self._owed:
                replies.append(self._reply())
                self._owed -= 1
        except Unanswered:
            self.trip.lasts(SYSTEM_CLOCK.monotonic() - begun)
            raise
        self.trip.took(SYSTEM_CLOCK.monotonic() - begun)
        if self._has_unread():
            raise ConnectionError("the server sent more replies than there were commands")
        return replies[len(before) :]

    def _reply(self) -> Any:
        try:
            # It is `call` that closes: after a reply that is only late, it does not.
            return self.read_response(disconnect_on_error=False)
        except ConnectionError:
            raise
        except ResponseError as error:
            return error


def _as_text(argument: Any) -> Any:
    """Return a number as text: hiredis crashes when a signal's handler raises as it makes one."""
    kind = type(argument)
    return repr(argument) if kind is int or kind is float else argument


def takes_no_writes(reply: ResponseError) -> bool:
    """Say whether an error reply comes from a replica, or from a primary cut off from its own.

    BUSY, CLUSTERDOWN and MISCONF are not among them: the server is the right one, and answers.
    """
    if isinstance(reply, ReadOnlyError | MasterDownError):
        return True
    text = str(reply)
    # Older servers wrap a script's READONLY in a sentence.
    return text.startswith("NOREPLICAS") or "-READONLY " in text


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
