"""`cached` under attack: interruptions at each command, odd functions, odd values, odd clients."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import logging
import pickle
import random
import socket
import sys
import traceback
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq.timeouts import JobTimeoutException

from support.computing import leased_fields
from support.faulty_server import FaultyServer
from support.grants import (
    every_async_cut,
    every_cancel,
    every_cut,
    greenlets_killed,
    signals_at_random_moments,
)
from support.processes import free_port
from support.servers import RedisServer
from workstealing import Recruiter
from workstealing.errors import ConfigurationError
from workstealing.store.operations import Sleep
from workstealing.structures import AsyncVolatileHashes, Serializer, VolatileHashes

LONG: dict[str, Any] = {"ttl": 600.0, "wait": 60.0, "lease": 600.0}


def hashes_on(server: RedisServer, **options: Any) -> Any:
    client = redis.Redis(port=server.port, **options)
    return VolatileHashes(client, namespace="cached")


def late_hashes(port: int, **options: Any) -> Any:
    return AsyncVolatileHashes(redis.asyncio.Redis(port=port, **options), namespace="cached")


class TestCutReplies:
    """redis-py sends the request for a lease again: it is granted, not another caller's."""

    @pytest.mark.parametrize("backend", ["emulated", "native"])
    def test_nobody_waits_for_itself(self, redis8: RedisServer, backend: str) -> None:
        direct: Any = VolatileHashes(redis8.client(), "cached", backend=backend)
        direct.hset("warm", "f", 1)
        made, waits = [], []

        def ask(client: redis.Redis) -> Any:
            hashes: Any = VolatileHashes(client, "cached")
            field = str(len(made))
            page = hashes.cached(**LONG, key="page", field=field)(lambda: made.append(1) or field)
            send = page._send
            page._send = lambda turn, step: (
                waits.append(step) if isinstance(step, Sleep) else send(turn, step)
            )
            assert page() == field
            assert len(made) == int(field) + 1
            return page()

        with FaultyServer(redis8.port) as door:
            for answer in every_cut(door, ask):
                assert answer == str(len(made) - 1), door.names()
                assert waits == [], door.names()
                assert leased_fields(direct, "page") == [], door.names()
        assert len(made) > 5

    async def test_on_an_asyncio_client(self, redis7: RedisServer) -> None:
        direct = hashes_on(redis7)
        direct.hset("warm", "f", 1)
        made: list[int] = []

        async def ask(client: Any) -> Any:
            hashes: Any = AsyncVolatileHashes(client, "cached")

            async def row() -> int:
                made.append(1)
                return len(made)

            async with asyncio.timeout(30):
                return await hashes.cached(**LONG, key="page", field=str(len(made)))(row)()

        with FaultyServer(redis7.port) as door:
            async for answer in every_async_cut(door, ask):
                assert answer == len(made), door.names()
                assert leased_fields(direct, "page") == [], door.names()


class TestInterruptions:
    """A lease is given back at whatever command its holder is interrupted."""

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, JobTimeoutException])
    @pytest.mark.parametrize("is_done", [False, True])
    @pytest.mark.parametrize("at", range(1, 4))
    def test_of_a_call(
        self,
        redis7: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
        kind: type[BaseException],
        is_done: bool,
        at: int,
    ) -> None:
        hashes, sent = hashes_on(redis7), 0
        page = hashes.cached(**LONG, key="page", field="text")(lambda: "made")
        send = page._send

        def interrupted(turn: Any, request: Any) -> Any:
            nonlocal sent
            is_asked = isinstance(request, tuple)
            sent += is_asked
            if sent != at or not is_asked:
                return send(turn, request)
            if is_done:
                send(turn, request)
            raise kind("now")

        monkeypatch.setattr(page, "_send", interrupted)
        with pytest.raises(kind):
            page()
        assert sent >= at
        assert not leased_fields(hashes, "page")

    def test_while_a_result_is_encoded(self, redis7: RedisServer) -> None:
        hashes = hashes_on(redis7)

        def late(value: Any) -> bytes:
            raise JobTimeoutException("now")

        page = hashes.cached(
            **LONG, key="page", field="text", serializer=Serializer("late", late, bytes)
        )(lambda: "made")
        with pytest.raises(JobTimeoutException):
            page()
        assert not leased_fields(hashes, "page")

    async def test_of_a_task_at_each_of_its_awaits(self, redis7: RedisServer) -> None:
        hashes, raw = late_hashes(redis7.port), redis7.client()
        steps, is_done = 0, False
        while not is_done:
            raw.flushall()

            @hashes.cached(**LONG, key="page")
            async def page() -> str:
                await asyncio.sleep(0)
                return "made"

            task = asyncio.create_task(page())
            steps += 1
            for _ in range(steps):
                await asyncio.sleep(0)
            is_done = task.done()
            task.cancel()
            await asyncio.wait([task])
            assert leased_fields(hashes, "page", raw) == [], steps
            # The reply may be on its way at any step, so some steps wait for it.
            if not steps % 5:
                steps += 1
        await hashes.client.aclose()

    async def test_of_a_task_at_every_await(self, redis7: RedisServer) -> None:
        direct = hashes_on(redis7)
        direct.hset("warm", "f", 1)

        async def ask(client: Any) -> None:
            hashes: Any = AsyncVolatileHashes(client, "cached")

            async def row() -> int:
                await asyncio.sleep(0)
                return 1

            direct.client.delete("page")
            await hashes.cached(**LONG, key="page", field="text")(row)()

        await every_cancel(redis7, ask, lambda: leased_fields(direct, "page") == [], least=5)

    async def test_of_a_task_that_is_cancelled_again_and_again(self, redis7: RedisServer) -> None:
        """As by anyio, whose scopes cancel each await of a task until it has left them."""
        hashes, begun, raw = late_hashes(redis7.port), asyncio.Event(), redis7.client()

        @hashes.cached(**LONG, key="page")
        async def page() -> None:
            begun.set()
            await asyncio.sleep(600)

        task = asyncio.create_task(page())
        await begun.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        for _ in range(6000):
            if not leased_fields(hashes, "page", raw):
                break
            await asyncio.sleep(0.01)
        assert not leased_fields(hashes, "page", raw)
        await hashes.client.aclose()

    async def test_a_silent_server_holds_no_cancelled_task(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hashes = late_hashes(silent.getsockname()[1], socket_timeout=None)
            page = hashes.cached(**LONG, key="page", field="text")(asyncio.sleep)
            task = asyncio.create_task(page(0))
            await asyncio.sleep(0.05)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=60)
            assert done
            assert task.cancelled()

    async def test_a_coroutine_that_is_closed_awaits_nothing(self, redis7: RedisServer) -> None:
        hashes, begun = late_hashes(redis7.port), asyncio.get_running_loop().create_future()

        @hashes.cached(**LONG, key="page")
        async def page() -> None:
            begun.set_result(None)
            await asyncio.sleep(600)

        coroutine = page()
        # As the loop steps it, without a task that could close it first.
        waited = coroutine.send(None)
        while not begun.done():
            waited._asyncio_future_blocking = False
            await asyncio.wait([waited])
            waited = coroutine.send(None)
        coroutine.close()
        await hashes.client.aclose()

    def test_a_silent_server_costs_one_time_out(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = redis.Redis(
                port=silent.getsockname()[1], socket_timeout=0.2, retry=Retry(NoBackoff(), 0)
            )
            hashes, tries = VolatileHashes(client, "cached"), []
            page = hashes.cached(**LONG, key="page", field="text")(lambda: "made")
            send = page._send
            page._send = lambda turn, request: tries.append(request) or send(turn, request)
            assert page() == "made"
            assert [each[0] for each in tries if isinstance(each, tuple)] == ["HMGET"]


class TestFunctions:
    """A decorated function is a function to its caller, to pickle and to frameworks."""

    def test_it_sees_no_exception_of_the_cache(self) -> None:
        hashes, seen = VolatileHashes(redis.Redis(port=free_port()), "cached"), []

        @hashes.cached(**LONG, key="page")
        def page() -> None:
            seen.append(sys.exc_info()[0])
            raise ValueError("its own")

        with pytest.raises(ValueError, match="its own") as caught:
            page()
        assert seen == [None]
        assert caught.value.__context__ is None

    @pytest.mark.parametrize("errors", [None, {StopIteration: 60}])
    def test_the_end_of_an_iterator_is_an_exception_like_others(
        self, redis7: RedisServer, errors: Any
    ) -> None:
        # A generator through which it is raised would make a RuntimeError of it.
        calls = 0

        @hashes_on(redis7).cached(**LONG, key="page", errors=errors)
        def page() -> str:
            nonlocal calls
            calls += 1
            return str(next(iter(())))

        for call in (page, page, page.refresh):
            with pytest.raises(StopIteration) as caught:
                call()
            frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
            assert not any(caught.value in frame.f_locals.values() for frame in frames[1:])
        assert calls == (2 if errors else 3)

    def test_generators_are_refused(self, redis7: RedisServer) -> None:
        def some() -> Any:
            yield 1

        async def late() -> Any:
            yield 1

        for function in (some, late):
            for hashes in (hashes_on(redis7), late_hashes(redis7.port)):
                with pytest.raises(ConfigurationError, match="is a generator function"):
                    hashes.cached(ttl=1, key="x")(function)

    def test_an_object_with_a_call_of_its_own(self, redis7: RedisServer) -> None:
        class Late:
            async def __call__(self) -> str:
                return "late"

        with pytest.raises(ConfigurationError, match="Late is a coroutine function"):
            hashes_on(redis7).cached(ttl=1, key="x", field="y")(Late())
        with pytest.raises(ConfigurationError, match="has no name of its own: give field="):
            hashes_on(redis7).cached(ttl=1, key="x")(functools.partial(len, "abc"))
        kept = hashes_on(redis7).cached(ttl=1, key="x", field="y")(functools.partial(len, "abc"))
        assert kept() == kept() == 3

    @pytest.mark.parametrize(
        ("template", "said"),
        [
            ("item:{itme}", "names 'itme', which is no argument of .*: item, more"),
            ("item:{0}", "names '0'"),
            ("item:{}", "names ''"),
            ("item:{item:{width}}", "names 'width'"),
            ("item:{item", "is no template"),
        ],
    )
    def test_a_template_must_name_arguments(
        self, redis7: RedisServer, template: str, said: str
    ) -> None:
        for names in ({"key": template}, {"key": "x", "field": template}):
            with pytest.raises(ConfigurationError, match=said):
                hashes_on(redis7).cached(ttl=1, **names)(lambda item, *more: item)

    def test_templates_reach_into_arguments(self, redis7: RedisServer) -> None:
        hashes = hashes_on(redis7)
        page = hashes.cached(ttl=1, key="{{{item.real:0{width}}}}", field="{more[0]}")
        assert page(lambda item, width, *more: 0).place(7, 3, "a") == ("{007}", "a")

    def test_a_builtin_function_needs_no_signature(self, redis7: RedisServer) -> None:
        hashes = hashes_on(redis7)
        greatest = hashes.cached(**LONG, key="greatest")(max)
        assert greatest(1, 2) == greatest(0, 0) == 2
        with pytest.raises(ConfigurationError, match="which is no argument of max"):
            hashes.cached(**LONG, key="{a}")(max)

    def test_it_is_pickled_and_copied_by_its_name(self) -> None:
        assert pickle.loads(pickle.dumps(module_wide)) is module_wide
        assert copy.copy(module_wide) is copy.deepcopy(module_wide) is module_wide
        shop = pickle.loads(pickle.dumps(Shop("east").price))
        assert shop.place(3) == ("east", "price")

    def test_frameworks_know_that_it_is_awaited(self, redis7: RedisServer) -> None:
        @late_hashes(redis7.port).cached(**LONG, key="page")
        async def page() -> None: ...

        assert asyncio.iscoroutinefunction(page)
        assert inspect.iscoroutinefunction(page) is (sys.version_info >= (3, 12))
        with pytest.raises(ConfigurationError, match="is a coroutine function"):
            hashes_on(redis7).cached(ttl=1, key="x")(page)

    def test_a_method_has_the_signature_of_a_method(self) -> None:
        assert list(inspect.signature(Shop("east").price).parameters) == ["item"]
        assert list(inspect.signature(Shop.price).parameters) == ["self", "item"]

    @pytest.mark.parametrize("is_outer", [True, False])
    def test_methods_of_a_class(self, redis7: RedisServer, is_outer: bool) -> None:
        hashes = hashes_on(redis7)

        def wrapped(kind: Any, key: str) -> Any:
            cached = hashes.cached(**LONG, key=key)
            return lambda function: cached(kind(function)) if is_outer else kind(cached(function))

        class Base:
            @wrapped(classmethod, "{cls.__name__}:{item}")
            def by_class(cls, item: int) -> str:  # noqa: N805
                return f"{cls.__name__} {item}"

            @wrapped(staticmethod, "static:{item}")
            def static(item: int) -> int:  # noqa: N805
                return item

        class Other(Base):
            pass

        assert Base.by_class(1) == "Base 1"
        assert Other().by_class(item=1) == Other.by_class(1) == "Other 1"
        assert hashes.exists("Base:1", "Other:1") == 2
        assert Base.static(1) == Base().static(1) == 1
        assert Base.static.invalidate(1)
        if is_outer or sys.version_info < (3, 13):
            # From Python 3.13 on, a classmethod binds its function by the call alone.
            assert Base.by_class.place(1) == ("Base:1", "by_class")
            assert Other.by_class.invalidate(1)

    def test_two_caches_one_around_the_other(self, redis7: RedisServer) -> None:
        hashes = hashes_on(redis7)

        class Counter:
            @hashes.cached(**LONG, key="inner:{n}")
            def of(self, n: int) -> int:
                return n

        outer = hashes.cached(**LONG, key="outer:{n}")(Counter().of)
        assert outer(3) == outer(3) == 3
        assert hashes.exists("inner:3", "outer:3") == 2

    @pytest.mark.parametrize("is_late", [False, True])
    async def test_one_that_calls_itself_does_not_wait_for_itself(
        self, redis7: RedisServer, is_late: bool
    ) -> None:
        calls: list[int] = []
        if is_late:
            late = late_hashes(redis7.port)

            @late.cached(ttl=600, wait=600, lease=600, key="page")
            async def page() -> int:
                calls.append(1)
                return 1 if len(calls) > 1 else 1 + await page()

            assert await page() == 2
            await late.client.aclose()
        else:

            @hashes_on(redis7).cached(ttl=600, wait=600, lease=600, key="page")
            def again() -> int:
                calls.append(1)
                return 1 if len(calls) > 1 else 1 + again()

            assert again() == 2
        assert len(calls) == 2


class TestValues:
    """What stands in a field may be anything."""

    def test_one_that_cannot_be_decoded_is_computed_anew(
        self, redis7: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        hashes, calls = hashes_on(redis7), []

        def decode(content: bytes) -> Any:
            return {"new": "new"}[json.loads(content)]

        @hashes.cached(**LONG, key="page", serializer=Serializer("new", json.dumps, decode))
        def page_of_a_later_release() -> str:
            calls.append(1)
            return "new"

        hashes.hset("page", "page_of_a_later_release", b'5:#new1:"old"')
        with caplog.at_level(logging.WARNING, "workstealing"):
            assert page_of_a_later_release() == page_of_a_later_release() == "new"
        assert calls == [1]
        assert [each for each in caplog.messages if "page_of_a_later_release" in each]
        assert not leased_fields(hashes, "page")

    def test_a_cost_of_another_program(self, redis7: RedisServer) -> None:
        hashes = hashes_on(redis7)
        page = hashes.cached(**LONG, key="page", field="text")(lambda: "ours")
        for cost in (b"9" * 400, b"9" * 5000):
            hashes.hset("page", "text", cost + b":1")
            assert page() == "ours"
            assert hashes.hget("page", "text").endswith(b':"ours"')

    @pytest.mark.parametrize("server", ["redis7", "redis8"])
    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
    @pytest.mark.parametrize("stale", [0, 60])
    def test_odd_bytes_through_a_client_that_decodes(
        self, request: pytest.FixtureRequest, server: str, encoding: str, stale: int
    ) -> None:
        on = request.getfixturevalue(server)
        hashes = hashes_on(on, decode_responses=True, encoding=encoding)
        values: dict[str, Any] = {"bytes": b"\xff:\x00\xc3\xa9", "text": "é"}
        for name, value in values.items():
            serializer = Serializer("raw", bytes, bytes) if name == "bytes" else "json"
            kept = hashes.cached(**LONG, serializer=serializer, key=name, field="f", stale=stale)
            assert kept(lambda value=value: value)() == value
            assert kept(lambda: 1 / 0)() == value
            assert not leased_fields(hashes, name)

    def test_a_fresh_value_stands_in_where_no_lease_can_be_had(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashes = hashes_on(redis7)
        monkeypatch.setattr(random, "random", lambda: 0.999_999)
        page = hashes.cached(**LONG, early=1.0, key="page", field="text")(lambda: 1 / 0)
        hashes.hsetex("page", "text", b'999999:"costly"', ex=60)
        hashes.client.set(hashes.names.computing(b"page"), "a string")
        assert page() == "costly"

    def test_no_argument_makes_a_result_of_a_lease(self, redis7: RedisServer) -> None:
        hashes = hashes_on(redis7)

        @hashes.cached(**LONG, key="item:{item}")
        def price(item: str) -> str:
            return item

        assert price("17:computing") == "17:computing"
        assert not leased_fields(hashes, "item:17")
        # Such a name is like any other: leases lie among this package's own keys.
        assert price.refresh("17:computing") == "17:computing"


on_nothing = VolatileHashes(redis.Redis(), namespace="cached")


@on_nothing.cached(ttl=600, key="page")
def module_wide() -> None: ...


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @on_nothing.cached(ttl=600, key="{self.name}")
    def price(self, item: int) -> int:
        return item


@pytest.mark.parametrize(
    "wrong", ["r", Recruiter, 5, object()], ids=["string", "class", "number", "object"]
)
def test_what_enlists_nobody_is_refused_when_it_is_given(redis7: RedisServer, wrong: Any) -> None:
    hashes: Any = VolatileHashes(redis7.client(), "cached")
    for kind in (hashes, AsyncVolatileHashes(redis7.async_client(), "cached")):
        with pytest.raises(ConfigurationError, match="enlists nobody: give a Recruiter"):
            kind.cached(ttl=5, key="k", recruiter=wrong)


@pytest.mark.real
@pytest.mark.slow
class TestAtRandom:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_signals_at_random_moments(self, redis7: RedisServer) -> None:
        signals_at_random_moments(redis7, "volatile hashes")

    def test_greenlets_killed_at_random(self, redis7: RedisServer) -> None:
        greenlets_killed(redis7, "volatile hashes")
