"""The job that evicts what is too old or too much in logs, and frees what evictions have left."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable, Sequence

from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count, checked_limit, checked_seconds
from workstealing.recruiting.job import (
    DivisibleJob,
    InTurn,
    PartJob,
    drawn,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.log.base import LogBase
from workstealing.structures.log.several import checked_logs
from workstealing.structures.log.trimming import Bounds, LogTrimBacklog, Trimming

__all__ = ["LogTrimBacklog", "LogTrimmer"]


class LogTrimmer(DivisibleJob):
    """Evicts the oldest blocks of logs by age, number or size, and frees those evicted already.

    Arguments: log: a `Log` or `AsyncLog`, or several, of which each slice serves one, chosen at
    random; limit: the most blocks a slice evicts and frees; max_age_s: a block goes when its last
    entry came so many seconds ago by the server's clock; max_entries: at least so many stay, and
    less than a block more; max_bytes: so many bytes of the server's memory may all blocks take
    together; spare_groups: keep what any group of the log has not been given yet, or has in hand
    and not acknowledged, whatever the bounds say; dry_run: count what would be done, and change
    nothing; name: what the job is called, by default ``log_trimmer.<log>``; random: returns a float
    in [0, 1). Errors: ConfigurationError.

    Bounds that are None do not count, and the first one that is passed decides. Without any bound
    it frees what `Log.evict` and ``append(backlog=)`` have left, as it does with bounds, too.

    - Whole blocks go, so that memory does; the one that is being written stays. If all that the log
      has is too old, then what is in that block is evicted too: readers do not see it any more,
      and its memory goes when the block has become full.
    - By default what a group has not read goes like the rest, as for every log: the group is given
      what comes behind it, and counts what it has lost. With spare_groups one that nobody reads
      any more keeps the log from being trimmed, until `LogGroup.delete` removes it. A group with
      more than 10,000 pending entries keeps all.
    - Bytes are what MEMORY USAGE says of blocks. Where there are more than 64 besides those that
      could go, they are estimated from so many at equal distances: nothing is evicted as long as it
      may be chance that says too much (two standard errors). So a log whose blocks differ a lot may
      stay some percent larger.

    One slice: one round trip to look, one to measure if bytes are bounded, and one script that
    decides and trims, by the same rule as `Log.evict`. Whoever comes in between aborts it only by
    deleting the log, or where groups are spared by making a new one.

    Source: seed of RCP 11 (TEVICT), which evicts by number.
    """

    def __init__(
        self,
        log: LogBase | Iterable[LogBase],
        limit: int = 10,
        *,
        max_age_s: float | None = None,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        spare_groups: bool = False,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.logs = checked_logs(log, "trimmed")
        self.limit = checked_limit(limit)
        self.dry_run: bool = dry_run
        self._random = random
        if not isinstance(spare_groups, bool):
            raise ConfigurationError(f"spare_groups is {spare_groups!r}; expected True or False")
        bounds = Bounds(
            None
            if max_age_s is None
            else math.ceil(checked_seconds(max_age_s, "max_age_s") * 1000),
            None if max_entries is None else checked_count(max_entries, "max_entries"),
            None if max_bytes is None else checked_count(max_bytes, "max_bytes"),
            spare_groups,
        )
        self._trimmings = [Trimming(each, bounds, random) for each in self.logs]
        self.dependency: Hashable = self.logs[0].twin.identity
        self.name = f"log_trimmer.{self.logs[0].name}" if name is None else name

    def perform(self, slice: Slice) -> int:
        """Evict and free up to ``slice.limit`` blocks of one log, by one script.

        Returns: how many were freed (would be, on a dry run); 1 if only entries of the block that
        is being written were evicted. Errors: Aborted if the log was made anew meanwhile;
        LayoutError; connection faults.
        """
        return self.trim(drawn(len(self.logs), self._random), slice)

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.logs[0].twin.warm_up("log_")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide for a sweep: each part is a group of logs, by number. No round trip."""
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return groups_of(range(len(self.logs)), n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that trims some of the logs in turn, one in each slice."""
        return InTurn(self.name, self.limit, self.trim, part)

    def trim(self, number: int, slice: Slice) -> int:
        """Do a slice of one log by its number, as `perform`."""
        return self._trimmings[number].trim(slice, dry_run=self.dry_run)

    def backlog(self, seconds: float = 5.0) -> LogTrimBacklog:
        """Count the blocks that wait in all logs, and say for how long the first of them has.

        Arguments: seconds: how long it may take. Two round trips a log, three if bytes are bounded.
        """
        budget = Budget(seconds, timeout=1.0)
        found = [each.backlog(budget) for each in self._trimmings]
        return LogTrimBacklog(
            sum(each.blocks for each in found),
            max(each.oldest_seconds for each in found),
            all(each.exact for each in found),
        )
