"""What the log's benchmarks measure: a log in each form, and a stream with the same entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from figures import Figure, Target, cost_figure, counted, in_turn, speed_figure
from redis.exceptions import TimeoutError

from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.structures import Log
from workstealing.structures.log.blocks import seal

STARTED_MS = 1_763_800_000_000
FIELD = "e"
BLOCK = 1_000


def stream_id(number: int) -> str:
    """Return the id of a stream's entry: ten a millisecond, as a busy stream's are."""
    return f"{STARTED_MS + number // 10}-{number % 10}"


def fill_stream(client: Any, name: str, content: Sequence[bytes], start: int = 0) -> None:
    """Add the entries to a stream, by pipelines of 1,000."""
    for first in range(0, len(content), 1_000):
        pipeline = client.pipeline(transaction=False)
        for number, entry in enumerate(content[first : first + 1_000], start + first):
            pipeline.xadd(name, {FIELD: entry}, id=stream_id(number))
        pipeline.execute()


def fill_log(client: Any, name: str, content: Sequence[bytes], form: str) -> Any:
    """Return a log with the entries whose full blocks a compactor has brought into a form.

    Arguments:
        form: ``list`` (as they come), ``raw`` (sealed), ``zlib`` or ``zstd``.
    """
    log: Any = Log(client, name, BLOCK)
    for first in range(0, len(content), BLOCK):
        log.append(*content[first : first + BLOCK])
    if form != "list":
        codec = "none" if form == "raw" else form
        compactor = LogCompactor(log, limit=BLOCK, cold=0, codec=codec)
        work = True
        while work:
            # A busy machine may be late with a reply: the next slice does what this one has left.
            with suppress(TimeoutError):
                work = bool(compactor.perform(Slice(50, 5.0)))
        facts = log.stats()
        done = facts.compressed if codec == form else facts.sealed
        if done < len(content) // BLOCK:
            raise AssertionError(f"{done} blocks became {form}: {facts}")
    return log


def blocks_of(content: Sequence[bytes], form: str) -> list[Any]:
    """Return the entries as the full blocks that `fill_blocks` takes, in one of the four forms."""
    parts = [content[first : first + BLOCK] for first in range(0, len(content), BLOCK)]
    return parts if form == "list" else [seal(part, form) for part in parts]


def fill_blocks(client: Any, name: str, blocks: Sequence[Any], length: int) -> Any:
    """Return a log that has the blocks again and again, written directly; it keeps none of them.

    Arguments:
        blocks: of `blocks_of`.
        length: entries, a multiple of 1,000.
    """
    log: Any = Log(client, name, BLOCK, cache_blocks=0)
    log.append(b"the first makes the log")
    pipeline = client.pipeline(transaction=False)
    for number in range(length // BLOCK):
        key, block = log.keys.block(number), blocks[number % len(blocks)]
        if not number:
            pipeline.delete(key)
        if isinstance(block, bytes):
            pipeline.set(key, block)
        else:
            pipeline.rpush(key, *block)
        if len(pipeline) == 100:
            pipeline.execute()
    pipeline.hset(log.keys.meta, "next", length)
    pipeline.execute()
    if log.length() != length:
        raise AssertionError(f"the log has {log.length()} entries where there should be {length}")
    return log


class Cost(NamedTuple):
    """Seconds of one call: in the server's commands, of all its CPU, and for the caller."""

    server: float
    process: float
    called: float


class Meter:
    """Times calls by the server's count of its commands, its CPU, and the caller's clock."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, call: Callable[[], Any], units: int) -> Cost:
        """Call once; return what each of so many units of it cost."""
        before = self._now()
        call()
        spent = [b - a for a, b in zip(before, self._now(), strict=True)]
        *process_and_called, scripts, streams, plain = spent
        # What a script calls is counted twice: by itself, and in the script.
        server = scripts + streams or plain
        return Cost(server / units, *(each / units for each in process_and_called))

    def _now(self) -> tuple[float, ...]:
        info = self._client.info("commandstats", "cpu")

        def spent(*names: str) -> float:
            return sum(info.get(f"cmdstat_{name}", {}).get("usec", 0) for name in names) / 1e6

        return (
            info["used_cpu_user"] + info["used_cpu_sys"],
            time.perf_counter(),
            spent("evalsha", "eval"),
            spent("xadd", "xrange", "xreadgroup", "xack"),
            spent("hmget"),
        )


class Comparison:
    """The costs of ours and of the stream's over the rounds.

    Arguments:
        ours: do a batch of work.
        theirs: do a batch of work.
        units: how many of what is compared are in one batch of each.
    """

    def __init__(
        self,
        meter: Meter,
        ours: Callable[[], Any],
        theirs: Callable[[], Any],
        units: int,
        rounds: int,
    ) -> None:
        spent: tuple[list[Cost], list[Cost]] = ([], [])

        def batch(which: int, work: Callable[[], Any]) -> Callable[[], float]:
            def run() -> float:
                spent[which].append(meter.run(work, units))
                return spent[which][-1].called

            return run

        in_turn(batch(0, ours), batch(1, theirs), rounds)
        # The first of each does not count.
        self._spent = (spent[0][1:], spent[1][1:])

    def speeds(self, name: str, reference: str, least: float | None = None) -> list[Figure]:
        """Return how many times as fast ours is: for the caller, and in the server."""
        target = None if least is None else Target(least=least)
        return [
            speed_figure(f"{name}_called", reference, self._of("called"), target),
            speed_figure(f"{name}_server", f"{reference}, in the server", self._of("server")),
            self._means(f"{name}_cpu", reference, speed=True),
        ]

    def costs(self, name: str, reference: str, most: float | None = None) -> list[Figure]:
        """Return how much more ours costs: for the caller, and in the server."""
        target = None if most is None else Target(most=most)
        return [
            cost_figure(f"{name}_called", reference, self._of("called"), target),
            cost_figure(f"{name}_server", f"{reference}, in the server", self._of("server")),
            self._means(f"{name}_cpu", reference, speed=False),
        ]

    def _of(self, which: str) -> tuple[list[float], list[float]]:
        mine, theirs = ([getattr(cost, which) for cost in costs] for costs in self._spent)
        return mine, theirs

    def _means(self, name: str, reference: str, *, speed: bool) -> Figure:
        """Compare the means of all rounds: the process's CPU of a single one is too coarse."""
        mine, theirs = (sum(costs) / len(costs) for costs in self._of("process"))
        ratio = round(theirs / mine if speed else mine / theirs, 3)
        details = {"ours_us": round(mine * 1e6, 2), "reference_us": round(theirs * 1e6, 2)}
        return counted(name, ratio, f"{reference}, all CPU of the server", **details)
