"""How long quiet accounts wait in a fair queue beside floods, on a virtual clock.

One trace, which says when each message comes and how much work it is, is served twice by the same
simulated workers. A real `FairQueue` on a real server learns of the work when it is done, and an
ideal scheduler knows it before. Neither takes a message out of a worker's hands. So their waits can
be compared one by one, however busy the machine is.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from figures import Figure, Target
from servers import RedisServer

from support.fair_queues import after
from workstealing.structures.fair_queue import FairMessage, FairQueue, NewMessage

WORKERS, QUIET = 8, ("quiet 1", "quiet 2", "quiet 3")
CAP = 4
MOST_RATIO = 1.2


class Arrival(NamedTuple):
    """A message of a trace: when it comes, of whom, under which name, and its work; in seconds."""

    at: float
    account: str
    tenant: str
    work: float


Trace = Sequence[Arrival]


class Scheduler(Protocol):
    """What serves a trace; messages are numbered in the order of the trace."""

    def put(self, first: int, arrivals: Trace) -> None:
        """Let messages wait, the first of which has that number."""
        ...

    def take(self) -> int | None:
        """Return the message that is served now; None if none may be."""
        ...

    def done(self, number: int) -> None:
        """End a message whose work is done."""
        ...


class Ideal:
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996), with the exact work of each message.

    An account's tag is the virtual time at which its next message begins; the least tag is served.
    """

    def __init__(self, trace: Trace, caps: Mapping[str, int]) -> None:
        self._trace, self._caps = trace, caps
        self._tags: defaultdict[str, float] = defaultdict(float)
        self._waiting: defaultdict[str, deque[int]] = defaultdict(deque)
        self._in_hand: Counter[str] = Counter()
        self._now = 0.0

    def put(self, first: int, arrivals: Trace) -> None:
        """Let messages wait; who had nothing that waits gets no credit for that time."""
        for number, each in enumerate(arrivals, first):
            if not self._waiting[each.account]:
                self._tags[each.account] = max(self._tags[each.account], self._now)
            self._waiting[each.account].append(number)

    def take(self) -> int | None:
        """Serve the account with the least tag among those that have a turn."""
        ready = [
            (self._tags[account], numbers[0], account)
            for account, numbers in self._waiting.items()
            if numbers and self._in_hand[account] < self._caps.get(account, WORKERS)
        ]
        if not ready:
            return None
        tag, number, account = min(ready)
        self._now = max(self._now, tag)
        self._tags[account] = max(tag, self._now) + self._trace[number].work
        self._in_hand[account] += 1
        return self._waiting[account].popleft()

    def done(self, number: int) -> None:
        """Free a slot."""
        self._in_hand[self._trace[number].account] -= 1


class Real:
    """A fair queue on a server, which is told how long the work has taken."""

    def __init__(self, client: Any, name: str, trace: Trace, caps: Mapping[str, int]) -> None:
        # Nothing lapses: the virtual time of the work is not that of the server.
        self._queue = FairQueue(client, name, lease=86_400.0)
        self._trace = trace
        self._held: dict[int, FairMessage] = {}
        for account, cap in caps.items():
            self._queue.set_rule(account, max_in_flight=cap)

    def put(self, first: int, arrivals: Trace) -> None:
        """Write messages."""
        self._queue.write_many(
            [
                NewMessage(each.tenant, {"n": number}, account=each.account)
                for number, each in enumerate(arrivals, first)
            ]
        )

    def take(self) -> int | None:
        """Read one."""
        message = self._queue.read("worker")
        if message is None:
            return None
        number = int(message.fields[b"n"])
        self._held[number] = message
        return number

    def done(self, number: int) -> None:
        """Acknowledge one, after its work."""
        message = self._held.pop(number)
        assert self._queue.ack(after(message, self._trace[number].work)) == 1


def serve(trace: Trace, scheduler: Scheduler) -> list[float]:
    """Serve a trace by `WORKERS` workers; return how long each message waited, in seconds."""
    waits = [0.0] * len(trace)
    busy: list[tuple[float, int]] = []
    came = 0
    while came < len(trace) or busy:
        now = min([each[0] for each in busy[:1]] + [each.at for each in trace[came : came + 1]])
        while busy and busy[0][0] <= now:
            scheduler.done(heapq.heappop(busy)[1])
        first = came
        while came < len(trace) and trace[came].at <= now:
            came += 1
        if came > first:
            scheduler.put(first, trace[first:came])
        while len(busy) < WORKERS and (number := scheduler.take()) is not None:
            waits[number] = now - trace[number].at
            heapq.heappush(busy, (now + trace[number].work, number))
    return waits


def _piece(chance: random.Random) -> float:
    """Return the work of a message: 10 ms to 10 s, so that an estimate is often wrong by ten."""
    return float(10 ** chance.uniform(-2, 1))


def quiet_trace(seconds: float, load: float, chance: random.Random) -> list[Arrival]:
    """Return bursts of one to three messages of the quiet accounts.

    Arguments:
        load: how many workers all of them keep busy, on the average.
    """
    found, at = [], 0.0
    mean_piece, mean_burst = 9.99 / 6.908, 2.0
    while True:
        at += chance.expovariate(load / (mean_piece * mean_burst))
        if at >= seconds:
            return found
        account = chance.choice(QUIET)
        many = chance.randint(1, 3)
        found += [Arrival(at, account, account, _piece(chance)) for _ in range(many)]


def flood_trace(
    seconds: float, names: int, chance: random.Random, longer: float = 1.0
) -> list[Arrival]:
    """Return messages of one account that all workers together could not do in that time.

    Arguments:
        names: among how many names the account spreads them.
        longer: how many times as long their work is.
    """
    found, work = [], 0.0
    while work < 1.2 * WORKERS * seconds:
        name = f"flood {len(found) % names}"
        # Half of them are there from the start.
        at = 0.0 if len(found) % 2 else min(seconds, work / WORKERS / 1.2)
        found.append(Arrival(at, "flood", name, longer * _piece(chance)))
        work += found[-1].work
    return found


@dataclass(frozen=True)
class Compared:
    """The waits of the quiet accounts' messages by two schedulers, in seconds, sorted."""

    ours: list[float]
    reference: list[float]

    def at(self, share: float) -> tuple[float, float]:
        """Return a quantile of both."""
        return tuple(each[int(share * (len(each) - 1))] for each in (self.ours, self.reference))  # type: ignore[return-value]

    def ratio(self, share: float) -> float:
        """Return how many times as long ours is, at a quantile."""
        ours, reference = self.at(share)
        return ours / reference


def _of_quiet(trace: Trace, waits: Sequence[float]) -> list[float]:
    return sorted(wait for each, wait in zip(trace, waits, strict=True) if each.account != "flood")


def beside_a_flood(client: Any, seconds: float, names: int, seed: int) -> Compared:
    """Return the waits beside a flood under some names, in a `FairQueue` and an ideal one."""
    chance = random.Random(seed)
    trace = sorted(quiet_trace(seconds, 1.0, chance) + flood_trace(seconds, names, chance))
    real = Real(client, f"waits-{names}-{seed}", trace, {})
    return Compared(
        _of_quiet(trace, serve(trace, real)), _of_quiet(trace, serve(trace, Ideal(trace, {})))
    )


def beside_long_messages(client: Any, seconds: float, seed: int) -> tuple[Compared, Compared]:
    """Return the waits beside messages a hundred times as long, whose account has a cap.

    Returns: those in a `FairQueue` with the waits alone in it, and with those in an ideal one.
    """
    chance, caps = random.Random(seed), {"flood": CAP}
    quiet = quiet_trace(seconds, WORKERS - CAP - 2.0, chance)
    trace = sorted(quiet + flood_trace(seconds, 1, chance, longer=100.0))
    ours = _of_quiet(trace, serve(trace, Real(client, f"waits-long-{seed}", trace, caps)))
    alone = sorted(serve(quiet, Real(client, f"waits-alone-{seed}", quiet, {})))
    ideal = _of_quiet(trace, serve(trace, Ideal(trace, caps)))
    return Compared(ours, alone), Compared(ours, ideal)


def measure(server: RedisServer) -> list[Figure]:
    """Measure the waits at p50 and p99: counted on a virtual clock, and the same in each run."""
    client = server.client()
    figures = []
    for what, names in (("one_name", 1), ("thousand_names", 1000)):
        found = beside_a_flood(client, 500.0, names, seed=1)
        figures += _figures(what, "an ideal scheduler that knows the work", found, MOST_RATIO)
    alone, ideal = beside_long_messages(client, 500.0, seed=1)
    figures += _figures("long_capped", "an ideal scheduler with the same cap", ideal, None)
    ours, other = alone.at(0.99)
    figures.append(
        Figure(
            "fair_queue_wait_long_capped_more_p99_s", round(ours - other, 3), ours, other, 1,
            "its wait alone; one piece of work is 10 s", Target(most=10.0),
        )
    )  # fmt: skip
    return figures


def _figures(what: str, reference: str, found: Compared, most: float | None) -> list[Figure]:
    figures = []
    for quantile, share in (("p50", 0.5), ("p99", 0.99)):
        ours, other = found.at(share)
        value = round(ours / other, 3) if other else float(ours == 0)
        details = {"ours_s": round(ours, 3), "reference_s": round(other, 3)}
        target = None if most is None or quantile == "p50" else Target(most=most)
        name = f"fair_queue_wait_{what}_{quantile}"
        figures.append(Figure(name, value, value, value, 1, reference, target, details))
    return figures
