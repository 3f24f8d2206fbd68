"""A Redis that does not answer costs cached calls a time-out a period, by the jobs' own breaker.

Connections are counted, not seconds: a client without retries makes one for each time-out.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.timeouts import JobTimeoutException

from support.faulty_server import FaultyServer
from support.servers import RedisCluster3, RedisServer
from support.silent_server import SilentServer
from workstealing import Outcome, Recruiter
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.breakers import SERVER_BREAKERS, server_name
from workstealing.store.fleet import Fleet
from workstealing.store.job_client import job_client_of
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.cached_results import is_pool_full
from workstealing.testing import ManualClock, always

ONCE: dict[str, Any] = {"socket_timeout": 0.05, "retry": Retry(NoBackoff(), 0)}
LONGEST = 15.01  # seconds: the longest period with its jitter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Let breakers measure by a clock that stands still."""
    clock = ManualClock()
    monkeypatch.setattr(SERVER_BREAKERS, "clock", clock)
    return clock


@pytest.fixture
def silent(clock: ManualClock) -> Iterator[SilentServer]:
    with SilentServer() as server:
        yield server


def hashes_on(port: int, **options: Any) -> VolatileHashes:
    return VolatileHashes(redis.Redis(port=port, **{**ONCE, **options}), namespace="cached")


def late_hashes_on(port: int, **options: Any) -> AsyncVolatileHashes:
    from redis.asyncio.retry import Retry as LateRetry

    options = {"socket_timeout": 0.05, "retry": LateRetry(NoBackoff(), 0), **options}
    return AsyncVolatileHashes(redis.asyncio.Redis(port=port, **options), namespace="cached")


def squares(hashes: Any, **options: Any) -> Any:
    @hashes.cached(ttl=60, key="square:{number}", recruiter=Recruiter(), **options)
    def square(number: int) -> int:
        return number * number

    return square


class TestASilentServer:
    def test_twenty_calls_of_a_page_cost_one_time_out(self, silent: SilentServer) -> None:
        square = squares(hashes_on(silent.port))
        assert [square(number) for number in range(20)] == [n * n for n in range(20)]
        assert silent.connections == 1

    @pytest.mark.parametrize("options", [{"stale": 60}, {"early": 1.0}])
    def test_where_the_time_left_decides(self, silent: SilentServer, options: Any) -> None:
        square = squares(hashes_on(silent.port), **options)
        assert [square(2) for _ in range(20)] == [4] * 20
        assert silent.connections == 1

    async def test_on_an_asyncio_client(self, silent: SilentServer) -> None:
        hashes = late_hashes_on(silent.port)

        @hashes.cached(ttl=60, key="square:{number}", recruiter=Recruiter())
        async def square(number: int) -> int:
            return number * number

        assert [await square(number) for number in range(20)] == [n * n for n in range(20)]
        assert silent.connections == 1
        many = await asyncio.gather(*[square(number) for number in range(300)])
        assert many == [n * n for n in range(300)]
        assert silent.connections == 1

    def test_one_caller_tries_again_after_the_period(
        self, silent: SilentServer, clock: ManualClock
    ) -> None:
        square = squares(hashes_on(silent.port))
        square(0)
        for period in range(2, 6):
            clock.advance(LONGEST)
            callers = [threading.Thread(target=square, args=(number,)) for number in range(20)]
            for each in callers:
                each.start()
            for each in callers:
                each.join()
            assert silent.connections == period

    def test_a_second_client_and_another_database_share_it(self, silent: SilentServer) -> None:
        first = squares(hashes_on(silent.port))
        assert first(1) == 1
        assert squares(hashes_on(silent.port, db=3))(2) == 4
        assert silent.connections == 1

    def test_an_invalidation_is_never_left_out(self, silent: SilentServer) -> None:
        square = squares(hashes_on(silent.port))
        square(1)
        for tries, ask in enumerate((square.invalidate, square.refresh), start=2):
            with pytest.raises(redis.TimeoutError):
                ask(1)
            assert silent.connections == tries

    def test_a_refresh_that_fails_spares_the_calls(self, silent: SilentServer) -> None:
        square = squares(hashes_on(silent.port))
        with pytest.raises(redis.TimeoutError):
            square.refresh(1)
        assert square(1) == 1
        assert silent.connections == 1

    def test_a_forked_child_leaves_it_alone_too(self, silent: SilentServer) -> None:
        square = squares(hashes_on(silent.port))
        square(0)
        pid = os.fork()
        if pid == 0:
            os._exit(
                0 if [square(number) for number in range(9)] == [n * n for n in range(9)] else 1
            )
        assert os.waitpid(pid, 0)[1] == 0
        assert silent.connections == 1


class TestWithJobs:
    @staticmethod
    def recruiter(hashes: Any, clock: ManualClock) -> Recruiter:
        recruiter = always(clock=clock, seconds=1.0)
        recruiter.install(HashFieldExpiry(hashes), rate=1.0)
        return recruiter

    def test_a_call_that_failed_holds_jobs_back(
        self, silent: SilentServer, clock: ManualClock
    ) -> None:
        hashes = hashes_on(silent.port)
        recruiter = self.recruiter(hashes, clock)
        squares(hashes)(1)
        assert recruiter.enlist() is Outcome.SKIPPED
        assert silent.connections == 1
        stats = recruiter.stats()
        assert stats["jobs"]["hash_field_expiry.cached"]["breaker_open"]
        assert stats["unreached"] == {f"localhost:{silent.port}": 0.0}

    def test_a_job_that_failed_leaves_one_try_to_the_calls(
        self, silent: SilentServer, clock: ManualClock
    ) -> None:
        """A slice waits for 50 ms alone, which says little to a client that waits for seconds."""
        hashes = hashes_on(silent.port)
        recruiter = self.recruiter(hashes, clock)
        assert recruiter.enlist() is Outcome.FAILED
        assert silent.connections == 1
        square = squares(hashes)
        assert [square(number) for number in range(20)] == [n * n for n in range(20)]
        assert silent.connections == 2
        assert recruiter.enlist() is Outcome.SKIPPED

    def test_a_success_of_either_closes_it(self, redis7: RedisServer, clock: ManualClock) -> None:
        hashes = hashes_on(redis7.port, socket_timeout=5)
        recruiter, square = self.recruiter(hashes, clock), squares(hashes)
        breaker = job_client_of(hashes.client).breaker_of("any")
        square(0)
        breaker.fail(clock.monotonic(), breaker.outage)
        assert recruiter.enlist() is Outcome.SKIPPED
        clock.advance(LONGEST)
        assert square(0) == 0
        assert breaker.outage is None
        assert recruiter.stats()["unreached"] == {}
        assert recruiter.enlist() is Outcome.IDLE
        breaker.fail(clock.monotonic(), breaker.outage)
        clock.advance(LONGEST)
        assert recruiter.enlist() is Outcome.IDLE
        assert breaker.outage is None

    def test_a_recruiter_with_a_clock_of_its_own_shares_none(self, silent: SilentServer) -> None:
        hashes = hashes_on(silent.port)
        recruiter = self.recruiter(hashes, ManualClock())
        squares(hashes)(1)
        assert recruiter.enlist() is Outcome.FAILED


class TestWhatIsNoFault:
    def outage_after(self, hashes: Any, error: BaseException) -> Any:
        square = squares(hashes)
        real, hashes.execute_command = hashes.execute_command, _raising(error)
        try:
            if isinstance(error, JobTimeoutException):
                with pytest.raises(JobTimeoutException):
                    square(2)
            else:
                assert square(2) == 4
        finally:
            hashes.execute_command = real
        return job_client_of(hashes.client).breaker_of("any").outage

    @pytest.mark.parametrize(
        "error",
        [
            redis.ResponseError("OOM command not allowed"),
            redis.exceptions.BusyLoadingError("LOADING"),
            redis.AuthenticationError("NOAUTH"),
            redis.ConnectionError("Too many connections"),
            redis.ConnectionError("max number of clients reached"),
            JobTimeoutException("now"),
            ValueError("of the hashes"),
        ],
        ids=repr,
    )
    def test_stays_closed(
        self, redis7: RedisServer, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from workstealing.structures.volatile_hashes import cached_results

        monkeypatch.setattr(cached_results, "_POOL_PATIENCE_SECONDS", 0.0)
        assert self.outage_after(hashes_on(redis7.port), error) is None

    @pytest.mark.parametrize(
        "error", [redis.ConnectionError("refused"), redis.TimeoutError(), OSError(), TimeoutError()]
    )
    def test_a_fault_opens_it(self, redis7: RedisServer, error: Exception) -> None:
        assert self.outage_after(hashes_on(redis7.port), error) is not None

    def test_a_full_pool_does_not_close_it_either(
        self, redis7: RedisServer, clock: ManualClock
    ) -> None:
        full = redis.ConnectionError("Too many connections")
        assert is_pool_full(full)
        hashes = hashes_on(redis7.port)
        breaker = job_client_of(hashes.client).breaker_of("any")
        breaker.fail(clock.monotonic(), None)
        assert self.outage_after(hashes, full) is not None


def _raising(error: BaseException) -> Any:
    def ask(*_: Any, **__: Any) -> Any:
        raise error

    return ask


class TestAComputationMeanwhile:
    def test_its_result_waits_for_no_second_time_out(
        self, redis7: RedisServer, clock: ManualClock
    ) -> None:
        """Redis falls silent while a function runs: neither its store nor its lease is sent."""
        with FaultyServer(redis7.port) as door:
            hashes = hashes_on(door.port, socket_timeout=5)

            @hashes.cached(ttl=60, key="page", recruiter=Recruiter())
            def page() -> str:
                breaker = job_client_of(hashes.client).breaker_of("page")
                breaker.fail(clock.monotonic(), breaker.outage)
                return "made"

            assert page() == "made"
            seen = len(door.names())
            assert page() == "made"
            assert len(door.names()) == seen


class TestServers:
    def test_a_fleet_has_one_for_each_node(self, redis7: RedisServer, silent: SilentServer) -> None:
        nodes = {
            "alive": redis.Redis(port=redis7.port, **{**ONCE, "socket_timeout": 5}),
            "silent": redis.Redis(port=silent.port, **ONCE),
        }
        fleet, made = Fleet(nodes), []

        @VolatileHashes(fleet, "cached").cached(ttl=60, key="{name}", recruiter=Recruiter())
        def page(name: str) -> str:
            made.append(name)
            return name

        names = [str(number) for number in range(40)]
        homes = {name: fleet.home(name) for name in names}
        assert set(homes.values()) == {"alive", "silent"}
        for _ in range(2):
            assert [page(name) for name in names] == names
        assert silent.connections == 1
        for name, home in homes.items():
            assert made.count(name) == (1 if home == "alive" else 2)

    def test_a_cluster_has_one_for_each_node(self, cluster: RedisCluster3) -> None:
        client = cluster.client()
        job_client = job_client_of(client)
        names = [f"page:{number}" for number in range(60)]
        known = {name: job_client.breaker_of(name) for name in names}
        assert len(set(known.values())) == 3
        for name in names:
            assert job_client.breaker_of(name) is known[name]
            host, port = job_client.node_of(key_slot(name.encode()))  # type: ignore[misc]
            # As a client of that node alone knows it.
            assert SERVER_BREAKERS.of(("server", (host, port))) is known[name]
        dead, calls = known[names[0]], []

        @VolatileHashes(client, "cached").cached(ttl=60, key="{name}", recruiter=Recruiter())
        def page(name: str) -> str:
            calls.append(name)
            return name

        dead.fail(SERVER_BREAKERS.clock.monotonic(), None)
        for _ in range(2):
            assert [page(name) for name in names] == names
        for name in names:
            assert calls.count(name) == (2 if known[name] is dead else 1)

    @pytest.mark.parametrize(
        ("server", "name"),
        [
            (("server", ("10.0.0.1", 6379)), "10.0.0.1:6379"),
            (("server", "/run/redis.sock"), "/run/redis.sock"),
            (("cluster", "a:1", "b:2"), "cluster a:1, b:2"),
            (("sentinel", "mymaster", "a:1"), "sentinel mymaster, a:1"),
            ("db", "db"),
        ],
    )
    def test_have_names_without_credentials(self, server: Any, name: str) -> None:
        assert server_name(server) == name
