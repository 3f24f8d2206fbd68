"""Debounce: members that are reserved once they have rested, against a plain model of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.resting import let_pass, waits
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import AsyncIck, Ick, ShardedIck

INF = float("inf")
REST = {"quiet": 600, "at_most": 1800}
# Another client's add, as redis-ick's scripts do it for a member that is new or has a lower score.
RUBYS_ADD = (
    "redis.call('SETNX', KEYS[1], 'ick.v1') return redis.call('ZADD', KEYS[2], 'LT', unpack(ARGV))"
)
RUBYS_RESERVE = """
local list = redis.call('ZRANGE', KEYS[2], 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #list, 2 do
  redis.call('ZADD', KEYS[3], 'LT', list[i + 1], list[i])
  redis.call('ZREM', KEYS[2], list[i])
end
return redis.call('ZRANGE', KEYS[3], 0, ARGV[1] - 1)
"""


def rubys_add(ick: Any, member: str, score: float) -> None:
    ick.client.eval(RUBYS_ADD, 3, *ick.names.sets, score, member)


def of(client: Any, key: bytes) -> dict[bytes, float]:
    return dict(client.zrange(key, 0, -1, withscores=True))


@pytest.mark.contract
class TestContract:
    @pytest.fixture
    def ick(self, any_server: AnyServer) -> Any:
        return Ick(any_server.client(), "k")

    def test_a_member_is_reserved_once_it_has_rested(self, ick: Any) -> None:
        assert ick.add({"a": 5.5, b"\xff\x00": -INF}, **REST) == (2, 0)
        assert ick.add({"b": 7}) == (1, 0)
        assert ick.reserve(5) == [(b"b", 7.0)]
        stats = ick.stats()
        assert (stats["waiting_size"], stats["total_size"], stats["pset_size"]) == (2, 1, 0)
        let_pass(ick.client, ick.names, 601)
        assert ick.exchange(5, "b") == [(b"\xff\x00", -INF), (b"a", 5.5)]
        assert waits(ick.client, ick.names) == {}
        assert ick.ack("a", b"\xff\x00") == 2
        assert ick.reserve(5) == []

    def test_each_add_begins_the_rest_anew_but_not_for_ever(self, ick: Any) -> None:
        for passed in range(3):
            assert ick.add({"a": 9 - passed}, **REST) == ((0, 1) if passed else (1, 0))
            let_pass(ick.client, ick.names, 599)
            assert ick.reserve(1) == []
        # 1,797 seconds after the first one: it has three more.
        assert ick.add({"a": 20}, **REST) == (0, 0)
        assert ick.reserve(1) == []
        let_pass(ick.client, ick.names, 4)
        assert ick.reserve(1) == [(b"a", 7.0)]

    def test_what_is_ripe_is_not_put_off(self, ick: Any) -> None:
        ick.add({"a": 5}, **REST)
        let_pass(ick.client, ick.names, 601)
        assert ick.add({"a": 4}, **REST) == (0, 1)
        assert of(ick.client, ick.names.pset) == {b"a": 4.0}
        assert waits(ick.client, ick.names) == {}

    def test_what_is_ready_does_not_wait(self, ick: Any) -> None:
        ick.add({"a": 5})
        assert ick.add([("a", 7), ("a", 3), ("b", 2), ("b", 1)], **REST) == (1, 2)
        assert of(ick.client, ick.names.pset) == {b"a": 3.0}
        assert waits(ick.client, ick.names) == {b"b": 1.0}

    @pytest.mark.parametrize(
        "adds", [lambda ick: ick.add({"a": 7}), lambda ick: rubys_add(ick, "a", 7)]
    )
    def test_another_add_makes_it_ready_once(self, ick: Any, adds: Callable[[Any], Any]) -> None:
        ick.add({"a": 5, "b": 6}, **REST)
        adds(ick)
        assert ick.reserve(1) == [(b"a", 5.0)]
        assert waits(ick.client, ick.names) == {b"b": 6.0}
        ick.ack("a")
        let_pass(ick.client, ick.names, 601)
        assert ick.reserve(5) == [(b"b", 6.0)]

    def test_another_add_and_then_a_rested_one(self, ick: Any) -> None:
        ick.add({"a": 5}, **REST)
        rubys_add(ick, "a", 7)
        assert ick.add({"a": 6}, **REST) == (0, 0)
        assert of(ick.client, ick.names.pset) == {b"a": 5.0}
        assert waits(ick.client, ick.names) == {}

    def test_what_is_reserved_waits_and_comes_again(self, ick: Any) -> None:
        ick.add({"a": 5})
        assert ick.reserve(1).members == [b"a"]
        ick.add({"a": 6}, **REST)
        # Its consumer may ask again, which does not say that it has seen the change.
        assert ick.reserve(1).members == [b"a"]
        assert ick.ack("a") == 1
        assert ick.reserve(1) == []
        let_pass(ick.client, ick.names, 601)
        assert ick.reserve(1) == [(b"a", 6.0)]

    def test_the_servers_time_is_a_score(self, ick: Any) -> None:
        assert ick.add("a", quiet=dt.timedelta(minutes=1), at_most=60) == (1, 0)
        (score,) = waits(ick.client, ick.names).values()
        assert 1.6e9 < score < 1e10

    def test_many_are_ripe(self, ick: Any) -> None:
        ick.add({f"m{i}": i for i in range(2_500)}, **REST)
        let_pass(ick.client, ick.names, 601)
        assert len(ick.reserve(2)) == 2
        assert ick.stats()["waiting_size"] == 1_500
        assert len(ick.reserve(2_500)) == 2_500
        assert ick.stats()["waiting_size"] == 0

    def test_delete_takes_all(self, ick: Any) -> None:
        ick.add({"a": 1}, **REST)
        assert ick.delete() == 1
        assert ick.client.exists(*ick.names.all) == 0

    def test_on_pipelines_and_asyncio(self, ick: Any, any_server: AnyServer) -> None:
        with ick.pipeline() as pipe:
            assert pipe.add({"a": 1}, **REST).stats().execute()[0] == (1, 0)

        async def both() -> None:
            async with any_server.async_client() as client:
                other = AsyncIck(client, "k")
                assert await other.add({"b": 1}, **REST) == (1, 0)
                async with other.pipeline() as pipe:
                    pipe.add({"c": 1}, **REST)
                    assert await pipe.execute() == [(1, 0)]

        asyncio.run(both())
        assert waits(ick.client, ick.names).keys() == {b"a", b"b", b"c"}

    @pytest.mark.parametrize(
        ("rest", "says"),
        [
            ({"quiet": 5}, "half a debounce"),
            ({"at_most": 5}, "half a debounce"),
            ({"quiet": 5, "at_most": 4}, "shorter than quiet"),
            ({"quiet": 0, "at_most": 4}, "quiet=0 is no such time"),
            ({"quiet": "5", "at_most": 6}, "no such time"),
            ({"quiet": True, "at_most": 6}, "no such time"),
            ({"quiet": 5, "at_most": float("nan")}, "no such time"),
        ],
    )
    def test_wrong_arguments(self, rest: dict[str, Any], says: str) -> None:
        # Nothing listens there: whatever were sent would fail otherwise.
        nobody = redis.Redis(port=1)
        for ick in (Ick(nobody, "k"), ShardedIck(nobody, "k", 2)):
            with pytest.raises(ConfigurationError, match=says):
                ick.add({"a": 1}, **rest)

    def test_terms_that_are_lost(self, ick: Any) -> None:
        ick.add({"a": 5, "b": 5}, **REST)
        ick.client.hset(ick.names.terms, "a", "7000000000000 nonsense")
        ick.client.hdel(ick.names.terms, "b")
        ick.client.zadd(ick.names.waiting, {"a": 1, "b": 1})
        assert ick.reserve(2) == [(b"a", 0.0), (b"b", 0.0)]


class Model:
    """An Ick with rests, as plain Python; time is a number that it is told."""

    def __init__(self) -> None:
        self.now = 0
        self.ready: dict[bytes, float] = {}
        self.reserved: dict[bytes, float] = {}
        self.resting: dict[bytes, tuple[int, int, float]] = {}

    def add(self, member: bytes, score: float) -> None:
        self.ready[member] = min(score, self.ready.get(member, INF))

    def rest(self, member: bytes, score: float, quiet: int, at_most: int) -> None:
        moment, latest, waited = self.resting.get(member, (INF, INF, INF))
        latest, score = min(latest, self.now + at_most), min(waited, score)
        if member in self.ready or moment <= self.now:
            self.resting.pop(member, None)
            self.add(member, score)
        else:
            self.resting[member] = (min(self.now + quiet, latest), latest, score)

    def ripen(self) -> None:
        for member, (moment, _, score) in list(self.resting.items()):
            if moment <= self.now:
                del self.resting[member]
                self.add(member, score)

    def first(self, members: dict[bytes, float], n: int) -> list[tuple[bytes, float]]:
        return sorted(members.items(), key=lambda each: (each[1], each[0]))[:n]

    def reserve(self, n: int) -> list[tuple[bytes, float]]:
        self.ripen()
        for member, _ in self.first(self.ready, n):
            if member in self.resting:
                self.add(member, self.resting.pop(member)[2])
        while len(self.reserved) < n and self.ready:
            for member, score in self.first(self.ready, n - len(self.reserved)):
                self.reserved[member] = min(score, self.reserved.get(member, INF))
                del self.ready[member]
        return self.first(self.reserved, n)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_calls(redis7: RedisServer, seed: int) -> None:
    """Times are odd halves of the steps in which time passes, so no real moment matters."""
    rng, model = random.Random(seed), Model()
    ick: Any = Ick(redis7.client(), "k")
    reaper = IckReaper(ick, 10**9, limit=200)
    members = [b"m%d" % i for i in range(12)]
    for _ in range(1_500):
        member, score = rng.choice(members), float(rng.randrange(100))
        call = rng.randrange(7)
        if call == 0:
            ick.add({member: score})
            model.add(member, score)
        elif call == 1:
            rubys_add(ick, member.decode(), score)
            model.add(member, score)
        elif call in (2, 3):
            quiet = rng.choice([500, 1500, 3500])
            at_most = quiet + rng.choice([0, 2000, 5000])
            ick.add({member: score}, quiet=quiet, at_most=at_most)
            model.rest(member, score, quiet, at_most)
        elif call == 4:
            n = rng.randrange(1, 8)
            assert ick.reserve(n) == model.reserve(n)
        elif call == 5:
            done = rng.sample(sorted(model.reserved), rng.randrange(len(model.reserved) + 1))
            assert ick.ack(*done) == len(done)
            for each in done:
                del model.reserved[each]
        else:
            steps = 1000 * rng.randrange(1, 3)
            let_pass(ick.client, ick.names, steps)
            model.now += steps
            if rng.random() < 0.5:
                reaper.perform(Slice(200, 60.0))
                model.ripen()
        assert of(ick.client, ick.names.pset) == model.ready
        assert of(ick.client, ick.names.cset) == model.reserved
        assert waits(ick.client, ick.names) == {k: each[2] for k, each in model.resting.items()}


@pytest.mark.parametrize(
    "rounds", [10, pytest.param(1_000, marks=pytest.mark.slow)], ids=["10^4", "10^6"]
)
def test_each_burst_is_served_once_and_in_its_time(redis7: RedisServer, rounds: int) -> None:
    """1,000 bursts a round: each of one to four adds, which rest or never do."""
    rng = random.Random(rounds)
    ick: Any = Ick(redis7.client(), "k")
    served = 0
    for number in range(rounds):
        restless = number % 4 == 3
        last = [rng.randrange(1, 5) for _ in range(1000)]
        for step in range(4):
            # A restless member goes on until at_most has passed; others rest after their last add.
            batch = {b"%d:%d" % (number, i): i for i in range(1000) if restless or step < last[i]}
            ick.add(batch, quiet=1500, at_most=3500)
            if step < 3:
                assert ick.reserve(1000).members == []
                let_pass(ick.client, ick.names, 1000 if restless or step == 2 else 100)
        let_pass(ick.client, ick.names, 1000 if restless else 2000)
        batch = ick.reserve(1001)
        assert sorted(batch.members) == sorted(b"%d:%d" % (number, i) for i in range(1000))
        served += ick.ack(*batch.members)
        assert ick.stats()["total_size"] + ick.stats()["waiting_size"] == 0
    assert served == 1000 * rounds


class TestReaper:
    def test_it_moves_what_only_ruby_reads(self, redis7: RedisServer) -> None:
        ick: Any = Ick(redis7.client(), "k")
        reaper = IckReaper(ick, 600, limit=5)
        ick.add({f"m{i}": i for i in range(7)}, **REST)
        assert reaper.perform(Slice(5, 60.0)) == 0
        assert ick.client.eval(RUBYS_RESERVE, 3, *ick.names.sets, 9) == []
        let_pass(ick.client, ick.names, 700)
        found = reaper.backlog()
        assert (found.count, found.exact) == (7, True)
        assert 100 <= found.oldest_seconds < 600
        assert IckReaper(ick, 600, dry_run=True).perform(Slice(5, 60.0)) == 5
        assert ick.stats()["waiting_size"] == 7
        assert [reaper.perform(Slice(5, 60.0)) for _ in range(3)] == [5, 2, 0]
        assert len(ick.client.eval(RUBYS_RESERVE, 3, *ick.names.sets, 9)) == 7

    def test_on_a_full_server(self, start_redis: Callable[..., RedisServer]) -> None:
        ick: Any = Ick(start_redis(7, maxmemory_policy="noeviction").client(), "k")
        ick.add({"a": 1, "b": 2}, **REST)
        let_pass(ick.client, ick.names, 601)
        ick.client.config_set("maxmemory", 1)
        before = ick.client.dump(ick.names.waiting)
        with pytest.raises(redis.OutOfMemoryError):
            ick.add({"c": 1, "a": 0}, **REST)
        assert ick.client.dump(ick.names.waiting) == before
        assert IckReaper(ick, 600, limit=1).perform(Slice(1, 60.0)) == 1
        assert ick.reserve(5) == [(b"a", 1.0), (b"b", 2.0)]

    @pytest.mark.slow
    @pytest.mark.real
    def test_deaths_at_each_command(self, redis7: RedisServer) -> None:
        direct = redis7.client()
        with FaultyServer(redis7.port) as door:

            def work() -> None:
                ick: Any = Ick(redis.Redis(port=door.port, protocol=2), "k")
                ick.add({"new": 1, "both": 1}, **REST)
                IckReaper(ick, 600).perform(Slice(2, 60.0))
                batch = ick.reserve(3)
                ick.exchange(3, *batch.members[:1])

            def prepare() -> None:
                direct.flushall()
                ick: Any = Ick(direct, "k")
                ick.add({f"m{i}": i for i in range(4)}, **REST)
                let_pass(direct, ick.names, 601)
                ick.add({"both": 3}, **REST)
                ick.add({"both": 2})

            for _ in every_death([door], work, prepare):
                ick: Any = Ick(direct, "k")
                let_pass(direct, ick.names, 601)
                left = set(ick.reserve(9).members)
                # One may have been acknowledged, the lowest of those that were reserved.
                assert left >= {b"m1", b"m2", b"m3", b"both"} - {b"both"}
                assert len({b"m0", b"m1", b"m2", b"m3", b"both"} - left) <= 1
                assert waits(direct, ick.names) == {}


def commands(client: Any, call: Callable[[], Any]) -> dict[str, int]:
    """Return what a call costs the server: how often it has run each command."""
    client.config_resetstat()
    call()
    found = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}


def test_an_ick_without_debounce_pays_next_to_nothing(redis7: RedisServer) -> None:
    ick: Any = Ick(redis7.client(), "k")
    ick.add({"a": 1})
    ick.reserve(1)
    add = commands(ick.client, lambda: ick.add({"a": 1}))
    assert {
        name: count for name, count in add.items() if name not in ("evalsha", "config|resetstat")
    } == {
        "get": 1,
        "zcard": 3,
        "zadd": 1,
    }
    exchange = commands(ick.client, lambda: ick.exchange(1, "a"))
    # One of them asks whether anything waits.
    assert exchange["zcard"] == 4
    assert not {"zrangebyscore", "zmscore", "hmget"} & exchange.keys()
