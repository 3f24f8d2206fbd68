"""How a driver hears that something of Spark's has ended: batch queries, streams and stages.

The JVM calls into Python by Py4J's callback server, as PySpark does for `foreachBatch`. Each call
notes an ending and returns; none of them does any work on Spark's listener bus.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from workstealing.clock import SYSTEM_CLOCK
from workstealing.recruiting.faults import FaultLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """A fast exit of the driver.

    Fields: text, for the log, "" for no line; run, the id of a stream's run, which has a line a
    minute at most; is_last, whether the stream is over.
    """

    text: str = ""
    run: str | None = None
    is_last: bool = False


Heard = Callable[[Ending], None]

_faults = FaultLog(SYSTEM_CLOCK)


def _safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - nothing of ours may fail Spark's listener bus
        _faults.report("hearing that something of Spark's has ended", error)


class QueryProxy:
    """The object that Spark calls when a batch query has ended, in a thread of its listener bus.

    Arguments:
        heard: told of each ending.
        is_own: it says whether a query's session is the one that is listened to.

    Other proxies are copies that streams make for their batches: an action inside `foreachBatch`
    enlists, but leaves no line, because the stream has its own.
    """

    def __init__(self, heard: Heard, is_own: Callable[[Any], bool]) -> None:
        self._heard = heard
        self._is_own = is_own

    def onSuccess(self, name: str, execution: Any, nanoseconds: int) -> None:  # noqa: N802
        """Hear of a query that has succeeded."""
        _safely(
            lambda: self._tell(execution, f"query {name} ended after {nanoseconds / 1e9:.2f} s")
        )

    def onFailure(self, name: str, execution: Any, error: Any) -> None:  # noqa: N802, ARG002
        """Hear of a query that has failed."""
        _safely(lambda: self._tell(execution, f"query {name} failed"))

    def _tell(self, execution: Any, text: str) -> None:
        self._heard(Ending(text if self._is_own(execution) else ""))

    # Spark compares the listeners on one bus, and Java asks the object itself.

    def equals(self, other: object) -> bool:
        """Say whether it is this one."""
        return other is self

    def hashCode(self) -> int:  # noqa: N802
        """Return Java's hash."""
        return id(self) & 0x7FFFFFFF

    def toString(self) -> str:  # noqa: N802
        """Return a text for the JVM's log."""
        return "workstealing's listener for queries"

    class Java:
        """Py4J's declaration of what this object is in Java."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)


_LISTENER = "org.apache.spark.sql.util.QueryExecutionListener"


class QueryEar:
    """Hears of a session's batch queries, until it is closed.

    Arguments:
        spark: a classic session.

    Raises: errors of py4j, where the JVM allows no calls into Python.
    """

    def __init__(self, spark: SparkSession, heard: Heard) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as PySpark's own listeners do
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._manager: Any = session.listenerManager()
        self._proxy = QueryProxy(heard, lambda query: bool(session.equals(query.sparkSession())))
        # Py4J makes another Java object of a Python one at each call, and Spark takes a listener
        # away by identity: so one such object is kept in Java.
        kept = gateway.jvm.java.util.ArrayList()
        kept.add(self._proxy)
        self._kept = kept.toArray()
        self._types = gateway.new_array(gateway.jvm.java.lang.Class, 1)
        self._types[0] = gateway.jvm.java.lang.Class.forName(_LISTENER)
        self._call("register")

    def close(self) -> None:
        """Hear no more."""
        self._call("unregister")

    def _call(self, name: str) -> None:
        method = self._manager.getClass().getMethod(name, self._types)
        method.invoke(self._manager, self._kept)


class StreamProxy:
    """The object whose methods Spark calls for events of streams, in the thread of their queue.

    PySpark's own one turns each event into Python objects first, by hundreds of calls into the JVM.
    This one asks for the event's JSON.

    Arguments:
        streams: it is told of each event.
    """

    def __init__(self, streams: StreamEar) -> None:
        self._streams = streams

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """Hear of a start."""
        _safely(lambda: self._streams.started(_text(event.runId()), event.name()))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Hear of a micro-batch's end."""
        _safely(lambda: self._progressed(json.loads(event.progress().json())))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Hear of a stream that waits."""
        _safely(lambda: self._streams.idle(_text(event.runId())))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Hear of a stream's end."""
        _safely(
            lambda: self._streams.ended(
                _text(event.runId()), failed=bool(event.exception().isDefined())
            )
        )

    def _progressed(self, progress: dict[str, Any]) -> None:
        self._streams.progressed(progress["runId"], progress.get("name"), progress["batchId"])

    class Java:
        """Py4J's declaration of what this object is in Java."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class StreamEar(StreamingQueryListener):
    """Hears of the streams of a session, by Spark Connect too.

    No call yet: `open` registers it.
    """

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._names: dict[str, str] = {}
        self._spark: SparkSession | None = None

    def open(self, spark: SparkSession) -> StreamEar:
        """Hear of the session's streams from now on. Raises: errors of PySpark."""
        spark.streams.addListener(self)
        self._spark = spark
        return self

    def close(self) -> None:
        """Hear no more."""
        if self._spark is not None:
            self._spark.streams.removeListener(self)

    def started(self, run: str, name: str | None) -> None:
        """Note the name of a run."""
        self._names[run] = f"stream {name}" if name else f"stream {run[:8]}"

    def progressed(self, run: str, name: str | None, batch: int) -> None:
        """Tell of a micro-batch that has ended."""
        if run not in self._names:
            # It had started before anybody listened.
            self.started(run, name)
        self._heard(Ending(f"{self._names[run]} has done batch {batch}", run))

    def idle(self, run: str) -> None:  # noqa: ARG002 - a wait leaves no line
        """Tell of a stream that waits for data."""
        self._heard(Ending())

    def ended(self, run: str, *, failed: bool) -> None:
        """Tell of a stream's end."""
        name = self._names.pop(run, f"stream {run[:8]}")
        self._heard(Ending(f"{name} {'failed' if failed else 'ended'}", run, is_last=True))

    # PySpark's own interface, which Spark Connect calls in this process.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Hear of a start."""
        _safely(lambda: self.started(str(event.runId), event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Hear of a micro-batch's end."""
        progress = event.progress
        _safely(lambda: self.progressed(str(progress.runId), progress.name, progress.batchId))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Hear of a stream that waits."""
        _safely(lambda: self.idle(str(event.runId)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Hear of a stream's end."""
        _safely(lambda: self.ended(str(event.runId), failed=event.exception is not None))

    @property
    def _jlistener(self) -> Any:
        from pyspark import SparkContext

        if not hasattr(self, "_java"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - as in the class above this one
            self._java = jvm.PythonStreamingQueryListenerWrapper(StreamProxy(self))
        return self._java


class StageWatch:
    """Says which stages have ended since it was last asked.

    The watch asks Spark's status tracker; a stage that began and ended between two questions is not
    seen. A listener for stages would be called for each task too, in Python.

    Arguments:
        spark: a classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._active: set[int] = set()

    def ended(self) -> set[int]:
        """Return the stages that have ended. One round trip to the JVM."""
        before, self._active = self._active, set(self._tracker.getActiveStageIds())
        return before - self._active


def _text(java: Any) -> str:
    return str(java.toString())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_faults.after_fork)
