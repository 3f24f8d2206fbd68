"""Keys that live exactly until their deadline."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.keys import SLOTS
from workstealing.store.operations import (
    Plan,
    Steps,
    drive,
    drive_async,
    perform,
    perform_async,
)
from workstealing.store.twin import AsyncClient, BlockingClient, ClientT, is_cluster
from workstealing.structures.durable_keys.commands import Translator, require_users_keys
from workstealing.structures.durable_keys.layout import KeyNames
from workstealing.structures.durable_keys.lease import AsyncLease, Lease
from workstealing.structures.durable_keys.pipeline import AsyncKeyPipeline, KeyPipeline
from workstealing.structures.durable_keys.surface import AsyncSurface, BlockingSurface, empty_reply
from workstealing.structures.namespace import (
    INDEX_SHARDS_OF_A_SERVER,
    Layout,
    NamespaceStructure,
    open_layout,
    register_shards,
)


class _Keys(NamespaceStructure[ClientT]):
    """What the blocking and the asyncio form share: the namespace, its layout, its translator."""

    kind = "durable keys"

    def __init__(
        self,
        client: ClientT,
        namespace: str = "default",
        *,
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        super().__init__(client, namespace, allow_eviction)
        self.names = KeyNames(namespace)
        self.translator = Translator(
            self.names, on_cluster=is_cluster(client), clock_shift_ms=clock_shift_ms
        )

    def layout_steps(self) -> Steps[Layout]:
        """Return the layout, having read it or written it down."""
        if self._layout is None:
            shards = SLOTS if is_cluster(self.client) else INDEX_SHARDS_OF_A_SERVER
            self._layout = yield from open_layout(self.names, shards, self._policies)
        return self._layout

    def ready_steps(self, commands: Iterable[tuple[Any, ...]]) -> Steps[Layout]:
        """Return the layout, with the index shards registered that commands will write to."""
        layout = yield from self.layout_steps()
        if layout.registers_shards:
            used = set().union(*(self.translator.shards(layout, args) for args in commands))
            fresh = used - self._registered
            if fresh:
                yield from register_shards(self.names, fresh)
                self._registered |= fresh
        return layout

    def _ready_plan(self, args: tuple[Any, ...], options: dict[str, Any]) -> Plan | None:
        """Return a command's plan if nothing needs to be asked before it."""
        layout = self._layout
        if layout is None or layout.registers_shards:
            return None
        return self.translator.translate(layout, args, options)


class DurableKeys(_Keys[BlockingClient], BlockingSurface):
    """Strings that live exactly until their deadline, however full the server is.

    For locks, leases and expensive recomputes. A key with a time to live of Redis' own is the first
    that a ``volatile-*`` policy evicts, at any time; these carry none, so the server leaves them
    alone. Their deadlines stand in a due index. Expired means gone for every reader here, from the
    millisecond of the deadline on, by the server's clock; `KeyExpiry` frees the memory.

    Arguments: client: a redis.Redis or redis.RedisCluster of the user's own (`AsyncDurableKeys`
    takes an asyncio client); namespace: what groups the keys that one job collects, 1 to 64
    letters, digits, dots, dashes or underscores; allow_eviction: names of ``allkeys-*`` policies
    that are accepted although they may evict a durable key; clock_shift_ms: for tests, how far
    this object's clock is ahead of the server's.

    Methods, signatures and replies are redis-py's for strings, but that a key of another type is
    never overwritten or deleted: WRONGTYPE. Plain clients can read the values, without the
    deadlines. Makes no connection before the first command, which costs two or three round trips
    more, to read the namespace's layout.

    Source: seed of Jim Nelson's talk on work stealing at the Internet Archive ("expire keys only
    after their time-to-live passes").
    """

    def open(self) -> Layout:
        """Read the namespace's layout, or write it down at its first use; return it.

        Every command does this by itself. Errors: LayoutError, EvictionPolicyError. Two or three
        round trips the first time, then none.
        """
        return drive(self.client, self.layout_steps())

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command of redis-py's on this namespace; what all the methods end in."""
        require_users_keys(args)
        nothing = empty_reply(args, options)
        if nothing is not None:
            return nothing
        plan = self._ready_plan(args, options)
        if plan is None:
            layout = drive(self.client, self.ready_steps((args,)))
            plan = self.translator.translate(layout, args, options)
        return perform(self.client, plan)

    def lock(self, name: Any, ttl: float | dt.timedelta) -> Lease:
        """Return a lease to be held by ``with``; entering raises `Aborted` if somebody holds it.

        Arguments: as of `acquire`. No round trip; entering and leaving cost one each.
        """
        return Lease(self, name, ttl)

    def pipeline(self, transaction: bool = True) -> KeyPipeline:
        """Return a pipeline that queues these commands, and the user's own, for one round trip.

        Arguments: transaction: whether they run as one MULTI/EXEC (on a cluster: no).
        """
        return KeyPipeline(self, transaction)


class AsyncDurableKeys(_Keys[AsyncClient], AsyncSurface):
    """`DurableKeys` on a redis.asyncio client: every command is awaited."""

    async def open(self) -> Layout:
        """Read or write down the namespace's layout; see `DurableKeys.open`."""
        return await drive_async(self.client, self.layout_steps())

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command of redis-py's on this namespace; what all the methods end in."""
        require_users_keys(args)
        nothing = empty_reply(args, options)
        if nothing is not None:
            return nothing
        plan = self._ready_plan(args, options)
        if plan is None:
            layout = await drive_async(self.client, self.ready_steps((args,)))
            plan = self.translator.translate(layout, args, options)
        return await perform_async(self.client, plan)

    def lock(self, name: Any, ttl: float | dt.timedelta) -> AsyncLease:
        """Return a lease to be held by ``async with``; see `DurableKeys.lock`."""
        return AsyncLease(self, name, ttl)

    def pipeline(self, transaction: bool = True) -> AsyncKeyPipeline:
        """Return a pipeline whose `execute` is awaited; see `DurableKeys.pipeline`."""
        return AsyncKeyPipeline(self, transaction)


def checked_keys(keys: object) -> DurableKeys | AsyncDurableKeys:
    """Return what a job of durable keys was given, or raise ConfigurationError if it is none."""
    if isinstance(keys, DurableKeys | AsyncDurableKeys):
        return keys
    raise ConfigurationError(
        f"expected DurableKeys, not {type(keys).__name__}: give DurableKeys(client,"
        ' namespace="...")'
    )
