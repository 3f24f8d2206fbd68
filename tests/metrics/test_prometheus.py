"""The Prometheus hook: in one registry, and in the processes of a real gunicorn."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import time
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, free_port, spawn
from support.servers import RedisServer
from support.troubles import WaitingQueue
from workstealing import connect
from workstealing.dashboard.watched import Watched
from workstealing.metrics import gathering
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.prometheus import DeadItems, PrometheusHooks, WaitingAccounts
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import CACHES
from workstealing.structures import FairQueue
from workstealing.structures.structure import DeadLetters, Structure
from workstealing.testing import ManualClock

PATIENCE = 120.0
Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(text: str) -> dict[Sample, float]:
    """Return what a scrape shows: (name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Shown:
    """What a registry shows now."""

    def __init__(self, text: str) -> None:
        self.samples = samples(text)

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return one sample's value, None if there is none."""
        return self.samples.get((f"workstealing_{name}", frozenset(labels.items())))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def shown(registry: CollectorRegistry) -> Callable[[], Shown]:
    return lambda: Shown(generate_latest(registry).decode())


def test_every_metric(registry: CollectorRegistry, shown: Callable[[], Shown]) -> None:
    hooks = PrometheusHooks(registry)
    hooks.on_enlisted(1_000)
    hooks.on_enlisted(24)
    for outcome, items, seconds in [
        (Outcome.WORKED, 25, 0.004),
        (Outcome.WORKED, 5, 0.002),
        (Outcome.IDLE, 0, 0.0004),
        (Outcome.ABORTED, 0, 0.003),
        (Outcome.FAILED, 0, 2.0),
        (Outcome.SKIPPED, 0, 0.0),
    ]:
        hooks.on_recruited("expiry")
        hooks.on_outcome("expiry", outcome, items, seconds, None)
    hooks.on_observed("expiry", 12.5, None)
    hooks.on_observed("expiry", None, 70)
    now = shown()
    job = {"job_name": "expiry"}
    assert now("enlisted_total") == 1_024
    assert now("recruited_total", **job) == 6
    assert now("outcomes_total", outcome="worked", **job) == 2
    for outcome in ("idle", "aborted", "failed", "skipped"):
        assert now("outcomes_total", outcome=outcome, **job) == 1
    assert now("items_total", **job) == 30
    assert now("slice_seconds_count", **job) == 5
    assert now("slice_seconds_sum", **job) == pytest.approx(2.0094)
    buckets = [now("slice_seconds_bucket", le=le, **job) for le in ("0.0005", "0.005", "1.0")]
    assert buckets == [1, 4, 4]
    assert now("oldest_garbage_seconds", **job) == 12.5
    assert now("backlog", **job) == 70
    hooks.on_measured("expiry", "tombstones", 5.0)
    hooks.on_measured("expiry", "tombstones", 3.0)
    assert shown()("measured", what="tombstones", **job) == 3.0


def test_caches(registry: CollectorRegistry, shown: Callable[[], Shown]) -> None:
    hooks = PrometheusHooks(registry)
    figures = CACHES.of("shop.price")
    figures.hit(5)
    figures.old()
    figures.miss(2)
    figures.wait()
    figures.compute(0.25)
    figures.leave()
    figures.fail()
    # Whoever scrapes this process need not wait for a caller.
    assert shown()("cache_lookups_total", cache="shop.price", result="hit") == 5
    # Two hooks on one registry count once.
    PrometheusHooks(registry).on_enlisted(1)
    hooks.on_enlisted(1)
    figures.hit()
    hooks.on_enlisted(1)
    now = shown()
    for result, count in (("hit", 6), ("stale", 1), ("miss", 2)):
        assert now("cache_lookups_total", cache="shop.price", result=result) == count
    assert now("cache_waits_total", cache="shop.price") == 1
    assert now("cache_uncached_total", cache="shop.price") == 1
    assert now("cache_computations_total", cache="shop.price") == 1
    assert now("cache_failures_total", cache="shop.price") == 1
    assert now("cache_compute_seconds_total", cache="shop.price") == 0.25


def test_a_recruiter_reports(registry: CollectorRegistry, shown: Callable[[], Shown]) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    recruiter.use_random(lambda: 0.0)
    recruiter.add_hook(PrometheusHooks(registry))
    assert shown()("recruited_total", job_name="sweep") == 0
    assert shown()("outcomes_total", job_name="sweep", outcome="failed") == 0
    assert shown()("rate", job_name="sweep") == 0.5
    for _ in range(10):
        assert recruiter.enlist() is Outcome.WORKED
    recruiter.set_rate("sweep", 0.25)
    recruiter.flush()
    now = shown()
    assert now("enlisted_total") == 10
    assert now("outcomes_total", job_name="sweep", outcome="worked") == 10
    assert now("items_total", job_name="sweep") == 30
    assert now("rate", job_name="sweep") == 0.25
    assert now("breaker_open", job_name="sweep") == 0
    recruiter.uninstall("sweep")
    recruiter.job(rate=0.5, name="other")(lambda slice: 3)
    recruiter.enlist()
    recruiter.flush()
    now = shown()
    assert now("rate", job_name="sweep") is None
    assert now("items_total", job_name="sweep") == 30


def test_a_breaker_that_is_open(registry: CollectorRegistry, shown: Callable[[], Shown]) -> None:
    def fail(slice: Any) -> int:
        raise ConnectionError("nobody there")

    recruiter = Recruiter(random=lambda: 0.0)
    recruiter.install(FunctionJob(fail, name="sweep"), rate=0.5)
    recruiter.add_hook(PrometheusHooks(registry))
    assert recruiter.enlist() is Outcome.FAILED
    recruiter.flush()
    assert shown()("breaker_open", job_name="sweep") == 1


def test_a_server_that_is_not_reached(
    registry: CollectorRegistry, shown: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(SERVER_BREAKERS, "clock", clock)
    hooks = PrometheusHooks(registry)
    breaker = SERVER_BREAKERS.of(("server", ("cache.local", 6379)))
    hooks.on_enlisted(1)
    assert shown()("server_unreached_seconds", server="cache.local:6379") is None
    breaker.fail(clock.monotonic(), None)
    clock.advance(3.0)
    hooks.on_enlisted(1)
    assert shown()("server_unreached_seconds", server="cache.local:6379") == 3.0
    breaker.recover()
    hooks.on_enlisted(1)
    assert shown()("server_unreached_seconds", server="cache.local:6379") == 0.0


def test_what_keeps_up_is_shown_once_it_is_known(
    registry: CollectorRegistry, shown: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    figures: dict[str, Any] = {"rate": 0.5, "keeps_up": None}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": {"sweep": figures}})
    hooks = PrometheusHooks(registry)
    recruiter.add_hook(hooks)
    assert shown()("keeps_up", job_name="sweep") is None
    for figures["keeps_up"], expected in ((False, 0), (True, 1)):
        hooks.on_enlisted(1)
        assert shown()("keeps_up", job_name="sweep") == expected


def test_hooks_on_one_registry_share_its_metrics(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    first, second = PrometheusHooks(registry), PrometheusHooks(registry)
    first.on_enlisted(1)
    second.on_enlisted(2)
    assert shown()("enlisted_total") == 3


def test_the_default_registry_is_the_librarys_own() -> None:
    program = (
        "from prometheus_client import generate_latest\n"
        "from workstealing.metrics.prometheus import PrometheusHooks\n"
        "PrometheusHooks().on_enlisted(5)\n"
        "print(generate_latest().decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert Shown(done.stdout)("enlisted_total") == 5


def test_the_number_of_labels_is_bounded(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    hooks = PrometheusHooks(registry)
    for number in range(300):
        hooks.on_recruited(f"job-{number}")
        hooks.on_outcome(f"job-{number}", Outcome.IDLE, 0, 0.001, None)
        hooks.on_observed(f"job-{number}", 1.0, 1)
    recruiter = Recruiter()
    recruiter.job(rate=0.25, name="job-7")(lambda slice: 3)
    recruiter.job(rate=0.5, name="one too many")(lambda slice: 3)
    recruiter.add_hook(hooks)
    now = shown()
    assert now("rate", job_name="job-7") == 0.25
    assert now("rate", job_name="_other") is None
    names = {dict(labels).get("job_name") for _, labels in now.samples}
    assert len(names - {None}) == 101
    assert now("recruited_total", job_name="_other") == 200
    assert now("backlog", job_name="_other") is None


def test_hostile_names_are_escaped(registry: CollectorRegistry, shown: Callable[[], Shown]) -> None:
    names = ['a"b', "a\\b", "a\nb", "é{}", "x" * 10_000]
    hooks = PrometheusHooks(registry)
    for name in names:
        hooks.on_recruited(name)
    now = shown()
    for name in names:
        assert now("recruited_total", job_name=name[:200]) == 1


def test_a_name_that_is_no_text_spoils_no_scrape(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    hooks = PrometheusHooks(registry)
    hooks.on_recruited("from a file \udcff")
    assert shown()("recruited_total", job_name=r"from a file \udcff") == 1


WORKER = """
import sys
from workstealing.recruiting import FunctionJob, Recruiter
from workstealing.metrics.prometheus import PrometheusHooks

class Clock:
    now = 100.0

    def monotonic(self):
        return self.now

def sweep(slice):
    if falls_behind:
        slice.observe(oldest_seconds=clock.now)
    return slice.limit if falls_behind else 0

def fail(slice):
    if falls_behind:
        raise ConnectionError("no server")

falls_behind = sys.argv[1] == "behind"
clock = Clock()
recruiter = Recruiter(random=lambda: 0.0, clock=clock)
recruiter.add_hook(PrometheusHooks())
recruiter.install(FunctionJob(sweep, name="sweep"), rate=0.5)
for _ in range(40):
    recruiter.perform("sweep")
    clock.now += 10.0
recruiter.install(FunctionJob(fail, name="away"), rate=0.5)
recruiter.perform("away")
recruiter.enlist()
recruiter.flush()
recruiter.uninstall("away")
clock.now += 3_600.0 if sys.argv[1] == "forgets" else 2.0
recruiter._roster.get("sweep").paused = sys.argv[1] == "forgets"
recruiter.enlist()
recruiter.flush()
"""


def multiprocess(folder: Path, *kinds: str) -> Shown:
    """Run a worker of each kind; return what a scrape of them all shows."""
    for kind in kinds:
        subprocess.run(
            [sys.executable, "-W", "error", "-c", WORKER, kind],
            check=True,
            timeout=PATIENCE,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        )
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    return Shown(generate_latest(registry).decode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(("forgets",), math.inf), (("forgets", "well"), 1), (("forgets", "behind"), 0)],
)
def test_a_worker_that_knows_no_more_says_neither_yes_nor_no(
    tmp_path: Path, kinds: tuple[str, ...], expected: float
) -> None:
    assert multiprocess(tmp_path, *kinds)("keeps_up", job_name="sweep") == expected


@pytest.mark.slow
@pytest.mark.parametrize("order", [("behind", "well"), ("well", "behind")])
def test_one_workers_trouble_is_everybodys(tmp_path: Path, order: tuple[str, str]) -> None:
    for kind in order:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", WORKER, kind],
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )
        # Without a warning either: prometheus_client removes nothing where processes share.
        assert "PrometheusHooks" not in done.stderr
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
    now = Shown(generate_latest(registry).decode())
    assert now("keeps_up", job_name="sweep") == 0
    assert now("breaker_open", job_name="away") == 1
    assert now("breaker_open", job_name="sweep") == 0


APPLICATION = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from workstealing import Recruiter
from workstealing.metrics.prometheus import PrometheusHooks

recruiter = Recruiter(random=lambda: 0.0)

@recruiter.job(rate=0.5, name="sweep")
def sweep(slice):
    slice.observe(oldest_seconds=float(os.getpid()), backlog=7)
    return 2

recruiter.add_hook(PrometheusHooks())

def app(environ, start_response):
    if environ["PATH_INFO"] == "/metrics":
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        body = generate_latest(registry)
    else:
        recruiter.enlist()
        recruiter.flush()
        body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""
SETTINGS = """
from prometheus_client import multiprocess

def child_exit(server, worker):
    multiprocess.mark_process_dead(worker.pid)
"""


@pytest.mark.slow
@pytest.mark.parametrize("preload", [False, True])
def test_two_workers_of_gunicorn_are_one_scrape(tmp_path: Path, preload: bool) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "figures").mkdir()
    port = free_port()
    command = [
        *(sys.executable, "-m", "gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{port}"),
        *("--config", str(tmp_path / "settings.py"), "--chdir", str(tmp_path)),
        *(["--preload"] if preload else []),
        "application:app",
    ]
    gunicorn = spawn(
        command, env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "figures")}
    )
    try:
        get = _getter(f"http://127.0.0.1:{port}")
        served: dict[str, int] = {}
        until = time.monotonic() + PATIENCE
        last = ""
        while len(served) < 2 or min(served.values()) < 3:
            assert time.monotonic() < until, served
            last = get("/")
            served[last] = served.get(last, 0) + 1
        requests = sum(served.values())
        now = Shown(get("/metrics"))
        assert now("enlisted_total") == requests
        assert now("recruited_total", job_name="sweep") == requests
        assert now("outcomes_total", job_name="sweep", outcome="worked") == requests
        assert now("items_total", job_name="sweep") == 2 * requests
        assert now("slice_seconds_count", job_name="sweep") == requests
        assert now("oldest_garbage_seconds", job_name="sweep") == int(last)
        assert now("backlog", job_name="sweep") == 7
        assert now("rate", job_name="sweep") == 0.5
        assert now("breaker_open", job_name="sweep") == 0
    finally:
        end(gunicorn)


def _getter(url: str) -> Callable[[str], str]:
    """Return a function that gets a path, the first time as soon as somebody answers."""

    def get(path: str) -> str:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(url + path, timeout=PATIENCE) as response:
                    return str(response.read().decode())
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    return get


def test_errors_are_counted_by_class_in_bounded_number(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    hooks = PrometheusHooks(registry)
    for _ in range(3):
        hooks.on_outcome("sweep", Outcome.FAILED, 0, 0.01, ValueError("user:17"))
    for number in range(50):
        error = type(f"Error{number}", (Exception,), {})()
        hooks.on_outcome("sweep", Outcome.FAILED, 0, 0.01, error)
    now = shown()
    assert now("errors_total", job_name="sweep", error="ValueError") == 3
    assert now("errors_total", job_name="sweep", error="_other") == 43
    assert len([name for name, _ in now.samples if name == "workstealing_errors_total"]) == 9
    assert "user:17" not in generate_latest(registry).decode()


def test_what_lasts_is_a_gauge_and_what_nobody_knows_is_none(
    registry: CollectorRegistry, shown: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    figures: dict[str, Any] = {"rate": 0.5, "keeps_up": True, "paused": True}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": {"sweep": figures}})
    hooks = PrometheusHooks(registry)
    recruiter.add_hook(hooks)
    job = {"job_name": "sweep"}
    assert [shown()(name, **job) for name in ("keeps_up", "paused")] == [1, 1]
    assert [shown()(n, **job) for n in ("slice_running_seconds", "unreached_seconds")] == [0, 0]
    figures |= {"keeps_up": None, "running_seconds": 7.0, "breaker_seconds": 9.0}
    hooks.on_enlisted(1)
    assert shown()("keeps_up", **job) is None
    assert [shown()(n, **job) for n in ("slice_running_seconds", "unreached_seconds")] == [7, 9]


@pytest.mark.slow
def test_a_scrape_sees_a_slice_that_does_not_end(
    registry: CollectorRegistry, shown: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only thread of a process is busy with it, so no caller comes to set the gauges."""
    recruiter = Recruiter()
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    figures: dict[str, Any] = {"rate": 0.5}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": {"sweep": figures}})
    hooks = PrometheusHooks(registry)
    recruiter.add_hook(hooks)
    figures["running_seconds"] = 90.0
    assert shown()("slice_running_seconds", job_name="sweep") == 90
    # A hook that is gone is asked no more.
    del hooks, recruiter
    gc.collect()
    figures["running_seconds"] = 100.0
    assert shown()("slice_running_seconds", job_name="sweep") == 90


STUCK_WORKER = """
import threading
from workstealing import Recruiter
from workstealing.metrics import watching
from workstealing.metrics.prometheus import PrometheusHooks

watching.WATCH._seconds, watching.LONG_SECONDS = 0.05, 0.1

recruiter = Recruiter(random=lambda: 0.0)

@recruiter.job(rate=0.5, name="sweep")
def sweep(slice):
    threading.Event().wait()

recruiter.add_hook(PrometheusHooks())
recruiter.enlist()
"""


def test_a_worker_of_one_thread_shows_its_stuck_slice_to_a_shared_scrape(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    worker = spawn([sys.executable, "-c", STUCK_WORKER], env=environment)
    try:
        until, running = time.monotonic() + PATIENCE, 0.0
        while running < 0.2:
            assert time.monotonic() < until
            time.sleep(0.05)
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
            now = Shown(generate_latest(registry).decode())
            running = now("slice_running_seconds", job_name="sweep") or 0.0
    finally:
        end(worker)


def test_a_ledger_that_takes_no_counts(
    registry: CollectorRegistry, shown: Callable[[], Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "_alive", weakref.WeakSet())
    clock = ManualClock(100.0)
    ledger = Ledger(connect(f"redis://127.0.0.1:{free_port()}/0"), "shop", clock=clock)
    hooks = PrometheusHooks(registry)
    hooks.on_enlisted(1)
    receiver = {"receiver": "the ledger shop"}
    assert shown()("unsent_seconds", **receiver) is None
    ledger.on_enlisted(1)
    for seconds in (0.0, 300.0):
        clock.advance(seconds)
        assert not ledger.flush(PATIENCE)
        hooks.on_enlisted(1)
        assert shown()("unsent_seconds", **receiver) == seconds
    ledger.close(0.0)


def test_a_jobs_measured_figures_are_bounded(registry: CollectorRegistry) -> None:
    hooks = PrometheusHooks(registry)
    for number in range(50):
        hooks.on_measured("sweep", f"figure {number}", 1.0)
    (family,) = [each for each in registry.collect() if each.name == "workstealing_measured"]
    assert len(family.samples) == 20


class Box(DeadLetters):
    """A part with so many dead items."""

    def __init__(self, size: int) -> None:
        self.size = size

    def list_steps(self, n: int) -> Any:
        raise NotImplementedError

    revive_steps = discard_steps = list_steps


class Orders(Structure):
    """A structure whose dead items are known without a server."""

    kind = "box of boxes"
    name = "orders"
    # A question without a command asks nobody.
    job_client: Any = None

    def dead_steps(self) -> Any:
        return (Box(3), Box(4))
        yield


def test_accounts_that_wait_are_asked_at_each_scrape(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    queue = WaitingQueue("renderings", {"alice": 61.5, "bob": 2.0})
    registry.register(WaitingAccounts([queue, WaitingQueue("lost", None), Orders()]))
    name = "oldest_waiting_seconds"
    assert shown()(name, structure="renderings", account="alice") == 61.5
    assert shown()(name, structure="renderings", account="bob") == 2
    assert shown()("oldest_waiting_unknown", structure="renderings") == 0
    # Nobody knows who waits there: there is no sample, and its absence is told.
    assert shown()("oldest_waiting_unknown", structure="lost") == 1
    assert len(shown().samples) == 4
    # One that waits no more is 0 once, and then absent.
    queue.waiting = {"bob": 3.0}
    assert shown()(name, structure="renderings", account="alice") == 0
    assert shown()(name, structure="renderings", account="alice") is None
    # Of one that was not looked at nobody knows.
    queue.waiting, queue.is_exact = {}, False
    found = shown()
    assert found(name, structure="renderings", account="bob") is None
    assert found("oldest_waiting_unknown", structure="renderings") == 1
    queue.waiting = None
    found = shown()
    assert found(name, structure="renderings", account="bob") is None
    assert found("oldest_waiting_unknown", structure="renderings") == 1


def test_accounts_that_wait_are_bounded(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    """However many come and go, 100 names and "_other" are all that a process ever tells."""
    queue = WaitingQueue("renderings", {})
    registry.register(WaitingAccounts([queue]))
    names = set()
    for turn in range(30):
        queue.waiting = {f"account {turn} {n}": 1000.0 - n for n in range(50)}
        found = [
            (dict(labels)["account"], value)
            for (name, labels), value in shown().samples.items()
            if name == "workstealing_oldest_waiting_seconds"
        ]
        assert len([each for each in found if each[1]]) == (20 if turn < 5 else 1)
        names |= {each[0] for each in found}
    assert len(names) == 101
    # The longest of those without a name of their own.
    assert max(value for name, value in found if name == "_other") == 1000.0
    # One with a name is told on, also when 20 others wait longer.
    queue.waiting = {f"new {n}": 100.0 for n in range(30)} | {"account 0 0": 7.0}
    shown()
    queue.waiting = {"account 0 0": 7.0}
    assert shown()("oldest_waiting_seconds", structure="renderings", account="account 0 0") == 7
    queue.waiting = {f"new {n}": 100.0 for n in range(30)} | {"account 0 0": 8.0}
    assert shown()("oldest_waiting_seconds", structure="renderings", account="account 0 0") == 8


def test_accounts_of_a_real_queue(
    registry: CollectorRegistry, shown: Callable[[], Shown], redis7: RedisServer
) -> None:
    queue = FairQueue(redis7.client(), "q")
    registry.register(WaitingAccounts([queue]))
    assert shown()("oldest_waiting_unknown", structure="q") == 0
    queue.write("alice", {"n": 1})
    waited = shown()("oldest_waiting_seconds", structure="q", account="alice")
    assert waited is not None
    message = queue.read("c")
    assert message is not None
    assert shown()("oldest_waiting_seconds", structure="q", account="alice") == 0
    assert shown()("oldest_waiting_seconds", structure="q", account="alice") is None


def test_dead_items_are_asked_at_each_scrape(
    registry: CollectorRegistry, shown: Callable[[], Shown]
) -> None:
    def away() -> int:
        raise ConnectionError("nobody there")

    dead = [2]
    structures = [
        Watched("mails", "shuffle queue", dead_size=lambda: dead[0]),
        Watched("gone", "Ick", dead_size=away),
        Watched("items", "volatile hashes"),
        Orders(),
    ]
    registry.register(DeadItems(structures))
    assert shown()("dead_items", structure="mails", kind="shuffle queue") == 2
    dead[0] = 5
    assert shown()("dead_items", structure="mails", kind="shuffle queue") == 5
    assert shown()("dead_items", structure="orders", kind="box of boxes") == 7
    # A count that nobody knows has no sample, and its absence is told.
    assert shown()("dead_items", structure="gone", kind="Ick") is None
    assert shown()("dead_items_unknown", structure="gone", kind="Ick") == 1
    assert shown()("dead_items_unknown", structure="mails", kind="shuffle queue") == 0
    assert len(shown().samples) == 5
