"""Undoing: brings back what a job of rules has removed, byte for byte, while it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import Aborted
from workstealing.jobs.leftovers.removing import SideKeys
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.keys import key_slot
from workstealing.store.twin import Node, Twin, twin_of
from workstealing.structures.stored import holding_ours, stored_number, unbelieved

_PAGE = 100
_SECONDS = 5.0
BACK = "back"
CAME_BACK = "it has come back by itself"
ENDED = "its time is over since"
WRITTEN = "it is being written"
OTHER = "its key holds another type now"
# The server's words about content that nothing can be made of.
_NO_CONTENT = re.compile(r"DUMP payload|Bad data format|not a valid float")
_ABSENT = {"set": "SISMEMBER", "zset": "ZSCORE", "hash": "HEXISTS"}


@dataclass(frozen=True, slots=True)
class Undone:
    """The end of one removed item.

    Fields: key; member: of the key, None: the key itself; rule: that removed it; at: when, in
    seconds since the epoch; why: BACK, or the reason why it is not back.
    """

    key: bytes
    member: bytes | None
    rule: str
    at: float
    why: str = BACK

    @property
    def is_back(self) -> bool:
        """Whether the item is there again."""
        return self.why == BACK


def undo(
    client: Any, job: str, since: Duration | None = None, *, dry_run: bool = False
) -> Iterator[Undone]:
    """Bring back what a job has removed, the last removal first.

    Arguments: client: of the server or cluster; job: its name; since: how long ago at most, in
    seconds or as a timedelta, None: everything that is kept; dry_run: only list it. Yields: an
    `Undone` for each key or member. A key that is there again stays as it is, and what is kept of
    it stays kept. Raises: ConfigurationError; connection faults; OutOfMemoryError from a full
    server. Two round trips for each removal.
    """
    twin = twin_of(client)
    ago = None if since is None else seconds_of(since, "since")
    for node, stream in _streams(twin, job):
        ((seconds, _),) = checked(twin.call(node, [("TIME",)], _budget()))
        first = b"-" if ago is None else b"%d" % max(0, int(1000 * (int(seconds) - ago)))
        last: bytes = b"+"
        while True:
            ask = ("XREVRANGE", stream, last, first, "COUNT", _PAGE)
            with holding_ours(stream):
                (page,) = checked(twin.call(node, [ask], _budget()))
            for number, fields in page:
                yield from _bring_back(twin, stream, number, fields, dry_run=dry_run)
            if len(page) < _PAGE:
                break
            last = b"(" + page[-1][0]


def _streams(twin: Twin, job: str) -> Iterator[tuple[Node, bytes]]:
    """Yield the streams that hold what a job has removed."""
    names = SideKeys(job, twin)
    if not twin.is_cluster:
        yield twin.nodes()[0], names.kept(b"")
        return
    for node in twin.nodes():
        cursor = b"0"
        while True:
            scan = ("SCAN", cursor, "MATCH", names.every_kept(), "COUNT", 1000, "TYPE", "stream")
            ((cursor, found),) = checked(twin.call(node, [scan], _budget()))
            for each in sorted(set(found)):
                yield node, each
            if cursor == b"0":
                break


class _Kept(NamedTuple):
    """A removal that can be undone, as its entry of the stream says it.

    Fields: key; kind: of the key's members, or "key"; rule; at: when it was removed, in seconds;
    ends: when the key would have ended, in ms, 0: never; members, and contents: theirs, or the one
    of the key.
    """

    key: bytes
    kind: str
    rule: str
    at: float
    ends: int
    members: list[bytes]
    contents: list[bytes]


def _kept(stream: bytes, number: bytes, fields: Sequence[bytes]) -> _Kept:
    pairs = list(zip(fields[::2], fields[1::2], strict=True))
    about = dict(pairs)
    kind = about.get(b"type", b"").decode(errors="replace")
    if kind != "key" and kind not in _ABSENT:
        raise unbelieved(stream, f"type in entry {number.decode()}", kind, "a kind of key")
    members = [value for name, value in pairs if name == b"member"]
    contents = [value for name, value in pairs if name == b"content"]
    of_each = 1 if kind == "key" else len(members)
    if b"key" not in about or len(contents) != of_each:
        raise unbelieved(stream, f"entry {number.decode()}", None, "a removed item")
    return _Kept(
        key=about[b"key"],
        kind=kind,
        rule=about.get(b"rule", b"").decode(errors="replace"),
        at=int(number.partition(b"-")[0]) / 1000,
        ends=stored_number(stream, "ends", about.get(b"ends")) if kind == "key" else 0,
        members=members,
        contents=contents,
    )


def _bring_back(
    twin: Twin, stream: bytes, number: bytes, fields: Sequence[bytes], *, dry_run: bool
) -> Iterator[Undone]:
    kept = _kept(stream, number, fields)
    key, kind, rule, at, members = kept.key, kept.kind, kept.rule, kept.at, kept.members
    if dry_run:
        for member in members if kind != "key" else [None]:
            yield Undone(key, member, rule, at)
        return
    delete: Command = ("XDEL", stream, number)
    in_one_slot = not twin.is_cluster or key_slot(key) == key_slot(stream)
    assert in_one_slot, "what is removed is kept in its own slot"
    try:
        with attempt(twin, key, in_any_slot=True) as tried:
            if kind == "key":
                there, now = tried.read(("EXISTS", key), ("TIME",))
                now_ms = 1000 * int(now[0]) + int(now[1]) // 1000
                why = _reason(there, kept.ends, now_ms)
                if why == BACK:
                    left = kept.ends - now_ms if kept.ends else 0
                    tried.commit(("RESTORE", key, left, kept.contents[0]), delete)
                yield Undone(key, None, rule, at, why)
                return
            found = tried.read_each(*((_ABSENT[kind], key, each) for each in members))
            if any(isinstance(each, ResponseError) for each in found):
                yield from (Undone(key, each, rule, at, OTHER) for each in members)
                return
            gone = [
                (member, content)
                for member, content, there in zip(members, kept.contents, found, strict=True)
                if there in (None, 0)
            ]
            if gone:
                tried.commit(_adding(kind, key, gone), delete)
            back = {member for member, _ in gone}
        for each in members:
            yield Undone(key, each, rule, at, BACK if each in back else CAME_BACK)
    except Aborted:
        yield Undone(key, None, rule, at, WRITTEN)
    except ResponseError as error:
        if not _NO_CONTENT.search(str(error)):
            raise
        raise unbelieved(stream, f"entry {number.decode()}", None, "a removed item") from None


def _adding(kind: str, key: bytes, gone: Sequence[tuple[bytes, bytes]]) -> Command:
    """Return the command that adds members again."""
    if kind == "set":
        return ("SADD", key, *(member for member, _ in gone))
    if kind == "zset":
        return ("ZADD", key, *(part for member, score in gone for part in (score, member)))
    return ("HSET", key, *(part for pair in gone for part in pair))


def _reason(there: int, ends: int, now_ms: int) -> str:
    if there:
        return CAME_BACK
    return ENDED if ends and ends <= now_ms else BACK


def _budget() -> Budget:
    # A person waits for the answer, not a host.
    return Budget(None, _SECONDS)
