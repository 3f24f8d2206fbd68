"""Undoing: brings back what a job of rules has removed, byte for byte, while it is kept.

Another program, a person or a damaged backup may have written anything into the stream that keeps
it. So an entry that cannot be read is named, and stays where it is; the others come back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import Aborted, LayoutError
from workstealing.jobs.leftovers.removing import SideKeys
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import JobClient, Node, job_client_of
from workstealing.store.keys import key_slot
from workstealing.store.scripts import load
from workstealing.structures.stored import holding_ours, stored_number

_PAGE = 100
_SECONDS = 5.0
BACK = "back"
CAME_BACK = "it has come back by itself"
ENDED = "its time is over since"
WRITTEN = "it is being written"
OTHER = "its key holds another type now"
GONE = "it is no longer kept"
UNREADABLE = "its entry cannot be read"
# As ZSCORE writes one.
_SCORE = re.compile(rb"-?(inf|[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?)")
# The server's words about content that nothing can be made of.
_NO_CONTENT = re.compile(r"DUMP payload|Bad data format")
_NO_DUMP = "its content is none that DUMP gives on this server"
_SHOWN = 60
_ABSENT = {"set": "SISMEMBER", "zset": "ZSCORE", "hash": "HEXISTS"}


@dataclass(frozen=True, slots=True)
class Undone:
    """The end of one removed item.

    Fields: key; member: of the key, None: the key itself; rule: that removed it; at: when, in
    seconds since the epoch; why: BACK, or the reason why it is not back; problem: of an entry that
    is UNREADABLE, which one it is and what it says; its key and rule may be empty.
    """

    key: bytes
    member: bytes | None
    rule: str
    at: float
    why: str = BACK
    problem: str = ""

    @property
    def is_back(self) -> bool:
        """Whether the item is there again."""
        return self.why == BACK


def undo(
    client: Any, job: str, since: Duration | None = None, *, dry_run: bool = False
) -> Iterator[Undone]:
    """Bring back what a job has removed, the last removal first.

    Arguments:
        client: of the server or cluster.
        job: its name.
        since: how long ago at most, in seconds or as a timedelta, None: everything that is kept.
        dry_run: only list it.

    Yields: an `Undone` for each key or member. A key that is there again stays as it is, and what
    is kept of it stays kept. An entry that cannot be read stays, too, and those behind it come
    back. Raises: ConfigurationError; LayoutError if the place of the stream holds another type;
    connection faults; OutOfMemoryError from a full server. Whatever was yielded before stands. Two
    round trips for each removal.
    """
    job_client = job_client_of(client)
    ago = None if since is None else seconds_of(since, "since")
    for node, stream in _streams(job_client, job):
        ((seconds, _),) = checked(job_client.call(node, [("TIME",)], _budget()))
        first = b"-" if ago is None else b"%d" % max(0, int(1000 * (int(seconds) - ago)))
        last: bytes = b"+"
        while True:
            ask = ("XREVRANGE", stream, last, first, "COUNT", _PAGE)
            with holding_ours(stream):
                (page,) = checked(job_client.call(node, [ask], _budget()))
            for number, fields in page:
                yield from _bring_back(job_client, stream, number, fields, dry_run=dry_run)
            if len(page) < _PAGE:
                break
            last = b"(" + page[-1][0]


def _streams(job_client: JobClient, job: str) -> Iterator[tuple[Node, bytes]]:
    """Yield the streams that hold what a job has removed."""
    names = SideKeys(job, job_client)
    if not job_client.is_cluster:
        yield job_client.nodes()[0], names.kept(b"")
        return
    for node in job_client.nodes():
        cursor = b"0"
        while True:
            scan = ("SCAN", cursor, "MATCH", names.every_kept(), "COUNT", 1000, "TYPE", "stream")
            ((cursor, found),) = checked(job_client.call(node, [scan], _budget()))
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


def _kept(
    job_client: JobClient,
    stream: bytes,
    number: bytes,
    about: dict[bytes, bytes],
    fields: Sequence[bytes],
) -> _Kept:
    """Read an entry. Raises: LayoutError, whose text says only why the entry is unreadable."""
    kind = about.get(b"type", b"").decode(errors="backslashreplace")
    if kind != "key" and kind not in _ABSENT:
        raise LayoutError(f"it says {kind[:_SHOWN]!r} as its type")
    members, contents = (
        [value for name, value in zip(fields[::2], fields[1::2], strict=True) if name == wanted]
        for wanted in (b"member", b"content")
    )
    if b"key" not in about:
        raise LayoutError("it names no key")
    if len(contents) != (1 if kind == "key" else len(members)) or not contents:
        raise LayoutError(f"it has {len(members)} members and {len(contents)} contents")
    if job_client.is_cluster and key_slot(about[b"key"]) != key_slot(stream):
        # What is removed is kept in its own slot.
        raise LayoutError("its key is of another slot")
    if kind == "zset":
        for each in contents:
            if not _is_score(each):
                raise LayoutError(f"it says {_shown(each)} as a score")
    ends = 0
    if kind == "key":
        try:
            ends = stored_number(stream, "ends", about.get(b"ends"))
        except LayoutError:
            raise LayoutError(f"it says {_shown(about.get(b'ends'))} as its end in ms") from None
    return _Kept(
        key=about[b"key"],
        kind=kind,
        rule=_rule_of(about),
        at=_moment_of(number),
        ends=ends,
        members=members,
        contents=contents,
    )


def _bring_back(
    job_client: JobClient, stream: bytes, number: bytes, fields: Sequence[bytes], *, dry_run: bool
) -> Iterator[Undone]:
    about = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        kept = _kept(job_client, stream, number, about, fields)
        if dry_run:
            yield from _listed(job_client, kept)
        else:
            yield from _restored(job_client, stream, number, kept)
    except LayoutError as error:
        entry = f"the entry {number.decode()} of {stream.decode(errors='backslashreplace')}"
        yield Undone(
            *(about.get(b"key", b""), None, _rule_of(about), _moment_of(number), UNREADABLE),
            f"{entry} cannot be read, because {error}: it stays there until its time is over",
        )


def _listed(job_client: JobClient, kept: _Kept) -> Iterator[Undone]:
    """List what would come back. Raises: LayoutError where the server would refuse the content."""
    if kept.kind == "key":
        # The server reads the content, finds that its time is over, and makes no key of it.
        try_it = ("RESTORE", kept.key, 1, kept.contents[0], "ABSTTL")
        (reply,) = job_client.call_keys((kept.key,), [try_it], _budget())
        if not isinstance(reply, ResponseError):
            checked([reply])
        elif _NO_CONTENT.search(str(reply)):
            raise LayoutError(_NO_DUMP)
        # Any other refusal says nothing of the content: the key is there, the server is full, only
        # reads, does not know ABSTTL, or denies this user RESTORE.
    for member in kept.members if kept.kind != "key" else [None]:
        yield Undone(kept.key, member, kept.rule, kept.at)


def _restored(job_client: JobClient, stream: bytes, number: bytes, kept: _Kept) -> Iterator[Undone]:
    """Bring back the content of one entry. Raises: LayoutError where the server refuses it."""
    key, kind, rule, at, members = kept.key, kept.kind, kept.rule, kept.at, kept.members
    # Another undo may have been here since the page was read. Where it comes later, it changes the
    # key, and this attempt is aborted.
    ask: Command = ("XREVRANGE", stream, number, number)
    try:
        with attempt(job_client, key, in_any_slot=True) as tried:
            if kind == "key":
                still, there, now = tried.read(ask, ("EXISTS", key), ("TIME",))
                now_ms = 1000 * int(now[0]) + int(now[1]) // 1000
                why = _reason(there, kept.ends, now_ms) if still else GONE
                if why == BACK:
                    left = kept.ends - now_ms if kept.ends else 0
                    script = load("leftovers/restore").body
                    # EXEC goes on behind a refused command, and what is kept would be deleted.
                    tried.commit(("EVAL", script, 2, key, stream, left, kept.contents[0], number))
                yield Undone(key, None, rule, at, why)
                return
            still, *found = tried.read_each(ask, *((_ABSENT[kind], key, each) for each in members))
            if still == []:
                yield from (Undone(key, each, rule, at, GONE) for each in members)
                return
            if any(isinstance(each, ResponseError) for each in found):
                yield from (Undone(key, each, rule, at, OTHER) for each in members)
                return
            gone = [
                (member, content)
                for member, content, there in zip(members, kept.contents, found, strict=True)
                if there in (None, 0)
            ]
            if gone:
                tried.commit(_adding(kind, key, gone), ("XDEL", stream, number))
            back = {member for member, _ in gone}
        for each in members:
            yield Undone(key, each, rule, at, BACK if each in back else CAME_BACK)
    except Aborted:
        yield Undone(key, None, rule, at, WRITTEN)
    except ResponseError as error:
        if not _NO_CONTENT.search(str(error)):
            raise
        raise LayoutError(_NO_DUMP) from None


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


def _is_score(text: bytes) -> bool:
    """Say whether a double can hold a score: ZADD refuses others, and EXEC does not stop there."""
    if not _SCORE.fullmatch(text):
        return False
    if math.isinf(float(text)):
        return b"inf" in text
    return float(text) != 0 or not re.search(rb"[1-9]", text.partition(b"e")[0])


def _rule_of(about: dict[bytes, bytes]) -> str:
    return about.get(b"rule", b"").decode(errors="replace")


def _moment_of(number: bytes) -> float:
    return int(number.partition(b"-")[0]) / 1000


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:_SHOWN].decode(errors="backslashreplace"))


def _budget() -> Budget:
    # A person waits for the answer, not a host.
    return Budget(None, _SECONDS)
