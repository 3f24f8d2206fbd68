"""Recruits in Spark's own pages: a page of its UI, and gauges among its metrics.

Spark shows an accumulator on a stage's page only if tasks in the JVM have added to it, and its
plugins and metrics sources are classes of the JVM. So both ways here are made of objects that Spark
and Scala bring along: nothing of Python is called when somebody reads them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workstealing.recruiting.slice import OUTCOMES
from workstealing.spark.counting import JobTotals, Recruits

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
