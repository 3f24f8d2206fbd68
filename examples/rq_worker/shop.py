"""The jobs fill a cache, and their workers clear away what has expired in it."""

from __future__ import annotations

import os

from workstealing import Recruiter, connect
from workstealing.integrations import rq
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

items = VolatileHashes(connect(os.environ["REDIS_URL"]), namespace="items")
# Between two jobs there is more time than in a web request: the default is 0.01 s.
recruiter = Recruiter(seconds=0.5)
# A demonstration's rate: it is over in seconds. In production think of 0.003.
recruiter.install(HashFieldExpiry(items, limit=25), rate=0.5)


def price(item: int) -> str:
    """Work out an item's price, and keep it for an hour."""
    found = f"{item % 90 + 10}.00"
    items.hsetex(f"item:{item}", mapping={"price": found}, ex=3600)
    return found


class Worker(rq.Worker):
    """Forks a work horse for each job, as RQ's own does, and enlists when it is over."""

    recruiter = recruiter
    idle_interval = 1


class SimpleWorker(rq.SimpleWorker):
    """The same without work horses."""

    recruiter = recruiter
    idle_interval = 1
