"""What comes between two steps of a call on a log, and what stands at the ends of its range."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from support.compacted_logs import compact, entries, made
from support.logs import lasting_keys
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import LayoutError
from workstealing.store.operations import Operation, Steps, drive
from workstealing.store.scripts import Script
from workstealing.structures import Log
from workstealing.structures.log import UndecodableEntryError
from workstealing.structures.log.base import MOST_OFFSET


def before_script(log: Any, name: str, do: Callable[[], object]) -> None:
    """Let something happen once, right before a log runs a script of that name."""
    todo, script = [do], log.script

    def delayed(asked: str) -> Script:
        while asked == name and todo:
            todo.pop()()
        found: Script = script(asked)
        return found

    log.script = delayed


def test_a_group_that_takes_the_place_of_another_during_a_deletion_is_no_orphan(
    any_server: AnyServer,
) -> None:
    log = made(any_server.client(), 5)
    log.group("a").read()

    def swap() -> None:
        other = Log(any_server.client(), "l")
        other.group("a").delete()
        other.group("b").read()

    before_script(log, "delete", swap)
    assert log.delete()
    assert lasting_keys(log.client) == set()


class Pickled:
    encode, decode = staticmethod(pickle.dumps), staticmethod(pickle.loads)


def test_an_entry_that_an_own_codec_cannot_read_harms_no_other(any_server: AnyServer) -> None:
    client = any_server.client()
    Log(client, "l").append(*(b"junk" if each == 3 else pickle.dumps(each) for each in range(8)))
    log = Log(client, "l", codec=Pickled())
    found = log.group("g", ack=True, max_attempts=1).read(8)
    assert [each.entry for each in found] == [0, 1, 2, 4, 5, 6, 7]
    late = Log(client, "l", codec=Pickled(), clock_shift_ms=100_000)
    group = late.group("g", ack=True, max_attempts=1)
    assert group.ack(*found) == 7
    assert group.read(8) == []
    assert [each.entry for each in group.dead()] == [b"junk"]
    with pytest.raises(UndecodableEntryError, match="entry 3"):
        log.read(0, 8)


def test_what_a_late_reply_says_of_a_log_before_is_not_taken_for_this_one(
    redis7: RedisServer,
) -> None:
    client = redis7.client()
    before = Log(client, "l", 5)
    before.append(*entries(7))
    log = Log(client, "l", 10)
    steps = log.append_steps([b"x"], None)
    # What a thread has asked of the log that was here, and hears when another one is.
    late = drive(client, once(next(steps)))
    before.delete()
    made(client, 30)
    for _ in range(2):
        compact(client, cold=0)
    assert log.read(0, 30) == entries(30)
    next_one = steps.send(late)
    assert log.read(12, 3) == entries(15, 12)
    steps.close()
    assert isinstance(next_one, Operation)


def once(step: Any) -> Steps[Any]:
    return (yield step)


def at(log: Log, offset: int) -> None:
    """Let a log without entries go on at an offset, the first one of a block."""
    keys = log.keys
    log.append(b"x")
    log.client.delete(keys.block(0), keys.news, keys.times, keys.full)
    facts = {"next": offset, "first": offset, "kept": offset // log.known.block}
    log.client.hset(keys.meta, mapping=facts)


def test_there_is_no_offset_that_numbers_in_lua_cannot_tell_from_the_next(
    redis7: RedisServer,
) -> None:
    log = Log(redis7.client(), "l", 8)
    at(log, 2**53 - 16)
    group = log.group("g")
    assert log.append(*entries(12)) == 2**53 - 16
    with pytest.raises(LayoutError, match="no offset"):
        log.append(*entries(5))
    assert log.append(*entries(3)) == 2**53 - 4
    with pytest.raises(LayoutError, match="no offset"):
        log.append(b"x")
    assert (log.length(), log.last()) == (15, MOST_OFFSET - 1)
    assert log.read(-3, 9) == log.read(2**53 - 4, 9) == entries(3)
    assert [each.offset for each in group.read(100)] == [*range(2**53 - 16, 2**53 - 1)]
    assert group.offset() == MOST_OFFSET
    assert log.evict(MOST_OFFSET - 1) == 15
