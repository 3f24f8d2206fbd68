"""The options and offsets of the ick format, and how a batch is shared out; without a JVM."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.ick import IckOptions
from workstealing.spark.sources.ick_stream import IckOffset
from workstealing.spark.sources.options import shared_out
from workstealing.structures import ShardedIck


class TestOptions:
    def test_defaults(self) -> None:
        options = IckOptions.parse({"name": "orders"})
        assert options == IckOptions("orders", None, None, "string", None, None, ClientSettings())
        assert (options.batch_size, options.lease) == (10_000, 60.0)
        assert pickle.loads(pickle.dumps(options)) == options

    def test_all(self) -> None:
        options = IckOptions.parse(
            {
                "path": "orders",
                "ickshards": "8",
                "MAXMEMBERSPERTRIGGER": "50",
                "leaseSeconds": "5",
                "waitForLeaseSeconds": "300",
                "members": "binary",
                "client": "my.module:make",
                "checkpointLocation": "/somewhere",
            }
        )
        assert options == IckOptions(
            "orders", None, 8, "binary", 50, 5, ClientSettings("my.module:make"), patience=300
        )
        assert (options.batch_size, options.lease) == (50, 5.0)
        assert IckOptions.parse({"key": "dirty"}).key == "dirty"

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({}, "neither the option 'name' nor 'key'"),
            ({"name": "a", "path": "b"}, "both the option 'name' and a path"),
            ({"name": "a", "key": "b"}, "both the options 'name'"),
            ({"path": "a", "key": "b"}, "both the options 'name'"),
            ({"key": "a", "ickShards": "2"}, "belongs to a ShardedIck"),
            ({"name": ""}, "'name' is empty"),
            ({"name": "a", "shards": "2", "x": "y"}, "unknown options: 'shards', 'x'"),
            ({"name": "a", "ickShards": "0"}, "'ickShards' is '0'"),
            ({"name": "a", "ickShards": "1025"}, "'ickShards' is '1025'"),
            ({"name": "a", "maxMembersPerTrigger": "many"}, "'maxMembersPerTrigger' is 'many'"),
            ({"name": "a", "leaseSeconds": "0.5"}, "'leaseSeconds' is '0.5'"),
            ({"name": "a", "members": "text"}, "give string or binary"),
            ({"name": "a", "client": "nothing"}, "client is 'nothing'"),
            ({"name": "a", "client": "a:b", "url": "redis://x"}, "both a client and a url"),
        ],
    )
    def test_what_is_wrong_is_said(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem) as caught:
            IckOptions.parse(options)
        assert str(caught.value).startswith("format 'workstealing.ick': ")

    def test_no_secret_is_shown(self) -> None:
        url = "redis://user:secret@host"
        assert "secret" not in repr(IckOptions.parse({"name": "a", "url": url}))
        with pytest.raises(ConfigurationError) as caught:
            IckOptions.parse({"name": "a", "url": url, "client": "a:b"})
        assert "secret" not in str(caught.value)

    def test_what_belongs_elsewhere(self) -> None:
        options = IckOptions.parse({"name": "a", "leaseSeconds": "5"})
        with pytest.raises(ConfigurationError, match="'leaseSeconds' belongs to readStream"):
            options.refuse_stream_options("a write")
        options.refuse_key()
        with pytest.raises(ConfigurationError, match="give the option 'name' instead of 'key'"):
            IckOptions.parse({"key": "a"}).refuse_key()

    def test_the_sharded_ick(self, redis7: RedisServer) -> None:
        options = IckOptions.parse({"name": "a", "ickShards": "3", "url": redis7.url})
        nothing = r"^format 'workstealing.ick': there is no ShardedIck 'a' yet: "
        with pytest.raises(ConfigurationError, match=nothing + "a read makes none: write to it"):
            options.sharded(create=False)
        bare = IckOptions.parse({"name": "a", "url": redis7.url})
        with pytest.raises(ConfigurationError, match=nothing + "give the option 'ickShards'"):
            bare.sharded(create=True)
        assert redis7.client().keys("*") == []
        assert options.sharded(create=True).open() == 3
        assert options.sharded(create=False).open() == 3
        other = IckOptions.parse({"name": "a", "ickShards": "4", "url": redis7.url})
        for create in (False, True):
            with pytest.raises(ConfigurationError, match=r"3 ick shards, not 4: .*'ickShards' out"):
                other.sharded(create)
        assert ShardedIck(redis7.client(), "a").open() == 3


class TestOffsets:
    def test_they_go_through_json(self) -> None:
        offset = IckOffset("q", 3, {10: "t", 2: "u"})
        text = json.dumps(offset.as_dict())
        assert IckOffset.parse(json.loads(text)) == offset
        assert json.dumps(IckOffset.parse(json.loads(text)).as_dict()) == text
        assert offset.following({1: "v"}) == IckOffset("q", 4, {1: "v"})
        assert IckOffset.new().query != IckOffset.new().query

    @pytest.mark.parametrize(
        "found", [{}, {"query": "q"}, [], {"query": 1, "seq": "x", "tokens": 1}]
    )
    def test_foreign_ones_are_refused(self, found: object) -> None:
        with pytest.raises(ConfigurationError, match="checkpoint of its own"):
            IckOffset.parse(found)  # type: ignore[arg-type]


class TestSharingOut:
    @given(
        st.dictionaries(st.integers(0, 20), st.integers(0, 1000)),
        st.integers(0, 3000),
        st.integers(0, 99),
    )
    def test_as_much_as_there_may_be(self, sizes: dict[int, int], limit: int, turn: int) -> None:
        counts = shared_out(sizes, limit, turn)
        assert sum(counts.values()) == min(limit, sum(sizes.values()))
        assert all(0 < count <= sizes[shard] for shard, count in counts.items())

    def test_evenly(self) -> None:
        assert shared_out({0: 100, 1: 5, 2: 100}, 65, 0) == {0: 30, 1: 5, 2: 30}

    def test_everybody_has_a_turn(self) -> None:
        sizes = dict.fromkeys(range(7), 10)
        seen = set()
        for turn in range(4):
            seen |= set(shared_out(sizes, 2, turn))
        assert seen == set(range(7))
