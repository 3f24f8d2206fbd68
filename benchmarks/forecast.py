"""The forecast beside a real server: lag, slices and commands of a recruiter under steady traffic.

    python benchmarks/forecast.py --seconds 600

Callers enlist at random times, hashes of one field each expire at random times, and the recruiter
collects them by HashFieldExpiry. The server itself tells when each hash is gone (keyspace events),
and a hash's name says when it expired, so every lag is known.
"""

from __future__ import annotations

import argparse
import random
import threading
import time

from servers import RedisServer, find_server

from workstealing import Recruiter
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.forecast import Forecast, forecast, p99_lag
from workstealing.store.connection import SENT
from workstealing.structures import VolatileHashes

LIFE_SECONDS = 1.0
# Longer than a web request's, so that the limit and not this machine's other work ends a slice; and
# after a time-out the next recruit tries again: what is measured is the queue.
SLICE_SECONDS = 1.0
BREAKER_SECONDS = 0.01
# The first seconds, before the queue is in its balance, are not counted.
WARM_UP_SECONDS = 10.0
# Traffic, garbage and limit; the rate follows from the utilisation.
CASES = [(200.0, 30.0, 25, 0.3), (400.0, 60.0, 25, 0.8), (200.0, 20.0, 5, 0.6)]


class Run:
    """One steady run.

    Arguments:
        said: what is expected.
        seconds: that count.
    """

    def __init__(self, server: RedisServer, said: Forecast, seconds: float) -> None:
        self.said = said
        self.lags: list[float] = []
        self._server = server
        self._end = WARM_UP_SECONDS + seconds
        self._seconds = seconds
        client = server.client()
        client.config_set("notify-keyspace-events", "Eg")
        self._hashes = VolatileHashes(client, namespace="forecast", backend="emulated")
        self._recruiter = Recruiter(breaker=BREAKER_SECONDS)
        job = HashFieldExpiry(self._hashes, limit=said.limit, name="expiry")
        self._recruiter.install(job, rate=said.rate, seconds=SLICE_SECONDS)
        self._begun = 0.0

    def run(self) -> None:
        """Run to the end, and note what happened."""
        self._begun = time.monotonic()
        threads = [
            threading.Thread(target=each) for each in (self._expire, self._listen, self._enlist)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _enlist(self) -> None:
        before: tuple[int, int] | None = None
        for now in self._moments(self.said.traffic):
            if before is None and now >= WARM_UP_SECONDS:
                before = self._count()
            self._recruiter.enlist()
        assert before is not None
        figures = self._recruiter.stats()["jobs"]["expiry"]
        self.all_slices = figures["recruited"]
        self.faults = figures["failed"] + figures["skipped"] + figures["aborted"]
        slices, commands = self._count()
        self.slices = (slices - before[0]) / self._seconds
        self.commands = (commands - before[1]) / self._seconds

    def _count(self) -> tuple[int, int]:
        # The slices run in this thread, and SENT counts what its connections have sent.
        return self._recruiter.stats()["jobs"]["expiry"]["recruited"], SENT.commands

    def _expire(self) -> None:
        for number, _ in enumerate(self._moments(self.said.garbage)):
            at = int(1000 * (time.time() + LIFE_SECONDS))
            self._hashes.hsetex(f"f:{number}:{at}", "field", 1, pxat=at)

    def _listen(self) -> None:
        with self._server.client().pubsub() as events:
            events.psubscribe("__keyevent@0__:del")
            while (now := time.monotonic() - self._begun) < self._end:
                event = events.get_message(ignore_subscribe_messages=True, timeout=0.1)
                if event is not None and now >= WARM_UP_SECONDS:
                    name = event["data"].decode()
                    if name.startswith("f:"):
                        self.lags.append(time.time() - int(name.rpartition(":")[2]) / 1000)

    def _moments(self, frequency: float):  # noqa: ANN202 - yields seconds since the beginning
        chance, now = random.Random(), 0.0
        while True:
            now += chance.expovariate(frequency)
            if now >= self._end:
                return
            time.sleep(max(0.0, self._begun + now - time.monotonic()))
            yield now


def main() -> None:
    """Run every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each case that count")
    seconds = parser.parse_args().seconds
    print("utilisation  limit  what              forecast     seen  difference")
    for traffic, garbage, limit, used in CASES:
        said = forecast(traffic, garbage, limit, garbage / (traffic * limit * used))
        with RedisServer(find_server("redis", 7), 7, name="redis 7", hz=10) as server:
            run = Run(server, said, seconds)
            run.run()
        lags = sorted(run.lags)
        for what, expected, seen in (
            ("slices/s", said.slices, run.slices),
            ("items/s", said.garbage, len(lags) / seconds),
            ("mean lag, s", said.mean_lag, sum(lags) / len(lags)),
            ("p99 lag, s", p99_lag(said), lags[int(0.99 * len(lags))]),
            ("commands/s", said.operations, run.commands),
        ):
            off = seen / expected - 1
            row = f"{used:11.0%}  {limit:5}  {what:14} {expected:11.3g} {seen:8.3g}  {off:+10.0%}"
            print(row, flush=True)
        print(
            " " * 20 + f"faults and the like: {run.faults} of {run.all_slices} slices", flush=True
        )


if __name__ == "__main__":
    main()
