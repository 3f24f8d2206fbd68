"""RQ's leftovers, made by RQ itself, and its own writers against each rule."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rq
from rq.exceptions import InvalidJobOperation
from rq.job import Job
from rq.registry import CanceledJobRegistry, FailedJobRegistry
from rq.worker_registration import clean_worker_registry

from support import rq_owner
from support.owners import age, attempt_by, chosen, collected, owned, slices_by, waited
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.jobs import RqLeftovers
from workstealing.jobs.leftovers import LIVE, Garbage, Item, Rule, Verdicts, look, member_removed
from workstealing.jobs.rq_leftovers import (
    DeadWorkers,
    EndedJobs,
    GhostJobs,
    OrphanedResults,
    StrandedJobs,
    WorkersWithoutBirth,
)
from workstealing.testing import assert_safe

TESTS = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = pytest.mark.real


@pytest.fixture
def client(redis7: RedisServer) -> Any:
    return redis7.client()


@pytest.fixture
def queue(client: Any) -> rq.Queue:
    return rq.Queue(connection=client)


@pytest.fixture
def worker(redis7: RedisServer) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "support.rq_owner", redis7.url, kind]
        started.append(spawn(command, env={**os.environ, "PYTHONPATH": str(TESTS)}))
        return started[-1]

    yield start
    for each in started:
        end(each)


def leftovers(client: Any, **options: Any) -> RqLeftovers:
    return RqLeftovers(client, dry_run=False, random=chosen(), **options)


def deserted(client: Any, queue: rq.Queue) -> str:
    """Leave the name of a worker whose hash has ended; return its key."""
    worker = rq.SimpleWorker([queue], connection=client)
    worker.register_birth()
    client.delete(worker.key)
    return str(worker.key)


def gone(client: Any, job: RqLeftovers) -> int:
    """Collect with two sightings of everything."""
    first = collected(job)
    age(client)
    return first + collected(job)


class TestKilled:
    pytestmark = pytest.mark.slow

    def test_a_ghost_and_the_names_of_its_worker(
        self,
        client: Any,
        queue: rq.Queue,
        worker: Callable[[str], subprocess.Popen[bytes]],
    ) -> None:
        job = queue.enqueue(rq_owner.wait, result_ttl=0)
        dying = worker("dying")
        waited(lambda: job.get_status() == "started")
        (name,) = client.smembers("rq:workers")
        # RQ itself looks for dead workers when another one starts.
        alive = worker("live")
        first = queue.enqueue(rq_owner.add, 1, 1)
        waited(lambda: first.return_value(refresh=True) == 2)
        (own,) = client.smembers("rq:workers") - {name}

        job.delete()
        dying.wait(PATIENCE)
        assert client.hkeys(job.key) == [b"last_heartbeat"]
        assert client.ttl(job.key) == -1
        # Its worker's time to live ends.
        client.pexpire(name, 1)
        waited(lambda: not client.exists(name))
        cleaner = leftovers(client)
        assert collected(cleaner) == 0
        results = [queue.enqueue(rq_owner.add, number, 1) for number in range(20)]
        # The ghost, and both registries' names of its worker.
        assert age(client) >= 3
        removed = 0
        while [each for each in results if each.return_value(refresh=True) is None]:
            removed += collected(cleaner, 10)
            assert alive.poll() is None
        removed += collected(cleaner)
        assert removed == 3
        assert [each.return_value() for each in results] == list(range(1, 21))
        assert not client.exists(job.key)
        assert client.smembers("rq:workers") == client.smembers("rq:workers:default") == {own}
        assert len(rq.Worker.all(client)) == 1

    def test_nothing_that_works_is_removed(
        self,
        client: Any,
        queue: rq.Queue,
        worker: Callable[[str], subprocess.Popen[bytes]],
    ) -> None:
        worker("live")
        parent = queue.enqueue(rq_owner.fail)
        child = queue.enqueue(rq_owner.add, 1, 2, depends_on=parent)
        cleaner = leftovers(client, retention=3_600)
        for number in range(10):
            done = queue.enqueue(rq_owner.add, number, 1)
            waited(lambda done=done: done.return_value(refresh=True) is not None)
            assert gone(client, cleaner) == 0
        assert parent.get_status() == "failed"
        assert child.get_status() == "deferred"
        # Nor when the retention is past: one depends on it.
        assert gone(client, leftovers(client, name="late", retention=0.001)) == 0
        queue.connection.delete(parent.dependents_key)
        waited(lambda: collected(leftovers(client, name="later", retention=0.001)))
        assert not client.exists(parent.key)


def test_cancelled_and_failed_jobs_go_after_their_retention(client: Any, queue: rq.Queue) -> None:
    cancelled = [queue.enqueue(rq_owner.add, 1, 2) for _ in range(5)]
    for each in cancelled:
        each.cancel()
    failed = [_failed(queue) for _ in range(3)]
    waits = queue.enqueue(rq_owner.add, 1, 2)
    before = owned(client)
    assert gone(client, leftovers(client)) == 0
    assert gone(client, leftovers(client, name="long", retention=3_600)) == 0
    assert owned(client) == before
    cleaner = leftovers(client, name="short", retention=0.001)
    assert leftovers(client, name="short", retention=0.001).backlog(60.0).count == 8
    assert collected(cleaner) == 8
    assert set(owned(client)) == {
        b"rq:queue:default",
        b"rq:queues",
        waits.key.encode(),
    }
    assert not [each for each in (*cancelled, *failed) if Job.exists(each.id, client)]


def test_a_requeued_job_stays(client: Any, queue: rq.Queue) -> None:
    job = _failed(queue)
    FailedJobRegistry(queue=queue).requeue(job.id)
    again = queue.enqueue(rq_owner.add, 1, 2)
    again.cancel()
    queue.enqueue_job(again)
    assert client.zcard("rq:canceled:default") == 1
    assert collected(leftovers(client, retention=0.001)) == 0
    assert queue.job_ids == [job.id, again.id]


def test_a_cancelled_job_that_is_executed_or_has_a_rate_limit_stays(
    client: Any, queue: rq.Queue
) -> None:
    executed, limited, gone_by = [queue.enqueue(rq_owner.add, 1, 2) for _ in range(3)]
    for each in (executed, limited, gone_by):
        each.cancel()
    client.zadd(f"rq:executions:{executed.id}", {"one": 1})
    client.hset(limited.key, "rate_limit_key", "calls")
    assert collected(leftovers(client, retention=0.001)) == 1
    assert client.exists(executed.key, limited.key) == 2
    assert not client.exists(gone_by.key)


def test_a_job_whose_requeue_was_killed_goes_after_its_retention(
    client: Any, queue: rq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, finished = _failed(queue), _failed(queue)
    registry = FailedJobRegistry(queue=queue)
    enqueue = rq.Queue._enqueue_job
    with monkeypatch.context() as patched:
        patched.setattr(rq.Queue, "_enqueue_job", _dies)
        for each in (job, finished):
            with pytest.raises(InterruptedError):
                registry.requeue(each)
    assert registry.get_job_ids() == queue.job_ids == []
    assert gone(client, leftovers(client, name="long", retention=3_600)) == 0
    cleaner = leftovers(client, retention=0.001)
    assert collected(cleaner) == 0
    # One goes on late, with the job that it has in its memory.
    age(client)
    assert collected(cleaner) == 2
    assert not client.exists(job.key, finished.key, f"rq:results:{job.id}")
    with client.pipeline() as block:
        enqueue(queue, finished, pipeline=block)
        block.execute()
    assert queue.jobs == [finished]


def _dies(*_: object, **__: object) -> None:
    raise InterruptedError


def test_an_abandoned_job_is_as_old_as_its_last_result(client: Any, queue: rq.Queue) -> None:
    job = _failed(queue)
    client.hset(job.key, "ended_at", "")
    assert collected(leftovers(client, retention=3_600)) == 0
    assert collected(leftovers(client, name="short", retention=0.001)) == 1
    unknown = _failed(queue)
    client.hset(unknown.key, "ended_at", "")
    client.delete(f"rq:results:{unknown.id}")
    assert collected(leftovers(client, name="short", retention=0.001)) == 0
    assert client.exists(unknown.key)


def test_the_place_of_a_job_that_is_gone(client: Any, queue: rq.Queue) -> None:
    job = queue.enqueue(rq_owner.add, 1, 2)
    job.cancel()
    client.delete(job.key)
    client.xadd(f"rq:results:{job.id}", {"type": 1})
    client.expire(f"rq:results:{job.id}", 500)
    assert collected(leftovers(client, retention=3_600)) == 1
    assert not client.exists("rq:canceled:default")
    assert client.exists(f"rq:results:{job.id}")


def test_results_whose_job_was_deleted(client: Any, queue: rq.Queue) -> None:
    jobs = [queue.enqueue(rq_owner.add, number, 1, result_ttl=-1) for number in range(4)]
    rq_owner.Here([queue], connection=client).work(burst=True, logging_level="WARNING")
    assert [each.return_value() for each in jobs] == [1, 2, 3, 4]
    jobs[0].delete()
    client.delete(jobs[1].key)
    orphans = [
        f"rq:results:{each.id}" for each in jobs[:2] if client.exists(f"rq:results:{each.id}")
    ]
    assert orphans
    # Whose else?
    client.xadd("rq:results:mine", {"other": 1})
    assert gone(client, leftovers(client)) == len(orphans)
    assert not client.exists(*orphans)
    assert [each.return_value(refresh=True) for each in jobs[2:]] == [3, 4]
    assert client.exists("rq:results:mine")


def test_a_worker_without_birth(client: Any, queue: rq.Queue) -> None:
    worker = rq.SimpleWorker([queue], connection=client)
    worker.register_birth()
    client.delete(worker.key)
    worker.set_state("busy")
    assert client.ttl(worker.key) == -1
    live = rq.SimpleWorker([queue], connection=client)
    live.register_birth()
    client.persist(live.key)
    # The hash, and then its two names.
    cleaner = leftovers(client)
    assert gone(client, cleaner) == 1
    assert gone(client, cleaner) == 2
    assert client.smembers("rq:workers") == {live.key.encode()}


def test_our_walk_and_theirs_agree(client: Any, queue: rq.Queue) -> None:
    key = deserted(client, queue)
    other = deserted(client, queue)
    assert gone(client, leftovers(client)) == 4
    client.sadd("rq:workers:default", key, other)
    client.sadd("rq:workers", key, other)
    clean_worker_registry(queue)
    assert not client.exists("rq:workers", "rq:workers:default")


def test_what_is_not_rqs_stays(client: Any) -> None:
    client.hset("rq:job:text", mapping={"last_heartbeat": "yesterday"})
    client.hset("rq:job:future", mapping={"last_heartbeat": "2090-01-01T00:00:00.000000Z"})
    client.hset("rq:job:two", mapping={"last_heartbeat": "2020-01-01T00:00:00Z", "more": 1})
    client.hset("other:job:a", mapping={"last_heartbeat": "2020-01-01T00:00:00Z"})
    client.sadd("rq:workers-of-mine", "rq:worker:gone")
    client.sadd("rq:workers", "somebody")
    client.zadd("rq:failed:default", {"unknown": -1, "bare": -1})
    client.hset("rq:job:bare", mapping={"status": "failed"})
    client.hset("rq:job:unknown", mapping={"status": "failed", "ended_at": "never"})
    before = owned(client)
    assert gone(client, leftovers(client, retention=0.001)) == 0
    assert owned(client) == before


def test_a_prefix_of_rq_3(client: Any) -> None:
    for prefix in ("rq", "shop:{1}"):
        client.hset(f"{prefix}:job:a", mapping={"last_heartbeat": "2020-01-01T00:00:00Z"})
        client.sadd(f"{prefix}:workers", f"{prefix}:worker:gone")
        client.zadd(f"{prefix}:canceled:default", {"gone": 1})
    assert gone(client, leftovers(client, prefix="shop:{1}", retention=1)) == 3
    assert set(owned(client)) == {b"rq:job:a", b"rq:workers", b"rq:canceled:default"}


def _failed(queue: rq.Queue) -> Job:
    """Return a job that has failed."""
    job = queue.enqueue(rq_owner.fail)
    worker = rq_owner.Here([queue], connection=queue.connection)
    worker.work(burst=True, logging_level="CRITICAL", max_jobs=1)
    # It would live for a minute.
    queue.connection.delete(worker.key)
    assert job.get_status() == "failed"
    return job


def refuted(
    client: Any,
    rule: Callable[[], Rule],
    writer: Callable[[Any], object],
    *,
    setup: Callable[[Any], object],
    lost: Callable[[Any], str | None],
    slices: int = 2,
) -> None:
    assert_safe(
        lambda each: slices_by(each, [rule()]),
        writer,
        setup=setup,
        lost=lost,
        client=client,
        slices=slices,
        between=lambda clock: clock.advance(86_400),
    )


class TestRefuting:
    """Each command of RQ's own code between each two of the collector's."""

    pytestmark = pytest.mark.slow

    def test_a_job_of_the_name_of_a_ghost(self, client: Any) -> None:
        saved: list[str] = []

        def setup(each: Any) -> None:
            saved.clear()
            Job(id="a", connection=each).heartbeat(_past(), 1)

        def write(each: Any) -> None:
            Job.create(rq_owner.add, (1, 2), id="a", connection=each).save()
            saved.append("a")

        def lost(each: Any) -> str | None:
            return "a job is gone" if saved and not each.hexists("rq:job:a", "data") else None

        refuted(client, GhostJobs, write, setup=setup, lost=lost)

    def test_a_failed_job_is_requeued(self, client: Any, queue: rq.Queue) -> None:
        def of_the_registry(job: Job) -> Item:
            return Item(b"rq:failed:default", job.id.encode())

        self.is_requeued(client, queue, EndedJobs("failed", 0.001), of_the_registry)

    def test_a_requeue_goes_on_late(self, client: Any, queue: rq.Queue) -> None:
        class Seen(StrandedJobs):
            """Its first sighting was a gap ago."""

            def verdict(self, item: Item) -> Verdicts:
                found = yield from super().verdict(item)
                return Garbage(found.removals) if isinstance(found, Garbage) else found

        self.is_requeued(client, queue, Seen(0.001), lambda job: Item(job.key.encode()))

    @staticmethod
    def is_requeued(
        client: Any, queue: rq.Queue, rule: Rule, item_of: Callable[[Job], Item]
    ) -> None:
        job = _failed(queue)
        fields = client.hgetall(job.key)
        state = {key: client.dump(key) for key in client.keys("rq:*")}
        client.flushdb()

        def setup(each: Any) -> None:
            for key, value in state.items():
                each.restore(key, 0, value)

        def write(each: Any) -> None:
            mine = Job(id=job.id, connection=each)
            mine.restore(fields)
            # The collector may have been there first.
            with suppress(InvalidJobOperation):
                FailedJobRegistry(queue=rq.Queue(connection=each)).requeue(mine)

        def lost(each: Any) -> str | None:
            queued = each.lpos("rq:queue:default", job.id) is not None
            return "a queued job is gone" if queued and not each.hget(job.key, "data") else None

        # The attempt alone: with the walk there are too many orders for a test.
        assert_safe(
            lambda each: attempt_by(each, rule, item_of(job)),
            write,
            setup=setup,
            lost=lost,
            client=client,
        )

    def test_a_worker_of_the_name_is_born(self, client: Any) -> None:
        self.is_born(client, DeadWorkers)

    def test_a_rule_that_does_not_watch_the_absent_hash_is_refuted(self, client: Any) -> None:
        class Careless(DeadWorkers):
            def verdict(self, item: Item) -> Verdicts:
                (there,) = yield look(("EXISTS", item.member), watch=b"something else")
                return LIVE if there else member_removed(item.key, "set", item.member or b"")

        with pytest.raises(AssertionError, match="a worker is not registered"):
            self.is_born(client, Careless)

    @staticmethod
    def is_born(client: Any, rule: Callable[[], Rule]) -> None:
        def setup(each: Any) -> None:
            each.sadd("rq:workers", "rq:worker:a")

        def write(each: Any) -> None:
            worker = rq.SimpleWorker(
                [rq.Queue(connection=each)], name="a", connection=each, prepare_for_work=False
            )
            worker.hostname = worker.ip_address = worker.version = worker.python_version = "x"
            worker.pid = 1
            worker.register_birth()

        def lost(each: Any) -> str | None:
            if each.exists("rq:worker:a") and not each.sismember("rq:workers", "rq:worker:a"):
                return "a worker is not registered"
            return None

        refuted(client, rule, write, setup=setup, lost=lost)

    def test_a_worker_goes_on(self, client: Any) -> None:
        alive: list[str] = []

        def setup(each: Any) -> None:
            alive.clear()
            each.hset("rq:worker:a", "last_heartbeat", "2020-01-01T00:00:00Z")

        def write(each: Any) -> None:
            worker = rq.SimpleWorker(
                [rq.Queue(connection=each)], name="a", connection=each, prepare_for_work=False
            )
            with each.pipeline() as pipeline:
                worker.heartbeat(pipeline=pipeline)
                pipeline.execute()
            alive.append("a")

        def lost(each: Any) -> str | None:
            gone = alive and not each.exists("rq:worker:a")
            return "a live worker's hash is gone" if gone else None

        refuted(client, WorkersWithoutBirth, write, setup=setup, lost=lost)

    def test_a_job_with_results_comes_back(self, client: Any) -> None:
        def setup(each: Any) -> None:
            each.xadd("rq:results:a", {"type": 1})

        def write(each: Any) -> None:
            job = Job.create(rq_owner.add, (1, 2), id="a", connection=each, result_ttl=-1)
            with each.pipeline() as pipeline:
                job.save(pipeline=pipeline)
                job._handle_success(-1, pipeline=pipeline)
                pipeline.execute()

        def lost(each: Any) -> str | None:
            if each.exists("rq:job:a") and not each.exists("rq:results:a"):
                return "a job's results are gone"
            return None

        refuted(client, OrphanedResults, write, setup=setup, lost=lost)

    def test_a_job_is_made_to_depend_on_a_cancelled_one(self, client: Any) -> None:
        def setup(each: Any) -> None:
            job = Job.create(rq_owner.add, (1, 2), id="a", connection=each, origin="default")
            job.save()
            each.hset(job.key, "status", "canceled")
            CanceledJobRegistry("default", connection=each).add(job, ttl=-1_000)

        def write(each: Any) -> None:
            with each.pipeline() as pipeline:
                pipeline.watch("rq:job:a")
                if not pipeline.exists("rq:job:a"):
                    return
                child = Job.create(rq_owner.add, (1, 2), id="b", connection=each, depends_on="a")
                pipeline.multi()
                child.register_dependency(pipeline=pipeline)
                pipeline.execute()

        def lost(each: Any) -> str | None:
            if each.exists("rq:job:a:dependents") and not each.exists("rq:job:a"):
                return "a job waits for one that is gone"
            return None

        refuted(client, _ended("canceled"), write, setup=setup, lost=lost, slices=1)


def _ended(status: str) -> Callable[[], Rule]:
    return lambda: EndedJobs(status, 0.001)


def _past() -> Any:
    import datetime as dt

    return dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
