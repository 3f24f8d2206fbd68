"""Counts by Spark's accumulators: what successful tasks tell the driver."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.accumulators import Accumulator, AccumulatorParam

if TYPE_CHECKING:
    from collections.abc import Mapping


class CountsParam(AccumulatorParam[dict[str, int]]):
    """Says how two dictionaries of counts add up."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002 - PySpark's signature
        """Return no counts."""
        return {}

    def addInPlace(  # noqa: N802 - PySpark's name
        self, value1: dict[str, int], value2: dict[str, int]
    ) -> dict[str, int]:
        """Return the sums by field."""
        return dict(Counter(value1) + Counter(value2))


def add_in_task(accumulator: int, counts: Mapping[str, int]) -> None:
    """Add counts to the driver's accumulator of that number, from inside a task.

    Spark's worker sends what is registered by number when the task has succeeded. The number goes
    with the other plain settings, so no accumulator needs to be pickled.
    """
    mine: Accumulator[dict[str, int]] = Accumulator(accumulator, {}, CountsParam())
    mine.add(dict(counts))
