"""What all calls on a shuffle queue stand on: its keys, its settings, and how steps are run."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.keys import SLOTS
from workstealing.store.operations import Operation, Steps
from workstealing.store.scripts import Script, load
from workstealing.store.twin import is_cluster
from workstealing.structures.namespace import (
    INDEX_SHARDS_OF_A_SERVER,
    Namespaced,
    open_layout,
    register_shards,
)
from workstealing.structures.shuffle_queue.choice import checked_streams, streams_of
from workstealing.structures.shuffle_queue.delays import PickupDelays
from workstealing.structures.shuffle_queue.names import (
    GroupNames,
    IndexNames,
    QueueNames,
)

TENANTS_KNOWN = 4096
LONGEST_SECONDS = 100 * 365 * 86400


def same(reply: Any) -> Any:
    """Return a reply as it is."""
    return reply


class QueueBase(Namespaced[Any]):
    """A client, a queue's name and settings, and what this process knows of the queue.

    Attributes: name: the queue's, as a text; names: of the namespace; keys: of the queue; streams;
    streams_per_tenant; ttl; notify; clock_shift_ms.
    """

    def __init__(  # noqa: PLR0917 - the settings that the public class has in this order
        self,
        client: Any,
        name: str | bytes,
        streams: int = 64,
        streams_per_tenant: int = 4,
        ttl: float = 604800.0,
        notify: bool = True,
        *,
        namespace: str = "shuffle_queues",
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        super().__init__(client, namespace, allow_eviction)
        self.names = IndexNames(namespace)
        self.keys = QueueNames(name)
        self.name = self.keys.text
        if is_cluster(client):
            self.keys.require_one_slot()
        checked_streams(streams, streams_per_tenant)
        self.streams, self.streams_per_tenant = streams, streams_per_tenant
        self.ttl = _checked_ttl(ttl)
        self.ttl_ms = int(ttl * 1000)
        self.notify = notify
        self.clock_shift_ms = clock_shift_ms
        # The due index, the mark and what it says, once the layout is known.
        self._place: tuple[bytes, bytes, str] | None = None
        self._delays: dict[bytes, PickupDelays] = {}
        self._tenants: dict[Any, tuple[bytes, ...]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.keys.text!r}>"

    def streams_of(self, tenant: str | bytes) -> tuple[int, ...]:
        """Return the numbers of the streams that a tenant's messages go to; no round trip.

        They are a stable choice: the same on every platform, in every process and release.
        """
        return streams_of(tenant, self.streams, self.streams_per_tenant)

    def forget(self) -> None:
        """Read the namespace's layout anew at the next call; see `Namespaced.forget`."""
        super().forget()
        self._place = None

    def place_steps(self) -> Steps[tuple[bytes, bytes, str]]:
        """Return the keys of the due index and the mark, and what the mark must say.

        Errors: LayoutError; EvictionPolicyError. Two or three round trips the first time, and one
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

    def script(self, name: str) -> Script:
        """Return a script of shuffle queues, with this object's clock."""
        return load(f"shuffle_queue/{name}", self.clock_shift_ms)

    def operation(self, name: str, keys: tuple[Any, ...], *args: Any) -> Operation:
        """Return one script on keys of the queue, whose reply is taken as it is."""
        return Operation(self.script(name), keys, args, same)

    def delays_of(self, group: GroupNames) -> PickupDelays:
        """Return the pickup delays that this object has seen and not handed over yet."""
        return self._delays.setdefault(group.group, PickupDelays())

    def monotonic(self) -> float:
        """Return this process's own clock in seconds, for how long it waits or has not spoken."""
        return time.monotonic()

    def _run(self, steps: Steps[Any]) -> Any:
        """Run steps: at once, or as something to await."""
        raise NotImplementedError


def _checked_ttl(ttl: object) -> float:
    if (
        isinstance(ttl, bool)
        or not isinstance(ttl, int | float)
        or not 0.001 <= ttl <= LONGEST_SECONDS
    ):
        raise ConfigurationError(
            f"ttl={ttl!r} is no time that a queue may be idle: give seconds, 0.001 or more"
        )
    return ttl
