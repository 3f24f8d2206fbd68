"""One run of the example, from its servers to what it has proved."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from spark_pipeline import checking, indexing
from spark_pipeline.documents import Application, create_tables, made_up_ids
from spark_pipeline.parts import (
    DATABASE_VARIABLE,
    ICK_SHARDS,
    REDIS_VARIABLE,
    Parts,
    open_database,
    parts,
)
from spark_pipeline.servers import PrivatePostgres
from spark_pipeline.web import create_app, served
from workstealing.cli.demo.web import read_access_log, zipf_requests
from workstealing.cli.live import StopWish, stop_wish
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice import OUTCOMES, spoken
from workstealing.spark import install, recruits, register
from workstealing.store.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOCAL = "local[2]"
TICK_SECONDS = 2.0
DRAIN_SECONDS = 120.0
COLLECT_SECONDS = 120.0
POPULAR_SEED = 4
# For seconds of life: compiling thoroughly costs more of two cores than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
STOPPED = "stopped before the end: nothing is proved"
HEAD = (
    f"{'second':>6} {'changes':>8} {'waiting':>8} {'in hand':>8} {'behind':>7}"
    f" {'batches':>8} {'enlisted':>9} {'recruited':>10} {'collected':>10} {'garbage':>8}"
)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="spark_pipeline", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long documents change")
    parser.add_argument(
        "--until",
        type=Path,
        metavar="FILE",
        help="documents change until this file is there, and not for so many seconds",
    )
    parser.add_argument(
        "--access-log",
        type=Path,
        metavar="FILE",
        help="a web server's access log: its paths are the documents, its hits change them",
    )
    parser.add_argument("--documents", type=int, default=400, help="how many, without a log")
    parser.add_argument("--pace", type=float, default=80.0, help="changes a second")
    parser.add_argument("--batch", type=int, default=200, help="the most members of one batch")
    parser.add_argument("--port", type=int, default=0, help="of the page; 0: a free one")
    parser.add_argument("--keep", action="store_true", help="serve the page until Ctrl-C")
    parser.add_argument(
        "--master",
        default=LOCAL,
        help=f"of Spark; for a cluster, {DATABASE_VARIABLE} and {REDIS_VARIABLE} name servers that"
        " are this example's alone, here and in the workers' environment",
    )
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the example; return the exit status: 0 if all was proved, else 1."""
    options = arguments().parse_args(words)
    try:
        ids, visits = what_happens(options)
        with stop_wish() as wish, ExitStack() as stack:
            return Run(options, wish, stack).run(ids, visits)
    except ConfigurationError as error:
        print(f"spark_pipeline: {error}", file=sys.stderr)
        return 1


def what_happens(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the documents' ids, and which of them change, one after the other."""
    if options.access_log is not None:
        visits = [request.target for request in read_access_log(options.access_log)]
        return list(dict.fromkeys(visits)), visits
    ids = made_up_ids(options.documents)
    requests = zipf_requests(20_000, seed=POPULAR_SEED, popular=len(ids), once=0)
    return ids, [ids[int(request.target.rpartition("/")[2]) - 1] for request in requests]


@dataclass(frozen=True)
class Figures:
    """What can be seen at one moment."""

    changes: int
    waiting: int
    in_hand: int
    behind: int
    batches: int
    enlisted: int
    recruited: int
    collected: int
    garbage: int

    def line(self, second: float) -> str:
        """Return the line that is printed under HEAD."""
        return (
            f"{second:>6.0f} {self.changes:>8} {self.waiting:>8} {self.in_hand:>8}"
            f" {self.behind:>7} {self.batches:>8} {self.enlisted:>9} {self.recruited:>10}"
            f" {self.collected:>10} {self.garbage:>8}"
        )


@contextmanager
def errors_to(file: int) -> Iterator[None]:
    """Let what this process starts meanwhile write its errors and its log to a file."""
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Run:
    """One run. What it starts is ended by the stack.

    Arguments:
        wish: set when the user wants an early end.
    """

    def __init__(self, options: argparse.Namespace, wish: StopWish, stack: ExitStack) -> None:
        self._options, self._wish, self._stack = options, wish, stack
        self._folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="pipeline-", ignore_cleanup_errors=True))
        )
        self._log = self._folder / "spark.log"
        self._began = time.monotonic()
        self._proofs: list[tuple[bool, str]] = []
        self._application: Application
        self._parts: Parts
        self._query: StreamingQuery
        self._spark: SparkSession

    def run(self, ids: Sequence[str], visits: Sequence[str]) -> int:
        """Let everything happen; return the exit status."""
        self._start_servers()
        self._spark = self._start_spark()
        if self._wish.is_set():
            print(STOPPED)
            return 1
        self._parts = parts()
        create_tables()
        self._garbage = HashFieldExpiry(self._parts.summaries)
        page = self._stack.enter_context(served(create_app(self._parts), self._options.port))
        print(f"the page: {page}?q=harbour")
        self._began = time.monotonic()
        self._application = self._stack.enter_context(
            Application(self._parts, ids, visits, self._options.pace)
        )
        checkpoint = str(self._folder / "checkpoint")
        self._query = indexing.start(self._spark, checkpoint, self._options.batch)
        self._stack.callback(self._query.stop)
        print(HEAD)
        done = self._watch() and self._drain() and self._collect()
        if done:
            self._prove(page)
        else:
            self._say_why()
        status = 0 if done and all(good for good, _ in self._proofs) else 1
        if status and not self._wish.is_set():
            print(f"the end of Spark's log:\n{self._log.read_text(errors='replace')[-4000:]}")
        if done and self._options.keep:
            print(f"the page is at {page} until Ctrl-C", flush=True)
            self._wish.wait()
        return status

    def _start_servers(self) -> None:
        if self._options.master.startswith("local"):
            postgres = self._stack.enter_context(PrivatePostgres())
            redis = self._stack.enter_context(EmbeddedServer())
            os.environ[DATABASE_VARIABLE], os.environ[REDIS_VARIABLE] = postgres.url, redis.url
            print(f"a PostgreSQL {postgres.version} and a {redis.kind} of its own")
            return
        missing = [name for name in (DATABASE_VARIABLE, REDIS_VARIABLE) if not os.environ.get(name)]
        if missing:
            raise ConfigurationError(
                f"{' and '.join(missing)} not set: name the servers there, here and in the"
                " environment of the cluster's workers"
            )

    def _start_spark(self) -> SparkSession:
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            # What Spark leaves on disk goes away with the example's folder.
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self._folder} {SHORT_LIVED}",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.local.dir": str(self._folder),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.port": "0",
            "spark.ui.showConsoleProgress": "false",
            # The tasks' functions are modules of this folder.
            "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }
        builder = SparkSession.builder.appName("spark_pipeline").master(self._options.master)
        for name, value in settings.items():
            builder = builder.config(name, value)
        handler = signal.getsignal(signal.SIGINT)
        with self._log.open("ab") as log, errors_to(log.fileno()):
            spark = builder.getOrCreate()
        # Spark has put its own there, which would cancel the jobs that are waited for.
        signal.signal(signal.SIGINT, handler)
        self._stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        install(spark, "spark_pipeline.parts:make_recruiter", interval=1.0)
        register(spark)
        print(f"Spark {spark.version} on {self._options.master}: {spark.sparkContext.uiWebUrl}")
        return spark

    def _watch(self) -> bool:
        """Let documents change; return False on the user's wish, or when something has failed."""
        end, until = time.monotonic() + self._options.seconds, self._options.until
        while not (until.exists() if until else time.monotonic() >= end):
            if not self._pause(TICK_SECONDS):
                return False
            self._show()
        self._application.stop()
        return self._is_well()

    def _drain(self) -> bool:
        """Let the query come to the end of the dirty list, then stop it."""
        print("no more changes; what is dirty is indexed to the end")
        give_up = time.monotonic() + DRAIN_SECONDS
        while True:
            now = self._show()
            if not (now.waiting or now.in_hand or now.behind):
                break
            if time.monotonic() > give_up:
                print(f"not at the end after {DRAIN_SECONDS:.0f} s")
                return False
            if not self._pause(1.0):
                return False
        self._query.stop()
        return True

    def _collect(self) -> bool:
        """Check with Spark, whose tasks go on enlisting, until nothing expired is left."""
        print("the query has stopped; the check runs as a Spark job, and its tasks enlist too")
        give_up = time.monotonic() + COLLECT_SECONDS
        # Nothing is left to expire after that.
        last = time.monotonic() + max(indexing.TTLS.values())
        while True:
            self._checked = checking.check(self._spark)
            now = self._show()
            is_late = time.monotonic() > last
            if is_late and not now.garbage and not self._parts.behind.count():
                return True
            if time.monotonic() > give_up:
                return True
            if not self._pause(0.1 if is_late else 1.0):
                return False

    def _prove(self, page: str) -> None:
        documents, wrong = self._checked
        stats = self._parts.dirty.stats()
        left = self._garbage.backlog()
        totals = recruits(self._spark)
        self._claim(
            documents > 0 and wrong == 0,
            f"{documents - wrong} of {documents} search rows equal their document's last version"
            f" ({self._application.changes} changes)",
        )
        self._claim(
            not stats["total_size"],
            f"the {ICK_SHARDS} Icks hold {stats['pset_size']} members, and"
            f" {stats['cset_size']} are reserved",
        )
        collector = totals.jobs.get(self._garbage.name)
        collected = 0 if collector is None else collector.items
        self._claim(
            collected > 0 and not left.count,
            f"{left.count} expired fields are left: recruited tasks of Spark have collected"
            f" {collected}, and nobody else collects",
        )
        tracked = self._parts.behind.count()
        self._claim(tracked == 0, f"{tracked} documents are tracked as behind, and none is")
        found = self._search(page)
        self._claim(found, "the page finds documents")
        print(f"enlisted: {totals.enlisted} tasks and batches")
        for name, job in sorted(totals.jobs.items()):
            said = ", ".join(f"{getattr(job, kind)} {spoken(kind)}" for kind in OUTCOMES)
            print(f"  {name}: {job.recruited} recruited ({said}), {job.items} items")

    def _claim(self, is_good: bool, text: str) -> None:
        self._proofs.append((is_good, text))
        print(f"{'proved' if is_good else 'FAILED'}: {text}")

    def _search(self, page: str) -> bool:
        """Say whether the page, asked for a word of some document, finds something."""
        with open_database() as database:
            row = database.execute("SELECT split_part(body, ' ', 1) FROM documents LIMIT 1")
            (word,) = row.fetchone() or ("",)
        with urllib.request.urlopen(f"{page}?q={word}", timeout=30) as answer:  # noqa: S310 - ours
            return "<article>" in answer.read().decode()

    def _show(self) -> Figures:
        stats = self._parts.dirty.stats()
        progress = self._query.lastProgress
        totals = recruits(self._spark)
        with open_database() as database:
            row = database.execute("SELECT count(*) FROM behind").fetchone()
        collector = totals.jobs.get(self._garbage.name)
        now = Figures(
            changes=self._application.changes,
            waiting=stats["pset_size"],
            in_hand=stats["cset_size"],
            behind=row[0] if row else 0,
            batches=progress["batchId"] + 1 if progress else 0,
            enlisted=totals.enlisted,
            recruited=sum(job.recruited for job in totals.jobs.values()),
            collected=collector.items if collector else 0,
            garbage=self._garbage.backlog().count,
        )
        print(now.line(time.monotonic() - self._began), flush=True)
        return now

    def _pause(self, seconds: float) -> bool:
        """Wait; return False on the user's wish, or when something has failed."""
        return not self._wish.wait(seconds) and self._is_well()

    def _is_well(self) -> bool:
        stopped = not self._query.isActive and self._query.exception() is not None
        return self._application.problem is None and not stopped

    def _say_why(self) -> None:
        if self._application.problem is not None:
            print(f"FAILED: the application: {self._application.problem!r}")
        elif self._query.exception() is not None:
            print(f"FAILED: the query: {self._query.exception()}")
        elif self._wish.is_set():
            print(STOPPED)
        else:
            print("FAILED: it did not come to its end")
