"""The examples of the frameworks do what their READMEs say, each by its one command."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import end, spawn
from support.servers import RedisServer, wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


def command_of(example: str) -> list[str]:
    """Return the first command of an example's README, to be run by this interpreter."""
    readme = (ROOT / "examples" / example / "README.md").read_text()
    found = re.search(r"^    \.venv/bin/python (.+)$", readme, re.M)
    assert found is not None
    return [sys.executable, *found[1].split()]


def environment(**more: str) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("REDIS_URL") and not name.startswith(("WORKSTEALING_", "DJANGO_"))
    }
    return {**clean, **more}


@pytest.mark.slow
@pytest.mark.parametrize("example", ["celery_worker", "rq_worker"])
def test_a_worker_cleans_up(example: str) -> None:
    done = subprocess.run(
        command_of(example),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = [int(count) for count in re.findall(r"^.+: (\d+)$", done.stdout, re.M)]
    first, after_work, after_idle = counts
    assert first > after_work
    assert after_idle == 0


class Shop:
    """A running example of a web application."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self._port, self.log = process, port, log

    def get(self, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/figures")[0] == 200
        except OSError:
            return False

    def enlisted(self) -> Any:
        return json.loads(self.get("/figures")[2])["enlisted"]


@pytest.fixture
def start(redis7: RedisServer, tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(example: str) -> Shop:
        log = tmp_path / "log"
        command = command_of(example)
        with log.open("wb") as file:
            processes.append(
                spawn(
                    command,
                    cwd=ROOT,
                    env=environment(REDIS_URL=redis7.url),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        address = re.compile(r"^curl -i http://127\.0\.0\.1:(\d+)/item/17 ", re.M)
        wait_until(lambda: address.search(log.read_text()), f"the address of {example}", SECONDS)
        found = address.search(log.read_text())
        assert found is not None
        shop = Shop(processes[-1], int(found[1]), log)
        wait_until(shop.answers, f"{example} to answer", SECONDS)
        return shop

    yield start
    for process in processes:
        end(process)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["fastapi_items", "django_items", "flask_items"])
def test_a_shop_serves_and_its_fast_exits_enlist(
    start: Callable[[str], Shop], example: str
) -> None:
    shop = start(example)
    status, headers, body = shop.get("/item/17")
    assert (status, headers["X-Cache"]) == (200, "miss")
    assert json.loads(body)["description"] == "The 17th thing"
    assert shop.get("/item/1001")[0] == 404
    assert shop.enlisted() == 0
    status, headers, again = shop.get("/item/17")
    assert (headers["X-Cache"], again) == ("hit", body)
    # It has enlisted after its response: not before we could look.
    wait_until(lambda: shop.enlisted() == 1, "the enlist of a hit", SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["fastapi_items", "flask_items"])
def test_ctrl_c_ends_a_shop_without_a_traceback(start: Callable[[str], Shop], example: str) -> None:
    shop = start(example)
    shop.process.send_signal(signal.SIGINT)
    shop.process.wait(SECONDS)
    assert "Traceback" not in shop.log.read_text()


@pytest.mark.slow
def test_djangos_checks_find_nothing(redis7: RedisServer) -> None:
    command = command_of("django_items")[:2]
    done = subprocess.run(
        [*command, "check", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=environment(REDIS_URL=redis7.url),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout
