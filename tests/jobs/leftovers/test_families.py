"""Families of keys that the user declares, each with an owner that goes on writing."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from support.leftover_jobs import laps, to_the_end
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import Aborted, ConfigurationError
from workstealing.jobs import FamilyLeftovers
from workstealing.jobs.family_leftovers import KeysWithoutTtl, OldScores, PastFields, PastHashes
from workstealing.jobs.leftovers import Leftovers
from workstealing.recruiting import Slice
from workstealing.testing import assert_safe, refute

pytestmark = pytest.mark.real


def seen_at(value: bytes) -> float:
    """Return when a session of a pool ends: half a minute after it was last seen."""
    return float(json.loads(value)["last_seen_at"]) + 30


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Let an owner work in a thread of its own, again and again; its errors are raised."""
    is_over, errors = threading.Event(), []

    def go() -> None:
        try:
            while not is_over.is_set():
                work()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def served(job: Leftovers, slices: int) -> int:
    """Do some slices beside the owner; return how many items were removed."""
    total = 0
    for turn in range(slices):
        with suppress(Aborted):
            total += job.perform(Slice(100, 10.0))
        if turn % 5 == 4:
            job.restart()
    return total


class TestKeysWithoutTtl:
    @pytest.mark.slow
    def test_they_get_one_that_differs(self, any_server: AnyServer) -> None:
        client = any_server.client()
        for number in range(300):
            client.set(f"cart:{number}", "x", ex=5_000 if number % 3 == 0 else None)
        client.set("other", "x")
        client.rpush("cart:list", "x")
        job = FamilyLeftovers(client, "cart:*", 1_000, of_type="string", dry_run=False)
        assert job.backlog(60.0).count == 200
        assert to_the_end(job, limit=100) == 200
        times = [client.ttl(f"cart:{number}") for number in range(300)]
        given = [each for number, each in enumerate(times) if number % 3]
        assert 490 <= min(given) < max(given) <= 2_000
        assert len(set(given)) > 100
        assert all(each > 4_900 for each in times[::3])
        assert client.ttl("other") == client.ttl("cart:list") == -1

    def test_an_owner_that_writes_loses_nothing(self, redis7: RedisServer) -> None:
        client = redis7.client()
        written: dict[int, int] = {}

        def write() -> None:
            number = random.randrange(50)
            written[number] = written.get(number, 0) + 1
            client.set(f"cart:{number}", written[number])

        job = FamilyLeftovers(client, "cart:*", 1_000, dry_run=False)
        with beside(write):
            served(job, 60)
        assert {n: int(client.get(f"cart:{n}") or 0) for n in written} == written
        to_the_end(job)
        assert all(client.ttl(f"cart:{number}") > 400 for number in written)

    def test_it_never_deletes(self, redis7: RedisServer) -> None:
        with pytest.raises(ConfigurationError, match="give ttl"):
            Leftovers(redis7.client(), [KeysWithoutTtl("cart:*")])

    @pytest.mark.slow
    def test_no_order_loses_a_key(self, redis7: RedisServer) -> None:
        def persists(client: Any) -> None:
            client.set("cart:1", "new")
            client.expire("cart:1", 100_000)

        def lost(client: Any) -> str | None:
            left = client.ttl("cart:1")
            if client.get("cart:1") is None or -1 < left < 400:
                return "the key is gone, or ends too soon"
            if client.get("cart:1") == b"new" and -1 < left < 90_000 and client.exists("done"):
                return "its owner's time to live was shortened"
            return None

        def with_mark(client: Any) -> None:
            persists(client)
            client.set("done", 1)

        assert_safe(
            lambda client: FamilyLeftovers(
                client, "cart:*", 1_000, dry_run=False, random=lambda: 0.0
            ),
            with_mark,
            setup=lambda client: client.set("cart:1", "old"),
            lost=lost,
            client=redis7.client(),
        )


class TestOldScores:
    @pytest.mark.slow
    @pytest.mark.parametrize(("unit", "per_second"), [("seconds", 1), ("milliseconds", 1000)])
    def test_what_is_before_the_window_goes(
        self, any_server: AnyServer, unit: str, per_second: int
    ) -> None:
        client = any_server.client()
        now = any_server_time(client)
        for user in range(5):
            ages = {f"{age}": (now - age) * per_second for age in (*range(100, 400), 50, 1)}
            client.zadd(f"limit:{user}", ages)
        rule = OldScores("limit:*", 60, unit)
        assert to_the_end(Leftovers(client, [rule], name="l", dry_run=False)) == 1_500
        assert all(client.zrange(f"limit:{user}", 0, -1) == [b"50", b"1"] for user in range(5))

    def test_scores_that_are_no_times_stay(self, redis7: RedisServer) -> None:
        client = redis7.client()
        now = any_server_time(client)
        client.zadd("limit:ranks", {"a": 1, "b": 2})
        client.zadd("limit:ms", {"a": now * 1000 - 900_000, "b": now * 1000})
        client.zadd("limit:negative", {"a": -1, "b": now})
        assert laps(Leftovers(client, [OldScores("limit:*", 60)], name="l", dry_run=False)) == 0
        assert client.zcard("limit:ranks") == client.zcard("limit:ms") == 2

    def test_a_unit_that_is_none(self) -> None:
        with pytest.raises(ConfigurationError, match="unit is 'days'"):
            OldScores("limit:*", 60, "days")

    def test_a_limiter_decides_as_before(self, redis7: RedisServer) -> None:
        """A sliding window: at most five in a minute; the job works between any two commands."""
        client = redis7.client()
        start = any_server_time(client)
        shadow: dict[int, list[float]] = {user: [] for user in range(8)}
        for user in shadow:
            # From a visit long ago, which the limiter itself clears away only at the next one.
            client.zadd(f"limit:{user}", {f"old{n}": start - 3_600 + n for n in range(120)})
        wrong: list[int] = []
        allowed = [0]

        def visit(user: int | None = None) -> None:
            user = random.randrange(8) if user is None else user
            now = any_server_time(client)
            live = [each for each in shadow[user] if each > now - 60]
            found = client.zcount(f"limit:{user}", f"({now - 60}", "+inf")
            if found != len(live):
                wrong.append(user)
            if found < 5:
                allowed[0] += 1
                shadow[user].append(now)
                client.zadd(f"limit:{user}", {f"{now}:{allowed[0]}": now})

        job = Leftovers(client, [OldScores("limit:*", 60)], name="l", dry_run=False)
        with beside(visit):
            served(job, 80)
        # On a busy machine some came too seldom by then.
        for user in list(shadow) * 6:
            visit(user)
        to_the_end(job)
        assert not wrong
        assert allowed[0] >= 40
        for user, times in shadow.items():
            live = [each for each in times if each > any_server_time(client) - 60]
            assert client.zcount(f"limit:{user}", live[0] if live else "inf", "inf") == len(live)

    @pytest.mark.slow
    def test_no_order_loses_a_visit(self, redis7: RedisServer) -> None:
        now = any_server_time(redis7.client())

        def visits(client: Any) -> None:
            client.zadd("limit:1", {"new": now + 1})
            client.delete("limit:1")
            client.zadd("limit:1", {"again": now + 2})

        def lost(client: Any) -> str | None:
            if client.exists("limit:1") and not client.zcount("limit:1", now, "+inf"):
                return "a visit within the window is gone"
            return None

        def start(client: Any) -> None:
            client.zadd("limit:1", {"old": now - 3_600, "last": now})

        def collect(client: Any) -> Leftovers:
            rule = OldScores("limit:*", 600)
            return Leftovers(client, [rule], name="l", dry_run=False, random=lambda: 0.0)

        client = redis7.client()
        assert_safe(collect, visits, setup=start, lost=lost, client=client)
        assert refute(
            collect,
            [],
            setup=start,
            lost=lambda one: None if one.zscore("limit:1", "old") else "it is gone",
            client=client,
        )


class TestPastFields:
    @pytest.mark.slow
    def test_sessions_of_dead_servers_go(self, any_server: AnyServer) -> None:
        client = any_server.client()
        now = any_server_time(client)
        for number in range(250):
            client.hset("pool", f"s{number}", json.dumps({"last_seen_at": now - number}))
        client.hset("pool", mapping={"text": "no json", "other": json.dumps({"user": 1})})
        client.hset("other", "s", json.dumps({"last_seen_at": 1}))
        rule = PastFields("pool", seen_at, grace=70)
        done = to_the_end(Leftovers(client, [rule], name="p", dry_run=False), limit=100)
        # A second or more may pass meanwhile.
        assert 149 <= done <= 190
        assert client.hlen("pool") == 252 - done
        assert client.hexists("pool", "s50")
        assert client.hexists("pool", "text")
        assert client.hexists("pool", "other")
        assert client.hlen("other") == 1

    def test_heartbeats_of_the_living_are_kept(self, redis7: RedisServer) -> None:
        client = redis7.client()
        now = any_server_time(client)
        for number in range(200):
            client.hset("pool", f"dead{number}", json.dumps({"last_seen_at": now - 500}))
        living = [f"live{number}" for number in range(20)]
        missing: list[str] = []

        def beat() -> None:
            name = random.choice(living)
            # It was late: its last word is past, and it lives.
            client.hset("pool", name, json.dumps({"last_seen_at": now - 500}))
            client.hset("pool", name, json.dumps({"last_seen_at": any_server_time(client)}))
            if not client.hexists("pool", name):
                missing.append(name)

        job = Leftovers(client, [PastFields("pool", seen_at)], name="p", dry_run=False)
        with beside(beat):
            removed = served(job, 80)
        assert removed >= 200
        assert not missing
        assert not [each for each in client.hkeys("pool") if each.startswith(b"dead")]

    @pytest.mark.slow
    def test_no_order_loses_a_heartbeat(self, redis7: RedisServer) -> None:
        now = any_server_time(redis7.client())

        def beats(client: Any) -> None:
            client.hset("pool", "s", json.dumps({"last_seen_at": now + 1_000}))
            client.hdel("pool", "s")
            client.hset("pool", "s", json.dumps({"last_seen_at": now + 2_000}))
            client.set("live", 1)

        def lost(client: Any) -> str | None:
            if client.exists("live") and not client.hexists("pool", "s"):
                return "a living session is gone"
            return None

        def start(client: Any) -> None:
            client.hset("pool", "s", json.dumps({"last_seen_at": now - 1_000}))

        def collect(client: Any) -> Leftovers:
            rule = PastFields("pool", seen_at)
            return Leftovers(client, [rule], name="p", dry_run=False, random=lambda: 0.0)

        client = redis7.client()
        assert_safe(collect, beats, setup=start, lost=lost, client=client)
        assert refute(
            collect,
            [],
            setup=start,
            lost=lambda one: None if one.hexists("pool", "s") else "it is gone",
            client=client,
        )


class TestPastHashes:
    @pytest.mark.slow
    def test_a_number_in_a_field(self, any_server: AnyServer) -> None:
        client = any_server.client()
        now = any_server_time(client)
        for number in range(100):
            client.hset(f"session:{number}", mapping={"ends": now - 100 + 2 * number, "user": 1})
        client.hset("session:none", "user", 1)
        client.hset("session:nan", "ends", "nan")
        client.hset("session:text", "ends", "later")
        rule = PastHashes("session:*", "ends", grace=40)
        done = to_the_end(Leftovers(client, [rule], name="h", dry_run=False))
        assert 29 <= done <= 40
        assert not client.exists("session:0")
        assert client.exists("session:45", "session:none", "session:nan", "session:text") == 4

    def test_a_session_that_is_renewed_is_kept(self, redis7: RedisServer) -> None:
        client = redis7.client()
        now = any_server_time(client)
        missing: list[int] = []

        def renew() -> None:
            number = random.randrange(20)
            client.hset(f"session:{number}", mapping={"ends": now - 5, "user": number})
            client.hset(f"session:{number}", "ends", now + 1_000)
            with client.pipeline() as block:
                # Renewed between the two: then it must hold all of its fields, or be wholly gone.
                block.hgetall(f"session:{number}")
                (found,) = block.execute()
            if b"ends" not in found:
                missing.append(number)
            client.hset(f"session:{number}", mapping={"ends": now - 5, "user": number})

        job = Leftovers(client, [PastHashes("session:*", "ends")], name="h", dry_run=False)
        with beside(renew):
            served(job, 80)
        assert not missing

    @pytest.mark.slow
    def test_no_order_removes_a_renewed_one(self, redis7: RedisServer) -> None:
        now = any_server_time(redis7.client())

        def renews(client: Any) -> None:
            if client.exists("session:1"):
                client.hset("session:1", mapping={"ends": now + 1_000, "user": 1})
                client.set("renewed", 1)

        def lost(client: Any) -> str | None:
            if client.exists("renewed") and not client.exists("session:1"):
                return "a renewed session is gone"
            return None

        def start(client: Any) -> None:
            client.hset("session:1", mapping={"ends": now - 1_000, "user": 1})

        def collect(client: Any) -> Leftovers:
            rule = PastHashes("session:*", "ends")
            return Leftovers(client, [rule], name="h", dry_run=False, random=lambda: 0.0)

        client = redis7.client()
        assert_safe(collect, renews, setup=start, lost=lost, client=client)
        assert refute(
            collect,
            [],
            setup=start,
            lost=lambda one: None if one.exists("session:1") else "it is gone",
            client=client,
        )


def any_server_time(client: Any) -> float:
    """Return the server's time, of any node of a cluster."""
    found: Any = client.time()
    seconds, micros = next(iter(found.values())) if isinstance(found, dict) else found
    return float(seconds) + float(micros) / 1e6
