"""A read of a group that is sent twice hands out no entry to nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.any_server import AnyServer
from support.faulty_server import FaultyServer
from support.grants import every_cut
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import LogCompactor
from workstealing.recruiting.slice import Slice
from workstealing.store.scripts import load
from workstealing.structures import Log
from workstealing.structures.log import GroupEntry, LogGroup

READS = {load("log/group_read", shift).sha for shift in (0, 601_000)}
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "acknowledged": {"ack": True, "lease": 600}}
kinds = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


class Twice:
    """A client whose reads of groups come twice.

    Arguments:
        between: runs in between.

    Attributes: sent: the words of each read.
    """

    def __init__(self, client: Any, between: Callable[[], object] = lambda: None) -> None:
        self.sent: list[tuple[Any, ...]] = []
        send = client.execute_command

        def twice(*words: Any, **options: Any) -> Any:
            reply = send(*words, **options)
            if words[0] == "EVALSHA" and words[1] in READS:
                self.sent.append(words)
                between()
                reply = send(*words, **options)
            return reply

        client.execute_command = twice


def log_on(client: Any) -> Log:
    return Log(client, "l", block=10)


def filled(client: Any, number: int = 40) -> Log:
    log = log_on(client)
    log.append(*(str(each) for each in range(number)))
    return log


def prepare(log: Log, options: dict[str, Any]) -> None:
    """Make the group and load the script, so that the first read comes twice."""
    assert log.group("g", **options).offset() == 0
    assert log.group("other").read(1)


def everything(group: LogGroup, count: int) -> list[GroupEntry]:
    found: list[GroupEntry] = []
    while some := group.read(count):
        found += some
    return found


@pytest.mark.contract
class TestTwice:
    @pytest.mark.parametrize("count", [1, 7, 300])
    @kinds
    def test_it_is_answered_by_the_same_entries(
        self, any_server: AnyServer, options: dict[str, Any], count: int
    ) -> None:
        filled(any_server.client())
        client = any_server.client()
        Twice(client)
        found = everything(log_on(client).group("g", **options), count)
        assert [each.offset for each in found] == list(range(40))
        assert [each.entry for each in found] == [b"%d" % each for each in range(40)]
        assert {each.attempts for each in found} == {1}
        assert [each.delivery for each in found] == list(range(1, 41))

    def test_entries_that_are_handed_out_again_too(self, any_server: AnyServer) -> None:
        log = filled(any_server.client())
        assert len(log.group("g", ack=True, lease=600).read(10)) == 10
        client = any_server.client()
        Twice(client)
        later = Log(client, "l", block=10, clock_shift_ms=601_000).group("g", ack=True, lease=600)
        found = later.read(5) + later.read(8)
        assert [(each.offset, each.attempts) for each in found] == [
            *((offset, 2) for offset in range(10)),
            *((offset, 1) for offset in range(10, 13)),
        ]
        assert later.ack(*found) == 13
        assert later.stats().pending == 0

    def test_their_lease_begins_again(self, any_server: AnyServer) -> None:
        """It had run on while redis-py tried, and they went to others too soon."""
        log = filled(any_server.client())
        prepare(log, KINDS["acknowledged"])
        pending = log.keys.group("g").pending
        client = any_server.client()
        long_ago = {b"%016d" % each: each for each in range(1, 6)}

        def wait() -> None:
            log.client.zadd(pending, long_ago, xx=True)

        Twice(client, wait)
        assert len(log_on(client).group("g", **KINDS["acknowledged"]).read(4)) == 4
        assert log.client.zcount(pending, "-inf", 1000) == 0
        assert log.client.zcard(pending) == 4

    @kinds
    def test_in_whatever_form_the_entries_are_meanwhile(
        self, any_server: AnyServer, options: dict[str, Any]
    ) -> None:
        log = filled(any_server.client())
        job = LogCompactor(log, cold=0)
        client = any_server.client()
        Twice(client, lambda: job.perform(Slice(9, 30.0)))
        found = everything(log_on(client).group("g", **options), 15)
        assert [each.entry for each in found] == [b"%d" % each for each in range(40)]

    @kinds
    def test_entries_that_are_evicted_meanwhile_are_left_out(
        self, any_server: AnyServer, options: dict[str, Any]
    ) -> None:
        log = filled(any_server.client())
        client = any_server.client()
        Twice(client, lambda: log.evict(4))
        found = everything(log_on(client).group("g", **options), 5)
        assert [each.offset for each in found] == list(range(5, 40))

    @kinds
    def test_one_that_comes_late_is_handed_out_nothing(
        self, any_server: AnyServer, options: dict[str, Any]
    ) -> None:
        log = filled(any_server.client())
        client = any_server.client()
        twice = Twice(client)
        mine = log_on(client).group("g", **options)
        first, second = mine.read(3), mine.read(3)
        if options:
            assert mine.ack(*first, *second) == 6
        for words in twice.sent:
            log.client.execute_command(*words)
        assert [each.offset for each in mine.read(3)] == [6, 7, 8]
        assert log.group("g", **options).offset() == 9

    @pytest.mark.parametrize("nonsense", ["", "x", "9" * 40, "-5", "1 x", "1 9 9", "1 99 1 1 0"])
    def test_a_foreign_receipt_is_none(self, any_server: AnyServer, nonsense: str) -> None:
        log = filled(any_server.client())
        group = log.group("g")
        assert group.read(1)[0].offset == 0
        (key,) = (each for each in log.client.scan_iter(count=1000) if b"/read." in each)
        log.client.set(key, nonsense.replace("1", "2", 1))
        assert group.read(1)[0].offset == 1
        log.client.delete(key)
        log.client.rpush(key, "x")
        assert group.read(1)[0].offset == 2
        log.client.delete(key)

    @kinds
    def test_those_that_are_not_evicted_meanwhile_are_handed_out(
        self, any_server: AnyServer, options: dict[str, Any]
    ) -> None:
        """A plain group lost entries 2 to 4, and nobody had them of an acknowledged one."""
        log = filled(any_server.client())
        prepare(log, options)
        client = any_server.client()
        Twice(client, lambda: log.evict(1))
        found = everything(log_on(client).group("g", **options), 5)
        assert [(each.offset, each.delivery) for each in found] == [
            (offset, offset + 1) for offset in range(2, 40)
        ]

    @kinds
    def test_a_log_that_is_made_anew_meanwhile_is_read_once(
        self, any_server: AnyServer, options: dict[str, Any]
    ) -> None:
        """Its first entries were handed out by the receipt, and then to another member."""
        log = filled(any_server.client())
        client = any_server.client()
        anew = [lambda: filled(log.client, 20), log.delete]
        twice = Twice(client, lambda: anew and [each() for each in (anew.pop(), anew.pop())])
        mine = log_on(client).group("g", **options)
        prepare(log, options)
        found = mine.read(5)
        assert twice.sent
        assert [each.offset for each in found] == list(range(5))
        found = log.group("g", **options).read(5) + everything(mine, 5)
        assert [each.offset for each in found] == list(range(5, 20))

    def test_entries_that_others_have_meanwhile_stay_theirs(self, any_server: AnyServer) -> None:
        log = filled(any_server.client())
        late = Log(log.client, "l", block=10, clock_shift_ms=601_000)
        theirs: list[GroupEntry] = []

        def others_go_on() -> None:
            if not theirs:
                theirs.extend(late.group("g", ack=True, lease=600).read(2, member="b"))
                assert log.group("g", ack=True, lease=600).ack(3) == 1

        prepare(log, KINDS["acknowledged"])
        client = any_server.client()
        Twice(client, others_go_on)
        mine = log_on(client).group("g", ack=True, lease=600)
        found = mine.read(5, member="a")
        assert [each.offset for each in theirs] == [0, 1]
        assert [(each.offset, each.entry) for each in found] == [(2, b"2"), (4, b"4")]
        assert mine.ack(*found) == 2

    def test_a_receipt_of_a_later_read_is_not_used_again(self, any_server: AnyServer) -> None:
        """It held up the member for as long as the key was there."""
        log = filled(any_server.client())
        group = log.group("g")
        assert group.read(1)[0].offset == 0
        (key,) = (each for each in log.client.scan_iter(count=1000) if b"/read." in each)
        log.client.set(key, "999999999999999")
        assert [group.read(1)[0].offset for _ in range(3)] == [1, 2, 3]
        log.client.delete(key)

    def test_receipts_are_few_and_end_by_themselves(self, any_server: AnyServer) -> None:
        log = filled(any_server.client())
        # A web application may open the group in each request.
        for _ in range(5):
            assert log.group("g").read(1)
            assert log.group("h", ack=True).read(1)
        assert len(everything(log.group("g"), 3)) == 35
        found = [each for each in log.client.scan_iter(count=1000) if b"/read." in each]
        assert len(found) == 1
        assert 0 < log.client.pttl(found[0]) <= 60_000


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


@pytest.mark.real
@pytest.mark.parametrize("count", [1, 250])
@kinds
def test_a_lost_reply_loses_no_entry(
    redis7: RedisServer, door: FaultyServer, options: dict[str, Any], count: int
) -> None:
    """redis-py sent the read again, and the entries of the first one were with nobody."""
    log = filled(redis7.client(), 5000)
    expected, asked = 0, 0
    assert log.group("g", **options).offset() == 0
    for answer in every_cut(door, lambda client: log_on(client).group("g", **options).read(count)):
        assert [each.offset for each in answer] == list(range(expected, expected + len(answer)))
        assert answer
        expected += len(answer)
        asked += 1
    assert asked > 3
