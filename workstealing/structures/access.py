"""The rights that structures and jobs need on servers: declarations, and the ACL rule from them.

Each structure and each job declares its rights in its class. A structure's scripts say themselves
which commands they use, so a rule is read from their text; a declaration names the other commands,
and the forms of the keys. A job needs the rights to its structures, and some jobs need more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.scripts import LIBRARY, load

ATTEMPT = frozenset({"WATCH", "UNWATCH", "MULTI", "EXEC"})
"""The commands of an attempt, and of a pipeline that is a transaction."""
CONNECTION = frozenset({"PING", "ROLE", "SELECT"})
"""The commands that check a connection, tell a primary from a replica, and choose a database."""
ALWAYS = frozenset({"EVAL", "EVALSHA"}) | CONNECTION
"""The commands of every structure."""
OF_A_CLUSTER = frozenset({"CLUSTER|SLOTS", "CLUSTER|SHARDS", "CLUSTER|INFO", "COMMAND"})
OF_A_CLUSTER |= {"ASKING", "READONLY", "BITFIELD"}
"""The commands by which clients and jobs learn where slots are, and which are in use."""

CONTAINERS = frozenset({"CLIENT", "CLUSTER", "COMMAND", "CONFIG", "MEMORY", "OBJECT", "XGROUP"})
CONTAINERS |= {"ACL", "SCRIPT", "SENTINEL", "XINFO"}
"""Commands that are nothing without their first argument: a rule names both."""
# Where a script names a command: in a call, in a function that calls what it is told, or as one of
# two that it chooses from.
_NAMED = re.compile(
    r"(?:redis\.p?call[(,]|call_in_runs\(|refuse_key\(|\band|\bor)\s*'([A-Z]{3,})'"
    r"(?:,\s*'([A-Za-z]+)')?"
)
_GLOB = re.compile(r"([\\*?\[\]^])")
_PLAIN = re.compile(r"[!#$%&()*+,./:;<=>?@\[\]^_`{|}~\w-]+")


@dataclass(frozen=True, slots=True)
class Access:
    """The rights that one kind of structure, with its jobs, needs on its server.

    Fields: keys: glob patterns, with NAME and NAMESPACE in the places of the structure's own;
    scripts: its scripts, or the folders of all of them; commands: those that are sent by
    themselves, or named to a script; native: those of the server's own hash fields, where a
    namespace uses them; native_scripts: scripts of its folders that only such a namespace needs;
    users_keys: whether it also works on keys that its user names.
    """

    keys: tuple[str, ...]
    scripts: tuple[str, ...] = ()
    commands: frozenset[str] = ALWAYS
    native: frozenset[str] = frozenset()
    native_scripts: tuple[str, ...] = ()
    users_keys: bool = False

    def allowed(self, *, native: bool = False, cluster: bool = False) -> frozenset[str]:
        """Return the commands that the user needs, as an ACL rule names them. No command."""
        found = set(self.commands)
        for named in self.scripts:
            for each in [named] if "/" in named else _scripts_of(named):
                if native or each not in self.native_scripts:
                    found |= commands_of(each)
        if native:
            found |= self.native
        if cluster:
            found |= OF_A_CLUSTER
        return frozenset(found)

    def plus(self, other: Access) -> Access:
        """Return the access of both. No command."""
        return Access(
            keys=(*self.keys, *other.keys),
            scripts=(*self.scripts, *other.scripts),
            commands=self.commands | other.commands,
            native=self.native | other.native,
            native_scripts=(*self.native_scripts, *other.native_scripts),
            users_keys=self.users_keys or other.users_keys,
        )

    def patterns(self, name: str, namespace: str = "", users: Sequence[str] = ()) -> list[str]:
        """Return the patterns of the keys that the structure uses.

        Arguments:
            name: the structure's.
            namespace: the structure's, if it has one.
            users: patterns of the user's own keys, if the structure works on such keys.
        """
        told = {"NAMESPACE": _literal(namespace), "NAME": _literal(name)}
        own = [re.sub("NAMESPACE|NAME", lambda found: told[found[0]], each) for each in self.keys]
        return [*own, *(users if self.users_keys else ())]

    def samples(self, name: str, namespace: str = "", tag: str = "doctor") -> list[str]:
        """Return a key for each pattern; the last one is used by no structure.

        Arguments:
            name: the structure's.
            namespace: the structure's.
            tag: where a pattern has any hash tag.
        """
        told = {"NAMESPACE": namespace, "NAME": name, "{*}": f"{{{tag}}}", "*": "doctor"}
        places = re.compile(r"NAMESPACE|NAME|\{\*\}|\*")
        return [places.sub(lambda found: told[found[0]], each) for each in self.keys]


@dataclass(frozen=True, slots=True)
class JobAccess:
    """The rights that a job needs on its server.

    Fields: kinds: of the structures that it serves; none: it serves another program's keys; more:
    what it uses besides, or in their place; native: whether it needs the server's own hash fields
    in any case.
    """

    kinds: tuple[str, ...] = ()
    more: Access | None = None
    native: bool = False

    def on(self, access: Access) -> Access:
        """Return the access to one of the job's structures, with what the job uses besides."""
        return access if self.more is None else access.plus(self.more)


@cache
def access_by_kind() -> dict[str, Access]:
    """Return the access of each kind of structure, as its class declares it, by its `kind`."""
    # The structures import this module.
    from workstealing import structures
    from workstealing.structures.fair_queue.base import FairQueueNamespace
    from workstealing.structures.shuffle_queue.base import QueueNamespace

    declared = (
        structures.DurableKeys,
        structures.FairQueue,
        FairQueueNamespace,
        structures.Ick,
        structures.Log,
        structures.ShardedIck,
        structures.ShuffleQueue,
        QueueNamespace,
        structures.TimeShardQueue,
        structures.TrackedSet,
        structures.VolatileHashes,
    )
    return {each.kind: each.access for each in declared if each.access is not None}


def names_of(structure: Any) -> tuple[str, str]:
    """Return the name and the namespace of a structure, as its patterns need them."""
    namespace = structure.namespace
    # The one on a node of a fleet has a name with the node in it.
    is_whole = structure.kind in OF_NAMESPACES
    return (namespace if is_whole else structure.name), namespace


def access_of(structure: Any, job: Any, *, is_moving: bool = False) -> Access | None:
    """Return the access to a structure, for a job on it: None if no rule is known for it.

    Arguments:
        is_moving: whether it lies on a fleet whose keys move to new homes.
    """
    of_job, kind = job_access(job), structure.kind
    found: Access | None = structure.access
    if found is None:
        return None
    if of_job is not None and kind in of_job.kinds:
        found = of_job.on(found)
    return found.plus(MOVING) if is_moving and kind in ON_FLEETS else found


def job_access(job: Any) -> JobAccess | None:
    """Return what a job, or a class of jobs, declares that it uses; None if it declares nothing."""
    # A job of a user's may have an attribute of this name for something else.
    declared = getattr(job, "access", None)
    return declared if isinstance(declared, JobAccess) else None


@cache
def commands_of(script: str) -> frozenset[str]:
    """Return the commands that a script uses, with a subcommand behind a bar: XINFO|GROUPS.

    Raises: ScriptError if there is no such script. No command.
    """
    return frozenset(
        f"{word}|{following.upper()}" if word in CONTAINERS else word
        for word, following in _NAMED.findall(load(script).body)
    )


def _scripts_of(folder: str) -> Iterator[str]:
    for entry in files("workstealing.lua").joinpath(folder).iterdir():
        name, dot, ending = entry.name.partition(".")
        if dot and ending == "lua" and not entry.read_text("utf-8").startswith(LIBRARY):
            yield f"{folder}/{name}"


def _literal(name: str) -> str:
    """Return the pattern that stands for a name: a rule cannot hold spaces, but any character."""
    return re.sub(r"[\s\0]", "?", _GLOB.sub(r"\\\1", name))


def rule(user: str, patterns: Iterable[str], commands: Iterable[str]) -> str:
    """Return the line for redis-cli that makes a user with these rights and no others.

    Arguments:
        patterns: of keys.
        commands: a subcommand behind a bar.

    The line has the word PASSWORD where the password belongs. Raises: ConfigurationError for an
    unusable user name.
    """
    if not user or re.search(r"[\s\0]", user):
        raise ConfigurationError(
            f"the user {user!r} is not usable: give a name without spaces, as ACL SETUSER wants it"
        )
    told = list(dict.fromkeys(patterns))
    if "*" in told:
        # The server refuses patterns beside one for all keys.
        told = ["*"]
    words = [
        *("ACL", "SETUSER", user, "reset", "on", ">PASSWORD", "resetchannels"),
        *(f"~{each}" for each in told),
        *sorted(f"+{each.lower()}" for each in set(commands)),
    ]
    return " ".join(each if _PLAIN.fullmatch(each) else _quoted(each) for each in words)


def _quoted(word: str) -> str:
    """Return a word as redis-cli reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(each if each.isprintable() else _escape(each) for each in escaped) + '"'


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


OPENING_SCRIPTS = ("layout/open", "layout/eviction_policy")
"""The scripts that open a layout whose server keeps no deadlines itself."""
NAMESPACE_KEYS = ("ws:NAME:layout", "ws:NAME:slots", "{*}:ws:NAME:*")
"""The keys of a namespace."""
QUEUED = ALWAYS | ATTEMPT
"""The commands of a structure whose steps a pipeline that is a transaction may queue."""

DUE = frozenset({"TIME", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE"})
"""The commands of a structure with a due index, and of the job that collects from it."""
EXPIRING = QUEUED | DUE | {"HDEL", "PTTL", "TYPE", "UNLINK", "ZADD", "ZRANGEBYSCORE", "ZREM"}
"""The commands that the collecting of expired fields sends, besides scripts."""

OF_NAMESPACES = ("volatile hashes", "durable keys", "fair queues", "shuffle queues")
"""The kinds whose NAME is their namespace."""
ON_FLEETS = ("volatile hashes", "durable keys")
"""The kinds whose keys are carried to new homes when a fleet has other nodes."""

MOVING = Access(keys=(), scripts=("fleet",), commands=frozenset(), users_keys=True)
"""The further rights of volatile hashes and durable keys while a fleet's keys move to new homes."""
