"""The job that seals the full blocks of logs, and compresses those that have gone cold."""

from __future__ import annotations

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
from workstealing.structures.log.blocks import checked_level, compress_codec
from workstealing.structures.log.compacting import Compaction, Compactor, LogBacklog
from workstealing.structures.log.several import checked_logs

__all__ = ["LogBacklog", "LogCompactor"]


class LogCompactor(DivisibleJob):
    """Makes logs small: a full block becomes one string, and a cold one is compressed.

    Arguments: log: a `Log` or `AsyncLog`, or several, of which each slice serves one, chosen at
    random; limit: the most blocks a slice handles; cold_s: how many seconds after sealing a block
    is compressed (one that has been full for so long is compressed at once); codec: ``auto`` for
    zstd where the extra ``log`` is installed and zlib where not, ``zstd``, ``zlib``, or ``none`` to
    seal only; level: of the compression, by default 3 of zstd's 1 to 22 and 6 of zlib's 0 to 9;
    idle_s: compress only what nobody has read for so many seconds by the server's own record, which
    it does not keep where its maxmemory-policy counts uses; 0 not to ask; most_bytes: the most that
    a slice reads from the server; dry_run: count what would be done, and change nothing; name: what
    the job is called, by default ``log_compactor.<log>``; random: returns a float in [0, 1).
    Errors: ConfigurationError; MissingExtraError for ``zstd`` without the extra ``log``.

    Whoever reads finds one form or the other at any moment, with the same entries; a read changes
    nothing, so it aborts no slice. Who evicts or deletes a block meanwhile comes first, and the
    slice is aborted. Every reader of the log needs
    the codec: choose ``zlib`` if some of them lack the extra.

    Each process learns how many bytes a second it compresses (reckoned at first as 100 MB/s with
    zstd, 25 MB/s with zlib, less at higher levels), and a slice begins only what fits into what is
    left of it. A block that fits into no whole slice at that pace, or is larger than most_bytes, or
    than 32 MiB where it is to be compressed, is left as it is; that is logged once, and `too_large`
    counts them. Where a block would fit into another slice but not into the rest of this one, or
    the machine was slower than it had been, the slice ends as out of time, with nothing changed. A
    server without MEMORY USAGE cannot tell sizes: there every block is read.

    One slice: two round trips to look, one where nothing is to be done; one for the sizes, one to
    read and one to write, in one attempt. A server whose memory is full refuses that attempt; then
    one script, in one more round trip, compresses what has not changed since it was read. Sealing,
    which frees nothing, waits for room: a slice that finds nothing else to do raises the error.
    """

    def __init__(
        self,
        log: LogBase | Iterable[LogBase],
        limit: int = 1,
        *,
        cold_s: float = 60.0,
        codec: str = "auto",
        level: int | None = None,
        idle_s: float = 0.0,
        most_bytes: int = 4 * 1024 * 1024,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.logs = checked_logs(log, "compacted")
        self.limit = checked_limit(limit)
        self.dry_run: bool = dry_run
        self._random = random
        if codec != "none":
            codec = compress_codec(codec)
            level = checked_level(codec, level)
        elif level is not None:
            raise ConfigurationError("level is of no use with codec='none': leave it out")
        settings = Compaction(
            codec,
            level,
            _checked_age(cold_s, "cold_s") * 1000,
            _checked_age(idle_s, "idle_s"),
            checked_count(most_bytes, "most_bytes"),
        )
        self._compactors = [Compactor(each, settings, random) for each in self.logs]
        self.dependency: Hashable = self.logs[0].twin.identity
        self.name = f"log_compactor.{self.logs[0].name}" if name is None else name

    @property
    def too_large(self) -> int:
        """How many blocks this job has found too large for its slices."""
        return sum(each.too_large for each in self._compactors)

    def perform(self, slice: Slice) -> int:
        """Seal or compress up to ``slice.limit`` blocks of one log, in one attempt.

        Returns: how many (would be, on a dry run). Errors: Aborted if somebody evicted, deleted or
        compacted one of them meanwhile; OutOfTime if none of them fits into what is left of the
        slice; LayoutError; DamagedBlockError; connection faults; an error
        of Redis if idle_s is set and the server keeps no such record.
        """
        return self.compact(drawn(len(self.logs), self._random), slice)

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.logs[0].twin.warm_up("log_")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide for a sweep: each part is a group of logs, by number. No round trip."""
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return groups_of(range(len(self.logs)), n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that compacts some of the logs in turn, one in each slice."""
        return InTurn(self.name, self.limit, self.compact, part)

    def compact(self, number: int, slice: Slice) -> int:
        """Do a slice of one log by its number, as `perform`."""
        return self._compactors[number].compact(slice, dry_run=self.dry_run)

    def backlog(self, seconds: float = 5.0) -> LogBacklog:
        """Count what waits in all logs, and say for how long the oldest has.

        Blocks that are too large are counted too. Arguments: seconds: how long it may take. Up to
        two round trips a log.
        """
        budget = Budget(seconds, timeout=1.0)
        found = [each.backlog(budget) for each in self._compactors]
        return LogBacklog(
            sum(each.full for each in found),
            sum(each.cold for each in found),
            max(each.oldest_seconds for each in found),
        )


def _checked_age(seconds: object, what: str) -> float:
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if seconds == 0:
            return 0.0
        if seconds > 0:
            return checked_seconds(seconds, what)
    raise ConfigurationError(f"{what} is {seconds!r}; expected a number of seconds, 0 or more")
