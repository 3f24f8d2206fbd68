"""Epilogues: a Spark task that has finished its partition enlists once."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator
from functools import update_wrapper
from typing import Any, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.spark.workers import EpilogueSettings, finish

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def enlisting(fn: AnyFunction) -> AnyFunction:
    """Return the function, with an enlist when it has finished; also a decorator.

    For functions of mapPartitions, foreachPartition, mapInPandas, mapInArrow, applyInPandas and
    pandas UDFs. If the function returns an iterator, the task enlists when that has ended, by an
    error and by LIMIT too; if it returns anything else, after the call. A task attempt enlists
    once, however many such functions it calls, and however often: a function that is called for
    each group or batch enlists after its first one. A cancelled task does not enlist. Outside of a
    task every call enlists, if `install()` has been called; otherwise the function is as it was.

    The driver reads what `install()` was told when the function is pickled, so it may be decorated
    before.

    Raises: ConfigurationError for what is no function, and for a coroutine function; and when the
    function is pickled before `install()`. A dismissed epilogue takes about a microsecond, once a
    task.
    """
    _require_function(fn, "enlisting")
    epilogue = Epilogue()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fn(*args, **kwargs)
        except BaseException:
            finish(epilogue.settings, ends_badly=True)
            raise
        if hasattr(result, "__next__"):
            return _finishing(result, epilogue)
        finish(epilogue.settings)
        return result

    return _dressed(wrapper, fn)


def enlist_batch(fn: AnyFunction) -> AnyFunction:
    """Return a function for foreachBatch that calls `fn`, and then enlists in the driver.

    The driver's recruiter is built by the same factory. With Spark Connect the function is pickled
    and called in a process of the server, where it enlists. Also a decorator. Raises:
    ConfigurationError for what is no function, and at the first batch, before anything of it is
    done, when `install()` has not been called.
    """
    _require_function(fn, "enlist_batch")
    epilogue = Epilogue()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        settings = epilogue.settings
        # Pickled: in a process of a Spark Connect server, which ends when the query does.
        is_elsewhere = settings is not None
        if settings is None:
            from workstealing.spark.installing import installed

            settings = installed().settings
        try:
            return fn(*args, **kwargs)
        finally:
            finish(settings, ends_badly=is_elsewhere)

    return _dressed(wrapper, fn)


class Epilogue:
    """The state of a wrapped function: the settings, once it has been pickled at the driver.

    A function of a module that executors import is pickled by its name alone; there the settings
    are those of the worker's environment.
    """

    __slots__ = ("settings",)

    def __init__(self, settings: EpilogueSettings | None = None) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[type[Epilogue], tuple[EpilogueSettings]]:
        if self.settings is not None:
            return Epilogue, (self.settings,)
        from workstealing.spark.installing import installed

        return Epilogue, (installed().settings,)


def _finishing(items: Iterator[Any], epilogue: Epilogue) -> Generator[Any, None, None]:
    try:
        yield from items
    except BaseException:
        # GeneratorExit, when Spark wants no more rows, is among them.
        finish(epilogue.settings, ends_badly=True)
        raise
    finish(epilogue.settings)


def _dressed(wrapper: Callable[..., Any], fn: AnyFunction) -> AnyFunction:
    update_wrapper(wrapper, fn)
    # Some functions in C have none.
    with contextlib.suppress(TypeError, ValueError):
        # PySpark counts a function's own parameters and does not look behind a wrapper.
        wrapper.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    dressed: Any = wrapper
    return dressed  # type: ignore[no-any-return]


def _require_function(fn: object, name: str) -> None:
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise ConfigurationError(
            f"{name}() expects a plain function of a task, not {fn!r}: write @{name}, or {name}(fn)"
        )
