"""The difference between a tracked set and its table, by sample."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.budget import Budget
from workstealing.store.job_client import JobClient
from workstealing.structures.tracked_set.layout import TrackedSetNames, id_bytes, id_text
from workstealing.structures.tracked_set.sources import Source
from workstealing.structures.tracked_set.sub_sets import ask_sub_sets


@dataclass(frozen=True, slots=True)
class Share:
    """A share that was found by sample, with its confidence interval.

    Fields: found: how many of `sampled` matched; low and high: the ends of the interval, from 0 to
    1. An empty sample says nothing: its interval is 0 to 1.
    """

    found: int
    sampled: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share in the sample; 0.0 for an empty sample."""
        return self.found / self.sampled if self.sampled else 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The difference between set and table.

    Fields: stale: the share of tracked ids without work; missing: the share of rows with work whose
    id is not tracked; confidence: of both intervals.
    """

    stale: Share
    missing: Share
    confidence: float


def wilson(found: int, sampled: int, confidence: float) -> Share:
    """Return a share with its Wilson score interval (E. B. Wilson, 1927)."""
    if not sampled:
        return Share(0, 0, 0.0, 1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = found / sampled, z * z / sampled
    middle = share + weight / 2
    half = z * sqrt(share * (1 - share) / sampled + weight / (4 * sampled))
    low, high = (middle - half) / (1 + weight), (middle + half) / (1 + weight)
    return Share(
        found, sampled, max(0.0, low) if found else 0.0, min(1.0, high) if found < sampled else 1.0
    )


def measure(
    job_client: JobClient,
    names: TrackedSetNames,
    source: Source,
    *,
    sample: int,
    confidence: float,
    seconds: float,
) -> Drift:
    """Measure both directions; see `TrackedSet.drift`. Raises: as that does."""
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise ConfigurationError(f"give a sample of at least 1, not {sample!r}")
    is_number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    if not is_number or not 0 < confidence < 1:
        raise ConfigurationError(f"give a confidence between 0 and 1, not {confidence!r}")
    draw: Callable[[int, float], list[str]] | None = getattr(source, "random_ids", None)
    if draw is None:
        raise ConfigurationError(
            "the source cannot draw ids at random: give it a method random_ids(n, seconds)"
        )
    warm_up: Callable[[float], None] = getattr(source, "warm_up", lambda _: None)
    budget = Budget.whole(seconds)
    warm_up(seconds)
    tracked = draw_tracked(job_client, names, sample, budget)
    asked = list({id_text(member) for member in tracked})
    work = set(source.with_work(asked, _left(budget))) if asked else set()
    stale = sum(id_text(member) not in work for member in tracked)

    rows = [id_bytes(each) for each in draw(sample, _left(budget))]
    present = _present(job_client, names, rows, budget)
    missing = sum(member not in present for member in rows)
    return Drift(
        wilson(stale, len(tracked), confidence), wilson(missing, len(rows), confidence), confidence
    )


def _left(budget: Budget) -> float:
    assert budget.deadline is not None
    return max(0.0, budget.deadline - budget.clock.monotonic())


def sizes_of(job_client: JobClient, names: TrackedSetNames, budget: Budget) -> dict[int, int]:
    """Return the number of ids in each sub-set. One round trip to each node."""
    every = range(names.sub_sets)
    looks = {each: ("SCARD", names.keys(each)[0]) for each in every}
    return ask_sub_sets(job_client, names, looks, budget)


def draw_tracked(
    job_client: JobClient, names: TrackedSetNames, sample: int, budget: Budget
) -> list[bytes]:
    """Return members drawn with repetition, each member as likely as any other."""
    sizes = sizes_of(job_client, names, budget)
    if not any(sizes.values()):
        return []
    drawn = Counter(random.choices(list(sizes), weights=list(sizes.values()), k=sample))
    commands: dict[int, tuple[Any, ...]] = {
        # A negative count draws with repetition.
        each: ("SRANDMEMBER", names.keys(each)[0], -count)
        for each, count in drawn.items()
    }
    replies = ask_sub_sets(job_client, names, commands, budget)
    return [member for members in replies.values() for member in members]


def _present(
    job_client: JobClient, names: TrackedSetNames, members: list[bytes], budget: Budget
) -> set[bytes]:
    groups = names.grouped(set(members))
    commands: dict[int, tuple[Any, ...]] = {
        each: ("SMISMEMBER", names.keys(each)[0], *group) for each, group in groups.items()
    }
    replies = ask_sub_sets(job_client, names, commands, budget)
    return {
        member
        for each, group in groups.items()
        for member, is_member in zip(group, replies[each], strict=True)
        if is_member
    }
