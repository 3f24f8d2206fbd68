"""The director: it starts everything, kills two processes at the worst moment, and proves the end.

It does no maintenance itself. All of it is done by recruits: by web workers after a cache hit, and
by Spark's Python workers after a partition.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from archive import proof
from archive.account import Account, served, settled
from archive.parts import DATABASE_VARIABLE, STATSD_VARIABLE, lock_name, parts
from archive.processes import Driver, Site
from archive.telemetry import StatsDServer
from archive.traffic import PAGES, Traffic
from workstealing.errors import WorkStealingError
from workstealing.store.embedded import EmbeddedServer

VICTIM = "the-forgotten-page"
PAUSE_MS = 60_000
STOPPED = "stopped before the end: nothing is proved"


class Story:
    """One telling of the story; what it starts ends with the stack.

    Arguments:
        folder: for the database, the logs and what Spark writes.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        redis = stack.enter_context(EmbeddedServer())
        if redis.kind.startswith("fake"):
            raise WorkStealingError(
                "the story needs a real server, not fakeredis: install redis-server"
            )
        self._folder, self._stack = folder, stack
        self._account = Account()
        self._statsd = stack.enter_context(StatsDServer())
        # All processes read from their environment where things are.
        os.environ["WORKSTEALING_REDIS_URL"] = redis.url
        os.environ[DATABASE_VARIABLE] = str(folder / "archive.sqlite")
        os.environ[STATSD_VARIABLE] = str(self._statsd.port)
        self._mine = parts()
        self._mine.store.create()
        self._account.say(f"a {redis.kind}, an SQLite file and a StatsD server of its own")

    def tell(self) -> bool:
        """Let it all happen; return whether everything was proved."""
        site = self._stack.enter_context(Site(self._folder))
        # Spark takes seconds to start: it does so beside the first visitors.
        driver = self._stack.enter_context(Driver(self._folder, 1))
        self.address = "http://{}:{}".format(*site.address)
        self._account.wait(site.is_up, "gunicorn has started; the first Spark driver is starting")
        traffic = self._stack.enter_context(Traffic(site.address))
        self._account.say(
            f"visitors capture and read {len(PAGES)} pages at {self.address}/page/front"
        )
        self._account.say(f"the dashboard shows all recruits: {self.address}/workstealing/")

        self._kill_a_worker(site, traffic)
        self._account.wait(driver.is_ready, "Spark works: its tasks index dirty pages, and enlist")
        self._kill_a_driver(driver)
        second = self._stack.enter_context(Driver(self._folder, 2))
        self._account.wait(second.is_ready, "a second driver goes on where the first was killed")
        self._account.wait(
            lambda: served(self._statsd), "each job has had recruits of both sides by now"
        )
        self._finish(traffic)
        # In order, so that the last counts of its recruiters come.
        second.stop()
        return self._prove(traffic)

    def _kill_a_worker(self, site: Site, traffic: Traffic) -> None:
        """Kill a web worker between its commit and its marks, with a lock in its hand.

        The code of the site knows nothing of it: first the database is busy, and then Redis is.
        """
        mine, lock = self._mine, lock_name(VICTIM)

        def capture() -> None:
            with closing(http.client.HTTPConnection(*site.address)) as connection:
                traffic.capture(connection, VICTIM)

        visitor = threading.Thread(target=capture, daemon=True)
        try:
            with mine.store.writing():
                visitor.start()
                self._account.wait(
                    lambda: mine.locks.exists(lock),
                    f"a worker has the lock of {VICTIM}, and waits for the database",
                )
                mine.client.client_pause(PAUSE_MS, all=False)
            self._account.wait(
                lambda: mine.store.page(VICTIM),
                "it has committed the page, and waits for Redis, to mark it as dirty",
            )
            page = mine.store.page(VICTIM)
            assert page is not None
            os.kill(page.worker, signal.SIGKILL)
            visitor.join()
        finally:
            mine.client.client_unpause()
        is_tracked = "is" if mine.queued.is_tracked(VICTIM) else "is not"
        self._account.killed.append(f"web worker {page.worker}")
        self._account.say(f"KILLED web worker {page.worker}: its page {is_tracked} marked")
        self._account.wait(
            lambda: mine.queued.is_tracked(VICTIM),
            "a recruit has read in the database that the page is queued, and tracked it",
        )

    def _kill_a_driver(self, driver: Driver) -> None:
        """Kill the driver with pages in its hand; wait until recruits have returned them."""
        store, dirty = self._mine.store, self._mine.dirty
        self._account.wait(
            lambda: store.count("search") > len(PAGES) / 3, "a third of the pages are indexed"
        )
        in_hand = driver.kill_at_work(dirty)
        self._account.killed.append(f"Spark driver {driver.pid}")
        self._account.say(f"KILLED Spark driver {driver.pid}: it had reserved {in_hand} pages")
        self._account.wait(
            lambda: not dirty.stats()["cset_size"],
            f"recruits of the site have returned the {in_hand} pages to the Ick",
        )

    def _finish(self, traffic: Traffic) -> None:
        """Let the captures end, and wait until recruits have left nothing to do."""
        mine = self._mine
        traffic.calm_down()
        self._account.say("no more captures; the visitors go on reading")
        self._account.wait(
            lambda: not mine.store.count("tasks WHERE state = 'queued'"), "all pages are indexed"
        )
        self._account.wait(
            lambda: (
                not mine.queued.count()
                and not proof.lock_keys(mine)
                and not proof.cache_keys(mine)
                and not mine.dirty.stats()["total_size"]
            ),
            "recruits have left nothing: no expired field, no lock, no id",
        )

    def _prove(self, traffic: Traffic) -> bool:
        """Print the proofs and the table of facts; return whether all holds."""
        on_the_dashboard = self._dashboard()
        traffic.end()
        self._account.say("the visitors have gone. The proof, by the database and by Redis itself:")
        claims = [
            *proof.claims(self._mine, traffic.acknowledged),
            on_the_dashboard,
            proof.visitors_claim(traffic.counts),
        ]
        holds = self._account.judge(claims)
        self._account.table(
            traffic.counts,
            self._mine.store.count("search"),
            self._statsd,
            sum(claim.lost for claim in claims),
        )
        return holds

    def _dashboard(self) -> proof.Claim:
        """Compare the dashboard with the ledger, while the site still answers."""
        claims: list[proof.Claim] = []
        settled(lambda: all(proof.slices(self._mine).values()))
        least = proof.slices(self._mine)

        def compared() -> bool:
            page = proof.dashboard(self.address)
            claims.append(proof.dashboard_claim(page, least, proof.slices(self._mine)))
            return not claims[-1].lost

        # Its figures may be two seconds old, from before the ledger was asked.
        settled(compared)
        return claims[-1]


def missing() -> list[str]:
    """Return what Spark and the site lack on this machine."""
    found = [name for name in ("pyspark", "gunicorn", "statsd") if find_spec(name) is None]
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        found.append("java")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Tell the story; return 0 if all was proved, else 1."""
    parser = argparse.ArgumentParser(prog="archive", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="serve the site until Ctrl-C")
    options = parser.parse_args(words)
    if lacking := missing():
        print(
            f"archive: without {' and '.join(lacking)} there is no Spark job, and no story:"
            " `make setup` installs what is missing, or says how",
            file=sys.stderr,
        )
        return 1
    # Whoever ends it, by Ctrl-C or by SIGTERM, ends what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            TemporaryDirectory(prefix="archive-", ignore_cleanup_errors=True) as folder,
            ExitStack() as stack,
        ):
            story = Story(Path(folder), stack)
            is_proved = story.tell()
            if options.keep:
                print(f"\n{story.address}/workstealing/ is served until Ctrl-C", flush=True)
                with suppress(KeyboardInterrupt):
                    signal.pause()
            return 0 if is_proved else 1
    except WorkStealingError as error:
        print(f"archive: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(STOPPED)
    return 1
