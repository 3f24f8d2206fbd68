"""Servers whose own expiry of fields loses, revives or keeps data: each known fault. No I/O.

A server is known by its answer to INFO. A server that is not known, or hides a fact, is not
trusted: "auto" takes the server's own expiry only where no fault applies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from workstealing.errors import ConfigurationError

REDIS, VALKEY = "redis", "valkey"
Info = Mapping[str, str]
"""Lines of INFO by their names."""
Condition = Callable[[Info], "bool | None"]
"""Says whether a setting makes a fault apply; None: the server does not tell."""

LAST_DEADLINE_MS = 2**46 - 1
"""The last deadline that Redis takes, in the year 4199; a test holds `hash.lua` to the same."""


def _has_aof(info: Info) -> bool | None:
    enabled = info.get("aof_enabled")
    return None if enabled is None else enabled != "0"


def _has_replicas(info: Info) -> bool | None:
    count = info.get("connected_slaves")
    if count is None or not count.isdigit():
        return None
    # Behind a replica there may be others, and it may become the primary of its siblings.
    return count != "0" or info.get("role") != "master"


def _is_copied(info: Info) -> bool | None:
    answers = (_has_aof(info), _has_replicas(info))
    if True in answers:
        return True
    return None if None in answers else False


class Applying(NamedTuple):
    """A fault that applies to a server. Fields: fault; is_certain: False: the server hides it."""

    fault: ServerFault
    is_certain: bool


@dataclass(frozen=True, slots=True)
class ServerFault:
    """A fault of a server's own expiry of fields.

    Fields: name; server: "redis" or "valkey"; since: the first version that has it; until: the
    first one that does not, None: none is known; seen: where it was seen; when: the settings under
    which it applies, in words; applies: the same by INFO; wrong: the server's deed; lost: the harm;
    remedy: a way out besides the emulated backend.
    """

    name: str
    server: str
    since: tuple[int, ...]
    until: tuple[int, ...] | None
    seen: str
    when: str
    applies: Condition
    wrong: str
    lost: str
    remedy: str

    def versions(self) -> str:
        """Return the servers that have it, in words."""
        begin = f"{self.server.title()} {_dotted(self.since)}"
        if self.until is None:
            return f"{begin} and later"
        return f"{begin} to before {_dotted(self.until)}"

    def said(self, *, is_native: bool = False) -> str:
        """Return one sentence about the fault and the way out.

        Arguments:
            is_native: whether a namespace has its fields there already.
        """
        way = "move the namespace by MigrateToEmulated" if is_native else 'use backend="emulated"'
        return (
            f"with {self.when}, {self.wrong}, so {self.lost} (fault {self.name}): {way}, or"
            f" {self.remedy}"
        )


FAULTS = (
    ServerFault(
        "aof-replay",
        REDIS,
        (7, 4),
        None,
        "Redis 8.0.2 and 8.2.3",
        "appendonly yes",
        _has_aof,
        "a restart replays the file by the clock of the replay: a field whose former deadline has"
        " passed is gone before a later HPERSIST, HINCRBY or HSETEX FXX of it is done",
        "acknowledged fields are lost",
        "switch appendonly off",
    ),
    ServerFault(
        "increment-drops-deadline",
        REDIS,
        (7, 4),
        (8, 2, 3),
        "Redis 8.0.2 (redis#14224)",
        "appendonly yes or a replica",
        _is_copied,
        "HINCRBYFLOAT drops the field's deadline on replicas and in the file",
        "the field lives for ever after a failover or a restart",
        "upgrade to Redis 8.2.3",
    ),
    ServerFault(
        "expired-passed-on",
        VALKEY,
        (9, 0),
        None,
        "Valkey 9.1.2 (valkey#4732)",
        "appendonly yes or a replica",
        _is_copied,
        "HDEL, HGETDEL, HPERSIST and HEXPIRE of several fields pass on to replicas and the file"
        " also those that have expired already",
        "expired fields live again, for ever after HPERSIST, on a replica and after a restart",
        "run without replicas and appendonly",
    ),
)
"""The faults for whose sake "auto" is emulated."""


def server_of(info: Info) -> tuple[str, tuple[int, ...]]:
    """Return a server's kind and version by its INFO; ("", ()) for one that is not known."""
    others = {
        name
        for name in info
        if name.endswith("_version") and name not in ("redis_version", "valkey_version")
    } - {"gcc_version"}
    name = info.get("server_name", REDIS)
    kind = VALKEY if "valkey_version" in info else REDIS
    version = _numbers(info.get(f"{kind}_version", ""))
    if others or name not in (REDIS, kind) or not version:
        return "", ()
    return kind, version


def applying(info: Info) -> list[Applying]:
    """Return the faults that apply to a server, or may apply. Of a server that is known."""
    kind, version = server_of(info)
    found = []
    for fault in FAULTS:
        in_range = fault.since <= version and (fault.until is None or version < fault.until)
        if fault.server == kind and in_range:
            answer = fault.applies(info)
            if answer is not False:
                found.append(Applying(fault, answer is True))
    return found


def applying_to_any(infos: Iterable[Info]) -> list[Applying]:
    """Return the faults that apply to some of the servers, each once. Of servers that are known."""
    found: dict[str, Applying] = {}
    for each in (each for info in infos for each in applying(info)):
        if each.is_certain or each.fault.name not in found:
            found[each.fault.name] = each
    return list(found.values())


def reason_against(info: Info, accepted: Collection[str] = ()) -> str | None:
    """Return why a server's own expiry of fields is not to be trusted; None: it is.

    Arguments:
        accepted: names of faults that the user accepts.
    """
    kind, _ = server_of(info)
    if not any(f"{each}_version" in info for each in (REDIS, VALKEY)):
        return "the server does not tell its version (does its user lack the right to INFO?)"
    if not kind:
        return "the server is neither a Redis nor a Valkey as far as it tells"
    for fault, is_certain in applying(info):
        if fault.name not in accepted:
            doubt = "" if is_certain else "the server does not tell its settings; "
            return doubt + fault.said()
    return None


def checked_faults(names: Iterable[str]) -> frozenset[str]:
    """Return names of faults that the user accepts. Raises: ConfigurationError for another name."""
    known = {fault.name for fault in FAULTS}
    given = frozenset([names] if isinstance(names, str) else names)
    if unknown := sorted(given - known):
        raise ConfigurationError(
            f"accept={unknown[0]!r} names no fault: give names of {', '.join(sorted(known))}"
        )
    return given


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(map(int, parts)) if all(map(str.isdigit, parts)) else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
