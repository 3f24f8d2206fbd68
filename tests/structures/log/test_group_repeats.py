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
    """A client whose reads of groups come twice. Arguments: client; between: runs in between.

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

    @pytest.mark.parametrize("nonsense", ["", "x", "9" * 40, "-5", "1 x", "1 9 9", "1 99 1 1"])
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

    def test_receipts_are_few_and_end_by_themselves(self, any_server: AnyServer) -> None:
        log = filled(any_server.client())
        group = log.group("g")
        assert len(everything(group, 3)) == 40
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
