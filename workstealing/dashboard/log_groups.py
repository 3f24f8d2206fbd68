"""The dead entries of logs' groups, as the dashboard lists them and puts them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workstealing.dashboard.names import visible
from workstealing.dashboard.watched import named_with
from workstealing.structures import Log
from workstealing.structures.structure import DeadItem, times_text


class GroupsDead:
    """The dead entries of one group of a log, whose offsets other groups may have, too.

    Arguments: group; whose: what stands behind an offset; size: how many there are.
    """

    def __init__(self, group: Any, whose: str, size: int) -> None:
        self._group = group
        self._end = f" of {whose}"
        self.size = size

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n dead entries, those of this group. One round trip."""
        return [
            DeadItem(
                f"{each.offset}{self._end}",
                each.attempts,
                (each.set_aside,),
                payload=each.entry,
                error=_why(each),
                shown=f"entry {each.offset}",
            )
            for each in self._group.dead(n)
        ]

    def revive(self, *members: Any) -> int:
        """Hand dead entries of this group out again; return how many were dead."""
        return int(self._group.revive(*self._own(members)))

    def discard(self, *members: Any) -> int:
        """Forget dead entries of this group for good; return how many were dead."""
        return int(self._group.discard(*self._own(members)))

    def _own(self, members: Iterable[Any]) -> list[int]:
        return [int(each) for each in named_with(self._end, members)]


def _why(entry: Any) -> str:
    last = "" if entry.member is None else f"; {visible(entry.member, 60)} had it last"
    return f"handed out {times_text(entry.attempts)} and never acknowledged{last}"


def dead_groups(logs: Sequence[Log]) -> list[tuple[str, GroupsDead]]:
    """Return the acknowledged groups of logs, each with what it has set aside.

    Each is opened as it was made, so that looking makes and changes none. A round trip for each
    log, and two for each group.
    """
    found = []
    for log in logs:
        for name in _groups_of(log):
            keys = log.keys.group(name)
            kind = _bytes(log.client.hget(keys.state, "kind") or b"").split(b":")
            if len(kind) != 3:
                # A plain group sets nothing aside.
                continue
            group = log.group(
                keys.group,
                acknowledged=True,
                idle_s=int(kind[1]) / 1000,
                max_attempts=int(kind[2]),
            )
            whose = f"group {group.name}" + (f" of {log.name}" if len(logs) > 1 else "")
            found.append((whose, GroupsDead(group, whose, int(log.client.hlen(keys.dead)))))
    return found


def _groups_of(log: Log) -> list[bytes]:
    fields = map(_bytes, log.client.hkeys(log.keys.meta))
    return sorted(each[6:] for each in fields if each.startswith(b"group:"))


def _bytes(reply: Any) -> bytes:
    return reply if isinstance(reply, bytes) else str(reply).encode()
