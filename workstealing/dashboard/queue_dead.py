"""The dead messages of queues, as the dashboard lists them and puts them back."""

from __future__ import annotations

from typing import Any

from workstealing.dashboard.names import visible
from workstealing.structures import Ick, TimeShardQueue
from workstealing.structures.structure import DeadItem, times_text


class IckDead:
    """The dead members of an Ick, or of an ick shard."""

    def __init__(self, ick: Ick) -> None:
        self._ick = ick
        self.revive, self.discard = ick.revive, ick.discard

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n dead members."""
        return [
            DeadItem(
                each.member,
                each.attempts,
                each.times[-1:],
                error=f"its reservation went stale {times_text(each.attempts)}",
            )
            for each in self._ick.dead(n)
        ]


class TimeShardsDead:
    """The dead messages of a TimeShardQueue."""

    def __init__(self, queue: TimeShardQueue) -> None:
        self._queue = queue

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n dead messages by id."""
        return [
            DeadItem(
                each.id,
                each.attempts,
                (each.since.timestamp(),),
                payload=each.message,
                error=f"its lease ended {times_text(each.attempts)}; {visible(each.consumer, 60)}"
                " held it last",
            )
            for each in self._queue.dead(n)
        ]

    def revive(self, *members: Any) -> int:
        """Let dead messages wait again; return how many were dead."""
        return int(self._queue.revive(*map(str, members)))

    def discard(self, *members: Any) -> int:
        """Forget dead messages for good; return how many were dead."""
        return int(self._queue.discard(*map(str, members)))
