"""Shares of turns, of time and of workers, on a virtual clock: no test here sleeps or times.

Workers are simulated: each takes a message, and is done at a virtual moment. The queue is told how
long the work has taken, and its scripts see the virtual clock where leases and rates need it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from support.fair_queues import after, got, queue_on, reap
from support.servers import RedisServer
from workstealing.structures.fair_queue import FairMessage, FairQueue, NewMessage

Work = Callable[[FairMessage], float]


@pytest.fixture
def queue(redis7: RedisServer) -> FairQueue:
    # Nothing lapses here: the virtual time of the work is not that of the server.
    return queue_on(redis7.client(), lease=86400.0)


class Workers:
    """Some workers of a queue, on a virtual clock.

    Attributes: turns, seconds: of each account; waits: of each message, its account and how long
    it waited, by the field `at`.
    """

    def __init__(self, queue: FairQueue, many: int, work: Work) -> None:
        self.queue, self.many, self.work = queue, many, work
        self.now = 0.0
        self.turns: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.waits: list[tuple[str, float]] = []
        self.busy: list[tuple[float, int, FairMessage, float]] = []
        self.most: Counter[str] = Counter()
        self._numbers = 0

    def step(self) -> bool:
        """Let all idle workers read, and the next one end its work; say whether one worked."""
        while len(self.busy) < self.many and (message := self.queue.read("c")) is not None:
            took = self.work(message)
            self._numbers += 1
            heapq.heappush(self.busy, (self.now + took, self._numbers, message, took))
            self.turns[message.account] += 1
            if b"at" in message.fields:
                self.waits.append((message.account, self.now - float(message.fields[b"at"])))
            holding = Counter(each[2].account for each in self.busy)
            self.most |= holding
        if not self.busy:
            return False
        self.now, _, message, took = heapq.heappop(self.busy)
        self.seconds[message.account] += took  # type: ignore[assignment]
        assert self.queue.ack(after(message, took)) == 1
        return True

    def shares(self, counted: Counter[str]) -> dict[str, float]:
        whole = sum(counted.values())
        return {name: each / whole for name, each in counted.items()}


def fill(queue: FairQueue, messages: Mapping[str, int]) -> None:
    for account, many in messages.items():
        queue.write_many([NewMessage(account, {"n": n}) for n in range(many)])


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 2, 5), (0.001, 0.002)])
@pytest.mark.parametrize("workers", [1, 8])
def test_turns_are_shared_by_weight(
    queue: FairQueue, weights: tuple[float, ...], workers: int
) -> None:
    reads = 800
    for number, weight in enumerate(weights):
        queue.set_rule(f"a{number}", weight=weight)
    fill(queue, {f"a{number}": reads for number in range(len(weights))})
    sim = Workers(queue, workers, lambda _: 0.5)
    while sum(sim.turns.values()) < reads:
        sim.step()
    for number, weight in enumerate(weights):
        wanted = weight / sum(weights)
        assert abs(sim.shares(sim.turns)[f"a{number}"] - wanted) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("estimate", [0.01, 0.1, 1, 10, 100])
def test_time_is_shared_whatever_the_work_and_the_estimate(
    queue: FairQueue, estimate: float
) -> None:
    """One account's messages take 10 ms and another's 10 s, and the estimate is far off."""
    queue.set_rule("*", estimate=estimate)
    took = {"short": 0.01, "middle": 0.3, "long": 10.0}
    fill(queue, {"short": 9000, "middle": 300, "long": 10})
    sim = Workers(queue, 1, lambda message: took[message.account])
    while sim.seconds["short"] < 60:
        sim.step()
    shares = sim.shares(sim.seconds)
    assert all(abs(each - 1 / 3) < 0.05 for each in shares.values()), shares


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_time_is_shared_by_weight_with_work_that_nobody_can_guess(
    queue: FairQueue, seed: int
) -> None:
    chance = random.Random(seed)
    weights = {"a": 1, "b": 2, "c": 5}
    for account, weight in weights.items():
        queue.set_rule(account, weight=weight)
    fill(queue, dict.fromkeys(weights, 1500))
    sim = Workers(queue, 4, lambda _: 10 ** chance.uniform(-2, 1))
    while sum(sim.turns.values()) < 1600:
        sim.step()
    shares = sim.shares(sim.seconds)
    for account, weight in weights.items():
        assert abs(shares[account] - weight / 8) < 0.05, shares


def test_a_thousand_names_of_one_account_gain_nothing(queue: FairQueue) -> None:
    """A light tenant beside a flood waits for no more than each worker's present work."""
    queue.write_many(
        [NewMessage(f"name{n % 1000}", {"n": n}, account="flood") for n in range(3000)]
    )
    sim = Workers(queue, 4, lambda _: 1.0)
    for turn in range(600):
        if turn % 12 == 0:
            queue.write("light", {"at": sim.now})
        assert sim.step()
    waits = [wait for account, wait in sim.waits if account == "light"]
    assert len(waits) >= 49
    assert max(waits) <= 1.0
    assert sim.turns["flood"] > 500


def test_a_thousand_accounts_do_gain(queue: FairQueue) -> None:
    """Only the account stops one who splits himself; that is said, and it is so."""
    queue.write_many([NewMessage(f"name{n % 1000}", {"n": n}) for n in range(2000)])
    queue.write("light", {"n": 0})
    queue.write("light", {"n": 1})
    got(queue.read("c"))
    order = [got(queue.read("c")).account for _ in range(1500)]
    assert order.count("light") in {1, 2}


@pytest.mark.slow
def test_five_accounts_that_drain_and_are_filled_again_at_each_call(queue: FairQueue) -> None:
    took = {f"a{n}": (0.01, 0.1, 1.0, 3.0, 10.0)[n] for n in range(5)}
    queue.set_rule("*", estimate=1)
    waits: Counter[str] = Counter(dict.fromkeys(took, 1))
    seconds: Counter[str] = Counter()
    for account in took:
        queue.write(account, {"n": 0})
    for _ in range(4000):
        message = got(queue.read("c"))
        # It is drained, and filled again before its message is done.
        queue.write(message.account, {"n": 1})
        assert queue.ack(after(message, took[message.account])) == 1
        seconds[message.account] += took[message.account]  # type: ignore[assignment]
        waits[message.account] += 1
        if min(seconds.values()) >= 40 and len(seconds) == 5:
            break
    whole = sum(seconds.values())
    assert all(abs(each / whole - 0.2) < 0.06 for each in seconds.values()), seconds


def test_the_same_if_it_is_filled_after_the_ack(queue: FairQueue) -> None:
    """Then an account is idle for a moment each time, and may even be forgotten."""
    took = {f"a{n}": (0.1, 0.3, 1.0, 1.0, 3.0)[n] for n in range(5)}
    seconds: Counter[str] = Counter()
    for account in took:
        queue.write(account, {"n": 0})
    while min(seconds.values(), default=0) < 30 or len(seconds) < 5:
        message = got(queue.read("c"))
        assert queue.ack(after(message, took[message.account])) == 1
        reap(queue)
        queue.write(message.account, {"n": 1})
        seconds[message.account] += took[message.account]  # type: ignore[assignment]
        assert sum(seconds.values()) < 600, seconds
    whole = sum(seconds.values())
    assert all(abs(each / whole - 0.2) < 0.06 for each in seconds.values()), seconds


def test_a_lifted_cap_gives_no_credit_for_the_time_before(queue: FairQueue) -> None:
    queue.set_rule("capped", max_in_flight=1)
    fill(queue, {"capped": 300, "other": 900})
    held = got(queue.read("c"))
    while held.account != "capped":
        queue.ack(after(held, 1))
        held = got(queue.read("c"))
    for _ in range(300):
        message = got(queue.read("c"))
        assert message.account == "other"
        queue.ack(after(message, 1))
    queue.remove_rule("capped")
    order = []
    for _ in range(60):
        message = got(queue.read("c"))
        order.append(message.account)
        queue.ack(after(message, 1))
    assert 29 <= order.count("capped") <= 31
    assert order[:20].count("capped") in range(9, 12)


@pytest.mark.parametrize("how", ["paused", "rate", "empty"])
def test_nor_does_any_other_time_without_a_turn(queue: FairQueue, how: str) -> None:
    settings: dict[str, Any] = {"paused": {"paused": True}, "rate": {"rate": 1 / 3600}}
    fill(queue, {"other": 400})
    if how != "empty":
        fill(queue, {"a": 100})
        queue.set_rule("a", **settings[how])
    for _ in range(200):
        queue.ack(after(got(queue.read("c")), 1))
    if how == "empty":
        fill(queue, {"a": 100})
    else:
        queue.remove_rule("a")
    order = []
    for _ in range(40):
        message = got(queue.read("c"))
        order.append(message.account)
        queue.ack(after(message, 1))
    assert 19 <= order.count("a") <= 21


def test_late_acks_of_short_work_give_no_credit_for_the_time_without_a_turn(
    queue: FairQueue,
) -> None:
    """The estimate that comes back at the ack was charged in a time that is over."""
    queue.set_rule("a", estimate=1000)
    queue.set_rule("other", estimate=1)
    fill(queue, {"a": 10, "other": 3000})
    held = [got(queue.read("c"))]
    while held[-1].account != "a":
        queue.ack(after(held.pop(), 1))
        held.append(got(queue.read("c")))
    # Ten of them are in hand, and nothing of the account waits, while others have long turns.
    queue.set_rule("other", paused=True)
    held += queue.read_many("c", 20)
    assert [each.account for each in held] == ["a"] * 10
    queue.set_rule("other", estimate=1)
    for _ in range(50):
        queue.ack(after(got(queue.read("c")), 1000))
    fill(queue, {"a": 2000})
    queue.ack(*[after(each, 0.001) for each in held])
    order = []
    for _ in range(20):
        message = got(queue.read("c"))
        order.append(message.account)
        queue.ack(after(message, 1000))
    assert 9 <= order.count("a") <= 11, order


def test_a_newcomer_has_its_turn_at_once_and_no_more(queue: FairQueue) -> None:
    fill(queue, {f"a{n}": 40 for n in range(10)})
    for _ in range(100):
        queue.ack(after(got(queue.read("c")), 1))
    fill(queue, {"new": 40})
    order = []
    for _ in range(44):
        message = got(queue.read("c"))
        order.append(message.account)
        queue.ack(after(message, 1))
    assert 3 <= order.count("new") <= 5
    assert "new" in order[:11]


@pytest.mark.parametrize("how", ["ready", "nobody ready"])
def test_a_lost_virtual_time_lets_no_newcomer_be_served_alone(queue: FairQueue, how: str) -> None:
    queue.set_rule("old", max_in_flight=1)
    fill(queue, {"old": 300})
    for _ in range(100):
        queue.ack(after(got(queue.read("c")), 1))
    held = got(queue.read("c")) if how == "nobody ready" else None
    rules = queue.client.hmget(queue.keys.meta, "rules", "patterns")
    queue.client.delete(queue.keys.meta)
    queue.client.hset(queue.keys.meta, mapping={"rules": rules[0], "patterns": rules[1]})
    fill(queue, {"new": 300})
    if held:
        # While nobody else has a turn the newcomer is served, and the virtual time is its own.
        queue.ack(after(got(queue.read("c")), 1))
        queue.ack(after(held, 1))
    order = []
    for _ in range(60):
        message = got(queue.read("c"))
        order.append(message.account)
        queue.ack(after(message, 1))
    assert 25 <= order.count("new") <= 35, order.count("new")


def test_a_cap_leaves_workers_to_others_whatever_the_work_takes(queue: FairQueue) -> None:
    """Nothing preempts, so that only a cap protects from long messages."""
    queue.set_rule("long", max_in_flight=2)
    fill(queue, {"long": 300})
    sim = Workers(queue, 4, lambda message: 100.0 if message.account == "long" else 1.0)
    for turn in range(200):
        if turn % 2 == 0:
            queue.write("light", {"at": sim.now})
        assert sim.step()
    waits = [wait for account, wait in sim.waits if account == "light"]
    assert sim.most["long"] == 2
    assert max(waits) <= 1.0


def test_dead_consumers_are_charged_to_nobody_but_by_the_estimate(redis7: RedisServer) -> None:
    """Charged for the lease, a quiet account waited for its dead consumers."""
    queue = queue_on(redis7.client())
    fill(queue, {"quiet": 40, "other": 400})
    for _ in range(40):
        message = got(queue.read("c"))
        queue.ack(after(message, 1))
    held = [got(queue.read("dead")) for _ in range(2)]
    assert {each.account for each in held} == {"quiet", "other"}
    soon = queue_on(redis7.client(), 61_000)
    order = []
    for _ in range(20):
        message = got(soon.read("c"))
        order.append(message.account)
        soon.ack(after(message, 1))
    assert 9 <= order.count("quiet") <= 11


def test_a_read_that_was_cut_off_is_not_charged(queue: FairQueue) -> None:
    """The tag of the account is what it was."""
    queue.set_rule("a", weight=3, rate=100, burst=5)
    fill(queue, {"a": 10, "b": 10})
    for _ in range(6):
        queue.ack(after(got(queue.read("c")), 0.7))
    tags = queue.client.zrange(queue.keys.of("ready"), 0, -1, withscores=True)

    def counts() -> dict[str, tuple[int, int, int]]:
        return {
            each.account: (each.waiting, each.in_flight, each.delayed) for each in queue.accounts()
        }

    before = counts()
    receipt, keys = queue.keys.receipt(b"nonce"), queue.all_keys()
    args = ("c", 7, receipt, 5, 86400_000, 5, 0, 1)
    for _ in range(3):
        read, withdraw = queue._script("read"), queue._script("withdraw")
        reply = queue.client.eval(read.body, len(keys), *keys, *args)
        assert reply[0] == 0
        assert counts() != before
        given = queue.client.eval(withdraw.body, len(keys), *keys, args[1], 1, receipt)
        assert given == len(reply) - 3
        assert counts() == before
        found = queue.client.zrange(queue.keys.of("ready"), 0, -1, withscores=True)
        assert found == tags
        args = (args[0], args[1] + 1, *args[2:])
    assert {each.attempts for each in queue.read_many("c", 20)} == {1}
