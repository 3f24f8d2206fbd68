"""Families of keys that the user declares: without a time to live, with deadlines or tags inside.

Tag sets are sets whose members name keys. A member is dead when its key is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.jobs.leftovers import (
    CLIENT,
    DECLARED,
    LIVE,
    PATTERN,
    PROVED,
    Counting,
    Declared,
    Garbage,
    Item,
    Leftovers,
    Offer,
    Rule,
    Unknown,
    Verdicts,
    call,
    exactly,
    key_removed,
    keys,
    look,
    member_removed,
    members,
)
from workstealing.jobs.leftovers.rule import DAY
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation
from workstealing.store.scripts import load

__all__ = [
    "DeadTags",
    "FamilyLeftovers",
    "KeysWithoutTtl",
    "OldScores",
    "PastFields",
    "PastHashes",
    "TagSetLeftovers",
]

_UNITS = {"seconds": 1, "milliseconds": 1_000, "microseconds": 1_000_000}
_SURVEYED = tuple(
    {"pattern": "*", "window": DAY, "unit": each, "name": f"families.old_scores.{each}"}
    for each in _UNITS
)
Ends = Callable[[bytes], float | None]
"""Returns the deadline that a value tells, in seconds since the epoch; None: it tells none."""


class KeysWithoutTtl(Rule):
    """Keys of a family that have no time to live; they get one, by chance longer or shorter.

    Arguments:
        pattern: of the names.
        of_type: of the keys, None: any.

    Nothing proves that such a key is garbage. So such a key is never deleted: a job with this rule
    must have `ttl`.
    """

    owner = "families of keys"
    finds = "Keys of a declared family without a time to live."
    certainty = DECLARED
    needs_ttl = True

    def __init__(
        self, pattern: str | bytes, of_type: Any = None, name: str = "families.without_ttl"
    ) -> None:
        self.name, self.where = name, keys(pattern, of_type)

    def offer(self) -> Offer:
        """Offer to give the keys of a family the time to live that the user declares."""
        return Offer(call(FamilyLeftovers, CLIENT, PATTERN, ttl=Declared("TTL", DAY)))

    def verdict(self, item: Item) -> Verdicts:
        """Judge a key: it counts if it has no time to live."""
        (left,) = yield look(("PTTL", item.key), watch=item.key)
        return key_removed(item.key) if left == -1 else LIVE


class OldScores(Rule):
    """Members of sorted sets whose scores are times before a window, as rate limiters leave them.

    Arguments:
        pattern: of the names.
        window: in seconds or as a timedelta.
        unit: of the scores: "seconds", "milliseconds" or "microseconds" since the epoch.

    Raises: ConfigurationError. A set whose highest score is no time of this century is unknown.
    """

    owner = "rate limiters"
    finds = "Members of sorted sets that are older than the window."
    certainty = DECLARED
    can_undo = False
    counted_in = "members"
    asked = _SURVEYED

    def __init__(
        self,
        pattern: str | bytes,
        window: Duration,
        unit: str = "seconds",
        name: str = "families.old_scores",
    ) -> None:
        if unit not in _UNITS:
            raise ConfigurationError(f"unit is {unit!r}; expected one of {', '.join(_UNITS)}")
        self.name, self.where = name, keys(pattern, "zset")
        self._window, self._unit = seconds_of(window, "window", 1.0), _UNITS[unit]
        self._unit_name = unit

    def offer(self) -> Offer:
        """Offer a job on the sorted sets of a family of nobody that is known, with a window."""
        window = Declared("WINDOW", self._window)
        rule = call(OldScores, PATTERN, window=window, unit=self._unit_name)
        return Offer(call(Leftovers, CLIENT, [rule]), strangers=True)

    def verdict(self, item: Item) -> Verdicts:
        """Judge a sorted set: it has garbage if its lowest score is before the window."""
        first, last = yield look(
            ("ZRANGE", item.key, 0, 0, "WITHSCORES"), ("ZRANGE", item.key, -1, -1, "WITHSCORES")
        )
        if not first:
            return LIVE
        lowest, highest = float(first[1]) / self._unit, float(last[1]) / self._unit
        if not 946_684_800 <= highest <= item.now + 366 * 86_400 or lowest < 0:
            return Unknown("its scores are no times in that unit")
        if lowest >= item.now - self._window:
            return LIVE
        own = (int(1000 * self._window), self._unit)
        return Garbage(script=Operation(load("leftovers/remove_old"), (item.key,), own))

    def parts(self, item: Item) -> Counting:
        """Count the members before the window."""
        before = b"(%.17g" % ((item.now - self._window) * self._unit)
        old, size = yield look(("ZCOUNT", item.key, 0, before), ("ZCARD", item.key))
        return exactly(old, size)


class PastFields(Rule):
    """Fields of hashes whose values tell a deadline that is past, such as pools of sessions.

    Arguments:
        pattern: of the hashes' names.
        ends: see `Ends`.
        grace: the time after a deadline until the field goes, in seconds or as a timedelta.

    A field goes only while it holds the value that was judged.
    """

    owner = "pools in hashes"
    finds = "Fields of hashes whose values tell a deadline that is past."
    certainty = DECLARED
    can_undo = False

    def __init__(
        self,
        pattern: str | bytes,
        ends: Ends,
        grace: Duration = 0,
        name: str = "families.past_fields",
    ) -> None:
        self.name, self.where = name, members(pattern, "hash")
        self._ends, self._grace = ends, seconds_of(grace, "grace")

    def verdict(self, item: Item) -> Verdicts:
        """Judge a field by its value."""
        assert item.member is not None, "the items are fields"
        (value,) = yield look(("HGET", item.key, item.member))
        ends = None if value is None else self._ends(value)
        if ends is None:
            return LIVE if value is None else Unknown("its value tells no deadline")
        if not _is_past(ends, item.now - self._grace):
            return LIVE
        own = (item.member, value)
        return Garbage(script=Operation(load("leftovers/remove_field"), (item.key,), own))


class PastHashes(Rule):
    """Hashes with a field that tells a deadline which is past.

    Arguments:
        pattern: of the hashes' names.
        field: that tells it.
        ends: see `Ends`, by default the number itself.
        grace: the time after a deadline until the hash goes.
    """

    owner = "hashes with a deadline"
    finds = "Hashes with a field that tells a deadline which is past."
    certainty = DECLARED

    def __init__(
        self,
        pattern: str | bytes,
        field: str | bytes,
        ends: Ends = float,
        grace: Duration = 0,
        name: str = "families.past_hashes",
    ) -> None:
        self.name, self.where = name, keys(pattern, "hash")
        self._field, self._ends = field, ends
        self._grace = seconds_of(grace, "grace")

    def verdict(self, item: Item) -> Verdicts:
        """Judge a hash by one of its fields."""
        (value,) = yield look(("HGET", item.key, self._field), watch=item.key)
        ends = None if value is None else self._ends(value)
        if ends is None:
            return Unknown("its field tells no deadline")
        return key_removed(item.key) if _is_past(ends, item.now - self._grace) else LIVE


class FamilyLeftovers(Leftovers):
    """Gives the keys of a family without a time to live one.

    Arguments:
        pattern: of the names.
        ttl: in seconds or as a timedelta: each key gets half to double of it, by chance, so that
            not all of them end at once.
        of_type: of the keys, None: any; further ones: of `Leftovers`.

    For the other rules of families: `Leftovers(client, [rule])`.
    """

    def __init__(
        self,
        client: Any,
        pattern: str | bytes,
        ttl: Duration,
        *,
        of_type: Any = None,
        name: str = "family_leftovers",
        **options: Any,
    ) -> None:
        rules = [KeysWithoutTtl(pattern, of_type)]
        super().__init__(client, rules, name=name, ttl=ttl, **options)


def _is_past(ends: float, now: float) -> bool:
    return math.isfinite(ends) and ends <= now


# cacheops may have been given a prefix.
_CACHEOPS = b"conj:"


class DeadTags(Rule):
    """Members of sets or sorted sets that name keys which are gone.

    Arguments:
        pattern: of the sets' names, such as ``"conj:*"``.
        of_type: "set" or "zset".
        key_of: returns the key that a member names, by default the member itself.
        name: ; owner.

    Proof: the key is WATCHed before it is looked for, and its absence is WATCHed too. So a member
    goes only while its key is gone. An owner that writes the key first, and then the member, or
    both in one transaction or script, loses nothing. cacheops does; with another pattern you
    declare that your owner does.
    """

    owner = "tag sets"
    versions = "cacheops 7.0 to 7.2, and any set of key names"
    finds = "Members of tag sets whose keys are gone."
    asked = ({},)

    def __init__(
        self,
        pattern: str | bytes = "conj:*",
        of_type: Literal["set", "zset"] = "set",
        key_of: Callable[[bytes], bytes] | None = None,
        name: str = "tags.dead_members",
    ) -> None:
        self.name = name
        is_cacheops = to_bytes(pattern).startswith(_CACHEOPS) and of_type == "set"
        self.certainty = PROVED if is_cacheops and key_of is None else DECLARED
        self.where = members(pattern, of_type)
        self._type = of_type
        self._key_of = key_of

    def offer(self) -> Offer:
        """Offer a job on the tag sets of a family."""
        if self._key_of is not None:
            return super().offer()
        options = {} if self._type == "set" else {"of_type": self._type}
        return Offer(call(TagSetLeftovers, CLIENT, PATTERN, **options))

    def verdict(self, item: Item) -> Verdicts:
        """Judge a member: it is dead if the key that it names is not there."""
        assert item.member is not None, "the items are members"
        key = item.member if self._key_of is None else self._key_of(item.member)
        (there,) = yield look(("EXISTS", key), watch=key)
        return LIVE if there else member_removed(item.key, self._type, item.member)


class TagSetLeftovers(Leftovers):
    """Removes dead members from tag sets, those of cacheops by default.

    Arguments:
        pattern: see `DeadTags`.
        of_type: see `DeadTags`.
        key_of: see `DeadTags`.
        limit: the most members of a slice, by default 25, which hold the server for about half a
            millisecond; further ones: of `Leftovers`.
    """

    def __init__(
        self,
        client: Any,
        pattern: str | bytes = "conj:*",
        *,
        of_type: Literal["set", "zset"] = "set",
        key_of: Callable[[bytes], bytes] | None = None,
        name: str = "tag_set_leftovers",
        limit: int = 25,
        **options: Any,
    ) -> None:
        rules = (DeadTags(pattern, of_type, key_of),)
        super().__init__(client, rules, name=name, limit=limit, **options)
