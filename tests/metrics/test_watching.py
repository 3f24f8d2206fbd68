"""The watch: a slice that does not end is seen from outside, though its process enlists nobody."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from support.held_slices import HeldSlices
from support.processes import end, spawn
from support.servers import RedisServer
from workstealing.cli.status import as_text, complaints
from workstealing.dashboard.figures import OwnMinutes
from workstealing.dashboard.presenting import page
from workstealing.dashboard.queries import Queries, Snapshot
from workstealing.metrics import watching
from workstealing.metrics.ledger import Ledger, processes, read, server_time
from workstealing.metrics.prometheus import PrometheusHooks
from workstealing.metrics.reporting import BUSY_SECONDS, QUIET_SECONDS
from workstealing.metrics.watching import WATCH, RunningSlice, Watch, Watcher, running_slice
from workstealing.recruiting import Outcome, Recruiter
from workstealing.testing import ManualClock

PATIENCE = 120.0
TESTS = Path(__file__).resolve().parents[1]


def snapshot_of(client: Any, ahead: float = 0.0) -> Snapshot:
    """Return what a page far from the fleet sees, so many seconds from now."""
    return Queries(
        lambda: {"enlisted": 0, "jobs": {}},
        lambda: read(client),
        OwnMinutes(),
        dict,
        list,
        processes=lambda: processes(client),
        server_now=lambda: server_time(client) + ahead,
    ).snapshot()


@pytest.fixture
def stuck(redis7: RedisServer, tmp_path: Path) -> Iterator[str]:
    """Start gunicorn with one process of one thread; return its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "REDIS_URL": redis7.url,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
    }
    for name in ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY"):
        environment.pop(name, None)
    command = [
        *(sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}"),
        *("--workers", "1", "--worker-class", "sync", "--timeout", "0", "--log-level", "error"),
        *("--graceful-timeout", "0"),
        "support.stuck_app:app",
    ]
    with listener:
        process = spawn(command, env=environment, pass_fds=[listener.fileno()])
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}/"
    end(process)


def until(ask: Callable[[], Any]) -> Any:
    """Ask until the answer is true, which it must be within PATIENCE seconds."""
    latest = time.monotonic() + PATIENCE
    while not (answer := ask()):
        assert time.monotonic() < latest
        time.sleep(0.05)
    return answer


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.smoke
def test_a_stuck_slice_of_a_sync_worker_is_seen_on_every_surface(
    redis7: RedisServer, stuck: str, tmp_path: Path
) -> None:
    client = redis7.client()
    assert urllib.request.urlopen(stuck, timeout=PATIENCE).read() == b"ok"
    (process,) = until(lambda: [each for each in processes(client) if each.running])
    assert process.running is not None
    assert (process.host, process.running.job) == (socket.gethostname(), "held")
    # The report goes on, so the process stays on the list.
    first = process.reported
    (process,) = until(lambda: [each for each in processes(client) if each.reported != first])
    assert process.running is not None

    # Its next report is due then, and not missed.
    seen = snapshot_of(client, ahead=18.0)
    (sentence,) = complaints(seen)
    where = f"on {socket.gethostname()}, process {process.pid}"
    assert re.match(
        rf"held: a slice has been running for \d\d s {where}, since [0-9:]+ UTC", sentence
    )
    assert sentence in as_text(seen)
    shown = page(seen, "default", "viewer")
    assert sentence in shown["alarms"]
    assert shown["light"] == "bad"
    assert seen.processes == 1

    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]

    def gauge() -> bool:
        text = generate_latest(registry).decode()
        found = re.search(r'slice_running_seconds\{job_name="held"\} (\S+)', text)
        return found is not None and float(found[1]) > 0.0

    until(gauge)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSlices]:
    """Hold a slice in a thread, which counts as a long one."""
    monkeypatch.setattr(watching, "LONG_SECONDS", 0.0)
    held = HeldSlices()
    thread = threading.Thread(target=held.recruiter.enlist)
    thread.start()
    assert held.begun.wait(PATIENCE)
    yield held
    held.go.set()
    thread.join(PATIENCE)


class Noted(Watcher):
    """Notes its beats."""

    def __init__(self) -> None:
        self.beats: list[RunningSlice | None] = []

    def on_beat(self, running: RunningSlice | None) -> None:
        """Note a beat."""
        self.beats.append(running)


def test_a_beat_tells_of_the_slice_and_a_failing_watcher_harms_no_other(
    held: HeldSlices, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Watcher):
        def on_beat(self, running: RunningSlice | None) -> None:
            raise ValueError("once")

    watch, noted, failing = Watch(), Noted(), Failing()
    for each in (failing, noted):
        watch.add(each)
    watch.beat()
    held.go.set()
    held.threads[0].join(PATIENCE)
    watch.beat()
    first, second = noted.beats
    assert first is not None
    assert first.job == "held"
    assert second is None
    assert "the watch of" in caplog.text


def test_a_short_slice_is_not_told_of(held: HeldSlices, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running_slice() is not None
    monkeypatch.setattr(watching, "LONG_SECONDS", 3600.0)
    assert running_slice() is None


def test_one_thread_serves_all_and_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(0.001)
    watch.begin()
    until(lambda: watch._thread is not None and not watch._thread.is_alive())
    noted = Noted()
    watch.add(noted)
    watch.begin()
    thread = watch._thread
    watch.begin()
    assert watch._thread is thread
    beats = noted.beats
    until(lambda: len(beats) > 2)
    del noted
    assert thread is not None
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_recruit_starts_the_watch_before_its_slice(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(WATCH, "begin", lambda: begun.append("watch"))
    recruiter = Recruiter(random=lambda: 0.0)
    recruiter.job(rate=1.0)(lambda slice: begun.append("slice") or 1)
    ledger = Ledger(redis7.client(), interval=3600.0, clock=ManualClock())
    recruiter.add_hook(ledger)
    recruiter.add_hook(PrometheusHooks(CollectorRegistry()))
    assert recruiter.enlist() is Outcome.WORKED
    assert begun == ["watch", "watch", "slice"]


def test_a_gauge_ends_with_the_slice(held: HeldSlices) -> None:
    registry = CollectorRegistry()
    hooks = PrometheusHooks(registry)

    def shown() -> float | None:
        return registry.get_sample_value("workstealing_slice_running_seconds", {"job_name": "held"})

    hooks.on_beat(RunningSlice("held", 40.0))
    assert shown() == 40.0
    hooks.on_beat(None)
    assert shown() == 0.0


def test_a_process_without_callers_says_that_it_is_there(redis7: RedisServer) -> None:
    clock, client = ManualClock(100.0), redis7.client()
    recruiter = Recruiter(random=lambda: 1.0)
    ledger = Ledger(client, clock=clock)
    recruiter.add_hook(ledger)
    # It has never reported, and nobody enlists: it writes nothing.
    ledger.on_beat(None)
    assert ledger.flush(PATIENCE)
    assert processes(client) == []
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    (before,) = processes(client)
    for seconds in (BUSY_SECONDS, QUIET_SECONDS):
        (told,) = processes(client)
        clock.advance(seconds - 1.0)
        ledger.on_beat(None)
        assert ledger.flush(PATIENCE)
        assert processes(client) == [told]
        clock.advance(2.0)
        ledger.on_beat(None)
        until(lambda before=told: processes(client) != [before])
    (after,) = processes(client)
    assert (after.pid, after.started) == (before.pid, before.started)
    assert before.reported is not None
    assert after.reported is not None
    # By the server's clock, which the ledger asks anew now and then.
    assert after.reported > before.reported
    # At its end it is off the list, and no alarm asks for it.
    ledger.close(PATIENCE)
    until(lambda: processes(client) == [])


def promises(server: RedisServer, every: float) -> bool:
    """Say whether the one process promises its next report within so many seconds."""
    return [each.every for each in processes(server.client())] == [every]


def test_a_process_that_nobody_was_recruited_in_is_watched_too(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it falls silent when its callers stop, though it is there."""
    begun: list[bool] = []
    monkeypatch.setattr(WATCH, "begin", lambda: begun.append(True))
    ledger = Ledger(redis7.client())
    recruiter = Recruiter()
    recruiter.add_hook(ledger)
    ledger.on_enlisted(3)
    assert ledger.flush(PATIENCE)
    assert begun
    ledger.close()


def test_a_busy_process_is_missed_within_half_a_minute(redis7: RedisServer) -> None:
    clock = ManualClock()
    ledger = Ledger(redis7.client(), interval=0.5, clock=clock)
    recruiter = Recruiter()
    recruiter.add_hook(ledger)
    ledger.on_enlisted(3)
    assert ledger.flush(PATIENCE)
    (busy,) = processes(redis7.client())
    assert busy.every == BUSY_SECONDS
    assert busy.reported is not None
    assert [busy.is_silent(busy.reported + seconds) for seconds in (24.0, 26.0)] == [False, True]
    # It keeps its promise though nobody calls it any more, and then promises less.
    clock.advance(BUSY_SECONDS - 0.1)
    ledger.on_beat(None)
    assert promises(redis7, BUSY_SECONDS)
    clock.advance(0.2)
    ledger.on_beat(None)
    until(lambda: promises(redis7, QUIET_SECONDS))
    ledger.close()
