"""docs/production.md and docs/why.md say what is so: fleets, memory, ways out, recruits a day."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from support.pages import run_page
from support.servers import RedisServer
from workstealing.errors import LayoutError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys, VolatileHashes

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "production.md").read_text("utf-8")
HOUR_MS = 3_600_000


def test_durable_keys_get_the_rest_of_their_time(redis7: RedisServer) -> None:
    client = redis7.client()
    DurableKeys(client, "leases", clock_shift_ms=-HOUR_MS).set("report:old", "x", ex=1)
    keys = DurableKeys(client, "leases")
    keys.set("report:new", "x", ex=600)
    keys.set("report:ever", "x")
    replace = {"redis.Redis()": "server.client()"}
    run_page("docs/production.md", {"server": redis7}, replace=replace)
    assert not client.exists("report:old")
    assert 0 < client.ttl("report:new") <= 600
    assert client.ttl("report:ever") == -1


@pytest.mark.parametrize(
    ("layout", "reads", "writes"),
    [
        ({"version": 1, "readable_from": 1, "writable_from": 1}, True, True),
        ({"version": 2, "readable_from": 1, "writable_from": 1}, True, True),
        ({"version": 2, "readable_from": 1, "writable_from": 2}, True, False),
        ({"version": 2, "readable_from": 2, "writable_from": 2}, False, False),
    ],
)
def test_a_process_and_a_layout_of_another_release(
    redis7: RedisServer, layout: dict[str, int], *, reads: bool, writes: bool
) -> None:
    client = redis7.client()
    VolatileHashes(client, "items").hsetex("item:1", mapping={"likes": 1}, ex=600)
    shown = client.hgetall("ws:items:layout")
    assert {b"version", b"readable_from", b"writable_from", b"backend"} <= set(shown)
    client.hset("ws:items:layout", mapping=layout)
    # A newer release marks its index shards so.
    for mark in client.scan_iter("*:ws:items:mark"):
        client.set(mark, f"{layout['version']}:emulated")
    items = VolatileHashes(redis7.client(), "items")
    job = HashFieldExpiry(items)

    def outcome(call: Any) -> bool:
        try:
            call()
        except LayoutError:
            return False
        return True

    assert outcome(lambda: items.hget("item:1", "likes")) is reads
    assert outcome(job.backlog) is reads
    before = client.hgetall("item:1")
    assert outcome(lambda: items.hset("item:1", "stars", 5)) is writes
    assert (client.hgetall("item:1") != before) is writes
    assert outcome(lambda: job.perform(Slice(5, 5.0))) is writes


def test_the_bytes_of_an_entry_have_the_ratios_of_the_benchmarks() -> None:
    table = PAGE.partition("## Memory of an entry")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| (\d[^|]*) \| [^|]+ \| (\d[^|]*) \|$", table, re.M)
    figures = (DOCS / "benchmarks.md").read_text("utf-8")
    measured = re.findall(r"^\| entry_bytes_[^|]+ \| ([^|]+) \|", figures, re.M)
    ratios = [each.split(" and ") for row in measured for each in row.split(", ")]
    # The first row is a field, whose figures are those of another page.
    assert len(rows) == len(ratios) + 1 == 10
    for (ours, theirs), seen in zip(rows[1:], ratios, strict=True):
        mine, plain = ([float(each) for each in side.split(" to ")] for side in (ours, theirs))
        assert min(mine) / max(plain) - 0.02 <= min(map(float, seen)), ours
        assert max(map(float, seen)) <= max(mine) / min(plain) + 0.02, ours


def test_the_recruits_of_a_day() -> None:
    page = " ".join((DOCS / "why.md").read_text("utf-8").split())
    rows = re.findall(r"\| ([\d,]+) (an hour|a second) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", page)
    assert len(rows) == 5
    for number, unit, *said in rows:
        callers = int(number.replace(",", "")) * (24 if unit == "an hour" else 86_400)
        for rate, shown in zip((0.001, 0.003, 0.05), said, strict=True):
            assert float(shown.replace(",", "")) == pytest.approx(callers * rate)
    # How many hours have none where so many are expected, by Poisson.
    assert f"{round(100 * math.exp(-1))} hours of 100 have none" in page
    assert "with five, less than one hour of 100" in page
    assert math.exp(-5) < 0.01
