"""What deploy/ ships: rules that promtool has tried, a dashboard and a mapping of known metrics."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from workstealing.cli.arguments import COMMANDS
from workstealing.metrics.gathering import LOOKUPS, SLICE_BUCKETS
from workstealing.metrics.prometheus import DeadItems, PrometheusHooks, WaitingAccounts
from workstealing.metrics.statsd import StatsDHooks
from workstealing.recruiting import Outcome
from workstealing.recruiting.cache_figures import CACHES

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "workstealing.rules.yml"
RULES_TEST = DEPLOY / "prometheus" / "workstealing.test.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "workstealing.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
MAPPING = DEPLOY / "statsd_exporter" / "workstealing.yml"
# What Prometheus adds to whatever it scrapes, and what PrometheusHooks has.
LABELS = {
    "account",
    "job",
    "instance",
    "job_name",
    "outcome",
    "le",
    "error",
    "structure",
    "kind",
    "what",
}
LABELS |= {"server", "cache", "result", "receiver", "account"}
OUTCOMES = [each for each in Outcome if each is not Outcome.DISMISSED]


def exported() -> set[str]:
    """Return the name of every sample that PrometheusHooks exports."""
    registry = CollectorRegistry()
    hooks = PrometheusHooks(registry)
    _count_a_cache()
    hooks.on_enlisted(1)
    hooks.on_recruited("a")
    for outcome in OUTCOMES:
        hooks.on_outcome("a", outcome, 1, 0.001, ValueError())
    registry.register(DeadItems([]))
    registry.register(WaitingAccounts([]))
    hooks.on_observed("a", 1.0, 1)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    # Those that only a recruiter brings.
    return names | {family.name for family in registry.collect() if family.type == "gauge"}


def _count_a_cache() -> None:
    figures = CACHES.of("price")
    figures.hit()
    figures.old()
    figures.miss()
    figures.wait()
    figures.compute(1.0)
    figures.leave()
    figures.fail()


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    loaded = yaml.safe_load(RULES.read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def targets() -> Iterator[dict[str, Any]]:
    """Yield what the dashboard's panels ask for."""
    for panel in dashboard()["panels"]:
        yield from panel.get("targets", ())


def queries() -> list[str]:
    """Return every query of the dashboard, those of its variables too."""
    variables = dashboard()["templating"]["list"]
    asked = [v["query"]["query"] for v in variables if isinstance(v["query"], dict)]
    return [target["expr"] for target in targets()] + asked


def metrics_in(query: str) -> set[str]:
    """Return the metrics that a query names."""
    return set(re.findall(r"\bworkstealing_\w+", query))


def labels_in(query: str) -> set[str]:
    """Return the labels that a query matches or groups by."""
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
    grouped = re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", query)
    return set(matched) | {label.strip() for group in grouped for label in group.split(",")}


def run(*command: str | Path) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules(promtool: str) -> None:
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    run(promtool, "test", "rules", RULES_TEST)


@pytest.mark.slow
def test_promtool_sees_a_rule_that_never_fires(promtool: str, tmp_path: Path) -> None:
    for path in (RULES, RULES_TEST):
        text = path.read_text().replace("workstealing_breaker_open{", "workstealing_breaker{")
        (tmp_path / path.name).write_text(text)
    command = [promtool, "test", "rules", str(tmp_path / RULES_TEST.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "WorkstealingBreakerOpen" in done.stdout + done.stderr


def test_each_alert_is_tried_both_ways() -> None:
    tried: dict[str, set[bool]] = {rule["alert"]: set() for rule in rules()}
    assert len(tried) == 18
    for test in yaml.safe_load(RULES_TEST.read_text())["tests"]:
        for each in test["alert_rule_test"]:
            tried[each["alertname"]].add(bool(each["exp_alerts"]))
    assert all(ways == {True, False} for ways in tried.values()), tried


def test_promtool_accepts_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    recorded = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(target["expr"] for target in targets())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run(promtool, "check", "rules", path)


def test_rules_and_dashboard_name_only_what_is_exported() -> None:
    known = exported()
    used = set()
    for query in [rule["expr"] for rule in rules()] + queries():
        assert metrics_in(query) <= known, query
        assert labels_in(query) <= LABELS, query
        used |= metrics_in(query)
    # And nothing that is exported is forgotten there, but for parts of the histogram.
    assert {name for name in known - used if not re.search("_(created|count)$", name)} == set()


def test_the_dashboard_asks_for_its_data_source() -> None:
    board = dashboard()
    assert "__inputs" not in board
    assert "__requires" not in board
    (source,) = [v for v in board["templating"]["list"] if v["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    asking = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(asking) >= 10
    for each in [*asking, *targets()]:
        assert each["datasource"] == wanted
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_is_told_where_the_dashboard_is() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "workstealing.yml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
    assert provider["options"]["path"].endswith("/workstealing")
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"


def test_statsd_becomes_the_same_metrics() -> None:
    known = exported()
    mapped: dict[str, tuple[str, dict[str, str]]] = {}
    for name in _sent_by_statsd():
        for mapping in yaml.safe_load(MAPPING.read_text())["mappings"]:
            # In statsd_exporter's globs a star stands for one part between dots.
            pattern = re.escape(mapping["match"]).replace(r"\*", r"([^.]*)")
            found = re.fullmatch(pattern, name)
            if found:
                labels = {
                    label: found[int(value[1:])] if value.startswith("$") else value
                    for label, value in mapping.get("labels", {}).items()
                }
                mapped[name] = (mapping["name"], labels)
                break
        else:
            pytest.fail(f"{name} is not mapped")
    job = {"job_name": "hash_field_expiry_items"}
    assert mapped == {
        "workstealing.enlisted": ("workstealing_enlisted_total", {}),
        **{
            f"workstealing.hash_field_expiry_items.{figure}": (f"workstealing_{metric}", job)
            for figure, metric in (
                ("recruited", "recruited_total"),
                ("items", "items_total"),
                ("duration", "slice_seconds"),
            )
        },
        "workstealing.hash_field_expiry_items.error.ValueError": (
            "workstealing_errors_total",
            {**job, "error": "ValueError"},
        ),
        **{
            f"workstealing.hash_field_expiry_items.{outcome.value}": (
                "workstealing_outcomes_total",
                {**job, "outcome": outcome.value},
            )
            for outcome in OUTCOMES
        },
        **{
            f"workstealing.cache.price.{figure}": (
                "workstealing_cache_lookups_total",
                {"cache": "price", "result": result},
            )
            for figure, result in LOOKUPS.items()
        },
        **{
            f"workstealing.cache.price.{figure}": (
                f"workstealing_cache_{metric}_total",
                {"cache": "price"},
            )
            for figure, metric in (
                *((each, each) for each in ("waits", "computations", "failures", "uncached")),
                ("micros", "compute_seconds"),
            )
        },
    }
    assert {name for name, _ in mapped.values()} - {"workstealing_slice_seconds"} <= known


def test_every_metric_comes_by_statsd_too() -> None:
    parts = re.compile("_(bucket|sum|count)$")
    mapped = {each["name"] for each in yaml.safe_load(MAPPING.read_text())["mappings"]}
    known = {name for name in exported() if not name.endswith("_created")}
    assert mapped == {parts.sub("", name) for name in known}


def test_each_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["workstealing"]["home"]
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        page = f"{home}/blob/main/docs/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == page


def test_the_runbook_has_each_alert_and_no_other() -> None:
    text = RUNBOOK.read_text()
    sections = dict(re.findall(r"(?ms)^### (Workstealing\w+)\n(.*?)(?=^##|\Z)", text))
    assert list(sections) == [rule["alert"] for rule in rules()]
    for rule in rules():
        section = sections[rule["alert"]]
        for part in ("**It means**", "**Look**", "**Do**"):
            assert part in section, (rule["alert"], part)
        assert f"({rule['labels']['severity']})" in section, rule["alert"]
        # A metric that is named must be there.
        assert metrics_in(section) <= exported() | {"workstealing_slice_seconds"}, rule["alert"]


def test_the_runbook_names_commands_that_exist() -> None:
    named = set(re.findall(r"(?m)(?:^|`)workstealing ([a-z-]+)", RUNBOOK.read_text()))
    assert {"status", "explain", "doctor", "drain"} <= named <= set(COMMANDS)


def test_statsd_has_the_same_buckets() -> None:
    (timing,) = [
        each for each in yaml.safe_load(MAPPING.read_text())["mappings"] if "observer_type" in each
    ]
    assert tuple(timing["histogram_options"]["buckets"]) == SLICE_BUCKETS


def _sent_by_statsd() -> set[str]:
    """Return every name that StatsDHooks sends, read from a real packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(30.0)
        hooks = StatsDHooks("127.0.0.1", receiver.getsockname()[1])
        _count_a_cache()
        hooks.on_enlisted(1)
        hooks.on_recruited("hash_field_expiry.items")
        for outcome in OUTCOMES:
            error = ValueError() if outcome is Outcome.FAILED else None
            hooks.on_outcome("hash_field_expiry.items", outcome, 1, 0.001, error)
        hooks.close(30.0)
        lines = receiver.recv(65_536).decode().split("\n")
    return {line.partition(":")[0] for line in lines}
