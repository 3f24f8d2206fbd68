"""The decorator behind `enlists`: functions of four kinds enlist when they have ended."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from workstealing.errors import ConfigurationError
from workstealing.recruiting.deferral import When, defer, is_wanted, withdraw

if TYPE_CHECKING:
    from workstealing.recruiting.enlisting import Enlisting

Function = TypeVar("Function", bound=Callable[..., Any])


def enlisting(recruiter: Enlisting, function: Function, when: When | None) -> Function:
    """Return a function that enlists after each call that ends without an exception.

    Arguments:
        function: of any of the four kinds.
        when: it gets the result and decides.

    Raises: ConfigurationError if the function or `when` is no function.
    """
    if not callable(function) or isinstance(function, (type, classmethod, staticmethod)):
        raise ConfigurationError(
            f"enlists decorates a function, not {function!r}: write it below @classmethod or"
            " @staticmethod"
        )
    if when is not None and not callable(when):
        raise ConfigurationError(f"when= is {when!r}; expected a function of the result")

    stand_in = getattr(_StandIns(recruiter, when), _kind_of(function))(function)
    return cast("Function", functools.wraps(function)(stand_in))


def _kind_of(function: Callable[..., Any]) -> str:
    """Return the method of `_StandIns` that stands in for a function or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    # The calls of a generator function under types.coroutine are awaited.
    is_awaited = getattr(code, "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE
    if inspect.iscoroutinefunction(function) or is_awaited:
        return "coroutine"
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    return "generator" if inspect.isgeneratorfunction(function) else "plain"


class _StandIns:
    """Stand-ins for functions of each kind: they call the function, and enlist after its end.

    Arguments:
        when: it gets the result and decides.
    """

    def __init__(self, recruiter: Enlisting, when: When | None) -> None:
        self._recruiter = recruiter
        self._when = when

    def _put_off(self) -> bool:
        return defer(self._recruiter, self._when, self)

    def _raised(self, late: bool) -> None:
        if late:
            withdraw(self)

    def _enlist(self, result: object, *, on_loop: bool = False) -> None:
        if self._when is not None and not is_wanted(self._recruiter, self._when, result):
            return
        if not on_loop:
            self._recruiter.enlist()
        elif (drawn := self._recruiter.draw()) is not None:
            drawn.serve_on_loop()

    def coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            late = self._put_off()
            try:
                result = await function(*args, **kwargs)
            except BaseException:
                self._raised(late)
                raise
            if not late:
                self._enlist(result, on_loop=True)
            return result

        return coroutine

    def async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            late = self._put_off()
            try:
                inner: AsyncGenerator[Any, Any] = function(*args, **kwargs)
                try:
                    item = await inner.asend(None)
                    while True:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            await inner.aclose()
                            raise
                        # Each of them goes to the generator.
                        except BaseException as error:  # noqa: BLE001
                            item = await inner.athrow(error)
                        else:
                            item = await inner.asend(sent)
                except StopAsyncIteration:
                    pass
            except BaseException:
                self._raised(late)
                raise
            if not late:
                self._enlist(None, on_loop=True)

        return async_generator

    def generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            late = self._put_off()
            try:
                result = yield from function(*args, **kwargs)
            except BaseException:
                self._raised(late)
                raise
            if not late:
                self._enlist(result)
            return result

        return generator

    def plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def plain(*args: Any, **kwargs: Any) -> Any:
            late = self._put_off()
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self._raised(late)
                raise
            return result if late else self._after(result)

        return plain

    def _after(self, result: Any) -> Any:
        """Enlist after the end of a plain function's result; return its stand-in."""
        is_awaitable = inspect.isawaitable(result)
        if isinstance(result, Coroutine) or (is_awaitable and isinstance(result, Generator)):
            return self.coroutine(lambda: result)()
        if isinstance(result, AsyncGenerator):
            return self.async_generator(lambda: result)()
        if is_awaitable:
            # A host may cancel it or use it in a way of its own, so it has no stand-in.
            if callable(getattr(result, "add_done_callback", None)):
                result.add_done_callback(self._done)
        elif isinstance(result, Generator):
            return self.generator(lambda: result)()
        else:
            self._enlist(result)
        return result

    def _done(self, future: Any) -> None:
        if not future.cancelled() and future.exception() is None:
            self._enlist(future.result(), on_loop=True)
