"""Nonsense under a structure's own keys, and the search for operations that believe it.

Every value, member, field and score of every key is replaced by every kind of nonsense, and then
each operation runs on that state. It may refuse by one of `REFUSALS` or return something. It may
not raise another error, take a processor's time or memory without bound, or keep the server busy.
"""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from workstealing.errors import (
    Aborted,
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    OutOfTime,
    Skipped,
    UndecodableEntryError,
)

REFUSALS = (
    *(LayoutError, DamagedBlockError, UndecodableEntryError, Aborted, OutOfTime, Skipped),
    # A queue of other settings, as far as anybody can tell.
    ConfigurationError,
)
"""The errors that say that something is wrong, or that a slice has not begun."""

TEXTS = (
    *(b"999999999999", b"4000000000", b"-5", b"", b"nan", b"1e308", b"x" * 50, b"0x10"),
    *(b"999999999:1-1", b'{"score": "1", "att', b"\x93\x01"),
)
"""The values that replace a text: numbers out of all bounds, no numbers, cut JSON and msgpack."""
SCORES = (999999999999.0, 4000000000.0, -5.0, 1e308, 0.5, float("inf"), float("-inf"))

_OURS = re.compile(rb"(^|:)ws:|/")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_OF_THE_SERVER = (WRONG_TYPE, "no such key")
MOST_COMMANDS = 20_000
"""How many commands one operation may cost the server, those in scripts included."""
CPU_SECONDS = 1.0
"""How long one operation may compute here; it takes milliseconds."""
MEMORY_BYTES = 200 * 1024 * 1024
"""How much more address space this process may take meanwhile."""


class Unbounded(BaseException):
    """An operation that goes on and on was broken off; no code of ours may catch it."""


@dataclass(frozen=True)
class Mutation:
    """One key changed in one place: where, to what, and how."""

    key: bytes
    place: str
    value: object
    apply: Callable[[redis.Redis], object] = field(compare=False)

    def __str__(self) -> str:
        return f"{self.key!r} {self.place} = {self.value!r}"


class Search:
    """A state of a structure's keys, restored before each operation.

    Arguments:
        client: of a server that holds the state and nothing else.
        beside: of others that belong to it, whose keys stay as they are.
    """

    def __init__(self, client: redis.Redis, beside: Sequence[redis.Redis] = ()) -> None:
        self.client = client
        self.kinds = {key: client.type(key).decode() for key in sorted(client.scan_iter())}
        self._dumps = {
            each: {key: each.dump(key) for key in each.scan_iter()} for each in (client, *beside)
        }

    def restore(self) -> None:
        """Bring the state back."""
        for client, dumps in self._dumps.items():
            with client.pipeline(transaction=False) as pipe:
                pipe.flushdb()
                for key, dump in dumps.items():
                    pipe.restore(key, 0, dump)
                pipe.execute()

    def mutations(self) -> Iterator[Mutation]:
        """Yield each change of each key."""
        self.restore()
        for key, kind in self.kinds.items():
            yield from _of_another_type(key, kind)
            yield from _KINDS[kind](self.client, key)

    def failures(
        self,
        mutations: list[Mutation],
        operations: Mapping[str, Callable[[], object]],
        seen: Callable[[Mutation, str, object], object] = lambda *_: None,
    ) -> list[str]:
        """Run each operation on each state; return a line for each failure.

        Arguments:
            seen: is told the outcome of each one.
        """
        found: list[str] = []
        for mutation in mutations:
            for name, run in operations.items():
                self.restore()
                mutation.apply(self.client)
                outcome = self._outcome(run)
                seen(mutation, name, outcome)
                if isinstance(outcome, BaseException) and not _is_refusal(outcome, mutation):
                    found.append(f"{mutation}: {name}: {type(outcome).__name__}: {outcome}"[:400])
        return found

    def _outcome(self, run: Callable[[], object]) -> object:
        before = self.client.info("stats")["total_commands_processed"]
        try:
            with bounded():
                result = run()
        except (Exception, Unbounded) as error:  # noqa: BLE001 - any error is an outcome
            return error
        used = self.client.info("stats")["total_commands_processed"] - before
        if used > MOST_COMMANDS:
            return Unbounded(f"{used} commands")
        return result


def _is_refusal(error: BaseException, mutation: Mutation) -> bool:
    if not isinstance(error, REFUSALS):
        # A user's own key of another type is refused as by the server.
        is_users = not _OURS.search(mutation.key) and mutation.place == "type"
        # A pipeline says first which of its commands it was.
        return is_users and str(error).endswith(_OF_THE_SERVER)
    return "user_script" not in str(error)


@contextmanager
def bounded(seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Break off what computes for long, in seconds of this process, or takes much memory."""

    def stop(*_: object) -> None:
        raise Unbounded(f"{seconds} seconds of computing")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    before = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def _of_another_type(key: bytes, kind: str) -> Iterator[Mutation]:
    def replace(client: redis.Redis, put: Callable[[redis.Redis], object]) -> None:
        client.delete(key)
        put(client)

    others: dict[str, Callable[[redis.Redis], object]] = {
        "string": lambda client: client.set(key, "x"),
        "list": lambda client: client.rpush(key, "x"),
        "hash": lambda client: client.hset(key, "x", "y"),
    }
    for other, put in others.items():
        if other != kind:
            yield Mutation(key, "type", other, lambda client, put=put: replace(client, put))
    yield Mutation(key, "type", "none", lambda client: client.delete(key))


def _of_string(_client: redis.Redis, key: bytes) -> Iterator[Mutation]:
    for text in TEXTS:
        yield Mutation(key, "", text, lambda client, text=text: client.set(key, text))


def _of_hash(client: redis.Redis, key: bytes) -> Iterator[Mutation]:
    for name, value in sorted(client.hgetall(key).items()):
        shown = name.decode(errors="replace")
        for text in TEXTS:

            def put(client: redis.Redis, name: bytes = name, text: bytes = text) -> None:
                client.hset(key, name, text)

            def rename(
                client: redis.Redis, name: bytes = name, text: bytes = text, value: bytes = value
            ) -> None:
                client.hdel(key, name)
                client.hset(key, text, value)

            yield Mutation(key, f"value of {shown}", text, put)
            yield Mutation(key, f"field {shown}", text, rename)
        # Cut off in the middle.
        half = value[: len(value) // 2]
        yield Mutation(
            key,
            f"value of {shown}",
            half,
            lambda client, name=name, half=half: client.hset(key, name, half),
        )
        yield Mutation(
            key, f"field {shown}", None, lambda client, name=name: client.hdel(key, name)
        )


def _of_set(client: redis.Redis, key: bytes) -> Iterator[Mutation]:
    for member in sorted(client.smembers(key)):
        for text in TEXTS:

            def put(client: redis.Redis, member: bytes = member, text: bytes = text) -> None:
                client.srem(key, member)
                client.sadd(key, text)

            yield Mutation(key, f"member {member!r}", text, put)


def _of_sorted_set(client: redis.Redis, key: bytes) -> Iterator[Mutation]:
    for member, score in client.zrange(key, 0, -1, withscores=True):
        for text in TEXTS:

            def put(
                client: redis.Redis, member: bytes = member, text: bytes = text, at: float = score
            ) -> None:
                client.zrem(key, member)
                client.zadd(key, {text: at})

            yield Mutation(key, f"member {member!r}", text, put)
        for other in SCORES:
            yield Mutation(
                key,
                f"score of {member!r}",
                other,
                lambda client, member=member, other=other: client.zadd(key, {member: other}),
            )


def _of_list(client: redis.Redis, key: bytes) -> Iterator[Mutation]:
    for text in TEXTS:
        yield Mutation(key, "first", text, lambda client, text=text: client.lset(key, 0, text))
    yield Mutation(key, "length", "one less", lambda client: client.lpop(key))


def _of_stream(client: redis.Redis, key: bytes) -> Iterator[Mutation]:
    entries = client.xrange(key)
    groups = client.xinfo_groups(key)
    for at, (_, fields) in enumerate(entries[:2]):
        for name in fields:
            for text in TEXTS:

                def put(
                    client: redis.Redis, at: int = at, name: bytes = name, text: bytes = text
                ) -> None:
                    client.delete(key)
                    for each, (identifier, flat) in enumerate(entries):
                        other = {**flat, name: text} if each == at else flat
                        client.xadd(key, other, identifier)
                    for group in groups:
                        client.xgroup_create(key, group["name"], group["last-delivered-id"])

                yield Mutation(key, f"entry {at}, {name!r}", text, put)
    yield Mutation(key, "groups", None, lambda client: _without_groups(client, key, groups))


def _without_groups(client: redis.Redis, key: bytes, groups: list[dict[str, Any]]) -> None:
    for group in groups:
        client.xgroup_destroy(key, group["name"])


_KINDS: dict[str, Callable[[redis.Redis, bytes], Iterator[Mutation]]] = {
    "string": _of_string,
    "hash": _of_hash,
    "set": _of_set,
    "zset": _of_sorted_set,
    "list": _of_list,
    "stream": _of_stream,
}
