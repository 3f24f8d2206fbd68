"""What a typed program of a user looks like; `make types` checks it beside the package.

Nothing runs it: what it claims is claimed to mypy, by strict mode and `assert_type`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import flask
import redis.asyncio

import workstealing
from workstealing import Hooks, Job, Outcome, Recruiter, Slice, connect
from workstealing.integrations.flask import WorkStealing
from workstealing.integrations.wsgi import WorkStealingMiddleware
from workstealing.jobs import Backlog, HashFieldExpiry
from workstealing.structures import AsyncVolatileHashes, HashPipeline, VolatileHashes

items = VolatileHashes(connect("redis://localhost:6379/0"), namespace="items")
recruiter = Recruiter()
job = HashFieldExpiry(items, limit=5)
recruiter.install(job, rate=0.003)


def blocking() -> None:
    assert_type(items, VolatileHashes)
    assert_type(items.hset("item:17", "likes", 42), int)
    assert_type(items.hget("item:17", "likes"), bytes | str | None)
    assert_type(items.hsetex("item:17", mapping={"likes": 42}, ex=300), int)
    assert_type(items.expire("item:17", 300), bool)
    assert_type(items.hscan_iter("item:17"), Iterator[Any])
    assert_type(job.backlog(), Backlog)
    with items.pipeline() as pipeline:
        assert_type(pipeline, HashPipeline)
        pipeline.hgetex("item:17", "likes")
        pipeline.incr("visits")
        pipeline.execute()


async def asynchronous(client: redis.asyncio.Redis) -> None:
    hashes = AsyncVolatileHashes(client, namespace="items")
    assert_type(await hashes.hget("item:17", "likes"), bytes | str | None)
    assert_type(await hashes.hsetex("item:17", "likes", 42, px=300), int)
    assert_type(hashes.hscan_iter("item:17"), AsyncIterator[Any])
    async with hashes.pipeline() as pipeline:
        pipeline.hget("item:17", "likes")
        await pipeline.execute()


class DropDrafts(Job):
    """A job of the user's own."""

    name = "drop_drafts"
    limit = 3

    def perform(self, slice: Slice) -> int:
        """Handle nothing."""
        return 0 if slice.expired else slice.limit


class CountOutcomes(Hooks):
    """Hooks of the user's own."""

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Do nothing."""


@recruiter.job(rate=0.001)
def drop_stale_drafts(slice: Slice) -> int:
    return slice.limit


@workstealing.enlists(when=lambda answer: answer == "1")
async def answer(number: int) -> str:
    return str(number)


def recruiting() -> None:
    recruiter.install(DropDrafts(), rate=0.1)
    recruiter.add_hook(CountOutcomes())
    assert_type(recruiter.enlist(), Outcome)
    assert_type(workstealing.enlist(), Outcome)
    assert_type(recruiter.stats()["jobs"]["drop_drafts"]["worked"], int)
    assert_type(drop_stale_drafts(Slice(5, 0.01)), int)


async def decorated() -> None:
    assert_type(await answer(1), str)


app = flask.Flask(__name__)
WorkStealing(app, recruiter, when=lambda response: False)


@app.get("/item/<number>")
@recruiter.enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
def item(number: str) -> dict[str, str]:
    return {"number": number}


application = WorkStealingMiddleware(app, recruiter)
