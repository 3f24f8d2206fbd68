"""The demo's Redis as the parent sees it: the garbage, the rest of it, and the clearing up."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from workstealing.cli.clients import FAULTS
from workstealing.errors import Aborted, OutOfTime, WorkStealingError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice import Slice
from workstealing.store import connect
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes

_BATCH = 500
_DRAIN_SLICE_SECONDS = 0.5
# A slice looks at a part of a cluster's index only.
_EMPTY_LOOKS = 20


class Storage:
    """A namespace of the demo's own on a Redis; as a context manager it removes all its keys.

    Arguments:
        url: as of `workstealing.connect`.

    Raises: WorkStealingError if there is no Redis there that can be used; then nothing has been
    written. `keys` are the hashes that may have been written: each writer adds its own.
    """

    def __init__(self, url: str) -> None:
        self.namespace = f"demo-{secrets.token_hex(4)}"
        self.keys: set[str] = set()
        # The first connection tells whether the URL is right; nobody should wait for ten.
        patience = {"socket_timeout": 30.0, "socket_connect_timeout": 3.0}
        try:
            self._client: Any = connect(url, retry=Retry(NoBackoff(), 0), **patience)
            self._client.ping()
            # The emulated backend everywhere: where the server expires fields by itself, there is
            # no garbage to show.
            self.hashes: Any = VolatileHashes(self._client, self.namespace, backend="emulated")
            self._layout = self.hashes.open()
        except FAULTS as error:
            raise WorkStealingError(
                f"the Redis at --url cannot be used: {_sentence(error)}"
            ) from error
        self.job = HashFieldExpiry(self.hashes)

    def now_ms(self) -> int:
        """Return the server's clock in milliseconds. One round trip."""
        seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def count(self, fields: Iterable[tuple[str, str]], *, readable: bool) -> int:
        """Return how many of these fields a reader is given, or else still occupy memory.

        One round trip for each 500 hashes.
        """
        # The volatile hashes would not show an expired field.
        reader = self.hashes if readable else self._client
        by_key: dict[str, list[str]] = defaultdict(list)
        for key, field in fields:
            by_key[key].append(field)
        count = 0
        for batch in _batches(by_key.items()):
            with reader.pipeline(transaction=False) as queue:
                for key, names in batch:
                    queue.hmget(key, names)
                count += sum(value is not None for reply in queue.execute() for value in reply)
        return count

    def drain(self, seconds: float) -> tuple[int, bool]:
        """Collect the rest, slice by slice.

        Arguments:
            seconds: for how long at most.

        Returns: how many fields were removed, and whether nothing was left in the end.
        """
        removed, found_nothing = 0, 0
        end = time.monotonic() + seconds
        while found_nothing < _EMPTY_LOOKS:
            if time.monotonic() >= end:
                return removed, False
            try:
                handled = self.job.perform(Slice(self.job.limit, _DRAIN_SLICE_SECONDS))
            except (Aborted, OutOfTime, RedisTimeoutError):
                # A reply that takes longer than a job waits for it: the machine is busy.
                continue
            removed += handled
            found_nothing = 0 if handled else found_nothing + 1
        return removed, True

    def _remove(self) -> None:
        """Remove every key of the namespace, by name. One round trip for each 500 hashes."""
        names = self.hashes.names
        keys = [key.encode() for key in self.keys]
        shards = {self._layout.shard_of(key_slot(key)) for key in keys}
        all_of_them = [each for key in keys for each in (key, names.deadlines(key))]
        all_of_them += [each for shard in shards for each in (names.due(shard), names.mark(shard))]
        # Last, for without them nobody knows where the others are.
        for batch in (*_batches(all_of_them), [names.registry, names.layout]):
            queue = self._client.pipeline(transaction=False)
            for key in batch:
                queue.unlink(key)
            queue.execute()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._remove()
        except FAULTS as fault:
            if error is None:
                raise WorkStealingError(
                    f"the keys of the namespace {self.namespace} could not be removed:"
                    f" {_sentence(fault)}"
                ) from fault
        finally:
            self._client.close()


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _sentence(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
