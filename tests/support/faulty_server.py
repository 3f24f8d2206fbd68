"""A listening socket in front of a real Redis that misbehaves at the command of a test's choice.

It hands each command to the real server and each reply back, notes every command of every
connection in the order of arrival, and at command number k does what its fault says. It speaks
RESP2 and no more.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from support.servers import wait_until

GARBAGE = b"\x00\xffHTTP/1.1 400 Bad Request\r\n\r\n"
DRIP_SECONDS = 0.020
SLOW_SECONDS = 0.040

Command = tuple[bytes, ...]
Reply = Callable[[socket.socket, bytes], bool]


@dataclass(frozen=True)
class Seen:
    """One command as the socket saw it: on which connection, in which batch of that, and when."""

    connection: int
    batch: int
    command: Command
    at: float

    @property
    def name(self) -> str:
        """The command's name, in capitals."""
        return self.command[0].decode().upper()


class KillSwitch:
    """Kills a process at command number `at` of all that it sends through some faulty servers.

    Arguments:
        at: from 1 on.
        after: whether the command is passed on (and has been answered) before the process dies, or
            never reaches the real server.

    Set `victim` before the process sends.
    """

    def __init__(self, at: int, *, after: bool) -> None:
        self.at = at
        self.after = after
        self.victim = 0
        self.fired = False
        self.passed = 0
        self._lock = threading.Lock()

    def before(self) -> bool:
        """Count a command; kill if it is the one; return whether it is to be passed on."""
        with self._lock:
            if self.fired:
                return False
            self.passed += 1
            if self.passed == self.at and not self.after:
                self._fire()
            return not self.fired

    def answered(self) -> bool:
        """Kill if the command just answered is the one; return whether to go on."""
        with self._lock:
            if self.passed == self.at and self.after and not self.fired:
                self._fire()
            return not self.fired

    def _fire(self) -> None:
        self.fired = True
        os.kill(self.victim, signal.SIGKILL)


class CutSwitch(KillSwitch):
    """Cuts a process off at command number `at`, as its death would: from then on it gets nothing.

    Arguments: as of `KillSwitch`; doors: the faulty servers that its commands go through.
    """

    def __init__(self, at: int, doors: Sequence[FaultyServer], *, after: bool) -> None:
        super().__init__(at, after=after)
        self._doors = doors

    def before(self) -> bool:
        """Count a command; cut if it is the one, or came later; return whether to pass it on."""
        passes = super().before()
        if not passes:
            self._cut()
        return passes

    def answered(self) -> bool:
        """Cut if the command just answered is the one; return whether to go on."""
        goes_on = super().answered()
        if not goes_on:
            self._cut()
        return goes_on

    def _fire(self) -> None:
        self.fired = True

    def _cut(self) -> None:
        for door in self._doors:
            door.close_idle()


@dataclass(eq=False)
class Debt:
    """How many commands of a connection wait for an answer, and whether they will ever get one."""

    owed: int = 0
    is_over: bool = False


class FaultyServer:
    """The socket. Arguments: the port on the loopback interface where the real server listens.

    `fail(k, kind)` arms a fault; `seen` and `connections` say what happened; `reset` forgets both.
    Command numbers start at 1 and go on over all connections since the last reset.
    """

    KINDS = ("silent", "cut", "half", "half_silent", "garbage", "error", "drip")

    def __init__(self, backend_port: int) -> None:
        self._backend_port = backend_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._stopping = threading.Event()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.reset()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Close what is open, forget what was seen, and behave well."""
        with self._lock:
            for sock in getattr(self, "_open", []):
                _close(sock)
            self._open = []
            self.seen: list[Seen] = []
            self.connections = 0
            self.switch: KillSwitch | None = None
            self.error_reply = b"-ERR the test wants an error here\r\n"
            # Sent after each right reply: replies that nobody has asked for.
            self.extra_reply = b""
            self._answered = 0
            self._debts: list[Debt] = []
            self._fault: tuple[int, str] | None = None
            self._generation = object()

    def fail(self, at: int, kind: str) -> None:
        """Do `kind` (one of KINDS, or "slow" for every reply) at command number `at`, from 1 on."""
        assert kind in (*self.KINDS, "slow")
        self._fault = (at, kind)

    def close_idle(self) -> None:
        """Close every open connection in order, as a server's `timeout` setting does."""
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            self._open = []

    def settle(self) -> None:
        """Wait until nothing of what was sent is still on its way to the real server."""
        wait_until(self._owes_nothing, "all that was sent to be answered")

    def _owes_nothing(self) -> bool:
        with self._lock:
            return all(debt.owed == 0 or debt.is_over for debt in self._debts)

    def names(self) -> list[str]:
        """Return the names of the commands seen, in order."""
        return [seen.name for seen in self.seen]

    def stop(self) -> None:
        """Close everything."""
        self._stopping.set()
        _close(self._listener)
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                number, generation = self.connections, self._generation
                self._open.append(sock)
            threading.Thread(
                target=self._serve, args=(sock, number, generation), daemon=True
            ).start()

    def _serve(self, sock: socket.socket, number: int, generation: object) -> None:
        """Note what arrives as soon as it does; another thread answers, as slowly as it likes."""
        owed: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        debt = Debt()
        threading.Thread(
            target=self._answer, args=(sock, owed, debt, generation), daemon=True
        ).start()
        unread, batch = b"", 0
        with contextlib.suppress(OSError):
            while data := sock.recv(65536):
                batch += 1
                commands, unread = parse_commands(unread + data)
                with self._lock:
                    if generation is not self._generation:
                        break
                    now = time.monotonic()
                    self.seen += [Seen(number, batch, command, now) for command in commands]
                    if debt not in self._debts:
                        self._debts.append(debt)
                    debt.owed += len(commands)
                for command in commands:
                    owed.put(command)
        owed.put(None)

    def _answer(
        self,
        sock: socket.socket,
        owed: queue.SimpleQueue[Command | None],
        debt: Debt,
        generation: object,
    ) -> None:
        try:
            self._pay(sock, owed, debt, generation)
        finally:
            debt.is_over = True

    def _pay(
        self,
        sock: socket.socket,
        owed: queue.SimpleQueue[Command | None],
        debt: Debt,
        generation: object,
    ) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._backend_port)) as backend,
        ):
            replies = read_replies(backend)
            while (command := owed.get()) is not None:
                with self._lock:
                    if generation is not self._generation:
                        return
                    self._answered += 1
                    at, kind = self._fault or (0, "")
                    position = self._answered
                    switch = self.switch
                if kind == "silent" and position >= at:
                    continue
                if switch is not None and not switch.before():
                    return
                backend.sendall(pack(command))
                reply = next(replies)
                with self._lock:
                    debt.owed -= 1
                if switch is not None and not switch.answered():
                    return
                if kind == "slow":
                    self._stopping.wait(SLOW_SECONDS)
                    sock.sendall(reply)
                elif position == at:
                    if not self._misbehave(sock, kind, reply):
                        _close(sock)
                        return
                elif kind == "drip" and position > at:
                    self._drip(sock, reply)
                elif kind == "half_silent" and position > at:
                    continue
                else:
                    sock.sendall(reply + self.extra_reply)

    def _misbehave(self, sock: socket.socket, kind: str, reply: bytes) -> bool:
        """Answer wrongly; return whether the connection stays open."""
        if kind == "half":
            sock.sendall(reply[: max(1, len(reply) // 2)])
        elif kind == "half_silent":
            sock.sendall(reply[: max(1, len(reply) // 2)])
            return True
        elif kind == "garbage":
            sock.sendall(GARBAGE)
            return True
        elif kind == "error":
            sock.sendall(self.error_reply)
            return True
        elif kind == "drip":
            self._drip(sock, reply)
            return True
        return False

    def _drip(self, sock: socket.socket, reply: bytes) -> None:
        for byte in reply:
            sock.sendall(bytes([byte]))
            if self._stopping.wait(DRIP_SECONDS):
                return


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """Yield a loopback port that drops every attempt to connect: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        # The kernel takes a few more than asked for; go on until one of them gets no answer.
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(address)
            except TimeoutError:
                break
        yield address[1]


def pack(command: Sequence[bytes]) -> bytes:
    """Return a command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(command)]
    parts += [b"$%d\r\n%b\r\n" % (len(part), part) for part in command]
    return b"".join(parts)


def parse_commands(data: bytes) -> tuple[list[Command], bytes]:
    """Return the whole commands at the beginning of the data, and the rest."""
    commands: list[Command] = []
    while data:
        head, found, rest = data.partition(b"\r\n")
        if not found or not head.startswith(b"*"):
            # Half a command, or none of Redis's: a TLS handshake may hold these two bytes, too.
            break
        parts: list[bytes] = []
        for _ in range(int(head[1:])):
            size, found, rest = rest.partition(b"\r\n")
            length = int(size[1:]) if found else 0
            if not found or len(rest) < length + 2:
                return commands, data
            parts.append(rest[:length])
            rest = rest[length + 2 :]
        commands.append(tuple(parts))
        data = rest
    return commands, data


def read_replies(sock: socket.socket) -> Iterator[bytes]:
    """Yield one whole RESP2 reply after the other, as the bytes that came."""
    stream = sock.makefile("rb")

    def one() -> bytes:
        line = stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the real server has closed the connection")
        kind, size = line[:1], line[1:-2]
        if kind == b"$" and size != b"-1":
            return line + stream.read(int(size) + 2)
        if kind == b"*" and size != b"-1":
            return line + b"".join(one() for _ in range(int(size)))
        return line

    while True:
        yield one()


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
