"""Hashes of another program become volatile hashes, exactly, while that program goes on."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.pages import blocks_of, run_page
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.errors import Aborted, ConfigurationError, NotAdopted, Skipped
from workstealing.jobs import AdoptHashes, HashFieldExpiry
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt
from workstealing.structures import VolatileHashes

HOUR = 3600


def hashes_on(client: Any, **options: Any) -> VolatileHashes:
    return VolatileHashes(client, namespace="a", **options)


def talk(client: Any, **options: Any) -> AdoptHashes:
    """The layout of the talk: a hash, and a sorted set of deadlines in seconds."""
    return AdoptHashes(hashes_on(client), "hash:*", sorted_sets="zset:*", **options)


def store(client: Any, who: str, fields: dict[str, int], **lasting: Any) -> None:
    """Write as the old program does: values and, for each field, its end in seconds."""
    with client.pipeline() as p:
        p.hset(f"hash:{who}", mapping={**{each: f"v{each}" for each in fields}, **lasting})
        if fields:
            p.zadd(f"zset:{who}", fields)
        p.execute()


def to_the_end(job: AdoptHashes, most: int = 2000) -> int:
    adopted = 0
    for _ in range(most):
        one = Slice(job.limit, 10.0)
        try:
            adopted += job.perform(one)
        except Aborted:
            continue
        if one.backlog == 0:
            return adopted
    raise AssertionError(f"the walk has not ended after {most} slices")


def everything(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter("*")}


def now() -> int:
    return int(time.time())


@pytest.fixture(params=["redis7", "redis8", "valkey8", "cluster", "cluster8"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = request.getfixturevalue(request.param)
    client = server.client()
    yield client
    client.flushall()


@pytest.fixture(params=["redis7", "redis8"])
def one(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A single server without the commands of its own, and one with them."""
    client = request.getfixturevalue(request.param).client()
    yield client
    client.flushall()


@pytest.mark.slow
@pytest.mark.real
def test_the_layout_of_the_talk_is_taken_over(client: Any) -> None:
    later = now() + HOUR
    for i in range(150):
        store(client, f"{{u{i}}}", {"likes": later + i, "old": now() - 100}, ever="x")
    before = talk(client).report()
    assert (before.scanned, before.hashes, before.fields, before.expired) == (150, 150, 300, 150)
    assert before.is_all
    assert before.examples
    assert to_the_end(talk(client)) == 300
    hashes = hashes_on(client)
    for i in range(150):
        name = f"hash:{{u{i}}}"
        assert hashes.hgetall(name) == {b"likes": b"vlikes", b"ever": b"x"}
        assert hashes.hpexpiretime(name, "likes", "ever") == [1000 * (later + i), -1]
    assert list(client.scan_iter("zset:*")) == []
    for _ in range(300):
        HashFieldExpiry(hashes, limit=100).perform(Slice(100, 10.0))
    assert all(client.hlen(f"hash:{{u{i}}}") == 2 for i in range(150))


@pytest.mark.real
def test_pairs_without_a_tag_are_for_a_single_server(one: Any) -> None:
    later = now() + HOUR
    store(one, "user:1", {"likes": later})
    assert to_the_end(talk(one)) == 1
    assert hashes_on(one).hexpiretime("hash:user:1", "likes") == [later]


@pytest.mark.real
def test_pairs_in_two_slots_are_refused_on_a_cluster(cluster: Any, caplog: Any) -> None:
    client = cluster.client()
    client.hset("hash:user:1", "likes", 1)
    client.zadd("zset:user:1", {"likes": now() + HOUR})
    before = client.dump("hash:user:1"), client.dump("zset:user:1")
    assert to_the_end(talk(client)) == 0
    assert "another slot" in caplog.text
    report = talk(client).report()
    assert report.refused == 1
    assert "another slot" in report.refusals[b"hash:user:1"]
    assert (client.dump("hash:user:1"), client.dump("zset:user:1")) == before
    client.flushall()


@pytest.mark.real
def test_a_second_run_changes_nothing(one: Any) -> None:
    for i in range(30):
        store(one, f"u{i}", {"a": now() + HOUR, "b": now() + 2 * HOUR})
    job = talk(one, ttl=3 * HOUR)
    assert to_the_end(job) == 60
    before = everything(one)
    assert job.perform(Slice(25, 10.0)) == 0
    job.restart()
    assert to_the_end(job) == 0
    assert {k: v for k, v in everything(one).items() if b":adopt:" not in k} == {
        k: v for k, v in before.items() if b":adopt:" not in k
    }


@pytest.mark.real
def test_a_dry_run_and_a_report_change_nothing(one: Any) -> None:
    for i in range(40):
        store(one, f"u{i}", {"a": now() + HOUR, "b": now() - 10})
    before = everything(one)
    job = talk(one, limit=7, dry_run=True)
    assert job.perform(Slice(7, 10.0)) == 7
    assert talk(one, limit=1000, dry_run=True).perform(Slice(1000, 10.0)) == 80
    report = talk(one).report(most=10)
    assert (report.hashes, report.fields, report.expired, report.is_all) == (10, 20, 10, False)
    assert {each.field for each in report.examples} == {b"a", b"b"}
    assert all(each.expired == (each.field == b"b") for each in report.examples)
    backlog = talk(one).backlog()
    assert (backlog.count, backlog.exact) == (80, True)
    assert everything(one) == before
    with pytest.raises(ConfigurationError, match="is a dry run"):
        job.parts(2)


@pytest.mark.real
def test_deadlines_inside_the_values(client: Any) -> None:
    later = now() + HOUR

    def deadline_of(key: bytes, field: bytes, value: bytes) -> dt.datetime | float | None:
        assert key.startswith(b"session:")
        at = json.loads(value).get("until")
        return dt.datetime.fromtimestamp(at, dt.UTC) if at and field == b"b" else at

    for i in range(60):
        told = {"a": {"until": later + i}, "b": {"until": later + i}, "c": {"n": 1}}
        values = {name: json.dumps(each) for name, each in told.items()}
        client.hset(f"session:{i}", mapping=values)
    job = AdoptHashes(hashes_on(client), "session:*", deadline_of=deadline_of)
    assert to_the_end(job) == 120
    hashes = hashes_on(client)
    for i in range(60):
        assert hashes.hexpiretime(f"session:{i}", "a", "b", "c") == [later + i, later + i, -1]


@pytest.mark.real
def test_fields_without_any_deadline_get_a_time_to_live(client: Any) -> None:
    hashes = hashes_on(client)
    for i in range(60):
        client.hset(f"page:{i}", mapping={"a": 1, "b": 2})
    hashes.hexpire("page:7", 9 * HOUR, "a")
    client.hset("other:1", "a", 1)
    assert to_the_end(AdoptHashes(hashes, "page:*", ttl=dt.timedelta(hours=2))) == 119
    for i in range(60):
        left = hashes.httl(f"page:{i}", "a", "b")
        wanted = [9 * HOUR if i == 7 else 2 * HOUR, 2 * HOUR]
        assert all(each - 120 < got <= each for got, each in zip(left, wanted, strict=True))
    assert hashes.httl("other:1", "a") == [-1]


@pytest.mark.real
@pytest.mark.parametrize("size", [300, 3000])
def test_a_large_hash_is_adopted_by_many_slices(one: Any, size: int) -> None:
    later = now() + HOUR
    fields = {f"f{i}": later + i for i in range(size)}
    store(one, "big", fields, **{f"ever{i}": i for i in range(size)})
    job = talk(one, limit=50, ttl=9 * HOUR)
    assert to_the_end(job) == 2 * size
    hashes = hashes_on(one)
    assert hashes.hexpiretime("hash:big", *fields) == list(fields.values())
    assert min(hashes.httl("hash:big", *(f"ever{i}" for i in range(size)))) > 8 * HOUR


@pytest.mark.real
def test_the_later_deadline_holds_and_what_has_expired_stays_so(redis7: RedisServer) -> None:
    client = redis7.client()
    hashes = hashes_on(client)
    hashes.hsetex("hash:u", mapping={"a": 1, "b": 1, "c": 1}, ex=HOUR)
    times = hashes.hexpiretime("hash:u", "a", "b", "c")
    client.zadd("zset:u", {"a": now() + 2 * HOUR, "b": now() + 60, "gone": now() + HOUR})
    (deadlines,) = list(client.scan_iter("*:ws:a:ttl:*"))
    client.zadd(deadlines, {"c": 1000 * (now() - 5)})
    client.zadd("zset:u", {"c": now() + 2 * HOUR, "b": "+inf"})
    assert to_the_end(talk(client)) == 1
    assert hashes.hexpiretime("hash:u", "a", "b", "c")[1:] == [times[1], -2]
    assert hashes.httl("hash:u", "a")[0] > HOUR
    assert client.zscore(deadlines, "gone") is None
    assert not client.exists("zset:u")
    client.flushall()


@pytest.mark.real
@pytest.mark.parametrize("score", [1000.0 * 1_900_000_000, 12.0, float("-inf")])
def test_a_mistaken_unit_harms_nothing(one: Any, score: float) -> None:
    one.hset("hash:u", "a", 1)
    one.zadd("zset:u", {"a": score, "b": now() + HOUR})
    before = one.dump("hash:u"), one.dump("zset:u")
    assert talk(one).report().refused == 1
    assert to_the_end(talk(one)) == 0
    assert (one.dump("hash:u"), one.dump("zset:u")) == before
    with pytest.raises(NotAdopted, match="check the unit"):
        talk(one).adopt("hash:u")
    one.zadd("zset:u", {"a": 1000 * (now() + HOUR), "b": 1000 * (now() + HOUR)})
    job = talk(one, unit="milliseconds")
    job.restart()
    assert to_the_end(job) == 1
    assert hashes_on(one).httl("hash:u", "a")[0] > HOUR - 120


@pytest.mark.real
def test_foreign_keys_and_own_keys_are_left_alone(one: Any) -> None:
    one.hset("hash:wrong", "a", 1)
    one.set("zset:wrong", "text")
    one.zadd("hash:list", {"a": 1})
    one.set("hash:text", "b")
    hashes_on(one, backend="emulated").hsetex("u", "a", 1, ex=HOUR)
    VolatileHashes(one, namespace="hash").open()
    before = everything(one)
    assert to_the_end(talk(one)) == 0
    assert to_the_end(AdoptHashes(hashes_on(one), "ws:*", ttl=60)) == 0
    after = everything(one)
    assert {key: after[key] for key in before} == before


@pytest.mark.real
@pytest.mark.parametrize("what", ["value", "deadline", "end", "deleted"])
def test_a_write_by_the_old_program_aborts_the_attempt(
    one: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    later = now() + HOUR
    store(one, "u", {"a": later})
    commit = Attempt.commit

    def after_a_write(self: Attempt, *commands: Any) -> Any:
        if any(b"zset:u" in each for each in commands):
            monkeypatch.setattr(Attempt, "commit", commit)
            if what == "value":
                one.hset("hash:u", "a", "new")
            elif what == "deadline":
                one.zadd("zset:u", {"a": later + 60})
            elif what == "end":
                one.delete("hash:u", "zset:u")
            else:
                one.hdel("hash:u", "a")
        return commit(self, *commands)

    hashes_on(one).open()
    monkeypatch.setattr(Attempt, "commit", after_a_write)
    with pytest.raises(Aborted):
        talk(one).perform(Slice(25, 10.0))
    assert not list(one.scan_iter("*:ws:a:ttl:*"))
    to_the_end(talk(one))
    expected = {"value": later, "deadline": later + 60, "end": -2, "deleted": -2}[what]
    if what in ("end", "deleted"):
        assert not one.exists("hash:u")
    else:
        assert hashes_on(one).hexpiretime("hash:u", "a") == [expected]


@pytest.mark.slow
@pytest.mark.real
def test_under_traffic_of_the_old_program_nothing_is_lost(one: Any) -> None:
    """Old writers go on, several recruits adopt; after the last lap every last deadline holds."""
    last: dict[tuple[int, str], int] = {}
    stop = threading.Event()
    problems: list[BaseException] = []

    def write(seed: int) -> None:
        client = one.__class__(connection_pool=one.connection_pool)
        n = 0
        while not stop.is_set():
            n += 1
            who, until = f"u{n % 20}", now() + HOUR + n
            store(client, who, {f"f{seed}": until})
            last[seed, who] = until

    def adopt() -> None:
        job = talk(one, limit=5)
        while not stop.is_set():
            try:
                job.perform(Slice(5, 10.0))
            except Aborted:
                continue
            except BaseException as error:
                problems.append(error)
                raise

    hashes_on(one).open()
    works = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    works += [threading.Thread(target=adopt) for _ in range(2)]
    for work in works:
        work.start()
    time.sleep(1.5)
    stop.set()
    for work in works:
        work.join()
    assert problems == []
    talk(one).restart()
    to_the_end(talk(one))
    assert last
    for (seed, who), until in last.items():
        assert hashes_on(one).hexpiretime(f"hash:{who}", f"f{seed}") == [until]
    assert not list(one.scan_iter("zset:*"))


@pytest.mark.real
@pytest.mark.parametrize("version", [7, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.slow), 25])
def test_a_recruit_may_die_at_any_command(
    start_redis: Callable[..., RedisServer], version: int, limit: int
) -> None:
    server = start_redis(version)
    client = server.client()
    hashes = hashes_on(client)
    later = now() + HOUR
    fields = {"a": later, "b": later + 1}

    def prepare() -> None:
        client.flushall()
        hashes.forget()
        store(client, "u", fields, ever=1)

    with FaultyServer(server.port) as door:
        through = redis.Redis(port=door.port, protocol=2)

        def work() -> None:
            job = talk(through, limit=limit, ttl=9 * HOUR)
            for _ in range(2):
                job.perform(Slice(limit, 10.0))

        deaths = 0
        for point in every_death([door], work, prepare):
            deaths += 1
            for name, until in fields.items():
                # Each field has its deadline in one of the two places.
                old = client.zscore("zset:u", name)
                (held,) = hashes.hexpiretime("hash:u", name)
                assert (old == until) != (held == until), point
            to_the_end(talk(client, ttl=9 * HOUR))
            assert hashes.hexpiretime("hash:u", *fields) == list(fields.values()), point
            assert hashes.httl("hash:u", "ever")[0] > 8 * HOUR, point
            assert client.hlen("hash:u") == 3, point
            assert not client.exists("zset:u"), point
        assert deaths > 20


@pytest.mark.real
@pytest.mark.parametrize("version", [7, 8])
def test_a_full_server_is_a_quiet_end(
    start_redis: Callable[..., RedisServer], version: int
) -> None:
    client = start_redis(version, maxmemory_policy="noeviction").client()
    for i in range(10):
        store(client, f"u{i}", {"a": now() + HOUR})
    before = everything(client)
    client.config_set("maxmemory", 1)
    with pytest.raises(Skipped, match="memory is full"):
        talk(client).perform(Slice(25, 10.0))
    client.config_set("maxmemory", 0)
    hashes_on(client).open()
    client.config_set("maxmemory", 1)
    if version == 8:
        # The server takes a field's deadline, and the old one goes.
        assert talk(client).perform(Slice(25, 10.0)) == 10
        return
    with pytest.raises(Skipped, match="memory is full"):
        talk(client).perform(Slice(25, 10.0))
    assert {key: client.dump(key) for key in before} == before
    client.config_set("maxmemory", 0)
    assert to_the_end(talk(client)) == 10


@pytest.mark.real
def test_a_cursor_of_an_earlier_process_is_not_trusted(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, appendonly="yes")
    client = server.client()
    for i in range(400):
        store(client, f"u{i}", {"a": now() + HOUR})
    job = talk(client, limit=1)
    assert job.perform(Slice(1, 10.0)) == 1
    for _ in range(150):
        job.perform(Slice(1, 10.0))
    (place,) = client.scan_iter("*:adopt:*")
    assert client.hget(place, "cursor") != b"0"
    server.restart()
    to_the_end(talk(client, limit=100))
    assert not list(client.scan_iter("zset:*"))


@pytest.mark.real
def test_one_hash_can_be_adopted_before_its_first_use(one: Any) -> None:
    later = now() + HOUR
    store(one, "u", {"a": later, "b": now() - 5})
    job = talk(one)
    assert job.adopt("hash:u") in (1, 2)
    assert job.adopt("hash:u") == 0
    assert hashes_on(one).hgetall("hash:u") == {b"a": b"va"}
    with pytest.raises(ConfigurationError, match="does not match the pattern"):
        job.adopt("other:u")


@pytest.mark.real
def test_a_namespace_that_is_migrating_adopts_later(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes_on(client, backend="emulated").hsetex("h", "a", 1, ex=HOUR)
    client.hset("ws:a:layout", "backend", "migrating")
    store(client, "u", {"a": now() + HOUR})
    with pytest.raises(Skipped, match="is migrating"):
        talk(client).perform(Slice(25, 10.0))
    client.flushall()


@pytest.mark.real
def test_the_parts_of_a_sweep_cover_everything_once(client: Any) -> None:
    for i in range(120):
        store(client, f"{{u{i}}}", {"a": now() + HOUR})
    job = talk(client)
    parts = job.parts(4)
    done = []
    for part in parts:
        one_part = job.for_part(part)
        done.append(0)
        for _ in range(200):
            done[-1] += one_part.perform(Slice(1000, 10.0))
            if one_part.is_drained:
                break
        assert one_part.is_drained
    assert sum(done) == 120
    assert sum(1 for each in done if each) > 1
    assert not list(client.scan_iter("zset:*"))
    assert len(job.parts(1)) == 1


@pytest.mark.parametrize(
    ("pattern", "options", "said"),
    [
        ("h:*", {}, "nothing says when the fields end"),
        ("h:*", {"deadline_of": "expires"}, "deadline_of='expires' is no function"),
        ("h:*", {"ttl": 5, "unit": ["seconds"]}, "is unknown: give one of"),
        ("*", {"ttl": 5}, "matches every hash"),
        ("?*[a-z]", {"ttl": 5}, "matches every hash"),
        ("h:?", {"sorted_sets": "z:*"}, "do not name pairs"),
        ("h:*", {"sorted_sets": "z:*:*"}, "do not name pairs"),
        ("h:*", {"sorted_sets": "h:*"}, "the same names"),
        ("h:*", {"sorted_sets": "z:*", "unit": "ms"}, "unit='ms' is unknown"),
        ("h:*", {"ttl": 0}, "ttl=0 is no such time"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    fakeredis_server: Any, pattern: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("*", r"\*")):
        AdoptHashes(hashes_on(fakeredis_server.client()), pattern, **options)


@pytest.mark.real
def test_a_function_that_returns_nonsense_is_named(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("h:1", "a", 1)
    job = AdoptHashes(hashes_on(client), "h:*", deadline_of=lambda *_: "soon")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="returned 'soon' for the field b'a'"):
        job.perform(Slice(25, 10.0))
    client.flushall()


@pytest.mark.real
def test_the_page_about_adoption_does_what_it_says(one: Any) -> None:
    here = {"VolatileHashes(connect()": "VolatileHashes(client"}
    names = run_page("docs/adoption.md", {"client": one}, replace=here)
    assert sorted(names["recruiter"].jobs()) == ["adopt_hashes.users", "hash_field_expiry.users"]


@pytest.mark.real
@pytest.mark.slow
def test_the_commands_of_the_page_adopt_ten_thousand_hashes(
    redis7: RedisServer, tmp_path: Path
) -> None:
    one = redis7.client()
    blocks = [each.code for each in blocks_of("docs/adoption.md")]
    (module,) = (each for each in blocks if each.startswith("# shop/jobs.py\n"))
    (console,) = blocks_of("docs/adoption.md", ("console",))
    export, *commands = re.findall(r"^\$ (.*)$", console.code, re.MULTILINE)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(module)
    with one.pipeline(transaction=False) as p:
        for i in range(10_000):
            p.hset(f"hash:user:{i}", mapping={f"f{n}": f"v{n}" for n in range(5)})
            ends = {f"f{n}": now() + (HOUR if n else -100) for n in range(5)}
            p.zadd(f"zset:user:{i}", ends)
        p.execute()
    given = dict(each.split("=", 1) for each in shlex.split(export)[1:])
    port = one.connection_pool.connection_kwargs["port"]
    given["WORKSTEALING_REDIS_URL"] = f"redis://127.0.0.1:{port}/0"
    said = []
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "workstealing"
        for _ in range(100):
            done = subprocess.run(
                [sys.executable, "-P", "-m", "workstealing", *words],
                env={**os.environ, **given},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            if words[0] != "drain" or "drained" in done.stdout:
                break
        said.append(done.stdout)
        assert done.stdout, done.stderr
    listed, before, dry, adopted, collected, after = said
    assert "adopt_hashes.users" in listed
    # It is a lower bound where the two seconds of the question were too short.
    assert re.search(r"[1-9][\d,]* fields to adopt", before)
    assert "would handle 25 fields" in dry
    assert "drained" in adopted
    assert "drained" in collected
    assert re.search(r"\b0 fields to adopt", after)
    assert not list(one.scan_iter("zset:*"))
    hashes = VolatileHashes(one, namespace="users")
    for i in range(10_000):
        assert one.hlen(f"hash:user:{i}") == 4
    assert sorted(hashes.hkeys("hash:user:17")) == [b"f1", b"f2", b"f3", b"f4"]
    assert 0 < hashes.httl("hash:user:9999", "f4")[0] <= HOUR
