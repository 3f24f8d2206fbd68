"""A survey of 10^6 keys of twelve programs beside a live application.

The application reads and writes at a constant rate; each command is timed from the moment at which
it was due. Rounds with the survey at work, and with the survey stopped by SIGSTOP, take turns. The
reference reads as redis-cli --memkeys does: SCAN, then TYPE and MEMORY USAGE of each key, without a
pause. Alone: ``python benchmarks/survey.py --keys 1000000``.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import redis
from figures import Figure, Target, cost_figure, counted, show
from servers import LIVE_KEYS, RedisServer, fill_by_many, newest_redis

from workstealing.survey import Survey, report_of

KEYS = 100_000
ROUNDS, SECONDS, PER_SECOND, THREADS = 10, 2.0, 400, 2


class Application:
    """Threads that read and write at a constant rate; `latencies` are those of all rounds."""

    def __init__(self, server: RedisServer) -> None:
        self.latencies: list[float] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(server.client(), number))
            for number in range(THREADS)
        ]
        for each in self._threads:
            each.start()

    def _send(self, client: redis.Redis, seed: int) -> None:
        source, period = random.Random(seed), THREADS / PER_SECOND
        due = time.perf_counter()
        while not self._is_over.is_set():
            due += period
            time.sleep(max(0.0, due - time.perf_counter()))
            key = f"live:{source.randrange(LIVE_KEYS)}"
            if source.random() < 0.2:
                client.set(key, "y" * 100)
            else:
                client.get(key)
            self.latencies.append(time.perf_counter() - due)

    def p99(self, seconds: float) -> float:
        """Return the 99th percentile of so many seconds."""
        first = len(self.latencies)
        time.sleep(seconds)
        return statistics.quantiles(self.latencies[first:], n=100)[-1]

    def close(self) -> None:
        """End the threads."""
        self._is_over.set()
        for each in self._threads:
            each.join()


def measure(server: RedisServer, keys: int = KEYS, rounds: int = ROUNDS) -> list[Figure]:
    """Measure the application's p99 beside a survey, and how right the survey is."""
    client = server.client()
    planted = fill_by_many(client, keys)
    truth = _truth(client)
    began = time.perf_counter()
    survey = Survey(server.client(), load=0.05)
    survey.run()
    took = time.perf_counter() - began
    report = report_of(survey, 100.0)
    found = {one["rule"]: one["items"] for each in report["families"] for one in each["findings"]}
    for rule, items in planted.items():
        if found[rule] != items:
            raise SystemExit(f"{rule} found {found[rule]}, and {items} were planted")
    errors = {
        each["family"]: abs(each["bytes"][0] / truth[each["family"]] - 1)
        for each in report["families"]
        if truth.get(each["family"])
    }
    figures = [
        counted(
            "survey_bytes_worst_family",
            round(1 + max(errors.values()), 4),
            "MEMORY USAGE of each key, SAMPLES 0",
            all_families=round(report["bytes"][0] / sum(truth.values()), 4),
            families=len(errors),
            keys=report["keys"],
        ),
        counted(
            "survey_share_of_the_servers_time",
            round(report["load"], 4),
            "the whole of it",
            seconds=round(took, 1),
            longest_batch_ms=round(1000 * survey.reader.longest, 2),
        ),
    ]
    return [*figures, *_beside(server, rounds)]


def _truth(client: redis.Redis) -> dict[str, int]:
    """Return the bytes of each family, from each of its keys."""
    from workstealing.survey.families import Families, shown

    families = Families()
    cursor: Any = 0
    while True:
        cursor, keys = client.scan(cursor, count=1_000)
        with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.memory_usage(key, samples=0)
            for key, size in zip(keys, pipe.execute(), strict=True):
                families.of(families.add(key)).bytes.note(size, 1.0)
        if not cursor:
            break
    families.settle()
    return {
        shown(shape): round(each.bytes.of(each.keys).value) for shape, each in families.shapes()
    }


def _beside(server: RedisServer, rounds: int) -> list[Figure]:
    """Compare the application's p99 with a survey or the reference at work, and without."""
    application = Application(server)
    figures = []
    try:
        application.p99(1.0)
        for name, target in (("survey", Target(most=1.05)), ("memkeys", None)):
            ours, without = [], []
            process = _start(name, server)
            try:
                for number in range(rounds):
                    for is_ours in (number % 2 == 0, number % 2 == 1):
                        process.send_signal(signal.SIGCONT if is_ours else signal.SIGSTOP)
                        time.sleep(0.1)
                        (ours if is_ours else without).append(application.p99(SECONDS))
            finally:
                process.kill()
                process.wait()
            figures.append(cost_figure(f"{name}_p99", "without", (ours, without), target))
    finally:
        application.close()
    return figures


def _start(name: str, server: RedisServer) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--at-work", name, "--url", server.url])


def _at_work(name: str, url: str) -> None:
    """Survey, or read as the reference does, again and again."""
    client = redis.Redis.from_url(url)
    while True:
        if name == "survey":
            Survey(client, load=0.05).run()
            continue
        for keys in _pages(client):
            with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.type(key)
                    pipe.memory_usage(key)
                pipe.execute()


def _pages(client: redis.Redis) -> Iterator[list[bytes]]:
    cursor: Any = 0
    while True:
        cursor, keys = client.scan(cursor, count=10)
        yield keys
        if not cursor:
            return


def main() -> None:
    """Measure with the keys of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--at-work", choices=("survey", "memkeys"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.at_work:
        _at_work(options.at_work, options.url)
    with newest_redis() as server:
        show(measure(server, options.keys, options.rounds))


if __name__ == "__main__":
    main()
