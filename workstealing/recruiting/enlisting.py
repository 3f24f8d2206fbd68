"""Callers are dismissed by counting down in C, and counted block by block.

A block is a C iterator that yields DISMISSED a fixed number of times. What it has yielded is what
it was built with less what is left in it, so nothing needs to be counted in the hot path, and no
interleaving of threads can lose a count: each caller takes either an item of some block, or the
slow path under the recruiter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import length_hint
from typing import Any

from workstealing.clock import Clock
from workstealing.config import is_disabled
from workstealing.recruiting.faults import FaultLog, HostTimeouts, shown
from workstealing.recruiting.flight import Run
from workstealing.recruiting.hooks import HookList
from workstealing.recruiting.lottery import Draw, Installed
from workstealing.recruiting.performing import Drawn, LoopSlices, Performer
from workstealing.recruiting.slice import Outcome

BLOCK_LIMIT = 1024
# Looking up a member of an enum costs as much as a whole dismissal.
_DISMISSED = Outcome.DISMISSED
_WINDOW_SECONDS = 0.25


class Blocks:
    """The exact number of the enlisted, and the callers still to dismiss, block by block.

    A block is never longer than the enlists of the last quarter of a second, nor than 1,024: at its
    end the slow path looks at the clock, and that must still happen about once a second in a
    process with one request a second. A lower bound than 1,024 would make every dismissal dearer in
    a process with thousands of enlists a second. The caller holds the recruiter's lock.

    A time-out may be raised between any two steps. So a block's size and what came before it are
    noted in one step, before the block is in use, and which block is in use says what counts.

    Arguments: now, the clock's monotonic seconds.
    """

    __slots__ = ("_added", "_counts", "_window_count", "_window_end", "ahead", "limit")

    ahead: int
    """How many more callers to dismiss once the running block has ended."""

    limit: int
    """How many callers the next block may hold."""

    def __init__(self, now: float) -> None:
        self._added = 0
        # The last two blocks, each with how many enlisted before it, and with its size.
        self._counts: tuple[tuple[Iterator[Outcome], int, int], ...] = ()
        self._window_count = 0
        self._window_end = now + _WINDOW_SECONDS
        self.ahead = 0
        self.limit = 1

    def renew(self, block: Iterator[Outcome], now: float) -> Iterator[Outcome]:
        """Return the block to use next; then one has run out, and so counts who found it so."""
        known = self._of(block)
        count = known[2] + 1
        self._window_count += count
        limit = self.limit
        if now >= self._window_end:
            windows = 1.0 + (now - self._window_end) / _WINDOW_SECONDS
            limit = max(1, min(BLOCK_LIMIT, int(self._window_count / windows)))
            self.limit = limit
            self._window_count = 0
            self._window_end = now + _WINDOW_SECONDS
        elif limit < BLOCK_LIMIT:
            limit = max(limit, min(BLOCK_LIMIT, self._window_count))
            self.limit = limit
        size = self.ahead
        # min() would cost a tenth of all of this where it is most frequent.
        if size > limit:  # noqa: PLR1730
            size = limit
        self.ahead -= size
        following = repeat(_DISMISSED, size)
        self._counts = (known, (following, known[1] + count, size))
        return following

    def cut(self, block: Iterator[Outcome]) -> None:
        """End a running block early; it yields nothing to anybody from here on."""
        # list() over a C iterator never lets another thread in, so that each item goes either to a
        # caller or into this list.
        left = len(list(block))
        _, ended, size = self._of(block)
        self._counts = ((block, ended + size - left, 0),)
        self._window_count += size - left

    def add(self, count: int) -> None:
        """Count callers who took no part in any block."""
        self._added += count

    def enlisted(self, block: Iterator[Outcome]) -> int:
        """Return how many callers have enlisted, those of the running block included."""
        _, ended, size = self._of(block)
        return self._added + ended + size - length_hint(block)

    def _of(self, block: Iterator[Outcome]) -> tuple[Iterator[Outcome], int, int]:
        for known in self._counts:
            if known[0] is block:
                return known
        return (block, 0, 0)


_REPORT_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
# Looking up a member of an enum costs as much as a whole dismissal.
_DISMISSED = Outcome.DISMISSED


class Enlisting:
    """Counts and dismisses callers, and picks those who are recruited.

    Arguments: seconds, the default length of a slice; random; clock. The jobs come by `_change`.
    """

    # Looking up a method is quicker where there is no __dict__ to look into first.
    __slots__ = (
        "_blocks",
        "_changes",
        "_clock",
        "_countdown",
        "_draw",
        "_drawing",
        "_drawn_at",
        "_faults",
        "_hooks",
        "_interrupting",
        "_lock",
        "_loop_slices",
        "_monotonic",
        "_next",
        "_performer",
        "_random",
        "_report_due",
        "_reported",
        "_settle_due",
        "_timeouts",
    )

    def __init__(self, seconds: float, random: Callable[[], float], clock: Clock) -> None:
        self._random = random
        self._clock = clock
        self._monotonic = clock.monotonic
        self._timeouts = HostTimeouts()
        self._faults = FaultLog(clock, self._timeouts)
        self._hooks = HookList(self._faults, self._timeouts)
        self._performer = Performer(seconds, clock, self._hooks, self._faults, self._timeouts)
        self._loop_slices = LoopSlices(self._performer)
        self._draw = Draw(())
        self._begin()

    def _begin(self) -> None:
        """Take a new lock, count from zero, and let the next caller draw."""
        # Re-entrant, because a signal handler or a finalizer may enlist while the interrupted frame
        # holds it; `_drawing` tells such a caller to touch nothing.
        self._lock = threading.RLock()
        self._drawing: Run[Installed | None] = Run(lambda: None)
        self._interrupting: list[None] = []
        now = self._clock.monotonic()
        self._reported = 0
        self._report_due = now + _REPORT_SECONDS
        self._settle_due = now + _SETTLE_SECONDS
        self._blocks = Blocks(now)
        self._countdown: Iterator[Outcome] = iter(())
        self._next: Installed | None = None
        # The draw is stale unless it was made after the last change.
        self._changes = 0
        self._drawn_at = -1

    def after_fork(self) -> None:
        """Begin anew in a forked child; called by the package itself."""
        self._begin()
        for part in (self._faults, self._hooks, self._performer, self._loop_slices):
            part.after_fork()

    def enlist(self) -> Outcome:
        """Offer this caller's spare moment.

        Returns: DISMISSED nearly always; any other outcome when this caller was recruited, who is
        then held for at most the slice's length (lengthened where shorter ones came to nothing, up
        to longest_seconds) plus one socket time-out. Raises: nothing of ours; what a job raises
        passes only if it is no Exception or a host's time-out. A dismissed caller
        sends no command and pays for one step of a C iterator.
        """
        # A loop of at most one turn: the cheapest way to take one item, and all of it is C.
        for dismissed in self._countdown:
            return dismissed
        installed = self._recruited()
        return _DISMISSED if installed is None else self._performer.serve(installed)

    def draw(self) -> Drawn | None:
        """Offer this caller's spare moment, which comes later: after a response has gone out.

        Returns: None if this caller is dismissed, nearly always and as cheaply as by `enlist`; or
        the recruit, whose slice begins when it is told to. Raises: nothing of ours. No command.
        """
        for _ in self._countdown:
            return None
        installed = self._recruited()
        return None if installed is None else Drawn(self._performer, self._loop_slices, installed)

    def flush(self) -> None:
        """Tell the hooks of the enlisted that they have not heard of yet.

        Without it they hear of them about once a second, as long as callers enlist: call it where a
        process ends in order.
        """
        with self._lock:
            enlisted = self._enlisted()
            count, self._reported = enlisted - self._reported, enlisted
            self._report_due = self._clock.monotonic() + _REPORT_SECONDS
        if count > 0:
            self._hooks.enlisted(count)

    def use_random(self, random: Callable[[], float]) -> Callable[[], float]:
        """Draw with another random from the next enlist on; return the one before (for tests)."""
        with self._lock:
            before, self._random = self._random, random
            self._change(self._draw)
        return before

    def is_host_timeout(self, error: BaseException) -> bool:
        """Say whether an error passes through `enlist`; see `Recruiter.reraise`."""
        return self._timeouts.include(error)

    def _enlisted(self) -> int:
        """Return how many callers have enlisted so far. The lock is held."""
        return self._blocks.enlisted(self._countdown) + len(self._interrupting)

    def _change(self, draw: Draw) -> None:
        """Let the next caller draw anew, by these rates. The lock is held."""
        self._draw = draw
        self._changes += 1
        # Whom a signal handler's change has interrupted will see that the draw is stale.
        if not self._drawing.is_running:
            self._blocks.cut(self._countdown)

    def _settle(self, now: float) -> None:
        """Let rates follow what was seen; called about once a second. The lock is held."""

    def enlist_after(
        self, when: Callable[[Any], object] | None, result: object, *, on_loop: bool = False
    ) -> None:
        """Enlist if `when` wants it, which harms nobody; on a loop, nobody waits for the slice."""
        if when is not None:
            try:
                if not when(result):
                    return
            except Exception as error:
                if self._timeouts.include(error):
                    raise
                self._faults.report(f"when= {_name_of(when)}", error)
                return
        if not on_loop:
            self.enlist()
        elif (drawn := self.draw()) is not None:
            drawn.serve_on_loop()

    def _recruited(self) -> Installed | None:
        """Take the slow path: return the job that this caller is recruited for, or None."""
        winner = None
        try:
            now = self._monotonic()
            with self._lock:
                if self._drawing.is_running:
                    self._interrupting.append(None)
                    return None
                self._drawing = Run(self._dismissed_or_drawn, now)
                winner = self._drawing()
                due = now >= self._report_due
                if now >= self._settle_due:
                    self._settle_due = now + _SETTLE_SECONDS
                    self._settle(now)
        except Exception as error:
            # From a random or a clock of the user's own.
            if self._timeouts.include(error):
                raise
            self._faults.report("the lottery", error)
            return winner
        if due:
            self.flush()
        return winner

    def _dismissed_or_drawn(self, now: float) -> Installed | None:
        # Another thread may have opened a new block meanwhile.
        return self._end_block(now) if next(self._countdown, None) is None else None

    def _end_block(self, now: float) -> Installed | None:
        """Count this caller as the block's last, draw if need be, and open the next block."""
        blocks = self._blocks
        winner = None
        if self._drawn_at != self._changes:
            # Drawing anew in the midst of a count is fair: that distribution has no memory.
            self._redraw()
        if blocks.ahead:
            blocks.ahead -= 1
        elif is_disabled():
            # The recruit is put off by one block, again and again.
            blocks.ahead = blocks.limit
        else:
            winner = self._next
            self._redraw()
        self._countdown = blocks.renew(self._countdown, now)
        return winner

    def _redraw(self) -> None:
        # Noted last, so that a change or an error in the midst of this draw leads to another one.
        changes, self._drawn_at = self._changes, -1
        self._blocks.ahead, self._next = self._draw.next_recruit(self._random)
        self._drawn_at = changes
        if self._interrupting:
            count = len(self._interrupting)
            del self._interrupting[:count]
            self._blocks.add(count)


def _name_of(when: object) -> str:
    name = getattr(when, "__qualname__", None)
    return name if isinstance(name, str) else shown(when)
