"""The example on a real cluster, of which an executor and a worker are killed amid their work."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.pipeline_runs import PipelineRun
from support.servers import RedisServer
from support.spark_cluster import Process, StandaloneCluster
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import ShardedIck, TrackedSet, VolatileHashes

pytestmark = [pytest.mark.spark_cluster, pytest.mark.slow]

BLOCKED = """
SELECT application_name FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
  AND application_name LIKE 'index: pid %'
"""


@contextlib.contextmanager
def task_at_work(
    run: PipelineRun, cluster: StandaloneCluster, database: str
) -> Iterator[tuple[Process, int]]:
    """Hold a task in the midst of its work; yield its executor, and how many tasks that has done.

    Nobody can write search rows as long as the table is locked.
    """
    with psycopg.connect(database) as lock, psycopg.connect(database, autocommit=True) as looking:
        lock.execute("LOCK TABLE search IN SHARE ROW EXCLUSIVE MODE")

        def look() -> Process | None:
            # A transaction would see the same clients for ever.
            for (name,) in looking.execute(BLOCKED).fetchall():
                pid = int(name.split()[2])
                executor = cluster.executor_of(pid)
                if executor is not None:
                    return executor
            return None

        executor: Process = run.wait(look, "a task that waits for the lock")
        yield executor, run.tasks_done()[executor.option("--executor-id")]


def sum_of_versions(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT sum(version) FROM documents").fetchone()
    assert row is not None
    return int(row[0])


def children_of(cluster: StandaloneCluster, executor: Process) -> set[int]:
    """Return the executor's own id and those of its Python processes."""
    processes = cluster.processes()
    return {each.pid for each in processes if cluster.executor_of(each.pid) == executor}


def test_nothing_is_lost_when_an_executor_and_a_worker_are_killed(
    spark_cluster: Callable[..., StandaloneCluster],
    pipeline_database: str,
    redis7: RedisServer,
    tmp_path: Path,
) -> None:
    database = pipeline_database
    # Where the servers are, executors learn from the environment of their workers.
    environment = {"PIPELINE_DATABASE": database, "WORKSTEALING_REDIS_URL": redis7.url}
    cluster = spark_cluster(workers=2, cores=2, environment=environment)
    enough = tmp_path / "enough"
    options = ("--master", cluster.url, "--until", str(enough), "--documents", "300")
    with PipelineRun(*options, "--pace", "40", environment=environment) as run:
        run.wait(lambda: run.said_after("Spark "), "Spark's pages")
        run.wait(
            lambda: sum(done > 1 for done in run.tasks_done().values()) >= 2,
            "two executors that have done tasks",
        )
        attempts = run.second_attempts()
        changes = sum_of_versions(database)

        with task_at_work(run, cluster, database) as (executor, done):
            assert done > 0
            doomed = children_of(cluster, executor)
            assert len(doomed) > 1
            cluster.kill_executor(executor)
            gone = lambda: not doomed & {each.pid for each in cluster.processes()}  # noqa: E731
            cluster.wait(gone, "a killed executor's Python processes to end")
        run.wait(lambda: run.second_attempts() > attempts, "a second attempt to succeed")
        attempts = run.second_attempts()
        assert sum_of_versions(database) > changes, "nobody changed documents meanwhile"
        changes = sum_of_versions(database)

        with task_at_work(run, cluster, database) as (executor, done):
            assert done > 0
            doomed = children_of(cluster, executor)
            cluster.kill_worker(executor.parent)
            cluster.wait(gone, "a killed worker's children to end")
        run.wait(lambda: run.second_attempts() > attempts, "another second attempt to succeed")
        cluster.wait(lambda: cluster.alive_workers() == 1, "the master to miss the worker")
        assert sum_of_versions(database) > changes, "nobody changed documents meanwhile"

        enough.touch()
        assert run.ended() == 0, run.said
        assert len(run.said_after("proved: ")) == 5, run.said
        assert "FAILED" not in run.said
        (collected,) = re.findall(r"hash_field_expiry.*, (\d+) items", run.said)
        assert int(collected) > 0
        run.wait_until_gone()

    # And once more by what PostgreSQL and Redis hold themselves.
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT documents.version, search.version,"
            " search.words = to_tsvector('english', documents.title || ' ' || documents.body)"
            " FROM documents LEFT JOIN search USING (id)"
        ).fetchall()
    assert len(rows) == 300
    assert all(version == indexed and is_right for version, indexed, is_right in rows)
    client: Any = redis7.client()
    for shard in ShardedIck(client, "pipeline:dirty").stats()["shards"]:
        assert (shard["pset_size"], shard["cset_size"], shard["dead_size"]) == (0, 0, 0)
    hashes = VolatileHashes(client, "pipeline")
    assert HashFieldExpiry(hashes).backlog().count == 0
    # Every summary has expired, and none occupies memory: only tasks have collected them.
    assert list(client.scan_iter("summary:*")) == []
    assert TrackedSet(client, "pipeline:behind", sub_sets=8).count() == 0
