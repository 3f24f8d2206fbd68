"""What an append does for groups: it wakes those who wait, however many, and looks at no others."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from support.at_once import at_once
from support.patience import GUARD_SECONDS
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.errors import LayoutError
from workstealing.store.operations import Steps, drive
from workstealing.structures import Log
from workstealing.structures.log import writing
from workstealing.structures.log.group import LogGroup
from workstealing.structures.log.group_reading import NoEntries

# Behind the end of every place in a line.
LATER_MS = 100_000
# Far beyond what a busy machine may take.
SOON_S = GUARD_SECONDS
ROUNDS = 10


def log_on(server: AnyServer, shift_ms: int = 0) -> Log:
    return Log(server.client(), "l", 10, clock_shift_ms=shift_ms)


def groups_on(server: AnyServer, number: int, shift_ms: int = 0) -> list[LogGroup]:
    """Return groups that have begun where the log ends."""
    log = log_on(server, shift_ms)
    groups = [log.group(f"group {each}", start="last") for each in range(number)]
    for group in groups:
        group.stats()
    return groups


def in_line(group: LogGroup, waiter: str = "w") -> None:
    """Let a member look that will wait."""
    found = group.log._run(group.look_steps(1, b"", waiter, True))
    assert isinstance(found, NoEntries)


def turns(groups: list[LogGroup]) -> list[int]:
    """Return how many turns were given in each group."""
    return [group.log.client.llen(group.keys.turns) for group in groups]


def calls(client: Any, log: Log) -> dict[str, int]:
    """Return how often the server has called which command for an append, in scripts too.

    But for ZADD, which is left out by an append of the same millisecond.
    """
    client.config_resetstat()
    log.append(b"x")
    return {
        name.removeprefix("cmdstat_"): stats["calls"]
        for name, stats in client.info("commandstats").items()
        if not name.startswith(("cmdstat_config", "cmdstat_info", "cmdstat_zadd"))
    }


@pytest.mark.real
@pytest.mark.parametrize("number", [1, 300])
def test_groups_in_which_nobody_waits_cost_an_append_one_command(
    redis7: RedisServer, number: int
) -> None:
    client = redis7.client()
    log = log_on(redis7)
    # The scripts are new to the server.
    log.append(b"x")
    log.append(b"x")
    without = calls(client, log)
    groups_on(redis7, number)
    assert calls(client, log) == without | {"zrangebyscore": 1}
    # Nor do those in which somebody has waited, some time ago.
    for group in groups_on(redis7, number):
        group.seek("last")
        in_line(group)
    late = log_on(redis7, LATER_MS)
    late.append(b"x")
    late.append(b"x")
    assert calls(client, late) == without | {"zrangebyscore": 1}


@pytest.mark.real
def test_only_groups_in_which_somebody_waits_are_looked_at(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_on(redis7)
    groups = groups_on(redis7, 300)
    in_line(groups[7])
    # The writer learns of it at once, and from then on needs one round trip.
    assert calls(client, log)["evalsha"] == 2
    assert sum(calls(client, log).values()) <= 30
    assert turns(groups) == [0] * 7 + [1] + [0] * 292


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_more_groups_than_one_script_wakes(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(writing, "WOKEN_GROUPS", 2)
    log = log_on(any_server)
    groups = groups_on(any_server, number)
    # The first writer learns of the groups, then knows them; another one knows nothing.
    for writer in (log, log, log_on(any_server)):
        for group in groups:
            group.log.client.delete(group.keys.turns, group.keys.granted)
            group.seek("last")
            in_line(group)
        assert turns(groups) == [0] * number
        writer.append(b"x")
        assert turns(groups) == [1] * number
    assert log.length() == 3


@pytest.mark.real
def test_nobody_sleeps_on_while_many_write_for_more_groups_than_one_script_wakes(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WOKEN_GROUPS", 2)
    # No look comes to the rescue.
    monkeypatch.setattr(NoEntries, "pause_seconds", lambda *_: 2.0 * SOON_S)
    names = [group.name for group in groups_on(redis7, 5)]
    found: dict[str, list[int]] = {name: [] for name in names}

    def read(name: str) -> None:
        group = log_on(redis7).group(name)
        while len(found[name]) < 3 * ROUNDS:
            found[name] += [each.offset for each in group.read(block=2 * SOON_S)]

    readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in names]
    for reader in readers:
        reader.start()
    logs = [log_on(redis7) for _ in range(3)]
    info = logs[0].client.info
    for number in range(ROUNDS):
        wait_until(lambda: info("clients")["blocked_clients"] == len(names), "all to sleep")
        at_once([partial(log.append, b"x") for log in logs])
        expected = {name: list(range(3 * number + 3)) for name in names}
        wait_until(lambda expected=expected: found == expected, "all to be served")  # type: ignore[misc]
    for reader in readers:
        reader.join()


def test_those_whom_one_script_can_wake_are_woken_by_that_which_appends(
    any_server: AnyServer,
) -> None:
    """So a writer that is killed has appended and woken them, or neither."""
    groups = groups_on(any_server, writing.WOKEN_GROUPS)
    for group in groups:
        in_line(group)
    log = log_on(any_server)
    steps = log.append_steps([b"x"], None)
    reply, length = None, 0
    while not length:
        reply = drive(log.client, once(steps.send(reply)))
        length = log_on(any_server).length()
    assert turns(groups) == [1] * len(groups)


def test_a_writer_that_dies_before_it_has_woken_all_holds_them_up_until_they_look(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WOKEN_GROUPS", 2)
    groups = groups_on(any_server, 3)
    log = log_on(any_server)
    for group in groups:
        in_line(group, "dead")
        in_line(group, "alive")
    steps = log.append_steps([b"x"], None)
    steps.send(drive(log.client, once(next(steps))))
    steps.close()
    assert turns(groups) == [0] * 3
    for group in groups:
        # As a member does now and then while it waits; it is the first one's turn.
        found = group.log._run(group.look_steps(0, b"", "alive", True))
        assert isinstance(found, NoEntries)
        assert 0 < found.pause_ms <= 1000
    assert turns(groups) == [1] * 3


def test_a_group_is_believed_to_be_waited_in_as_long_as_any_of_its_line(
    any_server: AnyServer,
) -> None:
    (group,) = groups_on(any_server, 1)
    client, keys = group.log.client, group.keys
    until = 0.0
    # The more there are, the longer each may take; then clocks differ, and one looks again.
    for waiter, shift_ms in [(f"w{each}", 0) for each in range(30)] + [
        ("late", LATER_MS),
        ("early", 0),
        ("late", 0),
    ]:
        (other,) = groups_on(any_server, 1, shift_ms)
        in_line(other, waiter)
        until = max(until, *client.zrange(keys.line, 0, -1, withscores=True)[-1][1:])
        assert client.zscore(group.log.keys.waiting, keys.group) == until


def test_a_group_that_is_deleted_and_a_log_are_waited_in_no_more(any_server: AnyServer) -> None:
    one, other = groups_on(any_server, 2)
    client, waiting = one.log.client, one.log.keys.waiting
    in_line(one)
    in_line(other)
    one.delete()
    assert client.zrange(waiting, 0, -1) == [other.keys.group]
    log_on(any_server).append(b"x")
    assert turns([one, other]) == [0, 1]
    log_on(any_server).delete()
    assert client.exists(waiting) == 0


def test_who_has_gone_is_forgotten_by_the_next_who_waits(any_server: AnyServer) -> None:
    one, _ = groups_on(any_server, 2)
    in_line(one)
    _, late = groups_on(any_server, 2, LATER_MS)
    in_line(late)
    assert one.log.client.zrange(one.log.keys.waiting, 0, -1) == [late.keys.group]


def test_what_is_no_list_of_groups_is_left_alone(any_server: AnyServer) -> None:
    (group,) = groups_on(any_server, 1)
    client, log = group.log.client, log_on(any_server)
    client.set(log.keys.waiting, "text")
    for call in (lambda: log.append(b"x"), group.read, group.delete, group.stats):
        with pytest.raises(LayoutError, match="does not hold the groups"):
            call()
    assert (log.length(), client.get(log.keys.waiting)) == (0, b"text")


@pytest.mark.parametrize("part", ["state", "line", "turns", "granted"])
def test_a_group_that_is_none_keeps_the_entries_out_for_which_it_had_to_be_woken(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(writing, "WOKEN_GROUPS", 1)
    groups = groups_on(any_server, 2)
    log = log_on(any_server)
    in_line(groups[0])
    client, key = log.client, getattr(groups[0].keys, part)
    client.delete(key)
    client.geoadd(key, (1.0, 1.0, "x")) if part in {"state", "turns"} else client.set(key, "x")
    with pytest.raises(LayoutError, match=r"a group of a log.*; nothing was changed"):
        log.append(b"x")
    assert log.length() == 0
    client.delete(key)
    in_line(groups[0])
    in_line(groups[1])
    assert log.append(b"x") == 0
    assert turns(groups) == [1, 1]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_what_cannot_be_woken_makes_no_append_fail_that_is_done(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Whoever is told that nothing was changed appends the same entries again."""
    monkeypatch.setattr(writing, "WOKEN_GROUPS", 1)
    groups = groups_on(any_server, 3)
    for group in groups:
        in_line(group)
    log = log_on(any_server)
    log.client.set(groups[broken].keys.granted, "text")
    assert log.append(b"x") == 0
    assert turns(groups) == [int(each != broken) for each in range(3)]


def once(step: Any) -> Steps[Any]:
    """Yield one step, and return what it gives."""
    return (yield step)
