"""One computation in a process: callers wait for each other, whatever they and their pool are."""

from __future__ import annotations

import asyncio
import dis
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

from support.at_once import at_once
from support.children import ended_well, in_child
from support.computing import leased_fields
from support.interruptions import PACKAGE, interrupt, place_of, points_of
from support.servers import RedisServer
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes import computations
from workstealing.structures.volatile_hashes.cached_results import ComputingTurn
from workstealing.structures.volatile_hashes.caching import CachedFunction
from workstealing.structures.volatile_hashes.commands import LEASE

LONG: dict[str, Any] = {"ttl": 600.0, "lease": 600.0, "hold": 600.0, "key": "page"}
CALL = CachedFunction.__call__.__code__
# The word `try` alone is an instruction without a meaning, at which no signal is looked for.
TRIES = [(CALL, each.offset) for each in dis.get_instructions(CALL) if each.opname == "NOP"]


class TestAStampede:
    """Sixty callers at once, with fewer connections."""

    @pytest.mark.parametrize("kind", [redis.ConnectionPool, redis.BlockingConnectionPool])
    def test_of_threads(self, redis7: RedisServer, kind: Any) -> None:
        options = {"timeout": 0.01} if kind is redis.BlockingConnectionPool else {}
        pool = kind(port=redis7.port, max_connections=3, **options)
        hashes, calls, found = VolatileHashes(redis.Redis(connection_pool=pool), "n"), [], []
        hashes.hset("warm", "f", 1)
        pause = threading.Event()

        @hashes.cached(**LONG)
        def page() -> list[int]:
            calls.append(1)
            pause.wait(0.3)
            return [1]

        at_once([lambda: found.append(page())] * 60)
        assert found == [[1]] * 60
        assert calls == [1]
        # Each has a value of its own.
        assert len({id(each) for each in found}) == 60
        assert not computations._computations

    @pytest.mark.parametrize("lost", ["before", "while computing"])
    def test_a_pool_that_stays_full_holds_up_nobody_for_long(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, lost: str
    ) -> None:
        """As one whose connections a host's time-outs have cut off: redis-py gives none again."""
        pool = redis.ConnectionPool(port=redis7.port, max_connections=2)
        hashes, slept, kept = VolatileHashes(redis.Redis(connection_pool=pool), "n"), [0.0], []
        hashes.hset("warm", "f", 1)

        def sleep(seconds: float) -> None:
            slept[0] += seconds

        monkeypatch.setattr(time, "sleep", sleep)
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + slept[0])

        def lose() -> None:
            kept.extend([pool.get_connection(), pool.get_connection()])

        @hashes.cached(ttl=600.0, key="page", hold=600.0)
        def page() -> int:
            if not kept:
                lose()
            return 1

        if lost == "before":
            lose()
        assert page() == 1
        assert 0.0 < slept[0] < 10.0
        assert not computations._computations

    async def test_of_tasks(self, redis7: RedisServer) -> None:
        client = redis.asyncio.Redis(port=redis7.port, max_connections=5)
        hashes, calls = AsyncVolatileHashes(client, "n"), []

        @hashes.cached(**LONG)
        async def page() -> int:
            calls.append(1)
            await asyncio.sleep(0.1)
            return 1

        assert await asyncio.gather(*[page() for _ in range(300)]) == [1] * 300
        assert calls == [1]
        await client.aclose()

    def test_of_several_loops(self, redis7: RedisServer) -> None:
        calls: list[int] = []
        gate = threading.Barrier(3)

        async def of_a_loop() -> list[int]:
            client = redis.asyncio.Redis(port=redis7.port)
            hashes = AsyncVolatileHashes(client, "n")

            @hashes.cached(**LONG)
            async def page() -> int:
                calls.append(1)
                await asyncio.sleep(0.3)
                return 1

            await hashes.hlen("warm")
            gate.wait(120)
            try:
                return await asyncio.gather(*[page() for _ in range(10)])
            finally:
                await client.aclose()

        found: list[Any] = []
        at_once([lambda: found.append(asyncio.run(of_a_loop()))] * 3)
        assert found == [[1] * 10] * 3
        assert calls == [1]

    @pytest.mark.slow
    def test_of_greenlets(self, redis7: RedisServer) -> None:
        program = f"""
from gevent import monkey; monkey.patch_all()
import gevent, redis
from workstealing.structures import VolatileHashes
hashes, calls = VolatileHashes(redis.Redis(port={redis7.port}, max_connections=3), "n"), []
hashes.hset("warm", "f", 1)
@hashes.cached(ttl=600, lease=600, hold=600, key="page")
def page():
    calls.append(1)
    gevent.sleep(0.2)
    return 1
jobs = [gevent.spawn(page) for _ in range(60)]
gevent.joinall(jobs, raise_error=True)
assert [each.value for each in jobs] == [1] * 60
assert calls == [1], calls
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=300)

    def test_without_redis(self, caplog: pytest.LogCaptureFixture) -> None:
        away = redis.Redis(port=1, retry=None, socket_connect_timeout=5)
        hashes, calls, running = VolatileHashes(away, "n"), [], []
        pause = threading.Event()

        @hashes.cached(**LONG)
        def page() -> int:
            running.append(1)
            calls.append(len(running))
            pause.wait(0.05)
            running.pop()
            return 1

        at_once([page] * 20)
        assert set(calls) == {1}


class TestFailures:
    """A computer that fails is followed by the next one."""

    @pytest.mark.slow
    def test_one_at_a_time(self, redis7: RedisServer) -> None:
        hashes, running, most, errors = VolatileHashes(redis7.client(), "n"), [], [], []
        pause = threading.Event()

        @hashes.cached(**LONG)
        def page() -> int:
            running.append(1)
            most.append(len(running))
            pause.wait(0.02)
            running.pop()
            raise ValueError("no page")

        def ask() -> None:
            try:
                page()
            except ValueError as error:
                errors.append(error)

        at_once([ask] * 8)
        assert len(errors) == 8
        assert most == [1] * 8
        assert not leased_fields(hashes, "page")
        assert not computations._computations

    def test_a_dead_one_holds_them_up_once(self, redis7: RedisServer) -> None:
        hashes, calls, found = VolatileHashes(redis7.client(), "n"), [], []
        dead = ("FIELDS", 1, "page", "dead", 600_000, 600_000, -1, "")
        hashes.execute_command(LEASE, "page", *dead)

        @hashes.cached(**{**LONG, "hold": 0.3})
        def page() -> int:
            calls.append(1)
            return 1

        at_once([lambda: found.append(page())] * 20)
        assert found == [1] * 20
        # Never all at once: a thread that came late may have had to wait again.
        assert len(calls) < 5

    @pytest.mark.slow
    def test_processes_do_not_lose_patience_together(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashes, slept = VolatileHashes(redis7.client(), "n"), [0.0]
        page = hashes.cached(**{**LONG, "hold": 60.0})(lambda: 1)
        dead = ("FIELDS", 1, "page", "dead", 600_000, 600_000, -1, "")
        hashes.execute_command(LEASE, "page", "FIELDS", 1, page.place()[1], *dead[3:])

        def sleep(seconds: float) -> None:
            slept[0] += seconds

        monkeypatch.setattr(time, "sleep", sleep)
        began, monotonic = time.monotonic(), time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: began + slept[0])
        waited = []
        # Each as the leader of a process of its own, since one at a time computes.
        for _ in range(12):
            slept[0] = 0.0
            assert page() == 1
            waited.append(slept[0])
        monkeypatch.setattr(time, "monotonic", monotonic)
        assert all(29.9 < seconds < 60.1 for seconds in waited)
        assert len({round(seconds) for seconds in waited}) > 3

    async def test_a_cancelled_waiter_leaves(self, redis7: RedisServer) -> None:
        hashes = AsyncVolatileHashes(redis.asyncio.Redis(port=redis7.port), "n")
        begun, go_on = asyncio.Event(), asyncio.Event()

        @hashes.cached(**LONG)
        async def page() -> int:
            begun.set()
            await go_on.wait()
            return 1

        leader = asyncio.create_task(page())
        await begun.wait()
        waiters = [asyncio.create_task(page()) for _ in range(3)]
        for _ in range(60_000):
            if len(computations._waiting) == 3:
                break
            await asyncio.sleep(0.001)
        waiters[0].cancel()
        await asyncio.wait([waiters[0]])
        assert waiters[0].cancelled()
        assert len(computations._waiting) == 2
        go_on.set()
        assert await asyncio.gather(leader, *waiters[1:]) == [1, 1, 1]
        assert not computations._waiting
        await hashes.client.aclose()


class TestContexts:
    """Only the caller itself, and not what it has started, is inside of a computation."""

    async def test_a_task_made_inside_is_a_caller_of_its_own(self, redis7: RedisServer) -> None:
        hashes = AsyncVolatileHashes(redis.asyncio.Redis(port=redis7.port), "n")
        calls, tasks = 0, []
        go_on = asyncio.Event()

        async def ask_later() -> int:
            await go_on.wait()
            return await page()

        @hashes.cached(**LONG)
        async def page() -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                tasks.extend(asyncio.create_task(ask_later()) for _ in range(20))
            await asyncio.sleep(0.05)
            return calls

        assert await page() == 1
        assert await page.invalidate()
        go_on.set()
        assert await asyncio.gather(*tasks) == [2] * 20
        assert calls == 2
        await hashes.client.aclose()

    def test_two_that_call_each_other_do_not_wait_for_ever(self, redis7: RedisServer) -> None:
        hashes, gate, found = VolatileHashes(redis7.client(), "n"), threading.Barrier(2), []
        first = threading.local()

        @hashes.cached(**{**LONG, "key": "a"})
        def a() -> str:
            if not hasattr(first, "done"):
                first.done = True
                gate.wait(120)
                return "a" + b()
            return "a"

        @hashes.cached(**{**LONG, "key": "b"})
        def b() -> str:
            if not hasattr(first, "done"):
                first.done = True
                gate.wait(120)
                return "b" + a()
            return "b"

        at_once([lambda: found.append(a()), lambda: found.append(b())])
        assert len(found) == 2

    def test_two_that_come_to_each_other_at_once_do_not_both_wait(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each looked before the other one had begun to wait; and a third one looked for ever."""
        now = ["a"]
        monkeypatch.setattr(computations, "running", lambda: now[0])
        turns: dict[str, ComputingTurn] = {each: ComputingTurn() for each in "ab"}

        def join(caller: str, field: str) -> Any:
            now[0] = caller
            place = ("here", "n", "page", field)
            return computations.join(
                place, 600.0, turns.get(caller, ComputingTurn()).lead, blocks=False
            )

        try:
            for each in "ab":
                join(each, each)
            assert join("a", "b")[0] is turns["b"].computation
            # It would wait for itself, so it computes.
            assert join("b", "a") == (None, None)
            computations.waits_no_more("a")
            assert join("b", "a")[0] is turns["a"].computation
            # Whatever has gone wrong before, nobody looks for ever.
            computations._waiting["a"] = turns["b"].computation
            assert join("c", "a")[0] is turns["a"].computation
        finally:
            for turn in turns.values():
                turn.finish()
            for each in "abc":
                computations.waits_no_more(each)

    def test_an_interrupted_caller_leads_nobody(self) -> None:
        """At whatever instruction: its computation is its own before anybody can follow it."""
        turn = ComputingTurn()

        def interrupted(computation: computations.SharedComputation) -> None:
            turn.lead(computation)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            computations.join(("here", "n", "page", "f"), 600.0, interrupted, blocks=True)
        assert turn.computation is not None
        assert not computations._computations
        turn.finish()

    def test_a_forked_child_waits_for_none_of_its_parents(self, redis7: RedisServer) -> None:
        computation, came = computations.join(
            ("here", "n", "page", "f"), 600.0, ComputingTurn().lead, blocks=True
        )
        try:
            assert computation is not None
            assert came is None

            def in_the_child() -> None:
                with_parents = computations.join(
                    ("here", "n", "page", "f"), 600.0, ComputingTurn().lead, blocks=True
                )
                assert with_parents[0] is not computation
                assert with_parents[1] is None

            ended_well(in_child(in_the_child))
        finally:
            computation.finish()


def interrupted_everywhere(call: Any, is_free: Any) -> None:
    points = [each for each in points_of(call, (PACKAGE,)) if each not in TRIES]
    assert len(points) > 500
    finished = 0
    for point in points:
        # Beside a busy process a call may take another way, which has no such point.
        finished += isinstance(interrupt(call, point, KeyboardInterrupt), KeyboardInterrupt)
        assert is_free(), place_of(point)
    assert finished > 0.9 * len(points)


@pytest.mark.slow
class TestInterruptions:
    """After any interruption of a caller, nobody waits for a computation without a leader."""

    def test_of_a_leader(self, redis7: RedisServer) -> None:
        client, direct, asked, woken = redis7.client(), redis7.client(), [], []
        hashes: Any = VolatileHashes(client, "n")
        place = (computations.server_of(client), "n", "page", "f")

        @hashes.cached(**LONG, field="f")
        def page() -> int:
            computation = computations._computations[place]
            # As one that waits: see `SharedComputation._enter`.
            computation._wakers.append(lambda: woken.append(len(asked)))
            asked.append(1)
            return 1

        def call() -> None:
            direct.delete("page")
            page()

        def is_free() -> bool:
            is_all = not computations._computations and set(woken) == set(range(1, len(asked) + 1))
            return is_all and not leased_fields(hashes, "page", direct)

        page()
        interrupted_everywhere(call, is_free)

    def test_of_one_who_waits(self, redis7: RedisServer) -> None:
        client, direct = redis7.client(), redis7.client()
        hashes: Any = VolatileHashes(client, "n")
        page = hashes.cached(**LONG, field="f")(lambda: 1)
        place = (computations.server_of(client), "n", "page", "f")

        def call() -> None:
            direct.delete("page")
            computation = computations.SharedComputation(place, "another", 600.0)
            computation.thread = -1
            computations._computations[place] = computation

            def finish() -> None:
                while not computation._wakers and not over.is_set():
                    over.wait(0.0005)
                computation.finish()

            over, finishing = threading.Event(), threading.Thread(target=finish)
            finishing.start()
            try:
                page()
            finally:
                over.set()
                finishing.join()

        def is_free() -> bool:
            return not computations._computations and not leased_fields(hashes, "page", direct)

        page()
        interrupted_everywhere(call, is_free)


class TestExtensions:
    """Callers that wait in the computer's process extend its lease, up to `hold` in all."""

    def test_those_who_wait_extend_the_lease(self, redis7: RedisServer) -> None:
        client = redis7.client()
        hashes: Any = VolatileHashes(client, "n", backend="emulated")
        page = hashes.cached(**{**LONG, "lease": 30, "wait": 0.0}, field="f")(lambda: 1)
        turn = ComputingTurn(("page", "f"))
        computation, _ = computations.join(("here", "n", "page", "f"), 60.0, turn.lead, blocks=True)
        assert computation is not None
        try:
            for request in page._leading(turn, computation, None):
                assert request[0] == LEASE
                break
            computation.token = turn.token
            waiting = page._following(ComputingTurn(("page", "f")), computation, 0)
            request = next(waiting)
            assert request[0] == LEASE
            assert request[5] == turn.token
            assert request[-1] == "ONLY"
            # And then not before a third of it is over.
            assert isinstance(waiting.send([1, None, -1]), computations.Awaited)
        finally:
            computation.finish()

    @pytest.mark.parametrize("backend", ["emulated", "native"])
    def test_up_to_hold_in_all(self, redis8: RedisServer, backend: str) -> None:
        def at(seconds: int) -> Any:
            ms = 1000 * seconds
            return VolatileHashes(redis8.client(), "n", backend=backend, clock_shift_ms=ms)

        def ask(seconds: int, nonce: str, how: str = "") -> int:
            asked = ("FIELDS", 1, "f", nonce, 30_000, 60_000, -1, how)
            return int(at(seconds).execute_command(LEASE, "page", *asked)[0] > 0)

        assert ask(0, "first") == 1
        assert ask(0, "second") == 0
        assert ask(20, "first", "ONLY") == 1
        assert ask(40, "second") == 0
        assert ask(45, "first", "ONLY") == 1
        # It would last until 75, but has an end at 60 at last.
        assert ask(55, "second") == 0
        assert ask(61, "second") == 1
        assert ask(62, "first", "ONLY") == 0
