"""The dead items of a structure, listed within bounds: of number, and of what they weigh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workstealing.dashboard.names import LONGEST_SHOWN, item_key, payload_text, visible, weight
from workstealing.dashboard.watched import DeadBox, Watched

MOST_LISTED = 1000
"""Of how many dead items of a structure a page knows."""

PARTS_LISTED = 50
_FIRST_ASKED = 2
_GROWTH = 32
_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ListedItem:
    """A dead item, as text of bounded length.

    Fields: key: what stands for it in forms; member: its name; part: where in the structure;
    payload; tenant; error: why it died; attempts: how often it failed; died: when it was set aside,
    in seconds since the epoch. What is unknown is None, or no text.
    """

    key: str
    member: str
    part: str
    payload: str
    tenant: str
    error: str
    attempts: int | None
    died: float | None


def list_dead(watched: Watched, most: int = MOST_LISTED) -> list[ListedItem]:
    """List a structure's dead items, those of longest ago first, at most so many.

    Where there are more, those listed are what the structure gives of them. A few round trips for
    each of its parts.
    """
    found: list[ListedItem] = []
    for part, box in list(watched.dead())[:PARTS_LISTED] if watched.dead is not None else ():
        if len(found) < most:
            found += [_listed_item(part, each) for each in listed(box, most - len(found))]
    return sorted(found, key=lambda item: (item.died is None, item.died or 0.0, item.member))


def listed(box: DeadBox, most: int, most_bytes: int = _BYTES) -> list[Any]:
    """Return up to so many dead items, fewer where they are so large that this many are too much.

    Nobody knows beforehand how large they are, so a few are asked for first, and then more.
    """
    asked = min(_FIRST_ASKED, most)
    while True:
        found = list(box.dead(asked))
        if len(found) < asked or asked >= most:
            return found[:most]
        mean = sum(_weight(each) for each in found) / len(found)
        affordable = int(most_bytes / max(1.0, mean))
        if affordable <= asked:
            return found[:most]
        asked = min(most, asked * _GROWTH, affordable)


def member_of(item: Any) -> Any:
    """Return what `revive` and `discard` take for an item that a box has listed."""
    return getattr(item, "member", item)


def _weight(item: Any) -> int:
    return weight(member_of(item)) + weight(getattr(item, "payload", None))


def _listed_item(part: str, item: Any) -> ListedItem:
    member, payload = member_of(item), getattr(item, "payload", None)
    shown = getattr(item, "shown", None)
    name = member if shown is None else shown
    if payload is None and weight(name) > LONGEST_SHOWN:
        # Its name is all that it carries, and is longer than a name's place.
        payload = name
    tenant, error = (getattr(item, field, None) for field in ("tenant", "error"))
    times = getattr(item, "times", ())
    return ListedItem(
        key=item_key(member),
        member=visible(name),
        part=visible(part),
        payload=payload_text(payload),
        tenant="" if tenant is None else visible(tenant),
        error="" if error is None else visible(error, 200),
        attempts=getattr(item, "attempts", None),
        died=float(times[-1]) if times else None,
    )
