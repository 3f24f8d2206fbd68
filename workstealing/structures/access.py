"""The rights that each structure and job needs on its server: declarations, and the rule from them.

A structure's scripts say themselves which commands they use, so a rule is read from their text; a
declaration names the other commands, and the forms of the keys. A job needs the rights to its
structures, and some jobs need more.
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
        """Return the commands that its user must be allowed, as a rule names them. No command."""
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
        """Return the patterns of its keys.

        Arguments: name, and namespace where it has one besides; users: patterns of the user's own
        keys, where it works on such.
        """
        told = {"NAMESPACE": _literal(namespace), "NAME": _literal(name)}
        own = [re.sub("NAMESPACE|NAME", lambda found: told[found[0]], each) for each in self.keys]
        return [*own, *(users if self.users_keys else ())]

    def samples(self, name: str, namespace: str = "", tag: str = "doctor") -> list[str]:
        """Return a key for each pattern; the last one is used by no structure.

        Arguments: name and namespace: the structure's; tag: where a pattern has any hash tag.
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

    def of(self, kind: str) -> Access:
        """Return the access to one of its structures, with what it uses besides."""
        found = access_by_kind()[kind]
        return found if self.more is None else found.plus(self.more)


@cache
def access_by_kind() -> dict[str, Access]:
    """Return the access of each kind of structure, as its class declares it, by its `kind`."""
    # The structures import this module.
    import workstealing.structures  # noqa: F401
    from workstealing.structures.structure import Structure

    found: dict[str, Access] = {}
    waiting: list[type[Structure]] = [Structure]
    while waiting:
        # The package's own before a user's subclasses of them; a user's base may have no kind yet.
        each = waiting.pop(0)
        waiting += each.__subclasses__()
        if each.access is not None and hasattr(each, "kind"):
            found.setdefault(each.kind, each.access)
    return {kind: found[kind] for kind in sorted(found, key=str.lower)}


def names_of(structure: Any) -> tuple[str, str]:
    """Return the name and the namespace of a structure, as its patterns need them."""
    namespace = structure.namespace
    # The one on a node of a fleet has a name with the node in it.
    is_whole = structure.kind in OF_NAMESPACES
    return (namespace if is_whole else structure.name), namespace


def access_of(structure: Any, job: Any, *, is_moving: bool = False) -> Access | None:
    """Return the access to a structure, for a job on it: None if no rule is known for it.

    Arguments: structure; job; is_moving: whether it lies on a fleet whose keys move to new homes.
    """
    of_job, kind = job_access(job), structure.kind
    if of_job is not None and kind in of_job.kinds:
        found = of_job.of(kind)
    elif structure.access is not None:
        found = structure.access
    else:
        return None
    return found.plus(MOVING) if is_moving and kind in ON_FLEETS else found


def job_access(job: Any) -> JobAccess | None:
    """Return what a ready-made job uses; None for a job of another make."""
    for each in type(job).__mro__:
        if each.__module__.startswith("workstealing.jobs") and each.__name__ in JOBS:
            return JOBS[each.__name__]
    return None


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

    Arguments: user; patterns of keys; commands, a subcommand behind a bar. The line has the word
    PASSWORD where the password belongs. Raises: ConfigurationError for an unusable user name.
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

_ONLY_HASHES, _ONLY_KEYS = ("volatile hashes",), ("durable keys",)
OF_NAMESPACES = ("volatile hashes", "durable keys", "shuffle queues")
"""The kinds whose NAME is their namespace."""
ON_FLEETS = (*_ONLY_HASHES, *_ONLY_KEYS)
"""The kinds whose keys are carried to new homes when a fleet has other nodes."""

MOVING = Access(keys=(), scripts=("fleet",), commands=frozenset(), users_keys=True)
"""The further rights of volatile hashes and durable keys while a fleet's keys move to new homes."""

# Of a job that walks the keyspace; its place on each node stands in a hash.
_PLACES = ("ws:NAME:adopt:*",)
_WALK = frozenset({"SCAN", "HSCAN", "INFO", "TIME", "HGET", "HGETALL", "DEL"})

_OF_RULES = Access(
    keys=("{*}:ws:leftovers:NAME:*",),
    scripts=("leftovers", "walk"),
    # Scripts are told by the rules which of these they send; a rule may read by others, too.
    commands=ALWAYS
    | ATTEMPT
    | _WALK
    | {"SSCAN", "ZSCAN", "GET", "SET", "EXPIRE", "PEXPIRE", "PTTL", "XADD", "XTRIM", "XRANGE"}
    | {"XREVRANGE", "XDEL", "DUMP", "RESTORE", "UNLINK", "SREM", "ZREM", "HDEL", "LREM", "SADD"}
    | {"ZADD", "HSET", "MEMORY|USAGE", "EXISTS", "TYPE", "HLEN", "HEXISTS", "HMGET", "LLEN"}
    | {"LINDEX", "LRANGE", "SISMEMBER", "SCARD", "ZSCORE", "ZRANGE", "ZCARD", "STRLEN", "XLEN"}
    | {"ZCOUNT", "XPENDING", "XINFO|GROUPS", "XINFO|CONSUMERS", "XINFO|STREAM"},
    users_keys=True,
)

JOBS = {
    "AdoptHashes": JobAccess(
        _ONLY_HASHES,
        Access(
            keys=_PLACES,
            scripts=("volatile_hashes/adopt", "walk"),
            commands=ATTEMPT
            | _WALK
            | {"EXISTS", "HEXISTS", "HLEN", "ZCARD", "ZMSCORE", "ZRANGE", "ZREM"},
            native=frozenset({"HPEXPIREAT", "HPEXPIRETIME"}),
        ),
    ),
    "FleetRebalance": JobAccess(
        ON_FLEETS,
        MOVING.plus(Access(keys=(), commands=frozenset({"SCAN", "HSCAN", "ZSCAN", "UNLINK"}))),
    ),
    "HashFieldExpiry": JobAccess(_ONLY_HASHES),
    "IckReaper": JobAccess(("Ick", "sharded Ick")),
    "KeyExpiry": JobAccess(_ONLY_KEYS),
    "Leftovers": JobAccess(more=_OF_RULES),
    "LogCompactor": JobAccess(("log",)),
    "LogTrimmer": JobAccess(("log",)),
    "MigrateToEmulated": JobAccess(
        _ONLY_HASHES,
        Access(
            keys=_PLACES,
            scripts=(
                *("volatile_hashes/take_back", "volatile_hashes/mark_shard"),
                *("walk", "layout/change"),
            ),
            commands=_WALK | {"GET"},
            native=frozenset({"HPEXPIRETIME"}),
        ),
        native=True,
    ),
    "MigrateToNative": JobAccess(
        _ONLY_HASHES,
        Access(
            keys=(),
            scripts=("volatile_hashes/migrate", "volatile_hashes/mark_shard", "layout"),
            commands=frozenset({"GET", "HGET", "TIME", "ZCARD"}),
        ),
        native=True,
    ),
    "NativeFieldAudit": JobAccess(
        _ONLY_HASHES,
        Access(
            keys=(),
            commands=frozenset({"SCAN", "HSCAN", "HLEN", "HMGET", "INFO", "TIME"}),
            native=frozenset({"HPEXPIRETIME"}),
        ),
        native=True,
    ),
    "QueueExpiry": JobAccess(("shuffle queues",)),
    "ShuffleQueueReaper": JobAccess(("shuffle queue",)),
    "TimeShardSweeper": JobAccess(("time shard queue",)),
    "TrackQueued": JobAccess(("tracked set",)),
    "UntrackDone": JobAccess(("tracked set",)),
}
"""The access of each ready-made job, by the name of its class or of one that it inherits from."""

OF_SPARK = Access(
    keys=("ws:spark:recruits:*",),
    commands=CONNECTION
    | {"MULTI", "EXEC", "HINCRBY", "EXPIRE", "HGETALL"}
    | {"SCAN", "HSCAN", "SSCAN", "ZSCAN", "HMGET", "SMISMEMBER", "ZMSCORE", "ZSCORE"},
    native=frozenset({"HPTTL"}),
)
"""The rights that Spark's tasks need to count, and its sources to read, besides the structures'."""

OF_PLAIN_KEYS = Access(
    keys=(),
    commands=CONNECTION
    | {"MULTI", "EXEC", "EXISTS", "TYPE", "PTTL", "PEXPIRE", "UNLINK"}
    | {"SCAN", "HSCAN", "SSCAN", "ZSCAN", "LRANGE", "XRANGE", "XINFO|STREAM"}
    | {"GET", "MGET", "HGETALL", "HMGET", "HLEN", "LLEN", "SCARD", "ZCARD", "XLEN"}
    | {"SET", "HSET", "RPUSH", "SADD", "ZADD", "XADD"},
    users_keys=True,
)
"""The rights that Spark's format "workstealing.redis" needs, on keys that its user names."""

OF_SURVEY = Access(
    keys=(),
    commands=CONNECTION
    | {"SCAN", "TIME", "DBSIZE", "INFO", "CLIENT|NO-TOUCH"}
    | {"TYPE", "PTTL", "MEMORY|USAGE", "OBJECT|IDLETIME", "OBJECT|REFCOUNT"}
    | {"EXISTS", "GET", "GETRANGE", "STRLEN", "HRANDFIELD", "SRANDMEMBER", "ZRANDMEMBER"}
    | {"HGET", "HMGET", "HGETALL", "HLEN", "HEXISTS", "HSCAN", "SSCAN", "SCARD", "SISMEMBER"}
    | {"ZSCAN", "ZCARD", "ZCOUNT", "ZRANGE", "ZSCORE", "LLEN", "LINDEX", "LRANGE", "LPOS"}
    | {"XLEN", "XRANGE", "XREVRANGE", "XPENDING", "XINFO|GROUPS", "XINFO|CONSUMERS"}
    | {"XINFO|STREAM"}
    | OF_A_CLUSTER,
    users_keys=True,
)
"""The commands that a survey reads with; one that is refused leaves its facts unknown."""

OF_SENTINELS = Access(
    keys=(),
    commands=frozenset({"PING", "SENTINEL|MASTERS", "SENTINEL|GET-MASTER-ADDR-BY-NAME"}),
)
"""The rights of a user of the sentinels: they have other users than the servers."""
