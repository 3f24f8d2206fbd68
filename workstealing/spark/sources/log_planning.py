"""The driver's part of a read from logs: what is there now, and what the next batch reads.

Nothing here knows of Spark, nor reserves or changes anything: where a query stands is in its
offsets alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, LostEntriesError
from workstealing.spark.sources.log_offsets import (
    Look,
    Offset,
    Place,
    begun,
    planned,
    resolved,
)
from workstealing.spark.sources.log_options import FORMAT, LogOptions

logger = logging.getLogger("workstealing.spark")

# Spark asks a source that has nothing a hundred times a second; Redis need not hear all of it.
IDLE_SECONDS = 0.1


class LogPlanner:
    """Plans the batches of one query.

    Arguments: options; look: says what is there now, of names of logs log -> Look; sleep: waits,
    for tests.
    """

    def __init__(
        self,
        options: LogOptions,
        look: Callable[[Sequence[str]], Mapping[str, Look]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._look = look
        self._sleep = sleep
        self._clock = SYSTEM_CLOCK
        # For AvailableNow: log -> (epoch, offset) where it ended when the run began.
        self._ends: dict[str, tuple[str, int]] | None = None
        self._idle_until = 0.0
        self._seen: Mapping[str, Look] | None = None
        self._missed: set[str] = set()

    def prepare_available_now(self) -> None:
        """Note where the logs end now; what comes later is not read. Costs one look."""
        looks = self._look(self._options.logs)
        self._ends = {log: (look.epoch, look.next) for log, look in looks.items()}

    def latest(self, start: Offset, limit: int | None) -> Offset:
        """Return the offset behind the next batch, or `start` itself if there is nothing to read.

        Arguments: start; limit: how many entries at most, None for all. Errors: LostEntriesError if
        entries that were to be read are gone and the user has not said that this may be. Costs
        one look.
        """
        if self._ends is None and self._clock.monotonic() < self._idle_until:
            self._sleep(max(0.0, self._idle_until - self._clock.monotonic()))
        options = self._options
        looks = self._seen = self._look(options.logs)
        end, losses = planned(
            start, looks, options.positions()[0], limit, options.tasks, ends=self._ends
        )
        report([str(loss) for loss in losses], options)
        self._warn_of_missing(looks)
        if end is start:
            self._idle_until = self._clock.monotonic() + IDLE_SECONDS
        return end

    def seen(self) -> dict[str, int] | None:
        """Return where each log ended at the last look, None before it; no round trip."""
        if self._seen is None:
            return None
        return {log: look.next for log, look in self._seen.items()}

    def _warn_of_missing(self, looks: Mapping[str, Look]) -> None:
        for log, look in looks.items():
            if look.epoch or log in self._missed:
                continue
            self._missed.add(log)
            logger.warning("there is no log %r yet: this query waits for its first entry", log)


def batch_offset(options: LogOptions, looks: Mapping[str, Look]) -> Offset:
    """Return what a batch read reads, as an offset whose parts `cut` makes tasks of.

    Arguments: options; looks: at all of its logs. Errors: ConfigurationError for a log that is not
    there; LostEntriesError as of `LogPlanner.latest`.
    """
    starting, ending = options.positions()
    places, losses = {}, []
    for log, look in looks.items():
        if not look.epoch:
            raise ConfigurationError(
                f"format {FORMAT!r}: there is no log {log!r}: a read makes none; write to it first,"
                " or look whether the name and the server are right"
            )
        start, loss = begun(log, None, look, starting)
        if loss is not None:
            losses.append(str(loss))
        stop = min(resolved(ending.of(log), look), look.next)
        places[log] = Place(look.epoch, start, max(start, stop), look.block)
    report(losses, options)
    return Offset(options.tasks, places)


def report(losses: Sequence[str], options: LogOptions) -> None:
    """Raise a LostEntriesError for what was lost, or log it if the user has said that this may be.

    Arguments: losses: sentences; options.
    """
    if not losses:
        return
    if options.fails_on_loss:
        raise LostEntriesError(
            f"format {FORMAT!r}: {'; '.join(losses)}. Give the option failOnDataLoss=false to go on"
            " with what is there"
        )
    for loss in losses:
        logger.warning("%s; going on with what is there, as failOnDataLoss=false says", loss)
