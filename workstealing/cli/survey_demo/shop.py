"""A shop on Celery, RQ, streams, tags and sessions, whose processes are killed now and then.

`main()` is one process of it, whose role is the first argument. Each says "ready" when it stands
where it can be killed.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import redis
import rq
from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeout

from workstealing.cli.output import say

URL = os.environ.get("REDIS_URL", "redis://")
# The throw-away server listens on a UNIX socket, for which Celery has another scheme.
BROKER = URL.replace("unix://", "redis+socket://", 1)
GROUP = "mailers"
PATIENCE = 60.0
PAGE_SECONDS, CART_SECONDS, WINDOW_SECONDS = 3, 20, 5

app = Celery("shop", broker=BROKER, backend=BROKER)
asking = Celery("asking", broker=BROKER, backend="rpc://")
for each in (app, asking):
    each.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)


@app.task(name="shop.price")  # type: ignore[untyped-decorator]
def price(item: int) -> int:
    """Return an item's price."""
    return 100 + item


def invoice(order: int) -> int:
    """Write an invoice, in RQ. Raises: ValueError for each third one."""
    if order % 3 == 0:
        raise ValueError(f"order {order} has no address")
    return order


def ready() -> None:
    """Tell the parent that this process may be killed."""
    say("ready")


def wait() -> None:
    """Wait to be killed."""
    while True:
        time.sleep(60)


def remote() -> None:
    """Ask all workers by remote control; they answer into this process's reply list."""
    ready()
    app.control.ping(timeout=60)
    wait()


def rpc() -> None:
    """Ask for prices by rpc://, and never come to read them."""
    for item in range(3):
        asking.send_task("shop.price", [item])
    ready()
    wait()


def rq_worker() -> None:
    """Work on invoices; a worker that is killed stays in the list of workers."""
    connection = redis.Redis.from_url(URL)
    queue = rq.Queue("invoices", connection=connection)
    worker = rq.SimpleWorker([queue], connection=connection, default_worker_ttl=1)
    ready()
    worker.work(logging_level="CRITICAL")


def reader() -> None:
    """Read the orders in a group, and acknowledge them."""
    client = redis.Redis.from_url(URL)
    name = f"mailer-{uuid.uuid4().hex[:6]}"
    ready()
    while True:
        reply: Any = client.xreadgroup(GROUP, name, {"orders": ">"}, count=10, block=200)
        for _, entries in reply or ():
            client.xack("orders", GROUP, *(number for number, _ in entries))


def web(seconds: float) -> None:
    """Serve visitors: pages under tags, carts, rate limits, orders and invoices."""
    client = redis.Redis.from_url(URL)
    queue = rq.Queue("invoices", connection=client)
    end, visit = time.time() + seconds, 0
    ready()
    while time.time() < end:
        visit += 1
        page, user = f"page:{visit}", f"{visit % 97:02d}"
        with client.pipeline() as pipe:
            # As cacheops does: the page and its tags in one transaction.
            pipe.set(page, f"<h1>item {visit}</h1>" * 20, ex=PAGE_SECONDS)
            pipe.sadd(f"conj:item:category_id={visit % 7}", page)
            pipe.hset(f"cart:{visit}", mapping={"item": visit, "ends": time.time() + CART_SECONDS})
            pipe.zadd(f"limit:{user}", {uuid.uuid4().hex: time.time()})
            pipe.xadd("orders", {"item": visit, "user": user})
            pipe.set(f"preview:{uuid.uuid4()}", "x" * 300)
            pipe.execute()
        if visit % 20 == 0:
            queue.enqueue(invoice, visit // 20, result_ttl=2)
        if visit % 60 == 0:
            queue.enqueue_in(dt.timedelta(days=1), invoice, 1).cancel()
        time.sleep(0.01)


def check() -> None:
    """Use all that still lives, and print a sentence for each part that does not work."""
    client = redis.Redis.from_url(URL)
    ready()
    order: Any = client.xadd("orders", {"item": 1})
    job = rq.Queue("invoices", connection=client).enqueue(invoice, 1)
    try:
        assert app.send_task("shop.price", [7]).get(timeout=PATIENCE) == 107
    except (AssertionError, CeleryTimeout) as error:
        say(f"LOST: Celery's worker gave no price: {error}")
    # The first answer ends the wait.
    if not app.control.ping(timeout=PATIENCE, limit=1):
        say("LOST: Celery's worker does not answer remote control")
    if not holds(lambda: job.get_status() == "finished"):
        say("LOST: RQ's worker wrote no invoice")
    if not holds(lambda: is_acknowledged(client, order)):
        say("LOST: no reader has acknowledged a new order")


def holds(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds, or PATIENCE seconds; say whether it does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_acknowledged(client: Any, order: bytes) -> bool:
    """Say whether an order was read and acknowledged; a reader that is killed keeps others."""
    (group,) = client.xinfo_groups("orders")
    pending = client.xpending_range("orders", GROUP, order, order, 1)
    return bool(group["last-delivered-id"] >= order) and not pending


def main() -> None:
    """Be one process of the shop."""
    role, *rest = sys.argv[1:]
    if role == "web":
        web(float(rest[0]))
    else:
        {
            "remote": remote,
            "rpc": rpc,
            "rq": rq_worker,
            "reader": reader,
            "check": check,
        }[role]()
