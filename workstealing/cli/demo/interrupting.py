"""Ctrl-C and SIGTERM as a wish that is looked at, so that no clearing up is ever interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_wish() -> Iterator[threading.Event]:
    """Yield an event that is set by SIGINT, SIGTERM and SIGHUP, which do nothing else meanwhile.

    Only in the main thread; elsewhere Python allows no handlers, and nobody sets the event.
    """
    wish = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        wish.set()

    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
