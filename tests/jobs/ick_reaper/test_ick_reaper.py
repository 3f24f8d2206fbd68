"""IckReaper: what it returns, what it leaves, what it sets aside, and what it clears away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Backlog
from workstealing.structures import AsyncIck, Ick
from workstealing.structures.sharded_ick import ShardedIck

pytestmark = pytest.mark.contract

STALE = 500.0
OLD_MS = 1_000_000
"""The separator of a reservation's list is made from its time, modulo this."""


@pytest.fixture
def ick(any_server: AnyServer) -> Ick:
    made: Ick = Ick(any_server.client(), "k")
    return made


def age(ick: Ick) -> None:
    """Make what is reserved, and what was seen, older by 1,000 seconds."""
    client, names = ick.client, ick.names
    held = client.get(names.held)
    if held:
        client.set(names.held, held[:17] + b"%013d" % (int(held[17:30]) - OLD_MS) + held[30:])
    for member, seen in client.hgetall(names.seen).items():
        time, score = seen.split(b" ")
        client.hset(names.seen, member, b"%d %s" % (int(time) - OLD_MS, score))


def reserved_by_ruby(ick: Ick, members: dict[str, float]) -> None:
    ick.client.set(ick.names.version, "ick.v1")
    ick.client.zadd(ick.names.cset, members)


def sets(ick: Ick) -> tuple[dict[bytes, float], dict[bytes, float]]:
    client, names = ick.client, ick.names
    return (
        dict(client.zrange(names.pset, 0, -1, withscores=True)),
        dict(client.zrange(names.cset, 0, -1, withscores=True)),
    )


def reap(ick: Any, limit: int = 5, **options: Any) -> int:
    return IckReaper(ick, STALE, **options).perform(Slice(limit, 10.0))


class TestReservations:
    def test_a_fresh_one_is_left(self, ick: Ick) -> None:
        ick.add({"a": 1})
        ick.reserve(1)
        assert reap(ick) == 0
        assert ick.ack("a") == 1

    def test_a_stale_one_goes_back(self, ick: Ick) -> None:
        ick.add({"a": 1, "b": 2})
        ick.reserve(2)
        age(ick)
        assert reap(ick) == 2
        assert sets(ick) == ({b"a": 1.0, b"b": 2.0}, {})
        assert reap(ick) == 0

    def test_the_lower_score_wins(self, ick: Ick) -> None:
        ick.add({"a": 5, "b": 5})
        ick.reserve(2)
        ick.add({"a": 3, "b": 9})
        age(ick)
        assert reap(ick) == 2
        assert sets(ick) == ({b"a": 3.0, b"b": 5.0}, {})

    def test_never_more_than_the_limit(self, ick: Ick) -> None:
        ick.add({f"m{i}": i for i in range(12)})
        ick.reserve(12)
        age(ick)
        left = []
        for _ in range(4):
            reap(ick)
            left.append(len(sets(ick)[1]))
        assert left == [7, 2, 0, 0]

    def test_a_late_commit_is_ignored_even_of_what_is_not_returned_yet(self, ick: Ick) -> None:
        ick.add({"a": 1, "b": 2})
        ick.reserve(2)
        age(ick)
        assert reap(ick, limit=1) == 1
        late = ick.ack("a", "b")
        assert (late, late.ignored) == (0, 2)
        assert reap(ick) == 1
        assert sets(ick)[0] == {b"a": 1.0, b"b": 2.0}

    def test_the_change_that_would_be_lost_without_tokens(self, ick: Ick) -> None:
        """A reads, stalls, is reaped; the member is dirtied; B reserves; A commits; B dies."""
        ick.add({"a": 1})
        ick.reserve(1)
        age(ick)
        assert reap(ick) == 1
        ick.add({"a": 2})
        other: Ick = Ick(ick.client, "k")
        assert other.reserve(1) == [(b"a", 1.0)]
        assert ick.ack("a").ignored == 1
        age(ick)
        assert reap(ick) == 1
        assert sets(ick)[0] == {b"a": 1.0}

    def test_whoever_reserves_next_works_on(self, ick: Ick) -> None:
        ick.add({"a": 1})
        ick.reserve(1)
        age(ick)
        reap(ick)
        assert ick.reserve(1) == [(b"a", 1.0)]
        assert reap(ick) == 0
        assert ick.ack("a") == 1

    @pytest.mark.parametrize("member", [b"", b"\n", b"\x00\xff{}", b"1 2:3", b"\n123456\n"])
    def test_any_member(self, ick: Ick, member: bytes) -> None:
        ick.add({member: 1, "other": 2})
        ick.reserve(2)
        age(ick)
        assert reap(ick) == 2
        assert sets(ick) == ({member: 1.0, b"other": 2.0}, {})

    def test_a_separator_that_somebody_has_guessed(self, ick: Ick) -> None:
        """It is taken for a member that is not listed: it waits longer, and is not lost."""
        ick.add({"a": 1})
        ick.reserve(1)
        held = ick.client.get(ick.names.held)
        between = held[30:38]
        guessed = b"x" + between + b"y"
        ick.client.zadd(ick.names.cset, {guessed: 2})
        ick.client.append(ick.names.held, between + guessed + between + b"2")
        for _ in range(3):
            age(ick)
            reap(ick)
        assert sets(ick) == ({b"a": 1.0, guessed: 2.0}, {})


class TestRuby:
    """Members that a client without tokens reserved are judged by when a slice first saw them."""

    def test_they_are_noted_first_and_returned_later(self, ick: Ick) -> None:
        reserved_by_ruby(ick, {"a": 1, "b": 2})
        assert reap(ick) == 0
        assert set(ick.client.hkeys(ick.names.seen)) == {b"a", b"b"}
        assert reap(ick) == 0
        age(ick)
        assert reap(ick) == 2
        assert sets(ick) == ({b"a": 1.0, b"b": 2.0}, {})
        assert ick.client.hlen(ick.names.seen) == 0

    def test_the_next_reservation_of_a_member_counts_anew(self, ick: Ick) -> None:
        reserved_by_ruby(ick, {"a": 1})
        reap(ick)
        age(ick)
        # Committed, dirtied and reserved again: its score is another one.
        ick.client.zadd(ick.names.cset, {"a": 7})
        assert reap(ick) == 0
        age(ick)
        assert reap(ick) == 1

    def test_many_of_them(self, ick: Ick) -> None:
        reserved_by_ruby(ick, {f"m{i}": i for i in range(30)})
        while ick.client.hlen(ick.names.seen) < 30:
            assert reap(ick, limit=10) == 0
        age(ick)
        assert [reap(ick, limit=10) for _ in range(4)] == [10, 10, 10, 0]

    def test_a_reservation_of_ours_that_is_fresh_covers_them(self, ick: Ick) -> None:
        """Its consumer gets them with its next reserve."""
        ick.add({"mine": 5})
        reserved_by_ruby(ick, {"a": 1})
        ick.reserve(1)
        ick.client.hset(ick.names.seen, "a", b"5 1")
        assert reap(ick) == 0
        assert b"a" in sets(ick)[1]

    def test_ours_goes_back_at_once_and_theirs_is_noted(self, ick: Ick) -> None:
        ick.add({"mine": 5})
        ick.reserve(1)
        reserved_by_ruby(ick, {"a": 1})
        age(ick)
        assert reap(ick) == 1
        assert sets(ick) == ({b"mine": 5.0}, {b"a": 1.0})
        age(ick)
        assert reap(ick) == 1

    def test_what_ours_had_listed_once_is_not_judged_by_that(self, ick: Ick) -> None:
        ick.add({"a": 5})
        ick.reserve(1)
        ick.ack("a")
        age(ick)
        reserved_by_ruby(ick, {"a": 1})
        assert reap(ick) == 0
        assert ick.client.hlen(ick.names.seen) == 1


class TestDead:
    def worn_out(self, ick: Ick, member: str = "a", times: int = 3) -> None:
        for _ in range(times):
            assert ick.reserve(1) == [(member.encode(), 1.0)]
            age(ick)
            assert reap(ick, max_attempts=2) == 1

    def test_past_max_attempts_a_member_is_set_aside_with_its_history(self, ick: Ick) -> None:
        ick.add({"a": 1})
        self.worn_out(ick, times=2)
        assert ick.dead() == []
        self.worn_out(ick, times=1)
        assert sets(ick) == ({}, {})
        (dead,) = ick.dead()
        assert (dead.member, dead.score, dead.attempts) == (b"a", 1.0, 3)
        assert list(dead.times) == sorted(dead.times)
        assert len(dead.times) == 3
        assert ick.stats()["dead_size"] == 1
        assert ick.client.hlen(ick.names.attempts) == 0

    def test_a_commit_forgets_attempts(self, ick: Ick) -> None:
        ick.add({"a": 1})
        for _ in range(5):
            self.worn_out(ick, times=2)
            ick.reserve(1)
            ick.ack("a")
            ick.add({"a": 1})
        assert ick.dead() == []

    def test_an_exchange_forgets_attempts(self, ick: Ick) -> None:
        ick.add({"a": 1})
        self.worn_out(ick, times=2)
        ick.reserve(1)
        ick.exchange(1, "a")
        assert ick.client.hlen(ick.names.attempts) == 0

    def test_the_dead_are_put_back(self, ick: Ick) -> None:
        ick.add({"a": 1})
        self.worn_out(ick)
        ick.add({"a": 3})
        assert ick.revive("a", "never dead") == 1
        assert sets(ick)[0] == {b"a": 1.0}
        assert ick.dead() == []
        self.worn_out(ick, times=2)
        assert ick.dead() == []

    def test_the_dead_are_discarded(self, ick: Ick) -> None:
        ick.add({"a": 1})
        self.worn_out(ick)
        assert ick.discard("a", "never dead") == 1
        assert ick.stats()["dead_size"] == 0
        assert ick.stats()["total_size"] == 0

    def test_who_dies_again_has_one_history(self, ick: Ick) -> None:
        ick.add({"a": 1})
        self.worn_out(ick)
        ick.add({"a": 1})
        self.worn_out(ick)
        (dead,) = ick.dead()
        assert (dead.attempts, len(dead.times)) == (6, 6)

    def test_scores_of_every_size(self, ick: Ick) -> None:
        scores = {"inf": float("inf"), "-inf": -float("inf"), "time": 1763646000.123456}
        ick.add(scores)
        for _ in range(2):
            ick.reserve(3)
            age(ick)
            assert reap(ick, max_attempts=1) == 3
        assert {d.member.decode(): d.score for d in ick.dead()} == scores
        assert ick.revive(*scores) == 3
        assert {m.decode(): s for m, s in ick.reserve(3)} == scores

    def test_the_dead_are_listed_from_the_oldest_on(self, ick: Ick) -> None:
        """They came at random, and nothing said that there were more."""
        assert (ick.dead(), ick.dead().more) == ([], 0)
        history = '{"score": "1", "attempts": 1, "times": [1, %d]}'
        order = [i * 7 % 900 for i in range(900)]
        ick.client.hset(ick.names.dead, mapping={f"m{i}": history % (1000 * i) for i in order})
        listed = ick.dead(50)
        assert [each.member for each in listed] == [b"m%d" % i for i in range(50)]
        assert (listed.total, listed.more) == (900, 850)

    def test_so_many_dead(self, ick: Ick) -> None:
        history = '{"score": "1", "attempts": 1, "times": []}'
        ick.client.hset(ick.names.dead, mapping={f"m{i}": history for i in range(2500)})
        assert (len(ick.dead(7)), ick.dead(7).total, ick.dead(7).more) == (7, 2500, 2493)
        assert (len(ick.dead(5000)), ick.dead(5000).more) == (2500, 0)
        members = [f"m{i}" for i in range(2500)]
        assert ick.revive(*members[:1200]) == 1200
        assert ick.discard(*members) == 1300
        assert ick.revive() == ick.discard() == 0

    def test_a_history_that_cannot_be_read_is_put_back_first(self, ick: Ick) -> None:
        ick.client.hset(ick.names.dead, "a", "garbage")
        assert ick.revive("a") == 1
        assert sets(ick)[0] == {b"a": 0.0}


class TestSidecars:
    def test_entries_without_a_member_are_cleared_away(self, ick: Ick) -> None:
        names = ick.names
        ick.add({"waiting": 1})
        reserved_by_ruby(ick, {"reserved": 1})
        ick.client.hset(
            names.attempts, mapping={"waiting": "1 5", "reserved": "1 5", "gone": "1 5"}
        )
        ick.client.hset(names.seen, mapping={"waiting": "5 1", "gone": "5 1"})
        ick.client.hset(names.seen, "reserved", b"%d 1" % 9_000_000_000_000)
        assert reap(ick) == 3
        assert set(ick.client.hkeys(names.attempts)) == {b"waiting", b"reserved"}
        assert ick.client.hkeys(names.seen) == [b"reserved"]

    def test_many_of_them_in_slices(self, ick: Ick) -> None:
        ick.client.hset(ick.names.attempts, mapping={f"m{i}": "1 5" for i in range(13)})
        assert [reap(ick) for _ in range(4)] == [5, 5, 3, 0]

    def test_garbage_in_them_is_taken_for_nothing(self, ick: Ick) -> None:
        ick.add({"a": 1})
        ick.reserve(1)
        ick.client.hset(ick.names.attempts, "a", "garbage")
        reserved_by_ruby(ick, {"b": 1})
        ick.client.hset(ick.names.seen, "b", "garbage")
        age_held_only(ick)
        assert reap(ick) == 1
        assert ick.client.hget(ick.names.attempts, "a").startswith(b"1 ")

    def test_a_list_that_ruby_has_left_behind(self, ick: Ick) -> None:
        ick.add({"a": 1})
        ick.reserve(1)
        ick.client.zrem(ick.names.cset, "a")
        assert reap(ick) == 1
        assert len(ick.client.get(ick.names.held)) == 30
        assert reap(ick) == 0


def age_held_only(ick: Ick) -> None:
    held = ick.client.get(ick.names.held)
    ick.client.set(ick.names.held, held[:17] + b"%013d" % (int(held[17:30]) - OLD_MS) + held[30:])


class TestTheJob:
    def test_a_dry_run_changes_nothing(self, ick: Ick) -> None:
        ick.add({f"m{i}": i for i in range(8)})
        ick.reserve(8)
        age(ick)
        before = ick.client.dump(ick.names.held), sets(ick)
        assert reap(ick, dry_run=True) == 5
        assert reap(ick, limit=50, dry_run=True) == 8
        assert (ick.client.dump(ick.names.held), sets(ick)) == before

    def test_its_backlog(self, ick: Ick) -> None:
        job = IckReaper(ick, STALE)
        assert job.backlog() == Backlog(0, 0.0, "stale reservations")
        ick.add({f"m{i}": i for i in range(40)})
        ick.reserve(40)
        assert job.backlog() == Backlog(0, 0.0, "stale reservations")
        age(ick)
        backlog = job.backlog()
        assert (backlog.count, backlog.exact) == (40, True)
        assert 1000 - STALE <= backlog.oldest_seconds < 1060 - STALE
        part = job.backlog(most_members=5)
        assert (part.count, part.exact) == (40, False)

    def test_an_icks_of_several(self, any_server: AnyServer) -> None:
        icks: list[Ick] = [Ick(any_server.client(), f"k{i}") for i in range(3)]
        for one in icks:
            one.add({"a": 1})
            one.reserve(1)
            age(one)
        turns = iter([0.0, 0.0, 0.5, 0.0, 0.99, 0.0])

        class Several:
            name = "several"

            def __init__(self) -> None:
                self.icks = icks

        class Others:
            def shards(self) -> list[Ick]:
                return icks

        job = IckReaper(Several(), STALE, random=lambda: next(turns))
        assert job.name == "ick_reaper.several"
        assert job.backlog().count == 3
        for one in icks:
            assert job.perform(Slice(5, 10.0)) == 1
            assert sets(one) == ({b"a": 1.0}, {})
        assert IckReaper(Others(), STALE).name == "ick_reaper.k0"

    def test_a_sharded_one(self, any_server: AnyServer) -> None:
        sharded: ShardedIck = ShardedIck(any_server.client(), "several", 4)
        sharded.add({f"m{i}": i for i in range(40)})
        with sharded.lease("dies") as leased:
            assert len(leased.reserve(3)) == 3
        for one in sharded.icks:
            age(one)
        turns = itertools.cycle([0.1, 0.3, 0.6, 0.9])
        job = IckReaper(sharded, STALE, random=lambda: next(turns))
        assert job.name == "ick_reaper.several"
        assert job.backlog().count == 3
        for _ in range(40):
            job.perform(Slice(5, 10.0))
        assert job.backlog().count == 0
        assert sum(len(sets(one)[0]) for one in sharded.icks) == 40

    def test_beside_an_asyncio_client(self, any_server: AnyServer) -> None:
        async def leave_one() -> Any:
            async with any_server.async_client() as client:
                one: Any = AsyncIck(client, "k")
                await one.add({"a": 1})
                await one.reserve(1)
                age(Ick(any_server.client(), "k"))
                return await asyncio.to_thread(reap, one)

        if not any_server.is_real:
            pytest.skip("fakeredis shares no server between loops and threads")
        assert asyncio.run(leave_one()) == 1

    def test_its_name_and_dependency(self, ick: Ick) -> None:
        assert IckReaper(ick, 5).name == "ick_reaper.k"
        assert IckReaper(ick, 5, name="mine").name == "mine"
        assert IckReaper(ick, 5).dependency == ick.job_client.identity

    @pytest.mark.parametrize("lease", [0, -1, "5", None, True, float("inf"), float("nan")])
    def test_an_age_that_is_none(self, ick: Ick, lease: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"lease=.* is no such time: give a number of"):
            IckReaper(ick, lease)

    def test_a_lease_may_be_a_timedelta(self, ick: Ick) -> None:
        ick.add({"a": 1})
        ick.reserve(1)
        age(ick)
        assert IckReaper(ick, timedelta(seconds=STALE)).backlog().count == 1
        assert IckReaper(ick, timedelta(hours=1)).backlog().count == 0

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_a_slice_tells_its_backlog_and_the_age_of_the_oldest(
        self, ick: Ick, dry_run: bool
    ) -> None:
        slice = Slice(5, 10.0)
        job = IckReaper(ick, STALE, dry_run=dry_run)
        job.perform(slice)
        assert (slice.backlog, slice.oldest_seconds) == (0, 0.0)
        ick.add({f"m{i}": i for i in range(40)})
        ick.reserve(40)
        age(ick)
        slice = Slice(5, 10.0)
        assert job.perform(slice) == 5
        assert slice.backlog == 40
        assert slice.oldest_seconds is not None
        assert 1000 - STALE <= slice.oldest_seconds < 1060 - STALE

    @pytest.mark.parametrize("most", [0, -1, 1.5, None, True])
    def test_a_number_of_attempts_that_is_none(self, ick: Ick, most: Any) -> None:
        with pytest.raises(
            ConfigurationError, match=r"max_attempts is .*expected a number of times"
        ):
            IckReaper(ick, 5, max_attempts=most)

    def test_what_is_no_ick(self, ick: Ick) -> None:
        class Several:
            icks: tuple[Any, ...] = ()

        for wrong in (None, "k", ick.client, Several()):
            with pytest.raises(ConfigurationError, match="cannot be reaped: give an Ick"):
                IckReaper(wrong, 5)


@pytest.mark.real
class TestRaces:
    """Another writer comes between the look and the end of an attempt."""

    @pytest.fixture
    def stale(self, redis7: RedisServer) -> Ick:
        ick: Ick = Ick(redis7.client(), "k")
        ick.add({"a": 1, "b": 2})
        ick.reserve(2)
        age(ick)
        return ick

    @pytest.mark.parametrize(
        "between",
        [
            lambda ick: ick.ack("a"),
            lambda ick: ick.reserve(2),
            lambda ick: ick.reserve(2, backwash=True),
            lambda ick: ick.client.zrem(ick.names.cset, "b"),
            lambda ick: IckReaper(ick, STALE).perform(Slice(1, 10.0)),
            lambda ick: ick.delete(),
        ],
        ids=["ack", "reserve", "backwash", "ruby", "reaper", "delete"],
    )
    def test_the_attempt_is_aborted(self, stale: Ick, between: Callable[[Ick], Any]) -> None:
        other: Ick = Ick(stale.client, "k")
        other.token = stale.token

        def come_between() -> float:
            nonlocal after
            if after is None:
                between(other)
                after = sets(stale)
            return 0.5

        after: Any = None
        with pytest.raises(Aborted):
            reap(stale, random=come_between)
        assert sets(stale) == after

    def test_adding_disturbs_nobody(self, stale: Ick) -> None:
        def add() -> float:
            stale.add({"a": 0.5, "c": 9})
            return 0.5

        assert reap(stale, random=add) == 2
        assert sets(stale) == ({b"a": 0.5, b"b": 2.0, b"c": 9.0}, {})


@pytest.mark.real
class TestFullMemory:
    """A full server refuses a MULTI; a script that begins by deleting passes."""

    @pytest.fixture
    def full(self, start_redis: Callable[..., RedisServer]) -> Ick:
        server = start_redis(7, maxmemory_policy="noeviction")
        ick: Ick = Ick(server.client(), "k")
        ick.add({f"m{i}": i for i in range(20)})
        ick.reserve(10)
        age(ick)
        ick.client.config_set("maxmemory", 1)
        return ick

    def test_reservations_are_returned(self, full: Ick) -> None:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            full.add({"more": 1})
        assert [reap(full) for _ in range(3)] == [5, 5, 0]
        assert len(sets(full)[0]) == 20

    def test_members_are_set_aside(self, full: Ick) -> None:
        assert reap(full, limit=50) == 10
        full.reserve(10)
        age_when_full(full)
        assert reap(full, limit=50, max_attempts=1) == 10
        assert full.stats()["dead_size"] == 10

    def test_somebody_reserves_before_the_script_alone_does(self, full: Ick) -> None:
        calls = []

        def take_over() -> float:
            if not calls:
                calls.append(Ick(full.client, "k").reserve(10))
            return 0.5

        with pytest.raises(Aborted):
            reap(full, random=take_over)
        assert len(sets(full)[1]) == 10

    def test_notes_wait_until_there_is_room(self, full: Ick) -> None:
        full.client.config_set("maxmemory", 0)
        full.delete()
        reserved_by_ruby(full, {"a": 1})
        full.client.config_set("maxmemory", 1)
        assert reap(full) == 0
        assert full.client.hlen(full.names.seen) == 0
        full.client.config_set("maxmemory", 0)
        assert reap(full) == 0
        assert full.client.hlen(full.names.seen) == 1


def age_when_full(ick: Ick) -> None:
    ick.client.config_set("maxmemory", 0)
    age(ick)
    ick.client.config_set("maxmemory", 1)


def test_a_foreign_layout_is_refused(redis7: RedisServer) -> None:
    ick: Ick = Ick(redis7.client(), "k")
    ick.client.set("k", "ick.v9")
    with pytest.raises(LayoutError, match=r"says ick\.v9"):
        reap(ick)
