"""Reads of a shuffle queue are fair between streams, wherever the tenants' streams lie."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer, wait_until
from support.single_streams import SingleStreams
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import ShuffleQueue

STREAMS = 64
A, B = range(4), range(4, 8)


def filled(client: Any, name: str, each: int, **options: Any) -> SingleStreams:
    """Return a queue with `each` messages in each of the streams of A and of B."""
    singles = SingleStreams(client, name, STREAMS, **options)
    for stream in (*A, *B):
        for number in range(each):
            singles.put(stream, {"who": "A" if stream in A else "B", "n": number})
    return singles


def who(message: Any) -> str:
    text: str = message.fields[b"who"].decode()
    return text


def test_of_neighbours_each_gets_exactly_half(any_server: AnyServer) -> None:
    """From a random stream on, tenant A would be served 60 times of 64."""
    queue = filled(any_server.client(), "neighbours", 10).queue
    served = [queue.read("workers", "one") for _ in range(80)]
    assert Counter(map(who, served)) == {"A": 40, "B": 40}
    for start in range(73):
        # In any eight reads in a row each stream is served once.
        assert {message.stream for message in served[start : start + 8]} == set(range(8))
    assert queue.read("workers", "one") is None


def test_a_newcomer_is_served_before_anybody_is_served_twice(any_server: AnyServer) -> None:
    singles = filled(any_server.client(), "newcomer", 6)
    queue = singles.queue
    for _ in range(11):
        queue.read("workers", "one")
    singles.put(40, {"who": "C"})
    after = [queue.read("workers", "one").stream for _ in range(9)]
    assert sorted(after) == [*range(8), 40]


def test_many_messages_at_once_are_of_different_streams(any_server: AnyServer) -> None:
    queue = filled(any_server.client(), "many", 3).queue
    for _ in range(3):
        assert {m.stream for m in queue.read_many("workers", "one", 8)} == set(range(8))


def test_consumers_and_readers_of_other_processes_share_one_turn(redis7: RedisServer) -> None:
    """Eight readers, each with a client of its own: together they serve every stream alike."""
    filled(redis7.client(), "shared", 60)
    served: list[int] = []

    def read(number: int) -> None:
        queue: Any = ShuffleQueue(redis7.client(), "shared", STREAMS)
        for i in range(30):
            message = queue.read("workers", f"consumer-{number}-{i % 2}")
            served.append(message.stream)
            assert (queue.nack if i % 7 == 0 else queue.ack)(message) == 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(served) == dict.fromkeys(range(8), 30)


def test_groups_do_not_move_each_others_turns(any_server: AnyServer) -> None:
    queue = filled(any_server.client(), "groups", 4).queue
    turns: dict[str, list[int]] = defaultdict(list)
    rng = random.Random(4)
    for group in rng.sample(["slow"] * 16 + ["quick"] * 32, 48):
        turns[group].append(queue.read(group, "one").stream)
    for served in turns.values():
        for start in range(len(served) - 7):
            assert set(served[start : start + 8]) == set(range(8))


def test_what_is_recovered_changes_no_turns(redis7: RedisServer) -> None:
    """A dead consumer held two messages of each stream: they come back at their streams' turns."""
    client = redis7.client()
    queue = filled(client, "recovered", 3).queue
    held = queue.read_many("workers", "dead", 8) + queue.read_many("workers", "dead", 8)
    reaper = ShuffleQueueReaper(queue, lease=0.001)
    returned = queue.keys.group("workers").returned

    def all_recovered() -> bool:
        reaper.perform(Slice(25, 10.0))
        return bool(client.zcard(returned) == len(held))

    wait_until(all_recovered, "what the dead consumer held to be recovered")
    served = [queue.read("workers", "one") for _ in range(24)]
    assert queue.read("workers", "one") is None
    assert Counter(map(who, served)) == {"A": 12, "B": 12}
    for start in range(17):
        assert {message.stream for message in served[start : start + 8]} == set(range(8))
    assert Counter(message.attempts for message in served) == {2: 16, 1: 8}


@pytest.mark.parametrize("account", ["splitter", None])
def test_a_tenant_that_splits_itself_gains_nothing_if_its_account_stays(
    redis7: RedisServer, account: str | None
) -> None:
    """A thousand names of one account, each with one message, and a quiet tenant behind them."""
    queue: Any = ShuffleQueue(redis7.client(), "split", STREAMS)
    for number in range(1000):
        queue.write(f"splitter {number}", {"n": number}, account=account)
    theirs = set(queue.streams_of("splitter"))
    names = (f"quiet {number}" for number in range(100))
    quiet = next(name for name in names if not theirs & set(queue.streams_of(name)))
    for number in range(8):
        queue.write(quiet, {"n": number})
    order = [message.tenant for message in queue.read_many("workers", "one", 1000)]
    at = [place for place, tenant in enumerate(order) if tenant == quiet]
    if account is None:
        # Their names fill all streams, also those of the quiet tenant: it waits for many rounds.
        assert all(place > 8 * STREAMS for place in at)
    else:
        # Their four streams and its own take turns: all of its messages are in the first two.
        assert len(at) == 8
        assert max(at) < 2 * 8


class Model:
    """What waits in each stream for each group, and what fairness promises of it.

    From the moment on that a stream has something for a group until it is served, no other stream
    is served twice.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, dict[int, set[str]]] = {}
        # For each stream with something: whom the group has served since it came or was served.
        self.since: dict[str, dict[int, set[int]]] = {}
        self.all: dict[str, int] = {}

    def join(self, group: str) -> None:
        if group in self.waiting:
            return
        self.waiting[group] = defaultdict(set)
        self.since[group] = {}
        for message_id, stream in self.all.items():
            self.comes(group, stream, message_id)

    def comes(self, group: str, stream: int, message_id: str) -> None:
        self.waiting[group][stream].add(message_id)
        self.since[group].setdefault(stream, set())

    def served(self, group: str, message: Any) -> None:
        stream = message.stream
        waiting, since = self.waiting[group], self.since[group]
        assert message.id in waiting[stream], "it was not waiting"
        waiting[stream].remove(message.id)
        del since[stream]
        for other, seen in since.items():
            assert stream not in seen, f"{stream} was served twice while {other} waited"
            seen.add(stream)
        if waiting[stream]:
            since[stream] = set()

    def empty(self, group: str) -> bool:
        return not any(self.waiting[group].values())


step = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 7), st.integers(1, 4)),
    st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("ack"), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("nack"), st.integers(0, 2), st.integers(1, 3)),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    placement=st.lists(st.integers(0, 15), min_size=8, max_size=8),
    steps=st.lists(step, min_size=5, max_size=60),
    seed=st.integers(0, 2**16),
)
def test_any_placement_is_fair(
    redis7: RedisServer, placement: list[int], steps: list[tuple[str, int, int]], seed: int
) -> None:
    """Random streams, groups that come late, and consumers that take, acknowledge and return."""
    rng = random.Random(seed)
    client = redis7.client()
    name = f"placed-{uuid4()}"
    singles = SingleStreams(client, name, 16, max_attempts=10**6)
    queue, model = singles.queue, Model()
    # As of other processes, which go by the same plans.
    readers: list[Any] = [
        queue,
        *(ShuffleQueue(client, name, 16, max_attempts=10**6) for _ in range(2)),
    ]
    held: dict[str, list[Any]] = defaultdict(list)
    acknowledged: dict[str, set[str]] = defaultdict(set)

    def read(group: str) -> bool:
        message = rng.choice(readers).read(group, f"consumer-{rng.randrange(3)}")
        model.join(group)
        assert (message is None) == model.empty(group)
        if message is None:
            return False
        model.served(group, message)
        held[group].append(message)
        return True

    for what, which, times in steps:
        group = f"group-{which % 3}"
        for _ in range(times):
            if what == "write":
                stream = placement[which]
                written = singles.put(stream, {"n": len(model.all)})
                model.all[written] = stream
                for joined in model.waiting:
                    model.comes(joined, stream, written)
            elif what == "read":
                read(group)
            elif held[group]:
                message = held[group].pop(rng.randrange(len(held[group])))
                if what == "ack":
                    assert queue.ack(message) == 1
                    acknowledged[message.id].add(group)
                    if acknowledged[message.id] == set(model.waiting):
                        # The last of all groups deletes it: one that joins later misses it.
                        del model.all[message.id]
                else:
                    assert queue.nack(message) == 1
                    model.comes(group, message.stream, message.id)
    for group in [*model.waiting]:
        while read(group):
            pass
