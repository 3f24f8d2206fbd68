"""Laws 1 and 2 with company: forked processes, threads, greenlets, and time-outs of the host."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.children import ended_well, in_child
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, wait_until
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Outcome
from workstealing.recruiting.slice import OUTCOMES, Slice
from workstealing.store import attempt
from workstealing.store.job_client import job_client_of
from workstealing.structures import VolatileHashes
from workstealing.testing import RecordingHooks, always

HOUR_MS = 3_600_000

pytestmark = pytest.mark.real


def hashes_on(client: Any, shift_ms: int = HOUR_MS) -> VolatileHashes:
    made: VolatileHashes = VolatileHashes(
        client, namespace="company", backend="emulated", clock_shift_ms=shift_ms
    )
    return made


def fill(server: RedisServer, hashes: int, fields: int) -> None:
    writer = hashes_on(server.client(), 0)
    with writer.pipeline() as pipe:
        for i in range(hashes):
            pipe.hsetex(f"h{i}", mapping={f"f{j}": j for j in range(fields)}, ex=60)
        pipe.execute()


def attempts(client: redis.Redis, who: str, times: int) -> None:
    """Make attempts whose replies name the one who asked, and count them in one key each."""
    for i in range(times):
        with attempt(client, who) as current:
            said, value = current.read(("ECHO", f"{who} {i}"), ("GET", who))
            assert said == f"{who} {i}".encode()
            assert int(value or 0) == i
            assert current.commit(("INCR", who)) == [i + 1]


def job_client_ports(server: RedisServer) -> set[str]:
    """The client ports of all connections whose last command was an attempt's."""
    return {
        entry["addr"] for entry in server.client().client_list() if entry["cmd"] in ("exec", "get")
    }


class TestFork:
    def test_a_child_uses_sockets_of_its_own(self, redis7: RedisServer) -> None:
        client = redis7.client()
        # Connections of earlier tests may still be about.
        others = job_client_ports(redis7)
        attempts(client, "before", 1)
        (before,) = job_client_ports(redis7) - others
        children = [in_child(lambda n=n: attempts(client, f"child {n}", 150)) for n in range(3)]
        attempts(client, "parent", 150)
        for child in children:
            ended_well(child)
        # The parent has kept its connection: no child has closed or used it.
        assert job_client_ports(redis7) - others == {before}
        assert {int(redis7.client().get(f"child {n}") or 0) for n in range(3)} == {150}

    def test_parent_and_child_slice_in_turn(self, redis7: RedisServer) -> None:
        fill(redis7, 40, 10)
        job = HashFieldExpiry(hashes_on(redis7.client()), limit=5)
        recruiter = always(seconds=5.0)
        recruiter.install(job, rate=1.0)
        assert recruiter.enlist() is Outcome.WORKED
        read, write = os.pipe()

        begun, begin = os.pipe()

        def collect() -> int:
            for _ in range(100):
                assert recruiter.enlist() is not Outcome.FAILED
            return recruiter.stats()["jobs"][job.name]["items"]

        def collect_and_tell() -> None:
            # The parent alone could be done before this process has begun.
            assert recruiter.enlist() is Outcome.WORKED
            os.write(begin, b"!")
            os.write(write, str(collect()).encode())

        child = in_child(collect_and_tell)
        os.close(begin)
        os.read(begun, 1)
        os.close(begun)
        mine = collect()
        ended_well(child)
        theirs = int(os.read(read, 100))
        os.close(read)
        os.close(write)
        # Each counts what it did itself (the child from zero), and each field was removed once.
        assert mine + theirs == 400
        assert mine > 0
        assert theirs > 0
        assert job.backlog().count == 0

    def test_a_fork_in_the_midst_of_another_threads_attempt(self, redis7: RedisServer) -> None:
        client = redis7.client()
        inside, go_on = threading.Event(), threading.Event()
        done: list[Any] = []

        def slow() -> None:
            with attempt(client, "slow") as current:
                current.read(("GET", "slow"))
                inside.set()
                go_on.wait(120)
                done.append(current.commit(("SET", "slow", "done")))

        thread = threading.Thread(target=slow)
        thread.start()
        assert inside.wait(120)
        child = in_child(lambda: attempts(client, "child", 20))
        ended_well(child)
        go_on.set()
        thread.join()
        assert done == [[b"OK"]]


class TestThreads:
    def test_one_slice_at_a_time_and_exact_totals(self, redis7: RedisServer) -> None:
        fill(redis7, 60, 20)
        job = HashFieldExpiry(hashes_on(redis7.client()), limit=7)
        now, most = [0], [0]
        perform = job.perform

        def watched(slice: Slice) -> int:
            now[0] += 1
            most[0] = max(most[0], now[0])
            try:
                return perform(slice)
            finally:
                now[0] -= 1

        job.perform = watched  # type: ignore[method-assign]
        recruiter = always(seconds=5.0)
        recruiter.install(job, rate=1.0)
        start = threading.Barrier(8)

        def enlist() -> None:
            start.wait()
            for _ in range(200):
                recruiter.enlist()

        threads = [threading.Thread(target=enlist) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1]
        stats = recruiter.stats()
        figures = stats["jobs"][job.name]
        assert stats["enlisted"] == figures["recruited"] == 1_600
        assert sum(figures[name] for name in OUTCOMES) == 1_600  # type: ignore[literal-required]
        assert figures["failed"] == 0
        while recruiter.enlist() is Outcome.WORKED:
            pass
        assert recruiter.stats()["jobs"][job.name]["items"] == 1_200
        assert job.backlog().count == 0
        # One slice at a time needs one connection.
        assert len(job_client_of(job.hashes.client)._idle[None]) == 1

    def test_attempts_of_many_threads_do_not_mix_their_replies(self, redis7: RedisServer) -> None:
        client = redis7.client()
        errors: list[BaseException] = []

        def work(who: str) -> None:
            try:
                attempts(client, who, 60)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


@contextmanager
def raising(error: BaseException, when: Callable[[], bool]) -> Iterator[None]:
    """Raise the error in the main thread, wherever it is, as soon as something holds."""

    def handler(*_: object) -> None:
        raise error

    def wait() -> None:
        wait_until(when, "the moment to raise an error")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handler)
    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        waiting.join()
        signal.signal(signal.SIGALRM, before)


def test_a_watch_error_that_stands_for_a_lost_connection_opens_the_breaker(
    redis7: RedisServer,
) -> None:
    with FaultyServer(redis7.port) as server:
        client = redis.Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0))
        # So that its rest, a twentieth of that or more, does not end before the next line.
        recruiter, hooks = always(breaker=1_000.0), RecordingHooks()
        recruiter.add_hook(hooks)

        @recruiter.job(rate=0.5)
        def of_the_user(slice: Slice) -> int:
            with client.pipeline() as pipeline:
                pipeline.watch("k")
                server.fail(len(server.seen) + 1, "cut")
                pipeline.get("k")
            return 1

        assert recruiter.enlist() is Outcome.FAILED
        assert isinstance(hooks.outcomes[0].error, redis.WatchError)
        assert recruiter.enlist() is Outcome.SKIPPED

        # The server was not to blame where another writer came first.
        @recruiter.job(rate=0.5)
        def raced(slice: Slice) -> int:
            raise redis.WatchError("Watched variable changed.")

        recruiter.pause("of_the_user")
        outcomes = {recruiter.enlist() for _ in range(20)}
        assert outcomes == {Outcome.ABORTED, Outcome.SKIPPED}
        assert recruiter.stats()["jobs"]["raced"]["skipped"] == 0
        assert recruiter.stats()["jobs"]["raced"]["failed"] == 0


class TestWhatIsNoException:
    @pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
    def test_it_passes_through_after_the_socket_is_closed(
        self, redis7: RedisServer, kind: type[BaseException]
    ) -> None:
        fill(redis7, 1, 3)
        with FaultyServer(redis7.port) as server:
            client = redis.Redis(port=server.port, protocol=2)
            hashes = hashes_on(client)
            hashes.open()
            job = HashFieldExpiry(hashes)
            recruiter = always(seconds=10.0)
            recruiter.install(job, rate=1.0)
            server.reset()
            # Command 3 is in the first look: the slice waits for its reply when it is interrupted.
            server.fail(3, "silent")
            with (
                raising(kind("of the host"), lambda: len(server.seen) >= 3),
                pytest.raises(kind, match="of the host"),
            ):
                recruiter.enlist()
            assert not any(job_client_of(client)._idle.values())
            assert server.connections == 1
            figures = recruiter.stats()["jobs"][job.name]
            assert figures["failed"] == figures["recruited"] == 1
            # The process is free for the next slice, and the server was not to blame.
            server.fail(0, "cut")
            assert recruiter.enlist() is Outcome.WORKED
            assert server.connections == 2


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import gevent, redis, socket, sys
from gevent import Timeout
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Outcome
from workstealing.store import attempt
from workstealing.store.job_client import job_client_of
from workstealing.store.budget import Budget
from workstealing.structures import VolatileHashes
from workstealing.testing import always

Budget.__init__.__defaults__ = (None, 5.0, Budget.__init__.__defaults__[2])
port = int(sys.argv[1])

def job_on(client):
    hashes = VolatileHashes(
        client, namespace="company", backend="emulated", clock_shift_ms=3_600_000
    )
    return HashFieldExpiry(hashes, limit=5)

# 1. A time-out of the host's own, while the slice waits for a server that never answers.
silent, held = socket.create_server(("127.0.0.1", 0)), []
def accept():
    while True:
        held.append(silent.accept()[0])
gevent.spawn(accept)
client = redis.Redis(host="127.0.0.1", port=silent.getsockname()[1])
recruiter = always(seconds=20.0)
job = job_on(client)
recruiter.install(job, rate=1.0)
mine = Timeout(2.0)
mine.start()
try:
    recruiter.enlist()
except Timeout as raised:
    assert raised is mine
else:
    raise AssertionError("the time-out was swallowed")
assert job_client_of(client)._idle == {}
assert len(held) == 1 and held[0].recv(1000) and held[0].recv(1) == b"", "it was not closed"

# 2. Many greenlets at once: their replies do not mix, and one slice runs at a time.
client = redis.Redis(host="127.0.0.1", port=port)
def attempts(who):
    for i in range(20):
        with attempt(client, who) as current:
            assert current.read(("ECHO", f"{who} {i}")) == [f"{who} {i}".encode()]
            assert current.commit(("INCR", who)) == [i + 1]
gevent.joinall([gevent.spawn(attempts, f"greenlet {i}") for i in range(10)], raise_error=True)
recruiter = always(seconds=20.0)
job = job_on(client)
recruiter.install(job, rate=1.0)
outcomes = []
def enlist():
    for _ in range(20):
        outcomes.append(recruiter.enlist())
        gevent.sleep(0)
gevent.joinall([gevent.spawn(enlist) for _ in range(10)], raise_error=True)
while recruiter.enlist() is Outcome.WORKED:
    pass
figures = recruiter.stats()["jobs"][job.name]
assert figures["failed"] == 0, figures
assert figures["items"] == 100, figures
assert figures["skipped"] > 0, figures
print("all well")
"""


def test_greenlets(redis7: RedisServer) -> None:
    pytest.importorskip("gevent")
    fill(redis7, 10, 10)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREENLETS), str(redis7.port)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "all well\n", done.stderr
