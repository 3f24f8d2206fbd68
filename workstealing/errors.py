"""Every error that this package raises of its own accord, in one tree.

Errors of redis-py, of the user's own jobs and of frameworks pass through unchanged, unless this
package has an error of its own for them, such as LayoutError for a key of another type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping

# Names, not types: redis-py's ConnectionError and TimeoutError are no OSErrors, and this level
# imports no client library to ask for them.
_FAULT_NAMES = frozenset({"ConnectionError", "TimeoutError"})
# redis-py has no class of its own for the second, and an older one not for the first.
_FULL = ("Too many connections", "No connection available.")
_BLAMED = "_workstealing_blamed"


class WorkStealingError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(WorkStealingError, ValueError):
    """A setting or an argument is wrong, and nothing has been changed."""


class RateError(ConfigurationError):
    """A rate is outside (0, 1], or all rates together exceed 1."""


class DuplicateJobError(ConfigurationError):
    """A job of that name is installed already."""


class UnknownJobError(ConfigurationError, KeyError):
    """No job of that name is installed."""

    def __str__(self) -> str:
        # KeyError would show the sentence in quotes.
        return str(self.args[0]) if self.args else ""


class Aborted(WorkStealingError):
    """Another writer came first, or held a lock; the next recruit will find the rest."""


class NoLease(Aborted):
    """Every ick shard is leased by another consumer, or a resize is moving the members."""


class LeaseLost(Aborted):
    """The lease has run out, or another consumer has it since; nothing has been changed."""


class NotAdopted(WorkStealingError):
    """A hash of another program cannot be adopted, for the reason given; it stays as it is."""


class Skipped(WorkStealingError):
    """A job could not begin now, for instance without a warm connection; nothing was touched."""


class TooManyRemovals(WorkStealingError):
    """More would be removed by comparison than was allowed; nothing has been changed."""


class QueueFull(WorkStealingError):
    """An account of a fair queue has as many messages as its rule allows; nothing was written."""


class SpentAttemptError(WorkStealingError, RuntimeError):
    """An attempt commits once, and this one was told to again; nothing has been sent."""


class WrongAnswerError(WorkStealingError, TypeError):
    """A job returned something else than the number of items that it has handled."""


class OutOfTime(WorkStealingError):
    """The slice's time ended before its next command was sent, or before its reply came."""


class Unanswered(OutOfTime):
    """The slice's time ended between a command and its reply: it may have been done or not."""


class ResentError(WorkStealingError):
    """A client was about to send a call again that is sent once; users see a ConnectionError."""


class Moved(Aborted):
    """The cluster's slot lives on another node than the asked one, or is moving there.

    The move came first, as another writer may.

    Arguments:
        message: the server's.
        gone: the new host and port of each slot that has gone for good.
    """

    def __init__(self, message: str, gone: Mapping[int, tuple[str, int]] | None = None) -> None:
        super().__init__(message)
        self.gone = dict(gone or {})


class Unmapped(WorkStealingError):
    """The client does not know yet which node holds a slot, or which server is the master."""


class LayoutError(WorkStealingError):
    """A key holds data of a foreign or newer layout, and nothing has been changed."""


class DamagedBlockError(WorkStealingError, ValueError):
    """The data of a sealed block is not one, or a part of it is lost or changed."""


class UndecodableEntryError(WorkStealingError, ValueError):
    """The log's codec has not written this entry, so it cannot read it."""


class LostEntriesError(WorkStealingError):
    """A Spark stream has not read these entries yet and they are gone, or the log is a new one."""


class ReplayDiffersError(WorkStealingError):
    """Spark writes a batch again with other rows than before, so neither can be kept whole."""


class SessionStoppedError(WorkStealingError):
    """The session of Spark was stopped before a call had ended; what the call has done stays."""


class EvictionPolicyError(WorkStealingError):
    """The server may evict one part of a structure without the others."""


class CrossSlotError(ConfigurationError):
    """The keys of one attempt or script do not share a hash slot."""


class ScriptError(WorkStealingError):
    """A Lua script of this package is broken: a part of it is missing or includes itself."""


class RefusedError(WorkStealingError):
    """The dashboard cannot do what an admin has asked for; the message says why."""


class UnwritableError(WorkStealingError):
    """Stdout takes no more, for instance because a disk is full."""


class UnsentError(WorkStealingError):
    """A batch of counts has certainly not arrived.

    Arguments:
        cause: the error that kept it back.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause

    def __reduce__(self) -> tuple[type[UnsentError], tuple[Exception]]:
        return type(self), (self.cause,)


class MissingExtraError(WorkStealingError, ImportError):
    """An optional dependency of the used part of this package is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed; run: pip install 'workstealing[{extra}]'")
        self.extra = extra
        self.module = module

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        # Exceptions are pickled with their sentence alone, which is no extra.
        return type(self), (self.extra, self.module)


def blame(error: BaseException, dependency: Hashable) -> None:
    """Note on an error which dependency has failed, unless that is noted already."""
    if blamed(error) is None:
        # Some classes of C have no room for a note; then the error blames no dependency.
        with contextlib.suppress(AttributeError):
            error.__dict__[_BLAMED] = dependency


def blamed(error: BaseException) -> Hashable:
    """Return the failed dependency that is noted on an error, or None.

    A WatchError by which redis-py stands in for a fault has the note of that fault.
    """
    noted: Hashable = getattr(error, "__dict__", {}).get(_BLAMED)
    if noted is None and error.__context__ is not None and _stands_in(error):
        return blamed(error.__context__)
    return noted


def _stands_in(error: BaseException) -> bool:
    """Say whether an error is redis-py's WatchError, raised while it handles another one."""
    return error.__context__ is not None and any(
        base.__name__ == "WatchError" for base in type(error).__mro__
    )


def is_abort(error: BaseException) -> bool:
    """Say whether an error means that another writer came first.

    Returns: True for Aborted, and for a WatchError, as redis-py's own
    pipelines raise it in a user's job, unless it stands for the fault that ended the connection.
    """
    if isinstance(error, Aborted):
        return True
    names = {base.__name__ for base in type(error).__mro__}
    return "WatchError" in names and not is_connection_fault(error)


def is_connection_fault(error: BaseException) -> bool:
    """Say whether an error means that a server could not be reached or did not answer.

    Returns: True for OSErrors (built-in ConnectionError and TimeoutError are
    among them) and for any class named ConnectionError or TimeoutError, as redis-py, kombu and
    others define of their own; and for a WatchError by which redis-py's pipelines stand in for the
    fault that ended their connection. Costs nothing but a walk over the class's bases.
    """
    if isinstance(error, OSError):
        return True
    names = {base.__name__ for base in type(error).__mro__}
    if error.__context__ is not None and _stands_in(error):
        # redis-py raises it while it handles the fault. Another writer leaves no such context.
        return is_connection_fault(error.__context__)
    return not names.isdisjoint(_FAULT_NAMES)


def is_pool_full(error: BaseException) -> bool:
    """Say whether a client's pool had no connection left: nothing was sent, to a server or none."""
    name = type(error).__name__
    return name == "MaxConnectionsError" or (name == "ConnectionError" and str(error) in _FULL)
