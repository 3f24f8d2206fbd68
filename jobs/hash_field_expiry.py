"""The job that frees the memory of expired hash fields."""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import Aborted, LayoutError, OutOfTime
from workstealing.jobs.shared.due_collecting import (
    PATIENCE_SECONDS,
    CollectingJob,
    DueCollector,
    Served,
    left_of,
)
from workstealing.jobs.shared.due_looks import looks, observe_items
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import checked, is_elsewhere
from workstealing.store.job_client import Node
from workstealing.store.scripts import Script
from workstealing.structures.access import JobAccess
from workstealing.structures.due_index import DueIndex, DueKey
from workstealing.structures.layout import ask_server, scored
from workstealing.structures.stored import MOST_STORED
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.commands import NATIVE_COMMANDS, HashNames
from workstealing.structures.volatile_hashes.hashes import checked_hashes
from workstealing.structures.volatile_hashes.server_faults import (
    Info,
    applying_to_any,
    server_of,
)

__all__ = ["HashFieldExpiry"]

# The most hashes of one attempt.
TOGETHER = 25
# The most fields that one script removes: others wait meanwhile.
FIELDS_A_SCRIPT = 1_000
# The deadlines of a hash that ended as a whole may wait for so long; see `_HashGarbage.needs_end`.
SOON_MS = 24 * 3_600_000
# A native namespace's server is asked for its settings so often.
_ASKS_SECONDS = 60.0
# PTTL's reply for a key that is not there.
NO_KEY = -2
_faults = FaultLog(SYSTEM_CLOCK)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_faults.after_fork)


class HashFieldExpiry(CollectingJob):
    """Removes expired fields of one namespace's volatile hashes.

    Arguments:
        hashes: the namespace.
        limit: the most fields a slice removes (5 suits web requests; 25 and 100 are common for
            queue workers).
        dry_run: count the fields that a slice would remove, at most `limit`, and remove nothing.
        name: of the job, by default ``hash_field_expiry.<namespace>``.
        random: returns a float in [0, 1), for the choice among due hashes.

    On a native namespace the server itself expires the fields, and every slice is idle. A slice
    that asks a server for its settings, once a minute, reports the figure `server_faults`: how many
    faults apply to the servers that have been asked. A slice takes one or two round trips to find
    hashes that are due, and two for each hash.

    Source: the expiry job of Jim Nelson's talk on work stealing at the Internet Archive; two
    additions are the due index, which saves looks at hashes without garbage, and the random choice
    among more hashes than a slice needs (as in rails/solid_cache).
    """

    access = JobAccess(("volatile hashes",))
    unit = "fields"

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        limit: int = 5,
        *,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        self.structures = tuple(hashes.on_nodes.values())
        name = f"hash_field_expiry.{hashes.namespace}" if name is None else name
        collectors = {}
        for node, each in hashes.on_nodes.items():
            shift_ms = each.translator.clock_shift_ms
            index = DueIndex(
                each.job_client, each.names, shift_ms, random, clock, on_loss=each.forget
            )
            collectors[node] = _FieldCollector(index, each.names, each.translator.script, clock)
        super().__init__(collectors, name, limit, dry_run=dry_run, random=random)

    def backlog(self, seconds: Duration = 5.0, most_hashes: int = 1000) -> Backlog:
        """Count the namespace's expired fields, and tell the age of the oldest.

        If no field has expired, but hashes are due to be looked at, they are counted instead, and
        the count is not exact.

        Arguments:
            seconds: the most time, in seconds or a timedelta.
            most_hashes: the most hashes, the oldest first, in which fields are counted (with more
                hashes the count is a projection, and not exact).

        Raises: as `perform`. Two round trips to each node, and one for each 500 hashes with
        garbage.
        """
        most = seconds_of(seconds, "seconds")
        return self._backlog(lambda collector: collector.backlog(most, most_hashes))


class _FieldCollector(DueCollector):
    """Collects the garbage of one namespace, through a job client's one-attempt connections.

    There are two ways. A recruited slice removes by an attempt, which holds nobody up and gives way
    to every other writer. A script removes without being aborted, but others wait meanwhile: it is
    for a sweep, and for a server so full that it refuses the attempt's transaction.

    Arguments:
        index: of the namespace.
        names: of its keys.
        script: gives a script of volatile hashes by its name.
        clock: measures how long an attempt takes.
    """

    scripts = "volatile_hashes/"
    what = "expired fields"

    def __init__(
        self,
        index: DueIndex,
        names: HashNames,
        script: Callable[[str], Script],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(index)
        self._job_client = index.job_client
        self._names = names
        self._script = script
        self._clock = clock
        # The most hashes of the next attempt; the expected number of expired fields of each; and
        # whether to ask at once when they end as a whole.
        self._together, self._fields, self._asks_ends = TOGETHER, 1, False
        # The expected number of expired fields of each hash of a sweep.
        self._swept = 1
        # When the last round of questions to the servers began, keys on those that are left of it,
        # and each one's INFO by its key; {}: it tells nothing.
        self._asked_at: float | None = None
        self._to_ask: deque[bytes] = deque()
        self._told: dict[bytes, Info] = {}
        self._found: frozenset[str] = frozenset()
        # The nodes to which the script was sent.
        self._loaded: set[Node] = set()

    def collect(self, slice: Slice) -> int:
        """Remove expired fields until the slice's limit or time is reached.

        Returns: how many fields were removed; this may be 0 if all hashes met had been given more
        time. Raises, if nothing was removed: Aborted if another writer came first; LayoutError for
        a foreign due index or foreign deadlines. Raises: OutOfTime if there was no time for a
        single attempt; connection faults. One to three round trips to look, and two for each
        attempt on up to 25 hashes, or three if deadlines far ahead are met unexpectedly.
        """
        self._require_writable(slice)
        self._look_at_servers(slice)
        collected, expired, served, longest = 0, 0, 0, 0.0
        problem: LayoutError | None = None
        try:
            for look in looks(self._index, slice):
                found = deque(look.found)
                while found:
                    started = self._clock.monotonic()
                    if served and slice.remaining() < 3 * longest:
                        raise OutOfTime("too little time is left for one more attempt")
                    some = self._choose(found, slice.limit - collected)
                    done = self._by_attempt(some, look.now_ms, slice, slice.limit - collected)
                    collected += done.items
                    expired += done.expired
                    served += len(some)
                    problem = done.problem or problem
                    for due in done.doubtful:
                        self._clear_if_gone(due, slice)
                    longest = max(longest, self._clock.monotonic() - started)
                    if collected >= slice.limit:
                        return collected
        except Aborted:
            if not collected:
                raise
        except OutOfTime:
            # The due times of hashes that were given more time are corrected by now.
            if not served:
                raise
        finally:
            observe_items(slice, expired, served)
        if problem is not None and not collected:
            raise problem
        return collected

    def _look_at_servers(self, slice: Slice) -> None:
        """Report the faults of the servers that keep a native namespace's deadlines.

        The servers' settings may change after the namespace's first use. A slice asks one primary,
        and each is asked once a minute: one round trip. Other slices report nothing, so that the
        figure is as old as the question.
        """
        budget = Budget(slice.remaining())
        layout = self._index.layout(budget)
        if layout is None or not layout.is_native:
            return
        now = self._clock.monotonic()
        if not self._to_ask and (self._asked_at is None or now - self._asked_at >= _ASKS_SECONDS):
            self._asked_at = now
            keys = self._names.on_each_primary(self._job_client)
            # Nodes that have left the cluster are forgotten.
            self._told = {key: self._told[key] for key in keys if key in self._told}
            self._to_ask.extend(keys)
        if not self._to_ask:
            return
        key = self._to_ask.popleft()
        facts = self._index.drive(ask_server(key, NATIVE_COMMANDS), budget)
        self._told[key] = facts.info
        # A server that hides its settings is the doctor's: there is no figure for it.
        known = [info for info in self._told.values() if server_of(info)[0]]
        if known:
            found = applying_to_any(known)
            slice.measure("server_faults", len(found))
            for fault, _ in found:
                subject = f"the native namespace {self._names.namespace!r}"
                _faults.warn(f"{subject}, {fault.name}", fault.said(is_native=True))
                if fault.name not in self._found:
                    # A setting has changed, or this process looks for the first time.
                    ANNOUNCEMENTS.tell("server_fault", subject, fault.said(is_native=True))
            self._found = frozenset(fault.name for fault, _ in found)

    def count(self, slice: Slice) -> int:
        """Return how many fields `collect` would remove now, at most the limit; change nothing.

        Raises: as `collect`. One round trip to look, one for each hash.
        """
        counted, looked_at = 0, 0
        try:
            for look in looks(self._index, slice):
                for due in look.found:
                    if counted >= slice.limit:
                        return counted
                    counted += self._count_hash(due, slice, slice.limit - counted)
                    looked_at += 1
        except OutOfTime:
            if not looked_at:
                raise
        return counted

    def _count_hash(self, due: DueKey, slice: Slice, limit: int) -> int:
        """Return how many fields of one hash have expired, at most the limit."""
        keys = self._names.for_reading(due.key)
        past = ("ZRANGE", keys[1], 0, limit - 1, "WITHSCORES")
        with _naming(keys[1]):
            clock, deadlines = checked(
                self._job_client.call_keys(keys, [("TIME",), past], Budget(slice.remaining()))
            )
        now = self._index.time_ms(clock)
        return sum(1 for _, deadline in scored(deadlines) if deadline <= now)

    def backlog(self, seconds: float = 5.0, most_hashes: int = 1000) -> Backlog:
        """Count the garbage of the namespace; see `HashFieldExpiry.backlog`."""
        budget = Budget.whole(seconds)
        layout = self._index.layout(budget)
        if layout is None or layout.is_native:
            return Backlog(0, 0.0, self.what)
        hashes, oldest, fields, counted, idle = 0, 0.0, 0, 0, 0
        for node, shards in self._index.shards_by_node(layout, budget).items():
            due = [("ZRANGEBYSCORE", self._names.due(s), "-inf", "+inf") for s in shards]
            clock = self._index.time_ms(
                checked(self._job_client.call(node, [("TIME",)], budget))[0]
            )
            with self._names.asked():
                counts = checked(
                    self._job_client.call(
                        node, [("ZCOUNT", command[1], "-inf", clock) for command in due], budget
                    )
                )
            hashes += sum(counts)
            busy = [c for c, n in zip(due, counts, strict=True) if n]
            share = max(1, most_hashes // max(1, len(busy)))
            members = [
                key
                for reply in checked(
                    self._job_client.call(
                        node,
                        [("ZRANGEBYSCORE", c[1], "-inf", clock, "LIMIT", 0, share) for c in busy],
                        budget,
                    )
                )
                for key in reply
            ]
            for size, first in self._ages(node, members, clock, budget):
                counted += 1
                idle += not size
                if first is not None:
                    fields += size
                    oldest = max(oldest, clock - first)
        if counted < hashes:
            fields = round(fields * hashes / max(1, counted))
        if idle and not fields:
            # They are due to be looked at, or have gone as a whole: a slice has something to do.
            return Backlog(idle, None, self.what, False)
        return Backlog(fields, oldest / 1000, self.what, counted >= hashes)

    def _ages(
        self, node: Node, members: Sequence[bytes], clock: int, budget: Budget
    ) -> Iterator[tuple[int, float | None]]:
        """Yield for each hash the number of its expired fields, and their earliest deadline."""
        for start in range(0, len(members), 500):
            commands: list[tuple[Any, ...]] = []
            for key in members[start : start + 500]:
                deadlines = self._names.deadlines(key)
                commands.append(("ZCOUNT", deadlines, "-inf", clock))
                commands.append(("ZRANGE", deadlines, 0, 0, "WITHSCORES"))
            replies = self._job_client.call(node, commands, budget)
            for command, size, first in zip(
                commands[::2], replies[::2], replies[1::2], strict=True
            ):
                with _naming(command[1]):
                    checked([size, first])
                # None too if a recruit came between the two commands, which are no transaction.
                yield size, float(first[1]) if size and first else None

    def _choose(self, found: deque[DueKey], limit: int) -> list[DueKey]:
        """Take the hashes of the next attempt: as many as probably fill the slice.

        On a cluster they share a slot. A single server takes any keys in one attempt.
        """
        most = max(1, min(self._together, limit // self._fields))
        some = [found.popleft()]
        while found and len(some) < most:
            if self._job_client.is_cluster and found[0].shard != some[0].shard:
                break
            some.append(found.popleft())
        return some

    def _by_attempt(self, some: list[DueKey], now_ms: int, slice: Slice, limit: int) -> _Collected:
        """Make one attempt on some hashes; a write to any of them aborts it.

        Arguments:
            now_ms: the server's time, by which fields have expired.
            limit: the most fields.
        """
        keys = [key for due in some for key in self._names.for_reading(due.key)]
        each = -(-limit // len(some))
        hashes: list[_HashGarbage] = []
        try:
            with attempt(self._job_client, *keys, slice=slice, in_any_slot=True) as current:
                hashes = self._read(current, some, now_ms, limit, each)
                collected = self._remove(current, hashes, now_ms)
        except OutOfMemoryError:
            # Without memory, a script deletes.
            good = [garbage.due for garbage in hashes if garbage.problem is None]
            removed = self._by_scripts(good, slice, limit)
            return _Collected(removed, removed)
        except Aborted:
            # Somebody writes to such hashes all the time: fewer at once are aborted less often.
            self._together = max(1, len(some) // 2)
            raise
        self._learn(hashes, each)
        return collected

    def _read(
        self, current: Attempt, some: list[DueKey], now_ms: int, limit: int, each: int
    ) -> list[_HashGarbage]:
        """WATCH hashes; return the garbage of each, at most `limit` fields in all.

        Arguments:
            each: of how many fields of each hash the deadline is read, and of one more.
        """
        names = [self._names.for_reading(due.key) for due in some]
        firsts = [("ZRANGE", deadlines, 0, each, "WITHSCORES") for _, deadlines in names]
        ends = [("PTTL", name) for name, _ in names] if self._asks_ends else []
        replies = current.read_each(*firsts, *ends)
        hashes = []
        for number, (due, reply) in enumerate(zip(some, replies[: len(some)], strict=True)):
            hash_key, deadlines_key = names[number]
            garbage = _HashGarbage(due, hash_key, deadlines_key)
            hashes.append(garbage)
            if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
                garbage.problem = _foreign_deadlines(garbage.deadlines_key)
                continue
            (flat,) = checked([reply])
            deadlines = flat[1::2]
            # They are in order, and mostly all have passed.
            expired = bisect_right(deadlines, float(now_ms), key=float)
            if expired and not limit:
                # The others fill the slice; this one stays as it is.
                hashes.pop()
                continue
            garbage.expired = expired
            gone = min(expired, each, limit)
            garbage.gone = flat[: 2 * gone : 2]
            limit -= gone
            if len(deadlines) > gone:
                garbage.following = float(deadlines[gone])
            if ends:
                (garbage.left,) = checked([replies[len(some) + number]])
        unknown = [each for each in hashes if each.left is None and each.needs_end(now_ms)]
        if unknown:
            for garbage, left in zip(
                unknown, current.read(*(("PTTL", each.key) for each in unknown)), strict=True
            ):
                garbage.left = left
        self._asks_ends = any(garbage.needs_end(now_ms) for garbage in hashes)
        return hashes

    def _remove(self, current: Attempt, hashes: list[_HashGarbage], now_ms: int) -> _Collected:
        """Remove the garbage of hashes, and say when each has more; one MULTI."""
        removing: list[tuple[Any, ...]] = []
        removed: list[_HashGarbage] = []
        ended: list[bytes] = []
        later: dict[int, list[Any]] = {}
        done: dict[int, list[bytes]] = {}
        collected = _Collected()
        for garbage in hashes:
            collected.problem = garbage.problem or collected.problem
            collected.expired += garbage.expired
            if garbage.problem is not None:
                continue
            due = garbage.due
            is_orphaned = garbage.left == NO_KEY
            if is_orphaned:
                # The hash expired, was evicted or deleted as a whole; only deadlines are left.
                collected.items += int(garbage.has_deadlines)
            elif garbage.gone:
                removing.append(("HDEL", garbage.key, *garbage.gone))
                removed.append(garbage)
            if is_orphaned or garbage.following is None:
                if garbage.has_deadlines:
                    ended.append(garbage.deadlines_key)
                done.setdefault(due.shard, []).append(due.key)
                continue
            if garbage.gone:
                removing.append(("ZREM", garbage.deadlines_key, *garbage.gone))
                removed.append(garbage)
            # Of nonsense, infinity too.
            following = min(garbage.following, MOST_STORED)
            if garbage.left is not None and garbage.left >= 0:
                following = min(following, now_ms + garbage.left + 1)
            later.setdefault(due.shard, []).extend((int(following), due.key))
        if ended:
            removing.append(("UNLINK", *ended))
        for shard, keys in done.items():
            removing.append(("ZREM", self._names.due(shard), *keys))
        for shard, entries in later.items():
            removing.append(("ZADD", self._names.due(shard), *entries))
        if not removing:
            return collected
        try:
            results = current.commit(*removing)
        except ResponseError:
            if current.results is None:
                raise
            # All commands have been done but the HDEL of keys that somebody has overwritten.
            results = current.results
        for command, garbage, result in zip(removing, removed, results, strict=False):
            if command[0] != "HDEL":
                continue
            is_gone = isinstance(result, ResponseError) and "WRONGTYPE" in str(result)
            if not is_gone and not checked([result])[0]:
                is_gone = True
            collected.items += 1 if is_gone else len(garbage.gone)
            if is_gone and garbage.following is not None:
                collected.doubtful.append(garbage.due)
        return collected

    def _learn(self, hashes: list[_HashGarbage], each: int) -> None:
        """Expect as many expired fields of each hash as these had; take more hashes at once."""
        cut = sum(garbage.expired > each for garbage in hashes)
        if 2 * cut > len(hashes):
            self._fields = max(self._fields, 2 * each)
        else:
            known = [garbage.expired for garbage in hashes if garbage.expired]
            self._fields = max(1, round(sum(known) / max(1, len(known))))
        self._together = min(TOGETHER, self._together + 1)

    def _clear_if_gone(self, due: DueKey, slice: Slice) -> None:
        """Remove all deadlines of a hash that somebody has deleted or overwritten."""
        hash_key, deadlines_key = keys = self._names.for_reading(due.key)
        with attempt(self._job_client, *keys, slice=slice) as current:
            (kind,) = current.read(("TYPE", hash_key))
            if kind != b"hash":
                current.commit(
                    ("UNLINK", deadlines_key), ("ZREM", self._names.due(due.shard), due.key)
                )

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove at most `most` expired fields of hashes on one node, in one round trip.

        For sweeps: the hashes of an index shard take one script, which is as atomic as an attempt
        and never aborted. Raises: Aborted if the server has lost the script; the next call sends it
        again.
        """
        script = self._script("volatile_hashes/collect")
        node = self._job_client.node_of(found[0].shard)
        # As many hashes as probably fill the slice: a hash that is cut short takes a second look.
        some = found[: max(1, -(-most // self._swept))]
        left = found[len(some) :]
        # A script is one command to the server, but max_ops and a daily cap bound the work.
        slice.spend(len(some))
        groups: dict[int, list[DueKey]] = {}
        for due in some:
            groups.setdefault(due.shard, []).append(due)
        commands = [
            self._collecting(
                script, shard, group, max(1, min(most * len(group) // len(some), FIELDS_A_SCRIPT))
            )
            for shard, group in groups.items()
        ]
        if node not in self._loaded:
            # The first command brings the script's text; the others name it by its digest.
            commands[0] = ("EVAL", script.body, *commands[0][2:])
        replies, moved = self._job_client.call_each(node, commands, left_of(slice, timeout))
        self._loaded.add(node)
        fields, handled = 0, 0
        problem: LayoutError | None = None
        for group, reply in zip(groups.values(), replies, strict=True):
            if is_elsewhere(reply):
                continue
            if isinstance(reply, NoScriptError):
                self._loaded.discard(node)
                continue
            removed, looked, foreign = checked([reply])[0]
            fields += removed
            handled += looked - len(foreign)
            left += group[looked:]
            if foreign:
                problem = _foreign_deadlines(foreign[0])
        if handled:
            self._swept = max(1, round(fields / handled))
        if moved is not None:
            # It may have been the command with the script's text.
            self._loaded.discard(node)
            if not handled:
                raise moved
        if node not in self._loaded and not handled:
            raise Aborted("the server has lost the script meanwhile")
        return Served(fields, handled, problem, left)

    def _collecting(
        self, script: Script, shard: int, hashes: Sequence[DueKey], most: int
    ) -> tuple[Any, ...]:
        """Return the command that collects hashes of one index shard, at most so many fields."""
        keys = [self._names.due(shard)]
        for due in hashes:
            keys += self._names.for_reading(due.key)
        return ("EVALSHA", script.sha, len(keys), *keys, most)

    def _by_scripts(self, some: list[DueKey], slice: Slice, limit: int) -> int:
        """Collect hashes by scripts, because a full server has refused the transaction (law 3).

        Arguments:
            limit: the most fields, at least one for each hash.
        """
        if not some:
            return 0
        script = self._script("volatile_hashes/collect")
        commands: list[tuple[Any, ...]] = []
        each, rest = divmod(limit, len(some))
        for number, due in enumerate(some):
            its = each + (number < rest)
            for done in range(0, its, FIELDS_A_SCRIPT):
                most = min(its - done, FIELDS_A_SCRIPT)
                command = self._collecting(script, due.shard, [due], most)
                commands.append(("EVAL", script.body, *command[2:]))
        node = self._job_client.node_of(some[0].shard)
        replies = checked(self._job_client.call(node, commands, Budget(slice.remaining())))
        return sum(int(fields) for fields, _, _ in replies)


@dataclass(slots=True)
class _HashGarbage:
    """One hash with its garbage, as an attempt has read it.

    Fields: due; key and deadlines_key; gone: the fields to remove; expired: how many fields have
    expired, as far as read; following: the deadline after the removed ones, None: there is none;
    left: the reply of PTTL, None: not asked; problem: why it is left alone.
    """

    due: DueKey
    key: bytes
    deadlines_key: bytes
    gone: list[bytes] = field(default_factory=list)
    expired: int = 0
    following: float | None = None
    left: int | None = None
    problem: LayoutError | None = None

    @property
    def has_deadlines(self) -> bool:
        """Whether any deadline was read."""
        return bool(self.gone) or self.following is not None

    def needs_end(self, now_ms: int) -> bool:
        """Say whether to ask when the hash ends as a whole, and whether it has.

        If its next deadline comes soon, a slice finds the deadlines of an ended hash by that; and a
        removed field shows whether there is a hash.
        """
        if self.following is None or self.problem is not None:
            return False
        return not self.gone or self.following > now_ms + SOON_MS


@dataclass(slots=True)
class _Collected:
    """The result of one attempt.

    Fields: items: the number of fields removed (1 for the deadlines of a hash that is gone);
    expired: how many fields had expired; doubtful: hashes that may be gone although deadlines are
    left; problem: why a hash was left alone.
    """

    items: int = 0
    expired: int = 0
    doubtful: list[DueKey] = field(default_factory=list)
    problem: LayoutError | None = None


@contextmanager
def _naming(deadlines: bytes) -> Iterator[None]:
    """Turn the server's WRONGTYPE into an error that names the foreign key."""
    try:
        yield
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise _foreign_deadlines(deadlines) from error


def _foreign_deadlines(deadlines: bytes) -> LayoutError:
    return LayoutError(
        f"the key {deadlines!r} does not hold the deadlines of a volatile hash, and nothing was"
        " changed: remove it if it is not needed"
    )
