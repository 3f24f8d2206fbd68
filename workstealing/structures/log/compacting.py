"""Sealing full blocks of a log and compressing cold ones, an attempt at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.connection import Budget, Command, checked
from workstealing.structures.log.base import LogBase
from workstealing.structures.log.blocks import (
    LONGEST_BLOCK_BYTES,
    DamagedBlockError,
    compress,
    head_of,
    seal,
)
from workstealing.structures.log.names import LOG_VERSION

logger = logging.getLogger("workstealing")

WINDOW = 8
"""How many candidates of each kind are looked at for each block that a slice may compact."""

_BYTES_A_SECOND = {
    "none": ((22, 400e6),),
    "zlib": ((6, 25e6), (9, 8e6)),
    "zstd": ((4, 100e6), (9, 30e6), (15, 8e6), (22, 2e6)),
}
"""Up to which level a codec handles so many bytes, on a slow machine."""

_MOST_LEFT = 1000


@dataclass(frozen=True, slots=True)
class LogBacklog:
    """What waits for compactors in a log.

    Fields: full: blocks that are full and still lists; cold: blocks that are sealed, not
    compressed, and old enough to be; oldest_seconds: how long the oldest of them has waited.
    """

    full: int
    cold: int
    oldest_seconds: float

    @property
    def blocks(self) -> int:
        """How many they are together."""
        return self.full + self.cold


@dataclass(frozen=True, slots=True)
class Compaction:
    """The settings of a compactor, checked.

    Fields: codec: ``none``, ``zlib`` or ``zstd``; level: of the compression, or None; cold_ms: how
    long after sealing a block is cold; idle_s: for how many seconds nobody must have read it, 0 not
    to ask; most_bytes: the most that a slice reads.
    """

    codec: str
    level: int | None
    cold_ms: float
    idle_s: float
    most_bytes: int

    @property
    def compresses(self) -> bool:
        """Whether blocks are compressed, not sealed only."""
        return self.codec != "none"

    @property
    def bytes_a_second(self) -> float:
        """What is reckoned with, so that a slice ends in time, its compression included."""
        speeds = _BYTES_A_SECOND[self.codec]
        return next(speed for level, speed in speeds if (self.level or 0) <= level)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A block that could be compacted: its number, since when (ms), and whether it is a list."""

    number: int
    since: float
    is_list: bool


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look has found; times in ms of the server's clock."""

    now: float
    cold_before: float
    backlog: LogBacklog
    epoch: bytes
    block: int


class Compactor:
    """Compacts one log through its twin's one-attempt connections.

    Arguments: log; settings; random: returns a float in [0, 1).
    """

    def __init__(self, log: LogBase, settings: Compaction, random: Callable[[], float]) -> None:
        self._log = log
        self._keys = log.keys
        self._settings = settings
        self._random = random
        # What has been said to be too large, by epoch and number.
        self._left: set[tuple[bytes, int]] = set()
        self._cold = 0

    @property
    def too_large(self) -> int:
        """How many blocks have been found too large for a slice, and were left as they are."""
        return len(self._left)

    def compact(self, slice: Slice, *, dry_run: bool = False) -> int:
        """Seal or compress up to ``slice.limit`` blocks in one attempt.

        Returns: how many (would be, on a dry run). Errors: Aborted; LayoutError; DamagedBlockError;
        connection faults. Five round trips, or one where nothing is to be done.
        """
        window = WINDOW * slice.limit + len(self._left)
        look, candidates = self._look(Budget(slice.remaining()), window, slice)
        slice.observe(oldest_seconds=look.backlog.oldest_seconds, backlog=look.backlog.blocks)
        chosen = self._chosen(look, candidates, slice.limit)
        if not chosen:
            return 0
        blocks = [self._keys.block(each.number) for each in chosen]
        with attempt(self._log.twin, *blocks, slice=slice) as current:
            try:
                handled, commands = self._prepared(current, look, chosen, slice, dry_run=dry_run)
            except (LayoutError, DamagedBlockError, ResponseError):
                # Damage, or somebody came between two of our reads? EXEC knows.
                current.commit(("EXISTS", blocks[0]))
                raise
            if commands:
                current.commit(*commands)
            return handled

    def _prepared(
        self,
        current: Attempt,
        look: _Look,
        chosen: list[_Candidate],
        slice: Slice,
        *,
        dry_run: bool,
    ) -> tuple[int, list[Command]]:
        """Read what fits the slice; return how many blocks, and the commands that replace them."""
        sizes, gone = self._sizes(current, look, chosen)
        fitting = self._fitting(look, sizes, slice)
        if dry_run:
            return len(fitting) + len(gone), []
        commands = [self._forgotten(each) for each in gone]
        if fitting:
            contents = current.read(*map(self._read_command, fitting))
            for candidate, content in zip(fitting, contents, strict=True):
                commands += self._compacted(look, candidate, content)
        return len(fitting) + len(gone), commands

    def backlog(self, budget: Budget) -> LogBacklog:
        """Count what waits. Up to two round trips; errors: LayoutError, connection faults."""
        return self._look(budget, 1)[0].backlog

    def _look(
        self, budget: Budget, window: int, slice: Slice | None = None
    ) -> tuple[_Look, list[_Candidate]]:
        """Count the candidates, and return some of them: so many in a row, from anywhere on."""
        keys, settings = self._keys, self._settings
        facts, time, full, oldest_full, oldest_raw = self._call(
            budget,
            slice,
            ("HMGET", keys.meta, "mark", "epoch", "block"),
            ("TIME",),
            ("ZCARD", keys.full),
            ("ZRANGE", keys.full, 0, 0, "WITHSCORES"),
            ("ZRANGE", keys.raw, 0, 0, "WITHSCORES"),
        )
        now = int(time[0]) * 1000 + int(time[1]) // 1000 + self._log.clock_shift_ms
        epoch, block = self._checked(facts)
        cold_before = now - settings.cold_ms
        waited = [now - float(score) for score in oldest_full[1:]]
        if settings.compresses:
            waited += [
                cold_before - float(score)
                for score in oldest_raw[1:]
                if float(score) <= cold_before
            ]
        if not waited:
            return _Look(now, cold_before, LogBacklog(0, 0, 0.0), epoch, block), []
        cold, candidates = self._windows(budget, slice, int(full), cold_before, window)
        if cold != self._cold and not candidates:
            # The last look's number has misled this one's window.
            self._cold = cold
            cold, candidates = self._windows(budget, slice, int(full), cold_before, window)
        self._cold = cold
        found = LogBacklog(int(full), cold, max(0.0, *waited) / 1000)
        return _Look(now, cold_before, found, epoch, block), candidates

    def _windows(
        self, budget: Budget, slice: Slice | None, full: int, cold_before: float, window: int
    ) -> tuple[int, list[_Candidate]]:
        """Return how many blocks are cold, and candidates from a window of each kind."""
        keys = self._keys
        cold, lists, strings = self._call(
            budget,
            slice,
            ("ZCOUNT", keys.raw, "-inf", repr(cold_before)),
            ("ZRANGE", keys.full, *self._window(full, window), "WITHSCORES"),
            ("ZRANGE", keys.raw, *self._window(self._cold, window), "WITHSCORES"),
        )
        candidates = _candidates(lists, is_list=True)
        if not self._settings.compresses:
            return 0, candidates
        found = _candidates(strings, is_list=False)
        return int(cold), candidates + [each for each in found if each.since <= cold_before]

    def _window(self, number: int, window: int) -> tuple[int, int]:
        """Return the ranks of a window that lies anywhere within so many members."""
        start = int(self._random() * max(1, number - window + 1))
        return start, start + window - 1

    def _call(self, budget: Budget, slice: Slice | None, *commands: Command) -> list[Any]:
        if slice is not None:
            slice.spend(len(commands))
        try:
            return checked(self._log.twin.call_keys((self._keys.meta,), commands, budget))
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            raise LayoutError(
                f"one of the keys {self._keys.base.decode()}meta, full and raw does not hold what a"
                " log has there; nothing was changed"
            ) from None

    def _checked(self, facts: Sequence[bytes | None]) -> tuple[bytes, int]:
        mark, epoch, block = facts
        if mark is not None and mark != LOG_VERSION.encode():
            raise LayoutError(
                f"the key {self._keys.meta!r} says {mark!r} where {LOG_VERSION} was expected;"
                " nothing was changed"
            )
        return epoch or b"", int(block or 0)

    def _chosen(self, look: _Look, candidates: list[_Candidate], limit: int) -> list[_Candidate]:
        """Return up to so many candidates, at random, without those that were too large."""
        left = [each for each in candidates if (look.epoch, each.number) not in self._left]
        chosen: list[_Candidate] = []
        while left and len(chosen) < limit:
            chosen.append(left.pop(int(self._random() * len(left))))
        return chosen

    def _sizes(
        self, current: Attempt, look: _Look, chosen: list[_Candidate]
    ) -> tuple[list[tuple[_Candidate, int | None]], list[_Candidate]]:
        """WATCH the blocks, and return those that are as they were with their bytes, and lost ones.

        A size is None where the server does not say.
        """
        commands = self._look_commands(chosen, "MEMORY")
        try:
            replies = current.read(*commands)
        except ResponseError:
            # Some servers have no MEMORY USAGE, or forbid it. What is WATCHed stays so.
            commands = self._look_commands(chosen, "EXISTS")
            replies = current.read(*commands)
        epoch, block = self._checked(replies.pop(0))
        step = len(replies) // len(chosen)
        sizes, gone = [], []
        for place, candidate in enumerate(chosen):
            kind, score, size, *idle = replies[place * step : (place + 1) * step]
            if (epoch, block) != (look.epoch, look.block) or score is None:
                # Somebody came first: an evicter, another compactor, or a new log of this name.
                continue
            if kind == b"none":
                gone.append(candidate)
            elif kind != (b"list" if candidate.is_list else b"string"):
                raise LayoutError(
                    f"the key {self._keys.block(candidate.number)!r} is a {kind.decode()} where the"
                    f" log has a {'list' if candidate.is_list else 'string'}; nothing was changed"
                )
            elif not idle or idle[0] is None or int(idle[0]) >= self._settings.idle_s:
                sizes.append((candidate, int(size) if commands[3][0] == "MEMORY" else None))
        return sizes, gone

    def _look_commands(self, chosen: list[_Candidate], size: str) -> list[Command]:
        commands: list[Command] = [("HMGET", self._keys.meta, "mark", "epoch", "block")]
        for each in chosen:
            key = self._keys.block(each.number)
            commands.append(("TYPE", key))
            commands.append(("ZSCORE", self._set_of(each), each.number))
            # All of its nodes, which are few: a sample of a list may miss what is large.
            commands.append(
                ("MEMORY", "USAGE", key, "SAMPLES", 0) if size == "MEMORY" else (size, key)
            )
            if self._settings.idle_s and not each.is_list:
                commands.append(("OBJECT", "IDLETIME", key))
        return commands

    def _fitting(
        self, look: _Look, sizes: list[tuple[_Candidate, int | None]], slice: Slice
    ) -> list[_Candidate]:
        """Return the blocks that this slice can read and compress in time; say which never fit."""
        settings = self._settings
        speed = settings.bytes_a_second
        most = min(settings.most_bytes, LONGEST_BLOCK_BYTES, slice.seconds * speed)
        room = min(most, max(0.0, slice.remaining()) * speed)
        fitting = []
        for candidate, size in sizes:
            if size is not None and size > most:
                self._leave(look, candidate, size, int(most))
            elif size is None or size <= room:
                fitting.append(candidate)
                room -= size or 0
        return fitting

    def _leave(self, look: _Look, candidate: _Candidate, size: int, most: int) -> None:
        if len(self._left) >= _MOST_LEFT:
            self._left.clear()
        self._left.add((look.epoch, candidate.number))
        logger.warning(
            "block %d of the log %r takes %d bytes, and a slice of its compactor handles %d: it is"
            " left as it is; give the compactor more most_bytes and longer slices, or make logs"
            " with a smaller block",
            candidate.number,
            self._log.name,
            size,
            most,
        )

    def _read_command(self, candidate: _Candidate) -> Command:
        key = self._keys.block(candidate.number)
        return ("LRANGE", key, 0, -1) if candidate.is_list else ("GET", key)

    def _set_of(self, candidate: _Candidate) -> bytes:
        return self._keys.full if candidate.is_list else self._keys.raw

    def _forgotten(self, candidate: _Candidate) -> Command:
        return ("ZREM", self._set_of(candidate), candidate.number)

    def _compacted(self, look: _Look, candidate: _Candidate, content: Any) -> list[Command]:
        """Return the commands that put a block's next form in place of this one."""
        settings, key = self._settings, self._keys.block(candidate.number)
        if candidate.is_list:
            raw, entries = seal(content), len(content)
        else:
            # None if it went between two reads.
            head = head_of(content or b"")
            raw, entries = content, head.entries
            if head.codec != "raw":
                # A raw block that was compressed and not forgotten; there is nothing to be done.
                return [self._forgotten(candidate)]
        if entries != look.block:
            raise LayoutError(
                f"the key {key!r} has {entries} entries where a block of the log has {look.block};"
                " nothing was changed"
            )
        commands = [self._forgotten(candidate)]
        is_cold = settings.compresses and candidate.since <= look.cold_before
        compressed = compress(raw, settings.codec, settings.level) if is_cold else raw
        if len(compressed) < len(raw):
            commands.append(("SET", key, compressed))
        elif candidate.is_list:
            commands.append(("SET", key, raw))
        # What does not get smaller is finished as it is, and is tried once.
        if not is_cold:
            commands.append(("ZADD", self._keys.raw, int(look.now), candidate.number))
        return commands


def _candidates(pairs: Sequence[bytes], *, is_list: bool) -> list[_Candidate]:
    return [
        _Candidate(int(number), float(score), is_list)
        for number, score in zip(pairs[::2], pairs[1::2], strict=True)
    ]
