"""A consumer that holds all ick shards at once, and reservations that are done with as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.store.operations import Begun, Steps, drive
from workstealing.structures import AsyncShardedIck, LeasedIck, LeaseLost, NoLease, ShardedIck
from workstealing.structures.sharded_ick.leasing import Holder, Leases, ShardLook, look

MEMBERS = {f"member {i}": float(i) for i in range(100)}
HOUR_MS = 3_600_000


def sharded_on(server: AnyServer, ahead_ms: int = 0, **options: Any) -> ShardedIck:
    made: ShardedIck = ShardedIck(server.client(**options), "orders", 4, clock_shift_ms=ahead_ms)
    return made


def seen(sharded: ShardedIck) -> list[ShardLook]:
    return drive(sharded.client, look(sharded.core))[1]


class TestLeases:
    def test_all_are_taken_in_order(self, any_server: AnyServer) -> None:
        leases = sharded_on(any_server).lease_all("reader", lease=60)
        assert isinstance(leases, Leases)
        assert [leased.ick_shard for leased in leases] == [0, 1, 2, 3]
        assert all(isinstance(leased, LeasedIck) for leased in leases)
        found = seen(sharded_on(any_server))
        assert [each.lease_token for each in found] == [each.lease_token for each in leases]
        assert {each.consumer for each in found} == {"reader"}
        assert all(59_000 < each.left_ms <= 60_000 for each in found)

    def test_one_that_another_holds_refuses_all(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        with sharded.lease("somebody", lease=60):
            before = seen(sharded)
            with pytest.raises(NoLease, match=r"is leased by 'somebody' for another (60|59) s"):
                sharded.lease_all("reader")
            with pytest.raises(NoLease, match="somebody"):
                sharded.lease_all("reader", take_over=True)
            assert [each.lease_token for each in seen(sharded)] == [
                each.lease_token for each in before
            ]
        assert len(sharded.lease_all("reader")) == 4

    def test_one_that_another_takes_in_between_gives_all_back(self, redis7: RedisServer) -> None:
        sharded, other = sharded_on(redis7), sharded_on(redis7)
        steps = sharded._leasing_all(Holder("reader", 60_000), False)
        # The layout, the look; before the taking somebody else comes.
        replies: Any = None
        for _ in range(3):
            operations = steps.send(replies)
            if isinstance(operations, list) and operations[0].script.name == "sharded_ick/take":
                break
            replies = drive(sharded.client, _one_round(operations))

        def going_on() -> Steps[Any]:
            return (yield from Begun(steps, replies))

        with other.lease("somebody", lease=60):
            replies = drive(sharded.client, _one_round(operations))
            assert sorted(map(bool, replies)) == [False, True, True, True]
            with pytest.raises(NoLease, match="somebody"):
                drive(sharded.client, going_on())
            assert sum(each.left_ms > 0 for each in seen(sharded)) == 1

    def test_its_own_name_is_taken_over_only_where_that_is_wanted(
        self, any_server: AnyServer
    ) -> None:
        first = sharded_on(any_server).lease_all("reader", lease=60)
        sharded = sharded_on(any_server)
        with pytest.raises(NoLease, match="'reader'"):
            sharded.lease_all("reader")
        second = sharded.lease_all("reader", lease=60, take_over=True)
        assert all(b.lease_token > a.lease_token for a, b in zip(first, second, strict=True))
        assert first.extend() == [0, 1, 2, 3]
        with pytest.raises(LeaseLost):
            first[0].reserve(1)
        assert second.extend() == []

    def test_what_has_run_out_is_free(self, any_server: AnyServer) -> None:
        first = sharded_on(any_server).lease_all("reader", lease=60)
        later = sharded_on(any_server, HOUR_MS)
        assert len(later.lease_all("another", lease=60)) == 4
        assert first.release() == [0, 1, 2, 3]

    def test_release(self, any_server: AnyServer) -> None:
        leases = sharded_on(any_server).lease_all("reader")
        assert leases.release() == []
        assert len(sharded_on(any_server).lease_all("another")) == 4

    def test_none_while_members_are_being_moved(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader", lease=60)
        leases.reserve(dict.fromkeys(range(4), 1000))
        assert sharded_on(any_server).open() == 4
        other = ShardedIck(any_server.client(), "orders")
        assert other.resize(2).leased == 4
        with pytest.raises(NoLease, match="being moved to 2 ick shards"):
            ShardedIck(any_server.client(), "orders").lease_all("x")
        # Those who hold leases get nothing more, and are told so.
        assert leases.reserve(dict.fromkeys(range(4), 1000)) == {}
        assert leases.release() == []
        while not other.resize(2).done:
            pass
        # The old number is known to `sharded` still: the look finds the new one.
        assert len(sharded.lease_all("reader")) == 2

    @pytest.mark.parametrize("arguments", [("",), ("reader", 0), ("reader", "1"), (b"reader",)])
    def test_bad_arguments(self, redis7: RedisServer, arguments: tuple[Any, ...]) -> None:
        with pytest.raises(ConfigurationError):
            sharded_on(redis7).lease_all(*arguments)
        assert redis7.client().keys("*") == []


class TestReservations:
    def test_a_reservation_is_seen_page_by_page_and_done_with_as_a_whole(
        self, any_server: AnyServer
    ) -> None:
        sharded = sharded_on(any_server)
        many = {f"member {i}": float(i) for i in range(12_000)}
        sharded.add(many)
        leases = sharded.lease_all("reader", lease=60)
        reserved = leases.reserve(dict.fromkeys(range(4), 100_000))
        assert sum(count for _, count in reserved.values()) == 12_000
        found: dict[str, float] = {}
        looker = sharded_on(any_server, decode_responses=any_server.is_real)
        for shard, (token, count) in reserved.items():
            start = 0
            while page := looker.reserved(shard, token, start):
                assert len(page) <= 1000
                found |= {member.decode(): score for member, score in page}
                start += len(page)
            assert start == count
        assert found == many
        tokens = {shard: token for shard, (token, _) in reserved.items()}
        assert leases.ack_all({**tokens, 9: "of an ick shard that is not leased"}) == {
            shard: count for shard, (_, count) in reserved.items()
        }
        assert sharded.stats()["total_size"] == 0
        # Once more does nothing.
        assert leases.ack_all(tokens) == dict.fromkeys(range(4), 0)
        # Nothing is left of the lists either.
        client = any_server.client()
        assert all(client.strlen(sharded.core.names(i).held) == 30 for i in range(4))

    def test_only_so_many_and_only_where_wanted(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader")
        reserved = leases.reserve({1: 5, 2: 0})
        assert {shard: count for shard, (_, count) in reserved.items()} == {1: 5}
        found = [(each.waiting, each.reserved) for each in seen(sharded)]
        assert [reserved for _, reserved in found] == [0, 5, 0, 0]
        assert sum(waiting for waiting, _ in found) == 95

    def test_large_ones_are_finished_in_parts(
        self, any_server: AnyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workstealing.structures.sharded_ick.leasing.MEMBERS_AN_ACK", 7)
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        (leased, *_) = sharded.lease_all("reader")
        batch = leased.reserve(1000, backwash=True)
        assert len(batch) > 7
        assert leased.ack_all(batch.token) == len(batch)
        assert seen(sharded)[0].reserved == 0

    def test_what_was_dirtied_meanwhile_stays(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader")
        reserved = leases.reserve(dict.fromkeys(range(4), 1000))
        sharded.add({"member 17": 3.0})
        leases.ack_all({shard: token for shard, (token, _) in reserved.items()})
        again = leases.reserve(dict.fromkeys(range(4), 1000))
        ((shard, (token, count)),) = again.items()
        assert count == 1
        assert sharded.reserved(shard, token) == [(b"member 17", 3.0)]

    def test_a_late_finish_is_ignored(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader", lease=60)
        first = leases.reserve(dict.fromkeys(range(4), 1000))
        old = {shard: token for shard, (token, _) in first.items()}
        # Another reservation.
        second = leases.reserve(dict.fromkeys(range(4), 1000))
        assert leases.ack_all(old) == dict.fromkeys(range(4), 0)
        assert all(sharded.reserved(shard, token) is None for shard, token in old.items())
        # Another lease.
        new = {shard: token for shard, (token, _) in second.items()}
        next_leases = sharded_on(any_server).lease_all("reader", lease=60, take_over=True)
        assert leases.ack_all(new) == dict.fromkeys(range(4), 0)
        assert sharded.stats()["cset_size"] == 100
        assert sum(next_leases.ack_all(new).values()) == 100
        assert leases[0].ack_all("") == 0

    def test_a_finish_after_the_lease_has_run_out_is_ignored(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader", lease=60)
        reserved = leases.reserve(dict.fromkeys(range(4), 1000))
        tokens = {shard: token for shard, (token, _) in reserved.items()}
        sharded.core.clock_shift_ms = HOUR_MS
        assert sum(leases.ack_all(tokens).values()) == 0
        assert leases.reserve({0: 5}) == {}
        assert leases.extend() == [0, 1, 2, 3]
        assert sharded.stats()["cset_size"] == 100

    def test_what_a_reaper_has_returned_comes_again(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader", lease=60)
        reserved = leases.reserve(dict.fromkeys(range(4), 1000))
        reaper = IckReaper(sharded, lease=0.001, limit=1000)
        while sharded.stats()["cset_size"] == 100:
            reaper.perform(Slice(1000, 5.0))
        done = leases.ack_all({shard: token for shard, (token, _) in reserved.items()})
        # Whole reservations or nothing of them.
        stats = sharded.stats()
        assert stats["cset_size"] + stats["pset_size"] + sum(done.values()) == 100
        assert sum(done.values()) < 100

    def test_attempts_go_with_what_is_done(self, redis7: RedisServer) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        leases = sharded.lease_all("reader")
        client = redis7.client()
        for shard in range(4):
            client.hset(sharded.core.names(shard).attempts, "member 3", "1 1700000000000")
        reserved = leases.reserve(dict.fromkeys(range(4), 1000))
        leases.ack_all({shard: token for shard, (token, _) in reserved.items()})
        known = [client.hlen(sharded.core.names(shard).attempts) for shard in range(4)]
        assert sorted(known) == [0, 1, 1, 1]

    def test_foreign_keys(self, any_server: AnyServer) -> None:
        sharded = sharded_on(any_server)
        sharded.add(MEMBERS)
        (leased, *_) = sharded.lease_all("reader")
        batch = leased.reserve(10, backwash=True)
        client = any_server.client()
        held = sharded.core.names(0).held
        client.delete(held)
        client.hset(held, "a", "b")
        with pytest.raises(LayoutError, match="reservation"):
            leased.ack_all(batch.token)
        with pytest.raises(LayoutError, match="reservation"):
            sharded.reserved(0, batch.token)
        client.delete(held)
        assert sharded.reserved(0, batch.token) is None
        assert leased.ack_all(batch.token) == 0


def test_asyncio(any_server: AnyServer) -> None:
    async def run() -> None:
        async with any_server.async_client() as client:
            sharded = AsyncShardedIck(client, "orders", 4)
            await sharded.add(MEMBERS)
            leases = await sharded.lease_all("reader", lease=60)
            reserved = await leases.reserve(dict.fromkeys(range(4), 1000))
            tokens = {shard: token for shard, (token, _) in reserved.items()}
            pages = [await sharded.reserved(shard, tokens[shard]) for shard in range(4)]
            assert sorted(member for page in pages for member, _ in page) == sorted(
                name.encode() for name in MEMBERS
            )
            assert await leases.extend() == []
            assert await leases[0].ack_all(tokens[0]) == reserved[0][1]
            await leases.ack_all(tokens)
            assert (await sharded.stats())["total_size"] == 0
            assert await leases.release() == []
            with pytest.raises(LeaseLost):
                await leases[1].reserve(1)

    asyncio.run(run())


def _one_round(operations: list[Any]) -> Any:
    return (yield operations)
