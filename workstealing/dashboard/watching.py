"""How the dashboard sees each of the structures, and the jobs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workstealing.dashboard.queue_dead import IckDead, TimeShardsDead
from workstealing.dashboard.watched import DeadBox, PartDead, Watched
from workstealing.errors import ConfigurationError
from workstealing.jobs import (
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    TimeShardSweeper,
    TrackQueued,
    UntrackDone,
)
from workstealing.recruiting.job import Backlog, Job
from workstealing.structures import (
    DurableKeys,
    Ick,
    ShardedIck,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.structure import Structure

SECONDS = 2.0
"""How long one question to a structure may take."""

_SHARDS_A_CALL = 512


def watch(thing: Any) -> Watched:
    """Return a structure as the dashboard sees it.

    Arguments: thing: a blocking VolatileHashes, DurableKeys, TrackedSet, Ick, ShardedIck,
    ShuffleQueue, TimeShardQueue or Log, a job of one, or a `Watched`. Errors: ConfigurationError
    for anything else. No round trip.
    """
    if isinstance(thing, Watched):
        return thing
    if isinstance(thing, Structure):
        return _structures((thing,))
    if isinstance(thing, Job) and thing.structures:
        return _structures(thing.structures, thing)
    for kinds, make in _MAKERS:
        if isinstance(thing, kinds):
            return make(thing)
    raise ConfigurationError(
        f"the dashboard cannot show a {type(thing).__name__}: give a blocking structure, a job of"
        " one, or a Watched(name=..., kind=..., size=...)"
    )


def watch_all(things: Iterable[Any], jobs: Iterable[Job]) -> list[Watched]:
    """Return the structures named by the user and those of the jobs, each once.

    A job knows more than its structure (an IckReaper knows what is stale), so it comes first.
    Errors: as `watch`, for what the user has named; jobs of other things are passed over.
    """
    found: dict[str, Watched] = {}
    jobs = list(jobs)
    for job in jobs:
        if job.structures:
            watched = _structures(job.structures, job)
            if watched.id in found:
                # Another job of the same: its garbage is its own, all else has been told.
                kind = f"{watched.kind} ({job.name})"
                watched = Watched(watched.name, kind, due=watched.due, job=job.name)
            found.setdefault(watched.id, watched)
            continue
        for kinds, make in _MAKERS:
            if isinstance(job, kinds) and _is_blocking(job):
                watched = make(job)
                found.setdefault(watched.id, watched)
    for thing in things:
        watched = watch(thing)
        found.setdefault(watched.id, watched)
    return list(found.values())


def _structures(structures: Sequence[Structure], job: Job | None = None) -> Watched:
    """Return structures of one kind as one, with what waits there for a job."""
    first = structures[0]
    more = f" and {len(structures) - 1} more" if len(structures) > 1 else ""
    if job is None and (kind := _JOBS_WITHOUT_SETTINGS.get(type(first).__name__)) is not None:
        job = kind(first)

    # A namespace, say, has no place for what is dead.
    has_dead = any(type(each).dead_steps is not Structure.dead_steps for each in structures)

    def size() -> int | None:
        sizes = [each.inspect(each.size_steps()) for each in structures]
        known = [each for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else None

    def dead() -> list[tuple[str, PartDead]]:
        boxes: list[tuple[str, PartDead]] = []
        for each in structures:
            whose = f" of {each.name}" if more else ""
            for box in each.inspect(each.dead_steps()):
                name = f"{box.name}{whose}"
                boxes.append((name, PartDead(each, box, name)))
        return boxes

    def due() -> Backlog | None:
        assert job is not None
        found: Backlog | None = job.backlog(seconds=SECONDS)
        return found

    return Watched(
        f"{first.name}{more}",
        first.kind,
        size,
        None if job is None else due,
        dead if has_dead else None,
        (lambda: sum(box.size for _, box in dead())) if has_dead else None,
        None if job is None else job.name,
    )


# The jobs that know what is due of the structure alone.
_JOBS_WITHOUT_SETTINGS: dict[str, Callable[[Any], Job]] = {
    **dict.fromkeys(("VolatileHashes", "AsyncVolatileHashes"), HashFieldExpiry),
    **dict.fromkeys(("DurableKeys", "AsyncDurableKeys"), KeyExpiry),
}


def _is_blocking(job: Any) -> bool:
    structures = (
        *(VolatileHashes, DurableKeys, TrackedSet, Ick, ShardedIck),
        TimeShardQueue,
    )
    held = (getattr(job, name, None) for name in ("hashes", "keys", "tracked", "ick", "queue"))
    return any(isinstance(each, structures) for each in held)


def _tracked(thing: TrackedSet | TrackQueued | UntrackDone) -> Watched:
    tracked: Any = thing if isinstance(thing, TrackedSet) else thing.tracked
    return Watched(_text(tracked.names.key), "tracked set", tracked.count)


def _ick(thing: Ick | ShardedIck | IckReaper) -> Watched:
    job = thing if isinstance(thing, IckReaper) else None
    ick: Any = thing.ick if isinstance(thing, IckReaper) else thing

    def stat(field: str) -> int:
        stats = ick.stats()
        return int(stats[field]) if stats else 0

    def due() -> Backlog:
        assert job is not None
        return job.backlog(seconds=SECONDS)

    def dead() -> list[tuple[str, DeadBox]]:
        if isinstance(ick, Ick):
            return [("", IckDead(ick))]
        ick.open()
        shards = (ick.stats() or {}).get("shards", ())
        return [
            (f"ick shard {number}", IckDead(part))
            for number, (part, stats) in enumerate(zip(ick.icks, shards, strict=False))
            if stats and stats["dead_size"]
        ]

    kind = "Ick" if isinstance(ick, Ick) else "sharded Ick"
    name = _text(ick.names.version) if isinstance(ick, Ick) else ick.name
    return Watched(
        name,
        kind,
        lambda: stat("total_size"),
        due if job is not None else None,
        dead,
        lambda: stat("dead_size"),
        None if job is None else job.name,
    )


def _time_shard_queue(thing: TimeShardQueue | TimeShardSweeper) -> Watched:
    job = thing if isinstance(thing, TimeShardSweeper) else None
    queue: Any = thing.queue if isinstance(thing, TimeShardSweeper) else thing

    def due() -> Backlog:
        assert job is not None
        return job.backlog(seconds=SECONDS)

    return Watched(
        queue.name,
        "time shard queue",
        lambda: sum(each.total for each in queue.stats()),
        due if job is not None else None,
        lambda: [("", TimeShardsDead(queue))],
        lambda: sum(each.dead for each in queue.stats()),
        None if job is None else job.name,
    )


_MAKERS: tuple[tuple[Any, Callable[[Any], Watched]], ...] = (
    ((TrackedSet, TrackQueued, UntrackDone), _tracked),
    ((Ick, ShardedIck, IckReaper), _ick),
    ((TimeShardQueue, TimeShardSweeper), _time_shard_queue),
)


def _text(key: Any) -> str:
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
