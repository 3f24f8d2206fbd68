"""What a read from Spark asks the servers of logs: how far they go, and their entries."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import ResponseError

from workstealing.spark.sources.log_offsets import Look, Span
from workstealing.spark.sources.log_options import LogOptions
from workstealing.spark.sources.log_planning import report
from workstealing.store.operations import Steps, as_layout_error, drive
from workstealing.structures import Log
from workstealing.structures.log.base import as_bytes

logger = logging.getLogger("workstealing.spark")

FIRST_PAGE, MOST_OF_A_PAGE = 100, 5_000
BYTES_A_PAGE = 4 * 1024 * 1024

# Offsets, and the entries that have them.
Page = tuple[list[int], list[bytes]]


def run(client: Any, steps: Steps[Any]) -> Any:
    """Run steps of a log. Errors: LayoutError for foreign keys; those of redis-py."""
    try:
        return drive(client, steps)
    except ResponseError as error:
        raise as_layout_error(error) or error from None


def looks(client: Any, names: Sequence[str]) -> dict[str, Look]:
    """Return what there is of logs now, those included that nobody has made; a round trip each."""
    return {name: run(client, _look(Log(client, name))) for name in names}


def _look(log: Any) -> Steps[Look]:
    # No entries: the keys of no blocks, and the number of none.
    reply = yield from as_bytes(log.operation("read", (log.keys.meta,), 0, 0, 1, 0, 1, b"", ""))
    end, first, _, block, epoch = reply[:5]
    return Look(epoch.decode(), int(first), int(end), int(block))


def pages(options: LogOptions, span: Span) -> Iterator[Page]:
    """Yield the entries of a part of a log; a round trip for each 4 MiB or 5,000 entries.

    Arguments: options; span. Errors: LostEntriesError for entries that are not there any more,
    unless the user has said that this may be: then they are passed over with a line in the log.
    """
    client = options.client.connected()
    log: Any = Log(client, span.log)
    at, most = span.start, FIRST_PAGE
    while at < span.stop:
        asked = min(most, span.stop - at)
        info, found = run(client, log.read_steps(at, asked))
        if log.known.epoch != span.epoch.encode():
            # Deleted, or made anew: then what was found belongs to another log.
            found = []
        if not found:
            _report_lost(options, span, at, span.stop)
            return
        if found[0] is None:
            # It may be more than was asked for.
            first = min(info.first, span.stop)
            _report_lost(options, span, at, first)
            found, at = found[first - at :], first
        if None in found:
            # Evicted between two parts of this read: what was read before goes first.
            found = found[: found.index(None)]
        if found:
            yield list(range(at, at + len(found))), found
            at += len(found)
            size = sum(map(len, found)) // len(found) + 1
            most = max(1, min(MOST_OF_A_PAGE, BYTES_A_PAGE // size))


def _report_lost(options: LogOptions, span: Span, start: int, stop: int) -> None:
    why = f"has no entries {start:,} to {stop - 1:,} any more, which this batch was to read"
    report([f"the log {span.log!r} {why}: they were evicted, or the log was deleted"], options)
