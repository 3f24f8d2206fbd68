"""Undoing: brings back what a job of rules has removed, byte for byte, while it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import Aborted
from workstealing.jobs.leftovers.removing import SideKeys
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.keys import key_slot
from workstealing.store.twin import Node, Twin, twin_of

_PAGE = 100
_SECONDS = 5.0
BACK = "back"
CAME_BACK = "it has come back by itself"
ENDED = "its time is over since"
WRITTEN = "it is being written"
OTHER = "its key holds another type now"
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
            page = checked(
                twin.call(node, [("XREVRANGE", stream, last, first, "COUNT", _PAGE)], _budget())
            )[0]
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


def _bring_back(
    twin: Twin, stream: bytes, number: bytes, fields: Sequence[bytes], *, dry_run: bool
) -> Iterator[Undone]:
    pairs = list(zip(fields[::2], fields[1::2], strict=True))
    about = dict(pairs)
    key, kind = about[b"key"], about[b"type"].decode()
    at = int(number.partition(b"-")[0]) / 1000
    rule = about[b"rule"].decode()
    members = [value for name, value in pairs if name == b"member"]
    contents = [value for name, value in pairs if name == b"content"]
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
                ends = int(about[b"ends"])
                now_ms = 1000 * int(now[0]) + int(now[1]) // 1000
                why = _reason(there, ends, now_ms)
                if why == BACK:
                    left = ends - now_ms if ends else 0
                    tried.commit(("RESTORE", key, left, contents[0]), delete)
                yield Undone(key, None, rule, at, why)
                return
            found = tried.read_each(*((_ABSENT[kind], key, each) for each in members))
            if any(isinstance(each, ResponseError) for each in found):
                yield from (Undone(key, each, rule, at, OTHER) for each in members)
                return
            gone = [
                (member, content)
                for member, content, there in zip(members, contents, found, strict=True)
                if there in (None, 0)
            ]
            if gone:
                tried.commit(_adding(kind, key, gone), delete)
            back = {member for member, _ in gone}
        for each in members:
            yield Undone(key, each, rule, at, BACK if each in back else CAME_BACK)
    except Aborted:
        yield Undone(key, None, rule, at, WRITTEN)


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
