"""Time for tests that are about something else, and fair judgement of those that are about time.

Other programs may use the machine, and then a process that could go on waits for its turn. So an
upper bound is either a guard, which ends a test that hangs, or counts fair seconds.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

import pytest

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget

PATIENT_SECONDS = 30.0
"""What replies may take where a slow one is not the subject."""
GUARD_SECONDS = 120.0
"""After so long a test hangs: nothing that works takes as long on a machine that is merely busy."""
ROUNDING_SECONDS = 0.010
"""By how much a wait may seem too short: servers count whole milliseconds by their own clock."""
_TICK_SECONDS = 0.005
_OWN_SECONDS = 1.0
_AMPLE_SECONDS = 5.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job wait longer than 50 ms for a reply: a busy machine is no dead server.

    Import it where the time-out itself is not what is tested. No wait passes a deadline; only the
    bound of a single reply is raised, also from the second that a backlog allows. What a test sets
    by `set_timeout`, or gives as less than that, stays.

    A slice or a backlog of five seconds or more means: time enough. A process of a low priority may
    wait as long for its turn, so these get more. Shorter ones, and those by a clock of the test's
    own, keep their length.
    """
    be_patient(monkeypatch)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the fixture `patient` does."""
    make = Budget.__init__

    def patiently(
        self: Budget,
        seconds: float | None = None,
        timeout: float = PATIENT_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        own = timeout >= _OWN_SECONDS
        if seconds == timeout and timeout >= _AMPLE_SECONDS and clock is SYSTEM_CLOCK:
            seconds = max(timeout, PATIENT_SECONDS)
        make(self, seconds, max(timeout, PATIENT_SECONDS) if own else timeout, clock)

    begin = Slice.__init__

    def amply(self: Slice, limit: int, seconds: Duration, clock: Clock = SYSTEM_CLOCK) -> None:
        begin(self, limit, seconds, clock)
        if _AMPLE_SECONDS <= self.seconds < PATIENT_SECONDS and clock is SYSTEM_CLOCK:
            # As if it had been asked for: its length and its deadline agree.
            begin(self, limit, PATIENT_SECONDS, clock)

    monkeypatch.setattr(Budget, "__init__", patiently)
    monkeypatch.setattr(Slice, "__init__", amply)


def left(seconds: float) -> Any:
    """Return a value equal to the rest of a time to live that was so long a minute ago, or now."""
    return pytest.approx(seconds - 30, abs=30)


def set_timeout(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    """Let each wait of a job last for that many seconds at most."""
    seconds, _, clock = Budget.__init__.__defaults__ or ()
    monkeypatch.setattr(Budget.__init__, "__defaults__", (seconds, timeout, clock))


class FairSeconds:
    """How long a block takes, without the time for which this process was kept from running.

    A thread sleeps for a few milliseconds at a time meanwhile: whatever it sleeps too long, the
    machine did something else. `seconds` is for after the block. Do not fork in it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._stalled = 0.0
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="fair seconds")

    def __enter__(self) -> Self:
        self._ticking.start()
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        took = time.monotonic() - self._began
        self._over.set()
        self._ticking.join()
        self.seconds = max(0.0, took - self._stalled)

    def _tick(self) -> None:
        before = time.monotonic()
        is_over = False
        while not is_over:
            is_over = self._over.wait(_TICK_SECONDS)
            now = time.monotonic()
            self._stalled += max(0.0, now - before - 2 * _TICK_SECONDS)
            before = now
