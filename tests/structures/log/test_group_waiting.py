"""Waiting in a group of a log: in the order of the line, without missing anything, whoever dies."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.patience import GUARD_SECONDS
from support.processes import end, spawn
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.store import operations, scripts
from workstealing.store.blocking import AsyncAsker, ask
from workstealing.structures.log.group import GroupEntry, LogGroup
from workstealing.structures.log.group_reading import NoEntries
from workstealing.structures.log.log import AsyncLog, Log

# Far beyond what a busy machine may take, far below the block.
BLOCK, SOON_S = 600, GUARD_SECONDS
MEMBERS = 16


def group_of(server: AnyServer, shift_ms: int = 0, **options: Any) -> LogGroup:
    return Log(server.client(), "l", 10, clock_shift_ms=shift_ms).group("mail", **options)


def appended(server: AnyServer, *entries: bytes, shift_ms: int = 0) -> int:
    return Log(server.client(), "l", 10, clock_shift_ms=shift_ms).append(*entries)


# The scripts with this shift are made while a turn does not end, and are used by nobody else.
LASTING = 7


@pytest.fixture
def lasting_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn last for longer than a busy machine keeps a member from using it."""
    joined = scripts._join

    def join(name: str) -> str:
        return joined(name).replace("local TURN_MS = 1000", "local TURN_MS = 600000")

    assert join("log/group_read") != joined("log/group_read")
    monkeypatch.setattr(scripts, "_join", join)


def blocked(server: Any, client: Any = None) -> int:
    """Return how many clients the server, or its nodes, hold blocked."""
    client = client or server.client()
    if not server.is_cluster:
        return int(client.info("clients")["blocked_clients"])
    nodes = client.info("clients", target_nodes=client.PRIMARIES)
    return sum(int(node["blocked_clients"]) for node in nodes.values())


class Members:
    """Threads that read one after the other has blocked, and go on until they are told to stop."""

    def __init__(self, server: Any, number: int, count: int = 1, shift_ms: int = 0) -> None:
        self.server, self.number, self._shift_ms = server, number, shift_ms
        self._client = server.client()
        self.served: queue.Queue[tuple[int, list[int]]] = queue.Queue()
        self._go_on = True
        self._count = count
        self._groups = [group_of(server, shift_ms) for _ in range(number)]
        self._threads = [
            threading.Thread(target=self._read, args=(each,), daemon=True) for each in range(number)
        ]

    def block(self) -> None:
        """Start them, each when the one before is blocked."""
        for each, thread in enumerate(self._threads):
            thread.start()
            self.wait_for(each + 1)

    def wait_for(self, number: int) -> None:
        # A cluster's client is slow to make, and this asks often.
        wait_until(
            lambda: blocked(self.server, self._client) == number,
            f"{number} members to be blocked",
        )

    def append(self, *entries: bytes) -> int:
        return appended(self.server, *entries, shift_ms=self._shift_ms)

    def next(self) -> tuple[int, list[int]]:
        return self.served.get(timeout=SOON_S)

    def stop(self) -> None:
        self._go_on = False
        self.append(*[b"the end"] * self.number * self._count)
        for thread in self._threads:
            thread.join(SOON_S)
            assert not thread.is_alive()

    def _read(self, member: int) -> None:
        while self._go_on:
            entries = self._groups[member].read(self._count, block=BLOCK)
            self.served.put((member, [entry.offset for entry in entries]))


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    found = request.getfixturevalue(request.param)
    yield found
    found.wipe()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.usefixtures("lasting_turns")
def test_blocked_members_are_served_in_the_order_in_which_they_came(server: Any) -> None:
    """Who was served goes to the end: so over rounds the order stays the same."""
    members = Members(server, MEMBERS, shift_ms=LASTING)
    members.block()
    assert group_of(server).stats().waiting == MEMBERS
    for offset in range(3 * MEMBERS):
        assert members.append(b"e") == offset
        assert members.next() == (offset % MEMBERS, [offset])
        members.wait_for(MEMBERS)
    members.stop()


@pytest.mark.real
@pytest.mark.usefixtures("lasting_turns")
def test_the_entries_of_one_batch_are_spread_over_those_who_wait(server: Any) -> None:
    members = Members(server, MEMBERS, count=10, shift_ms=LASTING)
    members.block()
    for batch in range(3):
        assert members.append(*[b"e"] * MEMBERS) == batch * MEMBERS
        served = [members.next() for _ in range(MEMBERS)]
        assert sorted(member for member, _ in served) == list(range(MEMBERS))
        assert sorted(offset for _, [offset] in served) == list(
            range(batch * MEMBERS, (batch + 1) * MEMBERS)
        )
        members.wait_for(MEMBERS)
    # A batch smaller than the line goes to its first ones.
    first = [members.next() for _ in range(3) if members.append(b"e") >= 0]
    assert len({member for member, _ in first}) == 3
    members.stop()


@pytest.mark.real
@pytest.mark.usefixtures("lasting_turns")
def test_the_line_keeps_its_order_while_its_members_look_now_and_then(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is made on another connection than the wait, which goes on."""
    looks: list[None] = []
    real = LogGroup.look_steps

    def look(self: LogGroup, count: int, *args: Any) -> Any:
        looks.append(None)
        return real(self, count, *args)

    monkeypatch.setattr(NoEntries, "pause_seconds", lambda *_: 0.01)
    monkeypatch.setattr(LogGroup, "look_steps", look)
    members = Members(server, 4, shift_ms=LASTING)
    members.block()
    for offset in range(8):
        before = len(looks)
        wait_until(lambda before=before: len(looks) > before + 12, "members to look")  # type: ignore[misc]
        assert members.append(b"e") == offset
        assert members.next() == (offset % 4, [offset])
        members.wait_for(4)
    members.stop()


# Who does not wait, who dies.


def in_line(group: LogGroup, waiter: str) -> NoEntries:
    """Let a member look that will wait; it has a place in the line, but does not block yet."""
    found = group.log._run(group.look_steps(1, b"", waiter, True))
    assert isinstance(found, NoEntries)
    return found


def test_who_does_not_wait_takes_nothing_from_who_does(any_server: AnyServer) -> None:
    waiting = group_of(any_server)
    in_line(waiting, "w")
    appended(any_server, b"e0", b"e1", b"e2")
    # Whatever time it takes here, by this clock the turn has not ended.
    newcomer = group_of(any_server, shift_ms=-500_000)
    assert [entry.offset for entry in newcomer.read(10)] == [0, 1]
    assert newcomer.read(10) == []
    _, turn = waiting.log.client.blpop([waiting.keys.turns], 1)
    early = group_of(any_server, shift_ms=-500_000)
    (entry,) = early.log._run(early.look_steps(5, b"", "w", True, turn))
    assert (entry.offset, waiting.stats().waiting) == (2, 0)


def test_a_newcomer_that_waits_goes_to_the_end(any_server: AnyServer) -> None:
    waiting = group_of(any_server)
    in_line(waiting, "w")
    appended(any_server, b"e0")
    newcomer = group_of(any_server, shift_ms=-500_000)
    in_line(newcomer, "n")
    # One turn, though two wait for the one entry.
    assert waiting.log.client.llen(waiting.keys.turns) == 1


def test_who_is_dead_withholds_nothing_for_more_than_a_second(any_server: AnyServer) -> None:
    waiting = group_of(any_server)
    in_line(waiting, "dead")
    appended(any_server, b"e0")
    assert group_of(any_server, shift_ms=-500_000).read() == []
    assert [entry.offset for entry in group_of(any_server, shift_ms=1000).read()] == [0]
    # What nobody has used wakes nobody for nothing any more.
    assert group_of(any_server, shift_ms=2000).read() == []
    assert waiting.log.client.exists(waiting.keys.turns, waiting.keys.granted) == 0


def test_a_turn_that_has_ended_wakes_nobody_though_others_have_not(any_server: AnyServer) -> None:
    waiting = group_of(any_server)
    in_line(waiting, "dead")
    in_line(waiting, "alive")
    appended(any_server, b"e0", b"e1")
    client, turns = waiting.log.client, waiting.keys.turns
    assert client.lrange(turns, 0, -1) == [b"1", b"2"]
    # The first one was given long ago.
    assert client.zadd(waiting.keys.granted, {"1": 1}) == 0
    newcomer = group_of(any_server, shift_ms=-500_000)
    assert [entry.offset for entry in newcomer.read(5)] == [0]
    assert client.lrange(turns, 0, -1) == [b"2"]


def test_who_does_not_say_that_he_waits_is_forgotten(any_server: AnyServer) -> None:
    waiting = group_of(any_server)
    in_line(waiting, "dead")
    assert waiting.stats().waiting == 1
    assert group_of(any_server, shift_ms=10_000).stats().waiting == 0
    Log(any_server.client(), "l", 10, clock_shift_ms=10_000).append(b"e0")
    assert waiting.log.client.exists(waiting.keys.turns, waiting.keys.granted) == 0
    assert [entry.offset for entry in group_of(any_server, shift_ms=10_000).read()] == [0]


@pytest.mark.real
def test_who_dies_after_it_was_woken_is_followed_by_the_next(redis7: RedisServer) -> None:
    group = group_of(redis7)
    in_line(group, "dead")
    dead = redis7.client()
    taken: list[Any] = []
    first = threading.Thread(target=lambda: taken.append(dead.blpop([group.keys.turns], 60)))
    first.start()
    wait_until(lambda: blocked(redis7) == 1, "the first one to be blocked")
    found: list[Any] = []
    second = threading.Thread(target=lambda: found.extend(group_of(redis7).read(block=BLOCK)))
    second.start()
    wait_until(lambda: blocked(redis7) == 2, "the second one to be blocked")
    appended(redis7, b"e0")
    first.join(SOON_S)
    # It has the turn, and never looks; nothing else is appended.
    assert taken
    second.join(SOON_S)
    assert [entry.offset for entry in found] == [0]


MEMBER = """
import sys, redis
from workstealing.structures.log.log import Log
client = redis.Redis(port=int(sys.argv[1]))
Log(client, "l", 10).group("mail").read(block=60)
"""


@pytest.mark.slow
@pytest.mark.real
def test_a_process_that_is_killed_while_it_waits_holds_up_nobody(redis7: RedisServer) -> None:
    processes = []
    for number in (1, 2):
        command = (sys.executable, "-P", "-c", MEMBER, str(redis7.port))
        processes.append(spawn(command))
        wait_until(lambda number=number: blocked(redis7) == number, "it to be blocked")  # type: ignore[misc]
    members = Members(redis7, 2)
    for each in processes:
        each.kill()
        end(each)
    wait_until(lambda: blocked(redis7) == 0, "the dead to be gone")
    members.block()
    for offset in range(4):
        appended(redis7, b"e")
        assert members.next() == (offset % 2, [offset])
        members.wait_for(2)
    members.stop()


# No wake-up is lost.


def _revive(group: LogGroup) -> None:
    assert group.revive(0) == 1


def _append_for_another(group: LogGroup) -> None:
    """Another one, who does not wait, takes the first of two entries."""
    group.log.append(b"e1", b"e2")
    assert len(group.read(10)) == 1


BETWEEN: dict[str, Callable[[LogGroup], Any]] = {
    "an append": lambda group: group.log.append(b"e1"),
    "a batch": lambda group: group.log.append(b"e1", b"e2"),
    "two entries, one taken": _append_for_another,
    "an append by who knows no group": lambda group: Log(group.log.client, "l", 10).append(b"e1"),
    "an append by who expects other blocks": lambda group: Log(group.log.client, "l", 7).append(
        b"e1"
    ),
    "a seek": lambda group: group.seek(0),
    "a dead entry's return": _revive,
}


def _with_a_dead_entry(server: AnyServer) -> LogGroup:
    options: dict[str, Any] = {"ack": True, "max_attempts": 1}
    group = group_of(server, **options)
    group.log.append(b"e0")
    assert len(group.read()) == 1
    assert group_of(server, shift_ms=70_000, **options).read() == []
    assert len(group.dead()) == 1
    return group


@pytest.mark.parametrize("what", BETWEEN)
def test_what_comes_between_the_look_and_the_wait_ends_the_wait(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    group, other = _with_a_dead_entry(any_server), _with_the_same(any_server)
    waits: list[float] = []

    def wait(  # noqa: PLR0917
        job_client: Any, slot: int, command: Any, seconds: float, look: Any, pause: float
    ) -> Any:
        waits.append(seconds)
        if len(waits) == 1:
            BETWEEN[what](other)
        # No look comes to the rescue.
        return ask(job_client, slot, command, seconds, look, BLOCK * 2)

    monkeypatch.setattr(operations, "ask", wait)
    started = time.monotonic()
    assert len(group.read(block=BLOCK)) == 1
    assert time.monotonic() - started < SOON_S
    assert len(waits) == 1


def _with_the_same(server: AnyServer) -> LogGroup:
    return group_of(server, ack=True, max_attempts=1)


@pytest.mark.parametrize("what", BETWEEN)
async def test_on_asyncio_too_nothing_falls_between_look_and_wait(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    _with_a_dead_entry(any_server)
    other = _with_the_same(any_server)
    waits: list[float] = []
    real = AsyncAsker.ask

    async def wait(  # noqa: PLR0917
        self: AsyncAsker, slot: int, command: Any, seconds: float, look: Any, pause: float
    ) -> Any:
        waits.append(seconds)
        if len(waits) == 1:
            BETWEEN[what](other)
        return await real(self, slot, command, seconds, look, BLOCK * 2)

    monkeypatch.setattr(AsyncAsker, "ask", wait)
    async with any_server.async_client() as client:
        log = AsyncLog(client, "l", 10)
        group = log.group("mail", ack=True, max_attempts=1)
        started = time.monotonic()
        assert len(await group.read(block=BLOCK)) == 1
        assert time.monotonic() - started < SOON_S
        assert len(waits) == 1
        await group.aclose()
        await log.aclose()


@pytest.mark.parametrize("lease", [0.001, 0.3])
def test_who_waits_gets_what_another_has_not_done_in_time(
    any_server: AnyServer, lease: float
) -> None:
    dead = group_of(any_server, ack=True, lease=lease)
    dead.log.append(b"e0")
    assert len(dead.read()) == 1
    started = time.monotonic()
    (entry,) = group_of(any_server, ack=True, lease=lease).read(block=BLOCK)
    assert (entry.offset, entry.attempts) == (0, 2)
    assert time.monotonic() - started < SOON_S


@pytest.mark.real
def test_a_sleeper_gets_what_was_handed_out_while_he_slept_and_not_done(
    redis7: RedisServer,
) -> None:
    options: dict[str, Any] = {"ack": True, "lease": 0.2}
    found: list[GroupEntry] = []
    readers = [
        threading.Thread(target=lambda: found.extend(group_of(redis7, **options).read(block=BLOCK)))
        for _ in range(2)
    ]
    for number, reader in enumerate(readers):
        reader.start()
        wait_until(lambda number=number: blocked(redis7) == number + 1, "it to be blocked")  # type: ignore[misc]
    appended(redis7, b"e0")
    # The first one gets it, and forgets it; nothing else is appended.
    for reader in readers:
        reader.join(SOON_S)
    assert [(entry.offset, entry.attempts) for entry in found] == [(0, 1), (0, 2)]


@pytest.mark.real
def test_a_seek_serves_all_who_wait(server: Any) -> None:
    appended(server, *[b"e"] * 8)
    group_of(server).seek("last")
    members = Members(server, 4)
    members.block()
    group_of(server).seek(4)
    served = sorted(members.next() for _ in range(4))
    assert [member for member, _ in served] == [0, 1, 2, 3]
    assert sorted(offset for _, [offset] in served) == [4, 5, 6, 7]
    members.wait_for(4)
    members.stop()


@pytest.mark.real
def test_a_group_that_is_deleted_under_who_waits_is_made_anew(redis7: RedisServer) -> None:
    members = Members(redis7, 2)
    members.block()
    group_of(redis7).delete()
    wait_until(lambda: group_of(redis7).stats().waiting == 2, "both to be in line again")
    appended(redis7, b"e0")
    assert members.next()[1] == [0]
    members.wait_for(2)
    members.stop()


@pytest.mark.real
def test_a_wait_outlasts_the_clients_time_out(redis7: RedisServer) -> None:
    client = redis7.client(socket_timeout=1.0)
    writer = threading.Timer(1.5, lambda: appended(redis7, b"e0"))
    writer.start()
    assert len(Log(client, "l", 10).group("mail").read(block=BLOCK)) == 1
    writer.join()


@pytest.mark.real
def test_a_wait_that_is_cut_off_is_taken_up_again(redis7: RedisServer) -> None:
    admin = redis7.client()
    members = Members(redis7, 1)
    members.block()
    for _ in range(3):
        sleeper = next(each["id"] for each in admin.client_list() if "b" in each["flags"])
        admin.client_kill_filter(_id=sleeper)
        wait_until(
            lambda sleeper=sleeper: any(  # type: ignore[misc]
                "b" in each["flags"] and each["id"] != sleeper for each in admin.client_list()
            ),
            "the member to wait again",
        )
    appended(redis7, b"e0")
    assert members.next() == (0, [0])
    members.wait_for(1)
    members.stop()


@pytest.mark.real
async def test_a_cancelled_wait_holds_up_nobody(redis7: RedisServer) -> None:
    async with redis7.async_client(socket_timeout=1.0) as client:
        log = AsyncLog(client, "l", 10)
        group = log.group("mail")
        for _ in range(2):
            task = asyncio.create_task(group.read(block=BLOCK))
            await asyncio.to_thread(wait_until, lambda: blocked(redis7) == 1, "it to sleep")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: blocked(redis7) == 0, "it to end")
        await asyncio.to_thread(appended, redis7, b"e0")
        assert len(await group.read(block=BLOCK)) == 1
        await group.aclose()
        await log.aclose()


@pytest.mark.real
async def test_sixteen_coroutines_are_served_in_order_too(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        log = AsyncLog(client, "l", 10)
        served: list[int] = []
        group = log.group("mail")

        async def member(number: int) -> None:
            for _ in range(2):
                await group.read(block=BLOCK)
                served.append(number)

        tasks = []
        for each in range(MEMBERS):
            tasks.append(asyncio.create_task(member(each)))
            await asyncio.to_thread(
                wait_until,
                lambda each=each: blocked(redis7) == each + 1,  # type: ignore[misc]
                "it to be blocked",
            )
        for offset in range(2 * MEMBERS):
            await asyncio.to_thread(appended, redis7, b"e")
            left = MEMBERS if offset < MEMBERS else 2 * MEMBERS - 1 - offset
            await asyncio.to_thread(
                wait_until,
                lambda offset=offset, left=left: (  # type: ignore[misc]
                    len(served) == offset + 1 and blocked(redis7) == left
                ),
                "one to be served",
            )
        await asyncio.gather(*tasks)
        assert served == [*range(MEMBERS), *range(MEMBERS)]
        await group.aclose()
        await log.aclose()
