"""Law 6 for logs: whoever dies at any command, nothing is lost, doubled or orphaned.

Processes are killed (SIGKILL) before and after each of their commands, and clients are cut off at
each of theirs: writers, readers, groups, evicters, compactors, trimmers, and who deletes the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.logs import (
    BLOCK,
    LATE_MS,
    check_entries,
    check_whole,
    entries_from,
    keep_up,
    keys_by_log,
    lasting_keys,
)
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting import Slice
from workstealing.structures import Log

pytestmark = [pytest.mark.real, pytest.mark.slow]

BATCHES = (6, 5, 1, 9)
EXPECTED = entries_from(0, sum(BATCHES))
ENDS = {sum(BATCHES[:number]) for number in range(len(BATCHES) + 1)}


def groups_of(log: Any) -> tuple[Any, Any]:
    return log.group("mail"), log.group("work", ack=True, lease=60, max_attempts=1)


def slice_of(job: Any, limit: int = 2) -> None:
    job.perform(Slice(limit, 10.0))


def write_and_read(client: Any) -> None:
    """Append, read, hand out, acknowledge, set aside, revive and discard."""
    log = Log(client, "log", BLOCK)
    mail, work = groups_of(log)
    log.append(*entries_from(0, 6))
    mail.read(2)
    given = work.read(5)
    work.ack(*given[:2])
    log.append(*entries_from(6, 5))
    log.append(*entries_from(11, 1))
    groups_of(Log(client, "log", BLOCK, clock_shift_ms=LATE_MS))[1].read(2)
    dead = [each.offset for each in work.dead()]
    work.revive(*dead[:1])
    work.discard(*dead[1:])
    work.seek(8)
    log.append(*entries_from(12, 9), keep=10)
    log.read(0, 21)
    mail.delete()


def compact_and_evict(client: Any) -> None:
    """Seal, compress, and evict by hand and by `keep`."""
    log = Log(client, "log", BLOCK)
    late = Log(client, "log", BLOCK, clock_shift_ms=LATE_MS)
    log.append(*entries_from(0, 6))
    log.append(*entries_from(6, 5))
    slice_of(LogCompactor(log, cold=0, codec="none", random=lambda: 0.0))
    log.append(*entries_from(11, 1))
    slice_of(LogCompactor(late, cold=0, codec="zlib", random=lambda: 0.0))
    log.evict(2)
    log.append(*entries_from(12, 9), keep=12)
    log.evict(keep=3)


def trim(client: Any) -> None:
    """Trim by every bound, past a group that is spared and after somebody else's eviction."""
    log = Log(client, "log", BLOCK)
    late = Log(client, "log", BLOCK, clock_shift_ms=LATE_MS)
    mail, _ = groups_of(log)
    log.append(*entries_from(0, 6))
    log.append(*entries_from(6, 5))
    log.append(*entries_from(11, 1))
    mail.read(5)
    slice_of(LogTrimmer(log, max_entries=2, spare_groups=True))
    log.append(*entries_from(12, 9))
    slice_of(LogTrimmer(log, max_entries=14), 1)
    slice_of(LogTrimmer(log, max_bytes=500), 1)
    log.evict(11)
    slice_of(LogTrimmer(late, max_age=60), 1)
    slice_of(LogTrimmer(late, max_age=60))


def delete(client: Any) -> None:
    """Fill a log with everything, and delete it."""
    log = Log(client, "log", BLOCK)
    mail, work = groups_of(log)
    log.append(*entries_from(0, 6))
    log.append(*entries_from(6, 5))
    slice_of(LogCompactor(log, cold=0, random=lambda: 0.0))
    mail.read(2)
    work.read(3)
    log.delete()


def write_by_ids(client: Any, late_ms: int = LATE_MS + 1000) -> None:
    """Append with ids, by a pipeline too, and let a trimmer look which are to be forgotten."""
    log = Log(client, "log", BLOCK)
    log.append(*entries_from(0, 6), producer="p", id="1")
    log.append_each(entries_from(6, 5), [f"{each}" for each in range(5)], "q")
    with log.pipeline() as p:
        p.append(*entries_from(11, 1), producer="p", id="2")
        p.append_each(entries_from(6, 5), [f"{each}" for each in range(5)], "q").execute()
    slice_of(LogTrimmer(Log(client, "log", BLOCK, clock_shift_ms=late_ms)))
    log.append_each(entries_from(12, 9), [f"2:{each}" for each in range(9)], "p")
    log.append(*entries_from(0, 6), producer="p", id="1")


def delete_with_ids(client: Any) -> None:
    """Delete a log of which producers have ids."""
    log = Log(client, "log", BLOCK)
    log.append(*entries_from(0, 6), producer="p", id="1")
    log.append(*entries_from(6, 5), producer="q", id="1")
    log.delete()


WORKS = [write_and_read, compact_and_evict, trim, delete, write_by_ids, delete_with_ids]


def whole(client: redis.Redis) -> int:
    """See that what is left is a whole log, of whole batches; return where it ends."""
    present = keys_by_log([client], ["log"])["log"]
    _, end, _ = check_whole(client, "log", present)
    assert end in ENDS
    check_entries(client, "log", EXPECTED[:end])
    return end


def nobody_forgot_anything(client: redis.Redis) -> None:
    """See that of the acknowledged group each entry is waiting, pending, dead or was worked on."""
    log = Log(client, "log", BLOCK)
    if not client.hexists(log.keys.meta, "group:work"):
        return
    work = groups_of(log)[1]
    first = log.first()
    held = {each.offset for each in (*work.pending(), *work.dead())}
    done = {0, 1} | {2, 3, 4}  # acknowledged, and discarded
    missing = set(range(first, work.offset())) - held
    # A seek on purpose passes over what nobody has read.
    assert missing <= done | set(range(5, 8)), missing


def clear_out(client: redis.Redis, death: str) -> None:
    """Do by new processes what the dead one had left to do; in the end nothing remains."""
    end = whole(client)
    nobody_forgot_anything(client)
    keep_up(client, ["log"])
    assert whole(client) == end, death
    meta = client.hmget("log/log/{log}/meta", "first", "kept")
    if meta[0] is not None:
        # No block is left of which all was evicted.
        assert int(meta[1]) == int(meta[0]) // BLOCK
    log = Log(client, "log", BLOCK)
    assert log.append(*entries_from(end, 1)) == end
    log.evict(keep=0)
    present = keys_by_log([client], ["log"])["log"]
    assert check_whole(client, "log", present) == (end + 1, end + 1, (end + 1) // BLOCK)
    assert log.delete() is True
    assert lasting_keys(client) == set(), death


@pytest.mark.parametrize("work", WORKS)
def test_a_process_that_dies_at_any_command(
    redis7: RedisServer, work: Callable[[Any], None]
) -> None:
    direct = redis7.client()
    deaths = 0
    with FaultyServer(redis7.port) as door:

        def run() -> None:
            work(redis.Redis(port=door.port, protocol=2))

        for death in every_death([door], run, direct.flushall):
            clear_out(direct, death)
            deaths += 1
    assert deaths > 2 * 9


def test_a_process_that_dies_and_one_that_sends_all_of_it_again(redis7: RedisServer) -> None:
    """With ids, what the dead one has written is not written again."""
    direct = redis7.client()
    deaths = 0
    with FaultyServer(redis7.port) as door:

        def run() -> None:
            write_by_ids(redis.Redis(port=door.port, protocol=2), 0)

        for death in every_death([door], run, direct.flushall):
            whole(direct)
            write_by_ids(direct, 0)
            assert Log(direct, "log").read(0, 99) == EXPECTED, death
            clear_out(direct, death)
            deaths += 1
    assert deaths > 9


@pytest.mark.parametrize("work", WORKS)
def test_a_connection_that_is_cut_at_any_command(
    redis7: RedisServer, work: Callable[[Any], None]
) -> None:
    direct = redis7.client()
    with FaultyServer(redis7.port) as door:
        for at in range(1, 200):
            direct.flushall()
            door.reset()
            door.fail(at, "cut")
            client = redis.Redis(
                port=door.port, protocol=2, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)
            )
            with contextlib.suppress(redis.ConnectionError):
                work(client)
            is_over = len(door.seen) < at
            client.close()
            door.reset()
            clear_out(direct, f"cut at {at}")
            if is_over:
                assert at > 9
                break
        else:
            pytest.fail("still working after 200 commands")


def test_an_append_whose_reply_is_cut_off_is_there_once_and_whole(redis7: RedisServer) -> None:
    """The client's own retries do not append a batch twice."""
    direct = redis7.client()
    log = Log(direct, "log", BLOCK)
    with FaultyServer(redis7.port) as door:
        log.append(b"before")
        client = redis.Redis(port=door.port, protocol=2)
        client.ping()
        door.fail(len(door.names()) + 1, "cut")
        with pytest.raises(redis.ConnectionError, match="it was not sent again"):
            Log(client, "log", BLOCK).append(*entries_from(0, 6))
    assert log.read(1, 20) == entries_from(0, 6)
    check_whole(direct, "log", keys_by_log([direct], ["log"])["log"])
