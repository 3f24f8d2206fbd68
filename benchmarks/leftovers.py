"""The garbage of Celery and RQ: our rules beside the owners' own cleanup, on the same garbage.

Time and commands are those of all that it takes: ours looks at everything twice, for it removes
only what was the same at two sightings. What is left is counted too: it goes on to cost memory.
Alone: ``python benchmarks/leftovers.py``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import rq
from figures import Figure, counted, show
from kombu import Connection
from redis.exceptions import TimeoutError
from rq.job import Job
from rq.registry import CanceledJobRegistry, clean_registries
from rq.worker_registration import clean_worker_registry
from servers import RedisServer, newest_redis

from workstealing import Slice
from workstealing.errors import Aborted
from workstealing.jobs.celery_leftovers import REPLIES, SEPARATOR, DeadBindings
from workstealing.jobs.leftovers import Leftovers, Rule
from workstealing.jobs.rq_leftovers import DeadWorkers, EndedJobs

ITEMS = 2_000
GAP, LONGER = 1.0, 2.2
# Slices without a removal, after which all items have been looked at: 800 a slice; some look again,
# where SCAN shows the keys in other pages after the sightings have been noted.
IDLE = 20
UNSEEN = {"cmdstat_info", "cmdstat_config|resetstat"}


def measure(server: RedisServer) -> list[Figure]:
    """Measure what each costs, and what each leaves."""
    client = server.client()
    queue = rq.Queue(connection=client)
    cases: list[tuple[str, str, Callable[[], Any], Rule, Callable[[], Any], Callable[[], int]]] = [
        (
            "rq_dead_workers",
            "RQ's clean_worker_registry",
            lambda: _dead_workers(client),
            DeadWorkers(GAP),
            lambda: clean_worker_registry(queue),
            lambda: client.scard("rq:workers:default"),
        ),
        (
            "rq_cancelled_jobs",
            "RQ's clean_registries",
            lambda: _cancelled(client),
            EndedJobs("canceled", 1.0),
            lambda: clean_registries(queue),
            lambda: client.zcard("rq:canceled:default"),
        ),
        (
            "celery_bindings",
            "kombu's sweep_bindings, beside a client that is at work",
            lambda: _bindings(client),
            DeadBindings(GAP),
            lambda: _sweep(server),
            lambda: client.scard(f"_kombu.binding.{REPLIES}"),
        ),
    ]
    figures = []
    for name, reference, fill, rule, theirs, left in cases:
        done = {}
        for who in ("ours", "reference"):
            server.wipe()
            fill()
            client.config_resetstat()
            spent = _ours(client, rule) if who == "ours" else _timed(theirs)
            stats = client.info("commandstats")
            commands = sum(stats[each]["calls"] for each in set(stats) - UNSEEN)
            done[f"{who}_commands"] = float(commands)
            done[f"{who}_ms"] = round(1_000 * spent, 1)
            done[f"{who}_left"] = float(left())
        server.wipe()
        ratio = done["ours_commands"] / max(1.0, done["reference_commands"])
        figures.append(counted(f"leftovers_{name}", round(ratio, 2), reference, **done))
    return figures


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _ours(client: Any, rule: Rule) -> float:
    """Collect until a whole walk finds nothing; return the seconds, without those between."""
    job = Leftovers(client, [rule], name="beside", dry_run=False)
    spent = _timed(lambda: _walk(job))
    time.sleep(LONGER)
    return spent + _timed(lambda: _walk(job))


def _walk(job: Leftovers) -> None:
    job.restart()
    idle = 0
    while idle < IDLE:
        with suppress(TimeoutError, Aborted):
            # A busy machine ends a slice; the next one goes on.
            idle = 0 if job.perform(Slice(100, 10.0)) else idle + 1


def _dead_workers(client: Any) -> None:
    names = [f"rq:worker:{uuid.uuid4().hex}" for _ in range(ITEMS)]
    client.sadd("rq:workers", *names)
    client.sadd("rq:workers:default", *names)


def _cancelled(client: Any) -> None:
    registry = CanceledJobRegistry("default", connection=client)
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(ITEMS):
            job = Job.create(print, connection=client, origin="default", status="canceled")
            job.save(pipeline=pipeline)
            registry.add(job, ttl=-1_000_000_000, pipeline=pipeline)
        pipeline.execute()


def _bindings(client: Any) -> None:
    oids = [str(uuid.uuid4()) for _ in range(ITEMS)]
    members = [SEPARATOR.join((oid, "", f"{oid}.{REPLIES}")) for oid in oids]
    client.sadd(f"_kombu.binding.{REPLIES}", *members)


def _sweep(server: RedisServer) -> None:
    """Sweep as a channel does, after a client has bound its queue."""
    with Connection(server.url) as connection:
        channel = connection.channel()
        name = f"mine.{REPLIES}"
        channel.queue_declare(name, arguments={"x-expires": 10_000})
        channel.exchange_declare(REPLIES, "direct")
        channel.queue_bind(name, REPLIES, "mine")
        channel.sweep_bindings()


if __name__ == "__main__":
    with newest_redis() as _server:
        show(measure(_server))
