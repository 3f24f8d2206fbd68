"""The two problems that an Ick is there for; the plain sorted-set pattern has both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from support.servers import AnyServer
from workstealing.structures import Ick

pytestmark = pytest.mark.contract

BATCH = 2


class Queue(Protocol):
    """A dirty list: add with a time, take the first few, say which of them are done."""

    def add(self, member: str, now: float) -> None: ...
    def take(self) -> list[bytes]: ...
    def done(self, members: list[bytes]) -> None: ...


class PlainSortedSet:
    """The pattern that Ick's authors began with: ZADD, ZRANGE, work, ZREM."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def add(self, member: str, now: float) -> None:
        self._client.zadd("plain", {member: now})

    def take(self) -> list[bytes]:
        taken: list[bytes] = self._client.zrange("plain", 0, BATCH - 1)
        return taken

    def done(self, members: list[bytes]) -> None:
        self._client.zrem("plain", *members)


class OnAnIck:
    def __init__(self, client: Any) -> None:
        self._ick: Ick = Ick(client, "ick")

    def add(self, member: str, now: float) -> None:
        self._ick.add({member: now})

    def take(self) -> list[bytes]:
        members: list[bytes] = self._ick.reserve(BATCH).members
        return members

    def done(self, members: list[bytes]) -> None:
        self._ick.ack(*members)


def no_dirt_is_forgotten(queue: Queue) -> None:
    """A document that is dirtied while it is worked on is worked on again."""
    queue.add("document", 1.0)
    batch = queue.take()
    assert batch == [b"document"]
    queue.add("document", 2.0)  # After it was read, and before its work is said to be done.
    queue.done(batch)
    assert queue.take() == [b"document"], "dirty, and in no batch any more"


def nobody_starves(queue: Queue) -> None:
    """A document that is dirtied more often than batches are taken gets its turn."""
    backlog = 20
    for number in range(backlog):
        queue.add(f"cold:{number}", float(number))
    queue.add("hot", float(backlog))
    for now in range(backlog + 1, 5 * backlog):
        # As many come in as go out: there is always more than a batch.
        for number in range(BATCH):
            queue.add(f"cold:{now}:{number}", float(now))
        queue.add("hot", now + 0.5)
        batch = queue.take()
        if b"hot" in batch:
            return
        queue.done(batch)
    raise AssertionError("the hot document was never in a batch")


@pytest.mark.parametrize("promise", [no_dirt_is_forgotten, nobody_starves])
class TestThePromises:
    def test_an_ick_keeps_it(self, any_server: AnyServer, promise: Callable[[Queue], None]) -> None:
        promise(OnAnIck(any_server.client()))

    def test_the_plain_pattern_breaks_it(
        self, any_server: AnyServer, promise: Callable[[Queue], None]
    ) -> None:
        with pytest.raises(AssertionError, match=r"in no batch any more|never in a batch"):
            promise(PlainSortedSet(any_server.client()))
