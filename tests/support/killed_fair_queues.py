"""A FairQueue and its jobs, with processes that are killed within any of their calls.

See `support.killed_protocols`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from support.fair_queues import leftovers
from support.killed_protocols import NOT_NOW, Protocol
from support.servers import RedisServer
from workstealing.jobs import FairQueueReaper, QueueExpiry
from workstealing.recruiting.slice import Slice
from workstealing.structures.fair_queue import FairMessage, FairQueue, NewMessage
from workstealing.structures.fair_queue.message import unpacked

LONG, SOON, HOUR_MS = 600.0, 0.001, 3_600_000
NOBODY: frozenset[int] = frozenset()


class KilledFairQueue(Protocol):
    """A FairQueue of a few accounts, whose records come and go.

    The model is the numbers of the messages that the queue must hold. A call that was cut off has
    changed them by what it may change, or not.
    """

    ABOUT = "fair queue"
    ACCOUNTS = ("a", "b", "capped", "slow")

    def __init__(self, servers: Sequence[RedisServer], seed: int) -> None:
        super().__init__(servers, seed)
        self.client = self.clients["a"]
        self.queue = self.queue_of(self.client)
        self.written = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was, because the queue is gone."""
        self.due: dict[int, str] = {}
        self.held: list[FairMessage] = []
        self.ids: set[str] = set()

    def queue_of(self, client: Any, lease: float = LONG, ahead_ms: int = 0) -> FairQueue:
        """Return a process's own; those that are killed have short leases."""
        return FairQueue(client, "q", lease=lease, max_attempts=10**6, clock_shift_ms=ahead_ms)

    def step(self) -> None:
        """Do one thing by chance, and look at all messages."""
        things: list[tuple[int, Callable[[bool], None]]] = [
            *((30, self.write), (6, self.write_many), (30, self.read), (20, self.ack)),
            *((10, self.exchange), (8, self.nack), (20, self.reap), (4, self.cancel)),
            *((3, self.rule), (1, self.purge), (1, self.delete)),
        ]
        weights, does = zip(*things, strict=True)
        (thing,) = self.draw.choices(does, weights)
        self.counts["steps"] += 1
        thing(self.draw.random() < 0.6)
        self.look()

    def there(self) -> dict[int, str]:
        """Return the messages that the server holds: number -> account."""
        key = self.queue.keys.of("messages")
        kept = [unpacked(key, text, bytes) for text in self.client.hgetall(key).values()]
        return {int(each.fields[b"n"]): each.account.decode() for each in kept}

    def look(self) -> None:
        """See that the queue holds what it must, and that all its counts agree with that."""
        assert self.there() == self.due, self._said(f"{self.there()} and not {self.due}")
        states = self.queue.accounts()
        in_flight = self.client.zcard(self.queue.keys.of("leases"))
        assert sum(each.in_flight for each in states) == in_flight, self._said(str(states))
        assert sum(each.waiting + each.delayed for each in states) == len(self.due) - in_flight, (
            self._said(str(states))
        )
        for each in states:
            assert each.max_in_flight is None or each.in_flight <= each.max_in_flight

    def _do(
        self,
        work: Callable[[FairQueue], Any],
        is_killed: bool,
        gone: Collection[int] = NOBODY,
        come: dict[int, str] | None = None,
    ) -> Any:
        """Let a process do its work; the messages in `gone` may go by it, those of `come` come."""
        come = come or {}
        if not is_killed:
            answer = work(self.queue)
        else:
            answer = None

            def by_another(clients: dict[str, Any]) -> None:
                work(self.queue_of(clients["a"], SOON))

            by_another.__qualname__ = work.__qualname__
            self.killed(by_another)
        found = self.there()
        for number in gone:
            if number not in found:
                self.due.pop(number, None)
        self.due |= {number: account for number, account in come.items() if number in found}
        return answer

    def _drawn(self) -> NewMessage:
        self.written += 1
        delay = SOON if self.draw.random() < 0.1 else 0.0
        key = (f"k{self.written}", LONG) if self.draw.random() < 0.3 else None
        return NewMessage(
            "tenant",
            {"n": self.written},
            tracking_id=f"{self.written}",
            account=self.draw.choice(self.ACCOUNTS),
            priority=int(self.draw.random() < 0.2),
            delay=delay,
            ttl=LONG if self.draw.random() < 0.3 else None,
            dedupe=key,
        )

    def write(self, is_killed: bool) -> None:
        """Let a producer write a message."""
        self._write([self._drawn()], is_killed)

    def write_many(self, is_killed: bool) -> None:
        """Let a producer write some; a script writes all of them or none."""
        self._write([self._drawn() for _ in range(self.draw.randint(2, 9))], is_killed)

    def _write(self, new: list[NewMessage], is_killed: bool) -> None:
        come = {int(each.fields["n"]): str(each.account) for each in new}
        ids = self._do(lambda queue: queue.write_many(new), is_killed, come=come)
        there = come.keys() & self.due.keys()
        assert there in (set(), set(come)), self._said("half written")
        if ids is not None:
            assert len(there) == len(ids)
            assert not self.ids & set(ids), self._said("an id was used again")
            self.ids |= set(ids)

    def read(self, is_killed: bool) -> None:
        """Let a consumer read; what a killed one had lapses soon."""
        most, same = self.draw.randint(1, 4), self.draw.random() < 0.2
        name = "dead" if is_killed else "c"
        found = self._do(lambda queue: queue.read_many(name, most, same_account=same), is_killed)
        self.held += found or []

    def _one(self) -> FairMessage | None:
        return self.held.pop(self.draw.randrange(len(self.held))) if self.held else None

    def ack(self, is_killed: bool) -> None:
        """Let a consumer acknowledge."""
        if message := self._one():
            number = int(message.fields[b"n"])
            was_due = number in self.due
            done = self._do(lambda queue: queue.ack(message), is_killed, {number})
            assert done in (None, was_due), self._said("an ack of what is in nobody else's hands")

    def exchange(self, is_killed: bool) -> None:
        """Let a consumer say that a message is done, and take the next."""
        if message := self._one():
            number = int(message.fields[b"n"])
            found = self._do(
                lambda queue: queue.exchange(message, consumer="dead", n=2), is_killed, {number}
            )
            self.held += found.messages if found else []

    def nack(self, is_killed: bool) -> None:
        """Let a consumer give a message back."""
        delay = self.draw.choice((0.0, SOON))
        if message := self._one():
            self._do(lambda queue: queue.nack(message, delay=delay), is_killed)

    def cancel(self, is_killed: bool) -> None:
        """Let a producer cancel a message."""
        if self.written:
            number = self.draw.randint(1, self.written)
            self._do(lambda queue: queue.cancel(f"{number}"), is_killed, {number})

    def rule(self, is_killed: bool) -> None:
        """Let an operator change rules; a cap may be below what is in hand, so it only grows."""
        known = self.client.hexists(self.queue.keys.of("rules"), "capped")
        choice = self.draw.randrange(3)
        if choice == 0 and not known and not any(e.account == "capped" for e in self.held):
            in_hand = [e.in_flight for e in self.queue.accounts() if e.account == "capped"]
            if not any(in_hand):
                self._do(lambda queue: queue.set_rule("capped", max_in_flight=2), is_killed)
        elif choice == 1:
            self._do(lambda queue: queue.set_rule("sl*", rate=50.0, burst=2), is_killed)
        else:
            self._do(lambda queue: queue.remove_rule("sl*"), is_killed)

    def purge(self, is_killed: bool) -> None:
        """Let an operator delete what waits of an account."""
        account = self.draw.choice(self.ACCOUNTS)
        gone = {number for number, each in self.due.items() if each == account}
        self._do(lambda queue: queue.purge(account), is_killed, gone)

    def reap(self, is_killed: bool) -> None:
        """Let a reaper do a slice, or some of a sweep."""
        limit, is_sweep = self.draw.randint(1, 25), self.draw.random() < 0.3

        def work(queue: FairQueue) -> None:
            job = FairQueueReaper(queue, consumer_idle=SOON, random=self.draw.random)
            with contextlib.suppress(*NOT_NOW):
                if not is_sweep:
                    job.perform(Slice(limit, 60.0))
                    return
                one = job.for_part(job.parts(1)[0])
                for _ in range(8):
                    one.perform(Slice(limit, 60.0))

        self._do(work, is_killed)

    def delete(self, is_killed: bool) -> None:
        """Delete the queue; if the process is killed meanwhile, the expiry goes on with it."""
        if is_killed:
            self._do(lambda queue: queue.delete(), True, set(self.due))
        later = self.queue_of(self.client, ahead_ms=10**10)
        for _ in range(100):
            with contextlib.suppress(*NOT_NOW):
                QueueExpiry(later).perform(Slice(50, 60.0))
            if not self.client.exists(self.queue.keys.meta):
                break
        # A read's receipt ends by its own time to live.
        left = [key for key in self.client.scan_iter("q/*") if self.client.pttl(key) == -1]
        assert not left, self._said(f"left {left}")
        self.counts["deleted"] += 1
        self.begin_anew()

    def end(self) -> None:
        """Serve all that is there, and leave nothing but records that a reaper forgets."""
        later = self.queue_of(self.client, ahead_ms=HOUR_MS)
        job = FairQueueReaper(later, random=self.draw.random)
        served: set[int] = set()
        idle = 0
        while idle < 60:
            handled = job.perform(Slice(25, 60.0))
            for message in later.read_many("last", 100):
                served.add(int(message.fields[b"n"]))
                handled += later.ack(message)
            idle = 0 if handled else idle + 1
        timely = {n for n in self.due if n not in served}
        # Those past their time to live are not served.
        assert later.length() == 0, self._said(f"left {timely}")
        assert served <= self.due.keys(), self._said(f"back {served - self.due.keys()}")
        assert leftovers(later) == {}, self._said(str(leftovers(later)))

    def _said(self, wanted: Any) -> str:
        return f"{wanted}, {dict(self.counts)}"
