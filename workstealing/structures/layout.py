"""The layouts of all structures: keys beside a user's name, and the releases that may use them.

A layout is a hash. The first use of a structure writes it, and every later process reads it.
Besides the structure's own fields it has ``structure``, ``version``, ``readable_from`` and
``writable_from``. A release must know version ``readable_from`` to read the data, and
``writable_from`` to write it. So a newer release may change a layout while older releases still
run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, EvictionPolicyError, LayoutError
from workstealing.store.keys import key_slot, require_one_slot, require_users_name, to_bytes
from workstealing.store.operations import Steps
from workstealing.store.scripts import load

GroupNamesT = TypeVar("GroupNamesT")


def beside(name: bytes, kind: bytes) -> bytes:
    """Return the prefix of the keys beside a name, in its slot unless it has a lone brace.

    Arguments:
        kind: of structure, such as ``b"log"``.

    The prefix is part of the layout.
    """
    return name + b"/" + kind + b"/{" + name + b"}/"


class NamesBeside(Generic[GroupNamesT]):
    """The keys beside one name, all in one slot, and those of its groups.

    Arguments:
        kind: see `beside`.
        group_names: makes a group's keys from the prefix and the group's name.
    """

    def __init__(
        self, name: bytes, kind: bytes, group_names: Callable[[bytes, bytes], GroupNamesT]
    ) -> None:
        require_users_name(name)
        self.name = name
        self.base = beside(name, kind)
        self.meta = self.base + b"meta"
        self.slot = key_slot(self.meta)
        self._group_names = group_names
        self._groups: dict[bytes, GroupNamesT] = {}

    def require_one_slot(self) -> None:
        """Raise CrossSlotError for a name whose keys a cluster would keep in several slots."""
        require_one_slot((self.name, self.meta))

    def group(self, group: object) -> GroupNamesT:
        """Return the keys of a group. Raises: ConfigurationError for an unusable group name."""
        raw = to_bytes(checked_text(group, "group"))
        names = self._groups.get(raw)
        if names is None:
            names = self._groups[raw] = self._group_names(self.base, raw)
        return names


def checked_text(value: object, what: str) -> str | bytes:
    """Return a name, checked: messages show names as text, and are settled by them.

    Arguments:
        value: the name.
        what: its description in the error.

    Raises: ConfigurationError for an empty name, and for a name that is neither text nor bytes in
    UTF-8.
    """
    try:
        if isinstance(value, str) and value.encode():
            return value
        if isinstance(value, bytes) and value.decode():
            return value
    except UnicodeError:
        pass
    raise ConfigurationError(
        f"the {what} {value!r} is not usable: give a text, or its bytes in UTF-8, not empty"
    )


T = TypeVar("T")

LAYOUT_SCRIPTS = "layout/"


@dataclass(frozen=True)
class Kind:
    """A kind of structure, as layouts and error messages name it.

    Fields: name: in the layout, such as "sharded_ick"; called: the name in messages, such as "a
    ShardedIck"; version: of the layout that this release writes; place: "name" or "namespace",
    which the user can choose otherwise; evicted: the part that an ``allkeys-*`` policy may evict;
    remedy: another way out, ending with a comma.
    """

    name: str
    called: str
    version: int = 1
    place: str = "name"
    evicted: str = "a part of it"
    remedy: str = ""

    def fields(self, *own: str | int) -> tuple[str | int, ...]:
        """Return the names and values of a new layout's fields, the structure's own last."""
        return (
            *("structure", self.name, "version", self.version),
            *("readable_from", 1, "writable_from", 1, *own),
        )


@dataclass(frozen=True)
class Versioned(Generic[T]):
    """A layout that was read.

    Fields: own: the structure's own part; version: of the layout; writable: whether this release
    may write the structure; called: the structure, as messages name it.
    """

    own: T
    version: int
    writable: bool
    called: str

    def require_writable(self) -> None:
        """Check that this release may write the layout.

        Raises: LayoutError if it may only read it.
        """
        if not self.writable:
            raise only_readable(self.called, self.version)


def only_readable(called: str, version: int) -> LayoutError:
    """Return the error for a write to a layout that this release may only read."""
    return LayoutError(
        f"{called} has layout version {version}, which this release may read but not write:"
        " upgrade workstealing"
    )


def read_pairs(
    kind: Kind,
    key: bytes,
    called: str,
    reply: Any,
    own: Callable[[Mapping[str, str]], T],
) -> Versioned[T] | None:
    """Read a layout.

    Arguments:
        kind: of structure that is expected.
        key: where the layout stands.
        called: the structure, as a message begins with it: "the ShardedIck at list".
        reply: HGETALL's, of any client.
        own: makes the structure's own part from the pairs; its KeyError or ValueError means that
            the layout is foreign.

    Returns: None if there is no layout yet. Raises: LayoutError for a foreign layout, and for one
    that only newer releases can read. No round trip.
    """
    pairs = as_pairs(reply)
    if not pairs:
        return None
    try:
        if pairs["structure"] != kind.name:
            raise foreign(kind, key)
        version = int(pairs["version"])
        readable_from, writable_from = int(pairs["readable_from"]), int(pairs["writable_from"])
        if readable_from > kind.version:
            raise LayoutError(
                f"{called} has layout version {version}, which this release (version"
                f" {kind.version}) cannot read: upgrade workstealing"
            )
        return Versioned(own(pairs), version, writable_from <= kind.version, called)
    except (KeyError, ValueError) as error:
        raise foreign(kind, key) from error


def foreign(kind: Kind, key: bytes) -> LayoutError:
    """Return the error for a key that does not hold the layout of that kind."""
    return LayoutError(
        f"the key {key.decode(errors='backslashreplace')} does not hold the layout of"
        f" {kind.called}: use another {kind.place}, or remove the key if it is not needed"
    )


def read_layout(
    kind: Kind, key: bytes, called: str, own: Callable[[Mapping[str, str]], T]
) -> Steps[Versioned[T] | None]:
    """Ask for a layout and read it: see `read_pairs`.

    Raises: LayoutError as that does, and for a key of another type. One round trip.
    """
    try:
        reply = yield ("HGETALL", key)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise foreign(kind, key) from error
    return read_pairs(kind, key, called, reply, own)


def opening(key: bytes, fields: Sequence[str | int] = ()) -> tuple[Any, ...]:
    """Return the command that reads a layout, and writes it down first if there is none.

    Arguments:
        fields: of a new layout, see `Kind.fields`; without fields it is only read.

    `read_pairs` reads the reply.
    """
    # By its text: a process runs it once.
    return ("EVAL", load("layout/open").body, 1, key, *fields)


def ask_policy(key: bytes) -> Steps[str]:
    """Return the policy by which the server of a key evicts, "": unknown. One round trip."""
    return as_text((yield ("EVAL", load("layout/eviction_policy").body, 1, key)))


class ServerAnswers(NamedTuple):
    """The facts that a server tells of itself.

    Fields: policy, by which it evicts, "": unknown; info: lines of INFO by their names; known:
    those of the commands asked for that it knows.
    """

    policy: str
    info: Mapping[str, str]
    known: frozenset[str]


def ask_server(key: bytes, commands: Sequence[str]) -> Steps[ServerAnswers]:
    """Return the facts about the server of a key; commands: it is asked whether it knows them.

    Only for structures whose server may keep deadlines itself. One round trip.
    """
    reply = yield ("EVAL", load("layout/server_facts").body, 1, key, *commands)
    policy, *others = map(as_text, reply)
    lines = others[0].split("\n") if others else []
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    return ServerAnswers(policy, info, frozenset(others[1:]))


def checked_policies(allow_eviction: Collection[str]) -> frozenset[str]:
    """Return the eviction policies that the user accepts by name.

    Raises: ConfigurationError for a text, which would be read as a list of letters.
    """
    if isinstance(allow_eviction, str):
        raise ConfigurationError(
            f"allow_eviction takes a list of policies: give [{allow_eviction!r}]"
        )
    return frozenset(allow_eviction)


def require_policy(kind: Kind, policy: str, allowed: Collection[str]) -> None:
    """Check that the server's policy harms no structure, or that it is allowed.

    Raises: EvictionPolicyError if it harms the structure.
    """
    if policy.startswith("allkeys-") and policy not in allowed:
        raise EvictionPolicyError(
            f"the server's maxmemory-policy is {policy}, which may evict {kind.evicted}: use"
            f" noeviction or a volatile-* policy,{kind.remedy} or pass"
            f" allow_eviction=[{policy!r}]"
        )


def as_pairs(reply: Any) -> dict[str, str]:
    """Return a HGETALL reply of any client (mapping or flat list, bytes or text) as text."""
    if isinstance(reply, dict):
        items: Sequence[tuple[Any, Any]] = list(reply.items())
    else:
        items = list(zip(reply[::2], reply[1::2], strict=True))
    return {as_text(name): as_text(value) for name, value in items}


def as_text(value: Any) -> str:
    """Return a reply of any client as text; bytes that are not UTF-8 become escapes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def scored(reply: Sequence[Any]) -> list[tuple[Any, float]]:
    """Return a flat WITHSCORES reply as pairs of member and score."""
    return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]
