"""No framework's host is harmed by a Redis of the jobs' that is silent, cut off or not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest
import rq
from celery import Celery
from celery.app.trace import trace_task
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from support.held_slices import until
from support.servers import RedisServer
from workstealing import Recruiter, connect
from workstealing.integrations.asgi import WorkStealingMiddleware
from workstealing.integrations.celery import WorkStealing
from workstealing.integrations.rq import SimpleWorker
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes
from workstealing.testing import always

NAME = "hash_field_expiry.items"
TIMES = 5


@pytest.fixture(params=["silent", "refused"])
def recruiter(request: pytest.FixtureRequest) -> Iterator[Recruiter]:
    """Return a recruiter that recruits everybody for a job on such a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    if request.param == "refused":
        listener.close()
        port = 1
    else:
        # It takes connections and says nothing on them.
        port = listener.getsockname()[1]
    recruiter = always()
    hashes = VolatileHashes(connect(f"redis://127.0.0.1:{port}"), namespace="items")
    recruiter.install(HashFieldExpiry(hashes), rate=1.0)
    yield recruiter
    listener.close()


def check(recruiter: Recruiter, enlisted: int) -> None:
    """Check that nearly all were spared the attempt: one short time-out a breaker's period."""
    assert recruiter.stats()["enlisted"] == enlisted
    figures = recruiter.stats()["jobs"][NAME]
    assert figures["worked"] == figures["idle"] == figures["aborted"] == 0
    # A slice's deadline may come before the time-out does: then the next ones wait for the rest.
    performed = figures["failed"] + figures["out_of_time"]
    assert 1 <= performed < enlisted
    assert performed + figures["skipped"] == enlisted


async def test_asgi(recruiter: Recruiter) -> None:
    async def page(_: object) -> PlainTextResponse:
        return PlainTextResponse("page")

    app = Starlette(routes=[Route("/", page)])
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for _ in range(TIMES):
            assert (await client.get("/")).text == "page"
    # Each slice is a thread's.
    await until(lambda: recruiter.stats()["jobs"][NAME]["recruited"] == TIMES)
    check(recruiter, TIMES)


def test_celery(recruiter: Recruiter) -> None:
    app = Celery("dead", broker="memory://", backend="cache+memory://", set_as_current=False)
    WorkStealing(app, recruiter)

    @app.task(name="dead.add")
    def add(a: int, b: int) -> int:
        return a + b

    for number in range(TIMES):
        sent = {"id": f"dead{number}", "delivery_info": {}}
        trace_task(add, sent["id"], (1, number), {}, sent, app=app)
        assert add.AsyncResult(sent["id"]).get(timeout=120) == 1 + number
    check(recruiter, TIMES)


@pytest.mark.usefixtures("rq_here")
def test_rq(recruiter: Recruiter, redis7: RedisServer) -> None:
    queue = rq.Queue(connection=redis7.client())
    jobs = [queue.enqueue("operator.add", 1, number) for number in range(TIMES)]
    kind = type("Mine", (SimpleWorker,), {"recruiter": recruiter})
    assert kind([queue], connection=queue.connection).work(burst=True)
    assert [job.return_value() for job in jobs] == [1 + number for number in range(TIMES)]
    # And at the empty queue.
    check(recruiter, TIMES + 1)
