"""For how long one script of ours holds the server, where a call asks for very much.

A server does nothing else while a script runs. So calls on thousands of members go in pieces, and
no piece may take longer than 10 ms. The SLOWLOG of the server counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from figures import Figure, Target
from servers import RedisServer

from workstealing.jobs import FairQueueReaper
from workstealing.recruiting.slice import Slice
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
)
from workstealing.structures.fair_queue import NewMessage

MOST_MS = 10.0
ROUNDS = 9
MANY = 1_000
Call = tuple[str, Callable[[], Any]]


def measure(server: RedisServer) -> list[Figure]:
    """Time the longest script of each call; the least of the rounds counts.

    Others on the machine make a script longer and never shorter.
    """
    client = server.client()
    kept = client.config_get("slowlog-*")
    client.config_set("slowlog-max-len", 100_000)
    longest: dict[str, list[int]] = {}
    scripts: dict[str, int] = {}
    for _ in range(ROUNDS):
        for structure in (
            *(_ick, _sharded_ick, _shuffle_queue, _fair_queue),
            *(_time_shard_queue, _log_group, _rest),
        ):
            for name, call in structure(client):
                client.config_set("slowlog-log-slower-than", 0)
                client.slowlog_reset()
                call()
                client.config_set("slowlog-log-slower-than", -1)
                seen = [
                    each["duration"]
                    for each in client.slowlog_get(100_000)
                    if each["command"][:4] == b"EVAL"
                ]
                longest.setdefault(name, []).append(max(seen))
                scripts[name] = len(seen)
        server.wipe()
    for name, value in kept.items():
        client.config_set(name, value)
    return [_figure(name, found, scripts[name]) for name, found in longest.items()]


def _figure(name: str, found: list[int], scripts: int) -> Figure:
    ordered = sorted(each / 1000 for each in found)
    details = {"scripts": float(scripts), "worst_round_ms": ordered[-1]}
    return Figure(
        f"longest_script_{name}", ordered[0], ordered[0], ordered[len(ordered) // 2], len(found),
        "ms, by the server's SLOWLOG", Target(most=MOST_MS), details,
    )  # fmt: skip


class _Clock:
    """A time of day that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000_000_000.0

    def time(self) -> float:
        """Return what it shows."""
        return self.seconds


def _ick(client: Any) -> Iterator[Call]:
    ick = Ick(client, "ick")
    members = {f"member:{number}": float(number) for number in range(100_000)}
    ick.add({"first": 0.0})
    yield "ick_add_100000", lambda: ick.add(members)
    yield "ick_reserve_50000", lambda: ick.reserve(50_000)
    yield "ick_exchange_backwash", lambda: ick.exchange(50_000, backwash=True)
    held = [member for member, _ in ick.reserve(50_000)]
    yield "ick_commit_50000", lambda: ick.ack(*held)


def _sharded_ick(client: Any) -> Iterator[Call]:
    sharded = ShardedIck(client, "sharded", 1)
    members = {f"member:{number}": float(number) for number in range(50_000)}
    sharded.open()
    yield "sharded_ick_add_50000", lambda: sharded.add(members)
    with sharded.lease("a consumer", lease=600) as lease:
        yield "sharded_ick_reserve_20000", lambda: lease.reserve(20_000)


def _shuffle_queue(client: Any) -> Iterator[Call]:
    queue = ShuffleQueue(client, "queue", 64)
    for number in range(MANY):
        queue.write(f"tenant {number % 50}", {"field": "x" * 100})
    held: list[Any] = []
    yield "queue_read_many_1000", lambda: held.extend(queue.read_many("g", "c", MANY))
    yield "queue_extend_1000", lambda: queue.extend(*held)
    yield "queue_nack_1000", lambda: queue.nack(*held)
    again: list[Any] = []
    yield "queue_read_again_1000", lambda: again.extend(queue.read_many("g", "c", MANY))
    yield "queue_ack_1000", lambda: queue.ack(*again)


def _fair_queue(client: Any) -> Iterator[Call]:
    queue = FairQueue(client, "fair")
    later = FairQueue(client, "fair", clock_shift_ms=3_600_000)
    fields = {"field": "x" * 100}
    # 62 patterns, which each account is held against once after a rule has changed.
    for number in range(62):
        queue.set_rule(f"{number}?*x{number}", weight=2)
    new = [
        NewMessage(f"tenant {n % 50}", fields, tracking_id=f"{n}", dedupe=(f"{n}", 3600), ttl=7200)
        for n in range(MANY)
    ]
    yield "fair_queue_write_many_1000", lambda: queue.write_many(new)
    held: list[Any] = []
    yield "fair_queue_read_many_1000", lambda: held.extend(queue.read_many("c", MANY))
    yield "fair_queue_extend_1000", lambda: queue.extend(*held)
    yield "fair_queue_nack_1000", lambda: queue.nack(*held)
    again: list[Any] = []
    yield "fair_queue_read_again_1000", lambda: again.extend(queue.read_many("c", MANY))
    yield "fair_queue_rule_over_50_accounts", lambda: queue.set_rule("tenant *", max_in_flight=500)
    job = FairQueueReaper(later, limit=100)
    yield "fair_queue_reap_100", lambda: job.perform(Slice(100, 60.0))
    yield "fair_queue_ack_1000", lambda: queue.ack(*again)
    for number in range(0, MANY, 100):
        accounts = [NewMessage(f"{number + each}", fields) for each in range(100)]
        queue.write_many(accounts)
    yield "fair_queue_rule_over_1000_accounts", lambda: queue.set_rule("*", weight=1)
    yield "fair_queue_stats_of_1000_accounts", queue.stats
    queue.write_many([NewMessage("large", fields)] * MANY)
    yield "fair_queue_peek_1000", lambda: queue.peek("large", MANY)
    yield "fair_queue_purge_1000", lambda: queue.purge("large")


def _time_shard_queue(client: Any) -> Iterator[Call]:
    clock = _Clock()
    queue = TimeShardQueue(RedisStore(client), "timed", 6, 60, clock=clock)
    for number in range(MANY):
        queue.put(f"message {number}", due=1.0)
    clock.seconds += 120.0
    held: list[Any] = []
    yield "time_shard_take_many_1000", lambda: held.extend(queue.take_many("c", MANY))
    yield "time_shard_ack_1000", lambda: queue.ack(*held)


def _log_group(client: Any) -> Iterator[Call]:
    log: Any = Log(client, "log")
    group = log.group("group", ack=True)
    for _ in range(10):
        log.append(*[b"x" * 100] * MANY)
    held: list[Any] = []
    yield "log_group_read_1000", lambda: held.extend(group.read(MANY))
    yield "log_group_pending_1000", lambda: group.pending(MANY)
    yield "log_group_acknowledge_1000", lambda: group.ack(*held)
    yield "log_read_10000", lambda: log.read(0, 10_000)


def _rest(client: Any) -> Iterator[Call]:
    tracked = TrackedSet(client, "tracked")
    tracked.open()
    yield "tracked_set_track_100000", lambda: tracked.track(range(100_000))
    keys = DurableKeys(client)
    names = [f"key:{number}" for number in range(10_000)]
    with keys.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.set(name, "x", ex=600)
        pipeline.execute()
    yield "durable_keys_mget_10000", lambda: keys.mget(names)
    yield "durable_keys_delete_10000", lambda: keys.delete(*names)
