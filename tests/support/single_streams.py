"""Shuffle queues that write into a stream of the test's choice."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from workstealing.structures import ShuffleQueue
from workstealing.structures.shuffle_queue.streams import streams_of


@lru_cache(64)
def tenants_of(streams: int) -> tuple[str, ...]:
    """Return, for each stream, a tenant whose only stream it is where tenants have one each."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < streams:
        (stream,) = streams_of(f"single-{number}", streams, 1)
        found.setdefault(stream, f"single-{number}")
        number += 1
    return tuple(found[stream] for stream in range(streams))


class SingleStreams:
    """Writes to exactly the wanted stream of a queue of so many streams.

    Arguments:
        client: as of a `ShuffleQueue`.
        name: as of a `ShuffleQueue`.
        streams: as of a `ShuffleQueue`.
        options: its others.

    `queue` is that queue, whose tenants have one stream each.
    """

    def __init__(self, client: Any, name: str, streams: int, **options: Any) -> None:
        self.queue: Any = ShuffleQueue(client, name, streams, 1, **options)
        self._streams = streams

    def put(self, stream: int, fields: dict[str, Any], **options: Any) -> str:
        """Write a message into this stream; return its id."""
        written: str = self.queue.write(tenants_of(self._streams)[stream], fields, **options)
        assert written.startswith(f"{stream}-")
        return written
