"""Stages of ours can be found in Spark's UI, and those of the application keep their own names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from support.processes import RUN
from workstealing.errors import ConfigurationError, SessionStoppedError
from workstealing.spark import register, schema_of
from workstealing.spark.sessions import cores_of, named, run_each, told_of_a_stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_jobs_are_in_the_group_and_the_callers_own_comes_back(spark: SparkSession) -> None:
    context = spark.sparkContext
    status = context.statusTracker()
    described = "spark.job.description"
    context.setJobGroup("the application's", "its own work")
    try:
        with named(spark, "ours", "workstealing sweep: a round"):
            assert context.getLocalProperty(described) == "workstealing sweep: a round"
            assert run_each(spark, [3, 1, 2], lambda number: number * 2) == [6, 2, 4]
        (job,) = status.getJobIdsForGroup("ours")
        (stage,) = status.getJobInfo(job).stageIds  # type: ignore[union-attr]
        # A task for each, so that one part's fault costs no other one.
        assert status.getStageInfo(stage).numTasks == 3  # type: ignore[union-attr]
        with pytest.raises(ZeroDivisionError), named(spark, "ours", "a fault"):
            raise ZeroDivisionError
        assert context.getLocalProperty(described) == "its own work"
        assert context.getLocalProperty("spark.jobGroup.id") == "the application's"
        context.parallelize([1], 1).count()
        assert cores_of(spark) == 2
        assert list(status.getJobIdsForGroup("ours")) == [job]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty(described, None)


def test_what_a_killed_jvm_leaves_lies_in_the_runs_folder(spark: SparkSession) -> None:
    """A JVM does not look at TMPDIR: hundreds of Spark's folders were left."""
    system = spark.sparkContext._jvm.java.lang.System
    assert system.getProperty("java.io.tmpdir") == RUN
    if RUN != "/tmp":
        assert os.environ["SPARK_LOCAL_DIRS"] == RUN


class Stopped:
    """A session as PySpark leaves one that was stopped, or while it stops it."""

    def __init__(self, of_the_jvm: object) -> None:
        self.sparkContext = self
        self._jsc = of_the_jvm

    def sc(self) -> Stopped:
        return self

    def isStopped(self) -> bool:  # noqa: N802
        return True


def test_whatever_a_stopped_session_raises_is_one_sentence_of_ours(spark: SparkSession) -> None:
    @told_of_a_stop("sweep()")
    def work(_: object, error: Exception) -> None:
        raise error

    stopped: Any = Stopped(None)
    for session in (stopped, Stopped(stopped)):
        for error in (AttributeError("'NoneType' has no attribute 'sc'"), RuntimeError("Job 7")):
            with pytest.raises(SessionStoppedError, match=r"before sweep\(\) had ended") as told:
                work(session, error)
            assert told.value.__cause__ is error
        # It says itself what is wrong.
        with pytest.raises(ConfigurationError, match="no job"):
            work(session, ConfigurationError("no job"))
    for call in (register, schema_of):
        with pytest.raises(SessionStoppedError, match=rf"before {call.__name__}\(\) had ended"):
            call(stopped)
    # A session that goes on, and a JVM that does not tell.
    others: tuple[object, ...] = (spark, Stopped(object()))
    for other in others:
        with pytest.raises(LookupError):
            work(other, LookupError())
