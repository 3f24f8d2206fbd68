"""What a shuffle queue remembers and takes is bounded, and what it refuses is told in words."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.recruiting.slice import Slice
from workstealing.store.job_client import JobClient
from workstealing.structures import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue.reading import CONSUMERS_KNOWN

CENTURY = 100 * 365 * 86400


@pytest.fixture
def queue(redis7: RedisServer) -> Any:
    return ShuffleQueue(redis7.client(), "q", streams=8)


@pytest.mark.parametrize("fields", [{"a": 1, "b": "\ud800"}, {"a": 1, "\ud800": "b"}])
@pytest.mark.real
def test_a_field_that_no_utf8_can_write_is_named(queue: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        queue.write("t", fields)
    assert f"the field {list(fields)[-1]!r} cannot be written" in str(caught.value)
    assert queue.length() == 0
    assert queue.write("t", {"a": 1})


@pytest.mark.real
async def test_on_asyncio_too(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        queue = AsyncShuffleQueue(client, "q", streams=8)
        with pytest.raises(ConfigurationError, match="the field 'b' cannot be written"):
            await queue.write("t", {"a": 1, "b": "\ud800"})
        assert await queue.length() == 0


@pytest.mark.real
def test_who_reads_under_ever_new_names_is_not_remembered_for_ever(queue: Any) -> None:
    """A web worker may well make a consumer of each request."""
    view = queue._view("g")
    # As if it had been so many already.
    view.announced.update({f"c{number}": 0.0 for number in range(CONSUMERS_KNOWN)})
    queue.write("t", {"a": 1})
    queue.write("t", {"a": 2})
    assert queue.read("g", "one more") is not None
    assert queue.read("g", "another") is not None
    assert list(view.announced) == ["one more", "another"]
    assert set(queue.stats("g")["consumers"]) == {"one more", "another"}


@pytest.mark.real
def test_a_delay_may_be_as_long_as_a_ttl(queue: Any) -> None:
    queue.write("t", {"a": 1})
    message = queue.read("g", "c")
    with pytest.raises(ConfigurationError, match="is no such time"):
        queue.nack(message, delay=CENTURY + 1)
    assert queue.nack(message, delay=CENTURY) == 1
    assert queue.stats("g")["delayed"] == 1
    assert queue.read("g", "c") is None


def handled_by(reply: Any) -> int:
    """Return how many messages a script has handled, by its reply."""
    if isinstance(reply, int):
        return reply
    return len(reply) - 4 if isinstance(reply, list) and reply and reply[0] == 0 else 0


@pytest.mark.real
@pytest.mark.parametrize("groups", [("g",), ("g", "h")])
def test_whoever_asks_for_many_gets_them_in_pieces(
    queue: Any, monkeypatch: pytest.MonkeyPatch, groups: tuple[str, ...]
) -> None:
    """No script handles more than a piece: one of a thousand messages took up to 40 ms."""
    for group in groups:
        assert queue.read(group, "c") is None
    written = [queue.write(f"tenant-{n % 7}", {"n": n}) for n in range(2 * MESSAGES_A_SCRIPT + 50)]
    sizes: list[int] = []
    execute = queue.client.execute_command

    def recording(*args: Any, **options: Any) -> Any:
        reply = execute(*args, **options)
        sizes.append(handled_by(reply))
        return reply

    def pieces() -> list[int]:
        found = [size for size in sizes if size]
        sizes.clear()
        return found

    def are_bounded(found: list[int]) -> bool:
        return sum(found) == len(written) and max(found) <= MESSAGES_A_SCRIPT and len(found) >= 3

    monkeypatch.setattr(queue.client, "execute_command", recording)
    messages = queue.read_many("g", "c", 1000)
    assert sorted(each.id for each in messages) == sorted(written)
    assert are_bounded(pieces())
    assert queue.extend(*messages) == len(written)
    assert are_bounded(pieces())
    assert queue.nack(*messages) == len(written)
    assert are_bounded(pieces())
    messages = queue.read_many("g", "c", 1000)
    assert are_bounded(pieces())
    assert queue.ack(*messages) == len(written)
    assert are_bounded(pieces())


@pytest.mark.real
def test_a_reaper_of_any_limit_sets_aside_in_pieces_and_the_dead_go_back_in_pieces(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3 * MESSAGES_A_SCRIPT):
        queue.write("tenant", {"n": n})
    assert len(queue.read_many("g", "c", 1000)) == 3 * MESSAGES_A_SCRIPT
    buried: list[int] = []
    call = JobClient.call

    def recording(job_client: JobClient, node: Any, commands: Any, budget: Any) -> list[Any]:
        replies = call(job_client, node, commands, budget)
        buried.extend(reply[1] for reply in replies if isinstance(reply, list) and len(reply) == 7)
        return replies

    monkeypatch.setattr(JobClient, "call", recording)
    reaper = reaper_after(1, queue, 1000, lease=0.001)
    while sum(buried) < 3 * MESSAGES_A_SCRIPT:
        reaper.perform(Slice(1000, 10.0))
    assert max(buried) <= MESSAGES_A_SCRIPT
    ids = [each.id for each in queue.dead("g", 1000)]
    sizes: list[int] = []
    execute = queue.client.execute_command

    def recording_command(*args: Any, **options: Any) -> Any:
        reply = execute(*args, **options)
        sizes.append(handled_by(reply))
        return reply

    monkeypatch.setattr(queue.client, "execute_command", recording_command)
    middle = MESSAGES_A_SCRIPT * 3 // 2
    assert queue.revive("g", *ids[:middle]) == middle
    assert queue.discard("g", *ids[middle:]) == middle
    found = [size for size in sizes if size]
    assert sum(found) == 2 * middle
    assert max(found) <= MESSAGES_A_SCRIPT


@pytest.mark.real
def test_a_fault_between_two_pieces_loses_none_of_those_that_were_read(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [queue.write("tenant", {"n": n}) for n in range(2 * MESSAGES_A_SCRIPT)]
    execute = queue.client.execute_command
    got: list[int] = []

    def cut(*args: Any, **options: Any) -> Any:
        if sum(got) >= MESSAGES_A_SCRIPT:
            raise redis.ConnectionError("cut")
        reply = execute(*args, **options)
        got.append(handled_by(reply))
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(queue.client, "execute_command", cut)
        first = queue.read_many("g", "c", 1000)
    assert len(first) == MESSAGES_A_SCRIPT
    rest = queue.read_many("g", "c", 1000)
    assert sorted(each.id for each in (*first, *rest)) == sorted(written)
