"""Rules: how the garbage of one owner, another program, is recognised, removed, and offered.

A rule is written once. The survey asks it while it reads, a job asks it a slice at a time, and a
Spark sweep asks it for all items at once. A rule says itself how the survey offers the rule's job
(`Rule.offer`), so the survey knows no rule by name.
"""

from __future__ import annotations

import abc
import enum
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.store.connection import Command
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation

DAY = 86_400.0
_SPANS = ((DAY, "d"), (3_600.0, "h"), (1.0, "s"))


class Declared(NamedTuple):
    """An argument that the user must give in a call.

    Fields: name: the placeholder; assumed: the value by which the survey counts: a float is a time
    in seconds.
    """

    name: str
    assumed: float


CLIENT = object()
"""In a `Call`: the user's client."""
PATTERN = object()
"""In a `Call`: the pattern of a family of keys."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a user writes: it is shown as text, and called to plan the job that it returns.

    Fields: function; values and options: plain ones, `Declared`, CLIENT, PATTERN, further calls,
    and lists of these.
    """

    function: Callable[..., Any]
    values: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def text(self, pattern: str, *, removes: bool = False) -> str:
        """Return the call as the user writes it.

        Arguments:
            pattern: of the family.
            removes: whether the job removes, and is no dry run.
        """

        def said(value: Any) -> str:
            if isinstance(value, Call):
                return value.text(pattern)
            if isinstance(value, list):
                return f"[{', '.join(map(said, value))}]"
            if isinstance(value, Declared):
                return f"<{value.name}>"
            return "client" if value is CLIENT else repr(pattern if value is PATTERN else value)

        words = [said(each) for each in self.values]
        words += [f"{name}={said(each)}" for name, each in self.options.items()]
        words += ["dry_run=False"] if removes else []
        return f"{self.function.__name__}({', '.join(words)})"

    def result(self, client: Any, pattern: str) -> Any:
        """Do the call, with what is assumed.

        Arguments:
            pattern: of the family.
        """

        def made(value: Any) -> Any:
            if isinstance(value, Call):
                return value.result(client, pattern)
            if isinstance(value, list):
                return [made(each) for each in value]
            if isinstance(value, Declared):
                return value.assumed
            return client if value is CLIENT else pattern if value is PATTERN else value

        options = {name: made(each) for name, each in self.options.items()}
        return self.function(*map(made, self.values), **options)

    def declared(self) -> Iterator[tuple[str, Declared]]:
        """Yield what the user must declare, each with the name of its option."""
        for name, value in self.options.items():
            if isinstance(value, Declared):
                yield name, value
        for each in self.values:
            for one in each if isinstance(each, list) else [each]:
                if isinstance(one, Call):
                    yield from one.declared()


def call(function: Callable[..., Any], *values: Any, **options: Any) -> Call:
    """Return a call. Arguments as in `Call`."""
    return Call(function, values, options)


@dataclass(frozen=True, slots=True)
class Offer:
    """How the survey offers a rule's job, and how it counts and sizes the garbage.

    Fields: job: the call that makes it; strangers: whether the rule is asked for the keys of nobody
    that is known alone; shared: whether keys of others lie where the rule looks, so that an item
    that it does not recognise is no news; sized: whether the bytes that its garbage frees can be
    told.
    """

    job: Call
    strangers: bool = False
    shared: bool = False
    sized: bool = True

    @property
    def declares(self) -> str:
        """What the user must declare, with the value that the survey assumes: "retention=30 d"."""
        return ", ".join(f"{name}={_shown(each.assumed)}" for name, each in self.job.declared())


def _shown(value: float) -> str:
    if not isinstance(value, float):
        return str(value)
    length, unit = next(each for each in _SPANS if value >= each[0] or each[0] == 1.0)
    return f"{value / length:g} {unit}"


T = TypeVar("T")
KeyType = Literal["string", "list", "set", "zset", "hash", "stream", "ReJSON-RL"]
MEMBER_TYPES = ("set", "zset", "hash")


class Basis(enum.Enum):
    """The reason why an item counts as garbage."""

    PROVED = "proved"
    """It follows from the owner's own code."""

    SEEN_TWICE = "seen twice"
    """The item was the same at two sightings, a declared time apart."""

    DECLARED = "declared"
    """The user says so: by a retention, a window or a longest wait."""


@dataclass(frozen=True, slots=True)
class Certainty:
    """How certain a rule is.

    Fields: basis; gap: for SEEN_TWICE, the seconds that lie between the two sightings at least.
    """

    basis: Basis
    gap: float = 0.0


PROVED = Certainty(Basis.PROVED)
DECLARED = Certainty(Basis.DECLARED)


def seen_twice(gap: Duration) -> Certainty:
    """Return the certainty of items that did not change between two sightings at least a gap apart.

    Arguments:
        gap: seconds or a timedelta, at least one second.

    Raises: ConfigurationError.
    """
    return Certainty(Basis.SEEN_TWICE, seconds_of(gap, "gap", 1.0))


@dataclass(frozen=True)
class Where:
    """Where a rule looks: at keys, or at the members of keys.

    Fields: pattern: of the keys, as of Redis's MATCH; type: of the keys, None: any; inside: whether
    the items are the members of the keys (of a set, a sorted set or a hash) and not the keys
    themselves.
    """

    pattern: bytes
    type: KeyType | None
    inside: bool = False

    def matches(self, key: bytes) -> bool:
        """Say whether a key's name matches the pattern. No command."""
        return _compiled(self.pattern).fullmatch(key) is not None


def keys(pattern: str | bytes, of_type: KeyType | None) -> Where:
    """Return the `Where` of a rule whose items are keys. Arguments as in `Where`."""
    return Where(to_bytes(pattern), of_type)


def members(pattern: str | bytes, of_type: KeyType) -> Where:
    """Return the `Where` of a rule whose items are the members of keys.

    Arguments as in `Where`. Raises: ConfigurationError for a type of keys that have no members.
    """
    if of_type not in MEMBER_TYPES:
        raise ConfigurationError(
            f"a rule cannot walk the members of a {of_type}: expected a set, a zset or a hash"
        )
    return Where(to_bytes(pattern), of_type, inside=True)


def literally(text: str) -> str:
    """Return a text as a part of a pattern of MATCH, where it matches itself alone."""
    return "".join(f"\\{each}" if each in r"\*?[]^" else each for each in text)


class Item(NamedTuple):
    """Something that a rule judges.

    Fields: key; member: of the key, None: the item is the key; value: the member's score as a
    float, or its value as bytes, None in a set; now: the time of the server that holds it, in
    seconds since the epoch.
    """

    key: bytes
    member: bytes | None = None
    value: Any = None
    now: float = 0.0


class Look(NamedTuple):
    """A step of a verdict: what to read next.

    Fields: commands: reading ones; watch: the keys that an attempt WATCHes before it reads. Every
    write of the owner that could make the item live again must change one of them, or a key that an
    earlier look of the same verdict has named.
    """

    commands: Sequence[Command]
    watch: Sequence[bytes] = ()


def look(*commands: Command, watch: bytes | Sequence[bytes] = ()) -> Look:
    """Return a look. Arguments as in `Look`; watch may be a single key."""
    return Look(commands, (watch,) if isinstance(watch, bytes) else watch)


class Removal(NamedTuple):
    """Something to remove: a key, or a member of one.

    Fields: key; type: None: the key itself, whatever it holds; else that of the key whose member
    is removed: "set", "zset", "hash" or "list"; member.
    """

    key: bytes
    type: str | None = None
    member: bytes = b""


class Live(NamedTuple):
    """The verdict that an item is in use, or may be."""


class Unknown(NamedTuple):
    """The verdict that an item's layout is none that the rule knows; it is never touched.

    Fields: why: in a few words.
    """

    why: str


class Garbage(NamedTuple):
    """The verdict that an item is garbage.

    Fields: removals: all of them at once, or none; fingerprint: for a rule of SEEN_TWICE, anything
    that changes when the owner uses the item; script: removes by itself in place of `removals`,
    where no WATCH sees what the owner does, and returns how many parts it has removed: its keys and
    its own arguments, to which the job adds the room (the most parts that the slice may still
    remove; a hundred go at least, if there is so much room and there are so many) and its audit
    stream (see `lua/leftovers/note.lua`). A rule with a script counts its parts in `Rule.parts`.
    """

    removals: tuple[Removal, ...] = ()
    fingerprint: bytes = b""
    script: Operation | None = None


class Parts(NamedTuple):
    """How many parts of an item a rule's script would remove now, of how many that it has.

    Fields: number; of: how many of the same kind the item has, the rest too; low and high: the
    bounds within which the number lies for certain; both are the number itself where nothing was
    estimated.
    """

    number: int
    of: int
    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing was estimated."""
        return self.low == self.high


def exactly(number: int, of: int) -> Parts:
    """Return a number of parts that is no estimate. Arguments as in `Parts`."""
    return Parts(number, of, number, number)


Verdict = Live | Unknown | Garbage
Looks = Generator[Look, Sequence[Any], T]
"""A generator of looks that returns a T: `Judging` asks those of many items at once."""
Verdicts = Looks[Verdict]
"""The generator of an item's verdict: it yields looks and returns the verdict."""
Counting = Looks[Parts]
"""The generator of the number of an item's parts: it yields looks and returns the parts."""

LIVE = Live()


def key_removed(key: bytes, fingerprint: bytes = b"") -> Garbage:
    """Return the verdict that a whole key is garbage."""
    return Garbage((Removal(key),), fingerprint)


def member_removed(key: bytes, of_type: str, member: bytes, fingerprint: bytes = b"") -> Garbage:
    """Return the verdict that a member of a key is garbage."""
    return Garbage((Removal(key, of_type, member),), fingerprint)


class Rule(abc.ABC):
    """How one kind of an owner's garbage is recognised and removed.

    A subclass sets the fields and writes `verdict`. An item that the rule does not recognise to the
    last byte is `Unknown`.
    """

    name: str
    """The rule's name, such as "celery.replies": lower case, with the owner's name first."""

    owner: ClassVar[str]
    """The program whose garbage it is, for people."""

    versions: ClassVar[str] = ""
    """The versions of the owner with which the rule was proved."""

    finds: ClassVar[str]
    """The garbage, in one sentence for people."""

    certainty: Certainty = PROVED
    """How certain it is that an item with the verdict `Garbage` is garbage."""

    where: Where
    """Where the items are."""

    reports_only: ClassVar[bool] = False
    """Whether the rule's garbage is only counted, and never removed."""

    can_undo: ClassVar[bool] = True
    """Whether what is removed can be brought back."""

    needs_ttl: ClassVar[bool] = False
    """Whether keys may only be given a time to live, and never be deleted."""

    counted_in: ClassVar[str] = ""
    """The things that are counted, where they are not the items themselves: "entries"."""

    asked: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """The arguments of each rule of this class that every survey asks: ``({},)``: one without."""

    _made: Call

    if not TYPE_CHECKING:

        def __new__(cls, *values: Any, **options: Any) -> Self:
            """Make a rule that knows by which call."""
            made = super().__new__(cls)
            made._made = Call(cls, values, options)
            return made

    @staticmethod
    def tells(key: bytes) -> Mapping[str, Any] | None:  # noqa: ARG004 - for those that learn
        """Learn further arguments from a key's name, such as the owner's prefix; by default none.

        A survey asks it for each key: it returns None for almost all of them, and at once.
        """
        return None

    @classmethod
    def surveyed(cls, told: Mapping[str, Any]) -> Sequence[Rule]:
        """Return the rules of this class that a survey asks.

        Arguments:
            told: empty at first, and then each finding of `tells`.
        """
        return [cls(**each, **told) for each in cls.asked]

    def offer(self) -> Offer:
        """Say how the survey offers the job that removes this garbage: by default, of this rule."""
        from workstealing.jobs.leftovers.job import Leftovers

        return Offer(call(Leftovers, CLIENT, [self._made]))

    @property
    def unit(self) -> str:
        """What one of its items is, in the plural: "keys", "members", "fields", "entries".

        The survey, a dry run, a slice, the backlog and every figure of them count in it.
        """
        return self.counted_in or _UNITS.get(self.where.type if self.where.inside else None, "keys")

    @abc.abstractmethod
    def verdict(self, item: Item) -> Verdicts:
        """Judge an item.

        Yields: looks, and is sent the replies to each one's commands: a command's error reply ends
        the verdict. Returns: the verdict.
        """

    def parts(self, item: Item) -> Counting:  # noqa: ARG002 - for those with a script
        """Count an item that is garbage, in the rule's unit: one, unless a script removes parts.

        Yields and returns: as `verdict`, but returns `Parts`. A slice that removes asks for none of
        it; the survey, dry runs and backlogs do.
        """
        yield from ()
        return exactly(1, 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def checked_rules(rules: Sequence[Any]) -> tuple[Rule, ...]:
    """Return rules. Raises: ConfigurationError unless they are rules with names of their own."""
    names = set()
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(f"a rule was expected, not {rule!r}")
        if not _NAME.fullmatch(rule.name):
            raise ConfigurationError(
                f"the rule's name {rule.name!r} is not usable: expected lower-case letters, digits,"
                ' dots and underscores, such as "celery.replies"'
            )
        if rule.name in names:
            raise ConfigurationError(f"two rules have the name {rule.name!r}: give each its own")
        names.add(rule.name)
    if not names:
        raise ConfigurationError("no rule was given; expected one or more")
    return tuple(rules)


_UNITS: Mapping[str | None, str] = {"set": "members", "zset": "members", "hash": "fields"}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.]*")
_GLOB = re.compile(rb"\\.|\[\^?(?:\\.|[^\]])*\]|[*?]|.", re.DOTALL)
_compiled_patterns: dict[bytes, re.Pattern[bytes]] = {}


def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Return a regular expression for a pattern of Redis's MATCH."""
    found = _compiled_patterns.get(pattern)
    if found is None:
        text = b"".join(_piece(each) for each in _GLOB.findall(pattern))
        found = _compiled_patterns[pattern] = re.compile(text, re.DOTALL)
    return found


def _piece(piece: bytes) -> bytes:
    if piece == b"*":
        return b".*"
    if piece == b"?":
        return b"."
    if piece[:1] == b"[":
        negated = piece[1:2] == b"^"
        inside = re.sub(rb"\\(.)", lambda found: b"\\" + found[1], piece[1 + negated : -1])
        if not inside:
            return b"." if negated else b"(?!)"
        return b"[" + (b"^" if negated else b"") + inside.replace(b"[", b"\\[") + b"]"
    return re.escape(piece[1:] if piece[:1] == b"\\" and len(piece) > 1 else piece)
