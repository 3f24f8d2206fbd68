"""No script of a log works on more than so many entries, however many a call asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.servers import AnyServer, RedisServer
from workstealing.store import operations
from workstealing.store.operations import Operation
from workstealing.structures import Log
from workstealing.structures.log import LogGroup
from workstealing.structures.log.group_reading import A_SCRIPT
from workstealing.structures.log.reading import BYTES_A_SCRIPT, ENTRIES_A_SCRIPT

COUNT = 950
Sent = list[tuple[str, tuple[Any, ...]]]


def entries(number: int) -> list[bytes]:
    return [b"entry %d" % each for each in range(number)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What scripts were sent, with their arguments."""
    found: Sent = []
    real = operations.run

    def noted(client: Any, operation: Operation) -> Any:
        if operation.script is not None:
            found.append((operation.script.name, operation.args))
        return real(client, operation)

    monkeypatch.setattr(operations, "run", noted)
    return found


def args_of(sent: Sent, script: str) -> list[tuple[Any, ...]]:
    return [args for name, args in sent if name == f"log/{script}"]


def group_on(server: AnyServer, *, acknowledged: bool = True, **options: Any) -> LogGroup:
    log = Log(server.client(), "l", 100)
    log.append(*entries(COUNT))
    return log.group("g", ack=acknowledged, **options)


def later_group(server: AnyServer, **options: Any) -> LogGroup:
    """Return the same group, for which all that is pending has been so for long."""
    log = Log(server.client(), "l", clock_shift_ms=3_600_000)
    return log.group("g", ack=True, **options)


def fault_at(monkeypatch: pytest.MonkeyPatch, call: int, error: Exception) -> None:
    """Let the look of that number end in an error, before anything is sent."""
    looks = []
    real = LogGroup.look_steps

    def faulty(self: LogGroup, *args: Any) -> Any:
        looks.append(args)
        if len(looks) == call:
            raise error
        return (yield from real(self, *args))

    monkeypatch.setattr(LogGroup, "look_steps", faulty)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_group_reads_in_pieces(any_server: AnyServer, sent: Sent, acknowledged: bool) -> None:
    group = group_on(any_server, acknowledged=acknowledged)
    found = group.read(1000)
    assert [each.entry for each in found] == entries(COUNT)
    assert [each.offset for each in found] == list(range(COUNT))
    assert len({each.delivery for each in found}) == COUNT
    asked = [args[2] for args in args_of(sent, "group_read")]
    assert max(asked) == A_SCRIPT
    assert len(asked) >= COUNT / A_SCRIPT
    assert group.read(1000) == []


def test_less_than_a_piece_is_one_script(any_server: AnyServer, sent: Sent) -> None:
    group = group_on(any_server)
    group.read(1)
    sent.clear()
    assert len(group.read(A_SCRIPT)) == A_SCRIPT
    assert len(args_of(sent, "group_read")) == 1


def test_what_is_handed_out_again_comes_in_pieces_too(any_server: AnyServer, sent: Sent) -> None:
    group = group_on(any_server)
    group.read(1000)
    later = later_group(any_server)
    sent.clear()
    assert sorted(each.offset for each in later.read(1000)) == list(range(COUNT))
    assert max(args[2] for args in args_of(sent, "group_read")) <= A_SCRIPT


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_fault_between_two_pieces_gives_what_came_before(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, acknowledged: bool
) -> None:
    group = group_on(redis7, acknowledged=acknowledged)
    fault_at(monkeypatch, 3, redis.ConnectionError("gone"))
    first = group.read(1000)
    assert [each.offset for each in first] == list(range(2 * A_SCRIPT))
    assert group.stats().pending == (2 * A_SCRIPT if acknowledged else 0)
    assert [each.offset for each in group.read(1000)] == list(range(2 * A_SCRIPT, COUNT))


def test_no_entry_comes_twice_though_its_time_is_over_within_the_call(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_on(redis7, lease=0.001)
    monkeypatch.setattr(LogGroup, "monotonic", lambda self: 0.0)
    offsets = [each.offset for each in group.read(1000)]
    assert len(offsets) == len(set(offsets))
    monkeypatch.undo()
    # By its own clock it stops before anything could come again.
    clock = iter([0.0, 0.0004, 0.0006])
    monkeypatch.setattr(LogGroup, "monotonic", lambda self: next(clock))
    group.delete()
    assert len(group.read(1000)) <= 2 * A_SCRIPT


def test_a_fault_in_the_first_piece_is_raised(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_on(redis7)
    fault_at(monkeypatch, 1, redis.ConnectionError("gone"))
    with pytest.raises(redis.ConnectionError):
        group.read(1000)


def test_who_dies_between_two_pieces_leaves_them_to_others(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    group = group_on(redis7, lease=0.05)
    fault_at(monkeypatch, 2, Killed())  # type: ignore[arg-type]
    with pytest.raises(Killed):
        group.read(1000)
    assert group.stats().pending == A_SCRIPT
    found: set[int] = set()
    while len(found) < COUNT:
        found |= {each.offset for each in group.read(1000, block=5)}
    assert found == set(range(COUNT))


def test_settling_goes_in_pieces(any_server: AnyServer, sent: Sent) -> None:
    group = group_on(any_server, max_attempts=1)
    held = group.read(1000)
    assert group.ack(*held[:450]) == 450
    later = later_group(any_server, max_attempts=1)
    while group.stats().pending:
        later.read(1000)
    dead = [each.offset for each in group.dead(1000)]
    assert sorted(dead) == list(range(450, COUNT))
    assert group.revive(*dead[:250]) == 250
    assert group.discard(*dead[250:]) == 250
    # Of each run of entries its first one, its length and its first delivery.
    assert [args[2:] for args in args_of(sent, "group_ack")] == [
        (0, A_SCRIPT, 1),
        (A_SCRIPT, A_SCRIPT, 1 + A_SCRIPT),
        (2 * A_SCRIPT, 50, 1 + 2 * A_SCRIPT),
    ]
    for script in ("group_revive", "group_discard"):
        pieces = [len(args) - 2 for args in args_of(sent, script)]
        assert max(pieces) == A_SCRIPT
        assert len(pieces) > 1


def test_pending_is_listed_in_pieces(any_server: AnyServer, sent: Sent) -> None:
    group = group_on(any_server)
    group.read(1000)
    sent.clear()
    assert [each.offset for each in group.pending(10_000)] == list(range(COUNT))
    asked = [args[2] for args in args_of(sent, "group_pending")]
    assert max(asked) == A_SCRIPT
    sent.clear()
    assert [each.offset for each in group.pending(250)] == list(range(250))
    assert [args[2] for args in args_of(sent, "group_pending")] == [A_SCRIPT, 50]


@pytest.mark.parametrize("gone", [range(1), range(A_SCRIPT), range(A_SCRIPT - 1, A_SCRIPT + 50)])
def test_what_stays_pending_is_never_left_out(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, gone: range
) -> None:
    """Though entries of the same moment are acknowledged between two pieces."""
    group = group_on(any_server)
    group.read(1000)
    calls = []
    real: Callable[..., Any] = LogGroup._operation

    def between(self: LogGroup, script: str, *args: Any, **options: Any) -> Any:
        if script == "pending":
            calls.append(args)
            if len(calls) == 2:
                group.ack(*gone)
        return real(self, script, *args, **options)

    monkeypatch.setattr(LogGroup, "_operation", between)
    listed = [each.offset for each in group.pending(10_000)]
    assert len(listed) == len(set(listed))
    assert set(listed) >= set(range(COUNT)) - set(gone)


def test_a_large_read_goes_in_pieces(redis7: RedisServer, sent: Sent) -> None:
    client = redis7.client()
    log = Log(client, "l", 100_000)
    many = entries(2 * ENTRIES_A_SCRIPT + 100)
    for first in range(0, len(many), 10_000):
        log.append(*many[first : first + 10_000])
    for offset, count in ((0, len(many)), (7, 10**9), (-len(many) + 3, ENTRIES_A_SCRIPT + 1)):
        sent.clear()
        start = offset % len(many)
        assert Log(client, "l").read(offset, count) == many[start : start + count]
        assert max(args[1] for args in args_of(sent, "read")) <= ENTRIES_A_SCRIPT
    log.evict(ENTRIES_A_SCRIPT + 50)
    gone = ENTRIES_A_SCRIPT + 51
    assert Log(client, "l").read(0, 10**6) == [None] * gone + many[gone:]


def test_a_piece_has_a_mebibyte_at_most(redis7: RedisServer) -> None:
    client = redis7.client()
    log = Log(client, "l")
    log.append(*[b"x" * 10_000] * 1000)
    script = log.on_keys("read", (log.keys.meta, log.keys.news, *log.keys.blocks(0, 1)))
    reply = client.eval(
        *(script.script.body, len(script.keys), *script.keys),
        *(0, 1000, 1000, 0, BYTES_A_SCRIPT, "", "0"),
    )
    size = sum(len(each) for item in reply[7:] for each in item)
    assert BYTES_A_SCRIPT - 20_000 < size <= BYTES_A_SCRIPT + 10_000
    assert log.read(0, 1000) == [b"x" * 10_000] * 1000
