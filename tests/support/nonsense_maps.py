"""More of those states: hashes, durable keys, tracked sets, what rules keep, and the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from support.nonsense_states import SECONDS, Operations, chance, of_job
from support.table_source import TableSource
from workstealing import Fleet
from workstealing.jobs import (
    AdoptHashes,
    FamilyLeftovers,
    FleetRebalance,
    HashFieldExpiry,
    KeyExpiry,
    MigrateToEmulated,
    MigrateToNative,
    TagSetLeftovers,
    TrackQueued,
    UntrackDone,
)
from workstealing.jobs.leftovers.undoing import undo
from workstealing.metrics import ledger as ledgers
from workstealing.metrics.shared_settings import SharedSettings, follow
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.slice import Slice
from workstealing.store.redis_versions import HashDataPersistOptions
from workstealing.structures import DurableKeys, TrackedSet, VolatileHashes

LATER_MS = 3_600_000


def inspection(kind: Any, make: Callable[[], Any]) -> Callable[[], object]:
    """Return the questions of the command line to a structure, as one operation."""
    return lambda: [
        make().inspect(steps(make()), SECONDS)
        for steps in (kind.size_steps, kind.dead_steps, kind.check_steps)
    ]


# Hashes whose fields expire.


def make_hashes(client: redis.Redis) -> None:
    """Leave fields with and without a deadline, some of them passed, and a cached result."""
    hashes = VolatileHashes(client, "n", backend="emulated")
    for number in range(3):
        hashes.hset(f"h{number}", mapping={"for ever": "1", "counter": "5"})
        hashes.hsetex(f"h{number}", mapping={"long": "2", "text": "x"}, ex=7200)
        hashes.hsetex(f"h{number}", mapping={"short": "3"}, ex=60)
    client.hset("plain:1", mapping={"a": "1764000000:x", "b": "2"})
    _cached(client)("id1")


def _cached(client: redis.Redis) -> Callable[[str], Any]:
    hashes = VolatileHashes(client, "n", backend="emulated")

    @hashes.cached(ttl=300, key="cache:{item}", stale=60)
    def look_up(item: str) -> str:
        return f"value of {item}"

    return look_up


def make_moving(client: redis.Redis) -> None:
    """Leave a namespace in the middle of its way to native, one hash handed over."""
    make_hashes(client)
    hashes = VolatileHashes(client, "n")
    MigrateToNative(hashes, random=chance()).perform(Slice(2, SECONDS))
    client.hset("ws:n:layout", mapping={"since": 1})
    MigrateToNative(VolatileHashes(client, "n"), random=chance()).perform(Slice(2, SECONDS))


def hashes(client: redis.Redis) -> Operations:
    """Return the operations of a namespace and its jobs, an hour later for the collector."""

    def ours(later_ms: int = 0) -> Any:
        return VolatileHashes(client, "n", backend="auto", clock_shift_ms=later_ms)

    def expiry(**options: Any) -> Any:
        return HashFieldExpiry(ours(LATER_MS), 25, random=chance(), **options)

    def adoption(**options: Any) -> Any:
        return AdoptHashes(
            ours(),
            "plain:*",
            deadline_of=lambda key, field, value: 1764000000.0 if value[:4] == b"1764" else None,
            random=chance(),
            **options,
        )

    def pipelined() -> object:
        with ours().pipeline() as pipe:
            pipe.hset("h0", "new", 1)
            pipe.hgetex("h1", "long", ex=60)
            pipe.hexpire("h2", 60, "long")
            pipe.hgetall("h0")
            return pipe.execute(raise_on_error=True)

    fields = ("for ever", "long", "short", "none")
    return {
        "hset": lambda: ours().hset("h0", mapping={"long": 1, "new": 2}),
        "hsetex": lambda: ours().hsetex("h0", mapping={"long": 1, "new": 2}, ex=60),
        "hsetex if there": lambda: ours().hsetex(
            "h0", "long", 1, px=60_000, data_persist_option=HashDataPersistOptions.FXX
        ),
        "hsetnx": lambda: ours().hsetnx("h0", "long", 1),
        "hget": lambda: [ours().hget("h0", each) for each in fields],
        "hmget": lambda: ours().hmget("h0", fields),
        "hgetall": lambda: [ours().hgetall(f"h{number}") for number in range(3)],
        "hgetex": lambda: ours().hgetex("h0", *fields, ex=60),
        "hgetdel": lambda: ours().hgetdel("h0", *fields),
        "hexpire": lambda: ours().hexpire("h0", 60, *fields, gt=True),
        "hpersist": lambda: ours().hpersist("h0", *fields),
        "hpttl": lambda: ours().hpttl("h0", *fields),
        "hpexpiretime": lambda: ours().hpexpiretime("h0", *fields),
        "hincrbyfloat": lambda: ours().hincrbyfloat("h0", "new", 1.5),
        "hdel": lambda: ours().hdel("h0", *fields),
        "hlen": lambda: (ours().hlen("h0"), ours().hkeys("h0"), ours().hstrlen("h0", "long")),
        "hrandfield": lambda: ours().hrandfield("h0", 3),
        "hscan": lambda: list(ours().hscan_iter("h0")),
        "exists": lambda: ours().exists("h0"),
        "ttl": lambda: (ours().pttl("h0"), ours().expire("h0", 500), ours().persist("h0")),
        "copy": lambda: ours().copy("h0", "h9"),
        "rename": lambda: ours().rename("h0", "h9"),
        "delete": lambda: ours().delete("h0"),
        "pipeline": pipelined,
        "cached": lambda: _cached(client)("id1"),
        "inspect": inspection(VolatileHashes, ours),
        **of_job("expiry", expiry, 6),
        **of_job("adoption", adoption, 3),
    }


def moving_hashes(client: redis.Redis) -> Operations:
    """Return those of `hashes`, and the jobs that move a namespace."""

    def to_native(**options: Any) -> Any:
        return MigrateToNative(VolatileHashes(client, "n"), random=chance(), **options)

    def to_emulated(**options: Any) -> Any:
        return MigrateToEmulated(VolatileHashes(client, "n"), "h*", random=chance(), **options)

    return {
        **hashes(client),
        **of_job("to native", to_native, 6),
        **of_job("to emulated", to_emulated, 6),
    }


# Durable keys.


def make_keys(client: redis.Redis) -> None:
    """Leave keys with and without a deadline, and a lock that is held."""
    keys = DurableKeys(client, "d")
    for number in range(4):
        keys.set(f"k{number}", b"x", ex=60 if number % 2 else 7200)
    keys.set("k4", b"for ever")
    keys.acquire("lock", 60)


def durable_keys(client: redis.Redis) -> Operations:
    """Return the operations of durable keys and their collector, an hour later."""

    def ours(later_ms: int = 0) -> Any:
        return DurableKeys(client, "d", clock_shift_ms=later_ms)

    def expiry(**options: Any) -> Any:
        return KeyExpiry(ours(LATER_MS), random=chance(), **options)

    def lock() -> object:
        with ours().lock("new", lease=30) as held:
            return ours().extend("new", held.token, 60)

    names = [f"k{number}" for number in range(5)]
    return {
        "set": lambda: [ours().set(each, b"y", ex=60) for each in names],
        "set if absent": lambda: [ours().set(each, b"y", ex=60, nx=True) for each in names],
        "set and keep": lambda: [ours().set(each, b"y", keepttl=True) for each in names],
        "get": lambda: [ours().get(each) for each in names],
        "mget": lambda: ours().mget(names),
        "getex": lambda: [ours().getex(each, ex=60) for each in names],
        "getdel": lambda: [ours().getdel(each) for each in names],
        "expire": lambda: [ours().expire(each, 60) for each in names],
        "persist": lambda: [ours().persist(each) for each in names],
        "pttl": lambda: [ours().pttl(each) for each in names],
        "exists": lambda: ours().exists(*names),
        "delete": lambda: ours().delete(*names, "lock"),
        "acquire": lambda: ours().acquire("lock", 60),
        "lock": lock,
        "inspect": inspection(DurableKeys, ours),
        **of_job("expiry", expiry, 6),
    }


# Tracked sets.


def make_tracked(client: redis.Redis) -> None:
    """Leave ids of all kinds, and the places of both jobs."""
    source = TableSource(f"{number}" for number in range(0, 40, 2))
    tracked = TrackedSet(client, "t", source, sub_sets=2)
    tracked.track([f"{number}" for number in range(20)])
    TrackQueued(tracked, 5).perform(Slice(5, SECONDS))
    UntrackDone(tracked, 3, random=chance()).perform(Slice(3, SECONDS))


def tracked_set(client: redis.Redis) -> Operations:
    """Return the operations of a tracked set and its jobs."""

    def ours() -> Any:
        source = TableSource(f"{number}" for number in range(0, 40, 2))
        return TrackedSet(client, "t", source, sub_sets=2)

    return {
        "track": lambda: ours().track(["new", "1", "2"]),
        "untrack": lambda: ours().untrack(["1", "2"]),
        "is_tracked": lambda: [ours().is_tracked(each) for each in ("1", "2", "none")],
        "are_tracked": lambda: ours().are_tracked(["1", "2", "none"]),
        "count": lambda: ours().count(),
        "drift": lambda: ours().drift(20),
        "resume": lambda: ours().resume(),
        "inspect": inspection(TrackedSet, ours),
        **of_job(
            "untrack",
            lambda **options: UntrackDone(ours(), random=chance(), **options),
            6,
            is_divisible=False,
        ),
        **of_job("track", lambda **options: TrackQueued(ours(), **options), 6, is_divisible=False),
    }


# Rules on the keys of others, and what their removals keep.


def make_leftovers(client: redis.Redis) -> None:
    """Leave sets of tags with dead members, families of keys, and removals that can be undone."""
    for number in range(4):
        client.set(f"page:{number}", "x")
        client.sadd(f"conj:tag:{number}", f"page:{number}", f"gone:{number}", "gone:too")
    for each in _rules(client):
        for _ in range(8):
            each.perform(Slice(2, SECONDS))


def _rules(client: redis.Redis, **options: Any) -> list[Any]:
    settings: dict[str, Any] = {"dry_run": False, "undo": 3600, "random": chance(), **options}
    return [
        TagSetLeftovers(client, **settings),
        FamilyLeftovers(client, "page:*", 300, **settings),
    ]


def leftovers(client: redis.Redis) -> Operations:
    """Return the slices of jobs of rules, and the undoing of their removals."""
    found: dict[str, Callable[[], object]] = {
        "undo": lambda: list(undo(client, "tag_set_leftovers")),
        "undo, dry": lambda: list(undo(client, "tag_set_leftovers", dry_run=True)),
    }
    for at, name in enumerate(("tags", "family")):
        found |= of_job(
            name,
            lambda at=at, **options: _rules(client, **options)[at],
            8,
            is_divisible=hasattr(_rules(client)[at], "parts"),
        )
    return found


# The ledger.


def make_ledger(client: redis.Redis) -> None:
    """Leave the figures of a process that has reported, and the fleet's settings."""
    _report(client)
    settings = SharedSettings(client)
    settings.pause("other")
    settings.set_rate("expiry", 0.002)


def _report(client: redis.Redis) -> object:
    """Do one report as a process that follows the fleet's settings; return what it knows then."""
    ledger = ledgers.Ledger(client, interval=3600.0)
    recruiter = Recruiter()
    recruiter.add_hook(ledger)
    for name in ("expiry", "other"):
        recruiter.install(FunctionJob(lambda _: 1, name=name), rate=0.001)
    follow(recruiter, ledger)
    try:
        ledger.on_enlisted(1_000)
        ledger.on_recruited("expiry")
        ledger.on_outcome("expiry", Outcome.WORKED, 25, 0.004, None)
        ledger.on_outcome("expiry", Outcome.FAILED, 0, 0.004, ValueError("no"))
        ledger.on_observed("expiry", 12.5, 100)
        ledger.spend(10)
        sent = ledger.flush(SECONDS)
        return sent, ledger.spent_today(), recruiter.jobs
    finally:
        ledger.close(timeout=SECONDS)


def ledger(client: redis.Redis) -> Operations:
    """Return a report to a ledger, the questions to it, and the fleet's settings."""

    def collect() -> object:
        ours = ledgers.Ledger(client, interval=3600.0)
        try:
            return ours.expiry_job().perform(Slice(25, SECONDS))
        finally:
            ours.close(timeout=SECONDS)

    return {
        "report": lambda: _report(client),
        "read": lambda: ledgers.read(client),
        "processes": lambda: ledgers.processes(client),
        "settings": lambda: SharedSettings(client).settings(),
        "set": lambda: SharedSettings(client).set_rate("other", 0.5),
        "resume": lambda: SharedSettings(client).resume("other"),
        "clear": lambda: SharedSettings(client).clear("other"),
        "collect": collect,
    }


# Fleets, in the middle of a move; the nodes are two databases of one server.


def nodes(client: redis.Redis) -> dict[str, redis.Redis]:
    """Return the nodes of the fleet: a, whose keys are changed, and b."""
    settings = client.connection_pool.connection_kwargs
    other = redis.Redis(host=settings["host"], port=settings["port"], db=1)
    return {"a": client, "b": other}


def _growing(client: redis.Redis) -> Fleet:
    return Fleet(nodes(client), previous=("a",))


def make_fleet(client: redis.Redis) -> None:
    """Leave hashes and keys of which some have moved to a new node, some on their way."""
    nodes(client)["b"].flushdb()
    before = Fleet({"a": client})
    hashes, keys = VolatileHashes(before, "n", backend="emulated"), DurableKeys(before, "d")
    for number in range(6):
        hashes.hsetex(f"h{number}", mapping={"f": number}, ex=300)
        keys.set(f"k{number}", number, ex=300)
    keys.acquire("lock", 60)
    hashes = VolatileHashes(_growing(client), "n")
    keys = DurableKeys(_growing(client), "d")
    for name in ("h0", "h1"):
        hashes.hset(name, "g", 1)
    keys.set("k0", 1, ex=60)
    for each in (hashes, keys):
        FleetRebalance(each, None, random=chance()).perform(Slice(2, SECONDS))


def fleet(client: redis.Redis) -> Operations:
    """Return the operations of structures on a fleet that grows, and of the job that moves keys."""

    def hashes() -> Any:
        return VolatileHashes(_growing(client), "n")

    def keys() -> Any:
        return DurableKeys(_growing(client), "d")

    names = [f"h{number}" for number in range(6)]
    durable = [f"k{number}" for number in range(6)]
    return {
        "hset": lambda: [hashes().hset(each, "new", 1) for each in names],
        "hgetall": lambda: [hashes().hgetall(each) for each in names],
        "hdel": lambda: [hashes().hdel(each, "f") for each in names],
        "delete hash": lambda: [hashes().delete(each) for each in names],
        "set": lambda: [keys().set(each, 1, ex=60) for each in durable],
        "get": lambda: [keys().get(each) for each in durable],
        "delete": lambda: [keys().delete(each) for each in durable],
        "acquire": lambda: [keys().acquire(each, 60) for each in ("lock", "new")],
        **of_job(
            "hashes", lambda **more: FleetRebalance(hashes(), None, random=chance(), **more), 6
        ),
        **of_job("keys", lambda **more: FleetRebalance(keys(), None, random=chance(), **more), 6),
    }


MAPS: dict[str, tuple[Callable[[redis.Redis], None], Callable[[redis.Redis], Operations]]] = {
    "volatile_hashes": (make_hashes, hashes),
    "moving_hashes": (make_moving, moving_hashes),
    "durable_keys": (make_keys, durable_keys),
    "tracked_set": (make_tracked, tracked_set),
    "leftovers": (make_leftovers, leftovers),
    "ledger": (make_ledger, ledger),
    "fleet": (make_fleet, fleet),
}
