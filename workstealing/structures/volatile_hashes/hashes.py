"""Hashes whose fields expire one by one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.store.keys import SLOTS
from workstealing.store.operations import Steps, drive, drive_async, run, run_async
from workstealing.store.twin import Twin, is_async, is_cluster, twin_of
from workstealing.structures.volatile_hashes.commands import Translator
from workstealing.structures.volatile_hashes.layout import (
    INDEX_SHARDS_OF_A_SERVER,
    Layout,
    Names,
    as_layout_error,
    open_layout,
    register_shards,
)
from workstealing.structures.volatile_hashes.pipeline import AsyncHashPipeline, HashPipeline
from workstealing.structures.volatile_hashes.surface import AsyncSurface, BlockingSurface

BACKENDS = ("auto", "emulated", "native")


class _Hashes:
    """What the blocking and the asyncio form share: the namespace, its layout, its translator."""

    def __init__(
        self,
        client: Any,
        namespace: str = "default",
        *,
        backend: str = "auto",
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigurationError(
                f"backend={backend!r} is unknown: give one of {', '.join(BACKENDS)}"
            )
        if isinstance(allow_eviction, str):
            raise ConfigurationError(
                f"allow_eviction takes a list of policies: give [{allow_eviction!r}]"
            )
        # Checks that this is a client of redis-py; makes no connection.
        self.twin: Twin = twin_of(client)
        self.client = client
        self.names = Names(namespace)
        self.namespace = namespace
        self._backend = backend
        self._policies = frozenset(allow_eviction)
        self._layout: Layout | None = None
        self.registered: set[int] = set()
        self.translator = Translator(
            self.names, nested_pairs=_protocol(client) == 3, clock_shift_ms=clock_shift_ms
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client!r}, namespace={self.namespace!r})"

    @property
    def layout(self) -> Layout | None:
        """The namespace's layout as this process has read it; None before the first command."""
        return self._layout

    def _open_steps(self) -> Steps[Layout]:
        shards = SLOTS if is_cluster(self.client) else INDEX_SHARDS_OF_A_SERVER
        return open_layout(self.names, self._backend, shards, self._policies)

    def fresh_shards(self, layout: Layout, args: tuple[Any, ...]) -> set[int]:
        """Return the index shards that must be registered before a command is run."""
        if not layout.registers_shards:
            return set()
        return set(self.translator.shards(layout, args)) - self.registered


class VolatileHashes(_Hashes, BlockingSurface):
    """Hashes whose fields expire one by one, by Redis 8's API on any Redis from 6.2 on.

    Arguments: client: a redis.Redis or redis.RedisCluster of the user's own (an asyncio client
    gives an `AsyncVolatileHashes`); namespace: what groups the hashes that one job collects, 1 to
    64 letters, digits, dots, dashes or underscores; backend: "auto" (native where a new namespace's
    server has the commands), "emulated" or "native"; allow_eviction: names of ``allkeys-*``
    policies that are accepted although they may evict a hash's deadlines without the hash;
    clock_shift_ms: for tests, how far this object's clock is ahead of the server's.

    The values stay in an ordinary hash at the user's own key; other keys are in the catalogue in
    ``lua/README.md``. Expired means gone for every reader at once; `HashFieldExpiry` frees memory.

    Source: seed of Jim Nelson's talk on work stealing at the Internet Archive (deadlines in a
    sorted set beside the hash), with a due index added, so that garbage is found without looking
    for it. Makes no connection before the first command; that one costs two or three round trips
    more, to read the namespace's layout.
    """

    def __new__(cls, client: Any, *args: Any, **options: Any) -> Any:
        """Make an `AsyncVolatileHashes` where the client is an asyncio one."""
        if is_async(client):
            return AsyncVolatileHashes(client, *args, **options)
        return super().__new__(cls)

    def open(self) -> Layout:
        """Read the namespace's layout, or write it down at its first use; return it.

        Every command does this by itself. Errors: LayoutError, EvictionPolicyError,
        ConfigurationError. Two or three round trips the first time, then none.
        """
        if self._layout is None:
            self._layout = drive(self.client, self._open_steps())
        return self._layout

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one hash command of redis-py's on this namespace; what all the methods end in."""
        layout = self._layout or self.open()
        if layout.is_native and args[0] not in layout.missing:
            return self.client.execute_command(*args, **options)
        operation = self.translator.translate(layout, args, options)
        if fresh := self.fresh_shards(layout, args):
            drive(self.client, register_shards(self.names, fresh))
            self.registered |= fresh
        try:
            return run(self.client, operation)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def pipeline(self, transaction: bool = True) -> HashPipeline:
        """Return a pipeline that queues hash commands, and the user's own, for one round trip.

        Arguments: transaction: whether they run as one MULTI/EXEC (on a cluster: no).
        """
        return HashPipeline(self, transaction)


class AsyncVolatileHashes(_Hashes, AsyncSurface):
    """`VolatileHashes` on a redis.asyncio client: every command is awaited."""

    async def open(self) -> Layout:
        """Read or write down the namespace's layout; see `VolatileHashes.open`."""
        layout = self._layout
        if layout is None:
            layout = self._layout = await drive_async(self.client, self._open_steps())
        return layout

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one hash command of redis-py's on this namespace; what all the methods end in."""
        layout = self._layout or await self.open()
        if layout.is_native and args[0] not in layout.missing:
            return await self.client.execute_command(*args, **options)
        operation = self.translator.translate(layout, args, options)
        if fresh := self.fresh_shards(layout, args):
            await drive_async(self.client, register_shards(self.names, fresh))
            self.registered |= fresh
        try:
            return await run_async(self.client, operation)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def pipeline(self, transaction: bool = True) -> AsyncHashPipeline:
        """Return a pipeline whose `execute` is awaited; see `VolatileHashes.pipeline`."""
        return AsyncHashPipeline(self, transaction)


def _protocol(client: Any) -> int | None:
    """Return the protocol that the user asked for by name, if any."""
    if is_cluster(client):
        options = getattr(client.nodes_manager, "connection_kwargs", {})
    else:
        options = client.connection_pool.connection_kwargs
    wanted = options.get("protocol")
    return None if wanted is None else int(wanted)
