"""Asking a database within a slice: one daemon thread that keeps one connection warm.

No caller may wait for a connection to open, or for a silent database. So a thread owns the
connection, opens it before it is needed, and asks the questions on it. The caller waits for the
answer only as long as it may.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import OutOfTime, Skipped, blame, is_connection_fault

C = TypeVar("C")
T = TypeVar("T")

POLL_SECONDS = 0.005
PAUSE_SECONDS = 1.0
GIVE_UP_SECONDS = 60.0


# The DB-API's names for errors of an unusable database, in any driver.
_UNUSABLE = frozenset({"OperationalError", "InterfaceError"})


@contextmanager
def blaming(source: object) -> Iterator[None]:
    """Blame a source for its errors when its database cannot be used.

    So each source has its own breaker: recruits do not all ask a dead database, and it stops no job
    that only talks to Redis.

    Arguments:
        source: it is asked in the block; its `dependency` is blamed, if it has one.
    """
    try:
        yield
    except Exception as error:
        names = {base.__name__ for base in type(error).__mro__}
        if is_connection_fault(error) or not names.isdisjoint(_UNUSABLE):
            blame(error, getattr(source, "dependency", ("source", id(source))))
        raise


class _Question:
    """A question under way, and its answer or error."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self.ask = ask
        self.done = threading.Event()
        self.is_abandoned = False
        self.answer: Any = None
        self.error: BaseException | None = None


class _Line(Generic[C]):
    """A thread with one connection, on which it asks questions one by one."""

    def __init__(self, open: Callable[[], C], close: Callable[[C], None]) -> None:  # noqa: A002
        self.questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.opened = threading.Event()
        self.is_ready = False
        self.is_over = False
        self.problem: BaseException | None = None
        self.connection: C | None = None
        self._open, self._close = open, close
        threading.Thread(target=self._run, name="workstealing-source", daemon=True).start()

    def _run(self) -> None:
        try:
            connection = self._open()
        except Exception as error:  # noqa: BLE001 - the next recruit reports it
            self.problem = error
            self.is_over = True
            self.opened.set()
            return
        # A child of fork() must keep its copy: closing it would close the parent's connection too.
        self.connection = connection
        self.is_ready = True
        self.opened.set()
        while (question := self.questions.get()) is not None and self._serve(question, connection):
            pass
        self._end(connection)

    def _serve(self, question: _Question, connection: C) -> bool:
        """Answer a question; return whether the connection may be used again."""
        try:
            question.answer = question.ask(connection)
        except Exception as error:  # noqa: BLE001 - the asker raises it
            question.error = error
        with self.lock:
            is_good = question.error is None and not question.is_abandoned
            # Set before the asker goes on, so that its next question finds the right state.
            self.is_ready, self.is_over = is_good, not is_good
        question.done.set()
        return is_good

    def _end(self, connection: C) -> None:
        # The connection is thrown away, so its errors do not matter.
        with contextlib.suppress(Exception):
            self._close(connection)


class Asker(Generic[C]):
    """Asks questions on a warm connection, and never opens one in the caller's time.

    Arguments:
        open: makes a connection.
        close: throws one away.

    `open` and `close` run in a daemon thread, as do the questions. After any error the connection
    is thrown away. Safe under threads and after fork.
    """

    def __init__(
        self,
        open: Callable[[], C],  # noqa: A002 - the pair of close
        close: Callable[[C], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._open, self._close, self._clock = open, close, clock
        # Lines of a parent process: their threads are gone, and the parent uses their sockets.
        self._inherited: list[_Line[C]] = []
        self._line: _Line[C] | None = None
        self._begin()

    def _begin(self) -> None:
        if self._line is not None:
            self._inherited.append(self._line)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._line = None
        self._not_before = 0.0
        self._asked_at: float | None = None

    def ask(self, question: Callable[[C], T], seconds: float) -> T:
        """Ask, and wait at most `seconds` for the answer.

        Raises: Skipped if no connection is open (a thread then opens one), or if another question
        is under way; OutOfTime if no answer has come; the question's own error; once, the error of
        the last failed opening.
        """
        line = self._require(claim=True)
        asked = _Question(question)
        line.questions.put(asked)
        is_done = False
        try:
            is_done = asked.done.wait(max(0.0, seconds))
        finally:
            # The host's own time-out may be raised in the wait, too.
            with line.lock:
                asked.is_abandoned = not asked.done.is_set() and not line.is_over
            self._asked_at = None if is_done else self._clock.monotonic()
        if not is_done:
            raise OutOfTime("the database did not answer within the slice")
        if asked.error is not None:
            raise asked.error
        answer: T = asked.answer
        return answer

    def require_ready(self) -> None:
        """Raise the error that `ask` would raise at once, if any."""
        self._require(claim=False)

    def warm_up(self, seconds: float) -> None:
        """Wait until a connection is open; too slow for a slice.

        Raises: Skipped if no connection opens in time; the error of the attempt to open one.
        """
        end = time.monotonic() + seconds
        while True:
            with self._guard():
                self._not_before = 0.0
                line = self._warming()
            if not line.opened.wait(max(0.0, end - time.monotonic())):
                raise Skipped("the database has opened no connection in time")
            try:
                self._require(claim=False)
                return
            except Skipped:
                # The connection still answers a question that a slice gave up; another one follows.
                if time.monotonic() >= end:
                    raise
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Throw the connection away; the next question warms another one."""
        with self._guard():
            line, self._line = self._line, None
        if line is not None:
            line.questions.put(None)

    def _guard(self) -> threading.Lock:
        if self._pid != os.getpid():
            self._begin()
        return self._lock

    def _warming(self) -> _Line[C]:
        if self._line is None or self._line.is_over:
            self._line = _Line(self._open, self._close)
        return self._line

    def _require(self, *, claim: bool) -> _Line[C]:
        with self._guard():
            line, now = self._line, self._clock.monotonic()
            if line is not None and line.is_ready:
                if claim:
                    # Set first: the host's time-out may stop the question from being put.
                    self._asked_at = now
                    line.is_ready = False
                return line
            if line is not None and line.is_over:
                problem, line.problem = line.problem, None
                self._line = None
                if problem is not None:
                    # Do not try to connect all the time.
                    self._not_before = now + PAUSE_SECONDS
                    raise problem
            elif self._asked_at is not None and now - self._asked_at >= GIVE_UP_SECONDS:
                # A database that is silent for so long will not answer that question.
                if line is not None:
                    line.questions.put(None)
                self._line, self._asked_at = None, None
            if now >= self._not_before:
                self._warming()
        raise Skipped("no warm connection to the database is free; a thread warms one")
