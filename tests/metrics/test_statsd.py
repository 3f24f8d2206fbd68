"""The StatsD hook against a real UDP socket."""

from __future__ import annotations

import logging
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.apart import set_apart
from workstealing.errors import ConfigurationError
from workstealing.metrics.statsd import StatsDHooks
from workstealing.recruiting import Outcome, Recruiter
from workstealing.recruiting.cache_figures import CACHES
from workstealing.testing import ManualClock

PATIENCE = 120.0


class Receiver:
    """A StatsD server: a UDP socket that adds up the counts of its packets.

    A count of 0 says that a counter exists; `counts` leaves it out, and `zeros` has it.
    """

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(PATIENCE)
        self.port: int = self.socket.getsockname()[1]
        self.counts: Counter[str] = Counter()
        self.zeros: set[str] = set()
        self.gauges: dict[str, float] = {}
        self.timings: dict[str, list[float]] = {}

    def packet(self) -> list[str]:
        """Receive one packet, add it up, and return its lines."""
        lines = self.socket.recv(65536).decode("ascii").split("\n")
        for line in lines:
            found = re.fullmatch(r"([\w.-]+):([\d.]+)\|(c|ms|g)", line)
            assert found is not None, line
            name, value, kind = found.groups()
            if kind == "g":
                self.gauges[name] = float(value)
            elif kind == "c" and value == "0":
                self.zeros.add(name)
            elif kind == "c":
                self.counts[name] += int(value)
            else:
                self.timings.setdefault(name, []).append(float(value))
        return lines

    def is_ready(self, seconds: float) -> bool:
        """Say whether a packet is waiting, or comes within some seconds."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def nothing_left(self) -> bool:
        """Say whether no packet is waiting."""
        return not self.is_ready(0.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.socket.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def make(
    receiver: Receiver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., StatsDHooks]]:
    """Make hooks that send to the receiver, and end their threads afterwards.

    Hooks of other tests, whose ledgers may live on, are none of this process.
    """
    set_apart(monkeypatch)
    made: list[StatsDHooks] = []

    def make(**options: Any) -> StatsDHooks:
        hooks = StatsDHooks(
            **{"host": "127.0.0.1", "port": receiver.port, "clock": clock, **options}
        )
        made.append(hooks)
        return hooks

    yield make
    for hooks in made:
        hooks.close(timeout=PATIENCE)


def test_everything_of_an_interval_in_one_packet(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    hooks.on_enlisted(256)
    hooks.on_enlisted(44)
    for outcome, items, seconds in [
        (Outcome.WORKED, 25, 0.004),
        (Outcome.WORKED, 5, 0.002),
        (Outcome.IDLE, 0, 0.001),
        (Outcome.ABORTED, 0, 0.003),
        (Outcome.FAILED, 0, 0.01),
        (Outcome.SKIPPED, 0, 0.0),
    ]:
        hooks.on_recruited("expiry")
        hooks.on_outcome("expiry", outcome, items, seconds, None)
    assert hooks.flush(PATIENCE)
    receiver.packet()
    assert receiver.nothing_left()
    assert receiver.counts == {
        "workstealing.enlisted": 300,
        "workstealing.expiry.recruited": 6,
        "workstealing.expiry.worked": 2,
        "workstealing.expiry.idle": 1,
        "workstealing.expiry.aborted": 1,
        "workstealing.expiry.failed": 1,
        "workstealing.expiry.skipped": 1,
        "workstealing.expiry.items": 30,
    }
    assert receiver.timings == {"workstealing.expiry.duration": [4.0, 2.0, 1.0, 3.0, 10.0]}


def test_caches(make: Callable[..., StatsDHooks], receiver: Receiver) -> None:
    hooks = make()
    figures = CACHES.of("shop:price.of")
    figures.hit(5)
    figures.compute(0.25)
    hooks.on_enlisted(1)
    assert hooks.flush(60)
    receiver.packet()
    assert receiver.counts == {
        "workstealing.enlisted": 1,
        "workstealing.cache.shop_price_of.hits": 5,
        "workstealing.cache.shop_price_of.computations": 1,
        "workstealing.cache.shop_price_of.micros": 250_000,
    }


def test_a_recruiter_reports(make: Callable[..., StatsDHooks], receiver: Receiver) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=1.0, name="sweep")(lambda slice: 3)
    hooks = make(prefix="shop.web-1")
    recruiter.add_hook(hooks)
    for _ in range(10):
        assert recruiter.enlist() is Outcome.WORKED
    recruiter.flush()
    assert hooks.flush(PATIENCE)
    receiver.packet()
    assert receiver.counts == {
        "shop.web-1.enlisted": 10,
        "shop.web-1.sweep.recruited": 10,
        "shop.web-1.sweep.worked": 10,
        "shop.web-1.sweep.items": 30,
    }
    assert len(receiver.timings["shop.web-1.sweep.duration"]) == 10


def test_sends_once_an_interval(
    make: Callable[..., StatsDHooks], receiver: Receiver, clock: ManualClock
) -> None:
    hooks = make(interval=1.0)
    for seconds in (0.0, 0.5, 0.375):
        clock.advance(seconds)
        hooks.on_enlisted(1)
    assert hooks._thread is None
    clock.advance(0.125)
    hooks.on_enlisted(1)
    assert receiver.packet() == ["workstealing.enlisted:4|c"]
    for seconds in (0.0, 0.5, 0.375, 0.125):
        clock.advance(seconds)
        hooks.on_enlisted(1)
    assert receiver.packet() == ["workstealing.enlisted:4|c"]
    assert receiver.nothing_left()


def test_nothing_counted_nothing_sent(make: Callable[..., StatsDHooks], receiver: Receiver) -> None:
    hooks = make()
    assert hooks.flush(PATIENCE)
    assert hooks._thread is None
    hooks.on_enlisted(1)
    assert hooks.flush(PATIENCE)
    assert hooks.flush(PATIENCE)
    receiver.packet()
    assert receiver.nothing_left()


def test_a_hanging_resolver_holds_nobody_up(
    make: Callable[..., StatsDHooks],
    receiver: Receiver,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo
    asked = threading.Event()
    answer = threading.Event()
    askers: list[threading.Thread] = []

    def hang(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "statsd.invalid":
            return resolve(host, *arguments, **options)
        askers.append(threading.current_thread())
        asked.set()
        assert answer.wait(PATIENCE)
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    hooks = make(host="statsd.invalid", interval=1.0)
    hooks.on_enlisted(1)
    assert askers == []
    clock.advance(1.0)
    hooks.on_enlisted(1)
    assert asked.wait(PATIENCE)
    for _ in range(1_000):
        clock.advance(1.0)
        hooks.on_enlisted(1)
        hooks.on_outcome("expiry", Outcome.WORKED, 1, 0.001, None)
    assert not hooks.flush(timeout=0.0)
    assert hooks._waiting == []
    assert askers == [hooks._thread]
    assert askers[0] is not threading.current_thread()
    assert askers[0].daemon

    answer.set()
    hooks.on_enlisted(1)
    assert hooks.flush(PATIENCE)
    while receiver.counts["workstealing.enlisted"] < 1_003:
        receiver.packet()
    assert receiver.counts["workstealing.enlisted"] == 1_003
    assert receiver.counts["workstealing.expiry.items"] == 1_000
    assert len(receiver.timings["workstealing.expiry.duration"]) == 20
    assert len(askers) == 1


def test_a_name_that_does_not_resolve_is_tried_again_later(
    make: Callable[..., StatsDHooks],
    receiver: Receiver,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolve = socket.getaddrinfo
    found = False
    trials: list[float] = []

    def fail(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "statsd.invalid":
            return resolve(host, *arguments, **options)
        trials.append(clock.monotonic())
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    hooks = make(host="statsd.invalid")
    with caplog.at_level(logging.ERROR, logger="workstealing"):
        for _ in range(3):
            hooks.on_enlisted(1)
            assert not hooks.flush(PATIENCE)
    assert len(trials) == 3
    assert len(caplog.records) == 1
    assert "statsd.invalid" in caplog.text

    # Without a flush the next trial waits its turn, however often the interval passes.
    assert not hooks._deliver()
    clock.advance(29.0)
    assert not hooks._deliver()
    assert len(trials) == 3
    clock.advance(1.0)
    found = True
    hooks.on_enlisted(1)
    receiver.packet()
    assert receiver.counts == {"workstealing.enlisted": 4}
    assert len(trials) == 4


def test_a_dead_server_harms_nobody(make: Callable[..., StatsDHooks], receiver: Receiver) -> None:
    hooks = make()
    receiver.socket.close()
    for _ in range(3):
        hooks.on_enlisted(1)
        assert hooks.flush(PATIENCE)


def test_a_full_socket_buffer_harms_nobody(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    hooks.on_enlisted(1)
    assert hooks.flush(PATIENCE)
    receiver.packet()
    client: Any = hooks._client
    own = client._sock
    room = threading.Event()
    reached = threading.Event()

    class Full:
        """A socket without room for a packet."""

        def sendto(self, data: bytes, address: Any) -> int:
            reached.set()
            assert room.wait(PATIENCE)
            return int(own.sendto(data, address))

        def close(self) -> None:
            own.close()

    client._sock = Full()
    hooks.on_enlisted(1)
    assert not hooks.flush(timeout=0.0)
    assert reached.wait(PATIENCE)
    for _ in range(1_000):
        hooks.on_enlisted(1)
    room.set()
    assert hooks.flush(PATIENCE)
    while receiver.counts["workstealing.enlisted"] < 1_002:
        receiver.packet()
    assert receiver.counts["workstealing.enlisted"] == 1_002


def test_nothing_is_said_of_what_did_not_happen(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    hooks.on_outcome("sweep", Outcome.SKIPPED, 0, 0.0, None)
    assert hooks.flush(PATIENCE)
    assert receiver.packet() == ["workstealing.sweep.skipped:1|c"]


def test_names_cannot_break_the_protocol(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    for job in ("a:b", "a|b", "a@b", "a.b", "a b", "a\nb", "aéb", "a/b"):
        hooks.on_recruited(job)
    hooks.on_recruited("Fine-Name_9")
    hooks.on_recruited("x" * 500)
    hooks.on_recruited("")
    assert hooks.flush(PATIENCE)
    receiver.packet()
    assert receiver.counts == {
        "workstealing.a_b.recruited": 8,
        "workstealing.Fine-Name_9.recruited": 1,
        f"workstealing.{'x' * 100}.recruited": 1,
        "workstealing._.recruited": 1,
    }


def test_the_number_of_names_is_bounded(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    for number in range(3_000):
        hooks.on_recruited(f"job-{number}")
    assert len(hooks._names) == 100
    assert len(hooks._batch.counts) == 101
    assert hooks.flush(PATIENCE)
    packets = 0
    while sum(receiver.counts.values()) < 3_000:
        assert len("\n".join(receiver.packet())) <= 1_400
        packets += 1
    assert packets > 1
    assert receiver.counts["workstealing._other.recruited"] == 2_900


def test_threads_count_exactly(make: Callable[..., StatsDHooks], receiver: Receiver) -> None:
    class Quick:
        """Every call is an interval later."""

        now = 0.0

        def monotonic(self) -> float:
            self.now += 1.0
            return self.now

    # So few packets that all fit into the receiver's buffer.
    hooks = make(clock=Quick(), interval=400.0)

    def count() -> None:
        for _ in range(5_000):
            hooks.on_enlisted(1)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    # The last packet may come while a thread still seems to be at work: none is waited for here.
    while any(thread.is_alive() for thread in threads):
        if receiver.is_ready(0.05):
            receiver.packet()
    assert hooks.flush(PATIENCE)
    while receiver.is_ready(0.0):
        receiver.packet()
    assert receiver.counts["workstealing.enlisted"] == 40_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_counts_for_itself(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    hooks.on_enlisted(1)
    assert hooks.flush(PATIENCE)
    assert receiver.packet() == ["workstealing.enlisted:1|c"]
    hooks.on_enlisted(30)
    with hooks._lock:  # as if another thread held it
        child = os.fork()
        if child == 0:
            status = 1
            try:
                hooks.on_enlisted(5)
                status = 0 if hooks.flush(PATIENCE) else 2
            finally:
                os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert receiver.packet() == ["workstealing.enlisted:5|c"]
    assert hooks.flush(PATIENCE)
    assert receiver.packet() == ["workstealing.enlisted:30|c"]


def test_a_process_sends_its_last_counts_when_it_ends(receiver: Receiver) -> None:
    program = (
        "import sys\n"
        "from workstealing.metrics.statsd import StatsDHooks\n"
        "hooks = StatsDHooks('127.0.0.1', int(sys.argv[1]), interval=3600.0)\n"
        "hooks.on_enlisted(1)\n"
        "assert hooks.flush(30.0)\n"
        "hooks.on_enlisted(7)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(receiver.port)], check=True, timeout=PATIENCE
    )
    assert receiver.packet() == ["workstealing.enlisted:1|c"]
    assert receiver.packet() == ["workstealing.enlisted:7|c"]


def test_close_sends_and_ends_the_thread(
    make: Callable[..., StatsDHooks], receiver: Receiver
) -> None:
    hooks = make()
    hooks.on_enlisted(2)
    hooks.close(PATIENCE)
    assert hooks._thread is not None
    hooks._thread.join(PATIENCE)
    assert not hooks._thread.is_alive()
    receiver.packet()
    assert receiver.counts == {"workstealing.enlisted": 2}
    hooks.on_enlisted(1)
    assert not hooks.flush(PATIENCE)


def test_no_thread_and_no_socket_before_the_first_send(make: Callable[..., StatsDHooks]) -> None:
    hooks = make(host="statsd.invalid")
    assert hooks._thread is None
    assert hooks._client is None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"port": 0}, "port"),
        ({"port": 70_000}, "port"),
        ({"port": "8125"}, "port"),
        ({"interval": 0.0}, "interval"),
        ({"interval": -1.0}, "interval"),
        ({"interval": True}, "interval"),
        ({"interval": float("nan")}, "interval"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "a:b"}, "prefix"),
        ({"prefix": "a..b"}, "prefix"),
        ({"prefix": "a."}, "prefix"),
    ],
)
def test_bad_arguments(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        StatsDHooks(**options)


def test_without_the_package_the_error_names_the_extra() -> None:
    program = (
        "import sys\n"
        "sys.modules['statsd'] = None\n"
        "from workstealing.errors import MissingExtraError\n"
        "try:\n"
        "    import workstealing.metrics.statsd\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "pip install 'workstealing[statsd]'" in done.stdout, done.stderr
