"""The base of all calls on a shuffle queue: its keys, its settings, its place in the namespace."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.store.fleet import placed
from workstealing.store.job_client import is_async, is_cluster
from workstealing.store.keys import SLOTS
from workstealing.store.operations import Operation, Steps
from workstealing.store.scripts import Script, load
from workstealing.store.valkey_clients import redis_client
from workstealing.structures.access import ALWAYS, DUE, OPENING_SCRIPTS, Access
from workstealing.structures.namespace import (
    INDEX_SHARDS_OF_A_SERVER,
    Namespaced,
    NamespaceStructure,
    open_layout,
    register_shards,
)
from workstealing.structures.shuffle_queue.names import (
    GroupNames,
    IndexNames,
    QueueNames,
)
from workstealing.structures.shuffle_queue.streams import PickupDelays, checked_streams, streams_of


class QueueBase(Namespaced[Any]):
    """A client, a queue's name and settings, and this process's knowledge of the queue.

    Attributes: name: the queue's, as a text; names: of the namespace; keys: of the queue; streams;
    streams_per_tenant; ttl; notify; clock_shift_ms.
    """

    def __init__(  # noqa: PLR0917 - the settings that the public class has in this order
        self,
        client: Any,
        name: str | bytes,
        streams: int = 64,
        streams_per_tenant: int = 4,
        ttl: Duration = 604800.0,
        notify: bool = True,
        *,
        namespace: str = "shuffle_queues",
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        client = placed(client, name)
        super().__init__(client, namespace, allow_eviction)
        self.names = IndexNames(namespace)
        self.keys = QueueNames(name)
        self.name = self.keys.text
        if is_cluster(self.client):
            self.keys.require_one_slot()
        checked_streams(streams, streams_per_tenant)
        self.streams, self.streams_per_tenant = streams, streams_per_tenant
        self.ttl = seconds_of(ttl, "ttl", least=0.001)
        self.ttl_ms = int(self.ttl * 1000)
        self.notify = notify
        self.clock_shift_ms = clock_shift_ms
        # The due index, the mark's key and value, once the layout is known.
        self._place: tuple[bytes, bytes, str] | None = None
        self._delays: dict[bytes, PickupDelays] = {}
        self._tenants: dict[Any, tuple[bytes, ...]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.keys.text!r}>"

    def streams_of(self, tenant: str | bytes) -> tuple[int, ...]:
        """Return the numbers of the streams that a tenant's messages go to; no round trip.

        The choice is stable: it is the same on every platform, in every process and release.
        """
        return streams_of(tenant, self.streams, self.streams_per_tenant)

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
        """Return a script of shuffle queues, with this object's clock."""
        return load(f"shuffle_queue/{name}", self.clock_shift_ms)

    def _step(self, name: str, keys: tuple[Any, ...], *args: Any) -> Operation:
        """Return one script on keys of the queue."""
        return Operation(self._script(name), keys, args)

    def _delays_of(self, group: GroupNames) -> PickupDelays:
        """Return the pickup delays that this object has seen and not handed over yet."""
        return self._delays.setdefault(group.group, PickupDelays())

    def monotonic(self) -> float:
        """Return this process's own clock in seconds, for waits and announcements."""
        return time.monotonic()


class QueueNamespace(NamespaceStructure[Any]):
    """All shuffle queues of one namespace, as one structure: `QueueExpiry` keeps it clean.

    Arguments:
        client: any client of redis-py, blocking or not.

    Raises: ConfigurationError. Makes no connection. The size of a namespace is the number of its
    queues in use.
    """

    kind = "shuffle queues"
    access = Access(
        keys=("ws:NAME:layout", "ws:NAME:slots", "{*}:ws:NAME:*"),
        scripts=("shuffle_queue/expire", *OPENING_SCRIPTS),
        commands=ALWAYS | DUE | {"EXISTS"},
        # The names of the queues, which only their users know.
        users_keys=True,
    )

    def __init__(self, client: Any, namespace: str = "shuffle_queues") -> None:
        # It asks by `inspect` alone, which takes either.
        client = redis_client(client)
        self._is_async_client = is_async(client)
        self.names = IndexNames(namespace)
        super().__init__(client, namespace, ())
        self.name = namespace
