"""The README's Quickstart beside busy processes: its first minutes show no alarm.

WORKSTEALING_STARTS=200 asks for so many starts instead of a few, WORKSTEALING_START_SECONDS=120 for
how long each is watched, and WORKSTEALING_STARTS_AT_ONCE=3 how many run beside each other.
"""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from support.pages import blocks_of
from support.processes import end, free_port, spawn
from support.servers import RedisServer, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.real]

README = Path(__file__).parents[2] / "README.md"
STARTS = int(os.environ.get("WORKSTEALING_STARTS", "2"))
SECONDS = float(os.environ.get("WORKSTEALING_START_SECONDS", "25"))
AT_ONCE = int(os.environ.get("WORKSTEALING_STARTS_AT_ONCE", "2"))
# Seconds after the first answer. Each look takes a moment of the machine, as a newcomer's does.
LOOKS = (0, 2, 5, 9, 12, 16, 20, 24, 35, 50, 62, 75, 90, 105, 118)
DATABASES = 16


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes that are always busy."""
    processes = [spawn([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for each in processes:
        end(each)


def visit(port: int, stop: threading.Event) -> None:
    """Send the Quickstart's visitors, 100 a second at most."""
    while not stop.wait(0.01):
        with suppress(OSError, http.client.HTTPException):
            web = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            web.request("GET", f"/item/{random.randrange(50)}")
            web.getresponse().read()
            web.close()


def answers(port: int) -> bool:
    """Say whether the shop answers."""
    web = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        web.request("GET", "/item/1")
        return web.getresponse().status == 200
    except OSError:
        return False
    finally:
        web.close()


def one_start(folder: Path, url: str) -> list[str]:
    """Start the shop, visit it, and ask `status` now and then; return its complaints."""
    port, stop = free_port(), threading.Event()
    environment = {**os.environ, "WORKSTEALING_REDIS_URL": url}
    shop = spawn(
        [sys.executable, "-m", "gunicorn", "-w", "2", "-b", f"127.0.0.1:{port}", "shop:app"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    visitor = threading.Thread(target=visit, args=(port, stop))
    found = []
    try:
        wait_until(lambda: answers(port), "the shop to answer", seconds=120)
        visitor.start()
        begun = time.monotonic()
        for at in (each for each in LOOKS if each < SECONDS):
            time.sleep(max(0.0, begun + at - time.monotonic()))
            said = subprocess.run(
                [sys.executable, "-m", "workstealing", "status", "--app", "shop:recruiter"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            took = time.monotonic() - begun
            if took > 120.0:
                # On a machine that is busier still, the first two minutes are over.
                break
            alarms = [line for line in said.stdout.splitlines() if line.startswith("! ")]
            if said.returncode or said.stderr or alarms or " NO" in said.stdout:
                told = "; ".join(alarms) or said.stderr or said.stdout
                found.append(f"after {took:.0f} s: status {said.returncode}: {told}")
    finally:
        stop.set()
        if visitor.ident:
            visitor.join()
        end(shop)
    return found


@pytest.mark.usefixtures("busy")
@pytest.mark.timeout(0)
def test_fresh_starts_show_no_alarm(redis7: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(blocks_of("README.md")[0].code)
    free = list(range(DATABASES))

    def start(_: int) -> list[str]:
        database = free.pop()
        client = redis7.client(db=database)
        try:
            client.flushdb()
            return one_start(tmp_path, f"redis://127.0.0.1:{redis7.port}/{database}")
        finally:
            client.flushdb()
            client.close()
            free.append(database)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [each for each in pool.map(start, range(STARTS)) if each]
    told = "\n".join(each for several in found for each in several)
    assert not found, f"{len(found)} of {STARTS} starts showed an alarm:\n{told}"
