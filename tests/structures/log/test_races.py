"""A log under many writers, readers, evicters and compactors: no gap, no double, no garbage."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.at_once import at_once
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, spawn
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import Aborted
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting import Slice
from workstealing.structures import Log

AnyReal = RedisServer | RedisCluster3
NAME = "raced"
BLOCK = 10
PATIENCE_S = 60.0
CODECS = ("none", "zlib", "auto")


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyReal]:
    found: AnyReal = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def log_on(server: AnyReal, block: int = BLOCK) -> Any:
    return Log(server.client(), NAME, block)


def entry_of(writer: int, number: int) -> bytes:
    # Long enough for compressed blocks to differ in size from others.
    return b"writer %d entry %d " % (writer, number) + b"." * (number * 7 % 60)


class Written:
    """What the writers of one test have been told, and what that makes of the log."""

    def __init__(self) -> None:
        self.by_writer: dict[int, list[tuple[int, list[bytes]]]] = {}
        self.done = threading.Event()

    def write(self, server: AnyReal, writer: int, entries: int, most: int, **options: Any) -> None:
        """Append so many entries, in batches of 1 to most, by a log of this writer's own."""
        log, rng = log_on(server), random.Random(writer)
        told = self.by_writer.setdefault(writer, [])
        number = 0
        while number < entries:
            batch = [
                entry_of(writer, number + i)
                for i in range(min(entries - number, rng.randint(1, most)))
            ]
            told.append((log.append(*batch, **options), batch))
            number += len(batch)

    def in_order(self) -> list[bytes]:
        """Return all entries by offset, having checked that offsets are those of a log."""
        found: dict[int, bytes] = {}
        for told in self.by_writer.values():
            firsts = [first for first, _ in told]
            assert firsts == sorted(firsts), "a writer's entries are not in its own order"
            for first, batch in told:
                for i, entry in enumerate(batch):
                    assert first + i not in found, f"two entries have the offset {first + i}"
                    found[first + i] = entry
        assert sorted(found) == list(range(len(found))), "there are gaps"
        return [found[offset] for offset in range(len(found))]


def compact(log: Any, rng: random.Random, done: Callable[[], bool]) -> int:
    """Seal and compress whatever can be, until it is done; return how many blocks that were."""
    blocks = 0
    while not done():
        job = LogCompactor(log, limit=3, cold=0, codec=rng.choice(CODECS))
        try:
            blocks += job.perform(Slice(3, 5.0))
        except Aborted:
            continue
    return blocks


def test_writers_at_once_leave_no_gap_and_keep_batches_together(server: AnyReal) -> None:
    written = Written()
    at_once(
        [
            partial(written.write, server, writer, 300, most)
            for writer, most in enumerate((1, 1, 5, 5, 12, 35))
        ]
    )
    entries = written.in_order()
    log = log_on(server)
    assert (log.length(), log.first(), log.last()) == (1_800, 0, 1_799)
    assert log.read(0, 2_000) == entries
    assert log.stats().blocks == 180


def test_readers_see_the_entry_or_nothing_whatever_goes_on(server: AnyReal) -> None:
    """Writers, readers, evicters, trimmers and compactors at once, on blocks of ten entries."""
    written, writers, a_writer = Written(), 3, 400
    seen: list[tuple[int, bytes | None, int]] = []
    limit = time.monotonic() + PATIENCE_S
    left = [writers]
    lock = threading.Lock()

    def done() -> bool:
        return written.done.is_set() or time.monotonic() > limit

    def write(writer: int) -> None:
        try:
            written.write(server, writer, a_writer, 7)
        finally:
            with lock:
                left[0] -= 1
                if not left[0]:
                    written.done.set()

    def follow() -> None:
        """Read what there is and wait for what comes, as a tail does."""
        log, rng, offset = log_on(server), random.Random(1), 0
        while not (done() and offset > log.last()):
            entries = log.read(offset, rng.randint(1, 40), block=0.02)
            first = log.first()
            seen.extend((offset + i, entry, first) for i, entry in enumerate(entries))
            offset += len(entries)

    def rewind() -> None:
        """Read anywhere, again and again, so that blocks are met in every form."""
        log, rng = log_on(server), random.Random(2)
        while not done():
            info, entries = log.read_range(rng.randrange(log.last() + 2), rng.randint(1, 35))
            first = log.first()
            assert info.number == len(entries)
            assert info.first <= first
            seen.extend((info.offset + i, entry, first) for i, entry in enumerate(entries))

    def evict() -> None:
        log, rng, before = log_on(server), random.Random(3), 0
        while not done():
            length = log.last() + 1
            if rng.random() < 0.5:
                log.evict(keep=rng.randint(150, 400))
            elif length > 200:
                log.evict(rng.randrange(length - 200))
            assert before <= log.first() <= log.last() + 1
            before = log.first()

    def trim() -> None:
        log = log_on(server)
        while not done():
            try:
                LogTrimmer(log, max_entries=300).perform(Slice(5, 5.0))
            except Aborted:
                continue

    def seal(number: int) -> None:
        compacted.append(compact(log_on(server), random.Random(number), done))

    compacted: list[int] = []
    works: list[Callable[[], None]] = [partial(write, writer) for writer in range(writers)]
    works += [follow, rewind, evict, trim, partial(seal, 1), partial(seal, 2)]
    at_once(works)
    entries = written.in_order()
    assert len(entries) == writers * a_writer
    for offset, entry, first in seen:
        # It may have been evicted between the read and the look at the first; never the reverse.
        assert entry == entries[offset] or (entry is None and offset < first), (offset, first)
    assert {offset for offset, _, _ in seen} == set(range(len(entries)))
    assert sum(compacted) > 0
    log = log_on(server)
    first = log.first()
    assert log.read(0, len(entries)) == [None] * first + entries[first:]
    # Nobody has left a block behind: what is there are the blocks that are not evicted.
    log.evict(keep=0)
    while LogTrimmer(log, max_entries=0).perform(Slice(50, 5.0)):
        pass
    assert blocks_in(server, log) == set()


def blocks_in(server: AnyReal, log: Any) -> set[bytes]:
    """Return the keys of the blocks that the log has on the server."""
    return {
        key
        for key in server.client().scan_iter(count=1_000)
        if key.startswith(log.keys.base + b"b")
    }


def test_appends_with_keep_at_once_leave_at_least_that_many(server: AnyReal) -> None:
    written = Written()
    shortest: list[int] = []

    def look() -> None:
        log = log_on(server)
        while not written.done.is_set():
            info, _ = log.read_range(0, 0)
            shortest.append(info.last + 1 - info.first)
            assert info.last + 1 < 100 or info.last + 1 - info.first >= 100
            assert info.last + 1 - info.first < 100 + BLOCK + 7 + 1

    def write() -> None:
        try:
            at_once(
                [partial(written.write, server, writer, 400, 7, keep=100) for writer in range(3)]
            )
        finally:
            written.done.set()

    at_once([write, look, look])
    entries = written.in_order()
    log = log_on(server)
    first = log.first()
    assert first % BLOCK == 0
    assert log.read(first, 500) == entries[first:]
    assert max(shortest) >= 100
    # Each append frees what it knows of, so what is left is within a few blocks of what is needed.
    assert len(blocks_in(server, log)) <= len(entries[first:]) // BLOCK + 4


WRITER = """
import json, random, sys
import redis
from workstealing.structures import Log
port, name, block, writer, entries = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
log = Log(redis.Redis(port=int(port)), name, block)
rng, number = random.Random(writer), 0
print("ready", flush=True)
sys.stdin.readline()
told = []
while number < entries:
    batch = [f"process {writer} entry {number + i}" for i in range(rng.randint(1, 9))]
    told.append((log.append(*batch), batch))
    number += len(batch)
print(json.dumps(told), flush=True)
"""


@pytest.mark.slow
def test_processes_that_append_at_once_leave_no_gap(redis7: RedisServer) -> None:
    children: list[subprocess.Popen[Any]] = []
    root = Path(__file__).resolve().parents[3]
    try:
        for writer in range(3):
            command = [sys.executable, "-P", "-c", WRITER, str(redis7.port), NAME, str(BLOCK)]
            children.append(
                spawn(
                    [*command, str(writer), "400"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root,
                )
            )  # fmt: skip
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        written = Written()
        stop = threading.Event()
        log = log_on(redis7)
        job = threading.Thread(target=compact, args=(log_on(redis7), random.Random(9), stop.is_set))
        job.start()
        try:
            for writer, child in enumerate(children):
                assert child.stdout is not None
                told = json.loads(child.stdout.readline())
                written.by_writer[writer] = [
                    (first, [text.encode() for text in batch]) for first, batch in told
                ]
        finally:
            stop.set()
            job.join()
    finally:
        for child in children:
            end(child)
    entries = written.in_order()
    assert len(entries) >= 1_200
    assert log.read(0, len(entries) + 1) == entries


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_changes_its_form_between_two_reads_is_the_same(
    server: AnyReal, codec: str
) -> None:
    writer, warm = log_on(server), log_on(server)
    entries = [entry_of(0, number) for number in range(45)]
    writer.append(*entries)

    def all_of(log: Any) -> list[bytes | None]:
        found: list[bytes | None] = log.read(0, 100)
        each = [log.read(offset, 1) for offset in range(len(found))]
        assert each == [[entry] for entry in found]
        assert log.read(7, 20) == found[7:27]
        return found

    def both() -> list[bytes | None]:
        found = all_of(warm)
        assert all_of(log_on(server)) == found
        return found

    assert both() == entries
    while LogCompactor(writer, limit=1, cold=0, codec="none").perform(Slice(1, 5.0)):
        assert both() == entries
    assert writer.stats().sealed == 4
    while LogCompactor(writer, limit=1, cold=0, codec=codec).perform(Slice(1, 5.0)):
        assert both() == entries
    assert writer.stats().compressed == (0 if codec == "none" else 4)
    # What was read from a cache is evicted as soon as it is evicted.
    for offset in (0, 8, 9, 10, 25, 39, 40, 44):
        writer.evict(offset)
        assert both() == [None] * (offset + 1) + entries[offset + 1 :]
    assert writer.append(b"the next") == 45
    assert both()[44:45] == [None]
    assert warm.read(45, 5) == [b"the next"]


def test_an_iteration_goes_on_while_blocks_are_sealed_and_evicted_under_it(
    server: AnyReal,
) -> None:
    entries = [entry_of(0, number) for number in range(120)]
    for back in (False, True):
        log, other = log_on(server), log_on(server)
        log.append(*entries)
        found: list[bytes | None] = []
        steps = reversed(log) if back else iter(log)
        job = LogCompactor(other, limit=1, cold=0, codec="zlib")
        evicted = 0
        for number, entry in enumerate(steps):
            found.append(entry)
            if number % 3 == 0:
                job.perform(Slice(1, 5.0))
            if number % 20 == 19:
                evicted = number - 5
                other.evict(evicted - 1)
        in_order = found[::-1] if back else found
        assert len(in_order) == 120
        for offset, entry in enumerate(in_order):
            assert entry == entries[offset] or (entry is None and offset < evicted)
        if not back:
            # What is read before it is evicted is there: eviction stays behind this reader.
            assert in_order == entries
        log.delete()


def test_a_log_that_is_deleted_and_made_anew_is_another_one(server: AnyReal) -> None:
    """No block of the old one comes out of a cache, nor is its end where the new one's is."""
    warm, writer = log_on(server), log_on(server)
    writer.append(*[entry_of(1, number) for number in range(35)])
    while LogCompactor(writer, limit=5, cold=0, codec="zlib").perform(Slice(5, 5.0)):
        pass
    assert len(warm.read(0, 100)) == 35
    log_on(server).delete()
    assert warm.read(0, 100) == []
    new = [entry_of(2, number) for number in range(12)]
    assert log_on(server).append(*new) == 0
    assert warm.read(0, 100) == new
    while LogCompactor(log_on(server), limit=5, cold=0, codec="zlib").perform(Slice(5, 5.0)):
        assert warm.read(0, 100) == new
    # A writer that knew the old one's end appends where the new one's is.
    assert writer.append(b"next") == 12
    assert warm.read(0, 100) == [*new, b"next"]


@pytest.mark.parametrize("others", [1, 20, 500])
def test_an_append_comes_through_however_fast_others_fill_blocks(
    redis7: RedisServer, others: int
) -> None:
    log, other = (Log(redis7.client(), "l", 1) for _ in range(2))
    log.append(b"x")
    script, tries = log.script, []

    def delayed(name: str) -> Any:
        # Always one more batch of others than the last reply has told of.
        tries.append(name)
        other.append(*[b"o"] * others)
        return script(name)

    log.script = delayed  # type: ignore[method-assign]
    for _ in range(3):
        offset = log.append(b"a", b"b")
        assert other.read(offset, 2) == [b"a", b"b"]
    assert len(tries) < 40
