"""The Ick's data: redis-ick's own keys and values, and what is refused as foreign."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import LayoutError
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import Ick

pytestmark = pytest.mark.contract


def everything(client: Any) -> dict[bytes, bytes]:
    """DUMP of all keys."""
    return {key: client.dump(key) for key in sorted(client.keys("*"))}


@pytest.fixture
def ick(redis7: RedisServer) -> Ick:
    made: Ick = Ick(redis7.client(), "my\u00fc")
    return made


class TestRecorded:
    """What redis-ick 0.1 writes, and what it finds of ours: its own three keys."""

    def test_the_very_keys_and_values(self, ick: Ick) -> None:
        ick.add({"foo": 123, "bar": 20151001})
        ick.add([("foo", 12.8), ("baz", 123.4)])
        ick.reserve(1)
        client = ick.client
        key = "my\u00fc".encode()
        assert client.get(key) == b"ick.v1"
        pset, cset = key + b"/ick/{" + key + b"}/pset", key + b"/ick/{" + key + b"}/cset"
        assert client.zrange(pset, 0, -1, withscores=True) == [(b"baz", 123.4), (b"bar", 20151001)]
        assert client.zrange(cset, 0, -1, withscores=True) == [(b"foo", 12.8)]
        beside = {name for name in client.keys("*") if name not in (key, pset, cset)}
        assert beside == {key + b"/ick/{" + key + b"}/held"}

    def test_what_ruby_has_left_is_taken_over(self, ick: Ick) -> None:
        client, names = ick.client, ick.names
        client.set(names.version, "ick.v1")
        client.zadd(names.pset, {"dirty": 1.5, "both": 3})
        client.zadd(names.cset, {"reserved": 2, "both": 4})
        assert ick.stats()["total_size"] == 4
        batch = ick.reserve(4)
        assert batch == [(b"dirty", 1.5), (b"reserved", 2.0), (b"both", 3.0)]
        assert ick.ack(*batch.members) == 3

    def test_ruby_commits_what_we_have_reserved(self, ick: Ick) -> None:
        ick.add({"a": 1, "b": 2})
        ick.reserve(2)
        assert ick.client.zrem(ick.names.cset, "a") == 1
        assert ick.ack("a", "b") == 1

    def test_ruby_deletes_an_ick(self, ick: Ick) -> None:
        """It knows of three keys; the reservation that stays behind binds nobody."""
        ick.add({"a": 1})
        ick.reserve(1)
        ick.client.delete(*ick.names.sets)
        assert ick.stats() is None
        ick.add({"a": 5})
        batch = ick.reserve(1)
        assert batch == [(b"a", 5.0)]
        assert ick.ack("a") == 1
        assert ick.delete() == 1
        assert ick.client.keys("*") == []


def _gem() -> bool:
    if shutil.which("ruby") is None:
        return False
    return subprocess.run(["ruby", "-e", "require 'redis/ick'"], check=False).returncode == 0


RUBY = """
require 'redis'
require 'redis/ick'
ick = Redis::Ick.new(Redis.new(port: Integer(ARGV[0])))
p ick.ickadd('shared', 5, 'ruby', 1, 'both')
p ick.ickreserve('shared', 2)
p ick.ickcommit('shared', 'both')
p ick.ickstats('shared')['ver']
"""


@pytest.mark.real
@pytest.mark.skipif(not _gem(), reason="the gem redis-ick is not installed: gem install redis-ick")
def test_a_real_gem_shares_a_queue(redis7: RedisServer) -> None:
    ick: Ick = Ick(redis7.client(), "shared")
    ick.add({"both": 3, "python": 2})
    command = ["ruby", "-e", RUBY, str(redis7.port)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        "[1, 1]",
        '[["both", 1.0], ["python", 2.0]]',
        "1",
        '"ick.v1"',
    ]
    assert ick.reserve(5) == [(b"python", 2.0), (b"ruby", 5.0)]


CALLS: dict[str, Callable[[Ick], Any]] = {
    "add": lambda ick: ick.add({"x": 1}),
    "add, the server's time": lambda ick: ick.add("x"),
    "add, to rest": lambda ick: ick.add({"x": 1}, quiet=1, at_most=2),
    "reserve": lambda ick: ick.reserve(2),
    "backwash": lambda ick: ick.reserve(2, backwash=True),
    "ack": lambda ick: ick.ack("a"),
    "exchange": lambda ick: ick.exchange(2, "a"),
    "stats": lambda ick: ick.stats(),
    "dead": lambda ick: ick.dead(),
    "revive": lambda ick: ick.revive("d"),
    "discard": lambda ick: ick.discard("d"),
    "delete": lambda ick: ick.delete(),
    "delete at once": lambda ick: ick.delete(unlink=False),
    "reap": lambda ick: IckReaper(ick, 0.001).perform(Slice(5, 5.0)),
    "look for a backlog": lambda ick: IckReaper(ick, 0.001).backlog(),
    "reap, dry": lambda ick: IckReaper(ick, 0.001, dry_run=True).perform(Slice(5, 5.0)),
}
REAPS = {"reap", "look for a backlog", "reap, dry"}
WHOLE = {"delete", "delete at once", *REAPS}
THE_RESERVATION = {"reserve", "backwash", "ack", "exchange", *WHOLE}
FOLLOW_THE_TOKEN = sorted(THE_RESERVATION - WHOLE | REAPS)
WHAT_WAITS = {"add, to rest", "reserve", "backwash", "exchange", "stats", *WHOLE}
THE_DEAD = {"stats", "dead", "revive", "discard", *WHOLE}
LOOKS_AT = {
    "version": set(CALLS),
    "pset": set(CALLS),
    "cset": set(CALLS),
    "held": THE_RESERVATION,
    "attempts": THE_RESERVATION,
    "seen": WHOLE,
    "dead": THE_DEAD,
    "waiting": WHAT_WAITS,
    "terms": WHAT_WAITS,
}


class TestDefence:
    """One clear error, and nothing changed, whatever call meets whatever foreign."""

    @pytest.fixture(autouse=True)
    def _in_use(self, ick: Ick) -> None:
        ick.add({"a": 1, "b": 2, "c": 3})
        ick.reserve(2)
        ick.client.hset(ick.names.dead, "d", '{"score": "1", "attempts": 1, "times": []}')
        ick.client.hset(ick.names.attempts, "a", "1 5")
        ick.client.hset(ick.names.seen, "a", "5 1")
        ick.add({"waits": 4}, quiet=600, at_most=600)

    def refused(self, ick: Ick, call: str, match: str) -> None:
        before = everything(ick.client)
        with pytest.raises(LayoutError, match=match) as caught:
            CALLS[call](ick)
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith("; nothing was changed")
        assert everything(ick.client) == before

    @pytest.mark.parametrize("call", CALLS)
    def test_a_foreign_version(self, ick: Ick, call: str) -> None:
        ick.client.set(ick.names.version, "ick.v2")
        self.refused(ick, call, "^the key my\u00fc says ick.v2 where ick.v1 was expected: ")

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("set_", ["pset", "cset"])
    def test_a_set_without_a_version(self, ick: Ick, call: str, set_: str) -> None:
        ick.client.delete(ick.names.version, ick.names.pset, ick.names.cset)
        ick.client.zadd(getattr(ick.names, set_), {"a": 1})
        self.refused(
            ick, call, f"{set_} holds members, but there is no version of an Ick at my\u00fc: "
        )

    @pytest.mark.parametrize(
        ("key", "call"), [(key, call) for key, calls in LOOKS_AT.items() for call in sorted(calls)]
    )
    def test_a_wrong_type(self, ick: Ick, key: str, call: str) -> None:
        name = getattr(ick.names, key)
        ick.client.delete(name)
        ick.client.rpush(name, "foreign")
        self.refused(ick, call, f"^the key {name.decode()} does not hold ")

    @pytest.mark.parametrize(
        ("text", "call"),
        [
            *((text, call) for text in ("foreign", "x" * 30) for call in FOLLOW_THE_TOKEN),
            # The first 16 bytes are all that the others look at.
            *(("12345678901234567890123456789012", call) for call in sorted(REAPS)),
        ],
    )
    def test_a_reservation_that_is_none(self, ick: Ick, call: str, text: str) -> None:
        ick.client.set(ick.names.held, text)
        self.refused(ick, call, "held does not hold the reservation of an Ick: use")

    @pytest.mark.parametrize("call", sorted(FOLLOW_THE_TOKEN))
    def test_a_reservation_that_is_none_where_there_is_no_ick(self, ick: Ick, call: str) -> None:
        ick.client.delete(*ick.names.all)
        ick.client.set(ick.names.held, "foreign")
        self.refused(ick, call, "held does not hold the reservation of an Ick: use")

    @pytest.mark.parametrize("call", sorted(set(CALLS) - THE_RESERVATION))
    def test_what_looks_at_no_reservation_goes_on(self, ick: Ick, call: str) -> None:
        ick.client.delete(ick.names.held)
        ick.client.rpush(ick.names.held, "foreign")
        CALLS[call](ick)

    def test_a_pipeline_says_which_command(self, ick: Ick) -> None:
        ick.client.set(ick.names.version, "ick.v2")
        with pytest.raises(LayoutError, match=r"says ick\.v2"), ick.pipeline() as pipe:
            pipe.add({"x": 1}).reserve(1).execute()
        with ick.pipeline() as pipe:
            results = pipe.add({"x": 1}).execute(raise_on_error=False)
        assert isinstance(results[0], LayoutError)


@pytest.mark.parametrize("call", ["add", "add, the server's time", "add, to rest", "reserve"])
def test_a_server_without_memory_is_said_so_and_nothing_is_begun(
    start_redis: Callable[..., RedisServer], call: str
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    ick: Ick = Ick(server.client(), "k")
    ick.client.config_set("maxmemory", 1)
    with pytest.raises(Exception, match="maxmemory"):
        CALLS[call](ick)
    assert ick.client.keys("*") == []


def test_all_keys_are_in_the_catalogue(any_server: AnyServer) -> None:
    catalogue = (Path(__file__).resolve().parents[3] / "lua" / "README.md").read_text("utf-8")
    names = Ick(any_server.client(), "K").names
    for name in names.all:
        assert f"| `{name.decode()}` |" in catalogue
