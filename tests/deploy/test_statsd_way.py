"""Every alert fires along StatsD's way, too: our hook's datagrams, the mapping, the rules.

A stand-in of statsd_exporter reads the mapping everywhere; where the real one is at hand, both have
to say the same of the same datagrams.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.exporter import Exporter
from support.processes import end
from support.statsd import Sample, StatsDExporter, series
from support.troubles import (
    ALERTS,
    ALSO,
    ENDS,
    MINUTES,
    ONLY_WHEN_SILENT,
    SILENT_FROM,
    datagrams_by_minute,
)
from workstealing import Recruiter
from workstealing.metrics.statsd import StatsDHooks

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "workstealing.rules.yml"
MAPPING = DEPLOY / "statsd_exporter" / "workstealing.yml"
PATIENCE = 120.0
# They end with the processes: a gauge that is sent no more says nothing any more.
OF_GAUGES = {
    "WorkstealingCannotKeepUp",
    "WorkstealingBreakerOpen",
    "WorkstealingSliceStuck",
    "WorkstealingUnreached",
    "WorkstealingNotReported",
}


# A structure is asked, whether anybody calls or not.
OF_QUESTIONS = {
    "WorkstealingDeadItemsUnknown",
    "WorkstealingDeadItems",
    "WorkstealingAccountWaits",
    "WorkstealingWaitingUnknown",
}


@pytest.fixture(scope="module")
def datagrams() -> list[list[str]]:
    """The lines that a troubled application sends, minute by minute."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return datagrams_by_minute(monkeypatch)


@pytest.fixture(scope="module")
def scrapes(datagrams: list[list[str]]) -> list[dict[Sample, float]]:
    """What a scrape of the exporter shows in each minute."""
    exporter, found = StatsDExporter(MAPPING), []
    for minute, lines in enumerate(datagrams):
        exporter.now = 60.0 * minute
        exporter.receive(lines)
        found.append(exporter.scraped())
    assert exporter.unmapped == set()
    return found


def series_of(scrapes: list[dict[Sample, float]]) -> list[dict[str, str]]:
    """Return the scrapes as promtool's series, with a mark where a series ends."""
    found = []
    for sample in dict.fromkeys(sample for scrape in scrapes for sample in scrape):
        values, was_there = [], False
        for scrape in scrapes:
            is_there = sample in scrape
            gap = "stale" if was_there else "_"
            values.append(f"{scrape[sample]:.9g}" if is_there else gap)
            was_there = is_there
        name = series(sample, job="shop", instance="exporter")
        found.append({"series": name, "values": " ".join(values)})
    return found


def firing(minute: int, alerts: list[tuple[str, dict[str, str]]]) -> dict[str, Any]:
    """Return a test that exactly these alerts fire in a minute."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules}
    expected = []
    for name, labels in alerts:
        told = {"alertname": name, "alertstate": "firing", "job": "shop", **labels}
        pairs = (*told.items(), ("severity", severities[name]))
        expected.append({"labels": series(("ALERTS", pairs)), "value": 1})
    return {
        "expr": 'ALERTS{alertstate="firing"}',
        "eval_time": f"{minute}m",
        "exp_samples": expected,
    }


def refused_by(promtool: str, folder: Path, tests: dict[str, Any]) -> str:
    """Let promtool run a test of the rules; return its words if it fails."""
    path = folder / "test.yml"
    written = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [tests]}
    path.write_text(yaml.safe_dump(written, width=1_000_000))
    command = [promtool, "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_alert_fires_and_no_other(
    promtool: str, tmp_path: Path, scrapes: list[dict[Sample, float]]
) -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == {*ALERTS, ONLY_WHEN_SILENT[0]}
    with_callers = [*ALERTS.items(), *ALSO]
    without = [each for each in with_callers if each[0] in OF_GAUGES]
    of_dead_items = [each for each in with_callers if each[0] in OF_QUESTIONS]
    tests = {
        "interval": "1m",
        "input_series": series_of(scrapes),
        "promql_expr_test": [
            firing(1, []),
            firing(SILENT_FROM - 1, with_callers),
            # The shares of slices are no more known; what lasts in the processes still is.
            firing(ENDS - 1, [*without, *of_dead_items, ONLY_WHEN_SILENT]),
            firing(MINUTES - 1, [ONLY_WHEN_SILENT]),
        ],
    }
    assert refused_by(promtool, tmp_path, tests) == ""


@pytest.mark.slow
def test_a_mapping_without_gauges_would_fail(
    promtool: str, tmp_path: Path, scrapes: list[dict[Sample, float]]
) -> None:
    """The test above sees a gauge that is not mapped."""
    fewer = [
        {sample: value for sample, value in scrape.items() if sample[0] != "workstealing_keeps_up"}
        for scrape in scrapes
    ]
    tests = {
        "interval": "1m",
        "input_series": series_of(fewer),
        "promql_expr_test": [firing(SILENT_FROM - 1, [*ALERTS.items(), *ALSO])],
    }
    assert "WorkstealingCannotKeepUp" in refused_by(promtool, tmp_path, tests)


def test_what_nobody_knows_has_no_sample(scrapes: list[dict[Sample, float]]) -> None:
    def samples(minute: int, name: str, **labels: str) -> list[float]:
        return [
            value
            for (found, pairs), value in scrapes[minute].items()
            if found == f"workstealing_{name}" and labels.items() <= dict(pairs).items()
        ]

    # Of two processes, one knows.
    assert samples(4, "keeps_up", job_name="behind") == [1]
    assert sorted(samples(5, "keeps_up", job_name="behind")) == [0, 1]
    assert samples(4, "dead_items", structure="gone") == []
    assert samples(4, "dead_items_unknown", structure="gone") == [1]
    # What a slice saw holds for a quarter of an hour.
    assert samples(SILENT_FROM - 1, "oldest_garbage_seconds", job_name="old") != []
    assert samples(SILENT_FROM + 16, "oldest_garbage_seconds", job_name="old") == []
    # And nothing outlives the processes but counters.
    assert samples(ENDS - 1, "rate", job_name="well") != []
    gauges = {
        sample[0] for sample in scrapes[-1] if not sample[0].endswith(("total", "sum", "count"))
    }
    assert gauges == {"workstealing_slice_seconds_bucket"}


def comparable(samples: dict[Sample, float]) -> dict[Sample, float]:
    """Return samples as they may be compared: sums of floats differ in their last digits."""
    return {
        (name, tuple((label, "1" if value == "1.0" else value) for label, value in labels)): float(
            f"{value:.6g}"
        )
        for (name, labels), value in samples.items()
    }


# Jobs that are called as other parts of the tree are: several mappings may think that they fit.
HOSTILE = [
    "workstealing.cache.keeps_up.1:0|g",
    "workstealing.cache.rate:0.5|g",
    "workstealing.cache.items:1|c",
    "workstealing.cache.duration:2.5|ms",
    "workstealing.cache.error.ValueError:1|c",
    "workstealing.cache.measured.size:2|g",
    "workstealing.cache.measured.size:-7|g",
    "workstealing.server.rate:0.25|g",
    "workstealing.server.measured.backlog:3|g",
    "workstealing.structure.breaker_open.1:1|g",
    "workstealing.structure.mails.Ick.dead_items:4|g",
    "workstealing.fair_queue.rate:0.25|g",
    "workstealing.fair_queue.q.account.rate.oldest_waiting_seconds:5|g",
    "workstealing.fair_queue.account.oldest_waiting_unknown:1|g",
    "workstealing.receiver.paused.web-3:1|g",
    "workstealing.enlisted.recruited:1|c",
    "workstealing.rate.rate:1e-05|g",
    "workstealing.error.error.error:1|c",
    "workstealing.keeps_up.keeps_up.keeps_up:1|g",
]


@pytest.mark.slow
def test_the_real_exporter_says_the_same(statsd_exporter: str, datagrams: list[list[str]]) -> None:
    standing_in = StatsDExporter(MAPPING)
    exporter = Exporter(statsd_exporter, MAPPING)
    try:
        with socket.create_connection(("127.0.0.1", exporter.port)) as connection:
            for lines in [*datagrams, HOSTILE]:
                standing_in.receive(lines)
                connection.sendall("".join(f"{line}\n" for line in lines).encode())
        wanted = comparable(standing_in.scraped())
        exporter.becomes(lambda samples: comparable(samples) == wanted)
        assert comparable(exporter.samples()) == wanted
    finally:
        end(exporter.process)


def test_the_real_exporter_forgets_a_gauge(statsd_exporter: str, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.yml"
    mapping.write_text(MAPPING.read_text().replace("ttl: 2m", "ttl: 1s"))
    exporter = Exporter(statsd_exporter, mapping)
    try:
        recruiter = Recruiter(random=lambda: 0.0)
        recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
        hooks = StatsDHooks("127.0.0.1", exporter.port, sender="1")
        recruiter.add_hook(hooks)
        recruiter.enlist()
        recruiter.flush()
        assert hooks.flush(PATIENCE)
        rate = ("workstealing_rate", (("job_name", "sweep"),))
        items = ("workstealing_items_total", (("job_name", "sweep"),))
        assert exporter.becomes(lambda samples: samples.get(items) == 3)
        hooks.close(PATIENCE)
        assert exporter.becomes(lambda samples: rate not in samples)
        assert exporter.samples()[items] == 3
    finally:
        end(exporter.process)
