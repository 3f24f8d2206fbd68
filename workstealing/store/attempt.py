"""One attempt: WATCH, read, MULTI, EXEC, exactly once.

Three rules make an attempt exact. Only EXEC's nil says that another writer came first. Every other
failure is an error of its own kind. After any fault the socket is closed, because a reply may still
be under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError, ExecAbortError, OutOfMemoryError, RedisError

from workstealing.errors import Aborted, OutOfTime, SpentAttemptError, WorkStealingError
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, OneAttempt, checked
from workstealing.store.job_client import job_client_of
from workstealing.store.keys import require_one_slot, to_bytes


class Attempt:
    """A running attempt, as `attempt()` yields it."""

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
        self.results: list[Any] | None = None
        """EXEC's replies, error replies in their places; None unless it has been done."""

    def read(self, *commands: Command) -> list[Any]:
        """Run reading commands; the first call WATCHes the attempt's keys before them.

        Arguments:
            commands: tuples of a name and its arguments.

        Returns: their replies. Raises: the first error reply; OutOfTime, Moved and connection
        faults as in `OneAttempt.call`. The first call raises OutOfTime, too, if no time would be
        left to commit. One round trip, the WATCH included.
        """
        return checked(self.read_each(*commands))

    def read_each(self, *commands: Command) -> list[Any]:
        """Run reading commands as `read` does; return error replies in their places."""
        if self._watching:
            return self._call(commands)
        # Nobody else may use the connection until this attempt has ended the WATCH.
        self._watching = self._connection.watching = True
        # A read is useless if no time is left to commit.
        self._budget.trips = 2
        try:
            watched, *replies = self._call([("WATCH", *self._keys), *commands])
            checked([watched])
            return replies
        finally:
            self._budget.trips = 1

    def commit(self, *commands: Command) -> list[Any]:
        """Run the changing commands as one MULTI/EXEC, unless a WATCHed key has changed.

        Arguments:
            commands: tuples of a name and its arguments.

        Returns: their replies. Raises: SpentAttemptError if it was called before, and then nothing
        is sent; Aborted if another writer came first, and then nothing has changed;
        redis.exceptions.OutOfMemoryError if the server refuses them for lack of memory; Unanswered
        if the deadline came before the reply, and then nobody knows whether they were done; any
        other error reply. If it answers one of the commands, the others have been done, and
        `results` has all replies. One round trip.
        """
        if self._committed:
            raise SpentAttemptError(
                "commit() was called again on an attempt, which commits once: begin another attempt"
            )
        self._committed = True
        replies = self._call([("MULTI",), *commands, ("EXEC",)])
        # EXEC ends the WATCH whatever its reply is, even if MULTI was refused.
        self._watching = self._connection.watching = False
        *queued, result = replies
        refused = next((reply for reply in queued if isinstance(reply, Exception)), None)
        if isinstance(result, ExecAbortError):
            if refused is None and "OOM" in str(result):
                # The memory ran out after the last queued command.
                raise OutOfMemoryError(str(result)) from result
            raise refused or result
        if refused is not None or isinstance(result, Exception):
            # The server refused MULTI or EXEC, so this connection may still WATCH keys.
            self._connection.disconnect()
            raise refused or result
        if result is None:
            raise Aborted("another writer changed the keys between WATCH and EXEC")
        self.results = result
        return checked(result)

    def _call(self, commands: Sequence[Command]) -> list[Any]:
        if self._begun and not self._connection.is_open:
            # A job may have caught the fault. On a new connection nothing would be WATCHed.
            raise ConnectionError("an earlier fault has closed this attempt's connection")
        self._begun = True
        if self._slice is not None:
            self._slice.spend(len(commands))
        return self._connection.call(commands, self._budget)

    def release(self) -> None:
        """End a WATCH that no EXEC has ended, now or before the connection's next use."""
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
            # The attempt is over and has its result. A host's time-out passes.
            self._connection.disconnect()


@contextmanager
def attempt(
    client: Any, *keys: str | bytes, slice: Slice | None = None, in_any_slot: bool = False
) -> Iterator[Attempt]:
    """Make one attempt on keys of one hash slot: WATCH, read, MULTI, EXEC, once.

    Arguments:
        client: any client of redis-py, or its `JobClient`.
        keys: keys that every relevant writer certainly modifies.
        slice: its deadline bounds the whole attempt, and it counts the commands. Without a slice
            each wait is bounded by 50 ms.
        in_any_slot: the keys may lie in several slots where one server holds all of them: they are
            another program's, or on a cluster the caller chooses keys of one slot.

    Yields: an `Attempt`, for its `read` and `commit`. Raises: CrossSlotError before anything is
    sent; see `Attempt`. Two round trips for one read and one commit.

        with attempt(client, "{u1}:a", "{u1}:b") as a:
            (value,) = a.read(("GET", "{u1}:a"))
            a.commit(("SET", "{u1}:b", value))
    """
    job_client = job_client_of(client)
    raw = tuple(to_bytes(key) for key in keys)
    slot = require_one_slot(raw if job_client.is_cluster or not in_any_slot else raw[:1])
    budget = Budget(None if slice is None else slice.remaining())
    with job_client.connection(job_client.node_of(slot)) as connection:
        current = Attempt(connection, raw, budget, slice)
        try:
            yield current
        except Exception:
            raise
        except BaseException:
            # It goes to the host, which must not wait for UNWATCH's reply.
            connection.disconnect()
            raise
        finally:
            current.release()
