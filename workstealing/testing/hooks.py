"""Hooks that remember what they were told."""

from __future__ import annotations

from dataclasses import dataclass

from workstealing.recruiting import Hooks, Outcome


@dataclass(frozen=True)
class OutcomeEvent:
    """One call of on_outcome: its arguments, by name."""

    job: str
    outcome: Outcome
    items: int
    seconds: float
    error: BaseException | None


class RecordingHooks(Hooks):
    """Hooks that remember every call, in order.

    `enlisted` holds the counts of on_enlisted, `recruited` the jobs of on_recruited, `outcomes` an
    OutcomeEvent for each on_outcome, `observed` the arguments of each on_observed.
    """

    def __init__(self) -> None:
        self.enlisted: list[int] = []
        self.recruited: list[str] = []
        self.outcomes: list[OutcomeEvent] = []
        self.observed: list[tuple[str, float | None, int | None]] = []

    def on_enlisted(self, count: int) -> None:
        """Remember the count."""
        self.enlisted.append(count)

    def on_recruited(self, job: str) -> None:
        """Remember the job."""
        self.recruited.append(job)

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Remember the outcome."""
        self.outcomes.append(OutcomeEvent(job, outcome, items, seconds, error))

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Remember the arguments."""
        self.observed.append((job, oldest_seconds, backlog))

    def clear(self) -> None:
        """Forget everything."""
        self.enlisted.clear()
        self.recruited.clear()
        self.outcomes.clear()
        self.observed.clear()
