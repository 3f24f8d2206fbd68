"""What a shuffle queue's reads and writes cost, beside a loop over all streams.

The reference is the queue as published, written anew (tests/support/published_shuffle_queue.py): a
read passes over all streams by one script. Each case is measured three ways: by the server's own
count of its scripts, by the CPU that the server's process took for everything, and by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from figures import Figure, Target, cost_figure, counted, in_turn, speed_figure
from servers import RedisServer

from support.published_shuffle_queue import PublishedShuffleQueue
from support.single_streams import SingleStreams
from workstealing.structures import ShuffleQueue
from workstealing.structures.shuffle_queue.streams import streams_of

SIZES = (16, 64, 256, 1_024)
ROUNDS = 20
GROUP, CONSUMER = "workers", "worker-1"
LIVE = 7
FIELDS = {"body": "x" * 64, "kind": "job"}
OF_TENANT = 4
TENANTS = [f"tenant-{number}" for number in range(20)]
LOOP = "the loop over all streams"
COUNTED = "the server's own count"


class Cost(NamedTuple):
    """Seconds of one call: in the server's scripts, of its process, and for the caller."""

    script: float
    process: float
    called: float


class _Meter:
    """Times calls by the server's count of its scripts, its CPU, and the caller's clock."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def _now(self) -> Cost:
        info = self._client.info("commandstats", "cpu")
        # The reads and writes are scripts alone; their own commands are counted within them.
        usec = sum(info.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval"))
        return Cost(
            usec / 1e6, info["used_cpu_user"] + info["used_cpu_sys"], time.perf_counter()
        )  # fmt: skip

    def run(self, call: Callable[[], Any], calls: int) -> Cost:
        """Call so many times; return what one call cost."""
        before = self._now()
        for _ in range(calls):
            call()
        after = self._now()
        return Cost(*((b - a) / calls for a, b in zip(before, after, strict=True)))


class _Ours:
    def __init__(self, client: Any, streams: int, name: str = "ours") -> None:
        name = f"{name}:{streams}"
        self.queue: Any = ShuffleQueue(client, name, streams, OF_TENANT)
        self._singles = SingleStreams(client, name, streams)
        self.read = partial(_read_ours, self.queue)

    def write(self, tenant: int) -> None:
        self.queue.write(TENANTS[tenant], FIELDS)

    def put(self, stream: int, messages: int) -> None:
        for _ in range(messages):
            self._singles.put(stream, FIELDS)

    def join(self, groups: int) -> None:
        """Let so many groups exist."""
        for number in range(groups):
            self.queue.read(GROUP if not number else f"{GROUP}-{number}", CONSUMER)

    def drop(self) -> None:
        self.queue.delete()


def _read_ours(queue: Any) -> bool:
    return queue.read(GROUP, CONSUMER) is not None


class _Loop:
    def __init__(self, client: Any, streams: int) -> None:
        self.queue = PublishedShuffleQueue(client, f"loop:{streams}", streams)
        self._streams = [streams_of(tenant, streams, OF_TENANT) for tenant in TENANTS]

    def write(self, tenant: int) -> None:
        self.queue.write(self._streams[tenant], FIELDS)

    def put(self, stream: int, messages: int) -> None:
        for _ in range(messages):
            self.queue.write([stream], FIELDS)

    def read(self) -> bool:
        return self.queue.look(GROUP, CONSUMER) is not None

    def drop(self) -> None:
        client, name = self.queue.client, self.queue.name
        keys = [f"{name}:s{number}" for number in range(self.queue.streams)]
        client.delete(f"{name}:meta", f"{name}:notifications", *keys)


Case = Callable[[Any, _Meter, int], Cost]


def _reads(side: Any, meter: _Meter, calls: int, *, found: bool) -> Cost:
    answers: list[bool] = []
    cost = meter.run(lambda: answers.append(side.read()), calls)
    if answers != [found] * calls:
        raise AssertionError(f"of {calls} reads {answers.count(found)} were as they should be")
    return cost


def _one_live(side: Any, meter: _Meter, calls: int) -> Cost:
    side.put(LIVE, calls)
    return _reads(side, meter, calls, found=True)


def _empty(side: Any, meter: _Meter, calls: int) -> Cost:
    side.read()  # What has been emptied is seen to be empty once.
    return _reads(side, meter, calls, found=False)


def _full(side: Any, meter: _Meter, calls: int) -> Cost:
    return _reads(side, meter, calls, found=True)


def _busy_writes(side: Any, meter: _Meter, calls: int) -> Cost:
    tenants = iter(range(calls))
    return meter.run(lambda: side.write(next(tenants) % len(TENANTS)), calls)


class _Costs:
    """The costs of two sides over the rounds, by what they were measured with."""

    def __init__(
        self, case: Case, ours: Any, theirs: Any, meter: _Meter, calls: tuple[int, int]
    ) -> None:
        spent: dict[int, list[Cost]] = {0: [], 1: []}

        def batch(which: int, side: Any) -> Callable[[], float]:
            def run() -> float:
                spent[which].append(case(side, meter, calls[which]))
                return spent[which][-1].script

            return run

        in_turn(batch(0, ours), batch(1, theirs), ROUNDS)
        # The first of each does not count.
        self._spent = (spent[0][1:], spent[1][1:])

    def speeds(self, name: str, reference: str, least: float | None = None) -> list[Figure]:
        """Return how many times as fast ours is; the target holds for the server's own count."""
        target = None if least is None else Target(least=least)
        script, process, called = (self._of(which) for which in Cost._fields)
        return [
            speed_figure(f"{name}_server", f"{reference}, {COUNTED}", script, target),
            _of_means(f"{name}_cpu", reference, process, speed=True),
            speed_figure(f"{name}_called", reference, called),
        ]

    def costs(self, name: str, reference: str, most: float) -> list[Figure]:
        """Return how much more ours costs; the target holds for the server's own count."""
        script, process, called = (self._of(which) for which in Cost._fields)
        return [
            cost_figure(f"{name}_server", f"{reference}, {COUNTED}", script, Target(most=most)),
            _of_means(f"{name}_cpu", reference, process, speed=False),
            cost_figure(f"{name}_called", reference, called),
        ]

    def _of(self, which: str) -> tuple[list[float], list[float]]:
        mine, theirs = ([getattr(cost, which) for cost in costs] for costs in self._spent)
        return mine, theirs


def _of_means(
    name: str, reference: str, costs: tuple[list[float], list[float]], *, speed: bool
) -> Figure:
    """Compare the means of all rounds: the process's CPU of a single one is too coarse."""
    mine, theirs = (sum(values) / len(values) for values in costs)
    ratio = round(theirs / mine if speed else mine / theirs, 3)
    details = {"ours_us": round(mine * 1e6, 1), "reference_us": round(theirs * 1e6, 1)}
    return counted(name, ratio, f"{reference}, all CPU of the server", **details)


def _calls(streams: int) -> tuple[int, int]:
    # A read of the loop over a thousand streams takes a millisecond or more.
    return 60, 60 if streams < 200 else 15


def _idle_writes(side: Any, meter: _Meter, calls: int) -> Cost:
    """Write where nothing waits: each write finds its readers asleep, and notifies them."""
    costs = []
    for tenant in range(calls):
        while side.read():
            pass
        costs.append(meter.run(partial(side.write, tenant % len(TENANTS)), 1))
    return Cost(*(sum(values) / calls for values in zip(*costs, strict=True)))


def _measured_reads(client: Any, meter: _Meter, streams: int) -> list[Figure]:
    ours, theirs = _Ours(client, streams), _Loop(client, streams)
    least = 60.0 if streams == 1_024 else None
    figures = []
    calls = _calls(streams)
    for side in (ours, theirs):
        # Every stream has been in use and has its group, as in a queue that has lived for a while.
        for stream in range(streams):
            side.put(stream, 1)
        while side.read():
            pass
    costs = _Costs(_one_live, ours, theirs, meter, calls)
    figures += costs.speeds(f"shuffle_queue_read_one_live_{streams}", LOOP, least)
    costs = _Costs(_empty, ours, theirs, meter, calls)
    figures += costs.speeds(f"shuffle_queue_read_empty_{streams}", LOOP)
    each = -(-(ROUNDS + 2) * calls[0] // streams) + 1
    for side in (ours, theirs):
        for stream in range(streams):
            side.put(stream, each)
    costs = _Costs(_full, ours, theirs, meter, (calls[0], calls[0]))
    figures += costs.speeds(f"shuffle_queue_read_full_{streams}", LOOP, 0.8)
    ours.drop()
    theirs.drop()
    return figures


def _measured_writes(client: Any, meter: _Meter, streams: int, groups: int) -> list[Figure]:
    ours, theirs = _Ours(client, streams), _Loop(client, streams)
    ours.join(groups)
    theirs.read()
    for tenant in range(len(TENANTS)):
        for side in (ours, theirs):
            for _ in range(OF_TENANT):
                side.write(tenant)
    most = 1.1 if groups == 1 else 1.5
    costs = _Costs(_busy_writes, ours, theirs, meter, (60, 60))
    name = f"shuffle_queue_write_{groups}_groups_{streams}"
    figures = costs.costs(name, f"{LOOP}, {groups} groups", most)
    if streams == SIZES[0]:
        costs = _Costs(_idle_writes, ours, theirs, meter, (15, 15))
        name = f"shuffle_queue_write_idle_{groups}_groups_{streams}"
        figures += costs.costs(name, f"{LOOP}, {groups} groups", most)[:1]
    ours.drop()
    theirs.drop()
    return figures


def _flatness(client: Any, meter: _Meter) -> list[Figure]:
    """Compare reads of 1,024 streams with those of 16."""
    sides = [_Ours(client, streams, "flat") for streams in (1_024, 16)]
    figures = []
    for side in sides:
        side.join(1)
        for stream in range(side.queue.streams):
            side.put(stream, 1)
        while side.read():
            pass
    cases: Sequence[tuple[str, Case]] = [("one_live", _one_live), ("empty", _empty)]
    for name, case in cases:
        costs = _Costs(case, *sides, meter, (60, 60))
        figures += costs.costs(f"shuffle_queue_flat_{name}", "16 streams; ours: 1,024", 1.2)
    for side in sides:
        side.drop()
    return figures


def measure(server: RedisServer) -> list[Figure]:
    """Measure reads with one live stream, with all empty and with all full, and writes."""
    client = server.client()
    meter = _Meter(client)
    figures = _flatness(client, meter)
    for streams in SIZES:
        figures += _measured_reads(client, meter, streams)
        for groups in (1, 4):
            figures += _measured_writes(client, meter, streams, groups)
    return figures
