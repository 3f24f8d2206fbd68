"""The states that typical use leaves, and every operation, job, backlog and slice on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import redis

from support.reapers import reaper_after
from workstealing.clock import SYSTEM_CLOCK
from workstealing.jobs import (
    FairQueueReaper,
    IckReaper,
    LogCompactor,
    LogTrimmer,
    QueueExpiry,
    ShuffleQueueReaper,
    TimeShardSweeper,
)
from workstealing.recruiting.slice import Slice
from workstealing.structures import (
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
)
from workstealing.structures.fair_queue import NewMessage

Operations = Mapping[str, Callable[[], object]]
SECONDS = 30.0


def chance() -> Callable[[], float]:
    """Return a source of chance that goes through all of a job's branches in turn."""
    at = 0

    def chance() -> float:
        nonlocal at
        at += 1
        return (0.31 * at) % 1.0

    return chance


def of_job(
    name: str, make: Callable[..., Any], slices: int, *, is_divisible: bool = True
) -> Operations:
    """Return a job's slices, its dry run, its parts and its backlog as operations."""

    def perform() -> object:
        job = make()
        return [job.perform(Slice(25, SECONDS)) for _ in range(slices)]

    def sweep() -> object:
        job = make()
        done = []
        for part in job.parts(2):
            one = job.for_part(part)
            done += [one.perform(Slice(25, SECONDS)) for _ in range(slices)]
        return done

    found: dict[str, Callable[[], object]] = {
        f"{name}.perform": perform,
        f"{name}.dry_run": lambda: make(dry_run=True).perform(Slice(25, SECONDS)),
        f"{name}.backlog": lambda: make().backlog(SECONDS),
    }
    if is_divisible:
        found[f"{name}.sweep"] = sweep
    return found


# Shuffle queues.


def make_shuffle_queue(client: redis.Redis) -> None:
    """Leave a queue with messages of every kind, two groups, and a legacy stream."""
    queue = ShuffleQueue(client, "q", 4, 2)
    client.xadd("q", {"old": "1"})
    for number in range(12):
        deadline = time.time() + 600 if number % 3 == 0 else None
        queue.write(f"t{number % 3}", {"n": number}, deadline, f"id{number}")
    queue.write("t1", {"n": "late"}, time.time() - 5, "late")
    messages = queue.read_many("g", "c1", 6)
    queue.read_many("h", "c1", 3)
    queue.ack(messages[0])
    queue.nack(messages[1])
    queue.nack(messages[2], delay=500)
    reaper = reaper_after(1, queue, lease=0.001, random=chance())
    time.sleep(0.005)
    for _ in range(3):
        reaper.perform(Slice(1, SECONDS))
    queue.read("g", "c2")
    queue.read("g", "c2")
    queue.cancel("id11")


def shuffle_queue(client: redis.Redis) -> Operations:
    """Return all operations of a shuffle queue and its jobs, each with a queue of its own."""

    def queue() -> Any:
        return ShuffleQueue(client, "q", 4, 2, max_attempts=2)

    def settle(how: Callable[[Any, Any], object]) -> Callable[[], object]:
        def run() -> object:
            ours = queue()
            read = ours.read_many("g", "c3", 5)
            return len(read), how(ours, read)

        return run

    def revive() -> object:
        ours = queue()
        dead = ours.dead("g")
        return ours.revive("g", *(each.id for each in dead))

    def discard() -> object:
        ours = queue()
        return ours.discard("g", *(each.id for each in ours.dead("g")))

    def read_on() -> object:
        ours = queue()
        return [ours.read("g", "c3") for _ in range(6)]

    def reaper(**options: Any) -> Any:
        return ShuffleQueueReaper(
            queue(),
            **{"lease": 0.001, "consumer_idle": 0.001, **options},
            random=chance(),
        )

    def expiry(**options: Any) -> Any:
        return QueueExpiry(client, random=chance(), **options)

    def idle() -> Any:
        for key in client.scan_iter("*:ws:shuffle_queues:due"):
            if client.type(key) == b"zset":
                client.zadd(key, {"q": 1}, xx=True)
        return expiry()

    return {
        "write": lambda: queue().write("t1", {"a": 1}, time.time() + 60, "new"),
        "cancel": lambda: [queue().cancel(f"id{number}") for number in range(11)],
        "overdue": lambda: queue().overdue(),
        "length": lambda: queue().length(),
        "groups": lambda: queue().groups(),
        "read": read_on,
        "read of a new group": lambda: queue().read("new", "c"),
        "read_many": lambda: queue().read_many("g", "c1", 20),
        "prefer": lambda: queue().read_many("g", "c1", 5, prefer_stream=1),
        "ack": settle(lambda ours, read: ours.ack(*read)),
        "nack": settle(lambda ours, read: ours.nack(*read)),
        "delay": settle(lambda ours, read: ours.nack(*read, delay=5)),
        "extend": settle(lambda ours, read: ours.extend(*read)),
        "dead": lambda: queue().dead("g"),
        "revive": revive,
        "discard": discard,
        "stats": lambda: queue().stats("g"),
        "delete": lambda: queue().delete(),
        "inspect": lambda: [
            queue().inspect(steps(queue()), SECONDS)
            for steps in (
                ShuffleQueue.size_steps,
                ShuffleQueue.dead_steps,
                ShuffleQueue.check_steps,
            )
        ],
        **of_job("reaper", reaper, slices=12),
        **of_job("expiry", expiry, slices=2),
        "expiry of an idle queue": lambda: [
            each.perform(Slice(25, SECONDS)) for each in (idle(),) for _ in range(4)
        ],
    }


# Fair queues.


def make_fair_queue(client: redis.Redis) -> None:
    """Leave a queue with messages in every place, accounts in every place, and rules."""
    queue = FairQueue(client, "q", lease=0.001, max_attempts=1)
    queue.set_rule("b*", weight=2, max_in_flight=5, rate=1000.0, burst=3)
    queue.set_rule("paused", paused=True)
    queue.set_rule("slow", rate=0.01)
    queue.write("poison", {"n": "a"})
    queue.write("poison", {"n": "b"}, tracking_id="dead")
    for message in queue.read_many("c1", 2):
        queue.nack(message)
    queue = FairQueue(client, "q", lease=600)
    for number in range(6):
        queue.write("a", {"n": number}, tracking_id=f"id{number}", dedupe=(f"k{number}", 600))
        queue.write("big", {"n": number}, time.time() + 600, priority=number % 2)
    queue.write("a", {"n": "late"}, time.time() - 5)
    queue.write("a", {"n": "later"}, delay=500)
    queue.write("slow", {"n": 1})
    queue.write("slow", {"n": 2})
    queue.write("paused", {"n": 1})
    queue.write("done", {"n": 1})
    messages = queue.read_many("c1", 7)
    by_account = {each.account: each for each in messages}
    queue.ack(by_account["done"])
    queue.nack(by_account["a"])
    queue.nack(by_account["big"], delay=500)
    FairQueue(client, "q", lease=0.001).read("c2")
    time.sleep(0.005)


def fair_queue(client: redis.Redis) -> Operations:
    """Return all operations of a fair queue and its jobs, each with a queue of its own."""

    def queue(ahead_ms: int = 0) -> Any:
        return FairQueue(client, "q", lease=600, max_attempts=2, clock_shift_ms=ahead_ms)

    def settle(how: Callable[[Any, Any], object]) -> Callable[[], object]:
        def run() -> object:
            ours = queue()
            read = ours.read_many("c3", 5)
            return len(read), how(ours, read)

        return run

    def each_dead(what: str) -> Callable[[], object]:
        def run() -> object:
            ours = queue()
            return getattr(ours, what)(*(each.id for each in ours.dead()))

        return run

    def read_on() -> object:
        ours = queue(1_000_000)
        return [ours.read("c3") for _ in range(8)]

    def reaper(**options: Any) -> Any:
        return FairQueueReaper(queue(500_000), consumer_idle=0.001, random=chance(), **options)

    def expiry(**options: Any) -> Any:
        return QueueExpiry(queue(10**10), random=chance(), **options)

    return {
        "write": lambda: queue().write("a", {"a": 1}, time.time() + 60, "new", dedupe=("k0", 60)),
        "write many": lambda: queue().write_many(
            [NewMessage("big", {"a": 1}), NewMessage("n", {"a": 1}, delay=60)]
        ),
        "cancel": lambda: [queue().cancel(f"id{number}") for number in range(6)],
        "overdue": lambda: queue().overdue(),
        "length": lambda: queue().length(),
        "peek": lambda: (queue().peek("a"), queue().peek("big")),
        "purge": lambda: (queue().purge("a"), queue().purge("big")),
        "read": read_on,
        "read_many": lambda: queue().read_many("c1", 20),
        "read of one account": lambda: queue().read_many("c1", 20, same_account=True),
        "exchange": lambda: queue().exchange(*queue().read_many("c3", 2), consumer="c3", n=2),
        "ack": settle(lambda ours, read: ours.ack(*read)),
        "nack": settle(lambda ours, read: ours.nack(*read)),
        "delay": settle(lambda ours, read: ours.nack(*read, delay=5)),
        "extend": settle(lambda ours, read: ours.extend(*read)),
        "dead": lambda: queue().dead(),
        "revive": each_dead("revive"),
        "discard": each_dead("discard"),
        "stats": lambda: queue().stats(),
        "accounts": lambda: queue().accounts(),
        "explain_wait": lambda: [
            str(queue().explain_wait(each)) for each in ("a", "big", "slow", "paused", "none")
        ],
        "rules": lambda: queue().rules(),
        "set_rule": lambda: queue().set_rule("b*", max_in_flight=1),
        "remove_rule": lambda: queue().remove_rule("slow"),
        "pause": lambda: (queue().pause("a"), queue().resume("a")),
        "delete": lambda: queue().delete(),
        "inspect": lambda: [
            queue().inspect(steps(queue()), SECONDS)
            for steps in (FairQueue.size_steps, FairQueue.dead_steps, FairQueue.check_steps)
        ],
        **of_job("reaper", reaper, slices=12),
        **of_job("expiry", expiry, slices=3),
    }


# Logs.


def make_log(client: redis.Redis) -> None:
    """Leave a log with blocks of every form, evicted ones, and groups of both kinds."""
    log = Log(client, "l", 10)
    group = log.group("g")
    sure = log.group("a", ack=True, lease=0.001, max_attempts=2)
    # One more comes with an id.
    for number in range(65):
        log.append(b"entry %d" % number, keep=40 if number > 60 else None)
    log.append(b"entry 65", producer="p", id="i")
    group.read(5)
    for _ in range(3):
        sure.read(3, member="m")
        time.sleep(0.003)
    sure.read(6, member="m")
    dead = [each.offset for each in sure.dead()]
    sure.revive(*dead[:1])
    client.zadd(log.keys.full, {3: 1}, xx=True)
    compactor = LogCompactor(log, 1, cold=0, codec="zlib", random=lambda: 0.0)
    compactor.perform(Slice(1, SECONDS))
    LogCompactor(log, 1, codec="none", random=lambda: 0.0).perform(Slice(1, SECONDS))


def log(client: redis.Redis) -> Operations:
    """Return all operations of a log, its groups and its jobs, each with a log of its own."""

    def ours() -> Any:
        return Log(client, "l", 10)

    def sure() -> Any:
        return ours().group("a", ack=True, lease=0.001, max_attempts=2)

    def revive() -> object:
        group = sure()
        return group.revive(*(each.offset for each in group.dead()))

    def acknowledge() -> object:
        group = sure()
        return group.ack(*group.read(4))

    def trimmer(**options: Any) -> Any:
        return LogTrimmer(
            ours(), 10, max_entries=20, max_bytes=2000, max_age=0.001, random=chance(), **options
        )

    def sparing(**options: Any) -> Any:
        return LogTrimmer(ours(), 10, max_entries=20, spare_groups=True, random=chance(), **options)

    def compactor(**options: Any) -> Any:
        return LogCompactor(ours(), 3, cold=0, codec="zlib", random=chance(), **options)

    return {
        "append": lambda: ours().append(b"new"),
        "append many": lambda: ours().append(*[b"x"] * 25, keep=15),
        "append once": lambda: ours().append(b"x", producer="p", id="i"),
        "append each": lambda: ours().append_each([b"x"] * 25, [*map(str, range(25))], "p"),
        "read": lambda: ours().read(20, 45),
        "read evicted": lambda: ours().read(0, 5),
        "read last": lambda: ours().read(-3, 3),
        "read_range": lambda: ours().read_range(0, 0),
        "iterate": lambda: list(ours().iterate(20)),
        "length": lambda: ours().length(),
        "first and last": lambda: (ours().first(), ours().last()),
        "stats": lambda: ours().stats(),
        "evict": lambda: ours().evict(45),
        "evict all": lambda: ours().evict(keep=0),
        "delete": lambda: ours().delete(),
        "group.read": lambda: ours().group("g").read(20),
        "group.read acknowledged": lambda: sure().read(20, member="n"),
        "group.ack": acknowledge,
        "group.seek": lambda: ours().group("g").seek(-5),
        "group.stats": lambda: (ours().group("g").stats(), sure().stats()),
        "group.pending": lambda: sure().pending(),
        "group.dead": lambda: sure().dead(),
        "group.revive": revive,
        "group.discard": lambda: sure().discard(*range(70)),
        "group.delete": lambda: (sure().delete(), ours().group("g").delete()),
        "new group": lambda: ours().group("new").read(3),
        "inspect": lambda: [
            ours().inspect(steps(ours()), SECONDS)
            for steps in (Log.size_steps, Log.dead_steps, Log.check_steps)
        ],
        **of_job("trimmer", trimmer, 3),
        **of_job("sparing", sparing, 3),
        **of_job("compactor", compactor, 3),
    }


# Icks.


def make_ick(client: redis.Redis) -> None:
    """Leave an Ick with members of every kind: waiting, reserved, returned and dead."""
    ick = Ick(client, "k")
    ick.add({f"m{number}": float(number) for number in range(12)})
    reaper = IckReaper(ick, lease=0.001, max_attempts=1, random=chance())
    for members in (3, 2, 1):
        ick.reserve(4)
        time.sleep(0.005)
        reaper.perform(Slice(members, SECONDS))
    ick.reserve(4)
    client.hset("k/ick/{k}/seen", "m3", "1764000000000 3")


def ick(client: redis.Redis) -> Operations:
    """Return all operations of an Ick and its reaper."""

    def ours() -> Any:
        return Ick(client, "k")

    def reaper(**options: Any) -> Any:
        return IckReaper(ours(), lease=0.001, max_attempts=1, random=chance(), **options)

    def acknowledge() -> object:
        batch = ours().reserve(3)
        return ours().ack(*batch.members, token=batch.token)

    return {
        "add": lambda: ours().add({"new": 1.0, "m1": 0.5}),
        "reserve": lambda: ours().reserve(5),
        "backwash": lambda: ours().reserve(3, backwash=True),
        "ack": acknowledge,
        "stats": lambda: ours().stats(),
        "dead": lambda: ours().dead(),
        "revive": lambda: ours().revive(*[f"m{number}" for number in range(12)]),
        "discard": lambda: ours().discard(*[f"m{number}" for number in range(12)]),
        "delete": lambda: ours().delete(),
        "inspect": lambda: [
            ours().inspect(steps(ours()), SECONDS)
            for steps in (Ick.size_steps, Ick.dead_steps, Ick.check_steps)
        ],
        **of_job("reaper", reaper, 3),
    }


# Sharded Icks.


def make_sharded_ick(client: redis.Redis) -> None:
    """Leave a ShardedIck with a leased ick shard, a reservation, returned and dead members."""
    sharded = ShardedIck(client, "s", 4)
    sharded.add({f"m{number}": float(number) for number in range(24)})
    with sharded.lease("c1", 0.05) as leased:
        leased.reserve(3)
    time.sleep(0.06)
    reaper = IckReaper(sharded, lease=0.001, max_attempts=1, random=chance())
    for _ in range(12):
        reaper.perform(Slice(4, SECONDS))
    with sharded.lease("c1", 0.05) as leased:
        leased.reserve(3)
    sharded.lease("c2", 300).__enter__().reserve(2)


def make_moving_ick(client: redis.Redis) -> None:
    """Leave a ShardedIck in the middle of a resize."""
    sharded = ShardedIck(client, "s", 4)
    sharded.add({f"m{number}": float(number) for number in range(24)})
    sharded.resize(3, limit=5)


def sharded_ick(client: redis.Redis) -> Operations:
    """Return all operations of a ShardedIck and its reaper."""

    def ours() -> Any:
        sharded = ShardedIck(client, "s")
        sharded.open()
        return sharded

    def consume() -> object:
        done: list[object] = []
        with ours().lease("c3", 30) as leased:
            batch = leased.reserve(3)
            done.append(leased.ack(*batch.members))
            done.append(leased.exchange(2))
            leased.extend()
            done.append(leased.release())
        return done

    def consume_all() -> object:
        leases = ours().lease_all("c2", 30, take_over=True)
        tokens = leases.reserve(dict.fromkeys(range(3), 2))
        done = leases.ack_all({shard: token for shard, (token, _) in tokens.items()})
        return done, leases.extend(), leases.release()

    def reaper(**options: Any) -> Any:
        return IckReaper(ours(), lease=0.001, max_attempts=1, random=chance(), **options)

    return {
        "open": lambda: ShardedIck(client, "s").open(),
        "add": lambda: ours().add({f"new{number}": 1.0 for number in range(9)}),
        "consume": consume,
        "consume_all": consume_all,
        "stats": lambda: ours().stats(),
        "resize": lambda: ours().resize(3),
        "delete": lambda: ours().delete(),
        "dead": lambda: [each.dead() for each in ours().icks],
        "inspect": lambda: [
            ours().inspect(steps(ours()), SECONDS)
            for steps in (ShardedIck.size_steps, ShardedIck.dead_steps, ShardedIck.check_steps)
        ],
        **of_job("reaper", reaper, 4),
    }


# Queues by due time.


class _Turned:
    """A clock that is some periods ahead, so that consumers have the turn of earlier messages."""

    def __init__(self, periods: int) -> None:
        self._ahead = periods * 3600.0

    def time(self) -> float:
        """Return Unix seconds."""
        return SYSTEM_CLOCK.time() + self._ahead

    def monotonic(self) -> float:
        """Return the seconds of a clock that only grows."""
        return SYSTEM_CLOCK.monotonic()


def make_time_shard_queue(client: redis.Redis) -> None:
    """Leave messages that wait, are leased, extended, released, acknowledged and dead."""

    def queue(periods: int = 0) -> Any:
        clock: Any = _Turned(periods)
        return TimeShardQueue(RedisStore(client), "d", 6, 3600, max_attempts=1, clock=clock)

    ids = [queue().put(f"message {number}") for number in range(10)]
    queue(2).take_many("c", 3, 0.001)
    time.sleep(0.005)
    queue(2).take_many("c", 1, 0.001)
    taken = queue(2).take_many("c", 4, 300)
    queue(2).extend(taken[0], 400)
    queue(2).release(taken[1])
    queue(2).ack(taken[2])
    queue(2).cancel(ids[9])
    time.sleep(0.005)
    TimeShardSweeper(queue(4), 1, random=chance()).perform(Slice(1, SECONDS))


def time_shard_queue(client: redis.Redis) -> Operations:
    """Return all operations of a queue by due time and its sweeper."""

    def queue(periods: int = 2) -> Any:
        clock: Any = _Turned(periods)
        return TimeShardQueue(RedisStore(client), "d", 6, 3600, max_attempts=1, clock=clock)

    def settle() -> object:
        ours = queue()
        taken = ours.take_many("c2", 2, 60)
        return (
            len(taken),
            [ours.extend(each, 90) for each in taken],
            [ours.release(each) for each in taken[:1]],
            ours.ack(*taken),
        )

    def sweeper(**options: Any) -> Any:
        return TimeShardSweeper(queue(4), random=chance(), **options)

    def each_dead(what: str) -> Callable[[], object]:
        def run() -> object:
            ours = queue()
            return getattr(ours, what)(*(each.id for each in ours.dead()))

        return run

    return {
        "put": lambda: queue(0).put("new"),
        "take": lambda: queue().take("c2", 60),
        "take_many": lambda: queue().take_many("c2", 20, 60),
        "settle": settle,
        "stats": lambda: queue().stats(),
        "dead": lambda: queue().dead(),
        "revive": each_dead("revive"),
        "discard": each_dead("discard"),
        "delete": lambda: queue().delete(),
        "inspect": lambda: [
            queue().inspect(steps(queue()), SECONDS)
            for steps in (
                TimeShardQueue.size_steps,
                TimeShardQueue.dead_steps,
                TimeShardQueue.check_steps,
            )
        ],
        **of_job("sweeper", sweeper, 3, is_divisible=False),
    }


STATES: dict[str, tuple[Callable[[redis.Redis], None], Callable[[redis.Redis], Operations]]] = {
    "fair_queue": (make_fair_queue, fair_queue),
    "shuffle_queue": (make_shuffle_queue, shuffle_queue),
    "log": (make_log, log),
    "ick": (make_ick, ick),
    "sharded_ick": (make_sharded_ick, sharded_ick),
    "moving_ick": (make_moving_ick, sharded_ick),
    "time_shard_queue": (make_time_shard_queue, time_shard_queue),
}
