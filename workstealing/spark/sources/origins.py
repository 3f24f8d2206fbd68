"""Whose rows a task writes: for sinks that write each row of a batch exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pyspark import TaskContext

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.options import OptionReader

# The properties by which Spark tells each task of a streaming query.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class OnceOptions(Protocol):
    """The options by which a sink writes exactly once: exactlyOnce of streams, or query and batch.

    Fields: None for an option that is not given.
    """

    @property
    def exactly_once(self) -> bool | None:
        """The option exactlyOnce."""

    @property
    def query(self) -> str | None:
        """The option query."""

    @property
    def batch(self) -> int | None:
        """The option batch."""

    def refuse(self, options: Mapping[str, object], why: str) -> None:
        """Refuse options that do not go with a use."""

    def wrong(self, problem: str) -> ConfigurationError:
        """Return the error for a problem."""


class Origin(NamedTuple):
    """Whose rows they are: a query, a batch of it, and a partition of that."""

    query: str
    batch: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of the query {self.query!r}"


def batch_option(reader: OptionReader) -> int | None:
    """Return the option batch, None if it is not given. Raises: ConfigurationError."""
    number = reader.number("batch", -1, 0)
    return None if number < 0 else number


def check_once(options: OnceOptions, *, is_stream: bool) -> bool:
    """Say whether a write is done exactly once.

    Arguments:
        is_stream: whether it is a write of writeStream.

    Raises: ConfigurationError for options that do not go together.
    """
    if is_stream:
        named = {"query": options.query, "batch": options.batch}
        options.refuse(named, "write: writeStream has a query and batches of its own")
        return options.exactly_once is True
    if (options.query is None) != (options.batch is None):
        raise options.wrong(
            "one of the options 'query' and 'batch' is missing: give both, so that what was written"
            " once is not written again, or neither"
        )
    if options.exactly_once is not None and options.exactly_once != (options.query is not None):
        raise options.wrong(
            "a batch write is done exactly once if, and only if, the options 'query' and 'batch'"
            f" say which one it is, but 'exactlyOnce' is {options.exactly_once}: leave it out"
        )
    return options.query is not None


def origin_of(options: OnceOptions, *, is_stream: bool) -> Origin | None:
    """Return whose rows this task writes exactly once; None if it is done at least once.

    Raises: ConfigurationError if Spark does not say which batch of a stream it is.
    """
    if not (options.exactly_once if is_stream else options.query):
        return None
    context = TaskContext.get()
    assert context is not None
    if options.query is not None and options.batch is not None:
        return Origin(options.query, options.batch, context.partitionId())
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise options.wrong(
            "Spark does not say which query and batch this is, so that exactlyOnce=true cannot be"
            " kept: leave it out"
        )
    return Origin(query, int(batch), context.partitionId())
