"""Exceptions raised into running code where the interpreter might: by opcode, by signal, by thread.

And tasks that are cancelled at an await of the test's choice.

The interpreter looks for signals and asynchronous exceptions when a function begins, after a call
and at the end of a loop's turn. Tracing can raise before any opcode at all; the few that lie
between the end of a `with` block and the call of its `__exit__`, and those that return, where no
interpreter looks, are left out.
"""

from __future__ import annotations

import asyncio
import dis
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import workstealing

PACKAGE = str(Path(workstealing.__file__).parent)
JOBS = str(Path(sys.modules["workstealing"].__file__ or "").parent.parent / "jobs")

Point = tuple[CodeType, int]
# More than scripts/test.sh waits before it shows the stacks.
_HANGS_SECONDS = 560


class Interruption(Exception):
    """Stands for a host's time-out, which is an Exception: Celery's SoftTimeLimitExceeded."""


def _never_interrupted(code: CodeType) -> set[int]:
    """Return the offsets at which no interpreter raises: the ends of `with` blocks, returns."""
    left_out: set[int] = set()
    steps = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for at, step in enumerate(steps):
        # What hands an exception over to its handler is no place of its own.
        # A value that is being returned has left its `try` block, and is on its way to the caller.
        if step.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "RETURN_VALUE", "RETURN_CONST"):
            left_out.add(step.offset)
        nones = steps[at : at + 3]
        call = [each for each in steps[at + 3 : at + 5] if each.opname != "PRECALL"][:1]
        if (
            len(nones) == 3
            and all(each.opname == "LOAD_CONST" and each.argval is None for each in nones)
            and call
            and (call[0].opname, call[0].arg) == ("CALL", 2)
        ):
            left_out.update(
                each.offset for each in steps[at : at + 5] if each.offset <= call[0].offset
            )
            # A `return` in the block puts its value aside first.
            if at and steps[at - 1].opname in ("SWAP", "ROT_TWO"):
                left_out.add(steps[at - 1].offset)
    return left_out


def _is_ours(code: CodeType, folders: tuple[str, ...]) -> bool:
    return code.co_filename.startswith(folders)


@contextmanager
def _before_each_opcode(
    tell: Callable[[CodeType, int], None], wanted: Callable[[CodeType], bool]
) -> Iterator[None]:
    """Call a function before each opcode that this thread runs, until it raises.

    Arguments:
        tell: is called with the code and the offset.
        wanted: says of which code.
    """
    if sys.version_info >= (3, 12):
        # There tracing of opcodes begins only when a code runs for the second time.
        with _monitored(tell, wanted):
            yield
        return

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            tell(frame.f_code, frame.f_lasti)
        return local

    def enter(frame: FrameType, _: str, __: object) -> Any:
        if not wanted(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(
    tell: Callable[[CodeType, int], None], wanted: Callable[[CodeType], bool]
) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    event, tool, me = monitoring.events.INSTRUCTION, 4, threading.get_ident()
    is_over = False

    def each(code: CodeType, offset: int) -> Any:
        nonlocal is_over
        if is_over or threading.get_ident() != me:
            return None
        if not wanted(code):
            return monitoring.DISABLE
        try:
            tell(code, offset)
        except BaseException:
            is_over = True
            raise
        return None

    monitoring.use_tool_id(tool, "workstealing's tests")
    monitoring.register_callback(tool, event, each)
    monitoring.restart_events()
    monitoring.set_events(tool, event)
    try:
        yield
    finally:
        is_over = True
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


def points_of(
    call: Callable[[], object], folders: tuple[str, ...] = (PACKAGE, JOBS)
) -> list[Point]:
    """Return every opcode that a call runs in the folders, each once, in order of its first run."""
    seen: dict[Point, None] = {}

    def tell(code: CodeType, offset: int) -> None:
        seen.setdefault((code, offset))

    with _before_each_opcode(tell, lambda code: _is_ours(code, folders)):
        call()
    left_out = {code: _never_interrupted(code) for code in {code for code, _ in seen}}
    return [(code, offset) for code, offset in seen if offset not in left_out[code]]


def interrupt(
    call: Callable[[], object], point: Point, error: Callable[[], BaseException] = Interruption
) -> BaseException | None:
    """Make the call, and raise into it before the opcode when it is first reached.

    Returns: what came out of the call, or None if it returned. The trace ends with the raise.
    """
    code, offset = point

    def tell(_: CodeType, at: int) -> None:
        if at == offset:
            raise error()

    # Nothing of an earlier interruption may be left in this thread.
    assert sys.exc_info()[0] is None
    with _before_each_opcode(tell, lambda each: each is code):
        try:
            next(_contained(call))
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the test is to see it
            return raised
    return None


def _contained(call: Callable[[], object]) -> Iterator[None]:
    """Make a call, and keep the exceptions that are being handled inside it from its caller.

    The opcode that was not run may be the one that ends the handling of an exception. A generator
    has a record of its own for these, which ends with it.
    """
    call()
    yield


def place_of(point: Point) -> str:
    """Return a point's file, function and line, for a message."""
    code, offset = point
    lines = [line for start, end, line in code.co_lines() if start <= offset < end]
    return f"{Path(code.co_filename).name}:{code.co_name}:{lines[:1]} at {offset}"


@contextmanager
def alarms(error: Callable[[], BaseException] = Interruption) -> Iterator[Callable[[float], None]]:
    """Let SIGALRM raise in the main thread; yield what sets the next one, in seconds (0: none).

    An alarm that comes late, when the block is being left, raises nothing. pytest-timeout has the
    same signal and timer: it gets them back, and a block that hangs ends its process, once
    scripts/test.sh has shown the stacks of its threads.
    """
    is_on = True

    def handler(_: int, __: object) -> None:
        if is_on:
            raise error()

    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, handler)
    end = threading.Timer(_HANGS_SECONDS, os._exit, [3])
    end.daemon = True
    end.start()
    try:
        yield lambda seconds: (signal.setitimer(signal.ITIMER_REAL, seconds), None)[1]
    finally:
        is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        end.cancel()
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1.0, left - (time.monotonic() - began)))


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], at: int) -> bool:
    """Run a coroutine in a task of its own that is cancelled as it awaits for the nth time.

    Arguments:
        at: from 1 on.

    Returns: whether there was such an await. Raises: what comes out of the coroutine, but for the
    cancellation.
    """
    task = asyncio.ensure_future(_cancelling(coroutine, at))
    await asyncio.wait({task})
    if task.cancelled():
        return True
    return task.result()


async def _cancelling(coroutine: Coroutine[Any, Any, Any], at: int) -> bool:
    return await _Cancelling(coroutine, at)


class _Cancelling:
    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self._coroutine, self._at = coroutine, at

    def __await__(self) -> Generator[Any, Any, bool]:
        steps = self._coroutine.__await__()
        sent: Any = None
        error: BaseException | None = None
        count = 0
        while True:
            try:
                awaited = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration:
                return count >= self._at
            count += 1
            if count == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            sent = error = None
            try:
                sent = yield awaited
            except BaseException as raised:  # noqa: BLE001 - it is thrown into the coroutine
                error = raised
