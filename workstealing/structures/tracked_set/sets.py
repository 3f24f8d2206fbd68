"""Tracked sets: the ids that have work, kept in step with a database table.

Their drift, the difference between a set and its table, is estimated by a sample.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any, Generic

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.budget import Budget
from workstealing.store.fleet import placed
from workstealing.store.job_client import (
    AsyncClient,
    BlockingClient,
    ClientT,
    JobClient,
    job_client_for,
)
from workstealing.store.operations import (
    Asynchronous,
    Blocking,
    Operation,
    Steps,
    command,
    operation,
)
from workstealing.store.pipeline import AsyncPipeline, BlockingPipeline
from workstealing.store.scripts import load
from workstealing.structures.access import OPENING_SCRIPTS, QUEUED, Access
from workstealing.structures.layout import checked_policies
from workstealing.structures.structure import FAULT, NOTE, OK, Check, Structure
from workstealing.structures.tracked_set.layout import (
    Id,
    TrackedSetNames,
    id_bytes,
    id_text,
    open_layout,
    read_layout,
)
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
        """The share of the sample that matched; 0.0 for an empty sample."""
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


SCRIPTS = "tracked_set/"
SUB_SETS = 256
IDS_A_CALL = 1000


class _TrackedSetOperations:
    """The operations that the blocking, the asyncio and the pipeline form share."""

    names: TrackedSetNames
    is_open: bool
    allow_eviction: frozenset[str]

    @operation
    def is_tracked(self, id: Id) -> Steps[bool]:  # noqa: A002 - the word of the field
        """Say whether an id is tracked.

        Raises: ConfigurationError for an id that is no text, int or bytes; LayoutError. One
        SISMEMBER, one round trip.
        """
        member = id_bytes(id)
        ids, _ = self.names.keys(self.names.sub_set_of(member))
        return self._asking(command("SISMEMBER", ids, member, read=bool))

    @operation
    def are_tracked(self, ids: Iterable[Id]) -> Steps[list[bool]]:
        """Say for each id whether it is tracked.

        Returns: a list of bools, in the order of the ids. Raises: as `is_tracked`. One SMISMEMBER
        for each of the ids' sub-sets, all in one round trip (on a cluster, one to each node).
        """
        return self._looking(_members(ids))

    @operation
    def track(self, ids: Id | Iterable[Id]) -> Steps[int]:
        """Note that ids have work; call it after that work is committed in the database.

        Returns: how many were not tracked before. Raises: as `is_tracked`; OutOfMemoryError if the
        server is full. Each sub-set's ids (1,000 at a time) are added atomically, and all are sent
        in one round trip (on a cluster, one to each node).
        """
        return self._changing("track", _members(ids, or_one=True))

    @operation
    def untrack(self, ids: Id | Iterable[Id]) -> Steps[int]:
        """Note that ids have no more work; without this call `UntrackDone` finds out.

        Returns: how many were tracked before. Raises: as `is_tracked`. Round trips as of `track`.
        """
        return self._changing("untrack", _members(ids, or_one=True))

    @operation
    def count(self) -> Steps[int]:
        """Count the tracked ids.

        Raises: LayoutError. One SCARD for each sub-set, in one round trip to each node.
        """
        return self._counting()

    def _counting(self) -> Steps[int]:
        every = range(self.names.sub_sets)
        sizes = yield from self._asking(
            [command("SCARD", self.names.keys(each)[0]) for each in every]
        )
        return sum(sizes)

    def _looking(self, members: list[bytes]) -> Steps[list[bool]]:
        groups = self.names.grouped(dict.fromkeys(members))
        replies = yield from self._asking(
            [
                command("SMISMEMBER", self.names.keys(sub_set)[0], *group)
                for sub_set, group in groups.items()
            ]
        )
        known: dict[bytes, bool] = {}
        for group, reply in zip(groups.values(), replies, strict=True):
            known.update(zip(group, map(bool, reply), strict=True))
        return [known[member] for member in members]

    def _changing(self, script: str, members: list[bytes]) -> Steps[int]:
        text = load(SCRIPTS + script)
        if not self.is_open:
            # The layout says which mark the sub-sets bear.
            yield from self.opening_steps()
        self.names.require_writable()
        counts = yield from self._asking(
            [
                Operation(
                    text,
                    self.names.keys(sub_set),
                    (self.names.mark, *group[start : start + IDS_A_CALL]),
                    int,
                )
                for sub_set, group in self.names.grouped(members).items()
                for start in range(0, len(group), IDS_A_CALL)
            ]
        )
        return sum(counts)

    def _asking(self, step: Operation | list[Operation]) -> Steps[Any]:
        """Check the layout if needed, then yield a step. Raises: LayoutError for a foreign key."""
        if not self.is_open:
            yield from self.opening_steps()
        with self.names.asked():
            return (yield step)

    def opening_steps(self) -> Steps[None]:
        """Check the layout, or write it down, once; `open` runs these steps."""
        if not self.is_open:
            yield from open_layout(self.names, self.allow_eviction)
            self.is_open = True


class _EitherTrackedSet(_TrackedSetOperations, Structure, Generic[ClientT]):
    """The part that both clients' forms share: the source, and whether the layout was checked."""

    kind = "tracked set"
    access = Access(
        keys=("ws:tracked:layout:NAME", "ws:tracked:cursor:NAME", "{*}:ws:tracked:*:NAME"),
        scripts=("tracked_set", *OPENING_SCRIPTS),
        commands=QUEUED
        | {"GET", "SET", "DEL", "HMGET", "HGETALL", "HSET", "SADD", "SREM", "SCARD"}
        | {"SISMEMBER", "SMISMEMBER", "SRANDMEMBER"},
    )

    def __init__(
        self,
        client: ClientT,
        key: str | bytes,
        source: Source | None = None,
        *,
        sub_sets: int = SUB_SETS,
        allow_eviction: Collection[str] = (),
    ) -> None:
        self.allow_eviction = checked_policies(allow_eviction)
        self.names = TrackedSetNames(key, sub_sets)
        self.name = self.names.key.decode(errors="backslashreplace")
        self.client: Any = placed(client, key)
        self.job_client = job_client_for(self, self.client)
        self.source = source
        self.is_open = False

    @operation
    def open(self) -> Steps[None]:
        """Check the layout, or write it down, once.

        Raises: LayoutError; EvictionPolicyError. Two round trips the first time, then none.
        """
        return self.opening_steps()

    @operation
    def resume(self) -> Steps[bool]:
        """Let `UntrackDone` go on after it has paused itself, in all processes.

        Returns: whether it had. One round trip.
        """
        return self._resuming()

    def _resuming(self) -> Steps[bool]:
        return bool((yield command("DEL", self.names.brake)))

    def halt_steps(self) -> Steps[str | None]:
        """Say whether `UntrackDone` has paused itself. One round trip."""
        found = yield command("GET", self.names.brake)
        return None if found is None else halted(self.name)

    def require_source(self) -> Source:
        """Return the source, or raise a ConfigurationError if none was given."""
        if self.source is None:
            raise ConfigurationError(
                f"the tracked set {self.names.key!r} has no source: pass one as source="
            )
        return self.source

    def size_steps(self) -> Steps[int | None]:
        """Count the tracked ids; nothing is written. One round trip to each node."""
        every = range(self.names.sub_sets)
        with self.names.asked():
            sizes = yield [command("SCARD", self.names.keys(each)[0]) for each in every]
        return sum(sizes)

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Check that the layout exists and fits this process; nothing is written."""
        try:
            found = yield from read_layout(self.names)
        except LayoutError as error:
            return (Check("", FAULT, f"tracked set {self.name}: {error}"),)
        if not found:
            return (Check("", NOTE, f"tracked set {self.name}: nothing has been written yet"),)
        return (Check("", OK, f"tracked set {self.name}: {self.names.sub_sets} sub-sets"),)

    def _drift(self, sample: int, confidence: float, seconds: Duration) -> Drift:
        return measure(
            self.job_client,
            self.names,
            self.require_source(),
            sample=sample,
            confidence=confidence,
            seconds=seconds_of(seconds, "seconds"),
        )


class TrackedSet(_EitherTrackedSet[BlockingClient], Blocking):
    """A set of ids that have work, which two jobs keep in step with a database table.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncTrackedSet` takes an asyncio client).
        key: its name.
        source: asks the table (see `Source`); only the jobs and `drift` need it.
        sub_sets: the number of sub-sets of the ids, so that a busy application does not abort every
            removal (part of the layout: the first use fixes it).
        allow_eviction: maxmemory policies to accept although they may evict a sub-set.

    Ids are text, ints or bytes, and are stored as text: 17 and "17" are the same id. Every method
    raises LayoutError for foreign data, and nothing is changed then; and redis-py's errors. The
    first call takes two more round trips, to check the layout.

    Source: Jim Nelson's talk on work stealing at the Internet Archive.
    """

    def pipeline(self, transaction: bool = True) -> TrackedSetPipeline:
        """Return a pipeline; its `execute` sends operations and the user's own commands."""
        return TrackedSetPipeline(self, transaction)

    def drift(
        self, sample: int = 400, *, confidence: float = 0.95, seconds: Duration = 5.0
    ) -> Drift:
        """Estimate by sample the difference between set and table, in both directions.

        Arguments:
            sample: the number of tracked ids, and of rows with work, to look at.
            confidence: of the intervals.
            seconds: the most time.

        Raises: ConfigurationError without a source, or if the source cannot draw rows at random. A
        few round trips, and two questions to the database; too slow for a slice.
        """
        return self._drift(sample, confidence, seconds)


class AsyncTrackedSet(_EitherTrackedSet[AsyncClient], Asynchronous):
    """A `TrackedSet` on a redis.asyncio client: every method is awaited."""

    def pipeline(self, transaction: bool = True) -> AsyncTrackedSetPipeline:
        """Return a pipeline whose `execute` is awaited; see `TrackedSet.pipeline`."""
        return AsyncTrackedSetPipeline(self, transaction)

    async def drift(
        self, sample: int = 400, *, confidence: float = 0.95, seconds: Duration = 5.0
    ) -> Drift:
        """Run `TrackedSet.drift` in a thread."""
        self.require_source()
        return await asyncio.to_thread(self._drift, sample, confidence, seconds)


class TrackedSetPipeline(_TrackedSetOperations, BlockingPipeline):
    """The methods of a `TrackedSet`, and the user's own commands, sent together by `execute`.

    On a cluster only commands of one sub-set share a slot, so redis-py sends no MULTI there.
    """

    is_open = True

    def __init__(self, tracked: TrackedSet, transaction: bool) -> None:
        super().__init__(tracked.client, transaction)
        self._tracked = tracked
        self.names = tracked.names

    def _opening(self) -> Steps[None]:
        return self._tracked.opening_steps()


class AsyncTrackedSetPipeline(_TrackedSetOperations, AsyncPipeline):
    """A `TrackedSetPipeline` whose `execute` is awaited."""

    is_open = True

    def __init__(self, tracked: AsyncTrackedSet, transaction: bool) -> None:
        super().__init__(tracked.client, transaction)
        self._tracked = tracked
        self.names = tracked.names

    def _opening(self) -> Steps[None]:
        return self._tracked.opening_steps()


def halted(name: str) -> str:
    """Return the sentence of an `UntrackDone` that has paused itself."""
    return (
        f"UntrackDone of the tracked set {name!r} has paused itself, because the source knew work"
        " of none of the last ids: see whether it asks the right table, and spells ids as the"
        " application does; then call resume() of the TrackedSet"
    )


def checked_tracked(tracked: object) -> TrackedSet | AsyncTrackedSet:
    """Return a tracked set that has a source. Raises: ConfigurationError for anything else."""
    if not isinstance(tracked, TrackedSet | AsyncTrackedSet):
        raise ConfigurationError(
            f"expected a TrackedSet, not {type(tracked).__name__}: give TrackedSet(client, key,"
            " source)"
        )
    tracked.require_source()
    return tracked


def _members(ids: Id | Iterable[Id], *, or_one: bool = False) -> list[bytes]:
    if isinstance(ids, str | bytes | int):
        if or_one:
            return [id_bytes(ids)]
        raise ConfigurationError(f"give several ids as a list, not {ids!r}")
    if not isinstance(ids, Iterable):
        raise ConfigurationError(
            f"{ids!r} is neither an id nor several: give text, an int or bytes, or a list of these"
        )
    return [id_bytes(each) for each in ids]
