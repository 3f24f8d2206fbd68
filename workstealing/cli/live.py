"""Repeated looks: printed each time, or drawn in place on a terminal."""

from __future__ import annotations

import argparse
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from workstealing.cli.arguments import at_least, duration
from workstealing.cli.clients import application_prints_to_stderr
from workstealing.errors import MissingExtraError

INTERVAL = 2.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that `stop_wish` notes."""
_LONGEST_NAP = 0.5

_SeenT = TypeVar("_SeenT")


def add_interval_option(parser: argparse.ArgumentParser) -> None:
    """Add --interval to a command's options."""
    parser.add_argument(
        "--interval",
        type=duration,
        default=INTERVAL,
        metavar="S",
        help="how long between two looks: 2s, 500ms or 1m (default: %(default)gs)",
    )


def add_times_option(options: argparse._ActionsContainer) -> None:
    """Add --times to a command's options, or to a group of them."""
    options.add_argument(
        "--times",
        type=at_least(1, "looks"),
        metavar="N",
        help="end after so many looks (default: with Ctrl-C)",
    )


def repeat(
    look: Callable[[], _SeenT],
    interval: float,
    times: int | None,
    show: Callable[[_SeenT], None],
) -> None:
    """Look and show until the number of looks is reached; Ctrl-C ends it without an error.

    Arguments:
        look: returns a look.
        interval: seconds between two looks.
        times: how many looks, None for no end.
        show: is called with each look.

    Raises: the errors of look and show.
    """
    number = 0
    try:
        while True:
            with application_prints_to_stderr():
                seen = look()
            show(seen)
            number += 1
            if times is not None and number >= times:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def draw(
    look: Callable[[], _SeenT],
    interval: float,
    times: int | None,
    drawn: Callable[[_SeenT], Any],
) -> None:
    """Look as `repeat` does, and draw in place on the terminal.

    Arguments as of `repeat`; drawn: returns a look in rich's form. Raises: MissingExtraError
    without rich (the extra "cli").
    """
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        raise MissingExtraError("cli", "rich") from error
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=times is None) as live:
        repeat(look, interval, times, lambda seen: live.update(drawn(seen), refresh=True))


class StopWish:
    """A wish that a signal's handler notes, and that the main thread waits for.

    A `threading.Event` would not do: it has a lock, and a handler that interrupts the main thread
    while that holds the lock would wait for it for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        # Its put() may interrupt its get(), by its documentation.
        self._notes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Say whether the wish was noted."""
        return self._is_set

    def set(self) -> None:
        """Note the wish. It may be called in a signal's handler."""
        self._is_set = True
        self._notes.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the wish, and say whether it was noted.

        Arguments:
            seconds: the most time to wait; None to wait as long as it takes.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not self._is_set and (left := end - time.monotonic()) > 0:
            # A signal may come after Python has looked for one, and before the thread sleeps: its
            # handler is then not called until the thread wakes up.
            with suppress(queue.Empty):
                self._notes.get(timeout=min(left, _LONGEST_NAP))
        return self._is_set


@contextmanager
def stop_wish() -> Iterator[StopWish]:
    """Yield a wish that SIGINT, SIGTERM and SIGHUP note, instead of their usual effects.

    No signal can therefore interrupt the clearing up. Python allows handlers in the main thread
    only; in another thread no signal notes the wish.
    """
    wish = StopWish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, lambda *_: wish.set()) for number in STOP_SIGNALS}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
