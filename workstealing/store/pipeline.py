"""Pipelines: operations and the user's own commands, sent in one round trip.

Everything is kept until `execute`, because a structure may have to look at its layout first, which
on an asyncio client must be awaited; then redis-py's own pipeline is filled and sent.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, TypeVar

from redis.exceptions import RedisError, ResponseError

from workstealing.clock import seconds_of
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.connection import as_layout_error, spelled
from workstealing.store.grants import AskedTogether, Asking, ask_for, ask_for_async
from workstealing.store.operations import (
    Begun,
    Operation,
    Queued,
    RoundTrip,
    Steps,
    read_all,
)
from workstealing.store.sending import is_certain

QueuedT = TypeVar("QueuedT")

_IMMEDIATE = frozenset(
    {"watch", "unwatch", "multi", "immediate_execute_command", "pipeline", "transaction"}
)


class PlainCommands:
    """The user's own commands, put off until `execute`: whatever redis-py's pipelines take.

    Arguments:
        queue: called with a method's name, its arguments and its options; returns the pipeline.
    """

    def __init__(self, queue: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _IMMEDIATE or name.startswith("_"):
            raise AttributeError(f"{name} has no place on a pipeline: it only queues commands")
        return lambda *args, **options: self._queue(name, args, options)


def queue_plain(target: Any, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Queue one of the user's own commands on redis-py's pipeline, by the name of its method.

    Raises: ConfigurationError for a method that queues none or several (hscan_iter, lock), because
    the replies could not be told apart; nothing has been sent then.
    """
    before = len(target)
    add = getattr(target, method, None)
    if callable(add):
        add(*args, **options)
    if len(target) != before + 1:
        raise ConfigurationError(
            f"{method} queues no command, or several, so it has no place on a pipeline, and nothing"
            " was sent: queue one command at a time"
        )


def checked_results(results: list[Any], raise_on_error: bool) -> list[Any]:
    """Return results. Raises: the first error among them, if `raise_on_error`."""
    if raise_on_error:
        for position, result in enumerate(results, 1):
            if isinstance(result, Exception):
                if isinstance(result, RedisError):
                    result.args = (f"command {position} of the pipeline: {result}",)
                try:
                    raise result
                finally:
                    del result, results
    return results


class Pipeline(Queued):
    """A queue of operations and of the user's own commands, sent together by `execute`.

    Arguments:
        transaction: whether `execute` sends one MULTI/EXEC (on a cluster: no).

    An operation's first step is run by `execute`; the steps that it needs beyond that one are run
    as soon as the first ones have been answered. Every method of redis-py's pipelines queues the
    user's own command (``p.incr("visits")``), and so does ``p.plain.set(...)`` where the name is
    taken.
    """

    _together: AskedTogether | None = None

    def __init__(self, client: Any, transaction: bool) -> None:
        self._client = client
        self._transaction = transaction
        # A generator of steps; or what makes operations when they are sent, of which the last one's
        # reply is the result; or the user's own command: its method, arguments and options.
        self._queue: list[Any] = []

    @property
    def plain(self) -> Any:
        """The user's own commands, where a name is taken by the structure's: `PlainCommands`."""
        # Made when it is used: if it were kept, only the garbage collector could free a pipeline.
        return PlainCommands(self._queue_plain)

    def __len__(self) -> int:
        """Return how many commands are queued."""
        return len(self._queue)

    def __bool__(self) -> bool:
        """Return True: a pipeline is a thing, however little is queued on it."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    def reset(self) -> None:
        """Forget what is queued."""
        self._queue = []

    def _taken(self, raise_on_error: bool) -> Asking[list[Any]]:
        """Return the steps that execute what is queued, and forget it here.

        Another `execute` at the same time sends nothing twice, and commands that are queued in the
        meantime wait for the next one. If it is interrupted, all queued grants are given back.
        """
        taken = copy(self)
        self.reset()
        steps = taken._execution(raise_on_error)  # noqa: SLF001 - its own, as are the others
        return Asking(steps, taken._giving_back, taken._together)  # noqa: SLF001

    def _run(self, steps: Steps[Any]) -> Self:
        self._queue.append(steps)
        return self

    def _queue_plain(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Self:
        self._queue.append((method, args, options))
        return self

    def _ask(self, asking: Asking[Any]) -> Self:
        return self._run(asking.steps)

    def _giving_back(self) -> Steps[None]:
        """Give back the grants that were asked for in here; by default there are none."""
        yield from ()

    def _dropping(self, results: Sequence[Any]) -> Steps[None]:
        """Give grants back where an error is raised in place of all results."""
        if self._together is None or not self._together.askings:
            return
        error = next((each for each in results if isinstance(each, Exception)), None)
        # After a fault that leaves something open, they are given back aside.
        if error is not None and is_certain(error):
            with suppress(Exception):
                yield from self._giving_back()

    def _opening(self) -> Steps[Any]:
        """Do what must be known before anything is queued; by default nothing."""
        yield from ()

    def _execution(self, raise_on_error: bool) -> Steps[list[Any]]:
        """Send everything queued; return the results in order."""
        queue = self._queue
        if not queue:
            return []
        yield from self._opening()
        results = yield from self._sent(queue)
        try:
            if raise_on_error:
                yield from self._dropping(results)
            return checked_results(results, raise_on_error)
        finally:
            # An error that is raised holds this frame, which must not hold the error.
            del results

    def _sent(self, queue: Sequence[Any]) -> Steps[list[Any]]:
        """Send what is queued in one round trip; return the results, errors in their places."""
        trip = RoundTrip(self._client, self._transaction, is_ordered=True)
        first_steps = [_fill(trip, each) for each in queue]
        if trip.is_transaction:
            for each in first_steps:
                if isinstance(each, _Done) and isinstance(each.result, Exception):
                    # The server would execute nothing either.
                    raise each.result
        replies = iter((yield trip))
        results: list[Any] = []
        for queued, first in zip(queue, first_steps, strict=True):
            if isinstance(queued, tuple):
                results.append(next(replies))
                continue
            if isinstance(first, _Done):
                results.append(first.result)
                continue
            if callable(queued):
                results.append(_result(first, replies))
                continue
            try:
                results.append((yield from Begun(queued, *_answer(first, replies))))
            except (ResponseError, LayoutError) as raised:
                # Without its traceback, whose frames hold the results and so itself.
                results.append(raised.with_traceback(None))
            except Exception as raised:  # noqa: BLE001 - it is a result like the others
                if self._together is not None:
                    self._together.note_lost(queued, raised)
                results.append(raised)
        return results


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of something queued that is not sent. Fields: result, or the error."""

    result: Any


def _fill(trip: RoundTrip, queued: Any) -> Any:
    """Add the first step of something queued to a round trip, and return the step, or `_Done`.

    A ResponseError stands for the server's own refusal, so it is the result. Raises: all other
    errors of the first step; nothing was sent then.
    """
    if isinstance(queued, tuple):
        queue_plain(trip.target, *queued)
        return queued
    try:
        step = queued() if callable(queued) else next(queued)
    except StopIteration as done:
        return _Done(done.value)
    except ResponseError as refused:
        # Without its traceback, whose frames hold the results and so itself.
        return _Done(refused.with_traceback(None))
    if isinstance(step, Operation):
        trip.add(step)
    elif callable(queued) or isinstance(step, list):
        for operation in step:
            trip.add(operation)
    else:
        trip.target.execute_command(*spelled(step))
    return step


def _result(operations: Sequence[Operation], replies: Iterator[Any]) -> Any:
    """Take the replies to operations, and return what the last one reads, or the first error."""
    result = None
    error: Exception | None = None
    for operation in operations:
        reply, refused = _answer(operation, replies)
        result, error = reply, error or refused
    return result if error is None else error.with_traceback(None)


def _answer(step: Any, replies: Iterator[Any]) -> tuple[Any, Exception | None]:
    """Take the replies to a step, and return what it is answered by: a reply, or an error."""
    # A reply that was raised here would be held by its own traceback.
    try:
        if isinstance(step, list):
            some = list(islice(replies, len(step)))
            for each in some:
                if isinstance(each, Exception):
                    return None, as_layout_error(each) or each
            return read_all(step, some), None
        reply = next(replies)
        if isinstance(reply, Exception):
            return None, as_layout_error(reply) or reply
        return (step.read(reply) if isinstance(step, Operation) else reply), None
    except Exception as raised:  # noqa: BLE001 - it is thrown into the generator
        return None, raised


class OwnedPipeline(Pipeline):
    """A pipeline of a structure's own operations, whose steps the structure itself makes.

    So the two share all that the process knows of the structure.

    Arguments:
        owner: the structure, or a part of it, with its `client`.
    """

    _together: AskedTogether

    def __init__(self, owner: Any, transaction: bool) -> None:
        super().__init__(owner.client, transaction)
        self._owner = owner
        self._together = AskedTogether()
        # The names of the operations that are queued.
        self._called: set[str] = set()

    def reset(self) -> None:
        """Forget what is queued."""
        super().reset()
        self._together = AskedTogether()
        self._called = set()

    def _require_kept(self, name: str) -> None:
        """Refuse a call behind `delete`, whose later steps would remove what it does."""
        if "delete" in self._called:
            raise ConfigurationError(
                f"{name}() has no place behind delete() on a pipeline, which would remove what it"
                " does: execute the pipeline before; nothing was queued"
            )

    def _ask(self, asking: Asking[Any]) -> Self:
        self._together.askings.append(asking)
        return super()._ask(asking)

    def _opening(self) -> Steps[Any]:
        return self._together.preparing()

    def _giving_back(self) -> Steps[None]:
        return self._together.giving_back()


def queued_operations(operations: type[Any]) -> Any:
    """Return an `OwnedPipeline` that queues the operations of a class.

    Arguments:
        operations: with methods made by `operation` and `asks`.
    """
    methods = {}
    for name in dir(operations):
        method = getattr(operations, name)
        if hasattr(method, "steps") or hasattr(method, "asking"):
            methods[name] = _queueing(method)
    return type(f"_Queued{operations.__name__}", (OwnedPipeline,), methods)


def _queueing(method: Any) -> Any:
    asking = getattr(method, "asking", None)
    make = asking or method.steps
    waiting = inspect.signature(make) if "block" in inspect.signature(make).parameters else None

    @functools.wraps(method)
    def call(self: OwnedPipeline, /, *args: Any, **options: Any) -> Any:
        made = make(self._owner, *args, **options)
        if waiting is not None:
            block = waiting.bind(self._owner, *args, **options).arguments.get("block", 0)
            if seconds_of(block, "block"):
                raise ConfigurationError(
                    f"block={block!r} has no place on a pipeline, on which nothing waits: leave it"
                    f" out, or call {method.__name__}() of the structure itself; nothing was queued"
                )
        self._require_kept(method.__name__)
        self._called.add(method.__name__)
        return self._run(made) if asking is None else self._ask(made)

    return call


class BlockingPipeline(Pipeline):
    """A `Pipeline` on a blocking client."""

    def __enter__(self) -> Self:
        """Return the pipeline."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results in order.

        Arguments:
            raise_on_error: whether the first error is raised, or returned in its place.

        One round trip, and those of operations that need more than one by themselves.
        """
        return ask_for(self._client, self._taken(raise_on_error))


class AsyncPipeline(Pipeline):
    """A `Pipeline` on an asyncio client."""

    async def __aenter__(self) -> Self:
        """Return the pipeline."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results; see `BlockingPipeline.execute`."""
        return await ask_for_async(self._client, self._taken(raise_on_error))
