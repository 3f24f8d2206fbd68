"""A connection that makes one attempt: bounded in time, closed for good at the first fault.

The connection is redis-py's own, with redis-py's packing, parser and TLS, but without the habits
that would hold a host up. It never retries. The connection's handshake is AUTH and SELECT alone.
The connection waits for no reply longer than the budget allows. It also resolves names without
blocking the caller.
"""

from __future__ import annotations

import inspect
import re
import select
import socket
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from redis._parsers.socket import SocketBuffer
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import (
    AskError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, LayoutError, Moved, OutOfTime, Unanswered, blame
from workstealing.store.budget import (
    TIMEOUT_SECONDS,
    Budget,
    Opening,
    RoundTripTime,
    server_seconds,
)
from workstealing.store.opening import (
    BoundedSocket,
    BoundedTcp,
    Handshake,
    SharedTls,
    connect_function,
)
from workstealing.store.redis_versions import CONNECTION_OPTIONS, AbstractConnection

Command = tuple[Any, ...]
RepliesT = TypeVar("RepliesT", bound=Sequence[Any])
_NUMBERS = frozenset((int, float))
# Advice about a script's refusal, by its last words; other refusals hold their own advice.
_ADVICE = tuple(
    (re.compile(ending, re.DOTALL).search, advice)
    for ending, advice in (
        (
            r" does not hold the entries that the log has there$",
            ": they were lost or changed, so evict() them, or delete() the log",
        ),
        (
            r" says .* as .* where .* was expected$| holds another type than it should$",
            ": restore the key from a backup, or remove it if its content is not needed",
        ),
        (
            (
                r" does not hold [^:]*$| holds a \w+ where a [^:]* was expected$"
                r"| holds members, but there is no version of an Ick at .*$"
            ),
            ": use another name, or remove the key if it is not needed",
        ),
        (
            r" says .* where .* was expected$",
            ": upgrade workstealing if a newer release has written it, or else use another name",
        ),
    )
)


class Packed:
    """Commands in the form that the server reads, which stand for so many of a `Command`.

    Fields: text; count: how many commands, and so replies.
    """

    __slots__ = ("count", "text")

    def __init__(self, text: bytes, count: int) -> None:
        self.text = text
        self.count = count

    def __len__(self) -> int:
        return self.count

    @classmethod
    def joined(cls, parts: Sequence[Packed]) -> Packed:
        """Return the commands of several, one after the other."""
        return cls(b"".join([part.text for part in parts]), sum([part.count for part in parts]))

    def in_transaction(self) -> Packed:
        """Return the commands between MULTI and EXEC."""
        return Packed(
            b"*1\r\n$5\r\nMULTI\r\n" + self.text + b"*1\r\n$4\r\nEXEC\r\n", self.count + 2
        )


Commands = Sequence[Command] | Packed


class Sent:
    """The commands and round trips that this process's one-attempt connections have sent.

    Fields: commands; round_trips; seconds: the length of all round trips; server_seconds: as much
    of that as the servers themselves took, where `asks_time` was set, else all. TIME, which is not
    counted, goes before and behind the commands of each round trip then. Threads that send at the
    same moment may lose a count. A process that does one slice at a time sets its pace by the
    counts; tests read the counts, too.
    """

    __slots__ = ("asks_time", "commands", "round_trips", "seconds", "server_seconds")

    def __init__(self) -> None:
        self.commands = self.round_trips = 0
        self.seconds = self.server_seconds = 0.0
        self.asks_time = False


SENT = Sent()
_TIME = b"*1\r\n$4\r\nTIME\r\n"


class OneAttempt(AbstractConnection):
    """The one-attempt half of a connection class; the other half is a class of redis-py.

    Its maker may set `dependency`, which its faults are blamed on, and `trip`, which notes its
    round trips. A reply that comes after its caller's deadline is owed: the next caller takes it
    off the connection before it sends anything.
    """

    budget: Budget
    dependency: Hashable = None
    waited = 0.0
    _trip: RoundTripTime | None = None
    _owed = 0
    _waited_for_owed = 0.0
    _still_watches = False

    @property
    def trip(self) -> RoundTripTime:
        """How long a round trip of this connection takes."""
        if self._trip is None:
            self._trip = RoundTripTime()
        return self._trip

    @trip.setter
    def trip(self, trip: RoundTripTime) -> None:
        self._trip = trip

    @property
    def owes(self) -> bool:
        """Whether a deadline has cut off replies that are still under way."""
        return self._owed > 0

    def unwatch_later(self) -> None:
        """Send UNWATCH before the next command, in the same write."""
        self._still_watches = True
        self.watching = False

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Close the socket, and drop all replies that are owed on it."""
        self._owed, self._still_watches = 0, False
        self.waited = self._waited_for_owed = 0.0
        super().disconnect(*args, **options)

    watching = False
    """Whether WATCH may still hold on this connection; `Attempt` sets it."""

    # Set before the first byte that asks for an answer, and cleared when all answers have been
    # read. A host's time-out between any two steps leaves it set, even inside the closing of the
    # socket.
    _is_owed = False

    def warm_up(self) -> None:
        """Do the preparations for connecting that need no server; no round trip."""
        if isinstance(self, Connection):
            # The first use of this codec imports it.
            str(self.host).encode("idna")
        if isinstance(self, SharedTls):
            self.tls_context()

    def _connect(self) -> Any:
        begun = SYSTEM_CLOCK.monotonic()
        sock = super()._connect()  # type: ignore[safe-super]
        # fakeredis' connections have a queue instead of a socket, and never wait.
        if not isinstance(sock, socket.socket):
            return sock
        self.trip.guess(SYSTEM_CLOCK.monotonic() - begun)
        return BoundedSocket(sock, self)

    @contextmanager
    def decoding(self, decodes: bool) -> Iterator[None]:
        """Read replies in the application's own form inside the block, and as bytes after it."""
        self.encoder.decode_responses = decodes
        try:
            yield
        finally:
            self.encoder.decode_responses = False
        # The parser has kept the form in which it was to read.
        self._parser.on_connect(self)

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Let the replies inside the block say nothing of the length of a round trip.

        The reply to a command that blocks waits for another client, not for the server.
        """
        known, self.trip = self.trip, RoundTripTime()
        try:
            yield
        finally:
            self.trip = known

    def call(self, commands: Commands, budget: Budget) -> list[Any]:
        """Send the commands in one write and read as many replies, once.

        Arguments:
            commands: tuples of a name and its arguments, or packed ones.
            budget: the time that is left.

        Returns: the replies in order, with each error reply as an exception object in its place.
        One round trip; a connection that is not open is opened first, within one time-out.

        Raises: OutOfTime before anything was sent; Unanswered if the deadline came before the
        replies. Both leave the connection good. Moved is raised if the slot is on another node.
        READONLY and similar errors, unchanged; the socket is closed then. A ConnectionError or a
        TimeoutError after a cut, after garbage, or after one whole time-out without a byte; the
        connection is closed then and not used again.
        """
        replies = self.call_each(commands, budget)
        moved = moved_of(replies)
        if moved is not None:
            raise moved
        return replies

    def call_each(self, commands: Commands, budget: Budget) -> list[Any]:
        """Send the commands as `call` does; return the errors of moved slots in their places.

        Raises: as `call`, but for Moved.
        """
        is_opening = False
        try:
            if self._sock is None:
                self._is_owed = is_opening = True
                budget.require(self.trip)
                self.budget = Opening(budget.timeout, budget.timeout, budget.clock)
                self.connect_check_health(check_health=False, retry_socket_connect=False)
                is_opening = False
            elif self._is_owed:
                raise ConnectionError("an earlier use of this connection was cut short")
            elif self._owed:
                self._is_owed = True
                self._read_owed(budget)
            elif self.is_stale():
                raise ConnectionError("the server closed the connection, or sent unasked data")
            budget.require(self.trip)
            self.budget = budget
            self._is_owed = True
            replies = self._round_trip(commands)
            self._is_owed = False
        except OutOfTime:
            # This is no fault: the connection stays, and the next use takes the owed replies off
            # it.
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
            # After any error, a host's own time-out included, an answer may still be under way.
            self.disconnect()
            if isinstance(error, ConnectionError | TimeoutError | OSError):
                blame(error, self.dependency)
            raise
        self._refuse(replies)
        return replies

    def _read_owed(self, budget: Budget) -> None:
        """Take the replies that are owed off the connection, as far as the time goes.

        A reply that comes in bits might never end, and would hold up each recruit. Therefore all
        callers that wait for one debt share one time-out.
        """
        begun = budget.clock.monotonic()
        self.budget = Budget(budget.timeout - self._waited_for_owed, budget.timeout, budget.clock)
        if budget.deadline is not None:
            self.budget.deadline = min(
                budget.deadline, begun + budget.timeout - self._waited_for_owed
            )
        try:
            while self._owed:
                self._reply()
                self._owed -= 1
        except Unanswered as error:
            self._waited_for_owed += budget.clock.monotonic() - begun
            if not budget.cuts(self._waited_for_owed):
                raise TimeoutError("the reply to an earlier slice comes in bits, too slowly") from (
                    error
                )
            raise OutOfTime("the reply to an earlier slice is still under way") from error
        self._waited_for_owed = 0.0
        if self._has_unread():
            raise ConnectionError("the server sent more replies than there were commands")

    def _refuse(self, replies: list[Any]) -> None:
        """Raise the error reply of a server that takes no writes, and close its socket."""
        for reply in replies:
            if isinstance(reply, ResponseError) and takes_no_writes(reply):
                # A new socket may lead to the new primary, by its name or by the sentinels' answer.
                self.disconnect()
                raise reply

    @property
    def is_open(self) -> bool:
        """Whether there is a socket that the next call would use."""
        return self._sock is not None and not self._is_owed

    @property
    def is_at_rest(self) -> bool:
        """Whether others may use the connection: open, no reply owed, nothing WATCHed."""
        return self.is_open and not self.watching

    def is_stale(self) -> bool:
        """Say, without waiting, whether the other side has closed an idle connection."""
        sock = self._sock
        if sock is None:
            return False
        raw = getattr(sock, "_sock", None)
        if raw is None:
            return False
        # An idle connection is owed nothing: readable bytes are its end, or garbage.
        return self._has_unread() or _is_readable(raw)

    def can_read(self, timeout: float = 0) -> bool:
        """Say within so many seconds whether a reply has begun to come, or the end.

        redis-py before 6 waits by the socket's time-out, which the budget sets here.
        """
        raw = getattr(self._sock, "_sock", None)
        if raw is None or self._has_unread():
            return True
        # TLS may have taken more off the socket than was read.
        pending = getattr(raw, "pending", None)
        return bool(pending and pending()) or _is_readable(raw, timeout)

    def _has_unread(self) -> bool:
        """Say whether the parser holds bytes beyond the expected replies."""
        reader = getattr(self._parser, "_reader", None)
        if reader is not None:
            return bool(reader.has_data())
        buffer = getattr(self._parser, "_buffer", None)
        return isinstance(buffer, SocketBuffer) and buffer.unread_bytes() > 0

    def _round_trip(self, commands: Commands) -> list[Any]:
        if not len(commands):
            return []
        before: list[Command] = [("UNWATCH",)] if self._still_watches else []
        SENT.commands += len(before) + len(commands)
        SENT.round_trips += 1
        pack = self._command_packer.pack
        plain = before if isinstance(commands, Packed) else (*before, *commands)
        text = b"".join(part for command in plain for part in pack(*spelled(command)))
        if isinstance(commands, Packed):
            text += commands.text
        around = _TIME if SENT.asks_time else b""
        begun = SYSTEM_CLOCK.monotonic()
        self.send_packed_command([around + text + around], check_health=False)
        self._still_watches = False
        self._owed = len(before) + len(commands) + (2 if around else 0)
        replies: list[Any] = []
        try:
            while self._owed:
                replies.append(self._reply())
                self._owed -= 1
                if self._owed:
                    self._take_what_has_come(replies)
        except Unanswered:
            self.trip.lasts(SYSTEM_CLOCK.monotonic() - begun)
            raise
        finally:
            lasted = SYSTEM_CLOCK.monotonic() - begun
            SENT.seconds += lasted
            # Without both TIMEs nobody knows, so the whole wait counts.
            known = replies if around and not self._owed else [None, None]
            SENT.server_seconds += server_seconds(known[0], known[-1], lasted)
        if around:
            SENT.asks_time = not isinstance(replies[0], NoPermissionError)
            replies = replies[1:-1]
        self.trip.took(lasted)
        if self._has_unread():
            raise ConnectionError("the server sent more replies than there were commands")
        return replies[len(before) :]

    def _demand(self, commands: Sequence[Command]) -> None:
        checked(self._round_trip(commands))

    def _take_what_has_come(self, replies: list[Any]) -> None:
        """Take the replies that the parser holds already, without redis-py's care for each."""
        reader = getattr(self._parser, "_reader", None)
        if reader is None:
            return
        while self._owed and reader.has_data():
            reply = reader.gets()
            first = reply[0] if type(reply) is list and reply else reply
            if isinstance(first, ConnectionError):
                raise first
            is_whole = reply is None or isinstance(reply, int | bytes | list | ResponseError)
            if not is_whole or reply is False:
                # Not all of it has come, which the parser says by an object of its own.
                return
            replies.append(reply)
            self._owed -= 1

    def _reply(self) -> Any:
        try:
            # `call` closes the connection, because a reply that is only late must leave it open.
            return self.read_response(disconnect_on_error=False)
        except ConnectionError:
            raise
        except ResponseError as error:
            return error


def spelled(words: Sequence[Any]) -> tuple[Any, ...]:
    """Return a command's words with its numbers as the bytes that redis-py sends for them.

    hiredis crashes if a signal's handler raises while it makes a number's text.
    """
    if _NUMBERS.isdisjoint(map(type, words)):
        return tuple(words)
    return tuple(
        [
            # Twice as quick as repr(), which floats need.
            b"%d" % each
            if type(each) is int
            else repr(each).encode()
            if type(each) is float
            else each
            for each in words
        ]
    )


def takes_no_writes(reply: ResponseError) -> bool:
    """Say whether an error reply comes from a replica, or from a primary cut off from its own.

    BUSY, CLUSTERDOWN and MISCONF do not count: they come from the right server, and it answers.
    """
    is_replica = isinstance(reply, ReadOnlyError | MasterDownError)
    return is_replica or str(reply).startswith("NOREPLICAS")


def is_elsewhere(reply: Any) -> bool:
    """Say whether a reply is the error of a slot that has moved, or is moving."""
    return isinstance(reply, AskError | TryAgainError)


def moved_of(replies: Sequence[Any]) -> Moved | None:
    """Return the error that stands for all moved slots among replies, or None."""
    first: Exception | None = None
    gone: dict[int, tuple[str, int]] = {}
    for reply in replies:
        if is_elsewhere(reply):
            first = first or reply
            if isinstance(reply, MovedError):
                gone[reply.slot_id] = (reply.host, reply.port)
    if first is None:
        return None
    how = "has moved" if gone else "is moving"
    moved = Moved(f"the cluster {how} the slot: {first}", gone)
    moved.__cause__ = first
    return moved


def as_layout_error(error: Exception) -> LayoutError | None:
    """Return the LayoutError that a script's error reply stands for, or None for any other."""
    _, found, said = str(error).partition("WSLAYOUT ")
    if not found:
        return None
    advice = next((advice for ends, advice in _ADVICE if ends(said)), "")
    return LayoutError(f"{said}{advice}; nothing was changed")


def checked(replies: RepliesT) -> RepliesT:
    """Return replies as they are.

    Raises: the first error reply among them, as a LayoutError where a script has refused a foreign
    or newer layout.
    """
    for reply in replies:
        if isinstance(reply, Exception):
            try:
                raise as_layout_error(reply) or reply
            finally:
                # The error holds this frame, which must not hold the error.
                del reply, replies
    return replies


def _is_readable(sock: socket.socket, seconds: float = 0) -> bool:
    """Say within so many seconds whether a read would return at once."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], seconds)[0])
    # select() refuses the high descriptors of a process with many files open.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


_classes: dict[type[Any], type[OneAttempt]] = {}


def one_attempt_class(kind: type[Any]) -> type[OneAttempt]:
    """Return the one-attempt sibling of one of redis-py's (blocking) connection classes."""
    known = _classes.get(kind)
    if known is not None:
        return known
    bases: list[type] = [OneAttempt]
    if kind not in (Connection, SSLConnection):
        bases.append(kind)
    # They stand behind the application's class, which may wrap the socket that they open.
    if issubclass(kind, SSLConnection):
        bases.append(SharedTls)
    if issubclass(kind, Connection):
        bases.append(BoundedTcp)
    made: type[OneAttempt] = type(f"OneAttempt{kind.__name__}", (*bases, Handshake), {})
    return _classes.setdefault(kind, made)


def one_attempt_options(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's options without its retries, hooks and handshake extras.

    Raises: ConfigurationError for an option that asks another server.
    """
    for name in ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"):
        if options.get(name):
            raise ConfigurationError(
                f"{name} asks another server without a bound on its time: give the jobs a client"
                " of their own without it"
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
        **CONNECTION_OPTIONS,
        "redis_connect_func": connect_function(options),
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


@cache
def _parameters(kind: type[Any]) -> frozenset[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in base.__dict__:
            names.update(inspect.signature(base).parameters)
    return frozenset(names)
