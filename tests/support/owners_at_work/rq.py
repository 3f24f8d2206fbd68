"""RQ: jobs are enqueued, worked, cancelled, failed, requeued and deleted by RQ itself."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import rq
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry

from support import rq_owner
from support.killed_journal import Work
from support.owners_at_work.owner import DAY, Owner
from workstealing.jobs import RqLeftovers
from workstealing.jobs.leftovers import Item, Leftovers, Removal, Verdicts, look
from workstealing.jobs.leftovers.rule import Garbage
from workstealing.jobs.rq_leftovers import EndedJobs

# A job that was cancelled or has failed is garbage at once.
RETENTION = 0.001
# So that a job is not failed by RQ because its worker was killed.
AGAIN = rq.Retry(max=100_000)
# Another process, or the collector, was first; RQ's `delete` raises a ValueError if a worker ends
# the job's execution between its two looks.
GONE = (InvalidJobOperation, NoSuchJobError, ValueError)


class Rq(Owner):
    """RQ."""

    name = "rq"

    def jobs(self, client: Any) -> list[Any]:
        """Return the job, with a retention that is over at once."""
        if self.planted:
            return [Leftovers(client, [Careless("canceled", RETENTION)], name="p", dry_run=False)]
        return [RqLeftovers(client, retention=RETENTION, gap=DAY, dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Return one of RQ's operations, by chance."""
        logging.disable(logging.CRITICAL)
        process = Process(self.connected(), work)
        return process.operate

    def passes(self, client: Any, alive: set[int]) -> None:
        """Let the hashes of dead workers end."""
        with client.pipeline(transaction=False) as block:
            for each in client.smembers("rq:workers"):
                if int(each.rpartition(b":")[2].partition(b"-")[0]) not in alive:
                    block.pexpire(each, 1)
            block.execute()

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return the jobs that RQ does not find, or that lack their call."""
        absent = []
        for at in range(0, len(items), 500):
            some = list(items)[at : at + 500]
            for name, job in zip(some, _fetched(some, client), strict=True):
                if job is None or job.func_name != items[name]:
                    absent.append(name)
        return absent

    def left(self, client: Any) -> list[str]:
        """Return ghosts, ended jobs, their places, names of dead workers, results of no job."""
        left = []
        for key in client.scan_iter(match="rq:job:*", count=1_000, _type="hash"):
            status, data = client.hmget(key, "status", "data")
            name = key.removeprefix(b"rq:job:")
            used = client.exists(key + b":dependents", b"rq:executions:" + name)
            if data is None or (status in (b"canceled", b"failed", b"stopped") and not used):
                left.append(f"{key!r} {status!r}")
        for kind in ("canceled", "failed"):
            for key in client.scan_iter(match=f"rq:{kind}:*", count=1_000, _type="zset"):
                # One that was queued again after it was cancelled keeps its place, at RQ's.
                left += [
                    f"{each!r} in {key!r}"
                    for each in client.zrange(key, 0, -1)
                    if not client.exists(b"rq:job:" + each, b"rq:executions:" + each)
                ]
        for key in client.scan_iter(match="rq:workers*", count=1_000):
            dead = (each for each in client.smembers(key) if not client.exists(each))
            left += [f"{each!r} in {key!r}" for each in dead]
        for key in client.scan_iter(match="rq:worker:*", count=1_000):
            if client.ttl(key) == -1:
                left.append(f"{key!r} for ever")
        for key in client.scan_iter(match="rq:results:*", count=1_000):
            if client.ttl(key) == -1 and not client.exists(key.replace(b"results", b"job", 1)):
                left.append(f"{key!r} of no job")
        return left


class Process:
    """One process of RQ's."""

    def __init__(self, client: Any, work: Work) -> None:
        self._client, self._work = client, work
        self._queue = rq.Queue(connection=client)

    def operate(self) -> None:
        """Do one operation."""
        some = (self.enqueue, self.enqueue, self.work, self.work, self.work, self.delete)
        more = (self.cancel, self.fail, self.make_a_ghost, self.register)
        self._work.draw.choice((*some, *more))()

    def enqueue(self) -> None:
        """Enqueue a job whose result stays."""
        name = self._work.name()
        self._queue.enqueue(rq_owner.add, 1, 2, job_id=name, result_ttl=-1, retry=AGAIN)
        self._is_live(name)

    def work(self) -> None:
        """Work one job off."""
        self._worker(self._queue).work(burst=True, max_jobs=1, logging_level="CRITICAL")

    def delete(self) -> None:
        """Delete jobs that are finished, whoever has made them: their results stay behind."""
        registry = FinishedJobRegistry(queue=self._queue)
        for name in registry.get_job_ids(0, 3):
            self._work.journal.over(name)
            with suppress(*GONE):
                Job.fetch(name, connection=self._client).delete()
            registry.remove(name)

    def cancel(self) -> None:
        """Cancel a job; queue some again, which are live from then on."""
        name = self._work.name()
        job = self._queue.enqueue(rq_owner.add, 1, 2, job_id=name, result_ttl=-1, retry=AGAIN)
        with suppress(*GONE):
            job.cancel()
        if self._work.draw.random() < 0.5:
            self._queue.enqueue_job(job)
            self._is_live(name)

    def fail(self) -> None:
        """Let a job fail in a queue of its own; some are queued again, and nobody works them."""
        name = self._work.name()
        queue = rq.Queue(f"own-{name}", connection=self._client)
        job = queue.enqueue(rq_owner.fail, job_id=name, failure_ttl=-1)
        self._worker(queue).work(burst=True, max_jobs=1, logging_level="CRITICAL")
        if self._work.draw.random() < 0.5:
            # The collector may have been there first.
            with suppress(*GONE):
                FailedJobRegistry(queue=queue).requeue(job)
                self._is_live(name, rq_owner.fail)
                self._work.is_there(Job.exists(name, self._client), f"the requeued {name}")
                self._work.journal.over(name)
                job.delete()
        self._client.srem("rq:queues", queue.key)

    def make_a_ghost(self) -> None:
        """Let a heartbeat come behind a deletion; a job of that name may be made again."""
        name = self._work.name()
        job = self._queue.enqueue(rq_owner.add, 1, 2, job_id=name)
        with suppress(*GONE):
            job.delete()
        job.heartbeat(dt.datetime.now(dt.UTC) - dt.timedelta(hours=2), 1)
        if self._work.draw.random() < 0.5:
            Job.create(
                rq_owner.add, (1, 2), id=name, connection=self._client, origin="default"
            ).save()
            self._is_live(name)
            self._work.is_there(Job.exists(name, self._client), f"the new job {name}")
            self._work.journal.over(name)
            with suppress(*GONE):
                job.delete()

    def register(self) -> None:
        """Register a worker, and see that it is known as long as it is born."""
        worker = self._worker(self._queue)
        worker.register_birth()
        worker.heartbeat()
        with self._client.pipeline() as block:
            block.exists(worker.key)
            block.sismember("rq:workers", worker.key)
            block.sismember("rq:workers:default", worker.key)
            there, *known = block.execute()
        self._work.is_there(not there or all(known), f"the name of {worker.key}")
        if self._work.draw.random() < 0.5:
            worker.register_death()

    def _worker(self, queue: rq.Queue) -> rq_owner.Here:
        return rq_owner.Here([queue], name=self._work.name(), connection=self._client)

    def _is_live(self, name: str, of: Callable[..., object] = rq_owner.add) -> None:
        self._work.journal.live(name, f"{of.__module__}.{of.__name__}")


class Careless(EndedJobs):
    """An unsafe rule: what has a place in the registry is garbage, whatever became of it."""

    def verdict(self, item: Item) -> Verdicts:
        """Judge by the place alone."""
        job = b"rq:job:" + (item.member or b"")
        (there,) = yield look(("EXISTS", job), watch=(item.key, job))
        parts = (Removal(job),) if there else ()
        return Garbage((*parts, Removal(item.key, "zset", item.member or b"")))


def _fetched(names: list[str], client: Any) -> list[Job | None]:
    """Return the jobs, None for one that is gone or has lost its call."""
    try:
        return list(Job.fetch_many(names, connection=client))
    except NoSuchJobError:
        # One hash holds a late worker's stamps alone, and RQ refuses the whole batch for it.
        return [_job_or_none(each, client) for each in names]


def _job_or_none(name: str, client: Any) -> Job | None:
    with suppress(NoSuchJobError):
        return Job.fetch(name, connection=client)
    return None
