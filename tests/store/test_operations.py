"""The driver of operations: errors go into the generator, and nothing is kept behind a call."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from workstealing.errors import LayoutError
from workstealing.store.operations import Begun, Operation, Steps, command, drive, drive_async
from workstealing.store.scripts import load

SCRIPT = load("layout/open")


class Refusing:
    """A client whose commands are answered by what a test gives: an error is raised."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.sent: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any, **_: Any) -> Any:
        """Note a command, and answer it."""
        self.sent.append(args)
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply


class AsyncRefusing(Refusing):
    """The same on an event loop."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Note a command, and answer it."""
        return super().execute_command(*args, **options)


def _driven(*replies: Any) -> tuple[Refusing, Callable[[Steps[Any]], Any]]:
    client = Refusing(*replies)
    return client, lambda steps: drive(client, steps)


def _awaited(*replies: Any) -> tuple[Refusing, Callable[[Steps[Any]], Any]]:
    client = AsyncRefusing(*replies)
    return client, lambda steps: asyncio.run(drive_async(client, steps))


def _by_send(*replies: Any) -> tuple[Refusing, Callable[[Steps[Any]], Any]]:
    client = Refusing(*replies)
    return client, lambda steps: drive(client, steps, lambda by, step: by.execute_command(*step))


def _begun(*replies: Any) -> tuple[Refusing, Callable[[Steps[Any]], Any]]:
    client = Refusing(*replies)

    def run(steps: Steps[Any]) -> Any:
        def whole() -> Steps[Any]:
            try:
                reply = yield next(steps)
            except ResponseError as error:
                refusal = error
            else:
                return (yield from Begun(steps, reply))
            try:
                return (yield from Begun(steps, None, refusal))
            finally:
                del refusal

        return drive(client, whole())

    return client, run


ALL = pytest.mark.parametrize("made", [_driven, _awaited, _by_send, _begun])
REAL = pytest.mark.parametrize("made", [_driven, _awaited])


@ALL
def test_a_generator_that_has_an_answer_to_an_error_goes_on(made: Callable[..., Any]) -> None:
    client, run = made(ResponseError("no"), b"yes", ResponseError("no again"))

    def steps() -> Steps[Any]:
        with pytest.raises(ResponseError, match=r"^no$"):
            yield ("GET", "a")
        found = yield ("GET", "b")
        with pytest.raises(ResponseError, match=r"^no again$"):
            yield ("GET", "c")
        return found

    assert run(steps()) == b"yes"
    assert client.sent == [("GET", "a"), ("GET", "b"), ("GET", "c")]


@ALL
def test_an_error_that_is_raised_is_in_no_circle(made: Callable[..., Any]) -> None:
    # Its traceback holds the frames: a frame that held the error would leave both, and all that
    # the frame holds, to the garbage collector.
    error = ResponseError("no")
    _, run = made(error)

    def steps() -> Steps[Any]:
        yield ("GET", "a")

    with pytest.raises(ResponseError) as caught:
        run(steps())
    assert caught.value is error
    frames = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_globals["__name__"].startswith("workstealing.")
    ]
    assert frames
    for frame in frames:
        assert not any(value is error for value in frame.f_locals.values()), frame


@REAL
def test_an_error_in_reading_a_reply_goes_into_the_generator(made: Callable[..., Any]) -> None:
    _, run = made(b"not a number")

    def steps() -> Steps[Any]:
        try:
            yield command("GET", "a", read=int)
        except ValueError:
            return "read by itself"

    assert run(steps()) == "read by itself"


@REAL
def test_an_interruption_ends_the_call_and_the_generator(made: Callable[..., Any]) -> None:
    client, run = made(KeyboardInterrupt())
    ended = []

    def steps() -> Steps[Any]:
        try:
            yield ("GET", "a")
            yield ("GET", "b")
        except Exception:  # noqa: BLE001 - an interruption is none
            ended.append("as an error")
        finally:
            ended.append("closed")

    with pytest.raises(KeyboardInterrupt):
        run(steps())
    gc.collect()
    assert ended == ["closed"]
    assert client.sent == [("GET", "a")]


@REAL
def test_a_refused_layout_is_a_layout_error_for_the_generator(made: Callable[..., Any]) -> None:
    _, run = made(ResponseError("WSLAYOUT the key a is foreign"))

    def steps() -> Steps[Any]:
        yield Operation(SCRIPT, (b"a",), ())

    with pytest.raises(LayoutError, match=r"^the key a is foreign; nothing was changed$"):
        run(steps())
