"""What browser tests of the dashboard share: hurrying streams, cells, waiting, dead items."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from workstealing.dashboard import Streams
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import Ick


def quick() -> Streams:
    """Return streams with five events a second."""
    return Streams(every=0.2, lasts=60.0)


def cell(page: Any, job: str, heading: str) -> Any:
    """Return the cell of a job below a heading."""
    row = page.locator("#jobs tr", has=page.get_by_text(job, exact=True))
    return row.locator(f'[data-label="{heading}"]')


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so; `what` is said where it never is."""
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def dead_mail(client: Any, *members: Any) -> Ick:
    """Return an Ick whose members are all dead."""
    ick = Ick(client, "dirty:mail")
    ick.add(list(members))
    reaper = IckReaper(ick, lease=0.001, limit=100, max_attempts=1)
    wait_for(lambda: _reap(ick, reaper) == len(members), "the members to die")
    return ick


def _reap(ick: Ick, reaper: IckReaper) -> int:
    ick.reserve(100)
    reaper.perform(Slice(100, 5.0))
    dead: int = ick.stats()["dead_size"]
    return dead
