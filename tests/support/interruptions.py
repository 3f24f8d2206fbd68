"""Exceptions raised into running code where the interpreter might: by opcode, by signal, by thread.

The interpreter looks for signals and asynchronous exceptions when a function begins, after a call
and at the end of a loop's turn. Tracing can raise before any opcode at all; the few that lie
between the end of a `with` block and the call of its `__exit__`, where no interpreter looks, are
left out.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import workstealing

PACKAGE = str(Path(workstealing.__file__).parent)
JOBS = str(Path(sys.modules["workstealing"].__file__ or "").parent.parent / "jobs")

Point = tuple[CodeType, int]


class Interruption(Exception):
    """Stands for a host's time-out, which is an Exception: Celery's SoftTimeLimitExceeded."""


def _never_interrupted(code: CodeType) -> set[int]:
    """Return the offsets at which no interpreter raises: the ends of `with` blocks."""
    left_out: set[int] = set()
    steps = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    for at, step in enumerate(steps):
        # What hands an exception over to its handler is no place of its own.
        if step.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START"):
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


def _let_opcodes_be_traced() -> None:
    # Python 3.12 traces opcodes only if some frame has asked for it before sys.settrace.
    sys._getframe().f_trace_opcodes = True


def points_of(
    call: Callable[[], object], folders: tuple[str, ...] = (PACKAGE, JOBS)
) -> list[Point]:
    """Return every opcode that a call runs in the folders, each once, in order of its first run."""
    seen: dict[Point, None] = {}

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            seen.setdefault((frame.f_code, frame.f_lasti))
        return local

    def enter(frame: FrameType, _: str, __: object) -> Any:
        if not _is_ours(frame.f_code, folders):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local

    before = sys.gettrace()
    _let_opcodes_be_traced()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    left_out = {code: _never_interrupted(code) for code, _ in seen}
    return [(code, offset) for code, offset in seen if offset not in left_out[code]]


def interrupt(
    call: Callable[[], object], point: Point, error: Callable[[], BaseException] = Interruption
) -> BaseException | None:
    """Make the call, and raise into it before the opcode when it is first reached.

    Returns: what came out of the call, or None if it returned. The trace ends with the raise.
    """
    code, offset = point

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode" and frame.f_lasti == offset:
            raise error()
        return local

    def enter(frame: FrameType, _: str, __: object) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local

    before = sys.gettrace()
    _let_opcodes_be_traced()
    sys.settrace(enter)
    try:
        call()
    except BaseException as raised:  # noqa: BLE001 - whatever it is, the test is to see it
        return raised
    finally:
        sys.settrace(before)
    return None


def place_of(point: Point) -> str:
    """Return a point's file, function and line, for a message."""
    code, offset = point
    lines = [line for start, end, line in code.co_lines() if start <= offset < end]
    return f"{Path(code.co_filename).name}:{code.co_name}:{lines[:1]} at {offset}"


@contextmanager
def alarms(error: Callable[[], BaseException] = Interruption) -> Iterator[Callable[[float], None]]:
    """Let SIGALRM raise in the main thread; yield what sets the next one, in seconds (0: none).

    An alarm that comes late, when the block is being left, raises nothing.
    """
    is_on = True

    def handler(_: int, __: object) -> None:
        if is_on:
            raise error()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield lambda seconds: (signal.setitimer(signal.ITIMER_REAL, seconds), None)[1]
    finally:
        is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
