"""`jobs`, `run` and `drain`, and how --app finds a recruiter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.servers import RedisServer
from support.terminals import on_terminal
from workstealing.cli import drain
from workstealing.jobs.shared.backend_moves import GRACE_SECONDS
from workstealing.metrics.ledger import read
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.structures import DurableKeys, VolatileHashes

PLAIN = """
    from workstealing import Recruiter

    print("the application talks")
    recruiter = Recruiter()
    left = {"many": 25, "few": 2}

    @recruiter.job(rate=0.25, limit=10)
    def many(slice):
        '''Handles many things.

        At leisure.
        '''
        print("so does its job")
        items = min(left["many"], slice.limit)
        left["many"] -= items
        return items

    @recruiter.job(rate=0.5, limit=1)
    def few(slice):
        items = min(left["few"], slice.limit)
        left["few"] -= items
        return items

    def make():
        return recruiter

    class Box:
        inner = recruiter

    broken = 1 + 1
"""

QUIET = PLAIN.replace('print("the application talks")', "")

FAULTY = """
    from workstealing import Recruiter
    from workstealing.errors import Aborted

    recruiter = Recruiter()
    calls = []

    @recruiter.job(rate=0.1)
    def breaks(slice):
        raise ValueError("the\\nmatter")

    @recruiter.job(rate=0.1)
    def contended(slice):
        calls.append(1)
        if len(calls) < 4:
            raise Aborted("another writer")
        return 0

    @recruiter.job(rate=0.1)
    def unreachable(slice):
        raise ConnectionError("nobody there")

    @recruiter.job(rate=0.1)
    def endless(slice):
        return 1
"""

MakeApp = Callable[[str], str]


def test_the_jobs_are_listed(command: Any, app_module: MakeApp) -> None:
    name = app_module(PLAIN)
    said = command.json("jobs", "--app", f"{name}:recruiter")
    assert [each["name"] for each in said["jobs"]] == ["many", "few"]
    assert said["jobs"][0]["summary"] == "Handles many things"
    assert (said["jobs"][0]["rate"], said["jobs"][0]["limit"]) == (0.25, 10)
    assert said["rates_together"] == 0.75
    text = command("jobs", "--app", f"{name}:recruiter")
    assert "many" in text
    assert "0.25" in text


def test_a_recruiter_without_jobs(command: Any, app_module: MakeApp) -> None:
    name = app_module("from workstealing import Recruiter\nrecruiter = Recruiter()")
    assert command.json("jobs", "--app", name) == {"jobs": [], "rates_together": 0}
    assert "no job is installed" in command("jobs", "--app", name)
    assert "no job is installed" in command.refused("drain", "--app", name)


@pytest.mark.parametrize("path", ["", ":recruiter", ":make", ":make()", ":Box.inner"])
def test_a_recruiter_may_be_named_in_many_ways(
    command: Any, app_module: MakeApp, path: str
) -> None:
    assert command.json("jobs", "--app", app_module(PLAIN) + path)["jobs"]


def test_the_environment_names_the_app(
    command: Any, app_module: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKSTEALING_APP", app_module(PLAIN))
    assert command.json("jobs")["jobs"]


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        ("", ":recruiter", "has no 'recruiter'"),
        ("recruiter = 1", "", "is of type int; expected a Recruiter"),
        ("recruiter = lambda: 1", "", "is of type int; expected a Recruiter"),
        ("def recruiter(x): pass", "", "calling it failed: TypeError"),
        ("1 / 0", "", "failed: ZeroDivisionError: division by zero"),
        ("this is no python", "", "failed: SyntaxError"),
        ("import nowhere_at_all", "", "failed: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "", "failed: SystemExit: 3"),
        ("recruiter = 1", ":", "is malformed: expected package.module:recruiter"),
        ("", ":a-b", "has no 'a-b'"),
    ],
)
def test_an_app_that_is_none(
    command: Any, app_module: MakeApp, source: str, path: str, expected: str
) -> None:
    assert expected in command.refused("jobs", "--app", app_module(source) + path)


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("nowhere_at_all:recruiter", "no module 'nowhere_at_all'"),
        ("../x.py", "is malformed"),
        ("", "no recruiter was named: give --app package.module:recruiter"),
    ],
)
def test_no_app_at_all(command: Any, app_module: MakeApp, app: str, expected: str) -> None:
    assert expected in command.refused("run", "many", "--app", app)


def test_a_module_inside_a_package_that_is_missing(command: Any, app_module: MakeApp) -> None:
    name = app_module("")
    assert "failed: ModuleNotFoundError" in command.refused("jobs", "--app", f"{name}.inner:x")


def test_run_performs_one_slice(command: Any, app_module: MakeApp) -> None:
    name = app_module(PLAIN)
    said = command.json("run", "many", "--app", name)
    assert (said["slices"], said["items"], said["outcomes"]["worked"]) == (1, 10, 1)
    assert "the application talks" in command.err
    assert "so does its job" in command.err


def test_run_performs_several_slices(command: Any, app_module: MakeApp) -> None:
    name = app_module(PLAIN)
    text = command("run", "many", "--app", name, "--slices", "4")
    assert text.startswith("many: 25 items in 4 slices (3 worked, 1 idle)")


def test_run_takes_bounds_of_a_slice(command: Any, app_module: MakeApp) -> None:
    said = command.json("run", "many", "--app", app_module(PLAIN), "--slice", "3")
    assert said["items"] == 3


def test_a_slice_that_fails_is_said(command: Any, app_module: MakeApp) -> None:
    name = app_module(FAULTY)
    said = command.json("run", "breaks", "--app", name, "--slices", "5", status=1)
    assert (said["slices"], said["outcomes"]["failed"]) == (1, 1)
    assert said["error"] == "ValueError: the\\nmatter"
    command("run", "breaks", "--app", name, status=1)
    assert "the last slice failed: ValueError: the\\nmatter\n" in command.err


def test_a_dry_run_that_fails_is_said(command: Any, app_module: MakeApp) -> None:
    name = app_module(
        """
        from workstealing import Recruiter
        from workstealing.recruiting import Job

        class Broken(Job):
            name = "broken"
            dry_run = False

            def perform(self, slice):
                raise ValueError("the\\nmatter")

        recruiter = Recruiter()
        recruiter.install(Broken(), rate=0.1)
        """
    )
    said = command.json("run", "broken", "--app", name, "--dry-run", status=1)
    error = "ValueError: the\\nmatter"
    assert said == {
        "job": "broken",
        "dry_run": True,
        "items": None,
        "unit": "items",
        "error": error,
    }
    assert command("run", "broken", "--app", name, "--dry-run", status=1) == ""
    assert command.err == f"the dry run failed: {error}\n"


def test_a_job_without_a_dry_run(command: Any, app_module: MakeApp) -> None:
    said = command.refused("run", "many", "--app", app_module(QUIET), "--dry-run")
    assert "the job 'many' has no dry run" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run",), "JOB"),
        (("run", "others"), "no job 'others' is installed; installed: many, few"),
        (("drain", "others"), "no job 'others' is installed"),
        (("run", "many", "--slices", "0"), "0 is too few slices"),
        (("run", "many", "--slice", "x"), "'x' is no whole number"),
        (("run", "many", "--slice-seconds", "0"), "too short"),
        (("run", "many", "--dry-run", "--slices", "2"), "--dry-run counts for one slice"),
        (("drain", "--seconds", "-1"), "'-1' is no duration"),
        (("drain", "--idle", "0"), "0 is too few slices"),
        (("drain", "many", "few"), "unrecognized arguments: few"),
    ],
)
def test_wrong_use(
    command: Any,
    app_module: MakeApp,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    name = app_module(QUIET)
    monkeypatch.setenv("WORKSTEALING_APP", name)
    assert expected in command.refused(*arguments)


def test_drain_empties_every_job_in_turn(command: Any, app_module: MakeApp) -> None:
    said = command.json("drain", "--app", app_module(PLAIN))
    assert said["drained"] is True
    assert {name: each["items"] for name, each in said["jobs"].items()} == {"many": 25, "few": 2}
    assert said["jobs"]["many"]["outcomes"]["idle"] == 3
    assert said["jobs"]["many"]["slices"] == 6


def test_drain_empties_the_job_that_is_named(command: Any, app_module: MakeApp) -> None:
    text = command("drain", "few", "--app", app_module(PLAIN), "--idle", "1")
    assert text.startswith("few: drained, 2 items in 3 slices (2 worked, 1 idle)")
    assert "many" not in text


def test_drain_goes_on_after_an_abort(command: Any, app_module: MakeApp) -> None:
    said = command.json("drain", "contended", "--app", app_module(FAULTY))
    assert said["jobs"]["contended"]["outcomes"] == {
        "worked": 0,
        "idle": 3,
        "aborted": 3,
        "failed": 0,
        "out_of_time": 0,
        "skipped": 0,
    }


def test_drain_gives_up_on_a_job_that_fails(command: Any, app_module: MakeApp) -> None:
    said = command.json("drain", "breaks", "--app", app_module(FAULTY), status=1)
    assert (said["drained"], said["jobs"]["breaks"]["ended"]) == (False, "failed")
    assert said["jobs"]["breaks"]["slices"] == 3


def test_drain_leaves_a_server_alone_that_is_not_there(command: Any, app_module: MakeApp) -> None:
    said = command.json("drain", "unreachable", "--app", app_module(FAULTY), status=1)
    job = said["jobs"]["unreachable"]
    # One fault opens the breaker.
    assert (job["ended"], job["outcomes"]["failed"], job["outcomes"]["skipped"]) == (
        "skipped",
        1,
        1,
    )
    assert job["error"] == "ConnectionError: nobody there"


def test_drain_ends_in_time(command: Any, app_module: MakeApp) -> None:
    said = command.json(
        "drain", "endless", "--app", app_module(FAULTY), "--seconds", "50ms", status=1
    )
    assert (said["drained"], said["jobs"]["endless"]["ended"]) == (False, "out of time")
    assert said["jobs"]["endless"]["items"] > 0


def test_ctrl_c_tells_what_was_done(command: Any, app_module: MakeApp) -> None:
    name = app_module(
        """
        from workstealing import Recruiter

        recruiter = Recruiter()
        done = []

        @recruiter.job(rate=0.1)
        def interrupted(slice):
            if done:
                raise KeyboardInterrupt
            done.append(1)
            return 7
        """
    )
    said = command.json("drain", "--app", name, status=130)
    assert said["jobs"]["interrupted"]["items"] == 7


REAL = """
    import redis
    from workstealing import Recruiter
    from workstealing.jobs import HashFieldExpiry, KeyExpiry
    from workstealing.structures import DurableKeys, VolatileHashes

    client = redis.Redis.from_url({url!r})
    recruiter = Recruiter()
    hashes = VolatileHashes(client, namespace="cli", backend="emulated", clock_shift_ms=60_000)
    recruiter.install(HashFieldExpiry(hashes, limit=10), rate=0.01)
    keys = DurableKeys(client, namespace="cli-keys")
    recruiter.install(KeyExpiry(keys, limit=10), rate=0.01)
"""


@pytest.mark.real
def test_a_real_servers_garbage_is_counted_and_drained(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    client = redis7.client()
    hashes = VolatileHashes(client, namespace="cli", backend="emulated")
    for number in range(35):
        hashes.hsetex(f"item:{number}", mapping={"a": 1}, ex=30)
    keys = DurableKeys(client, namespace="cli-keys")
    for number in range(12):
        keys.set(f"lease:{number}", "x", px=1)
    time.sleep(0.01)
    name = app_module(REAL.format(url=redis7.url))
    dry = command.json("run", "hash_field_expiry.cli", "--app", name, "--dry-run")
    assert dry == {
        "job": "hash_field_expiry.cli",
        "dry_run": True,
        "items": 10,
        "unit": "fields",
        "error": None,
    }
    text = command("run", "hash_field_expiry.cli", "--app", name, "--dry-run", "--slice", "4")
    assert text == "hash_field_expiry.cli: a slice would handle 4 fields\n"
    assert client.exists("item:0") == 1
    one = command.json("run", "hash_field_expiry.cli", "--app", name)
    assert (one["items"], one["outcomes"]["worked"]) == (10, 1)
    rest = command.json("drain", "--app", name)
    assert rest["drained"] is True
    assert rest["jobs"]["hash_field_expiry.cli"]["items"] == 25
    assert rest["jobs"]["key_expiry.cli-keys"]["items"] == 12
    assert list(client.scan_iter("item:*")) == []
    assert list(client.scan_iter("lease:*")) == []


def test_a_job_that_waits_is_waited_for(command: Any, app_module: MakeApp) -> None:
    name = app_module(
        """
        import time

        from workstealing import Job, Recruiter
        from workstealing.recruiting.job import Backlog

        class Waiting(Job):
            name, left, since = "waiting", 3, None

            def perform(self, slice):
                self.since = self.since or time.monotonic()
                if time.monotonic() < self.since + 0.3:
                    return 0
                items, self.left = self.left, 0
                return items

            def backlog(self, seconds):
                return Backlog(self.left, None, "items")

        recruiter = Recruiter()
        recruiter.install(Waiting(), rate=0.1)
        """
    )
    said = command.json("drain", "--app", name)["jobs"]["waiting"]
    assert (said["ended"], said["items"]) == ("drained", 3)


def test_drain_waits_for_longer_than_a_move_waits() -> None:
    pauses = [
        min(drain._SHORTEST_PAUSE * 2**n, drain._LONGEST_PAUSE) for n in range(drain.MOST_DOUBTS)
    ]
    # `MigrateToEmulated` waits twice, and works on nothing in between.
    assert 2 * GRACE_SECONDS < sum(pauses) < drain.SECONDS


@pytest.mark.slow
def test_drain_moves_a_namespace_back(
    command: Any, app_module: MakeApp, redis8: RedisServer
) -> None:
    items = VolatileHashes(redis8.client(), namespace="items", backend="native")
    items.hsetex("item:7", mapping={"price": "9"}, ex=3600)
    name = app_module(
        f"""
        from workstealing import Recruiter, connect
        from workstealing.jobs import MigrateToEmulated
        from workstealing.structures import VolatileHashes

        recruiter = Recruiter()
        items = VolatileHashes(connect({redis8.url!r}), namespace="items")
        recruiter.install(MigrateToEmulated(items, "item:*"), rate=0.1)
        """
    )
    said = command.json("drain", "--app", name, "--seconds", "120")["jobs"]
    (job,) = said.values()
    assert (job["ended"], job["drained"]) == ("drained", True)
    now = VolatileHashes(redis8.client(), namespace="items", backend="emulated")
    assert 0 < now.httl("item:7", "price")[0] <= 3600


def test_a_backlog_that_no_slice_finds_is_not_called_drained(
    command: Any, app_module: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workstealing.cli.drain._LONGEST_PAUSE", 0.001)
    name = app_module(
        """
        from workstealing import Job, Recruiter
        from workstealing.recruiting.job import Backlog

        class Blind(Job):
            limit = 5

            def __init__(self, name, sees_after):
                self.name, self.sees_after, self.looks, self.left = name, sees_after, 0, 3

            def perform(self, slice):
                self.looks += 1
                if self.looks < self.sees_after:
                    return 0
                items, self.left = self.left, 0
                return items

            def backlog(self, seconds):
                return Backlog(self.left, None, "items")

        recruiter = Recruiter()
        recruiter.install(Blind("late", 8), rate=0.1)
        recruiter.install(Blind("never", 10**9), rate=0.1)
        """
    )
    said = command.json("drain", "--app", name, status=1)["jobs"]
    assert (said["late"]["ended"], said["late"]["items"]) == ("drained", 3)
    assert (said["never"]["ended"], said["never"]["drained"]) == ("stuck", False)


def test_a_backlog_that_nobody_could_ask_for_is_not_called_drained(
    command: Any, app_module: MakeApp
) -> None:
    name = app_module(
        """
        from workstealing import Job, Recruiter
        from workstealing.recruiting.job import Backlog

        class Silent(Job):
            limit = 5

            def __init__(self, name, knows_after):
                self.name, self.knows_after, self.asked = name, knows_after, 0

            def perform(self, slice):
                return 0

            def backlog(self, seconds):
                self.asked += 1
                # The bar asks first.
                if self.asked <= self.knows_after:
                    raise ConnectionError("nobody there")
                return Backlog(0, None, "items")

        recruiter = Recruiter()
        recruiter.install(Silent("late", 3), rate=0.1)
        recruiter.install(Silent("never", 10**9), rate=0.1)
        """
    )
    said = command.json("drain", "--app", name, status=1)["jobs"]
    assert said["late"]["ended"] == "drained"
    assert (said["never"]["ended"], said["never"]["drained"]) == ("backlog unknown", False)


def test_no_job_works_while_nobody_knows_which_are_paused(
    command: Any, app_module: MakeApp
) -> None:
    name = app_module(
        """
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
        from workstealing import Recruiter
        from workstealing.metrics.ledger import Ledger

        recruiter = Recruiter()
        recruiter.add_hook(Ledger(redis.Redis(port=1, retry=Retry(NoBackoff(), 0)), "shop"))
        ran = []

        @recruiter.job(rate=0.1)
        def tidy(slice):
            ran.append(1)
            return 0
        """
    )
    said = command.json("drain", "--app", name, status=1)["jobs"]["tidy"]
    assert (said["ended"], said["slices"]) == ("not begun", 0)


LEDGER = """
    from workstealing.metrics.ledger import Ledger

    recruiter.add_hook(Ledger(client, "shop"))
"""


@pytest.mark.real
def test_a_dry_run_is_not_drained(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    """It would find the same items for ever, so cron is content without it."""
    client = redis7.client()
    client.sadd("conj:a", "gone")
    name = app_module(
        f"""
        import redis
        from workstealing import Recruiter
        from workstealing.jobs import TagSetLeftovers
        recruiter = Recruiter(seconds=5.0)
        recruiter.install(TagSetLeftovers(redis.Redis.from_url({redis7.url!r})), rate=0.1)
        """
    )
    said = command.json("drain", "--app", name)["jobs"]["tag_set_leftovers"]
    assert (said["ended"], said["slices"], said["drained"]) == ("a dry run", 0, False)
    assert "is a dry run" in command.refused("drain", "tag_set_leftovers", "--app", name)
    assert client.smembers("conj:a") == {b"gone"}


@pytest.mark.real
def test_what_is_drained_is_in_the_ledger_and_what_the_fleet_pauses_rests(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    client = redis7.client()
    hashes = VolatileHashes(client, namespace="cli", backend="emulated")
    hashes.hsetex("item", mapping={"a": 1}, ex=30)
    name = app_module(textwrap.dedent(REAL.format(url=redis7.url)) + textwrap.dedent(LEDGER))
    SharedSettings(client, "shop").pause("hash_field_expiry.cli")
    said = command.json("drain", "--app", name)
    assert said["jobs"]["hash_field_expiry.cli"]["ended"] == "paused"
    assert said["jobs"]["key_expiry.cli-keys"]["ended"] == "drained"
    assert client.exists("item") == 1
    SharedSettings(client, "shop").resume("hash_field_expiry.cli")
    assert command.json("drain", "--app", name)["jobs"]["hash_field_expiry.cli"]["items"] == 1
    (recorded,) = [each for each in read(client, "shop", minutes=2) if each.jobs][-1:]
    assert recorded.jobs["hash_field_expiry.cli"].items == 1


def test_a_bar_is_drawn_where_somebody_looks_on(app_module: MakeApp, tmp_path: Path) -> None:
    name = app_module(PLAIN)
    drawn, out = on_terminal(
        "drain", "--app", name, "--json", stream="stderr", columns=100, folder=tmp_path
    )
    assert json.loads(out)["drained"] is True
    assert b"items in all" in drawn


def test_a_name_that_the_terminal_cannot_show(app_module: MakeApp, tmp_path: Path) -> None:
    name = app_module(
        """
        from workstealing import Recruiter

        recruiter = Recruiter()
        recruiter.job(rate=0.1, name="caf\\u00e9 \\ud800 \\x1b[2J")(lambda slice: 0)
        """
    )
    done = subprocess.run(
        [sys.executable, "-m", "workstealing", "jobs", "--app", name],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
    )
    assert b"caf\\xe9 \\ud800 \\x1b[2J" in done.stdout
