"""Server-sent events: the page's data again and again, until the stream has lasted long enough.

A stream holds a thread of the web server while it lasts. So there is a limit to how many a process
has at a time, and to how long one lasts; the browser comes back by itself. Where a worker has one
thread only, a stream ends after its first event, and the browser asks again a little later.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from workstealing.errors import ConfigurationError

EVERY_SECONDS = 2.0
LASTS_SECONDS = 300.0
MOST_STREAMS = 16


class Streams:
    """The streams of this process.

    Arguments: every: seconds between two events; lasts: seconds after which a stream ends; most:
    how many there are at a time; pause: waits some seconds. Errors: ConfigurationError for numbers
    that are not above 0.
    """

    def __init__(
        self,
        every: float = EVERY_SECONDS,
        lasts: float = LASTS_SECONDS,
        most: int = MOST_STREAMS,
        pause: Callable[[float], Any] | None = None,
    ) -> None:
        if not (every > 0 and lasts > 0 and most > 0):
            raise ConfigurationError(
                f"a stream's every={every!r}, lasts={lasts!r} and most={most!r} must be above 0"
            )
        self._every, self._most = every, most
        self._events = max(1, round(lasts / every))
        self._pause = pause or threading.Event().wait
        self._free = threading.BoundedSemaphore(most)

    def enter(self) -> bool:
        """Take a place for one more stream; False when there is none. `leave` gives it back."""
        return self._free.acquire(blocking=False)

    def leave(self) -> None:
        """Give a place back."""
        self._free.release()

    def events(self, data: Callable[[], Any], *, many: bool = True) -> Iterator[bytes]:
        """Yield the data as events; the first at once.

        Arguments: data: returns what JSON can hold; many: False for one event alone.
        """
        retry = round(self._every * 1000)
        yield f"retry: {retry}\n\n".encode()
        for number in range(self._events if many else 1):
            if number:
                self._pause(self._every)
            # JSON has no line ends of its own, so that no name ends an event.
            yield b"data: " + as_json(data()).encode("ascii") + b"\n\n"


def as_json(data: Any) -> str:
    """Return data as JSON in ASCII; no name can end an event or a script element in it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
