"""One run of the demo, from its first check to its summary."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from workstealing.cli.demo import database
from workstealing.cli.demo.accesslog import read_access_log
from workstealing.cli.demo.figures import (
    OVERDUE_MS,
    Figures,
    Verdict,
    garbage_without,
    percentile,
)
from workstealing.cli.demo.forecast import (
    BREAKER_SHARE,
    LIMIT,
    SLICE_SECONDS,
    SLOW_SLICE_SECONDS,
    forecast,
    lifetimes,
)
from workstealing.cli.demo.interrupting import stop_wish
from workstealing.cli.demo.ledger import last_deadlines, total_figures
from workstealing.cli.demo.load import Load, capacity, wait_for_answer
from workstealing.cli.demo.plan import WARM_UP, Plan
from workstealing.cli.demo.serving import WebServer
from workstealing.cli.demo.show import Display, display, summary
from workstealing.cli.demo.storage import ALL_HASHES, FAULTS, Storage
from workstealing.cli.demo.traffic import Request, looped, zipf_requests
from workstealing.config import DISABLED_VARIABLE, is_disabled
from workstealing.errors import MissingExtraError, WorkStealingError
from workstealing.recruiting.slice import OUTCOMES
from workstealing.store import EmbeddedServer

WARM_UP_SECONDS = 0.5
START_SECONDS = 30.0
# The pace: this share of what the machine answered in the warm-up, within bounds.
LOAD_SHARE = 0.4
LOWEST_PACE, HIGHEST_PACE = 10.0, 400.0
TICK_SECONDS = 0.5
# After the load: for how long one process looks for what the recruits have left.
DRAIN_SECONDS = 20.0
# The live table shows the percentiles of so many answers to each client.
RECENT = 200
EXTRA_MODULES = ("flask", "gunicorn", "rich")


def run(options: argparse.Namespace) -> int:
    """Run the demo.

    Arguments: options, as the command line's parser returns them. Returns: the exit status, 0 or 1.
    Raises: WorkStealingError for bad input; then nothing is left behind.
    """
    for module in EXTRA_MODULES:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("demo", module)
    logged = None if options.log is None else read_access_log(options.log)
    with stop_wish() as wish, ExitStack() as stack:
        demo = _Demo(options, logged, wish, stack)
        with display(options.json) as shown:
            demo.prepare(shown)
            demo.watch(shown)
        figures, verdict = demo.finish()
    if options.json:
        text = json.dumps(figures.as_dict() | asdict(verdict))
    else:
        facts = () if shown.stands_with_summary else demo.facts
        text = summary(facts, demo.seconds, figures, verdict, demo.reason(figures))
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return 1 if verdict.broken else 0


class _Demo:
    """The parts of one run. What they leave behind is cleared away by the stack.

    Arguments: options; logged, the requests of an access log, or None; wish, set when the user
    wants an early end; stack, a context that ends after the run.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        logged: Sequence[Request] | None,
        wish: threading.Event,
        stack: ExitStack,
    ) -> None:
        self._options = options
        self._logged = logged
        self._wish = wish
        self._garbage = self._peak = 0
        self._oldest = self._pace = 0.0
        self.seconds = 0.0
        self.facts: list[str] = []
        self._folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="workstealing-demo-"))
        )
        url, slice_seconds = options.redis, SLICE_SECONDS
        if url is None or url.startswith("embedded:"):
            server = stack.enter_context(EmbeddedServer())
            url, kind = server.url, f"an embedded {server.kind}"
            if server.kind == "fakeredis":
                kind += " (no redis-server is on PATH)"
                slice_seconds = SLOW_SLICE_SECONDS
        else:
            kind = "the Redis at --redis"
        self._storage = stack.enter_context(Storage(url))
        self._plan = Plan(
            url,
            self._storage.namespace,
            lifetimes(options.seconds),
            limit=LIMIT,
            slice_seconds=slice_seconds,
            breaker_seconds=BREAKER_SHARE * options.seconds,
        )
        self._plan.save(self._folder)
        self._storage.keys.add(self._plan.key(WARM_UP))
        self._web = stack.enter_context(WebServer(self._folder, options.workers))
        self._load = self._no_load()
        self._fact(
            f"{kind}, namespace {self._plan.namespace} (emulated backend); Flask under gunicorn,"
            f" {options.workers} worker process{'es' if options.workers > 1 else ''}"
        )

    def prepare(self, shown: Display) -> None:
        """Wait for the app, measure what the machine can do, and choose pace and rate."""
        for fact in self.facts:
            shown.say(fact)
        status = wait_for_answer(self._web.address, WARM_UP, START_SECONDS, self._is_wanted)
        if self._wish.is_set():
            return
        if status != 200:
            self._web.check()
            raise WorkStealingError(
                f"the demo's app answered {status or 'nothing'} at its start;"
                f" {self._web.last_words()}"
            )
        able = capacity(
            self._web.address,
            WARM_UP,
            2 * self._options.workers,
            WARM_UP_SECONDS,
            self._wish.is_set,
        )
        self._pace = pace = min(HIGHEST_PACE, max(LOWEST_PACE, LOAD_SHARE * able))
        requests = self._requests(round(pace * self._options.seconds))
        expected = forecast(requests, pace, self._plan.lives)
        rate = expected.rate() if self._options.rate is None else self._options.rate
        self._fact(self._traffic(pace, able), shown)
        self._fact(
            expected.explain()
            if self._options.rate is None
            else f"rate = {rate:g}, as given by --rate; slices of at most {LIMIT} fields",
            shown,
        )
        if is_disabled():
            self._fact(f"{DISABLED_VARIABLE} is set: nobody is recruited", shown)
        targets = {request.target for request in requests}
        database.create(self._folder, sorted(targets))
        self._plan = replace(self._plan, rate=rate)
        self._plan.save(self._folder)
        self._storage.keys.update(map(self._plan.key, targets))
        self._load = Load(self._web.address, requests, pace, 2 * self._options.workers + 2)

    def watch(self, shown: Display) -> None:
        """Let the load run to its end, or to the user's wish, and show the figures."""
        begin = time.monotonic()
        self._load.start()
        tick = 0
        while self._load.is_running() and self.seconds < self._options.seconds:
            # Never past the last request: nobody collects after it.
            left = max(0.01, self._options.seconds - self.seconds)
            if self._wish.wait(min(TICK_SECONDS, left)):
                break
            self.seconds = time.monotonic() - begin
            self._web.check()
            tick += 1
            if tick % 2 == 0:
                self._look_at_garbage()
            shown.update(self.seconds, self._figures(recent=RECENT))
        self._load.stop()
        self.seconds = time.monotonic() - begin
        if self._load.errors and not self._load.answered:
            raise WorkStealingError(
                f"the demo's app answered none of {self._load.errors} requests;"
                f" {self._web.last_words()}"
            )

    def finish(self) -> tuple[Figures, Verdict]:
        """Return the final figures, once the workers have written down theirs."""
        try:
            now = self._storage.now_ms()
            self._look_at_garbage(ALL_HASHES, must=True)
            # Before the books are read: each worker completes them as it ends.
            self._web.stop()
            last = last_deadlines(self._folder)
            expired = [field for field, deadline in last.items() if deadline <= now]
            overdue = [field for field in expired if last[field] < now - OVERDUE_MS]
            left, readable = self._storage.left(overdue), self._storage.readable(expired)
            drained, is_done = self._storage.drain(DRAIN_SECONDS)
            verdict = Verdict(
                overdue=len(overdue),
                left=left,
                readable=readable,
                drained=drained,
                lost=self._storage.left(expired) if is_done else None,
                faults=self._load.faults,
            )
        except FAULTS as error:
            raise WorkStealingError(f"Redis went away during the run: {error}") from error
        return self._figures(garbage_without(last, now)), verdict

    def reason(self, figures: Figures) -> str:
        """Say why less was collected than planned, as far as this run can tell."""
        if not figures.recruited:
            return "nobody was recruited"
        if self._options.rate is not None:
            return f"the rate was given as {self._options.rate:g}"
        able = figures.requests / max(self.seconds, 0.001)
        return (
            f"the machine answered {able:.0f} of {self._pace:.0f} requests/s,"
            f" {figures.out_of_time} of {figures.recruited} slices were out of time, and its load"
            f" average is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )

    def _requests(self, count: int) -> list[Request]:
        if self._logged is None:
            return zipf_requests(count)
        return looped(self._logged, count)

    def _traffic(self, pace: float, able: float) -> str:
        what = (
            "Zipf-distributed items and a long tail"
            if self._logged is None
            else f"the {len(self._logged)} paths of {self._options.log}"
        )
        lives = ", ".join(f"{part} {life / 1000:g} s" for part, life in self._plan.lives.items())
        return (
            f"{what}, {pace:.0f} requests/s (the warm-up reached {able:.0f}/s); times to live:"
            f" {lives}"
        )

    def _no_load(self) -> Load:
        return Load(self._web.address, (), 1.0, 1)

    def _is_wanted(self) -> bool:
        self._web.check()
        return not self._wish.is_set()

    def _fact(self, line: str, shown: Display | None = None) -> None:
        self.facts.append(line)
        if shown is not None:
            shown.say(line)

    def _look_at_garbage(self, most_hashes: int = 1000, *, must: bool = False) -> None:
        try:
            backlog = self._storage.backlog(most_hashes)
        except (*FAULTS, WorkStealingError):
            # A look that fails in between is no reason to stop; the next one may succeed.
            if must:
                raise
            return
        self._garbage, self._oldest = backlog.fields, backlog.oldest_seconds
        self._peak = max(self._peak, self._garbage)

    def _figures(self, without: int = 0, recent: int | None = None) -> Figures:
        total = total_figures(self._folder)
        latencies = self._load.latencies(recent)
        return Figures(
            requests=self._load.answered,
            enlisted=total["enlisted"],
            recruited=total["recruited"],
            **{outcome: total[outcome] for outcome in OUTCOMES},
            items=total["items"],
            garbage_peak=self._peak,
            garbage_end=self._garbage,
            garbage_without=without,
            oldest_garbage_s=round(self._oldest, 3),
            p50_ms=round(1000 * percentile(latencies, 0.5), 3),
            p99_ms=round(1000 * percentile(latencies, 0.99), 3),
            errors=self._load.errors,
        )
