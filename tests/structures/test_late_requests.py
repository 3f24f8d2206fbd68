"""A request for a grant that comes late: sent again by a client, or after its asker has gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.any_server import AnyServer
from support.askers import ASKERS
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.set_clock import SetClock
from workstealing.store.scripts import load
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
)

SCRIPTS = (
    *("durable_keys/acquire", "fair_queue/read", "sharded_ick/take", "time_shard_queue/take"),
    *("shuffle_queue/read", "shuffle_queue/next", "volatile_hashes/hsetnx"),
)
GRANTING = {load(name).sha: name for name in SCRIPTS}
STRUCTURES = ["durable keys", "fair queue", "sharded ick", "shuffle queue", "time shard queue"]


class Relay:
    """A client's requests for grants, which a test looks at, holds up, and sends again.

    Attributes: sent: the words of each that was sent; held: those that are still under way;
    passing: after so many the next one is held up, and its connection is cut; late: when each
    request comes once more.
    """

    def __init__(self, client: Any) -> None:
        self.passing = 1_000_000
        self.sent: list[tuple[Any, ...]] = []
        self.held: list[tuple[Any, ...]] = []
        self.late = ""
        send = client.execute_command

        def relay(*words: Any, **options: Any) -> Any:
            if words[0] == "EVALSHA" and words[1] in GRANTING:
                if self.passing == 0:
                    self.held.append(words)
                    raise redis.ConnectionError("cut while the request was under way")
                self.passing -= 1
                if self.late == "before the next request" and self.sent:
                    send(*self.sent[-1], **options)
                self.sent.append(words)
                if self.late == "at once":
                    send(*words, **options)
            return send(*words, **options)

        client.execute_command = relay


@pytest.mark.real
@pytest.mark.parametrize("is_full_still", [True, False], ids=["full", "freed"])
@pytest.mark.parametrize("version", [7, pytest.param("6.2", marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_request_that_a_full_server_gets_after_its_withdrawal_is_granted_nothing(
    start_redis: Callable[..., RedisServer], structure: str, version: Any, is_full_still: bool
) -> None:
    """The server refused to note the withdrawal, and let the request pass."""
    server = start_redis(version)
    direct, client = server.client(), server.client()
    direct.config_set("maxmemory-policy", "noeviction")
    for name in SCRIPTS:
        direct.script_load(load(name).body)
    relay = Relay(client)
    asker = ASKERS[structure](client, direct)
    asker.ask()
    assert asker.is_free()
    requests = len(relay.sent)
    assert requests
    for passing in range(requests):
        relay.passing = passing
        direct.config_set("maxmemory", 1)
        with pytest.raises(redis.OutOfMemoryError):
            direct.set("x", 1)
        # A call of several pieces returns those that came.
        with contextlib.suppress(redis.ConnectionError):
            asker.ask()
        assert relay.held
        if not is_full_still:
            direct.config_set("maxmemory", 0)
        for words in relay.held:
            refused_or(lambda words=words: direct.execute_command(*words))
        relay.held.clear()
        direct.config_set("maxmemory", 0)
        assert asker.is_free(), passing


def refused_or(call: Callable[[], Any]) -> None:
    with contextlib.suppress(redis.OutOfMemoryError):
        call()


@pytest.mark.contract
@pytest.mark.parametrize("late", ["at once", "before the next request"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_request_that_comes_twice_is_granted_once(
    any_server: AnyServer, structure: str, late: str
) -> None:
    """As if a client had sent it again on another connection, and that one had come first."""
    client, direct = any_server.client(), any_server.client()
    relay = Relay(client)
    asker = ASKERS[structure](client, direct)
    asker.ask()
    assert asker.is_free()
    relay.late = late
    for _ in range(4):
        relay.sent.clear()
        asker.ask()
        assert relay.sent
        assert asker.is_free()


LEASE = 30
AFTER_MS = 31_000


def of_durable_keys(client: Any, direct: Any, again: Callable[[], Any]) -> None:
    keys: DurableKeys = DurableKeys(client, "grants")
    token = keys.acquire("lease", LEASE)
    assert token
    assert keys.release("lease", token)
    again()
    kept: DurableKeys = DurableKeys(direct, "grants")
    assert kept.pttl("lease") <= 1000 * LEASE
    later: DurableKeys = DurableKeys(direct, "grants", clock_shift_ms=AFTER_MS)
    assert (later.acquire("lease", LEASE) or 0) > token


def of_sharded_ick(client: Any, direct: Any, again: Callable[[], Any]) -> None:
    ShardedIck(direct, "orders", 1).add({"m": 1.0})
    with ShardedIck(client, "orders").lease("worker", LEASE) as ick:
        token = int(ick.lease_token)
    again()
    with ShardedIck(direct, "orders", clock_shift_ms=AFTER_MS).lease("another", LEASE) as ick:
        assert int(ick.lease_token) > token
        assert [each for each, _ in ick.reserve(9)] == [b"m"]


def of_time_shard_queue(client: Any, direct: Any, again: Callable[[], Any]) -> None:
    clock: Any = SetClock()
    queue = TimeShardQueue(RedisStore(client), "letters", 6, 60, clock=clock)
    for number in range(4):
        queue.put(f"letter {number}")
    clock.go(120.0)
    taken = queue.take_many("reader", 2, lease=LEASE)
    assert queue.ack(*taken) == 2
    again()
    store = RedisStore(direct, clock_shift_ms=AFTER_MS)
    later = TimeShardQueue(store, "letters", 6, 60, clock=clock)
    left = later.take_many("another", 9, lease=LEASE)
    assert len({each.id for each in (*taken, *left)}) == len(taken) + len(left) == 4


def of_shuffle_queue(client: Any, direct: Any, again: Callable[[], Any]) -> None:
    queue = ShuffleQueue(client, "q", 2, 2)
    assert queue.read("g", "first") is None
    for number in range(8):
        queue.write("tenant", {"n": number})
    had = [each for _ in range(4) if (each := queue.read("g", "c"))]
    assert queue.ack(*had) == 4
    again()
    left = ShuffleQueue(direct, "q", 2, 2).read_many("g", "another", 9)
    # It is granted nothing at all.
    assert [each.attempts for each in left] == [1] * 4


def of_fair_queue(client: Any, direct: Any, again: Callable[[], Any]) -> None:
    queue = FairQueue(client, "f")
    assert queue.read("first") is None
    for number in range(8):
        queue.write("tenant", {"n": number})
    had = [each for _ in range(3) if (each := queue.read("c"))]
    had += queue.exchange(*had[:2], consumer="c").messages
    assert queue.ack(*had) == 2
    again()
    # It is granted nothing at all, and no slot is taken.
    assert [each.in_flight for each in queue.accounts()] == [0]
    left = FairQueue(direct, "f").read_many("another", 9)
    assert [each.attempts for each in left] == [1] * 4


@pytest.mark.contract
@pytest.mark.parametrize(
    "of",
    [of_durable_keys, of_fair_queue, of_sharded_ick, of_time_shard_queue, of_shuffle_queue],
)
def test_a_request_that_comes_after_its_end_holds_nothing_for_longer_than_a_lease(
    any_server: AnyServer, of: Callable[..., None]
) -> None:
    """As if a proxy had sent on a request that its client had given up and repeated."""
    client, direct = any_server.client(), any_server.client()
    relay = Relay(client)

    def again() -> None:
        assert relay.sent
        for words in relay.sent:
            direct.execute_command(*words)

    of(client, direct, again)
