"""Whose keys they are: the layouts of known programs, and the version as far as it shows.

A family belongs to an owner if its names and its type are those of the owner's layout. The layouts
that rules know were read in the packages' own sources; the others are names that are well known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workstealing.jobs.key_walk import is_users_key
from workstealing.store.connection import Command

UNKNOWN = "-"
OWN = "workstealing"

_UUID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True)
class KeyLayout:
    """Names that a program gives its keys.

    Fields: owner; names: a regular expression of the whole name; types: of the keys, empty: any;
    field: of a hash that tells the version, with `pattern`, whose first group is the version;
    version: that has such keys first.
    """

    owner: str
    names: re.Pattern[bytes]
    types: frozenset[str] = frozenset()
    field: str = ""
    pattern: re.Pattern[bytes] = re.compile(rb"(?:\w+:)?v?(\d[\w.]*)")
    version: str = ""

    def question(self, key: bytes) -> Command | None:
        """Return the command whose reply tells the version; None if there is none."""
        return ("HGET", key, self.field) if self.field else None

    def answer(self, reply: Any) -> str:
        """Return the version that a reply tells; empty if none."""
        found = self.pattern.search(reply) if isinstance(reply, bytes) else None
        return found[1].decode("ascii", "replace") if found is not None else ""


def _layout(owner: str, names: bytes, types: str = "", **more: Any) -> KeyLayout:
    return KeyLayout(owner, re.compile(names, re.DOTALL), frozenset(types.split()), **more)


KOMBU, RQ = "Celery (kombu)", "RQ"
_NEW_KOMBU = "kombu 5.7 or newer"

LAYOUTS: Sequence[KeyLayout] = (
    _layout(KOMBU, rb".*_kombu\.binding_deadlines", "zset", version=_NEW_KOMBU),
    _layout(KOMBU, rb".*_kombu\.binding_permanent\..*", "set", version=_NEW_KOMBU),
    _layout(KOMBU, rb".*_kombu\.binding\..*", "set"),
    _layout(KOMBU, rb".*" + _UUID + rb"\.reply\.celery\.pidbox", "list"),
    _layout(KOMBU, rb".*celery-task-meta-.+", "string"),
    _layout(KOMBU, rb".*celery-taskset-meta-.+"),
    _layout(KOMBU, rb".*chord-unlock-.+|.*celery-task-meta-.+\.[jst]"),
    _layout(KOMBU, rb"(?:.*[:._-])?unacked(?:_index|_mutex)?", "hash zset string"),
    _layout(KOMBU, rb"celery(?:\x06\x16[0-9])?", "list"),
    _layout(KOMBU, rb".*/\{celery.*"),
    # The lists of rpc:// are named by a client's UUID alone.
    _layout(KOMBU, _UUID, "list"),
    _layout(RQ, rb"rq:ready:.*|rq:rate_limit.*", version="3.0 or newer"),
    _layout(RQ, rb"rq:worker:.*", "hash", field="version"),
    _layout(
        RQ,
        rb"rq:(?:jobs?|queues?|workers|wip|finished|failed|deferred|scheduled|canceled|results"
        rb"|clean_registries|executions?|scheduler|scheduler-lock|intermediate|pubsub|cron|group"
        rb"|repeat)(?::.*)?",
    ),
    _layout("cacheops", rb".*conj:.+", "set"),
    _layout("cacheops", rb".*schemes:.+", "set"),
    _layout("Huey", rb"huey\.(?:redis|schedule|results|r|priority|stream|rd|rl|lock)\..*"),
    _layout("Huey", rb"huey\..*"),
    _layout("Sidekiq", rb"(?:.*:)?stat:(?:processed|failed|expired)(?::[\d-]+)?", "string"),
    _layout("Sidekiq", rb"(?:processes|queues)", "set"),
    _layout("Sidekiq", rb"(?:retry|schedule|dead)", "zset"),
    _layout(
        "Sidekiq",
        rb"[^:]+:\d+:[0-9a-f]{12}",
        "hash",
        field="info",
        pattern=re.compile(rb'"version":"(\d[\w.]*)"'),
    ),
    _layout("Sidekiq", rb"[^:]+:\d+:[0-9a-f]{12}:work(?:ers)?"),
    _layout("BullMQ", rb"bull:[^:]+:meta", "hash", field="version"),
    _layout("BullMQ", rb"(?:bull|bullmq):.+"),
    _layout("Resque", rb"resque:.*"),
    _layout("Dramatiq", rb"dramatiq:.*"),
    _layout("arq", rb"arq:.*"),
    _layout("taskiq", rb"taskiq(?::.*)?", "stream list"),
    _layout("Django sessions", rb".*:\d+:django\.contrib\.sessions\..+", "string"),
    _layout("Django cache", rb".*:\d+:views\.decorators\.cache\..+", "string"),
    _layout("Django cache", rb":\d+:.+", "string"),
    _layout("Channels", rb"asgi[:.].*|asgi.*:group:.*"),
    _layout("Flask-Caching", rb"flask_cache_.*", "string"),
    _layout("Spring Session", rb"spring:session:.*"),
    _layout("express-session", rb"sess:.+", "string"),
    _layout("Laravel", rb"(?:laravel[^:]*_)?(?:database_)?queues:.+|laravel[_:].*"),
    _layout("limits", rb"LIMITS?:?(?:ER)?/.*|LIMITER/.*"),
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


def layout_of(key: bytes) -> KeyLayout | None:
    """Return the first layout to which a key's name belongs; None: nobody's that is known."""
    for each in LAYOUTS:
        if each.names.fullmatch(key) is not None:
            return each
    return None


def has_layout(owner: str, key: bytes, types: Sequence[str]) -> bool:
    """Say whether a family with such keys and types may be the owner's.

    A name alone proves little: keys of another type are somebody else's.
    """
    layouts = [each for each in LAYOUTS if each.owner == owner and each.names.fullmatch(key)]
    return not types or any(
        not each.types or any(one in each.types for one in types) for each in layouts
    )
