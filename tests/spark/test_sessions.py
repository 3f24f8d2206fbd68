"""Stages of ours can be found in Spark's UI, and those of the application keep their own names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support.processes import RUN
from workstealing.spark.sessions import cores_of, named, run_each

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
