"""The Celery app: tasks fill a cache, and the workers clear away what has expired in it."""

from __future__ import annotations

import os

from celery import Celery

from workstealing import Recruiter, connect
from workstealing.integrations.celery import WorkStealing
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

URL = os.environ["REDIS_URL"]

# Celery's own word for a UNIX socket, which is where the throw-away server listens.
BROKER = URL.replace("unix://", "redis+socket://", 1)

# No result backend: a sender's results would unsubscribe from Redis, again and again, when the
# throw-away server has ended before them.
app = Celery("shop", broker=BROKER)
app.conf.broker_connection_retry_on_startup = True

items = VolatileHashes(connect(URL), namespace="items")
# Between two tasks there is more time than in a web request: the default is 0.01 s.
recruiter = Recruiter(seconds=0.5)
# A demonstration's rate and idle_interval: it is over in seconds. In production think of 0.003.
recruiter.install(HashFieldExpiry(items, limit=25), rate=0.3)
WorkStealing(app, recruiter, idle_interval=0.1)


@app.task
def price(item: int) -> str:
    """Work out an item's price, and keep it for an hour."""
    found = f"{item % 90 + 10}.00"
    items.hsetex(f"item:{item}", mapping={"price": found}, ex=3600)
    return found
