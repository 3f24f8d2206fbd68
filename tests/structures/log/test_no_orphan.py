"""Law 6 for logs on a cluster, and on a server that is full: what can be found is all there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from support.deaths import deaths_among, doors_of
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
from support.servers import RedisCluster3, RedisServer
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import Log
from workstealing.structures.log.base import LogNames

pytestmark = pytest.mark.real


def live(client: Any, name: str) -> None:
    """Use a log in every way, as far as one comes; it has the entries of `entries_from`."""
    log = Log(client, name, BLOCK)
    work = log.group("work", ack=True)
    log.append(*entries_from(0, 9))
    given = work.read(3)
    LogCompactor(log, 2, cold=0).perform(Slice(2, 10.0))
    work.ack(*given)
    log.evict(4)
    log.append(*entries_from(9, 8), keep=9)
    late = Log(client, name, BLOCK, clock_shift_ms=LATE_MS)
    LogTrimmer(late, 1, max_age=60).perform(Slice(1, 10.0))


def live_briefly(client: Any, name: str) -> None:
    """Write twice and evict, which leaves blocks of all kinds."""
    log = Log(client, name, BLOCK)
    log.append(*entries_from(0, 9))
    log.append(*entries_from(9, 8))
    log.evict(4)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_with_hundreds_of_untagged_logs(cluster: RedisCluster3) -> None:
    """Processes die one after the other on three masters; jobs do what they had left."""
    names = [f"log:{number}" for number in range(530)]
    assert len({key_slot(LogNames(name).meta) for name in names}) >= 500
    direct = cluster.client()
    nodes = [node.client() for node in cluster.nodes]
    with doors_of(cluster) as (doors, client):
        todo = iter(names)

        def work(_: int) -> Callable[[], None]:
            mine = next(todo)
            return lambda: live(client, mine)

        assert deaths_among(doors, 20, work) > 24
        for name in itertools.islice(todo, 20):
            live(direct, name)
        for name in todo:
            live_briefly(direct, name)
        found = keys_by_log(nodes, names)
        for name in names:
            _, end, _ = check_whole(direct, name, found[name])
            check_entries(direct, name, entries_from(0, end))
        logs = names[:100]

        def trim(_: int) -> Callable[[], None]:
            job = LogTrimmer([Log(client, name, BLOCK) for name in logs], 1, max_entries=8)

            def run() -> None:
                for _ in range(20):
                    job.perform(Slice(1, 10.0))

            return run

        assert deaths_among(doors, 6, trim) > 9
    keep_up(direct, names, max_entries=8)
    found = keys_by_log(nodes, names)
    for name in names:
        first, end, kept = check_whole(direct, name, found[name])
        assert kept == first // BLOCK
        assert end - first < 8 + BLOCK
        check_entries(direct, name, entries_from(0, end))
    with doors_of(cluster) as (doors, client):
        todo = iter(names)

        def delete(_: int) -> Callable[[], bool]:
            return Log(client, next(todo), BLOCK).delete

        deaths_among(doors, 8, delete)
    for name, present in keys_by_log(nodes, names).items():
        check_whole(direct, name, present)
    for name in names:
        Log(direct, name, BLOCK).delete()
    assert keys_by_log(nodes, names) == {}


def contents(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in lasting_keys(client)}


def full_log(client: redis.Redis) -> Any:
    log = Log(client, "log", BLOCK)
    log.append(*entries_from(0, 30))
    log.group("mail").read(6)
    log.group("work", ack=True).read(7)
    return log


# What makes a log larger, each at a moment of its own in its life.
WRITES: dict[str, Callable[[Any], Any]] = {
    "the first entry": lambda log: Log(log.client, "other", BLOCK).append(b"entry"),
    "one entry": lambda log: log.append(b"entry"),
    "a batch over several blocks": lambda log: log.append(*entries_from(30, 40)),
    "a batch with a keep": lambda log: log.append(*entries_from(30, 10), keep=3),
    "by who knows nothing of the log": lambda log: Log(log.client, "log", 7).append(b"entry"),
    "a new group": lambda log: log.group("another").read(1),
    "a group of no log": lambda log: Log(log.client, "other", BLOCK).group("first").read(1),
    "sealing": lambda log: LogCompactor(log, 2, codec="none").perform(Slice(2, 10.0)),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_full_server_refuses_whole_writes(
    start_redis: Callable[..., RedisServer], what: str
) -> None:
    client = start_redis(7).client()
    log = full_log(client)
    client.config_set("maxmemory", 1)
    before = contents(client)
    with pytest.raises(OutOfMemoryError):
        WRITES[what](log)
    assert contents(client) == before
    client.config_set("maxmemory", 0)
    WRITES[what](log)
    assert contents(client) != before
    found = keys_by_log([client], ["log", "other"])
    for name, present in found.items():
        check_whole(client, name, present)


def trimmed(log: Any, **bounds: Any) -> int:
    job, total = LogTrimmer(log, 2, **bounds), 0
    while done := job.perform(Slice(2, 10.0)):
        total += done
    return total


FREES: dict[str, Callable[[Any], Any]] = {
    "evict": lambda log: log.evict(13),
    "keep": lambda log: log.evict(keep=16),
    "max_entries": lambda log: trimmed(log, max_entries=16),
    "max_bytes": lambda log: trimmed(log, max_bytes=900),
    "max_age": lambda log: trimmed(
        Log(log.client, "log", BLOCK, clock_shift_ms=LATE_MS), max_age=60
    ),
    "spare_groups": lambda log: trimmed(log, max_entries=16, spare_groups=True),
    "leftovers": trimmed,
}


@pytest.mark.parametrize("what", FREES)
def test_a_full_server_is_made_room_on(start_redis: Callable[..., RedisServer], what: str) -> None:
    client = start_redis(7).client()
    log = full_log(client)
    if what == "leftovers":
        # As if an evicter had died behind its first script.
        client.hset(log.keys.meta, "first", 14)
    if what == "spare_groups":
        log.group("work", ack=True).ack(*range(7))
    client.config_set("maxmemory", 1)
    before = client.dbsize()
    with pytest.raises(OutOfMemoryError):
        client.set("x", "y")
    FREES[what](log)
    assert client.dbsize() < before
    first, end, kept = check_whole(client, "log", keys_by_log([client], ["log"])["log"])
    assert (first > 0, end, kept) == (True, 30, first // BLOCK)
    check_entries(client, "log", entries_from(0, 30))
    assert log.delete() is True
    assert lasting_keys(client) == set()


def test_a_server_that_fills_up_is_trimmed_and_written_to_again(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Until it is full, over and over; it never refuses a part of a batch."""
    client = start_redis(7).client()
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used + 1_500_000)
    log = Log(client, "log", 100)
    job = LogTrimmer(log, 5, max_bytes=600_000)
    written = refused = 0
    while refused < 5:
        try:
            offset = log.append(*(b"%d " % (written + each) + bytes(500) for each in range(50)))
        except OutOfMemoryError:
            refused += 1
            assert log.last() == written - 1
            while job.perform(Slice(5, 10.0)):
                pass
        else:
            assert offset == written
            written += 50
    assert refused == 5
    first = log.first()
    assert 0 < first < written
    assert log.stats().bytes < 700_000
    for start in range(first, written, 500):
        found = log.read(start, 500)
        assert [int(each.split()[0]) for each in found] == [*range(start, start + len(found))]
    assert written - first >= 50


def test_an_idle_log_gives_its_memory_back(start_redis: Callable[..., RedisServer]) -> None:
    client = start_redis(7).client()
    log = Log(client, "log", 100)
    log.append(*[bytes(10)] * 100)
    keep_up(client, ["log"], max_entries=0)
    keys, before = client.dbsize(), client.info("memory")["used_memory"]
    for _ in range(50):
        log.append(*[bytes(500)] * 100)
    log.group("mail").read(100)
    assert client.info("memory")["used_memory"] > before + 2_000_000
    keep_up(client, ["log"], max_entries=0)
    # meta and news; of a group what it has to know.
    assert keys == 2
    assert len(lasting_keys(client)) == 3
    assert client.info("memory")["used_memory"] < before + 300_000
