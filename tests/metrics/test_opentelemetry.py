"""The OpenTelemetry hook, read by the SDK's own reader."""

from __future__ import annotations

import inspect
import subprocess
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from support.processes import free_port
from support.troubles import WaitingQueue
from workstealing import connect
from workstealing.dashboard.watched import Watched
from workstealing.metrics import gathering
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.opentelemetry import OpenTelemetryHooks
from workstealing.recruiting import Outcome, Recruiter
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import CACHES
from workstealing.testing import ManualClock


class Collected:
    """What a meter shows: by name, its unit and its points by attributes."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        self.units = {metric.name: metric.unit for metric in found}
        self.points: dict[str, dict[frozenset[Any], Any]] = {
            metric.name: {
                frozenset((point.attributes or {}).items()): point
                for point in metric.data.data_points
            }
            for metric in found
        }

    def __call__(self, name: str, **attributes: str) -> Any:
        """Return one point's value, None if there is none."""
        point = self.points.get(f"workstealing.{name}", {}).get(frozenset(attributes.items()))
        return None if point is None else point.value


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def hooks(reader: InMemoryMetricReader) -> Iterator[OpenTelemetryHooks]:
    provider = MeterProvider([reader])
    yield OpenTelemetryHooks(provider.get_meter("a test"))
    provider.shutdown()


def test_caches(
    hooks: OpenTelemetryHooks, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CACHES, "_figures", {})
    figures = CACHES.of("shop.price")
    assert Collected(reader)("cache_lookups", cache="shop.price", result="hit") is None
    figures.hit(5)
    figures.old()
    figures.miss(2)
    figures.compute(0.25)
    figures.fail()
    for _ in range(2):
        now = Collected(reader)
        for result, count in (("hit", 5), ("stale", 1), ("miss", 2)):
            assert now("cache_lookups", cache="shop.price", result=result) == count
        assert now("cache_waits", cache="shop.price") == 0
        assert now("cache_uncached", cache="shop.price") == 0
        assert now("cache_computations", cache="shop.price") == 1
        assert now("cache_failures", cache="shop.price") == 1
        assert now("cache_compute", cache="shop.price") == 0.25
        assert now.units["workstealing.cache_compute"] == "s"


def test_a_server_that_is_not_reached(
    hooks: OpenTelemetryHooks, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(SERVER_BREAKERS, "clock", clock)
    breaker = SERVER_BREAKERS.of(("server", ("cache.local", 6379)))
    assert Collected(reader)("server_unreached", server="cache.local:6379") is None
    breaker.fail(clock.monotonic(), None)
    clock.advance(3.0)
    assert Collected(reader)("server_unreached", server="cache.local:6379") == 3.0
    breaker.recover()
    assert Collected(reader)("server_unreached", server="cache.local:6379") is None


def test_dead_items_are_asked_when_they_are_collected(reader: InMemoryMetricReader) -> None:
    def away() -> int:
        raise ConnectionError("nobody there")

    dead = [2]
    structures = [
        Watched("mails", "shuffle queue", dead_size=lambda: dead[0]),
        Watched("gone", "Ick", dead_size=away),
        Watched("items", "volatile hashes"),
    ]
    provider = MeterProvider([reader])
    hooks = OpenTelemetryHooks(provider.get_meter("a test"), structures)
    mails, gone = (
        {"structure": "mails", "kind": "shuffle queue"},
        {"structure": "gone", "kind": "Ick"},
    )
    for dead[0] in (2, 5):
        now = Collected(reader)
        assert now("dead_items", **mails) == dead[0]
        assert now("dead_items_unknown", **mails) == 0
    assert now("dead_items", **gone) is None
    assert now("dead_items_unknown", **gone) == 1
    assert len(now.points["workstealing.dead_items_unknown"]) == 2
    assert hooks is not None
    provider.shutdown()


def test_accounts_that_wait_are_asked_when_they_are_collected(reader: InMemoryMetricReader) -> None:
    queue = WaitingQueue("renderings", {"alice": 61.5})
    provider = MeterProvider([reader])
    hooks = OpenTelemetryHooks(provider.get_meter("a test"), [queue, WaitingQueue("lost", None)])
    now = Collected(reader)
    assert now("oldest_waiting", structure="renderings", account="alice") == 61.5
    assert now("oldest_waiting_unknown", structure="renderings") == 0
    assert now("oldest_waiting_unknown", structure="lost") == 1
    queue.waiting = {}
    assert Collected(reader)("oldest_waiting", structure="renderings", account="alice") == 0
    now = Collected(reader)
    assert now("oldest_waiting", structure="renderings", account="alice") is None
    assert hooks is not None
    provider.shutdown()


def test_a_ledger_that_takes_no_counts(
    hooks: OpenTelemetryHooks, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_alive", weakref.WeakSet())
    clock = ManualClock(100.0)
    ledger = Ledger(connect(f"redis://127.0.0.1:{free_port()}/0"), "shop", clock=clock)
    assert Collected(reader)("unsent", receiver="the ledger shop") is None
    ledger.on_enlisted(1)
    for seconds in (0.0, 300.0):
        clock.advance(seconds)
        assert not ledger.flush(120.0)
        assert Collected(reader)("unsent", receiver="the ledger shop") == seconds
    ledger.close(0.0)


def test_every_metric(hooks: OpenTelemetryHooks, reader: InMemoryMetricReader) -> None:
    hooks.on_enlisted(1_000)
    hooks.on_enlisted(24)
    for outcome, items, seconds in [
        (Outcome.WORKED, 25, 0.004),
        (Outcome.IDLE, 0, 0.0004),
        (Outcome.FAILED, 0, 2.0),
        (Outcome.SKIPPED, 0, 0.0),
    ]:
        hooks.on_recruited("expiry")
        hooks.on_outcome("expiry", outcome, items, seconds, None)
    hooks.on_observed("expiry", 12.5, None)
    hooks.on_observed("expiry", None, 70)
    hooks.on_measured("expiry", "tombstones", 5.0)
    hooks.on_measured("expiry", "tombstones", 3.0)
    now = Collected(reader)
    assert now("enlisted") == 1_024
    assert now("recruited", job_name="expiry") == 4
    for outcome in ("worked", "idle", "failed", "skipped"):
        assert now("outcomes", job_name="expiry", outcome=outcome) == 1
    assert now("outcomes", job_name="expiry", outcome="aborted") is None
    assert now("items", job_name="expiry") == 25
    (slices,) = now.points["workstealing.slice"].values()
    assert slices.count == 3
    assert slices.sum == pytest.approx(2.0044)
    # The API has taken a hook's advice on buckets since 1.30.
    if "explicit_bucket_boundaries_advisory" in parameters(metrics.Meter.create_histogram):
        assert slices.explicit_bounds[0] == 0.0005
        assert slices.explicit_bounds[-1] == 1.0
        assert slices.bucket_counts[-1] == 1
    assert now("oldest_garbage", job_name="expiry") == 12.5
    assert now("backlog", job_name="expiry") == 70
    assert now("measured", job_name="expiry", what="tombstones") == 3.0
    assert now.units["workstealing.slice"] == now.units["workstealing.oldest_garbage"] == "s"


def parameters(function: Callable[..., Any]) -> Collection[str]:
    return inspect.signature(function).parameters


def test_a_meter_that_takes_no_advice_gets_none() -> None:
    asked: list[tuple[Any, ...]] = []

    class Older(metrics.NoOpMeter):
        def create_histogram(self, name: str, unit: str = "", description: str = "") -> Any:
            asked.append((name, unit))
            return super().create_histogram(name, unit, description)

    OpenTelemetryHooks(Older("a test")).on_outcome("expiry", Outcome.WORKED, 1, 0.1, None)
    assert asked == [("workstealing.slice", "s")]


def test_a_recruiter_reports(hooks: OpenTelemetryHooks, reader: InMemoryMetricReader) -> None:
    recruiter = Recruiter(random=lambda: 0.0)
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    recruiter.add_hook(hooks)
    for _ in range(10):
        assert recruiter.enlist() is Outcome.WORKED
    recruiter.set_rate("sweep", 0.25)
    recruiter.flush()
    now = Collected(reader)
    assert now("enlisted") == 10
    assert now("items", job_name="sweep") == 30
    assert now("rate", job_name="sweep") == 0.25
    assert now("breaker_open", job_name="sweep") == 0
    recruiter.uninstall("sweep")
    assert Collected(reader)("rate", job_name="sweep") is None


def test_what_keeps_up_is_shown_once_it_is_known(
    hooks: OpenTelemetryHooks, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    recruiter = Recruiter()
    figures: dict[str, Any] = {"rate": 0.5, "keeps_up": None}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": {"sweep": figures}})
    recruiter.add_hook(hooks)
    assert Collected(reader)("keeps_up", job_name="sweep") is None
    for figures["keeps_up"], expected in ((False, 0.0), (True, 1.0)):
        assert Collected(reader)("keeps_up", job_name="sweep") == expected


def test_the_number_of_attributes_is_bounded(
    hooks: OpenTelemetryHooks, reader: InMemoryMetricReader
) -> None:
    for number in range(300):
        hooks.on_recruited(f"job-{number}")
        hooks.on_observed(f"job-{number}", 1.0, 1)
    recruiter = Recruiter()
    recruiter.job(rate=0.25, name="job-7")(lambda slice: 3)
    recruiter.job(rate=0.5, name="one too many")(lambda slice: 3)
    recruiter.add_hook(hooks)
    now = Collected(reader)
    assert len(now.points["workstealing.rate"]) == 1
    assert now("rate", job_name="job-7") == 0.25
    assert len(now.points["workstealing.recruited"]) == 101
    assert now("recruited", job_name="_other") == 200
    assert len(now.points["workstealing.backlog"]) == 100


def test_the_global_meter_serves_without_an_sdk() -> None:
    program = (
        "import sys\n"
        "from workstealing.metrics.opentelemetry import OpenTelemetryHooks\n"
        "from workstealing.recruiting import Outcome\n"
        "hooks = OpenTelemetryHooks()\n"
        "hooks.on_enlisted(1)\n"
        "hooks.on_outcome('a', Outcome.WORKED, 1, 0.1, None)\n"
        "assert 'opentelemetry.sdk' not in sys.modules\n"
        "from opentelemetry import metrics\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader\n"
        "reader = InMemoryMetricReader()\n"
        "metrics.set_meter_provider(MeterProvider([reader]))\n"
        "hooks.on_enlisted(41)\n"
        "data = reader.get_metrics_data()\n"
        "metric = data.resource_metrics[0].scope_metrics[0].metrics[0]\n"
        "print(metric.name, metric.data.data_points[0].value)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["workstealing.enlisted", "41"]
