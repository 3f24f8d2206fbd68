"""One attempt: WATCH, read, MULTI, EXEC, exactly once.

What makes it exact: only EXEC's nil says that another writer came first; every other end is an
error of its own kind; and after any fault the socket is closed, because a reply may still be under
way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError, ExecAbortError, OutOfMemoryError, RedisError

from workstealing.errors import Aborted, OutOfTime, WorkStealingError
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, OneAttempt, checked
from workstealing.store.keys import require_one_slot, to_bytes
from workstealing.store.twin import twin_of


class Attempt:
    """The middle of an attempt: what `attempt()` yields."""

    def __init__(
        self,
        connection: OneAttempt,
        keys: tuple[bytes, ...],
        budget: Budget,
        slice: Slice | None = None,
    ) -> None:
        self._connection = connection
        self._slice = slice
        self._keys = keys
        self._budget = budget
        self._begun = False
        self._watching = False
        self._committed = False

    def read(self, *commands: Command) -> list[Any]:
        """Run reading commands; the first call WATCHes the attempt's keys before them.

        Arguments: commands, as tuples of a name and its arguments. Returns: their replies. Errors:
        an error reply is raised; OutOfTime, Moved and connection faults as in `OneAttempt.call`;
        the first call is not begun unless a commit fits in, too. One round trip, the WATCH
        included.
        """
        if self._watching:
            return checked(self._call(commands))
        # Of the connection, too: until this attempt has ended the WATCH, nobody else may use it.
        self._watching = self._connection.watching = True
        # Without the time to commit there is nothing to read for.
        self._budget.trips = 2
        try:
            return checked(self._call([("WATCH", *self._keys), *commands]))[1:]
        finally:
            self._budget.trips = 1

    def commit(self, *commands: Command) -> list[Any]:
        """Run the changing commands as one MULTI/EXEC, unless a WATCHed key has changed.

        Arguments: commands, as tuples. Returns: their replies. Errors: Aborted if another writer
        came first, in which case nothing has been changed; redis.exceptions.OutOfMemoryError if the
        server refuses them for lack of memory; Unanswered if the deadline came before the reply,
        when nobody knows whether they were done; other error replies as they come. One round trip.
        """
        if self._committed:
            raise RuntimeError("an attempt commits once; begin another one for more")
        self._committed = True
        replies = self._call([("MULTI",), *commands, ("EXEC",)])
        # EXEC, MULTI's refusal included, ends the WATCH whatever it says.
        self._watching = self._connection.watching = False
        *queued, result = replies
        refused = next((reply for reply in queued if isinstance(reply, Exception)), None)
        if isinstance(result, ExecAbortError):
            if refused is None and "OOM" in str(result):
                # The memory ran out behind the last queued command.
                raise OutOfMemoryError(str(result)) from result
            raise refused or result
        if refused is not None or isinstance(result, Exception):
            # MULTI or EXEC itself was refused: nobody knows what this connection still WATCHes.
            self._connection.disconnect()
            raise refused or result
        if result is None:
            raise Aborted("another writer changed the keys between WATCH and EXEC")
        return checked(result)

    def _call(self, commands: Sequence[Command]) -> list[Any]:
        if self._begun and not self._connection.is_open:
            # A job may have caught the fault. On a new connection nothing would be WATCHed.
            raise ConnectionError("this attempt's connection was closed by a fault before")
        self._begun = True
        if self._slice is not None:
            self._slice.spend(len(commands))
        return self._connection.call(commands, self._budget)

    def release(self) -> None:
        """End a WATCH that no EXEC has ended, now or before the connection is used again."""
        if not self._watching or not self._connection.is_open:
            return
        try:
            if self._connection.owes:
                raise OutOfTime("a reply is still under way")
            self._connection.call([("UNWATCH",)], self._budget)
            self._connection.watching = False
        except OutOfTime:
            self._connection.unwatch_later()
        except (RedisError, OSError, WorkStealingError):
            # The attempt is over, and what it said is said. A host's time-out passes.
            self._connection.disconnect()


@contextmanager
def attempt(client: Any, *keys: str | bytes, slice: Slice | None = None) -> Iterator[Attempt]:
    """Make one attempt on keys of one hash slot: WATCH, read, MULTI, EXEC, once.

    Arguments: client: any client of redis-py, or the `Twin` of one; keys: what every writer that
    matters certainly modifies; slice: whose deadline bounds the whole attempt (none: each wait is
    bounded by 50 ms), and which counts its commands. Yields: an `Attempt`, whose `read` and
    `commit` do the work. Errors: CrossSlotError before anything is sent; see `Attempt`. Two round
    trips if it reads once and commits.

        with attempt(client, "{u1}:a", "{u1}:b") as a:
            (value,) = a.read(("GET", "{u1}:a"))
            a.commit(("SET", "{u1}:b", value))
    """
    twin = twin_of(client)
    raw = tuple(to_bytes(key) for key in keys)
    slot = require_one_slot(raw)
    budget = Budget(None if slice is None else slice.remaining())
    with twin.connection(twin.node_of(slot)) as connection:
        current = Attempt(connection, raw, budget, slice)
        try:
            yield current
        except Exception:
            raise
        except BaseException:
            # On its way to the host, which must not wait for UNWATCH's reply.
            connection.disconnect()
            raise
        finally:
            current.release()
