"""The Ick's contract, on every kind of server, by a client, asyncio and pipelines."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
import pickle
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.recording import Recording
from support.servers import AnyServer, RedisServer
from support.steps import send
from workstealing.errors import ConfigurationError, CrossSlotError, LayoutError
from workstealing.jobs import IckReaper, ick_reaper
from workstealing.recruiting import Slice
from workstealing.store.scripts import load
from workstealing.structures import (
    AsyncIck,
    AsyncShardedIck,
    Ick,
    ShardedIck,
)
from workstealing.structures.ick import ick as ick_module

pytestmark = pytest.mark.contract

INF = math.inf


@pytest.fixture(params=["blocking", "asyncio", "pipeline", "asyncio pipeline"])
def make(request: pytest.FixtureRequest, any_server: AnyServer) -> Callable[..., Any]:
    """Make Icks whose methods return results, whatever the form that they are called in."""

    def made(key: str | bytes = "k", **options: Any) -> Any:
        return Driven(any_server, key, request.param, options)

    return made


class Driven:
    """An Ick in one of its forms, called as if it were the blocking one."""

    def __init__(
        self, server: AnyServer, key: str | bytes, form: str, options: dict[str, Any]
    ) -> None:
        self.form = form
        self.client = server.client()
        self._server = server
        self._options = options
        self._key = key
        self._token = ""
        self.names = Ick(self.client, key).names

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.form.startswith("asyncio"):
                return asyncio.run(self._async_call(method, args, options))
            ick = Ick(self._server.client(**self._options), self._key)
            ick.token = self._token
            if self.form == "pipeline":
                with ick.pipeline() as pipe:
                    getattr(pipe, method)(*args, **options)
                    pipe.set("{" + str(self._key) + "}mine", 1)
                    result, mine = pipe.execute()
                assert mine
            else:
                result = getattr(ick, method)(*args, **options)
            self._token = ick.token
            return result

        return call

    async def _async_call(self, method: str, args: Any, options: Any) -> Any:
        async with self._server.async_client(**self._options) as client:
            ick: Any = AsyncIck(client, self._key)
            ick.token = self._token
            if self.form == "asyncio":
                result = await getattr(ick, method)(*args, **options)
            else:
                async with ick.pipeline() as pipe:
                    getattr(pipe, method)(*args, **options)
                    pipe.set("{" + str(self._key) + "}mine", 1)
                    result, mine = await pipe.execute()
                assert mine
            self._token = ick.token
            return result

    def sets(self) -> tuple[dict[bytes, float], dict[bytes, float]]:
        """What stands in the producer and in the consumer set."""
        pset, cset = self.names.pset, self.names.cset
        return (
            dict(self.client.zrange(pset, 0, -1, withscores=True)),
            dict(self.client.zrange(cset, 0, -1, withscores=True)),
        )


class TestEveryForm:
    def test_a_member_goes_through(self, make: Callable[..., Any]) -> None:
        ick = make()
        assert ick.stats() is None
        assert ick.add({"a": 12.5, b"b\xff\x00": 3}) == (2, 0)
        assert ick.add([("a", 7), (b"b\xff\x00", 9), ("c", INF), ("d", -INF)]) == (2, 1)
        batch = ick.reserve(3)
        assert batch == [(b"d", -INF), (b"b\xff\x00", 3.0), (b"a", 7.0)]
        assert batch.members == [b"d", b"b\xff\x00", b"a"]
        assert ick.reserve(3) == batch
        done = ick.ack("d", b"b\xff\x00")
        assert (done, done.ignored) == (2, 0)
        again = ick.exchange(5, "a")
        assert again == [(b"c", INF)]
        assert (again.acked, again.acked.ignored) == (1, 0)
        assert ick.sets() == ({}, {b"c": INF})
        assert ick.delete() > 0
        assert ick.stats() is None
        assert ick.delete(unlink=False) == 0

    def test_write_folding_in_both_sets(self, make: Callable[..., Any]) -> None:
        ick = make()
        ick.add({"a": 5, "b": 6})
        assert ick.add({"a": 4}) == (0, 1)
        assert ick.add({"a": 9}) == (0, 0)
        ick.reserve(1)
        # Dirtied while it is worked on: it stands in both sets.
        ick.add({"a": 3})
        assert ick.sets() == ({b"a": 3.0, b"b": 6.0}, {b"a": 4.0})
        # The lower score wins, and a member that is in both sets takes no place.
        assert ick.reserve(2) == [(b"a", 3.0), (b"b", 6.0)]
        assert ick.sets() == ({}, {b"a": 3.0, b"b": 6.0})

    @pytest.mark.slow
    def test_reserving_nothing_makes_an_ick_and_moves_nothing(
        self, make: Callable[..., Any]
    ) -> None:
        ick = make()
        assert ick.reserve(0) == []
        assert ick.stats()["total_size"] == 0
        assert ick.delete() == 1
        ick.add({"a": 1})
        batch = ick.reserve(1)
        assert ick.reserve(0) == []
        assert ick.sets() == ({}, {b"a": 1.0})
        assert ick.exchange(0, "a").acked == 1
        assert ick.ack("a", token=batch.token) == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("size", [3, 1_000, 2_500])
    def test_a_batch_is_handed_back(self, make: Callable[..., Any], size: int) -> None:
        ick = make()
        members = {f"m{i:04}": i for i in range(size)}
        ick.add(members)
        batch = ick.reserve(size)
        ick.add({"m0001": 0.5, "m0002": 9_999})
        handed = ick.exchange(0, "m0000", backwash=True)
        assert (handed, handed.acked, handed.token) == ([], 1, "")
        waiting, reserved = ick.sets()
        assert reserved == {}
        assert (len(waiting), waiting[b"m0001"], waiting[b"m0002"]) == (size - 1, 0.5, 2.0)
        # Whoever reserves the same members next is not undone by a late commit.
        assert ick.ack("m0001", token=batch.token) == 0
        assert ick.reserve(1) == [(b"m0001", 0.5)]
        assert ick.reserve(0, backwash=True) == []
        assert ick.sets()[1] == {}

    def test_members_given_twice_are_taken_in_order(self, make: Callable[..., Any]) -> None:
        ick = make()
        assert ick.add([("m", 5), ("m", 3)]) == (1, 1)
        assert ick.add([("m", 2), ("m", 3), (b"m", 1)]) == (0, 2)
        assert ick.add([("n", 3), ("n", 5)]) == (1, 0)
        assert ick.add(["t", ("t", 1), ("t", 2)]) == (1, 1)
        assert ick.sets()[0] == {b"m": 1.0, b"n": 3.0, b"t": 1.0}

    @pytest.mark.parametrize(
        "call",
        [
            lambda ick: ick.add({}),
            lambda ick: ick.reserve(0),
            lambda ick: ick.reserve(0, backwash=True),
            lambda ick: ick.ack(),
            lambda ick: ick.exchange(0),
        ],
    )
    def test_nothing_to_do_is_refused_on_a_foreign_key(
        self, make: Callable[..., Any], call: Callable[[Any], Any]
    ) -> None:
        ick = make()
        ick.client.set("k", "mine")
        with pytest.raises(LayoutError, match=r"says mine where .* was expected"):
            call(ick)
        assert ick.client.get("k") == b"mine"

    def test_only_redis_icks_own_keys_are_counted_as_deleted(
        self, make: Callable[..., Any]
    ) -> None:
        for options, expected in (({}, 3), ({"unlink": False}, 3)):
            ick = make()
            ick.add({"a": 1, "b": 2})
            ick.reserve(1)
            assert ick.delete(**options) == expected
            assert ick.client.exists(*ick.names.all) == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("n", [sys.maxsize, 10**17, 10**30])
    def test_reserving_all_that_there_may_be(self, make: Callable[..., Any], n: int) -> None:
        ick = make()
        ick.add({"a": 1, "b": 2, "c": 3})
        assert ick.reserve(n).members == [b"a", b"b", b"c"]
        ick.add({"d": 4})
        batch = ick.exchange(n, "a")
        assert (batch.members, batch.acked) == ([b"b", b"c", b"d"], 1)
        assert ick.client.get(ick.names.held).startswith(batch.token.encode())

    def test_reserving_from_nothing_makes_an_ick_without_members(
        self, make: Callable[..., Any]
    ) -> None:
        ick = make()
        assert ick.reserve(3) == []
        assert ick.stats()["total_size"] == 0

    def test_backwash_returns_the_lowest_of_all(self, make: Callable[..., Any]) -> None:
        ick = make()
        ick.add({"a": 5, "b": 6})
        ick.reserve(2)
        ick.add({"c": 1, "b": 2})
        assert ick.reserve(2) == [(b"a", 5.0), (b"b", 6.0)]
        assert ick.reserve(2, backwash=True) == [(b"c", 1.0), (b"b", 2.0)]
        assert ick.sets() == ({b"a": 5.0}, {b"b": 2.0, b"c": 1.0})

    def test_a_score_is_the_servers_time_if_none_is_given(self, make: Callable[..., Any]) -> None:
        ick = make()
        before = _server_seconds(ick.client)
        assert ick.add("one") == (1, 0)
        assert ick.add([b"two", ("three", None)]) == (2, 0)
        after = _server_seconds(ick.client)
        batch = ick.reserve(9)
        assert {member for member, _ in batch} == {b"one", b"two", b"three"}
        assert all(before <= score <= after for _, score in batch)

    def test_nothing_to_add_or_to_commit(self, make: Callable[..., Any]) -> None:
        ick = make()
        assert ick.add({}) == (0, 0)
        assert ick.client.get(ick.names.version) == b"ick.v1"
        assert ick.ack() == 0
        assert ick.delete() == 1

    def test_stats_have_redis_icks_fields(self, make: Callable[..., Any]) -> None:
        ick = make()
        ick.add({"a": 5, "b": 6, "c": 7.5})
        ick.reserve(1)
        assert ick.stats() == {
            "key": "k",
            "pset_key": "k/ick/{k}/pset",
            "cset_key": "k/ick/{k}/cset",
            "ver": "ick.v1",
            "cset_size": 1,
            "pset_size": 2,
            "total_size": 3,
            "pset_min": 6.0,
            "pset_max": 7.5,
            "cset_min": 5.0,
            "cset_max": 5.0,
            "total_min": 5.0,
            "total_max": 7.5,
            "dead_size": 0,
            "waiting_size": 0,
            "mixed_units": False,
        }

    @pytest.mark.slow
    def test_more_members_than_lua_has_room_for_in_one_call(
        self, make: Callable[..., Any], request: pytest.FixtureRequest
    ) -> None:
        if "fakeredis" in request.node.callspec.id:
            pytest.skip("fakeredis takes minutes")
        ick = make()
        # Lua's room is 8,000 values. By one form a number that a user may well have in hand.
        many = 100_000 if ick.form == "blocking" else 20_000
        members = {f"member:{i}": i for i in range(many)}
        assert ick.add(members) == (many, 0)
        assert ick.add(members) == (0, 0)
        batch = ick.reserve(many)
        assert batch.members[:2] == [b"member:0", b"member:1"]
        assert len(batch) == many
        assert ick.exchange(3, *batch.members[:-1_000]).acked == many - 1_000
        assert ick.ack(*batch.members[-1_000:]) == 1_000

    def test_replies_of_a_client_that_decodes(self, make: Callable[..., Any]) -> None:
        ick = make("\u00fcber", decode_responses=True)
        ick.add({"sch\u00f6n": 1})
        batch = ick.reserve(1)
        assert batch == [("sch\u00f6n", 1.0)]
        assert ick.stats()["key"] == "\u00fcber"
        assert ick.ack("sch\u00f6n", token=batch.token) == 1

    @pytest.mark.parametrize("protocol", [2, 3])
    def test_replies_by_both_protocols(self, make: Callable[..., Any], protocol: int) -> None:
        ick = make(protocol=protocol)
        ick.add({"a": 1.25, "b": INF})
        assert ick.reserve(2) == [(b"a", 1.25), (b"b", INF)]
        assert ick.stats()["cset_max"] == INF


class TestTokens:
    """A commit carries its reservation's token; one that does not hold any more is ignored."""

    def test_a_late_commit_is_ignored_and_said_so(self, any_server: AnyServer) -> None:
        slow: Ick = Ick(any_server.client(), "k")
        quick: Ick = Ick(any_server.client(), "k")
        slow.add({"a": 1, "b": 2})
        slow.reserve(2)
        taken = quick.reserve(2)
        late = slow.ack("a", "b")
        assert (late, late.ignored) == (0, 2)
        assert quick.exchange(2, "a") == [(b"b", 2.0)]
        assert len(taken) == 2

    def test_a_token_goes_to_another_process(self, any_server: AnyServer) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1})
        batch = ick.reserve(1)
        other: Ick = Ick(any_server.client(), "k")
        assert other.ack("a") == 0
        assert other.ack("a", token=batch.token) == 1

    def test_a_batch_goes_to_another_process(self, any_server: AnyServer) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1, "b": 2})
        batch = ick.exchange(2, "c")
        sent = pickle.loads(pickle.dumps(batch))
        for each in (sent, copy.deepcopy(batch), copy.copy(batch)):
            assert (each, each.token, each.members) == (batch, batch.token, [b"a", b"b"])
            assert (each.acked, each.acked.ignored) == (0, 1)
        assert Ick(any_server.client(), "k").ack(*sent.members, token=sent.token) == 2

    def test_a_pipeline_commits_what_its_ick_has_reserved_since(
        self, any_server: AnyServer
    ) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        pipe = ick.pipeline()
        ick.add({"a": 1, "b": 2})
        ick.reserve(1)
        assert pipe.ack("a").reserve(1).execute() == [1, [(b"b", 2.0)]]
        assert ick.ack("b") == 1

    def test_tokens_grow_though_the_clock_is_set_back(self, any_server: AnyServer) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1})
        ick.reserve(1)
        ick.client.set(ick.names.held, b"8999999999999998 8999999999999")
        tokens = [ick.reserve(1).token for _ in range(2)]
        assert tokens == ["8999999999999999", "9000000000000000"]

    def test_what_was_not_reserved_is_ignored(self, any_server: AnyServer) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1, "b": 2})
        ick.reserve(1)
        done = ick.ack("a", "b", "c")
        assert (done, done.ignored) == (1, 2)

    def test_the_last_commit_leaves_no_list_behind(self, any_server: AnyServer) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1, "b": 2})
        ick.reserve(2)
        ick.ack("a")
        assert ick.client.get(ick.names.held)[30:].split(b"\n")[2::2] == [b"a", b"1", b"b", b"2"]
        ick.ack("b")
        assert len(ick.client.get(ick.names.held)) == 30

    def test_what_is_dirtied_while_it_is_worked_on_is_reserved_again(
        self, any_server: AnyServer
    ) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1})
        ick.reserve(1)
        ick.add({"a": 2})
        ick.ack("a")
        assert ick.reserve(1) == [(b"a", 2.0)]

    def test_who_does_not_hold_a_reservation_does_not_hand_it_back(
        self, any_server: AnyServer
    ) -> None:
        late: Ick = Ick(any_server.client(), "k")
        heir: Ick = Ick(any_server.client(), "k")
        late.add({"a": 1, "b": 2})
        late.reserve(2)
        heir.reserve(2)
        late.reserve(0, backwash=True)
        assert heir.stats()["cset_size"] == 2
        # One that has never reserved, a tool's for instance, hands back whatever there is.
        Ick(any_server.client(), "k").reserve(0, backwash=True)
        assert heir.stats()["cset_size"] == 0
        assert heir.ack("a") == 0


class TestPieces:
    """A reservation of more members than one script may make is one reservation all the same."""

    @pytest.fixture
    def ick(self, redis7: RedisServer) -> Ick:
        ick: Ick = Ick(redis7.client(), "k")
        ick.add({f"m{i:05}": i for i in range(3_500)})
        return ick

    def test_one_token_and_one_list(self, ick: Ick) -> None:
        batch = ick.reserve(3_200)
        assert batch.members == [b"m%05d" % i for i in range(3_200)]
        text = ick.client.get(ick.names.held)
        assert text.startswith(batch.token.encode() + b" ")
        entries = text[30:].split(b"\n" + text[24:30])
        assert sum(b"m" in entry for entry in entries) == 3_200
        # As one script would have written it, milestones and all.
        separator, milestone = b"\n" + text[24:30] + b"\n", b"\n" + text[24:30] + b":"
        parts = []
        for i in range(3_200):
            parts += [separator, b"m%05d" % i, separator, b"%d" % i]
            if i % 8 == 7:
                parts.append(milestone)
        assert text[30:] == b"".join(parts)
        assert ick.ack(*batch.members) == 3_200

    def test_what_was_reserved_before_is_merged(self, ick: Ick) -> None:
        ick.reserve(1_500)
        ick.add({"m00007": 0.5, "early": -1})
        batch = ick.reserve(3_300)
        assert batch.members[:2] == [b"early", b"m00000"]
        assert len(batch) == len(set(batch.members)) == 3_300
        assert dict(batch)[b"m00007"] == 0.5
        assert ick.reserve(2_100).members == batch.members[:2_100]

    def test_backwash_of_more_than_one_piece(self, ick: Ick) -> None:
        ick.reserve(3_400)
        ick.add({"early": -1})
        batch = ick.reserve(2_200, backwash=True)
        assert batch.members == [b"early", *(b"m%05d" % i for i in range(2_199))]
        assert ick.stats()["cset_size"] == 2_200

    def test_somebody_else_reserves_between_two_pieces(self, ick: Ick) -> None:
        """What was not given up to the other is in none's hands, and nothing is lost."""
        other: Ick = Ick(ick.client, "k")
        steps = ick._exchanging(3_200, (), False, "")
        operation = next(steps)
        reply = send(ick.client, operation)
        going_on = steps.send(reply)
        assert going_on.script.name == "ick/reserve_on"
        theirs = other.reserve(500)
        with pytest.raises(StopIteration) as ended:
            steps.send(send(ick.client, going_on))
        batch = ended.value.value
        assert batch == []
        assert ick.ack("m00000") == 0
        assert other.ack(*theirs.members) == 500
        assert ick.stats()["total_size"] == 3_000

    @pytest.mark.parametrize("pieces", [1, 2, 3, 4, 5, 6])
    def test_killed_between_two_pieces(self, ick: Ick, pieces: int) -> None:
        """Whatever was taken stands in the consumer set, where the next reservation finds it."""
        steps = ick._exchanging(3_200, (), False, "")
        step = next(steps)
        for _ in range(pieces):
            step = steps.send(send(ick.client, step))
        steps.close()
        assert ick.stats()["total_size"] == 3_500
        heir: Ick = Ick(ick.client, "k")
        batch = heir.reserve(3_500)
        assert batch.members == [b"m%05d" % i for i in range(3_500)]
        assert heir.ack(*batch.members) == 3_500

    def test_a_pipelines_transaction_has_the_first_piece(self, ick: Ick) -> None:
        with ick.pipeline() as pipe:
            batch, mine = pipe.reserve(2_500).set("mine", 1).execute()
        assert (len(batch), mine) == (2_500, True)
        assert ick.ack(*batch.members) == 2_500

    def test_no_script_carries_more_than_its_piece(self, ick: Ick) -> None:
        seen = Recording(ick.client)
        many: Ick = Ick(seen, "k")
        many.add({f"n{i:05}": -i for i in range(3_500)})
        many.reserve(6_000)
        batch = many.reserve(5_000, backwash=True)
        many.exchange(4_000, *batch.members[:2_500])
        many.reserve(0, backwash=True)
        many.ack(*batch.members)
        assert seen.scripts > 40
        assert seen.most_given <= 2_010
        # A thousand members of 6 bytes with their scores and separators, as one text.
        assert seen.most_returned <= 5
        assert 24_000 <= seen.longest_returned <= 30_000

    @pytest.mark.slow
    def test_more_dead_members_than_one_script_lists(self, make: Callable[..., Any]) -> None:
        ick = make()
        history = '{"score": "5", "attempts": 2, "times": [1000]}'
        ick.client.set(ick.names.version, "ick.v1")
        ick.client.hset(ick.names.dead, mapping={f"d{i}": history for i in range(2_600)})
        assert {member.member for member in ick.dead(10_000)} == {b"d%d" % i for i in range(2_600)}
        assert len({member.member for member in ick.dead(1_500)}) == 1_500
        assert len(ick.dead(1_000)) == 1_000
        assert ick.revive(*(f"d{i}" for i in range(1_300))) == 1_300
        assert ick.discard(*(f"d{i}" for i in range(2_600))) == 1_300
        assert ick.dead(2_000) == []

    def test_memory_that_is_full_does_not_stop_a_reservation(
        self, start_redis: Callable[..., RedisServer]
    ) -> None:
        client = start_redis(7).client()
        ick: Ick = Ick(client, "k")
        ick.add({f"m{i:05}": i for i in range(2_500)})
        client.config_set("maxmemory", 1)
        batch = ick.reserve(2_500)
        assert len(batch) == 2_500
        assert ick.reserve(0, backwash=True) == []
        assert len(ick.reserve(2_500)) == 2_500


class TestAfter2286:
    """From then on a token has 17 digits, and a time in milliseconds 14."""

    AHEAD_MS = (10**10 - 1_700_000_000) * 1_000

    @pytest.fixture
    def ahead(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Set the clock of all of the Ick's scripts ahead."""

        def shifted(name: str) -> Any:
            return load(name, self.AHEAD_MS)

        def switch() -> None:
            for module in (ick_module, ick_reaper):
                monkeypatch.setattr(module, "load", shifted)

        return switch

    def test_a_member_goes_through(self, any_server: AnyServer, ahead: Callable[[], None]) -> None:
        ahead()
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({f"m{i:04}": i for i in range(2_500)})
        batch = ick.reserve(2_500)
        assert len(batch.token) == 17
        assert len(batch) == 2_500
        assert ick.reserve(2_500).token > batch.token
        assert ick.ack("m0000", token=batch.token) == 0
        assert ick.exchange(0, "m0000", backwash=True).acked == 1
        assert ick.ack(*ick.reserve(2_499).members) == 2_499
        assert len(ick.client.get(ick.names.held)) == 32

    def test_what_was_reserved_before_holds_and_is_reaped_after(
        self, any_server: AnyServer, ahead: Callable[[], None]
    ) -> None:
        ick: Ick = Ick(any_server.client(), "k")
        ick.add({"a": 1, "b": 2, "c": 3})
        batch = ick.reserve(2)
        assert len(batch.token) == 16
        ahead()
        assert ick.ack("a") == 1
        reaper = IckReaper(ick, 60)
        assert reaper.perform(Slice(5, 5.0)) == 1
        assert ick.stats()["cset_size"] == 0
        assert len(ick.client.get(ick.names.held).split(b" ")[0]) == 17
        assert ick.ack("b") == 0
        after = ick.reserve(2)
        assert after.members == [b"b", b"c"]
        assert int(after.token) > int(batch.token)
        # Listed, so that a reaper knows its age.
        assert IckReaper(ick, 60).perform(Slice(5, 5.0)) == 0


class TestRefusals:
    @pytest.fixture
    def ick(self, fakeredis_server: AnyServer) -> Ick:
        ick: Ick = Ick(fakeredis_server.client(), "k")
        return ick

    @pytest.mark.parametrize("score", [math.nan, "5", True, b"1", [1], 1j, 10**400])
    def test_a_score_that_is_no_number(self, ick: Ick, score: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"^the score of 'b' is .*: give a number"):
            ick.add([("a", 1), ("b", score)])
        assert ick.stats() is None

    def test_a_number_that_has_a_text_of_its_own(self, ick: Ick) -> None:
        class Seconds(float):
            def __repr__(self) -> str:
                return f"Seconds({float(self)})"

        assert ick.add({"a": Seconds(1.5), "b": HTTPStatus.OK}) == (2, 0)
        assert ick.reserve(2) == [(b"a", 1.5), (b"b", 200.0)]

    @pytest.mark.parametrize("member", [5, None, ("a", "b", "c"), ()])
    def test_what_is_no_member(self, ick: Ick, member: Any) -> None:
        with pytest.raises(ConfigurationError, match="cannot be added: give members"):
            ick.add(["a", member])

    def test_a_pair_without_a_name(self, ick: Ick) -> None:
        with pytest.raises(ConfigurationError, match="the member 5 is neither text nor bytes"):
            ick.add([(5, 1)])

    @pytest.mark.parametrize("n", [-1, 1.5, "3", None, True])
    def test_what_cannot_be_reserved(self, ick: Ick, n: Any) -> None:
        with pytest.raises(
            ConfigurationError, match=r"^n is .*; expected a whole number, 0 or more$"
        ):
            ick.reserve(n)

    @pytest.mark.parametrize("n", [0, -1, 1.5, None, True])
    def test_how_many_dead_cannot_be_listed(self, ick: Ick, n: Any) -> None:
        with pytest.raises(ConfigurationError, match="cannot be listed: give a number, 1 or more"):
            ick.dead(n)

    @pytest.mark.parametrize("key", ["", b"", None, 5])
    def test_a_key_that_is_none(self, fakeredis_server: AnyServer, key: Any) -> None:
        with pytest.raises(ConfigurationError, match="not usable: give a text or bytes"):
            Ick(fakeredis_server.client(), key)


@pytest.mark.cluster
class TestCluster:
    @pytest.mark.parametrize("key", ["a}b", "{}x", "x{y"])
    def test_a_name_whose_sets_lie_elsewhere_is_refused(self, cluster: Any, key: str) -> None:
        with pytest.raises(CrossSlotError, match="must share one"):
            Ick(cluster.client(), key)

    @pytest.mark.parametrize("key", ["plain", "{tag}rest", "a{tag}", "\u00fc"])
    def test_a_name_whose_sets_lie_in_its_slot(self, cluster: Any, key: str) -> None:
        ick: Ick = Ick(cluster.client(), key)
        ick.add({"a": 1})
        assert ick.exchange(1) == [(b"a", 1.0)]

    def test_a_thousand_names(self, cluster: Any) -> None:
        client = cluster.client()
        for i in range(1000):
            Ick(client, f"ick:{i}").add({"a": i})
        for i in range(0, 1000, 7):
            assert Ick(client, f"ick:{i}").reserve(1) == [(b"a", float(i))]


def test_mixed_units_are_shown_and_warned_of_once(
    redis7: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    ick: Ick = Ick(redis7.client(), "k")
    ick.add({"seconds": 1_700_000_000.5, "rank": 3})
    with caplog.at_level(logging.WARNING, logger="workstealing"):
        assert not ick.stats()["mixed_units"]
        assert caplog.messages == []
        ick.add({"milliseconds": 1_700_000_000_500})
        assert ick.stats()["mixed_units"]
        assert ick.stats()["mixed_units"]
    assert caplog.messages == [
        "the Ick k holds scores in seconds and milliseconds: the larger ones starve; use one unit"
    ]


@pytest.mark.parametrize("forget", [False, True])
def test_consumers_can_work_off_a_server_that_is_full(
    start_redis: Callable[..., RedisServer], forget: bool
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    ick: Ick = Ick(server.client(), "k")
    ick.add({str(i): i for i in range(3000)})
    if forget:
        ick.reserve(1)
    ick.client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        ick.add({"more": 1})
    batch = ick.reserve(2500)
    assert len(batch) == 2500
    batch = ick.exchange(2500, *batch.members)
    assert (batch.acked, len(batch)) == (2500, 500)
    assert ick.ack(*batch.members) == 500


def _server_seconds(client: Any) -> float:
    seconds, microseconds = client.eval("return redis.call('TIME')", 1, "k")
    return int(seconds) + int(microseconds) / 1e6


@pytest.mark.parametrize("form", [Ick, AsyncIck, ShardedIck, AsyncShardedIck])
def test_it_answers_as_all_structures_do(redis7: RedisServer, form: Any) -> None:
    """Its size, its dead and its checks, for an asyncio client too."""
    is_async = form.__name__.startswith("Async")
    is_sharded = form in (ShardedIck, AsyncShardedIck)
    client = redis7.async_client() if is_async else redis7.client()
    asked = form(client, "orders", 1) if is_sharded else form(client, "orders")
    blocking = (
        ShardedIck(redis7.client(), "orders", 1) if is_sharded else Ick(redis7.client(), "orders")
    )
    (check,) = asked.inspect(asked.check_steps())
    assert (check.level, check.said) == (
        "note",
        f"{asked.kind} orders: nothing has been written yet",
    )
    blocking.add({"\udcff".encode("utf-8", "surrogateescape"): 1, "b": 2, "c": 3})
    (one,) = blocking.icks if isinstance(blocking, ShardedIck) else (blocking,)
    one.reserve(1)
    redis7.client().hset(one.names.dead, b"\xfe", '{"score": "5", "attempts": 3, "times": [7000]}')
    assert asked.inspect(asked.size_steps()) == 3
    (box,) = asked.inspect(asked.dead_steps())
    assert (box.name, box.size) == ("ick shard 0" if is_sharded else "", 1)
    (item,) = asked.inspect(box.list_steps(10))
    assert (item.member, item.attempts, item.times) == (b"\xfe", 3, (7.0,))
    assert item.error == "its reservation went stale 3 times"
    assert asked.inspect(box.revive_steps([b"\xfe"])) == 1
    assert asked.inspect(box.discard_steps([b"\xfe"])) == 0
    assert asked.inspect(asked.size_steps()) == 4
    (check,) = asked.inspect(asked.check_steps())
    assert (check.level, asked.kind in check.said) == ("ok", True)


def test_editors_are_shown_an_operation_in_every_form() -> None:
    """One signature and one docstring; nothing of the descriptor that makes a method of it."""
    for kind in (Ick, AsyncIck, ick_module.IckPipeline, ick_module.AsyncIckPipeline):
        # What is behind the members is nothing but a mistake.
        shown = (
            "(self, members: 'Members | Member', *others: 'Never', quiet: 'Duration | None' = None,"
            " at_most: 'Duration | None' = None) -> 'Added'"
        )
        assert str(inspect.signature(kind.add)) == shown
        assert kind.exchange.__doc__ is not None
        assert kind.exchange.__doc__.startswith("Acknowledge members and then reserve")
