"""The base of all calls on a shuffle queue: its keys, its settings, its place in the namespace."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from workstealing.clock import Duration
from workstealing.recruiting.checks import checked_attempts
from workstealing.store.fleet import placed
from workstealing.structures.access import ALWAYS, DUE, OPENING_SCRIPTS, Access
from workstealing.structures.queue_place import PlacedQueue, QueuesOfNamespace
from workstealing.structures.shuffle_queue.names import (
    GroupNames,
    IndexNames,
    QueueNames,
)
from workstealing.structures.shuffle_queue.streams import PickupDelays, checked_streams, streams_of


class QueueBase(PlacedQueue):
    """A client, a queue's name and settings, and this process's knowledge of the queue.

    Attributes: as of `PlacedQueue`; streams; streams_per_tenant; max_attempts.
    """

    family = "shuffle_queue"
    keys: QueueNames
    # Whether the writers' view of the groups was read, and no group has joined here since.
    _has_learned = False

    def __init__(  # noqa: PLR0917 - the settings that the public class has in this order
        self,
        client: Any,
        name: str | bytes,
        streams: int = 64,
        streams_per_tenant: int = 4,
        ttl: Duration = 604800.0,
        notify: bool = True,
        *,
        max_attempts: int = 5,
        namespace: str = "shuffle_queues",
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        super().__init__(
            placed(client, name),
            QueueNames(name),
            IndexNames(namespace),
            ttl,
            notify,
            allow_eviction,
            clock_shift_ms,
        )
        checked_streams(streams, streams_per_tenant)
        self.streams, self.streams_per_tenant = streams, streams_per_tenant
        self.max_attempts = checked_attempts(max_attempts)
        self._delays: dict[bytes, PickupDelays] = {}
        self._accounts: dict[Any, tuple[bytes, ...]] = {}

    def streams_of(self, tenant: str | bytes) -> tuple[int, ...]:
        """Return the numbers of the streams that a tenant's messages go to; no round trip.

        For messages with an account give the account, whose streams they are.

        The choice is stable: it is the same on every platform, in every process and release.
        """
        return streams_of(tenant, self.streams, self.streams_per_tenant)

    def _delays_of(self, group: GroupNames) -> PickupDelays:
        """Return the pickup delays that this object has seen and not handed over yet."""
        return self._delays.setdefault(group.group, PickupDelays())


class QueueNamespace(QueuesOfNamespace):
    """All shuffle queues of one namespace; see `QueuesOfNamespace`.

    Arguments:
        client: any client of redis-py, blocking or not.
    """

    kind = "shuffle queues"
    names_of = IndexNames
    access = Access(
        keys=("ws:NAME:layout", "ws:NAME:slots", "{*}:ws:NAME:*"),
        scripts=("shuffle_queue/expire", *OPENING_SCRIPTS),
        commands=ALWAYS | DUE | {"EXISTS"},
        # The names of the queues, which only their users know.
        users_keys=True,
    )

    def __init__(self, client: Any, namespace: str = "shuffle_queues") -> None:
        super().__init__(client, namespace)
