"""The walk of one rule over one node, and the verdicts on the items of its pages.

The walk goes on from a shared place, page after page. Many items are judged at once, with as few
round trips as for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from workstealing.jobs.leftovers.rule import (
    LIVE,
    Item,
    Look,
    Looks,
    Parts,
    Rule,
    Unknown,
    exactly,
)
from workstealing.jobs.shared.key_walk import KeyShare, StoredPlace, is_users_key, scan_page
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.paging import BEGINNING

Send = Callable[[list[Command], tuple[bytes, ...]], list[Any]]
"""Sends commands in one round trip, after WATCH on some keys; returns their replies, errors too."""

# The commands whose key is not their first argument.
_KEY_SECOND = frozenset({"XINFO", "OBJECT", "MEMORY"})
_KEYS_ONLY = frozenset({"EXISTS", "MGET", "UNLINK", "DEL"})


class Judging:
    """The verdicts of one rule on some items, asked for in lock step.

    Arguments:
        now: the server's time, in seconds since the epoch.
        one_slot: whether all keys of an item must share its hash slot, as on a cluster.
        counts: whether the rule is asked for the items' parts, and not for their verdicts.

    Attributes: looks: the present step of each item without a verdict so far.
    """

    def __init__(
        self,
        rule: Rule,
        items: Sequence[Item],
        now: float,
        *,
        one_slot: bool = False,
        counts: bool = False,
    ) -> None:
        self._items = items
        self._one_slot = one_slot
        self._verdicts: list[Any] = [LIVE] * len(items)
        self.looks: list[tuple[int, Looks[Any], Look]] = []
        asked: Callable[[Item], Looks[Any]] = rule.parts if counts else rule.verdict
        for number, item in enumerate(items):
            self._go_on(number, asked(item._replace(now=now)), None)

    def run(self, send: Send) -> list[Any]:
        """Ask until each item has its verdict, or its parts; return them in order.

        Raises: errors of `send`; error replies that say nothing of the item, such as NOPERM. One
        round trip for each step of the longest verdict.
        """
        while self.looks:
            looks, self.looks = self.looks, []
            watch = tuple(dict.fromkeys(key for _, _, each in looks for key in each.watch))
            # Many items may ask for the same, such as the length of one queue: it is read once.
            commands = list(dict.fromkeys(one for _, _, each in looks for one in each.commands))
            asked = send(commands, watch) if commands or watch else []
            replies = dict(zip(commands, asked, strict=True))
            for number, verdicts, each in looks:
                self._answer(number, verdicts, [replies[one] for one in each.commands])
        return self._verdicts

    def watched(self) -> tuple[bytes, ...]:
        """Return the keys to WATCH before the present looks."""
        return tuple(dict.fromkeys(key for _, _, each in self.looks for key in each.watch))

    def _answer(self, number: int, verdicts: Looks[Any], replies: list[Any]) -> None:
        wrong = next((each for each in replies if isinstance(each, Exception)), None)
        if wrong is None:
            self._go_on(number, verdicts, replies)
            return
        verdicts.close()
        if not is_of_the_key(wrong):
            raise wrong

    def _go_on(self, number: int, verdicts: Looks[Any], replies: Any) -> None:
        try:
            look = verdicts.send(replies)
        except StopIteration as done:
            self._verdicts[number] = done.value
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - what a rule cannot read, it does not know
            self._verdicts[number] = Unknown(f"{type(error).__name__}: {error}")
        else:
            if self._one_slot and not _in_one_slot(self._items[number].key, look):
                verdicts.close()
                self._verdicts[number] = Unknown("its keys lie in several hash slots")
                return
            self.looks.append((number, verdicts, look))


def parts_of(
    rule: Rule, items: Sequence[Item], now: float, send: Send, *, one_slot: bool = False
) -> list[Parts]:
    """Count items that are garbage in the rule's unit; one that has gone meanwhile has no part.

    Arguments, raises and cost: as of `Judging`.
    """
    found = Judging(rule, items, now, one_slot=one_slot, counts=True).run(send)
    return [each if isinstance(each, Parts) else exactly(0, 0) for each in found]


def is_of_the_key(error: Exception) -> bool:
    """Say whether an error reply only means that a key has gone, or is another one by now."""
    if not isinstance(error, ResponseError) or isinstance(error, NoPermissionError):
        return False
    text = str(error).lower()
    return "wrong kind of value" in text or "no such key" in text


def keys_of(command: Command) -> tuple[bytes, ...]:
    """Return the keys of a reading or removing command as rules use them."""
    name, *rest = command
    if name in _KEY_SECOND:
        return (to_bytes(rest[1]),)
    if name in _KEYS_ONLY:
        return tuple(map(to_bytes, rest))
    return (to_bytes(rest[0]),) if rest else ()


def _in_one_slot(key: bytes, look: Look) -> bool:
    slot = key_slot(key)
    named = (*look.watch, *(each for command in look.commands for each in keys_of(command)))
    return all(key_slot(each) == slot for each in named)


KEYS_A_PAGE, MEMBERS_A_PAGE, KEYS_AT_ONCE = 250, 50, 8
"""A page of members is no longer than a slice, either: the rest would be judged in vain."""
_SCANS = {"set": "SSCAN", "zset": "ZSCAN", "hash": "HSCAN"}


@dataclass(frozen=True)
class RulePlace(StoredPlace):
    """The place of a rule's walk on one node.

    Fields: facts: for which the cursor holds; cursor: of SCAN, of the present page; inside: the key
    whose members come next, and at: the cursor there; rests: until when, in seconds since the
    epoch, after a lap that found little; laps: that have ended; pages and judged: the pages of this
    lap, and their items; found and size: its garbage, and the bytes of that; last_found and
    last_size: those of the lap before.
    """

    facts: bytes = b""
    cursor: bytes = BEGINNING
    inside: bytes = b""
    at: bytes = BEGINNING
    rests: float = 0.0
    laps: int = 0
    pages: int = 0
    judged: int = 0
    found: int = 0
    size: int = 0
    last_found: int = 0
    last_size: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Some items of a walk.

    Fields: items; now: the server's time, in seconds since the epoch; after: the place behind the
    items; is_end: whether they were the last ones of a lap.
    """

    items: list[Item]
    now: float
    after: RulePlace
    is_end: bool


class Pages:
    """The pages of a rule's walk over a node.

    Arguments:
        share: of the keys.
    """

    def __init__(
        self, job_client: JobClient, node: Node, rule: Rule, slice: Slice, share: KeyShare
    ) -> None:
        self._job_client, self._node, self._rule = job_client, node, rule
        self._slice, self._share = slice, share

    def steps(self, place: RulePlace) -> Iterator[Step]:
        """Yield the items from a place on, to the end of the lap.

        Raises: OutOfTime; connection faults; error replies. One round trip a step, and one for each
        page of keys.
        """
        where = self._rule.where
        while True:
            of_type = () if where.type is None else ("TYPE", where.type)
            # In the middle of a large key the others of its page are not needed yet.
            is_within = where.inside and place.at != BEGINNING
            count = 1 if is_within else KEYS_A_PAGE
            scan = ("SCAN", place.cursor, "MATCH", where.pattern, "COUNT", count, *of_type)
            page = scan_page(self._job_client, self._node, scan, self._slice, ("TIME",))
            if page.facts != place.facts:
                is_new = not place.facts
                place = replace(place, facts=page.facts)
                if not is_new:
                    place = replace(place, cursor=BEGINNING, inside=b"", at=BEGINNING)
                    continue
            ((seconds, micros),) = page.replies
            now = int(seconds) + int(micros) / 1e6
            if is_within:
                items, done, at = self._some_members([place.inside], place.at)
                # Behind a key comes the next name that can be.
                inside = place.inside + b"\0" if done else place.inside
                place = replace(place, inside=inside, at=at)
                yield Step(items, now, place, is_end=False)
                continue
            # The same cursor shows the same keys, so a place among them is told by a name.
            mine = {
                each
                for each in page.keys
                if each >= place.inside and self._share.has(each) and is_users_key(each)
            }
            keys = sorted(mine)
            behind = replace(place, cursor=page.cursor, inside=b"", at=BEGINNING)
            is_last = page.cursor == BEGINNING
            if where.inside:
                yield from self._members(keys, now, place, behind)
            else:
                yield Step([Item(each) for each in keys], now, behind, is_last)
            if is_last:
                return
            place = behind

    def _members(
        self, keys: list[bytes], now: float, place: RulePlace, behind: RulePlace
    ) -> Iterator[Step]:
        """Yield the members of a page's keys: of small keys many at once."""
        at = BEGINNING
        is_last = behind.cursor == BEGINNING
        if not keys:
            yield Step([], now, behind, is_last)
        while keys:
            items, done, at = self._some_members(keys[:KEYS_AT_ONCE], at)
            keys = keys[done:]
            after = replace(place, inside=keys[0], at=at) if keys else behind
            yield Step(items, now, after, is_last and not keys)

    def _some_members(self, keys: list[bytes], at: bytes) -> tuple[list[Item], int, bytes]:
        """Return some members of some keys, how many keys are done, and the cursor in the next."""
        scan = _SCANS[str(self._rule.where.type)]
        count = min(MEMBERS_A_PAGE, self._slice.limit)
        commands: list[Command] = [
            (scan, key, at if number == 0 else BEGINNING, "COUNT", count)
            for number, key in enumerate(keys)
        ]
        self._slice.spend(len(commands))
        replies = self._job_client.call(self._node, commands, Budget(self._slice.remaining()))
        items: list[Item] = []
        for number, (key, reply) in enumerate(zip(keys, replies, strict=True)):
            if isinstance(reply, Exception):
                if not is_of_the_key(reply):
                    raise reply
                # It has become another key since the page was read.
                continue
            items += _items(self._rule, key, reply[1])
            if reply[0] != BEGINNING:
                # A large key: its next page comes before any other key.
                return items, number, reply[0]
        return items, len(keys), BEGINNING


def _items(rule: Rule, key: bytes, page: Sequence[bytes]) -> list[Item]:
    kind = rule.where.type
    if kind == "set":
        return [Item(key, member) for member in page]
    pairs = zip(page[::2], page[1::2], strict=True)
    if kind == "zset":
        return [Item(key, to_bytes(member), float(score)) for member, score in pairs]
    return [Item(key, member, value) for member, value in pairs]
