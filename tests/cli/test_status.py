"""`status` and `top`, with a ledger and without one."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import workstealing
from support.dashboards import kill
from support.processes import free_port
from support.servers import RedisCluster3, RedisServer
from support.terminals import on_terminal
from workstealing.cli import status, top
from workstealing.cli.arguments import parse
from workstealing.dashboard.fleet_state import AWAY, DENIED, then
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.cache_figures import CACHES
from workstealing.structures import Ick, VolatileHashes

pytestmark = pytest.mark.real

MakeApp = Callable[[str], str]

APP = """
    import redis
    from workstealing import Recruiter
    from workstealing.jobs import HashFieldExpiry
    from workstealing.structures import VolatileHashes

    client = redis.Redis.from_url({url!r})
    recruiter = Recruiter()
    hashes = VolatileHashes(client, namespace="cli", backend="emulated", clock_shift_ms=60_000)
    recruiter.install(HashFieldExpiry(hashes, limit=10, name="expiry"), rate=0.01)
"""


@pytest.fixture
def garbage(redis7: RedisServer) -> RedisServer:
    hashes = VolatileHashes(redis7.client(), namespace="cli", backend="emulated")
    for number in range(35):
        hashes.hsetex(f"item:{number}", mapping={"a": 1}, ex=30)
    return redis7


def report(
    server: RedisServer | RedisCluster3, name: str = "default", outcome: Outcome = Outcome.WORKED
) -> None:
    """Let a process of a fleet report what it has done."""
    recruiter = Recruiter(random=lambda: 1.0)
    recruiter.install(FunctionJob(lambda slice: 0, name="sweep \x1b[31m"), rate=0.25)
    ledger = Ledger(server.client(), name)
    recruiter.add_hook(ledger)
    ledger.on_enlisted(600)
    for _ in range(30):
        ledger.on_recruited("sweep \x1b[31m")
        ledger.on_outcome("sweep \x1b[31m", outcome, 5, 0.002, None)
    assert ledger.flush(5.0)
    kill(ledger)


def test_without_a_ledger_the_structures_are_shown(
    command: Any, app_module: MakeApp, garbage: RedisServer
) -> None:
    name = app_module(APP.format(url=garbage.url))
    said = command.json("status", "--app", name)
    assert (said["is_fleet"], said["is_well"], said["troubles"]) == (False, True, [])
    (job,) = said["jobs"]
    assert (job["name"], job["rate"], job["keeps_up"]) == ("expiry", 0.01, None)
    assert job["recruited_per_minute"] is said["enlisted_per_s"] is None
    (structure,) = said["structures"]
    assert (structure["kind"], structure["size"]) == ("volatile hashes", 35)
    text = command("status", "--app", name)
    for part in ("no ledger has figures", "expiry", "volatile hashes", "35"):
        assert part in text


def test_the_fleets_figures_come_from_the_ledger(
    command: Any, app_module: MakeApp, garbage: RedisServer
) -> None:
    report(garbage)
    SharedSettings(garbage.client()).pause("expiry")
    said = command.json("status", "--app", app_module(APP.format(url=garbage.url)))
    assert (said["is_fleet"], said["processes"]) == (True, 1)
    assert said["enlisted_per_s"] > 0
    jobs = {job["name"]: job for job in said["jobs"]}
    assert jobs["expiry"]["fleet_paused"] is True
    assert jobs["sweep \x1b[31m"]["outcomes"]["worked"] == 30
    assert jobs["sweep \x1b[31m"]["rate"] == 0.25


def test_a_dry_run_is_said_by_the_process_and_by_the_fleet(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    dry = APP.replace('name="expiry"', 'name="expiry", dry_run=True')
    assert "dry run (0.01)" in command("status", "--app", app_module(dry.format(url=redis7.url)))
    recruiter = Recruiter(random=lambda: 1.0)
    hashes = VolatileHashes(redis7.client(), namespace="cli", backend="emulated")
    recruiter.install(HashFieldExpiry(hashes, name="far", dry_run=True), rate=0.01)
    ledger = Ledger(redis7.client(), "shop")
    recruiter.add_hook(ledger)
    ledger.on_enlisted(600)
    assert ledger.flush(5.0)
    ledger.close()
    said = command.json("status", "--url", redis7.url, "--ledger", "shop")
    assert [(job["name"], job["dry_run"]) for job in said["jobs"]] == [("far", True)]
    assert "dry run (0.01)" in command("status", "--url", redis7.url, "--ledger", "shop")


def test_the_applications_own_ledger_is_found(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    report(redis7, "fast")
    one = (
        APP
        + """
    from workstealing.metrics.ledger import Ledger

    recruiter.add_hook(Ledger(client, "fast"))
"""
    )
    name = app_module(one.format(url=redis7.url))
    assert "1 process reported" in command("status", "--app", name)
    assert "sweep" in command("explain", "--app", name, status=1)
    # Another one than the application's is named.
    said = command.json("status", "--app", name, "--ledger", "other")
    assert not said["is_fleet"]
    several = one.replace('"fast"))', '"fast")); recruiter.add_hook(Ledger(client, "slow"))')
    name = app_module(several.format(url=redis7.url))
    said = command.refused("status", "--app", name)
    assert "several ledgers: give --ledger fast, or slow" in said


def test_a_url_alone_finds_the_one_ledger_there(command: Any, redis7: RedisServer) -> None:
    report(redis7, "fast")
    assert command.json("status", "--url", redis7.url)["is_fleet"]
    report(redis7, "slow")
    said = command.refused("status", "--url", redis7.url)
    assert "the Redis has several ledgers: give --ledger fast, or slow" in said
    assert command.json("status", "--url", redis7.url, "--ledger", "slow")["is_fleet"]
    report(redis7, "default")
    assert command.json("status", "--url", redis7.url)["is_fleet"]
    for name in ("status", "events"):
        command(name, "--url", redis7.url)
        assert command.err == (
            "this is the ledger 'default'; the same Redis has the ledgers fast, slow, too: --ledger"
            " NAME shows one of them\n"
        )
    command("status", "--url", redis7.url, "--ledger", "default")
    assert command.err == ""


def test_the_default_ledger_alone_needs_no_word(command: Any, redis7: RedisServer) -> None:
    report(redis7)
    command("status", "--url", redis7.url)
    assert command.err == ""


def test_a_cluster_has_other_ledgers_too(command: Any, cluster: RedisCluster3) -> None:
    for name in ("default", "fast", "slow"):
        report(cluster, name)
    command("status", "--url", cluster.url)
    assert "the same Redis has the ledgers fast, slow, too" in command.err
    assert command.json("status", "--url", cluster.url, "--ledger", "slow")["is_fleet"]


def test_the_one_ledger_of_a_cluster_is_found(command: Any, cluster: RedisCluster3) -> None:
    report(cluster, "fast")
    assert command.json("status", "--url", cluster.url)["is_fleet"]


def test_caches_of_the_last_hour(command: Any, redis7: RedisServer) -> None:
    assert command.json("status", "--url", redis7.url)["caches"] == {}
    ledger = Ledger(redis7.client())
    figures = CACHES.of("shop.price")
    figures.hit(1_500)
    figures.compute(0.25)
    figures.miss()
    ledger.on_enlisted(1)
    assert ledger.flush(5.0)
    ledger.close()
    said = command.json("status", "--url", redis7.url)
    assert said["caches"] == {
        "shop.price": {
            "hits": 1_500,
            "stale": 0,
            "misses": 1,
            "waits": 0,
            "computations": 1,
            "failures": 0,
            "uncached": 0,
            "seconds": 0.25,
        }
    }
    text = command("status", "--url", redis7.url)
    for part in ("cache, last hour", "shop.price", "1,500", "250 ms"):
        assert part in text


def test_top_draws_the_caches_too(redis7: RedisServer) -> None:
    ledger = Ledger(redis7.client())
    CACHES.of("shop.rate \x1b[31m").hit(1_250)
    ledger.on_enlisted(1)
    assert ledger.flush(5.0)
    ledger.close()
    options = parse(["top", "--url", redis7.url])
    console = Console(width=200, file=io.StringIO(), force_terminal=False)
    console.print(top.drawn(status.looker(options)()))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("cache, last hour", "shop.rate", "1,250"):
        assert part in drawn
    assert "\x1b" not in drawn


def test_a_url_alone_is_enough_for_the_ledger(command: Any, redis7: RedisServer) -> None:
    report(redis7, "shop")
    said = command.json("status", "--url", redis7.url, "--ledger", "shop")
    assert [job["name"] for job in said["jobs"]] == ["sweep \x1b[31m"]
    text = command("status", "--url", redis7.url, "--ledger", "shop")
    # A hostile name steers nobody's terminal.
    assert "\x1b" not in text
    assert "sweep \\x1b[31m" in text
    assert "1 process reported" in text
    nothing = command.json("status", "--url", redis7.url, "--ledger", "another")
    assert (nothing["is_fleet"], nothing["jobs"]) == (False, [])


def test_a_job_is_explained_by_the_fleets_figures(
    command: Any, app_module: MakeApp, garbage: RedisServer
) -> None:
    report(garbage)
    SharedSettings(garbage.client()).pause("expiry")
    name = app_module(APP.format(url=garbage.url))
    said = command.json("explain", "sweep \x1b[31m", "--url", garbage.url)
    (job,) = said["jobs"]
    assert (job["job"], job["has_run"], said["troubles"]) == ("sweep \x1b[31m", True, [])
    # A ledger counts by the minute.
    (ran,) = [each for each in job["reasons"] if "of it ran" in each]
    assert re.fullmatch(
        r"30 slices of it ran, the last at most \d+ (s|min) ago, and handled 150 items", ran
    )
    assert any("one caller in 4; 600 callers would" in each for each in job["reasons"])
    # All that are known, one of them paused and never recruited, the other one of other processes.
    text = command("explain", "--app", name, status=1)
    assert "expiry has not run lately:\n- it is paused in the whole fleet" in text
    assert "\x1b" not in text
    assert "no job 'sweep \\x1b[31m' is installed in this process" in text


def test_a_strangers_new_line_makes_no_sentence(command: Any, redis7: RedisServer) -> None:
    report(redis7)
    forged = "ann\n- it keeps up with its garbage"
    SharedSettings(redis7.client(), user=forged).pause("sweep \x1b[31m")
    text = command("explain", "--url", redis7.url)
    assert "\n- it keeps up" not in text
    assert "ann\\n- it keeps up" in text


def test_an_explanation_without_figures_claims_no_minute(command: Any, app_module: MakeApp) -> None:
    name = app_module("""
    from workstealing import Recruiter
    recruiter = Recruiter()
    recruiter.job(rate=0.1, name="tidy")(lambda slice: 0)
    """)
    text = command("explain", "--app", name, status=1)
    assert "nobody has enlisted in this process in the last 1 s" in text


def test_a_refusal_is_said_with_the_next_step(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    client = redis7.client()
    client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "+@all", "~shop:*")
    try:
        url = redis7.url.replace("://", "://shop:secret@", 1)
        text = command("status", "--url", url, status=1)
        (line,) = [each for each in text.splitlines() if each.startswith("! ")]
        assert line.startswith("! the ledger could not be asked: NoPermissionError: ")
        assert line.endswith(then(DENIED))
        name = app_module(APP.format(url=url))
        assert "lately: the ledger cannot be read" in command("explain", "--app", name, status=1)
    finally:
        client.acl_deluser("shop")


def test_a_job_that_nobody_knows_is_explained(command: Any, redis7: RedisServer) -> None:
    text = command("explain", "tidy", "--url", redis7.url, status=1)
    assert text.startswith("tidy has not run lately:\n- nobody has enlisted")
    assert "no ledger has figures of the fleet" in text
    assert "there is nothing to look at" in command.refused("explain", "tidy")


def test_a_ledger_that_was_emptied_is_said(command: Any, redis7: RedisServer) -> None:
    """Its processes and their jobs have not just started: only the figures are new."""
    recruiter = Recruiter(random=lambda: 1.0)
    recruiter.install(FunctionJob(lambda slice: 0, name="sweep"), rate=0.25)
    ledger = Ledger(redis7.client())
    recruiter.add_hook(ledger)

    def reported() -> None:
        ledger.on_enlisted(600)
        for _ in range(30):
            ledger.on_recruited("sweep")
            ledger.on_outcome("sweep", Outcome.WORKED, 5, 0.002, None)
        assert ledger.flush(30.0)

    reported()
    assert "sweep: just started: nothing to say yet" in command("status", "--url", redis7.url)
    redis7.client().flushall()
    # One report sees it, and the next one tells it.
    for _ in range(3):
        reported()
    text = command("status", "--url", redis7.url)
    moment = r"the ledger was emptied at \d\d:\d\d:\d\d UTC, and has figures since then"
    assert re.search(rf"^{moment}$", text, re.MULTILINE), text
    assert re.search(rf"^sweep: nothing to say yet: {moment}$", text, re.MULTILINE), text
    assert "just started" not in text
    said = command.json("status", "--url", redis7.url)
    assert (said["is_well"], len(said["notes"])) == (None, 1)
    kill(ledger)


def test_what_needs_attention_is_said_and_is_the_exit_status(
    command: Any, redis7: RedisServer
) -> None:
    report(redis7, outcome=Outcome.FAILED)
    said = command.json("status", "--url", redis7.url, status=1)
    assert said["is_well"] is False
    assert "! sweep \\x1b[31m: does not keep up: 30 of 30 slices failed" in command(
        "status", "--url", redis7.url, status=1
    )


def test_a_start_is_neither_well_nor_ill(command: Any, redis7: RedisServer) -> None:
    report(redis7, outcome=Outcome.ABORTED)
    said = command.json("status", "--url", redis7.url)
    assert said["is_well"] is None
    assert said["jobs"][0]["just_started"] is True
    text = command("status", "--url", redis7.url)
    assert "sweep \\x1b[31m: just started: nothing to say yet" in text
    assert "! " not in text


def test_dead_items_need_a_person(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    name = app_module(
        f"""
        import redis
        from workstealing import Recruiter
        from workstealing.jobs import IckReaper
        from workstealing.structures import Ick

        recruiter = Recruiter()
        ick = Ick(redis.Redis.from_url({redis7.url!r}), "dirty")
        # Each look finds every reservation stale, and gives up at once.
        recruiter.install(IckReaper(ick, lease=0.001, max_attempts=1), rate=0.01)
        """
    )
    ick = Ick(redis7.client(), "dirty")
    ick.add({"a": 1})
    for _ in range(2):
        ick.reserve(1)
        time.sleep(0.005)
        command("run", "ick_reaper.dirty", "--app", name)
    said = command.json("status", "--app", name, status=1)
    assert said["structures"][0]["dead"] == 1
    assert "dirty: 1 dead items wait for a person" in command("status", "--app", name, status=1)


def test_a_ledger_that_cannot_be_asked_is_said(
    command: Any, app_module: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    name = app_module(APP.format(url=f"redis://127.0.0.1:{free_port()}"))
    said = command.json("status", "--app", name, status=1)
    # One sentence for one dead server, with its address and all that needs it.
    assert said["troubles"] == []
    (warning,) = said["warnings"]
    found = re.fullmatch(
        r"127\.0\.0\.1:(\d+) does not answer \((.*)\); nothing is known of the ledger, expiry"
        + re.escape(then(AWAY)),
        warning,
    )
    assert found is not None, warning
    assert found[2].startswith("ConnectionError: ")
    assert f"127.0.0.1:{found[1]}. Connection refused" in found[2]
    (job,) = said["jobs"]
    assert (job["keeps_up"], job["why"]) == (None, f"127.0.0.1:{found[1]} does not answer")
    text = command("status", "--app", name, status=1)
    assert text.count("! ") == 1
    assert f"! 127.0.0.1:{found[1]} does not answer (ConnectionError: " in text
    # Perhaps the application keeps one: nobody is told to add it.
    assert "the ledger did not answer" in text
    assert "add_hook" not in text
    command("top", "--app", name, "--times", "1", status=1)
    command("top", "--app", name, "--json", status=1)
    assert "the ledger could not be asked: ConnectionError" in caplog.text
    assert "the dashboard" not in caplog.text


def test_a_silent_server_is_waited_for_once_a_look(command: Any, app_module: MakeApp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = app_module(
            f"""
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
            from workstealing import Recruiter
            from workstealing.metrics.ledger import Ledger

            client = redis.Redis(
                port={silent.getsockname()[1]}, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)
            )
            recruiter = Recruiter()
            recruiter.add_hook(Ledger(client))
            """
        )
        said = command.json("top", "--app", name, "--times", "2", "--interval", "1ms", status=1)
        assert [len(each["warnings"]) for each in said["looks"]] == [1, 1]
        assert [each["troubles"] for each in said["looks"]] == [[], []]
        silent.settimeout(0.0)
        connections = 0
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
            connections += 1
        assert connections == 2


def test_the_environments_redis_is_looked_at(
    command: Any, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKSTEALING_APP", raising=False)
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    assert command.json("status")["jobs"] == []


@pytest.mark.parametrize("what", ["status", "top"])
def test_wrong_use(
    command: Any, app_module: MakeApp, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    app_module("")
    for variable in ("REDIS_URL", "WORKSTEALING_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert "there is nothing to look at" in command.refused(what)
    nobody = f"redis://127.0.0.1:{free_port()}"
    refused = command.refused(what, "--url", nobody)
    assert "the Redis at --url cannot be used" in refused
    assert f"(asked at {nobody.removeprefix('redis://')})" in refused
    assert "begins with http://" in command.refused(what, "--url", "http://x")


def test_a_ledgers_name_that_is_none(command: Any, redis7: RedisServer) -> None:
    said = command.refused("status", "--url", redis7.url, "--ledger", "a b")
    assert "a ledger's name is 'a b'" in said


def test_top_looks_again_and_again(command: Any, redis7: RedisServer) -> None:
    report(redis7)
    arguments = ("top", "--url", redis7.url, "--times", "2", "--interval", "1ms")
    assert command(*arguments).count("enlisted/s") == 2
    assert len(command.json(*arguments)["looks"]) == 2
    assert len(command.json("top", "--url", redis7.url)["looks"]) == 1


def test_top_draws_in_place_on_a_terminal(redis7: RedisServer, tmp_path: Path) -> None:
    report(redis7, outcome=Outcome.FAILED)
    again = ("--times", "2", "--interval", "10ms")
    drawn, _ = on_terminal("top", "--url", redis7.url, *again, folder=tmp_path, status=1)
    # The job's name is text: it has turned nothing red by itself.
    assert b"sweep \\x1b[31m" in drawn
    assert b"slices failed" in drawn


def test_top_says_what_it_needs(
    command: Any, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workstealing.cli import top

    monkeypatch.setattr(top.sys.stdout, "isatty", lambda: True, raising=False)
    for module in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert "pip install 'workstealing[cli]'" in command.refused("top", "--url", redis7.url)


def test_ctrl_c_ends_top(
    command: Any, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workstealing.cli.top.time.sleep", interrupt)
    text = command("top", "--url", redis7.url)
    assert text.count("no ledger") == 1
    assert "recruiter.add_hook(workstealing.metrics.ledger.Ledger(client))" in text


def test_the_json_is_all_that_is_printed(redis7: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(
        "print('hello')\nfrom workstealing import Recruiter\nrecruiter = Recruiter()\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "workstealing",
            "status",
            "--json",
            "--app",
            "talks",
            "--url",
            redis7.url,
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["is_well"] is True
    assert done.stderr == "hello\n"


@pytest.mark.cluster
def test_a_cluster_is_asked_like_a_server(
    command: Any, app_module: MakeApp, cluster: RedisCluster3
) -> None:
    report(cluster)
    hashes = VolatileHashes(cluster.client(), namespace="cli", backend="emulated")
    for number in range(20):
        hashes.hsetex(f"item:{number}", mapping={"a": 1}, ex=30)
    source = APP.format(url=cluster.url.replace("redis+cluster", "redis"))
    name = app_module(source.replace("redis.Redis.", "redis.RedisCluster."))
    said = command.json("status", "--app", name)
    assert (said["is_fleet"], said["structures"][0]["size"]) == (True, 20)
    assert said["structures"][0]["due"]["count"] == 20
    assert command.json("status", "--url", cluster.url)["processes"] == 1
    assert command.json("drain", "--app", name)["jobs"]["expiry"]["items"] == 20


def test_total_failure_is_seen(command: Any, redis7: RedisServer) -> None:
    """As of a silent server: nothing worked, and nearly all recruits were skipped."""
    ledger = Ledger(redis7.client(), interval=3_600.0)
    for outcome, count in ((Outcome.SKIPPED, 289), (Outcome.FAILED, 11)):
        for _ in range(count):
            ledger.on_recruited("sweep")
            error = TimeoutError("late") if outcome is Outcome.FAILED else None
            ledger.on_outcome("sweep", outcome, 0, 0.01, error)
    assert ledger.flush(30.0)
    kill(ledger)
    said = command.json("status", "--url", redis7.url, status=1)
    (job,) = said["jobs"]
    assert job["keeps_up"] is False
    assert job["why"] == "11 of 11 slices failed, TimeoutError, 289 recruits were skipped"
    ((name, count, host),) = [(e["name"], e["count"], e["host"]) for e in job["errors"]]
    assert (name, count, host) == ("TimeoutError", 11, socket.gethostname())
    (process,) = said["reported"]
    assert (process["host"], process["version"]) == (socket.gethostname(), workstealing.__version__)
    text = command("status", "--url", redis7.url, status=1)
    assert re.search(r"^sweep .* 100% +0% +NO$", text, re.M), text
    assert re.search(r"^sweep +TimeoutError +11 +\S+ \S+ ago +\S+$", text, re.M), text
    assert f"1 on {socket.gethostname()}, {workstealing.__version__}" in text


OTHERS = """
    import redis
    from workstealing import Recruiter
    from workstealing.jobs import TagSetLeftovers
    from workstealing.recruiting import FunctionJob

    recruiter = Recruiter(seconds=5.0)
    recruiter.install(TagSetLeftovers(redis.Redis.from_url({url!r}), "conj:*"), rate=0.1)
    recruiter.install(FunctionJob(lambda slice: 0, name="plain"), rate=0.1)
"""


def test_a_job_on_keys_of_others_is_seen(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    """It names no structure, but its server is examined, and its backlog is shown."""
    name = app_module(OTHERS.format(url=redis7.url))
    found = command.checks(name)
    assert found["client"][0] == "ok"
    assert found["server"][1].startswith("Redis 7.")
    assert found["job tag_set_leftovers rights"][0] == "ok"
    said = "it names no structure, so no rights were looked at"
    assert found["job plain rights"] == ("note", said)
    structures, jobs = command.well(name)
    assert structures == {("job", "tag_set_leftovers"): (None, 0, None)}
    assert jobs["tag_set_leftovers"] == 0
    # A function has neither a dry run nor a backlog.
    listed = command.json("jobs", "--app", name)["jobs"]
    assert {each["name"]: (each["dry_run"], each["backlog"]) for each in listed} == {
        "tag_set_leftovers": (True, True),
        "plain": (None, False),
    }
