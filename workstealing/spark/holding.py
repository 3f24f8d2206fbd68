"""A sweep that its caller holds: it goes on in a thread, to be looked at, ended or awaited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workstealing.clock import Duration, seconds_of
from workstealing.spark.sessions import cancel_group, is_remote
from workstealing.spark.stages import TurnResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS = 0.2
_CANCEL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep has come; the counts are those of the rounds that have ended.

    Fields: state: "running", "done", "cancelled" or "failed"; job: its name, "" as long as nobody
    has looked; parts: how many it has, and left: how many of them are not drained; rounds; turns:
    how many parts have ended their turn in the round that runs now, None where nobody tells; items;
    aborted; failed; operations: Redis commands; seconds: since the sweep began.
    """

    state: str = "running"
    job: str = ""
    parts: int = 0
    left: int = 0
    rounds: int = 0
    turns: int | None = None
    items: int = 0
    aborted: int = 0
    failed: int = 0
    operations: int = 0
    seconds: float = 0.0


class SweepWatch:
    """What a running sweep tells, and asks whether to go on."""

    def begun(self, job: str, parts: int) -> None:
        """Hear of the job and of its parts."""

    def ended_round(self, number: int, left: int, totals: Sequence[TurnResult]) -> None:
        """Hear of what all rounds have done so far, by part."""

    def require_going(self) -> None:
        """See whether a further round may begin. Raises: CancelledError if none may."""

    def sleep(self, seconds: float) -> None:
        """Pause between two rounds."""
        time.sleep(seconds)


class _HeldWatch(SweepWatch):
    """The watch of a sweep that is held: it keeps the progress, and hears of a `cancel`."""

    def __init__(self) -> None:
        self.progress = SweepProgress()
        self.is_cancelled = threading.Event()

    def begun(self, job: str, parts: int) -> None:
        """Hear of the job and of its parts."""
        self.progress = replace(self.progress, job=job, parts=parts, left=parts)

    def ended_round(self, number: int, left: int, totals: Sequence[TurnResult]) -> None:
        """Hear of what all rounds have done so far, by part."""
        self.progress = replace(
            self.progress,
            left=left,
            rounds=number,
            items=sum(each.items for each in totals),
            aborted=sum(each.aborted for each in totals),
            failed=sum(each.failed for each in totals),
            operations=sum(each.operations for each in totals),
        )

    def require_going(self) -> None:
        """See whether a further round may begin. Raises: CancelledError if none may."""
        if self.is_cancelled.is_set():
            raise CancelledError(
                f"the sweep was cancelled after {self.progress.rounds} rounds; what it has done"
                " stays done"
            )

    def sleep(self, seconds: float) -> None:
        """Pause between two rounds, until somebody cancels."""
        self.is_cancelled.wait(seconds)


class SweepHandle:
    """A sweep that goes on while its caller does something else.

    Arguments:
        group: the job group of its stages.
        run: the sweep; it is called once, in a thread.
    """

    def __init__(
        self, spark: SparkSession, group: str, run: Callable[[SweepWatch], DataFrame]
    ) -> None:
        self._spark: Any = spark
        self._group = group
        self._run = run
        self._watch = _HeldWatch()
        self._is_over = threading.Event()
        self._result: DataFrame | None = None
        self._error: BaseException | None = None
        self._began = self._ended = time.monotonic()
        thread = _thread_of(spark, self._work)
        thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._is_over.is_set()

    def progress(self) -> SweepProgress:
        """Say how far it has come. Raises nothing; no round trip to Redis, some calls of the JVM.

        It can be asked after its end, too.
        """
        known = self._watch.progress
        if self.is_done:
            return replace(known, seconds=self._ended - self._began)
        return replace(
            known, turns=_turns(self._spark, self._group), seconds=time.monotonic() - self._began
        )

    def cancel(self, seconds: Duration = _CANCEL_SECONDS) -> bool:
        """End it: no further round begins, and the stage that runs is cancelled.

        What is done stays done, because a sweep consists of slices. Spark ends the Python workers
        some seconds later.

        Arguments:
            seconds: how long to wait for the end, in seconds or a timedelta.

        Returns: whether it has ended. Raises nothing of Spark's.
        """
        until = time.monotonic() + seconds_of(seconds, "seconds")
        self._watch.is_cancelled.set()
        # Again and again: a stage may begin at this moment.
        while not self.is_done:
            with suppress(Exception):
                cancel_group(self._spark, self._group)
            left = until - time.monotonic()
            if left <= 0:
                break
            self._is_over.wait(min(_POLL_SECONDS, left))
        return self.is_done

    def result(self, timeout: Duration | None = None) -> DataFrame:
        """Wait for the end, and return what `sweep` returns when it waits itself.

        Arguments:
            timeout: how long to wait, in seconds or a timedelta; None: to the end.

        Raises: TimeoutError if the sweep still goes on then; CancelledError (of concurrent.futures)
        after a `cancel`; what `sweep` raises, such as SessionStoppedError. Ctrl-C ends the waiting,
        and PySpark ends the stage.
        """
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        if not self._is_over.wait(seconds):
            raise TimeoutError("the sweep still goes on: ask again, or cancel() it")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _work(self) -> None:
        state = "failed"
        try:
            self._result = self._run(self._watch)
            state = "done"
        except CancelledError as error:
            self._error, state = error, "cancelled"
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._error = error
            if self._watch.is_cancelled.is_set():
                # Spark's error for a stage that was cancelled.
                state = "cancelled"
                try:
                    self._watch.require_going()
                except CancelledError as cancelled:
                    self._error = cancelled
        finally:
            self._ended = time.monotonic()
            self._watch.progress = replace(self._watch.progress, state=state)
            self._is_over.set()


def _thread_of(spark: object, work: Callable[[], None]) -> threading.Thread:
    """Return a thread with the local properties of this one, such as its scheduler's pool."""
    if not is_remote(spark):
        with suppress(ImportError):
            from pyspark import InheritableThread

            return InheritableThread(target=work, name="workstealing sweep", daemon=True)
    return threading.Thread(target=work, name="workstealing sweep", daemon=True)


def _turns(spark: Any, group: str) -> int | None:
    """Return how many tasks of a group's running stages have ended, None where nobody tells."""
    if is_remote(spark):
        return None
    try:
        tracker = spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
        stages = [each for job in jobs if job and job.status == "RUNNING" for each in job.stageIds]
        found = [tracker.getStageInfo(each) for each in stages]
        ended: int = sum(each.numCompletedTasks for each in found if each)
    except Exception:  # noqa: BLE001 - a look must not fail, and the session may be at its end
        return None
    return ended
