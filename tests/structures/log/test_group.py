"""Groups of a log: each entry goes to one member, and what is acknowledged is lost to nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.logs import lasting_keys
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.errors import ConfigurationError, LayoutError, UndecodableEntryError
from workstealing.structures.log.blocks import compress, seal
from workstealing.structures.log.group import GroupEntry, GroupStats, LogGroup
from workstealing.structures.log.log import AsyncLog, Log

pytestmark = pytest.mark.contract

# By the clock of who looks: what was handed out so long ago has been forgotten by its member.
MINUTE_MS = 60_001


def log_of(server: AnyServer, name: str = "l", block: int = 10, **options: Any) -> Log:
    return Log(server.client(), name, block, **options)


def later(server: AnyServer, name: str = "mail", minutes: int = 1, **options: Any) -> LogGroup:
    """Return the group as it will be seen when so many minutes have passed."""
    log = log_of(server, clock_shift_ms=minutes * MINUTE_MS)
    return log.group(name, ack=True, **options)


def filled(server: AnyServer, number: int = 25, **options: Any) -> Log:
    log = log_of(server, **options)
    assert log.append(*[b"e%d" % each for each in range(number)]) == 0
    return log


def offsets(entries: list[GroupEntry]) -> list[int]:
    assert all(entry.entry == b"e%d" % entry.offset for entry in entries)
    return [entry.offset for entry in entries]


def test_each_entry_goes_to_one_member_in_order(any_server: AnyServer) -> None:
    log = filled(any_server)
    one, other = log.group("mail"), log_of(any_server).group("mail")
    assert offsets(one.read(3)) == [0, 1, 2]
    assert offsets(other.read()) == [3]
    assert offsets(one.read(100)) == list(range(4, 25))
    assert one.read(5) == other.read(5) == []
    assert log.append(b"e25") == 25
    (entry,) = other.read(5, member="worker 1")
    assert tuple(entry) == (25, b"e25")
    assert entry.attempts == 1
    assert one.offset() == 26


def test_two_groups_read_the_same_entries(any_server: AnyServer) -> None:
    log = filled(any_server)
    mail, pages = log.group("mail"), log.group("pages")
    assert offsets(mail.read(25)) == list(range(25))
    assert offsets(pages.read(25)) == list(range(25))
    assert pages.seek(7) == 7
    assert offsets(pages.read(2)) == [7, 8]
    assert mail.read() == []


@pytest.mark.parametrize(
    ("start", "first"), [("first", 4), ("last", 25), (7, 7), (0, 0), (-2, 23), (-99, 4), (30, 30)]
)
def test_a_new_group_begins_where_it_is_told_to(
    any_server: AnyServer, start: str | int, first: int
) -> None:
    log = filled(any_server)
    log.evict(3)
    group = log.group("mail", start=start)
    assert group.offset() == first
    # Where it starts is of no meaning to a group that is there.
    assert log.group("mail", start=11).offset() == first


def test_a_group_may_be_made_before_the_log(any_server: AnyServer) -> None:
    log = log_of(any_server)
    group = log.group("mail", start="last")
    assert group.read() == []
    assert (log.length(), log.first(), log.last()) == (0, 0, -1)
    assert log_of(any_server).append(b"e0", b"e1") == 0
    assert offsets(group.read(5)) == [0, 1]
    assert log.read(0, 5) == [b"e0", b"e1"]


def test_a_group_waits_beyond_the_end_for_that_very_offset(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail")
    assert group.seek(27) == 27
    assert log.append(b"e25", b"e26") == 25
    assert group.read(5) == []
    assert log.append(b"e27", b"e28") == 27
    assert offsets(group.read(5)) == [27, 28]


def test_seek_counts_from_the_end_too(any_server: AnyServer) -> None:
    log = filled(any_server)
    log.evict(3)
    group = log.group("mail")
    assert [group.seek(each) for each in (-1, -100, "first", "last", 3)] == [24, 4, 4, 25, 3]


def test_what_was_evicted_is_left_out_and_counted(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail")
    assert offsets(group.read(2)) == [0, 1]
    log.evict(14)
    assert group.stats() == GroupStats(offset=2, lag=10, lost=0, waiting=0, pending=0, dead=0)
    assert offsets(group.read(2)) == [15, 16]
    assert group.stats() == GroupStats(offset=17, lag=8, lost=13, waiting=0, pending=0, dead=0)


def test_a_group_reads_blocks_of_every_form(any_server: AnyServer) -> None:
    log = filled(any_server, 45)
    for number, codec in [(0, "raw"), (1, "zlib"), (3, "raw")]:
        entries = [b"e%d" % each for each in range(number * 10, number * 10 + 10)]
        key = log.keys.block(number)
        log.client.delete(key)
        log.client.set(key, compress(seal(entries), codec) if codec != "raw" else seal(entries))
    for _ in range(2):
        group = log.group("mail")
        group.seek(0)
        assert offsets(group.read(5)) == [0, 1, 2, 3, 4]
        assert offsets(group.read(100)) == list(range(5, 45))


def test_a_long_read_ends_where_a_reply_does(any_server: AnyServer) -> None:
    log = filled(any_server, 500)
    group = log.group("mail")
    found: list[int] = []
    while entries := group.read(300):
        found += offsets(entries)
    assert found == list(range(500))


def test_values_come_by_the_logs_codec(any_server: AnyServer) -> None:
    log = log_of(any_server, codec="json")
    log.append({"n": 1}, [2])
    group = log.group("mail", ack=True, max_attempts=1)
    assert [entry.entry for entry in group.read(5)] == [{"n": 1}, [2]]
    log_of(any_server).append(b"{")
    with pytest.raises(UndecodableEntryError, match="entry 2"):
        group.read()
    assert len(group.pending()) == 3
    dying = log_of(any_server, codec="json", clock_shift_ms=MINUTE_MS).group(
        "mail", ack=True, max_attempts=1
    )
    assert dying.read(5) == []
    assert sorted((each.offset, each.entry) for each in dying.dead() if each.offset != 1) == [
        (0, {"n": 1}),
        (2, b"{"),
    ]


def test_a_client_that_decodes_gets_bytes_all_the_same(any_server: AnyServer) -> None:
    log = Log(any_server.client(decode_responses=True), "l", 10)
    log.append(b"\xff\x00")
    group = log.group("mail", ack=True)
    (entry,) = group.read(member="m")
    assert entry.entry == b"\xff\x00"
    assert group.pending()[0].member == "m"
    assert group.ack(entry) == 1
    assert group.read(block=0.001) == []


# Acknowledged groups.


def test_what_is_not_acknowledged_comes_again(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    taken = group.read(3, member="a")
    assert group.ack(taken[1]) == 1
    assert offsets(group.read()) == [3]
    again = later(any_server).read(10, member="b")
    # They come first, and then what nobody has had.
    assert [(entry.offset, entry.attempts) for entry in again[:4]] == [
        (0, 2),
        (2, 2),
        (3, 2),
        (4, 1),
    ]
    assert offsets(again) == [0, 2, 3, *range(4, 11)]
    one = group.pending(1000)[0]
    assert (one.offset, one.member, one.attempts) == (0, "b", 2)
    assert group.ack(*again) == 10
    assert later(any_server, minutes=3).read(100)[0].offset == 11


def test_a_late_acknowledgement_takes_nothing_from_who_works_on_it_now(
    any_server: AnyServer,
) -> None:
    log = filled(any_server, 2)
    group = log.group("mail", ack=True)
    (mine,) = group.read(member="late")
    (its,) = later(any_server).read(member="other")
    assert (mine.offset, its.offset) == (0, 0)
    assert group.ack(mine) == 0
    assert [each.member for each in group.pending()] == ["other"]
    assert group.ack(its) == 1
    assert group.ack(its) == 0
    # An offset alone is acknowledged whoever has it.
    group.read()
    assert group.ack(1, 1, 7) == 1
    assert group.pending() == []


def test_what_fails_too_often_is_set_aside_with_what_it_says(any_server: AnyServer) -> None:
    filled(any_server, 12)
    for minute in range(3):
        group = later(any_server, minutes=minute, max_attempts=3)
        got = group.read(1, member=f"m{minute}")
        assert [(entry.offset, entry.attempts) for entry in got] == [(0, minute + 1)]
    group = later(any_server, minutes=4, max_attempts=3)
    assert [entry.offset for entry in group.read(1)] == [1]
    (dead,) = group.dead()
    assert (dead.offset, dead.entry, dead.attempts, dead.member) == (0, b"e0", 3, "m2")
    assert dead.set_aside - dead.handed_out >= 60
    assert group.stats().dead == 1
    # The dead outlive what is evicted.
    group.log.evict(9)
    assert group.revive(0, 5) == 1
    assert (group.dead(), group.revive(0)) == ([], 0)
    (again,) = group.read(1)
    assert (again.offset, again.entry, again.attempts) == (0, b"e0", 1)
    for minute in range(6, 9):
        later(any_server, minutes=minute, max_attempts=3).read(1)
    assert [each.entry for each in later(any_server, max_attempts=3).dead() if not each.offset] == [
        b"e0"
    ]
    assert group.discard(0) == 1
    assert group.discard(0) == 0


def test_many_that_fail_are_all_set_aside(any_server: AnyServer) -> None:
    log = filled(any_server, 100)
    log.client.set(log.keys.block(0), compress(seal([b"e%d" % each for each in range(10)]), "zlib"))
    group = later(any_server, minutes=0, max_attempts=1)
    taken = []
    while entries := group.read(100):
        taken += offsets(entries)
    assert taken == list(range(100))
    assert later(any_server, max_attempts=1).read(10) == []
    dead = {each.offset: each.entry for each in group.dead(1000)}
    assert dead == {each: b"e%d" % each for each in range(100)}
    some = group.dead(30)
    ages = [(each.set_aside, each.offset) for each in group.dead(100)]
    assert ages == sorted(ages)
    assert [(each.set_aside, each.offset) for each in some] == ages[:30]
    assert (some.total, some.more) == (100, 70)
    assert group.stats() == GroupStats(100, 0, 0, 0, 0, 100)
    assert group.revive(*range(100)) == 100
    again = []
    while entries := group.read(100):
        again += offsets(entries)
    assert again == list(range(100))


def test_what_was_evicted_while_it_was_pending_is_lost_and_counted(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    group.read(5)
    log.evict(2)
    assert offsets(later(any_server).read(5)) == [3, 4, 5, 6, 7]
    assert group.stats().lost == 3


def test_a_seek_back_counts_as_an_attempt_of_what_is_pending(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    first = group.read(3)
    assert group.ack(first[0]) == 1
    group.seek(0)
    assert [(entry.offset, entry.attempts) for entry in group.read(4)] == [
        (0, 1),
        (1, 2),
        (2, 2),
        (3, 1),
    ]
    assert group.ack(*first) == 0
    assert group.stats().pending == 4


def test_what_is_due_and_sought_back_to_is_handed_out_once(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    group.read(3)
    group.seek(1)
    again = later(any_server).read(5)
    assert [(entry.offset, entry.attempts) for entry in again] == [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 1),
        (4, 1),
    ]
    assert group.stats().pending == 5


def test_plain_groups_have_nothing_pending(any_server: AnyServer) -> None:
    group = filled(any_server).group("mail")
    (entry,) = group.read()
    assert (group.pending(), group.dead()) == ([], [])
    with pytest.raises(ConfigurationError, match="plain one"):
        group.ack(entry)


def test_a_list_of_entries_is_refused_without_their_texts(redis7: RedisServer) -> None:
    group = filled(redis7).group("mail", ack=True)
    entries = group.read(2)
    with pytest.raises(
        ConfigurationError, match=r"^ack\(\) was given a list: .* ack\(\*entries\)$"
    ):
        group.ack(entries)  # type: ignore[arg-type]
    assert group.ack(*entries) == 2


# Settings, arguments, deleting, what is foreign.


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"ack": True, "lease": 30},
        {"ack": True, "max_attempts": 4},
    ],
)
def test_a_group_has_the_same_settings_for_all(
    any_server: AnyServer, others: dict[str, Any]
) -> None:
    log = filled(any_server)
    log.group("mail", ack=True).read()
    other = log.group("mail", **others)
    calls: list[Callable[[], Any]] = [
        other.read,
        other.offset,
        other.pending,
        lambda: other.seek(0),
        lambda: other.read(block=1),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"ack=True, lease=60 and max_attempts=5, but"):
            call()
    assert log.group("mail", ack=True).offset() == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.group(""),
        lambda log: log.group(7),
        lambda log: log.group("g", start="middle"),
        lambda log: log.group("g", start=1.5),
        lambda log: log.group("g", lease=0),
        lambda log: log.group("g", lease=float("nan")),
        lambda log: log.group("g", max_attempts=0),
        lambda log: log.group("g").read(0),
        lambda log: log.group("g").read(1001),
        lambda log: log.group("g").read(True),
        lambda log: log.group("g").read(block=-1),
        lambda log: log.group("g").read(member=""),
        lambda log: log.group("g").seek(None),
        lambda log: log.group("g").pending(0),
        lambda log: log.group("g").dead(10_001),
        lambda log: log.group("g").revive(-1),
        lambda log: log.group("g", ack=True).ack("1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything(
    fakeredis_server: AnyServer, call: Callable[[Log], Any]
) -> None:
    log = log_of(fakeredis_server)
    with pytest.raises(ConfigurationError):
        call(log)
    assert lasting_keys(log.client) == set()


def test_a_group_is_deleted_with_all_that_it_knows(any_server: AnyServer) -> None:
    log = filled(any_server)
    before = lasting_keys(log.client)
    group = log.group("mail", ack=True)
    group.read(5)
    assert group.delete() > 0
    assert lasting_keys(log.client) == before
    assert group.delete() == 0
    assert log.append(b"e25") == 25
    assert offsets(group.read(30))[0] == 0


def test_a_log_that_is_made_anew_begins_its_groups_anew(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    other = log_of(any_server).group("mail", ack=True)
    assert len(group.read(5)) == 5
    log.delete()
    assert lasting_keys(log.client) == set()
    assert log_of(any_server).append(b"e0") == 0
    assert offsets(group.read(5)) == [0]
    assert other.read(5) == []
    assert [each.offset for each in group.pending()] == [0]


def test_nothing_is_done_to_what_is_foreign(any_server: AnyServer) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    (entry,) = group.read()
    keys = group.keys
    for key in keys.all:
        held = log.client.dump(key) if any_server.is_real else None
        log.client.delete(key)
        log.client.geoadd(key, (1.0, 1.0, "x")) if key in (
            keys.state,
            keys.turns,
            keys.attempts,
            keys.dead,
            keys.revived,
        ) else log.client.set(key, "x")
        calls: list[Callable[[], Any]] = [
            group.read,
            lambda: group.ack(entry),
            group.pending,
            group.dead,
            lambda: group.seek(0),
            lambda: group.revive(1),
            group.delete,
        ]
        for call in calls:
            with pytest.raises(LayoutError, match="nothing was changed"):
                call()
        log.client.delete(key)
        if held:
            log.client.restore(key, 0, held)
        else:
            group.read()
    log.client.hset(keys.state, "mark", "99")
    with pytest.raises(LayoutError, match="does not hold the state"):
        group.read()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("history", ["100000001 1 m", "0 1 m", "01 1 m", "1 m", "x", ""])
def test_a_history_of_no_call_of_ours_is_not_believed(
    any_server: AnyServer, history: str, waits: bool
) -> None:
    log = filled(any_server)
    group = log.group("mail", ack=True)
    entries = group.read(2)
    log.client.hset(group.keys.attempts, "1", history)
    if waits:
        # Then `ack` takes the full path.
        log.client.zadd(group.keys.line, {"somebody": 1.0})
    for some in (entries, (0, 1)):
        with pytest.raises(LayoutError, match=r"(attempts|history) of an entry where"):
            group.ack(*some)
    assert group.stats().pending == 2
    log.client.hset(group.keys.attempts, "1", "100000000 2 m")
    assert group.ack(*entries) == 2


def test_what_was_revived_is_kept_until_it_is_done(any_server: AnyServer) -> None:
    log = filled(any_server)
    later(any_server, minutes=0, max_attempts=1).read(2)
    group = later(any_server, minutes=2, max_attempts=1)
    assert (offsets(group.read(1)), group.revive(0, 1)) == ([2], 2)
    log.evict(5)
    first, second = group.read(2)
    assert (first.entry, second.entry) == (b"e0", b"e1")
    assert group.ack(first) == 1
    assert log.client.hkeys(group.keys.revived) == [b"1"]
    assert group.ack(1) == 1
    assert log.client.exists(group.keys.revived) == 0


@pytest.mark.real
def test_a_full_server_lets_a_group_read_and_acknowledge(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    log = log_of(server)
    log.append(*[b"e%d" % each for each in range(25)])
    group = log.group("mail", ack=True)
    group.read()
    log.client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        log.append(b"x")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        log.group("other").read()
    entries = group.read(10, member="m")
    assert offsets(entries) == list(range(1, 11))
    assert group.ack(*entries) == 10
    assert group.seek(0) == 0
    assert len(group.read(30)) == 25
    assert group.read(block=0.001) == []
    assert log.client.hkeys(log.keys.meta).count(b"group:other") == 0


async def test_story_on_asyncio(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        log = AsyncLog(client, "l", 10)
        group = log.group("mail", ack=True)
        assert await group.read() == []
        await log.append(*[b"e%d" % each for each in range(25)])
        entries = await group.read(3, member="a")
        assert offsets(entries) == [0, 1, 2]
        assert [each.member for each in await group.pending()] == ["a"] * 3
        assert await group.ack(entries[0], 1) == 2
        assert await group.seek(-1) == 24
        assert offsets(await group.read(3, block=1)) == [24]
        assert await group.offset() == 25
        assert await group.read(block=0.005) == []
        assert await group.stats() == GroupStats(25, 0, 0, 0, 2, 0)
        assert (await group.dead(), await group.revive(1), await group.discard(1)) == ([], 0, 0)
        assert await group.delete() > 0
        await group.aclose()
        await log.aclose()


def test_waiting_ends_when_its_time_is_over(any_server: AnyServer) -> None:
    group = filled(any_server, 1).group("mail")
    group.read()
    assert group.read(block=0.03) == []
    wait_until(lambda: group.stats().waiting == 0, "the line to be empty")
