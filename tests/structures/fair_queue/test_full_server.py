"""A server without memory refuses producers as a whole, and lets all go on that makes room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from support.fair_queues import got, leftovers, queue_on, reap
from support.servers import RedisServer
from workstealing.structures.fair_queue import FairQueue, NewMessage

pytestmark = pytest.mark.real

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture(params=[("6.2", "redis"), (7, "redis"), (8, "redis"), (8, "valkey")], ids=str)
def client(request: pytest.FixtureRequest, start_redis: Callable[..., RedisServer]) -> Any:
    version, product = request.param
    client = start_redis(version, product, maxmemory_policy="noeviction").client()
    client.config_set("maxmemory", 0)
    return client


def fill(client: Any) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        client.set("any", 1)


def everything(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter("*", count=1000)}


def producers(queue: FairQueue) -> dict[str, Callable[[], object]]:
    """Return each call that would need memory; the accounts `a` and `b` are known."""
    return {
        "write": lambda: queue.write("a", {"n": "more"}),
        "write of a new account": lambda: queue.write("new", {"n": "more"}),
        "write with names": lambda: queue.write("a", {"n": 1}, 2e9, "x", dedupe=("k", 60)),
        "write with a delay": lambda: queue.write("a", {"n": 1}, delay=60),
        "write_many": lambda: queue.write_many(
            [NewMessage("a", {"n": 1}), NewMessage("new", {"n": 1}, delay=60)]
        ),
        "revive": lambda: queue.revive(*(each.id for each in queue.dead())),
        "set_rule": lambda: queue.set_rule("a", weight=2),
        "pause": lambda: queue.pause("a"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("call", producers(None))  # type: ignore[arg-type]
def test_what_needs_memory_is_refused_and_nothing_is_half_written(client: Any, call: str) -> None:
    queue = queue_on(client, max_attempts=1)
    queue.set_rule("b*", max_in_flight=3)
    for account in "aabb":
        queue.write(account, {"n": 1}, tracking_id=f"id {account}")
    queue.nack(got(queue.read("c")))
    queue.read("c")
    fill(client)
    before = everything(client)
    with pytest.raises(OutOfMemoryError):
        producers(queue)[call]()
    assert everything(client) == before
    assert queue.stats()["dead"] == 1


def test_consumers_empty_a_queue_on_a_full_server(client: Any) -> None:
    queue = queue_on(client, max_attempts=2)
    queue.set_rule("*", max_in_flight=4)
    for number in range(12):
        queue.write(f"t{number % 3}", {"n": number}, 2e9, f"{number}", dedupe=(f"k{number}", 60))
    queue.write("late", {"n": 12}, delay=0.001)
    fill(client)
    # Another process, which has announced no consumer and knows no layout.
    fresh, worked = queue_on(client, 10, max_attempts=2), 0
    assert queue.cancel("11")
    first = fresh.read_many("c", 4)
    assert len(first) == 4
    assert fresh.extend(*first) == 4
    assert fresh.nack(first[0]) == 1
    assert fresh.nack(first[1], delay=0.001) == 1
    done = fresh.exchange(*first[2:], consumer="c", n=2)
    assert (done.done, len(done.messages)) == (2, 2)
    worked = 2 + fresh.ack(*done.messages)
    later = queue_on(client, 60, max_attempts=2)
    while message := later.read("c"):
        worked += later.ack(message)
    assert worked == 12
    assert later.length() == 0
    assert leftovers(later).keys() <= {"accounts", "idle"}


@pytest.mark.parametrize("looks", ["nothing", "an account", "in flight"])
def test_looks_that_find_nothing_are_no_errors(client: Any, looks: str) -> None:
    queue = queue_on(client)
    # A full server has no room for a new namespace, of any structure.
    queue_on(client, name="other").write("a", {"n": 1})
    if looks != "nothing":
        message_id = queue.write("a", {"n": 1})
        message = got(queue.read("c"))
        assert message.id == message_id
        if looks == "an account":
            queue.ack(message)
    fill(client)
    fresh = queue_on(client)
    assert fresh.read("d") is None
    assert fresh.read("d", block=0.01) is None
    assert fresh.exchange(consumer="d").messages == []
    assert fresh.length() == (looks == "in flight")
    assert (fresh.stats()["dead"], fresh.dead()) == (0, [])


def test_purge_makes_room(client: Any) -> None:
    queue = queue_on(client)
    for number in range(250):
        queue.write("a", {"n": number})
    queue.write("b", {"n": 1})
    queue.write("b", {"n": 2}, delay=60)
    fill(client)
    # Of each account some step finds nothing to delete.
    assert queue.purge("a") == 250
    assert queue.purge("a") == 0
    assert queue.purge("b") == 2
    assert queue.length() == 0


def test_rules_that_stand_in_the_way_are_removed(client: Any) -> None:
    queue = queue_on(client)
    queue.write("a", {"n": 1})
    queue.set_rule("b*", max_in_flight=1)
    queue.pause("a")
    assert queue.read("c") is None
    fill(client)
    queue.resume("a")
    assert queue.remove_rule("b*")
    assert queue.ack(got(queue.read("c"))) == 1


def test_dead_messages_are_discarded(client: Any) -> None:
    queue = queue_on(client, max_attempts=1)
    queue.write("a", {"n": 1})
    fill(client)
    assert queue.nack(got(queue.read("c"))) == 1
    assert queue.discard(*(each.id for each in queue.dead())) == 1


@pytest.mark.parametrize("lost", ["nothing", "accounts", "held"])
def test_the_reaper_frees_what_is_overdue_or_lapsed(client: Any, lost: str) -> None:
    queue = queue_on(client)
    for number in range(6):
        queue.write(f"t{number}", {"n": number}, ttl=60)
    queue.read_many("c", 3)
    if lost != "nothing":
        client.delete(queue.keys.of(lost))
    fill(client)
    later = queue_on(client, DAY_MS)
    for _ in range(5):
        reap(later)
    assert later.length() == 0
    # A read passes over what stands among the ready without a record.
    assert later.read("c") is None
    assert leftovers(later) == {}


def test_a_queue_is_deleted(client: Any) -> None:
    queue = queue_on(client)
    queue.write("a", {"n": 1})
    fill(client)
    assert queue.delete() > 3
    assert client.keys("q/fair/*") == []
