"""Dead members of tag sets: sets whose members name keys that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from workstealing.jobs.leftovers import (
    CLIENT,
    DECLARED,
    LIVE,
    PATTERN,
    PROVED,
    Item,
    Leftovers,
    Offer,
    Rule,
    Verdicts,
    call,
    look,
    member_removed,
    members,
)
from workstealing.store.keys import to_bytes

__all__ = ["DeadTags", "TagSetLeftovers"]

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
