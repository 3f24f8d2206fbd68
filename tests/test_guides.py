"""The Python blocks of the guides run in order, as a reader would put them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import workstealing
from support.servers import RedisServer

DOCS = Path(__file__).resolve().parents[1] / "docs"


def names_after(page: str, server: RedisServer) -> dict[str, Any]:
    """Run a page's blocks, whose Redis on its usual port is this server; return their names."""
    worked: list[bytes] = []
    names: dict[str, Any] = {"server": server, "work_on": worked.append, "worked": worked}
    for block in re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.M | re.S
    ):
        exec(compile(block.replace("redis.Redis()", "server.client()"), page, "exec"), names)
    return names


def test_instead_of_cron(redis7: RedisServer) -> None:
    try:
        names = names_after("instead_of_cron.md", redis7)
        client = redis7.client()
        names["begin"]("new")
        for n in range(30):
            names["begin"](f"old{n}")
            client.zadd(names["OPEN"], {f"old{n}": time.time() - 90_000})
        outcomes = [workstealing.default_recruiter.perform("abandoned") for _ in range(3)]
        # A slice of 10 ms may be too short on a busy machine for the limit of 25.
        assert workstealing.Outcome.WORKED in outcomes
        while workstealing.default_recruiter.perform("abandoned", seconds=5.0).value != "idle":
            pass
        assert client.keys("upload:*") == [b"upload:new"]
        assert client.zrange(names["OPEN"], 0, -1) == [b"new"]
    finally:
        workstealing.uninstall("abandoned")


def test_instead_of_beat(redis7: RedisServer) -> None:
    names = names_after("instead_of_beat.md", redis7)
    assert names["sessions"].hget("user:7", "basket") == b"3 items"
    assert len(names["recruiter"].jobs()) == 1


def test_from_redis_ick(redis7: RedisServer) -> None:
    # As the gem leaves them: two producers' members, one of which was reserved.
    client = redis7.client()
    client.set("dirty:documents", "ick.v1")
    client.zadd("dirty:documents/ick/{dirty:documents}/pset", {"waiting": 2.0})
    client.zadd("dirty:documents/ick/{dirty:documents}/cset", {"reserved": 1.0})
    names = names_after("from_redis_ick.md", redis7)
    assert names["worked"] == [b"reserved", b"waiting"]
    assert names["dirty"].stats()["total_size"] == 0
    assert list(names["recruiter"].jobs()) == ["ick_reaper.dirty:documents"]
