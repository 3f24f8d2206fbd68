"""A fair queue beside a model of it: random operations, shifted clocks, and keys that are lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from support.fair_queues import drained, leftovers, mend, queue_on, reap
from support.servers import AnyServer, RedisServer
from workstealing.errors import QueueFull
from workstealing.jobs import FairQueueReaper
from workstealing.recruiting.slice import Slice
from workstealing.structures.fair_queue import FairMessage, NewMessage
from workstealing.structures.fair_queue.names import PARTS

ACCOUNTS = ("a", "b", "c", "bulk-1", "bulk-2")
LEASE_MS, STEPS = 60_000, 250


class Model:
    """A queue, a clock that only the test moves on, and what must be so.

    Each message is in one state: waits, delayed, in hand, ended. A message that may have been
    ended by its deadline, as soon as that has passed, is also checked.
    """

    def __init__(self, client: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.client, self.ahead = client, 0
        # Message id -> account.
        self.alive: dict[str, str] = {}
        self.tracked: dict[str, str] = {}
        self.deadlines: dict[str, int] = {}
        # Id -> the delivery that holds it, and until when.
        self.hands: dict[str, tuple[FairMessage, int]] = {}
        self.stale: list[FairMessage] = []
        self.caps: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self.numbers = 0

    @property
    def queue(self) -> Any:
        return queue_on(self.client, self.ahead, max_attempts=10**6)

    def step(self) -> None:
        things: list[tuple[int, Callable[[], None]]] = [
            *((30, self.write), (35, self.read), (20, self.ack), (8, self.nack)),
            *((5, self.cancel), (3, self.extend), (8, self.later), (5, self.stale_ack)),
            *((4, self.rule), (2, self.purge), (6, self.reap), (4, self.exchange), (3, self.mend)),
        ]
        (thing,) = self.chance.choices([each for _, each in things], [much for much, _ in things])
        thing()
        self.check()

    # What may happen.

    def write(self) -> None:
        some = []
        for _ in range(self.chance.choice([1, 1, 1, 4])):
            self.numbers += 1
            new: dict[str, Any] = {"priority": self.chance.randrange(2)}
            if self.chance.random() < 0.3:
                new["delay"] = self.chance.choice([0.5, 20, 90])
            if self.chance.random() < 0.2:
                new["ttl"] = self.chance.choice([10, 100])
            if self.chance.random() < 0.3:
                new["dedupe"] = (f"k{self.numbers}", 3600)
            account = self.chance.choice(ACCOUNTS)
            some.append(
                NewMessage(account, {"n": self.numbers}, tracking_id=f"t{self.numbers}", **new)
            )
        try:
            ids = self.queue.write_many(some)
        except QueueFull:
            return
        for written, each in zip(ids, some, strict=True):
            assert written not in self.alive
            self.alive[written] = str(each.tenant)
            self.tracked[str(each.tracking_id)] = written
            if each.ttl is not None:
                # The server's clock goes on meanwhile, so a second more or less says nothing.
                seconds: Any = each.ttl
                self.deadlines[written] = self.ahead + int(seconds * 1000)

    def read(self) -> None:
        n = self.chance.choice([1, 1, 3])
        if n == 1:
            message = self.queue.read("c")
            found = [message] if message else []
        else:
            found = self.queue.read_many("c", n, same_account=self.chance.random() < 0.5)
        self.take(found)

    def take(self, found: list[FairMessage]) -> None:
        for message in found:
            assert message.id in self.alive, "it had ended"
            assert self.alive[message.id] == message.account
            held = self.hands.pop(message.id, None)
            if held is not None:
                assert held[1] <= self.ahead + 1000, "it was delivered twice at once"
                self.stale.append(held[0])
            assert self.deadlines.get(message.id, 10**12) > self.ahead - 1000, "it was overdue"
            self.hands[message.id] = (message, self.ahead + LEASE_MS)
            self.attempts[message.id] += 1
            assert message.attempts == self.attempts[message.id]

    def one_in_hand(self) -> FairMessage | None:
        """Return one whose lease is certainly under way."""
        good = [each for each, ends in self.hands.values() if ends > self.ahead + 1000]
        return self.chance.choice(good) if good else None

    def ack(self) -> None:
        if message := self.one_in_hand():
            assert self.queue.ack(message) == 1
            self.end(message.id)

    def exchange(self) -> None:
        message = self.one_in_hand()
        done = [message] if message else []
        result = self.queue.exchange(*done, consumer="c", n=2)
        assert result.done == len(done)
        for each in done:
            self.end(each.id)
        self.take(result.messages)

    def nack(self) -> None:
        if message := self.one_in_hand():
            assert self.queue.nack(message, delay=self.chance.choice([0, 0, 5])) == 1
            self.stale.append(self.hands.pop(message.id)[0])

    def extend(self) -> None:
        if message := self.one_in_hand():
            assert self.queue.extend(message) == 1
            self.hands[message.id] = (message, self.ahead + LEASE_MS)

    def stale_ack(self) -> None:
        """Ack by a delivery that is over; that ends the message if nobody else has it."""
        if self.stale:
            message = self.stale.pop(self.chance.randrange(len(self.stale)))
            done = self.queue.ack(message)
            if message.id not in self.alive:
                assert done == 0
            elif message.id in self.hands and self.hands[message.id][1] > self.ahead + 1000:
                assert done == 0, "it ended a message that another has"
            elif done:
                self.end(message.id)

    def cancel(self) -> None:
        if self.tracked:
            name = self.chance.choice(list(self.tracked))
            written = self.tracked.pop(name)
            was = self.queue.cancel(name)
            if written in self.deadlines and self.deadlines[written] <= self.ahead + 1000:
                # It may be gone.
                pass
            else:
                assert was == (written in self.alive), (name, written)
            self.end(written)

    def purge(self) -> None:
        account = self.chance.choice(ACCOUNTS)
        self.queue.purge(account)
        for each in [each for each, whose in self.alive.items() if whose == account]:
            if each not in self.hands or (
                self.hands[each][1] <= self.ahead + 1000 and not self.is_there(each)
            ):
                self.end(each)

    def is_there(self, message: str) -> bool:
        return bool(self.client.hexists(self.queue.keys.of("messages"), message))

    def later(self) -> None:
        self.ahead += self.chance.choice([100, 3_000, 30_000, 70_000])

    def rule(self) -> None:
        pattern = self.chance.choice(["*", "bulk-*", "a", "b"])
        if self.chance.random() < 0.4:
            self.queue.remove_rule(pattern)
        elif self.chance.random() < 0.3:
            (self.queue.pause if self.chance.random() < 0.3 else self.queue.resume)(pattern)
        else:
            self.queue.set_rule(
                pattern,
                weight=self.chance.choice([None, 0.5, 3]),
                max_in_flight=self.chance.choice([1, 2, 4]),
                rate=self.chance.choice([None, None, 0.5]),
                burst=self.chance.choice([None, 3]),
                max_length=self.chance.choice([None, 30]),
            )

    def reap(self) -> None:
        reap(self.queue, self.chance.choice([1, 5, 100]))

    def mend(self) -> None:
        """It puts accounts right whose moment has come; `check` sees that it does nothing else."""
        mend(self.queue)

    def end(self, message: str) -> None:
        self.alive.pop(message, None)
        self.hands.pop(message, None)
        self.deadlines.pop(message, None)

    # What must be so.

    def check(self) -> None:
        queue, client = self.queue, self.client
        kept = {each.decode() for each in client.hkeys(queue.keys.of("messages"))}
        for message in set(self.alive) - kept:
            assert self.deadlines.get(message, 10**12) <= self.ahead + 1000, f"{message} is lost"
            self.end(message)
        assert kept == set(self.alive)
        leases = {each.decode() for each in client.zrange(queue.keys.of("leases"), 0, -1)}
        of_accounts = Counter(self.alive[each] for each in leases)
        parked = Counter(
            self.alive[each.decode()]
            for each in client.zrange(queue.keys.of("parked"), 0, -1)
            if each.decode() in self.alive
        )
        all_of = Counter(self.alive.values())
        states = {each.account: each for each in queue.accounts()}
        for account in ACCOUNTS:
            state = states.get(account)
            if state is None:
                assert not all_of[account]
                continue
            assert state.in_flight == of_accounts[account]
            assert state.delayed == parked[account]
            waiting = all_of[account] - state.in_flight - state.delayed
            assert state.waiting == waiting, account
        for message, (_, ends) in self.hands.items():
            assert message in leases or ends <= self.ahead + 1000, "its lease is gone"

    def finish(self) -> None:
        """Deliver and ack all that is left; then no key holds anything."""
        for pattern in self.queue.rules():
            self.queue.remove_rule(pattern)
        self.ahead += 1_000_000
        left = {each for each in self.alive if each not in self.deadlines}
        found = drained(self.queue)
        assert {each.id for each in found} >= left
        assert len({each.id for each in found}) == len(found)
        assert self.queue.ack(*found) == len(found)
        looks = 0
        while sum(reap(self.queue)[:4]):
            looks += 1
            assert looks < 100, "it reaps for ever"
        assert leftovers(self.queue) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_counts_are_right_and_nothing_is_lost(
    redis7: RedisServer, seed: int
) -> None:
    model = Model(redis7.client(), seed)
    for _ in range(STEPS):
        model.step()
    model.finish()


@pytest.mark.contract
def test_on_every_server(any_server: AnyServer) -> None:
    model = Model(any_server.client(), 99)
    for _ in range(60):
        model.step()
    model.finish()


def busy(client: Any, chance: random.Random) -> Any:
    """Return a queue with messages in every state; a paused, a capped, and a limited account."""
    queue = queue_on(client)
    queue.set_rule("paused", paused=True)
    queue.set_rule("capped", max_in_flight=2)
    queue.set_rule("limited", rate=0.01)
    for n in range(60):
        account = ("paused", "capped", "limited", "x", "y", f"name{n}")[n % 6]
        options = {"ttl": 10_000_000} if n % 4 == 0 else {}
        queue.write(
            *(account, {"n": n}),
            delay=50 if n % 5 == 0 else 0,
            priority=n % 2,
            tracking_id=f"t{n}",
            dedupe=(f"k{n}", 10_000_000),
            **options,
        )
    held = [each for each in (queue.read("dead") for _ in range(12)) if each]
    chance.shuffle(held)
    queue.nack(*held[:3])
    queue.nack(*held[3:6], delay=40)
    return queue


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["meta", *PARTS])
@pytest.mark.parametrize("seed", [1, 2])
def test_after_the_loss_of_a_key_all_that_is_there_is_served_again(
    redis7: RedisServer, lost: str, seed: int
) -> None:
    client = redis7.client()
    queue = busy(client, random.Random(seed))
    client.delete(queue.keys.meta if lost == "meta" else queue.keys.of(lost))
    kept = {each.decode() for each in client.hkeys(queue.keys.of("messages"))}
    assert bool(kept) == (lost != "messages")
    soon = queue_on(client, 1_000_000)
    rounds = [mend(soon), mend(soon), mend(soon)]
    # What was put right stays so.
    assert rounds[1:] == [0, 0]
    for pattern in queue.rules():
        soon.remove_rule(pattern)
    served: dict[str, FairMessage] = {}
    for _ in range(3):
        for message in drained(soon, most=500):
            assert message.id not in served, "it was delivered twice at once"
            served[message.id] = message
        reap(soon)
        mend(soon)
    assert served.keys() == kept
    assert soon.ack(*served.values()) == len(served)
    for _ in range(3):
        mend(soon)
        reap(soon)
    left = leftovers(soon)
    # Where the messages were lost, nobody knows which deadlines were theirs until they pass.
    assert left.keys() <= ({"deadlines"} if lost == "messages" else set()), left
    # A queue that has lost keys goes on as any other.
    model = Model(client, seed)
    for each in [*left]:
        client.delete(queue.keys.of(each))
    for _ in range(60):
        model.step()
    model.finish()


def test_slots_of_deliveries_that_were_lost_are_free_again(redis7: RedisServer) -> None:
    """A capped account had its slots taken for ever, as long as others were served."""
    queue = queue_on(redis7.client())
    queue.set_rule("a", max_in_flight=3)
    for n in range(6):
        queue.write("a", {"n": n})
    assert len(drained(queue)) == 3
    queue.client.delete(queue.keys.of("leases"), queue.keys.of("held"))
    queue.write("other", {"n": 9})
    assert len(drained(queue)) == 1
    mend(queue)
    assert len(drained(queue)) == 2


@pytest.mark.parametrize("lost", ["meta", *PARTS])
def test_after_the_loss_of_a_key_consumers_go_on(redis7: RedisServer, lost: str) -> None:
    """Reads, acks and writes alone, without a job, raise nothing and do not spin."""
    client = redis7.client()
    queue = busy(client, random.Random(3))
    held = [each for each in (queue.read("c") for _ in range(5)) if each]
    client.delete(queue.keys.meta if lost == "meta" else queue.keys.of(lost))
    queue.ack(*held[:2])
    queue.nack(*held[2:3])
    queue.extend(*held[3:])
    for n in range(5):
        queue.write(f"new{n}", {"n": n})
    found = drained(queue, most=500)
    assert {each.account for each in found} >= {f"new{n}" for n in range(5)}
    assert queue.ack(*found) >= 5
    queue.stats()
    queue.accounts()
    for name in range(60):
        queue.cancel(f"t{name}")
    for account in ("x", "y", "capped"):
        queue.peek(account)
        queue.purge(account)
        queue.explain_wait(account)


@pytest.mark.parametrize("lost", ["meta", *PARTS])
def test_the_job_repairs_it_within_some_slices(redis7: RedisServer, lost: str) -> None:
    """It walks over one key at a slice; nothing spins, and it has an end."""
    client = redis7.client()
    queue = busy(client, random.Random(4))
    client.delete(queue.keys.meta if lost == "meta" else queue.keys.of(lost))
    kept = {each.decode() for each in client.hkeys(queue.keys.of("messages"))}
    soon = queue_on(client, 1_000_000)
    job = FairQueueReaper(soon, random=random.Random(5).random)
    for _ in range(60):
        job.perform(Slice(25, 60.0))
    for pattern in soon.rules():
        soon.remove_rule(pattern)
    served = drained(soon, most=500)
    assert {each.id for each in served} == kept
    assert soon.ack(*served) == len(kept)
    # Its readers' receipts are old then, too.
    job = FairQueueReaper(queue_on(client, 1_100_000), random=random.Random(6).random)
    for _ in range(60):
        job.perform(Slice(25, 60.0))
    assert leftovers(soon).keys() <= ({"deadlines"} if lost == "messages" else set())
    assert job.perform(Slice(25, 60.0)) == 0
    assert job.backlog().count == 0
