"""Garbage that Celery's and kombu's processes leave in Redis when they die."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from workstealing.clock import Duration
from workstealing.jobs.leftovers import (
    CLIENT,
    DECLARED,
    LIVE,
    Declared,
    Garbage,
    Item,
    Leftovers,
    Offer,
    Removal,
    Rule,
    Unknown,
    Verdicts,
    call,
    key_removed,
    keys,
    literally,
    look,
    members,
    seen_twice,
)
from workstealing.jobs.leftovers.rule import DAY

__all__ = [
    "CeleryLeftovers",
    "DeadBindings",
    "ReplyLists",
    "RpcReplies",
    "UnacknowledgedMessages",
]

VERSIONS = "kombu 5.3 to 5.7"
SEPARATOR = "\x06\x16"
REPLIES = "reply.celery.pidbox"
_BINDING, _PERMANENT = "_kombu.binding.", "_kombu.binding_permanent."
_UUID = "[0-9a-f]" * 8 + "-" + "-".join(["[0-9a-f]" * 4] * 3) + "-" + "[0-9a-f]" * 12
_REPLIES = re.compile(
    rb"(.*?)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.reply\.celery\.pidbox", re.DOTALL
)
_MESSAGE = {"body", "content-encoding", "content-type", "headers", "properties"}
_RESULT = {"task_id", "status", "result", "traceback", "children"}


def _prefix_in(key: bytes) -> dict[str, Any] | None:
    """Return kombu's prefix, where a key's name tells one."""
    if not key.endswith(b".reply.celery.pidbox"):
        return None
    found = _REPLIES.fullmatch(key)
    prefix = b"" if found is None else found[1]
    return {"prefix": prefix.decode("utf-8", "replace")} if prefix else None


class _OfKombu(Rule):
    """The part that the rules of Celery's broker share."""

    owner = "Celery (kombu)"
    versions = VERSIONS
    asked = ({},)
    tells = staticmethod(_prefix_in)
    _prefix: bytes

    def offer(self) -> Offer:
        """Offer the job of Celery, with the prefix of its keys."""
        return self._offer()

    def _offer(self, *, shared: bool = False, **options: Any) -> Offer:
        own = {"prefix": self._prefix.decode()} if self._prefix else {}
        return Offer(call(CeleryLeftovers, CLIENT, **own, **options), shared=shared)


class ReplyLists(_OfKombu):
    """Lists of replies to remote control, whose reader died while it waited.

    Arguments:
        prefix: kombu's `global_keyprefix`.
        exchange: that of the replies (Celery's `control_exchange` "x" makes it "reply.x.pidbox").
        gap: between the two sightings.

    Proof: a reader that waits takes each message from the list's end at once, and deletes the list
    when it has waited. So nobody reads a list whose length and ends stay the same for the gap. The
    risk that is left: a reader that was stopped (SIGSTOP) for the gap, or whose callback for a
    reply took as long as the gap, misses replies. The binding stays, for `DeadBindings`.
    """

    name = "celery.replies"
    finds = "Reply lists of clients that died while they waited for remote control's replies."

    def __init__(self, prefix: str = "", exchange: str = REPLIES, gap: Duration = 3_600) -> None:
        self.certainty = seen_twice(gap)
        self.where = keys(f"{literally(prefix)}{_UUID}.{literally(exchange)}", "list")
        self._prefix, self._exchange = prefix.encode(), exchange

    def verdict(self, item: Item) -> Verdicts:
        """Judge a list by its length and its ends; each must be a reply to its reader."""
        length, *ends = yield look(
            ("LLEN", item.key), ("LINDEX", item.key, 0), ("LINDEX", item.key, -1), watch=item.key
        )
        if not length:
            return LIVE
        oid = item.key.removeprefix(self._prefix).partition(b".")[0].decode()
        for each in map(_message, ends):
            if each is None or not _is_routed(each, self._exchange, oid):
                return Unknown("its entries are no messages of kombu to it")
            if "ticket" not in each["headers"]:
                return Unknown("its entries are no replies")
        return key_removed(item.key, _mark(length, *ends))


class RpcReplies(_OfKombu):
    """Results of the backend ``rpc://`` that nobody collects.

    Arguments:
        prefix: kombu's `global_keyprefix`.
        wait: the longest time for which a client of yours waits for a result, or comes back for it,
            in seconds or as a timedelta.

    A list that has not changed for `wait` has no reader who still wants it. The list's ends must be
    results in JSON: a queue of tasks may have such a name, too, and tasks are never touched.
    """

    name = "celery.rpc_replies"
    finds = "Results of rpc:// that nobody has collected for longer than any client waits."
    asked = ({"wait": DAY},)

    def __init__(self, wait: Duration, prefix: str = "") -> None:
        self.certainty = seen_twice(wait)
        self.where = keys(f"{literally(prefix)}{_UUID}", "list")
        self._prefix = prefix.encode()

    def offer(self) -> Offer:
        """Offer the job with a longest wait; any list may have a UUID for its name."""
        return self._offer(shared=True, wait=Declared("LONGEST_WAIT", self.certainty.gap))

    def verdict(self, item: Item) -> Verdicts:
        """Judge a list by its length and its ends."""
        length, *ends = yield look(
            ("LLEN", item.key), ("LINDEX", item.key, 0), ("LINDEX", item.key, -1), watch=item.key
        )
        if not length:
            return LIVE
        oid = item.key.removeprefix(self._prefix).decode()
        for each in map(_message, ends):
            if each is None or not _is_routed(each, "", oid):
                return Unknown("its entries are no messages of kombu to it")
            if not _is_result(each):
                return Unknown("its entries are no results in JSON")
        return key_removed(item.key, _mark(length, *ends))


class DeadBindings(_OfKombu):
    """Bindings of reply queues whose clients are gone; each makes every reply slower.

    Arguments:
        prefix: as of `ReplyLists`.
        exchange: as of `ReplyLists`.
        sep: kombu's `sep`.
        life: the longest life of a process of yours that uses remote control, in seconds or as a
            timedelta.

    Redis has no empty lists, and a WATCH does not see that a client binds its queue anew. But a
    queue's name belongs to one process. So the rule removes a binding if its queue had no list at
    two sightings, `life` apart, and has none at the removal. Kombu 5.7 sweeps tables itself, but no
    members.
    """

    name = "celery.bindings"
    finds = "Bindings of reply queues that are older than any client, and have no messages."
    asked = ({"life": 7 * DAY},)

    def __init__(
        self, life: Duration, prefix: str = "", sep: str = SEPARATOR, exchange: str = REPLIES
    ) -> None:
        self.certainty = seen_twice(life)
        self.where = members(literally(prefix + _BINDING + exchange), "set")
        self._prefix, self._sep = prefix.encode(), sep.encode()
        self._queue = re.compile(rf"({_UUID})\.{re.escape(exchange)}".encode())
        self._permanent = f"{prefix}{_PERMANENT}{exchange}".encode()

    def offer(self) -> Offer:
        """Offer the job with a longest life of a client."""
        return self._offer(life=Declared("LONGEST_LIFE_OF_A_CLIENT", self.certainty.gap))

    def verdict(self, item: Item) -> Verdicts:
        """Judge a binding: it may be dead if its queue has no list."""
        key, pattern, name = (item.member or b"").split(self._sep)
        queue = self._queue.fullmatch(name)
        if queue is None or queue[1] != key or pattern:
            return Unknown("it is no binding of a reply queue")
        there, permanent = yield look(
            ("EXISTS", self._prefix + name),
            ("SISMEMBER", self._permanent, item.member),
            watch=(self._prefix + name, self._permanent),
        )
        if there:
            return LIVE
        more = (Removal(self._permanent, "set", item.member or b""),) if permanent else ()
        return Garbage((Removal(item.key, "set", item.member or b""), *more), b"no list")


class UnacknowledgedMessages(_OfKombu):
    """Messages in flight; kombu itself restores those of dead workers, so they are only counted.

    Arguments:
        prefix: kombu's `global_keyprefix`.
        key: its `unacked_key`.
    """

    name = "celery.unacked"
    finds = "Messages that workers hold unacknowledged. Kombu restores them; they are only counted."
    certainty = DECLARED
    reports_only = True

    def __init__(self, prefix: str = "", key: str = "unacked") -> None:
        self.where, self._prefix = members(literally(prefix + key), "hash"), prefix.encode()

    def verdict(self, item: Item) -> Verdicts:
        """Count a message."""
        (there,) = yield look(("HEXISTS", item.key, item.member), watch=item.key)
        return Garbage() if there else LIVE


class CeleryLeftovers(Leftovers):
    """Removes what Celery's clients leave in Redis when they die.

    Arguments:
        client: of the broker.
        prefix: kombu's `global_keyprefix` and `sep`, as in `broker_transport_options`.
        sep: kombu's `global_keyprefix` and `sep`, as in `broker_transport_options`.
        exchange: of the replies to remote control.
        gap: between two sightings of a list.
        wait: the longest wait for a result of rpc://, None: those stay.
        life: the longest life of a client, None: bindings without a list stay; further ones: of
            `Leftovers`.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "",
        sep: str = SEPARATOR,
        exchange: str = REPLIES,
        gap: Duration = 3_600,
        wait: Duration | None = None,
        life: Duration | None = None,
        name: str = "celery_leftovers",
        **options: Any,
    ) -> None:
        rules: list[Rule] = [ReplyLists(prefix, exchange, gap), UnacknowledgedMessages(prefix)]
        if wait is not None:
            rules.append(RpcReplies(wait, prefix))
        if life is not None:
            rules.append(DeadBindings(life, prefix, sep, exchange))
        super().__init__(client, rules, name=name, **options)


def _message(data: bytes) -> Any:
    """Return the message of kombu's in these bytes; None if they hold none."""
    try:
        message = json.loads(data)
    except ValueError:
        return None
    return message if isinstance(message, dict) and set(message) >= _MESSAGE else None


def _is_routed(message: Any, exchange: str, key: str) -> bool:
    """Say whether a message was sent to an exchange by a routing key."""
    to = message["properties"]["delivery_info"]
    return bool(to["exchange"] == exchange and to["routing_key"] == key)


def _is_result(message: Any) -> bool:
    """Say whether a message is a task's result in JSON."""
    if message["content-type"] != "application/json" or "task" in message["headers"]:
        return False
    body = json.loads(base64.b64decode(message["body"]))
    return set(body) >= _RESULT and body["task_id"] == message["properties"]["correlation_id"]


def _mark(length: int, *ends: bytes) -> bytes:
    return b"%d:%b" % (length, hashlib.blake2b(b"\0".join(ends), digest_size=16).digest())
