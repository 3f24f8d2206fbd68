"""`workstealing dashboard`: where it listens, who may steer, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.metrics.shared_settings import SharedSettings

MakeApp = Callable[[str], str]
TOKEN = "an admin's token of the tests"

APP = """
    from workstealing import Recruiter
    recruiter = Recruiter()

    @recruiter.job(rate=0.125)
    def tidy(slice):
        return 3
"""


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("", "_VIEW"):
        monkeypatch.delenv(f"WORKSTEALING_DASHBOARD{kind}_TOKEN", raising=False)
    for variable in ("WORKSTEALING_REDIS_URL", "REDIS_URL", "WORKSTEALING_APP"):
        monkeypatch.delenv(variable, raising=False)


Start = Callable[..., tuple[dict[str, Any], Any]]


@pytest.fixture
def start(redis7: RedisServer) -> Iterator[Start]:
    """Start the command at a free port; returns what it printed and the process."""
    started = []

    def begin(*arguments: str) -> tuple[dict[str, Any], Any]:
        process = spawn(
            [
                *(sys.executable, "-P", "-m", "workstealing", "dashboard", "--json", "--port=0"),
                *("--url", redis7.url, *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return json.loads(process.stdout.readline()), process

    yield begin
    for process in started:
        end(process)
        process.stdout.close()
        process.stderr.close()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.slow
def test_it_shows_an_apps_jobs_and_ends_by_ctrl_c(start: Start, app_module: MakeApp) -> None:
    said, process = start("--app", app_module(APP))
    assert said["steers"] is False
    assert said["url"].startswith("http://127.0.0.1:")
    status, page = get(said["url"])
    assert status == 200
    assert ">tidy</bdi>" in page
    assert "read only" in page
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert process.stderr.read() == b""


@pytest.mark.slow
def test_it_shows_the_ledger_alone_without_an_app(start: Start, redis7: RedisServer) -> None:
    SharedSettings(redis7.client(), "mine").pause("elsewhere")
    said, _ = start("--ledger", "mine")
    assert ">elsewhere</bdi>" in get(said["url"])[1]


@pytest.mark.slow
def test_with_a_token_one_logs_in_and_steers(
    start: Start, monkeypatch: pytest.MonkeyPatch, app_module: MakeApp, redis7: RedisServer
) -> None:
    monkeypatch.setenv("WORKSTEALING_DASHBOARD_TOKEN", TOKEN)
    said, process = start("--app", app_module(APP), "--host", "0.0.0.0")
    assert said["steers"] is True
    url = said["url"].replace("0.0.0.0", "127.0.0.1")
    assert get(url)[0] == 401
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

    def post(path: str, **form: str) -> str:
        answer: str = opener.open(url + path, urllib.parse.urlencode(form).encode()).read().decode()
        return answer

    page = post("login", token=TOKEN)
    csrf, job = (re.findall(f'name="{name}" value="([^"]*)"', page)[-1] for name in ("csrf", "job"))
    job = re.findall('name="job" value="([^"]*)"', page)[0]
    assert "tidy is paused" in post("jobs", csrf=csrf, job=job, action="pause", sure="yes")
    assert SharedSettings(redis7.client()).settings()["tidy"].paused
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert TOKEN not in process.stderr.read().decode() + json.dumps(said)


@pytest.mark.slow
def test_a_token_may_be_in_a_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\nanother line\n")
    said, _ = start("--token-file", str(tmp_path / "token"))
    assert get(said["url"])[0] == 401
    assert get(said["url"], Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "example.com", "localhost.x"])
def test_without_a_token_no_other_address_is_listened_at(
    command: Any, redis7: RedisServer, host: str
) -> None:
    said = command.refused("dashboard", "--url", redis7.url, "--host", host)
    assert "other machines may reach" in said
    assert "WORKSTEALING_DASHBOARD_TOKEN" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "70000"), "is no port"),
        (("--port", "x"), "is no whole number"),
        (("--ledger", "a b"), "ledger's name"),
        (("--token-file", "/none/such"), "cannot be read"),
        (("--app", "none.such:recruiter"), "no module"),
    ],
)
def test_wrong_use_is_one_sentence(
    command: Any, redis7: RedisServer, arguments: tuple[str, ...], said: str
) -> None:
    assert said in command.refused("dashboard", "--url", redis7.url, *arguments)


def test_an_address_that_cannot_be_had_is_one_sentence(command: Any, redis7: RedisServer) -> None:
    taken = command.refused("dashboard", "--url", redis7.url, "--port", str(redis7.port))
    assert "cannot be listened at: Address already in use" in taken


@pytest.mark.slow
def test_the_other_loopback_is_this_machine_too(start: Start) -> None:
    said, _ = start("--host", "::1")
    assert said["url"].startswith("http://[::1]:")
    assert get(said["url"])[0] == 200


def test_short_or_empty_tokens_are_refused(
    command: Any, redis7: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("\n")
    file = ("--token-file", str(tmp_path / "token"))
    assert "empty line" in command.refused("dashboard", "--url", redis7.url, *file)
    monkeypatch.setenv("WORKSTEALING_DASHBOARD_TOKEN", "a secret")
    said = command.refused("dashboard", "--url", redis7.url)
    assert "too short" in said
    assert "a secret" not in said


def test_without_any_redis_it_says_what_to_give(command: Any) -> None:
    assert "--url" in command.refused("dashboard") or "WORKSTEALING_REDIS_URL" in command.err
