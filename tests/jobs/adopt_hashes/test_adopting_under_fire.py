"""Adoptions of each kind: beside old and new writers, killed at each command, and in parts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.adoptions import HOUR, KINDS, Kind, everything, hashes_on, to_the_end
from support.at_once import at_once
from support.deaths import doors_of, every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import Aborted, Unanswered
from workstealing.jobs import AdoptHashes, HashFieldExpiry
from workstealing.jobs.adopt_hashes.adopter import Adopter
from workstealing.recruiting.slice import Slice

pytestmark = pytest.mark.real


@pytest.fixture(params=["redis7", "redis8", "cluster"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    client = request.getfixturevalue(request.param).client()
    yield client
    client.flushall()


@pytest.fixture(params=["redis7", "redis8"])
def one(request: pytest.FixtureRequest) -> Iterator[Any]:
    client = request.getfixturevalue(request.param).client()
    yield client
    client.flushall()


@pytest.fixture(params=KINDS, ids=lambda each: each.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def now() -> int:
    return int(time.time())


def adopted_by_parts(job: AdoptHashes, n: int = 3) -> int:
    return sum(to_the_end(job.for_part(part)) for part in job.parts(n))


@pytest.mark.slow
@pytest.mark.parametrize("by", [to_the_end, adopted_by_parts], ids=["job", "parts"])
def test_each_kind_is_taken_over_and_a_second_run_changes_nothing(
    client: Any, kind: Kind, by: Callable[[AdoptHashes], int]
) -> None:
    ends = {f"f{i}": now() + HOUR + i for i in range(3)}
    for i in range(60):
        kind.store(client, f"{{u{i}}}", ends)
    report = kind.job(client).report()
    assert (report.hashes, report.fields, report.expired, report.refused) == (60, 180, 0, 0)
    assert kind.job(client).backlog().count == 180
    assert by(kind.job(client)) == 180
    hashes = hashes_on(client)
    for i in range(60):
        times = hashes.hpexpiretime(f"hash:{{u{i}}}", *ends)
        assert all(kind.is_due(at, end) for at, end in zip(times, ends.values(), strict=True))
    assert not list(client.scan_iter("zset:*"))
    before = everything(client)
    job = kind.job(client)
    job.restart()
    assert by(job) == 0
    assert everything(client) == before
    assert kind.job(client).report().fields == 0


@pytest.mark.slow
def test_names_and_values_may_be_any_bytes(client: Any, kind: Kind) -> None:
    names = [bytes([byte]) * 3 for byte in range(256)] + [b"\r\n \xff*{}", "ü".encode(), b"0"]
    ends = {name: now() + HOUR + i for i, name in enumerate(names)}
    who = b"\x00{\xff\r\n}* ".decode("utf-8", "surrogateescape")
    raw, beside = (
        b"%s:%s" % (each, who.encode("utf-8", "surrogateescape")) for each in (b"hash", b"zset")
    )
    values = {
        name: b"\xfe\x00 %d" % end if kind.name == "values" else b"\xfe\x00" + name
        for name, end in ends.items()
    }
    client.hset(raw, mapping=values)
    if kind.name == "sorted sets":
        client.zadd(beside, ends)
    assert kind.job(client).report().fields == len(names)
    assert to_the_end(kind.job(client)) == len(names)
    assert client.hgetall(raw) == values
    times = hashes_on(client).hpexpiretime(raw, *names)
    assert all(kind.is_due(at, end) for at, end in zip(times, ends.values(), strict=True))
    assert not client.exists(beside)


@pytest.mark.slow
@pytest.mark.parametrize("by_part", [False, True])
def test_a_large_hash_is_taken_in_pieces(one: Any, kind: Kind, by_part: bool) -> None:
    ends = {f"f{i}": now() + HOUR + i for i in range(3000)}
    kind.store(one, "big", ends)
    hashes_on(one).open()
    assert kind.job(one).report().fields == 3000
    dry = kind.job(one, limit=50, dry_run=True)
    one_slice = Slice(50, 10.0)
    assert dry.perform(one_slice) == 50
    job: Any = kind.job(one, limit=50)
    if by_part:
        job = job.for_part(job.parts(1)[0])
    pieces = []
    for _ in range(1000):
        pieces.append(job.perform(Slice(50, 10.0)))
        if sum(pieces) == 3000:
            break
    # HSCAN may return somewhat more than it is asked for.
    assert max(pieces) <= 100
    times = hashes_on(one).hpexpiretime("hash:big", *ends)
    assert all(kind.is_due(at, end) for at, end in zip(times, ends.values(), strict=True))


def test_a_dry_run_of_a_large_hash_is_bounded_too(one: Any, kind: Kind) -> None:
    kind.store(one, "big", {f"f{i}": now() + HOUR + i for i in range(5000)})
    before = everything(one)
    dry = kind.job(one, limit=10, dry_run=True)
    asked = one.info("commandstats")
    assert dry.perform(Slice(10, 10.0)) == 10
    after = one.info("commandstats")
    for name in ("cmdstat_hscan", "cmdstat_zrange"):
        calls = [found.get(name, {}).get("calls", 0) for found in (asked, after)]
        assert calls[1] - calls[0] <= 1
    assert everything(one) == before


def test_deadlines_that_outlive_their_fields_hide_no_field(one: Any, kind: Kind) -> None:
    """The old program deletes adopted fields by HDEL, and their deadlines stay behind."""
    kind.store(one, "u", {f"f{i}": now() + HOUR for i in range(4)})
    assert to_the_end(kind.job(one)) == 4
    one.hdel("hash:u", "f0", "f1", "f2")
    kind.store(one, "u", {"g": now() + 2 * HOUR})
    kind.job(one).restart()
    assert to_the_end(kind.job(one)) == 1
    (at,) = hashes_on(one).hpexpiretime("hash:u", "g")
    assert kind.is_due(at, now() + 2 * HOUR) or abs(at - 1000 * (now() + 2 * HOUR)) < 120_000


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda each: each.name)
def test_a_later_deadline_of_an_adopted_field_is_heard(one: Any, kind: Kind) -> None:
    kind.store(one, "u", {"a": now() + HOUR, "b": now() + 3 * HOUR})
    to_the_end(kind.job(one))
    later, sooner = now() + 2 * HOUR, now() + HOUR
    kind.store(one, "u", {"a": later, "b": sooner})
    before = hashes_on(one).hpexpiretime("hash:u", "b")
    kind.job(one).restart()
    to_the_end(kind.job(one))
    assert hashes_on(one).hpexpiretime("hash:u", "a") == [1000 * later]
    if before != [-1]:
        # A server of its own field expiry forgets the deadline of a field that is written over.
        assert hashes_on(one).hpexpiretime("hash:u", "b") == before
    assert one.hlen("hash:u") == 2


def test_values_of_the_new_program_need_not_be_readable(one: Any) -> None:
    def strict(_: bytes, __: bytes, value: bytes) -> float:
        return float(value)

    job = AdoptHashes(hashes_on(one), "hash:*", deadline_of=strict)
    one.hset("hash:u", "a", now() + HOUR)
    hashes_on(one).hsetex("hash:u", mapping={"b": "text", "c": "1.0"}, ex=HOUR)
    assert to_the_end(job) == 1
    hashes_on(one).hset("hash:u", "d", "text")
    job.restart()
    with pytest.raises(ValueError, match="could not convert"):
        to_the_end(job)


@pytest.mark.slow
@pytest.mark.parametrize("sweeps", [False, True], ids=["recruits", "parts"])
def test_beside_old_and_new_writers_nothing_is_lost(client: Any, kind: Kind, sweeps: bool) -> None:
    """Old writers, new writers, collectors and two adopting threads share twenty hashes."""
    old: dict[tuple[int, str], tuple[int, bytes]] = {}
    new: dict[tuple[int, str], tuple[int, bytes]] = {}
    stop = threading.Event()
    hashes_on(client).open()

    def write_as_of_old(seed: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            who, end = f"{{u{n % 20}}}", now() + HOUR + n
            values = kind.store(client, who, {f"old{seed}": end, f"both{seed}": end}, n)
            old[seed, who] = end, values[f"old{seed}"]

    def write_as_now(seed: int) -> None:
        hashes, rng, n = hashes_on(client), random.Random(seed), 0
        while not stop.is_set():
            n += 1
            who, end = f"{{u{rng.randrange(20)}}}", now() + 3 * HOUR + n
            mapping = {f"new{seed}": f"n{n}", f"both{seed}": "n"}
            hashes.hsetex(f"hash:{who}", mapping=mapping, exat=end)
            hashes.hsetex(f"hash:{who}", "gone", "x", px=1)
            new[seed, who] = end, b"n%d" % n

    def adopt() -> None:
        job = kind.job(client, limit=5)
        working: list[Any] = [job]
        if sweeps:
            working = [job.for_part(part) for part in job.parts(2)]
        while not stop.is_set():
            for each in working:
                try:
                    each.perform(Slice(5, 10.0))
                except Aborted:
                    continue
            if all(getattr(each, "is_drained", False) for each in working):
                working = [job.for_part(part) for part in job.parts(2)]

    def collect() -> None:
        job = HashFieldExpiry(hashes_on(client), limit=5)
        while not stop.is_set():
            try:
                job.perform(Slice(5, 10.0))
            except Aborted:
                continue

    def run_out() -> None:
        time.sleep(1.5)
        stop.set()

    works: list[Callable[[], Any]] = [adopt, adopt, collect, run_out]
    works += [lambda seed=seed: write_as_of_old(seed) for seed in range(2)]  # type: ignore[misc]
    works += [lambda seed=seed: write_as_now(seed) for seed in range(2)]  # type: ignore[misc]

    def guarded(work: Callable[[], Any]) -> Callable[[], Any]:
        def guard() -> None:
            try:
                work()
            finally:
                stop.set()

        return guard

    at_once([guarded(work) for work in works])
    kind.job(client).restart()
    to_the_end(kind.job(client))
    assert old
    assert new
    hashes = hashes_on(client)
    for (seed, who), (end, value) in old.items():
        assert hashes.hget(f"hash:{who}", f"old{seed}") == value
        (at,) = hashes.hpexpiretime(f"hash:{who}", f"old{seed}")
        assert kind.is_due(at, end)
    for (seed, who), (end, value) in new.items():
        assert hashes.hget(f"hash:{who}", f"new{seed}") == value
        (at,) = hashes.hpexpiretime(f"hash:{who}", f"new{seed}")
        assert at == 1000 * end
        # Two programs have written it: it is there, and it has a deadline.
        (at,) = hashes.hpexpiretime(f"hash:{who}", f"both{seed}")
        assert at > 1000 * (now() + HOUR - 120)
    assert not list(client.scan_iter("zset:*"))
    before = everything(client)
    kind.job(client).restart()
    assert to_the_end(kind.job(client)) == 0
    while HashFieldExpiry(hashes).perform(Slice(100, 10.0)):
        before = everything(client)
    assert everything(client) == before


def deaths(
    kind: Kind,
    client: Any,
    through: Any,
    doors: list[FaultyServer],
    work: Callable[[AdoptHashes], Callable[[], Any]],
) -> int:
    hashes = hashes_on(client)
    ends = {"a": now() + HOUR, "b": now() + HOUR + 1, "c": now() + HOUR + 2}

    def prepare() -> None:
        client.flushall()
        hashes.forget()
        kind.store(client, "{u}", ends)

    count = 0
    for point in every_death(doors, work(kind.job(through, limit=2)), prepare):
        count += 1
        times = hashes.hpexpiretime("hash:{u}", *ends)
        for (name, end), at in zip(ends.items(), times, strict=True):
            # Each field has its deadline in one of the two places.
            assert kind.is_due(at, end) or at == -1, point
            if kind.name == "sorted sets":
                old = client.zscore("zset:{u}", name)
                assert (at == -1) == (old == end), point
        to_the_end(kind.job(client))
        times = hashes.hpexpiretime("hash:{u}", *ends)
        assert all(kind.is_due(at, end) for at, end in zip(times, ends.values(), strict=True)), (
            point
        )
        assert client.hlen("hash:{u}") == 3, point
        assert not client.exists("zset:{u}"), point
    return count


def slices_of(job: AdoptHashes) -> Callable[[], Any]:
    def work() -> None:
        for _ in range(2):
            job.perform(Slice(2, 10.0))

    return work


def parts_of(job: AdoptHashes) -> Callable[[], Any]:
    def work() -> None:
        for part in job.parts(2):
            to_the_end(job.for_part(part))

    return work


@pytest.mark.parametrize("version", [7, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "work", [slices_of, pytest.param(parts_of, marks=pytest.mark.slow)], ids=["slices", "parts"]
)
def test_a_recruit_may_die_at_any_command(
    start_redis: Callable[..., RedisServer], kind: Kind, version: int, work: Any
) -> None:
    server = start_redis(version)
    with FaultyServer(server.port) as door:
        through = redis.Redis(port=door.port, protocol=2)
        assert deaths(kind, server.client(), through, [door], work) > 15


@pytest.mark.slow
def test_a_recruit_may_die_at_any_command_on_a_cluster(cluster: RedisCluster3, kind: Kind) -> None:
    client = cluster.client()
    with doors_of(cluster) as (doors, through):
        assert deaths(kind, client, through, doors, parts_of) > 15
    client.flushall()


@pytest.mark.slow
def test_a_backlog_passes_over_hashes_that_need_nothing(one: Any, kind: Kind) -> None:
    for i in range(300):
        kind.store(one, f"u{i}", {"f": now() + HOUR})
    to_the_end(kind.job(one))
    kind.store(one, "late", {"f": now() + HOUR})
    one.config_resetstat()
    found = kind.job(one).backlog()
    assert (found.count, found.exact) == (1, True)
    # A hash is WATCHed only to look at it closely.
    assert one.info("commandstats")["cmdstat_watch"]["calls"] <= 2


def test_a_time_out_ends_a_report_with_a_lower_bound(
    one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(30):
        KINDS[0].store(one, f"u{i}", {"f": now() + HOUR})
    job = KINDS[0].job(one)
    looked_at, count = Adopter.looked_at, 0

    def slow(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count > 10:
            raise redis.exceptions.TimeoutError("too slow")
        return looked_at(*given)

    monkeypatch.setattr(Adopter, "looked_at", slow)
    assert (job.report().hashes, job.report().is_all) == (10, False)
    count = 0
    found = job.backlog()
    assert (found.count, found.exact) == (10, False)


def test_a_report_of_a_silent_server_is_a_fault(start_redis: Callable[..., RedisServer]) -> None:
    with FaultyServer(start_redis(7).port) as door:
        job = KINDS[0].job(redis.Redis(port=door.port, protocol=2))
        job.hashes.open()
        door.reset()
        door.fail(1, "silent")
        # A busy machine may reach the end of its time first.
        with pytest.raises((redis.exceptions.TimeoutError, Unanswered)):
            job.report(seconds=1.0)
