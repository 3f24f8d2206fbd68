"""The gauges of the StatsD hook: each is sent while it is known, and nothing stands for unknown."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.apart import set_apart
from support.processes import end, spawn
from support.statsd import Datagrams
from support.troubles import WaitingQueue
from workstealing import connect
from workstealing.errors import ConfigurationError
from workstealing.metrics import statsd as statsd_module
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.statsd import StatsDHooks
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.testing import ManualClock

PATIENCE = 120.0


@pytest.fixture
def datagrams() -> Iterator[Datagrams]:
    with Datagrams() as datagrams:
        yield datagrams


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def make(
    datagrams: Datagrams, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., StatsDHooks]]:
    """Make hooks that send to the socket, in a process without hooks of other tests."""
    set_apart(monkeypatch, clock)
    made: list[StatsDHooks] = []

    def make(**options: Any) -> StatsDHooks:
        options = {"port": datagrams.port, "clock": clock, "sender": "web", **options}
        made.append(StatsDHooks("127.0.0.1", **options))
        return made[-1]

    yield make
    for hooks in made:
        hooks.close(timeout=PATIENCE)


@pytest.fixture
def told(datagrams: Datagrams, clock: ManualClock) -> Callable[[StatsDHooks], dict[str, float]]:
    """Return the gauges that a hook tells ten seconds later, without the prefix."""

    def told(hooks: StatsDHooks) -> dict[str, float]:
        clock.advance(10.0)
        hooks.on_enlisted(1)
        assert hooks.flush(PATIENCE)
        lines = [each for each in datagrams.received() if each.endswith("|g")]
        pairs = [line.removeprefix("workstealing.").split(":") for line in lines]
        return {name: float(value.removesuffix("|g")) for name, value in pairs}

    return told


def watched(hooks: StatsDHooks, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let the hook watch a recruiter with one job; return the job's figures, to be changed."""
    figures: dict[str, Any] = {"rate": 0.25}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": {"sweep": figures}})
    recruiter = Recruiter()
    recruiter.add_hook(hooks)
    # The hook holds it weakly.
    figures["kept"] = recruiter
    return figures


def test_what_is_known_of_a_job(make: Any, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = make()
    figures = watched(hooks, monkeypatch)
    usual = {
        "sweep.rate": 0.25,
        "sweep.breaker_open.web": 0,
        "sweep.paused.web": 0,
        "sweep.slice_running_seconds.web": 0,
        "sweep.unreached_seconds.web": 0,
    }
    # Nobody knows yet whether the job keeps up: 0 would be a lie.
    assert told(hooks) == usual
    figures |= {"keeps_up": False, "breaker_open": True, "paused": True}
    figures |= {"running_seconds": 61.5, "breaker_seconds": 700.25}
    assert told(hooks) == {
        "sweep.rate": 0.25,
        "sweep.keeps_up.web": 0,
        "sweep.breaker_open.web": 1,
        "sweep.paused.web": 1,
        "sweep.slice_running_seconds.web": 61.5,
        "sweep.unreached_seconds.web": 700.25,
    }
    figures |= {"keeps_up": True, "breaker_open": False, "paused": False}
    figures |= {"running_seconds": None, "breaker_seconds": None}
    assert told(hooks) == {**usual, "sweep.keeps_up.web": 1}
    # And not any more.
    figures["keeps_up"] = None
    assert told(hooks) == usual


def test_gauges_are_sent_every_ten_seconds(
    make: Any, datagrams: Datagrams, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = make(interval=1.0)
    watched(hooks, monkeypatch)
    seen = []
    for _ in range(31):
        clock.advance(1.0)
        hooks._batch.counts["enlisted"] += 1
        assert hooks._deliver()
        seen.append(any(line.endswith("|g") for line in datagrams.received()))
    assert [number for number, has_gauges in enumerate(seen) if has_gauges] == [0, 10, 20, 30]


def test_a_job_uninstalled_has_no_gauges_any_more(make: Any, told: Any) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    hooks = make()
    recruiter.add_hook(hooks)
    assert told(hooks)["sweep.rate"] == 0.5
    recruiter.uninstall("sweep")
    assert told(hooks) == {}


def test_counters_begin_at_zero(make: Any, datagrams: Datagrams) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=0.5, name="sweep")(lambda slice: 3)
    hooks = make()
    recruiter.add_hook(hooks)
    hooks.on_recruited("sweep")
    assert hooks.flush(PATIENCE)
    counted = {line for line in datagrams.received() if line.endswith("|c")}
    zeros = ("items", "worked", "idle", "aborted", "failed", "out_of_time", "skipped")
    assert counted == {
        "workstealing.sweep.recruited:1|c",
        *(f"workstealing.sweep.{each}:0|c" for each in zeros),
    }


def test_what_a_slice_sees_is_sent_once(make: Any, told: Any) -> None:
    hooks = make()
    hooks.on_observed("sweep", 120.5, 10)
    hooks.on_observed("sweep", 0.0, None)
    hooks.on_measured("sweep", "tomb.stones", 3.5)
    hooks.on_measured("sweep", "lies", math.nan)
    hooks.on_measured("sweep", "more lies", math.inf)
    hooks.on_measured("sweep", "below", -2.0)
    assert told(hooks) == {
        "sweep.oldest_garbage_seconds": 0.0,
        "sweep.backlog": 10,
        "sweep.measured.tomb_stones": 3.5,
        # In StatsD's protocol, a negative number is a difference: to 0, which comes first.
        "sweep.measured.below": -2.0,
    }
    # Another process may have looked later.
    assert told(hooks) == {}


def test_the_number_of_gauges_is_bounded(make: Any, told: Any) -> None:
    hooks = make()
    for number in range(300):
        hooks.on_observed(f"job-{number}", 1.0, 1)
        hooks.on_measured("job-0", f"figure {number}", 1.0)
    gauges = told(hooks)
    assert len([name for name in gauges if "measured" in name]) == 20
    assert len(gauges) == 220


def test_of_jobs_whose_names_become_equal_the_worse_one_counts(
    make: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = make()
    good = {"rate": 0.5, "keeps_up": True, "running_seconds": 7.0}
    bad = {"rate": 0.25, "keeps_up": False, "breaker_open": True}
    jobs = {"a.b": good, "a:b": bad}
    monkeypatch.setattr(Recruiter, "stats", lambda self: {"jobs": jobs})
    recruiter = Recruiter()
    recruiter.add_hook(hooks)
    gauges = told(hooks)
    assert gauges["a_b.keeps_up.web"] == 0
    assert gauges["a_b.breaker_open.web"] == 1
    assert gauges["a_b.slice_running_seconds.web"] == 7


def test_a_server_that_is_not_reached(
    make: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = ManualClock()
    monkeypatch.setattr(SERVER_BREAKERS, "clock", measuring)
    hooks = make()
    breaker = SERVER_BREAKERS.of(("server", ("cache.local", 6379)))
    assert told(hooks) == {}
    breaker.fail(measuring.monotonic(), None)
    measuring.advance(3.0)
    name = "server.cache_local_6379.unreached_seconds.web"
    assert told(hooks) == {name: 3.0}
    breaker.recover()
    assert told(hooks) == {name: 0.0}


def test_a_ledger_that_takes_no_counts(make: Any, told: Any, clock: ManualClock) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        ledger = Ledger(connect(f"redis://127.0.0.1:{port}/0"), "shop", clock=clock)
        hooks = make()
        assert told(hooks) == {}
        ledger.on_enlisted(1)
        assert not ledger.flush(PATIENCE)
        clock.advance(400.0)
        # One failed attempt alone says nothing of the time after it.
        name = "receiver.the_ledger_shop.unsent_seconds.web"
        assert told(hooks) == {name: 0.0}
        assert not ledger.flush(PATIENCE)
        assert told(hooks) == {name: 410.0}
        ledger.close(0.0)


def test_accounts_that_wait_are_asked_once_a_minute(
    make: Any, told: Any, clock: ManualClock
) -> None:
    queue = WaitingQueue("render.ings", {"a.b": 61.5, "a_b": 70.0})
    hooks = make(structures=[queue])
    name = "fair_queue.render_ings"

    def waiting() -> dict[str, float]:
        return {key: value for key, value in told(hooks).items() if key.startswith(name)}

    first = waiting()
    assert first == {
        f"{name}.account.a_b.oldest_waiting_seconds": 70.0,
        f"{name}.oldest_waiting_unknown": 0,
    }
    queue.waiting = None
    assert waiting() == {}
    clock.advance(60.0)
    assert waiting() == {f"{name}.oldest_waiting_unknown": 1}


def test_dead_items_are_asked_once_a_minute(
    make: Any, told: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int | None] = [2, 3, None]

    class Box:
        name, kind = "mails.out", "shuffle queue"

        def dead_size(self) -> int:
            found = counts.pop(0)
            if found is None:
                raise ConnectionError("nobody there")
            return found

    hooks = make(structures=[Box()])
    name = "structure.mails_out.shuffle_queue"
    assert told(hooks) == {f"{name}.dead_items": 2, f"{name}.dead_items_unknown": 0}
    for _ in range(5):
        assert told(hooks) == {}
    assert told(hooks) == {f"{name}.dead_items": 3, f"{name}.dead_items_unknown": 0}
    clock.advance(50.0)
    # An unknown count is no 0.
    assert told(hooks) == {f"{name}.dead_items_unknown": 1}


def test_senders_are_few_and_neighbours_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for pid in range(1_000, 1_032):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        found.append(StatsDHooks()._sender)
    assert sorted(map(int, found)) == list(range(32))
    hosts = set()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    for number in range(200):
        monkeypatch.setattr(socket, "gethostname", lambda number=number: f"shop-{number}")
        hosts.add(StatsDHooks()._sender)
    assert len(hosts) > 20


@pytest.mark.parametrize("sender", ["", "a.b", "a b", "a:b", "x" * 101, "é"])
def test_a_sender_that_would_break_the_names_is_refused(sender: str) -> None:
    with pytest.raises(ConfigurationError, match="sender"):
        StatsDHooks(sender=sender)


def test_a_forked_child_has_its_own_sender(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 32 numbers a child has its parent's where their pids are 32 or 64 apart.
    monkeypatch.setattr(statsd_module, "_SENDERS", 2**64)
    hooks = make(sender=None)
    own = hooks._sender
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, hooks._sender.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100).decode() not in {own, ""}
    os.close(reading)
    os.close(writing)


STUCK = """
import sys, time
from workstealing import Recruiter
from workstealing.metrics import gathering, statsd
statsd._GAUGE_SECONDS = 0.05
from workstealing.metrics.statsd import StatsDHooks

recruiter = Recruiter(random=lambda: 0.0)

@recruiter.job(rate=0.5, name="sweep")
def sweep(slice):
    while True:
        time.sleep(1.0)

recruiter.add_hook(StatsDHooks("127.0.0.1", int(sys.argv[1])))
recruiter.enlist()
"""


def test_a_process_of_one_thread_tells_of_its_stuck_slice(datagrams: Datagrams) -> None:
    """Its first slice never ends, so no caller comes any more."""
    process = spawn([sys.executable, "-c", STUCK, str(datagrams.port)])
    try:
        running = 0.0
        while running < 0.5:
            for line in datagrams.next():
                name, _, value = line.partition(":")
                if ".sweep.slice_running_seconds." in name:
                    running = float(value.removesuffix("|g"))
    finally:
        end(process)


def test_an_idle_process_goes_on_telling(
    make: Any, datagrams: Datagrams, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statsd_module, "_GAUGE_SECONDS", 0.05)
    hooks = make(interval=10.0)
    watched(hooks, monkeypatch)
    hooks.on_outcome("sweep", Outcome.WORKED, 1, 0.001, None)
    assert hooks.flush(PATIENCE)
    datagrams.received()
    # Nobody calls it again; time alone passes.
    clock.advance(10.0)
    assert "workstealing.sweep.rate:0.25|g" in datagrams.next()


def test_a_name_that_does_not_resolve_is_no_reason_to_hurry(
    make: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    hooks = make()
    slept: list[float] = []
    monkeypatch.setattr(hooks, "_sleep", slept.append)
    with pytest.raises(socket.gaierror):
        hooks._deliver()
    hooks._rest()
    clock.advance(25.0)
    assert not hooks._deliver()
    hooks._rest()
    # The next trial is thirty seconds after the last one; the thread looks every ten at most.
    assert slept == [10.0, 5.0]


def test_a_real_job_that_fails(make: Any, told: Any) -> None:
    def fail(slice: Any) -> int:
        raise ConnectionError("nobody there")

    recruiter = Recruiter(random=lambda: 0.0)
    recruiter.install(FunctionJob(fail, name="away"), rate=0.5)
    hooks = make()
    recruiter.add_hook(hooks)
    assert recruiter.enlist() is Outcome.FAILED
    gauges = told(hooks)
    assert gauges["away.breaker_open.web"] == 1
    assert gauges["away.unreached_seconds.web"] >= 0
    assert "away.keeps_up.web" not in gauges
