"""Protocols of shuffle queues and of adoptions, with processes that are killed within them.

See `support.killed_protocols`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from support.adoptions import HOUR, KINDS, everything, hashes_on, to_the_end
from support.killed_protocols import NOT_NOW, Protocol
from support.servers import RedisServer
from workstealing.jobs import QueueExpiry, ShuffleQueueReaper
from workstealing.recruiting.slice import Slice
from workstealing.structures import ShuffleQueue
from workstealing.structures.shuffle_queue import Message

SOON = 0.001
LATEST = 600_000 * HOUR


class ChangedQueue(Protocol):
    """A ShuffleQueue whose groups come, whose streams come and go, and that is deleted whole.

    The model is the messages that each group must still be given: every one that the queue held
    when the group came, or that was written since, until the group has acknowledged it.
    """

    ABOUT = "shuffle queue"
    WIDTHS = (1, 3, 7, 12)
    GROUPS = ("g", "h", "i")

    def __init__(self, servers: Sequence[RedisServer], seed: int) -> None:
        super().__init__(servers, seed)
        self.client = self.clients["a"]
        # Each keeps the number of streams, the groups and the plans that it once knew.
        self.processes = [self.queue(self.client, width) for width in self.WIDTHS * 2]
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was, because the queue is gone."""
        self.written = 0
        self.due: dict[str, set[str]] = {}
        # Acknowledged by a process that was killed meanwhile: perhaps.
        self.perhaps: dict[str, set[str]] = {group: set() for group in self.GROUPS}
        self.held: dict[str, list[Message]] = {group: [] for group in self.GROUPS}

    def queue(self, client: Any, width: int) -> ShuffleQueue:
        """Return a process's own."""
        return ShuffleQueue(
            client, "q", streams=width, streams_per_tenant=min(3, width), max_attempts=10**6
        )

    def step(self) -> None:
        """Do one thing by chance, and look at all messages."""
        things: list[tuple[int, Callable[[bool], None]]] = [
            (30, self.write),
            (25, self.read),
            (25, self.ack),
            (30, self.reap),
            (4, self.cancel),
            (1, self.delete),
        ]
        weights, does = zip(*things, strict=True)
        (thing,) = self.draw.choices(does, weights)
        self.counts["steps"] += 1
        thing(self.draw.random() < 0.7)
        if self.draw.random() < 0.05:
            place = self.draw.randrange(len(self.processes))
            self.processes[place] = self.queue(self.client, self.draw.choice(self.WIDTHS))
        self.look()

    def there(self) -> dict[str, bytes]:
        """Return all messages that the streams hold, by their ids, and the tracking id of each."""
        keys = self.processes[0].keys
        pipeline = self.client.pipeline(transaction=False)
        for number in range(max(self.WIDTHS)):
            pipeline.xrange(keys.stream(number))
        return {
            f"{number}-{entry.decode()}": fields[b"n"]
            for number, found in enumerate(pipeline.execute())
            for entry, fields in found
        }

    def look(self) -> None:
        """See that the queue holds each message that a group waits for, and no other one."""
        found = set(self.there())
        wanted = set().union(*self.due.values()) if self.due else found
        allowed = wanted.union(*self.perhaps.values())
        assert wanted <= found, self._said(f"lost {wanted - found}")
        assert found <= allowed, self._said(f"back {found - allowed}")
        queue = self.draw.choice(self.processes)
        assert queue.length() == len(found), self._said(f"{queue.length()} and not {len(found)}")

    def write(self, is_killed: bool) -> None:
        """Let a producer write a message; it knows another number of streams, and no new group."""
        self.written += 1
        number, tenant = self.written, f"t{self.draw.randrange(4)}"
        width = self.draw.choice(self.WIDTHS)

        def work(clients: dict[str, Any]) -> None:
            self.queue(clients["a"], width).write(tenant, {"n": number}, tracking_id=f"{number}")

        if not is_killed:
            made = self.draw.choice(self.processes).write(
                tenant, {"n": number}, tracking_id=f"{number}"
            )
            assert self.there().get(made) == b"%d" % number, self._said(made)
        else:
            self.killed(work)
        for made, told in self.there().items():
            if told == b"%d" % number:
                for waiting in self.due.values():
                    waiting.add(made)

    def read(self, is_killed: bool) -> None:
        """Let a consumer read, perhaps as the first one of its group."""
        group, most = self.draw.choice(self.GROUPS), self.draw.randint(1, 6)
        width = self.draw.choice(self.WIDTHS)

        def work(clients: dict[str, Any]) -> list[Message]:
            return list(self.queue(clients["a"], width).read_many(group, "dead", most))

        before = set(self.there())
        if not is_killed:
            queue = self.draw.choice(self.processes)
            found = queue.read_many(group, "c", most)
            # A group is given at once what the queue holds when it comes.
            assert found or group in self.due or not before, self._said(f"nothing of {before}")
            self._joined(group, before)
            for message in found:
                assert message.id in self.due[group] | self.perhaps[group], self._said(message.id)
            self.held[group] += found
        else:
            # The reaper returns what it had in hand.
            self.killed(work)
            if group in self.processes[0].groups():
                self._joined(group, before)

    def _joined(self, group: str, before: set[str]) -> None:
        if group not in self.due:
            self.counts["groups"] += 1
            self.due[group] = set(before)

    def ack(self, is_killed: bool) -> None:
        """Let a consumer acknowledge a message, or give it back."""
        groups = [group for group in self.GROUPS if self.held[group]]
        if not groups:
            return
        group = self.draw.choice(groups)
        message = self.held[group].pop(self.draw.randrange(len(self.held[group])))
        if self.draw.random() < 0.15:
            self.draw.choice(self.processes).nack(message)
            return
        width = self.draw.choice(self.WIDTHS)

        def work(clients: dict[str, Any]) -> None:
            self.queue(clients["a"], width).ack(message)

        if not is_killed:
            self.draw.choice(self.processes).ack(message)
            # Another consumer may have done it meanwhile.
            self.due[group].discard(message.id)
            self.perhaps[group].discard(message.id)
        elif not self.killed(work):
            self.due[group].discard(message.id)
        elif message.id in self.due[group]:
            self.due[group].discard(message.id)
            self.perhaps[group].add(message.id)
        self._forget_what_is_gone()

    def _forget_what_is_gone(self) -> None:
        found = set(self.there())
        for group in self.GROUPS:
            self.perhaps[group] &= found

    def cancel(self, is_killed: bool) -> None:
        """Let a producer cancel a message, for all groups."""
        if not self.written:
            return
        number = self.draw.randint(1, self.written)
        said = b"%d" % number
        before = {made for made, told in self.there().items() if told == said}

        def work(clients: dict[str, Any]) -> None:
            self.queue(clients["a"], 3).cancel(f"{number}")

        if is_killed:
            self.killed(work)
        else:
            self.draw.choice(self.processes).cancel(f"{number}")
        for made in before - set(self.there()):
            for waiting in (*self.due.values(), *self.perhaps.values()):
                waiting.discard(made)

    def reap(self, is_killed: bool) -> None:
        """Let a reaper, with an old number of streams, do a slice."""
        width, limit = self.draw.choice(self.WIDTHS), self.draw.randint(1, 25)

        def work(clients: dict[str, Any]) -> None:
            self._reaper(self.queue(clients["a"], width)).perform(Slice(limit, 60.0))

        span = self._span()
        if is_killed:
            self.killed(work)
        else:
            with contextlib.suppress(*NOT_NOW):
                work(self.clients)
        self.counts["narrowed"] += self._span() < span

    def _span(self) -> int:
        return int(self.client.hget(self.processes[0].keys.meta, "span") or 0)

    def _reaper(self, queue: ShuffleQueue) -> ShuffleQueueReaper:
        options: Any = {"lease": SOON, "consumer_idle": SOON}
        return ShuffleQueueReaper(queue, random=self.draw.random, **options)

    def delete(self, is_killed: bool) -> None:
        """Delete the queue; if the process is killed meanwhile, the expiry goes on with it."""

        def work(clients: dict[str, Any]) -> None:
            self.queue(clients["a"], 7).delete()

        if is_killed:
            self.killed(work)
        later = ShuffleQueue(self.client, "q", clock_shift_ms=10**10)
        expired = QueueExpiry(later)
        for _ in range(100):
            with contextlib.suppress(*NOT_NOW):
                expired.perform(Slice(50, 60.0))
            if not self.client.exists(self.processes[0].keys.meta):
                break
        # A read's receipt ends by its own time to live.
        left = [
            key
            for key in self.client.scan_iter("q/*")
            if b"dead" not in key and self.client.pttl(key) == -1
        ]
        assert not left, self._said(f"left {left}: {everything(self.client)}")
        self.counts["deleted"] += 1
        self.begin_anew()

    def end(self) -> None:
        """Give each group all that it waits for, and leave nothing beside the streams."""
        queue = self.queue(self.client, 1)
        job = self._reaper(queue)
        given: dict[str, set[str]] = {group: set() for group in self.GROUPS}
        idle = 0
        while idle < 60:
            handled = job.perform(Slice(25, 60.0))
            for group in self.due:
                for message in queue.read_many(group, "last", 100):
                    given[group].add(message.id)
                    handled += queue.ack(message)
            idle = 0 if handled else idle + 1
        for group, waiting in self.due.items():
            assert waiting <= given[group], self._said(f"lost {waiting - given[group]}")
            more = given[group] - waiting - self.perhaps[group]
            assert not more, self._said(f"back {more}")
        if self.due:
            assert queue.length() == 0, self._said("something is left")
            assert self._span() <= 1, self._said(f"a span of {self._span()}")

    def _said(self, wanted: Any) -> str:
        return f"{wanted}, {dict(self.counts)}"


class Adoption(Protocol):
    """Hashes of an old program are adopted, while it writes, and new processes read them.

    The model is the value and the end of each field, as the old program has last written it.
    """

    ABOUT = "adopt hashes"

    def __init__(self, servers: Sequence[RedisServer], seed: int) -> None:
        super().__init__(servers, seed)
        self.client = self.clients["a"]
        self.kind = self.draw.choice([kind for kind in KINDS if kind.keeps])
        self.values: dict[str, dict[str, bytes]] = {f"u{n}": {} for n in range(25)}
        self.ends: dict[str, dict[str, int]] = {f"u{n}": {} for n in range(25)}
        self.jobs = [self.kind.job(self.client) for _ in range(2)]

    def step(self) -> None:
        """Do one thing by chance, and look at the values of some hashes."""
        draw = self.draw
        self.counts["steps"] += 1
        chance = draw.random()
        if chance < 0.2:
            who = draw.choice([*self.values])
            # Of two deadlines a field keeps the later one, so each is later than those before.
            ends = {f"f{draw.randrange(4)}": LATEST + self.counts["steps"] for _ in "ab"}
            self.values[who] |= self.kind.store(self.client, who, ends, self.counts["steps"])
            self.ends[who] |= ends
        elif chance < 0.9:
            self.killed(self._adopt)
        elif chance < 0.95:
            self.jobs = [self.kind.job(self.client) for _ in range(2)]
            draw.choice(self.jobs).restart()
        else:
            with contextlib.suppress(*NOT_NOW):
                draw.choice(self.jobs).perform(Slice(draw.randint(1, 9), 60.0))
        hashes = hashes_on(self.client)
        for who in draw.sample([*self.values], 5):
            self._look(hashes, who)

    def _adopt(self, clients: dict[str, Any]) -> None:
        job = self.kind.job(clients["a"])
        if self.draw.random() < 0.3:
            job.adopt(f"hash:{self.draw.choice([*self.values])}")
        else:
            job.perform(Slice(self.draw.randint(1, 12), 60.0))

    def _look(self, hashes: Any, who: str) -> None:
        found = hashes.hgetall(f"hash:{who}")
        wanted = {field.encode(): value for field, value in self.values[who].items()}
        assert found == wanted, f"{who}: {found} and not {wanted}, {dict(self.counts)}"

    def end(self) -> None:
        """Adopt all; each field has its own end, and a second walk changes nothing."""
        job = self.kind.job(self.client)
        job.restart()
        to_the_end(job)
        hashes = hashes_on(self.client)
        for who, ends in self.ends.items():
            self._look(hashes, who)
            if ends:
                found = hashes.hpexpiretime(f"hash:{who}", *ends)
                assert found == [1000 * end for end in ends.values()], (who, found, ends)
        assert not list(self.client.scan_iter("zset:*"))
        before = everything(self.client)
        job.restart()
        assert to_the_end(job) == 0
        assert everything(self.client) == before
