"""The job that evicts the oldest entries of logs, and frees the memory of evicted blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import Aborted, ConfigurationError
from workstealing.jobs.shared.log_jobs import LogEngine, LogJob
from workstealing.recruiting.checks import checked_count
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.structures.log.base import MOST_BLOCK, LogBase
from workstealing.structures.stored import stored_number

__all__ = ["LogTrimmer"]

MEASURED = 64
"""How many blocks, beside the oldest, are measured to estimate a log's size."""

BLOCKS_A_SCRIPT = 200
"""The most blocks that a slice frees, whatever its limit, so that its script is over soon."""

PRODUCERS_A_SLICE = 10
"""A slice forgets ids of so many producers."""

_SHORTEST_SECONDS = 0.001
_WHAT = "blocks to trim"
_FACTS = ("mark", "block", "next", "kept", "epoch", "joined")


class LogTrimmer(LogJob):
    """Evicts the oldest blocks of logs by age, number or size, and frees evicted blocks.

    Arguments:
        log: a `Log` or `AsyncLog`, or several, of which each slice serves one, chosen at random.
        limit: the most blocks a slice evicts and frees.
        max_age: a block goes when its last entry is older than this by the server's clock, in
            seconds or as a timedelta.
        max_entries: at least so many stay, and less than a block more.
        max_bytes: all blocks together may take so many bytes of the server's memory.
        spare_groups: keep the entries that any group of the log has not got yet, or has not
            acknowledged yet, whatever the bounds say.
        dry_run: count the blocks that would go, and change nothing.
        name: of the job, by default ``log_trimmer.<log>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError.

    Bounds that are None do not count, and the first bound that is passed decides. With bounds or
    without, it frees the memory of blocks that `Log.evict` and ``append(keep=)`` have left, and of
    ids of appends that have been known for longer than the log's `id_window`, 10 producers a slice.

    - Whole blocks go, so that memory is freed; the block that is being written stays. If all
      entries of the log are too old, then the entries in that block are evicted too. Readers do not
      see them any more, and their memory goes when the block has become full.
    - By default the entries that a group has not read go like the rest, as for every log: the group
      goes on with later entries, and counts the lost ones. With spare_groups, a group that nobody
      reads any more keeps the log from being trimmed until `LogGroup.delete` removes it. A group
      with more than 10,000 pending entries keeps all.
    - MEMORY USAGE tells the bytes of blocks. If there are more than 64 blocks besides those that
      could go, the bytes are estimated from so many at equal distances. The estimate is low by two
      standard errors, so that chance evicts nothing. So a log whose blocks differ a lot may stay
      some percent larger.

    A slice costs one round trip to look, one to measure if bytes are bounded, and one script that
    decides and trims, by the same rule as `Log.evict`. A slice returns the number of blocks freed,
    or else of producers whose ids were forgotten, or 1 if only entries of the block that is being
    written were evicted. A slice raises Aborted if
    the log was deleted meanwhile, or if groups are spared and a new one was made; LayoutError; the
    server's refusal of a command; connection faults.

    Source: seed of RCP 11 (TEVICT), which evicts by number.
    """

    _kind = "log_trimmer"
    _done = "trimmed"

    def __init__(
        self,
        log: LogBase | Iterable[LogBase],
        limit: int = 10,
        *,
        max_age: Duration | None = None,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        spare_groups: bool = False,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(log, limit, dry_run, name, random)
        if not isinstance(spare_groups, bool):
            raise ConfigurationError(
                f"spare_groups={spare_groups!r} is not usable: give True or False"
            )
        bounds = Bounds(
            None
            if max_age is None
            else math.ceil(seconds_of(max_age, "max_age", _SHORTEST_SECONDS) * 1000),
            None if max_entries is None else checked_count(max_entries, "max_entries"),
            None if max_bytes is None else checked_count(max_bytes, "max_bytes"),
            spare_groups,
        )
        self._engines = [Trimming(each, bounds, random) for each in self.logs]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a log; None: whatever its age, number or size.

    Fields: max_age_ms; max_entries; max_bytes; spare_groups: keep entries that any group has not
    got yet, or has in hand.
    """

    max_age_ms: int | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    spare_groups: bool = False


@dataclass(frozen=True, slots=True)
class _TrimmerFacts:
    """The facts of a log; see the catalogue.

    groups: the names of those spared; producers: of those whose ids are forgotten first.
    """

    block: int
    next: int
    kept: int
    epoch: bytes
    joined: bytes
    groups: tuple[bytes, ...]
    producers: tuple[bytes, ...] = ()

    @property
    def blocks(self) -> int:
        """How many blocks may take memory."""
        return max(0, -(-self.next // self.block) - self.kept)


@dataclass(frozen=True, slots=True)
class _LogSize:
    """How large a log is.

    Fields: oldest: bytes of its first blocks in order; total: of all blocks, rather too low; mean:
    of one of the others; exact.
    """

    oldest: tuple[int, ...]
    total: float
    mean: float
    exact: bool

    def too_many(self, most: int) -> tuple[int, int]:
        """Return how many of the oldest blocks go to leave at most so many bytes, and of all."""
        excess, known = self.total - most, 0
        for size in self.oldest:
            if excess <= 0:
                break
            excess -= size
            known += 1
        return known, known + (math.ceil(excess / self.mean) if excess > 0 and self.mean else 0)


class _Trimmed(NamedTuple):
    """The work of a slice, and how many blocks and producers are left to it.

    Fields: freed: blocks; evicted: entries; forgotten: producers; left; due_ms: for how long the
    oldest garbage has been due; exact: whether left is.
    """

    freed: int
    evicted: int
    forgotten: int
    left: int
    due_ms: int
    exact: bool


class Trimming(LogEngine):
    """Trims one log through its job client's one-attempt connections.

    Arguments:
        random: returns a float in [0, 1).
    """

    def __init__(self, log: LogBase, bounds: Bounds, random: Callable[[], float]) -> None:
        super().__init__(log, random)
        self._bounds = bounds

    def work(self, slice: Slice, *, dry_run: bool) -> int:
        """Evict and free up to ``slice.limit`` of the oldest blocks, by one script.

        Returns: how many blocks were freed (would be, on a dry run); where none was, of how many
        producers ids were forgotten; or 1 where entries of the block that is being written were
        evicted. Raises: Aborted; LayoutError; connection faults. Two round trips, three where bytes
        are bounded.
        """
        done = self._once(slice.limit, Budget(slice.remaining()), slice, dry_run=dry_run)
        if done is None:
            return 0
        slice.observe(oldest_seconds=done.due_ms / 1000, backlog=done.left)
        return done.freed or done.forgotten or min(1, done.evicted)

    def backlog(self, budget: Budget) -> Backlog:
        """Count the blocks that wait; nothing is changed. Round trips and errors as of `work`.

        Not exact where bytes are bounded and the log has more blocks than are measured.
        """
        done = self._once(1, budget, None, dry_run=True)
        if done is None:
            return Backlog(0, 0.0, _WHAT)
        return Backlog(done.left, done.due_ms / 1000 if done.left else 0.0, _WHAT, done.exact)

    def _once(
        self, limit: int, budget: Budget, slice: Slice | None, *, dry_run: bool
    ) -> _Trimmed | None:
        """Look, decide and trim, and forget ids; return what the scripts say of it."""
        facts = self._look(budget, slice)
        bounds, keys = self._bounds, self._keys
        sizes, before = None, ("", "")
        if bounds.max_bytes is not None and facts.blocks:
            sizes = self._measure(facts, limit, budget, slice)
            known, all_of_them = sizes.too_many(bounds.max_bytes)
            before = (str(facts.kept + known), str(facts.kept + all_of_them))
        groups = [
            key
            for name in facts.groups
            for key in (keys.group(name).state, keys.group(name).pending)
        ]
        # Never more than there are: the block that is being written stays.
        blocks = keys.blocks(facts.kept, max(1, min(limit, facts.blocks, BLOCKS_A_SCRIPT)))
        last = keys.block(max(0, facts.next - 1) // facts.block)
        sent = (keys.meta, keys.news, keys.full, keys.raw, keys.times, last, *groups, *blocks)
        settings = (
            *(facts.block, facts.epoch, facts.joined if bounds.spare_groups else ""),
            "" if bounds.max_age_ms is None else bounds.max_age_ms,
            "" if bounds.max_entries is None else bounds.max_entries,
            *(*before, facts.kept, len(groups), int(dry_run), facts.next),
        )
        scripts = [self._script("trim", sent, *settings)]
        if facts.producers:
            ids = map(keys.ids, facts.producers[:limit])
            mode = "look" if dry_run else "due"
            scripts.append(self._script("forget", (keys.meta, keys.producers, *ids), mode))
        (status, *done), *others = self._call(budget, slice, *scripts)
        forgotten, due_ms, due = others[0] if others else (0, 0, 0)
        if status < 0:
            raise Aborted("the log was made anew, or a group has joined it, since the look")
        if not status:
            return None
        freed, evicted, left, oldest_ms = done
        exact = sizes is None or sizes.exact
        return _Trimmed(freed, evicted, forgotten, left + due, max(oldest_ms, due_ms), exact)

    def _look(self, budget: Budget, slice: Slice | None) -> _TrimmerFacts:
        """Read the facts that determine the keys; the script refuses foreign ones."""
        keys = self._keys
        # Those whose ids have been known for the longest time.
        ids = ("ZRANGE", keys.producers, 0, PRODUCERS_A_SLICE - 1)
        commands: list[Command] = [("HMGET", keys.meta, *_FACTS), ids]
        if self._bounds.spare_groups:
            commands.append(("HKEYS", keys.meta))
        if slice is not None:
            slice.spend(len(commands))
        found, producers, *fields = self._log.job_client.call_keys((keys.meta,), commands, budget)
        for reply in (found, producers, *fields):
            if isinstance(reply, ResponseError) and not str(reply).startswith("WRONGTYPE"):
                raise reply
        if isinstance(found, ResponseError) or found[0] is None:
            return _TrimmerFacts(1, 0, 0, b"", b"0", ())
        _, block_text, end_text, kept_text, epoch, joined = found
        key = keys.meta
        block = stored_number(key, "block", block_text, 1, MOST_BLOCK)
        end = stored_number(key, "next", end_text)
        kept = stored_number(key, "kept", kept_text, 0, end // block)
        names = fields[0] if fields else ()
        groups = tuple(each[6:] for each in names if each.startswith(b"group:"))
        if isinstance(producers, ResponseError):
            # The script refuses the key.
            producers = []
        return _TrimmerFacts(
            block, end, kept, epoch or b"", joined or b"0", groups, tuple(producers)
        )

    def _measure(
        self, facts: _TrimmerFacts, limit: int, budget: Budget, slice: Slice | None
    ) -> _LogSize:
        """Measure the oldest blocks, and the others, or every n-th of them if they are many."""
        oldest = min(facts.blocks, limit, MEASURED)
        rest = facts.blocks - oldest
        sample = min(rest, MEASURED)
        # In equal steps from a random place on: so old and new ones, in all their forms, have
        # their share.
        step = rest / sample if sample else 1.0
        begin = 0.0 if sample == rest else self._random() * step
        numbers = [oldest + int(begin + place * step) for place in range(sample)]
        commands: list[Command] = [
            ("MEMORY", "USAGE", self._keys.block(facts.kept + each), "SAMPLES", 0)
            for each in (*range(oldest), *numbers)
        ]
        try:
            replies = self._call(budget, slice, *commands)
        except ResponseError as error:
            raise ConfigurationError(
                f"the server does not say how large the blocks of the log {self._log.name!r} are"
                f" ({error}): max_bytes needs MEMORY USAGE; bound the log by max_entries or"
                " max_age"
            ) from error
        sizes = [int(each or 0) for each in replies]
        return estimate(sizes[:oldest], sizes[oldest:], rest)


def estimate(oldest: Sequence[int], sampled: Sequence[int], others: int) -> _LogSize:
    """Estimate a log's size: the low end of the likely range, so that chance evicts nothing.

    Arguments:
        oldest: bytes of the first blocks, all of them.
        sampled: of some of the others, in order and in equal steps.
        others: how many these are.

    Source: the standard error of a systematic sample by successive differences (K. Wolter,
    Introduction to Variance Estimation, 1985, chapter 8).
    """
    known, exact = sum(oldest), len(sampled) == others
    if exact or len(sampled) < 2:
        rest = sum(sampled) * (others / len(sampled) if sampled else 0)
    else:
        squares = sum((after - before) ** 2 for before, after in pairwise(sampled))
        spread = squares / (2 * (len(sampled) - 1))
        error = others * math.sqrt(spread / len(sampled) * (1 - len(sampled) / others))
        rest = max(0.0, others * sum(sampled) / len(sampled) - 2 * error)
    return _LogSize(tuple(oldest), known + rest, rest / others if others else 0.0, exact)
