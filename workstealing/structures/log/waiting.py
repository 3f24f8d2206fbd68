"""Waiting for one very offset.

The stream `news` holds one entry, whose id is the offset of the next entry: 18-0 once entry 17 is
there. So XREAD BLOCK from the id 17-0 returns when entry 17 exists, and at once if it has come
since the look: nothing is missed, and nobody is woken by entries before the one it waits for.
"""

from __future__ import annotations

import time
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.blocking import LONGEST_MS, milliseconds
from workstealing.structures.log.names import LogNames

# A look now and then shows that the connection is alive.
MOST_SECONDS = 30.0


class Patience:
    """How long a blocking read goes on. Arguments: seconds: of the whole read."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds if seconds else None

    def next_seconds(self) -> float | None:
        """Return how long to wait after a look; None when the time is over."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        return min(left, MOST_SECONDS) if left > 0 else None


def checked_wait(command: object, seconds: object) -> None:
    """Raise ConfigurationError for what is no command that waits, or no time to wait for it."""
    if not isinstance(command, tuple) or not command or not isinstance(command[0], str | bytes):
        raise ConfigurationError(
            f"command={command!r} is no command of Redis, a tuple: to wait for the entry of an"
            " offset, call read(offset, block_ms=...)"
        )
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= LONGEST_MS / 1000
    ):
        raise ConfigurationError(f"seconds={seconds!r} is no time to wait: give seconds, 0 or more")


def block_command(keys: LogNames, offset: int, seconds: float) -> tuple[Any, ...]:
    """Return the command that waits until the entry of that offset exists."""
    return (
        *("XREAD", "COUNT", 1, "BLOCK", milliseconds(seconds)),
        *("STREAMS", keys.news, b"%d-0" % offset),
    )
