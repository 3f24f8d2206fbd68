"""How fast a loop over slices collects, beside a bare WATCH/MULTI loop and the server's own expiry.

The bare loop is what one would write by hand with redis-py's public API: it knows its hash, so it
spares itself the look into a due index, and each of its commands before MULTI is a round trip.
"""

from __future__ import annotations

import time
from typing import Any

from figures import Batch, Figure, Target, counted, in_turn, speed_figure
from redis.exceptions import TimeoutError, WatchError
from relay import Relay
from servers import RedisServer, expires_fields

from workstealing import Slice
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

HASHES, FIELDS = 200, 1_000
# Long, so that the limit and not the machine's other work ends a slice.
SLICE_SECONDS = 1.0
# The share of slices that may end in a socket's time-out of 50 ms; more, and nothing was measured.
MOST_TIMEOUTS = 0.05
# The data live for an hour, and the loops' clocks are two hours ahead: nobody waits for deadlines.
TTL_SECONDS, SHIFT_MS = 3_600, 7_200_000
ROUNDS, NATIVE_ROUNDS = 20, 5
# Deadlines that come within a day of the shifted clock, and after it.
LONE_HASHES, SOON_SECONDS, FAR_SECONDS = 1_000, 72_000, 720_000
NATIVE_FILL_SECONDS = 5.0


def measure(server: RedisServer) -> list[Figure]:
    """Measure slices of 25 and of 100 fields, and count a slice's commands and round trips."""
    figures = []
    for limit, slices in ((5, 50), (25, 50), (100, 50)):
        ours = _Ours(server, f"slices-{limit}", limit)
        bare = _Bare(server, limit)
        costs = in_turn(ours.batch(slices), bare.batch(slices), ROUNDS)
        target = None if limit == 5 else Target(least=0.65)
        name = f"slices_of_{limit}"
        reference = "bare WATCH/MULTI loop that knows its hash"
        figures.append(speed_figure(name, reference, costs, target, "fields_per_second"))
        server.wipe()
    if expires_fields(server):
        # A loop on one server, the expiry on another: else the other's data would slow each down.
        with RedisServer(server.binary, hz=10, name="redis for slices") as other:
            ours = _Ours(other, "beside-native", 100)
            costs = in_turn(ours.batch(200), _NativeExpiry(server).batch, NATIVE_ROUNDS)
        figures.append(
            speed_figure(
                "slices_of_100_to_native",
                "Redis 8's own expiry at hz 10",
                costs,
                Target(least=1.0),
                "fields_per_second",
            )
        )
        server.wipe()
    return [*figures, *_on_the_wire(server), *_commands_a_field(server)]


class _Ours:
    """A namespace full of garbage and its job; filled again when it is used up."""

    def __init__(self, server: RedisServer, namespace: str, limit: int) -> None:
        self._limit = limit
        client = server.client()
        self._writer = VolatileHashes(client, namespace=namespace, backend="emulated")
        shifted = VolatileHashes(client, namespace=namespace, clock_shift_ms=SHIFT_MS)
        self.job = HashFieldExpiry(shifted, limit=limit)
        self._left = 0
        self._timeouts = 0

    def fill(self) -> None:
        mapping = {f"field-{number}": b"v" * 32 for number in range(FIELDS)}
        for number in range(HASHES):
            self._writer.hsetex(f"item:{number}", mapping=mapping, ex=TTL_SECONDS)
        self._left = HASHES * FIELDS

    def slice(self) -> int:
        try:
            return self.job.perform(Slice(self._limit, SLICE_SECONDS))
        except TimeoutError:
            self._timeouts += 1
            return 0

    def batch(self, slices: int) -> Batch:
        def run() -> float:
            # At least half of the garbage is there in every round, as it is for the bare loop.
            if self._left - slices * self._limit < HASHES * FIELDS / 2:
                self.fill()
            start = time.perf_counter()
            collected = sum(self.slice() for _ in range(slices))
            took = time.perf_counter() - start
            self._left -= collected
            if self._timeouts > MOST_TIMEOUTS * slices:
                raise RuntimeError("the machine is too busy: its slices run into their time-outs")
            self._timeouts = 0
            return took / collected

        return run


class _Bare:
    """The same data and the same rule, collected by a loop that knows which hash is next."""

    def __init__(self, server: RedisServer, limit: int) -> None:
        self._limit = limit
        self._client = server.client()
        self._left = 0
        self._number = 0

    def fill(self) -> None:
        deadline = int(time.time() + TTL_SECONDS) * 1_000
        with self._client.pipeline(transaction=False) as pipeline:
            for number in range(HASHES):
                fields = [f"field-{position}" for position in range(FIELDS)]
                pipeline.hset(f"bare:{number}", mapping=dict.fromkeys(fields, b"v" * 32))
                pipeline.zadd(f"bare:{number}:ttl", dict.fromkeys(fields, deadline))
                pipeline.zadd("bare:due", {f"bare:{number}": deadline})
                pipeline.execute()
        self._left = HASHES * FIELDS

    def slice(self) -> int:
        self._number = (self._number + 1) % HASHES
        name = f"bare:{self._number}"
        deadlines = f"{name}:ttl"
        with self._client.pipeline() as pipeline:
            try:
                pipeline.watch(deadlines)
                seconds, microseconds = pipeline.time()
                now = seconds * 1_000 + microseconds // 1_000 + SHIFT_MS
                gone = pipeline.zrangebyscore(deadlines, "-inf", now, start=0, num=self._limit)
                if not gone:
                    return 0
                pipeline.multi()
                pipeline.hdel(name, *gone)
                pipeline.zrem(deadlines, *gone)
                pipeline.zadd("bare:due", {name: now})
                pipeline.execute()
            except WatchError:
                return 0
        return len(gone)

    def batch(self, slices: int) -> Batch:
        def run() -> float:
            if self._left - slices * self._limit < HASHES * FIELDS / 2:
                self.fill()
            start = time.perf_counter()
            collected = sum(self.slice() for _ in range(slices))
            took = time.perf_counter() - start
            self._left -= collected
            return took / collected

        return run


class _NativeExpiry:
    """As many fields in the server's own care, all expired at once: the time until all are gone."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()

    def batch(self) -> float:
        deadline = time.time() + NATIVE_FILL_SECONDS
        mapping = {f"field-{number}": b"v" * 32 for number in range(FIELDS)}
        with self._client.pipeline(transaction=False) as pipeline:
            for number in range(HASHES):
                pipeline.hsetex(f"native:{number}", mapping=mapping, pxat=int(deadline * 1_000))
                if number % 20 == 19:
                    pipeline.execute()
        left = deadline - time.time()
        if left < 0 or self._client.dbsize() < HASHES:
            raise RuntimeError("the machine is too busy: the fields expired while being written")
        time.sleep(left)
        start = time.perf_counter()
        while self._client.dbsize():
            time.sleep(0.005)
        return (time.perf_counter() - start) / (HASHES * FIELDS)


def _on_the_wire(server: RedisServer) -> list[Figure]:
    """Count the commands and round trips of one slice that finds its fill in one hash."""
    ours = _Ours(server, "wire", 5)
    ours.fill()
    with Relay(server.port) as relay:
        client: Any = server.client(port=relay.port)
        shifted = VolatileHashes(client, namespace="wire", clock_shift_ms=SHIFT_MS)
        job = HashFieldExpiry(shifted, limit=5)
        job.perform(Slice(5, 1.0))  # Connects and reads the layout, which is done once a process.
        control = server.client()
        control.config_resetstat()
        relay.round_trips = 0
        collected = job.perform(Slice(5, 1.0))
        trips = relay.round_trips
        stats = control.info("commandstats")
        client.close()
        shifted.job_client.close()
    names = {name.removeprefix("cmdstat_") for name in stats} - {"info", "config|resetstat"}
    commands = sum(stats[f"cmdstat_{name}"]["calls"] for name in names)
    server.wipe()
    what = "counted on the wire, one slice of 5 that finds its fill"
    return [
        counted("slice_round_trips", trips, what, fields=collected),
        counted("slice_commands", commands, what, fields=collected),
    ]


def _commands_a_field(server: RedisServer) -> list[Figure]:
    """Count the server's commands for each field, looks included, over a thousand hashes."""
    figures = []
    for what, expired, later in (
        ("lone", 1, None),
        ("lone_beside_soon", 1, SOON_SECONDS),
        ("lone_beside_far", 1, FAR_SECONDS),
        ("five", 5, None),
    ):
        for limit in (5, 25, 100):
            cost = _cost_of_a_field(server, expired, later, limit)
            name = f"commands_a_field_{what}_of_{limit}"
            figures.append(counted(name, round(cost, 2), "INFO commandstats"))
    return figures


def _cost_of_a_field(server: RedisServer, expired: int, later: int | None, limit: int) -> float:
    client = server.client()
    writer = VolatileHashes(client, namespace="costs", backend="emulated")
    with writer.pipeline(transaction=False) as pipeline:
        for number in range(LONE_HASHES):
            fields = {f"field-{position}": b"v" * 32 for position in range(expired)}
            pipeline.hsetex(f"item:{number}", mapping=fields, ex=TTL_SECONDS)
            if later is not None:
                pipeline.hsetex(f"item:{number}", mapping={"later": b"v"}, ex=later)
        pipeline.execute()
    shifted = VolatileHashes(client, namespace="costs", clock_shift_ms=SHIFT_MS)
    job = HashFieldExpiry(shifted, limit=limit)
    for _ in range(3):
        # It reads the layout, and learns how many expired fields a hash has.
        job.perform(Slice(limit, SLICE_SECONDS))
    client.config_resetstat()
    collected = 0
    while collected < LONE_HASHES * expired * 0.7:
        collected += job.perform(Slice(limit, SLICE_SECONDS))
    stats = client.info("commandstats")
    names = set(stats) - {"cmdstat_info", "cmdstat_config|resetstat"}
    server.wipe()
    return sum(stats[name]["calls"] for name in names) / collected
