"""LogTrimmer: what is too old, too many or too large goes by whole blocks, and nothing else."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, FakeRedisServer, RedisServer
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.jobs.log_trimmer import (
    BLOCKS_A_SCRIPT,
    MEASURED,
    Trimming,
    estimate,
)
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Backlog
from workstealing.structures import AsyncLog, Log

pytestmark = pytest.mark.contract

BLOCK = 4
DAY_S = 86_400.0


def log_on(client: Any, name: str = "log", *, late_s: float = 0.0, **options: Any) -> Any:
    return Log(client, name, BLOCK, clock_shift_ms=int(late_s * 1000), **options)


def filled(client: Any, entries: int, name: str = "log") -> Any:
    log = log_on(client, name)
    log.append(*(b"entry %d" % number for number in range(entries)))
    return log


def perform(job: Any, limit: int | None = None) -> tuple[int, int | None, float | None]:
    one = Slice(limit or job.limit, 10.0)
    return job.perform(one), one.backlog, one.oldest_seconds


def drain(job: Any, slices: int = 100) -> int:
    handled = 0
    for _ in range(slices):
        done, _, _ = perform(job)
        if not done:
            return handled
        handled += done
    raise AssertionError(f"after {slices} slices there is still {job.backlog()}")


def blocks_of(log: Any) -> list[int]:
    """Return the numbers of the blocks that take memory, and see that the sets name no others."""
    client, keys = log.client, log.keys
    found = [each for each in range(200) if client.exists(keys.block(each))]
    for key in (keys.full, keys.raw, keys.times):
        assert {int(each) for each in client.zrange(key, 0, -1)} <= set(found), key
    assert {int(each) for each in client.zrange(keys.times, 0, -1)} == set(found)
    return found


def everything(client: Any) -> dict[Any, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}


def test_so_many_entries_stay(any_server: AnyServer) -> None:
    log = filled(any_server.client(), 30)
    job = LogTrimmer(log, 3, max_entries=9)
    # 21 are too many, which is five blocks and one entry.
    assert job.backlog().count == 5
    assert perform(job)[:2] == (3, 2)
    assert (log.first(), log.length(), blocks_of(log)) == (12, 18, [3, 4, 5, 6, 7])
    assert perform(job)[:2] == (2, 0)
    assert (log.first(), log.length(), blocks_of(log)) == (20, 10, [5, 6, 7])
    assert perform(job)[:2] == (0, 0)
    assert log.read(18, 4) == [None, None, b"entry 20", b"entry 21"]
    assert log.append(b"more", b"and more") == 30
    assert drain(job) == 0
    assert log.append(b"one more") == 32
    assert drain(job) == 1
    assert log.length() == 9


def test_none_stay_but_in_the_block_that_is_being_written(any_server: AnyServer) -> None:
    log = filled(any_server.client(), 10)
    job = LogTrimmer(log, max_entries=0)
    assert drain(job) == 2
    assert (log.first(), log.length(), blocks_of(log)) == (8, 2, [2])
    log.append(b"11th", b"12th")
    assert drain(job) == 1
    assert (log.first(), log.length(), blocks_of(log)) == (12, 0, [])
    assert log.append(b"13th") == 12
    assert log.read(11, 2) == [None, b"13th"]


def test_what_is_too_old_goes(any_server: AnyServer) -> None:
    client = any_server.client()
    filled(client, 10)
    later = log_on(client, late_s=DAY_S)
    later.append(*(b"later %d" % number for number in range(8)))
    # Blocks 0 and 1 are of the first day; in 2 the last entry is of the second one.
    assert drain(LogTrimmer(later, max_age=DAY_S + 3600)) == 0
    job = LogTrimmer(later, max_age=3600)
    backlog = job.backlog()
    assert (backlog.count, backlog.exact) == (2, True)
    assert DAY_S - 3700 < backlog.oldest_seconds < DAY_S - 3500
    assert perform(job, 1)[:2] == (1, 1)
    assert drain(job) == 1
    assert (later.first(), later.length(), blocks_of(later)) == (8, 10, [2, 3, 4])
    assert job.backlog() == Backlog(0, 0.0, "blocks to trim")


def test_an_idle_log_shows_nothing_that_is_too_old(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 10)
    job = LogTrimmer(log_on(client, late_s=DAY_S), max_age=3600)
    assert perform(job)[:2] == (2, 0)
    # The memory of the block that is being written goes when it is full.
    assert (log.first(), log.length(), blocks_of(log)) == (10, 0, [2])
    assert perform(job)[:2] == (0, 0)
    assert log.read(7, 4) == [None, None, None]
    assert log.append(b"11th", b"12th", b"13th") == 10
    assert log.read(9, 4) == [None, b"11th", b"12th", b"13th"]
    assert (drain(job), log.first(), blocks_of(log)) == (1, 13, [3])


def test_only_entries_of_the_open_block_are_too_old(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 3)
    job = LogTrimmer(log_on(client, late_s=DAY_S), max_age=3600)
    assert perform(job)[0] == 1
    assert perform(job)[0] == 0
    assert (log.first(), log.length(), blocks_of(log)) == (3, 0, [0])


def test_a_clock_that_was_set_back_evicts_nothing_too_early(redis7: RedisServer) -> None:
    client = redis7.client()
    late = log_on(client, late_s=DAY_S)
    late.append(*(b"late %d" % number for number in range(BLOCK)))
    filled(client, 2 * BLOCK)
    # Block 0 says that it is of tomorrow, and blocks 1 and 2 behind it of today.
    job = LogTrimmer(log_on(client, late_s=DAY_S), max_age=3600)
    assert drain(job) == 0
    assert drain(LogTrimmer(log_on(client, late_s=2 * DAY_S), max_age=3600)) == 3


def test_a_block_whose_time_was_lost_is_as_old_as_the_next(redis7: RedisServer) -> None:
    client = redis7.client()
    log = filled(client, 3 * BLOCK)
    client.zrem(log.keys.times, 0, 1)
    assert drain(LogTrimmer(log_on(client, late_s=DAY_S), max_age=2 * DAY_S)) == 0
    assert drain(LogTrimmer(log_on(client, late_s=DAY_S), max_age=3600)) == 3


def test_blocks_go_until_the_log_is_small_enough(any_server: AnyServer) -> None:
    client = any_server.client()
    if isinstance(any_server, FakeRedisServer):
        filled(client, 30)
        with pytest.raises(ConfigurationError, match="MEMORY USAGE"):
            perform(LogTrimmer(log_on(client), max_bytes=1))
        return
    log = log_on(client)
    for number in range(40):
        log.append(bytes(1000 + 10 * number))
    sizes = [client.memory_usage(log.keys.block(each), samples=0) for each in range(10)]
    most = sum(sizes[4:]) + 1
    job = LogTrimmer(log, 3, max_bytes=most)
    backlog = job.backlog()
    assert (backlog.exact, backlog.count in {4, 5}) == (True, True)
    assert perform(job)[0] == 3
    assert drain(job) == 1
    assert blocks_of(log) == [4, 5, 6, 7, 8, 9]
    assert sum(client.memory_usage(log.keys.block(each), samples=0) for each in range(4, 10)) < most
    log.append(b"x")
    assert drain(job) == 1
    assert drain(LogTrimmer(log, max_bytes=0)) == 5
    # The block that is being written stays.
    assert log.length() == 1


def test_a_long_log_is_estimated_and_nothing_goes_by_chance(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_on(client)
    chance = random.Random(5)
    blocks = 3 * MEASURED
    log.append(*(bytes(chance.choice([10, 3000])) for _ in range(BLOCK * blocks)))
    total = sum(client.memory_usage(log.keys.block(each), samples=0) for each in range(blocks))
    for seed in range(50):
        job = LogTrimmer(log, max_bytes=total, random=random.Random(seed).random)
        assert perform(job)[0] == 0
        assert job.backlog().exact is False
    job = LogTrimmer(log, 20, max_bytes=total // 2, random=random.Random(1).random)
    assert blocks * 0.3 < job.backlog().count < blocks * 0.6
    drain(job)
    left = sum(client.memory_usage(log.keys.block(each)) or 0 for each in range(blocks))
    assert total * 0.4 < left < total * 0.65


@pytest.mark.parametrize("seed", range(5))
def test_an_estimate_is_rather_too_small(seed: int) -> None:
    chance = random.Random(seed)
    too_large = 0
    for _ in range(200):
        forms = chance.choices([400, 4_000, 20_000], k=2000)
        sizes = [int(form * chance.uniform(0.8, 1.2)) for form in sorted(forms)]
        begin, step = chance.random() * 31, 31.0
        sampled = [sizes[10 + int(begin + place * step)] for place in range(64)]
        found = estimate(sizes[:10], sampled, 1990)
        assert not found.exact
        assert sum(sizes) * 0.75 < found.total
        too_large += found.total > sum(sizes)
    assert too_large < 10
    assert estimate([5, 6], [7, 8], 2).total == 26
    assert estimate([5, 6], [7, 8], 2).exact
    assert estimate([], [], 0).too_many(0) == (0, 0)
    assert estimate([5, 6], [], 0).too_many(11) == (0, 0)
    assert estimate([5, 6], [], 0).too_many(10) == (1, 1)
    assert estimate([5, 6], [7, 8], 2).too_many(8) == (2, 3)


def test_what_an_eviction_has_left_is_freed(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 30)
    # As if the evicter had died behind its first script.
    client.hset(log.keys.meta, "first", 21)
    job = LogTrimmer(log, 2)
    assert job.backlog().count == 5
    assert perform(job)[:2] == (2, 3)
    assert drain(job) == 3
    assert (log.first(), blocks_of(log)) == (21, [5, 6, 7])
    assert client.hget(log.keys.meta, "kept") == b"5"


def test_every_form_of_a_block_goes_with_all_that_names_it(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 30)
    compactor = LogCompactor(log, 2, cold=0, random=lambda: 0.0)
    assert perform(compactor, 2)[0] == 2
    sealer = LogCompactor(log, 2, codec="none", random=lambda: 0.0)
    assert perform(sealer, 2)[0] == 2
    assert {client.type(log.keys.block(each)) for each in range(8)} == {b"string", b"list"}
    assert drain(LogTrimmer(log, 3, max_entries=0)) == 7
    assert blocks_of(log) == [7]
    assert client.zcard(log.keys.full) == client.zcard(log.keys.raw) == 0


def test_a_dry_run_says_what_a_slice_would_do(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 30)
    by_bytes = [] if isinstance(any_server, FakeRedisServer) else [{"max_bytes": 1}]
    for bounds in ({"max_entries": 9}, *by_bytes, {"max_age": 3600}):
        late = log_on(client, late_s=DAY_S)
        dry, wet = (LogTrimmer(late, 2, dry_run=each, **bounds) for each in (True, False))
        before = everything(client)
        said = perform(dry)
        assert everything(client) == before
        done = perform(wet)
        assert (said[0], done[0]) == (2, 2), bounds
        assert said[1] == done[1] + done[0], bounds
        with pytest.raises(ConfigurationError):
            dry.parts(1)
    assert log.first() == 8 * (2 + len(by_bytes))


def test_what_a_group_has_not_read_goes_unless_it_is_spared(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 30)
    mail = log.group("mail", start="first")
    assert len(mail.read(9)) == 9
    sparing = LogTrimmer(log, max_entries=0, spare_groups=True)
    assert sparing.backlog().count == 2
    assert drain(sparing) == 2
    assert (log.first(), blocks_of(log)) == (8, [2, 3, 4, 5, 6, 7])
    # A group that joins at the beginning needs what is left there.
    log.group("late", start="first").read(1)
    assert len(mail.read(100)) == 21
    assert drain(sparing) == 0
    assert drain(LogTrimmer(log, max_entries=4)) == 4
    assert log.first() == 24
    assert log.group("late", start="first").read(1)[0].entry == b"entry 24"
    log.group("late", start="first").delete()
    assert drain(sparing) == 1


def test_what_is_in_a_members_hands_is_spared(any_server: AnyServer) -> None:
    client = any_server.client()
    log = filled(client, 30)
    group = log.group("mail", start="first", ack=True)
    given = group.read(30, member="one")
    assert len(given) == 30
    sparing = LogTrimmer(log, max_age=0.001, spare_groups=True)
    assert drain(sparing) == 0
    group.ack(*(each.offset for each in given if each.offset not in {13, 22}))
    assert drain(sparing) == 3
    assert log.first() == 12
    group.ack(13)
    assert drain(sparing) == 2
    group.ack(22)
    drain(sparing)
    assert (log.first(), blocks_of(log)) == (30, [7])


def test_what_is_gone_already_spares_nothing(redis7: RedisServer) -> None:
    client = redis7.client()
    log = filled(client, 30)
    group = log.group("mail", start="first", ack=True)
    group.read(6, member="one")
    log.evict(9)
    group.seek(30)
    # Pending offsets 0 to 5 stand for entries that nobody can be given any more.
    assert client.zcard(group.keys.pending) == 6
    assert drain(LogTrimmer(log, max_entries=0, spare_groups=True)) == 5
    assert log.first() == 28


def test_the_group_of_a_log_that_was_deleted_spares_nothing(redis7: RedisServer) -> None:
    client = redis7.client()
    log = filled(client, 30)
    log.group("mail", start="first").read(1)
    state = log.keys.group("mail").state
    old = client.dump(state)
    log.delete()
    log = filled(client, 30)
    log.group("mail", start="last").read(1)
    client.restore(state, 0, old, replace=True)
    assert drain(LogTrimmer(log, max_entries=0, spare_groups=True)) == 7


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let somebody act once, between a trimmer's look and its script."""
    look, todo = Trimming._look, [act]

    def looked(self: Trimming, *args: Any) -> Any:
        found = look(self, *args)
        while todo:
            todo.pop()()
        return found

    monkeypatch.setattr(Trimming, "_look", looked)


def test_a_log_made_anew_is_not_judged_by_the_look_at_the_old_one(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(redis7.client(), 30)

    def remake() -> None:
        log.delete()
        filled(redis7.client(), 30)

    meanwhile(monkeypatch, remake)
    job = LogTrimmer(log, max_bytes=1)
    with pytest.raises(Aborted):
        perform(job)
    assert filled(redis7.client(), 1).length() == 31
    assert drain(job) == 7


def test_a_group_that_joins_during_a_slice_aborts_it(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(redis7.client(), 30)
    meanwhile(monkeypatch, lambda: log.group("mail", start="first").read(1))
    with pytest.raises(Aborted):
        perform(LogTrimmer(log, max_entries=0, spare_groups=True))
    assert log.length() == 30
    assert drain(LogTrimmer(log, max_entries=0, spare_groups=True)) == 0


@pytest.mark.parametrize("kind", ["none", "evicted", "trimmed", "deleted"])
def test_whoever_comes_first_wins(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = filled(redis7.client(), 30)
    acts: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "evicted": lambda: log.evict(14),
        "trimmed": lambda: perform(LogTrimmer(log_on(redis7.client()), 5, max_entries=1)),
        "deleted": log.delete,
    }
    meanwhile(monkeypatch, acts[kind])
    done = perform(LogTrimmer(log, 4, max_entries=10))[0]
    assert done == {"none": 4, "evicted": 1, "trimmed": 0, "deleted": 0}[kind]
    if kind == "deleted":
        assert redis7.client().keys() == []
    else:
        assert blocks_of(log)[0] == {"none": 4, "evicted": 4, "trimmed": 5}[kind]


def test_trimmers_beside_writers_and_readers(redis7: RedisServer) -> None:
    entries, most = 3000, 40
    problems: list[BaseException] = []
    done = threading.Event()

    def guarded(work: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told by the test
                problems.append(error)

        return run

    def trim() -> None:
        job = LogTrimmer(log_on(redis7.client()), 2, max_entries=most)
        while not done.is_set():
            perform(job)

    def write() -> None:
        log = log_on(redis7.client())
        for number in range(0, entries, 10):
            log.append(*(b"%d" % (number + each) for each in range(10)))

    def read() -> None:
        log = log_on(redis7.client())
        while not done.is_set():
            info, found = log.read_range(-most, most)
            # What is promised to stay is there, and is what stands at its offset.
            if info.last + 1 >= most:
                assert None not in found
            assert [int(each) for each in found] == [*range(info.offset, info.offset + len(found))]

    writer = threading.Thread(target=guarded(write))
    others = [threading.Thread(target=guarded(each)) for each in (trim, trim, read)]
    for each in (writer, *others):
        each.start()
    writer.join(60)
    done.set()
    for each in others:
        each.join(120)
    assert problems == []
    log = log_on(redis7.client())
    drain(LogTrimmer(log, max_entries=most))
    assert most <= log.length() < most + BLOCK
    assert len(blocks_of_log(log)) <= most // BLOCK + 1


def blocks_of_log(log: Any) -> set[int]:
    base = log.keys.base + b"b"
    return {int(key[len(base) :]) for key in log.client.scan_iter(match=base + b"*")}


def test_several_logs_are_served_at_random_and_divided(redis7: RedisServer) -> None:
    client = redis7.client()
    logs = [filled(client, 30, f"log:{number}") for number in range(5)]
    job = LogTrimmer(logs, 3, max_entries=10, random=random.Random(3).random)
    assert job.backlog().count == 25
    assert job.name == "log_trimmer.log:0"
    parts = job.parts(3)
    assert sorted(number for part in parts for number in part) == [0, 1, 2, 3, 4]
    done = 0
    for part in parts:
        worker = job.for_part(part)
        while not worker.is_drained:
            done += worker.perform(Slice(3, 10.0))
    assert done == 25
    assert [log.first() for log in logs] == [20] * 5
    for log in logs:
        log.append(*[b"x"] * 8)
    for _ in range(100):
        perform(job)
    assert job.backlog().count == 0


def test_a_slice_is_two_round_trips_and_one_attempt(redis7: RedisServer) -> None:
    filled(redis7.client(), 30)
    with FaultyServer(redis7.port) as door:
        log = log_on(redis.Redis(port=door.port, protocol=2))
        for bounds, commands in (
            ({"max_entries": 20}, ["HMGET", "ZRANGE", "EVAL"]),
            ({"max_age": 60, "spare_groups": True}, ["HMGET", "ZRANGE", "HKEYS", "EVAL"]),
            ({"max_bytes": 1}, ["HMGET", "ZRANGE", *["MEMORY"] * 7, "EVAL"]),
        ):
            door.reset()
            log.job_client.close()
            one = Slice(1, 10.0)
            LogTrimmer(log, 1, **bounds).perform(one)
            assert door.names() == commands
            assert one.operations == len(commands)
            batches = {seen.batch for seen in door.seen}
            assert len(batches) <= 3
        door.reset()
        door.fail(3, "cut")
        with pytest.raises(redis.ConnectionError):
            perform(LogTrimmer(log, 1, max_entries=20))
        assert door.connections == 1
        assert len(door.seen) == 3


def test_a_slice_without_end_is_bounded_all_the_same(redis7: RedisServer) -> None:
    log = Log(redis7.client(), "log", 1)
    for _ in range(3):
        log.append(*[b"entry"] * 500)
    job = LogTrimmer(log, 10**9, max_entries=100)
    assert perform(job)[:2] == (BLOCKS_A_SCRIPT, 1_400 - BLOCKS_A_SCRIPT)
    assert perform(job)[:2] == (BLOCKS_A_SCRIPT, 1_400 - 2 * BLOCKS_A_SCRIPT)


@pytest.mark.parametrize("key", ["meta", "full", "raw", "times"])
def test_what_is_foreign_is_left_alone(redis7: RedisServer, key: str) -> None:
    client = redis7.client()
    log = filled(client, 30)
    client.set(getattr(log.keys, key), "foreign")
    before = everything(client)
    for bounds in ({"max_entries": 0}, {"max_bytes": 1}, {"max_age": 0.001}):
        with pytest.raises(LayoutError, match="nothing was changed"):
            perform(LogTrimmer(log, **bounds))
    assert everything(client) == before


def test_a_foreign_group_and_a_newer_layout_are_left_alone(redis7: RedisServer) -> None:
    client = redis7.client()
    log = filled(client, 30)
    log.group("mail", start="last").read(1)
    client.delete(log.keys.group("mail").state)
    client.set(log.keys.group("mail").state, "foreign")
    with pytest.raises(LayoutError):
        perform(LogTrimmer(log, max_entries=0, spare_groups=True))
    client.hset(log.keys.meta, "mark", "3")
    before = everything(client)
    with pytest.raises(LayoutError):
        perform(LogTrimmer(log, max_entries=0))
    assert everything(client) == before


def test_no_log_is_made_by_looking(any_server: AnyServer) -> None:
    log = log_on(any_server.client())
    for bounds in (
        {},
        {"max_entries": 0},
        {"max_bytes": 0},
        {"max_age": 1, "spare_groups": True},
    ):
        job = LogTrimmer(log, **bounds)
        assert perform(job)[0] == 0
        assert job.backlog().count == 0
    assert list(any_server.client().scan_iter()) == []


def test_a_trimmer_of_an_asyncio_log(redis7: RedisServer) -> None:
    log = filled(redis7.client(), 30)
    job = LogTrimmer(AsyncLog(redis7.async_client(), "log", BLOCK), max_entries=0)
    assert drain(job) == 7
    assert log.length() == 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_age": 0},
        {"max_age": "1"},
        {"max_entries": -1},
        {"max_entries": 1.5},
        {"max_bytes": True},
        {"spare_groups": 1},
        {"limit": 0},
    ],
)
def test_bad_settings_are_refused(redis7: RedisServer, options: dict[str, Any]) -> None:
    log = log_on(redis7.client())
    with pytest.raises(ConfigurationError):
        LogTrimmer(log, **options)


def test_what_is_no_log_is_refused(redis7: RedisServer) -> None:
    things: list[Any] = [None, "log", [], [log_on(redis7.client()), 1], redis7.client()]
    for thing in things:
        with pytest.raises(ConfigurationError, match="cannot be trimmed"):
            LogTrimmer(thing)


@pytest.mark.parametrize("command", ["hmget", "hkeys"])
def test_a_refused_command_is_no_empty_log(redis7: RedisServer, command: str) -> None:
    log_on(redis7.client()).append(*[b"x"] * 20)
    admin = redis7.client()
    admin.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", f"-{command}")
    try:
        log = log_on(redis7.client(username="poor", password="x"))
        with pytest.raises(NoPermissionError, match=command):
            perform(LogTrimmer(log, max_entries=4, spare_groups=True), 5)
        with pytest.raises(NoPermissionError, match=command):
            LogTrimmer(log, max_entries=4, spare_groups=True).backlog()
    finally:
        admin.execute_command("ACL", "DELUSER", "poor")
    assert log_on(redis7.client()).length() == 20
