"""Whose keys they are: the layouts of known programs, and the version as far as it shows.

A family belongs to an owner if its names and its type are those of the owner's layout. How sure
that is differs:

- Certain: the names are like no other's, and were read in the package's own source or written by
  the package itself; or some of the keys were looked into, and hold what only the owner writes.
- Probable: names that are well known, but that anybody may have chosen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workstealing.jobs.shared.key_walk import is_users_key
from workstealing.store.connection import Command

UNKNOWN = "-"
OWN = "workstealing"
PROOFS = 8
"""The keys of a family that are looked into for what proves its owner."""

CERTAIN, PROBABLE = "certain", "probable"

_UUID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True)
class KeyLayout:
    """Names that a program gives its keys.

    Fields: owner; names: a regular expression of the whole name; types: of the keys, empty: any;
    field: of a hash that tells the version, with `pattern`, whose first group is the version;
    version: that has such keys first; is_sure: whether such names are nobody else's; proof: makes
    the command that reads what proves the owner; is_proof: says whether its reply does, by the key.
    """

    owner: str
    names: re.Pattern[bytes]
    types: frozenset[str] = frozenset()
    field: str = ""
    pattern: re.Pattern[bytes] = re.compile(rb"(?:\w+:)?v?(\d[\w.]*)")
    version: str = ""
    is_sure: bool = False
    proof: Callable[[bytes], Command] | None = None
    is_proof: Callable[[bytes, Any], bool] = lambda _, reply: bool(reply)

    def question(self, key: bytes) -> Command | None:
        """Return the command whose reply tells the version; None if there is none."""
        return ("HGET", key, self.field) if self.field else None

    def answer(self, reply: Any) -> str:
        """Return the version that a reply tells; empty if none."""
        found = self.pattern.search(reply) if isinstance(reply, bytes) else None
        return found[1].decode("ascii", "replace") if found is not None else ""


def _layout(owner: str, names: bytes, types: str = "", **more: Any) -> KeyLayout:
    return KeyLayout(owner, re.compile(names, re.DOTALL), frozenset(types.split()), **more)


def _sure(owner: str, names: bytes, types: str = "", **more: Any) -> KeyLayout:
    return _layout(owner, names, types, is_sure=True, **more)


# Flask-Session writes `_permanent` first, as msgpack or as JSON.
_SESSION = re.compile(rb'(?:[\x81-\x8f]|\xde..)\xaa_permanent|\{"_permanent"', re.DOTALL)
_ULID = rb"[0-9A-HJKMNP-TV-Z]{26}"
# What Sidekiq writes of a job has these, and Resque's has no jid.
_OF_SIDEKIQ = {"class", "args", "jid"}


def _is_session(_: bytes, reply: Any) -> bool:
    return isinstance(reply, bytes) and _SESSION.match(reply) is not None


def _is_of_sidekiq(_: bytes, reply: Any) -> bool:
    found = reply[0] if isinstance(reply, list) and reply else reply
    try:
        job = json.loads(found) if isinstance(found, bytes) else None
    except ValueError:
        return False
    return isinstance(job, dict) and set(job) >= _OF_SIDEKIQ


def _is_of_redis_om(key: bytes, reply: Any) -> bool:
    return isinstance(reply, bytes) and key.endswith(b":" + reply)


def _first_job(key: bytes) -> Command:
    return ("LINDEX", key, -1)


def _first_member(key: bytes) -> Command:
    return ("ZRANGE", key, 0, 0)


KOMBU, RQ = "Celery (kombu)", "RQ"
_NEW_KOMBU = "kombu 5.7 or newer"

LAYOUTS: Sequence[KeyLayout] = (
    _sure(KOMBU, rb".*_kombu\.binding_deadlines", "zset", version=_NEW_KOMBU),
    _sure(KOMBU, rb".*_kombu\.binding_permanent\..*", "set", version=_NEW_KOMBU),
    _sure(KOMBU, rb".*_kombu\.binding\..*", "set"),
    _sure(KOMBU, rb".*" + _UUID + rb"\.reply\.celery\.pidbox", "list"),
    _sure(KOMBU, rb".*celery-task-meta-.+", "string"),
    _sure(KOMBU, rb".*celery-taskset-meta-.+"),
    _sure(KOMBU, rb".*chord-unlock-.+|.*celery-task-meta-.+\.[jst]"),
    _layout(KOMBU, rb"(?:.*[:._-])?unacked(?:_index|_mutex)?", "hash zset string"),
    _layout(KOMBU, rb"celery(?:\x06\x16[0-9])?", "list"),
    _layout(KOMBU, rb".*/\{celery.*"),
    # The lists of rpc:// are named by a client's UUID alone.
    _layout(KOMBU, _UUID, "list"),
    _sure(RQ, rb"rq:ready:.*|rq:rate_limit.*", version="3.0 or newer"),
    _sure(RQ, rb"rq:worker:.*", "hash", field="version"),
    _sure(
        RQ,
        rb"rq:(?:jobs?|queues?|workers|wip|finished|failed|deferred|scheduled|canceled|results"
        rb"|clean_registries|executions?|scheduler|scheduler-lock|intermediate|pubsub|cron|group"
        rb"|repeat)(?::.*)?",
    ),
    _sure("cacheops", rb"(?:.*:)?conj:.+", "set"),
    _layout("cacheops", rb".*schemes:.+", "set"),
    _sure("Huey", rb"huey\.(?:redis|schedule|results|r|priority|stream|rd|rl|lock)\..*"),
    _layout("Huey", rb"huey\..*"),
    _layout("Sidekiq", rb"queue:[^:]+", "list", proof=_first_job, is_proof=_is_of_sidekiq),
    _layout("Sidekiq", rb"(?:.*:)?stat:(?:processed|failed|expired)(?::[\d-]+)?", "string"),
    _layout("Sidekiq", rb"(?:processes|queues)", "set"),
    _layout(
        "Sidekiq",
        rb"(?:retry|schedule|dead)",
        "zset",
        proof=_first_member,
        is_proof=_is_of_sidekiq,
    ),
    _layout(
        "Sidekiq",
        rb"[^:]+:\d+:[0-9a-f]{12}",
        "hash",
        field="info",
        pattern=re.compile(rb'"version":"(\d[\w.]*)"'),
    ),
    _layout("Sidekiq", rb"[^:]+:\d+:[0-9a-f]{12}:work(?:ers)?"),
    _sure("BullMQ", rb"bull:[^:]+:meta", "hash", field="version"),
    _layout("BullMQ", rb"(?:bull|bullmq):.+"),
    _layout("Resque", rb"resque:.*"),
    _layout("Dramatiq", rb"dramatiq:.*"),
    _layout("arq", rb"arq:.*"),
    _layout("taskiq", rb"taskiq(?::.*)?", "stream list"),
    _sure("Django sessions", rb".*:\d+:django\.contrib\.sessions\..+", "string"),
    _sure("Django cache", rb".*:\d+:views\.decorators\.cache\..+", "string"),
    _layout("Django cache", rb":\d+:.+", "string"),
    _layout(
        "redis-om",
        rb"(?:.*:)?[\w.]+\.\w+:" + _ULID,
        "hash",
        proof=lambda key: ("HGET", key, "pk"),
        is_proof=_is_of_redis_om,
    ),
    _layout("redis-om", rb"(?:.*:)?[\w.]+\.\w+:" + _ULID, "ReJSON-RL"),
    _layout(
        "Flask-Session",
        rb"session:[\w-]{43}",
        "string",
        proof=lambda key: ("GETRANGE", key, 0, 15),
        is_proof=_is_session,
    ),
    _layout("Channels", rb"asgi[:.].*|asgi.*:group:.*"),
    _layout("Flask-Caching", rb"flask_cache_.*", "string"),
    _layout("Spring Session", rb"spring:session:.*"),
    _layout("express-session", rb"sess:.+", "string"),
    _layout("Laravel", rb"(?:laravel[^:]*_)?(?:database_)?queues:.+|laravel[_:].*"),
    _sure(
        "limits",
        rb"(?:LIMITS:)?\{?LIMITER/.+/\d+/\d+/(?:second|minute|hour|day|month|year)\}?(?:/-1)?",
        "string list",
    ),
    _layout("Redisson", rb"redisson.*|\{.*\}:redisson_.*"),
    _layout("LangGraph", rb"(?:checkpoint(?:_write|_latest|_blob)?|write_keys_zset|store):.+"),
    _layout("Prefect", rb"prefect[:.].*"),
    _layout("docket", rb"docket:.*"),
    _layout("Open WebUI", rb"open-webui:.*"),
    _layout("Spark", rb"(?:spark|spark-redis|_spark):.*"),
    _layout("JupyterHub", rb"jupyterhub:.*"),
)


class Owners:
    """Tells the owners of keys, and remembers the versions that have been seen.

    Attributes: versions: by owner, "" where nobody knows.
    """

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self._asked: dict[str, int] = {}

    def of(self, key: bytes) -> str:
        """Return a key's owner by its name. No command."""
        if not is_users_key(key):
            return OWN
        layout = layout_of(key)
        if layout is None:
            return UNKNOWN
        if layout.version:
            self.versions.setdefault(layout.owner, layout.version)
        return layout.owner

    def question(self, key: bytes, of_type: str) -> Command | None:
        """Return a command whose reply tells a version; None if nothing more is to be learned."""
        layout = layout_of(key)
        if layout is None or not layout.field or of_type != "hash":
            return None
        # Some of an owner's processes say nothing: a few are asked.
        asked = self._asked.get(layout.owner, 0)
        if asked >= 8:
            return None
        self._asked[layout.owner] = asked + 1
        return layout.question(key)

    def answer(self, key: bytes, reply: Any) -> None:
        """Note the version that a reply tells."""
        layout = layout_of(key)
        version = "" if layout is None else layout.answer(reply)
        if layout is not None and version:
            known = self.versions.get(layout.owner, "")
            seen = [each for each in known.split(", ") if each] if known[:1].isdigit() else []
            if version not in seen and len(seen) < 3:
                self.versions[layout.owner] = ", ".join(sorted({*seen, version}))


def layout_of(key: bytes, of_type: str = "") -> KeyLayout | None:
    """Return the first layout to which a key's name belongs; None: nobody's that is known.

    Arguments:
        of_type: of the key, empty: any.
    """
    for each in LAYOUTS:
        fits = not of_type or not each.types or of_type in each.types
        if fits and each.names.fullmatch(key) is not None:
            return each
    return None


def certainty_of(
    owner: str, key: bytes, types: Sequence[str], proofs: Sequence[int] = (0, 0)
) -> str:
    """Return how sure it is that a family is an owner's; empty if it is not the owner's.

    A name alone proves little: keys of another type are somebody else's, and so are those that do
    not hold what the owner writes.

    Arguments:
        key: one of the family.
        types: of its keys.
        proofs: how many keys had what proves the owner, of how many that were looked into.
    """
    layouts = [
        each
        for each in LAYOUTS
        if each.owner == owner
        and each.names.fullmatch(key)
        and (not types or not each.types or any(one in each.types for one in types))
    ]
    if not layouts:
        return ""
    proved, asked = proofs
    if asked:
        if proved == asked:
            return CERTAIN
        # Some of them may be another program's: then no name is claimed for certain.
        return PROBABLE if 2 * proved > asked else ""
    return CERTAIN if layouts[0].is_sure else PROBABLE
