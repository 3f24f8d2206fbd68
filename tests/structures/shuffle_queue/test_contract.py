"""A shuffle queue on every kind of server: what is written is served in turn, once, and acked."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
from typing import Any

import pytest
import redis
from redis._parsers import Encoder

from support.servers import AnyServer
from workstealing.errors import ConfigurationError
from workstealing.store.operations import send_step
from workstealing.structures import Message, NewMessage, ShuffleQueue
from workstealing.structures.shuffle_queue.message import split_id

pytestmark = pytest.mark.contract

HOUR_MS = 3_600_000


def queue_on(server: AnyServer, ahead_ms: int = 0, **options: Any) -> ShuffleQueue:
    client = server.client(**options.pop("client", {}))
    return ShuffleQueue(client, "orders", **{"streams": 16, **options}, clock_shift_ms=ahead_ms)


@pytest.fixture
def queue(any_server: AnyServer) -> ShuffleQueue:
    return queue_on(any_server)


def got(message: Message | None) -> Message:
    assert message is not None
    return message


def drained(queue: ShuffleQueue, group: str = "g", consumer: str = "c") -> list[Message]:
    found = []
    while (message := queue.read(group, consumer)) is not None:
        found.append(message)
    return found


def test_a_message_comes_back_as_it_was_written(queue: ShuffleQueue) -> None:
    deadline = int(time.time()) + 3600
    written = queue.write("tenant ü", {"a": 1, b"b": "ü"}, deadline, "order-1")
    message = got(queue.read("workers", "w1"))
    assert message.id == written
    assert (message.group, message.consumer, message.tenant) == ("workers", "w1", "tenant ü")
    assert message.fields == {b"a": b"1", b"b": "ü".encode()}
    assert (message.attempts, message.deadline, message.tracking_id) == (1, deadline, "order-1")
    assert message.stream in queue.streams_of("tenant ü")
    assert 0 <= message.pickup_delay_ms < 60_000
    assert written == f"{message.stream}-{message.entry_id}"
    assert split_id(written) == (message.stream, message.entry_id)
    assert queue.read("workers", "w1") is None


def test_replies_may_be_decoded(any_server: AnyServer) -> None:
    for protocol in (2, 3):
        queue = queue_on(any_server, client={"decode_responses": True, "protocol": protocol})
        queue.write("a", {"n": protocol}, tracking_id="t")
        message = got(queue.read("g", "c"))
        assert message.fields == {"n": str(protocol)}
        assert (queue.nack(message), queue.ack(got(queue.read("g", "c")))) == (1, 1)
        assert queue.groups() == ["g"]
        assert not queue.cancel("t")


def test_a_tenants_messages_go_to_the_shortest_of_its_streams(queue: ShuffleQueue) -> None:
    streams = queue.streams_of("a")
    used = [split_id(queue.write("a", {"n": n}))[0] for n in range(8)]
    assert sorted(used) == sorted(streams * 2)
    assert used[:4] == list(streams)


def test_an_account_decides_the_streams_and_the_consumer_sees_the_tenant(
    queue: ShuffleQueue,
) -> None:
    streams = queue.streams_of("account")
    tenants = [f"t{n}" for n in range(8)]
    used = [split_id(queue.write(each, {"n": 1}, account="account"))[0] for each in tenants]
    assert used == list(streams * 2)
    found = drained(queue)
    assert sorted(message.tenant or "" for message in found) == tenants
    assert found[0].fields == {b"n": b"1"}
    # Bytes and text are the same account.
    assert split_id(queue.write("t", {"n": 1}, account=b"account"))[0] in streams


def test_many_are_written_as_one_after_the_other_would_be(any_server: AnyServer) -> None:
    queue, other = queue_on(any_server), ShuffleQueue(any_server.client(), "other", 16)
    assert queue.read("g", "c") is None
    deadline = int(time.time()) + 3600
    new = [
        NewMessage(f"t{n % 7}", {"n": n}, *((deadline, f"x{n}") if n % 2 else ()), account=account)
        for n in range(120)
        for account in ("one" if n % 3 else None,)
    ]
    ids = queue.write_many(iter(new))
    each = [
        other.write(one.tenant, one.fields, one.deadline, one.tracking_id, account=one.account)
        for one in new
    ]
    assert [split_id(one)[0] for one in ids] == [split_id(one)[0] for one in each]
    assert len(set(ids)) == queue.length() == 120
    found = {message.id: message for message in queue.read_many("g", "c", 200)}
    for written, one, number in zip(ids, new, range(120), strict=True):
        message = found[written]
        assert (message.tenant, message.fields) == (one.tenant, {b"n": b"%d" % number})
        assert (message.deadline, message.tracking_id) == (one.deadline, one.tracking_id)
    assert queue.client.zcard(queue.keys.deadlines) == queue.client.hlen(queue.keys.tracking) == 60
    assert queue.cancel("x7")
    assert queue.ack(*found.values()) == 120
    assert queue.length() == 0
    assert queue.client.exists(queue.keys.tracking, queue.keys.deadlines) == 0
    assert queue.write_many([]) == []


def test_a_script_writes_all_of_its_messages_or_none(queue: ShuffleQueue) -> None:
    assert queue.read("g", "c") is None
    # The ids of one stream are used up, so that nothing more can be added to it.
    streams = queue.streams_of("full")
    for number in streams:
        last = f"{2**64 - 1}-{2**64 - 1}"
        queue.client.xadd(queue.keys.stream(number), {"ws:tenant": "full"}, id=last)
        queue.client.xdel(queue.keys.stream(number), last)
    before = {key: queue.client.xlen(key) for key in queue.keys.streams(16)}
    tenants = (f"t{n}" for n in range(1000))
    free = [each for each in tenants if not set(queue.streams_of(each)) & set(streams)][:3]
    new = [NewMessage(each, {"n": 1}, tracking_id=each) for each in (*free, "full", free[0])]
    with pytest.raises(redis.ResponseError):
        queue.write_many(new)
    assert before == {key: queue.client.xlen(key) for key in queue.keys.streams(16)}
    assert (queue.read("g", "c"), queue.cancel(free[0]), queue.length()) == (None, False, 0)


def test_an_exchange_ends_messages_and_gives_others(queue: ShuffleQueue) -> None:
    empty = queue.exchange(group="g", consumer="c")
    assert (empty.done, empty.messages) == (0, [])
    ids = [queue.write("a", {"n": n}) for n in range(5)]
    first = queue.exchange(group="g", consumer="c", n=2)
    assert (first.done, len(first.messages)) == (0, 2)
    second = queue.exchange(*first.messages, group="g", consumer="c", n=2)
    assert (second.done, len(second.messages), queue.length()) == (2, 2, 3)
    third = queue.exchange(*second.messages, *first.messages, group="g", consumer="c", n=100)
    assert (third.done, len(third.messages), queue.length()) == (2, 1, 1)
    # The messages of a group may be done while another one reads.
    other = queue.exchange(*third.messages, group="h", consumer="c", n=100)
    assert (other.done, other.messages) == (1, [])
    served = [*first.messages, *second.messages, *third.messages]
    assert sorted(each.id for each in served) == sorted(ids)
    assert {each.attempts for each in served} == {1}


def test_an_exchange_is_one_round_trip(queue: ShuffleQueue) -> None:
    ids = queue.write_many([NewMessage("a", {"n": n}) for n in range(9)])
    held = [got(queue.read("g", "c")) for _ in range(4)]
    for message in held:
        steps = ShuffleQueue.exchange.asking(queue, message, group="g", consumer="c").steps
        step = next(steps)
        assert len(step) == 2
        with pytest.raises(StopIteration) as end:
            steps.send(send_step(queue.client, step))
        assert end.value.value.done == 1
        assert end.value.value.messages[0].id in ids


def test_an_acknowledged_message_leaves_nothing(queue: ShuffleQueue) -> None:
    queue.write("a", {"n": 1}, tracking_id="t")
    message = got(queue.read("g", "c"))
    assert queue.length() == 1
    assert queue.ack(message) == 1
    assert (queue.ack(message), queue.length()) == (0, 0)
    assert queue.client.exists(queue.keys.tracking) == 0


def test_every_group_gets_every_message_and_the_last_one_deletes_it(queue: ShuffleQueue) -> None:
    queue.write("a", {"n": 1}, tracking_id="t")
    first, second = got(queue.read("g", "c")), got(queue.read("h", "c"))
    queue.write("a", {"n": 2})
    assert queue.groups() == ["g", "h"]
    assert first.id == second.id
    assert (queue.ack(first), queue.length()) == (1, 2)
    assert (queue.ack(second), queue.length()) == (1, 1)
    third = got(queue.read("h", "c"))
    # The other group has not seen it yet.
    assert (queue.ack(third), queue.length()) == (1, 1)
    fourth = got(queue.read("g", "c"))
    assert (queue.ack(fourth), queue.length()) == (1, 0)


def test_streams_take_turns_wherever_the_tenants_are(queue: ShuffleQueue) -> None:
    """The published queue gave the first tenant of 64 streams 58 of 64 turns, or far worse."""
    tenants = {}
    for name in map(str, range(400)):
        streams = set(queue.streams_of(name))
        if len(tenants) == 0 or not streams & set(queue.streams_of(tenants["one"])):
            tenants["two" if tenants else "one"] = name
            if len(tenants) == 2:
                break

    for n in range(40):
        queue.write(tenants["one"], {"n": n})
    for n in range(8):
        queue.write(tenants["two"], {"n": n})
    order = [message.tenant for message in drained(queue)]
    assert len(order) == 48
    # Each stream with messages is served in turn: of the first 16, every tenant has eight.
    assert order[:16].count(tenants["one"]) == order[:16].count(tenants["two"]) == 8


def test_read_many_goes_round(queue: ShuffleQueue) -> None:
    assert queue.read("g", "c") is None
    for n in range(12):
        queue.write("a", {"n": n})
    first = queue.read_many("g", "c", 6)
    assert [message.stream for message in first] == [*queue.streams_of("a"), *first_two(first)]
    assert len(queue.read_many("g", "c", 100)) == 6
    assert queue.read_many("g", "c", 5) == []
    assert queue.ack(*first) == 6


def first_two(messages: list[Message]) -> list[int | None]:
    return [message.stream for message in messages[:2]]


def test_a_preferred_stream_goes_first_if_it_has_anything(queue: ShuffleQueue) -> None:
    for n in range(12):
        queue.write("a", {"n": n})
    last = queue.streams_of("a")[-1]
    empty = next(n for n in range(16) if n not in queue.streams_of("a"))
    assert got(queue.read("g", "c", prefer_stream=last)).stream == last
    assert got(queue.read("g", "c", prefer_stream=last)).stream == last
    assert got(queue.read("g", "c", prefer_stream=empty)).stream in queue.streams_of("a")
    assert len({message.id for message in drained(queue)}) == 9


def test_what_is_given_back_is_served_again_in_its_streams_turn(queue: ShuffleQueue) -> None:
    queue.write("a", {"n": 1})
    message = got(queue.read("g", "c"))
    assert queue.nack(message) == 1
    again = got(queue.read("g", "d"))
    assert (again.id, again.consumer, again.fields) == (message.id, "d", message.fields)
    assert again.attempts >= 2
    # It is somebody else's now.
    assert (queue.nack(message), queue.extend(message)) == (0, 0)
    assert (queue.extend(again), queue.read("g", "c")) == (1, None)
    assert (queue.ack(message), queue.nack(again), queue.length()) == (1, 0, 0)


def test_what_is_given_back_keeps_to_the_turns_of_all(queue: ShuffleQueue) -> None:
    assert queue.read("g", "c") is None
    for n in range(8):
        queue.write("a", {"n": n})
    first = queue.read_many("g", "c", 4)
    assert queue.nack(*first) == 4
    order = drained(queue)
    assert [message.stream for message in order] == [*queue.streams_of("a") * 2]
    # A stream gives what was given back before what is new.
    assert [message.id for message in order[:4]] == [message.id for message in first]


def test_what_was_delivered_too_often_is_set_aside_by_the_nack_that_sees_it(
    any_server: AnyServer,
) -> None:
    queue = queue_on(any_server, max_attempts=2)
    written = queue.write("poison", {"n": 1}, 4e9, "x")
    good = queue.write("good", {"n": 2})
    held = [each for each in queue.read_many("other", "c", 2) if each.id == written]
    for attempt in (1, 2):
        messages = queue.read_many("g", "c", 2) if attempt == 1 else [got(queue.read("g", "c"))]
        poison = next(each for each in messages if each.tenant == "poison")
        assert poison.attempts == attempt
        queue.ack(*(each for each in messages if each.id == good))
        # A delay is for a message that comes back.
        assert queue.nack(poison, delay=0 if attempt == 1 else 100) == 1
        assert queue.nack(poison) == 0
    (dead,) = queue.dead("g")
    assert (dead.id, dead.tenant, dead.attempts, dead.tracking_id) == (written, "poison", 2, "x")
    assert (dead.fields, dead.deadline, dead.group) == ({b"n": b"1"}, 4e9, "g")
    assert dead.written <= dead.delivered <= dead.set_aside
    assert queue.read("g", "c") is None
    assert (queue.stats("g")["dead"], queue.stats("g")["delayed"]) == (1, 0)
    # The other group has it in hand still, and ends it.
    assert (queue.length(), queue.dead("other")) == (2, [])
    assert (queue.ack(*held), queue.cancel("x")) == (1, False)
    assert queue.revive("g", written) == 1
    assert got(queue.read("g", "c")).attempts == 1


def test_a_message_of_the_legacy_stream_is_set_aside_too(any_server: AnyServer) -> None:
    queue = queue_on(any_server, max_attempts=1)
    queue.client.xadd("orders", {"old": "1"})
    message = got(queue.read("g", "c"))
    assert queue.nack(message) == 1
    assert [(each.id, each.fields) for each in queue.dead("g")] == [(message.id, {b"old": b"1"})]
    assert (queue.length(), queue.read("g", "c")) == (0, None)


def test_poison_that_was_cancelled_is_not_set_aside(any_server: AnyServer) -> None:
    queue = queue_on(any_server, max_attempts=1)
    queue.write("a", {"n": 1}, tracking_id="x")
    message = got(queue.read("g", "c"))
    assert queue.cancel("x")
    queue.nack(message)
    assert (queue.dead("g"), queue.read("g", "c"), queue.length()) == ([], None, 0)


def test_an_acknowledged_message_does_not_come_back(queue: ShuffleQueue) -> None:
    queue.write("a", {"n": 1})
    message = got(queue.read("g", "c"))
    queue.nack(message)
    # A slow consumer has finished it after all.
    assert queue.ack(message) == 1
    assert (queue.read("g", "c"), queue.length()) == (None, 0)
    assert not queue.client.exists(queue.keys.group("g").returned)


def test_a_delay_is_kept(any_server: AnyServer, queue: ShuffleQueue) -> None:
    queue.write("a", {"n": 1})
    message = got(queue.read("g", "c"))
    assert queue.nack(message, delay=3600) == 1
    assert queue.read("g", "c") is None
    assert queue_on(any_server, HOUR_MS - 60_000).read("g", "c") is None
    again = got(queue_on(any_server, HOUR_MS + 1000).read("g", "c"))
    assert again.id == message.id
    assert not queue.client.exists(queue.keys.group("g").delayed)
    assert queue.client.hget(queue.keys.meta, "back:g") is None


def test_what_is_past_its_deadline_is_not_delivered(
    any_server: AnyServer, queue: ShuffleQueue
) -> None:
    at = dt.datetime.fromtimestamp(time.time() + 3600, dt.UTC)
    queue.write("a", {"n": 1}, deadline=at, tracking_id="t1")
    queue.write("a", {"n": 2})
    late = queue_on(any_server, HOUR_MS + 1000)
    assert [message.fields for message in drained(late)] == [{b"n": b"2"}]
    assert (queue.length(), queue.cancel("t1")) == (1, False)
    assert queue.client.hget(queue.keys.group("g").state, "overdue") == b"1"


def test_what_is_given_back_past_its_deadline_is_dropped(
    any_server: AnyServer, queue: ShuffleQueue
) -> None:
    queue.write("a", {"n": 1}, deadline=time.time() + 3600)
    queue.nack(got(queue.read("g", "c")))
    assert queue_on(any_server, HOUR_MS + 1000).read("g", "c") is None
    assert queue.length() == 0


def test_many_overdue_messages_hide_nothing(any_server: AnyServer, queue: ShuffleQueue) -> None:
    for n in range(300):
        queue.write("a", {"n": n}, deadline=1.0)
    queue.write("a", {"n": "live"})
    assert got(queue.read("g", "c")).fields == {b"n": b"live"}
    assert queue.read("g", "c") is None
    assert queue.length() == 1


@pytest.mark.parametrize("state", ["waiting", "pending", "returned", "delayed"])
def test_a_cancelled_message_is_not_delivered_again(
    any_server: AnyServer, queue: ShuffleQueue, state: str
) -> None:
    queue.write("a", {"n": 1}, tracking_id="t")
    message = None
    if state != "waiting":
        message = got(queue.read("g", "c"))
        if state == "returned":
            queue.nack(message)
        elif state == "delayed":
            queue.nack(message, delay=3600)
    assert queue.cancel("t") is True
    assert queue.cancel("t") is False
    later = queue_on(any_server, 2 * HOUR_MS)
    assert later.read("g", "c") is None
    if message is not None and state == "pending":
        assert queue.nack(message) in (0, 1)
        assert later.read("g", "c") is None
    queue.write("a", {"n": 2})
    assert got(queue.read("g", "c")).fields == {b"n": b"2"}


def test_a_tracking_id_means_its_latest_message(queue: ShuffleQueue) -> None:
    queue.write("a", {"n": 1}, tracking_id="t")
    queue.write("a", {"n": 2}, tracking_id="t")
    first = got(queue.read("g", "c"))
    assert first.fields == {b"n": b"1"}
    queue.ack(first)
    assert queue.cancel("t") is True
    assert queue.read("g", "c") is None


def test_the_legacy_stream_is_read_too_by_its_own_group(queue: ShuffleQueue) -> None:
    client = queue.client
    client.xadd("orders", {"old": 1})
    client.xgroup_create("orders", "orders", "0")
    client.xadd("orders", {"old": 2})
    queue.write("a", {"new": 1})
    found = drained(queue)
    assert sorted(message.id.split("-")[0] for message in found) == [
        *([str(queue.streams_of("a")[0])]),
        *(["default"] * 2),
    ]
    old = [message for message in found if message.stream is None]
    assert [(message.tenant, message.fields) for message in old] == [
        (None, {b"old": b"1"}),
        (None, {b"old": b"2"}),
    ]
    assert client.xpending("orders", "orders")["pending"] == 2
    assert queue.length() == 3
    assert queue.nack(old[0]) == 1
    again = got(queue.read("g", "d"))
    assert (again.id, queue.extend(again), queue.ack(again, old[1])) == (old[0].id, 1, 2)
    assert (queue.length(), client.xlen("orders")) == (1, 0)


def test_the_legacy_stream_has_its_turns_beside_a_backlog(queue: ShuffleQueue) -> None:
    assert queue.read("g", "c") is None
    for n in range(60):
        queue.write("a", {"n": n})
    queue.client.xadd("orders", {"old": 1})
    order = [message.stream for message in drained(queue)]
    assert len(order) == 61
    assert order.index(None) <= 20


def test_a_legacy_entry_that_others_may_need_is_kept(queue: ShuffleQueue) -> None:
    queue.client.xadd("orders", {"old": 1})
    queue.client.xgroup_create("orders", "audit", "0")
    assert queue.ack(got(queue.read("g", "c"))) == 1
    assert queue.client.xlen("orders") == 1


def test_a_queue_that_is_deleted_begins_anew(any_server: AnyServer, queue: ShuffleQueue) -> None:
    other = queue_on(any_server)
    for n in range(10):
        queue.write("a", {"n": n})
    queue.read("g", "c")
    other.write("b", {"n": 1})
    assert queue.delete() > 0
    base, receipts = queue.keys.base, queue.keys.receipt(b"")
    left = [key for key in queue.client.keys("*") if key.startswith(base)]
    assert [key for key in left if not key.startswith(receipts)] == []
    # Both have known a group that is no more.
    other.write("b", {"n": 2})
    assert [message.fields for message in drained(queue, "h")] == [{b"n": b"2"}]
    queue.write("b", {"n": 3})
    assert got(other.read("h", "c")).fields == {b"n": b"3"}


def test_an_idle_queue_stands_in_the_due_index(any_server: AnyServer) -> None:
    queue = queue_on(any_server, ttl=100.0)
    queue.write("a", {"n": 1})
    due, _, _ = queue._place or ("", "", "")
    now = time.time() * 1000
    first = queue.client.zscore(due, "orders")
    assert now + 90_000 <= first <= now + 110_000
    assert queue.client.pttl(queue.keys.meta) == -1
    message = got(queue_on(any_server, 50_000, ttl=100.0).read("g", "c"))
    second = queue.client.zscore(due, "orders")
    assert first + 40_000 <= second
    queue.nack(message, delay=500.0)
    assert queue.client.zscore(due, "orders") >= now + 590_000


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda q: q.write("a", ["x"]), "give a mapping"),
        (lambda q: q.write("a", {"ws:tenant": 1}), "the queue's own"),
        (lambda q: q.write("a", {b"ws:deadline": 1}), "the queue's own"),
        (lambda q: q.write("a", {"ws:mine": 1}), "the queue's own"),
        (lambda q: q.write("a", {str(n): n for n in range(1001)}), "too wide"),
        (lambda q: q.write(None, {"a": 1}), "tenant"),
        (lambda q: q.write(["x"], {"a": 1}), "tenant"),
        (lambda q: q.write("a", {"a": 1}, account=["x"]), "the account .'x'. is not usable"),
        (lambda q: q.write("a", {"a": 1}, account="\ud800"), "the account"),
        (lambda q: q.write(7, {"a": 1}, account="a"), "the tenant 7 is not usable"),
        (lambda q: q.write_many(["a"]), "'a' is no message to be written"),
        (lambda q: q.write_many("a"), "'a' are no messages to be written"),
        (
            lambda q: q.write_many([NewMessage("a", {}), NewMessage("a", {}, ttl=5, priority=1)]),
            "a ShuffleQueue has no priority and no ttl: leave",
        ),
        (lambda q: q.exchange("1-2-3", group="g", consumer="c"), "is no message"),
        (lambda q: q.exchange(group="g", consumer="c", n=101), "^n is 101; expected"),
        (lambda q: q.exchange(*"a" * 101, group="g", consumer="c"), "^the number of messages"),
        (lambda q: q.write("a", {"a": 1}, deadline=dt.datetime(2030, 1, 1)), "no time zone"),  # noqa: DTZ001
        (lambda q: q.write("a", {"a": 1}, deadline="soon"), "is no time"),
        (lambda q: q.write("a", {"a": 1}, deadline=-1), "out of range"),
        (lambda q: q.write("a", {"a": 1}, deadline=float("nan")), "out of range"),
        (lambda q: q.write("a", {"a": 1}, tracking_id=""), "tracking id"),
        (lambda q: q.cancel(7), "tracking id"),
        (lambda q: q.read("", "c"), "group"),
        (lambda q: q.read(["g"], "c"), "group"),
        (lambda q: q.read("g", ""), "consumer"),
        (lambda q: q.read("g", "c", block=-1), "block="),
        (lambda q: q.read("g", "c", block=float("inf")), "block="),
        (lambda q: q.read("g", "c", prefer_stream=-1), "prefer_stream"),
        (lambda q: q.read_many("g", "c", 0), "^n is 0; expected a whole number, 1 to"),
        (lambda q: q.ack("1-2-3"), "is no message"),
        (lambda q: q.nack("1-2-3"), "is no message"),
        (lambda q: split_id("x"), "is no id"),
        (lambda q: split_id("-2-1-1"), "is no id"),
        (lambda q: ShuffleQueue(q.client, ""), "queue's name"),
        (lambda q: ShuffleQueue(q.client, "q", streams=0), "streams"),
        (lambda q: ShuffleQueue(q.client, "q", streams=2, streams_per_tenant=3), "per_tenant"),
        (lambda q: ShuffleQueue(q.client, "q", ttl=0), "ttl"),
        (lambda q: ShuffleQueue(q.client, "q", max_attempts=0), "max_attempts is 0"),
        (lambda q: ShuffleQueue(q.client, "q", namespace="a b"), "namespace"),
    ],
)
@pytest.mark.real
def test_what_is_no_argument_is_refused(redis7: Any, call: Any, says: str) -> None:
    queue = queue_on(redis7)
    with pytest.raises(ConfigurationError, match=says):
        call(queue)
    assert queue.client.keys() == []


@pytest.mark.parametrize("of", [lambda value: {"a": value}, lambda value: {"b": 1, value: 2}])
@pytest.mark.parametrize("value", [None, True, (1, 2), object])
@pytest.mark.real
def test_a_field_that_redis_cannot_hold_is_named(redis7: Any, of: Any, value: Any) -> None:
    queue = queue_on(redis7)
    name = re.escape(repr(list(of(value))[-1]))
    says = f"the field {name} .* is of type {type(value).__name__}.*give a text, bytes or a number"
    with pytest.raises(ConfigurationError, match=says):
        queue.write("t", of(value))
    assert queue.client.keys() == []


def test_fields_of_all_kinds_that_redis_py_takes(queue: ShuffleQueue) -> None:
    kinds: dict[Any, Any] = {"a": b"1", b"b": b"2", 3: memoryview(b"3"), 0.5: 4.5}
    with contextlib.suppress(redis.DataError):
        # An older redis-py takes none.
        Encoder("utf-8", "strict", False).encode(bytearray(b"2"))
        kinds[b"b"] = bytearray(b"2")
    queue.write("t", kinds)
    expected = {b"a": b"1", b"b": b"2", b"3": b"3", b"0.5": b"4.5"}
    assert got(queue.read("g", "c")).fields == expected


def test_nothing_is_nothing(queue: ShuffleQueue) -> None:
    assert (queue.ack(), queue.nack(), queue.extend(), queue.length()) == (0, 0, 0, 0)
    assert (queue.groups(), queue.cancel("t")) == ([], False)


def test_a_pipeline_is_one_transaction(queue: ShuffleQueue) -> None:
    with queue.pipeline() as pipeline:
        pipeline.write("t", {"n": 1}).write("t", {"n": 2})
        assert len(pipeline.execute()) == 2
    assert queue.length() == 2
