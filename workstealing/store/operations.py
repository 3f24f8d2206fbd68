"""Operations: written once as generators of steps, run on a client, awaited, or queued.

A step is one of these, and the generator is sent the reply to it:

- a tuple, one of Redis's commands;
- an `Operation`, a script on one set of keys (or a command whose reply is read);
- a list of operations, sent together in one round trip, whose reply is the list of theirs;
- a `Wait`, a command that blocks, on a connection of its own;
- a `Sleep`.

`operation` makes a public method of such a generator. A class offers its operations in one of three
forms: `Blocking` runs them, `Asynchronous` returns what is awaited, `Queued` (a pipeline) queues
them. An error reply is thrown into the generator, as a LayoutError where a script has refused a
foreign or newer layout. Anything else to be sent, Cassandra's queries or a cache's requests, is a
step too; each kind has a `send` of its own. The rules of leftovers alone yield `Look`s, which
`Judging` asks for many items at once.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar
from typing import overload as _overload

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, ResponseError

from workstealing.errors import ResentError
from workstealing.store.blocking import AsyncAsker, ask
from workstealing.store.connection import as_layout_error, checked, spelled
from workstealing.store.job_client import JobClient, is_cluster
from workstealing.store.scripts import Script
from workstealing.store.sending import (
    SentOnce,
    ask_uncached,
    keep_bytes,
    node_known,
    not_sent_again,
    once_on_cluster,
    sending_once,
)

T = TypeVar("T")
P = ParamSpec("P")
QueuedT = TypeVar("QueuedT", bound="Queued")

AS_BYTES: dict[str, Any] = {NEVER_DECODE: True}
"""The option by which a reply comes as bytes, whatever the client makes of others."""
OPERATIONS_A_ROUND_TRIP = 512
"""How many operations of a list are sent at once at most: their replies are kept in memory."""
MOST_TOGETHER = 64
"""How many neighbours are sent as one script at most: a server takes a very long one for stuck."""
_NO_OPTIONS: Mapping[str, Any] = {}


def same(reply: Any) -> Any:
    """Return a reply as it is."""
    return reply


class Operation:
    """One script, or one command, and how its reply is read.

    Attributes: script: None for a command; keys: all of one hash slot; for a command they only say
    where it goes; args: of the script, or the whole command; read: makes the result from the reply;
    options: those of redis-py by which the reply is parsed, such as `AS_BYTES`; once: whether it is
    never sent twice, because the second time it would do, or answer, something else; together: the
    script that does neighbouring operations of this kind as one, see `RoundTrip`.
    """

    __slots__ = ("args", "keys", "once", "options", "read", "script", "together")

    def __init__(
        self,
        script: Script | None,
        keys: tuple[Any, ...],
        args: tuple[Any, ...],
        read: Callable[[Any], Any] = same,
        options: Mapping[str, Any] = _NO_OPTIONS,
        *,
        once: bool = False,
        together: Script | None = None,
    ) -> None:
        self.script = script
        self.together = together
        self.keys = keys
        self.args = args
        self.read = read
        self.options = options
        self.once = once

    def __repr__(self) -> str:
        return f"Operation({self.script!r}, {self.keys!r}, {self.args!r})"

    @property
    def sha(self) -> str:
        """The digest of the script, nothing for a command."""
        return "" if self.script is None else self.script.sha

    def by_digest(self) -> tuple[Any, ...]:
        """Return the command that names the script by its digest."""
        if self.script is None:
            return spelled(self.args)
        number = b"%d" % len(self.keys)
        return spelled(("EVALSHA", self.script.sha, number, *self.keys, *self.args))

    def by_text(self) -> tuple[Any, ...]:
        """Return the command that carries the script's text, and makes the server know it."""
        if self.script is None:
            return spelled(self.args)
        return spelled(("EVAL", self.script.body, len(self.keys), *self.keys, *self.args))


def command(
    *args: Any,
    read: Callable[[Any], Any] = same,
    options: Mapping[str, Any] = _NO_OPTIONS,
    once: bool = False,
) -> Operation:
    """Return one of Redis's commands as an operation; its first argument is its key."""
    return Operation(None, args[1:2], args, read, options, once=once)


@dataclass(frozen=True, slots=True)
class Sleep:
    """A pause. Fields: seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A command that blocks, on a connection of its own.

    Fields: slot: whose node is asked; command: with looks, its last argument is for how long it
    blocks; seconds: for how long it does; look: makes the steps of a look at the application's own
    client while the wait goes on, which return when to look again; pause: when to look first; both
    in seconds from then. Its reply is None too after a fault of that connection, which only ends
    the wait; what a look raises is raised.
    """

    slot: int
    command: tuple[Any, ...]
    seconds: float
    look: Callable[[], Steps[float]] | None = None
    pause: float = 0.0


class RoundTrip:
    """The commands that go to the server at once: one of redis-py's pipelines while it is filled.

    The server may forget a script between two of its uses, by SCRIPT FLUSH, or may have refused the
    use that carried the text. Then it runs the later uses not at all, and they are sent once more:
    all of them if their order does not matter, or else only those behind which nothing has run.

    In a MULTI/EXEC, neighbours of one kind (`Operation.together`) are sent as one script, which
    does one after the other and answers each. It is given the keys of all, and for each the number
    of its arguments and these. Elsewhere each is sent by itself: a server that refuses one script,
    because of a key that the user may not touch for instance, would still do the others, but of a
    MULTI/EXEC it does nothing then.

    Arguments:
        transaction: whether it is one MULTI/EXEC (on a cluster: never).
        is_ordered: whether the order of the commands matters.
    """

    def __init__(self, client: Any, transaction: bool = False, *, is_ordered: bool = False) -> None:
        self._client = client
        self._on_cluster = is_cluster(client)
        self.is_transaction = transaction and not self._on_cluster
        options = {} if self._on_cluster else {"transaction": transaction}
        self._target = client.pipeline(**options)
        self._is_ordered = is_ordered
        self._keeps_bytes = False
        self._sent: set[str] = set()
        # The operations that name their script by its digest, by their place.
        self._by_digest: dict[int, Operation] = {}
        # Neighbours that are not added yet, and how many each script does, by its place.
        self._neighbours: list[Operation] = []
        self._joined: dict[int, int] = {}

    @property
    def target(self) -> Any:
        """The pipeline of redis-py, with all that has been added."""
        if self._neighbours:
            self._join()
        return self._target

    def add(self, operation: Operation) -> None:
        """Add an operation."""
        some = self._neighbours
        if some:
            first = some[0]
            is_alike = first.together is operation.together and first.options == operation.options
            if not is_alike or len(some) == MOST_TOGETHER:
                self._join()
                some = self._neighbours
        if operation.together is None or not self.is_transaction:
            self._add(operation)
        else:
            some.append(operation)

    def _join(self) -> None:
        """Add the neighbours."""
        some, self._neighbours = self._neighbours, []
        if len(some) == 1:
            self._add(some[0])
            return
        keys: list[Any] = []
        args: list[Any] = []
        for each in some:
            keys += each.keys
            args.append(b"%d" % len(each.args))
            args += each.args
        self._joined[len(self._target)] = len(some)
        first = some[0]
        self._add(Operation(first.together, tuple(keys), tuple(args), options=first.options))

    def _add(self, operation: Operation) -> None:
        script = operation.script
        if script is None:
            self._queue(operation, operation.by_text())
            return
        # The first use of a script carries its text, so that the server knows it for the rest;
        # on a cluster each use does, because each may go to another node.
        if script.sha in self._sent and not self._on_cluster:
            self._by_digest[len(self._target)] = operation
            self._queue(operation, operation.by_digest())
        else:
            self._queue(operation, operation.by_text())
            self._sent.add(script.sha)

    def _queue(self, operation: Operation, words: tuple[Any, ...]) -> None:
        if operation.once and not self._on_cluster:
            # A cluster's pipeline sends again what a moved slot refused, by the same words.
            words = (SentOnce(words[0]), *words[1:])
        options = operation.options
        if self.is_transaction and not self._keeps_bytes and NEVER_DECODE in options:
            self._keeps_bytes = True
            keep_bytes(self._target)
        if self._on_cluster and operation.script is not None:
            options = {**options, **node_known(self._client, operation.keys)}
        self._target.execute_command(*words, **options)

    def send(self) -> list[Any]:
        """Send it on a blocking client; return the replies, errors in their places."""
        with sending_once():
            replies: list[Any] = self.target.execute(raise_on_error=False)
            again = self._not_run(replies)
            if again:
                self._replace(replies, again, self._texts_of(again).execute(raise_on_error=False))
        return self._spread(replies)

    async def send_async(self) -> list[Any]:
        """Send it on an asyncio client; see `send`."""
        with sending_once():
            replies: list[Any] = await self.target.execute(raise_on_error=False)
            again = self._not_run(replies)
            if again:
                texts = self._texts_of(again)
                self._replace(replies, again, await texts.execute(raise_on_error=False))
        return self._spread(replies)

    def _not_run(self, replies: Sequence[Any]) -> list[int]:
        """Return the places of the operations to send once more, in their order."""
        places = [each for each in self._by_digest if isinstance(replies[each], NoScriptError)]
        if not (places and self._is_ordered):
            return places
        end = len(replies)
        while isinstance(replies[end - 1], NoScriptError):
            end -= 1
        return [each for each in places if each >= end]

    def _texts_of(self, places: Sequence[int]) -> Any:
        """Return a pipeline of the operations at these places; each carries its script's text."""
        texts = RoundTrip(self._client)
        for place in places:
            operation = self._by_digest[place]
            texts._queue(operation, operation.by_text())
        return texts.target

    def _spread(self, replies: list[Any]) -> list[Any]:
        """Return a reply for each operation."""
        if not self._joined:
            return replies
        spread: list[Any] = []
        for place, reply in enumerate(replies):
            size = self._joined.get(place)
            if size is None:
                spread.append(reply)
            elif isinstance(reply, Exception):
                # One each, because whoever raises it adds to it.
                spread += [copy(reply) for _ in range(size)]
            else:
                spread += reply
        return spread

    @staticmethod
    def _replace(replies: list[Any], places: Sequence[int], others: Sequence[Any]) -> None:
        for place, reply in zip(places, others, strict=True):
            replies[place] = reply


Step = tuple[Any, ...] | Operation | Sequence[Operation] | Wait | Sleep | RoundTrip
Steps = Generator[Any, Any, T]
"""A generator of steps that returns a T."""


def run(client: Any, operation: Operation) -> Any:
    """Run an operation on a blocking client and return its result.

    One round trip; one more the first time that a server sees the script (it had run nothing then).
    """
    script = operation.script
    if operation.once:
        return operation.read(_run_once(client, operation))
    if script is None:
        return operation.read(ask_uncached(client, operation.args, operation.options))
    options = operation.options
    try:
        reply = client.execute_command(*operation.by_digest(), **options)
    except NoScriptError:
        reply = client.execute_command(*operation.by_text(), **options)
    return operation.read(reply)


async def run_async(client: Any, operation: Operation) -> Any:
    """Run an operation on an asyncio client; see `run`."""
    options = operation.options
    if operation.once:
        return operation.read(await _run_once_async(client, operation))
    try:
        reply = await client.execute_command(*operation.by_digest(), **options)
    except NoScriptError:
        reply = await client.execute_command(*operation.by_text(), **options)
    return operation.read(reply)


def _run_once(client: Any, operation: Operation) -> Any:
    words, options = operation.by_digest(), operation.options
    if is_cluster(client):
        options = {**options, **once_on_cluster(client, operation.keys)}
        try:
            return client.execute_command(*words, **options)
        except NoScriptError:
            return client.execute_command(*operation.by_text(), **options)
    try:
        try:
            return client.execute_command(SentOnce(words[0]), *words[1:], **options)
        except NoScriptError:
            words = operation.by_text()
            return client.execute_command(SentOnce(words[0]), *words[1:], **options)
    except ResentError as error:
        raise not_sent_again(error) from None


async def _run_once_async(client: Any, operation: Operation) -> Any:
    words, options = operation.by_digest(), operation.options
    if is_cluster(client):
        # Only then it knows the map.
        await client.initialize()
        options = {**options, **once_on_cluster(client, operation.keys)}
        try:
            return await client.execute_command(*words, **options)
        except NoScriptError:
            return await client.execute_command(*operation.by_text(), **options)
    try:
        try:
            return await client.execute_command(SentOnce(words[0]), *words[1:], **options)
        except NoScriptError:
            words = operation.by_text()
            return await client.execute_command(SentOnce(words[0]), *words[1:], **options)
    except ResentError as error:
        raise not_sent_again(error) from None


def send_step(client: Any, step: Any) -> Any:
    """Run a step on a blocking client; return the reply to it. Raises: errors of redis-py."""
    if isinstance(step, Operation):
        return run(client, step)
    if isinstance(step, tuple):
        return ask_uncached(client, step, _NO_OPTIONS)
    if isinstance(step, RoundTrip):
        return step.send()
    if isinstance(step, Sleep):
        return time.sleep(step.seconds)
    assert not isinstance(step, Wait), "only a structure's own operations may wait"
    if len(step) == 1:
        return [run(client, step[0])]
    replies: list[Any] = []
    for trip, some in _round_trips(client, step):
        replies += read_all(some, trip.send())
    return replies


def send_step_async(client: Any, step: Any) -> Awaitable[Any]:
    """Return what runs a step on an asyncio client, to be awaited; see `send_step`."""
    if isinstance(step, Operation):
        return run_async(client, step)
    if isinstance(step, tuple):
        reply: Awaitable[Any] = client.execute_command(*spelled(step))
        return reply
    if isinstance(step, RoundTrip):
        return step.send_async()
    if isinstance(step, Sleep):
        return asyncio.sleep(step.seconds)
    assert not isinstance(step, Wait), "only a structure's own operations may wait"
    return _run_all_async(client, step)


async def _run_all_async(client: Any, operations: Sequence[Operation]) -> list[Any]:
    if len(operations) == 1:
        return [await run_async(client, operations[0])]
    replies: list[Any] = []
    for trip, some in _round_trips(client, operations):
        replies += read_all(some, await trip.send_async())
    return replies


def drive(target: Any, steps: Steps[T], send: Callable[[Any, Any], Any] = send_step) -> T:
    """Run a generator of steps; return what it returns.

    Arguments:
        target: the blocking client, or whatever `send` sends a step by.
        send: runs one step by the target, and returns the reply to it.

    What it raises is thrown into the generator, and is raised unless that has an answer to it.
    Raises: LayoutError for what a script refuses; errors of `send` and the generator's own.
    """
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            step = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            # An error that is raised holds this frame, which must not hold the error.
            reply = error = None
        try:
            reply = send(target, step)
        except ResponseError as raised:
            error = as_layout_error(raised) or raised
        except Exception as raised:  # noqa: BLE001 - it is thrown into the generator
            error = raised


async def drive_async(
    target: Any, steps: Steps[T], send: Callable[[Any, Any], Awaitable[Any]] = send_step_async
) -> T:
    """Run a generator of steps by what is awaited; see `drive`."""
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            step = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            reply = error = None
        try:
            reply = await send(target, step)
        except ResponseError as raised:
            error = as_layout_error(raised) or raised
        except Exception as raised:  # noqa: BLE001 - it is thrown into the generator
            error = raised


class Begun(Generic[T]):
    """A generator of steps that waits for the reply to one: `yield from` goes on with it.

    Arguments:
        reply: or the error that stands for it.
    """

    __slots__ = ("_answer", "_steps")

    def __init__(self, steps: Steps[T], reply: Any = None, error: Exception | None = None) -> None:
        self._steps, self._answer = steps, (reply, error)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        # `yield from` calls this for the first step, and whenever a reply is None.
        (reply, error), self._answer = self._answer, (None, None)
        try:
            return self._steps.send(reply) if error is None else self._steps.throw(error)
        finally:
            # As in `drive`.
            del error

    def send(self, reply: Any) -> Any:
        """Give the reply to a step; return the next step."""
        return self._steps.send(reply)

    def throw(self, error: BaseException) -> Any:
        """Give the error that stands for the reply to a step; return the next step."""
        try:
            return self._steps.throw(error)
        finally:
            del error


def _round_trips(client: Any, operations: Sequence[Operation]) -> Any:
    """Yield round trips for a list of operations, each with those that it carries."""
    for start in range(0, len(operations), OPERATIONS_A_ROUND_TRIP):
        some = operations[start : start + OPERATIONS_A_ROUND_TRIP]
        trip = RoundTrip(client)
        for operation in some:
            trip.add(operation)
        yield trip, some


def read_all(operations: Sequence[Operation], replies: Sequence[Any]) -> list[Any]:
    """Return what operations read from their replies. Raises: the first error among the replies."""
    pairs = zip(operations, checked(replies), strict=True)
    return [operation.read(reply) for operation, reply in pairs]


class Blocking:
    """The form of a class whose operations run at once. Subclasses have `client`, `job_client`."""

    # redis-py's own name for it: its command classes are typed by it.
    _is_async_client: Literal[False] = False
    client: Any
    job_client: JobClient

    def _run(self, steps: Steps[T]) -> T:
        return drive(self.client, steps)


class BlockingWaiting(Blocking):
    """The blocking form of a class that has operations that wait."""

    def _run(self, steps: Steps[T]) -> T:
        return drive(self.client, steps, self._send)

    def _send(self, client: Any, step: Any) -> Any:
        return self._wait(step) if isinstance(step, Wait) else send_step(client, step)

    def _wait(self, step: Wait) -> Any:
        look = step.look
        if look is None:
            return ask(self.job_client, step.slot, step.command, step.seconds)

        def looked() -> float:
            return drive(self.client, look())

        return ask(self.job_client, step.slot, step.command, step.seconds, looked, step.pause)


class Asynchronous:
    """The form of a class whose operations are awaited. Subclasses have `client`, `job_client`."""

    _is_async_client: Literal[True] = True
    client: Any
    job_client: JobClient

    async def _run(self, steps: Steps[T]) -> T:
        return await drive_async(self.client, steps)


class AsynchronousWaiting(Asynchronous):
    """The asynchronous form of a class that has operations that wait."""

    async def _run(self, steps: Steps[T]) -> T:
        return await drive_async(self.client, steps, self._send)

    def _send(self, client: Any, step: Any) -> Awaitable[Any]:
        return self._wait(step) if isinstance(step, Wait) else send_step_async(client, step)

    async def _wait(self, step: Wait) -> Any:
        look = step.look
        if look is None:
            return await self._asker.ask(step.slot, step.command, step.seconds)

        def looked() -> Awaitable[float]:
            return drive_async(self.client, look())

        return await self._asker.ask(step.slot, step.command, step.seconds, looked, step.pause)

    @functools.cached_property
    def _asker(self) -> AsyncAsker:
        return AsyncAsker(self.job_client)

    async def aclose(self) -> None:
        """Close the connections on which calls have waited."""
        await self._asker.close()


class Queued:
    """The form of a pipeline: an operation is queued, and returns the pipeline."""

    _is_async_client: Literal[False] = False

    def _run(self, steps: Steps[Any]) -> Self:
        raise NotImplementedError


if TYPE_CHECKING:

    class operation(Generic[P, T]):  # noqa: N801 - used as a decorator
        """Turn a function, which returns a generator of steps, into a public method.

        The function checks its arguments, so that a wrong one is refused where it is given, and
        returns the generator. The method returns the result on a `Blocking` form, an awaitable on
        an `Asynchronous` one, and the pipeline on a `Queued` one. `Class.method.steps(self, ...)`
        gives the generator itself, for other operations.
        """

        def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
            self.steps = steps

        @_overload
        def __get__(self, instance: None, owner: Any) -> Self: ...
        @_overload
        def __get__(self, instance: Blocking, owner: Any) -> Callable[P, T]: ...
        @_overload
        def __get__(
            self, instance: Asynchronous, owner: Any
        ) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @_overload
        def __get__(self, instance: QueuedT, owner: Any) -> Callable[P, QueuedT]: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...

else:

    def operation(steps: Any) -> Any:
        """Turn a function, which returns a generator of steps, into a public method."""
        # A plain function: a call costs no descriptor, and help() shows what a reader wants.
        returned = steps.__annotations__.get("return", "")
        if isinstance(returned, str) and returned.startswith("Steps["):
            steps.__annotations__["return"] = returned[len("Steps[") : -1]

        @functools.wraps(steps)
        def call(self: Any, /, *args: Any, **options: Any) -> Any:
            return self._run(steps(self, *args, **options))

        call.steps = steps
        return call
