"""Shares over ten thousand reads, on a virtual clock: of turns within 2 %, of time within 5 %."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable

import pytest

from support.fair_queues import after, got, queue_on
from support.servers import RedisServer
from workstealing.structures.fair_queue import FairMessage, FairQueue, NewMessage

pytestmark = pytest.mark.slow

READS, WORKERS, WAITING = 10_000, 4, 50


def served(
    queue: FairQueue, accounts: Iterable[str], work: Callable[[FairMessage], float]
) -> tuple[Counter[str], Counter[str]]:
    """Read so often, with some messages in hand; return the turns and the us of each account."""
    for account in accounts:
        queue.write_many([NewMessage(account, {"n": n}) for n in range(WAITING)])
    turns: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    held: deque[FairMessage] = deque()
    for _ in range(READS):
        message = got(queue.read("c"))
        held.append(message)
        turns[message.account] += 1
        # It is filled again, so that each account has messages at any moment.
        queue.write(message.account, {"n": 0})
        if len(held) == WORKERS:
            done = held.popleft()
            seconds = work(done)
            spent[done.account] += round(seconds * 1e6)
            assert queue.ack(after(done, seconds)) == 1
    return turns, spent


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 2, 5), (1, 2, 3, 4, 10), (0.001, 0.002)])
def test_shares_of_turns_are_within_two_percent_of_the_weights(
    redis7: RedisServer, weights: tuple[float, ...]
) -> None:
    queue = queue_on(redis7.client(), lease=86400.0)
    named = {f"a{number}": weight for number, weight in enumerate(weights)}
    for account, weight in named.items():
        queue.set_rule(account, weight=weight)
    turns, _ = served(queue, named, lambda _: 0.5)
    for account, weight in named.items():
        wanted = READS * weight / sum(weights)
        assert abs(turns[account] / wanted - 1) <= 0.02, turns


@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_shares_of_time_are_within_five_percent_for_work_of_ten_ms_to_ten_seconds(
    redis7: RedisServer, wrong: float
) -> None:
    """Estimates are wrong by ten: the first one by its rule, and the mean by what comes next."""
    queue, chance = queue_on(redis7.client(), lease=86400.0), random.Random(int(wrong))
    queue.set_rule("*", estimate=1.45 * wrong)
    named = {"a": 1, "b": 2, "c": 5}
    for account, weight in named.items():
        queue.set_rule(account, weight=weight)
    _, spent = served(queue, named, lambda _: 10 ** chance.uniform(-2, 1))
    for account, weight in named.items():
        assert abs(spent[account] / spent.total() / (weight / 8) - 1) <= 0.05, spent


@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_neither_is_it_of_use_that_all_pieces_are_long(redis7: RedisServer, wrong: float) -> None:
    """Ten thousand reads have hardly ten of the long ones, so one is a tenth of their share."""
    queue, took = queue_on(redis7.client(), lease=86400.0), {"a": 0.01, "b": 0.3, "c": 10.0}
    for account, seconds in took.items():
        queue.set_rule(account, estimate=seconds * wrong)
    _, spent = served(queue, took, lambda message: took[message.account])
    for account in took:
        assert abs(spent[account] / spent.total() - 1 / 3) <= 0.05, spent
