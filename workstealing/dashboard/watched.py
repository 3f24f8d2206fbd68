"""How the dashboard sees structures and jobs: their size, their garbage and their dead items."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, KeyExpiry
from workstealing.recruiting.breakers import Servers, server_name
from workstealing.recruiting.job import Backlog, Job
from workstealing.safe_text import visible
from workstealing.structures import DurableKeys, VolatileHashes
from workstealing.structures.structure import DeadItem, DeadLetters, Structure

LONGEST_PAYLOAD = 300
"""How many characters of a payload a page shows."""

_EXACT_BYTES = 192
# A user's structure may hold text, and tells text from bytes.
_KINDS: dict[type, str] = {bytes: "is", str: "says"}
_MOST_FIELDS = 20


class SetsAside(Protocol):
    """An object that sets items aside for a person: an `Ick` does."""

    def dead(self, n: int = 100) -> Iterable[Any]:
        """List up to n dead items: names, or objects with some of the fields of a `DeadItem`."""
        ...

    def revive(self, *members: Any) -> int:
        """Put dead items back; return how many were dead."""
        ...

    def discard(self, *members: Any) -> int:
        """Forget dead items for good; return how many were dead."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """A structure as the dashboard sees it; make one for a thing that is no `Structure`.

    Fields: name; kind: in a few words; size: returns how many items it holds; due: returns the
    `Backlog` of its job; dead: returns the name and the `SetsAside` of each part that holds dead
    items; dead_size: returns how many dead items there are; job: the name of the job that handles
    the backlog; halt: returns a sentence if a job has paused itself; server: the address of the
    server that is asked; structures: those of this package that it stands for. A field that
    cannot be told is None.
    """

    name: str
    kind: str
    size: Callable[[], int | None] | None = None
    due: Callable[[], Backlog | None] | None = None
    dead: Callable[[], Sequence[tuple[str, SetsAside]]] | None = None
    dead_size: Callable[[], int] | None = None
    job: str | None = None
    halt: Callable[[], str | None] | None = None
    server: str | None = None
    structures: tuple[Structure, ...] = ()

    @property
    def id(self) -> str:
        """A short name of letters and digits that stands for this one in forms."""
        return short_id(f"{self.kind}\0{self.name}")


def short_id(name: str | bytes) -> str:
    """Return a short text for a name of any length and content, for forms and pages."""
    raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
    return hashlib.sha256(raw).hexdigest()[:24]


class PartDead:
    """The dead items of a part of a structure; other parts may have items of the same names.

    Arguments:
        box: the part, as `Structure.dead_steps` returns it.
        name: of the part, empty for that of a structure that has one only.
    """

    def __init__(self, structure: Structure, box: DeadLetters, name: str) -> None:
        self._structure, self._box = structure, box
        # With its length, so that no other part's name begins like it.
        self._start = f"{len(name)}:{name}:" if name else ""
        self._raw_start = self._start.encode()
        self.size = box.size

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n dead items, those of longest ago first."""
        found = self._structure.inspect(self._box.list_steps(n))
        if not self._start:
            return list(found)
        return [
            replace(
                each,
                member=self._with_start(each.member),
                shown=_shown(each.member) if each.shown is None else each.shown,
            )
            for each in found
        ]

    def revive(self, *members: Any) -> int:
        """Put dead items of this part back; return how many were dead."""
        return self._structure.inspect(self._box.revive_steps(self._own(members)))

    def discard(self, *members: Any) -> int:
        """Forget dead items of this part for good; return how many were dead."""
        return self._structure.inspect(self._box.discard_steps(self._own(members)))

    def _own(self, members: Iterable[Any]) -> list[Any]:
        if not self._start:
            return list(members)
        named = [_shown(each) for each in members]
        starts = [self._raw_start if isinstance(each, bytes) else self._start for each in named]
        pairs = zip(named, starts, strict=True)
        return [each.removeprefix(start) for each, start in pairs if each.startswith(start)]

    def _with_start(self, member: Any) -> Any:
        if isinstance(member, bytes):
            return self._raw_start + member
        return f"{self._start}{member}"


def _shown(member: Any) -> Any:
    # Bytes stay what they are: as text they would be another member.
    return member if isinstance(member, bytes) else str(member)


SECONDS = 2.0
"""How long one question to a structure may take."""


def watch(thing: Any) -> Watched:
    """Return a structure as the dashboard sees it.

    Arguments:
        thing: a structure of this package, a job of one, or a `Watched`.

    Raises: ConfigurationError for anything else. No round trip.
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
    comes first. A job without structures is shown if it can tell its backlog. Raises: as `watch`,
    for a thing that the user has named.
    """
    found: dict[str, Watched] = {}
    for job in jobs:
        for watched in _of_job(job):
            told = watched
            if watched.id in found:
                # Another job of the same: its garbage is its own, all else has been told.
                kind = f"{watched.kind} ({job.name})"
                told = Watched(watched.name, kind, due=watched.due, job=job.name)
            found.setdefault(told.id, told)
    for thing in things:
        watched = watch(thing)
        found.setdefault(watched.id, watched)
    return list(found.values())


def _of_job(job: Job) -> list[Watched]:
    """Return the structures of a job: those of a fleet node by node, for one may be dead."""
    if not job.structures:
        can_tell = job.tells_backlog
        return [Watched(job.name, "job", due=_due(job), job=job.name)] if can_tell else []
    if isinstance(job.dependency, Servers) and isinstance(job, HashFieldExpiry | KeyExpiry):
        return [replace(_structures((each,)), job=job.name) for each in job.structures]
    return [_structures(job.structures, job)]


def _structures(structures: Sequence[Structure], job: Job | None = None) -> Watched:
    """Return structures of one kind as one, with the backlog of a job."""
    first = structures[0]
    more = f" and {len(structures) - 1} more" if len(structures) > 1 else ""
    if job is None and (kind := _JOBS_WITHOUT_SETTINGS.get(first.kind)) is not None:
        job = kind(first)

    # A namespace, say, has no place for dead items.
    has_dead = any(type(each).dead_steps is not Structure.dead_steps for each in structures)

    def size() -> int | None:
        sizes = [each.inspect(each.size_steps()) for each in structures]
        known = [each for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else None

    def dead() -> list[tuple[str, PartDead]]:
        boxes: list[tuple[str, PartDead]] = []
        for each in structures:
            for box in each.inspect(each.dead_steps()):
                name = " of ".join(filter(None, (box.name, each.name if more else "")))
                boxes.append((name, PartDead(each, box, name)))
        return boxes

    def halt() -> str | None:
        said = (each.inspect(each.halt_steps()) for each in structures)
        return next((each for each in said if each is not None), None)

    return Watched(
        f"{first.name}{more}",
        first.kind,
        size,
        None if job is None else _due(job),
        dead if has_dead else None,
        (lambda: sum(box.size for _, box in dead())) if has_dead else None,
        None if job is None else job.name,
        halt
        if any(type(each).halt_steps is not Structure.halt_steps for each in structures)
        else None,
        _server(structures),
        tuple(structures),
    )


def _server(structures: Sequence[Structure]) -> str | None:
    """Return the address of the structures' server, None: they have several."""
    try:
        names = {server_name(each.job_client.identity) for each in structures}
    except Exception:  # noqa: BLE001 - a client of the user's own kind may not tell
        return None
    return names.pop() if len(names) == 1 else None


def _due(job: Job) -> Callable[[], Backlog | None]:
    return lambda: job.backlog(seconds=SECONDS)


# The jobs that need no settings to tell a structure's backlog, by its kind.
_JOBS_WITHOUT_SETTINGS: dict[str, Callable[[Any], Job]] = {
    VolatileHashes.kind: HashFieldExpiry,
    DurableKeys.kind: KeyExpiry,
}


def payload_text(payload: Any) -> str:
    """Return a payload as `visible` text: fields as `name=value, ...`, and the size if it is cut.

    The function reads no more of the payload than it shows. A value without a text is named by its
    type.
    """
    if payload is None:
        return ""
    if isinstance(payload, Mapping):
        shown, left = [], LONGEST_PAYLOAD
        for name, value in islice(payload.items(), _MOST_FIELDS):
            if left <= 0:
                break
            shown.append(f"{visible(name, min(40, left))}={_value_text(value, left)}")
            left -= len(shown[-1])
        return ", ".join(shown) + (", …" if len(shown) < len(payload) else "")
    return _value_text(payload, LONGEST_PAYLOAD)


def _value_text(value: Any, longest: int) -> str:
    try:
        text = value if isinstance(value, bytes) else str(value)
    except Exception:  # noqa: BLE001 - whatever an object of the user's does
        return f"a {type(value).__name__}"
    shown = visible(text, longest)
    if not shown.endswith("…") or len(text) <= longest:
        return shown
    return f"{shown} ({_length(text)})"


def _length(text: bytes | str) -> str:
    length = len(text)
    if isinstance(text, str):
        return f"{length:,} characters"
    for limit, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if length >= limit:
            return f"{length / limit:.3g} {unit}"
    return f"{length} bytes"


def weight(thing: Any) -> int:
    """Return about how many bytes a payload holds."""
    if isinstance(thing, bytes | str):
        return len(thing)
    if isinstance(thing, Mapping):
        return sum(weight(name) + weight(value) for name, value in thing.items())
    if isinstance(thing, list | tuple):
        return sum(map(weight, thing))
    return 8


def item_key(member: Any) -> str:
    """Return a dead item's key in a form: the item itself if it is short, else its digest."""
    raw = member if isinstance(member, bytes) else str(member).encode("utf-8", "surrogatepass")
    kind = _KINDS.get(type(member))
    if kind is not None and len(raw) <= _EXACT_BYTES:
        return f"{kind}." + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return "like." + short_id(raw)


def exact_item(key: str) -> bytes | str | None:
    """Return the item of a form's key, or None if the key is a digest or malformed."""
    kind, _, encoded = key.partition(".")
    if kind not in _KINDS.values() or len(encoded) > 2 * _EXACT_BYTES:
        return None
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return raw if kind == _KINDS[bytes] else raw.decode("utf-8", "surrogatepass")
    except ValueError:
        return None
