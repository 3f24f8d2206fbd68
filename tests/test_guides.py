"""The guides do what they say; each Python block of each page runs in some test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from celery import Celery

import workstealing
from support.pages import (
    EXEMPT,
    MOST_EXEMPT,
    ROOT,
    blocks_of,
    claims_of,
    command_lines,
    forgotten,
    pages,
    refusal_of,
    run_page,
    running,
    text_of,
)
from support.servers import RedisServer
from workstealing.jobs import HashFieldExpiry, RqLeftovers
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.structures import VolatileHashes

THE_TESTS = {"redis.Redis()": "server.client()"}
"""A page's Redis on its usual port is the test's, by the name `server`."""


def test_instead_of_cron(redis7: RedisServer) -> None:
    try:
        client = redis7.client()
        client.hset("upload:tonight", "started", time.time() - 90_000)
        with running("docs/instead_of_cron.md", replace=THE_TESTS) as page:
            # The script that the page is about to replace.
            page.run(server=redis7)
            assert not client.exists("upload:tonight")
            names = page.run_rest()
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
    deleted: list[str] = []
    app = Celery("before")
    with running("docs/instead_of_beat.md", replace=THE_TESTS) as page:
        before = page.run(app=app, expired_sessions=lambda: ["old"], delete=deleted.append)
        before["clean"]()
        assert deleted == ["old"]
        assert list(app.conf.beat_schedule) == ["clean"]
        names = page.run_rest(server=redis7)
    assert names["sessions"].hget("user:7", "basket") == b"3 items"
    assert len(names["recruiter"].jobs()) == 1


def test_from_redis_ick(redis7: RedisServer) -> None:
    # As the gem leaves them: two producers' members, one of which was reserved.
    client = redis7.client()
    client.set("dirty:documents", "ick.v1")
    client.zadd("dirty:documents/ick/{dirty:documents}/pset", {"waiting": 2.0})
    client.zadd("dirty:documents/ick/{dirty:documents}/cset", {"reserved": 1.0})
    worked: list[bytes] = []
    given = {"server": redis7, "work_on": worked.append}
    names = run_page("docs/from_redis_ick.md", given, replace=THE_TESTS)
    assert worked == [b"reserved", b"waiting"]
    assert names["dirty"].stats()["total_size"] == 0
    assert list(names["recruiter"].jobs()) == ["ick_reaper.dirty:documents"]


def test_the_tutorial(redis7: RedisServer, tmp_path: Path) -> None:
    lines = [each.code for each in blocks_of("docs/tutorial.md", ("sh",))]
    # The page's blocks are one module, which its commands execute.
    with running("docs/tutorial.md") as page:
        *modules, clean_up = (page.take() for _ in blocks_of("docs/tutorial.md"))
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


def test_testing(tmp_path: Path) -> None:
    with running("docs/testing.md") as page:
        page.run()
        page.run()
        names = page.run()
        assert len(names["done"]) == 2
        assert names["timed"].stats()["jobs"]["slow"]["items"] == 3
        # Both files of this block are one here, and the page leaves the request out.
        work = "always_recruiter.job(rate=1.0, name='tidy')(lambda slice: 1)"
        site = page.take().replace("    ...\n", f"    {work}\n    always_recruiter.enlist()\n")
        page.run_rest()
    (tmp_path / "test_site.py").write_text(site)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_site.py"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_fastapi(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)

    async def look_up(item: int) -> tuple[str, str]:
        return f"{item}.00", "3"

    async def find_related(item: int) -> list[int]:
        return [item + 1]

    names = run_page("docs/fastapi.md", {"look_up": look_up, "find_related": find_related})
    names["test_a_hit_enlists"]()
    with names["TestClient"](names["app"]) as web:
        assert web.get("/item/17").json() == {"price": "17.00", "stock": "3"}
        assert web.get("/related/17").json() == web.get("/related/17").json() == [18]


def test_native_fields(redis8: RedisServer) -> None:
    items = VolatileHashes(redis8.client(), namespace="items", backend="emulated")
    items.hsetex("item:7", mapping={"price": "9"}, ex=3600)
    names = run_page("docs/native_fields.md", {"server": redis8}, replace=THE_TESTS)
    assert list(names["recruiter"].jobs()) == [
        "hash_field_expiry.items",
        "migrate_to_native.items",
        "migrate_to_emulated.items",
    ]
    assert names["MigrateToNative"](names["items"]).backlog().count == 1


def test_rules(redis7: RedisServer) -> None:
    client = redis7.client()
    page = running("docs/rules.md", replace=THE_TESTS)
    try:
        page.names.update(server=redis7, RqLeftovers=RqLeftovers)
        while "assert_safe" not in page.next.code:
            page.run()
        client.hset("cart:gone", "item", 1)
        client.hset("cart:here", "item", 1)
        client.set("user:here", 1)
        outcomes = [workstealing.default_recruiter.perform("carts", seconds=5.0) for _ in range(3)]
        assert workstealing.Outcome.WORKED in outcomes
        assert client.keys("cart:*") == [b"cart:here"]
        client.flushall()
        with page, pytest.raises(AssertionError, match="a live item was lost") as lost:
            page.run()
        # The page shows the very error.
        shown = text_of("docs/rules.md").partition("AssertionError: ")[2].partition("\n\n")[0]
        assert "".join(str(lost.value).split()) == "".join(shown.split())
    finally:
        for job in list(workstealing.default_recruiter.jobs()):
            workstealing.uninstall(job)


def test_adaptive(redis7: RedisServer) -> None:
    client = redis7.client()
    job = HashFieldExpiry(VolatileHashes(client, namespace="items"))
    with running("docs/adaptive.md") as page:
        names = page.run(client=client, job=job)
        # Each of the two blocks installs it.
        names["recruiter"].uninstall(job.name)
        page.run()
    assert names["recruiter"].stats()["jobs"][names["job"].name]["adaptive"] is True
    names["ledger"].close()


def test_the_runbooks_settings(redis7: RedisServer) -> None:
    given = {"client": redis7.client(), "SharedSettings": SharedSettings}
    names = run_page("docs/runbook.md", given)
    setting = names["fleet"].settings()["expiry"]
    assert (setting.rate, setting.paused) == (0.01, True)


def test_each_code_block_runs_in_a_test() -> None:
    """A block runs if a test names its page, or its section: see support/pages.py."""
    claims = {claim for each in (ROOT / "tests").rglob("test_*.py") for claim in claims_of(each)}
    found = [block for page in pages() for block in blocks_of(page)]
    missed = forgotten(found, claims)
    assert not missed, f"no test runs the blocks at {', '.join(each.place for each in missed)}"
    exempt = [block for block in found if block.is_exempt]
    assert len(exempt) == len(EXEMPT) <= MOST_EXEMPT, "each line of the table is one block's"


MORE_PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "deploy/README.md", "lua/README.md"]


def test_each_command_of_the_pages_is_one_of_ours() -> None:
    """The real parser takes each `workstealing` command, and each target of make exists."""
    lines = [line for page in [*pages(), *MORE_PAGES] for line in command_lines(page)]
    refused = [told for line in lines if (told := refusal_of(line))]
    assert not refused, "\n".join(refused)
    names = [line.words[0] for line in lines if line.is_whole]
    assert names.count("workstealing") > 35
    assert names.count("make") > 5
    assert len(lines) > 200
