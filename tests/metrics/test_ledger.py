"""The ledger as a hook on every kind of server: counting, its thread, and shared spending."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from support.ledgers import PATIENCE, work
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError
from workstealing.metrics.ledger import (
    Ledger,
    read,
    total,
)
from workstealing.metrics.minutes import (
    day_key,
    minute_key,
)
from workstealing.recruiting import Outcome, Recruiter
from workstealing.recruiting.adaptive import Adaptive
from workstealing.recruiting.lottery import MOST_MEASURED
from workstealing.testing import ManualClock

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("patient")]


def test_the_number_of_hashes_is_bounded() -> None:
    keys = {minute_key("default", 60 * minute) for minute in range(5_000)}
    assert len(keys) == 1_440
    assert len({day_key("default", day) for day in range(100)}) == 7


def test_it_is_sent_when_the_interval_is_over(
    redis7: RedisServer, make: Callable[..., Ledger], clock: ManualClock
) -> None:
    client = redis7.client()
    ledger = make(client, interval=10.0)
    ledger.on_enlisted(1)
    clock.advance(9.0)
    ledger.on_enlisted(1)
    assert ledger._thread is None
    clock.advance(1.0)
    ledger.on_enlisted(1)
    until = time.monotonic() + PATIENCE
    while sum(m.enlisted for m in read(client, minutes=2)) < 3:
        assert time.monotonic() < until


def test_the_thread_is_woken_once_an_interval(
    redis7: RedisServer,
    make: Callable[..., Ledger],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = make(redis7.client(), interval=10.0)
    woken: list[float] = []
    # Not for longer: the ledger's own end rouses its thread, and waits for it.
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_rouse", lambda: woken.append(clock.monotonic()))
        for _ in range(25):
            clock.advance(1.0)
            ledger.on_enlisted(1)
            work(ledger, "expiry", Outcome.IDLE)
            ledger.on_observed("expiry", 1.0, 1)
    assert woken == [110.0, 120.0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_replaced(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make(redis7.client())

    def die() -> bool:
        raise SystemExit

    with monkeypatch.context() as deadly:
        deadly.setattr(ledger, "_deliver", die)
        ledger.on_enlisted(1)
        assert not ledger.flush(timeout=0.05)
        assert ledger._thread is not None
        ledger._thread.join(PATIENCE)
    assert ledger.flush(PATIENCE)
    assert sum(m.enlisted for m in read(redis7.client(), minutes=2)) == 1


def test_close_ends_the_connection(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    own = len(client.client_list())
    ledger = make(redis7.client())
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    assert len(client.client_list()) == own + 1
    ledger.close(PATIENCE)
    until = time.monotonic() + PATIENCE
    while len(client.client_list()) > own:
        assert time.monotonic() < until


def test_the_number_of_jobs_is_bounded(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    for number in range(300):
        work(ledger, f"job-{number}", Outcome.IDLE)
        ledger.on_observed(f"job-{number}", 1.0, None)
    assert ledger.flush(PATIENCE)
    jobs = total(read(client, minutes=2))
    assert len(jobs) == 101
    assert jobs["_other"].idle == 200


def test_a_name_that_is_no_text_stops_no_report(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    ledger = make(redis7.client())
    work(ledger, "from a file \udcff", Outcome.WORKED, items=2)
    work(ledger, "sweep", Outcome.WORKED, items=1)
    assert ledger.flush(PATIENCE)
    jobs = total(read(redis7.client(), minutes=2))
    assert {name: job.items for name, job in jobs.items()} == {
        r"from a file \udcff": 2,
        "sweep": 1,
    }


LAST_COUNTS = """
import sys
from redis import Redis
from workstealing.metrics.ledger import Ledger
from workstealing.recruiting import FunctionJob, Recruiter

recruiter = Recruiter(random=lambda: 0.0)
recruiter.install(FunctionJob(lambda slice: 2, name="sweep"), rate=0.5)
ledger = Ledger(Redis(port=int(sys.argv[1])), interval=3600.0)
recruiter.add_hook(ledger)
recruiter.enlist()
recruiter.flush()
assert ledger.flush(30.0)
for _ in range(7):
    recruiter.enlist()
"""


@pytest.mark.slow
def test_a_process_sends_its_last_counts_when_it_ends(redis7: RedisServer) -> None:
    command = [sys.executable, "-c", LAST_COUNTS, str(redis7.port)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    minutes = read(redis7.client(), minutes=2)
    # Enlists that the hooks had not heard of yet count, too.
    assert sum(m.enlisted for m in minutes) == 8
    assert total(minutes)["sweep"].items == 16


def test_threads_count_exactly(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)

    def count() -> None:
        for _ in range(2_000):
            work(ledger, "expiry", Outcome.WORKED, 2, 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ledger.flush(PATIENCE)
    assert ledger.flush(PATIENCE)
    expiry = total(read(client, minutes=3))["expiry"]
    assert (expiry.worked, expiry.items) == (8_000, 16_000)
    assert expiry.seconds == pytest.approx(8.0)


def test_what_is_spent_is_shared(any_server: AnyServer, make: Callable[..., Ledger]) -> None:
    client = any_server.client()
    first, second = make(client), make(client)
    assert first.spent_today() == 0
    first.spend(9)
    assert first.spent_today() == 9
    assert first.flush(PATIENCE)
    second.spend(100)
    assert second.spent_today() == 100
    assert second.flush(PATIENCE)
    assert second.spent_today() == 109
    # The first hears of it with its own next send.
    assert first.spent_today() == 9
    first.on_enlisted(1)
    assert first.flush(PATIENCE)
    assert first.spent_today() == 109


def test_a_capped_job_stops_when_the_fleet_has_spent_its_day(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger, elsewhere = make(client), make(client)
    recruiter = Recruiter()
    rate = Adaptive(floor=0.1, ceiling=0.9, max_ops_per_day=1_000, spending=ledger)
    recruiter.job(rate=rate, name="sweep")(lambda slice: 1)
    recruiter.add_hook(ledger)
    assert recruiter.perform("sweep") is Outcome.WORKED
    assert 0 < ledger.spent_today() < 10
    elsewhere.spend(5_000)
    elsewhere.on_enlisted(1)
    assert elsewhere.flush(PATIENCE)
    assert ledger.flush(PATIENCE)
    assert ledger.spent_today() > 5_000
    installed = recruiter._roster.get("sweep")
    assert installed.controller is not None
    assert installed.controller.allowance() == 0.0


def test_a_new_day_has_spent_nothing(
    redis7: RedisServer, make: Callable[..., Ledger], clock: ManualClock
) -> None:
    ledger = make(redis7.client())
    ledger.spend(50)
    assert ledger.flush(PATIENCE)
    assert ledger.spent_today() == 50
    clock.advance(86_400.0)
    assert ledger.spent_today() == 0
    ledger.spend(3)
    assert ledger.spent_today() == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_is_another_process(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    ledger.on_enlisted(10)
    with ledger._lock:  # as if another thread held it
        child = os.fork()
        if child == 0:
            status = 1
            try:
                ledger.on_enlisted(100)
                status = 0 if ledger.flush(PATIENCE) else 2
            finally:
                os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ledger.flush(PATIENCE)
    minutes = read(client, minutes=2)
    assert sum(m.enlisted for m in minutes) == 111
    assert sum(m.processes for m in minutes) >= 2


def test_a_recruiter_reports(any_server: AnyServer, make: Callable[..., Ledger]) -> None:
    client = any_server.client()
    recruiter = Recruiter()
    recruiter.job(rate=1.0, name="sweep")(lambda slice: 3)
    ledger = make(client, "shop")
    recruiter.add_hook(ledger)
    for _ in range(10):
        assert recruiter.enlist() is Outcome.WORKED
    recruiter.flush()
    assert ledger.flush(PATIENCE)
    minutes = read(client, "shop", minutes=2)
    assert sum(m.enlisted for m in minutes) == 10
    sweep = total(minutes)["sweep"]
    assert (sweep.worked, sweep.items, sweep.rate) == (10, 30, 1.0)
    assert total(read(client, "another", minutes=2)) == {}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x" * 51}, "name"),
        ({"interval": 0.0}, "interval"),
        ({"interval": "10"}, "interval"),
        ({"interval": float("inf")}, "interval"),
        ({"keep": 59}, "keep"),
        ({"keep": 86_400}, "keep"),
        ({"keep": "600"}, "keep"),
    ],
)
def test_bad_arguments(redis7: RedisServer, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        Ledger(redis7.client(), **options)


def test_a_closed_ledger_writes_no_more(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    # Its thread is woken once more, to end; it must not send an empty batch.
    for _ in range(20):
        work(ledger, "expiry", Outcome.WORKED, 1)
        ledger._closed = False
        assert ledger.flush(PATIENCE)
        ledger.close(PATIENCE)
        client.flushall()
        assert ledger._thread is not None
        ledger._thread.join(PATIENCE)
        assert client.dbsize() == 0


def test_a_thread_that_is_woken_twice_for_one_batch_sends_once(
    redis7: RedisServer, make: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = make(redis7.client())
    heard: list[Sequence[Any]] = []

    def hear(replies: Sequence[Any]) -> None:
        heard.append(replies)
        if len(heard) == 1:
            # As by another caller of flush(), whose counts were in this batch too.
            ledger._wake.put(None)

    ends = queue.SimpleQueue[bool]()
    deliver = ledger._deliver
    monkeypatch.setattr(ledger, "_deliver", lambda: ends.put(deliver()))
    ledger.accompany(lambda: [("TIME",)], hear)
    work(ledger, "expiry", Outcome.WORKED, 1)
    ledger._rouse()
    ends.get(timeout=PATIENCE)
    ends.get(timeout=PATIENCE)
    assert len(heard) == 1


# ---- what went wrong, and who reports ------------------------------------------------------------


def fail(ledger: Ledger, error: BaseException, job: str = "expiry") -> None:
    """Tell a ledger of one recruit whose slice failed."""
    ledger.on_recruited(job)
    ledger.on_outcome(job, Outcome.FAILED, 0, 0.01, error)


class NoPermissionError(Exception):
    """As a server's."""


@pytest.mark.parametrize("asked", [False, True])
def test_errors_have_class_count_time_and_host_and_a_text_only_where_asked_for(
    any_server: AnyServer, make: Callable[..., Ledger], asked: bool
) -> None:
    client = any_server.client()
    ledger = make(client, error_texts=asked)
    before = time.time()
    for _ in range(3):
        fail(ledger, NoPermissionError("user:17 has no permissions"))
    fail(ledger, ValueError("x" * 1_000), "a:b")
    assert ledger.flush(PATIENCE)
    fail(ledger, NoPermissionError("user:18 has no permissions"))
    assert ledger.flush(PATIENCE)
    sums = total(read(client, minutes=3))
    denied = sums["expiry"].errors["NoPermissionError"]
    assert (denied.count, denied.host) == (4, socket.gethostname())
    assert denied.at is not None
    assert before - 120.0 <= denied.at <= time.time() + 120.0
    assert denied.text == ("user:18 has no permissions" if asked else None)
    other = sums["a:b"].errors["ValueError"]
    assert (other.count, other.text) == (1, "x" * 300 if asked else None)
    keys = [minute_key("default", each.minute) for each in read(client, minutes=3)]
    written = b"".join(b"".join(client.hgetall(key).values()) for key in keys)
    assert b"NoPermission" not in written
    assert (b"user:1" in written) is asked


def test_classes_of_errors_are_bounded(redis7: RedisServer, make: Callable[..., Ledger]) -> None:
    client = redis7.client()
    ledger = make(client)
    for number in range(50):
        fail(ledger, type(f"Error{number}", (Exception,), {})("x"))
    assert ledger.flush(PATIENCE)
    errors = total(read(client, minutes=2))["expiry"].errors
    assert len(errors) == 9
    assert errors["_other"].count == 42


def test_the_names_of_own_figures_are_bounded(
    redis7: RedisServer, make: Callable[..., Ledger]
) -> None:
    client = redis7.client()
    ledger = make(client)
    for number in range(100):
        ledger.on_measured("audit", f"figure-{number}", 1.0)
    assert ledger.flush(PATIENCE)
    assert len(total(read(client, minutes=2))["audit"].measured) == MOST_MEASURED
