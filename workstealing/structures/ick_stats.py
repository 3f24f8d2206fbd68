"""What an Ick says of itself."""

from __future__ import annotations

import logging
from typing import Any

from workstealing.recruiting.faults import log_safely
from workstealing.store.operations import Operation, Plan
from workstealing.store.scripts import load
from workstealing.structures.ick_names import NamedCommands, as_text

logger = logging.getLogger("workstealing")

UNITS = ("seconds", "milliseconds", "microseconds")
"""What the times of our days are counted in, by their size."""


class StatsCommands(NamedCommands):
    """An Ick's `stats`."""

    _warned = False

    def stats(self) -> Any:
        """Describe the Ick, with redis-ick's names.

        Returns: None if there is no Ick, else a dict: key, pset_key, cset_key, ver, cset_size,
        pset_size, total_size; pset_min, pset_max, cset_min, cset_max, total_min and total_max where
        the sets are not empty; and dead_size, and mixed_units: whether the scores are in different
        units of time, which starves the larger (said once in the log, too). Errors: LayoutError.
        One round trip.
        """
        keys = (*self.names.sets, self.names.dead)
        operation = Operation(load("ick_stats"), keys, (), self._stats)
        return self._perform(Plan((operation,)))

    def _stats(self, reply: list[Any] | None) -> dict[str, Any] | None:
        if reply is None:
            return None
        version, producer, *producer_ends = reply[:4]
        consumer, *consumer_ends, dead = reply[4:8]
        stats: dict[str, Any] = {
            "key": as_text(self.names.version),
            "pset_key": as_text(self.names.pset),
            "cset_key": as_text(self.names.cset),
            "ver": as_text(version),
            "cset_size": consumer,
            "pset_size": producer,
            "total_size": producer + consumer,
        }
        ends: list[float] = []
        for name, pair in (("pset", producer_ends), ("cset", consumer_ends)):
            if pair[0]:
                low, high = float(pair[0]), float(pair[1])
                stats[f"{name}_min"], stats[f"{name}_max"] = low, high
                ends += low, high
        if ends:
            stats["total_min"], stats["total_max"] = min(ends), max(ends)
        stats["dead_size"] = dead
        units = [unit for unit, count in zip(UNITS, reply[8:], strict=True) if count]
        stats["mixed_units"] = len(units) > 1
        if stats["mixed_units"]:
            self._warn_once(stats["key"], units)
        return stats

    def _warn_once(self, key: str, units: list[str]) -> None:
        if not self._warned:
            self._warned = True
            log_safely(
                logger,
                logging.WARNING,
                "the Ick %s holds scores in %s: the larger ones starve; use one unit",
                key,
                " and ".join(units),
            )
