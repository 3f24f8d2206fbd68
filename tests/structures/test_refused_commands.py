"""A command that the user may not send is called so: no structure takes it for foreign data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError, ResponseError

from support.acl import say_line
from support.patience import left, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.table_source import TableSource
from workstealing import jobs
from workstealing.errors import Aborted, LayoutError, OutOfTime
from workstealing.metrics.ledger import Ledger, total
from workstealing.metrics.ledger import read as read_ledger
from workstealing.metrics.shared_settings import SharedSettings, follow
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
    VolatileHashes,
)
from workstealing.structures.access import access_by_kind, names_of, rule
from workstealing.structures.fair_queue import NewMessage
from workstealing.testing import always

pytestmark = [pytest.mark.contract, pytest.mark.real]

ACCESS = access_by_kind()
Calls = dict[str, Callable[[Any], Any]]

SENT = """
    bitfield decr del exists expire get getrange hdel hexists hget hgetall hincrby hkeys hlen
    hmget hrandfield hscan hset hsetnx hstrlen incr linsert llen lpush lrange ltrim mget persist
    pexpire pexpireat pttl rename rpush sadd scard set setrange sismember smembers smismember
    spop srandmember srem strlen time type unlink xack xadd xautoclaim xclaim xdel xgroup xinfo
    xlen xpending xrange xreadgroup xrevrange xtrim zadd zcard zcount zincrby zmscore zrange
    zrangebyscore zrangestore zrank zrem zremrangebyrank zremrangebyscore zrevrange zscore
    zunionstore
"""
"""Every command on keys that a script or a job of this package sends."""
COMMANDS = SENT.split()
QUICK = ("volatile hashes", "ick")


def perform(job: type, *args: Any, **options: Any) -> Callable[[Any], Any]:
    """Return a call that performs a slice of a job on a structure."""

    def call(structure: Any) -> Any:
        # Another writer, and a slice that is over, are no faults of the server.
        with suppress(Aborted, OutOfTime):
            return job(structure, *args, **options).perform(Slice(5, 30.0))

    return call


def backlog(job: type, *args: Any, **options: Any) -> Callable[[Any], Any]:
    """Return a call that asks a job for its backlog."""
    return lambda structure: job(structure, *args, **options).backlog()


@dataclass(frozen=True)
class Kind:
    """A structure: how it is made on a client, and what is called on it, in that order."""

    make: Callable[[Any], Any]
    calls: Calls


def leased(sharded: Any) -> None:
    """Take a lease of a sharded Ick, reserve, acknowledge and give it back."""
    with sharded.lease("c", 30) as ick:
        batch = ick.reserve(2)
        ick.exchange(1, *[member for member, _ in batch])
        ick.extend()


def resized(sharded: Any, ick_shards: int) -> None:
    """Resize a sharded Ick, as soon as leases of a millisecond have ended."""
    while not sharded.resize(ick_shards).done:
        time.sleep(0.001)


def settled(queue: Any, message: Any) -> None:
    """Extend, return and acknowledge a message."""
    queue.extend(message)
    queue.nack(message)
    queue.ack(message)


def ids(queue: Any) -> list[str]:
    """Return ids as messages of each time shard might have them."""
    return [f"{number}-{'0' * 32}" for number in range(queue.rotation.time_shards)]


def grouped(group: Any) -> None:
    """Read in a group, acknowledge some, and look at the rest."""
    group.ack(*group.read(3)[:1])
    group.stats()
    group.pending()
    group.dead()
    group.revive(3)
    group.discard(3)


ICK_CALLS: Calls = {
    "stats": lambda ick: ick.stats(),
    "exchange": lambda ick: ick.exchange(1, "a"),
    "reserve": lambda ick: ick.reserve(2),
    "ack": lambda ick: ick.ack("b"),
    "reap": perform(jobs.IckReaper, lease=0.001),
    "backlog": backlog(jobs.IckReaper, lease=0.001),
    "dead": lambda ick: ick.dead(),
    "revive": lambda ick: ick.revive("c"),
    "discard": lambda ick: ick.discard("c"),
    "delete": lambda ick: ick.delete(),
    "add": lambda ick: ick.add({"a": 1, "b": 2}),
}
KINDS = {
    "volatile hashes": Kind(
        lambda client: VolatileHashes(client, namespace="n", backend="emulated"),
        {
            "hget": lambda hashes: hashes.hget("h", "a"),
            "hsetex": lambda hashes: hashes.hsetex("h", mapping={"a": 1}, ex=60),
            "hset": lambda hashes: hashes.hset("h", "b", 1),
            "hgetall": lambda hashes: hashes.hgetall("h"),
            "hgetex": lambda hashes: hashes.hgetex("h", "a", ex=9),
            "httl": lambda hashes: hashes.httl("h", "a"),
            "hexpire": lambda hashes: hashes.hexpire("h", 60, "a"),
            "hpersist": lambda hashes: hashes.hpersist("h", "b"),
            "hincrby": lambda hashes: hashes.hincrby("h", "n", 1),
            "rename": lambda hashes: hashes.rename("h", "h"),
            "hdel": lambda hashes: hashes.hdel("h", "b"),
            "collect": perform(jobs.HashFieldExpiry),
            "backlog": backlog(jobs.HashFieldExpiry),
            "delete": lambda hashes: hashes.delete("h"),
            "again": lambda hashes: hashes.hsetex("h", mapping={"a": 1}, px=1),
        },
    ),
    "durable keys": Kind(
        lambda client: DurableKeys(client, namespace="n"),
        {
            "get": lambda keys: keys.get("k"),
            "set": lambda keys: keys.set("k", 1, ex=60),
            "getex": lambda keys: keys.getex("k", ex=60),
            "expire": lambda keys: keys.expire("k", 60),
            "ttl": lambda keys: keys.ttl("k"),
            "exists": lambda keys: keys.exists("k"),
            "mget": lambda keys: keys.mget("k"),
            "persist": lambda keys: keys.persist("k"),
            "acquire": lambda keys: keys.acquire("lock", 0.001),
            "extend": lambda keys: keys.extend("lock", 1, 1),
            "release": lambda keys: keys.release("lock", 1),
            "getdel": lambda keys: keys.getdel("k"),
            "delete": lambda keys: keys.delete("k"),
            "collect": perform(jobs.KeyExpiry),
            "backlog": backlog(jobs.KeyExpiry),
        },
    ),
    "tracked set": Kind(
        lambda client: TrackedSet(client, "t", TableSource(["3"])),
        {
            "is_tracked": lambda tracked: tracked.is_tracked("1"),
            "track": lambda tracked: tracked.track(["1", "2"]),
            "count": lambda tracked: tracked.count(),
            "untrack": lambda tracked: tracked.untrack("2"),
            "track queued": perform(jobs.TrackQueued),
            "untrack done": perform(jobs.UntrackDone),
            "backlog": backlog(jobs.UntrackDone),
        },
    ),
    "ick": Kind(lambda client: Ick(client, "list"), ICK_CALLS),
    "sharded ick": Kind(
        lambda client: ShardedIck(client, "list", 2),
        {
            "add": lambda sharded: sharded.add({"a": 1, "b": 2, "c": 3}),
            "stats": lambda sharded: sharded.stats(),
            "lease": leased,
            "lease all": lambda sharded: sharded.lease_all("c", 0.001).reserve({0: 1, 1: 1}),
            "reserved": lambda sharded: sharded.reserved(0, "1"),
            "reap": perform(jobs.IckReaper, lease=0.001),
            "resize": lambda sharded: [resized(sharded, number) for number in (3, 2)],
            "delete": lambda sharded: sharded.delete(),
        },
    ),
    "shuffle queue": Kind(
        lambda client: ShuffleQueue(client, "q", streams=4, max_attempts=2),
        {
            "write": lambda queue: queue.write("t", {"a": 1}, tracking_id="x"),
            "length": lambda queue: queue.length(),
            "groups": lambda queue: queue.groups(),
            "stats": lambda queue: queue.stats("g"),
            "read": lambda queue: queue.read("g", "c"),
            "settle": lambda queue: [
                settled(queue, message) for message in queue.read_many("g", "c", 3)
            ],
            "reap": perform(jobs.ShuffleQueueReaper, lease=0.001),
            "backlog": backlog(jobs.ShuffleQueueReaper, lease=0.001),
            "expiry": perform(jobs.QueueExpiry),
            "cancel": lambda queue: queue.cancel("x"),
            "dead": lambda queue: queue.dead("g"),
            "revive": lambda queue: queue.revive("g", "1-1-1"),
            "discard": lambda queue: queue.discard("g", "1-1-1"),
            "delete": lambda queue: queue.delete(),
            "again": lambda queue: queue.write("t", {"a": 1}, tracking_id="x"),
        },
    ),
    "fair queue": Kind(
        lambda client: FairQueue(client, "q", lease=0.001, max_attempts=2),
        {
            "rule": lambda queue: queue.set_rule("t*", max_in_flight=9, rate=1000.0),
            "write": lambda queue: queue.write(
                "t", {"a": 1}, time.time() + 60, "x", dedupe=("k", 60)
            ),
            "write late": lambda queue: queue.write("t", {"a": 1}, delay=0.001),
            "write overdue": lambda queue: queue.write("t", {"a": 1}, ttl=0.001),
            "write many": lambda queue: queue.write_many([NewMessage("u", {"a": 1})] * 4),
            "length": lambda queue: queue.length(),
            "peek": lambda queue: queue.peek("t"),
            "overdue": lambda queue: queue.overdue(),
            "stats": lambda queue: queue.stats(),
            "rules": lambda queue: queue.rules(),
            "explain": lambda queue: queue.explain_wait("u"),
            "read": lambda queue: queue.read("c"),
            "wait": lambda queue: queue.read("c", block=0.01),
            "settle": lambda queue: [
                settled(queue, message) for message in queue.read_many("c", 3)
            ],
            "exchange": lambda queue: queue.exchange(*queue.read_many("c", 1), consumer="c"),
            "reap": perform(jobs.FairQueueReaper, consumer_idle=0.001),
            "backlog": backlog(jobs.FairQueueReaper),
            "expiry": perform(jobs.QueueExpiry),
            "cancel": lambda queue: queue.cancel("x"),
            "purge": lambda queue: queue.purge("u"),
            "pause": lambda queue: (queue.pause("u"), queue.resume("u")),
            "dead": lambda queue: queue.dead(),
            "revive": lambda queue: queue.revive(*(each.id for each in queue.dead()[:1])),
            "discard": lambda queue: queue.discard(*(each.id for each in queue.dead()[:1])),
            "remove": lambda queue: queue.remove_rule("t*"),
            "delete": lambda queue: queue.delete(),
            "again": lambda queue: queue.write("t", {"a": 1}, tracking_id="x"),
        },
    ),
    "time shard queue": Kind(
        lambda client: TimeShardQueue(RedisStore(client), "letters", 6, 60),
        {
            "put": lambda queue: queue.put("x"),
            "stats": lambda queue: queue.stats(),
            "take": lambda queue: queue.take_many("c", 2, lease=0.001),
            "ack": lambda queue: queue.ack(*ids(queue)),
            "cancel": lambda queue: queue.cancel(ids(queue)[0]),
            "release": lambda queue: queue.release(ids(queue)[0]),
            "dead": lambda queue: queue.dead(),
            "revive": lambda queue: queue.revive(*ids(queue)),
            "discard": lambda queue: queue.discard(*ids(queue)),
            "sweep": perform(jobs.TimeShardSweeper),
            "backlog": backlog(jobs.TimeShardSweeper),
            "delete": lambda queue: queue.delete(),
        },
    ),
    "log": Kind(
        lambda client: Log(client, "visits", 10),
        {
            "append": lambda log: log.append(*[b"x"] * 15),
            "read": lambda log: log.read(0, 9),
            "stats": lambda log: log.stats(),
            "group": lambda log: grouped(log.group("g", ack=True, lease=0.001)),
            "compact": perform(jobs.LogCompactor, cold=0),
            "backlog": backlog(jobs.LogCompactor),
            "trim": perform(jobs.LogTrimmer, max_entries=20, spare_groups=True),
            "evict": lambda log: log.evict(keep=20),
            "delete": lambda log: log.delete(),
        },
    ),
}


@pytest.fixture
def refuse(redis7: RedisServer) -> Iterator[Callable[[str], None]]:
    """Let the user `poor` send every command but one."""
    admin = redis7.client()

    def set_user(command: str) -> None:
        rules = () if command == "none" else (f"-{command}",)
        admin.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", *rules)

    set_user("none")
    yield set_user
    admin.execute_command("ACL", "DELUSER", "poor")


def test_the_list_of_commands_is_of_the_server(redis7: RedisServer) -> None:
    known = redis7.client().execute_command("COMMAND", "INFO", *COMMANDS)
    assert [name for name, about in zip(COMMANDS, known.values(), strict=True) if not about] == []


@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in KINDS],
)
def test_a_refused_command_is_no_foreign_layout(
    redis7: RedisServer, refuse: Callable[[str], None], name: str
) -> None:
    kind = KINDS[name]
    admin = redis7.client()
    wrong: list[str] = []
    refused: set[str] = set()

    def fill() -> None:
        admin.flushall()
        call_all(kind.make(admin))

    def call_all(structure: Any) -> None:
        for called, call in kind.calls.items():
            if called != "delete":
                call(structure)

    def check(structure: Any, command: str, what: str) -> None:
        fill()
        for called, call in kind.calls.items():
            try:
                call(structure)
            except LayoutError as error:
                wrong.append(f"{called} without {command}, {what}: {error}")
            except ResponseError as error:
                text = str(error)
                if "permission" not in text and "can't run" not in text:
                    wrong.append(f"{called} without {command}, {what}: {error}")
                refused.add(command)
                # The script may have written something before.
                fill()

    with redis.Redis(port=redis7.port, username="poor", password="x") as client:
        for command in COMMANDS:
            refuse("none")
            fill()
            known = kind.make(client)
            call_all(known)
            refuse(command)
            check(known, command, "known")
            check(kind.make(client), command, "opened anew")
    assert not wrong, "\n".join(wrong)
    # The test would prove nothing if no command were needed.
    assert len(refused) >= 5, refused


FORBIDDEN = ("config", "info", "script", "client", "command", "acl", "role", "debug", "latency")
"""Commands that managed services forbid, some by ACL rules, some by renaming them."""


@pytest.fixture
def managed(
    request: pytest.FixtureRequest, start_redis: Callable[..., RedisServer], tmp_path: Path
) -> Iterator[Any]:
    """A client of a service that forbids these commands in one way or the other."""
    major, how = request.param
    user: dict[str, Any] = {}
    if how == "renamed":
        settings = tmp_path / "renamed.conf"
        settings.write_text("".join(f'rename-command {each} ""\n' for each in FORBIDDEN))
        server = start_redis(major, include=settings)
    else:
        server = start_redis(major)
        rules = [f"-{each}" for each in FORBIDDEN]
        server.client().execute_command("ACL", "SETUSER", "u", "on", ">x", "~*", "+@all", *rules)
        user = {"username": "u", "password": "x"}
    with redis.Redis(port=server.port, **user) as client:
        for each in FORBIDDEN:
            with pytest.raises(ResponseError):
                client.execute_command(each, *(["flush"] if each == "script" else []))
        yield client


SERVICES = [(7, "renamed"), (7, "refused"), (8, "renamed"), (8, "refused")]


@pytest.mark.parametrize("managed", SERVICES, indirect=True, ids=str)
def test_everything_works_on_services_that_forbid_to_look_and_to_configure(managed: Any) -> None:
    for kind in KINDS.values():
        for structure in (kind.make(managed), kind.make(managed)):
            for each in (structure.size_steps, structure.dead_steps, structure.check_steps):
                structure.inspect(each())
            for called, call in kind.calls.items():
                try:
                    call(structure)
                except Exception as error:
                    raise AssertionError(f"{kind.make(managed)!r}: {called}") from error
        managed.flushall()


@pytest.mark.parametrize("managed", SERVICES, indirect=True, ids=str)
def test_the_other_parts_work_there_too(managed: Any) -> None:
    hashes = VolatileHashes(managed, "n")
    # What a service does not tell is not guessed: scripts expire the fields.
    assert hashes.open().is_emulated
    managed.hset("old:1", mapping={"a": 1, "b": 2})
    adoption = jobs.AdoptHashes(hashes, "old:*", ttl=60)
    assert adoption.report().fields == 2
    assert adoption.perform(Slice(5, 30.0)) == 2
    assert hashes.httl("old:1", "a") == [left(60)]

    @hashes.cached(ttl=60, key="kept")
    def double(number: int) -> int:
        return 2 * number

    assert [double(2), double(2)] == [4, 4]
    recruiter = always(seconds=5.0)
    ledger = Ledger(managed)
    recruiter.add_hook(ledger)
    recruiter.install(jobs.HashFieldExpiry(hashes), rate=1.0)
    follow(recruiter, ledger)
    SharedSettings(managed).set_rate("hash_field_expiry.n", 0.5)
    recruiter.enlist()
    assert ledger.flush(10.0)
    assert [each.recruited for each in total(read_ledger(managed)).values()] == [1]
    ledger.close(10.0)


@pytest.mark.parametrize("server", ["redis7", pytest.param("cluster", marks=pytest.mark.cluster)])
@pytest.mark.parametrize("name", KINDS)
def test_the_rule_that_acl_prints_is_enough(
    request: pytest.FixtureRequest, server: str, name: str
) -> None:
    place, kind = request.getfixturevalue(server), KINDS[name]
    made = kind.make(place.client())
    is_cluster = place.is_cluster
    accesses = [ACCESS[made.kind]]
    several = {"shuffle queue": "shuffle queues", "fair queue": "fair queues"}.get(made.kind)
    if several:
        # Its job serves all queues of the namespace.
        accesses.append(ACCESS[several])
    users = ("h", "k", "lock", "q", "q/queue/*", "q/fair/*")
    patterns = [key for each in accesses for key in each.patterns(*names_of(made), users)]
    if several:
        patterns += ACCESS[several].patterns(made.namespace)
    commands = {each for access in accesses for each in access.allowed(cluster=is_cluster)}
    line = rule("least", patterns, commands).replace("PASSWORD", "x")
    ports = [node.port for node in place.nodes] if is_cluster else [place.port]
    for port in ports:
        say_line(port, line)
    try:
        with place.client(username="least", password="x") as client:
            for structure in (kind.make(client), kind.make(client)):
                for called, call in kind.calls.items():
                    try:
                        call(structure)
                    except ResponseError as error:
                        raise AssertionError(f"{called}: {line}") from error
                for each in (structure.size_steps, structure.dead_steps, structure.check_steps):
                    structure.inspect(each())
            with pytest.raises(NoPermissionError):
                client.set("another", 1)
    finally:
        for port in ports:
            with redis.Redis(port=port) as admin:
                admin.acl_deluser("least")
