"""Running things as stages of Spark's, with names that its UI shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workstealing.errors import (
    ConfigurationError,
    LayoutError,
    WorkStealingError,
    is_connection_fault,
)

_LOCAL = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def run_each(context: Any, items: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """Do something with each item in a task of its own; return the results in order."""
    result: list[Any] = context.parallelize(list(items), len(items)).map(do).collect()
    return result


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a task could not begin, on its way to the driver, which raises it as what it was."""

    kind: type[Exception]
    text: str

    def error(self) -> Exception:
        """Return the error."""
        return self.kind(self.text)


def refusal_of(error: Exception) -> Refusal | None:
    """Return what the driver should raise for an error of a task; None: let Spark show it."""
    if isinstance(error, LayoutError):
        return Refusal(LayoutError, str(error))
    if isinstance(error, WorkStealingError):
        return Refusal(ConfigurationError, str(error))
    if is_connection_fault(error):
        return Refusal(ConnectionError, f"the server could not be asked: {error}")
    return None


@contextmanager
def named(context: Any, group: str, description: str) -> Iterator[None]:
    """Name the stages that this thread starts meanwhile."""
    before = {name: context.getLocalProperty(name) for name in _LOCAL}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)


def checked_count(count: object, what: str) -> int:
    """Return a whole number. Errors: ConfigurationError unless it is 1 or more."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigurationError(f"{what} is {count!r}; expected 1 or more")
    return count
