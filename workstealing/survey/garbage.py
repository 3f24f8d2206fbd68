"""Garbage by the rules: each is asked for the items that a survey meets, and only reads.

A rule that is proved says *certain*; one that must see an item twice says *likely*, since a survey
sees it once; and one that needs something declared, such as a retention, says what it would find if
that were declared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.jobs.celery_leftovers import (
    CeleryLeftovers,
    DeadBindings,
    ReplyLists,
    RpcReplies,
    UnacknowledgedMessages,
)
from workstealing.jobs.family_leftovers import OldScores
from workstealing.jobs.leftovers import (
    Basis,
    Garbage,
    Item,
    Leftovers,
    Parts,
    Rule,
    Unknown,
    exactly,
)
from workstealing.jobs.leftovers.judging import Judging, parts_of
from workstealing.jobs.library_leftovers import (
    HueyLeftovers,
    HueyResults,
    HueyRevocations,
    LangGraphLeftovers,
    OrphanedWrites,
)
from workstealing.jobs.rq_leftovers import (
    DeadWorkers,
    EndedJobs,
    GhostJobs,
    OrphanedResults,
    RqLeftovers,
    StrandedJobs,
    WorkersWithoutBirth,
)
from workstealing.jobs.stream_leftovers import (
    AbandonedEntries,
    AcknowledgedEntries,
    EntriesBeyond,
    IdleConsumers,
    StreamLeftovers,
    UnreadGroups,
)
from workstealing.jobs.tag_set_leftovers import DeadTags, TagSetLeftovers
from workstealing.store.connection import Command
from workstealing.store.keys import to_bytes
from workstealing.store.twin import Node
from workstealing.survey.families import pattern_of
from workstealing.survey.freeing import Freed, Freeing
from workstealing.survey.measuring import Measurer
from workstealing.survey.owners import UNKNOWN
from workstealing.survey.scanning import BEGINNING, Reader, refused
from workstealing.survey.sizing import Finding

CERTAIN, LIKELY, DECLARED, REPORTED = "certain", "likely", "if declared", "reported"
ENDLESS = "no TTL"
"""The kind of keys without a time to live: nothing says that they are garbage."""
DAY = 86_400.0
ABANDONED_SECONDS = 3_600.0
"""For so long a consumer with pending entries has asked for nothing, before a survey says so."""

MOST_JUDGED = 200_000
"""The items of a rule that are all judged; of the further ones some stand for all."""

MOST_MEMBERS = 20_000
"""The members of a key that are walked; they stand for the others."""

MOST_ENTRIES = 100_000
"""The bound of streams that a survey assumes."""

_MEASURED = 2_000
_MEMBERS_A_PAGE = 500
_SCANS = {"set": ("SSCAN", "SCARD"), "zset": ("ZSCAN", "ZCARD"), "hash": ("HSCAN", "HLEN")}
_MOST_TOLD = 16
_UNITS = {"seconds": 1, "milliseconds": 1_000, "microseconds": 1_000_000}
_HUEY = re.compile(rb"huey\.(redis|schedule|results|r)\.([A-Za-z0-9_]+)(?:\..*)?", re.DOTALL)
_STRANGERS = (UNKNOWN, "limits")
_REPLIES = re.compile(
    rb"(.*?)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.reply\.celery\.pidbox", re.DOTALL
)


class Declared(NamedTuple):
    """An argument that the user must give in a call. Fields: name; assumed: its value."""

    name: str
    assumed: Any = DAY


CLIENT, PATTERN = object(), object()
"""In a `Call`: the user's client, and the pattern of a family of keys."""


class Call:
    """A call that a user writes: it is shown as text, and called to plan the job that it returns.

    Arguments: function; values and options: plain ones, `Declared`, CLIENT, PATTERN, further calls,
    and lists of these.
    """

    def __init__(self, function: Callable[..., Any], *values: Any, **options: Any) -> None:
        self._function, self._values, self._options = function, values, options

    def text(self, shape: str, *, removes: bool = False) -> str:
        """Return the call as the user writes it.

        Arguments: shape: of the family; removes: whether the job removes, and is no dry run.
        """

        def said(value: Any) -> str:
            if isinstance(value, Call):
                return value.text(shape)
            if isinstance(value, list):
                return f"[{', '.join(map(said, value))}]"
            if isinstance(value, Declared):
                return f"<{value.name}>"
            return "client" if value is CLIENT else repr(_plain(value, shape))

        words = [said(each) for each in self._values]
        words += [f"{name}={said(each)}" for name, each in self._options.items()]
        words += ["dry_run=False"] if removes else []
        return f"{self._function.__name__}({', '.join(words)})"

    def result(self, client: Any, shape: str) -> Any:
        """Do the call, with what is assumed. Arguments: client; shape: of the family."""

        def made(value: Any) -> Any:
            if isinstance(value, Call):
                return value.result(client, shape)
            if isinstance(value, list):
                return [made(each) for each in value]
            if isinstance(value, Declared):
                return value.assumed
            return client if value is CLIENT else _plain(value, shape)

        options = {name: made(each) for name, each in self._options.items()}
        return self._function(*map(made, self._values), **options)


def _plain(value: Any, shape: str) -> Any:
    return pattern_of(shape) if value is PATTERN else value


@dataclass(frozen=True)
class Offer:
    """A rule, and how a user would install it.

    Fields: rule; job: the call that makes it; declares: what the user must declare, with the value
    that the survey assumes: "retention=30 d"; by_type: whether it is asked for all keys of its
    type, whatever their names; strangers: whether it is not asked for the keys of known owners.
    """

    rule: Rule
    job: Call
    declares: str = ""
    by_type: bool = False
    strangers: bool = False

    @property
    def kind(self) -> str:
        """How sure its garbage is at one sighting."""
        if self.rule.reports_only:
            return REPORTED
        if self.declares:
            return DECLARED
        return CERTAIN if self.rule.certainty.basis is Basis.PROVED else LIKELY


def offers_of_kombu(prefix: str) -> list[Offer]:
    """Return the rules of Celery. Arguments: prefix: kombu's `global_keyprefix`."""
    own = {"prefix": prefix} if prefix else {}
    celery = Call(CeleryLeftovers, CLIENT, **own)
    waiting = Call(CeleryLeftovers, CLIENT, **own, wait=Declared("LONGEST_WAIT"))
    living = Call(CeleryLeftovers, CLIENT, **own, life=Declared("LONGEST_LIFE_OF_A_CLIENT"))
    return [
        Offer(ReplyLists(prefix), celery),
        Offer(UnacknowledgedMessages(prefix), celery),
        Offer(RpcReplies(DAY, prefix), waiting, "wait=1 d"),
        Offer(DeadBindings(7 * DAY, prefix), living, "life=7 d"),
    ]


def offers_of_huey(queue: str, *, expiring: bool) -> list[Offer]:
    """Return the rules of Huey. Arguments: as of `HueyRevocations`."""
    own = {"expiring": True} if expiring else {}
    revoked = HueyRevocations(queue, expiring=expiring)
    found = [Offer(revoked, Call(HueyLeftovers, CLIENT, queue, **own))]
    if not expiring:
        kept = Call(HueyLeftovers, CLIENT, queue, retention=Declared("RETENTION"))
        found.append(Offer(HueyResults(queue, 30 * DAY), kept, "retention=30 d"))
    return found


def offers() -> list[Offer]:
    """Return the rules that need no name of a queue, and no prefix."""
    rq = Call(RqLeftovers, CLIENT)
    retention = Call(RqLeftovers, CLIENT, retention=Declared("RETENTION"))
    idle = Call(StreamLeftovers, CLIENT, PATTERN, idle=Declared("LONGEST_IDLE"))
    most = Declared("MOST_ENTRIES", MOST_ENTRIES)
    found = [
        Offer(GhostJobs(), rq),
        Offer(DeadWorkers(), rq),
        Offer(WorkersWithoutBirth(), rq),
        Offer(OrphanedResults(), rq),
        Offer(EndedJobs("canceled", 30 * DAY), retention, "retention=30 d"),
        Offer(EndedJobs("failed", 30 * DAY), retention, "retention=30 d"),
        Offer(StrandedJobs(30 * DAY), retention, "retention=30 d"),
        Offer(DeadTags("conj:*"), Call(TagSetLeftovers, CLIENT, PATTERN)),
        Offer(OrphanedWrites(), Call(LangGraphLeftovers, CLIENT)),
        Offer(AcknowledgedEntries("*"), Call(StreamLeftovers, CLIENT, PATTERN), by_type=True),
        Offer(IdleConsumers("*", 7 * DAY), idle, "idle=7 d", by_type=True),
        Offer(UnreadGroups("*", 7 * DAY), idle, by_type=True),
        Offer(AbandonedEntries("*", ABANDONED_SECONDS), idle, by_type=True),
        Offer(
            EntriesBeyond("*", most=MOST_ENTRIES),
            Call(StreamLeftovers, CLIENT, PATTERN, most=most),
            f"most={MOST_ENTRIES}",
            by_type=True,
            strangers=True,
        ),
    ]
    for unit in _UNITS:
        rule = OldScores("*", DAY, unit, name=f"families.old_scores.{unit}")
        scores = Call(OldScores, PATTERN, window=Declared("WINDOW"), unit=unit)
        job = Call(Leftovers, CLIENT, [scores])
        found.append(Offer(rule, job, "window=1 d", by_type=True, strangers=True))
    return found


FindingOf = Callable[[bytes, str], Finding]
"""Returns where to note what a rule, by its name in `Judges.offers`, has found at a key."""


class _AskedRule(NamedTuple):
    """The question of one rule on one node. Fields: name: of the offer in `Judges.offers`."""

    node: Node
    name: str
    offer: Offer
    finding: FindingOf


class Judges:
    """Asks the rules for the keys of a survey.

    Arguments: reader; measurer; whole: whether all items are judged, however many; random: returns
    a float in [0, 1). Attributes: offers: by name.
    """

    def __init__(
        self, reader: Reader, measurer: Measurer, *, whole: bool, random: Callable[[], float]
    ) -> None:
        self._reader, self._measurer = reader, measurer
        self._whole, self._random = whole, random
        self.offers: dict[str, Offer] = {}
        self.judged: dict[str, int] = {}
        # Facts that the names of keys have told: a `global_keyprefix` of kombu, or a queue of Huey.
        self.told: list[list[str]] = []
        self._refused: set[str] = set()
        for each in (*offers(), *offers_of_kombu("")):
            self.offers[each.rule.name] = each

    def learn(self, kind: str, name: str) -> None:
        """Ask for the garbage of a program by what the names of its keys have told, too."""
        if [kind, name] in self.told or len(self.told) >= _MOST_TOLD:
            return
        self.told.append([kind, name])
        if kind == "kombu":
            found = offers_of_kombu(name)
        else:
            found = offers_of_huey(name, expiring=kind == "huey.r")
        for each in found:
            self.offers[f"{each.rule.name}/{kind}/{name}"] = each

    def notice(self, key: bytes) -> None:
        """Learn from a key's name which prefixes and queues there are. No command."""
        if key.endswith(b".reply.celery.pidbox"):
            found = _REPLIES.fullmatch(key)
            if found is not None and found[1]:
                self.learn("kombu", found[1].decode("utf-8", "replace"))
        elif key.startswith(b"huey."):
            found = _HUEY.fullmatch(key)
            if found is not None:
                kind = "huey.r" if found[1] == b"r" else "huey"
                self.learn(kind, found[2].decode("ascii"))

    def wants(self, key: bytes) -> bool:
        """Say whether a rule asks for keys of such a name. No command."""
        return any(
            not each.by_type and each.rule.where.matches(key) for each in self.offers.values()
        )

    def judge(self, node: Node, keys: Sequence[tuple[bytes, str, str]], finding: FindingOf) -> None:
        """Judge the keys of a page. Arguments: keys: each with its type and its owner; finding."""
        for name, offer in self.offers.items():
            where = offer.rule.where
            mine = [
                key
                for key, of_type, owner in keys
                if (where.type is None or of_type == where.type)
                and not (offer.strangers and owner not in _STRANGERS)
                and (offer.by_type or where.matches(key))
            ]
            if not mine or name in self._refused:
                continue
            try:
                asked = _AskedRule(node, name, offer, finding)
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

    def _members(self, asked: _AskedRule, key: bytes) -> None:
        """Judge the members of a key; of a large one some, which stand for the others."""
        node, of_type = asked.node, str(asked.offer.rule.where.type)
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
        asked: _AskedRule,
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
        asked: _AskedRule,
        items: Sequence[Item],
        weights: Sequence[float],
        lengths: dict[bytes, float],
    ) -> None:
        node, name, offer, finding = asked
        one_slot = self._reader.twin.is_cluster
        judging = Judging(offer.rule, items, self._reader.now(node), one_slot=one_slot)
        verdicts = judging.run(lambda commands, _: self._reader.read(node, commands))
        dead: list[tuple[Item, Garbage, float]] = []
        for item, verdict, weight in zip(items, verdicts, weights, strict=True):
            if isinstance(verdict, Garbage):
                dead.append((item, verdict, weight))
            elif isinstance(verdict, Unknown) and not _is_another(offer, verdict):
                about = finding(item.key, name)
                about.unknown += weight
                about.why = about.why or verdict.why
        self._weigh(asked, dead, lengths)

    def _weigh(
        self,
        asked: _AskedRule,
        dead: Sequence[tuple[Item, Garbage, float]],
        lengths: dict[bytes, float],
    ) -> None:
        """Note garbage, and measure some of it."""
        node, name, offer, finding = asked
        measured: list[tuple[Finding, Item, Garbage, Parts, float]] = []
        counts = self._parts(asked, [item for item, _, _ in dead])
        for (item, garbage, weight), parts in zip(dead, counts, strict=True):
            if not parts.number:
                continue
            about = finding(item.key, name)
            about.found += 1
            about.note(weight, parts.number, parts.low, parts.high)
            share = 1.0 if self._whole else min(1.0, _MEASURED / about.found)
            if not offer.rule.reports_only and (share >= 1.0 or self._random() < share):
                measured.append((about, item, garbage, parts, weight / share))
        freeing = Freeing(self._reader, self._measurer, node, lengths)
        keys = [each.key for _, _, garbage, _, _ in measured for each in garbage.removals]
        freeing.measure([*keys, *(item.key for _, item, _, _, _ in measured)])
        for about, item, garbage, parts, weight in measured:
            if garbage.script is None:
                freed: Freed | None = freeing.of(garbage)
            elif offer.rule.counted_in == "consumers":
                # They take some bytes beside the stream's entries, and nothing tells how many.
                freed = None
            else:
                freed = freeing.of_parts(item, parts)
            if freed is not None:
                number = parts.number
                about.size.note(freed.value / number, weight, freed.variance / number, times=number)

    def _parts(self, asked: _AskedRule, items: Sequence[Item]) -> list[Parts]:
        rule = asked.offer.rule
        if not rule.counted_in:
            return [exactly(1, 1)] * len(items)
        return parts_of(
            rule,
            items,
            self._reader.now(asked.node),
            lambda commands, _: self._reader.read(asked.node, commands),
            one_slot=self._reader.twin.is_cluster,
        )

    def _checked(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        replies = self._reader.read(node, commands)
        for each in replies:
            if isinstance(each, Exception):
                raise each
        return replies


def _is_another(offer: Offer, verdict: Unknown) -> bool:
    """Say whether an item without the rule's layout is just somebody else's."""
    # A rule that is asked for all keys of a type, or for all lists named by a UUID.
    return offer.by_type or isinstance(offer.rule, RpcReplies) or not verdict.why


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
