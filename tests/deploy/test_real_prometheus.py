"""A real Prometheus scrapes us, by both ways, and answers every query of the dashboard."""

from __future__ import annotations

import contextlib
import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from support.apart import set_apart
from support.exporter import Exporter
from support.processes import end, free_port, spawn
from support.troubles import WaitingQueue
from workstealing import Recruiter, connect
from workstealing.dashboard.watched import Watched
from workstealing.errors import Aborted
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.prometheus import DeadItems, PrometheusHooks, WaitingAccounts
from workstealing.metrics.statsd import StatsDHooks
from workstealing.recruiting import FunctionJob
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import CACHES
from workstealing.testing import ManualClock

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "workstealing.rules.yml"
MAPPING = DEPLOY / "statsd_exporter" / "workstealing.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "workstealing.json").read_text())
PATIENCE = 120.0
STRUCTURES = [
    Watched("mails", "shuffle queue", dead_size=lambda: 2),
    WaitingQueue("renderings", {"alice": 2.0}),
]


class Prometheus:
    """A running Prometheus that scrapes one target as the application "shop"."""

    def __init__(self, program: str, folder: Path, target: int) -> None:
        settings = {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": "shop", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._port = free_port()
        self.process = spawn(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=error",
            ]
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data that the API answers with; None while it does not."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            if error.code != 503:
                # A query that it refuses; while it starts, it is only not available.
                raise AssertionError(error.read().decode()) from None
            return None
        except OSError:
            return None
        assert answer["status"] == "success"
        return answer["data"]


@pytest.fixture(params=["prometheus", "statsd"])
def prometheus_of(
    request: pytest.FixtureRequest,
    prometheus: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Prometheus, Callable[[], None]]]:
    """A Prometheus that scrapes an application by one way; and a call lets callers come there."""
    set_apart(monkeypatch)
    breaker = SERVER_BREAKERS.of(("server", ("cache.local", 6379)))
    breaker.fail(SERVER_BREAKERS.clock.monotonic(), None)
    with contextlib.ExitStack() as stack:
        hooks: PrometheusHooks | StatsDHooks
        if request.param == "statsd":
            exporter = Exporter(request.getfixturevalue("statsd_exporter"), MAPPING)
            stack.callback(end, exporter.process)
            hooks = StatsDHooks("127.0.0.1", exporter.port, structures=STRUCTURES)
            stack.callback(hooks.close, PATIENCE)
            target = exporter.web
        else:
            registry = CollectorRegistry()
            hooks = PrometheusHooks(registry)
            registry.register(DeadItems(STRUCTURES))
            registry.register(WaitingAccounts(STRUCTURES))
            target = free_port()
            server, thread = start_http_server(target, "127.0.0.1", registry)
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        clock = ManualClock(100.0)
        ledger = Ledger(connect(f"redis://127.0.0.1:{free_port()}/0"), clock=clock)
        stack.callback(ledger.close, 0.0)
        recruiter = working(clock)
        recruiter.add_hook(hooks)
        running = Prometheus(prometheus, tmp_path, target)
        stack.callback(end, running.process)

        def come() -> None:
            cache = CACHES.of("price")
            cache.hit(9)
            cache.miss()
            cache.wait()
            cache.compute(0.25)
            cache.fail()
            cache.leave()
            ledger.on_enlisted(1)
            assert not ledger.flush(PATIENCE)
            for job in ("sweep", "busy", "away"):
                recruiter.perform(job)
            recruiter.enlist()
            recruiter.flush()
            clock.advance(20.0)
            if isinstance(hooks, StatsDHooks):
                assert hooks.flush(PATIENCE)

        yield running, come
    assert breaker is not None


def working(clock: ManualClock) -> Recruiter:
    """Return a recruiter with jobs that work, are beaten by another writer, and fail."""
    recruiter = Recruiter(random=lambda: 0.0, clock=clock)

    def sweep(slice: Any) -> int:
        slice.observe(oldest_seconds=5.0, backlog=7)
        slice.measure("tombstones", 3.0)
        return 3

    def beaten(slice: Any) -> int:
        raise Aborted

    def fail(slice: Any) -> int:
        raise ConnectionError("nobody there")

    for name, function in (("sweep", sweep), ("busy", beaten), ("away", fail)):
        recruiter.install(FunctionJob(function, name=name), rate=0.01)
    return recruiter


def panels() -> dict[str, str]:
    """Return the queries of the panels by title and letter, with Grafana's variables filled in."""
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            query = query.replace("$application", "shop").replace("$job_name", ".*")
            found[f"{panel['title']} {target['refId']}"] = query
    return found


def has_value(data: Any) -> bool:
    """Say whether an answer has a number."""
    results = data["result"] if data else ()
    return any(not math.isnan(float(each["value"][1])) for each in results)


@pytest.mark.slow
def test_every_panel_and_every_rule_is_answered(
    prometheus_of: tuple[Prometheus, Callable[[], None]],
) -> None:
    prometheus, come = prometheus_of
    unanswered = panels()
    assert len(unanswered) >= 20
    until = time.monotonic() + PATIENCE
    while unanswered and time.monotonic() < until:
        come()
        time.sleep(0.1)
        for title, query in list(unanswered.items()):
            if has_value(prometheus.ask("query", query=query)):
                del unanswered[title]
    assert unanswered == {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
            selector, _, label = asked.rpartition(", ")
            selector = selector.replace("$application", "shop")
            values = prometheus.ask(f"label/{label}/values", **{"match[]": selector})
            assert values == (["shop"] if label == "job" else ["away", "busy", "sweep"])
    rules: dict[str, Any] = {}
    # Dead items wait for some of the five minutes that their alert wants.
    while time.monotonic() < until and (
        not rules or rules["WorkstealingDeadItems"]["state"] != "pending"
    ):
        time.sleep(0.1)
        rules = {each["name"]: each for each in prometheus.ask("rules")["groups"][0]["rules"]}
    assert rules["WorkstealingDeadItems"]["state"] == "pending"
    assert len(rules) == 18
    assert {rule["health"] for rule in rules.values()} == {"ok"}
