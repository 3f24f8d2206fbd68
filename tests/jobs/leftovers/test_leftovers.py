"""The job of rules: its walk, its verdicts, its attempt, and what it keeps."""

from __future__ import annotations

import ast
import gc
import logging
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from support.leftover_jobs import to_the_end
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.rules import Fields, Past, Replies, everything_else
from support.servers import AnyServer, RedisServer
from workstealing import jobs
from workstealing.errors import Aborted, ConfigurationError, Skipped
from workstealing.jobs import StreamLeftovers
from workstealing.jobs.family_leftovers import DeadTags, TagSetLeftovers
from workstealing.jobs.leftovers import LIVE, Item, Leftovers, Verdicts, keys, look
from workstealing.recruiting import Slice

pytestmark = [pytest.mark.contract, pytest.mark.real]

JOBS = Path(jobs.__file__).parent


def tagged(client: Any, sets: int, each: int) -> set[bytes]:
    """Make tag sets of which every third member has a key; return the dead members."""
    dead = set()
    for number in range(sets):
        names = [f"{{t{number}}}:{n}" for n in range(each)]
        client.sadd(f"conj:{{t{number}}}", *names)
        for n, name in enumerate(names):
            if n % 3:
                dead.add(name.encode())
            else:
                client.set(name, n)
    return dead


def test_dead_members_go_and_nothing_else(any_server: AnyServer) -> None:
    client = any_server.client()
    dead = tagged(client, 40, 30)
    client.sadd("other", "gone")
    job = TagSetLeftovers(client, dry_run=False)
    assert job.backlog(60.0).count == len(dead) == 800
    assert to_the_end(job) == 800
    assert client.sismember("other", "gone")
    for number in range(40):
        # A list by valkey-py.
        left = client.smembers(f"conj:{{t{number}}}")
        assert set(left) == {f"{{t{number}}}:{n}".encode() for n in range(0, 30, 3)}
        assert all(client.exists(name) for name in left)


def test_a_job_is_a_dry_run_unless_told_otherwise(
    redis7: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = redis7.client()
    tagged(client, 3, 90)
    before = everything_else(client)
    job = TagSetLeftovers(client)
    with caplog.at_level(logging.WARNING, "workstealing.jobs"):
        assert sum(job.perform(Slice(100, 10.0)) for _ in range(2)) >= 100
    assert len([line for line in caplog.messages if "is a dry run" in line]) == 1
    assert everything_else(client) == before
    assert job.backlog(60.0).count == 180


@pytest.mark.slow
def test_a_large_set_is_served_page_by_page_by_all_recruits(redis7: RedisServer) -> None:
    client = redis7.client()
    client.sadd("conj:large", *range(20_000))
    client.mset(dict.fromkeys(range(0, 20_000, 2), 1))
    jobs = [TagSetLeftovers(client, dry_run=False) for _ in range(2)]
    slices = 0
    while client.scard("conj:large") > 10_000:
        slices += 1
        one = Slice(100, 10.0)
        assert jobs[slices % 2].perform(one) <= 100
        assert one.operations < 2_000
        assert slices < 400
    assert all(int(each) % 2 == 0 for each in client.sscan_iter("conj:large", count=1000))


@pytest.mark.slow
def test_large_sets_among_small_ones(any_server: AnyServer) -> None:
    client = any_server.client()
    for number, size in enumerate([700, 3, 700, 5, 1, 700, *[4] * 40]):
        client.sadd(f"conj:{{{number:03d}}}", *(f"{{{number:03d}}}:{n}" for n in range(size)))
    dead = 3 * 700 + 9 + 160
    assert TagSetLeftovers(client).backlog(60.0).count == dead
    job = TagSetLeftovers(client, dry_run=False)
    total = 0
    for _ in range(400):
        total += job.perform(Slice(40, 10.0))
        if total > 1_000:
            # Somebody deletes a key whose members come next.
            total += client.scard("conj:{005}")
            client.delete("conj:{005}")
        if total == dead:
            break
    assert total == dead
    assert not client.keys("conj:*")


def test_a_member_whose_key_comes_back_meanwhile_stays(redis7: RedisServer) -> None:
    client = redis7.client()
    client.sadd("conj:a", "row")
    seen: list[bytes] = []

    def comes_back(member: bytes) -> bytes:
        seen.append(member)
        if len(seen) == 2:
            # Between the look and the attempt.
            client.set("row", 1)
        return member

    job = Leftovers(client, [DeadTags("conj:*", "set", comes_back)], dry_run=False)
    assert job.perform(Slice(10, 10.0)) == 0
    assert client.sismember("conj:a", "row")


def test_what_its_owner_writes_between_watch_and_exec_aborts(redis7: RedisServer) -> None:
    client = redis7.client()

    class Written(Past):
        looked = 0

        def verdict(self, item: Item) -> Verdicts:
            verdict = yield from super().verdict(item)
            self.looked += 1
            if self.looked == 2:
                client.hset(item.key, "ends", 2_000_000_000)
            return verdict

    client.hset("session:a", "ends", 1)
    job = Leftovers(client, [Written()], dry_run=False)
    with pytest.raises(Aborted):
        job.perform(Slice(10, 10.0))
    assert client.hget("session:a", "ends") == b"2000000000"
    assert not list(client.scan_iter("*removed*"))


@pytest.mark.slow
def test_what_must_be_seen_twice(any_server: AnyServer) -> None:
    client = any_server.client()
    for number in range(30):
        client.rpush(f"reply:{number}", "a", "b")
    job = Leftovers(client, [Replies()], name="replies", dry_run=False)
    assert [job.perform(Slice(100, 10.0)) for _ in range(20)] == [0] * 20
    client.rpush("reply:7", "another")
    client.lpop("reply:8")
    sightings = list(client.scan_iter("*:seen:*", count=1000))
    assert len(sightings) == 30
    for each in sightings:
        assert client.ttl(each) > 86_400
        since, _, fingerprint = client.get(each).partition(b":")
        # The two that were used since are seen for the first time again.
        client.set(each, b"%d:%b" % (int(since) - 7200, fingerprint), keepttl=True)
    job.restart()
    assert to_the_end(job) == 28
    assert client.exists("reply:7")
    assert client.exists("reply:8")


def test_what_a_rule_does_not_know_stays(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("session:old", "ends", 1)
    client.hset("session:new", "ends", 2_000_000_000)
    client.hset("session:other", "user", 1)
    client.hset("session:text", "ends", "tomorrow")
    client.set("session:string", "1")
    assert to_the_end(Leftovers(client, [Past()], dry_run=False)) == 1
    assert sorted(client.keys("session:*")) == [
        b"session:new",
        b"session:other",
        b"session:string",
        b"session:text",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("of_type", ["hash", "zset"])
def test_members_of_each_type(any_server: AnyServer, of_type: str) -> None:
    client = any_server.client()
    content = {f"m{n}": n % 2 for n in range(300)}
    if of_type == "hash":
        client.hset("pool:a", mapping=content)
    else:
        client.zadd("pool:a", content)
    job = Leftovers(client, [Fields(of_type)], dry_run=False)
    assert to_the_end(job, limit=40) == 150
    left = client.hgetall("pool:a") if of_type == "hash" else client.zscore("pool:a", "m1")
    assert len(left) == 150 if of_type == "hash" else left == 1.0


def test_each_removal_is_noted(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("session:a", mapping={"ends": 1, "user": "x" * 500})
    client.sadd("conj:a", "gone", "away")
    job = Leftovers(client, [Past(), DeadTags()], name="both", dry_run=False)
    assert to_the_end(job) == 3
    (stream,) = client.scan_iter("*:both:removed")
    assert client.ttl(stream) > 29 * 86_400
    notes = {note[b"key"]: note for _, note in client.xrange(stream)}
    assert notes[b"session:a"][b"rule"] == b"test.past"
    assert notes[b"session:a"][b"owner"] == b"a test"
    assert int(notes[b"session:a"][b"bytes"]) > 500
    assert notes[b"conj:a"][b"type"] == b"set"
    assert not list(client.scan_iter("*:kept"))


class TestUndo:
    def test_what_is_removed_is_kept_for_its_time(self, redis7: RedisServer) -> None:
        client = redis7.client()
        client.hset("session:a", mapping={"ends": 1, "user": "x"})
        client.expire("session:a", 500)
        dump = client.dump("session:a")
        assert to_the_end(Leftovers(client, [Past()], dry_run=False, undo=60)) == 1
        (kept,) = client.scan_iter("*:kept")
        assert 0 < client.ttl(kept) <= 60
        ((number, note),) = client.xrange(kept)
        assert note[b"content"] == dump
        now = int(number.partition(b"-")[0])
        assert now + 490_000 < int(note[b"ends"]) <= now + 500_000

    def test_what_is_too_large_is_left_alone(self, redis7: RedisServer) -> None:
        client = redis7.client()
        client.hset("session:small", "ends", 1)
        client.hset("session:large", mapping={"ends": 1, "user": os.urandom(5_000)})
        job = Leftovers(client, [Past()], dry_run=False, undo=60, undo_largest=4_000)
        for _ in range(10):
            job.perform(Slice(10, 10.0))
        assert client.keys("session:*") == [b"session:large"]

    def test_or_it_ends_later(self, redis7: RedisServer) -> None:
        client = redis7.client()
        client.hset("session:large", mapping={"ends": 1, "user": os.urandom(5_000)})
        options: Any = {"undo": 60, "undo_largest": 4_000, "larger_ttl": 1_000}
        job = Leftovers(client, [Past()], dry_run=False, **options)
        job.perform(Slice(10, 10.0))
        assert 490 < client.ttl("session:large") <= 2_000
        assert not list(client.scan_iter("*:kept"))

    def test_there_is_room_for_so_much(self, redis7: RedisServer) -> None:
        client = redis7.client()
        for number in range(60):
            client.hset(f"session:{number}", mapping={"ends": 1, "user": os.urandom(1_000)})
        job = Leftovers(client, [Past()], dry_run=False, undo=60, undo_room=20_000)
        for _ in range(30):
            job.perform(Slice(5, 10.0))
        (kept,) = client.scan_iter("*:kept")
        assert 5_000 < client.memory_usage(kept) < 40_000
        assert 20 < len(client.keys("session:*")) < 55

    @pytest.mark.parametrize("of_type", ["hash", "zset", "set"])
    def test_members_are_kept_with_what_they_hold(self, redis7: RedisServer, of_type: Any) -> None:
        client = redis7.client()
        if of_type == "hash":
            client.hset("pool:a", "m", "0")
        elif of_type == "zset":
            client.zadd("pool:a", {"m": 0})
        else:
            client.sadd("conj:a", "m")
        rule = DeadTags() if of_type == "set" else Fields(of_type)
        assert to_the_end(Leftovers(client, [rule], dry_run=False, undo=60)) == 1
        (kept,) = client.scan_iter("*:kept")
        ((_, note),) = client.xrange(kept)
        assert (note[b"member"], note[b"content"]) == (b"m", b"" if of_type == "set" else b"0")


class TestFullServer:
    @pytest.fixture
    def full(self, start_redis: Callable[..., RedisServer]) -> Any:
        client = start_redis().client()
        for number in range(50):
            client.hset(f"session:{number}", mapping={"ends": 1, "user": os.urandom(1_000)})
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        return client

    def test_it_frees_memory_all_the_same(self, full: Any) -> None:
        job = Leftovers(full, [Past()], dry_run=False)
        assert sum(job.perform(Slice(10, 10.0)) for _ in range(12)) == 50
        assert not full.keys("session:*")
        (audit,) = full.scan_iter("*:removed")
        assert full.xlen(audit) == 50

    def test_nothing_goes_that_should_be_kept(self, full: Any) -> None:
        job = Leftovers(full, [Past()], dry_run=False, undo=60)
        with pytest.raises(Skipped, match="memory is full"):
            job.perform(Slice(10, 10.0))
        assert len(full.keys("session:*")) == 50

    def test_what_changes_before_the_script_stays(self, full: Any) -> None:
        class Written(Past):
            looked = 0

            def verdict(self, item: Item) -> Verdicts:
                verdict = yield from super().verdict(item)
                self.looked += 1
                if self.looked == 150:
                    # After the last look: 50 by the walk, 50 by the attempt, 50 by the script.
                    full.config_set("maxmemory", 0)
                    full.hset("session:7", "ends", 2_000_000_000)
                    full.config_set("maxmemory", 1)
                return verdict

        job = Leftovers(full, [Written()], dry_run=False)
        assert job.perform(Slice(100, 10.0)) == 0
        assert len(full.keys("session:*")) == 50


def test_a_jittered_time_to_live_instead(redis7: RedisServer) -> None:
    client = redis7.client()
    for number in range(40):
        client.hset(f"session:{number}", "ends", 1)
    job = Leftovers(client, [Past()], dry_run=False, ttl=1_000)
    assert job.perform(Slice(100, 10.0)) == 40
    times = [client.ttl(f"session:{number}") for number in range(40)]
    assert 490 <= min(times) < max(times) <= 2_000
    assert len(set(times)) > 10


def test_a_sweep_takes_all(any_server: AnyServer) -> None:
    client = any_server.client()
    dead = tagged(client, 20, 60)
    job = TagSetLeftovers(client, dry_run=False)
    assert swept(job, 5) == len(dead)


def swept(job: Leftovers, n: int) -> int:
    """Do all parts, each as another process would; return how many items were removed."""
    total = 0
    for part in pickle.loads(pickle.dumps(job.parts(n))):
        mine = job.for_part(part)
        while not mine.is_drained:
            total += mine.perform(Slice(1000, 10.0)) or 0
    return total


def test_a_sweep_of_several_rules_with_scripts(any_server: AnyServer) -> None:
    client = any_server.client()
    for number in range(12):
        stream = f"stream:{number}"
        client.xgroup_create(stream, "g", id="0", mkstream=True)
        for entry in range(1, 151):
            client.xadd(stream, {"n": entry}, id=f"{entry}-0")
        client.xreadgroup("g", "c", {stream: ">"}, count=140)
        client.xack(stream, "g", *(f"{entry}-0" for entry in range(1, 131)))
    job = StreamLeftovers(client, "stream:*", most=15, idle=3_600, dry_run=False)
    # What is beyond the bound goes although it is pending: so it was declared.
    assert swept(job, 4) == 12 * 135
    assert all(client.xlen(f"stream:{number}") == 15 for number in range(12))


def test_a_rule_has_at_most_forty_lines_of_code() -> None:
    """Those that ship: without documentation and blank lines."""
    found = {}
    for path in JOBS.glob("*_leftovers.py"):
        text = path.read_text("utf-8")
        for each in ast.parse(text).body:
            if not isinstance(each, ast.ClassDef):
                continue
            if re.match("Rule|_Of", " ".join(map(ast.unparse, each.bases))):
                found[each.name] = _code_lines(each, text)
    assert len(found) > 20
    assert {name: lines for name, lines in found.items() if lines > 40} == {}


def _code_lines(node: ast.ClassDef, text: str) -> int:
    """Return the lines of a class that hold code."""
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    texts = [
        ast.get_source_segment(text, each.body[0]) or ""
        for each in ast.walk(node)
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(each)
    ]
    return sum(bool(each.strip()) for each in lines) - sum(
        bool(each.strip()) for said in texts for each in said.splitlines()
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rules": []}, "no rule was given"),
        ({"rules": [Past(), Past()]}, "two rules have the name"),
        ({"rules": ["past"]}, "a rule was expected"),
        ({"undo": 0}, "undo=0"),
        ({"undo_room": 0}, "undo_room is 0"),
        ({"ttl": -1}, "ttl=-1"),
    ],
)
def test_wrong_arguments(redis7: RedisServer, wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"rules": [Past()], **wrong}
    with pytest.raises(ConfigurationError, match=said):
        Leftovers(redis7.client(), given.pop("rules"), **given)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a*", [b"a", b"ab", b"a\n"], [b"b", b""]),
        ("a?c", [b"abc"], [b"ac"]),
        ("a[bc]", [b"ab", b"ac"], [b"ad"]),
        ("a[^b]", [b"ac"], [b"ab"]),
        ("a[b-d]", [b"ac"], [b"ae"]),
        (r"a\*", [b"a*"], [b"ab"]),
        ("a.c+", [b"a.c+"], [b"abcc"]),
    ],
)
def test_patterns_are_those_of_redis(
    redis7: RedisServer, pattern: str, yes: list[bytes], no: list[bytes]
) -> None:
    client = redis7.client()
    where = keys(pattern, "string")
    for each in (*yes, *(one for one in no if one)):
        client.set(each, 1)
    assert sorted(client.scan_iter(match=pattern)) == sorted(yes)
    assert all(where.matches(each) for each in yes)
    assert not any(where.matches(each) for each in no)


@pytest.mark.slow
def test_a_rule_with_a_script_of_its_own(any_server: AnyServer) -> None:
    client = any_server.client()
    client.xgroup_create("orders", "mailers", id="0", mkstream=True)
    for _ in range(250):
        client.xadd("orders", {"a": "b"})
    ((_, entries),) = client.xreadgroup("mailers", "m", {"orders": ">"}, count=200)
    client.xack("orders", "mailers", *(number for number, _ in entries))
    job = StreamLeftovers(client, "orders", dry_run=False)
    for _ in range(20 * len(job.job_client.nodes())):
        job.perform(Slice(100, 10.0))
        job.restart()
    assert client.xlen("orders") == 50
    assert job.backlog(60.0).count == 0


def test_a_job_keeps_its_client_alive(redis7: RedisServer) -> None:
    redis7.client().hset("session:a", "ends", 1)
    job = Leftovers(redis.Redis.from_url(redis7.url), [Past()], dry_run=False)
    gc.collect()
    assert job.perform(Slice(10, 10.0)) == 1


def test_the_same_look_of_many_items_is_sent_once(redis7: RedisServer) -> None:
    client = redis7.client()

    class Closed(Past):
        def verdict(self, item: Item) -> Verdicts:
            (is_open,) = yield look(("GET", "shop:open"), watch=(item.key, b"shop:open"))
            return LIVE if is_open else (yield from super().verdict(item))

    for number in range(50):
        client.hset(f"session:{number}", "ends", 1)
    client.set("shop:open", 1)
    one = Slice(100, 10.0)
    assert Leftovers(client, [Closed()], dry_run=False).perform(one) == 0
    assert one.operations < 10
    client.delete("shop:open")
    assert to_the_end(Leftovers(client, [Closed()], dry_run=False)) == 50


@pytest.mark.slow
def test_the_rest_after_a_lap_in_vain_grows_with_the_keys(redis7: RedisServer) -> None:
    client = redis7.client()
    job = Leftovers(client, [Past()], dry_run=False)
    rests = []
    for count in (0, 2_000, 60_000):
        with client.pipeline(transaction=False) as pipe:
            for number in range(count):
                pipe.hset(f"session:{number}", "ends", 4_000_000_000)
            pipe.execute()
        job.restart()
        place: dict[bytes, bytes] = {}
        while not float(place.get(b"rests", 0)):
            job.perform(Slice(100, 10.0))
            place = client.hgetall(job.place_key(job.rules[0], None, dry_run=False))
        now, _ = client.time()
        rests.append(float(place[b"rests"]) - now)
    assert 0 < rests[0] <= 2
    assert rests[0] < rests[1] < rests[2] <= 61
