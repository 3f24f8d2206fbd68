"""Trimming a log: whole blocks go from its beginning when it is too old, too long or too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import Aborted, ConfigurationError
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.operations import as_layout_error
from workstealing.structures.log.base import LogBase

MEASURED = 64
"""How many blocks, beside the oldest, are measured to say how large a log is."""

BLOCKS_A_SCRIPT = 200
"""How many blocks a slice frees at most, whatever its limit: for so long it holds the server up."""

_FACTS = ("mark", "block", "next", "kept", "epoch", "joined")


@dataclass(frozen=True, slots=True)
class LogTrimBacklog:
    """What waits for trimmers in a log.

    Fields: blocks: those to be evicted, and those that an eviction has not freed yet;
    oldest_seconds: for how long the first of them has been too old or too many, at least (0 where
    only bytes are bounded); exact: False where bytes are bounded and the log has more blocks than
    are measured.
    """

    blocks: int
    oldest_seconds: float
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a log stays; None: whatever its age, number or size.

    Fields: max_age_ms; max_entries; max_bytes; spare_groups: keep what any group has not been given
    yet, or has in hand.
    """

    max_age_ms: int | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    spare_groups: bool = False


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a look has found of a log; see the catalogue. groups: the names of those spared."""

    block: int
    next: int
    kept: int
    epoch: bytes
    joined: bytes
    groups: tuple[bytes, ...]

    @property
    def blocks(self) -> int:
        """How many blocks may take memory."""
        return max(0, -(-self.next // self.block) - self.kept)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How large a log is.

    Fields: oldest: bytes of its first blocks in order; total: of all of them, rather too few;
    mean: of one of the others;
    exact.
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


class Trimming:
    """Trims one log through its twin's one-attempt connections.

    Arguments: log; bounds; random: returns a float in [0, 1).
    """

    def __init__(self, log: LogBase, bounds: Bounds, random: Callable[[], float]) -> None:
        self._log = log
        self._keys = log.keys
        self._bounds = bounds
        self._random = random

    def trim(self, slice: Slice, *, dry_run: bool = False) -> int:
        """Evict and free up to ``slice.limit`` of the oldest blocks, by one script.

        Returns: how many blocks were freed (would be, on a dry run); 1 where entries of the block
        that is being written were evicted, and none was freed. Errors: Aborted; LayoutError;
        connection faults. Two round trips, three where bytes are bounded.
        """
        done = self._once(slice.limit, Budget(slice.remaining()), slice, dry_run=dry_run)
        if done is None:
            return 0
        (freed, evicted, left, due_ms), _ = done
        slice.observe(oldest_seconds=due_ms / 1000, backlog=left)
        return freed or min(1, evicted)

    def backlog(self, budget: Budget) -> LogTrimBacklog:
        """Count what waits; nothing is changed. Round trips and errors as of `trim`."""
        done = self._once(1, budget, None, dry_run=True)
        if done is None:
            return LogTrimBacklog(0, 0.0)
        (_, _, left, due_ms), exact = done
        return LogTrimBacklog(left, due_ms / 1000 if left else 0.0, exact)

    def _once(
        self, limit: int, budget: Budget, slice: Slice | None, *, dry_run: bool
    ) -> tuple[list[int], bool] | None:
        """Look, decide and trim; return what the script says, and whether its numbers are exact."""
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
        script = self._log.script("trim")
        sent = (keys.meta, keys.news, keys.full, keys.raw, keys.times, *groups, *blocks)
        command = (
            *("EVAL", script.body, len(sent), *sent),
            *(facts.block, facts.epoch, facts.joined if bounds.spare_groups else ""),
            "" if bounds.max_age_ms is None else bounds.max_age_ms,
            "" if bounds.max_entries is None else bounds.max_entries,
            *(*before, facts.kept, len(groups), int(dry_run)),
        )
        try:
            ((status, *done),) = self._call(budget, slice, command)
        except ResponseError as error:
            raise as_layout_error(error) or error from None
        if status < 0:
            raise Aborted("the log was made anew, or a group has joined it, since the look")
        return (done, sizes is None or sizes.exact) if status else None

    def _look(self, budget: Budget, slice: Slice | None) -> _Facts:
        """Read what the keys follow from. What is foreign there, the script refuses."""
        commands: list[Command] = [("HMGET", self._keys.meta, *_FACTS)]
        if self._bounds.spare_groups:
            commands.append(("HKEYS", self._keys.meta))
        if slice is not None:
            slice.spend(len(commands))
        found, *fields = self._log.twin.call_keys((self._keys.meta,), commands, budget)
        if isinstance(found, ResponseError) or None in found:
            return _Facts(1, 0, 0, b"", b"0", ())
        _, block, end, kept, epoch, joined = found
        names = fields[0] if fields else ()
        groups = tuple(each[6:] for each in names if each.startswith(b"group:"))
        return _Facts(int(block), int(end), int(kept), epoch, joined, groups)

    def _measure(self, facts: _Facts, limit: int, budget: Budget, slice: Slice | None) -> _Sizes:
        """Measure the oldest blocks and the others, of which every n-th where there are many."""
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
                " max_age_s"
            ) from error
        sizes = [int(each or 0) for each in replies]
        return estimate(sizes[:oldest], sizes[oldest:], rest)

    def _call(self, budget: Budget, slice: Slice | None, *commands: Command) -> list[Any]:
        if slice is not None:
            slice.spend(len(commands))
        return checked(self._log.twin.call_keys((self._keys.meta,), commands, budget))


def estimate(oldest: Sequence[int], sampled: Sequence[int], others: int) -> _Sizes:
    """Say how large a log is: the low end of what is likely, so that chance evicts nothing.

    Arguments: oldest: bytes of the first blocks, all of them; sampled: of some of the others, in
    order and in equal steps; others: how many these are.

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
    return _Sizes(tuple(oldest), known + rest, rest / others if others else 0.0, exact)
