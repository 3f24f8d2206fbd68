"""The Python blocks of the guides run in order, and those of all pages run in some test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import workstealing
from support.servers import RedisServer
from workstealing.jobs import HashFieldExpiry, RqLeftovers
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.structures import VolatileHashes

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks_of(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


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


def test_the_tutorial(redis7: RedisServer, tmp_path: Path) -> None:
    text = (DOCS / "tutorial.md").read_text("utf-8")
    *modules, clean_up = blocks_of("tutorial.md")
    lines = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    program = tmp_path / "tutorial.py"
    client = redis7.client()
    url = redis7.url
    left = client.keys

    def run(line: str) -> str:
        """Run one of the page's commands in the reader's folder, with the reader's Redis."""
        line = line.replace("$WORKSTEALING_REDIS_URL", url)
        words = ["-m", "workstealing", *line.split()[1:]]
        if line.startswith("python -c "):
            words = ["-c", line.removeprefix('python -c "').removesuffix('"')]
        done = subprocess.run(
            [sys.executable, *words],
            check=False,
            cwd=tmp_path,
            env={**os.environ, "WORKSTEALING_REDIS_URL": url, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        # 1 is the status of `status` and `explain` where something is wrong: nobody calls any more.
        assert done.returncode in ((0, 1) if "--app" in line else (0,)), done.stderr
        return done.stdout

    survey, filling, visiting, looking, plan = (each.splitlines() for each in lines)
    assert "in 0 families" in run(survey[0]) or "0 keys" in run(survey[0])
    program.write_text(modules[0])
    run(filling[0])
    assert len(left("tutorial:*")) == 1000
    time.sleep(2.1)
    program.write_text("\n".join(modules))
    run(visiting[0])
    # On a busy machine not every slice of 10 ms has the time for its work.
    for _ in range(20):
        if len(left("tutorial:*")) <= 1:
            break
        run(visiting[0])
    assert len(left("tutorial:*")) <= 1
    assert "hash_field_expiry" in run(looking[0])
    said = run(looking[1])
    assert "hash_field_expiry" in said, said
    assert looking[2].startswith("workstealing dashboard --app tutorial:recruiter")
    assert run(plan[0])
    program.write_text("\n".join([*modules, clean_up, "clean_up()"]))
    run('python -c "import tutorial"')
    assert [each for each in client.scan_iter() if b"tutorial" in each] == []


def test_testing() -> None:
    names: dict[str, Any] = {}
    for block in blocks_of("testing.md"):
        exec(compile(block, "testing.md", "exec"), names)
    assert len(names["done"]) == 2
    assert names["timed"].stats()["jobs"]["slow"]["items"] == 3


def test_fastapi(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)

    async def look_up(item: int) -> tuple[str, str]:
        return f"{item}.00", "3"

    async def find_related(item: int) -> list[int]:
        return [item + 1]

    names: dict[str, Any] = {"look_up": look_up, "find_related": find_related}
    for block in blocks_of("fastapi.md"):
        exec(compile(block, "fastapi.md", "exec"), names)
    names["test_a_hit_enlists"]()
    with names["TestClient"](names["app"]) as web:
        assert web.get("/item/17").json() == {"price": "17.00", "stock": "3"}
        assert web.get("/related/17").json() == web.get("/related/17").json() == [18]


def test_native_fields(redis8: RedisServer) -> None:
    items = VolatileHashes(redis8.client(), namespace="items", backend="emulated")
    items.hsetex("item:7", mapping={"price": "9"}, ex=3600)
    names = names_after("native_fields.md", redis8)
    assert list(names["recruiter"].jobs()) == [
        "hash_field_expiry.items",
        "migrate_to_native.items",
        "migrate_to_emulated.items",
    ]
    assert names["MigrateToNative"](names["items"]).backlog().count == 1


def test_rules(redis7: RedisServer) -> None:
    client = redis7.client()
    text = (DOCS / "rules.md").read_text("utf-8")
    *blocks, refuting = blocks_of("rules.md")
    names: dict[str, Any] = {"server": redis7, "RqLeftovers": RqLeftovers}
    try:
        for block in blocks:
            exec(compile(block.replace("redis.Redis()", "server.client()"), "rules", "exec"), names)
        client.hset("cart:gone", "item", 1)
        client.hset("cart:here", "item", 1)
        client.set("user:here", 1)
        outcomes = [workstealing.default_recruiter.perform("carts", seconds=5.0) for _ in range(3)]
        assert workstealing.Outcome.WORKED in outcomes
        assert client.keys("cart:*") == [b"cart:here"]
        client.flushall()
        with pytest.raises(AssertionError, match="a live item was lost") as lost:
            exec(compile(refuting, "rules", "exec"), names)
        # The page shows the very error.
        shown = text.partition("AssertionError: ")[2].partition("\n\n")[0]
        assert "".join(str(lost.value).split()) == "".join(shown.split())
    finally:
        for job in list(workstealing.default_recruiter.jobs()):
            workstealing.uninstall(job)


def test_adaptive(redis7: RedisServer) -> None:
    names: dict[str, Any] = {"client": redis7.client()}
    for block in blocks_of("adaptive.md"):
        names["job"] = HashFieldExpiry(VolatileHashes(names["client"], namespace="items"))
        if "recruiter" in names:
            names["recruiter"].uninstall(names["job"].name)
        exec(compile(block, "adaptive.md", "exec"), names)
    assert names["recruiter"].stats()["jobs"][names["job"].name]["adaptive"] is True
    names["ledger"].close()


def test_the_runbooks_settings(redis7: RedisServer) -> None:
    names: dict[str, Any] = {"client": redis7.client(), "SharedSettings": SharedSettings}
    (block,) = blocks_of("runbook.md")
    exec(compile(block, "runbook.md", "exec"), names)
    setting = names["fleet"].settings()["expiry"]
    assert (setting.rate, setting.paused) == (0.01, True)


# The pages whose blocks do not run in a test, with the reason.
EXEMPT = {
    "servers.md": "the reader's own sentinels and certificates; tests/store has some",
}
MOST_EXEMPT = 10


def test_each_code_block_runs_in_a_test() -> None:
    """A page with Python blocks is named by a test that executes them."""
    runners = [
        each.read_text("utf-8")
        for each in Path(__file__).parent.rglob("test_*.py")
        if "exec(" in each.read_text("utf-8")
    ]
    exempt = 0
    for page in sorted(DOCS.glob("*.md")):
        blocks = len(blocks_of(page.name))
        if page.name in EXEMPT:
            exempt += blocks
        elif blocks:
            assert any(page.name in each for each in runners), page.name
    assert 0 < exempt <= MOST_EXEMPT
