"""Attacks on a fair queue: rules and numbers at their bounds, servers that evict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from redis.exceptions import OutOfMemoryError

from support.fair_queues import after, drained, got, leftovers, mend, queue_on, reap
from support.patience import GUARD_SECONDS
from support.servers import AnyServer, RedisServer
from workstealing.errors import EvictionPolicyError, LayoutError
from workstealing.structures.fair_queue import NewMessage

Start = Callable[..., RedisServer]


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_may_evict_any_key_is_refused_unless_it_is_named(
    start_redis: Start, policy: str
) -> None:
    client = start_redis(7, maxmemory="100mb", maxmemory_policy=policy).client()
    with pytest.raises(EvictionPolicyError, match="messages of a queue"):
        queue_on(client).write("t", {"a": 1})
    with pytest.raises(EvictionPolicyError):
        queue_on(client).read("c")
    assert client.keys("q*") == []
    allowed = queue_on(client, allow_eviction=(policy,))
    allowed.write("t", {"a": 1})
    assert allowed.length() == 1


def test_a_full_server_refuses_writes_and_lets_consumers_make_room(start_redis: Start) -> None:
    client = start_redis(7, maxmemory="100mb", maxmemory_policy="noeviction").client()
    queue = queue_on(client, max_attempts=2)
    for n in range(40):
        queue.write(
            f"a{n % 3}", {"n": n}, tracking_id=f"t{n}", ttl=3600, delay=n % 2 if n > 30 else 0
        )
    held = [got(queue.read("c")) for _ in range(4)]
    client.config_set("maxmemory", 1)
    before = leftovers(queue)
    with pytest.raises(OutOfMemoryError, match="maxmemory"):
        queue.write("new", {"n": 1})
    assert leftovers(queue) == before
    assert (queue.ack(held[0]), queue.extend(held[1]), queue.cancel("t30")) == (1, 1, True)
    assert queue.nack(held[2]) == 1
    done = queue.exchange(held[1], consumer="c")
    assert (done.done, len(done.messages)) == (1, 1)
    soon = queue_on(client, 61_000, max_attempts=2)
    served = 0
    while (message := soon.read("c")) is not None:
        served += soon.ack(message)
    assert served == 37
    reap(soon)
    client.config_set("maxmemory", "100mb")
    reap(soon)
    assert leftovers(soon) == {}


def test_no_pattern_keeps_the_server_busy(redis7: RedisServer) -> None:
    """A pattern of Lua with many stars tries each division of the name: for years."""
    queue = queue_on(redis7.client(socket_timeout=GUARD_SECONDS / 4))
    queue.set_rule("*a" * 9 + "*b", weight=2)
    queue.set_rule("?*" * 20 + "c", weight=3)
    queue.write("a" * 400, {"n": 1})
    queue.write("a" * 40 + "b", {"n": 2})
    queue.write("a" * 400 + "c", {"n": 3})
    weights = {each.account[-1]: each.weight for each in queue.accounts()}
    assert weights == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("a*", ("a", "ab", "a*"), ("ba", "")),
        ("*a", ("a", "ba", "aa"), ("ab",)),
        ("a*a", ("aa", "aba", "aXaa"), ("a", "ab")),
        ("*b*", ("b", "abc"), ("ac",)),
        ("a?c", ("abc", "a?c"), ("ac", "abbc")),
        ("*a?*b", ("axb", "aaaxbb"), ("ab", "a")),
        ("?", ("x",), ("xy",)),
        ("a**b", ("ab", "axxb"), ("a",)),
        ("a*bc*bc", ("abcbc", "abcXbc"), ("abc", "abcb")),
        ("%a*", ("%a", "%ab"), ("ba", "a")),
    ],
)
def test_which_names_a_pattern_matches(
    any_server: AnyServer, pattern: str, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    queue = queue_on(any_server.client())
    queue.set_rule(pattern, weight=7)
    for name in (*names, *others):
        if name:
            queue.write(name, {"n": 1})
    found = {each.account for each in queue.accounts() if each.weight == 7}
    assert found == set(names)


@pytest.mark.parametrize("estimate", [86400.0, 1.0])
def test_the_virtual_time_does_not_run_out(redis7: RedisServer, estimate: float) -> None:
    """A thousand busy workers of one account come to the largest exact number in a hundred days."""
    queue = queue_on(redis7.client())
    queue.set_rule("*", weight=0.001, estimate=estimate)
    if estimate == 1:
        # As after these hundred days.
        queue.write("a", {"n": 0})
        queue.client.hset(queue.keys.meta, "now", 2**53 - 3_000_000)
        queue.purge("a")
    queue.write_many([NewMessage("ab"[n % 2], {"n": n}) for n in range(300)])
    turns: Counter[str] = Counter()
    for _ in range(200):
        message = got(queue.read("c"))
        turns[message.account] += 1
        assert queue.ack(after(message, estimate)) == 1
    assert abs(turns["a"] - turns["b"]) <= 2
    assert mend(queue) == 0
    queue.write("new", {"n": 1})
    assert "new" in {got(queue.read("c")).account for _ in range(3)}
    assert len(drained(queue)) == 98


@pytest.mark.parametrize("part", ["accounts", "messages", "leases", "held"])
def test_an_account_keeps_its_turn_if_its_read_meets_a_foreign_key(
    redis7: RedisServer, part: str
) -> None:
    queue = queue_on(redis7.client())
    for account in "ab":
        queue.write(account, {"n": 1})
    key, ready = queue.keys.of(part), queue.keys.of("ready")
    assert queue.read("c") is not None
    before = queue.client.zrange(ready, 0, -1, withscores=True)
    assert [account for account, _ in before] == [b"b"]
    queue.client.rename(key, "aside")
    queue.client.set(key, "foreign")
    with pytest.raises(LayoutError):
        queue.read("c")
    assert queue.client.zrange(ready, 0, -1, withscores=True) == before
    queue.client.rename("aside", key)
    assert got(queue.read("c")).account == "b"
