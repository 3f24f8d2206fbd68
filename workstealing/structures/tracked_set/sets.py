"""Tracked sets: which ids have work, kept beside the database table that knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import (
    Operation,
    Plan,
    as_layout_error,
    drive,
    drive_async,
    run,
    run_async,
)
from workstealing.store.pipeline import (
    AsyncPlanPipeline,
    BlockingPlanPipeline,
    Filling,
    checked_results,
)
from workstealing.store.scripts import load
from workstealing.store.twin import AsyncClient, BlockingClient, ClientT, Twin, twin_for
from workstealing.structures.sources import Source
from workstealing.structures.tracked_set.drift import Drift, measure
from workstealing.structures.tracked_set.layout import Id, Names, id_bytes, open_layout

SUB_SETS = 256
IDS_A_CALL = 1000
_OPERATIONS_A_PIPELINE = 512


# What a call gives back: the result, something to await, or the pipeline.
_BoolT = TypeVar("_BoolT")
_BoolsT = TypeVar("_BoolsT")
_IntT = TypeVar("_IntT")


class _Reading(Operation):
    """One of Redis's own reading commands; its arguments are the whole command."""

    __slots__ = ()

    def __init__(self, *command: Any) -> None:
        super().__init__(None, (), command)


class _TrackedCommands(Generic[_BoolT, _BoolsT, _IntT]):
    """What the blocking, the asyncio and the pipeline form have in common."""

    names: Names

    def _perform(self, plan: Plan) -> Any:
        raise NotImplementedError

    def is_tracked(self, id: Id) -> _BoolT:  # noqa: A002 - the word of the field
        """Say whether an id is tracked. Returns: a bool. One SISMEMBER, one round trip."""
        member = id_bytes(id)
        ids, _ = self.names.keys(self.names.sub_set_of(member))
        found: _BoolT = self._perform(
            Plan((_Reading("SISMEMBER", ids, member),), lambda replies: bool(replies[0]))
        )
        return found

    def are_tracked(self, ids: Iterable[Id]) -> _BoolsT:
        """Say of each id whether it is tracked.

        Returns: a list of bools, in the order of the ids. One SMISMEMBER for each sub-set
        concerned, all in one round trip (on a cluster one to each node).
        """
        members = _members(ids)
        groups = self.names.grouped(dict.fromkeys(members))

        def read(replies: list[Any]) -> list[bool]:
            known: dict[bytes, bool] = {}
            for group, reply in zip(groups.values(), replies, strict=True):
                known.update(zip(group, map(bool, reply), strict=True))
            return [known[member] for member in members]

        found: _BoolsT = self._perform(
            Plan(
                tuple(
                    _Reading("SMISMEMBER", self.names.keys(sub_set)[0], *group)
                    for sub_set, group in groups.items()
                ),
                read,
            )
        )
        return found

    def track(self, ids: Id | Iterable[Id]) -> _IntT:
        """Note that ids have work; call it once that work is committed in the database.

        Returns: how many were not tracked before. Each sub-set's ids (1,000 at a time) are added
        atomically; all go in one round trip (on a cluster one to each node).
        """
        return self._change("tracked_set/track", ids)

    def untrack(self, ids: Id | Iterable[Id]) -> _IntT:
        """Note that ids have no work any more; without this call `UntrackDone` finds out.

        Returns: how many were tracked before. Round trips as of `track`.
        """
        return self._change("tracked_set/untrack", ids)

    def count(self) -> _IntT:
        """Count the tracked ids. One SCARD for each sub-set, in one round trip to each node."""
        sub_sets = range(self.names.sub_sets)
        counted: _IntT = self._perform(
            Plan(tuple(_Reading("SCARD", self.names.keys(each)[0]) for each in sub_sets), sum)
        )
        return counted

    def _change(self, script: str, ids: Id | Iterable[Id]) -> _IntT:
        single = isinstance(ids, str | int | bytes)
        members = _members((ids,) if single else ids)  # type: ignore[arg-type]
        operations = tuple(
            Operation(
                load(script),
                self.names.keys(sub_set),
                (self.names.mark, *group[start : start + IDS_A_CALL]),
                int,
            )
            for sub_set, group in self.names.grouped(members).items()
            for start in range(0, len(group), IDS_A_CALL)
        )
        changed: _IntT = self._perform(Plan(operations, sum))
        return changed


class _Opened(Generic[ClientT]):
    """What both clients' forms share: the names, the source, and whether the layout was seen."""

    def __init__(
        self,
        client: ClientT,
        key: str | bytes,
        source: Source | None = None,
        *,
        sub_sets: int = SUB_SETS,
        allow_eviction: Collection[str] = (),
    ) -> None:
        if isinstance(allow_eviction, str):
            raise ConfigurationError(
                f"allow_eviction takes a list of policies: give [{allow_eviction!r}]"
            )
        self.names = Names(key, sub_sets)
        self.client: Any = client
        self.twin: Twin = twin_for(self, client)
        self.source = source
        self.allow_eviction = frozenset(allow_eviction)
        self.is_open = False

    def require_source(self) -> Source:
        """Return the source, or raise a ConfigurationError if none was given."""
        if self.source is None:
            raise ConfigurationError(
                f"the tracked set {self.names.key!r} has no source: pass one as source="
            )
        return self.source


class TrackedSet(_Opened[BlockingClient], _TrackedCommands[bool, list[bool], int]):
    """Which ids have work: a set in Redis that two jobs keep in step with a database table.

    Arguments: client: a redis.Redis or redis.RedisCluster (`AsyncTrackedSet` takes an asyncio
    client); key: its name; source: what answers for the table (see `Source`), needed by
    the jobs and `drift` only; sub_sets: over how many sub-sets the ids are spread, so that a busy
    application does not abort every removal (part of the layout: fixed by the first use);
    allow_eviction: maxmemory policies that are accepted although they may evict a sub-set.

    Ids are text, ints or bytes, and are stored as text: 17 and "17" are the same id. Errors of
    every method: LayoutError for foreign data, in which case nothing was changed; those of
    redis-py. The first call takes two more round trips to check the layout.

    Source: Jim Nelson's talk on work stealing at the Internet Archive.
    """

    _is_async_client: Literal[False] = False

    def open(self) -> None:
        """Check the layout, or write it down, once."""
        if not self.is_open:
            drive(self.client, open_layout(self.names, self.allow_eviction))
            self.is_open = True

    def _perform(self, plan: Plan) -> Any:
        self.open()
        operations = plan.operations
        try:
            if len(operations) == 1:
                (only,) = operations
                if isinstance(only, _Reading):
                    return plan.read([self.client.execute_command(*only.args)])
                return plan.combine([run(self.client, only)])
            replies: list[Any] = []
            for part in _parts(operations):
                filling = Filling(self.client, transaction=False)
                filling.plan(part)
                results = filling.results(filling.target.execute(raise_on_error=False))
                replies += checked_results(results, True)[0]
            return plan.combine(replies)
        except ResponseError as error:
            raise _as_layout_error(error) or error from None

    def pipeline(self, transaction: bool = True) -> TrackedSetPipeline:
        """Return a pipeline: what is called on it is sent, with the user's own, by `execute`."""
        return TrackedSetPipeline(self, transaction)

    def drift(self, sample: int = 400, *, confidence: float = 0.95, seconds: float = 5.0) -> Drift:
        """Say by sample how far the set and the table are apart, in both directions.

        Arguments: sample: how many tracked ids, and how many rows with work, are looked at;
        confidence: of the intervals; seconds: how long it may take. Errors: ConfigurationError
        without a source, or for a source that cannot draw rows at random. A few round trips, and
        two questions to the database; not for a slice.
        """
        return measure(
            self.twin,
            self.names,
            self.require_source(),
            sample=sample,
            confidence=confidence,
            seconds=seconds,
        )


class AsyncTrackedSet(
    _Opened[AsyncClient],
    _TrackedCommands[Awaitable[bool], Awaitable[list[bool]], Awaitable[int]],
):
    """A `TrackedSet` on a redis.asyncio client: every method is awaited."""

    _is_async_client: Literal[True] = True

    async def open(self) -> None:
        """Check the layout, or write it down, once."""
        if not self.is_open:
            await drive_async(self.client, open_layout(self.names, self.allow_eviction))
            self.is_open = True

    async def _perform(self, plan: Plan) -> Any:
        await self.open()
        operations = plan.operations
        try:
            if len(operations) == 1:
                (only,) = operations
                if isinstance(only, _Reading):
                    return plan.read([await self.client.execute_command(*only.args)])
                return plan.combine([await run_async(self.client, only)])
            replies: list[Any] = []
            for part in _parts(operations):
                filling = Filling(self.client, transaction=False)
                filling.plan(part)
                results = filling.results(await filling.target.execute(raise_on_error=False))
                replies += checked_results(results, True)[0]
            return plan.combine(replies)
        except ResponseError as error:
            raise _as_layout_error(error) or error from None

    def pipeline(self, transaction: bool = True) -> AsyncTrackedSetPipeline:
        """Return a pipeline whose `execute` is awaited; see `TrackedSet.pipeline`."""
        return AsyncTrackedSetPipeline(self, transaction)

    async def drift(
        self, sample: int = 400, *, confidence: float = 0.95, seconds: float = 5.0
    ) -> Drift:
        """Say by sample how far set and table are apart; see `TrackedSet.drift`. In a thread."""
        source = self.require_source()
        return await asyncio.to_thread(
            measure,
            self.twin,
            self.names,
            source,
            sample=sample,
            confidence=confidence,
            seconds=seconds,
        )


class TrackedSetPipeline(
    _TrackedCommands["TrackedSetPipeline", "TrackedSetPipeline", "TrackedSetPipeline"],
    BlockingPlanPipeline,
):
    """The methods of a `TrackedSet`, and the user's own commands, sent together by `execute`.

    On a cluster only commands of one sub-set share a slot; redis-py sends them without MULTI there.
    """

    def __init__(self, tracked: TrackedSet, transaction: bool) -> None:
        super().__init__(tracked.client, transaction)
        self._tracked = tracked
        self.names = tracked.names

    def _perform(self, plan: Plan) -> Self:
        return self.queue_plan(plan)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results; see `BlockingPlanPipeline.execute`."""
        self._tracked.open()
        return super().execute(raise_on_error)


class AsyncTrackedSetPipeline(
    _TrackedCommands[
        "AsyncTrackedSetPipeline", "AsyncTrackedSetPipeline", "AsyncTrackedSetPipeline"
    ],
    AsyncPlanPipeline,
):
    """A `TrackedSetPipeline` whose `execute` is awaited."""

    def __init__(self, tracked: AsyncTrackedSet, transaction: bool) -> None:
        super().__init__(tracked.client, transaction)
        self._tracked = tracked
        self.names = tracked.names

    def _perform(self, plan: Plan) -> Self:
        return self.queue_plan(plan)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results."""
        await self._tracked.open()
        return await super().execute(raise_on_error)


def checked_tracked(tracked: object) -> TrackedSet | AsyncTrackedSet:
    """Return a tracked set that has a source; raise a ConfigurationError for anything else."""
    if not isinstance(tracked, TrackedSet | AsyncTrackedSet):
        raise ConfigurationError(f"a TrackedSet was expected, not {type(tracked).__name__}")
    tracked.require_source()
    return tracked


def _members(ids: Iterable[Id]) -> list[bytes]:
    if isinstance(ids, str | bytes):
        raise ConfigurationError(f"give several ids as a list, not {ids!r}")
    if not isinstance(ids, Iterable):
        raise ConfigurationError(
            f"{ids!r} is neither an id nor several: give text, an int or bytes, or a list of these"
        )
    return [id_bytes(each) for each in ids]


def _parts(operations: Sequence[Operation]) -> Iterable[Plan]:
    """Return operations as plans that are each sent at once; each gives a list of results."""
    for start in range(0, len(operations), _OPERATIONS_A_PIPELINE):
        yield Plan(tuple(operations[start : start + _OPERATIONS_A_PIPELINE]), list)


def _as_layout_error(error: ResponseError) -> LayoutError | None:
    if str(error).startswith("WRONGTYPE") or "WRONGTYPE Operation" in str(error):
        return LayoutError(
            "a key of the tracked set holds something else; nothing was changed: remove it if it is"
            " not needed"
        )
    return as_layout_error(error)
