"""An operation is written once: which script on which keys, and how its reply is read.

The same operation runs on a client, is awaited on an asyncio client, or is queued on a pipeline.
What takes more than one command (opening a layout, registering a slot) is written once too, as a
generator that yields commands and operations and is sent their replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from workstealing.errors import LayoutError
from workstealing.store.scripts import Script

T = TypeVar("T")
StepT = TypeVar("StepT")


# Not frozen: an instance is made for every command, and freezing would double what that costs.
@dataclass(slots=True)
class Operation:
    """One script on one set of keys.

    Fields: script; keys: all of one hash slot; args; read: makes the result from the reply.
    """

    script: Script
    keys: tuple[Any, ...]
    args: tuple[Any, ...]
    read: Callable[[Any], Any]

    def by_digest(self) -> tuple[Any, ...]:
        """Return the command that names the script by its digest."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> tuple[Any, ...]:
        """Return the command that carries the script's text, and makes the server know it."""
        return ("EVAL", self.script.body, len(self.keys), *self.keys, *self.args)


@dataclass(frozen=True, slots=True)
class Plain:
    """One of redis-py's own commands, with the options that its reply is read by."""

    args: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(slots=True)
class Plan:
    """Operations whose replies together make one result.

    Fields: operations, run in order; combine: makes the result from what they have read; by default
    the first one's.
    """

    operations: tuple[Operation, ...]
    combine: Callable[[list[Any]], Any] = itemgetter(0)

    def read(self, replies: list[Any]) -> Any:
        """Make the result from the raw replies."""
        pairs = zip(self.operations, replies, strict=True)
        return self.combine([operation.read(reply) for operation, reply in pairs])


Step = tuple[Any, ...] | Plain | Operation
Steps = Generator[Step, Any, T]


def run(client: Any, operation: Operation) -> Any:
    """Run an operation on a blocking client and return its result.

    One round trip; one more the first time that a server sees the script (it had run nothing then).
    """
    keys = operation.keys
    try:
        # As by_digest(), without making the command twice.
        reply = client.execute_command(
            "EVALSHA", operation.script.sha, len(keys), *keys, *operation.args
        )
    except NoScriptError:
        reply = client.execute_command(*operation.by_text())
    return operation.read(reply)


async def run_async(client: Any, operation: Operation) -> Any:
    """Run an operation on an asyncio client; see `run`."""
    try:
        reply = await client.execute_command(*operation.by_digest())
    except NoScriptError:
        reply = await client.execute_command(*operation.by_text())
    return operation.read(reply)


def drive(client: Any, steps: Steps[T]) -> T:
    """Run a generator of commands and operations on a blocking client; return what it returns."""

    def send(step: Step) -> Any:
        if isinstance(step, Operation):
            return run(client, step)
        if isinstance(step, Plain):
            return client.execute_command(*step.args, **step.options)
        return client.execute_command(*step)

    return driven(steps, send)


async def drive_async(client: Any, steps: Steps[T]) -> T:
    """Run a generator of commands on an asyncio client; see `drive`."""

    async def send(step: Step) -> Any:
        if isinstance(step, Operation):
            return await run_async(client, step)
        if isinstance(step, Plain):
            return await client.execute_command(*step.args, **step.options)
        return await client.execute_command(*step)

    return await driven_async(steps, send)


def driven(steps: Generator[StepT, Any, T], send: Callable[[StepT], Any], reply: Any = None) -> T:
    """Run a generator of steps; return what it returns.

    Arguments: steps; send: runs one of them and returns its reply; reply: what the generator is
    sent first, if it has been begun. What `send` raises is thrown into the generator, and is raised
    unless that has an answer to it.
    """
    error: Exception | None = None
    while True:
        try:
            step = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            reply, error = send(step), None
        except Exception as raised:  # noqa: BLE001 - it is thrown into the generator
            reply, error = None, raised


async def driven_async(
    steps: Generator[StepT, Any, T], send: Callable[[StepT], Awaitable[Any]], reply: Any = None
) -> T:
    """Run a generator of steps as `driven` does, and await what `send` returns."""
    error: Exception | None = None
    while True:
        try:
            step = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            reply, error = await send(step), None
        except Exception as raised:  # noqa: BLE001 - it is thrown into the generator
            reply, error = None, raised


def perform(client: Any, plan: Plan) -> Any:
    """Run a plan on a blocking client. A round trip an operation.

    Errors: LayoutError for what a script refuses as foreign; those of redis-py.
    """
    try:
        return plan.combine([run(client, operation) for operation in plan.operations])
    except ResponseError as error:
        raise as_layout_error(error) or error from None


async def perform_async(client: Any, plan: Plan) -> Any:
    """Run a plan on an asyncio client; see `perform`."""
    try:
        return plan.combine([await run_async(client, operation) for operation in plan.operations])
    except ResponseError as error:
        raise as_layout_error(error) or error from None


def as_layout_error(error: Exception) -> LayoutError | None:
    """Return the LayoutError that a script's error reply stands for, or None for any other."""
    text = str(error)
    if "WSLAYOUT " not in text:
        return None
    return LayoutError(text.split("WSLAYOUT ", 1)[1] + "; nothing was changed")
