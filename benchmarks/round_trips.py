"""What one command on a volatile hash costs, beside the same command of a server that has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from figures import Figure, Target, cost_figure, counted, in_turn
from servers import RedisServer, expires_fields

from workstealing.structures import VolatileHashes

ROUNDS = 80
CALLS = 100
HASHES = 1_000
VALUE = b"v" * 32
TTL_SECONDS = 3_600
TEN = [f"field-{number}" for number in range(10)]
PIPELINED = 50

Call = Callable[..., None]


class _Pair:
    """The same commands on an emulated namespace and on the server's own hashes.

    Where the server has no HSETEX and HGETEX, plain HSET and HMGET stand in as references.
    """

    def __init__(self, server: RedisServer) -> None:
        self.native = expires_fields(server)
        self.client = server.client()
        self.hashes = VolatileHashes(self.client, namespace="bench", backend="emulated")
        self._turn = 0
        for _ in range(HASHES):
            self.write("ours", self.hashes, TEN)
            self.write("theirs", self.client, TEN)

    def _name(self, whose: str) -> str:
        # Another hash at each call, as an application would ask.
        self._turn += 1
        return f"{whose}:{self._turn // 2 % HASHES}"

    def write(self, whose: str, target: Any, fields: list[str]) -> None:
        """Write fields of "ours" or "theirs" by a client, our hashes or a pipeline."""
        mapping = dict.fromkeys(fields, VALUE)
        if self.native or whose == "ours":
            target.hsetex(self._name(whose), mapping=mapping, ex=TTL_SECONDS)
        else:
            target.hset(self._name(whose), mapping=mapping)

    def read(self, whose: str, target: Any, fields: list[str], ex: int | None = None) -> None:
        """Read fields as `write` writes them."""
        if self.native or whose == "ours":
            target.hgetex(self._name(whose), *fields, ex=ex)
        else:
            target.hmget(self._name(whose), fields)


def _batch(call: Callable[[], Any], calls: int = CALLS, units: int = 1) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / (calls * units)

    return run


def _pipelined(pipeline: Callable[[], Any], queue: Callable[[Any], Any]) -> Callable[[], None]:
    def run() -> None:
        queued = pipeline()
        for _ in range(PIPELINED):
            queue(queued)
        queued.execute()

    return run


def measure(server: RedisServer) -> list[Figure]:
    """Measure round trips, calls of ten fields, pipelines, and the server's own cpu per call."""
    pair = _Pair(server)
    write, read = ("HSETEX", "HGETEX") if pair.native else ("plain HSET", "plain HMGET")
    one = TEN[:1]
    cases: list[tuple[str, str, Target | None, Call, dict[str, Any]]] = [
        ("hsetex", write, Target(most=1.3), _Pair.write, {"fields": one}),
        ("hgetex", read, Target(most=1.25), _Pair.read, {"fields": one}),
        ("hgetex_ex", f"{read} EX", None, _Pair.read, {"fields": one, "ex": TTL_SECONDS}),
        ("hsetex_10", f"{write}, 10 fields", Target(most=1.6), _Pair.write, {"fields": TEN}),
        ("hgetex_10", f"{read}, 10 fields", Target(most=1.6), _Pair.read, {"fields": TEN}),
    ]
    figures = []
    for name, reference, target, call, options in cases:
        units = len(options["fields"])
        costs = in_turn(
            _batch(partial(call, pair, "ours", pair.hashes, **options), units=units),
            _batch(partial(call, pair, "theirs", pair.client, **options), units=units),
            ROUNDS,
        )
        unit = "us_a_field" if units > 1 else "us"
        figures.append(cost_figure(name, reference, costs, target, unit))
    return [*figures, *_pipelines(pair, write, read), *_server_cpu(pair, write, read)]


def _pipelines(pair: _Pair, write: str, read: str) -> list[Figure]:
    figures = []
    cases: list[tuple[str, str, Call]] = [
        ("pipeline_write_50", write, _Pair.write),
        ("pipeline_read_50", read, _Pair.read),
    ]
    for name, reference, call in cases:
        costs = in_turn(
            _batch(partial(_run_pipeline, pair.hashes, partial(call, pair, "ours")), 4, PIPELINED),
            _batch(
                partial(_run_pipeline, pair.client, partial(call, pair, "theirs")), 4, PIPELINED
            ),
            ROUNDS,
        )
        figures.append(cost_figure(name, f"{reference}, 50 a pipeline", costs))
    return figures


def _run_pipeline(client: Any, queue: Callable[..., None]) -> None:
    pipeline = client.pipeline()
    for _ in range(PIPELINED):
        queue(pipeline, fields=TEN[:1])
    pipeline.execute()


def _server_cpu(pair: _Pair, write: str, read: str) -> list[Figure]:
    """Compare what the server says that a call costs it: INFO commandstats, usec_per_call."""
    if not pair.native:
        # The scripts' own HSET and HMGET would be counted with the reference's.
        return []
    figures = []
    cases: list[tuple[str, str, Call]] = [
        ("hsetex", write, _Pair.write),
        ("hgetex", read, _Pair.read),
    ]
    for fields in (TEN[:1], TEN):
        for name, reference, call in cases:
            call(pair, "ours", pair.hashes, fields)
            pair.client.config_resetstat()
            for _ in range(2_000):
                call(pair, "ours", pair.hashes, fields)
                call(pair, "theirs", pair.client, fields)
            stats = pair.client.info("commandstats")
            ours = stats["cmdstat_evalsha"]["usec_per_call"]
            theirs = stats[f"cmdstat_{name}"]["usec_per_call"]
            figures.append(
                counted(
                    f"server_cpu_{name}_{len(fields)}",
                    round(ours / theirs, 2),
                    f"{reference}, the server's own count",
                    ours_us=ours,
                    reference_us=theirs,
                )
            )
    return figures
