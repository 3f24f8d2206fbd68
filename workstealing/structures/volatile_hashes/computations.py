"""The computations of cached values in this process, and the callers that wait for them.

The first caller that finds no value leads a computation ("single flight"), and the others of its
process wait for its result instead of asking Redis. A caller takes a value only if it was
looked up, computed or stored after the caller had arrived, because a caller must not see less than
had happened by then. No I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

Place = tuple[Hashable, str, str, str]
"""The place of a computation: its server, namespace, hash and field."""


class ComputedValue(NamedTuple):
    """A computation's result.

    Fields: data, as it stands in Redis; left_ms: as of HPTTL; before: it is one for callers that
    came before this number of the computation's steps.
    """

    data: bytes
    left_ms: int
    before: int


class SharedComputation:
    """One computation.

    Attributes: place; leader: the task, greenlet or thread that computes, in this thread; began and
    given_up_at, when the others no longer wait, by the monotonic clock; steps: how often the leader
    has begun to ask or compute; token: the nonce of its lease, None: it has none; extended_at: when
    the lease is to be extended; is_over; result, None: it came to nothing.
    """

    __slots__ = (
        *("_wakers", "began", "extended_at", "given_up_at", "is_over", "result", "leader"),
        *("place", "steps", "thread", "token"),
    )

    def __init__(self, place: Place, leader: object, hold: float) -> None:
        self.place = place
        self.leader = leader
        self.thread = threading.get_ident()
        self.began = time.monotonic()
        # The leader itself asks for no longer than `hold`, unless it is stuck.
        self.given_up_at = self.began + 2 * hold
        self.steps = 0
        self.token: str | None = None
        self.extended_at = 0.0
        self.is_over = False
        self.result: ComputedValue | None = None
        self._wakers: list[Callable[[], object]] = []

    def step(self) -> int:
        """Begin to ask or compute; return the number before which a caller must have come."""
        with _lock:
            self.steps += 1
            return self.steps

    def compute(self, hold: float) -> int:
        """Begin to compute, as a step, for which the others wait for `hold` seconds at most."""
        self.given_up_at = time.monotonic() + hold
        return self.step()

    def finish(self, result: ComputedValue | None = None) -> None:
        """End the computation, with a result for those who wait, or with none.

        The first end counts; a further call completes an end that was interrupted.
        """
        with _lock:
            if not self.is_over:
                self.result, self.token = result, None
                self.is_over = True
            if _computations.get(self.place) is self:
                del _computations[self.place]
            wakers = [*self._wakers]
        for wake in wakers:
            # An event loop that waited may be closed by now.
            with contextlib.suppress(RuntimeError):
                wake()
        with _lock:
            self._wakers.clear()

    def _enter(self, wake: Callable[[], object]) -> bool:
        with _lock:
            if not self.is_over:
                self._wakers.append(wake)
            return not self.is_over

    def _leave(self, wake: Callable[[], object]) -> None:
        with _lock:
            if wake in self._wakers:
                self._wakers.remove(wake)

    def wait(self, seconds: float) -> None:
        """Wait until the computation is over, for at most so many seconds."""
        over, caller = threading.Event(), running()
        wake = over.set
        try:
            if self._enter(wake):
                over.wait(seconds)
        except BaseException:
            waits_no_more(caller)
            raise
        finally:
            self._leave(wake)

    async def wait_async(self, seconds: float) -> None:
        """Wait as `wait` does, in a task of any event loop."""
        loop, caller = asyncio.get_running_loop(), running()
        over = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(over.set)

        try:
            if self._enter(wake):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await over.wait()
        except BaseException:
            waits_no_more(caller)
            raise
        finally:
            self._leave(wake)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A step of a cached function: wait for a computation.

    Fields: computation; seconds, for how long at most.
    """

    computation: SharedComputation
    seconds: float


# Re-entrant: a signal's handler may call a cached function while the interrupted frame holds it.
_lock = threading.RLock()
_computations: dict[Place, SharedComputation] = {}
_waiting: dict[object, SharedComputation] = {}


def _after_fork() -> None:
    # The parent's computations end in the parent, and the lock's holder may be there.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _computations.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def running() -> object:
    """Return the task, the greenlet or the thread that runs now, as a key."""
    with contextlib.suppress(RuntimeError):
        task = asyncio.current_task()
        if task is not None:
            return task
    greenlet = sys.modules.get("greenlet")
    return threading.get_ident() if greenlet is None else greenlet.getcurrent()


def server_of(client: Any) -> Hashable:
    """Return a key of a client's server: two clients of one server share computations."""
    pool = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    kind = getattr(pool, "connection_class", None)
    names = ("path",) if "path" in options else ("host", "port")
    if all(name in options for name in names) and getattr(kind, "__module__", "").startswith(
        "redis."
    ):
        return (*[options[name] for name in names], options.get("db"))
    # A cluster's client, a fleet, a sentinel's, one for tests.
    return id(client)


def join(
    place: Place, hold: float, lead: Callable[[SharedComputation], None], *, blocks: bool
) -> tuple[SharedComputation | None, int | None]:
    """Return the computation of a place, and its step now; None: this caller leads it from now on.

    Arguments:
        hold: for how many seconds others wait for one that computes: then it is given up, and the
            caller leads the next one.
        lead: is told of the caller's own computation before others are, so that it is finished
            whatever interrupts this call.
        blocks: whether the caller would hold up its whole thread by waiting.

    Returns no computation if the caller would wait for itself: the function calls itself, or two
    functions each other. A caller that follows a computation waits from now on, so that of two
    callers at least one sees that the other one waits; `waits_no_more` ends the wait.
    """
    caller = running()
    with _lock:
        computation = _computations.get(place)
        if computation is None or time.monotonic() >= computation.given_up_at:
            computation = SharedComputation(place, caller, hold)
            lead(computation)
            _computations[place] = computation
            return computation, None
        if _waits_for(caller, computation, blocks):
            return None, None
        _waiting[caller] = computation
        return computation, computation.steps


def waits_no_more(caller: object) -> None:
    """Note that a caller no longer waits for a computation; this wakes nobody."""
    with _lock:
        _waiting.pop(caller, None)


def _waits_for(caller: object, computation: SharedComputation, blocks: bool) -> bool:
    """Say whether a computation's leader waits for the caller, or needs the caller's thread."""
    if blocks and computation.thread == threading.get_ident():
        return True
    seen: SharedComputation | None = computation
    # Not for ever: one who was interrupted may still stand there.
    for _ in range(len(_waiting) + 1):
        if seen is None or seen.is_over:
            return False
        if seen.leader == caller:
            return True
        seen = _waiting.get(seen.leader)
    return False
