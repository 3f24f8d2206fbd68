"""The dead members of an Ick: what failed too often waits here for a person."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation, Plan
from workstealing.store.paging import LOOKED_AT, Page, oldest
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
        """List dead members, those of longest ago first.

        Arguments: n: 1 or more. Returns: a `Page` of `DeadMember`, a list whose `more` says how
        many others there are; of more than 1,000 (or n) so many are looked at. Errors:
        ConfigurationError; LayoutError. One round trip; beyond 1,000 members one for each 1,000 of
        them, which is a walk: members that die or are revived meanwhile may be on the list or not.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**62:
            raise ConfigurationError(
                f"n={n!r} dead members cannot be listed: give a number, 1 or more"
            )
        if n <= LOOKED_AT:

            def read(reply: list[Any]) -> Page[DeadMember]:
                return oldest(_dead_members(reply[2:]), n, _age, int(reply[0]))

            return self._perform(Plan((self._piece(0, read),)))
        return self._perform_steps(self._walk(n))

    def _walk(self, n: int) -> Steps[Page[DeadMember]]:
        found: dict[Any, DeadMember] = {}
        cursor: Any = 0
        while True:
            (reply,) = yield [self._piece(cursor, list)]
            total, cursor, *flat = reply
            for member in _dead_members(flat):
                found.setdefault(member.member, member)
            if int(cursor) == 0 or len(found) >= n:
                return oldest(found.values(), n, _age, int(total))

    def _piece(self, cursor: Any, read: Callable[[list[Any]], Any]) -> Operation:
        args = (min(LOOKED_AT, MEMBERS_A_CHUNK), cursor)
        return Operation(load("ick_dead"), self._dead_keys(), args, read)

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


def _age(member: DeadMember) -> tuple[float, bytes]:
    return (member.times[-1] if member.times else 0.0), to_bytes(member.member)


def _dead_members(flat: list[Any]) -> list[DeadMember]:
    members = []
    # A hash's cursor may come by one member twice.
    for member, history in dict(zip(flat[::2], flat[1::2], strict=True)).items():
        known = json.loads(history)
        times = tuple(time / 1000 for time in known["times"])
        members.append(DeadMember(member, float(known["score"]), known["attempts"], times))
    return members
