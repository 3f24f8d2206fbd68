"""The whole surface of a ShardedIck, on every kind of server.

Leases run out by clocks that are set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.servers import AnyServer, RedisCluster3, RedisServer
from support.steps import send
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import IckReaper
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncShardedIck, Ick, LeaseLost, NoLease, ShardedIck
from workstealing.structures.sharded_ick.layout import ShardNames, shard_of
from workstealing.structures.sharded_ick.leasing import _look_of, in_order_of_need

pytestmark = pytest.mark.contract

MINUTE_MS = 60_000
MEMBERS = {f"member {i}": float(i) for i in range(200)}
ODD_NAMES = ["plain", "a}b", "{}x", "x{y", "{a}b", "}{", "\u00fc{\u2603}", b"\xff\x00{\xfe}"]


def sharded_on(server: AnyServer, ick_shards: int | None = 4, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(server.client(), "orders", ick_shards, clock_shift_ms=ahead_ms)
    # The neediest goes first, with certainty.
    made._random = lambda: 0.99
    return made


def drained(sharded: ShardedIck) -> dict[str, float]:
    """Reserve and commit everything, ick shard by ick shard; return what was reserved."""
    found: dict[str, float] = {}
    while sharded.stats()["total_size"]:
        with sharded.lease("drainer") as ick:
            batch = ick.reserve(1000)
            for member, score in batch:
                assert member.decode() not in found
                found[member.decode()] = score
            assert ick.ack(*batch.members) == len(batch)
    return found


def everything(server: AnyServer) -> dict[bytes, Any]:
    """Return all keys with their values."""
    client = server.client()
    return {key: client.dump(key) for key in sorted(client.scan_iter(count=1000))}


def next_operations(steps: Any, client: Any) -> Any:
    """Return the first step that is one of the server's, past those that ask for nothing."""
    step = next(steps)
    while not step:
        step = steps.send(send(client, step))
    return step


class TestNames:
    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_each_ick_shard_has_all_its_keys_in_a_slot_of_its_own(self, name: str | bytes) -> None:
        raw = name if isinstance(name, bytes) else name.encode()
        slots = []
        for shard in range(1024):
            names = ShardNames(raw, shard)
            keys = {*names.all, names.lease, names.mark, names.moving, names.moving_dead}
            keys |= {names.begun, names.moving_attempts, names.moving_waiting, names.moving_terms}
            assert len(keys) == 17
            (slot,) = {key_slot(key) for key in keys}
            slots.append(slot)
        assert len(set(slots)) == 1024
        # However many there are, three masters get about a third each.
        for count in (4, 9, 64, 1024):
            masters = [slot * 3 // 16384 for slot in slots[:count]]
            shares = [masters.count(master) for master in (0, 1, 2)]
            assert max(shares) - min(shares) <= max(2, count // 8)

    def test_the_hash_is_part_of_the_layout(self) -> None:
        found = [shard_of(member.encode(), 8) for member in ("a", "b", "member 17", "\u00fc")]
        assert found == [3, 1, 1, 5]

    def test_the_hash_spreads_evenly(self) -> None:
        counts = [0] * 7
        for i in range(70_000):
            counts[shard_of(str(i).encode(), 7)] += 1
        assert max(counts) < 10_500
        assert min(counts) > 9_500


class TestAdding:
    def test_members_are_spread_and_none_is_lost(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        assert sharded.add(MEMBERS) == (200, 0)
        assert sharded.add({"member 5": -1, "member 6": 100}) == (0, 1)
        stats = sharded.stats()
        assert stats["total_size"] == stats["pset_size"] == 200
        assert stats["total_min"] == -1.0
        assert stats["total_max"] == 199.0
        assert len(stats["shards"]) == stats["ick_shards"] == 4
        assert min(shard["total_size"] for shard in stats["shards"]) > 20
        assert drained(sharded) == {**MEMBERS, "member 5": -1.0}

    def test_a_hundred_thousand_in_one_call(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        assert sharded.add((str(i), i) for i in range(100_000)) == (100_000, 0)
        assert sharded.stats()["total_size"] == 100_000

    def test_members_alone_get_the_servers_time(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        assert sharded.add(["a", "b", ("c", 1), b"d"]) == (4, 0)
        assert sharded.add("a") == (0, 0)
        stats = sharded.stats()
        assert stats["total_min"] == 1.0
        assert 1.6e9 < stats["total_max"] < 1e11

    def test_nothing(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        assert sharded.add([]) == (0, 0)
        assert sharded.stats()["total_size"] == 0
        assert "total_min" not in sharded.stats()

    def test_nothing_to_add_makes_and_checks_all_ick_shards(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        assert sharded.add({}) == (0, 0)
        keys = [sharded.core.names(shard).version for shard in range(4)]
        client = any_server.client()
        assert [client.get(key) for key in keys] == [b"ick.v1"] * 4
        assert sharded.delete() == 4
        client.set(keys[2], "mine")
        with pytest.raises(LayoutError, match=r"says mine where ick\.v1 was expected"):
            sharded.add([])

    def test_members_given_twice_are_taken_in_order(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        assert sharded.add([("m", 5), ("n", 1), ("m", 3), (b"m", 4)]) == (2, 1)

    def test_what_cannot_be_added_changes_nothing(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        with pytest.raises(ConfigurationError, match="score of 'b'"):
            sharded.add({"a": 1, "b": "soon"})
        assert everything(any_server) == {}

    def test_a_pipeline_takes_the_users_commands_too(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        with sharded.pipeline() as pipe:
            pipe.add(MEMBERS).set("mine", 1).stats().add([]).get("mine")
            added, was_set, stats, nothing, mine = pipe.execute()
        assert (added, was_set, nothing, mine) == ((200, 0), True, (0, 0), b"1")
        assert stats["total_size"] == 200
        assert pipe.execute() == []

    def test_delete(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        with sharded.lease("w") as ick:
            batch = ick.reserve(5)
            assert sharded.delete() > 0
            assert ick.ack(*batch.members) == 0
            assert ick.reserve(5) == []
        assert sharded.stats()["total_size"] == 0
        assert sharded.add(MEMBERS) == (200, 0)


class TestLayout:
    def test_another_number_is_refused_and_names_resize(self, any_server: AnyServer) -> None:
        sharded_on(any_server, 4).add(MEMBERS)
        before = everything(any_server)
        with pytest.raises(ConfigurationError, match=r"has 4 ick shards, not 8: .*resize\(8\)"):
            sharded_on(any_server, 8).add("a")
        assert everything(any_server) == before
        assert sharded_on(any_server, None).open() == 4

    def test_one_that_is_not_there_needs_a_number(self, any_server: AnyServer) -> None:
        with pytest.raises(ConfigurationError, match="say how many ick_shards"):
            sharded_on(any_server, None).add("a")
        assert everything(any_server) == {}

    @pytest.mark.parametrize("number", [0, -1, 1025, True, 2.0, "4"])
    def test_numbers_that_are_none(self, redis7: RedisServer, number: Any) -> None:
        with pytest.raises(ConfigurationError, match="ick_shards="):
            ShardedIck(redis7.client(), "orders", number)

    @pytest.mark.parametrize("name", ["", b"", None, 7])
    def test_names_that_are_none(self, redis7: RedisServer, name: Any) -> None:
        with pytest.raises(ConfigurationError, match="not usable"):
            ShardedIck(redis7.client(), name, 4)

    @pytest.mark.parametrize(
        "fields",
        [
            {"structure": "volatile_hashes"},
            {"ick_shards": "many"},
            {"ick_shards": "0"},
            {"moving_from": ""},
            {"readable_from": "2", "writable_from": "2", "version": "2"},
            {"readable_from": "many"},
        ],
    )
    def test_a_foreign_or_newer_layout(self, any_server: AnyServer, fields: dict[str, str]) -> None:
        sharded_on(any_server).open()
        any_server.client().hset("ws:sharded_ick:layout:orders", mapping=fields)
        before = everything(any_server)
        with pytest.raises(LayoutError, match=r"ShardedIck|says .* where a whole number from"):
            sharded_on(any_server).add("a")
        assert everything(any_server) == before

    def test_a_newer_layout_that_may_be_read(self, any_server: AnyServer) -> None:
        """Processes of this release look on while a fleet is upgraded, and change nothing."""
        first = sharded_on(any_server)
        first.add(MEMBERS)
        with first.lease("old") as leased:
            token = leased.reserve(5).token
        newer = {"version": "2", "readable_from": "1", "writable_from": "2"}
        any_server.client().hset("ws:sharded_ick:layout:orders", mapping=newer)
        before = everything(any_server)
        sharded = sharded_on(any_server)
        number = sharded.open()
        assert sharded.stats()["total_size"] == len(MEMBERS)
        held = sharded.reserved(leased.ick_shard, token)
        assert held is not None
        assert len(held) == 5
        assert sharded.inspect(sharded.size_steps()) == len(MEMBERS)
        with sharded.pipeline() as pipe:
            assert pipe.stats().execute()[0]["ick_shards"] == number
        calls: list[Callable[[], Any]] = [
            *(lambda: sharded.add("a"), lambda: sharded.add({}), sharded.delete),
            *(lambda: sharded.lease("w").__enter__(), lambda: sharded.lease_all("w")),
            *(lambda: sharded.resize(number), lambda: sharded.resize(9)),
            lambda: sharded.pipeline().add("a").execute(),
        ]
        for call in calls:
            with pytest.raises(LayoutError, match="which this release may read but not write"):
                call()
        assert everything(any_server) == before

    def test_a_newer_layout_that_may_be_written(self, any_server: AnyServer) -> None:
        sharded_on(any_server).open()
        newer = {"version": "2", "readable_from": "1", "writable_from": "1"}
        any_server.client().hset("ws:sharded_ick:layout:orders", mapping=newer)
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        assert drained(sharded) == MEMBERS

    def test_a_key_of_another_type_in_the_layouts_place(self, any_server: AnyServer) -> None:
        any_server.client().set("ws:sharded_ick:layout:orders", "mine")
        with pytest.raises(LayoutError, match="does not hold a layout"):
            sharded_on(any_server).add("a")

    def test_a_layout_that_was_lost_is_written_anew(self, any_server: AnyServer) -> None:
        """Its generation is a time, so that the marks of before do not refuse it."""
        sharded_on(any_server).add(MEMBERS)
        any_server.client().delete("ws:sharded_ick:layout:orders")
        sharded = sharded_on(any_server)
        assert sharded.add({"new": 1}) == (1, 0)
        assert sharded.stats()["total_size"] == 201

    def test_a_mark_that_is_newer_than_the_layout(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add("a")
        any_server.client().set(sharded.core.names(0).mark, "1:9999999999999999:1")
        with pytest.raises(
            LayoutError, match="newer layout than the key ws:sharded_ick:layout:orders"
        ):
            sharded.add("b")
        assert sharded.stats()["total_size"] == 1

    @pytest.mark.parametrize("part", ["version", "pset", "cset", "lease", "mark", "held"])
    def test_a_foreign_key_in_an_ick_shards_place(self, any_server: AnyServer, part: str) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.open()
        any_server.client().rpush(getattr(sharded.core.names(0), part), "mine")
        before = everything(any_server)

        def consume() -> None:
            with sharded.lease("w") as ick:
                ick.exchange(1, "a")

        calls: list[Callable[[], Any]] = [consume, lambda: sharded.resize(3)]
        if part not in ("lease", "held"):
            calls.append(lambda: sharded.add("a"))
        for call in calls:
            with pytest.raises(LayoutError, match="does not hold"):
                call()
        names = sharded.core.names(0)
        after = everything(any_server)
        touched = {names.lease, names.mark, b"ws:sharded_ick:layout:orders"}
        assert {key: after[key] for key in after if key not in touched} == {
            key: before[key] for key in before if key not in touched
        }
        assert any_server.client().type(getattr(names, part)) == b"list"


class TestLeases:
    def test_one_holder_at_a_time_each_with_a_greater_token(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 3)
        sharded.add(MEMBERS)
        with sharded.lease("a") as a, sharded.lease("b") as b, sharded.lease("c") as c:
            assert {a.ick_shard, b.ick_shard, c.ick_shard} == {0, 1, 2}
            with (
                pytest.raises(NoLease, match="all 3 ick shards of 'orders' are leased"),
                sharded.lease("d"),
            ):
                pytest.fail("there was no fourth one")
            held = [shard["consumer"] for shard in sharded.stats()["shards"]]
            assert sorted(held) == ["a", "b", "c"]
            last = b.lease_token
            shard = b.ick_shard
            assert b.release() is True
            with sharded.lease("d") as d:
                assert d.ick_shard == shard
                assert d.lease_token > last
                assert b.release() is False
        assert [shard["consumer"] for shard in sharded.stats()["shards"]] == [None] * 3
        assert issubclass(NoLease, Aborted)

    def test_the_neediest_goes_first(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 4)
        scores = [30, 10, 20]
        for shard, score in enumerate(scores):
            member = next(str(i) for i in range(100) if shard_of(str(i).encode(), 4) == shard)
            sharded.add({member: score})
        leases = [sharded.lease(str(i)) for i in range(4)]
        order = [lease.__enter__().ick_shard for lease in leases]
        assert order == [1, 2, 0, 3]
        for lease in leases:
            lease.__exit__(None, None, None)

    def test_what_is_reserved_counts_as_waiting_too(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 2)
        sharded.add(MEMBERS)
        with sharded.lease("dies") as first:
            first.reserve(1000)
        with sharded.lease("next") as second:
            assert second.ick_shard == first.ick_shard
            assert second.reserve(1)[0][1] == 0.0

    def test_order_of_need(self) -> None:
        replies = [
            ("5", "", 0, "100"),
            ("", "5", 0, "90"),
            ("1", "1", 7, "0"),
            ("", "", 0, "80"),
            ("inf", "", 0, "10"),
            ("-inf", "3", 0, "95"),
            ("", "", 0, "0"),
        ]
        needs = [_look_of([*reply, "consumer", "token", 0, 0, 0, 0]) for reply in replies]
        assert in_order_of_need(needs, lambda: 0.2) == [5, 1, 0, 4, 6, 3]
        # One time in five, the one with members that was leased longest ago goes first.
        assert in_order_of_need(needs, lambda: 0.199) == [4, 5, 1, 0, 6, 3]
        assert in_order_of_need([], lambda: 0.0) == []

    def test_a_member_that_is_never_committed_starves_nobody(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7, 4)
        draws = iter([0.9, 0.9, 0.9, 0.9, 0.1] * 100)
        sharded._random = lambda: next(draws)
        sharded.add({**MEMBERS, "poison": -1})
        worked: set[int] = set()
        for _ in range(60):
            with sharded.lease("only one") as ick:
                batch = ick.reserve(20)
                ick.ack(*(member for member in batch.members if member != b"poison"))
                worked.add(ick.ick_shard)
        assert worked == {0, 1, 2, 3}
        assert sharded.stats()["total_size"] == 1

    def test_work_renews_a_lease_that_is_half_over(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add(MEMBERS)
        with sharded.lease("w", lease=60) as ick:
            batch = ick.reserve(2)
            later = [
                lambda: ick.reserve(2),
                lambda: ick.exchange(2),
                lambda: ick.ack(*batch.members),
                ick.extend,
            ]
            for number, work in enumerate(later, 1):
                # 40 s later, 20 s before the end, each time.
                ick._core = sharded_on(any_server, 1, ahead_ms=number * 40_000).core
                work()
            left = sharded.stats()["shards"][0]["lease_ms"]
            assert 4 * 40_000 + 50_000 < left <= 4 * 40_000 + 60_000
            # More than half is left: nothing is written.
            ick.exchange(2)
            assert sharded.stats()["shards"][0]["lease_ms"] <= left

    def test_a_lease_that_ran_out(self, any_server: AnyServer) -> None:
        """The zombie neither commits over its successor nor reserves, and is told so."""
        sharded = sharded_on(any_server, 1)
        sharded.add(MEMBERS)
        zombie = sharded.lease("zombie", lease=60).__enter__()
        batch = zombie.reserve(3)
        later = sharded_on(any_server, None, ahead_ms=MINUTE_MS + 1)
        with later.lease("heir", lease=60) as heir:
            assert heir.lease_token > zombie.lease_token
            assert heir.reserve(3) == batch
            self.assert_fenced(zombie, batch)
            assert zombie.release() is False
            assert later.stats()["shards"][0]["consumer"] == "heir"
            assert heir.ack(*batch.members) == 3

    def test_a_lease_that_ran_out_although_nobody_came(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add(MEMBERS)
        zombie = sharded.lease("zombie", lease=60).__enter__()
        batch = zombie.reserve(3)
        zombie._core = sharded_on(any_server, 1, ahead_ms=MINUTE_MS + 1).core
        self.assert_fenced(zombie, batch)
        assert sharded.stats()["total_size"] == 200

    def assert_fenced(self, zombie: Any, batch: Any) -> None:
        late = zombie.ack(*batch.members)
        assert (late, late.ignored) == (0, 3)
        nothing = zombie.exchange(0, *batch.members)
        assert (nothing, nothing.acked, nothing.acked.ignored) == ([], 0, 3)
        for call in (
            lambda: zombie.reserve(1),
            lambda: zombie.exchange(2, *batch.members),
            zombie.extend,
        ):
            with pytest.raises(LeaseLost, match="zombie does not hold ick shard 0 of 'orders'"):
                call()

    def test_what_the_reaper_returned_is_not_committed(self, redis7: RedisServer) -> None:
        from workstealing.recruiting import Slice

        sharded = sharded_on(redis7, 2)
        sharded.add(MEMBERS)
        with sharded.lease("slow") as ick:
            batch = ick.reserve(3)
            # As if it had been reserved an hour ago.
            held = sharded.core.names(ick.ick_shard).held
            value = redis7.client().get(held)
            assert value is not None
            redis7.client().set(held, value[:17] + b"1000000" + value[24:])
            job = IckReaper(sharded, lease=60, random=lambda: ick.ick_shard / 2)
            assert job.perform(Slice(5, 10.0)) == 3
            late = ick.ack(*batch.members)
            assert (late, late.ignored) == (0, 3)
        assert sharded.stats()["pset_size"] == 200

    def test_exchange_of_thousands(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add((str(i), i) for i in range(2500))
        with sharded.lease("w") as ick:
            batch = ick.reserve(2300)
            following = ick.exchange(100, *batch.members)
            assert (following.acked, following.acked.ignored) == (2300, 0)
            assert following[0] == (b"2300", 2300.0)
            last = ick.exchange(0, *following.members)
            assert (last, last.acked) == ([], 100)
            assert ick.reserve(0) == []

    @pytest.mark.parametrize("size", [3, 2_500])
    def test_a_batch_is_handed_back(self, any_server: AnyServer, size: int) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add({f"m{i:04}": i for i in range(size)})
        with sharded.lease("worker") as ick:
            batch = ick.reserve(size)
            assert batch.members == [b"m%04d" % i for i in range(size)]
            handed = ick.exchange(0, "m0000", backwash=True)
            assert (handed, handed.acked, handed.token) == ([], 1, "")
            stats = sharded.stats()
            assert (stats["pset_size"], stats["cset_size"]) == (size - 1, 0)
            assert ick.reserve(0) == []
            assert ick.reserve(1) == [(b"m0001", 1.0)]
            # The lease is what fences here: its holder commits under its last reservation.
            assert ick.ack("m0001", "m0002") == 1

    def test_pieces_end_with_the_lease(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add({f"m{i:04}": i for i in range(2_500)})
        zombie = sharded.lease("zombie", lease=60).__enter__()
        steps = zombie._exchanging(2_500, (), False)
        going_on = steps.send(send(sharded.client, next_operations(steps, sharded.client)))
        later = sharded_on(any_server, None, ahead_ms=MINUTE_MS + 1)
        with later.lease("heir", lease=60) as heir:
            assert len(heir.reserve(2_500)) == 2_500
            zombie._core = later.core
            with pytest.raises(StopIteration) as ended:
                steps.send(send(sharded.client, going_on))
            assert ended.value.value == []
            assert heir.ack(*(f"m{i:04}" for i in range(2_500))) == 2_500

    def test_backwash(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, 1)
        sharded.add({"b": 2, "c": 3})
        with sharded.lease("w") as ick:
            ick.reserve(1)
            sharded.add({"a": 1})
            assert ick.reserve(1) == [(b"b", 2.0)]
            assert ick.reserve(1, backwash=True) == [(b"a", 1.0)]

    def test_waiting_for_a_lease(
        self, any_server: AnyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sharded = sharded_on(any_server, 1)
        holder = sharded.lease("holder")
        holder.__enter__()
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                holder.__exit__(None, None, None)

        monkeypatch.setattr("workstealing.store.operations.time.sleep", pause)
        with sharded.lease("patient", wait=3600) as ick:
            assert ick.consumer == "patient"
        assert len(pauses) == 3
        assert 0 < min(pauses) < max(pauses) < 0.1

    def test_waiting_in_vain(self, any_server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
        sharded = sharded_on(any_server, 1)

        class Jumping:
            now = 0.0

            def monotonic(self) -> float:
                self.now += 1.0
                return self.now

        sharded._clock = Jumping()
        pauses: list[float] = []
        monkeypatch.setattr("workstealing.store.operations.time.sleep", pauses.append)
        with sharded.lease("holder"), pytest.raises(NoLease), sharded.lease("late", wait=5):
            pytest.fail("there was no second one")
        assert len(pauses) == 4

    @pytest.mark.parametrize(
        "arguments",
        [
            *[("",), (b"w",), ("w", 0), ("w", -1), ("w", float("inf")), ("w", "1"), ("w", 1, -1)],
            *[("w", 1e300), ("w", 10**400), ("w", float("nan"))],
        ],
    )
    def test_bad_arguments(self, redis7: RedisServer, arguments: tuple[Any, ...]) -> None:
        with pytest.raises(ConfigurationError, match=r"consumer|lease=|wait="):
            sharded_on(redis7).lease(*arguments)

    @pytest.mark.parametrize("number", [-1, True, 1.5, "3"])
    def test_bad_numbers_of_members(self, redis7: RedisServer, number: Any) -> None:
        with (
            sharded_on(redis7).lease("w") as ick,
            pytest.raises(
                ConfigurationError, match=r"^n is .*; expected a whole number, 0 or more$"
            ),
        ):
            ick.reserve(number)

    def test_the_end_of_a_lease_hides_no_error(self, start_redis: Callable[..., Any]) -> None:
        server = start_redis(7)
        sharded = sharded_on(server, 1)

        def work() -> None:
            with sharded.lease("w"):
                server.kill()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()


class TestIcks:
    def test_the_list_of_icks(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server, None)
        with pytest.raises(ConfigurationError, match="call open"):
            sharded.icks  # noqa: B018
        sharded = sharded_on(any_server, 3)
        assert len(sharded.icks) == 3
        sharded.add(MEMBERS)
        assert all(isinstance(ick, Ick) for ick in sharded.icks)
        assert sum(ick.stats()["total_size"] for ick in sharded.icks) == 200


class TestOtherClients:
    @pytest.mark.parametrize(
        "options", [{"protocol": 2}, {"protocol": 3}, {"decode_responses": True}]
    )
    def test_protocols_and_decoding(self, redis7: RedisServer, options: dict[str, Any]) -> None:
        sharded: ShardedIck = ShardedIck(redis7.client(**options), "orders", 2)
        assert sharded.add(MEMBERS) == (200, 0)
        with sharded.lease("w") as ick:
            batch = ick.reserve(5)
            assert ick.exchange(1, *batch.members).acked == 5
            assert sharded.stats()["shards"][ick.ick_shard]["consumer"] == "w"
            assert ick.lease_token.isdigit()
        while not sharded.resize(5).done:
            pass
        assert sharded.stats()["total_size"] == 195

    async def test_asyncio(self, any_server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
        client = any_server.async_client()
        sharded: AsyncShardedIck = AsyncShardedIck(client, "orders", 4)
        assert await sharded.open() == 4
        assert await sharded.add(MEMBERS) == (200, 0)
        async with sharded.lease("w") as ick:
            batch = await ick.reserve(5)
            following = await ick.exchange(5, *batch.members)
            assert following.acked == 5
            await ick.extend()
            assert await ick.ack(*following.members) == 5
        async with sharded.pipeline() as pipe:
            pipe.add({"more": 1}).set("mine", 1).stats()
            added, _, stats = await pipe.execute()
        assert added == (1, 0)
        assert stats["total_size"] == 191
        while not (await sharded.resize(6)).done:
            pass
        assert (await sharded.stats())["total_size"] == 191
        assert len(sharded.icks) == 6
        waited: list[float] = []

        async def pause(seconds: float) -> None:
            waited.append(seconds)
            await taken[0].release()

        monkeypatch.setattr("workstealing.store.operations.asyncio.sleep", pause)
        taken = [await sharded.lease(f"w{i}").__aenter__() for i in range(6)]
        with pytest.raises(NoLease):
            await sharded.lease("late").__aenter__()
        async with sharded.lease("patient", wait=3600) as ick:
            assert ick.ick_shard == taken[0].ick_shard
        assert len(waited) == 1
        assert await sharded.delete() > 0
        await client.aclose()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_thousand_names_on_a_cluster(cluster: RedisCluster3) -> None:
    client = cluster.client()
    slots = set()
    for i in range(1000):
        sharded: ShardedIck = ShardedIck(client, f"name:{i}", 3)
        assert sharded.add(["a", "b", "c", "d"]) == (4, 0)
        slots |= {key_slot(sharded.core.names(shard).version) for shard in range(3)}
        with sharded.lease("w") as ick:
            batch = ick.reserve(10)
            assert ick.ack(*batch.members) == len(batch) > 0
    assert len(slots) > 500


@pytest.mark.real
def test_a_server_out_of_memory_lets_consumers_work_it_off(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    sharded = sharded_on(server, 1)
    sharded.add(MEMBERS)
    with sharded.lease("w") as ick:
        batch = ick.reserve(50)
    server.client().config_set("maxmemory", 1)
    with sharded.lease("w") as ick:
        assert ick.reserve(50) == batch
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            sharded.add("more")
        following = ick.exchange(50, *batch.members)
        assert following.acked == 50
        assert len(following) == 50
        assert ick.ack(*following.members) == 50
    server.client().config_set("maxmemory", 0)
    assert sharded.stats()["total_size"] == 100


def test_after_2286_tokens_have_a_digit_more(any_server: AnyServer) -> None:
    far = (10**10 - 1_700_000_000) * 1_000
    now, ahead = sharded_on(any_server, 2), sharded_on(any_server, 2, ahead_ms=far)
    now.add(MEMBERS)
    before = now.lease("worker", lease=60).__enter__()
    with ahead.lease("heir", lease=60) as after:
        assert (len(before.lease_token), len(after.lease_token)) == (16, 17)
        batch = after.reserve(50)
        assert len(after.reserve(2_000)) == ahead.stats()["shards"][after.ick_shard]["cset_size"]
        assert after.ack(*batch.members) == 50
        after.extend()
    assert ahead.resize(3).done
    assert sum(ahead.stats()[name] for name in ("pset_size", "cset_size")) == 150
