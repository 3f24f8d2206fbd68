"""What a shuffle queue remembers and takes is bounded, and what it refuses is told in words."""

from __future__ import annotations

from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.structures import AsyncShuffleQueue, ShuffleQueue
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
    view = queue.view("g")
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
    with pytest.raises(ConfigurationError, match="no time to wait"):
        queue.nack(message, delay=CENTURY + 1)
    assert queue.nack(message, delay=CENTURY) == 1
    assert queue.stats("g")["delayed"] == 1
    assert queue.read("g", "c") is None
