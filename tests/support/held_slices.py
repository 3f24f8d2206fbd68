"""A slice that a test holds while it looks at what goes on around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from workstealing.recruiting import Recruiter, Slice
from workstealing.testing import always

PATIENCE = 120.0


class HeldSlices:
    """A recruiter that recruits everybody, and whose slices end when the test says so."""

    def __init__(self) -> None:
        self.recruiter: Recruiter = always()
        self.begun = threading.Event()
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []
        self.recruiter.job(rate=0.5, name="held")(self._hold)

    def _hold(self, slice: Slice) -> int:
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.go.wait(PATIENCE)
        return 1

    @property
    def enlisted(self) -> int:
        """How many have enlisted."""
        return self.recruiter.stats()["enlisted"]

    @property
    def worked(self) -> int:
        """How many slices have ended well."""
        return self.recruiter.stats()["jobs"]["held"]["worked"]


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until the condition holds, which it must within PATIENCE seconds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it is a thread that makes it true
            await asyncio.sleep(0)
