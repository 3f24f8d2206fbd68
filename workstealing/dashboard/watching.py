"""How the dashboard sees structures and the jobs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workstealing.dashboard.watched import PartDead, Watched
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, KeyExpiry
from workstealing.recruiting.job import Backlog, Job
from workstealing.structures.structure import Structure

SECONDS = 2.0
"""How long one question to a structure may take."""


def watch(thing: Any) -> Watched:
    """Return a structure as the dashboard sees it.

    Arguments: thing: a structure of this package, a job of one, or a `Watched`. Raises:
    ConfigurationError for anything else. No round trip.
    """
    if isinstance(thing, Watched):
        return thing
    if isinstance(thing, Structure):
        return _structures((thing,))
    if isinstance(thing, Job) and thing.structures:
        return _structures(thing.structures, thing)
    raise ConfigurationError(
        f"the dashboard cannot show a {type(thing).__name__}: give a structure, a job of one, or a"
        " Watched(name=..., kind=..., size=...)"
    )


def watch_all(things: Iterable[Any], jobs: Iterable[Job]) -> list[Watched]:
    """Return the structures named by the user and those of the jobs, each once.

    A job knows more than its structure (an IckReaper knows which reservations are stale), so it
    comes first. Raises: as `watch`, for a thing that the user has named; jobs without structures
    are passed over.
    """
    found: dict[str, Watched] = {}
    for job in jobs:
        if not job.structures:
            continue
        watched = _structures(job.structures, job)
        if watched.id in found:
            # Another job of the same: its garbage is its own, all else has been told.
            kind = f"{watched.kind} ({job.name})"
            watched = Watched(watched.name, kind, due=watched.due, job=job.name)
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
