"""The lottery: the installed jobs with their shares of the callers, and the draw among them.

The number of callers to dismiss before the next recruit has a geometric distribution, so one draw
serves all of them. This is the same lottery as one draw for each caller, at a fraction of the cost.
"""

from __future__ import annotations

import math
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import DuplicateJobError, RateError, UnknownJobError
from workstealing.recruiting.adaptive import Adaptive, Controller
from workstealing.recruiting.breakers import JobBreakers
from workstealing.recruiting.checks import checked_rate
from workstealing.recruiting.job import Job
from workstealing.recruiting.slice import OUTCOMES, Outcome, SliceLength
from workstealing.recruiting.tally import Tally

DISABLED_VARIABLE = "WORKSTEALING_DISABLED"
_OFF = frozenset({"", "0", "false", "no", "off"})
NEVER = sys.maxsize
_ROUNDING = 1e-9
_NAMED_IN_ERRORS = 20
MOST_MEASURED = 20
"""The most figures of a job's own that are kept and shown: those whose names came first."""


def is_disabled() -> bool:
    """Say whether WORKSTEALING_DISABLED asks every enlist to be a dismissal."""
    return os.environ.get(DISABLED_VARIABLE, "").strip().lower() not in _OFF


class Installed:
    """A job in one recruiter: its rate, the length of its slices, its figures.

    Arguments:
        rate: a number or an Adaptive.
        seconds: the length of its slices, None: the recruiter's.
        breaker: it holds it back after faults.
        longest: the longest that its slices may become, in seconds, None: as of `longest_for`.
        clock: the recruiter's.
    """

    __slots__ = (
        "_clock",
        "backlog",
        "breaker",
        "controller",
        "given",
        "items",
        "job",
        "longest",
        "measured",
        "name",
        "observed_at",
        "oldest_seconds",
        "outcomes",
        "paused",
        "rate",
        "seconds",
        "slice_length",
        "spent",
        "tally",
    )

    def __init__(
        self,
        job: Job,
        rate: float | Adaptive,
        seconds: float | None,
        breaker: JobBreakers,
        *,
        longest: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.job = job
        self.name = job.name
        self.given = rate
        self.seconds = seconds
        self.breaker = breaker
        self.longest = longest
        self.paused = False
        self._clock = clock
        self.reset()

    def give(self, rate: float | Adaptive) -> None:
        """Take another rate; an adaptive rate begins anew."""
        self.given = rate
        self.controller: Controller | None = None
        if isinstance(rate, Adaptive):
            self.controller = Controller(rate, self.job.limit, self._clock)
            self.rate = rate.start
        else:
            self.rate = rate

    @property
    def limit(self) -> int:
        """The most items of the next slice."""
        return self.job.limit if self.controller is None else self.controller.limit

    def note_measured(self, figures: Mapping[str, float], at: float) -> None:
        """Keep the figures that a slice has measured, with their time: a job's first few names."""
        for what, value in figures.items():
            if what in self.measured or len(self.measured) < MOST_MEASURED:
                self.measured[what] = (value, at)

    def reset(self) -> None:
        """Set every figure to zero."""
        self.give(self.given)
        self.slice_length = SliceLength(self.longest)
        self.tally = Tally()
        self.items = 0
        self.spent = 0.0
        # The report of the last slice that looked, and its time (monotonic seconds).
        self.oldest_seconds: float | None = None
        self.backlog: int | None = None
        self.observed_at: float | None = None
        # The last figures of the job's own, each with its time (monotonic seconds).
        self.measured: dict[str, tuple[float, float]] = {}
        self.outcomes: dict[Outcome, int] = {Outcome(each): 0 for each in OUTCOMES}


def highest(rate: float | Adaptive) -> float:
    """Return a rate's part of the sum of all rates: an adaptive one counts its ceiling."""
    return rate.ceiling if isinstance(rate, Adaptive) else rate


class Draw:
    """The jobs' rates at one moment, ready for draws. A `Draw` never changes. O(log jobs)."""

    __slots__ = ("_bounds", "_jobs", "_rate")

    def __init__(self, jobs: Iterable[Installed]) -> None:
        # A rate is 0 while a daily cap holds it.
        self._jobs = tuple(installed for installed in jobs if installed.rate > 0.0)
        self._bounds = tuple(accumulate(installed.rate for installed in self._jobs))
        self._rate = min(1.0, self._bounds[-1]) if self._bounds else 0.0

    def next_recruit(self, random: Callable[[], float]) -> tuple[int, Installed | None]:
        """Draw the next recruit.

        Arguments:
            random: it returns numbers in [0, 1); 1.0 stands for no job.

        `random` is called twice: first for the dismissals, then for the job. Returns: the number of
        callers to dismiss, and the job for which the one after them is recruited; None dismisses
        that one, too, and the next draw follows: (NEVER, None) without a job, (0, None) for 1.0.
        """
        if not self._jobs:
            return NEVER, None
        first, second = random(), random()
        if first >= 1.0:
            # Rounding may make one of many numbers a 1.0: that must not be the end of all work.
            return 0, None
        job = bisect_right(self._bounds, second * self._bounds[-1])
        # The product may round up to the last bound.
        return self._dismissals(first), self._jobs[min(job, len(self._jobs) - 1)]

    def _dismissals(self, drawn: float) -> int:
        if self._rate >= 1.0:
            return 0
        # log1p keeps its digits at a tiny rate. A rate below the smallest normal number makes this
        # infinite.
        dismissals = math.log1p(-drawn) / math.log1p(-self._rate)
        return int(dismissals) if dismissals < NEVER else NEVER


class Roster:
    """The installed jobs of one recruiter by name. A call that fails changes nothing."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[str, Installed] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[Installed]:
        """Return every installed job, in the order of installation."""
        return list(self._jobs.values())

    def get(self, name: str) -> Installed:
        """Return the installed job of that name.

        Raises: UnknownJobError, which names the installed jobs.
        """
        try:
            return self._jobs[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, self._jobs)) or "none"
            raise UnknownJobError(f"no job {name!r} is installed; installed: {known}") from None

    def check_new(self, name: str, rate: object) -> float | Adaptive:
        """Return the rate if a job of that name and rate may be installed, a number as a float.

        Raises: DuplicateJobError; RateError if the rate is outside (0, 1] or the sum exceeds 1.
        """
        given = rate if isinstance(rate, Adaptive) else checked_rate(rate, name)
        share = highest(given)
        if name in self._jobs:
            raise DuplicateJobError(
                f"a job {name!r} is installed already, with rate {self._jobs[name].rate:g}: give"
                f" the new one, with rate {share:g}, another name where it is made, as in"
                f" name={f'{name}-2'!r}, or uninstall({name!r}) first"
            )
        self._check_sum(name, share)
        return given

    def add(self, installed: Installed) -> None:
        """Add a job that check_new() has accepted."""
        self._jobs[installed.name] = installed

    def remove(self, name: str) -> None:
        """Remove a job.

        Raises: UnknownJobError.
        """
        del self._jobs[self.get(name).name]

    def set_rate(self, name: str, rate: object) -> None:
        """Change a job's rate.

        Raises: UnknownJobError; RateError if the rate is outside (0, 1] or the sum exceeds 1.
        """
        installed = self.get(name)
        given = rate if isinstance(rate, Adaptive) else checked_rate(rate, name)
        self._check_sum(name, highest(given))
        installed.give(given)

    def _check_sum(self, name: str, share: float) -> None:
        rates = {each.name: highest(each.given) for each in self._jobs.values()} | {name: share}
        total = math.fsum(rates.values())
        if total <= 1.0 + _ROUNDING:
            return
        # The job at fault first, so that a long list does not hide it.
        others = sorted((each for each in rates if each != name), key=rates.__getitem__)[::-1]
        shown = [name, *others][:_NAMED_IN_ERRORS]
        listed = ", ".join(f"{each!r} {rates[each]:g}" for each in shown)
        more = f" and {len(rates) - len(shown)} more" if len(rates) > len(shown) else ""
        raise RateError(
            f"job {name!r} at rate {share:g} would raise the sum of all rates to {total:g}, above"
            f" 1: {listed}{more}; lower one of them"
        )
