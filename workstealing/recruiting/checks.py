"""Checks of arguments that several modules take. Each error is one clear sentence."""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from typing import Any

from workstealing.clock import seconds_of
from workstealing.errors import ConfigurationError, RateError, WrongAnswerError

# A nanosecond: no clock here counts less.
_SHORTEST_SECONDS = 1e-9


def _as_float(number: Any) -> float:
    """Return a number as a float, infinity if it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def checked_rate(rate: object, name: str) -> float:
    """Return a job's rate as a float.

    Arguments:
        rate: the share of enlisted callers that the job wants.
        name: the job's.

    Raises: RateError unless it is a number with 0 < rate <= 1.
    """
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real):
        raise RateError(f"the rate of job {name!r} is {rate!r}; expected a number, 0 < rate <= 1")
    share = _as_float(rate)
    if not 0.0 < share <= 1.0:
        raise RateError(f"the rate of job {name!r} is {share:g}; expected 0 < rate <= 1")
    return share


def checked_seconds(duration: object, name: str) -> float:
    """Return a length of time above 0 in seconds.

    Arguments:
        duration: a number of seconds, or a timedelta.
        name: of the argument, for the error.

    Raises: ConfigurationError for anything that is no length of time above 0.
    """
    return seconds_of(duration, name, least=_SHORTEST_SECONDS)


def checked_limit(limit: object) -> int:
    """Return a slice's number of items.

    Raises: ConfigurationError unless it is an int of at least 1.
    """
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1:
        # redis-py does not send an IntEnum as its number.
        return int(limit)
    raise ConfigurationError(
        f"a slice's limit is {limit!r}; expected an int of at least 1 item, as in limit=5"
    )


def checked_age(age: object) -> float:
    """Return an observed age in seconds as a float; a negative age becomes 0.0.

    Raises: ConfigurationError unless it is a finite number.
    """
    if isinstance(age, (float, numbers.Real)) and not isinstance(age, bool):
        seconds = _as_float(age)
        if -math.inf < seconds < math.inf:
            return max(0.0, seconds)
    raise ConfigurationError(f"the age that a slice observes is {age!r}; expected seconds")


def checked_count(count: object, what: str, least: int = 0, most: int | None = None) -> int:
    """Return a count.

    Arguments:
        what: its name in an error.
        least: its bounds, None: no upper one.
        most: its bounds, None: no upper one.

    Raises: ConfigurationError unless it is a whole number within them.
    """
    highest = math.inf if most is None else most
    if isinstance(count, int) and not isinstance(count, bool) and least <= count <= highest:
        # redis-py does not send an IntEnum as its number.
        return int(count)
    bounds = f"{least} or more" if most is None else f"{least} to {most}"
    raise ConfigurationError(f"{what} is {count!r}; expected a whole number, {bounds}")


def checked_attempts(max_attempts: object) -> int:
    """Return the number of attempts before an item is set aside.

    Raises: ConfigurationError unless it is an int of at least 1.
    """
    if isinstance(max_attempts, int) and not isinstance(max_attempts, bool) and max_attempts >= 1:
        return int(max_attempts)
    raise ConfigurationError(
        f"max_attempts is {max_attempts!r}; expected a number of times, 1 or more"
    )


def checked_items(answer: object, job: str) -> int:
    """Return the number of items that a slice has handled, 0 for None.

    Arguments:
        answer: the result of `perform()`.
        job: its name.

    Raises: WrongAnswerError unless the answer is None or a whole number of at least 0.
    """
    if answer is None:
        return 0
    if not isinstance(answer, bool):
        try:
            items = operator.index(answer)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if items >= 0:
                return items
    raise WrongAnswerError(
        f"job {job!r} returned {answer!r}; expected the number of items handled, an int of at least"
        " 0, or None"
    )


def checked_name(name: object) -> str:
    """Return a job's name.

    Raises: ConfigurationError unless it is a str that is not blank.
    """
    if isinstance(name, str) and name.strip():
        return name
    raise ConfigurationError(f"a job's name is {name!r}; expected a str that is not empty")


def checked_function(function: object) -> None:
    """Refuse what cannot be called with a slice alone.

    Raises: ConfigurationError for it, for a coroutine function and for a generator.
    """
    if not callable(function):
        raise ConfigurationError(f"a job is a function that takes a slice, not {function!r}")
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ConfigurationError(
            f"{function!r} is a coroutine function or a generator; a job is a plain function"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions of C have none.
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = str(getattr(function, "__name__", ""))
        called = name if name.isidentifier() else repr(function)
        raise ConfigurationError(
            f"a job's function is called with a slice alone, and {called}{signature} cannot be"
            f" ({error}): write def {name if name.isidentifier() else 'tidy'}(slice)"
        ) from None
