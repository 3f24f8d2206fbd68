"""A fleet of real processes on three Redis servers of its own, and the surfaces that tell of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from support.dashboards import write_minute
from support.patience import GUARD_SECONDS
from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.structures import DurableKeys

TESTS = Path(__file__).resolve().parents[1]
WATCH_SECONDS = 2 * GUARD_SECONDS
JOBS = ("leases", "carts", "mail")
WELL = {"recruited": 300, "worked": 300, "items": 900, "microseconds": 900_000, "oldest.0": 2.0}
GROWING: dict[str, Any] = {**WELL, "oldest.0": lambda number: 60.0 * number, "backlog.0": 50_000}


@dataclass(frozen=True)
class Surfaces:
    """What somebody sees at one moment: of `status`, `explain` and the page the text and data."""

    status: str
    explain: str
    page: str
    alarms: list[str]
    light: str
    metrics: str

    def told(self) -> dict[str, str]:
        """Return the texts for people, by surface."""
        return {"status": self.status, "explain": self.explain, "page": self.page}


class BrokenFleet:
    """Starts processes of `support.fleet_app`, and asks all surfaces about them.

    Arguments:
        start_redis: the fixture.
        folder: for the metrics of all processes.
    """

    def __init__(self, start_redis: Callable[..., RedisServer], folder: Path) -> None:
        self.ledger, self.leases, self.carts = (start_redis(7) for _ in range(3))
        self._folder = folder
        self._children: list[subprocess.Popen[Any]] = []
        self._dashboard: str | None = None
        self.leases.client().execute_command(
            "ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"
        )
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "LEDGER_URL": self.ledger.url,
            "LEASES_URL": self.leases.url.replace("://", "://app:secret@", 1),
            "CARTS_URL": self.carts.url,
        }

    @staticmethod
    def address(server: RedisServer) -> str:
        """Return a server's address as the surfaces name it."""
        return f"127.0.0.1:{server.port}"

    def write_hour(self, **jobs: dict[str, Any]) -> None:
        """Write the hour before: all is well in it, but for the jobs given."""
        client = self.ledger.client()
        present = int(client.time()[0]) // 60 * 60
        for number in range(60):
            fields: dict[str, Any] = {"processes": 2, "enlisted": 12_000, "covered_ms": 120_000}
            for job in JOBS:
                figures = {"rate": 0.05, **jobs.get(job, WELL)}
                for figure, value in figures.items():
                    fields[f"{figure}:{job}"] = value(number) if callable(value) else value
            write_minute(client, present - 60 * (60 - number), fields)

    def fill_leases(self) -> None:
        """Let more leases be an hour overdue than the fleet can collect in minutes."""
        client = self.leases.client()
        DurableKeys(client, namespace="leases").set("lease", "held", ex=1)
        (index,) = client.scan_iter("*ws:leases:due")
        overdue = int(client.time()[0]) * 1000 - 3_540_000
        for part in range(40):
            names = {f"lease:{part}:{number}": overdue for number in range(5000)}
            client.zadd(index, names)

    def start(self, count: int = 2, **environment: str) -> None:
        """Start so many processes of the application."""
        with_metrics = {"PROMETHEUS_MULTIPROC_DIR": str(self._folder)}
        for _ in range(count):
            command = [sys.executable, "-m", "support.fleet_app"]
            settings = {**self.environment, **with_metrics, **environment}
            self._children.append(spawn(command, env=settings, stderr=subprocess.DEVNULL))

    def run(self, *arguments: str, **environment: str) -> str:
        """Return what a command prints, whatever its status."""
        done = subprocess.run(
            [sys.executable, "-m", "support.ahead", *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
        )
        return done.stdout + done.stderr

    def dashboard(self, **environment: str) -> str:
        """Return the address of a dashboard, which is started by the first call."""
        if self._dashboard is None:
            ask = ("dashboard", "--json", "--port=0", "--app", "support.fleet_app:recruiter")
            process = spawn(
                [sys.executable, "-m", "support.ahead", *ask],
                env={**self.environment, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._children.append(process)
            assert process.stdout is not None
            self._dashboard = json.loads(process.stdout.readline())["url"]
        return self._dashboard

    def seen(self, **environment: str) -> Surfaces:
        """Ask all surfaces."""
        app = ("--app", "support.fleet_app:recruiter")
        status, explain = (self.run(each, *app, **environment) for each in ("status", "explain"))
        address = self.dashboard(**environment)
        with urllib.request.urlopen(f"{address}view.json", timeout=GUARD_SECONDS) as answer:
            view = json.load(answer)
        texts = [view["source"], view["light"], *view["alarms"]]
        texts += [] if view["alarms"] else [view["fine"]]
        for job in view["jobs"]:
            cells = [each["text"] for each in job["cells"]]
            badges = [each["text"] for each in job["badges"]]
            texts.append(" | ".join([job["name"], *badges, *cells, job["problem"], job["note"]]))
        texts += [
            f"{each['ago']}: {each['said']} ({each['where']})" for each in view["events"]["rows"]
        ]
        light, alarms = view["light"], view["alarms"]
        return Surfaces(status, explain, "\n".join(texts), alarms, light, self.metrics())

    def metrics(self) -> str:
        """Return the metrics of all processes, as one scrape shows them."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode()

    def until(self, shows: Callable[[Surfaces], bool], **environment: str) -> Surfaces:
        """Look until it shows, and return that look; the last one if it never does."""
        latest = time.monotonic() + WATCH_SECONDS
        while True:
            seen = self.seen(**environment)
            if shows(seen) or time.monotonic() > latest:
                return seen
            time.sleep(0.5)

    def stop(self) -> None:
        """End all processes."""
        for process in self._children:
            end(process, 1.0)
            if process.stdout is not None:
                process.stdout.close()
