"""The rules that the batches of all streams keep: small ones wait, and losses are told.

The two options of a minimum are in the words of Kafka's source.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, LostEntriesError
from workstealing.spark.sources.options import OptionReader

logger = logging.getLogger("workstealing.spark")

DELAY = "maxTriggerDelay"
DELAY_SECONDS = 15 * 60.0
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Minimum:
    """The least number of items that a batch waits for.

    Fields: least; delay: after how many seconds a batch comes all the same.
    """

    least: int
    delay: float


def minimum_of(reader: OptionReader, name: str, most: int) -> Minimum | None:
    """Read the options of a minimum, None where there is none.

    Arguments:
        name: of the option that says how many.
        most: the largest batch.

    Raises: ConfigurationError.
    """
    least = reader.number(name, 0)
    text = reader.text(DELAY)
    if not least:
        if text is not None:
            raise reader.wrong(
                f"the option {DELAY!r} says how long a small batch waits, but {name!r} does not"
                " say which is small: give both, or leave it out"
            )
        return None
    if least > most:
        raise reader.wrong(
            f"the option {name!r} is {least:,}, but a batch has {most:,} at most: give a smaller"
            " number, or raise the other one"
        )
    return Minimum(least, DELAY_SECONDS if text is None else _seconds(reader, text))


def _seconds(reader: OptionReader, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2] or ""] if found else 0.0
    if seconds <= 0:
        raise reader.wrong(
            f"the option {DELAY!r} is {text!r}: give a time above 0, such as 30s, 15m or 1h"
        )
    return seconds


class Admission:
    """Holds small batches of one query back.

    Arguments:
        minimum: None for none.
        monotonic: the clock, for tests.
    """

    def __init__(
        self,
        minimum: Minimum | None,
        monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic,
    ) -> None:
        self._minimum = minimum
        self._monotonic = monotonic
        # When the last batch was let go; the first one of a run waits for nothing.
        self._last: float | None = None

    def holds_back(self, count: int) -> bool:
        """Say whether a batch is too small yet; if it is not, it goes now.

        Arguments:
            count: how many items there are for it.
        """
        if self._minimum is None or not count:
            return False
        now = self._monotonic()
        is_small = count < self._minimum.least
        if is_small and self._last is not None and now - self._last < self._minimum.delay:
            return True
        self._last = now
        return False


# Spark asks a source that has nothing a hundred times a second; Redis need not hear all of it.
IDLE_SECONDS = 0.1


class Rest:
    """Lets a query that has found nothing look again after 0.1 s only."""

    def __init__(self) -> None:
        self._until = 0.0

    def begin(self) -> None:
        """Note that nothing was found."""
        self._until = SYSTEM_CLOCK.monotonic() + IDLE_SECONDS

    def wait(self, sleep: Callable[[float], None]) -> None:
        """Wait for the rest's end, if there is one.

        Arguments:
            sleep: waits so many seconds.
        """
        left = self._until - SYSTEM_CLOCK.monotonic()
        if left > 0:
            sleep(left)


def wrong_offset(format: str, offset: object) -> ConfigurationError:  # noqa: A002 - Spark's word
    """Return the error for an offset that a checkpoint holds and the format has not made."""
    return ConfigurationError(
        f"the offset {offset!r} in the checkpoint is not one of format {format!r}: give this query"
        " a checkpoint of its own"
    )


def report_losses(format: str, losses: Sequence[str], fails: bool) -> None:  # noqa: A002
    """Refuse to go on after losses, or log them if the user has said that they may be.

    Arguments:
        losses: sentences.
        fails: whether the option failOnDataLoss holds.

    Raises: LostEntriesError for losses if it holds.
    """
    if not losses:
        return
    if fails:
        raise LostEntriesError(
            f"format {format!r}: {'; '.join(losses)}. Give the option failOnDataLoss=false to go on"
            " with what is there"
        )
    for loss in losses:
        logger.warning("%s; going on with what is there, as failOnDataLoss=false says", loss)
