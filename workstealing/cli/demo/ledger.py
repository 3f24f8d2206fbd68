"""What the worker processes write down for the parent: every write, and the recruiter's figures.

Files in the demo's temporary folder, one of each kind for each process, so that nothing is shared
and nothing is lost when a worker ends.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from workstealing.recruiting import Hooks, Outcome, Recruiter
from workstealing.recruiting.slice import OUTCOMES

INTERVAL_SECONDS = 0.25


class WriteLedger:
    """Writes down each field that this process has written, with its deadline.

    Arguments: folder. One write to a file a call, nothing is kept back.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"writes-{os.getpid()}").open("ab", buffering=0)

    def record(self, key: str, deadlines: Mapping[str, int]) -> None:
        """Write down fields of one hash.

        Arguments: key, without spaces; deadlines, of each field in milliseconds.
        """
        lines = (f"{deadline} {field} {key}\n" for field, deadline in deadlines.items())
        self._file.write("".join(lines).encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def last_deadlines(folder: Path) -> dict[tuple[str, str], int]:
    """Return (key, field) -> the deadline in ms of its last write, by any process.

    A field's time to live never changes, so its last write is the one with the latest deadline.
    """
    last: dict[tuple[str, str], int] = {}
    for path in folder.glob("writes-*"):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                deadline, field, key = line.rstrip("\n").split(" ")
                last[key, field] = max(int(deadline), last.get((key, field), 0))
    return last


class FiguresFile(Hooks):
    """A hook that keeps a file with this process's figures, renewed at most four times a second.

    Arguments: folder; recruiter, whose figures they are. `write` at the end makes them exact.
    """

    def __init__(self, folder: Path, recruiter: Recruiter) -> None:
        self._path = folder / f"figures-{os.getpid()}"
        self._recruiter = recruiter
        self._next = 0.0

    def on_enlisted(self, count: int) -> None:  # noqa: ARG002 - the stats say it all
        """Renew the file, unless it is fresh."""
        self._renew()

    def on_outcome(
        self,
        job: str,  # noqa: ARG002 - the stats say it all
        outcome: Outcome,  # noqa: ARG002
        items: int,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
        error: BaseException | None,  # noqa: ARG002
    ) -> None:
        """Renew the file, unless it is fresh."""
        self._renew()

    def write(self) -> None:
        """Write the figures down as they are now."""
        stats = self._recruiter.stats()
        figures: Counter[str] = Counter(enlisted=stats["enlisted"])
        for job in stats["jobs"].values():
            for name in ("recruited", *OUTCOMES, "items"):
                figures[name] += job[name]  # type: ignore[literal-required]
        # Whoever reads at this moment sees the old file or the new one, never a part.
        fresh = self._path.with_name(f"fresh-{self._path.name}")
        fresh.write_text(json.dumps(figures))
        fresh.replace(self._path)

    def _renew(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL_SECONDS
            self.write()


def total_figures(folder: Path) -> Counter[str]:
    """Return the sum of all processes' figures: enlisted, recruited, each outcome, items."""
    total: Counter[str] = Counter()
    for path in folder.glob("figures-*"):
        total.update(json.loads(path.read_text()))
    return total
