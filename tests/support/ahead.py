"""A time of day that is wrong: import this before the library, or run a command of it.

CLOCK_AHEAD says by how many seconds this process's wall clock is ahead; without it all is right.
`python -m support.ahead status ...` runs a command of workstealing by that clock.
"""

from __future__ import annotations

import os
import sys
import time

_AHEAD = float(os.environ.get("CLOCK_AHEAD", "0"))
_time, _time_ns = time.time, time.time_ns

if _AHEAD:
    time.time = lambda: _time() + _AHEAD
    time.time_ns = lambda: _time_ns() + int(_AHEAD * 1e9)

if __name__ == "__main__":
    from workstealing.cli import main

    sys.exit(main())
