"""`cached`: one computer at a time, old values meanwhile, and a Redis that may be away."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.at_once import at_once
from support.children import ended_well, in_child
from support.computing import leased_fields
from support.processes import free_port
from support.servers import AnyServer, RedisServer
from workstealing import Fleet, Recruiter
from workstealing.errors import ConfigurationError
from workstealing.recruiting.deferral import Deferral, current
from workstealing.structures import AsyncVolatileHashes, Serializer, VolatileHashes
from workstealing.structures.volatile_hashes import cached_results
from workstealing.structures.volatile_hashes.commands import LEASE

LONG = {"ttl": 600.0, "wait": 60.0, "lease": 600.0}
RAW = Serializer("raw", bytes, bytes)


@pytest.fixture
def recruiter() -> Recruiter:
    """Return a recruiter that counts and recruits nobody."""
    return Recruiter()


def hashes_on(server: AnyServer, **options: Any) -> Any:
    return VolatileHashes(server.client(), namespace="cached", **options)


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


@pytest.mark.contract
def test_a_miss_computes_and_a_hit_enlists(any_server: AnyServer, recruiter: Recruiter) -> None:
    hashes, calls = hashes_on(any_server), []

    @hashes.cached(**LONG, key="item:{item}", field="price in {currency}", recruiter=recruiter)
    def price(item: int, currency: str = "EUR") -> dict[str, int]:
        """Return a price."""
        calls.append((item, currency))
        return {"cents": 100 * item}

    assert price.__doc__ == "Return a price."
    assert price(17) == {"cents": 1700}
    assert enlisted(recruiter) == 0
    assert price(17, "EUR") == price(item=17) == {"cents": 1700}
    assert enlisted(recruiter) == 2
    assert price(17, currency="USD") == {"cents": 1700}
    assert calls == [(17, "EUR"), (17, "USD")]
    assert price.place(17) == ("item:17", "price in EUR")
    assert sorted(hashes.hkeys("item:17")) == [b"price in EUR", b"price in USD"]
    assert 0 < hashes.httl("item:17", "price in EUR")[0] <= 600
    # The lease has been given back.
    assert not leased_fields(hashes, "item:17")
    assert price.invalidate(17) is True
    assert price.invalidate(17) is False
    assert price(17) == {"cents": 1700}
    assert len(calls) == 3
    assert price.refresh(17) == {"cents": 1700}
    assert len(calls) == 4


@pytest.mark.contract
def test_many_threads_compute_once(any_server: AnyServer, recruiter: Recruiter) -> None:
    hashes, calls, found = hashes_on(any_server), [], []
    waiting = threading.Event()

    @hashes.cached(**LONG, key="page", recruiter=recruiter)
    def page() -> str:
        calls.append(1)
        # The others have time to come.
        waiting.wait(0.3)
        return "made once"

    at_once([lambda: found.append(page())] * 10)
    assert found == ["made once"] * 10
    assert calls == [1]


async def test_many_tasks_compute_once(redis7: RedisServer, recruiter: Recruiter) -> None:
    client = redis.asyncio.Redis(port=redis7.port)
    hashes, calls = AsyncVolatileHashes(client, namespace="cached"), []

    @hashes.cached(**LONG, key="item:{n}", stale=5, early=1.0, recruiter=recruiter)
    async def item(n: int) -> list[int]:
        calls.append(n)
        await asyncio.sleep(0.2)
        return [n]

    assert await asyncio.gather(*[item(3) for _ in range(10)]) == [[3]] * 10
    assert calls == [3]
    assert enlisted(recruiter) == 9
    assert await item.invalidate(3)
    assert await item.refresh(3) == [3]
    assert await item(3) == [3]
    assert calls == [3, 3]
    await client.aclose()


async def test_a_cancelled_computer_gives_its_lease_back(redis7: RedisServer) -> None:
    client = redis.asyncio.Redis(port=redis7.port)
    hashes, begun = AsyncVolatileHashes(client, namespace="cached"), asyncio.Event()

    @hashes.cached(**LONG, key="page")
    async def page() -> str:
        if begun.is_set():
            return "the second"
        begun.set()
        await asyncio.sleep(600)
        return "the first"

    task = asyncio.create_task(page())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await page() == "the second"
    await client.aclose()


def test_an_exception_is_raised_and_not_kept(redis7: RedisServer) -> None:
    hashes, answers = hashes_on(redis7), iter([ValueError("no such item"), None])

    @hashes.cached(**LONG, key="page")
    def page() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    with pytest.raises(ValueError, match="no such item"):
        page()
    # None is a result: `next` would raise StopIteration otherwise.
    assert page() is None
    assert page() is None


def test_while_one_computes_the_others_have_the_old_value(redis7: RedisServer) -> None:
    old, new = hashes_on(redis7), hashes_on(redis7, clock_shift_ms=30_000)
    settings: dict[str, Any] = {"ttl": 20, "stale": 60, "key": "page", "wait": 60, "lease": 600}
    begun, go_on = threading.Event(), threading.Event()
    old.cached(**settings, field="text")(lambda: "old")()

    @new.cached(**settings, field="text")
    def page() -> str:
        begun.set()
        assert go_on.wait(120)
        return "new"

    found: list[str] = []
    computing = threading.Thread(target=lambda: found.append(page()))
    computing.start()
    assert begun.wait(120)
    assert page() == "old"
    go_on.set()
    computing.join()
    assert found == ["new"]
    assert page() == "new"


def of_a_killed_one(ms: int) -> tuple[Any, ...]:
    return "FIELDS", 1, "text", "killed", ms, ms, -1, ""


def test_a_computer_that_was_killed_holds_nobody_up_for_long(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    hashes.execute_command(LEASE, "page", *of_a_killed_one(600_000))
    impatient = hashes.cached(ttl=600, key="page", field="text", hold=0.05)(lambda: "mine")
    assert impatient() == "mine"
    assert impatient() == "mine"
    # Another caller's lease is not given back.
    assert leased_fields(hashes, "page") == [b"text"]
    hashes.execute_command(LEASE, "list", *of_a_killed_one(50))
    patient = hashes.cached(**LONG, key="list", field="text")(lambda: "after the lease")
    assert patient() == "after the lease"


def test_processes_compute_once_and_outlive_one_that_is_killed(redis7: RedisServer) -> None:
    client = redis7.client(decode_responses=True)

    def work(lease: float, *, hangs: bool = False) -> None:
        hashes = hashes_on(redis7)

        @hashes.cached(ttl=600, wait=100, lease=lease, key="page")
        def page() -> str:
            client.rpush("begun", os.getpid())
            while hangs:
                signal.pause()
            return "made"

        assert page() == "made"

    for child in [in_child(lambda: work(600.0)) for _ in range(5)]:
        ended_well(child)
    assert client.llen("begun") == 1
    client.flushall()
    victim = in_child(lambda: work(1.5, hangs=True))
    assert client.blpop(["begun"], 100)[1] == str(victim)
    others = [in_child(lambda: work(600.0)) for _ in range(4)]
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    for child in others:
        ended_well(child)
    # Until the lease of the dead one has ended they waited, and then one of them computed.
    assert client.llen("begun") == 1


def test_on_a_fleet(redis7: RedisServer, start_redis: Callable[..., RedisServer]) -> None:
    other = start_redis()
    fleet = Fleet({"a": redis7.client(retry=None), "b": other.client(retry=None)})
    hashes, calls = VolatileHashes(fleet, "cached"), []

    @hashes.cached(ttl=600, stale=60, early=1.0, key="item:{item}")
    def price(item: int) -> int:
        calls.append(item)
        return item

    for _ in range(2):
        assert [price(item) for item in range(40)] == [*range(40)]
    assert calls == [*range(40)]
    homes = {fleet.home(f"item:{item}") for item in range(40)}
    assert homes == {"a", "b"}
    other.stop()
    # A dead node costs the cache of its own share, and nobody an error.
    assert [price(item) for item in range(40)] == [*range(40)]
    again = {item for item in range(40) if fleet.home(f"item:{item}") == "b"}
    assert sorted(calls[40:]) == sorted(again)


def test_a_value_that_was_stored_before_the_lease_is_not_computed_again(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = hashes_on(redis7)
    looking = cached_results.CachedResults._leasing

    def late(self: Any, turn: Any, seen: Any) -> Any:
        # Another caller stores its result between this one's look and its lease.
        hashes.hsetex(turn.key, turn.field, b'5:"theirs"', ex=600)
        return looking(self, turn, seen)

    monkeypatch.setattr(cached_results.CachedResults, "_leasing", late)
    assert hashes.cached(**LONG, key="page", field="text")(lambda: "mine")() == "theirs"
    assert not leased_fields(hashes, "page")


@pytest.mark.parametrize("content", [b"plain", b":x", b"12", b"abc:1", b""])
def test_a_value_of_another_program_is_computed_anew(redis7: RedisServer, content: bytes) -> None:
    hashes = hashes_on(redis7)
    hashes.hset("page", "text", content)
    page = hashes.cached(**LONG, key="page", field="text")(lambda: "ours")
    assert page() == "ours"
    assert page() == "ours"
    assert hashes.hget("page", "text").endswith(b':"ours"')


def test_without_redis_the_function_is_called(
    recruiter: Recruiter, caplog: pytest.LogCaptureFixture
) -> None:
    away = redis.Redis(port=free_port(), socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    hashes, calls = VolatileHashes(away, namespace="cached"), []

    @hashes.cached(**LONG, key="page", recruiter=recruiter)
    def page_without_redis() -> str:
        calls.append(1)
        return "made"

    with caplog.at_level(logging.ERROR, "workstealing"):
        assert [page_without_redis() for _ in range(3)] == ["made"] * 3
    assert calls == [1] * 3
    assert enlisted(recruiter) == 0
    (line,) = [each for each in caplog.messages if "page_without_redis" in each]
    assert "the cache of" in line


def test_a_result_that_cannot_be_kept_is_returned(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    page = hashes.cached(**LONG, key="page", field="text")(lambda: b"bytes are no JSON")
    assert page() == page() == b"bytes are no JSON"
    assert not leased_fields(hashes, "page")
    raw = hashes.cached(**LONG, key="raw", field="text", serializer=RAW)
    assert raw(lambda: b"\xff: kept")() == b"\xff: kept"
    assert raw(lambda: b"not computed")() == b"\xff: kept"


def test_methods_are_cached_by_their_instance(redis7: RedisServer) -> None:
    hashes, calls = hashes_on(redis7), []

    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @hashes.cached(**LONG, key=lambda self, item: f"{self.name}:{item}", field="{self.name}")
        def price(self, item: int) -> str:
            calls.append(item)
            return f"{self.name} {item}"

    east, west = Shop("east"), Shop("west")
    assert [east.price(1), east.price(1), west.price(item=1)] == ["east 1", "east 1", "west 1"]
    assert calls == [1, 1]
    assert east.price.place(1) == ("east:1", "east")
    assert east.price.invalidate(1)
    assert not east.price.invalidate(1)


def test_clients_that_decode(redis7: RedisServer) -> None:
    client = redis.Redis(port=redis7.port, decode_responses=True)
    hashes = VolatileHashes(client, namespace="cached")
    page = hashes.cached(**LONG, key="page", field="text", stale=1)(lambda: {"ö": 1})
    assert page() == page() == {"ö": 1}
    client.close()


def test_the_chance_of_an_early_computer_follows_its_rule(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P(due) = exp(-left / (cost x early)), by the paper's rule."""
    hashes = hashes_on(redis7)
    page = hashes.cached(ttl=60, key="page", field="text", early=2.0)(lambda: "x")
    never = hashes.cached(ttl=60, key="page", field="text")(lambda: "x")
    draws = [(n + 0.5) / 10_000 for n in range(10_000)]
    for left in (0.1, 1.0, 3.0):
        entry = cached_results.CachedEntry("x", left, 0.5)
        values = iter(draws)
        monkeypatch.setattr(cached_results.random, "random", lambda values=values: next(values))
        share = sum(page._is_due(entry) for _ in draws) / len(draws)
        assert share == pytest.approx(math.exp(-left / (0.5 * 2.0)), abs=1e-3)
        assert not never._is_due(entry)
    assert never._is_due(cached_results.CachedEntry("x", 0.0, 0.5))


def test_an_early_computer_keeps_the_new_value(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes, results = hashes_on(redis7), iter(["first", "second"])
    page = hashes.cached(ttl=600, key="page", field="text", early=1.0)(lambda: next(results))
    hashes.hsetex("page", "text", b'999999:"costly"', ex=60)
    monkeypatch.setattr(cached_results.random, "random", lambda: 0.999_999)
    assert page() == "first"
    # It cost nothing, so the next caller need not hurry.
    assert page() == "first"


def test_in_a_request_the_enlist_waits_for_its_response(
    redis7: RedisServer, recruiter: Recruiter
) -> None:
    page = hashes_on(redis7).cached(**LONG, key="page", field="text", recruiter=recruiter)
    kept = page(lambda: "x")
    kept()
    deferral = Deferral(Recruiter(), lambda _: False)
    token = current.set(deferral)
    try:
        kept()
        assert enlisted(recruiter) == 0
        deferral.respond(object())
        deferral.close()
    finally:
        current.reset(token)
    assert enlisted(recruiter) == 1


def test_wrong_arguments_are_refused(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)

    async def coroutine() -> None: ...

    with pytest.raises(ConfigurationError, match=r"is a coroutine function, and VolatileHashes"):
        hashes.cached(ttl=1, key="x")(coroutine)
    late = AsyncVolatileHashes(redis.asyncio.Redis(port=redis7.port), namespace="cached")
    with pytest.raises(ConfigurationError, match=r"is no coroutine function"):
        late.cached(ttl=1, key="x")(lambda: None)
    for options in (
        {"ttl": 0},
        {"ttl": 1, "early": -1},
        {"ttl": 1, "key": 3},
        {"ttl": 1, "wait": -1},
    ):
        with pytest.raises(ConfigurationError):
            hashes.cached(**{"key": "x", "ttl": 1, **options})


class TestFences:
    """A computer whose lease was voided, or taken over, stores nothing."""

    def slow(self, hashes: Any) -> tuple[Any, list[str], threading.Event, threading.Thread]:
        """Return a function that has read an old value, and computes until it is told to go on."""
        source, begun, go_on = ["old"], threading.Event(), threading.Event()

        @hashes.cached(**LONG, key="row")
        def row() -> str:
            read = source[0]
            if not begun.is_set():
                begun.set()
                assert go_on.wait(120)
            return read

        thread = threading.Thread(target=row)
        thread.start()
        assert begun.wait(120)
        source[0] = "new"
        return row, source, go_on, thread

    @pytest.mark.contract
    def test_refresh_takes_the_lease_over(self, any_server: AnyServer) -> None:
        row, _, go_on, thread = self.slow(hashes_on(any_server))
        assert row.refresh() == "new"
        go_on.set()
        thread.join()
        assert row() == "new"

    @pytest.mark.contract
    @pytest.mark.parametrize("how", ["invalidate", "delete"])
    def test_what_is_forgotten_meanwhile_is_not_stored(
        self, any_server: AnyServer, how: str
    ) -> None:
        hashes = hashes_on(any_server)
        row, source, go_on, thread = self.slow(hashes)
        row.invalidate() if how == "invalidate" else hashes.delete("row")
        go_on.set()
        thread.join()
        assert hashes.hget("row", "row") is None
        source[0] = "newest"
        assert row() == "newest"

    @pytest.mark.parametrize("how", ["refresh", "invalidate", "delete"])
    @pytest.mark.parametrize(
        ("before", "now"),
        [("emulated", "migrating"), ("native", "leaving"), ("native", "returning")],
    )
    def test_while_the_namespace_moves(
        self, redis8: RedisServer, before: str, now: str, how: str
    ) -> None:
        client = redis8.client()
        old = hashes_on(redis8, backend=before)
        # The field stands there, so it is handed over.
        old.hsetex("row", "other", 1, ex=600)
        row, source, go_on, thread = self.slow(old)
        client.hset(old.names.layout, "backend", now)
        hashes = hashes_on(redis8)
        again = hashes.cached(**LONG, key="row", field="row")(lambda: source[0])
        if how == "refresh":
            assert again.refresh() == "new"
        else:
            again.invalidate() if how == "invalidate" else hashes.delete("row")
        go_on.set()
        thread.join()
        source[0] = "newest"
        assert again() == ("new" if how == "refresh" else "newest")
        assert hashes.httl("row", "row")[0] > 500
        assert hashes.exists("row")
        assert row() == again()
        assert not leased_fields(hashes, "row")


class TestFailingSources:
    """An old result stands in for an exception, and exceptions can be kept."""

    def test_an_old_result_stands_in(
        self,
        redis7: RedisServer,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(cached_results, "_FIRST_PAUSE", 30.0)
        fresh, later = hashes_on(redis7), hashes_on(redis7, clock_shift_ms=30_000)
        settings: dict[str, Any] = {"ttl": 20, "stale": 600, "key": "page", "field": "text"}
        fresh.cached(**settings)(lambda: "old")()
        calls: list[int] = []

        def failing_page() -> str:
            calls.append(1)
            raise ValueError("no database")

        page = later.cached(**settings)(failing_page)
        with caplog.at_level(logging.WARNING, "workstealing"):
            assert [page() for _ in range(20)] == ["old"] * 20
        # Nobody tries again before the pause is over.
        assert calls == [1]
        (line,) = [each for each in caplog.messages if "failing_page" in each]
        assert "an old result stands in, because computing failed: ValueError: no database" in line
        assert leased_fields(later, "page") == [b"text"]
        much_later = hashes_on(redis7, clock_shift_ms=30_000 + 31_000)
        assert much_later.cached(**settings)(lambda: "new")() == "new"

    def test_the_pause_grows(self, redis7: RedisServer) -> None:
        page = hashes_on(redis7).cached(ttl=20, stale=600, key="page")(max)
        pauses = []
        for _ in range(9):
            turn = cached_results.ComputingTurn(("page", "max"))
            turn.token, turn.seen = "nonce", cached_results.CachedEntry("old", -30.0, 0.0)
            ((*_, ms),) = page._pausing(turn)
            pauses.append(ms)
        assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]
        turn.token, turn.seen = "nonce", cached_results.CachedEntry("old", -598.0, 0.0)
        ((*_, ms),) = page._pausing(turn)
        assert ms == 2000
        list(page._storing(turn, b"1", 0.0))
        assert page._failures == {}

    def test_declared_exceptions_are_kept(self, redis7: RedisServer) -> None:
        hashes, calls = hashes_on(redis7), []

        @hashes.cached(**LONG, key="item:{item}", errors={LookupError: 600, OSError: 600})
        def price(item: int) -> int:
            calls.append(item)
            if item == 1:
                raise KeyError("no item", item)
            if item == 2:
                raise OSError(object())
            raise ValueError(item)

        for _ in range(3):
            with pytest.raises(LookupError, match="no item"):
                price(1)
            with pytest.raises(OSError, match="object object"):
                price(2)
            with pytest.raises(ValueError, match="3"):
                price(3)
        assert calls == [1, 2, 3, 3, 3]
        assert not leased_fields(hashes, "item:1")
        # Another release of the program may no longer know it.
        other = hashes.cached(**LONG, key="item:{item}", field="price")(lambda item: item)
        assert other(1) == 1

    def test_one_whose_class_cannot_make_it_anew_is_raised_all_the_same(
        self, redis7: RedisServer
    ) -> None:
        """The caller got the error of the class's own code in its place."""

        class NoRoomError(LookupError):
            def __init__(self, room: Any) -> None:
                super().__init__(f"no room {room['number']}")

        @hashes_on(redis7).cached(**LONG, key="room", errors={NoRoomError: 600})
        def room() -> int:
            error = NoRoomError({"number": 7})
            error.args = ({},)
            raise error

        for _ in range(2):
            with pytest.raises(NoRoomError):
                room()

    async def test_of_coroutines(self, redis7: RedisServer) -> None:
        hashes = AsyncVolatileHashes(redis.asyncio.Redis(port=redis7.port), namespace="cached")
        calls: list[int] = []

        @hashes.cached(**LONG, key="page", errors={LookupError: 600})
        async def page() -> int:
            calls.append(1)
            await asyncio.sleep(0.05)
            raise LookupError("none")

        answers = await asyncio.gather(*[page() for _ in range(10)], return_exceptions=True)
        assert [type(each) for each in answers] == [LookupError] * 10
        assert len({id(each) for each in answers}) == 10
        assert calls == [1]
        await hashes.client.aclose()

    @pytest.mark.parametrize("wrong", [LookupError, {"LookupError": 5}, {KeyboardInterrupt: 5}])
    def test_wrong_declarations_are_refused(self, redis7: RedisServer, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="declares no exceptions: give a dict"):
            hashes_on(redis7).cached(ttl=1, key="x", errors=wrong)


@pytest.mark.parametrize("options", [{}, {"stale": 60.0}, {"early": 1.0}])
def test_a_hit_is_one_command(redis7: RedisServer, options: dict[str, float]) -> None:
    page = hashes_on(redis7).cached(**LONG, key="page", field="text", **options)(lambda: "text")
    page()
    page()
    client = redis7.client()
    client.config_resetstat()
    assert page() == "text"
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
