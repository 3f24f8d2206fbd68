"""Huey: tasks are enqueued, revoked, taken and executed by Huey itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import huey

from support.killed_journal import Work
from support.owners_at_work.owner import DAY, Owner
from workstealing.jobs import HueyLeftovers
from workstealing.jobs.leftovers import DECLARED, Leftovers
from workstealing.jobs.library_leftovers import HueyRevocations

QUEUE, STORE = "huey.redis.shop", "huey.results.shop"
# Above 500 the rule does not look through the queue.
MOST_QUEUED = 200


class Huey(Owner):
    """Huey on its plain Redis storage."""

    name = "huey"

    def jobs(self, client: Any) -> list[Any]:
        """Return the job; results that nobody fetched while all have gone on are garbage."""
        if self.planted:
            return [Leftovers(client, [Hasty("shop")], name="p", dry_run=False)]
        return [HueyLeftovers(client, "shop", gap=DAY, retention=DAY, dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Enqueue a task, revoked or not, or execute one and fetch its result."""
        logging.disable(logging.CRITICAL)
        queue, task = made(self.home, work)

        def operate() -> None:
            if queue.pending_count() < MOST_QUEUED and work.draw.random() < 0.5:
                is_revoked = work.draw.random() < 0.5
                one = task.s(is_revoked=is_revoked)
                if is_revoked:
                    queue.revoke(one)
                    # It may be a while until it comes.
                    time.sleep(work.draw.choice([0.0, 0.0, 0.01]))
                queue.enqueue(one)
                return
            one = queue.dequeue()
            if one is None:
                return
            queue.execute(one)
            if not one.kwargs["is_revoked"]:
                work.is_there(queue.get(one.id) == "done", f"the result of {one.id}")
            elif work.draw.random() < 0.5:
                queue.restore(one)

        return operate

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Nothing is in the journal: the queue itself says what is revoked."""
        return []

    def broken(self, client: Any) -> list[str]:
        """Return the revoked tasks in the queue whose revocations are gone."""
        queue, _ = made(self.home, None)
        with client.pipeline() as block:
            block.lrange(QUEUE, 0, -1)
            block.hkeys(STORE)
            tasks, fields = block.execute()
        waiting = [queue.deserialize_task(each) for each in tasks]
        return [
            f"the revocation of {each.id}"
            for each in waiting
            if each.kwargs["is_revoked"] and each.revoke_id.encode() not in fields
        ]

    def left(self, client: Any) -> list[str]:
        """Return the revocations of tasks that are in no queue, and all results."""
        tasks = client.lrange(QUEUE, 0, -1)
        left = []
        for each in client.hkeys(STORE):
            number = each.removeprefix(b"r:")
            if not any(number in one for one in tasks):
                left.append(f"{each!r}")
        return left


def made(home: str, work: Work | None) -> tuple[Any, Any]:
    """Return a Huey and its task, which is not executed where it was revoked."""
    queue = huey.RedisHuey("shop", url=home)

    @queue.task(name="act")
    def act(*, is_revoked: bool) -> str:
        if work is not None:
            work.is_there(not is_revoked, "a revocation: its task was executed")
        return "done"

    return queue, act


class Hasty(HueyRevocations):
    """An unsafe rule: one look is enough, so a task that is about to come loses its revocation."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.certainty = DECLARED
