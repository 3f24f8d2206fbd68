"""The account that the story gives of itself: a line for each step, and a table of facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from archive.proof import Claim
from archive.telemetry import StatsDServer
from workstealing.errors import WorkStealingError

SIDES = ("web", "spark")
JOBS = {
    "hash_field_expiry": "hash fields expired",
    "ick_reaper": "reservations returned",
    "key_expiry": "keys of dead locks removed",
    "track_queued": "ids reconciled: tracked",
    "untrack_done": "ids reconciled: untracked",
    "mark_forgotten": "ids marked again",
}
# A busy machine is no broken one. Nothing takes so long, and nothing sleeps for it.
PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.05


class Account:
    """Says what happens, with the seconds since the beginning.

    Attributes: killed: what has been killed, in the order of events.
    """

    def __init__(self) -> None:
        self.killed: list[str] = []
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a step."""
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Wait until something is so, and say it. Raises: WorkStealingError if it never is."""
        if not settled(until):
            raise WorkStealingError(f"waited {PATIENCE_SECONDS:.0f} s in vain for: {what}")
        self.say(what)

    def judge(self, claims: Sequence[Claim]) -> bool:
        """Print claims with what became of them; return whether all hold."""
        for claim in claims:
            print(f"         {'FAILED' if claim.lost else 'proved'}: {claim.text}")
        return not any(claim.lost for claim in claims)

    def table(
        self, visitors: Mapping[str, int], indexed: int, statsd: StatsDServer, lost: int
    ) -> None:
        """Print the facts.

        Arguments:
            visitors: their answers, by what they were.
            indexed: how many pages the index has.
            statsd: what the recruits of both sides have told it. What a killed process had not
                told yet is missing, so these are the least that was done.
            lost: how much was lost.
        """
        facts: list[tuple[str, object]] = [
            ("requests", sum(visitors.values())),
            ("hits, which enlist", visitors["hit"]),
            ("pages captured", visitors["captured"]),
            ("cut off by the kill", visitors["cut off"]),
            ("documents indexed", indexed),
            ("recruits", _by_side(statsd, "recruited")),
            *((text, _by_side(statsd, "items", job)) for job, text in JOBS.items()),
            ("killed", f"{len(self.killed)} ({', '.join(self.killed)})"),
            ("lost", lost),
        ]
        print()
        for name, value in facts:
            print(f"{name:>28}  {value}")


def settled(until: Callable[[], object]) -> bool:
    """Wait until something is so; return False if it never was."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not until():
        if time.monotonic() > give_up:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def served(statsd: StatsDServer) -> bool:
    """Say whether each job has had recruits of both sides."""
    return all(statsd.of(side, "recruited", job) for side in SIDES for job in JOBS)


def _by_side(statsd: StatsDServer, what: str, job: str = "") -> str:
    counts = {side: statsd.of(side, what, job) for side in SIDES}
    said = ", ".join(f"{number} {side}" for side, number in counts.items())
    return f"{sum(counts.values())} ({said})"
