"""Reading a server without being felt: small batches, with pauses by the time that they cost it.

Each batch lies between two TIMEs, so the server itself tells what share of its time a survey takes;
where TIME is refused, the round trip stands for it. Each batch begins with CLIENT NO-TOUCH, where
there is one: no key that is looked at counts as used, whatever becomes of a connection.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.store.budget import Budget, Pace, server_seconds, time_of
from workstealing.store.connection import Command
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import to_bytes
from workstealing.structures.access import CONNECTION, OF_A_CLUSTER, Access

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

LONGEST_BATCH = 0.0001
"""The seconds of a server's time that a batch takes at most, once its commands' cost is known.

Others wait behind a batch, and an application's p99 does not show it. Batches of half the length
took twice as long for the same keys: the way around a batch costs as much as the commands in it.
"""

BEGINNING = b"0"
_DATABASE = re.compile(r"db\d+")
_TIMEOUT = 10.0
_LEAST_COMMANDS, _MOST_COMMANDS, _FIRST_COMMANDS = 8, 2_000, 64
_LEAST_COUNT, _MOST_COUNT, _FIRST_COUNT = 10, 1_000, 100


class Reader:
    """Sends reading commands within a share of each server's time.

    Arguments:
        load: the share of a server's time, 0 < load <= 1.
        sleep: of the clock.
        monotonic: of the clock.

    Attributes: seconds: the servers' own time so far; commands; notes: what was refused, one
    sentence each.
    """

    def __init__(
        self,
        job_client: JobClient,
        load: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job_client, self._load = job_client, load
        self._sleep, self._monotonic = sleep, monotonic
        self._servers: dict[Node, _ServerState] = {}
        self.seconds, self.commands = 0.0, 0
        self.longest = 0.0
        self.notes: dict[str, None] = {}

    def note(self, sentence: str) -> None:
        """Note something that a reader of the survey must know, once."""
        self.notes.setdefault(sentence)

    def has_no_touch(self, node: Node) -> bool:
        """Say whether keys of a node that are looked at do not count as used."""
        return self._server(node).has_no_touch

    def read(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to commands, with error replies in their places.

        Raises: connection faults. One round trip for each batch, with pauses between.
        """
        server = self._server(node)
        replies: list[Any] = []
        at = 0
        while at < len(commands):
            some = commands[at : at + server.pace.room]
            at += len(some)
            replies += self._batch(node, server, some)
        return replies

    def scan(self, node: Node, cursor: bytes) -> tuple[bytes, list[bytes]]:
        """Return the next cursor and a page of keys.

        Raises: ConfigurationError if SCAN is refused; connection faults. One round trip.
        """
        server = self._server(node)
        before = self.seconds
        (reply,) = self.read(node, [("SCAN", cursor, "COUNT", server.count)])
        if isinstance(reply, Exception):
            raise ConfigurationError(f"a survey needs SCAN, and the server refuses it: {reply}")
        cost = self.seconds - before
        if cost > LONGEST_BATCH:
            server.count = max(_LEAST_COUNT, server.count // 2)
        elif cost < LONGEST_BATCH * 3 / 4:
            server.count = min(_MOST_COUNT, server.count + server.count // 2)
        return to_bytes(reply[0]), [to_bytes(each) for each in reply[1]]

    def now(self, node: Node) -> float:
        """Return the server's time of the last batch, in seconds since the epoch."""
        return self._server(node).now or time.time()

    def facts(self, node: Node) -> ServerFacts:
        """Return what a server says of itself. Raises: connection faults. One round trip."""
        parts = ("server", "memory", "replication", "keyspace")
        *told, size = self.read(node, [*(("INFO", each) for each in parts), ("DBSIZE",)])
        lines: dict[str, str] = {}
        for each in told:
            if isinstance(each, Exception):
                self.note(
                    "INFO is refused: the server's version, its memory, its way of evicting and its"
                    " other databases are unknown"
                )
                break
            lines |= dict(re.findall(r"^(\w+):(.*?)\r?$", to_bytes(each).decode(), re.MULTILINE))
        if isinstance(size, Exception):
            self.note("DBSIZE is refused: nobody knows how long the survey takes")
        facts = ServerFacts(
            lines.get("valkey_version") or lines.get("redis_version", ""),
            "Valkey" if "valkey_version" in lines else "Redis" if lines else "",
            lines.get("run_id", ""),
            lines.get("maxmemory_policy", ""),
            lines.get("role", ""),
            None if isinstance(size, Exception) else int(size),
            int(lines["used_memory"]) if "used_memory" in lines else None,
            {
                int(name[2:]): int(told.partition("keys=")[2].partition(",")[0])
                for name, told in lines.items()
                if _DATABASE.fullmatch(name) and told.startswith("keys=")
            },
        )
        self._say_disturbance(node, facts)
        return facts

    def _say_disturbance(self, node: Node, facts: ServerFacts) -> None:
        if self.has_no_touch(node):
            return
        if not facts.policy:
            self.note(
                "there is no CLIENT NO-TOUCH: the keys that rules look at count as used, which"
                " disturbs an eviction by LRU or LFU"
            )
        elif "lru" in facts.policy or "lfu" in facts.policy:
            self.note(
                f"there is no CLIENT NO-TOUCH: the keys that rules look at count as used, which"
                f" disturbs this server's eviction ({facts.policy})"
            )
        else:
            self.note(
                "there is no CLIENT NO-TOUCH: the idle times of the keys that rules look at begin"
                f" anew; the server's eviction ({facts.policy}) does not use them"
            )

    def _server(self, node: Node) -> _ServerState:
        server = self._servers.get(node)
        if server is None:
            server = self._servers[node] = _ServerState(paced(self._load))
            touched, told = self._send(node, [("CLIENT", "NO-TOUCH", "ON"), ("TIME",)])
            server.has_no_touch = not isinstance(touched, Exception)
            server.tells_time = not isinstance(told, Exception)
            if not server.tells_time:
                self.note("TIME is refused: the load is measured by round trips, so it is lower")
        return server

    def _batch(self, node: Node, server: _ServerState, commands: Sequence[Command]) -> list[Any]:
        pause = server.pace.next_at - self._monotonic()
        if pause > 0:
            self._sleep(pause)
        before: list[Command] = [("CLIENT", "NO-TOUCH", "ON")] if server.has_no_touch else []
        behind: list[Command] = []
        if server.tells_time:
            before.append(("TIME",))
            behind.append(("TIME",))
        began = self._monotonic()
        replies = self._send(node, [*before, *commands, *behind])
        trip = self._monotonic() - began
        cost = trip
        if server.tells_time:
            cost = server_seconds(replies[len(before) - 1], replies[-1], trip)
            server.now = time_of(replies[-1])
        self.seconds += cost
        self.longest = max(self.longest, cost)
        self.commands += len(commands)
        server.pace.paid(began, cost, trip, len(commands))
        return replies[len(before) : len(before) + len(commands)]

    def _send(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        # The error of a slot that has moved away stands in its place.
        replies, _ = self.job_client.call_each(node, commands, Budget(None, _TIMEOUT))
        return replies


def paced(load: float) -> Pace:
    """Return the pace of a survey's commands on one server, within a share of its time."""
    return Pace(
        load,
        first=_FIRST_COMMANDS,
        least=_LEAST_COMMANDS,
        most=_MOST_COMMANDS,
        longest=LONGEST_BATCH,
    )


@dataclass
class _ServerState:
    """One server's state. Fields: pace: its commands'; count: names a page; now: its time."""

    pace: Pace
    has_no_touch: bool = False
    tells_time: bool = True
    count: int = _FIRST_COUNT
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The facts that a server tells of itself; a fact that it does not tell is empty, or None.

    Fields: version; product; run_id: of its process; policy: how it evicts; role; keys: of the
    database that is surveyed; used: bytes of memory; databases: the keys of each that has any.
    """

    version: str
    product: str
    run_id: str
    policy: str
    role: str
    keys: int | None
    used: int | None
    databases: Mapping[int, int]

    @property
    def is_replica(self) -> bool:
        """Whether it is a replica."""
        return self.role == "slave"


def refused(replies: Sequence[Any]) -> Iterator[Exception]:
    """Yield the error replies that say that a command is not allowed, or not known."""
    for each in replies:
        if isinstance(each, ResponseError):
            text = str(each).lower()
            if "permission" in text or "unknown command" in text or "unknown subcommand" in text:
                yield each
