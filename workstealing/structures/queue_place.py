"""The place of a queue in its namespace: the due index by which an idle queue is found.

Shuffle queues and fair queues have it alike, and so have their scripts: see
``lua/shared/queue_place.lua``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from redis.exceptions import DataError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.store.job_client import is_async, is_cluster
from workstealing.store.keys import SLOTS, to_bytes
from workstealing.store.operations import AS_BYTES, Operation, Steps, command
from workstealing.store.scripts import Script, load
from workstealing.store.valkey_clients import redis_client
from workstealing.structures.layout import NamesBeside, as_text
from workstealing.structures.namespace import (
    INDEX_SHARDS_OF_A_SERVER,
    Names,
    Namespaced,
    NamespaceStructure,
    open_layout,
    register_shards,
)
from workstealing.structures.stored import holding_ours
from workstealing.structures.structure import FAULT, Check

MESSAGES_A_SCRIPT = 100
"""The most messages that one script writes, reads, settles, recovers, revives or lists.

A call for more goes in pieces of this size, so no script holds the server up for long. Each piece
is atomic; each call's docstring says what may happen between two pieces.
"""
# A look now and then shows that the consumer is alive, and that the connection is.
MOST_SECONDS = 30.0
# Where writers do not notify, the queue is looked at so often.
POLL_SECONDS = 0.1


def checked_queue_name(name: object) -> bytes:
    """Return a queue's name as bytes. Raises: ConfigurationError for an unusable one."""
    if not isinstance(name, str | bytes) or not name:
        raise ConfigurationError(
            f"the queue's name {name!r} is not usable: give a text or bytes, not empty"
        )
    try:
        return to_bytes(name)
    except DataError:
        raise ConfigurationError(
            f"the queue's name {name!r} is not usable: give a text that UTF-8 can write"
        ) from None


KEYS_A_SCRIPT = 100
"""The most keys that one script deletes."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of one step of a deletion.

    Fields: keys: how many; is_done: whether nothing is left to do; came_back: whether somebody has
    used the queue or deleted a part of it since; then nothing was done.
    """

    keys: int
    is_done: bool = False
    came_back: bool = False


@dataclass(frozen=True, slots=True)
class IdleQueues:
    """How `QueueExpiry` deletes idle queues of one kind.

    Fields: namespace: makes the structure of a client's namespace; named: the default one; scripts:
    their folder; delete: makes the steps that delete at most so many keys of a queue, of its name,
    its due index, the limit and the shift of the clock in ms; keys: those that count them.
    """

    namespace: Callable[[Any, str], QueuesOfNamespace]
    named: str
    scripts: str
    delete: Callable[[bytes, bytes, int, int], Steps[Deleted]]
    keys: Callable[[bytes], Steps[int]]


class PlacedQueue(Namespaced[Any]):
    """A client, a queue's keys, and its place in a namespace.

    Attributes: name: the queue's, as a text; names: of the namespace; keys: of the queue; ttl;
    notify; clock_shift_ms.
    """

    family: ClassVar[str]
    """The folder of its scripts."""
    idle: ClassVar[IdleQueues]
    names: Names
    keys: Any

    def __init__(  # noqa: PLR0917 - two callers, which have these
        self,
        client: Any,
        keys: NamesBeside[Any],
        names: Names,
        ttl: Duration,
        notify: bool,
        allow_eviction: Collection[str],
        clock_shift_ms: int,
    ) -> None:
        super().__init__(client, names.namespace, allow_eviction)
        self.names = names
        self.keys = keys
        self.name = keys.name.decode(errors="backslashreplace")
        if is_cluster(self.client):
            self.keys.require_one_slot()
        self.ttl = seconds_of(ttl, "ttl", least=0.001)
        self.ttl_ms = int(self.ttl * 1000)
        self.notify = notify
        self.clock_shift_ms = clock_shift_ms
        # The due index, the mark's key and value, once the layout is known.
        self._place: tuple[bytes, bytes, str] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def forget(self) -> None:
        """Read the namespace's layout anew at the next call; see `Namespaced.forget`."""
        super().forget()
        self._place = None

    def _placing(self) -> Steps[tuple[bytes, bytes, str]]:
        """Return the keys of the due index and the mark, and the mark's right value.

        Raises: LayoutError; EvictionPolicyError. Two or three round trips the first time, and one
        more on a cluster; then none.
        """
        if self._place is not None:
            return self._place
        shards = SLOTS if is_cluster(self.client) else INDEX_SHARDS_OF_A_SERVER
        layout = yield from open_layout(self.names, shards, self._policies)
        layout.require_writable()
        shard = layout.shard_of(self.keys.slot)
        if layout.registers_shards and shard not in self._registered:
            yield from register_shards(self.names, (shard,))
            self._registered.add(shard)
        self._layout = layout
        self._place = (*self.names.index_keys(shard), layout.mark)
        return self._place

    def _script(self, name: str) -> Script:
        """Return a script of such queues, with this object's clock."""
        return load(f"{self.family}/{name}", self.clock_shift_ms)

    def _step(self, name: str, keys: tuple[Any, ...], *args: Any) -> Operation:
        """Return one script on keys of the queue."""
        return Operation(self._script(name), keys, args)

    def monotonic(self) -> float:
        """Return this process's own clock in seconds, for waits and announcements."""
        return time.monotonic()

    def _place_checks(self, version: str, look: Callable[[], Steps[Any]]) -> Steps[Sequence[Check]]:
        """Say whether the namespace and the queue exist, and belong together.

        Arguments:
            version: of the queue's layout in this release.
            look: makes the steps of a script, which knows the rule of versions, and refuses what
                this release cannot read.
        """
        checks = yield from self.idle.namespace(self.client, self.namespace).check_steps()
        with holding_ours(self.keys.meta):
            reply = yield command("HMGET", self.keys.meta, "mark", "namespace", options=AS_BYTES)
        mark, namespace = (None if each is None else as_text(each) for each in reply)
        if mark not in (None, version):
            yield from look()
        if namespace not in (None, self.namespace):
            said = (
                f"queue {self.name}: belongs to the namespace {namespace}, and this process says"
                f" {self.namespace}"
            )
            return (Check("", FAULT, said),)
        return checks


class QueuesOfNamespace(NamespaceStructure[Any]):
    """All queues of one kind in one namespace, as one structure: `QueueExpiry` keeps it clean.

    Raises: ConfigurationError. Makes no connection. The size of a namespace is the number of its
    queues in use.
    """

    names_of: ClassVar[type[Names]]

    def __init__(self, client: Any, namespace: str) -> None:
        # It asks by `inspect` alone, which takes either.
        client = redis_client(client)
        self._is_async_client = is_async(client)
        self.names = self.names_of(namespace)
        super().__init__(client, namespace, ())
        self.name = namespace


class Patience:
    """How long a blocking read goes on, and how long it waits before each further look.

    Arguments:
        seconds: of the whole read.
        most: between two looks, in seconds.
        polls: whether nobody notifies.
        monotonic: this process's own clock.
    """

    def __init__(
        self, seconds: float, most: float, polls: bool, monotonic: Callable[[], float]
    ) -> None:
        self._monotonic = monotonic
        self._most = min(MOST_SECONDS, most)
        self._end = monotonic() + seconds if seconds else None
        self._polls = polls

    def next_seconds(self, wait_ms: int | None) -> float | None:
        """Return how long to wait after a look that found nothing; None when the time is over.

        Arguments:
            wait_ms: until something may come without a notification, None if nothing does.
        """
        if self._end is None:
            return None
        left = self._end - self._monotonic()
        if left <= 0:
            return None
        wait = min(left, self._most)
        if self._polls:
            wait = min(wait, POLL_SECONDS)
        if wait_ms is not None:
            # The server's clock has whole milliseconds.
            wait = min(wait, (wait_ms + 1) / 1000)
        return wait
