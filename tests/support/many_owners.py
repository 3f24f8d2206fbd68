"""Keys as twelve programs write them, with planted garbage, for surveys."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import redis

LIVE_KEYS = 10_000
"""The keys `live:0`, `live:1` and so on, which a live application uses."""

WORDS = ["shop", "blog", "news", "mail"]
Command = tuple[Any, ...]


def reply_of_celery(client_id: str) -> str:
    """Return a reply to remote control as kombu puts it into its client's list."""
    to = {"exchange": "reply.celery.pidbox", "routing_key": client_id}
    return json.dumps(
        {
            "body": "eyJvbmVAaGVyZSI6IHsib2siOiAicG9uZyJ9fQ==",
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"clock": 1, "expires": None, "ticket": client_id},
            "properties": {"delivery_mode": 2, "delivery_info": to, "priority": 0},
        }
    )


def an_id(source: random.Random) -> str:
    """Return a UUID."""
    return str(uuid.UUID(int=source.getrandbits(128), version=4))


def commands(number: int, source: random.Random) -> Iterator[Command]:
    """Yield the commands that write the keys of one more item of each program."""
    hashed = f"{source.getrandbits(128):032x}"
    yield "SET", f"celery-task-meta-{an_id(source)}", "r" * source.randint(100, 900), "EX", 86_400
    yield "HSET", f"rq:job:{an_id(source)}", "status", "finished", "data", "d" * 200
    page = f"page:{number}"
    if number % 3:
        yield "SET", page, "p" * int(source.lognormvariate(6, 1)), "EX", 3_600
    # Each third page has expired: its tags stay.
    yield "SADD", f"conj:shop_item:category={number % 997}", page
    digest = f"{source.getrandbits(128):032x}"
    name = f":1:views.decorators.cache.cache_page..GET.{hashed}.{digest}.en-us.UTC"
    yield "SET", name, "h" * int(source.lognormvariate(7, 0.8)), "EX", 300
    session = "".join(source.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=32))
    yield "SET", f":1:django.contrib.sessions.cache{session}", "s" * 200, "EX", 1_209_600
    yield "SET", f"huey.r.shop.r:{an_id(source)}", "v" * 60
    yield "HSET", f"bull:mail:{number}", "name", "send", "data", "{}" * source.randint(10, 90)
    yield "ZADD", f"limit:{source.randint(1, 10**9)}", time.time() - 90_000, "old"
    yield "SET", f"sess:{hashed}", "e" * 150, "EX", 86_400
    yield "HSET", f"cart:{number}", *(each for n in range(number % 9 + 1) for each in (n, "item"))
    yield "SET", f"preview:{source.choice(WORDS)}:{number}", "w" * source.randint(50, 500)
    if number % 40 == 0:
        client = an_id(source)
        replies = [reply_of_celery(client)] * source.randint(1, 5)
        yield "RPUSH", f"{client}.reply.celery.pidbox", *replies
        yield "SADD", "rq:workers", f"rq:worker:{hashed}"
    if number % 4 == 0:
        yield "XADD", f"orders:{number % 16}", "*", "item", "x" * 80


def fill_by_many(client: redis.Redis, keys: int) -> dict[str, int]:
    """Write about so many keys; return how many items are garbage by some rules."""
    source = random.Random(1)
    items = keys // 10
    # What a live application has, whatever else there is.
    client.mset({f"live:{number}": "x" * 100 for number in range(LIVE_KEYS)})
    for at in range(0, items, 500):
        with client.pipeline(transaction=False) as pipe:
            for number in range(at, min(items, at + 500)):
                for command in commands(number, source):
                    pipe.execute_command(*command)
            pipe.execute()
    for number in range(0, 16, 4):
        client.xgroup_create(f"orders:{number}", "mailers", id="$")
    return {
        "tags.dead_members": len(range(0, items, 3)),
        "rq.dead_workers": len(range(0, items, 40)),
        "celery.replies": len(range(0, items, 40)),
    }
