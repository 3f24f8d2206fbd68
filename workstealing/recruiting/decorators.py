"""The decorator behind `enlists`: functions of four kinds that enlist when they have ended."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from workstealing.errors import ConfigurationError
from workstealing.recruiting.deferral import defer

if TYPE_CHECKING:
    from workstealing.recruiting.enlisting import Enlisting

When = Callable[[Any], object]
Function = TypeVar("Function", bound=Callable[..., Any])


def enlisting(recruiter: Enlisting, function: Function, when: When | None) -> Function:
    """Return the function, made to enlist after each call that ends without an exception.

    Arguments: recruiter; function, of any of the four kinds; when, asked with the result.
    Raises: ConfigurationError for what is no function, or a `when` that cannot be called.
    """
    if not callable(function) or isinstance(function, (type, classmethod, staticmethod)):
        raise ConfigurationError(
            f"enlists decorates a function, not {function!r}; below @classmethod and @staticmethod"
        )
    if when is not None and not callable(when):
        raise ConfigurationError(f"when= is {when!r}; expected a function of the result")

    def put_off() -> bool:
        return defer(recruiter, when)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            if put_off():
                return await function(*args, **kwargs)
            result = await function(*args, **kwargs)
            recruiter.enlist_after(when, result, on_loop=True)
            return result

        return cast("Function", coroutine)

    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            late = put_off()
            inner = cast("AsyncGenerator[Any, Any]", function(*args, **kwargs))
            try:
                item = await inner.asend(None)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001 - all of them go to the generator
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                pass
            if not late:
                recruiter.enlist_after(when, None, on_loop=True)

        return cast("Function", async_generator)

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            late = put_off()
            result = yield from function(*args, **kwargs)
            if not late:
                recruiter.enlist_after(when, result)
            return result

        return cast("Function", generator)

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        if put_off():
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        recruiter.enlist_after(when, result)
        return result

    return cast("Function", plain)
