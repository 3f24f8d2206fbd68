"""One run of the demo, from its first check to its summary, and the Redis that it fills."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from workstealing.cli.clients import FAULTS
from workstealing.cli.demo.app import WARM_UP, DemoSettings, last_deadlines, total_figures
from workstealing.cli.demo.web import (
    LIMIT,
    Client,
    Load,
    Request,
    WebServer,
    forecast,
    lifetimes,
    rate_for,
    read_access_log,
    zipf_requests,
)
from workstealing.cli.live import StopWish, stop_wish
from workstealing.cli.output import note, print_json, say, table
from workstealing.errors import Aborted, OutOfTime, WorkStealingError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.lottery import DISABLED_VARIABLE, is_disabled
from workstealing.recruiting.slice import OUTCOMES, Slice, spoken
from workstealing.store import EmbeddedServer, connect
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes

_BATCH = 500
_DRAIN_SLICE_SECONDS = 0.5
# A slice looks at a part of a cluster's index only.
_EMPTY_LOOKS = 20


class Storage:
    """A namespace of the demo's own on a Redis; as a context manager it removes all its keys.

    Arguments:
        url: as of `workstealing.connect`.

    Raises: WorkStealingError if there is no Redis there that can be used; then nothing has been
    written. `keys` are the hashes that may have been written: each writer adds its own.
    """

    def __init__(self, url: str) -> None:
        self.namespace = f"demo-{secrets.token_hex(4)}"
        self.keys: set[str] = set()
        # The first connection tells whether the URL is right; nobody should wait for ten.
        patience = {"socket_timeout": 30.0, "socket_connect_timeout": 3.0}
        try:
            self._client: Any = connect(url, retry=Retry(NoBackoff(), 0), **patience)
            self._client.ping()
            # The emulated backend everywhere: where the server expires fields by itself, there is
            # no garbage to show.
            self.hashes: Any = VolatileHashes(self._client, self.namespace, backend="emulated")
            self._layout = self.hashes.open()
        except FAULTS as error:
            raise WorkStealingError(
                f"the Redis at --url cannot be used: {_sentence(error)}"
            ) from error
        self.job = HashFieldExpiry(self.hashes)

    def now_ms(self) -> int:
        """Return the server's clock in milliseconds. One round trip."""
        seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def count(self, fields: Iterable[tuple[str, str]], *, readable: bool) -> int:
        """Return how many of these fields a reader is given, or else still occupy memory.

        One round trip for each 500 hashes.
        """
        # The volatile hashes would not show an expired field.
        reader = self.hashes if readable else self._client
        by_key: dict[str, list[str]] = defaultdict(list)
        for key, field in fields:
            by_key[key].append(field)
        count = 0
        for batch in _batches(by_key.items()):
            with reader.pipeline(transaction=False) as queue:
                for key, names in batch:
                    queue.hmget(key, names)
                count += sum(value is not None for reply in queue.execute() for value in reply)
        return count

    def drain(self, seconds: float) -> tuple[int, bool]:
        """Collect the rest, slice by slice.

        Arguments:
            seconds: for how long at most.

        Returns: how many fields were removed, and whether nothing was left in the end.
        """
        removed, found_nothing = 0, 0
        end = time.monotonic() + seconds
        while found_nothing < _EMPTY_LOOKS:
            if time.monotonic() >= end:
                return removed, False
            try:
                handled = self.job.perform(Slice(self.job.limit, _DRAIN_SLICE_SECONDS))
            except (Aborted, OutOfTime, RedisTimeoutError):
                # A reply that takes longer than a job waits for it: the machine is busy.
                continue
            removed += handled
            found_nothing = 0 if handled else found_nothing + 1
        return removed, True

    def _remove(self) -> None:
        """Remove every key of the namespace, by name. One round trip for each 500 hashes."""
        names = self.hashes.names
        keys = [key.encode() for key in self.keys]
        shards = {self._layout.shard_of(key_slot(key)) for key in keys}
        all_of_them = [each for key in keys for each in (key, names.deadlines(key))]
        all_of_them += [each for shard in shards for each in (names.due(shard), names.mark(shard))]
        # Last, for without them nobody knows where the others are.
        for batch in (*_batches(all_of_them), [names.registry, names.layout]):
            queue = self._client.pipeline(transaction=False)
            for key in batch:
                queue.unlink(key)
            queue.execute()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._remove()
        except FAULTS as fault:
            if error is None:
                raise WorkStealingError(
                    f"the keys of the namespace {self.namespace} could not be removed:"
                    f" {_sentence(fault)}"
                ) from fault
        finally:
            self._client.close()


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _sentence(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


# fakeredis takes ten times as long as a redis-server for each command.
SLICE_SECONDS, SLOW_SLICE_SECONDS = 0.010, 0.050
# For how long a worker rests after a fault: all times of the demo are scaled to its run, and one
# that rests for 10 of 20 seconds would show nothing but that.
BREAKER_SHARE = 0.025
WARM_UP_SECONDS, START_SECONDS = 0.5, 30.0
# The pace: this share of the requests that the machine answered in the warm-up, within bounds.
LOAD_SHARE, LOWEST_PACE, HIGHEST_PACE = 0.4, 10.0, 400.0
TICK_SECONDS, LINE_SECONDS = 0.5, 5.0
# After the load: for how long one process looks for the rest.
DRAIN_SECONDS, ALL_HASHES = 20.0, 1_000_000
# The live table shows the percentiles of so many answers.
RECENT = 1000
# Of the fields that were overdue for longer, this share is collected where the machine has time.
OVERDUE_MS, WANTED_SHARE = 2000, 0.9

Figures = dict[str, Any]
"""The object that --json prints.

Requests answered; items: fields collected; garbage_*: expired fields in memory at the peak, at the
end, and without any recruits; oldest_garbage_s: for how long the oldest has been expired. At the
end also overdue: fields that expired more than two seconds before; left: how many of them were
there; readable: expired fields that a reader was given; drained: expired fields that one process
removed afterwards; lost: those that this process did not find, None if it had no time to look
everywhere; faults: requests that the app answered with an error.
"""


def run(options: argparse.Namespace) -> int:
    """Run the demo. Returns: 0, or 1 if a law was broken.

    Raises: WorkStealingError for bad input; then nothing is left behind.
    """
    logged = None if options.log is None else read_access_log(options.log)
    is_live = sys.stdout.isatty() and not options.json
    with stop_wish() as wish, ExitStack() as stack:
        demo = _Demo(options, logged, wish, stack)
        demo.prepare()
        with shown(is_live=is_live) as show:
            demo.watch(show)
        figures = demo.finish()
    if options.json:
        print_json(figures)
    else:
        facts = () if is_live else demo.facts
        say(summary(facts, demo.seconds, figures, demo.reason(figures)))
    return 1 if broken_laws(figures) else 0


class _Demo:
    """The parts of one run.

    The stack clears the parts away after the run; setting `wish` ends the run early.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        logged: Sequence[Request] | None,
        wish: StopWish,
        stack: ExitStack,
    ) -> None:
        self._options, self._logged, self._wish = options, logged, wish
        self.facts: list[str] = []
        self._garbage = self._peak = 0
        self._oldest = self._pace = self.seconds = 0.0
        folder = tempfile.TemporaryDirectory(prefix="workstealing-demo-")
        self._folder = Path(stack.enter_context(folder))
        url, kind, slice_seconds = options.url, "the Redis at --url", SLICE_SECONDS
        if url is None or url.startswith("embedded:"):
            server = stack.enter_context(EmbeddedServer())
            url, kind = server.url, f"an embedded {server.kind}"
            if not server.is_real:
                slice_seconds = SLOW_SLICE_SECONDS
        self._storage = stack.enter_context(Storage(url))
        breaker, lives = BREAKER_SHARE * options.seconds, lifetimes(options.seconds)
        self._plan = DemoSettings(
            url, self._storage.namespace, lives, LIMIT, slice_seconds, breaker
        )
        self._plan.save(self._folder)
        self._storage.keys.add(self._plan.key(WARM_UP))
        self._web = WebServer(self._folder, options.workers)
        stack.callback(self._web.stop)
        self._load = self._loaded([], 1.0)
        self._say(
            f"{kind}, namespace {self._plan.namespace} (emulated backend); Flask under gunicorn,"
            f" {options.workers} worker process{'es' if options.workers > 1 else ''}"
        )

    def prepare(self) -> None:
        """Wait for the app, measure the machine, and choose pace and rate."""
        options = self._options
        status = self._first_answer()
        if self._wish.is_set():
            return
        if status != 200:
            raise WorkStealingError(
                f"the demo's app answered {status or 'nothing'} at its start;"
                f" {self._web.last_words()}"
            )
        warm_up = self._loaded([Request(WARM_UP)] * 100_000, math.inf)
        warm_up.start()
        self._wish.wait(WARM_UP_SECONDS)
        warm_up.stop()
        able = len(warm_up.latencies) / WARM_UP_SECONDS
        self._pace = pace = min(HIGHEST_PACE, max(LOWEST_PACE, LOAD_SHARE * able))
        count, requests = round(pace * options.seconds), self._logged
        what = "Zipf-distributed items and a long tail"
        if requests is None:
            requests = zipf_requests(count)
        else:
            what = f"the {len(requests)} paths of {options.log}"
            requests = list(itertools.islice(itertools.cycle(requests), count))
        lives = ", ".join(f"{part} {life / 1000:g} s" for part, life in self._plan.lives.items())
        self._say(
            f"{what}, {pace:.0f} requests/s (the warm-up reached {able:.0f}/s); times to live:"
            f" {lives}"
        )
        rate, formula = rate_for(*forecast(requests, pace, self._plan.lives))
        if options.rate is not None:
            rate = options.rate
            formula = f"rate = {rate:g}, as given by --rate; slices of at most {LIMIT} fields"
        self._say(formula)
        if is_disabled():
            self._say(f"{DISABLED_VARIABLE} is set: nobody is recruited")
        self._plan = replace(self._plan, rate=rate)
        self._plan.save(self._folder)
        self._storage.keys.update(self._plan.key(request.target) for request in requests)
        self._load = self._loaded(requests, pace)

    def watch(self, show: Callable[[float, Figures], None]) -> None:
        """Let the load run to its end, or to the user's wish, and show the figures."""
        begin = time.monotonic()
        self._load.start()
        for tick in itertools.count(1):
            left = self._options.seconds - self.seconds
            # Never past the last request: nobody collects after it.
            if not self._load.is_running() or left <= 0:
                break
            if self._wish.wait(min(TICK_SECONDS, max(0.01, left))):
                break
            self.seconds = time.monotonic() - begin
            self._web.check()
            if tick % 2 == 0:
                self._look_at_garbage()
            show(self.seconds, self._figures(recent=RECENT))
        self._load.stop()
        self.seconds = time.monotonic() - begin
        if self._load.errors and not self._load.latencies:
            raise WorkStealingError(
                f"the demo's app answered none of {self._load.errors} requests;"
                f" {self._web.last_words()}"
            )

    def finish(self) -> Figures:
        """Return the final figures, once the workers have written down theirs."""
        storage = self._storage
        try:
            now = storage.now_ms()
            self._look_at_garbage(ALL_HASHES, must=True)
            # Before the books are read: each worker completes them as it ends.
            self._web.stop()
            last = last_deadlines(self._folder)
            expired = [field for field, deadline in last.items() if deadline <= now]
            overdue = [field for field in expired if last[field] < now - OVERDUE_MS]
            laws: Figures = {
                "overdue": len(overdue),
                "left": storage.count(overdue, readable=False),
                "readable": storage.count(expired, readable=True),
            }
            laws["drained"], is_done = storage.drain(DRAIN_SECONDS)
            laws["lost"] = storage.count(expired, readable=False) if is_done else None
        except FAULTS as error:
            raise WorkStealingError(f"Redis went away during the run: {error}") from error
        return self._figures(len(expired)) | laws | {"faults": self._load.faults}

    def reason(self, figures: Figures) -> str:
        """Say why less was collected than planned, as far as this run can tell."""
        if not figures["recruited"]:
            return "nobody was recruited"
        if self._options.rate is not None:
            return f"the rate was given as {self._options.rate:g}"
        able = figures["requests"] / max(self.seconds, 0.001)
        return (
            f"the machine answered {able:.0f} of {self._pace:.0f} requests/s,"
            f" {figures['out_of_time']} of {figures['recruited']} slices were out of time, and its"
            f" load average is {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )

    def _say(self, fact: str) -> None:
        self.facts.append(fact)
        note(fact)

    def _loaded(self, requests: Sequence[Request], pace: float) -> Load:
        return Load(self._web.address, requests, pace, 2 * self._options.workers + 2)

    def _first_answer(self) -> int:
        give_up = time.monotonic() + START_SECONDS
        while not self._wish.is_set() and time.monotonic() < give_up:
            self._web.check()
            with contextlib.closing(Client(*self._web.address)) as client:
                status, _ = client.get(WARM_UP)
            if status:
                return status
            time.sleep(0.05)
        return 0

    def _look_at_garbage(self, most_hashes: int = 1000, *, must: bool = False) -> None:
        try:
            backlog = self._storage.job.backlog(most_hashes=most_hashes)
        except (*FAULTS, WorkStealingError):
            # A look that fails in between is no reason to stop; the next one may succeed.
            if must:
                raise
            return
        self._garbage, self._oldest = backlog.count, backlog.oldest_seconds or 0.0
        self._peak = max(self._peak, self._garbage)

    def _figures(self, without: int = 0, recent: int = 0) -> Figures:
        total = total_figures(self._folder)
        latencies = sorted(self._load.latencies[-recent:])
        return {
            "requests": len(self._load.latencies),
            **{name: total[name] for name in ("enlisted", "recruited", *OUTCOMES, "items")},
            "garbage_peak": self._peak,
            "garbage_end": self._garbage,
            "garbage_without": without,
            "oldest_garbage_s": round(self._oldest, 3),
            "p50_ms": round(1000 * percentile(latencies, 0.5), 3),
            "p99_ms": round(1000 * percentile(latencies, 0.99), 3),
            "errors": self._load.errors,
        }


@contextlib.contextmanager
def shown(*, is_live: bool) -> Iterator[Callable[[float, Figures], None]]:
    """Yield a function that shows the figures after so many seconds.

    Arguments:
        is_live: one table drawn anew in place by rich, instead of a line now and then on stderr.
    """
    if is_live:
        from rich.live import Live
        from rich.text import Text

        with Live(auto_refresh=False) as live:
            yield lambda seconds, of: live.update(Text(drawn(seconds, of)), refresh=True)
        return
    due = [0.0]

    def say_now_and_then(seconds: float, of: Figures) -> None:
        if seconds >= due[0]:
            due[0] = seconds + LINE_SECONDS
            note(
                f"{seconds:5.0f} s: {of['requests']} requests, {of['recruited']} recruited of"
                f" {of['enlisted']} enlisted, {of['items']} fields collected,"
                f" {of['garbage_end']} garbage now, {of['failed']} failed,"
                f" p99 {of['p99_ms']:.1f} ms"
            )

    yield say_now_and_then


def drawn(seconds: float, of: Figures) -> str:
    """Return the table of a run after so many seconds."""
    traffic = [(name, of[name]) for name in ("requests", "enlisted", "recruited", "errors")]
    traffic += [(name, f"{of[f'{name}_ms']:.1f} ms") for name in ("p50", "p99")]
    recruits = [(spoken(name), of[name]) for name in OUTCOMES]
    garbage = [("fields collected", of["items"]), ("garbage now", of["garbage_end"])]
    garbage += [("garbage peak", of["garbage_peak"])]
    garbage += [("oldest garbage", f"{of['oldest_garbage_s']:.1f} s")]
    both = itertools.zip_longest(traffic, recruits, garbage, fillvalue=("", ""))
    rows = [list(map(str, itertools.chain.from_iterable(row))) for row in both]
    headings = ("traffic", "", "recruits", "", "garbage", "")
    return f"workstealing demo, {seconds:.0f} s\n{table(headings, rows, len(headings))}"


def collected_share(figures: Figures) -> float:
    """Return the share of the overdue fields that was collected; 1.0 when none was overdue."""
    return 1.0 - figures["left"] / figures["overdue"] if figures["overdue"] else 1.0


def broken_laws(of: Figures) -> list[str]:
    """Return the laws that were broken, as clauses; how busy the machine is has no part in them."""
    clauses = {
        "readable": "readers were given {} expired fields",
        "lost": "no job found {} expired fields",
        "faults": "the app answered {} requests with an error",
    }
    return [clause.format(of[name]) for name, clause in clauses.items() if of[name]]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted values that this share does not exceed; 0.0 for none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def summary(facts: Sequence[str], seconds: float, of: Figures, reason: str) -> str:
    """Return the summary for people: the run, its figures, the comparison, and the laws.

    Arguments:
        facts: lines to begin with.
        seconds: of the run.
        of: its figures.
        reason: why less was collected than planned, if less was.
    """
    outcomes = ", ".join(f"{of[name]} {spoken(name)}" for name in OUTCOMES)
    age = f" (the oldest expired {of['oldest_garbage_s']:.1f} s ago)" if of["garbage_end"] else ""
    latency = f"p50 {of['p50_ms']:.1f} ms, p99 {of['p99_ms']:.1f} ms"
    items = f"{of['items']} fields collected"
    lines = [
        *facts,
        f"{of['requests']} requests in {seconds:.1f} s, {of['errors']} errors; {latency}",
        f"{of['enlisted']} enlisted, {of['recruited']} recruited: {outcomes}; {items}",
        f"garbage: {of['garbage_end']} fields at the end{age}, {of['garbage_peak']} at the peak",
        f"without work stealing the same traffic would have left {of['garbage_without']} fields",
    ]
    overdue, share = f"overdue for more than {OVERDUE_MS / 1000:g} s", collected_share(of)
    if of["overdue"]:
        collected = f"{100 * share:.1f} % were collected while the load ran"
        lines.append(f"of {of['overdue']} fields {overdue}, {collected}")
    else:
        lines.append(f"no field was {overdue}")
    if share < WANTED_SHARE:
        lines.append(f"the plan was {100 * WANTED_SHARE:g} % or more: {reason}")
    rest = f"one process then found and removed all {of['drained']} that had expired by then"
    if of["lost"] is None:
        rest = "there was no time to look for all that was left"
    laws = f"the laws held: no reader was given an expired field, and {rest}"
    broken = broken_laws(of)
    lines.append(f"a law was broken: {' and '.join(broken)}" if broken else laws)
    return "\n".join(lines)
