"""The demo's Redis as the parent sees it: the garbage, what is left of it, and the clearing up."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from workstealing.errors import Aborted, OutOfTime, WorkStealingError
from workstealing.jobs import HashFieldExpiry
from workstealing.jobs.hash_field_expiry import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store import connect
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes

CONNECT_SECONDS = 3.0
REPLY_SECONDS = 5.0
ALL_HASHES = 1_000_000
# All that redis-py raises when a server is not there, not Redis, or refuses.
FAULTS = (redis.RedisError, RedisClusterException, OSError)
_BATCH = 500
_DRAIN_SLICE_SECONDS = 0.5
# A slice looks at a part of a cluster's index only.
_EMPTY_LOOKS = 20

T = TypeVar("T")


class Storage:
    """A namespace of the demo's own on a Redis; as a context manager it removes all its keys.

    Arguments: url, as of `workstealing.connect`. Raises: WorkStealingError if there is no Redis
    there that can be used; then nothing has been written. `keys` are the hashes that may have been
    written: whoever lets requests write adds theirs.
    """

    def __init__(self, url: str) -> None:
        self.namespace = f"demo-{secrets.token_hex(4)}"
        self.keys: set[str] = set()
        where = "the Redis at --redis"
        try:
            self._client: Any = connect(
                url,
                socket_timeout=REPLY_SECONDS,
                socket_connect_timeout=CONNECT_SECONDS,
                # The first connection tells whether the URL is right; nobody should wait for ten.
                retry=Retry(NoBackoff(), 0),
            )
            self._client.ping()
            # The emulated backend everywhere: where the server expires fields by itself, there is
            # no garbage to show.
            self.hashes: Any = VolatileHashes(
                self._client, namespace=self.namespace, backend="emulated"
            )
            self._layout = self.hashes.open()
        except FAULTS as error:
            raise WorkStealingError(f"{where} cannot be used: {_sentence(error)}") from error
        self._job = HashFieldExpiry(self.hashes)

    def now_ms(self) -> int:
        """Return the server's clock in milliseconds. One round trip."""
        seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def backlog(self, most_hashes: int = 1000) -> Backlog:
        """Return the garbage that is there now; see `HashFieldExpiry.backlog`."""
        return self._job.backlog(most_hashes)

    def left(self, fields: Iterable[tuple[str, str]]) -> int:
        """Return how many of these fields of hashes still occupy memory, expired or not.

        Arguments: (key, field) pairs. One round trip for each 500 hashes.
        """
        count = 0
        for batch in _batches(_by_key(fields).items()):
            # Past the volatile hashes, which would not show what has expired.
            queue = self._client.pipeline(transaction=False)
            for key, names in batch:
                queue.hmget(key, names)
            count += sum(value is not None for reply in queue.execute() for value in reply)
        return count

    def readable(self, fields: Iterable[tuple[str, str]]) -> int:
        """Return how many of these fields a reader is given.

        Arguments: (key, field) pairs. One round trip for each 500 hashes.
        """
        count = 0
        for batch in _batches(_by_key(fields).items()):
            with self.hashes.pipeline(transaction=False) as queue:
                for key, names in batch:
                    queue.hmget(key, names)
                count += sum(value is not None for reply in queue.execute() for value in reply)
        return count

    def drain(self, seconds: float) -> tuple[int, bool]:
        """Collect what is left, slice by slice.

        Arguments: seconds, for how long at most. Returns: how many fields were removed, and whether
        nothing was left in the end.
        """
        removed, found_nothing = 0, 0
        end = time.monotonic() + seconds
        while found_nothing < _EMPTY_LOOKS:
            if time.monotonic() >= end:
                return removed, False
            try:
                handled = self._job.perform(Slice(self._job.limit, _DRAIN_SLICE_SECONDS))
            except (Aborted, OutOfTime):
                continue
            removed += handled
            found_nothing = 0 if handled else found_nothing + 1
        return removed, True

    def remove(self) -> None:
        """Remove every key of the namespace, by name. One round trip for each 500 hashes."""
        names = self.hashes.names
        keys = [key.encode() for key in self.keys]
        self._unlink(each for key in keys for each in (key, names.deadlines(key)))
        shards = {self._layout.shard_of(key_slot(key)) for key in keys}
        self._unlink(each for shard in shards for each in (names.due(shard), names.mark(shard)))
        self._unlink([names.registry, names.layout])

    def _unlink(self, keys: Iterable[bytes]) -> None:
        for batch in _batches(keys):
            queue = self._client.pipeline(transaction=False)
            for key in batch:
                queue.unlink(key)
            queue.execute()

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the keys and close the connections."""
        try:
            self.remove()
        except FAULTS as fault:
            if error is None:
                raise WorkStealingError(
                    f"the keys of the namespace {self.namespace} could not be removed:"
                    f" {_sentence(fault)}"
                ) from fault
        finally:
            self._client.close()


def _by_key(fields: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key, field in fields:
        found[key].append(field)
    return found


def _batches(items: Collection[T] | Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _sentence(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
