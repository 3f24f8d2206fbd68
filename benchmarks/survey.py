"""A survey of 10^6 keys of twelve programs beside a live application.

The application reads and writes at a constant rate, from a process of its own. Rounds with a survey
of its server take turns with rounds in which another server with the same keys is surveyed. Both
servers run on the first CPU, the application and the survey on the second, and whatever stands for
another machine takes only the time that others leave: see `apart`. Without that, the places that
the scheduler chose made 1.19 of the same ratio. Compared is a reader like redis-cli --memkeys:
SCAN, then TYPE and MEMORY USAGE of each key, without a pause. Alone:
``python benchmarks/survey.py --keys 1000000``; ``--only-p99`` leaves the bytes out.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import redis
from callers import Callers, apart, awake, p99_figure
from figures import Figure, Target, counted, show
from servers import LIVE_KEYS, RedisServer, fill_by_many, newest_redis

from workstealing.survey import Survey, report_of

KEYS = 100_000
ROUNDS, SECONDS, PER_SECOND, THREADS = 10, 2.0, 400, 2


def application(url: str, number: int) -> Callable[[], object]:
    """Return the call of one thread of the application.

    Arguments:
        number: of the thread.
    """
    client, source = redis.Redis.from_url(url), random.Random(number)

    def call() -> object:
        key = f"live:{source.randrange(LIVE_KEYS)}"
        return client.set(key, "y" * 100) if source.random() < 0.2 else client.get(key)

    return call


def measure(server: RedisServer, keys: int = KEYS, rounds: int = ROUNDS) -> list[Figure]:
    """Measure the application's p99 beside a survey, and how right the survey is."""
    return [*_survey(server, keys), *_beside(server, keys, rounds)]


def _survey(server: RedisServer, keys: int) -> list[Figure]:
    """Survey, and compare with what is there."""
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
    return [
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
    families.merge_rare()
    return {
        shown(shape): round(each.bytes.of(each.keys).value) for shape, each in families.shapes()
    }


def _beside(server: RedisServer, keys: int, rounds: int) -> list[Figure]:
    """Compare the application's p99 beside a survey, or beside the other reader."""
    figures = []
    with newest_redis() as other, contextlib.closing(_callers(server)) as callers:
        fill_by_many(other.client(), keys)
        apart(callers.pid, cpu=1)
        apart(server.process.pid, cpu=0)
        apart(other.process.pid, cpu=0, last=True)
        for name, target in (("survey", Target(most=1.05)), ("memkeys", None)):
            with _process(name, server) as ours, _process(name, other) as theirs:
                works = partial(awake, ours), partial(awake, theirs)
                p99 = p99_figure(
                    f"{name}_p99", callers, works, rounds, seconds=SECONDS, target=target
                )
                figures.append(p99)
    return figures


def _callers(server: RedisServer) -> Callers:
    return Callers(partial(application, server.url), PER_SECOND, THREADS)


@contextlib.contextmanager
def _process(name: str, server: RedisServer) -> Iterator[subprocess.Popen[bytes]]:
    """Run this file in another role; the process is stopped once it has begun."""
    command = [sys.executable, __file__, "--at-work", name, "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            apart(process.pid, cpu=1, last=True)
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def _at_work(name: str, url: str) -> None:
    """Survey, or read as the reference does, again and again."""
    client = redis.Redis.from_url(url)
    print("ready", flush=True)
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
    parser.add_argument("--only-p99", action="store_true")
    parser.add_argument("--at-work", choices=("survey", "memkeys"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.at_work:
        _at_work(options.at_work, options.url)
    with newest_redis() as server:
        if options.only_p99:
            fill_by_many(server.client(), options.keys)
            show(_beside(server, options.keys, options.rounds))
        else:
            show(measure(server, options.keys, options.rounds))


if __name__ == "__main__":
    main()
