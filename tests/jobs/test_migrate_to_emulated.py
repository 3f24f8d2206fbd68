"""A namespace moves back from native to emulated under traffic, and no deadline is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import left, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import Aborted, LayoutError, Skipped
from workstealing.jobs import (
    HashFieldExpiry,
    MigrateToEmulated,
    MigrateToNative,
    migrate_to_native,
)
from workstealing.jobs.shared import backend_moves
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes import hashes as hashes_module

HOUR = 3600
pytestmark = pytest.mark.real


def hashes_on(client: Any, **options: Any) -> VolatileHashes:
    return VolatileHashes(client, namespace="m", **options)


def backend_of(client: Any) -> str:
    found = client.hget("ws:m:layout", "backend")
    return found.decode() if found else ""


def job_on(client: Any, **options: Any) -> MigrateToEmulated:
    return MigrateToEmulated(hashes_on(client), "*h:*", **options)


def run_until(job: MigrateToEmulated, backend: str, most: int = 30_000) -> int:
    handed = 0
    for _ in range(most):
        if backend_of(job.hashes.client) == backend:
            return handed
        try:
            handed += job.perform(Slice(job.limit, 10.0))
        except Aborted:
            continue
    raise AssertionError(f"still {backend_of(job.hashes.client)} after {most} slices")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes look at the layout before each command, and the job need not wait for them."""
    monkeypatch.setattr(backend_moves, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(hashes_module, "LAYOUT_SECONDS", 0.0)


@pytest.fixture(params=["redis8", "cluster8"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    client = request.getfixturevalue(request.param).client()
    yield client
    client.flushall()


@pytest.mark.slow
def test_deadlines_are_the_same_before_and_after(client: Any) -> None:
    hashes_on(client, backend="native").open()
    hashes = hashes_on(client)
    for i in range(120):
        hashes.hsetex(f"h:{i}", mapping={"a": i, "b": i}, ex=HOUR + i)
        hashes.hset(f"h:{i}", "for ever", 1)
    hashes.hsetex("h:large", mapping={f"f{i}": i for i in range(1500)}, ex=HOUR)
    before = {i: hashes.hpexpiretime(f"h:{i}", "a", "b", "for ever") for i in range(120)}
    job = job_on(client)
    assert (job.backlog().count, job.backlog().exact) == (240 + 1500, True)
    assert job_on(client, dry_run=True).perform(Slice(25, 10.0)) == 25
    assert backend_of(client) == "native"
    assert run_until(job, "emulated") == 240 + 1500
    fresh = hashes_on(client, backend="emulated")
    for name, times in before.items():
        # The server itself keeps no deadline any more.
        assert client.hpexpiretime(f"h:{name}", "a", "b", "for ever") == [-1, -1, -1]
        assert fresh.hpexpiretime(f"h:{name}", "a", "b", "for ever") == times
        assert hashes.hpexpiretime(f"h:{name}", "a", "b", "for ever") == times
    assert min(fresh.httl("h:large", *(f"f{i}" for i in range(1500)))) > HOUR - 120
    assert not list(client.scan_iter("*:adopt:*"))
    one = Slice(25, 10.0)
    assert job.perform(one) == 0
    assert one.backlog == 0
    later = hashes_on(client, clock_shift_ms=2 * HOUR * 1000)
    assert later.hgetall("h:5") == {b"for ever": b"1"}
    assert HashFieldExpiry(later, limit=100).perform(Slice(100, 10.0)) > 0


def test_there_and_back_again(client: Any) -> None:
    hashes = hashes_on(client, backend="emulated")
    hashes.hsetex("h:1", mapping={"a": 1, "b": 2}, ex=HOUR)
    times = hashes.hpexpiretime("h:1", "a", "b")
    forth, back = MigrateToNative(hashes_on(client)), job_on(client)
    for _ in range(2):
        for _ in range(200):
            forth.perform(Slice(25, 10.0))
            if backend_of(client) == "native":
                break
        assert client.hpexpiretime("h:1", "a", "b") == times
        run_until(back, "emulated")
        assert client.hpexpiretime("h:1", "a", "b") == [-1, -1]
        assert hashes_on(client).hpexpiretime("h:1", "a", "b") == times


@pytest.mark.slow
@pytest.mark.parametrize("state", ["native", "leaving", "returning", "emulated"])
@pytest.mark.parametrize("piped", [False, True])
def test_each_command_answers_alike_in_every_state(client: Any, state: str, piped: bool) -> None:
    hashes = hashes_on(client, backend="native")
    hashes.hsetex("{h}h:1", mapping={"a": 1, "b": 2, "FIELDS": 3}, ex=HOUR)
    hashes.hset("{h}h:1", "c", 4)
    run_until(job_on(client), state)
    works: list[Callable[[Any], Any]] = [
        lambda h: h.hget("{h}h:1", "a"),
        lambda h: h.httl("{h}h:1", "a", "b", "c", "x"),
        lambda h: h.hgetall("{h}h:1"),
        lambda h: h.hlen("{h}h:1"),
        lambda h: h.hexists("{h}h:1", "a"),
        lambda h: h.hincrby("{h}h:1", "a", 5),
        lambda h: h.hset("{h}h:1", "c", 9),
        lambda h: h.hexpire("{h}h:1", 2 * HOUR, "c", "FIELDS"),
        lambda h: h.hpersist("{h}h:1", "b"),
        lambda h: h.hgetex("{h}h:1", "a", ex=3 * HOUR),
        lambda h: h.hsetex("{h}h:1", "new", 7, ex=HOUR),
        lambda h: h.hsetex("{h}h:1", mapping={"FIELDS": 8}, keepttl=True),
        lambda h: h.httl("{h}h:1", "a", "b", "c", "new", "FIELDS"),
        lambda h: h.copy("{h}h:1", "{h}h:2"),
        lambda h: h.rename("{h}h:1", "{h}h:3"),
        lambda h: h.httl("{h}h:2", "a", "b", "c", "new", "FIELDS"),
        lambda h: h.httl("{h}h:3", "a", "b", "c", "new", "FIELDS"),
        lambda h: h.hdel("{h}h:3", "a"),
        lambda h: h.hmget("{h}h:3", "a", "b"),
        lambda h: h.delete("{h}h:2"),
        lambda h: h.exists("{h}h:2"),
    ]
    mixed = hashes_on(client)
    if piped:
        with mixed.pipeline(transaction=False) as p:
            for work in works:
                work(p)
            replies = p.execute()
    else:
        replies = [work(mixed) for work in works]
    times = [left(3 * HOUR), -1, left(2 * HOUR), left(HOUR), left(2 * HOUR)]
    assert replies == [
        b"1",
        [left(HOUR), left(HOUR), -1, -2],
        {b"a": b"1", b"b": b"2", b"FIELDS": b"3", b"c": b"4"},
        4,
        True,
        6,
        0,
        [1, 1],
        [1],
        [b"6"],
        1,
        1,
        times,
        True,
        True,
        times,
        times,
        1,
        [None, b"2"],
        1,
        0,
    ]
    assert backend_of(client) == state
    run_until(job_on(client), "emulated")
    assert hashes_on(client).httl("{h}h:3", "b", "c", "new", "FIELDS") == times[1:]


def test_a_guarded_process_is_refused_once_its_shard_is_handed_back(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = hashes_on(client, backend="native")
    hashes.hsetex("h:1", "a", 1, ex=HOUR)
    run_until(job_on(client), "leaving")
    late, piped = hashes_on(client), hashes_on(client)
    assert late.httl("h:1", "a") == piped.httl("h:1", "a") == [left(HOUR)]
    # From here on these two do not look at the layout by themselves.
    monkeypatch.setattr(hashes_module, "LAYOUT_SECONDS", 10_000.0)
    run_until(job_on(client), "emulated")
    assert late.layout
    assert late.layout.backend == "leaving"
    assert late.hsetex("h:1", "b", 2, ex=2 * HOUR) == 1
    assert late.open().backend == "emulated"
    with piped.pipeline(transaction=False) as p:
        p.hsetex("h:1", "c", 3, ex=3 * HOUR)
        p.httl("h:1", "a", "b", "c")
        assert p.execute() == [1, [left(HOUR), left(2 * HOUR), left(3 * HOUR)]]
    assert client.httl("h:1", "a", "b", "c") == [-1, -1, -1]


async def test_asyncio_clients_take_part(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes_on(client, backend="native").hsetex("h:1", "a", 1, ex=HOUR)
    async with redis8.async_client() as other:
        hashes = AsyncVolatileHashes(other, namespace="m")
        assert await hashes.httl("h:1", "a") == [left(HOUR)]
        run_until(job_on(client), "returning")
        assert await hashes.hsetex("h:1", "b", 1, ex=HOUR) == 1
        assert await hashes.httl("h:1", "a", "b") == [left(HOUR), left(HOUR)]
        run_until(job_on(client), "emulated")
        assert await hashes.httl("h:1", "a", "b") == [left(HOUR), left(HOUR)]
        assert client.httl("h:1", "a", "b") == [-1, -1]
    client.flushall()


@pytest.mark.slow
def test_under_traffic_every_field_keeps_its_last_deadline(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command under way has so long to arrive.
    monkeypatch.setattr(backend_moves, "GRACE_SECONDS", 1.0)
    hashes_on(client, backend="native").open()
    names = [f"h:{i}" for i in range(30)]
    last: dict[int, dict[str, int]] = {}
    stop = threading.Event()

    def write(seed: int) -> None:
        rng, hashes = random.Random(seed), hashes_on(client)
        written = last[seed] = {}
        while not stop.is_set():
            name, hours = rng.choice(names), rng.randint(1, 9)
            hashes.hsetex(name, f"f{seed}", hours, ex=hours * HOUR)
            written[name] = hours

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        run_until(job_on(client, limit=5), "emulated")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    hashes = hashes_on(client)
    for seed, written in last.items():
        for name, hours in written.items():
            assert hashes.hget(name, f"f{seed}") == str(hours).encode()
            (left,) = hashes.httl(name, f"f{seed}")
            assert hours * HOUR - 120 <= left <= hours * HOUR
            assert client.httl(name, f"f{seed}") == [-1]


def test_slices_wait_until_every_process_has_noticed(
    redis8: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_moves, "GRACE_SECONDS", 1000.0)
    client = redis8.client()
    hashes_on(client, backend="native").hsetex("h:1", "a", 1, ex=HOUR)
    job = job_on(client)
    assert [job.perform(Slice(25, 10.0)) for _ in range(5)] == [0] * 5
    assert backend_of(client) == "leaving"
    client.hincrby("ws:m:layout", "since", -2_000_000)
    assert [job.perform(Slice(25, 10.0)) for _ in range(5)] == [0] * 5
    assert backend_of(client) == "returning"
    assert client.httl("h:1", "a") == [left(HOUR)]
    client.hincrby("ws:m:layout", "since", -2_000_000)
    assert job.perform(Slice(25, 10.0)) == 1
    assert client.httl("h:1", "a") == [-1]
    client.flushall()


@pytest.mark.parametrize("in_pipeline", [False, True])
@pytest.mark.parametrize(
    ("command", "replies"),
    [
        (("HGETDEL", "h:1", "FIELDS", 1, "a"), ([b"7"], [None])),
        (("HINCRBYFXX", "h:1", "a", 1, "FXX"), (8, None)),
        (("HSCAN", "h:1", 0), ((0, {b"a": b"7"}), (0, {}))),
    ],
)
def test_a_command_that_the_server_lacks_is_guarded_too(
    redis8: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    command: Any,
    replies: Any,
    in_pipeline: bool,
) -> None:
    """A process that had not noticed the last step yet read fields that had expired since."""
    client, (there, gone) = redis8.client(), replies
    hashes_on(client, backend="native").open()
    run_until(job_on(client), "leaving")
    slow = hashes_on(client)
    slow.open()
    assert slow._layout is not None
    # As Valkey 9.0 and an older redis-py would have it.
    lacking = replace(slow._layout, missing=frozenset({"HGETDEL", "HINCRBYFXX", "HSCAN"}))
    monkeypatch.setattr(slow, "_layout", lacking)

    def do(hashes: VolatileHashes) -> Any:
        if not in_pipeline:
            return hashes.execute_command(*command)
        with hashes.pipeline(transaction=False) as pipeline:
            return pipeline.execute_command(*command).execute()[0]

    monkeypatch.setattr(hashes_module, "LAYOUT_SECONDS", 1000.0)
    slow._layout_read = time.monotonic()
    slow.hset("h:1", "a", 7)
    assert do(slow) == there
    slow.delete("h:1")
    run_until(job_on(client), "returning")
    quick = hashes_on(client)
    quick.hsetex("h:1", "a", 7, px=20)
    while quick.hexists("h:1", "a"):
        time.sleep(0.001)
    assert client.hexists("h:1", "a")
    assert slow._layout.backend == "leaving"
    assert do(slow) == gone
    client.flushall()


def test_the_two_migrations_keep_off_each_other(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes = hashes_on(client, backend="emulated")
    hashes.hsetex("h:1", mapping={"a": 1, "b": 1}, ex=HOUR)
    MigrateToNative(hashes_on(client), limit=1).perform(Slice(1, 10.0))
    assert backend_of(client) == "migrating"
    with pytest.raises(Skipped, match="MigrateToNative finish first"):
        job_on(client).perform(Slice(25, 10.0))
    forth = MigrateToNative(hashes_on(client))
    for _ in range(100):
        forth.perform(Slice(25, 10.0))
    for state in ("leaving", "returning"):
        run_until(job_on(client), state)
        assert forth.perform(Slice(25, 10.0)) == 0
        assert backend_of(client) == state
    client.flushall()


@pytest.mark.parametrize("by_sweep", [False, True])
def test_it_works_on_a_full_server(start_redis: Callable[..., RedisServer], by_sweep: bool) -> None:
    client = start_redis(8, maxmemory_policy="noeviction").client()
    hashes_on(client, backend="native").open()
    hashes = hashes_on(client)
    for i in range(20):
        hashes.hsetex(f"h:{i}", mapping={"a": "x" * 100}, ex=HOUR)
    client.config_set("maxmemory", 1)
    run_until(job_on(client), "returning")
    assert hashes.hget("h:1", "a") == b"x" * 100
    assert hashes.httl("h:1", "a") == [left(HOUR)]
    if by_sweep:
        assert by_parts(job_on(client)) > 0
    else:
        run_until(job_on(client), "emulated")
    assert all(hashes.httl(f"h:{i}", "a") == [left(HOUR)] for i in range(20))
    assert all(client.httl(f"h:{i}", "a") == [-1] for i in range(20))


def by_parts(job: MigrateToEmulated, n: int = 3) -> int:
    """Do a sweep's parts in turn, as tasks side by side would."""
    working = [job.for_part(part) for part in job.parts(n)]
    handed = 0
    for _ in range(3000):
        for each in working:
            try:
                handed += each.perform(Slice(each.limit, 10.0)) or 0
            except Aborted:
                continue
        if all(each.is_drained for each in working):
            return handed
    raise AssertionError("the parts have not come to their ends")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["native", "leaving", "returning"])
@pytest.mark.parametrize("n", [1, 4, 7])
def test_a_sweep_in_parts_ends_the_move(client: Any, state: str, n: int) -> None:
    hashes = hashes_on(client, backend="native")
    for i in range(120):
        hashes.hsetex(f"h:{i}", mapping={"a": i, "b": i}, ex=HOUR + i)
    hashes.hsetex("h:large", mapping={f"f{i}": i for i in range(1500)}, ex=HOUR)
    times = {i: hashes.hpexpiretime(f"h:{i}", "a", "b") for i in range(120)}
    run_until(job_on(client), state)
    assert by_parts(job_on(client, limit=50), n) == 240 + 1500
    assert backend_of(client) == "emulated"
    fresh = hashes_on(client, backend="emulated")
    for i, before in times.items():
        assert fresh.hpexpiretime(f"h:{i}", "a", "b") == before
        assert client.hpexpiretime(f"h:{i}", "a", "b") == [-1, -1]
    assert client.hpexpiretime("h:large", *(f"f{i}" for i in range(1500))) == [-1] * 1500
    assert job_on(client).parts(n) == []
    # A sweep's places of its own go within a day, the shared one at once.
    assert all(0 < client.ttl(key) <= 86_400 for key in client.scan_iter("*:adopt:*"))


@pytest.mark.slow
def test_a_part_goes_on_where_an_earlier_turn_ended(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes = hashes_on(client, backend="native")
    for i in range(1200):
        hashes.hsetex(f"h:{i}", "a", i, ex=HOUR)
    job = job_on(client, limit=50)
    run_until(job, "returning")
    one, other = job.parts(2)
    early = job.for_part(one)
    for _ in range(8):
        early.perform(Slice(50, 10.0))
    reads = client.info("commandstats")["cmdstat_scan"]["calls"]
    # Spark gives the rest to another process.
    late = job.for_part(one)
    while not late.is_drained:
        late.perform(Slice(50, 10.0))
    rest = client.info("commandstats")["cmdstat_scan"]["calls"] - reads
    assert backend_of(client) == "returning"
    whole = job.for_part(other)
    reads += rest
    while not whole.is_drained:
        whole.perform(Slice(50, 10.0))
    assert rest < client.info("commandstats")["cmdstat_scan"]["calls"] - reads
    assert backend_of(client) == "emulated"
    client.flushall()


def test_a_hash_that_becomes_something_else_is_left_alone(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes_on(client, backend="native").hsetex("h:1", "a", 1, ex=HOUR)
    job = job_on(client)
    run_until(job, "returning")
    found = list(client.scan_iter(match="h:*", _type="hash"))
    assert found == [b"h:1"]
    back = job._adoption.adopter
    client.set("h:1", "text")
    layout = job._index.layout(Budget(None, 10.0))
    assert back.adopt(layout, b"h:1", Slice(25, 10.0), 25, b"0") == (0, None)
    assert list(back.looked_at(layout, b"h:1", Slice(25, 10.0))) == []
    assert client.get("h:1") == b"text"
    client.flushall()


@pytest.mark.parametrize("work", ["slices", pytest.param("parts", marks=pytest.mark.slow)])
@pytest.mark.parametrize("state", ["native", "leaving", "returning"])
def test_a_recruit_may_die_at_any_command(
    start_redis: Callable[..., RedisServer], state: str, work: str
) -> None:
    server = start_redis(8)
    client = server.client()
    times: list[int] = []

    def prepare() -> None:
        client.flushall()
        hashes_on(client, backend="native").hsetex("h:1", mapping={"a": 1, "b": 2}, ex=HOUR)
        times[:] = client.hpexpiretime("h:1", "a", "b")
        run_until(job_on(client), state)

    with FaultyServer(server.port) as door:
        through = redis.Redis(port=door.port, protocol=2)

        def slices() -> None:
            job = job_on(through, limit=1)
            if work == "parts":
                by_parts(job, 1)
                return
            for _ in range(2):
                job.perform(Slice(1, 10.0))

        deaths = 0
        for point in every_death([door], slices, prepare):
            deaths += 1
            assert hashes_on(client).hpexpiretime("h:1", "a", "b") == times, point
            run_until(job_on(client), "emulated")
            assert hashes_on(client).hpexpiretime("h:1", "a", "b") == times, point
            assert client.hpexpiretime("h:1", "a", "b") == [-1, -1], point
            assert marks_of(client) == {b"1:emulated"}, point
        assert deaths > 10


NAMES = [f"h:{i}" for i in range(40)]


def marks_of(client: Any) -> set[bytes]:
    keys = list(client.scan_iter("*:ws:m:mark"))
    return {client.get(key) for key in keys}


def go_native(client: Any, most: int = 400) -> None:
    forth = MigrateToNative(hashes_on(client))
    for _ in range(most):
        forth.perform(Slice(25, 10.0))
        if backend_of(client) == "native":
            return
    raise AssertionError(f"still {backend_of(client)} after {most} slices")


def neighbours(hashes: VolatileHashes) -> tuple[str, str]:
    """Return two names in one index shard, in one slot on a cluster."""
    if hashes.open().registers_shards:
        return "{s}h:1", "{s}h:2"
    shards: dict[int, str] = {}
    for name in NAMES:
        first = shards.setdefault(hashes.open().shard_of(key_slot(name.encode())), name)
        if first != name:
            return first, name
    raise AssertionError("no two names share an index shard")


@pytest.mark.slow
def test_every_index_shard_can_be_written_when_the_move_has_ended(client: Any) -> None:
    """Index shards without a field to hand back refused writes for ever."""
    former = hashes_on(client, backend="emulated")
    former.hsetex("h:0", "f", 1, ex=HOUR)
    for name in NAMES[20:]:
        former.hset(name, "f", 1)
    go_native(client)
    run_until(job_on(client), "emulated")
    for number, hashes in enumerate([former, hashes_on(client)]):
        for name in NAMES:
            assert hashes.hsetex(name, f"g{number}", 1, ex=HOUR) == 1
    assert marks_of(client) == {b"1:emulated"}
    assert not list(client.scan_iter("*:adopt:*"))


@pytest.mark.slow
def test_a_round_trip_that_a_former_release_has_ended_is_mended(client: Any) -> None:
    hashes = hashes_on(client, backend="emulated")
    for name in NAMES:
        hashes.hsetex(name, "f", 1, ex=HOUR)
    for key in list(client.scan_iter("*:ws:m:mark")):
        client.set(key, "1:native")
    refused = hashes_on(client)
    with pytest.raises(LayoutError):
        refused.hset("h:1", "f", 2)
    job = job_on(client)
    job.perform(Slice(25, 10.0))
    assert backend_of(client) == "returning"
    assert refused.hset("h:1", "g", 2) == 1
    run_until(job, "emulated")
    assert marks_of(client) == {b"1:emulated"}
    assert refused.hset("h:1", "h", 2) == 1
    assert refused.httl("h:1", "f", "g") == [left(HOUR), -1]
    assert job.perform(Slice(25, 10.0)) == 0
    assert backend_of(client) == "emulated"


@pytest.mark.slow
def test_a_process_of_before_the_moves_finds_deadlines_that_the_server_still_keeps(
    client: Any,
) -> None:
    """It believed in its own keys in an index shard of which another hash was handed back."""
    old = hashes_on(client, backend="emulated")
    one, other = neighbours(old)
    old = hashes_on(client)
    for name in (one, other):
        old.hsetex(name, mapping={"a": 1, "b": 2}, ex=HOUR)
    go_native(client)
    run_until(job_on(client), "returning")
    assert hashes_on(client).httl(one, "a") == [left(HOUR)]
    assert client.httl(other, "a", "b") == [left(HOUR)] * 2
    assert old.layout
    assert old.layout.backend == "emulated"
    assert old.hpersist(other, "a") == [1]
    assert old.layout.backend == "returning"
    assert old.httl(other, "a", "b") == [-1, left(HOUR)]
    run_until(job_on(client), "emulated")
    assert old.httl(other, "a", "b") == [-1, left(HOUR)]


@pytest.mark.slow
@pytest.mark.parametrize("piped", [False, True])
def test_a_process_that_still_returns_goes_on_in_the_next_migration(
    client: Any, monkeypatch: pytest.MonkeyPatch, piped: bool
) -> None:
    hashes_on(client, backend="native").hsetex("h:1", "a", 1, ex=HOUR)
    run_until(job_on(client), "returning")
    late = hashes_on(client)
    late.hset("h:1", "b", 1)
    monkeypatch.setattr(hashes_module, "LAYOUT_SECONDS", 10_000.0)
    run_until(job_on(client), "emulated")
    forth = MigrateToNative(hashes_on(client))
    # The mark alone says that a migration has begun.
    assert forth.perform(Slice(1, 10.0)) == 1
    assert backend_of(client) == "migrating"
    assert late.layout
    assert late.layout.backend == "returning"
    if piped:
        with late.pipeline(transaction=False) as p:
            p.hsetex("h:1", "b", 2, ex=2 * HOUR)
            p.httl("h:1", "a", "b")
            assert p.execute() == [1, [left(HOUR), left(2 * HOUR)]]
    else:
        assert late.hsetex("h:1", "b", 2, ex=2 * HOUR) == 1
        assert late.httl("h:1", "a", "b") == [left(HOUR), left(2 * HOUR)]
    assert late.layout.backend == "migrating"


def test_a_migration_begins_when_every_process_has_noticed_the_end_of_the_last_move(
    redis8: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that still returned handed back what it met, and a native namespace knew not."""
    client = redis8.client()
    hashes_on(client, backend="native").hsetex("h:1", "a", 1, ex=HOUR)
    run_until(job_on(client), "emulated")
    monkeypatch.setattr(backend_moves, "GRACE_SECONDS", 1000.0)
    monkeypatch.setattr(migrate_to_native, "NAP_SECONDS", 0.0)
    forth = MigrateToNative(hashes_on(client))
    waiting = Slice(25, 10.0)
    assert [forth.perform(waiting), forth.perform(Slice(25, 10.0))] == [0, 0]
    assert waiting.backlog is None
    (part,) = forth.parts(1)
    task = forth.for_part(part)
    assert task.perform(Slice(25, 10.0)) == 0
    assert not task.is_drained
    assert backend_of(client) == "emulated"
    client.hincrby("ws:m:layout", "since", -2_000_000)
    while not task.is_drained:
        task.perform(Slice(25, 10.0))
    assert backend_of(client) == "native"
    client.flushall()


def test_an_index_shard_first_used_while_migrating_is_not_left_behind(
    cluster8: RedisCluster3,
) -> None:
    """Its mark stayed, registered nowhere: on the way back it refused every command."""
    client = cluster8.client()
    emulated = hashes_on(client, backend="emulated")
    emulated.hsetex("h:1", "a", 1, ex=HOUR)
    MigrateToNative(hashes_on(client), limit=1).perform(Slice(1, 10.0))
    assert backend_of(client) == "migrating"
    hashes = hashes_on(client)
    assert hashes.hsetex("h:2", "a", 1, ex=HOUR) == 1
    go_native(client)
    for state in ("leaving", "returning", "emulated"):
        run_until(job_on(client), state)
        assert hashes_on(client).hsetex("h:2", state, 1, ex=HOUR) == 1
    assert marks_of(client) == {b"1:emulated"}
    client.flushall()


def test_an_emulated_process_asks_before_it_tells_a_deadline_of_an_unknown_index_shard(
    cluster8: RedisCluster3,
) -> None:
    client = cluster8.client()
    hashes_on(client, backend="emulated").hset("h:1", "a", 1)
    old = hashes_on(client)
    assert old.open().is_emulated
    go_native(client)
    hashes_on(client).hsetex("h:2", "a", 1, ex=HOUR)
    assert old.httl("h:2", "a") == [left(HOUR)]
    client.flushall()


def test_what_is_handed_back_survives_a_replay_of_the_log(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Redis 8 gives a field its former deadline again, finds it past, and drops what came later."""
    server = start_redis(8, appendonly="yes", appendfsync="always")
    client = server.client()
    hashes = hashes_on(client, backend="native")
    hashes.hset("h:1", "c", 3)
    hashes.hsetex("h:1", mapping={"a": 1, "b": 2}, px=400)
    hashes.hsetex("h:2", "alone", 1, px=400)
    hashes.expire("h:2", HOUR)
    run_until(job_on(client), "emulated")
    hashes = hashes_on(client)
    assert hashes.hexpire("h:1", HOUR, "a") == [1]
    assert hashes.hpersist("h:1", "b") == [1]
    assert hashes.hexpire("h:2", HOUR, "alone") == [1]
    time.sleep(0.5)
    server.kill()
    server.restart()
    assert hashes.hgetall("h:1") == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert hashes.httl("h:1", "a", "b", "c") == [left(HOUR), -1, -1]
    assert hashes.hgetall("h:2") == {b"alone": b"1"}
    assert hashes.httl("h:2", "alone") == [left(HOUR)]
    assert hashes.ttl("h:2") == left(HOUR)
