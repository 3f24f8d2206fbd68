"""What a log refuses to touch, and a server without memory: nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from redis.exceptions import ResponseError

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import LayoutError
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting.slice import Slice
from workstealing.structures import Log

pytestmark = pytest.mark.contract

BLOCK = 10


def log_of(client: Any) -> Log:
    return Log(client, "visits", BLOCK)


def state(client: Any) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in sorted(client.keys())}


CALLS: dict[str, Callable[[Log], Any]] = {
    "append": lambda log: log.append(b"x"),
    # It ends a block, which is then among the full ones.
    "fill": lambda log: log.append(*[b"x"] * 10),
    "read": lambda log: log.read(0, 25),
    "evict": lambda log: log.evict(12),
    "stats": lambda log: log.stats(),
    "delete": lambda log: log.delete(),
}


def test_a_newer_or_foreign_log_is_left_alone(redis7: RedisServer) -> None:
    client = redis7.client()
    for meta in ({"mark": "3", "next": "7"}, {"name": "somebody's"}):
        client.hset(log_of(client).keys.meta, mapping=meta)
        before = state(client)
        for name, call in CALLS.items():
            with pytest.raises(LayoutError, match="nothing was changed"):
                pytest.fail(f"{name}: {call(log_of(client))}")
            assert state(client) == before, name
        client.flushall()
    client.set(log_of(client).keys.meta, "text")
    for call in CALLS.values():
        with pytest.raises(LayoutError, match="does not hold the facts of a log"):
            call(log_of(client))
    assert client.get(log_of(client).keys.meta) == b"text"


def upgrade(log: Log, *, readable_from: int = 1, writable_from: int = 1) -> None:
    """Mark a log as a newer release might."""
    marks = {"mark": 3, "readable_from": readable_from, "writable_from": writable_from}
    log.client.hset(log.keys.meta, mapping=marks)


def checked(log: Log) -> Any:
    return log.inspect(log.check_steps())


class TestANewerLog:
    """As in the middle of a rolling upgrade."""

    LOOKS: ClassVar[dict[str, Callable[[Log], Any]]] = {
        "read": lambda log: log.read(0, 25),
        "seek": lambda log: log.read(3),
        "length": lambda log: log.length(),
        "stats": lambda log: log.stats(),
        "group": lambda log: log.group("g", ack=True).stats(),
        "dead": lambda log: list(log.group("g", ack=True).dead()),
        "pending": lambda log: len(log.group("g", ack=True).pending()),
        "compactor": lambda log: LogCompactor(log).backlog().count,
        "trimmer": lambda log: LogTrimmer(log, max_entries=5).backlog().count,
    }

    def test_one_that_may_be_read_is_read_and_not_written(self, redis7: RedisServer) -> None:
        client = redis7.client()
        log = self.used(client)
        seen = {name: look(log) for name, look in self.LOOKS.items()}
        upgrade(log, writable_from=3)
        before = state(client)
        assert {name: look(log) for name, look in self.LOOKS.items()} == seen
        calls: dict[str, Callable[[Log], Any]] = {
            "append": lambda log: log.append(b"x"),
            "evict": lambda log: log.evict(12),
            "delete": lambda log: log.delete(),
            "group": lambda log: log.group("g", ack=True).read(),
            "new group": lambda log: log.group("new").read(),
            "compactor": lambda log: LogCompactor(log, cold=0).perform(Slice(5, 5.0)),
            "trimmer": lambda log: LogTrimmer(log, max_entries=5).perform(Slice(5, 5.0)),
        }
        for name, call in calls.items():
            with pytest.raises(LayoutError, match="may read but not write: upgrade workstealing"):
                pytest.fail(f"{name}: {call(log)}")
            assert state(client) == before, name

    def test_one_that_may_be_written_is_used_and_keeps_its_mark(
        self, any_server: AnyServer
    ) -> None:
        client = any_server.client()
        log = self.used(client)
        upgrade(log)
        # A newer release marks the state of a group as the log is marked.
        client.hset(log.keys.group("g").state, "mark", 3)
        assert log.append(b"x") == 25
        group = log.group("g", ack=True)
        assert group.ack(*group.read(30)) == 25
        assert LogCompactor(log, cold=0).perform(Slice(5, 5.0)) >= 1
        assert LogTrimmer(log, max_entries=5).perform(Slice(5, 5.0)) >= 1
        assert log.read(-1) == [b"x"]
        assert client.hget(log.keys.meta, "mark") == b"3"
        (check,) = checked(log)
        assert check.said.endswith("layout version 3")
        assert log.delete()
        assert not client.exists(log.keys.meta)

    def test_one_that_only_newer_releases_read_is_refused(self, redis7: RedisServer) -> None:
        client = redis7.client()
        log = self.used(client)
        upgrade(log, readable_from=3, writable_from=3)
        before = state(client)
        for name, call in {**CALLS, **self.LOOKS, "check": checked}.items():
            with pytest.raises(LayoutError, match=r"version 3, which this release .* cannot read"):
                pytest.fail(f"{name}: {call(log)}")
            assert state(client) == before, name

    @staticmethod
    def used(client: Any) -> Log:
        log = log_of(client)
        log.append(*[b"e"] * 25)
        assert len(log.group("g", ack=True).read()) == 1
        return log


def test_a_key_of_another_kind_is_left_alone(any_server: AnyServer) -> None:
    client = any_server.client()
    log = log_of(client)
    log.append(*[b"e"] * 25)
    keys = log.keys
    for key, calls in (
        (keys.news, ("append",)),
        (keys.times, ("append", "evict", "delete")),
        (keys.full, ("fill", "evict", "stats", "delete")),
        (keys.raw, ("fill", "evict", "stats", "delete")),
        (keys.block(2), ("append", "read")),
    ):
        kept = client.dump(key) if any_server.is_real and client.exists(key) else None
        if key == keys.block(2):
            client.rename(key, keys.base + b"aside")
        client.delete(key)
        client.hset(key, "a", "b")
        facts = client.hgetall(keys.meta)
        for name in calls:
            with pytest.raises(LayoutError, match="does not hold"):
                CALLS[name](log_of(client))
            assert client.hgetall(keys.meta) == facts, (key, name)
        client.delete(key)
        if key == keys.block(2):
            client.rename(keys.base + b"aside", key)
        elif kept is not None:
            client.restore(key, 0, kept)
    assert log.read(20, 5) == [b"e"] * 5


def test_a_block_that_is_lost_is_told_and_not_filled_again(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_of(client)
    log.append(*[b"e"] * 25)
    client.delete(log.keys.block(2), log.keys.block(1))
    with pytest.raises(LayoutError, match="b2 does not hold the entries"):
        log.append(b"x")
    with pytest.raises(LayoutError, match="b1 does not hold the entries"):
        log.read(8, 5)
    assert log.read(0, 10) == [b"e"] * 10
    assert log.last() == 24


def test_a_full_server_refuses_entries_and_lets_them_go(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    client = server.client()
    log = log_of(client)
    log.append(*[b"e"] * 35)
    before = state(client)
    client.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="maxmemory"):
        log.append(b"x", keep=3)
    with pytest.raises(ResponseError, match="maxmemory"):
        Log(client, "another").append(b"x")
    assert log.read(30, 9) == [b"e"] * 5
    # Within a block no memory is freed by which room could be made first.
    assert (log.evict(3), log.first()) == (4, 4)
    assert (log.evict(24), log.first()) == (21, 25)
    assert log.stats().blocks == 2
    assert log.client.exists(log.keys.block(1)) == 0
    client.config_set("maxmemory", 0)
    assert len(before) == len(state(client)) + 2
    assert log.append(b"x") == 35
    client.config_set("maxmemory", 1)
    assert log.delete()
    assert client.keys() == []


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("hmget", ("append", "read", "evict", "stats")),
        ("zcard", ("evict", "stats")),
        ("lrange", ("read",)),
        ("llen", ("append",)),
    ],
)
def test_a_refused_command_is_called_so(
    redis7: RedisServer, command: str, calls: tuple[str, ...]
) -> None:
    """Nothing foreign is there: nobody is sent to look for it."""
    admin = redis7.client()
    log_of(admin).append(*[b"x"] * 25)
    before = state(admin)
    admin.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", f"-{command}")
    try:
        for name in calls:
            with pytest.raises(ResponseError) as refused:
                CALLS[name](log_of(redis7.client(username="poor", password="x")))
            assert not isinstance(refused.value, LayoutError)
            assert "layout" not in str(refused.value).lower()
            assert state(admin) == before, name
    finally:
        admin.execute_command("ACL", "DELUSER", "poor")
