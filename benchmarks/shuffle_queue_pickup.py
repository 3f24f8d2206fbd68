"""How long messages wait for readers of a shuffle queue that sleep, and whether one slept on.

Two measurements. `shuffle_queue_slept_through`: 100,000 messages of two writers at random and
sixteen readers; see tests/support/pickups.py for the evidence, and
tests/structures/shuffle_queue/test_wakeups.py for a shorter run of the same. `shuffle_queue_wake`:
one message at a time for readers that all sleep, beside the same on one plain stream and on the
queue as published, in turn; from before the write to after the read, by the one clock of the host.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from figures import Figure, Target
from servers import RedisServer

from support.pickups import traffic
from support.published_shuffle_queue import PublishedShuffleQueue
from workstealing.structures import ShuffleQueue
from workstealing.structures.shuffle_queue.streams import streams_of

MESSAGES = 100_000
PAUSE_SECONDS = 0.008
ROUNDS = 8
WOKEN = 120
SLEEPERS = 4
BLOCK_MS = 1_000
STREAMS = 64
PLAIN = "one plain stream with XREADGROUP BLOCK"


def measure(server: RedisServer) -> list[Figure]:
    """Time the waking of a reader, and count the messages that waited while a reader slept."""
    return [*_wakes(server), _slept_through(server)]


def _slept_through(server: RedisServer) -> Figure:
    evidence = traffic(server.port, _queue, messages=MESSAGES, pause_s=PAUSE_SECONDS)
    if sorted(wait.who for wait in evidence.messages) != sorted(evidence.written):
        raise AssertionError("not every message was delivered exactly once")
    slept = float(len(evidence.slept_through()))
    delays = evidence.delays()
    percentiles = statistics.quantiles(delays, n=1_000)
    details = {
        "messages": float(len(delays)),
        "sleeps": float(len(evidence.sleeps)),
        "sleeps_over_3_ms": float(sum(sleep.end - sleep.start > 3 for sleep in evidence.sleeps)),
        "delay_p50_ms": percentiles[499],
        "delay_p99_ms": percentiles[989],
        "delay_p999_ms": percentiles[998],
        "delay_longest_ms": delays[-1],
        "seconds": round(evidence.seconds, 1),
    }
    return Figure(
        "shuffle_queue_slept_through", slept, slept, slept, 1, "messages, counted",
        Target(most=0.0), details,
    )  # fmt: skip


def _queue(client: Any) -> Any:
    return ShuffleQueue(client, "pickup", STREAMS)


class _Ours:
    """Writes and reads messages that carry the moment of their writing."""

    def __init__(self, client: Any) -> None:
        self._queue = ShuffleQueue(client, "wake", STREAMS)

    def write(self, tenant: str, at: float) -> None:
        self._queue.write(tenant, {"at": at})

    def read(self, consumer: str) -> float | None:
        message = self._queue.read("g", consumer, block=BLOCK_MS / 1000)
        if message is None:
            return None
        took = time.time() - float(message.fields[b"at"])
        self._queue.ack(message)
        return took


class _Published:
    def __init__(self, client: Any) -> None:
        self._queue = PublishedShuffleQueue(client, "wake-published", STREAMS)

    def write(self, tenant: str, at: float) -> None:
        self._queue.write(streams_of(tenant, STREAMS, 4), {"at": at})

    def read(self, consumer: str) -> float | None:
        message = self._queue.read("g", consumer, block=BLOCK_MS / 1000)
        if message is None:
            return None
        took = time.time() - float(message.fields["at"])
        self._queue.ack("g", message)
        return took


class _Plain:
    KEY = "wake-plain"

    def __init__(self, client: Any) -> None:
        self._client = client
        try:
            client.xgroup_create(self.KEY, "g", id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def write(self, _tenant: str, at: float) -> None:
        self._client.xadd(self.KEY, {"at": at})

    def read(self, consumer: str) -> float | None:
        got = self._client.xreadgroup("g", consumer, {self.KEY: ">"}, count=1, block=BLOCK_MS)
        if not got:
            return None
        ((entry, fields),) = got[self.KEY.encode()][0] if isinstance(got, dict) else got[0][1]
        took = time.time() - float(fields[b"at"])
        self._client.xack(self.KEY, "g", entry)
        self._client.xdel(self.KEY, entry)
        return took


def _wakes(server: RedisServer) -> list[Figure]:
    kinds: dict[str, Callable[[Any], Any]] = {
        "ours": _Ours, "published": _Published, "plain": _Plain,
    }  # fmt: skip
    medians: dict[str, list[float]] = {kind: [] for kind in kinds}
    tails: dict[str, list[float]] = {kind: [] for kind in kinds}
    scripts: list[float] = []
    for number in range(ROUNDS + 1):
        order = list(kinds) if number % 2 else list(reversed(kinds))
        for kind in order:
            before = _scripts(server)
            took = _woken(server.port, kinds[kind], seed=number)
            if not number:
                continue  # It pays for connections and scripts.
            medians[kind].append(statistics.median(took) * 1e3)
            tails[kind].append(statistics.quantiles(took, n=100)[98] * 1e3)
            if kind == "ours":
                scripts.append((_scripts(server) - before) / len(took))
    details = {f"{kind}_p50_ms": statistics.median(medians[kind]) for kind in kinds}
    details |= {f"{kind}_p99_ms": statistics.median(tails[kind]) for kind in kinds}
    # A write, an ack, and the reads of all who were woken.
    details["scripts_a_message"] = statistics.median(scripts)

    def ratio(name: str, reference: str, called: str, target: Target | None) -> Figure:
        pairs = zip(medians["ours"], medians[reference], strict=True)
        ratios = [mine / theirs for mine, theirs in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return Figure(name, middle, low, high, ROUNDS, called, target, details)

    return [
        ratio("shuffle_queue_wake", "plain", PLAIN, None),
        ratio("shuffle_queue_wake_published", "published", "the published queue", None),
    ]


def _scripts(server: RedisServer) -> float:
    info = server.client().info("commandstats")
    return float(
        sum(info.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))
    )


def _woken(port: int, make: Callable[[Any], Any], *, seed: int) -> list[float]:
    """Return how long each of some messages took to a sleeping reader, in seconds."""
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    ready = context.Semaphore(0)
    results = context.SimpleQueue()

    def reading(consumer: str) -> None:
        queue = make(redis.Redis(host="127.0.0.1", port=port))
        took: list[float] = []
        ready.release()
        while not ended.is_set():
            seconds = queue.read(consumer)
            if seconds is not None:
                took.append(seconds)
        results.put(took)

    readers = [
        context.Process(target=partial(reading, f"c{n}"), daemon=True) for n in range(SLEEPERS)
    ]
    for reader in readers:
        reader.start()
    for _ in readers:
        ready.acquire()
    time.sleep(0.05)
    rng = random.Random(seed)
    queue = make(redis.Redis(host="127.0.0.1", port=port))
    for _ in range(WOKEN):
        time.sleep(0.004 + rng.expovariate(1 / PAUSE_SECONDS))
        queue.write(f"tenant-{rng.randrange(40)}", time.time())
    time.sleep(0.05)
    ended.set()
    found = [seconds for _ in readers for seconds in results.get()]
    for reader in readers:
        reader.join()
    if len(found) != WOKEN:
        raise AssertionError(f"{len(found)} of {WOKEN} messages were read")
    return found
