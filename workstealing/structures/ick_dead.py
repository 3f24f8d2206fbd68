"""The dead members of an Ick: what failed too often waits here for a person."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation, Plan
from workstealing.store.scripts import load
from workstealing.structures.ick_names import Member, NamedCommands
from workstealing.structures.steps import Steps

# How many members one script lists, and how many it moves, so that none takes long.
MEMBERS_A_CHUNK = 1000
GRAVES_A_CHUNK = 500


class DeadMember(NamedTuple):
    """A member that was set aside.

    Fields: member; score, which it goes back with; attempts: how many reservations of it went
    stale; times: when a reaper found the last of them so, in seconds since the epoch.
    """

    member: Any
    score: float
    attempts: int
    times: tuple[float, ...]


class DeadCommands(NamedCommands):
    """An Ick's dealings with its dead."""

    def dead(self, n: int = 100) -> Any:
        """List dead members, at random if there are more than n.

        Arguments: n: 1 or more. Returns: a list of `DeadMember`. Errors: ConfigurationError;
        LayoutError. One round trip; beyond 1,000 members one for each 1,000 of them, which is a
        walk: members that die or are revived meanwhile may be on the list or not.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**62:
            raise ConfigurationError(
                f"n={n!r} dead members cannot be listed: give a number, 1 or more"
            )
        if n <= MEMBERS_A_CHUNK:
            operation = Operation(load("ick_dead"), self._dead_keys(), (n,), _dead_members)
            return self._perform(Plan((operation,)))
        return self._perform_steps(self._walk(n))

    def _walk(self, n: int) -> Steps[list[DeadMember]]:
        found: dict[Any, DeadMember] = {}
        cursor: Any = 0
        while True:
            args = (MEMBERS_A_CHUNK, cursor)
            (reply,) = yield [Operation(load("ick_dead"), self._dead_keys(), args, lambda it: it)]
            cursor, flat = reply
            for member in _dead_members(flat):
                found.setdefault(member.member, member)
            if int(cursor) == 0 or len(found) >= n:
                return list(found.values())[:n]

    def revive(self, *members: Member) -> Any:
        """Put dead members back into the producer set, their attempts forgotten.

        Of two scores the lower one wins. Returns: how many were dead. Errors: LayoutError. One
        round trip for each 500 members, each atomic.
        """
        return self._to_the_dead("ick_revive", members)

    def discard(self, *members: Member) -> Any:
        """Forget dead members for good.

        Returns: how many were dead. Errors: LayoutError. One round trip for each 500 members.
        """
        return self._to_the_dead("ick_discard", members)

    def _to_the_dead(self, script: str, members: tuple[Member, ...]) -> Any:
        raw = [to_bytes(member) for member in members]
        operations = tuple(
            Operation(load(script), self._dead_keys(), tuple(raw[i : i + GRAVES_A_CHUNK]), int)
            for i in range(0, len(raw), GRAVES_A_CHUNK)
        )
        return self._perform(Plan(operations, sum))

    def _dead_keys(self) -> tuple[bytes, ...]:
        return (*self.names.sets, self.names.dead)


def history_of(score: bytes, attempts: int, times: list[int], earlier: bytes) -> str:
    """Return what is kept of a dead member, as JSON.

    Arguments: score, as Redis writes it; attempts; times in ms since the epoch; earlier: the
    history of a death before, or nothing. A script reads the score, which therefore comes first.
    """
    if earlier:
        before = json.loads(earlier)
        score = min(score, before["score"].encode(), key=float)
        attempts += before["attempts"]
        times = [*before["times"], *times]
    return json.dumps({"score": score.decode(), "attempts": attempts, "times": times[-TIMES_KEPT:]})


TIMES_KEPT = 10
"""Of how many stale reservations of a member the times are kept."""


def _dead_members(flat: list[Any]) -> list[DeadMember]:
    members = []
    for member, history in zip(flat[::2], flat[1::2], strict=True):
        known = json.loads(history)
        times = tuple(time / 1000 for time in known["times"])
        members.append(DeadMember(member, float(known["score"]), known["attempts"], times))
    return members
