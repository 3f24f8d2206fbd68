"""The hot path: a countdown in C dismisses callers, and whole blocks of them are counted.

A block is a C iterator that yields DISMISSED a fixed number of times. A block's size less the rest
in it is the number of callers that it has dismissed. So the hot path counts nothing, and no
interleaving of threads loses a count: each caller takes an item of a block, or the slow path under
the recruiter's lock. The draw is made ahead.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import length_hint

from workstealing.clock import Clock
from workstealing.recruiting.faults import FaultLog, HostTimeouts
from workstealing.recruiting.hooks import HookList
from workstealing.recruiting.lottery import Draw, Installed, is_disabled
from workstealing.recruiting.performing import DrawnRecruit, LoopSlices, Performer
from workstealing.recruiting.slice import Outcome
from workstealing.recruiting.slice_slot import Run

BLOCK_LIMIT = 1024
# The look-up of an enum's member costs as much as a whole dismissal.
_DISMISSED = Outcome.DISMISSED
_WINDOW_SECONDS = 0.25


class PoppedBlock:
    """A block for an interpreter without a global lock, where threads may share a `repeat`'s item.

    The pop of a list is exact there, too. A dismissal takes one more call. The
    arguments are those of `itertools.repeat`.
    """

    __slots__ = ("_items", "_pop")

    def __init__(self, item: Outcome, times: int) -> None:
        self._items = [item] * times
        self._pop = self._items.pop

    def __iter__(self) -> Iterator[Outcome]:
        return self

    def __next__(self) -> Outcome:
        try:
            return self._pop()
        except IndexError:
            raise StopIteration from None

    def __length_hint__(self) -> int:
        return len(self._items)


_has_global_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
_block: Callable[[Outcome, int], Iterator[Outcome]] = repeat if _has_global_lock() else PoppedBlock


class Blocks:
    """The exact number of enlists, and the callers still to dismiss, block by block.

    A block is at most as long as the enlists of the last quarter of a second, and 1,024. The slow
    path at its end looks at the clock, about once a second even in a process with one request a
    second. A lower bound than 1,024 would make each dismissal dearer in a process with thousands of
    enlists a second. The caller holds the recruiter's lock.

    A host's time-out may come between any two steps. So one step notes a block's size and the count
    before it, ahead of the block's use. Two notes at most are kept: the note
    about the block in use counts.

    Arguments:
        now: the clock's monotonic seconds.
    """

    __slots__ = ("_added", "_counts", "_window_count", "_window_end", "ahead", "limit")

    ahead: int
    """The number of callers to dismiss after the running block."""

    limit: int
    """The most callers of the next block."""

    def __init__(self, now: float) -> None:
        self._added = 0
        # The last two blocks, each with the number of enlists before it and with its size.
        self._counts: tuple[tuple[Iterator[Outcome], int, int], ...] = ()
        self._window_count = 0
        self._window_end = now + _WINDOW_SECONDS
        self.ahead = 0
        self.limit = 1

    def renew(self, block: Iterator[Outcome], now: float) -> Iterator[Outcome]:
        """Return the next block, after the running one has ended; its finder counts as well."""
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
        following = _block(_DISMISSED, size)
        self._counts = (known, (following, known[1] + count, size))
        return following

    def cut(self, block: Iterator[Outcome]) -> None:
        """End a running block early; no caller gets an item of it from here on."""
        # Each item goes to a caller or into this list, because list() over a C iterator lets no
        # other thread in, and a pop of a PoppedBlock is exact.
        left = len(list(block))
        _, ended, size = self._of(block)
        self._counts = ((block, ended + size - left, 0),)
        self._window_count += size - left

    def add(self, count: int) -> None:
        """Count callers who took an item of no block."""
        self._added += count

    def enlisted(self, block: Iterator[Outcome]) -> int:
        """Return the number of enlists, with those of the running block."""
        _, ended, size = self._of(block)
        return self._added + ended + size - length_hint(block)

    def taken(self, block: Iterator[Outcome]) -> int | None:
        """Return the callers since the slow path opened the running block; None: unknown."""
        _, _, size = self._of(block)
        # A block that was cut short is alone here, and has lost its size.
        return size - length_hint(block) if len(self._counts) > 1 else None

    def _of(self, block: Iterator[Outcome]) -> tuple[Iterator[Outcome], int, int]:
        for known in self._counts:
            if known[0] is block:
                return known
        return (block, 0, 0)


REPORT_SECONDS = 1.0
_MOVE_SECONDS = 1.0
# Looking up a member of an enum costs as much as a whole dismissal.
_DISMISSED = Outcome.DISMISSED


class Enlisting:
    """Counts callers, dismisses nearly all, and recruits a few.

    Arguments:
        seconds: the default length of a slice.

    The jobs come by `_change`.
    """

    # The look-up of a method is quicker without a __dict__.
    __slots__ = (
        "_began",
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
        "_move_due",
        "_next",
        "_performer",
        "_random",
        "_report_due",
        "_reported",
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
        # holds it. `_drawing` tells such a caller to touch nothing.
        self._lock = threading.RLock()
        self._drawing: Run[Installed | None] = Run(lambda: None)
        self._interrupting: list[None] = []
        self._began = now = self._clock.monotonic()
        self._reported = 0
        self._report_due = now + REPORT_SECONDS
        self._move_due = now + _MOVE_SECONDS
        self._blocks = Blocks(now)
        self._countdown: Iterator[Outcome] = iter(())
        self._next: Installed | None = None
        # The draw is stale unless it was made after the last change.
        self._changes = 0
        self._drawn_at = -1

    def _after_fork(self) -> None:
        """Begin anew in a forked child."""
        self._begin()
        for part in (self._faults, self._hooks, self._performer, self._loop_slices):
            part.after_fork()

    def enlist(self) -> Outcome:
        """Offer this caller's spare moment.

        Returns: DISMISSED nearly always; any other outcome for a recruit. A recruit is held for the
        slice's length (up to `longest`, after slices that were too short for any work) and one
        socket time-out at most. Raises: no error of ours; of a job's errors only the host's
        time-outs and the ones that are no Exception. A dismissed caller sends no command and pays
        for one step of a C iterator.
        """
        # A loop of at most one turn is the cheapest way to take one item: all of it is C.
        for dismissed in self._countdown:
            return dismissed
        installed = self._recruited()
        return _DISMISSED if installed is None else self._performer.serve(installed)

    def draw(self) -> DrawnRecruit | None:
        """Offer a spare moment that comes later, for example after a response has gone out.

        Returns: None for a dismissed caller, nearly always and as cheaply as by `enlist`; otherwise
        the recruit, which begins its slice on demand. Raises: no error of ours. No command.
        """
        for _ in self._countdown:
            return None
        installed = self._recruited()
        return (
            None
            if installed is None
            else DrawnRecruit(self._performer, self._loop_slices, installed)
        )

    def flush(self) -> None:
        """Tell the hooks of the last enlists now.

        Otherwise they hear of enlists about once a second, as long as callers enlist. Call this at
        the ordinary end of a process.
        """
        with self._lock:
            enlisted = self._enlisted()
            count, self._reported = enlisted - self._reported, enlisted
            self._report_due = self._clock.monotonic() + REPORT_SECONDS
        if count > 0:
            self._hooks.enlisted(count)

    def use_random(self, random: Callable[[], float]) -> Callable[[], float]:
        """Draw with another random from the next enlist on; return the old one (for tests)."""
        with self._lock:
            before, self._random = self._random, random
            self._change(self._draw)
        return before

    def is_host_timeout(self, error: BaseException) -> bool:
        """Say whether an error passes through `enlist`; see `Recruiter.reraise`."""
        return self._timeouts.include(error)

    def _enlisted(self) -> int:
        """Return the number of enlists so far. The lock is held."""
        return self._blocks.enlisted(self._countdown) + len(self._interrupting)

    def _lately(self, now: float) -> tuple[int, float | None]:
        """Return how many enlisted at most in so many seconds, None: unknown. The lock is held.

        Only the slow path looks at the clock. The slow path reports once a second, so its last look
        lies before the next report is due.
        """
        taken = self._blocks.taken(self._countdown)
        return (0, None) if taken is None else (taken, max(0.0, now - self._report_due))

    def _change(self, draw: Draw) -> None:
        """Let the next caller draw anew, by these rates. The lock is held."""
        self._draw = draw
        self._changes += 1
        # The frame that a signal handler has interrupted will see that the draw is stale.
        if not self._drawing.is_running:
            self._blocks.cut(self._countdown)

    def _move_rates(self, now: float) -> None:
        """Let adaptive rates move; called about once a second. The lock is held."""

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
                if now >= self._move_due:
                    self._move_due = now + _MOVE_SECONDS
                    self._move_rates(now)
        except Exception as error:
            # A random or a clock of the user's own has raised it.
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
            # A new draw in the midst of a count is fair: the distribution has no memory.
            self._redraw()
        if blocks.ahead:
            blocks.ahead -= 1
        elif is_disabled():
            # The recruit waits for one more block, again and again.
            blocks.ahead = blocks.limit
        else:
            winner = self._next
            self._redraw()
        self._countdown = blocks.renew(self._countdown, now)
        return winner

    def _redraw(self) -> None:
        # Noted last, so a change or an error in the midst of this draw leads to another draw.
        changes, self._drawn_at = self._changes, -1
        self._blocks.ahead, self._next = self._draw.next_recruit(self._random)
        self._drawn_at = changes
        if self._interrupting:
            count = len(self._interrupting)
            del self._interrupting[:count]
            self._blocks.add(count)
