"""Judging: the verdicts on many items at once, with as few round trips as for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from workstealing.store.connection import Command
from workstealing.store.keys import key_slot, to_bytes

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
