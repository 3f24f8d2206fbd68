"""A held sweep without a JVM: what it says on its way, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from workstealing.spark.holding import SweepHandle, SweepWatch
from workstealing.spark.stages import TurnResult

ROWS: Any = object()
HALF = TurnResult(items=3, aborted=1, failed=1, operations=9)


class Session:
    """A session whose stages end when somebody cancels their group."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.cancelled = threading.Event()

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        assert group == "a group"
        self.cancelled.set()


def held(run: Callable[[SweepWatch, Session], Any]) -> tuple[SweepHandle, Session]:
    session: Any = Session()
    return SweepHandle(session, "a group", lambda watch: run(watch, session)), session


def test_what_is_said_on_the_way_and_at_the_end() -> None:
    go_on = threading.Event()
    said = threading.Event()

    def run(watch: SweepWatch, _: Session) -> Any:
        watch.begun("tidy", 4)
        watch.require_going()
        watch.ended_round(1, 2, [HALF, HALF])
        said.set()
        go_on.wait()
        watch.ended_round(2, 0, [HALF, HALF, HALF])
        return ROWS

    handle, _ = held(run)
    said.wait()
    seen = handle.progress()
    assert (seen.state, seen.job, seen.parts, seen.left, seen.rounds) == (
        "running",
        "tidy",
        4,
        2,
        1,
    )
    assert (seen.items, seen.aborted, seen.failed, seen.operations) == (6, 2, 2, 18)
    # This session has no status tracker.
    assert seen.turns is None
    with pytest.raises(TimeoutError):
        handle.result(0)
    go_on.set()
    assert handle.result() is ROWS
    first, second = handle.progress(), handle.progress()
    assert (first.state, first.left, first.items) == ("done", 0, 9)
    assert first == second
    # It is too late to cancel.
    assert handle.cancel()
    assert handle.result() is ROWS


def test_a_cancelled_stage_and_a_cancelled_pause() -> None:
    def staged(_: SweepWatch, session: Session) -> Any:
        session.cancelled.wait()
        raise RuntimeError("Job 7 was cancelled")

    def pausing(watch: SweepWatch, _: Session) -> Any:
        watch.ended_round(3, 1, [HALF])
        watch.sleep(600.0)
        watch.require_going()
        return ROWS

    for run, rounds in ((staged, 0), (pausing, 3)):
        handle, _ = held(run)
        assert handle.cancel(60.0)
        assert handle.progress().state == "cancelled"
        with pytest.raises(CancelledError, match=f"cancelled after {rounds} rounds"):
            handle.result()


def test_what_does_not_end_is_said() -> None:
    go_on = threading.Event()
    handle, session = held(lambda *_: go_on.wait() and ROWS)
    assert not handle.cancel(0.0)
    assert session.cancelled.is_set()
    assert not handle.is_done
    go_on.set()
    # It came to its end all the same.
    assert handle.result(60.0) is ROWS


def test_an_error_is_the_callers() -> None:
    def broken(*_: object) -> Any:
        raise LookupError("no such thing")

    handle, _ = held(broken)
    for _ in range(2):
        with pytest.raises(LookupError, match="no such thing"):
            handle.result(60.0)
    assert handle.progress().state == "failed"
