"""A fair queue on every kind of server: what is written is served in turn, once, and acked."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from support.fair_queues import drained, got, leftovers, mend, queue_on, reap
from support.servers import AnyServer
from workstealing.errors import ConfigurationError, QueueFull
from workstealing.structures.fair_queue import (
    AccountRule,
    AsyncFairQueue,
    FairMessage,
    FairQueue,
    NewMessage,
)

pytestmark = pytest.mark.contract

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
ENDED = ("ack", "exchange", "cancel", "purge", "dead", "overdue", "overdue by the reaper")


@pytest.fixture
def queue(any_server: AnyServer) -> FairQueue:
    return queue_on(any_server.client())


def later(queue: FairQueue, ahead_ms: int, **options: Any) -> FairQueue:
    """Return the same queue, seen later."""
    return queue_on(queue.client, ahead_ms, **options)


def numbers(messages: list[FairMessage]) -> list[int]:
    return [int(each.fields[b"n"]) for each in messages]


class TestAMessage:
    def test_comes_back_as_it_was_written(self, queue: FairQueue) -> None:
        deadline = int(time.time()) + 3600
        body = bytes(range(256))
        fields = {"a": 1, b"\xff\x00": body, "": "", "u": "ü", "spaces : 3:": "1:2 3"}
        written = queue.write("tenant ü", fields, deadline, "order 1", account="whole firm")
        message = got(queue.read("w1"))
        assert message.id == written
        assert (message.consumer, message.tenant, message.account) == (
            *("w1", "tenant ü", "whole firm"),
        )
        assert message.fields == {
            b"a": b"1",
            b"\xff\x00": body,
            b"": b"",
            b"u": "ü".encode(),
            b"spaces : 3:": b"1:2 3",
        }
        assert (message.attempts, message.deadline, message.tracking_id) == (1, deadline, "order 1")
        assert (message.priority, message.group, message.stream) == (0, "", None)
        assert 0 <= message.pickup_delay_ms < MINUTE_MS
        assert queue.read("w1") is None

    @pytest.mark.parametrize("protocol", [2, 3])
    def test_may_be_decoded(self, any_server: AnyServer, protocol: int) -> None:
        queue = queue_on(any_server.client(decode_responses=True, protocol=protocol))
        queue.set_rule("a*", max_in_flight=5, weight=2)
        queue.write("ä", {"n": protocol}, tracking_id="t", dedupe=("k", 60))
        queue.write("ä", {"n": 9}, delay=60, priority=1)
        assert queue.rules() == {"a*": AccountRule(weight=2, max_in_flight=5)}
        assert [each.fields for each in queue.peek("ä")] == [{"n": str(protocol)}]
        message = got(queue.read("c"))
        assert message.fields == {"n": str(protocol)}
        assert (queue.nack(message), queue.ack(got(queue.read("c")))) == (1, 1)
        assert not queue.cancel("t")
        assert queue.explain_wait("ä").state is not None
        assert queue.stats()["consumers"].keys() == {"c"}
        assert [each.account for each in queue.accounts()] == ["ä"]
        done = queue.exchange(consumer="c")
        assert (done.done, done.messages) == (0, [])
        assert (queue.purge("ä"), queue.length()) == (1, 0)

    def test_leaves_nothing_once_it_is_acknowledged(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1}, tracking_id="t", ttl=60, dedupe=("k", 60))
        message = got(queue.read("c"))
        assert queue.length() == 1
        assert queue.ack(message) == 1
        assert (queue.ack(message), queue.length()) == (0, 0)
        reap(queue)
        assert leftovers(queue) == {}

    def test_has_an_id_that_no_later_one_has(self, queue: FairQueue) -> None:
        ids = set()
        for n in range(5):
            ids |= {queue.write("a", {"n": n}), queue.write("a", {"n": n}, priority=1)}
            ids.add(queue.write("a", {"n": n}, delay=0.001))
            held = drained(later(queue, 10))
            assert queue.ack(*held) == 3
            # The account is forgotten.
            assert reap(queue)[2] == 1
            assert queue.accounts() == []
        assert len(ids) == 15

    def test_that_was_lost_to_another_is_neither_acked_nor_extended_nor_given_back(
        self, queue: FairQueue
    ) -> None:
        queue.write("a", {"n": 1})
        first = got(queue.read("c"))
        second = got(later(queue, 61_000).read("d"))
        assert (first.id, second.attempts) == (second.id, 2)
        assert (queue.ack(first), queue.nack(first), queue.extend(first)) == (0, 0, 0)
        assert queue.ack(second) == 1

    def test_that_waits_again_is_acked_by_a_slow_consumer(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1}, tracking_id="t", ttl=3600)
        first = got(queue.read("c"))
        reap(later(queue, 61_000))
        assert queue.stats()["returned"] == 1
        assert queue.ack(first) == 1
        assert queue.read("c") is None
        reap(queue)
        assert leftovers(queue) == {}

    def test_that_no_read_gave_is_refused(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        (peeked,) = queue.peek("a")
        for call in (queue.ack, queue.nack, queue.extend):
            with pytest.raises(ConfigurationError):
                call(peeked)
            with pytest.raises(ConfigurationError):
                call("1-0-0")  # type: ignore[arg-type]

    def test_that_is_extended_stays_its_consumers(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        message = got(queue.read("c"))
        assert later(queue, 59_000).extend(message) == 1
        assert later(queue, 100_000).read("d") is None
        assert got(later(queue, 120_000).read("d")).id == message.id


class TestOrder:
    def test_within_an_account_is_that_of_writing(self, queue: FairQueue) -> None:
        for n in range(20):
            queue.write(f"tenant{n % 3}", {"n": n}, account="a")
        assert numbers(drained(queue)) == list(range(20))

    def test_of_accounts_is_in_turn(self, queue: FairQueue) -> None:
        for n in range(10):
            queue.write("a", {"n": n})
        for n in range(10):
            queue.write("b", {"n": n})
        order = [each.account for each in drained(queue)]
        assert all(set(order[at : at + 2]) == {"a", "b"} for at in range(0, 20, 2))

    def test_priority_goes_first_but_for_the_share_of_the_lower(self, queue: FairQueue) -> None:
        queue.set_rule("a", lower=0.2)
        for n in range(40):
            queue.write("a", {"n": n}, priority=n % 2)
        found = drained(queue)
        assert len(found) == 40
        first = [each.priority for each in found[:25]]
        assert (first.count(1), first.count(0)) == (20, 5)
        # Evenly, not in one heap.
        assert all(sum(first[at : at + 5]) == 4 for at in range(0, 25, 5))
        assert [each.priority for each in found[25:]] == [0] * 15

    @pytest.mark.parametrize(("lower", "wanted"), [(0.0, [1] * 5 + [0] * 5), (1.0, [0, 1])])
    def test_priority_at_the_ends_of_the_share(
        self, queue: FairQueue, lower: float, wanted: list[int]
    ) -> None:
        queue.set_rule("*", lower=lower)
        for n in range(10):
            queue.write("a", {"n": n}, priority=n % 2)
        order = [each.priority for each in drained(queue)]
        assert order == (wanted if lower == 0 else [0] * 5 + [1] * 5)

    def test_what_is_given_back_goes_first(self, queue: FairQueue) -> None:
        for n in range(4):
            queue.write("a", {"n": n})
        first, second = got(queue.read("c")), got(queue.read("c"))
        assert queue.nack(second, first) == 2
        assert numbers(queue.peek("a")) == [1, 0, 2, 3]
        found = drained(queue)
        assert numbers(found) == [1, 0, 2, 3]
        assert [each.attempts for each in found] == [2, 2, 1, 1]


class TestTime:
    def test_a_delayed_message_comes_when_it_is_due(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1}, delay=60, tracking_id="t", ttl=120)
        queue.write("a", {"n": 2})
        held = drained(queue)
        stats = queue.stats()
        assert (stats["delayed"], stats["pending"], stats["length"]) == (1, 1, 2)
        assert queue.ack(*held) == 1
        assert later(queue, 59_000).read("c") is None
        assert numbers(drained(later(queue, 61_000))) == [1]

    def test_a_given_back_message_may_be_delayed(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        message = got(queue.read("c"))
        assert queue.nack(message, delay=dt.timedelta(seconds=30)) == 1
        assert (queue.read("c"), queue.stats()["delayed"]) == (None, 1)
        again = got(later(queue, 31_000).read("c"))
        assert (again.id, again.attempts) == (message.id, 2)
        # The first delivery is over.
        assert queue.ack(message) == 0
        assert queue.ack(again) == 1

    def test_a_delayed_message_is_acked_by_the_one_who_had_it(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        message = got(queue.read("c"))
        queue.nack(message, delay=30)
        assert queue.ack(message) == 1
        reap(queue)
        assert leftovers(queue) == {}

    @pytest.mark.parametrize("how", ["deadline", "ttl"])
    def test_past_its_deadline_it_is_not_delivered(self, queue: FairQueue, how: str) -> None:
        times: dict[str, Any] = {how: time.time() + 100 if how == "deadline" else 100}
        queue.write("a", {"n": 1}, tracking_id="t", dedupe=("k", 3600), **times)
        queue.write("a", {"n": 2})
        soon = later(queue, 101_000)
        (overdue,) = soon.overdue()
        assert (overdue.tracking_id, len(queue.overdue())) == ("t", 0)
        assert numbers(drained(soon)) == [2]
        assert (soon.overdue().total, soon.stats()["overdue"]) == (0, 1)
        assert not queue.cancel("t")

    def test_one_in_hand_stays_past_its_deadline(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1}, ttl=30)
        message = got(queue.read("c"))
        reap(later(queue, 31_000))
        assert later(queue, 31_000).overdue().total == 1
        assert queue.ack(message) == 1
        assert later(queue, 31_000).overdue().total == 0

    def test_many_that_are_due_at_once_are_never_reported_as_empty(self, queue: FairQueue) -> None:
        """Twenty of paused accounts are due before one of an account that goes on."""
        for n in range(20):
            queue.write(f"paused{n}", {"n": n}, delay=10)
        queue.write("open", {"n": 99}, delay=10.001)
        queue.pause("paused*")
        assert got(later(queue, 11_000).read("c")).account == "open"

    def test_many_limited_accounts_are_never_reported_as_empty(self, queue: FairQueue) -> None:
        queue.set_rule("limited*", rate=0.01)
        for n in range(20):
            queue.write(f"limited{n}", {"n": n})
            queue.write(f"limited{n}", {"n": n})
        assert len(drained(queue)) == 20
        # Paused, they stand among the limited until somebody looks.
        assert len(drained(later(queue, 101_000))) == 20

    def test_lapsed_leases_are_served_again(self, queue: FairQueue) -> None:
        for n in range(30):
            queue.write(f"a{n % 7}", {"n": n})
        assert len(drained(queue)) == 30
        assert queue.read("d") is None
        found = drained(later(queue, 61_000), "d")
        assert sorted(numbers(found)) == list(range(30))
        assert {each.attempts for each in found} == {2}
        assert queue.stats()["lapsed"] == 30


class TestDedupe:
    def test_a_message_is_written_once(self, queue: FairQueue) -> None:
        first = queue.write("a", {"n": 1}, dedupe=("k", 60))
        assert queue.write("b", {"n": 2}, dedupe=("k", 60)) == first
        assert queue.write("b", {"n": 2}, dedupe=("l", 60)) != first
        assert queue.length() == 2
        ids = queue.write_many(
            [
                NewMessage("a", {"n": 3}, dedupe=("k", 60)),
                NewMessage("a", {"n": 4}, dedupe=("m", 60)),
                NewMessage("a", {"n": 5}),
                NewMessage("a", {"n": 6}, dedupe=("m", 60)),
                NewMessage("a", {"n": 7}),
            ]
        )
        assert (ids[0], ids[1]) == (first, ids[3])
        assert len(set(ids)) == 4
        assert sorted(numbers(drained(queue))) == [1, 2, 4, 5, 7]

    def test_the_window_ends(self, queue: FairQueue) -> None:
        first = queue.write("a", {"n": 1}, dedupe=("k", 60))
        second = later(queue, 61_000).write("a", {"n": 2}, dedupe=("k", 60))
        assert first != second
        # The end of the first one does not free the key that the second one has.
        assert queue.ack(got(queue.read("c"))) == 1
        assert later(queue, 61_000).write("a", {"n": 3}, dedupe=("k", 60)) == second

    @pytest.mark.parametrize("end", ["ack", "cancel", "purge", "death", "deadline"])
    def test_a_key_that_outlives_the_message(self, queue: FairQueue, end: str) -> None:
        """By none of its ends is it written again within the window; the reaper forgets it."""
        new = NewMessage(
            *("a", {"n": 1}, None, "t"), ttl=100, dedupe=("k", 3600), dedupe_ended=True
        )
        (first,) = queue.write_many([new, new][:1])
        assert queue.write_many([new, new]) == [first, first]
        soon = queue
        if end == "ack":
            queue.ack(got(queue.read("c")))
        elif end == "cancel":
            queue.cancel("t")
        elif end == "purge":
            queue.purge("a")
        elif end == "death":
            once = queue_on(queue.client, max_attempts=1)
            once.nack(got(once.read("c")))
            assert len(queue.dead()) == 1
        else:
            soon = later(queue, 101_000)
            assert soon.read("c") is None
        assert queue.length() == 0
        assert mend(soon) == 0
        assert soon.write_many([new, new]) == [first, first]
        assert soon.length() == 0
        # An ordinary message is kept away by it, too.
        assert soon.write("a", {"n": 2}, dedupe=("k", 60)) == first
        after = later(queue, 3_601_000)
        # Beside it, perhaps, the note of a read.
        assert mend(after) in (1, 2)
        assert after.client.hlen(after.keys.of("dedupe")) == 0
        (second,) = after.write_many([new])
        assert second != first
        assert after.length() == 1

    @pytest.mark.parametrize("wrong", [1, None, "yes", True])
    def test_a_key_that_outlives_needs_a_key(self, queue: FairQueue, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="dedupe_ended="):
            queue.write("a", {"n": 1}, dedupe_ended=wrong)
        assert queue.length() == 0

    @pytest.mark.parametrize("end", ENDED)
    def test_every_end_frees_the_key(self, queue: FairQueue, end: str) -> None:
        first = queue.write("a", {"n": 1}, tracking_id="t", ttl=100, dedupe=("k", 3600))
        soon = queue
        if end == "ack":
            queue.ack(got(queue.read("c")))
        elif end == "exchange":
            done = queue.exchange(got(queue.read("c")), consumer="c")
            assert done.done == 1
        elif end == "cancel":
            assert queue.cancel("t")
        elif end == "purge":
            assert queue.purge("a") == 1
        elif end == "dead":
            assert queue_on(queue.client, max_attempts=1).nack(got(queue.read("c"))) == 1
            assert len(queue.dead()) == 1
        elif end == "overdue":
            soon = later(queue, 101_000)
            assert soon.read("c") is None
        else:
            soon = later(queue, 101_000)
            assert reap(soon)[1] == 1
        second = soon.write("b", {"n": 2}, dedupe=("k", 3600))
        assert second != first
        assert soon.length() == 1


class TestCancelAndPurge:
    @pytest.mark.parametrize("state", ["waits", "in hand", "returned", "delayed", "nacked later"])
    def test_cancel_in_each_state(self, queue: FairQueue, state: str) -> None:
        queue.set_rule("a", max_in_flight=1)
        queue.write("a", {"n": 1}, tracking_id="t", ttl=600, delay=60 if state == "delayed" else 0)
        message = None if state in ("waits", "delayed") else got(queue.read("c"))
        if message and state == "returned":
            queue.nack(message)
        elif message and state == "nacked later":
            queue.nack(message, delay=60)
        assert queue.cancel("t")
        assert (queue.cancel("t"), queue.length()) == (False, 0)
        if message:
            assert (queue.ack(message), queue.extend(message)) == (0, 0)
        assert later(queue, 61_000).read("c") is None
        # Its slot is free.
        queue.write("a", {"n": 2})
        assert numbers([got(queue.read("c"))]) == [2]
        (state_of,) = queue.accounts()
        assert (state_of.waiting, state_of.in_flight, state_of.delayed) == (0, 1, 0)

    def test_holes_are_passed_over_within_one_call(self, queue: FairQueue) -> None:
        for n in range(50):
            queue.write("a", {"n": n}, tracking_id=str(n))
        for n in range(49):
            assert queue.cancel(str(n))
        assert numbers(queue.peek("a")) == [49]
        assert numbers(drained(queue)) == [49]

    def test_purge_leaves_what_is_in_hand_and_other_accounts(self, queue: FairQueue) -> None:
        for n in range(250):
            queue.write("a", {"n": n}, priority=n % 2, tracking_id=str(n), dedupe=(str(n), 60))
        for n in range(120):
            queue.write("a", {"n": n}, delay=60)
            queue.write("b", {"n": n}, delay=60)
        queue.write("b", {"n": 1})
        held = got(queue.read("c"))
        held = held if held.account == "a" else got(queue.read("c"))
        back = got(queue.read("c"))
        queue.nack(back)
        assert queue.purge("a") in (249 + 120, 248 + 120)
        assert queue.purge("nobody") == 0
        states = {each.account: each for each in queue.accounts()}
        assert (states["a"].waiting, states["a"].delayed) == (0, 0)
        assert (states["a"].in_flight, states["b"].delayed) == (1, 120)
        assert queue.ack(held) == 1
        queue.purge("b")
        reap(queue)
        assert leftovers(queue).keys() <= {"accounts", "messages", "leases", "held"}


class TestReadMany:
    def test_goes_round(self, queue: FairQueue) -> None:
        for n in range(12):
            queue.write(f"a{n % 3}", {"n": n})
        first = queue.read_many("c", 6)
        assert sorted(each.account for each in first) == ["a0", "a0", "a1", "a1", "a2", "a2"]
        assert len(queue.read_many("c", 100)) == 6
        assert queue.read_many("c", 5) == []
        assert queue.ack(*first) == 6

    def test_of_one_account(self, queue: FairQueue) -> None:
        for n in range(12):
            queue.write(f"a{n % 3}", {"n": n})
        for _ in range(3):
            batch = queue.read_many("c", 10, same_account=True)
            assert len(batch) == 4
            assert len({each.account for each in batch}) == 1
        assert queue.read_many("c", 10, same_account=True) == []

    def test_of_one_account_keeps_its_cap(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_in_flight=3)
        for n in range(12):
            queue.write("a", {"n": n})
        assert len(queue.read_many("c", 10, same_account=True)) == 3
        assert queue.read_many("c", 10) == []

    def test_more_than_a_script_reads(self, queue: FairQueue) -> None:
        ids = queue.write_many([NewMessage(f"a{n % 9}", {"n": n}) for n in range(350)])
        assert len(set(ids)) == 350
        found = queue.read_many("c", 1000)
        assert {each.id for each in found} == set(ids)
        assert queue.ack(*found) == 350
        assert queue.length() == 0


class TestExchange:
    def test_settles_and_reads(self, queue: FairQueue) -> None:
        for n in range(5):
            queue.write("a", {"n": n}, tracking_id=str(n), dedupe=(str(n), 60))
        held: list[FairMessage] = []
        seen = []
        for _ in range(6):
            result = queue.exchange(*held, consumer="c")
            assert result.done == len(held)
            held = result.messages
            seen += numbers(held)
        assert seen == list(range(5))
        reap(queue)
        assert leftovers(queue) == {}

    def test_frees_the_slot_that_it_takes(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_in_flight=1)
        for n in range(3):
            queue.write("a", {"n": n})
        first = got(queue.read("c"))
        assert queue.exchange(consumer="c").messages == []
        result = queue.exchange(first, consumer="c", n=5)
        assert (result.done, numbers(result.messages)) == (1, [1])
        assert queue.exchange(first, consumer="c", n=5).done == 0

    def test_what_was_lost_is_not_done(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        first = got(queue.read("c"))
        second = got(later(queue, 61_000).read("d"))
        assert queue.exchange(first, consumer="c").done == 0
        assert queue.exchange(second, consumer="d", block=0.01).done == 1


class TestRules:
    def test_a_cap_bounds_what_is_in_hand(self, queue: FairQueue) -> None:
        queue.set_rule("bulk-*", max_in_flight=2)
        for n in range(6):
            queue.write("bulk-1", {"n": n})
        held = drained(queue)
        assert len(held) == 2
        queue.ack(held[0])
        assert len(drained(queue)) == 1
        queue.nack(held[1])
        assert numbers(drained(queue)) == [1]
        # After its leases too.
        soon = later(queue, 61_000)
        assert len(drained(soon)) == 2
        assert soon.stats()["pending"] == 2

    def test_hold_at_once_for_what_waits_already(self, queue: FairQueue) -> None:
        for n in range(9):
            queue.write("a", {"n": n})
        assert got(queue.read("c")).account == "a"
        queue.set_rule("*", max_in_flight=2)
        assert len(drained(queue)) == 1
        queue.set_rule("a", max_in_flight=4)
        assert len(drained(queue)) == 2
        assert queue.remove_rule("a")
        assert queue.read("c") is None
        assert (queue.remove_rule("*"), queue.remove_rule("*")) == (True, False)
        assert len(drained(queue)) == 5

    def test_the_most_particular_holds_and_the_default_fills_in(self, queue: FairQueue) -> None:
        queue.set_rule("*", weight=2, max_length=7)
        queue.set_rule("b*", weight=3)
        queue.set_rule("bu?k*", weight=4)
        queue.set_rule("bulk", rate=5)
        for account in ("bulk", "bulks", "balk", "x"):
            queue.write(account, {"n": 1})
        states = {each.account: each for each in queue.accounts()}
        found = {name: (each.rule, each.weight) for name, each in states.items()}
        assert found == {
            "bulk": ("bulk", 4.0),
            "bulks": ("bu?k*", 4.0),
            "balk": ("b*", 3.0),
            "x": ("*", 2.0),
        }
        assert {each.max_length for each in states.values()} == {7}
        assert states["bulk"].rate == 5
        queue.remove_rule("bu?k*")
        assert {each.account: each.rule for each in queue.accounts()}["bulks"] == "b*"

    @pytest.mark.parametrize("name", ["a.c", "a%c", "a-c", "[a]c", "a(c", "^a$c", "a+c"])
    def test_letters_of_a_pattern_mean_themselves(self, queue: FairQueue, name: str) -> None:
        queue.set_rule(f"{name}*", max_in_flight=1)
        queue.write(f"{name}1", {"n": 1})
        queue.write("abc1", {"n": 1})
        assert {each.account: each.rule for each in queue.accounts()} == {
            f"{name}1": f"{name}*",
            "abc1": "",
        }

    def test_a_rate_lets_a_burst_pass_and_then_one_at_a_time(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=1, burst=3)
        for n in range(10):
            queue.write("a", {"n": n})
        assert len(drained(queue)) == 3
        assert len(drained(later(queue, 1_500))) == 1
        assert len(drained(later(queue, 2_500))) == 1
        assert len(drained(later(queue, 30_000))) == 3
        state = queue.explain_wait("a").state
        assert state is not None
        assert (state.place, state.burst, state.rate) == ("limited", 3, 1)

    def test_a_rate_may_be_changed_and_removed(self, queue: FairQueue) -> None:
        queue.set_rule("a", rate=0.01)
        for n in range(6):
            queue.write("a", {"n": n})
        assert len(drained(queue)) == 1
        queue.set_rule("a", rate=0.01, burst=3)
        assert len(drained(queue)) == 2
        queue.remove_rule("a")
        assert len(drained(queue)) == 3

    def test_a_faster_rate_holds_at_once(self, queue: FairQueue) -> None:
        """The moment that the slower rate had named is over."""
        queue.set_rule("a", rate=1 / 3600)
        for n in range(3):
            queue.write("a", {"n": n})
        assert len(drained(queue)) == 1
        queue.set_rule("a", rate=1)
        assert len(drained(later(queue, 1_100))) == 1

    def test_pause_and_resume(self, queue: FairQueue) -> None:
        queue.set_rule("b*", weight=5)
        queue.write("a", {"n": 1})
        for n in range(3):
            queue.write("b1", {"n": n})
        held = got(queue.read("c"))
        queue.pause("b*")
        queue.write("b2", {"n": 1})
        queue.write("b1", {"n": 9}, delay=5)
        soon = later(queue, 6_000)
        left = drained(soon)
        assert {held.account, *(each.account for each in left)} <= {"a", "b1"}
        assert all(each.account == "a" for each in left)
        assert queue.rules()["b*"] == AccountRule(weight=5, paused=True)
        # What is in hand may end; what is given back is paused too.
        queue.nack(held)
        assert len(drained(soon)) == (1 if held.account == "a" else 0)
        queue.resume("b*")
        assert queue.rules() == {"b*": AccountRule(weight=5)}
        total = {each.account for each in drained(soon)}
        assert "b2" in total
        queue.pause()
        queue.write("z", {"n": 1})
        assert soon.read("c") is None
        queue.resume()
        assert got(soon.read("c")).account == "z"
        assert queue.rules() == {"b*": AccountRule(weight=5)}

    def test_a_weight_holds_for_what_waits(self, queue: FairQueue) -> None:
        for n in range(60):
            queue.write("a", {"n": n})
            queue.write("b", {"n": n})
        queue.set_rule("a", weight=3)
        order = [got(queue.read("c")).account for _ in range(40)]
        assert 29 <= order.count("a") <= 31

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"weight": 0},
            {"weight": -1},
            {"weight": float("nan")},
            {"weight": "2"},
            {"max_in_flight": 0},
            {"max_in_flight": 1.5},
            {"max_in_flight": True},
            {"rate": 0},
            {"rate": float("inf")},
            {"burst": 0},
            {"estimate": 0},
            {"estimate": 1e9},
            {"lower": 1.1},
            {"lower": -0.1},
            {"max_length": -1},
            {"paused": 1},
        ],
    )
    def test_nonsense_is_refused(self, queue: FairQueue, settings: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            queue.set_rule("a", **settings)
        assert queue.rules() == {}
        with pytest.raises(ConfigurationError):
            queue.set_rule("", weight=1)


class TestTheLengthCap:
    def test_refuses_and_changes_nothing(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_length=3)
        queue.write("a", {"n": 0})
        queue.write("a", {"n": 1}, delay=60)
        before = {part: leftovers(queue).get(part) for part in leftovers(queue)}
        some = [NewMessage("b", {"n": 8}, tracking_id="t", dedupe=("k", 60), ttl=60)]
        some += [NewMessage("a", {"n": n}) for n in range(2)]
        with pytest.raises(QueueFull, match=r"'a'.* 2 messages.* allows 3"):
            queue.write_many(some)
        assert leftovers(queue) == before
        queue.write("a", {"n": 2})
        with pytest.raises(QueueFull):
            queue.write("a", {"n": 3})
        with pytest.raises(QueueFull):
            queue.write("a", {"n": 3}, delay=3, priority=1)
        # In hand, it does not wait.
        assert queue.read("c") is not None
        queue.write("a", {"n": 3})
        queue.set_rule("a", max_length=0)
        with pytest.raises(QueueFull):
            queue.write("a", {"n": 4})
        queue.remove_rule("a")
        queue.write("a", {"n": 4})

    def test_a_message_that_is_there_already_is_no_further_one(self, queue: FairQueue) -> None:
        queue.set_rule("a", max_length=1)
        first = queue.write("a", {"n": 0}, dedupe=("k", 60))
        assert queue.write("a", {"n": 0}, dedupe=("k", 60)) == first

    def test_the_error_says_nothing_that_is_not_so(self, queue: FairQueue) -> None:
        """The first hundred were written by a script of their own."""
        queue.set_rule("a", max_length=120)
        with pytest.raises(QueueFull) as raised:
            queue.write_many([NewMessage("a", {"n": n}) for n in range(150)])
        assert queue.length() == 100
        assert "nothing was written" not in str(raised.value)


class TestTheDead:
    def test_a_poison_message_is_set_aside_at_once_and_revived(self, any_server: AnyServer) -> None:
        queue = queue_on(any_server.client(), max_attempts=2)
        queue.write("a", {"n": 1}, tracking_id="t", account="firm", priority=1, ttl=3600)
        first = got(queue.read("c"))
        assert queue.nack(first) == 1
        second = got(queue.read("c"))
        assert queue.nack(second, delay=60) == 1
        (dead,) = queue.dead()
        assert (dead.id, dead.attempts, dead.tenant, dead.account) == (first.id, 2, "a", "firm")
        assert (dead.fields, dead.tracking_id, dead.priority) == ({b"n": b"1"}, "t", 1)
        assert dead.written <= dead.delivered <= dead.set_aside
        assert dead.deadline is not None
        assert (queue.read("c"), queue.length()) == (None, 0)
        assert queue.revive(dead.id, "1-0-0") == 1
        assert (queue.revive(dead.id), queue.discard(dead.id), len(queue.dead())) == (0, 0, 0)
        again = got(queue.read("c"))
        assert (again.attempts, again.fields, again.priority) == (1, {b"n": b"1"}, 1)
        assert (again.account, again.tracking_id) == ("firm", "t")
        assert queue.cancel("t")
        reap(queue)
        assert leftovers(queue) == {}

    def test_lapses_set_aside_too(self, any_server: AnyServer) -> None:
        queue = queue_on(any_server.client(), max_attempts=2)
        ids = sorted(queue.write("a", {"n": n}) for n in range(3))
        for lapse in range(2):
            soon = queue_on(queue.client, lapse * 61_000, max_attempts=2)
            assert len(drained(soon)) == 3
        soon = queue_on(queue.client, 200_000, max_attempts=2)
        assert soon.read("c") is None
        assert sorted(each.id for each in soon.dead()) == ids
        assert queue.discard(*ids) == 3
        reap(queue)
        assert leftovers(queue) == {}


class TestExplaining:
    def test_each_state(self, queue: FairQueue) -> None:
        def why(account: str = "a", seen: FairQueue = queue) -> str:
            return str(seen.explain_wait(account))

        assert "has no messages" in why()
        queue.write("a", {"n": 1}, delay=60)
        assert "1 delayed" in why()
        queue.purge("a")
        queue.write("a", {"n": 2})
        assert "next turn" in why()
        queue.set_rule("a", max_in_flight=1)
        held = got(queue.read("c"))
        assert "1 messages are in hand" in why()
        queue.write("a", {"n": 3})
        assert "its cap is 1" in why()
        queue.set_rule("a", rate=0.001)
        assert "by its rate (0.001 a second)" in why() or "next turn" in why()
        queue.pause("a")
        assert "is paused by the rule 'a': resume that rule" in why()
        queue.resume("a")
        queue.remove_rule("a")
        queue.ack(held)
        for n in range(3):
            queue.write(f"b{n}", {"n": n})
        got(queue.read("c"))
        reasons = [why(account) for account in ("a", "b0", "b1", "b2")]
        assert sum("next turn" in reason for reason in reasons) == 1
        assert sum("come before it" in reason for reason in reasons) >= 2

    def test_a_rate_that_stops_it(self, queue: FairQueue) -> None:
        queue.set_rule("*", rate=0.1)
        for n in range(2):
            queue.write("a", {"n": n})
        got(queue.read("c"))
        reason = queue.explain_wait("a")
        assert "by its rate (0.1 a second)" in str(reason)
        assert reason.state is not None
        assert 9 < (reason.state.served_in_seconds or 0) <= 10

    def test_a_pause_by_the_default_is_named(self, queue: FairQueue) -> None:
        queue.set_rule("a", weight=2)
        queue.write("a", {"n": 1})
        queue.pause()
        assert "paused by the rule '*'" in str(queue.explain_wait("a"))

    def test_the_oldest_of_an_account(self, queue: FairQueue) -> None:
        queue.write("a", {"n": 1})
        soon = later(queue, 10_000)
        state = soon.explain_wait("a").state
        assert state is not None
        assert 10 <= (state.oldest_waiting_seconds or 0) < 70
        assert 10 <= soon.stats()["oldest_waiting_seconds"] < 70


def test_stats_count_what_there_is(queue: FairQueue) -> None:
    for n in range(6):
        queue.write(f"a{n % 2}", {"n": n})
    queue.write("a0", {"n": 6}, delay=60)
    held = [got(queue.read("c")) for _ in range(3)]
    queue.nack(held[0])
    queue.ack(held[1])
    stats = queue.stats()
    assert (stats["length"], stats["waiting"], stats["pending"]) == (6, 4, 1)
    assert (stats["returned"], stats["delayed"], stats["dead"]) == (1, 1, 0)
    assert (stats["delivered"], stats["known_accounts"], stats["exact"]) == (3, 2, True)
    assert stats["consumers"].keys() == {"c"}


def test_deleting_leaves_no_key(any_server: AnyServer) -> None:
    queue = queue_on(any_server.client(), max_attempts=1)
    queue.set_rule("a", weight=2)
    for n in range(9):
        queue.write(f"a{n}", {"n": n}, delay=n % 2, tracking_id=str(n), dedupe=(str(n), 9))
    queue.nack(got(queue.read("c")))
    got(queue.read("c"))
    assert queue.delete() > 5
    assert [key for key in (queue.keys.meta, *queue.keys.parts) if queue.client.exists(key)] == []
    assert queue.delete() == 0
    queue.write("a", {"n": 1})
    assert got(queue.read("c")).attempts == 1


@pytest.mark.parametrize("name", ["{x}y", "a b", "ü", "a:b", "{tag}"])
def test_any_name_is_one_slot(any_server: AnyServer, name: str) -> None:
    queue = queue_on(any_server.client(), name=name)
    queue.write("a", {"n": 1})
    assert queue.ack(got(queue.read("c"))) == 1


@pytest.mark.parametrize(
    "account", ["a", "a b", "1 2 3", "{x}", "ü", "*", "a:b", "%d", "-1", "x" * 5000]
)
def test_any_account_is_served(queue: FairQueue, account: str) -> None:
    queue.write("t", {"n": 1}, account=account)
    queue.write(account, {"n": 2}, delay=1)
    assert [each.account for each in queue.accounts()] == [account]
    found = drained(later(queue, 2_000))
    assert [each.account for each in found] == [account] * 2
    queue.nack(found[0])
    assert mend(queue) == 0
    assert queue.ack(*drained(queue)) == 1


def test_accounts_and_fields_of_any_bytes(queue: FairQueue) -> None:
    account = bytes(range(1, 256)) + b"\x00"
    queue.write(account, {b"\x00": account}, tracking_id=b"\x00")
    message = got(queue.read("c"))
    assert message.fields == {b"\x00": account}
    queue.nack(message)
    assert queue.purge(account) == 1


async def test_the_same_on_asyncio(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        queue: Any = AsyncFairQueue(client, "q")
        await queue.set_rule("a", max_in_flight=2, max_length=5)
        first = await queue.write("a", {"n": 1}, tracking_id="t")
        ids = await queue.write_many([NewMessage("a", {"n": n}) for n in range(2, 4)])
        assert [each.id for each in await queue.peek("a")] == [first, *ids]
        messages = await queue.read_many("c", 5)
        assert [each.id for each in messages] == [first, ids[0]]
        assert await queue.extend(*messages) == 2
        assert await queue.nack(messages[1]) == 1
        result = await queue.exchange(messages[0], consumer="c", n=3)
        assert (result.done, [each.id for each in result.messages]) == (1, [ids[0], ids[1]])
        assert not await queue.cancel("t")
        assert "in hand" in str(await queue.explain_wait("a"))
        assert (await queue.stats())["pending"] == 2
        await queue.pause("a")
        assert await queue.nack(*result.messages) == 2
        assert await queue.read("c") is None
        await queue.resume("a")
        assert (await queue.purge("a"), await queue.length()) == (2, 0)
        assert list(await queue.dead()) == []
        assert await queue.read("c", block=0.01) is None
        assert await queue.delete() > 0
        await queue.aclose()


def test_an_accounts_own_rule_adds_to_its_pattern(queue: FairQueue) -> None:
    queue.set_rule("bulk-*", max_length=1, weight=2)
    queue.set_rule("*", max_in_flight=3)
    queue.set_rule("bulk-1", weight=5)
    queue.write("bulk-1", {"n": 1})
    state = queue.explain_wait("bulk-1").state
    assert state is not None
    assert (state.rule, state.weight) == ("bulk-1", 5.0)
    assert (state.max_length, state.max_in_flight) == (1, 3)
    queue.remove_rule("bulk-1")
    # A pause is a rule of its own, and hides no other setting.
    queue.pause("bulk-1")
    with pytest.raises(QueueFull):
        queue.write("bulk-1", {"n": 2})
    assert queue.read("c") is None
    queue.resume("bulk-1")
    assert queue.rules().keys() == {"*", "bulk-*"}
    assert queue.read("c") is not None


def test_a_pipeline_is_one_transaction(queue: FairQueue) -> None:
    with queue.pipeline() as pipeline:
        pipeline.write("t", {"n": 1}).write("t", {"n": 2})
        assert len(pipeline.execute()) == 2
    assert queue.length() == 2
