"""Waiting for messages: none is missed, whatever falls between the look and the wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import GUARD_SECONDS, ROUNDING_SECONDS
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.jobs import ShuffleQueueReaper
from workstealing.structures import AsyncShuffleQueue, Message, ShuffleQueue
from workstealing.structures.shuffle_queue import reading

# Far beyond what a busy machine may take, far below the block.
BLOCK_SECONDS, SOON_S = 600.0, GUARD_SECONDS

Between = dict[str, Callable[[ShuffleQueue], Any]]


def got(message: Message | None) -> Message:
    assert message is not None
    return message


def _two_writes_for_two_readers(queue: ShuffleQueue) -> None:
    """Write twice, so that the notifications forget the first one, and take one message away."""
    queue.write("a", {"n": 1})
    queue.write("b", {"n": 2})
    got(queue.read("g", "other"))


def _write_after_a_visit(queue: ShuffleQueue) -> None:
    """Another reader finds the queue filled and empties it; the stream stays in the ring."""
    queue.write("a", {"n": 1})
    queue.ack(got(queue.read("g", "other")))
    # Into the same stream, which is empty again: it is in the ring, so nobody is notified.
    queue.write("a", {"n": 2})


def _write_of_one_who_knows_no_group(queue: ShuffleQueue) -> None:
    ShuffleQueue(queue.client, "q", streams=64).write("a", {"n": 1})


BETWEEN: Between = {
    "a write": lambda queue: queue.write("a", {"n": 1}),
    "two writes": _two_writes_for_two_readers,
    "a visit": _write_after_a_visit,
    "a new writer": _write_of_one_who_knows_no_group,
    "a legacy entry": lambda queue: queue.client.xadd("q", {"n": 1}),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_what_comes_between_the_look_and_the_wait_ends_the_wait(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whoever waits from the newest notification on sleeps through what came before it."""
    queue = ShuffleQueue(any_server.client(), "q", streams=8)
    other = ShuffleQueue(any_server.client(), "q", streams=8)
    waits: list[float] = []
    real = ShuffleQueue._wait

    def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            BETWEEN[what](other)
        return real(self, step)

    monkeypatch.setattr(ShuffleQueue, "_wait", wait)
    started = time.monotonic()
    assert got(queue.read("g", "c", block=BLOCK_SECONDS)).fields in ({b"n": b"1"}, {b"n": b"2"})
    assert time.monotonic() - started < SOON_S
    assert len(waits) == 1


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_what_is_given_back_between_the_look_and_the_wait_ends_the_wait(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    queue = ShuffleQueue(any_server.client(), "q", streams=8)
    queue.write("a", {"n": 1})
    message = got(queue.read("g", "c"))
    waits: list[float] = []
    real = ShuffleQueue._wait

    def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            assert queue.nack(message, delay=delay) == 1
        return real(self, step)

    monkeypatch.setattr(ShuffleQueue, "_wait", wait)
    started = time.monotonic()
    assert got(queue.read("g", "d", block=BLOCK_SECONDS)).id == message.id
    assert time.monotonic() - started < SOON_S
    assert all(each <= delay + 0.002 for each in waits[1:])


def test_a_write_wakes_a_sleeper(any_server: AnyServer) -> None:
    queue = ShuffleQueue(any_server.client(), "q", streams=8)
    found: list[Message | None] = []
    reader = threading.Thread(
        target=lambda: found.append(
            ShuffleQueue(any_server.client(), "q", streams=8).read("g", "c", block=BLOCK_SECONDS)
        )
    )
    reader.start()
    wait_until(lambda: queue.groups() == ["g"], "the reader to be there")
    queue.write("a", {"n": 1})
    reader.join(SOON_S)
    assert not reader.is_alive()
    assert got(found[0]).fields == {b"n": b"1"}


def test_without_a_message_a_read_ends_when_its_time_is_over(any_server: AnyServer) -> None:
    queue = ShuffleQueue(any_server.client(), "q", streams=8)
    started = time.monotonic()
    assert queue.read("g", "c", block=0.12) is None
    assert queue.read_many("g", "c", 3, block=0.001) == []
    assert 0.12 - ROUNDING_SECONDS <= time.monotonic() - started < SOON_S


def test_without_notifications_the_queue_is_looked_at_again(any_server: AnyServer) -> None:
    queue = ShuffleQueue(any_server.client(), "q", streams=8, notify=False)
    assert queue.read("g", "c") is None
    writer = threading.Timer(0.05, lambda: queue.write("a", {"n": 1}))
    writer.start()
    started = time.monotonic()
    assert got(queue.read("g", "c", block=BLOCK_SECONDS)).fields == {b"n": b"1"}
    assert time.monotonic() - started < SOON_S
    writer.join()
    assert queue.client.exists(queue.keys.notifications) == 0


@pytest.mark.real
def test_a_wait_outlasts_the_clients_time_out(redis7: RedisServer) -> None:
    queue = ShuffleQueue(redis7.client(socket_timeout=1.0), "q", streams=8)
    writer = threading.Timer(1.5, lambda: ShuffleQueue(redis7.client(), "q").write("a", {"n": 1}))
    writer.start()
    assert got(queue.read("g", "c", block=BLOCK_SECONDS)).fields == {b"n": b"1"}
    writer.join()


@pytest.mark.real
def test_a_wait_that_is_cut_off_is_taken_up_again(redis7: RedisServer) -> None:
    queue = ShuffleQueue(redis7.client(), "q", streams=8)
    admin = redis7.client()
    found: list[Message | None] = []
    reader = threading.Thread(
        target=lambda: found.append(queue.read("g", "c", block=BLOCK_SECONDS))
    )
    reader.start()
    for _ in range(3):
        wait_until(lambda: _blocked(admin) == 1, "the reader to sleep")
        admin.client_kill_filter(_id=_sleeper(admin))
    wait_until(lambda: _blocked(admin) == 1, "the reader to sleep again")
    queue_of_writer = ShuffleQueue(redis7.client(), "q", streams=8)
    queue_of_writer.write("a", {"n": 1})
    reader.join(SOON_S)
    assert got(found[0]).fields == {b"n": b"1"}


def _blocked(client: Any) -> int:
    return int(client.info("clients")["blocked_clients"])


def _sleeper(client: Any) -> str:
    return next(each["id"] for each in client.client_list() if "b" in each["flags"])


@pytest.mark.real
def test_a_server_that_has_gone_is_told_of(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(7)
    admin = server.client()
    client = server.client(retry=None, retry_on_error=[])
    errors: list[BaseException] = []

    def read() -> None:
        try:
            ShuffleQueue(client, "q").read("g", "c", block=BLOCK_SECONDS)
        except redis.ConnectionError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: _blocked(admin) == 1, "the reader to sleep")
    server.kill()
    reader.join(SOON_S)
    assert len(errors) == 1


# Asyncio.


async def test_story_on_asyncio(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        queue = AsyncShuffleQueue(client, "q", streams=8)
        assert isinstance(queue, AsyncShuffleQueue)
        first = await queue.write("a", {"n": 1}, tracking_id="t")
        await queue.write("a", {"n": 2})
        messages = await queue.read_many("g", "c", 5)
        assert sorted(message.fields[b"n"] for message in messages) == [b"1", b"2"]
        assert (await queue.length(), await queue.groups()) == (2, ["g"])
        assert await queue.extend(*messages) == 2
        assert await queue.nack(messages[1]) == 1
        again = got(await queue.read("g", "c"))
        assert again.id == messages[1].id
        assert await queue.cancel("t") is (first in {each.id for each in messages})
        assert await queue.ack(again, messages[0]) == 2
        assert (await queue.length(), await queue.read("g", "c", block=0.02)) == (0, None)
        assert await queue.delete() > 0
        await queue.aclose()


@pytest.mark.parametrize("what", BETWEEN)
async def test_on_asyncio_too_nothing_falls_between_look_and_wait(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    other = ShuffleQueue(any_server.client(), "q", streams=8)
    waits: list[float] = []
    real = AsyncShuffleQueue._wait

    async def wait(self: Any, step: Any) -> Any:
        waits.append(step.seconds)
        if len(waits) == 1:
            BETWEEN[what](other)
        return await real(self, step)

    monkeypatch.setattr(AsyncShuffleQueue, "_wait", wait)
    async with any_server.async_client() as client:
        queue = AsyncShuffleQueue(client, "q", streams=8)
        started = time.monotonic()
        message = got(await queue.read("g", "c", block=BLOCK_SECONDS))
        assert message.fields in ({b"n": b"1"}, {b"n": b"2"})
        assert time.monotonic() - started < SOON_S
        assert len(waits) == 1
        await queue.aclose()


@pytest.mark.real
async def test_a_cancelled_wait_leaves_nothing_behind(redis7: RedisServer) -> None:
    admin = redis7.client()
    async with redis7.async_client(socket_timeout=1.0) as client:
        queue = AsyncShuffleQueue(client, "q", streams=8)
        for _ in range(2):
            task = asyncio.create_task(queue.read("g", "c", block=BLOCK_SECONDS))
            await asyncio.to_thread(wait_until, lambda: _blocked(admin) == 1, "the read to sleep")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: _blocked(admin) == 0, "the read to end")
        ShuffleQueue(redis7.client(), "q", streams=8).write("a", {"n": 1})
        assert got(await queue.read("g", "c", block=BLOCK_SECONDS)).fields == {b"n": b"1"}
        await queue.aclose()


def scripts_of(server: RedisServer) -> int:
    """Return how many scripts a server has run."""
    stats = server.client().info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


@pytest.mark.real
@pytest.mark.parametrize("tenants", [("a",), ("a", "b", "c")])
def test_a_woken_reader_goes_to_the_stream_that_it_was_told_of(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, tenants: tuple[str, ...]
) -> None:
    """One script a woken read: it threw the stream's name away, and looked up to three times."""
    queue = ShuffleQueue(redis7.client(), "q")
    other = ShuffleQueue(redis7.client(), "q")
    woken: list[int] = []
    real = ShuffleQueue._wait

    def wait(*args: Any) -> Any:
        other.write(tenants[len(woken) % len(tenants)], {"n": 1})
        named = real(*args)
        woken.append(scripts_of(redis7))
        return named

    monkeypatch.setattr(ShuffleQueue, "_wait", wait)
    assert queue.read("g", "c") is None
    for _ in range(6):
        message = got(queue.read("g", "c", block=BLOCK_SECONDS))
        assert scripts_of(redis7) - woken[-1] == 1
        queue.ack(message)
    assert len(woken) == 6


@pytest.mark.real
def test_a_reader_that_is_woken_too_late_finds_that_out_by_one_script(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = (ShuffleQueue(redis7.client(), "q") for _ in range(2))
    counts: list[int] = []
    real = ShuffleQueue._wait

    def wait(*args: Any) -> Any:
        counts.append(scripts_of(redis7))
        if len(counts) > 1:
            return None
        other.write("a", {"n": 1})
        other.ack(got(other.read("g", "other")))
        named = real(*args)
        counts[0] = scripts_of(redis7)
        return named

    monkeypatch.setattr(ShuffleQueue, "_wait", wait)
    monkeypatch.setattr(
        reading.Patience, "next_seconds", lambda *_: 1.0 if len(counts) < 2 else None
    )
    assert queue.read("g", "c", block=BLOCK_SECONDS) is None
    assert len(counts) == 2
    assert counts[1] - counts[0] == 1


@pytest.mark.real
async def test_a_woken_coroutine_goes_to_the_stream_that_it_was_told_of(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ShuffleQueue(redis7.client(), "q")
    woken: list[int] = []
    real = AsyncShuffleQueue._wait

    async def wait(*args: Any) -> Any:
        other.write("a", {"n": 1})
        named = await real(*args)
        woken.append(scripts_of(redis7))
        return named

    monkeypatch.setattr(AsyncShuffleQueue, "_wait", wait)
    async with redis7.async_client() as client:
        queue = AsyncShuffleQueue(client, "q")
        assert await queue.read("g", "c") is None
        for _ in range(3):
            message = got(await queue.read("g", "c", block=BLOCK_SECONDS))
            assert scripts_of(redis7) - woken[-1] == 1
            await queue.ack(message)
        await queue.aclose()
    assert len(woken) == 3


def test_what_a_notification_names_is_read_from_any_reply_and_never_trusted() -> None:
    keys = ShuffleQueue(redis.Redis(), "q").keys
    entry = [b"1-0", [b"s", b"17"]]
    assert reading.woken_by(keys, [[keys.notifications, [entry]]]) == 17
    assert reading.woken_by(keys, {keys.notifications: [entry]}) == 17
    assert reading.woken_by(keys, [[keys.legacy, [[b"1-0", [b"a", b"b"]]]]]) == -1
    for number in (b"4096", b"-2", b"x", b""):
        assert reading.woken_by(keys, [[keys.notifications, [[b"1-0", [b"s", number]]]]]) is None
    for reply in (None, [], {}, [[keys.notifications, []]], [[keys.notifications, [[b"1-0", []]]]]):
        assert reading.woken_by(keys, reply) is None


def test_a_wait_says_nothing_of_the_length_of_a_round_trip(redis7: RedisServer) -> None:
    # Or slices take the server for distant, and end before they begin.
    queue = ShuffleQueue(redis7.client(), "q")
    job = ShuffleQueueReaper(queue)
    assert queue.read("g", "w", block=0.05) is None
    assert job.dependency.round_trip() is None
