"""Counts of enlists and recruits: one shape for Redis, accumulators and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.accumulators import Accumulator, AccumulatorParam

from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.slice import OUTCOMES, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping


ENLISTED = "enlisted"
JOBS_NAMED = 1_000
NAME_BYTES = 200
OTHER_JOBS = "_other"
# Whole numbers add up exactly, in Redis and anywhere else.
_MICROSECONDS = "microseconds"


class Counts:
    """Counts by field: "enlisted", and of each job "<figure> <job>", figures without a space.

    Figures: recruited, the outcomes by name, items, microseconds. Of the jobs, the first
    thousand go by their names, of at most 200 bytes, all others together by "_other".
    True once something has been counted.

    Arguments:
        jobs: the names that have been seen, and how they are shown; counts that share them are
            bounded together.
    """

    __slots__ = ("_jobs", "by_field")

    def __init__(self, jobs: dict[str, str] | None = None) -> None:
        self.by_field: Counter[str] = Counter()
        self._jobs = {} if jobs is None else jobs

    def __bool__(self) -> bool:
        return bool(self.by_field)

    @property
    def enlisted(self) -> int:
        """How many callers who enlisted are counted here."""
        return self.by_field[ENLISTED]

    def enlist(self, count: int) -> None:
        """Count callers who enlisted."""
        self.by_field[ENLISTED] += count

    def recruit(self, job: str) -> None:
        """Count a caller who was recruited for the job."""
        self.by_field[f"recruited {self._name(job)}"] += 1

    def outcome(self, job: str, outcome: Outcome, items: int, seconds: float) -> None:
        """Count what became of a recruit."""
        name = self._name(job)
        self.by_field[f"{outcome.value} {name}"] += 1
        if items:
            self.by_field[f"items {name}"] += items
        if seconds:
            self.by_field[f"{_MICROSECONDS} {name}"] += round(seconds * 1e6)

    def add(self, others: Mapping[str, int]) -> None:
        """Add counts by field."""
        self.by_field.update(others)

    def _name(self, job: str) -> str:
        shown = self._jobs.get(job)
        if shown is None:
            if len(self._jobs) >= JOBS_NAMED:
                return OTHER_JOBS
            # A name that is no text (a file's, say) could not be sent, nor the counts beside it.
            text = job.encode(errors="backslashreplace")[:NAME_BYTES]
            shown = self._jobs[job] = text.decode(errors="ignore")
        return shown


class TakingHooks(Hooks):
    """Hooks that count the outcomes of recruits until the counts are taken."""

    def __init__(self) -> None:
        self.counts = Counts()

    def take(self) -> Mapping[str, int]:
        """Return what was counted since the last call, by field."""
        taken, self.counts = self.counts, Counts()
        return taken.by_field

    def on_recruited(self, job: str) -> None:
        """Count a recruit."""
        self.counts.recruit(job)

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,  # noqa: ARG002 - the hook's signature
    ) -> None:
        """Count what became of a recruit."""
        self.counts.outcome(job, outcome, items, seconds)


@dataclass(frozen=True, slots=True)
class JobTotals:
    """The figures of one job: `recruited` is the sum of the outcomes after it.

    Fields: counts of recruits and of their outcomes; items handled; seconds that all slices took.
    """

    recruited: int = 0
    worked: int = 0
    idle: int = 0
    aborted: int = 0
    failed: int = 0
    out_of_time: int = 0
    skipped: int = 0
    items: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Recruits:
    """The figures of a Spark application: how many enlisted, and the totals of each job by name."""

    enlisted: int
    jobs: dict[str, JobTotals]


def recruits_of(counts: Mapping[str, int]) -> Recruits:
    """Return counts by field as totals by job; a field of an unknown figure is passed over."""
    figures: dict[str, dict[str, int]] = {}
    for field, count in counts.items():
        figure, separator, job = field.partition(" ")
        if separator:
            figures.setdefault(job, {})[figure] = count
    return Recruits(
        counts.get(ENLISTED, 0), {job: _totals(figures[job]) for job in sorted(figures)}
    )


def _totals(figures: Mapping[str, int]) -> JobTotals:
    return JobTotals(
        recruited=figures.get("recruited", 0),
        **{outcome: figures.get(outcome, 0) for outcome in OUTCOMES},
        items=figures.get("items", 0),
        seconds=figures.get(_MICROSECONDS, 0) / 1e6,
    )


class CountsParam(AccumulatorParam[dict[str, int]]):
    """Says how two dictionaries of counts add up."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002 - PySpark's signature
        """Return no counts."""
        return {}

    def addInPlace(  # noqa: N802 - PySpark's name
        self, value1: dict[str, int], value2: dict[str, int]
    ) -> dict[str, int]:
        """Return the sums by field."""
        return dict(Counter(value1) + Counter(value2))


def add_in_task(accumulator: int, counts: Mapping[str, int]) -> None:
    """Add counts to the driver's accumulator of that number, from inside a task.

    Spark's worker sends what is registered by number when the task has succeeded. The number goes
    with the other plain settings, so no accumulator needs to be pickled.
    """
    mine: Accumulator[dict[str, int]] = Accumulator(accumulator, {}, CountsParam())
    mine.add(dict(counts))
