"""Appends with an id: whoever sends one again, however often, the log has its entries once."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from support.at_once import at_once
from support.children import in_child
from support.faulty_server import FaultyServer
from support.logs import check_whole, keys_by_log
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import LogTrimmer
from workstealing.recruiting import Slice
from workstealing.structures import AsyncLog, Log

pytestmark = pytest.mark.contract

BLOCK = 10
HOUR_MS = 3_600_000


def log_on(server: Any, **options: Any) -> Any:
    return Log(server.client(), "visits", options.pop("block", BLOCK), **options)


def ids_of(log: Any, producer: str = "p") -> dict[bytes, float]:
    found = dict(log.client.zrange(log.keys.ids(producer), 0, -1, withscores=True))
    found.pop(b"", None)
    return found


def whole(log: Any) -> None:
    """See that every producer's ids can be found, and that no others are there."""
    client = log.client
    nodes = client.get_primaries() if hasattr(client, "get_primaries") else []
    nodes = [redis.Redis(host=each.host, port=each.port) for each in nodes] or [client]
    check_whole(client, log.name, keys_by_log(nodes, [log.name])[log.name])


def test_the_same_id_is_answered_by_the_same_offset(any_server: AnyServer) -> None:
    log, other = log_on(any_server), log_on(any_server, block=7)
    assert log.append(b"a", b"b", producer="p", id="1") == 0
    for one in (log, other, log_on(any_server)):
        assert one.append(b"a", b"b", producer=b"p", id=b"1") == 0
    # Whatever the entries are, as Redis' IDMP has it.
    assert other.append(b"quite another", producer="p", id="1") == 0
    assert log.append(b"c", producer="p", id="2") == 2
    assert log.append(b"d", producer="q", id="2") == 3
    assert log.append(b"e") == 4
    assert other.append(b"c", producer="p", id="2") == 2
    assert log.read(0, 20) == [b"a", b"b", b"c", b"d", b"e"]
    assert ids_of(log) == {b"1": 0, b"2": 2}
    whole(log)


def test_each_entry_may_have_an_id_of_its_own(any_server: AnyServer) -> None:
    log = log_on(any_server)
    assert log.append_each([b"0", b"1", b"2"], ["a", "b", "c"], "p") == [0, 1, 2]
    assert log.append_each([b"0", b"3", b"2", b"4"], ["a", "d", "c", "e"], "p") == [0, 3, 2, 4]
    assert log.append_each([b"4", b"1"], ["e", "b"], "p") == [4, 1]
    # Of an id that stands there twice, the first entry counts.
    assert log.append_each([b"5", b"not", b"6"], ["f", "f", "g"], "p", keep=100) == [5, 5, 6]
    assert log.append_each([b"7"], [b"\x00\xff"], "p") == [7]
    assert log.append(b"not", producer="p", id="d") == 3
    assert log.read(0, 20) == [b"%d" % number for number in range(8)]
    whole(log)


def test_ten_thousand_entries_with_ids_in_one_call(any_server: AnyServer) -> None:
    log = log_on(any_server, block=1000, most_ids=10_000)
    entries, ids = ([b"%d" % number for number in range(10_000)] for _ in range(2))
    first = log.append_each(entries[:7000], ids[:7000], "p")
    assert first == [*range(7000)]
    assert log.append_each(entries, ids, "p") == [*range(10_000)]
    assert log.append_each(entries, ids, "p") == [*range(10_000)]
    assert log.read(0, 10_001) == entries
    assert len(ids_of(log)) == 10_000
    whole(log)


def test_batches_over_blocks_and_with_a_keep(any_server: AnyServer) -> None:
    log = log_on(any_server)
    batch = [b"%d" % number for number in range(35)]
    assert log.append(*batch, producer="p", id="1", keep=12) == 0
    assert log.append(*batch, producer="p", id="1", keep=12) == 0
    assert (log.first(), log.last()) == (20, 34)
    # The offset of an entry that is evicted is answered, too: it is never written again.
    assert log.append_each(batch, ["1"] * 35, "p") == [0] * 35
    assert log.read(0) == [None]
    assert log.append_each([b"x"] * 30, [f"2:{n}" for n in range(30)], "p", keep=5) == [
        *range(35, 65)
    ]
    assert log.first() == 60
    whole(log)


def test_a_window_has_so_many_ids(any_server: AnyServer) -> None:
    log = log_on(any_server, most_ids=3)
    for number in range(5):
        assert log.append(b"%d" % number, producer="p", id=f"{number}") == number
    assert ids_of(log) == {b"2": 2, b"3": 3, b"4": 4}
    assert log.append(b"2", producer="p", id="2") == 2
    # This one is not known any more.
    assert log.append(b"0", producer="p", id="0") == 5
    # Another producer's ids have nothing to do with it.
    assert log.append(b"0", producer="q", id="0") == 6
    with pytest.raises(ConfigurationError, match="4 ids do not fit into a window of 3"):
        log.append_each([b"x"] * 4, ["a", "b", "c", "d"], "p")
    assert log.length() == 7


def test_an_id_is_known_for_its_window_at_least(any_server: AnyServer) -> None:
    at = {
        late: log_on(any_server, clock_shift_ms=int(late * HOUR_MS))
        for late in (0, 0.9, 1.1, 2, 2.2, 3.3)
    }
    assert at[0].append(b"a", producer="p", id="1") == 0
    assert at[0.9].append(b"b", producer="p", id="2") == 1
    # An hour and more later: all that is older than an hour now is marked.
    assert at[1.1].append(b"c", producer="p", id="3") == 2
    assert at[2].append(b"b", producer="p", id="2") == 1
    assert at[2.2].append(b"a", producer="p", id="1") == 3
    assert at[2.2].append(b"c", producer="p", id="3") == 2
    assert ids_of(at[0]) == {b"3": 2, b"1": 3}
    assert at[3.3].append(b"d", producer="p", id="3") == 4
    whole(at[0])


def test_the_longest_window_of_a_logs_writers_counts(any_server: AnyServer) -> None:
    short = log_on(any_server, id_window=0.001)
    long = log_on(any_server, id_window=100)
    late = log_on(any_server, id_window=0.001, clock_shift_ms=90_000)
    assert short.append(b"a", producer="p", id="1") == 0
    assert long.append(b"b", producer="p", id="2") in {1}
    assert late.append(b"b", producer="p", id="2") == 1
    assert late.append(b"c", producer="p", id="3") == 2
    assert late.append(b"b", producer="p", id="2") == 1


@pytest.mark.parametrize("late", [-400 * 24, 400 * 24])
def test_a_clock_that_was_wrong_forgets_in_the_end(any_server: AnyServer, late: int) -> None:
    wrong, right = log_on(any_server, clock_shift_ms=late * HOUR_MS), log_on(any_server)
    assert wrong.append(b"a", producer="p", id="1") == 0
    assert wrong.append(b"a", producer="idle", id="1") == 1
    assert right.append(b"b", producer="p", id="2") == 2
    assert right.append(b"a", producer="p", id="1") in ({0} if late > 0 else {0, 3})
    job = LogTrimmer(right)
    while job.perform(Slice(5, 10.0)):
        pass
    later = LogTrimmer(log_on(any_server, clock_shift_ms=HOUR_MS + 1000))
    latest = LogTrimmer(log_on(any_server, clock_shift_ms=2 * HOUR_MS + 2000))
    for each in (later, latest):
        while each.perform(Slice(5, 10.0)):
            pass
    assert ids_of(right) == ids_of(right, "idle") == {}
    assert right.client.exists(right.keys.producers) == 0
    whole(right)


def test_the_trimmer_forgets_whole_producers(any_server: AnyServer) -> None:
    log = log_on(any_server)
    for number in range(25):
        log.append(b"x", producer=f"task {number}", id="1")
    log.append(b"y", b"z", producer="busy", id="1")
    late = log_on(any_server, clock_shift_ms=HOUR_MS + 1000)
    late.append(b"y", producer="busy", id="2")
    job = LogTrimmer(late, limit=10)
    dry = LogTrimmer(late, limit=10, dry_run=True)
    assert (job.backlog().count, dry.perform(Slice(10, 10.0))) == (25, 10)
    assert [job.perform(Slice(10, 10.0)) for _ in range(4)] == [10, 10, 5, 0]
    # Marked once; known for up to two windows.
    assert log.append(b"x", producer="task 7", id="1") == 7
    latest = log_on(any_server, clock_shift_ms=2 * HOUR_MS + 5000)
    job = LogTrimmer(latest, limit=10)
    found = job.backlog()
    assert (found.count, found.exact) == (26, True)
    assert 0 < (found.oldest_seconds or 0) < 3600
    assert sum(iter(lambda: job.perform(Slice(10, 10.0)), 0)) == 26
    assert job.backlog().count == 0
    assert log.client.zrange(log.keys.producers, 0, -1) == [b"busy"]
    assert ids_of(log, "busy") == {b"2": 27}
    assert latest.append(b"x", producer="task 7", id="1") == 28
    whole(log)


def test_more_ids_than_a_script_forgets(redis7: RedisServer) -> None:
    log = log_on(redis7, block=1000, most_ids=25_000)
    for part in range(3):
        ids = [f"{part}:{number}" for number in range(8000)]
        log.append_each([b"x"] * 8000, ids, "p")
    for late_ms in (HOUR_MS + 1000, 2 * HOUR_MS + 2000):
        late = log_on(redis7, clock_shift_ms=late_ms)
        job = LogTrimmer(late)
        while job.perform(Slice(5, 10.0)):
            pass
    assert log.client.exists(log.keys.ids("p"), log.keys.producers) == 0


def test_a_writer_forgets_what_it_must_not_know_any_more(redis7: RedisServer) -> None:
    """Its script removes a part of them; the others are not known either."""
    log = log_on(redis7, block=1000, most_ids=25_000)
    ids = [f"{number}" for number in range(24_000)]
    for part in range(3):
        log.append_each([b"x"] * 8000, ids[part * 8000 : part * 8000 + 8000], "p")
    log_on(redis7, clock_shift_ms=HOUR_MS + 1000, most_ids=25_000).append(
        b"y", producer="p", id="y"
    )
    late = log_on(redis7, clock_shift_ms=2 * HOUR_MS + 2000, most_ids=25_000)
    end = log.last() + 1
    assert late.append(b"z", producer="p", id="z") == end
    assert late.append(b"z", producer="p", id=ids[-1]) == end + 1
    assert late.append(b"z", producer="p", id=ids[-1]) == end + 1
    for number in range(3):
        late.append(b"z", producer="p", id=f"z{number}")
    assert late.append(b"z", producer="p", id="y") == 24_000
    assert len(ids_of(log)) == 6


def test_the_log_takes_the_ids_with_it(any_server: AnyServer) -> None:
    log = log_on(any_server)
    for number in range(230):
        log.append(b"x", producer=f"{number}", id="1")
    assert log.delete() is True
    whole(log)
    assert log.client.exists(log.keys.producers, log.keys.ids("3")) == 0
    assert log.append(b"x", producer="3", id="1") == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda log: log.append(b"x", id="1"), "an append with id= needs producer=, too"),
        (lambda log: log.append(b"x", producer="p"), "an append with producer= needs id=, too"),
        (lambda log: log.append(b"x", producer="p", id=""), "the id '' is not usable"),
        (lambda log: log.append(b"x", producer="p", id=7), "the id 7 is not usable"),
        (lambda log: log.append(b"x", producer="p", id="x" * 257), "of 1 to 256 bytes"),
        (lambda log: log.append(b"x", producer="p", id="\ud800"), "is not usable"),
        (lambda log: log.append(b"x", producer="", id="1"), "the producer '' is not usable"),
        (lambda log: log.append(producer="p", id="1"), "0 entries cannot be appended"),
        (lambda log: log.append_each([b"x"], ["1", "2"], "p"), "2 ids do not go with 1 entries"),
        (lambda log: log.append_each([b"x"], "1", "p"), "ids is a str"),
        (lambda log: log.append_each(b"x", ["1"], "p"), "entries is a bytes"),
        (lambda log: log.append_each([b"x"], ["1"], None), "the producer None is not usable"),
        (lambda log: log.append_each([], [], "p"), "0 entries cannot be appended"),
        (lambda log: Log(log.client, "l", id_window=31 * 86400), "0.001 to 2.592e"),
        (lambda log: Log(log.client, "l", most_ids=0), "1 to 100000"),
    ],
)
def test_what_is_no_id(redis7: RedisServer, call: Any, said: str) -> None:
    log = log_on(redis7)
    for one in (log, log.pipeline()):
        one.client = log.client
        with pytest.raises(ConfigurationError, match=said):
            call(one)
    assert log.client.dbsize() == 0


def test_pipelines_keep_the_order(any_server: AnyServer) -> None:
    log = log_on(any_server)
    assert log.append(b"a", producer="p", id="1") == 0
    with log.pipeline() as p:
        p.append(b"a", producer="p", id="1").append(b"b").append(b"c", producer="p", id="2")
        p.append_each([b"a", b"d"], ["1", "3"], "p").append(b"c", producer="p", id="2").length()
        assert p.execute() == [0, 1, 2, [0, 3], 2, 4]
        p.append(b"c", producer="p", id="2").append(b"e")
        assert p.execute() == [2, 4]
    assert log.read(0, 9) == [b"a", b"b", b"c", b"d", b"e"]
    # Others have filled blocks meanwhile.
    pipeline = log.pipeline().append(b"x", producer="p", id="4").append_each([b"y"], ["5"], "p")
    log_on(any_server).append(*[b"z"] * 45)
    assert pipeline.execute() == [50, [51]]
    pipeline.append(b"x", producer="p", id="4").append_each([b"y", b"w"], ["5", "6"], "p")
    assert pipeline.execute() == [50, [51, 52]]
    whole(log)


async def test_awaited(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        log = AsyncLog(client, "visits", BLOCK)
        assert await log.append(b"a", producer="p", id="1") == 0
        assert await log.append(b"a", producer="p", id="1") == 0
        assert await log.append_each([b"a", b"b"], ["1", "2"], "p") == [0, 1]
        async with log.pipeline() as p:
            p.append(b"b", producer="p", id="2").append_each([b"c"], ["3"], "p")
            assert await p.execute() == [1, [2]]
        assert await log.length() == 3
        assert await log.delete()
        await log.aclose()


def test_who_waits_is_woken_once_an_entry_is_new(redis7: RedisServer) -> None:
    log, found = log_on(redis7), []
    group = log_on(redis7).group("g")
    log.append(b"a", producer="p", id="1")
    group.read(5)

    def wait() -> None:
        found.extend(group.read(5, block=20))

    def write() -> None:
        while not log.group("g").stats().waiting:
            pass
        assert log.append(b"a", producer="p", id="1") == 0
        assert log.append_each([b"a", b"b"], ["1", "2"], "p") == [0, 1]

    at_once([wait, write])
    assert [each.entry for each in found] == [b"b"]


def test_a_reply_that_is_cut_off_is_asked_for_again_by_the_client_itself(
    redis7: RedisServer,
) -> None:
    direct = redis7.client()
    with FaultyServer(redis7.port) as door:
        client = redis.Redis(port=door.port, protocol=2)
        log = Log(client, "visits", BLOCK)
        for call in range(2):
            log.append(b"before")
            door.fail(len(door.names()) + 1, "cut")
            if call:
                assert log.append_each([b"x", b"y"], ["a", "b"], "p") == [4, 5]
            else:
                assert log.append(b"1", b"2", producer="p", id="1") == 1
    assert Log(direct, "visits").read(0, 9) == [b"before", b"1", b"2", b"before", b"x", b"y"]


@pytest.mark.parametrize("server", ["redis7", "cluster"])
def test_processes_that_append_the_same_ids_at_once(
    request: pytest.FixtureRequest, server: str
) -> None:
    place = request.getfixturevalue(server)

    def write(seed: int) -> None:
        log, rng = log_on(place), random.Random(seed)
        for number in rng.sample(range(60), 60):
            if number % 2:
                offset = log.append(b"%d" % number, b"second", producer="p", id=f"{number}")
                assert log.read(offset, 2) == [b"%d" % number, b"second"]
            else:
                ids = [f"{number}:{each}" for each in range(rng.randint(1, 4))]
                offsets = log.append_each([each.encode() for each in ids], ids, "p")
                assert [log.read(each)[0].decode() for each in offsets] == ids

    children = [in_child(lambda seed=seed: write(seed)) for seed in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 3
    log = log_on(place)
    found = log.read(0, 1000)
    single = [each for each in found if each != b"second"]
    assert len(set(single)) == len(single)
    assert {int(each.split(b":")[0]) for each in single} == set(range(60))
    assert found.count(b"second") == 30
    whole(log)
    place.wipe()


def test_a_full_server_refuses_new_ids_and_answers_known_ones(
    start_redis: Any,
) -> None:
    client = start_redis(7, maxmemory_policy="noeviction").client()
    log = Log(client, "visits", BLOCK)
    log.append(b"a", producer="p", id="1")
    log.append(b"a", producer="q", id="1")
    before = {key: client.dump(key) for key in client.scan_iter()}
    client.config_set("maxmemory", 1)
    for call in (
        lambda: log.append(b"b", producer="p", id="2"),
        lambda: log.append_each([b"a", b"b"], ["1", "2"], "p"),
    ):
        with pytest.raises(OutOfMemoryError):
            call()
        assert {key: client.dump(key) for key in client.scan_iter()} == before
    assert log.append(b"a", producer="p", id="1") == 0
    for late_ms in (HOUR_MS + 1000, 2 * HOUR_MS + 2000):
        job = LogTrimmer(Log(client, "visits", BLOCK, clock_shift_ms=late_ms))
        assert job.perform(Slice(5, 10.0)) == 2
    assert client.exists(log.keys.ids("p"), log.keys.ids("q"), log.keys.producers) == 0
    client.config_set("maxmemory", 0)


def test_ids_that_another_program_has_spoilt_are_refused(any_server: AnyServer) -> None:
    log = log_on(any_server)
    log.append(b"a", producer="p", id="1")
    client, ids, producers = log.client, log.keys.ids("p"), log.keys.producers

    def refused(said: str) -> None:
        for call in (
            lambda: log.append(b"a", producer="p", id="1"),
            lambda: log.append_each([b"a"], ["1"], "p"),
        ):
            with pytest.raises(LayoutError, match=said):
                call()
        assert log.length() == 1

    for score in (1, -5, 0.5, 1e300, float("inf")):
        client.zadd(ids, {"1": score})
        refused("as the offset of an id where a whole number from 0 to 0 was expected")
    client.zadd(ids, {"1": 0})
    for score in (0, -3, -1.5, float("-inf")):
        client.zadd(ids, {"": score})
        refused("as the mark of the ids where")
    client.zadd(ids, {"": -1})
    client.hset(log.keys.meta, "ids", "1e9")
    refused("says 1e9 as ids where a whole number from 0 to 2592000000")
    client.hset(log.keys.meta, "ids", 1)
    for key in (ids, producers):
        client.delete(key)
        client.set(key, "text")
        refused("does not hold the (ids of a producer|producers) of a log")
        if key == producers:
            with pytest.raises(LayoutError, match="producers"):
                log.delete()
            assert log.length() == 1
        client.delete(key)
    # Without its ids a producer begins anew.
    assert log.append(b"a", producer="p", id="1") == 1
    client.delete(ids)
    client.set(ids, "text")
    assert log.delete()
    whole(log)
