"""The decorator: functions of four kinds that enlist when they have ended."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from workstealing import Outcome, Recruiter, Slice
from workstealing.errors import ConfigurationError
from workstealing.recruiting import FunctionJob
from workstealing.recruiting.deferral import Deferral, current
from workstealing.testing import RecordingHooks, always


@pytest.fixture
def recruiter() -> Recruiter:
    recruiter = always()
    recruiter.install(FunctionJob(lambda slice: 1, name="sweep"), rate=0.1)
    return recruiter


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


class TestFunction:
    def test_it_enlists_after_it_returned_and_keeps_its_looks(self, recruiter: Recruiter) -> None:
        during: list[int] = []

        @recruiter.enlists
        def double(number: int, *, plus: int = 0) -> int:
            """Double a number."""
            during.append(enlisted(recruiter))
            return 2 * number + plus

        assert double(4, plus=1) == 9
        assert during == [0]
        assert enlisted(recruiter) == 1
        assert recruiter.stats()["jobs"]["sweep"]["worked"] == 1
        assert (double.__name__, double.__doc__) == ("double", "Double a number.")
        assert str(inspect.signature(double)).startswith("(number: ")

    def test_with_and_without_parentheses(self, recruiter: Recruiter) -> None:
        recruiter.enlists(lambda: None)()
        recruiter.enlists()(lambda: None)()
        recruiter.enlists(when=None)(lambda: None)()
        assert enlisted(recruiter) == 3

    def test_when_sees_the_result(self, recruiter: Recruiter) -> None:
        seen: list[object] = []

        def hit(result: object) -> bool:
            seen.append(result)
            return result == "hit"

        @recruiter.enlists(when=hit)
        def get(what: str) -> str:
            return what

        assert [get("hit"), get("miss"), get("hit")] == ["hit", "miss", "hit"]
        assert seen == ["hit", "miss", "hit"]
        assert enlisted(recruiter) == 2

    def test_an_exception_passes_and_nobody_enlists(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        def fail() -> None:
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            fail()
        assert enlisted(recruiter) == 0

    def test_a_when_that_raises_is_logged_once_and_stands_for_no(
        self, recruiter: Recruiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(result: object) -> bool:
            raise AttributeError("no status_code")

        function = recruiter.enlists(when=broken)(lambda: "page")
        assert [function() for _ in range(5)] == ["page"] * 5
        assert enlisted(recruiter) == 0
        assert len(caplog.records) == 1
        assert "broken failed: AttributeError: no status_code" in caplog.text

    def test_methods(self, recruiter: Recruiter) -> None:
        class Cache:
            size = 3

            @recruiter.enlists
            def get(self, key: str) -> tuple[int, str]:
                return self.size, key

            @classmethod
            @recruiter.enlists
            def make(cls) -> Cache:
                return cls()

            @staticmethod
            @recruiter.enlists
            def add(one: int, other: int) -> int:
                return one + other

        assert Cache.make().get("a") == (3, "a")
        assert Cache.add(1, 2) == 3
        assert enlisted(recruiter) == 3

    def test_callables_without_a_name(self, recruiter: Recruiter) -> None:
        assert recruiter.enlists(functools.partial(int, "12"))() == 12
        assert enlisted(recruiter) == 1

    @pytest.mark.parametrize("wrong", [3, "f", Recruiter, staticmethod(len), classmethod(len)])
    def test_only_functions_are_decorated(self, recruiter: Recruiter, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="enlists decorates a function"):
            recruiter.enlists(wrong)

    def test_when_is_a_function(self, recruiter: Recruiter) -> None:
        with pytest.raises(ConfigurationError, match="when= is 200"):
            recruiter.enlists(when=200)(lambda: None)  # type: ignore[arg-type]


class TestGenerator:
    def test_it_enlists_after_the_last_item(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        def count() -> Iterator[int]:
            yield 1
            yield 2

        assert inspect.isgeneratorfunction(count)
        items = count()
        assert [next(items), next(items)] == [1, 2]
        assert enlisted(recruiter) == 0
        assert list(items) == []
        assert enlisted(recruiter) == 1

    def test_send_throw_and_result_go_through(self, recruiter: Recruiter) -> None:
        @recruiter.enlists(when=lambda result: result == "sum 7")
        def add() -> Any:
            total = 0
            while True:
                try:
                    number = yield total
                except KeyError:
                    return f"sum {total}"
                total += number

        adding = add()
        assert [next(adding), adding.send(3), adding.send(4)] == [0, 3, 7]
        with pytest.raises(StopIteration) as ended:
            adding.throw(KeyError())
        assert ended.value.value == "sum 7"
        assert enlisted(recruiter) == 1

    def test_one_that_is_closed_early_does_not_enlist(self, recruiter: Recruiter) -> None:
        closed: list[bool] = []

        @recruiter.enlists
        def count() -> Iterator[int]:
            try:
                yield 1
            finally:
                closed.append(True)

        items = count()
        next(items)
        items.close()  # type: ignore[attr-defined]
        assert closed == [True]
        assert enlisted(recruiter) == 0


class Thread:
    """A job that says when it has run, and in which thread."""

    def __init__(self, recruiter: Recruiter) -> None:
        self.ran: list[threading.Thread] = []
        self.done = threading.Event()
        self.go = threading.Event()
        self.go.set()
        recruiter.install(FunctionJob(self.perform, name="threaded"), rate=0.5)

    def perform(self, slice: Slice) -> int:
        assert self.go.wait(120)
        self.ran.append(threading.current_thread())
        self.done.set()
        return 1


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until the condition holds, for which the test has its own time-out."""
    while not condition():  # noqa: ASYNC110 - it is a thread that makes it true
        await asyncio.sleep(0)


class TestCoroutineFunction:
    async def test_the_slice_runs_in_a_thread_and_the_caller_does_not_wait(self) -> None:
        recruiter = always()
        thread = Thread(recruiter)
        thread.go.clear()

        @recruiter.enlists
        async def get(key: str) -> str:
            await asyncio.sleep(0)
            return key

        assert inspect.iscoroutinefunction(get)
        assert await get("a") == "a"
        assert thread.ran == []
        assert recruiter.stats()["enlisted"] == 1
        thread.go.set()
        async with asyncio.timeout(10):
            await until(lambda: recruiter.stats()["jobs"]["threaded"]["worked"])
        assert thread.ran[0] is not threading.current_thread()

    async def test_another_winner_is_skipped_meanwhile_and_never_queued(self) -> None:
        recruiter = always()
        Thread(recruiter)
        # The slice must wait for the executor's only thread.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        busy = threading.Event()
        other = asyncio.create_task(asyncio.to_thread(busy.wait, 10))
        await asyncio.sleep(0)

        @recruiter.enlists
        async def get() -> None: ...

        for _ in range(50):
            await get()
        assert recruiter.stats()["jobs"]["threaded"]["skipped"] == 49
        busy.set()
        assert await other
        async with asyncio.timeout(10):
            await until(lambda: recruiter.stats()["jobs"]["threaded"]["worked"])
        assert recruiter.stats()["jobs"]["threaded"]["recruited"] == 50

    async def test_when_and_exceptions(self, recruiter: Recruiter) -> None:
        @recruiter.enlists(when=lambda result: result == "hit")
        async def get(what: str) -> str:
            if what == "error":
                raise ValueError("mine")
            return what

        assert await get("miss") == "miss"
        with pytest.raises(ValueError, match="mine"):
            await get("error")
        assert enlisted(recruiter) == 0
        assert await get("hit") == "hit"
        assert enlisted(recruiter) == 1

    async def test_a_cancelled_call_does_not_enlist(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        async def wait() -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert enlisted(recruiter) == 0

    def test_one_loop_after_another(self) -> None:
        recruiter = always()
        Thread(recruiter)

        @recruiter.enlists
        async def get() -> None: ...

        for turn in range(1, 4):
            # run() waits for the executor's threads.
            asyncio.run(get())
            assert recruiter.stats()["jobs"]["threaded"]["worked"] == turn

    def test_a_loop_that_was_closed_over_a_slice_does_not_end_recruiting(self) -> None:
        recruiter = always()
        thread = Thread(recruiter)
        thread.go.clear()

        @recruiter.enlists
        async def get() -> None: ...

        loop = asyncio.new_event_loop()
        loop.run_until_complete(get())
        loop.close()
        thread.go.set()
        assert thread.done.wait(120)
        thread.ran[0].join(120)
        asyncio.run(get())
        assert recruiter.stats()["jobs"]["threaded"]["worked"] == 2

    def test_a_loop_of_another_kind_skips(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        async def get() -> str:
            return "done"

        with pytest.raises(StopIteration) as ended:
            get().send(None)
        assert ended.value.value == "done"
        assert recruiter.stats()["jobs"]["sweep"]["skipped"] == 1


class TestAsyncGenerator:
    async def test_it_enlists_after_the_last_item(self) -> None:
        recruiter = always()
        thread = Thread(recruiter)

        @recruiter.enlists
        async def count() -> AsyncIterator[int]:
            yield 1
            yield 2

        assert inspect.isasyncgenfunction(count)
        items = count()
        assert [await anext(items), await anext(items)] == [1, 2]
        assert enlisted(recruiter) == 0
        assert [item async for item in items] == []
        assert enlisted(recruiter) == 1
        assert await asyncio.to_thread(thread.done.wait, 10)

    async def test_send_throw_and_close_go_through(self, recruiter: Recruiter) -> None:
        closed: list[bool] = []

        @recruiter.enlists
        async def add() -> Any:
            total = 0
            try:
                while True:
                    try:
                        number = yield total
                    except KeyError:
                        number = 100
                    total += number
            finally:
                closed.append(True)

        adding = add()
        assert [await anext(adding), await adding.asend(3)] == [0, 3]
        assert await adding.athrow(KeyError()) == 103
        await adding.aclose()
        assert closed == [True]
        assert enlisted(recruiter) == 0

    async def test_an_exception_passes_and_nobody_enlists(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        async def fail() -> AsyncIterator[int]:
            yield 1
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            _ = [item async for item in fail()]
        assert enlisted(recruiter) == 0


class TestDeferral:
    """With a web integration at work, the enlist waits until the response has gone out."""

    def test_it_is_put_off_to_the_requests_end(self, recruiter: Recruiter) -> None:
        seen: list[object] = []

        def ok(response: object) -> bool:
            seen.append(response)
            return True

        view = recruiter.enlists(when=ok)(lambda: "page")
        deferral = Deferral(always())
        token = current.set(deferral)
        try:
            assert view() == "page"
            assert view() == "page"
        finally:
            current.reset(token)
        assert (enlisted(recruiter), seen) == (0, [])
        deferral.respond("the response")
        deferral.close()
        assert (enlisted(recruiter), seen) == (1, ["the response"])

    def test_an_error_page_does_not_count(self, recruiter: Recruiter) -> None:
        @recruiter.enlists
        def view() -> None:
            raise ValueError("mine")

        deferral = Deferral(always())
        token = current.set(deferral)
        try:
            with pytest.raises(ValueError, match="mine"):
                view()
        finally:
            current.reset(token)
        deferral.respond("the error page")
        deferral.close()
        assert enlisted(recruiter) == 0

    async def test_coroutines_and_generators_are_put_off_as_well(
        self, recruiter: Recruiter
    ) -> None:
        @recruiter.enlists
        async def view() -> str:
            return "page"

        @recruiter.enlists
        def lines() -> Iterator[str]:
            yield "line"

        @recruiter.enlists
        async def chunks() -> AsyncIterator[str]:
            yield "chunk"

        for call in (view, lambda: asyncio.to_thread(list, lines()), chunks):
            deferral = Deferral(always())
            token = current.set(deferral)
            before = enlisted(recruiter)
            try:
                answer = call()
                if inspect.isasyncgen(answer):
                    assert [item async for item in answer] == ["chunk"]
                else:
                    await answer
            finally:
                current.reset(token)
            assert enlisted(recruiter) == before
            deferral.respond("response")
            deferral.close()
            assert enlisted(recruiter) == before + 1


def test_an_outcome_of_a_decorated_call_reaches_the_hooks(recruiter: Recruiter) -> None:
    hooks = RecordingHooks()
    recruiter.add_hook(hooks)
    recruiter.enlists(lambda: None)()
    assert [event.outcome for event in hooks.outcomes] == [Outcome.WORKED]


class AsyncCallable:
    async def __call__(self, number: int) -> int:
        await asyncio.sleep(0)
        return number + 1


class GeneratorCallable:
    def __call__(self) -> Iterator[int]:
        yield 1
        yield 2


class AsyncGeneratorCallable:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1
        yield 2


async def add_one(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


class Cache:
    async def bound(self, number: int) -> int:
        return await add_one(number)


@types.coroutine
def old_style(number: int) -> Any:
    yield from asyncio.sleep(0).__await__()
    return number + 1


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function that looks like another one, as careless decorators make them."""

    @functools.wraps(function)
    def plain(*args: Any) -> Any:
        return function(*args)

    return plain


class TestWhatIsAwaited:
    """A slice never runs on the event loop, and not before the work has been done."""

    @pytest.mark.parametrize(
        "work",
        [
            add_one,
            AsyncCallable(),
            functools.partial(AsyncCallable()),
            functools.partial(functools.partial(add_one)),
            functools.partial(add_one, 1),
            Cache().bound,
            old_style,
            wrapped(add_one),
            wrapped(old_style),
            lambda number: asyncio.ensure_future(add_one(number)),
            lambda number: asyncio.get_running_loop().create_task(add_one(number)),
        ],
    )
    def test_it_enlists_after_the_work_in_another_thread(self, work: Callable[..., Any]) -> None:
        recruiter = always()
        threads: list[int] = []
        ran = threading.Event()

        @recruiter.job(rate=0.5)
        def sweep(slice: Slice) -> int:
            threads.append(threading.get_ident())
            ran.set()
            return 1

        results: list[object] = []

        def seen(result: object) -> bool:
            results.append(result)
            return True

        function = recruiter.enlists(when=seen)(work)

        async def main() -> None:
            arguments = () if getattr(work, "args", ()) else (1,)
            awaitable = function(*arguments)
            assert enlisted(recruiter) == 0
            assert await awaitable == 2
            await asyncio.sleep(0)
            assert enlisted(recruiter) == 1
            await asyncio.get_running_loop().run_in_executor(None, ran.wait, 20)

        asyncio.run(main())
        assert results == [2]
        assert threads
        assert threading.get_ident() not in threads

    def test_work_that_fails_or_is_cancelled_does_not_enlist(self, recruiter: Recruiter) -> None:
        async def fail() -> None:
            raise ValueError("mine")

        async def main() -> None:
            for function in (fail, wrapped(fail), lambda: asyncio.ensure_future(fail())):
                with pytest.raises(ValueError, match="mine"):
                    await recruiter.enlists(function)()
            task = recruiter.enlists(lambda: asyncio.ensure_future(asyncio.sleep(60)))()
            assert isinstance(task, asyncio.Task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)

        asyncio.run(main())
        assert enlisted(recruiter) == 0

    def test_an_awaitable_of_another_kind_passes_unchanged(self, recruiter: Recruiter) -> None:
        class Request:
            def __await__(self) -> Any:
                return add_one(1).__await__()

            async def __aenter__(self) -> int:
                return 3

            async def __aexit__(self, *_: object) -> None:
                pass

        async def again() -> None:
            get: Any = recruiter.enlists(wrapped(Request))
            assert await get() == 2
            async with get() as entered:
                assert entered == 3

        asyncio.run(again())
        assert enlisted(recruiter) == 0

    @pytest.mark.parametrize(
        "make", [GeneratorCallable(), wrapped(GeneratorCallable().__call__), lambda: (1, 2)]
    )
    def test_items_come_before_the_enlist(
        self, recruiter: Recruiter, make: Callable[[], Any]
    ) -> None:
        items = iter(recruiter.enlists(make)())
        before = enlisted(recruiter)
        assert next(items) == 1
        assert enlisted(recruiter) == before
        assert list(items) == [2]
        assert enlisted(recruiter) == 1
        # A tuple has ended with the call.
        assert before == isinstance(make(), tuple)

    @pytest.mark.parametrize(
        "make", [AsyncGeneratorCallable(), wrapped(AsyncGeneratorCallable().__call__)]
    )
    def test_asynchronous_items_come_before_the_enlist(
        self, recruiter: Recruiter, make: Callable[[], Any]
    ) -> None:
        async def main() -> None:
            seen = []
            async for item in recruiter.enlists(make)():
                assert enlisted(recruiter) == 0
                seen.append(item)
            assert seen == [1, 2]
            assert enlisted(recruiter) == 1

        asyncio.run(main())

    def test_an_object_is_of_the_kind_of_its_call(self, recruiter: Recruiter) -> None:
        assert inspect.iscoroutinefunction(recruiter.enlists(AsyncCallable()))
        assert inspect.isgeneratorfunction(recruiter.enlists(GeneratorCallable()))
        assert inspect.isasyncgenfunction(recruiter.enlists(AsyncGeneratorCallable()))
