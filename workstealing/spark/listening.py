"""listen(): the driver enlists when a query, a micro-batch or a stage has ended, and logs a line.

Tasks that run in the JVM alone have no Python in which they could enlist. The driver is idle when
their query ends, so it enlists there.

Recruits are also shown in Spark's own pages: a page of its UI, and gauges among its metrics.
Spark shows an accumulator on a stage's page only if tasks in the JVM have added to it, and its
plugins and metrics sources are classes of the JVM. So both ways here are made of objects that Spark
and Scala bring along: nothing of Python is called when somebody reads them.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from pyspark.sql import SparkSession

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError
from workstealing.recruiting.faults import FaultLog, log_safely
from workstealing.recruiting.recruiter import Recruiter
from workstealing.recruiting.slice import OUTCOMES
from workstealing.spark import workers
from workstealing.spark.counting import JobTotals, Recruits
from workstealing.spark.hearing import Ending, QueryEar, StageWatch, StreamEar
from workstealing.spark.making import checked_path
from workstealing.spark.sessions import is_remote
from workstealing.spark.workers import EpilogueSettings, WorkerRecruiter, worker_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark import SparkContext


PAGE = "/workstealing"
"""The path of the page in Spark's UI; `/json` below it has the same figures for programs."""
FIGURES = ("enlisted", "recruited", *OUTCOMES, "items")
"""The figures of a line and of the gauges, each summed over all jobs."""

_HEAD = ("job", "recruited", *OUTCOMES, "items", "seconds")


def figures_of(totals: Recruits) -> dict[str, int]:
    """Return the totals of all jobs together, by the names in `FIGURES`."""
    jobs = [asdict(job) for job in totals.jobs.values()]
    summed = {figure: sum(job[figure] for job in jobs) for figure in FIGURES[1:]}
    return {FIGURES[0]: totals.enlisted, **summed}


def as_json(totals: Recruits, application: str, at: datetime) -> str:
    """Return the totals as the page's JSON.

    Arguments:
        application: its id.
        at: when they were read.

    Returns: an object of application, at, totals (by the names in `FIGURES`) and jobs (by name, as
    of `JobTotals`).
    """
    return json.dumps(
        {
            "application": application,
            "at": at.astimezone(UTC).isoformat(timespec="seconds"),
            "totals": figures_of(totals),
            "jobs": {name: asdict(job) for name, job in totals.jobs.items()},
        }
    )


def as_page(totals: Recruits, application: str, at: datetime) -> str:
    """Return the totals as a page of HTML, in the style of Spark's own. Arguments as of `as_json`.

    The page has no script, and its links are relative, so that it works behind YARN's proxy.
    """
    sums = figures_of(totals)
    all_jobs = JobTotals(
        **{name: sums[name] for name in FIGURES[1:]},
        seconds=sum(job.seconds for job in totals.jobs.values()),
    )
    rows = [_row(escape(name), job) for name, job in totals.jobs.items()]
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in _HEAD)
    read_at = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Recruits</title>
<meta http-equiv="refresh" content="10">
<link rel="stylesheet" href="../static/bootstrap.min.css">
<link rel="stylesheet" href="../static/webui.css"></head>
<body><div class="container-fluid">
<h3>Recruits of {escape(application)}</h3>
<p>{totals.enlisted:,} enlisted, {all_jobs.recruited:,} recruited, {all_jobs.items:,} items handled.
Read at {read_at}. <a href="../jobs/">Spark's pages</a>, <a href="json">JSON</a></p>
<table class="table table-bordered table-sm table-striped">
<thead><tr>{head}</tr></thead>
<tbody>{"".join(rows)}{_row("<b>all</b>", all_jobs)}</tbody></table>
</div></body></html>
"""


def _row(name: str, job: JobTotals) -> str:
    counts = [getattr(job, figure) for figure in _HEAD[1:-1]]
    cells = [name, *(f"{count:,}" for count in counts), f"{job.seconds:,.3f}"]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


class RecruitsPage:
    """A page of a running UI of Spark's, and its JSON.

    Spark's servlet asks one function for a result and another for its text. Scala's maps are
    functions, so two of them serve the text that was put there last.

    Arguments:
        context: whose application has a UI.

    Raises: errors of py4j where this version of Spark has no such servlet.
    """

    def __init__(self, context: SparkContext) -> None:
        jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no public way into the JVM
        scala = context._jsc.sc()  # noqa: SLF001
        self._application = str(context.applicationId)
        self._texts = _singleton(jvm.scala.collection.concurrent, "TrieMap$").empty()
        self.show(Recruits(0, {}), datetime.now(UTC))
        self._ui = scala.ui().get()
        utils = _singleton(jvm.org.apache.spark.ui, "JettyUtils$")
        parameters = getattr(jvm.org.apache.spark.ui, "JettyUtils$ServletParams")
        always = _singleton(jvm.scala.collection.immutable, "Map$").empty()
        self._handlers = [
            utils.createServletHandler(
                path,
                parameters(always.withDefaultValue(path), kind, self._texts),
                scala.conf(),
                "",
            )
            for path, kind in ((PAGE, "text/html"), (f"{PAGE}/json", "application/json"))
        ]
        for handler in self._handlers:
            self._ui.attachHandler(handler)

    def show(self, totals: Recruits, at: datetime) -> None:
        """Put other figures on the page. Two round trips to the JVM."""
        self._texts.put(PAGE, as_page(totals, self._application, at))
        self._texts.put(f"{PAGE}/json", as_json(totals, self._application, at))

    def close(self) -> None:
        """Take the page out of the UI."""
        for handler in self._handlers:
            self._ui.detachHandler(handler)


class RecruitGauges:
    """The totals as gauges of Spark's metrics, by the source "AccumulatorSource".

    Each is a long accumulator of the driver with a name, `workstealing.recruited` and so on, which
    `LongAccumulatorSource` shows to every sink that the application has. The gauges stay for the
    application's life, because Spark has no way to take one of them out.

    Raises: errors of py4j.
    """

    def __init__(self, context: SparkContext) -> None:
        self._shown = dict.fromkeys(FIGURES, 0)
        jvm: Any = context._jvm  # noqa: SLF001
        scala = context._jsc.sc()  # noqa: SLF001
        self._accumulators: Mapping[str, Any] = {
            figure: scala.longAccumulator(f"workstealing.{figure}") for figure in FIGURES
        }
        named = jvm.java.util.HashMap()
        for figure, accumulator in self._accumulators.items():
            named.put(f"workstealing.{figure}", accumulator)
        source = _singleton(jvm.org.apache.spark.metrics.source, "LongAccumulatorSource$")
        source.register(scala, jvm.PythonUtils.toScalaMap(named))

    def show(self, totals: Recruits) -> None:
        """Bring the gauges up to the totals. One round trip to the JVM for each that changed."""
        for figure, value in figures_of(totals).items():
            change = value - self._shown[figure]
            if change:
                self._accumulators[figure].add(change)
                self._shown[figure] = value


def gauges_of(context: SparkContext) -> RecruitGauges:
    """Return the application's gauges, the same ones every time."""
    found = _gauges.get(context)
    if found is None:
        found = _gauges[context] = RecruitGauges(context)
    return found


_gauges: WeakKeyDictionary[SparkContext, RecruitGauges] = WeakKeyDictionary()


def _singleton(package: Any, name: str) -> Any:
    """Return an object of Scala's by the name of its class."""
    return getattr(getattr(package, name), "MODULE$")


LOGGER = logging.getLogger("workstealing.spark")
MOST_WAITING = 1_000
"""So many endings wait for the listener's thread at most; further ones are passed over."""
LOOK_SECONDS = 1.0
READ_SECONDS = 10.0
LINE_SECONDS = 60.0
_STOP_SECONDS = 5.0
_SPOKEN = ("enlisted", "recruited", "items", "aborted", "failed")


class DriverListener:
    """Enlists for each ending that it hears of, by a thread of its own, and logs a line for some.

    Nothing of it raises into Spark, and Spark's threads never wait for it. The listener ends by
    `stop()`, or by itself when its session has been stopped; a child of a fork has none.

    Arguments:
        totals: it returns the figures of the application.
        stages: it returns those that have ended, asked once a second.
        shows: told of the totals when they were read.
        has_ended: it says whether the session is over.

    `start()` begins.
    """

    def __init__(
        self,
        enlist: Callable[[], object],
        totals: Callable[[], Recruits],
        *,
        stages: Callable[[], set[int]] | None = None,
        shows: Sequence[Callable[[Recruits], None]] = (),
        has_ended: Callable[[], bool] = lambda: False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._enlist, self._totals, self._stages = enlist, totals, stages
        self._shows, self._has_ended, self._clock = shows, has_ended, clock
        self._ears: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._last = figures_of(Recruits(0, {}))
        self._spoken_at: dict[str, float] = {}
        self._next_look = self._next_read = self._blind_until = clock.monotonic()
        self._after_fork(is_closed=False)
        _LISTENERS.add(self)

    def _after_fork(self, *, is_closed: bool = True) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Ending] = deque()
        self._closed = is_closed

    @property
    def is_running(self) -> bool:
        """Whether it hears of endings."""
        return not self._closed and self._thread is not None

    def start(self, *ears: Callable[[], None]) -> DriverListener:
        """Begin.

        Arguments:
            ears: functions that end the hearing.

        Returns: itself.
        """
        self._ears.extend(ears)
        self._thread = threading.Thread(target=self._run, name="workstealing-listener", daemon=True)
        self._thread.start()
        atexit.register(self._close)
        return self

    def heard(self, ending: Ending) -> None:
        """Note an ending for the thread, and return at once."""
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                return
            self._waiting.append(ending)
            self._changed.notify()

    def stop(self) -> None:
        """Hear no more; serve what has been heard, for at most 5 seconds. Again: no change."""
        if not (self._closed or self._has_ended()):
            for close in self._ears:
                self._guarded("leaving Spark's listeners", close)
        self._close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        # Earlier figures are in no line.
        self._last = self._read() or self._last
        while True:
            with self._changed:
                if not (self._waiting or self._closed):
                    self._changed.wait(LOOK_SECONDS)
                waiting, self._waiting = self._waiting, deque()
                is_last = self._closed
            for ending in waiting:
                self.serve(ending)
            if is_last:
                break
            if self._has_ended():
                self._close()
            else:
                self.look()
        atexit.unregister(self._close)

    def serve(self, ending: Ending) -> None:
        """Enlist for an ending, and log its line if it has one that is due."""
        self._guarded("an enlist of Spark's driver", self._enlist)
        if ending.text and self._is_due(ending) and LOGGER.isEnabledFor(logging.INFO):
            log_safely(LOGGER, logging.INFO, "%s; %s", ending.text, self._figures())

    def look(self) -> None:
        """Enlist if a stage has ended since the last look, and read the totals for Spark's pages.

        Each at its own times: a stage every second, the totals every ten.
        """
        now = self._clock.monotonic()
        if self._stages is not None and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            if self._guarded("looking for ended stages", self._stages):
                self._guarded("an enlist of Spark's driver", self._enlist)
        if self._shows and now >= self._next_read:
            self._read()

    def _is_due(self, ending: Ending) -> bool:
        if ending.run is None:
            return True
        if ending.is_last:
            self._spoken_at.pop(ending.run, None)
            return True
        now = self._clock.monotonic()
        if now - self._spoken_at.get(ending.run, now - LINE_SECONDS) < LINE_SECONDS:
            return False
        self._spoken_at[ending.run] = now
        return True

    def _figures(self) -> str:
        read = self._read()
        if read is None:
            return "the counts could not be read"
        # A server that has lost its data begins again at zero.
        grown = {name: max(0, read[name] - self._last[name]) for name in _SPOKEN}
        self._last = read
        said = ", ".join(f"{count} {name}" for name, count in grown.items())
        return f"since the last line: {said}"

    def _read(self) -> dict[str, int] | None:
        """Return the totals by figure, and show them; None: they could not be read."""
        now = self._clock.monotonic()
        self._next_read = now + READ_SECONDS
        if now < self._blind_until:
            return None
        totals = self._guarded("reading the counts of Spark's recruits", self._totals)
        if totals is None:
            # A dead server must not cost each line a time-out.
            self._blind_until = now + READ_SECONDS
            return None
        for show in self._shows:
            self._guarded("showing the counts of Spark's recruits", lambda: show(totals))  # noqa: B023
        return figures_of(totals)

    def _guarded(self, subject: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a listener harms nobody
            # A call that was under way when the session was stopped is no fault.
            if not (self._closed or self._has_ended()):
                _faults.report(subject, error)
            return None


def listen(
    spark: SparkSession,
    recruiter: Recruiter | str | None = None,
    *,
    stages: bool = True,
    shown: bool = True,
) -> DriverListener:
    """Let the driver enlist when a query, a micro-batch or a stage of this session has ended.

    An end is a batch query's (collect, count, a write), a micro-batch's, an idle trigger's, a
    stream's, and that of a stage that took longer than about a second. The listener's thread
    enlists; Spark's threads only tell it. The listener logs a line at level INFO to
    `workstealing.spark` for each batch query of this session, one a minute at most for each stream,
    and one at its end.

    Arguments:
        spark: a session, whose later copies by newSession() are not heard.
        recruiter: None for the factory and the counters of `install()`; a Recruiter; or the import
            path of a function that returns one, which the thread calls at the first ending.
        stages: whether to ask Spark once a second which stages run.
        shown: whether to show the totals in Spark's UI at /workstealing and among its metrics.

    Of Spark Connect only streams are heard, and nothing is shown.

    Returns: a `DriverListener`. A process has one; a later call ends the earlier one. Raises:
    ConfigurationError for another session or recruiter, and if install() was not called but is
    needed; errors of py4j where the JVM may not call into Python. Then nothing listens.
    """
    global _listener  # noqa: PLW0603 - a driver has one application
    _require_session(spark)
    enlist, totals = _recruiting(spark, recruiter)
    if _listener is not None:
        _listener.stop()
        _listener = None
    context = None if is_remote(spark) else spark.sparkContext
    shows = _shows(context) if shown and context is not None else _Shows()
    listener = DriverListener(
        enlist,
        totals,
        stages=StageWatch(spark).ended if stages and context is not None else None,
        shows=shows.told,
        has_ended=_end_of(spark, context),
    )
    ears = [*shows.closes]
    try:
        ears.append(StreamEar(listener.heard).open(spark).close)
        if context is not None:
            ears.append(QueryEar(spark, listener.heard).close)
    except BaseException:
        for close in ears:
            close()
        raise
    _listener = listener.start(*ears)
    return listener


class _Shows:
    """Ways in which totals are shown, and how each ends."""

    def __init__(self) -> None:
        self.told: list[Callable[[Recruits], None]] = []
        self.closes: list[Callable[[], None]] = []


def _shows(context: Any) -> _Shows:
    """Return the ways that this application has; a version of Spark without them has none."""
    shows = _Shows()

    def add_page() -> None:
        if context.uiWebUrl:
            page = RecruitsPage(context)
            shows.told.append(lambda totals: page.show(totals, datetime.now(UTC)))
            shows.closes.append(page.close)

    def add_gauges() -> None:
        shows.told.append(gauges_of(context).show)

    for add in (add_page, add_gauges):
        try:
            add()
        except Exception as error:  # noqa: BLE001 - an extra
            _faults.report("showing the counts of Spark's recruits in its pages", error)
    return shows


def _recruiting(
    spark: SparkSession, recruiter: Recruiter | str | None
) -> tuple[Callable[[], object], Callable[[], Recruits]]:
    """Return how to enlist, and how to read the totals."""
    if isinstance(recruiter, Recruiter):
        mine = recruiter
        return mine.enlist, lambda: recruits_of_stats(mine)
    if isinstance(recruiter, str):
        checked_path(recruiter, "the recruiter's factory")
        worker = WorkerRecruiter(EpilogueSettings(recruiter, None, "", 5.0))
        return worker.enlist, lambda: recruits_of_stats(worker.recruiter)
    if recruiter is not None:
        raise ConfigurationError(
            f"listen() was given {recruiter!r}; expected a Recruiter, the import path of a function"
            ' that returns one ("package.module:function"), or nothing after install()'
        )
    from workstealing.spark.installing import accumulated, installed, recruits

    installation = installed()
    settings = installation.settings

    def enlist() -> None:
        workers.finish(settings)

    if settings.counters is not None:
        return enlist, lambda: recruits(spark)
    if installation.accumulator is not None:
        return enlist, lambda: accumulated(spark)
    return enlist, lambda: recruits_of_stats(worker_of(settings).recruiter)


def recruits_of_stats(recruiter: Recruiter | None) -> Recruits:
    """Return a recruiter's own figures in the shape of an application's; None: of no recruiter."""
    if recruiter is None:
        return Recruits(0, {})
    stats = recruiter.stats()
    names = [field.name for field in fields(JobTotals)]
    return Recruits(
        stats["enlisted"],
        {
            job: JobTotals(**{name: figures[name] for name in names})  # type: ignore[literal-required]
            for job, figures in stats["jobs"].items()
        },
    )


def _require_session(spark: object) -> None:
    if not (is_remote(spark) or isinstance(spark, SparkSession)):
        raise ConfigurationError(
            f"listen() expects a SparkSession, not {type(spark).__name__}: call it after"
            " getOrCreate()"
        )


def _end_of(spark: Any, context: Any) -> Callable[[], bool]:
    """Return a function that says whether the session has been stopped. No round trip."""
    if context is None:
        return lambda: bool(getattr(spark, "is_stopped", False))
    return lambda: context._jsc is None  # noqa: SLF001 - there is no public way to ask


assert set(_SPOKEN) <= set(FIGURES)
_faults = FaultLog(SYSTEM_CLOCK)
_LISTENERS: WeakSet[DriverListener] = WeakSet()
_listener: DriverListener | None = None


def _after_fork_in_child() -> None:
    _faults.after_fork()
    for listener in list(_LISTENERS):
        listener._after_fork()  # noqa: SLF001 - this module's own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
