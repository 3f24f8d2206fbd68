"""One run of the example, from its server to what it has proved."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from activity_log import minutes as spark_minutes
from activity_log.entries import Entry, made_up_past, of_access_log
from activity_log.measuring import Measuring
from activity_log.page import Shown, forms, headline, render
from activity_log.readers import Alerts, Mirror, Popularity, Readers
from activity_log.site import Visitors, create_app, served
from workstealing import Recruiter, connect
from workstealing.cli.live import StopWish, stop_wish
from workstealing.errors import ConfigurationError
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.store.embedded import EmbeddedServer
from workstealing.structures import Log

URL_VARIABLE = "WORKSTEALING_REDIS_URL"
NAME, STREAM = "example:activity", "example:activity:stream"
BLOCK = 500
BATCH = 1000
REWIND = 2000
STOPPED = "stopped before the end: nothing is proved"
END_SECONDS = 180.0


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="activity_log", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the site is visited")
    parser.add_argument(
        "--url", default=os.environ.get("REDIS_URL"), help="a Redis of yours; else one of its own"
    )
    parser.add_argument("--pace", type=float, default=150.0, help="requests a second")
    parser.add_argument("--past", type=int, default=20_000, help="entries of the half hour before")
    parser.add_argument(
        "--access-log",
        type=Path,
        metavar="FILE",
        help="a web server's access log is the past, instead of one that is made up",
    )
    parser.add_argument("--retain", type=int, help="entries that are kept; as many as the past has")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out")
    parser.add_argument("--port", type=int, default=0, help="of the site; 0: a free one")
    parser.add_argument("--keep", action="store_true", help="serve the page until Ctrl-C")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the example.

    Returns: the exit status: 0 if all was proved, 1 if not, 2 if the Redis or the access log cannot
    be used.
    """
    options = arguments().parse_args(words)
    try:
        past = list(
            of_access_log(options.access_log)
            if options.access_log
            else made_up_past(options.past, datetime.now(UTC))
        )
        with stop_wish() as wish, ExitStack() as stack:
            client = _connected(options, stack)
            return Run(options, wish, stack, client).run(past)
    except (ConfigurationError, RedisError, RedisClusterException, OSError) as error:
        print(f"activity_log: {error}", file=sys.stderr)
        return 2


def _connected(options: argparse.Namespace, stack: ExitStack) -> Any:
    """Return a client of the user's Redis, or of one that ends with the stack."""
    if options.url:
        client = connect(options.url)
        client.ping()
    else:
        server = stack.enter_context(EmbeddedServer())
        options.url = server.url
        print(f"a {server.kind} of its own")
        client = connect(server.url)
    stack.callback(client.close)
    # Spark's Python processes look there.
    os.environ[URL_VARIABLE] = options.url
    return client


class Run:
    """One run. What it starts is ended by the stack.

    Arguments:
        wish: set when the user wants an early end.
    """

    def __init__(
        self, options: argparse.Namespace, wish: StopWish, stack: ExitStack, client: Any
    ) -> None:
        self._options, self._wish, self._stack, self._client = options, wish, stack, client
        self._log = Log(client, NAME, BLOCK, codec="json")
        self._spark: spark_minutes.Minutes | None = None
        self._why_no_spark = ""
        self._answers: Counter[int] = Counter()
        self._proofs: list[tuple[bool, str]] = []

    def run(self, past: Sequence[Entry]) -> int:
        """Let everything happen; return the exit status."""
        self._clear()  # what an earlier run may have left
        self._stack.callback(self._clear)
        session = self._start_spark()
        if not self._append(past):
            print(STOPPED)
            return 1
        # So many recruits, and slices so long, because all of it is to be seen within seconds.
        self._recruiter = Recruiter(seconds=0.1, breaker=1)
        self._recruiter.install(
            LogCompactor(self._log, limit=2, cold=1.0, name="compact"), rate=0.2
        )
        self._alerts, self._popularity = Alerts(self._log), Popularity(self._log)
        self._mirror = Mirror(self._client, Log(self._client, NAME, BLOCK), STREAM)
        readers = Readers(self._recruiter)
        for name in ("anna", "ben"):
            readers.add(self._alerts.member(name))
        readers.add(self._popularity.read)
        readers.add(self._mirror.read)
        measuring = Measuring(self._client, self._log, STREAM)
        self._measuring = self._stack.enter_context(measuring)
        site = self._stack.enter_context(
            served(
                create_app(self._log, self._recruiter, self._page, self._answers),
                self._options.port,
            )
        )
        print(f"the page: {site}/memory", flush=True)
        self._stack.enter_context(readers)
        if session is not None:
            self._spark = spark_minutes.Minutes(session, NAME, self._folder)
            self._stack.callback(self._spark.stop)
            if not self._wish.is_set():
                self._spark.catch_up()
        # Who reads by offsets alone must have read what is trimmed; groups are spared.
        while len(self._mirror.paths) < len(past) and readers.problem is None:
            if self._wish.wait(0.05):
                break
        retain = self._options.retain or max(len(past), BLOCK)
        trimmer = LogTrimmer(self._log, max_entries=retain, spare_groups=True, name="trim")
        self._recruiter.install(trimmer, rate=0.05)
        with Visitors(site, self._options.pace):
            self._watch()
        done = self._settle(len(past), readers, trimmer)
        self._summarize(len(past), self._answers)
        if self._wish.is_set():
            print(STOPPED)
            return 1
        self._prove(len(past) + self._answers.total(), settled=done)
        if readers.problem is not None:
            print(f"FAILED: a reader: {readers.problem!r}")
        for good, text in self._proofs:
            print(f"{'proved' if good else 'FAILED'}: {text}")
        if self._options.keep:
            print(f"the page is at {site}/memory until Ctrl-C", flush=True)
            self._wish.wait()
        good = readers.problem is None and all(good for good, _ in self._proofs)
        return 0 if good else 1

    def _clear(self) -> None:
        self._log.delete()
        self._client.delete(STREAM)

    def _start_spark(self) -> Any:
        lacking = spark_minutes.missing()
        if self._options.no_spark:
            self._why_no_spark = "Spark is left out, because of --no-spark"
        elif lacking:
            self._why_no_spark = f"Spark is left out: {', '.join(lacking)} missing"
        if self._why_no_spark:
            print(f"{self._why_no_spark}: nothing counts by minute")
            return None
        folder = TemporaryDirectory(prefix="activity-log-", ignore_cleanup_errors=True)
        self._folder = Path(self._stack.enter_context(folder))
        session = spark_minutes.start_spark(self._folder)
        self._stack.callback(session.stop)
        print(f"Spark {session.version} counts by minute")
        return session

    def _append(self, past: Sequence[Entry]) -> bool:
        """Append the past; return False if the user wishes an early end."""
        began = time.monotonic()
        for start in range(0, len(past), BATCH):
            if self._wish.is_set():
                return False
            self._log.append(*past[start : start + BATCH])
        seconds = time.monotonic() - began
        print(f"the past: {len(past):,} entries, by {BATCH:,} at a time, in {seconds:.2f} seconds")
        return not self._wish.is_set()

    def _watch(self) -> None:
        """Let the site be visited; halfway a group goes back."""
        half = self._options.seconds / 2
        if not self._wish.wait(half):
            self._popularity.rewind(REWIND)
        self._wish.wait(half)

    def _settle(self, past: int, readers: Readers, trimmer: LogTrimmer) -> bool:
        """Wait until all is read, and recruits have compacted and trimmed all; say whether."""

        def is_done() -> bool:
            facts = self._log.stats()
            entries = past + self._answers.total()
            return (
                len(self._mirror.paths) == entries
                and self._popularity.paths.total() == entries - self._popularity.counted_from
                and len(self._alerts.seen) == entries
                and not self._alerts.group.pending()
                and facts.sealed == facts.compressed
                and facts.open <= 1
                and trimmer.backlog().count == 0
                # The mirror trims as it reads. The log may have been trimmed since the facts were
                # read, but from here on it is not.
                and self._client.xlen(STREAM) == self._log.stats().entries
            )

        give_up = time.monotonic() + END_SECONDS
        while not is_done():
            if self._wish.wait(0.1) or readers.problem or time.monotonic() > give_up:
                return False
        if self._spark is not None:
            self._spark.catch_up()
        return True

    def _shown(self) -> Shown:
        alerts, popularity = self._alerts.group, self._popularity.group
        top = self._popularity.top()
        return Shown(
            facts=self._log.stats(),
            groups={
                "alerts": (
                    *_place(alerts),
                    f"{self._alerts.errors} errors seen; {self._alerts.again} entries came again",
                ),
                "popularity": (*_place(popularity), f"most popular: {top}" if top else ""),
            },
            jobs=self._recruiter.stats()["jobs"],
            minutes=self._spark.counts if self._spark else {},
            without_spark=self._why_no_spark,
        )

    def _page(self) -> str:
        return render(self._measuring.samples, self._shown())

    def _summarize(self, past: int, answers: Counter[int]) -> None:
        """Print what is on the page, too."""
        now, shown = self._measuring.measure(), self._shown()
        by_status = ", ".join(
            f"{number:,} x {status}" for status, number in sorted(answers.items())
        )
        print(f"entries: {past:,} of the past, {answers.total():,} of requests ({by_status})")
        trimmed = past + answers.total() - now.entries
        print(f"  available: {now.entries:,}; {trimmed:,} were trimmed, block by block")
        print(f"  blocks: {', '.join(f'{number} {form}' for form, number in forms(shown.facts))}")
        if now.log_bytes:
            for what, size, each in (
                ("the log", now.log_bytes, now.log_each),
                ("the stream", now.stream_bytes, now.stream_each),
            ):
                print(f"  {what}: {size:,} bytes, {each:.0f} an entry")
        print(f"  {headline(now)}")
        for name, (offset, lag, remark) in shown.groups.items():
            print(f"group {name}: at {offset:,}, {lag:,} to come; {remark}")
        print(f"enlisted: {self._recruiter.stats()['enlisted']:,}")
        for name, job in shown.jobs.items():
            print(
                f"  recruited to {name}: {job['recruited']} ({job['worked']} worked,"
                f" {job['idle']} idle, {job['aborted']} aborted, {job['skipped']} skipped,"
                f" {job['failed']} failed, {job['out_of_time']} out of time): {job['items']} blocks"
            )
        if self._spark is not None:
            print(
                f"Spark: {sum(self._spark.counts.values()):,} entries in"
                f" {len(self._spark.counts)} minutes, by {self._spark.batches} batches"
            )

    def _prove(self, total: int, *, settled: bool) -> None:
        """Judge the run by what was written, and by what the mirror has read.

        Arguments:
            total: entries of the past and requests.
            settled: whether all came to the end.
        """
        mirror, alerts, popularity = self._mirror, self._alerts, self._popularity
        self._prove_that(settled, "all readers came to the end, and every full block is compressed")
        self._prove_that(
            self._log.last() + 1 == total == len(mirror.paths),
            f"each of {total:,} requests and entries of the past has an offset, without gaps",
        )
        self._prove_that(
            alerts.seen == set(range(total)) and alerts.errors == mirror.errors,
            f"the group alerts has seen each entry, and {alerts.errors} errors; a member died with"
            f" {alerts.dropped} in its hands",
        )
        start = popularity.counted_from
        self._prove_that(
            popularity.paths == Counter(mirror.paths[start:]),
            f"the group popularity went back to {start:,}, and has counted each entry from there",
        )
        self._prove_that(
            self._is_mirrored(), "the stream holds the same entries as the log, byte for byte"
        )
        if self._spark is not None:
            self._prove_that(
                self._spark.counts == mirror.minutes,
                f"Spark has counted each entry once, in {len(mirror.minutes)} minutes",
            )

    def _prove_that(self, good: bool, text: str) -> None:
        self._proofs.append((good, text))

    def _is_mirrored(self) -> bool:
        """Compare what is available in the log with the stream, the last entry first."""
        raw = Log(self._client, NAME, BLOCK)
        streamed = self._client.xrevrange(STREAM)
        return len(streamed) == raw.length() and all(
            fields[b"entry"] == each
            for (_, fields), each in zip(streamed, reversed(raw), strict=False)
        )


def _place(group: Any) -> tuple[int, int]:
    """Return a group's next offset, and how many entries are to come."""
    info = group.stats()
    return info.offset, info.lag
