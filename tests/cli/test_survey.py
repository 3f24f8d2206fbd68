"""`workstealing survey`: what it prints, and what it never prints."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import spawn
from support.servers import AnyServer, RedisServer
from workstealing.cli.survey import progress_text
from workstealing.errors import ConfigurationError
from workstealing.survey import Progress
from workstealing.survey.report import load_report

SECRET = "hunter2hunter2"


@pytest.fixture
def filled(redis8: RedisServer) -> RedisServer:
    """A server with dead members of a tag set, and a name that would steer a terminal."""
    client = redis8.client()
    client.sadd("conj:shop:id=1", *(f"page:{number}" for number in range(100)))
    client.mset({f"page:{number}": 1 for number in range(50)})
    client.set("evil\x1b]0;title\x07\u202e\n<b>", 1)
    return redis8


def test_the_table(command: Any, filled: RedisServer) -> None:
    said = command("survey", "--url", filled.url, "--load", "1", "--traffic", "500/s")
    lines = said.splitlines()
    assert lines[0].startswith("52 keys, ")
    (tags,) = [each for each in lines if each.startswith("conj:shop:id=<n>")]
    assert tags.split()[1:5] == ["cacheops", "set", "1", tags.split()[4]]
    assert "certain" in tags
    assert "recruiter.install(TagSetLeftovers(client, 'conj:shop:id=*'), rate=" in said
    assert "certain: 50 members, " in said
    removes = "recruiter.install(TagSetLeftovers(client, 'conj:shop:id=*', dry_run=False), rate="
    assert removes in said
    assert "Each first line is a dry run: it counts, and changes nothing." in said
    assert "Times at 500 callers a second" in said
    assert " of the server's used_memory, " in lines[0]
    assert " in database 0 of Redis 8." in lines[0]
    assert "% of the server's time" in lines[-1]
    assert all(each.isprintable() for each in lines), said


def test_json_html_and_the_file_for_the_dashboard(
    command: Any, filled: RedisServer, tmp_path: Path
) -> None:
    page = tmp_path / "survey.html"
    report = command.json("survey", "--url", filled.url, "--load", "1", "--html", str(page))
    assert report["keys"] == 52
    assert report["freed"]["certain"][0] > 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "conj:shop:id=&lt;n&gt;" in text
    assert "<b>" not in text
    file = tmp_path / "survey.json"
    file.write_text(json.dumps(report))
    assert load_report(file) == report
    file.write_text(json.dumps({**report, "survey": 1}))
    with pytest.raises(ConfigurationError, match="of another version of the survey"):
        load_report(file)


def test_the_number_of_rows(command: Any, filled: RedisServer) -> None:
    said = command("survey", "--url", filled.url, "--load", "1", "--rows", "1")
    assert "and 2 smaller families with 2 keys" in said


def test_an_empty_server(command: Any, redis7: RedisServer, tmp_path: Path) -> None:
    said = command("survey", "--url", redis7.url, "--html", str(tmp_path / "survey.html"))
    assert said.startswith("0 keys, 0 B")


def test_a_cluster(command: Any, cluster: Any) -> None:
    cluster.client().mset_nonatomic({f"page:{number}": 1 for number in range(90)})
    assert "of 3 nodes" in command("survey", "--url", cluster.url, "--load", "1")


def test_credentials_are_in_no_output(
    command: Any, start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis(8)
    client = server.client()
    client.mset({f"page:{number}": 1 for number in range(200)})
    client.config_set("requirepass", SECRET)
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}/0"
    state, page = tmp_path / "state", tmp_path / "page.html"
    told = command("survey", "--url", url, "--resume", str(state), "--html", str(page), "--json")
    told += command.err + page.read_text()
    told += command("survey", "--url", url) + command.err
    from workstealing.survey import Survey

    survey = Survey(server.client(password=SECRET), path=state)
    survey.run()
    told += state.read_text()
    assert SECRET not in told
    server.kill()
    assert SECRET not in command.refused("survey", "--url", url)


def test_a_replica_is_read(
    command: Any, filled: RedisServer, start_redis: Callable[..., RedisServer]
) -> None:
    replica = start_redis(8)
    replica.client().replicaof("127.0.0.1", filled.port)
    deadline = time.monotonic() + 60
    while replica.client().role()[3] != b"connected":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    filled.client().config_resetstat()
    report = command.json("survey", "--url", filled.url, "--replica", replica.url, "--load", "1")
    assert report["keys"] == 52
    assert report["server"]["is_replica"]
    assert "cmdstat_scan" not in filled.client().info("commandstats")
    assert [each for each in report["notes"] if "idle times are left out" in each]
    report = command.json("survey", "--replica", filled.url, "--load", "1")
    assert [each for each in report["notes"] if "primary itself" in each]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--url", "redis://127.0.0.1:1/0"], "cannot be used"),
        (["--url", "ftp://somewhere"], "the Redis URL begins with ftp://"),
        (["--url", "URL", "--load", "0"], "0 is no share: expected 0 < share <= 1"),
        (["--url", "URL", "--sample", "1.5"], "1.5 is no share"),
        (["--url", "URL", "--traffic", "0"], "--traffic is 0"),
        (["--url", "URL", "--rows", "0"], "0 is too few rows"),
        (["--url", "URL", "--html", "/no/such/folder/x.html"], "is not there"),
        (["--url", "URL", "--resume", "/no/such/folder/x"], "is not there"),
    ],
)
def test_bad_input(command: Any, redis7: RedisServer, arguments: list[str], expected: str) -> None:
    given = [redis7.url if each == "URL" else each for each in arguments]
    assert expected in command.refused("survey", *given)


def test_progress() -> None:
    assert progress_text(Progress(1_000, 4_000, 2.0, 90.0)) == "1,000 of 4,000 keys, 90 s left"
    assert progress_text(Progress(1_000, None, 2.0, None)) == "1,000 keys"


@pytest.mark.slow
@pytest.mark.parametrize("has_rich", [True, False])
def test_a_terminal_shows_progress_and_ctrl_c_keeps_the_state(
    redis8: RedisServer, tmp_path: Path, has_rich: bool
) -> None:
    redis8.client().mset({f"page:{number}": "x" for number in range(20_000)})
    hide = "" if has_rich else "sys.modules['rich'] = None;"
    program = f"import sys; {hide} from workstealing.cli import main; sys.exit(main(sys.argv[1:]))"
    state = tmp_path / "state"
    parent, child = pty.openpty()
    process = spawn(
        [
            *(sys.executable, "-P", "-c", program, "survey", "--url", redis8.url),
            *("--load", "0.002", "--resume", str(state), "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=child,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(child)
    shown = b""
    while b" of 20,000 keys" not in shown:
        shown += os.read(parent, 4_096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            if not os.read(parent, 4_096):
                break
        except OSError:
            break
    os.close(parent)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    before = json.loads(state.read_text())["families"][0]
    assert 0 < before < 20_000
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "workstealing", "survey", "--url", redis8.url),
            *("--load", "1", "--resume", str(state), "--json"),
        ],
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["keys"] == 20_000
    assert done.stderr == b""
    assert not state.exists()


def test_a_server_that_dies_is_one_sentence(
    command: Any, start_redis: Callable[..., RedisServer], tmp_path: Path, monkeypatch: Any
) -> None:
    from workstealing.survey.scanning import Reader

    server = start_redis(7)
    server.client().mset({f"page:{number}": 1 for number in range(1_000)})
    scan = Reader.scan
    pages: list[int] = []

    def dying(self: Reader, node: Any, cursor: bytes) -> Any:
        pages.append(1)
        if len(pages) == 3:
            server.kill()
        return scan(self, node, cursor)

    monkeypatch.setattr(Reader, "scan", dying)
    state = tmp_path / "state"
    said = command.refused("survey", "--url", server.url, "--resume", str(state))
    assert "the survey was cut off" in said
    assert f"--resume {state} goes on" in said
    assert json.loads(state.read_text())["families"][0] > 0


def test_any_server_is_surveyed_by_its_url(command: Any, any_server: AnyServer) -> None:
    any_server.client().set("a", 1)
    url = any_server.url  # type: ignore[attr-defined]
    assert command.json("survey", "--url", url)["keys"] == 1
