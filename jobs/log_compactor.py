"""The job that seals the full blocks of logs, and compresses those that have gone cold."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import (
    Aborted,
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    OutOfTime,
)
from workstealing.jobs.shared.log_jobs import LogEngine, LogJob
from workstealing.jobs.shared.log_keys import KeyCompactor, KeySettings, checked_share
from workstealing.recruiting.checks import checked_count
from workstealing.recruiting.faults import log_safely
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.structures.log.base import HOLES_VERSION, LOG_VERSION, MOST_BLOCK, LogBase
from workstealing.structures.log.blocks import (
    LONGEST_BLOCK_BYTES,
    MOST_COMPRESSED_BYTES,
    checked_level,
    compress,
    compress_codec,
    head_of,
    seal,
)
from workstealing.structures.stored import holding_ours, stored_number

__all__ = ["LogCompactor"]

logger = logging.getLogger("workstealing")

WINDOW = 8
"""A slice looks at this many candidates of each kind for each block that it may compact."""

_BYTES_A_SECOND = {
    "none": ((22, 400e6),),
    "zlib": ((6, 25e6), (9, 8e6)),
    "zstd": ((4, 100e6), (9, 30e6), (15, 8e6), (22, 2e6)),
}
"""Up to which level a codec handles so many bytes: the pace reckoned with at first."""

_HOPE = 1.25
"""How much faster work and replies are taken to be after each slice in which nothing fitted."""

_FADING = 0.95
"""The share of the best pace that is left after each slice that has been slower."""

_MOST_LEFT = 1000
_WHAT = "blocks to compact"


class LogCompactor(LogJob):
    """Makes logs small: a full block becomes one string, and a cold one is compressed.

    Arguments:
        log: a `Log` or `AsyncLog`, or several, of which each slice serves one, chosen at random.
        limit: the most blocks a slice handles.
        cold: how long after sealing a block is compressed (a block that has been full for so long
            is compressed at once).
        codec: ``auto`` for zstd if the extra ``log`` is installed and zlib if not, ``zstd``,
            ``zlib``, or ``none`` to seal only.
        level: of the compression, by default 3 of zstd's 1 to 22 and 6 of zlib's 0 to 9.
        idle: compress only blocks that nobody has read for so long, by the server's own record
            (which it does not keep if its maxmemory-policy counts uses); 0 not to ask.
        most_bytes: the most that a slice reads from the server.
        superseded: of a log with `compact_by`: the share of a block's entries that must be
            superseded by newer ones before the block is rewritten without them, 0 to 1.
        dry_run: count the blocks that it would handle, and change nothing.
        name: of the job, by default ``log_compactor.<log>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError; MissingExtraError for ``zstd`` without the extra ``log``.

    Readers find one form or the other at any moment, with the same entries; a read changes nothing,
    so it aborts no slice. If a block that a slice works on is evicted or deleted meanwhile, the
    slice leaves the block out, or is aborted. Every reader of the log needs the codec: choose
    ``zlib`` if some of them lack the extra.

    Each process learns how many bytes a second it compresses (reckoned at first as 100 MB/s with
    zstd, 25 MB/s with zlib, less at higher levels), and a slice begins only blocks that fit into
    the rest of it. A block that fits into no whole slice at that pace, or is larger than
    most_bytes, or than 32 MiB where it is to be compressed, is left as it is; the job logs that
    once, and `too_large` counts such blocks. If a block would fit into another slice but not into
    the rest of this one, or if the machine is slower than before, the slice ends as out of time,
    with nothing changed. A server without MEMORY USAGE cannot tell sizes: there every block is
    read.

    A slice costs two round trips to look, or one if there is nothing to do; one for the sizes, one
    to read and one to write, in one attempt. A server whose memory is full refuses that attempt.
    Then one script, in one more round trip, compresses the blocks that have not changed since they
    were read. Sealing frees nothing and waits for room: a slice that finds only blocks to seal
    raises the server's error. A slice also raises Aborted; OutOfTime if no block fits into its
    rest; LayoutError; DamagedBlockError; connection faults; the server's error if idle is set and
    the server keeps no such record.
    """

    _kind = "log_compactor"
    _done = "compacted"

    def __init__(
        self,
        log: LogBase | Iterable[LogBase],
        limit: int = 1,
        *,
        cold: Duration = 60,
        codec: str = "auto",
        level: int | None = None,
        idle: Duration = 0,
        most_bytes: int = 4 * 1024 * 1024,
        superseded: float = 0.1,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(log, limit, dry_run, name, random)
        if codec != "none":
            codec = compress_codec(codec)
            level = checked_level(codec, level)
        elif level is not None:
            raise ConfigurationError("level is of no use with codec='none': leave it out")
        settings = _CompactorSettings(
            codec,
            level,
            seconds_of(cold, "cold") * 1000,
            seconds_of(idle, "idle"),
            checked_count(most_bytes, "most_bytes"),
            checked_share(superseded),
        )
        self._compactors = [Compactor(each, settings, random) for each in self.logs]
        self._engines = self._compactors

    @property
    def too_large(self) -> int:
        """How many blocks this job has found too large for its slices."""
        return sum(each.too_large for each in self._compactors)


@dataclass(frozen=True, slots=True)
class _CompactorSettings:
    """The settings of a compactor, checked.

    Fields: codec: ``none``, ``zlib`` or ``zstd``; level: of the compression, or None; cold_ms: how
    long after sealing a block is cold; idle: for how many seconds nobody must have read it, 0 not
    to ask; most_bytes: the most that a slice reads; superseded: as of `KeySettings`.
    """

    codec: str
    level: int | None
    cold_ms: float
    idle: float
    most_bytes: int
    superseded: float

    @property
    def compresses(self) -> bool:
        """Whether blocks are compressed, not sealed only."""
        return self.codec != "none"

    @property
    def bytes_a_second(self) -> float:
        """The pace reckoned with before this process has measured anything."""
        speeds = _BYTES_A_SECOND[self.codec]
        return next(speed for level, speed in speeds if (self.level or 0) <= level)


class PackingPace:
    """How many bytes a second are handled here, as this process has measured it last.

    A slower pace than expected counts at once, and a faster pace by half, so a slice begins only
    work that fits. If nothing fits, nothing is measured. So each such slice raises the pace a
    little, up to the best pace of late, which a busy hour lowers only bit by bit.

    Arguments:
        bytes_a_second: what is reckoned with at first.
    """

    def __init__(self, bytes_a_second: float) -> None:
        self.bytes_a_second = bytes_a_second
        self.best = bytes_a_second

    def note(self, size: int, seconds: float) -> None:
        """Learn from so many bytes that took so long."""
        if size <= 0 or seconds <= 0:
            return
        seen = size / seconds
        now = self.bytes_a_second
        self.bytes_a_second = min(seen, (now + seen) / 2)
        self.best = max(self.best * _FADING, self.bytes_a_second)

    def hope(self) -> None:
        """Note that nothing was begun, because nothing fitted."""
        self.bytes_a_second = min(self.best, self.bytes_a_second * _HOPE)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A block that could be compacted: its number, since when (ms), and whether it is a list."""

    number: int
    since: float
    is_list: bool


@dataclass(frozen=True, slots=True)
class _Change:
    """The change that a slice makes to a block.

    Fields: candidate; size: how many entries its list or bytes its string has, None if it is lost;
    form: its next one, empty to keep this one; is_finished: whether compactors are done with it.
    """

    candidate: _Candidate
    size: int | None
    form: bytes = b""
    is_finished: bool = True

    @property
    def frees(self) -> bool:
        """Whether the block takes less room afterwards, or no more than before."""
        return not self.form or head_of(self.form).codec != "raw"


class _CompactorFacts(NamedTuple):
    """The facts of a log that a compactor needs; empty without a log."""

    mark: bytes
    epoch: bytes
    block: int


@dataclass(frozen=True, slots=True)
class _ColdBacklog:
    """The findings of one look; times in ms of the server's clock."""

    now: float
    cold_before: float
    backlog: Backlog
    facts: _CompactorFacts


class Compactor(LogEngine):
    """Compacts one log through its job client's one-attempt connections.

    Arguments:
        random: returns a float in [0, 1).
    """

    def __init__(
        self, log: LogBase, settings: _CompactorSettings, random: Callable[[], float]
    ) -> None:
        super().__init__(log, random)
        self._settings = settings
        # The bytes of what has been said to be too large, by epoch and number.
        self._left: dict[tuple[bytes, int], int] = {}
        self._cold = 0
        self._pace = PackingPace(settings.bytes_a_second)
        # How long the two round trips behind the compression took last: they must fit, too.
        self._trip_seconds = 0.0
        self._by_key: KeyCompactor | None = None
        if log.entry_keys is not None:
            of_keys = KeySettings(
                settings.codec, settings.level, settings.most_bytes, settings.superseded
            )
            self._by_key = KeyCompactor(log, log.entry_keys, of_keys, random)

    @property
    def too_large(self) -> int:
        """How many blocks have been found too large for a slice, and were left as they are."""
        return len(self._left) + (0 if self._by_key is None else self._by_key.too_large)

    def work(self, slice: Slice, *, dry_run: bool) -> int:
        """Seal or compress up to ``slice.limit`` blocks in one attempt, or compact some by key.

        Returns: how many (would be, on a dry run). Raises: Aborted; OutOfTime if the rest of the
        slice is too short for any of them; LayoutError; DamagedBlockError; connection faults. Five
        round trips, or one where nothing is to be done; one more where the server is full.
        """
        window = WINDOW * slice.limit + len(self._left)
        look, candidates = self._look(Budget(slice.remaining()), window, slice)
        backlog = look.backlog
        by_key = self._by_key
        keyed = 0
        if by_key is not None:
            budget = Budget(slice.remaining())
            found = by_key.backlog_of(by_key.look(budget, slice), budget, slice)
            keyed, backlog = found.count, _together(backlog, found)
        slice.observe(oldest_seconds=backlog.oldest_seconds, backlog=backlog.count)
        chosen = self._chosen(look, candidates, slice)
        if by_key is not None and keyed and (not chosen or self._random() < 0.5):
            # Both go on, however much there is of the other.
            return by_key.work(slice, dry_run=dry_run)
        if not chosen:
            return 0
        blocks = [self._keys.block(each.number) for each in chosen]
        changes: list[_Change] = []
        try:
            with attempt(self._log.job_client, *blocks, slice=slice) as current:
                try:
                    handled, changes = self._prepared(current, look, chosen, slice, dry_run=dry_run)
                except (LayoutError, DamagedBlockError, ResponseError):
                    # Damage, or a writer between two of our reads? EXEC knows.
                    current.commit(("EXISTS", blocks[0]))
                    raise
                if changes:
                    left = slice.remaining()
                    current.commit(*self._commands(look, changes))
                    self._trip_seconds = left - slice.remaining()
        except OutOfMemoryError:
            # Sealing alone makes a block larger by some per cent: it waits for room, as any write.
            changes = [each for each in changes if each.frees]
            if not changes:
                raise
            self._change_when_full(look, changes, slice)
            handled = len(changes)
        return handled

    def _prepared(
        self,
        current: Attempt,
        look: _ColdBacklog,
        chosen: list[_Candidate],
        slice: Slice,
        *,
        dry_run: bool,
    ) -> tuple[int, list[_Change]]:
        """Read what fits the slice; return how many blocks, and what replaces them."""
        sizes, gone = self._sizes(current, look, chosen)
        fitting = self._fitting(look, sizes, slice, is_last=not gone and not dry_run)
        if dry_run:
            return len(fitting) + len(gone), []
        changes = [_Change(each, None) for each in gone]
        if fitting:
            contents = current.read(*map(self._read_command, fitting))
            for candidate, content in zip(fitting, contents, strict=True):
                try:
                    changes.append(self._compacted(look, candidate, content, slice))
                except OutOfTime:
                    # Keep the finished part; only the rest is for the next slice.
                    if not changes:
                        raise
                    break
        return len(changes), changes

    def _commands(self, look: _ColdBacklog, changes: list[_Change]) -> list[Command]:
        """Return the commands that make the changes."""
        commands: list[Command] = []
        for each in changes:
            number = each.candidate.number
            commands.append(("ZREM", self._set_of(each.candidate), number))
            if each.form:
                commands.append(("SET", self._keys.block(number), each.form))
            if not each.is_finished:
                commands.append(("ZADD", self._keys.raw, int(look.now), number))
        return commands

    def _change_when_full(self, look: _ColdBacklog, changes: list[_Change], slice: Slice) -> None:
        """Make the changes by one script, which a full server does not refuse.

        The script checks whether anything has changed since the look; if so, it does nothing.
        """
        keys = self._keys
        blocks = [keys.block(each.candidate.number) for each in changes]
        settings: list[Any] = [look.facts.block, look.facts.epoch, int(look.now)]
        for each in changes:
            kind = "list" if each.candidate.is_list else "string"
            settings += [
                each.candidate.number,
                "none" if each.size is None else kind,
                each.size or 0,
                each.form,
                int(each.is_finished),
            ]
        sent = (keys.meta, keys.full, keys.raw, *blocks)
        if not self._run(Budget(slice.remaining()), slice, "compact", sent, *settings):
            raise Aborted("another writer changed a block of the log since it was read")

    def backlog(self, budget: Budget) -> Backlog:
        """Count the full and the cold blocks, and those to compact by key.

        Up to two round trips, and as many more for compaction by key.
        """
        found = self._look(budget, 1)[0].backlog
        return found if self._by_key is None else _together(found, self._by_key.backlog(budget))

    def _look(
        self, budget: Budget, window: int, slice: Slice | None = None
    ) -> tuple[_ColdBacklog, list[_Candidate]]:
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
        log = self._facts_in(facts)
        if log.mark not in (b"", LOG_VERSION.encode(), HOLES_VERSION.encode()):
            self._require_version(budget, slice)
        cold_before = now - settings.cold_ms
        waited: list[float] = [now - _since(keys.full, score) for score in oldest_full[1:]]
        if settings.compresses:
            waited += [
                cold_before - since
                for since in (_since(keys.raw, score) for score in oldest_raw[1:])
                if since <= cold_before
            ]
        if not waited:
            return _ColdBacklog(now, cold_before, Backlog(0, 0.0, _WHAT), log), []
        cold, candidates = self._windows(budget, slice, int(full), cold_before, window)
        if cold != self._cold and not candidates:
            # The last look's number has misled this one's window.
            self._cold = cold
            cold, candidates = self._windows(budget, slice, int(full), cold_before, window)
        self._cold = cold
        found = Backlog(int(full) + cold, max(0.0, *waited) / 1000, _WHAT)
        return _ColdBacklog(now, cold_before, found, log), candidates

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
        candidates = _candidates(keys.full, lists, is_list=True)
        if not self._settings.compresses:
            return 0, candidates
        found = _candidates(keys.raw, strings, is_list=False)
        return int(cold), candidates + [each for each in found if each.since <= cold_before]

    def _window(self, number: int, window: int) -> tuple[int, int]:
        """Return the ranks of a window that lies anywhere within so many members."""
        start = int(self._random() * max(1, number - window + 1))
        return start, start + window - 1

    def _call(self, budget: Budget, slice: Slice | None, *commands: Command) -> list[Any]:
        with holding_ours(self._keys.base):
            return super()._call(budget, slice, *commands)

    def _facts_in(self, reply: Sequence[bytes | None]) -> _CompactorFacts:
        mark, epoch, block = reply
        size = 0
        if mark is not None:
            size = stored_number(self._keys.meta, "block", block, 1, MOST_BLOCK)
        return _CompactorFacts(mark or b"", epoch or b"", size)

    def _require_version(self, budget: Budget, slice: Slice | None) -> None:
        """Raise a LayoutError for a newer log that this release may not write, or not read.

        A script knows the rule; without groups or blocks it does nothing else.
        """
        keys = self._keys
        if slice is None:
            # A backlog is only read.
            self._run(budget, slice, "stats", (keys.meta, keys.news, keys.full, keys.raw))
        else:
            self._run(budget, slice, "wake_groups", (keys.meta,))

    def _chosen(
        self, look: _ColdBacklog, candidates: list[_Candidate], slice: Slice
    ) -> list[_Candidate]:
        """Return as many candidates as a slice may have, at random, none of them too large."""
        most = self._most_bytes(slice)
        left = [
            each
            for each in candidates
            if self._left.get((look.facts.epoch, each.number), 0) <= most
        ]
        chosen: list[_Candidate] = []
        while left and len(chosen) < slice.limit:
            chosen.append(left.pop(int(self._random() * len(left))))
        return chosen

    def _most_bytes(self, slice: Slice) -> int:
        """Return how large a block may be for the whole of a slice to do."""
        settings = self._settings
        longest = MOST_COMPRESSED_BYTES if settings.compresses else LONGEST_BLOCK_BYTES
        return int(min(settings.most_bytes, longest, slice.seconds * self._pace.best))

    def _sizes(
        self, current: Attempt, look: _ColdBacklog, chosen: list[_Candidate]
    ) -> tuple[list[tuple[_Candidate, int | None]], list[_Candidate]]:
        """WATCH the blocks; return unchanged ones with their sizes, and lost ones.

        A size is None if the server does not tell it.
        """
        commands = self._look_commands(chosen, "MEMORY")
        try:
            replies = current.read(*commands)
        except ResponseError:
            # Some servers have no MEMORY USAGE, or forbid it. The WATCHed keys stay WATCHed.
            commands = self._look_commands(chosen, "EXISTS")
            replies = current.read(*commands)
        facts = self._facts_in(replies.pop(0))
        step = len(replies) // len(chosen)
        sizes, gone = [], []
        for place, candidate in enumerate(chosen):
            kind, score, size, *idle = replies[place * step : (place + 1) * step]
            if facts != look.facts or score is None:
                # Another writer came first: an evicter, a compactor, or a new log of this name.
                continue
            if kind == b"none":
                gone.append(candidate)
            elif kind != (b"list" if candidate.is_list else b"string"):
                raise LayoutError(
                    f"the key {self._keys.block(candidate.number)!r} is a {kind.decode()} where the"
                    f" log has a {'list' if candidate.is_list else 'string'}: restore it from a"
                    " backup, or evict() its entries; nothing was changed"
                )
            elif not idle or idle[0] is None or int(idle[0]) >= self._settings.idle:
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
            if self._settings.idle and not each.is_list:
                commands.append(("OBJECT", "IDLETIME", key))
        return commands

    def _fitting(
        self,
        look: _ColdBacklog,
        sizes: list[tuple[_Candidate, int | None]],
        slice: Slice,
        *,
        is_last: bool,
    ) -> list[_Candidate]:
        """Return the blocks that this slice can read and compress in time; note which never do.

        Raises: OutOfTime if there are blocks, but the rest of the slice is too short for any; then
        nothing is read, and is_last says that there is nothing else to do.
        """
        pace, most = self._pace, self._most_bytes(slice)
        # The time that one read and one write need.
        left = max(0.0, slice.remaining() - 2 * self._trip_seconds)
        room = min(most, left * pace.bytes_a_second)
        fitting, late = [], 0
        for candidate, size in sizes:
            if size is not None and size > most:
                self._leave(look, candidate, size, most)
            elif size is None or size <= room:
                fitting.append(candidate)
                room -= size or 0
            else:
                late = min(size, late or size)
        if late and not fitting:
            speed = pace.bytes_a_second
            pace.hope()
            # As with the pace: one slow reply must not keep all later slices from measuring.
            self._trip_seconds /= _HOPE
            if is_last:
                raise OutOfTime(
                    f"{left * 1000:.1f} ms are left of a slice of {slice.seconds * 1000:g} ms, and"
                    f" a block of the log {self._log.name!r} of {late} bytes takes about"
                    f" {late / speed * 1000:.1f} ms here: give the compactor longer slices, a"
                    " faster codec or level, or make logs with a smaller block"
                )
        return fitting

    def _leave(self, look: _ColdBacklog, candidate: _Candidate, size: int, most: int) -> None:
        if len(self._left) >= _MOST_LEFT:
            self._left.clear()
        place = (look.facts.epoch, candidate.number)
        is_known = place in self._left
        self._left[place] = size
        if is_known:
            return
        log_safely(
            logger,
            logging.WARNING,
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

    def _compacted(
        self, look: _ColdBacklog, candidate: _Candidate, content: Any, slice: Slice
    ) -> _Change:
        """Return the change that puts a block's next form in place of this one."""
        settings, key = self._settings, self._keys.block(candidate.number)
        left = slice.remaining()
        if candidate.is_list:
            raw, entries = seal(content), len(content)
        else:
            # None if it went between two reads.
            head = head_of(content or b"")
            raw, entries = content, head.entries
            if head.codec != "raw":
                # A raw block that was compressed and not forgotten; there is nothing to be done.
                return _Change(candidate, len(content))
        if entries != look.facts.block:
            raise LayoutError(
                f"the key {key!r} has {entries} entries where a block of the log has"
                f" {look.facts.block}: restore it from a backup, or evict() its entries;"
                " nothing was changed"
            )
        is_cold = settings.compresses and candidate.since <= look.cold_before
        form = raw if candidate.is_list else b""
        # If the server does not tell sizes, a block may be too large: it is finished raw.
        if is_cold and len(raw) <= MOST_COMPRESSED_BYTES:
            compressed = self._compress(raw, left, slice)
            # A block that does not get smaller is finished as it is, and is tried once.
            if len(compressed) < len(raw):
                form = compressed
        elif not settings.compresses:
            self._pace.note(len(raw), left - slice.remaining())
        return _Change(candidate, len(content), form, is_finished=is_cold)

    def _compress(self, raw: bytes, left: float, slice: Slice) -> bytes:
        """Return a block compressed, and learn how long that takes here.

        Arguments:
            left: how many seconds the slice had when this block was begun.

        Raises: OutOfTime as soon as the slice is over, so that the host does not wait.
        """

        def between(done: int) -> None:
            if slice.expired:
                self._pace.note(done, left - slice.remaining())
                raise OutOfTime(
                    f"the slice of {slice.seconds * 1000:g} ms was over when {done} of {len(raw)}"
                    f" bytes of a block of the log {self._log.name!r} were compressed; the next"
                    " recruits begin only what fits at this pace"
                )

        made = compress(raw, self._settings.codec, self._settings.level, between=between)
        self._pace.note(len(raw), left - slice.remaining())
        return made


def _together(one: Backlog, other: Backlog) -> Backlog:
    oldest = max(one.oldest_seconds or 0.0, other.oldest_seconds or 0.0)
    return Backlog(one.count + other.count, oldest, one.what)


def _since(key: bytes, score: Any) -> int:
    return stored_number(key, "since when a block waits", score)


def _candidates(key: bytes, pairs: Sequence[bytes], *, is_list: bool) -> list[_Candidate]:
    return [
        _Candidate(stored_number(key, "the number of a block", number), _since(key, score), is_list)
        for number, score in zip(pairs[::2], pairs[1::2], strict=True)
    ]
