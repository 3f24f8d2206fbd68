"""Which Exceptions must reach the host all the same: its own time-outs, and its request to stop."""

from __future__ import annotations

from workstealing.errors import ConfigurationError

# By name: neither package is imported for the sake of one class.
_KNOWN = frozenset(
    {
        ("billiard.exceptions", "SoftTimeLimitExceeded"),
        ("rq.exceptions", "StopRequested"),
        ("rq.timeouts", "JobTimeoutException"),
    }
)


class HostTimeouts:
    """The time-outs that a host raises into running code: Celery's, RQ's and registered ones."""

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: tuple[type[BaseException], ...] = ()

    def register(self, *types: type[BaseException]) -> None:
        """Add exception classes.

        Raises: ConfigurationError for what is no exception class; then none is added.
        """
        for each in types:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise ConfigurationError(f"reraise() expects exception classes, not {each!r}")
        self._types += types

    def include(self, error: BaseException) -> bool:
        """Say whether the error is a host's time-out."""
        return isinstance(error, self._types) or any(
            (base.__module__, base.__qualname__) in _KNOWN for base in type(error).__mro__
        )
