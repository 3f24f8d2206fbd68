"""Garbage by the rules: each is asked for the items that a survey meets, and only reads.

A rule that is proved says *certain*; one that must see an item twice says *likely*, since a survey
sees it once; and one that needs something declared, such as a retention, says what it would find if
that were declared.

The rules are the package's own, those of installed packages, and the caller's. A rule says itself
what it is asked for and how its job is offered (`Rule.asked`, `Rule.offer`), so none is named here.
A new rule of the package stands in its module's `__all__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.jobs.leftovers import (
    Basis,
    Garbage,
    Item,
    Offer,
    Parts,
    Rule,
    Unknown,
    exactly,
)
from workstealing.jobs.leftovers.rule import checked_rules
from workstealing.jobs.leftovers.walk import Judging, parts_of
from workstealing.store.connection import Command
from workstealing.store.job_client import Node
from workstealing.store.keys import to_bytes
from workstealing.survey.measuring import Freed, Freeing, Measurer
from workstealing.survey.owners import UNKNOWN
from workstealing.survey.scanning import BEGINNING, Reader, refused
from workstealing.survey.sizing import Finding

MODULES = (
    "workstealing.jobs.celery_leftovers",
    "workstealing.jobs.family_leftovers",
    "workstealing.jobs.library_leftovers",
    "workstealing.jobs.rq_leftovers",
    "workstealing.jobs.stream_leftovers",
)
"""The modules of the package's own rules."""

GROUP = "workstealing.rules"
"""The entry points by which an installed package gives rules to each survey."""


def own_classes() -> list[type[Rule]]:
    """Return the classes of the package's own rules. No command."""
    modules = map(import_module, MODULES)
    public = (getattr(module, name) for module in modules for name in module.__all__)
    return [each for each in public if isinstance(each, type) and issubclass(each, Rule)]


def rules_in(found: Any, place: str) -> tuple[Rule, ...]:
    """Return the rules of an object.

    Arguments:
        found: a rule, some of them, or a function of no arguments that returns one of these, such
            as a class of rules.
        place: where it is, for the error.

    Raises: ConfigurationError.
    """
    if callable(found) and not isinstance(found, Rule):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"the rules {place!r} cannot be made: {type(error).__name__}: {error}"
            ) from error
    try:
        return checked_rules([found] if isinstance(found, Rule) else list(found))
    except TypeError:
        raise ConfigurationError(
            f"{place!r} is a {type(found).__name__}; expected a rule, rules, or a function that"
            " returns them"
        ) from None


def installed_rules(note: Callable[[str], None]) -> Iterator[Rule]:
    """Yield the rules that installed packages give; say which ones cannot be had.

    Arguments:
        note: is told a sentence for people.

    No command.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        try:
            yield from rules_in(point.load(), point.value)
        except WorkStealingError as error:
            note(f"the rules of the entry point {point.name!r} are left out: {error}")
        except Exception as error:  # noqa: BLE001 - a broken package is no reason to know nothing
            note(
                f"the rules of the entry point {point.name!r} are left out, because"
                f" {point.value!r} cannot be loaded: {type(error).__name__}: {error}"
            )


def further_rules(given: Sequence[Rule], note: Callable[[str], None]) -> tuple[Rule, ...]:
    """Return the rules that are asked beside the package's own, with names of their own.

    Arguments:
        given: by the caller of the survey.
        note: is told which installed ones are left out.

    Raises: ConfigurationError for a given one that is no rule, or whose name another one has.
    """
    names = {rule.name for each in own_classes() for rule in each.surveyed({})}
    found = list(checked_rules(given)) if given else []
    for each in found:
        if each.name in names:
            raise ConfigurationError(
                f"the rule {each.name!r} is asked by every survey: give yours another name"
            )
    names |= {each.name for each in found}
    for each in installed_rules(note):
        if each.name in names:
            note(f"the installed rule {each.name!r} is left out: another one has its name")
        else:
            names.add(each.name)
            found.append(each)
    return tuple(found)


CERTAIN, LIKELY, DECLARED, REPORTED = "certain", "likely", "if declared", "reported"
ENDLESS = "no TTL"
"""The kind of keys without a time to live: nothing says that they are garbage."""
MOST_JUDGED = 200_000
"""The items of a rule that are all judged; of the further ones some stand for all."""

MOST_MEMBERS = 20_000
"""The members of a key that are walked; they stand for the others."""

_MEASURED = 2_000
_MEMBERS_A_PAGE = 500
_ANY = b"*"
_SCANS = {"set": ("SSCAN", "SCARD"), "zset": ("ZSCAN", "ZCARD"), "hash": ("HSCAN", "HLEN")}
_MOST_TOLD = 16
_STRANGERS = (UNKNOWN, "limits")
Teller = Callable[[bytes], Mapping[str, Any] | None]
"""Learns arguments of rules from a key's name: see `Rule.tells`."""


class AskedRule:
    """A rule that a survey asks, and how it is offered.

    Attributes: rule; offer; kind: how sure its garbage is at one sighting; by_type: whether it is
    asked for all keys of its type, whatever their names.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule, self.offer = rule, rule.offer()
        self.by_type = rule.where.pattern == _ANY and rule.where.type is not None
        self.kind = _kind(rule, self.offer)

    def is_another(self, verdict: Unknown) -> bool:
        """Say whether an item without the rule's layout is just somebody else's."""
        return self.by_type or self.offer.shared or not verdict.why


def _kind(rule: Rule, offer: Offer) -> str:
    if rule.reports_only:
        return REPORTED
    if offer.declares:
        return DECLARED
    return CERTAIN if rule.certainty.basis is Basis.PROVED else LIKELY


FindingOf = Callable[[bytes, str], Finding]
"""Returns where to note what a rule, by its name in `Judges.offers`, has found at a key."""


class _RuleQuestion(NamedTuple):
    """The question of one rule on one node. Fields: name: of the rule in `Judges.asked`."""

    node: Node
    name: str
    about: AskedRule
    finding: FindingOf


class Judges:
    """Asks the rules for the keys of a survey.

    Arguments:
        whole: whether all items are judged, however many.
        random: returns a float in [0, 1).
        rules: those that are asked beside the package's own.

    Attributes: asked: by name; types: of the keys that some rules are asked for, whatever their
    names.
    """

    def __init__(
        self,
        reader: Reader,
        measurer: Measurer,
        *,
        whole: bool,
        random: Callable[[], float],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._reader, self._measurer = reader, measurer
        self._whole, self._random = whole, random
        self.asked: dict[str, AskedRule] = {}
        self.types: set[str] = set()
        self.judged: dict[str, int] = {}
        # What the names of keys have told, by the function that tells it: a prefix, or a queue.
        self.told: dict[str, list[dict[str, Any]]] = {}
        self._refused: set[str] = set()
        self._tellers: dict[Teller, list[type[Rule]]] = {}
        classes = own_classes()
        for rule in (*(rule for each in classes for rule in each.surveyed({})), *rules):
            self._ask(rule.name, rule)
        for each in dict.fromkeys([*classes, *(type(rule) for rule in rules)]):
            if each.tells is not Rule.tells:
                self._tellers.setdefault(each.tells, []).append(each)

    def _ask(self, name: str, rule: Rule) -> None:
        found = self.asked[name] = AskedRule(rule)
        if found.by_type:
            self.types.add(str(rule.where.type))

    def _learn(self, teller: Teller, told: Mapping[str, Any]) -> None:
        """Ask for the garbage of a program by what the names of its keys have told, too."""
        seen, found = self.told.setdefault(_name_of(teller), []), dict(told)
        if found in seen or sum(map(len, self.told.values())) >= _MOST_TOLD:
            return
        seen.append(found)
        for rule in (rule for each in self._tellers[teller] for rule in each.surveyed(found)):
            self._ask("/".join([rule.name, *map(str, found.values())]), rule)

    def take_up(self, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Learn anew what the names of keys have told before a stop."""
        for teller in self._tellers:
            for each in told.get(_name_of(teller), ()):
                self._learn(teller, each)

    def notice(self, key: bytes) -> None:
        """Learn from a key's name which prefixes and queues there are. No command."""
        for teller in self._tellers:
            told = teller(key)
            if told is not None:
                self._learn(teller, told)

    def wants(self, key: bytes) -> bool:
        """Say whether a rule asks for keys of such a name. No command."""
        return any(
            not each.by_type and each.rule.where.matches(key) for each in self.asked.values()
        )

    def judge(self, node: Node, keys: Sequence[tuple[bytes, str, str]], finding: FindingOf) -> None:
        """Judge the keys of a page.

        Arguments:
            keys: each with its type and its owner.
        """
        for name, one in self.asked.items():
            where = one.rule.where
            mine = [
                key
                for key, of_type, owner in keys
                if (where.type is None or of_type == where.type)
                and not (one.offer.strangers and owner not in _STRANGERS)
                and (one.by_type or where.matches(key))
            ]
            if not mine or name in self._refused:
                continue
            try:
                asked = _RuleQuestion(node, name, one, finding)
                if where.inside:
                    for key in mine:
                        self._members(asked, key)
                else:
                    self._items(asked, [Item(key) for key in mine], 1.0, {})
            except ResponseError as error:
                text = " ".join(str(error).split())
                if next(refused([error]), None) is None:
                    # A slot that moves to another node, say: later pages are judged.
                    self._reader.note(f"the rule {name} could not look at some keys: {text}")
                    continue
                self._refused.add(name)
                self._reader.note(f"the rule {name} cannot look, so it is left out: {text}")

    def _members(self, asked: _RuleQuestion, key: bytes) -> None:
        """Judge the members of a key; of a large one some, which stand for the others."""
        node, of_type = asked.node, str(asked.about.rule.where.type)
        scan, card = _SCANS[of_type]
        (size,) = self._checked(node, [(card, key)])
        items: list[Item] = []
        cursor: Any = BEGINNING
        while True:
            ((cursor, page),) = self._checked(node, [(scan, key, cursor, "COUNT", _MEMBERS_A_PAGE)])
            items += _items_of(key, of_type, page)
            is_last = to_bytes(cursor) == BEGINNING
            is_enough = len(items) >= MOST_MEMBERS and not self._whole
            if len(items) >= _MEMBERS_A_PAGE and self._whole and not is_last:
                # All of a huge key, in a bounded memory.
                self._items(asked, items, 1.0, {key: _mean_length(items)})
                items = []
            if is_last or is_enough:
                break
        if items:
            weight = 1.0 if is_last else max(1.0, size / len(items))
            self._items(asked, items, weight, {key: _mean_length(items)})

    def _items(
        self,
        asked: _RuleQuestion,
        items: Sequence[Item],
        weight: float,
        lengths: dict[bytes, float],
    ) -> None:
        name = asked.name
        chosen: list[Item] = []
        weights: list[float] = []
        for item in items:
            number = self.judged[name] = self.judged.get(name, 0) + 1
            share = 1.0 if self._whole else min(1.0, MOST_JUDGED / number)
            if share >= 1.0 or self._random() < share:
                chosen.append(item)
                weights.append(weight / share)
        for at in range(0, len(chosen), _MEMBERS_A_PAGE):
            some = chosen[at : at + _MEMBERS_A_PAGE]
            self._some(asked, some, weights[at : at + len(some)], lengths)

    def _some(
        self,
        asked: _RuleQuestion,
        items: Sequence[Item],
        weights: Sequence[float],
        lengths: dict[bytes, float],
    ) -> None:
        node, name, one, finding = asked
        one_slot = self._reader.job_client.is_cluster
        judging = Judging(one.rule, items, self._reader.now(node), one_slot=one_slot)
        verdicts = judging.run(lambda commands, _: self._reader.read(node, commands))
        dead: list[tuple[Item, Garbage, float]] = []
        for item, verdict, weight in zip(items, verdicts, weights, strict=True):
            if isinstance(verdict, Garbage):
                dead.append((item, verdict, weight))
            elif isinstance(verdict, Unknown) and not one.is_another(verdict):
                about = finding(item.key, name)
                about.unknown += weight
                about.why = about.why or verdict.why
        self._weigh(asked, dead, lengths)

    def _weigh(
        self,
        asked: _RuleQuestion,
        dead: Sequence[tuple[Item, Garbage, float]],
        lengths: dict[bytes, float],
    ) -> None:
        """Note garbage, and measure some of it."""
        node, name, one, finding = asked
        measured: list[tuple[Finding, Item, Garbage, Parts, float]] = []
        counts = self._parts(asked, [item for item, _, _ in dead])
        for (item, garbage, weight), parts in zip(dead, counts, strict=True):
            if not parts.number:
                continue
            about = finding(item.key, name)
            about.found += 1
            about.note(weight, parts.number, parts.low, parts.high)
            share = 1.0 if self._whole else min(1.0, _MEASURED / about.found)
            if not one.rule.reports_only and (share >= 1.0 or self._random() < share):
                measured.append((about, item, garbage, parts, weight / share))
        freeing = Freeing(self._reader, self._measurer, node, lengths)
        keys = [each.key for _, _, garbage, _, _ in measured for each in garbage.removals]
        freeing.measure([*keys, *(item.key for _, item, _, _, _ in measured)])
        for about, item, garbage, parts, weight in measured:
            if garbage.script is None:
                freed: Freed | None = freeing.of(garbage)
            elif not one.offer.sized:
                freed = None
            else:
                freed = freeing.of_parts(item, parts)
            if freed is not None:
                number = parts.number
                about.size.note(freed.value / number, weight, freed.variance / number, times=number)

    def _parts(self, asked: _RuleQuestion, items: Sequence[Item]) -> list[Parts]:
        rule = asked.about.rule
        if not rule.counted_in:
            return [exactly(1, 1)] * len(items)
        return parts_of(
            rule,
            items,
            self._reader.now(asked.node),
            lambda commands, _: self._reader.read(asked.node, commands),
            one_slot=self._reader.job_client.is_cluster,
        )

    def _checked(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        replies = self._reader.read(node, commands)
        for each in replies:
            if isinstance(each, Exception):
                raise each
        return replies


def _name_of(teller: Teller) -> str:
    return f"{teller.__module__}.{teller.__qualname__}"


def _items_of(key: bytes, of_type: str, page: Sequence[Any]) -> list[Item]:
    if of_type == "set":
        return [Item(key, to_bytes(member)) for member in page]
    pairs = zip(page[::2], page[1::2], strict=True)
    if of_type == "zset":
        return [Item(key, to_bytes(member), float(score)) for member, score in pairs]
    return [Item(key, to_bytes(member), value) for member, value in pairs]


def _mean_length(items: Sequence[Item]) -> float:
    """Return the mean length of some members, with their values where these are bytes."""
    return sum(map(_length, items)) / max(1, len(items))


def _length(item: Item) -> int:
    value = item.value if isinstance(item.value, bytes) else b""
    return len(item.member or b"") + len(value)
