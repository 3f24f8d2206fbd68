"""What an account owes, and when: after quiet times, changed weights, rates and other clocks."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from support.any_server import AnyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing.errors import ConfigurationError
from workstealing.jobs import FairQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import FairQueue
from workstealing.structures.fair_queue.message import SharedTime

pytestmark = pytest.mark.contract


@pytest.fixture
def queue(any_server: AnyServer) -> FairQueue:
    return FairQueue(any_server.client(), "jobs")


def turns(queue: FairQueue, reads: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for _ in range(reads):
        message = queue.read("w")
        if message is None:
            break
        found[message.account] = found.get(message.account, 0) + 1
        queue.ack(worked(message, 0.001))
    return found


def worked(message: Any, seconds: float) -> Any:
    """Return a message that was in hand for so long, as its reader counts it."""
    time = SharedTime()
    time.since -= seconds
    return dataclasses.replace(message, batch=time)


def test_newcomers_of_one_message_are_served_in_their_order(queue: FairQueue) -> None:
    """Their tags are one virtual time, and a tie goes by the name."""
    for number in range(11):
        queue.write(f"a{number:02}", {"n": 1})
    queue.write("zoe", {"n": 1})
    served = []
    for number in range(100, 160):
        message = queue.read("w")
        assert message is not None
        served.append(message.account)
        queue.ack(message)
        queue.write(f"a{number}", {"n": 1})
    assert served.index("zoe") <= 12


def test_a_quiet_time_leaves_a_debt_of_a_minute(any_server: AnyServer, queue: FairQueue) -> None:
    queue.write("b", {"n": 0})
    message = queue.read("w")
    assert message is not None
    late = FairQueue(any_server.client(), "jobs", clock_shift_ms=36_000_000)
    # Ten hours of work, by the server's clock.
    assert late.ack(message) == 1
    assert queue.read("w") is None
    state = queue.explain_wait("b").state
    assert state is not None
    assert 59 <= state.behind_seconds <= 60


def test_a_raised_weight_holds_at_once(any_server: AnyServer, queue: FairQueue) -> None:
    queue.set_rule("bulk", weight=0.001)
    for number in range(60):
        queue.write("bulk", {"n": number})
        queue.write("a", {"n": number})
    message = queue.read("w")
    while message is not None and message.account != "bulk":
        queue.ack(message)
        message = queue.read("w")
    assert message is not None
    FairQueue(any_server.client(), "jobs", clock_shift_ms=10_000).ack(message)
    queue.set_rule("bulk", weight=1)
    found = turns(queue, 80)
    assert found.get("bulk", 0) >= 20, found


def test_no_reaper_undoes_a_rate(queue: FairQueue) -> None:
    queue.set_rule("a", rate=0.01)
    reaper = FairQueueReaper(queue)
    delivered = 0
    for number in range(8):
        queue.write("a", {"n": number})
        message = queue.read("w")
        if message is not None:
            delivered += 1
            queue.ack(message)
        reaper.perform(Slice(25, 5.0))
    assert delivered == 1


def test_an_account_is_forgotten_when_its_rate_lets_it(
    any_server: AnyServer, queue: FairQueue
) -> None:
    queue.set_rule("a", rate=0.01)
    queue.write("a", {"n": 1})
    message = queue.read("w")
    assert message is not None
    queue.ack(message)
    FairQueueReaper(queue).perform(Slice(25, 5.0))
    assert queue.client.hlen(queue.keys.of("accounts")) == 1
    late = FairQueue(any_server.client(), "jobs", clock_shift_ms=200_000)
    assert late.read("w") is None
    for _ in range(3):
        FairQueueReaper(late).perform(Slice(25, 5.0))
    assert queue.client.hlen(queue.keys.of("accounts")) == 0


def test_an_old_delivery_is_none_of_a_restored_queue(queue: FairQueue) -> None:
    """After a failover to a replica that lacks the last moments, numbers are not used again."""
    queue.write("a", {"n": "before"})
    queue.ack(*queue.read_many("w", 1))
    keys = [queue.keys.meta, *queue.keys.parts]
    state = {key: queue.client.dump(key) for key in keys}
    queue.write("a", {"n": "x"})
    old = queue.read("dead")
    assert old is not None
    for key, dumped in state.items():
        queue.client.delete(key)
        if dumped is not None:
            queue.client.restore(key, 0, dumped)
    queue.write("a", {"n": "y"})
    new = queue.read("w")
    assert new is not None
    assert old.delivery != new.delivery
    assert (queue.ack(old), queue.ack(new)) == (0, 1)


@pytest.mark.parametrize("how", ["nack", "lapsed"])
def test_nor_of_one_that_waits_again_there(
    any_server: AnyServer, queue: FairQueue, how: str
) -> None:
    """A restored queue gives lost messages' ids again, and what waits is nobody's to end."""
    queue.write("a", {"n": "before"})
    queue.ack(*queue.read_many("w", 1))
    keys = [queue.keys.meta, *queue.keys.parts]
    state = {key: queue.client.dump(key) for key in keys}
    queue.write("a", {"n": "x"})
    old = queue.read("dead")
    assert old is not None
    for key, dumped in state.items():
        queue.client.delete(key)
        if dumped is not None:
            queue.client.restore(key, 0, dumped)
    queue.write("a", {"n": "y"})
    new = queue.read("w")
    assert new is not None
    assert new.id == old.id
    if how == "nack":
        assert queue.nack(new) == 1
    else:
        queue = FairQueue(any_server.client(), "jobs", clock_shift_ms=61_000)
        FairQueueReaper(queue).perform(Slice(25, 5.0))
    assert queue.ack(old) == 0
    again = queue.read("w")
    assert again is not None
    assert again.fields[b"n"] == b"y"


def test_a_message_that_another_process_acknowledges_has_the_servers_time(
    queue: FairQueue,
) -> None:
    """Another machine's monotonic clock is another one."""
    for number in range(2):
        queue.write("a", {"n": number})
    for each in queue.read_many("w", 2):
        carried = pickle.loads(pickle.dumps(worked(each, 432_000.0)))
        assert queue.ack(carried) == 1
    state = queue.explain_wait("a").state
    assert state is not None
    assert state.estimate_seconds < 60


def test_a_delayed_message_outlasts_the_time_to_live(any_server: AnyServer) -> None:
    queue = FairQueue(any_server.client(), "jobs", ttl=60)
    queue.write("a", {"n": 1}, delay=3600)
    place = queue._place
    assert place is not None
    due = queue.client.zscore(place[0], "jobs")
    seconds, _ = queue.client.time()
    assert due is not None
    assert due / 1000 > seconds + 3500


def test_the_oldest_that_waits_is_seen_behind_a_hole(queue: FairQueue) -> None:
    queue.write("a", {"n": 0}, tracking_id="first")
    for number in range(5):
        queue.write("a", {"n": number})
    assert queue.cancel("first")
    assert queue.stats()["oldest_waiting_seconds"] is not None


def test_a_pause_keeps_what_another_call_has_set(queue: FairQueue) -> None:
    queue.set_rule("a", weight=5, max_in_flight=2)
    queue.pause("a")
    rule = queue.rules()["a"]
    assert (rule.weight, rule.max_in_flight, rule.paused) == (5.0, 2, True)
    queue.resume("a")
    assert queue.rules()["a"].paused is None
    queue.remove_rule("a")
    queue.pause("a")
    queue.resume("a")
    assert queue.rules() == {}


def test_what_cannot_be_decoded_takes_no_other_along(any_server: AnyServer) -> None:
    FairQueue(any_server.client(), "jobs").write("a", {"n": b"\xff"})
    texts = FairQueue(any_server.client(decode_responses=True), "jobs")
    for number in range(3):
        texts.write("a", {"n": number})
    found = texts.read_many("w", 4)
    assert [each.fields["n"] for each in found] == ["0", "1", "2"]
    assert texts.ack(*found) == 3
    assert texts.read("w") is None


def test_overdue_messages_in_hand_hide_no_others(any_server: AnyServer) -> None:
    queue = FairQueue(any_server.client(), "jobs", lease=3600)
    for number in range(120):
        queue.write("held", {"n": number}, ttl=10)
    assert len(queue.read_many("w", 120)) == 120
    for number in range(50):
        queue.write("waits", {"n": number}, ttl=11)
    late = FairQueue(any_server.client(), "jobs", lease=3600, clock_shift_ms=60_000)
    reaper = FairQueueReaper(late, limit=10)
    for _ in range(30):
        reaper.reap(Slice(10, 5.0))
    assert queue.stats()["overdue"] == 50
    assert queue.length() == 120


def test_a_pattern_has_a_bound(queue: FairQueue) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        queue.set_rule("*" * 1025, weight=2)
    assert queue.rules() == {}
