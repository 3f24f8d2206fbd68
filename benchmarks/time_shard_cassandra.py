"""Reads of a queue on Cassandra as tombstones pile up: time shards beside one plain table.

The same messages are put into both and taken from both, a thousand a step. After each step the
benchmark has the times of the reads by which a consumer finds its next messages, and the tombstones
that one of them met, as its trace says. The clock of the turns is set, so that each step is a
period; Cassandra's own clock, and so gc_grace_seconds, is real.
Alone: ``python -P benchmarks/time_shard_cassandra.py --messages 100000 --grace 60``.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

# With -P a program's own folder is not searched.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

from figures import Figure, Target, show

from support.cassandra import KEYSPACE, CassandraNode, connected
from support.set_clock import SetClock
from workstealing.structures import TimeShardQueue
from workstealing.structures.time_shard_queue.cassandra_rows import Query, timeuuid
from workstealing.structures.time_shard_queue.cassandra_store import CassandraStore
from workstealing.structures.time_shard_queue.store import Entry, due_of

MESSAGES, GRACE, STEP, TAKEN = 100_000, 60, 1000, 10
SHARDS, PERIOD = 6, 60
FLUSHED = 10
"""After so many steps both tables are flushed, as a node under a larger load does by itself."""
BODY = b"x" * 100


class Step(NamedTuple):
    """The reads of one step. Fields: messages so far; p50_ms; p99_ms; tombstones of one read."""

    messages: int
    p50_ms: float
    p99_ms: float
    tombstones: int


class Timed(CassandraStore):
    """A store that keeps the times of the reads by which takes find messages."""

    times: list[float]

    def sender(self, end: float | None = None) -> Callable[[Any], Any]:
        """Return a function that times those reads, and sends every step."""
        send = super().sender(end)

        def timed(step: Any) -> Any:
            begun = time.perf_counter()
            reply = send(step)
            if isinstance(step, Query) and step.name == "fresh":
                self.times.append(time.perf_counter() - begun)
            return reply

        return timed


class Sharded:
    """A TimeShardQueue under the load.

    Arguments:
        grace: gc_grace_seconds.
    """

    table = "sharded"

    def __init__(self, session: Any, grace: int) -> None:
        self.clock = SetClock()
        self.store = Timed(session, KEYSPACE, self.table)
        self.store.create_table(grace)
        self.queue = TimeShardQueue(self.store, "load", SHARDS, PERIOD, clock=self.clock)
        self.queue.open()

    def step(self) -> tuple[list[float], int]:
        """Put a step's messages, and take those of two steps ago; return times and tombstones."""
        queue, shards = self.queue, self.queue.time_shards
        self.store.times = []
        number = queue.rotation.producing(queue.now_ms())
        for _ in range(STEP // 100):
            entries = [Entry(BODY, due_of(None))] * 100
            self.store.run(shards.put(number, entries, self.clock.time()))
        while taken := queue.take_many("consumer", TAKEN):
            queue.ack(*taken)
        here = queue.rotation.consuming(queue.now_ms())
        opened = self.store.run(shards.read(here))
        met = None
        if opened is not None:
            query = shards.fresh(here, opened.lock.head, opened.now_ms, TAKEN)
            met = self.store.met(self.store.begin_traced(query, 60), 60)
        times, self.store.times = self.store.times, []
        self.clock.go(PERIOD)
        return times, met.tombstones if met else 0


class Plain:
    """One table in the order of the due times.

    Arguments:
        grace: gc_grace_seconds.
    """

    table = "plain"

    def __init__(self, session: Any, grace: int) -> None:
        self.session = session
        name = f"{KEYSPACE}.{self.table}"
        session.execute(
            f"CREATE TABLE {name} (name text, due timestamp, id timeuuid, message blob,"
            f" PRIMARY KEY (name, due, id)) WITH gc_grace_seconds = {grace}"
        )
        self.put = session.prepare(
            f"INSERT INTO {name} (name, due, id, message) VALUES ('q', ?, ?, ?)"
        )
        self.read = session.prepare(
            "SELECT due, id, message FROM TABLE WHERE name = 'q' AND due <= ? LIMIT ?".replace(
                "TABLE", name
            )
        )
        self.done = session.prepare(
            "DELETE FROM TABLE WHERE name = 'q' AND due = ? AND id = ?".replace("TABLE", name)
        )

    def step(self) -> tuple[list[float], int]:
        """Put a step's messages and take them all; return times and tombstones."""
        for _ in range(STEP // 100):
            now = time.time()
            rows = [(int(now * 1000), timeuuid(now), BODY) for _ in range(100)]
            self._all((self.put, row) for row in rows)
        times = []
        while True:
            begun = time.perf_counter()
            found = self.session.execute(self.read, (int(time.time() * 1000), TAKEN)).all()
            times.append(time.perf_counter() - begun)
            if not found:
                break
            self._all((self.done, row[:2]) for row in found)
        future = self.session.execute_async(self.read, (int(time.time() * 1000), TAKEN), trace=True)
        met = CassandraStore.met(future, 60)
        return times, met.tombstones if met else 0

    def _all(self, statements: Any) -> None:
        for future in [self.session.execute_async(*each) for each in statements]:
            future.result()


def measure(
    messages: int = MESSAGES,
    grace: int = GRACE,
    to: TextIO = sys.stderr,
    picture: Path | None = None,
    minutes: float = float("inf"),
) -> list[Figure]:
    """Load both queues, until the time is up; return how much slower the plain one's reads are."""
    end = time.monotonic() + 60 * minutes
    with CassandraNode() as node, connected(node) as session:
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        queues = {"one plain table": Plain(session, grace), "time shards": Sharded(session, grace)}
        steps: dict[str, list[Step]] = {name: [] for name in queues}
        for number in range(1, messages // STEP + 1):
            for name, queue in queues.items():
                times, tombstones = queue.step()
                # In its first periods nothing is there to be taken.
                times = sorted(times) or [0.0]
                p50, p99 = (1000 * times[int(len(times) * share)] for share in (0.5, 0.99))
                steps[name].append(Step(number * STEP, p50, p99, tombstones))
                if number % FLUSHED == 0:
                    node.tool("flush", KEYSPACE, queue.table)
            if number % FLUSHED == 0:
                line = "; ".join(
                    f"{name}: p50 {each[-1].p50_ms:.1f} ms, p99 {each[-1].p99_ms:.1f} ms,"
                    f" {each[-1].tombstones:,} tombstones a read"
                    for name, each in steps.items()
                )
                print(f"{number * STEP:,} messages: {line}", file=to, flush=True)
                if time.monotonic() > end:
                    break
        disk = {
            name: sum(
                each.stat().st_size for each in node.home.glob(f"data/**/{queue.table}-*/**/*.db")
            )
            for name, queue in queues.items()
        }
    if picture is not None:
        picture.write_text(_picture(steps), encoding="utf-8")
        with picture.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["queue", *Step._fields])
            writer.writerows([name, *each] for name, some in steps.items() for each in some)
    plain, ours = steps["one plain table"], steps["time shards"]
    last = max(1, len(plain) // 10)
    theirs = _median([each.p99_ms for each in plain[-last:]])
    mine = _median([each.p99_ms for each in ours[-last:]])
    first = _median([each.p99_ms for each in ours[:last]])
    details = {
        "messages": float(plain[-1].messages),
        "plain_p99_ms": theirs,
        "ours_p99_ms": mine,
        "ours_first_p99_ms": first,
        "plain_tombstones": float(max(each.tombstones for each in plain[-last:])),
        "ours_tombstones": float(max(each.tombstones for each in ours[-last:])),
        "plain_disk_mb": disk["one plain table"] / 1e6,
        "ours_disk_mb": disk["time shards"] / 1e6,
    }
    ratio = theirs / mine
    name = f"cassandra_reads_grace_{grace}"
    return [
        Figure(name, ratio, ratio, ratio, 1, "time shards' p99", Target(least=5.0), details),
    ]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _picture(steps: dict[str, list[Step]]) -> str:
    """Return an SVG: the reads' p99 above, tombstones met below, over the messages."""
    import math

    colours = {"one plain table": "#c1121f", "time shards": "#0b6e4f"}
    width, height, left, top, gap = 640, 200, 70, 40, 60
    total = height * 2 + gap + top + 60
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {total}"'
            ' font-family="sans-serif" font-size="12" role="img">'
        ),
        "<title>Reads of a queue on Cassandra as tombstones pile up</title>",
        f'<rect width="{left + width + 30}" height="{total}" fill="#fff"/>',
    ]
    most = max(each.messages for some in steps.values() for each in some)
    panels: list[tuple[str, Callable[[Step], float]]] = [
        ("p99 of a consumer's read, ms", lambda each: each.p99_ms),
        ("tombstones that a read met", lambda each: float(each.tombstones)),
    ]
    for number, (title, value) in enumerate(panels):
        y0 = top + number * (height + gap)
        highest = max(value(each) for some in steps.values() for each in some)
        powers = max(1, math.ceil(math.log10(max(10.0, highest))))
        parts.append(f'<text x="{left}" y="{y0 - 10}" font-weight="bold">{title}</text>')
        for power in range(powers + 1):
            y = y0 + height * (1 - power / powers)
            parts.append(
                f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>'
            )
        for name, some in steps.items():
            points = " ".join(
                f"{left + width * each.messages / most:.1f},"
                f"{y0 + height * (1 - math.log10(max(1.0, value(each))) / powers):.1f}"
                for each in some
            )
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{colours[name]}"'
                ' stroke-width="1.8"/>'
            )
        for part in range(5):
            x = left + width * part / 4
            parts.append(
                f'<text x="{x:.0f}" y="{y0 + height + 17}" text-anchor="middle">'
                f"{most * part // 4:,}</text>"
            )
    for number, name in enumerate(steps):
        x, y = left + number * 220, total - 14
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colours[name]}"'
            f' stroke-width="3"/><text x="{x + 28}" y="{y}">{name}</text>'
        )
    parts.append(f'<text x="{left + width}" y="{total - 14}" text-anchor="end">messages</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--grace", type=int, default=GRACE, help="gc_grace_seconds")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--picture", type=Path, help="where the SVG goes, and a CSV beside it")
    options = parser.parse_args()
    show(measure(options.messages, options.grace, sys.stderr, options.picture, options.minutes))


if __name__ == "__main__":
    main()
