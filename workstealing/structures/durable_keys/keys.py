"""Keys that live exactly until their deadline."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import ResponseError

from workstealing.clock import Duration
from workstealing.errors import Aborted, ConfigurationError, is_connection_fault
from workstealing.store.connection import as_layout_error
from workstealing.store.fleet import AnyFleet, AsyncFleet, Fleet
from workstealing.store.grants import (
    Asking,
    AsynchronousAsks,
    BlockingAsks,
    give_back,
    give_back_async,
    new_nonce,
)
from workstealing.store.job_client import AsyncClient, BlockingClient, ClientT, is_cluster
from workstealing.store.keys import SLOTS
from workstealing.store.operations import Steps, operation, run
from workstealing.store.pipeline import AsyncPipeline, BlockingPipeline, Pipeline
from workstealing.structures.access import ALWAYS, DUE, NAMESPACE_KEYS, OPENING_SCRIPTS, Access
from workstealing.structures.durable_keys.commands import (
    AsyncKeySurface,
    BlockingKeySurface,
    KeyNames,
    KeyTranslator,
    empty_reply,
    keys_in,
    require_users_keys,
)
from workstealing.structures.namespace import (
    INDEX_SHARDS_OF_A_SERVER,
    Layout,
    NamespaceStructure,
    open_layout,
    register_shards,
)
from workstealing.structures.on_fleet import (
    AsyncFleetPipeline,
    BlockingFleetPipeline,
    FleetPipeline,
    OnFleet,
    form_for,
    led,
    set_up,
)


class _Keys(NamespaceStructure[ClientT]):
    """The part that both clients' forms share: the namespace, its layout, its translator."""

    kind = "durable keys"
    access = Access(
        keys=NAMESPACE_KEYS,
        scripts=("durable_keys", *OPENING_SCRIPTS),
        # A key is one item, so nobody looks into keys to count more.
        commands=ALWAYS | (DUE - {"ZRANGEBYSCORE"}) | {"MULTI", "EXEC"},
        users_keys=True,
    )
    holds = "string"
    names: KeyNames

    if not TYPE_CHECKING:
        # A type checker, and help(), see the constructor below.
        def __new__(cls, client: Any = None, *_: Any, **__: Any) -> Any:
            """Make a structure, on a fleet one of the form for fleets."""
            return super().__new__(form_for(cls, client))

    def __init__(
        self,
        client: ClientT,
        namespace: str = "default",
        *,
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        self.names = KeyNames(namespace)
        if isinstance(client, AnyFleet):
            settings = {"allow_eviction": allow_eviction, "clock_shift_ms": clock_shift_ms}
            set_up(self, client, namespace, **settings)
            return
        super().__init__(client, namespace, allow_eviction)
        self.translator = KeyTranslator(
            self.names, on_cluster=is_cluster(self.client), clock_shift_ms=clock_shift_ms
        )

    @operation
    def open(self) -> Steps[Layout]:
        """Read the namespace's layout, or write it down at its first use; return it.

        Each command does this when it is needed. Raises: LayoutError; EvictionPolicyError. Two or
        three round trips the first time, then none.
        """
        return self.layout_steps()

    def layout_steps(self) -> Steps[Layout]:
        """Return the layout; if this process does not know it, read it, or write it down."""
        if self._layout is None:
            shards = SLOTS if is_cluster(self.client) else INDEX_SHARDS_OF_A_SERVER
            self._layout = yield from open_layout(self.names, shards, self._policies)
        return self._layout

    def ready_steps(self, commands: Iterable[tuple[Any, ...]]) -> Steps[Layout]:
        """Register the index shards that commands will write to; return the layout."""
        layout = yield from self.layout_steps()
        if layout.registers_shards:
            used = set().union(*(self.translator.shards(layout, args) for args in commands))
            fresh = used - self._registered
            if fresh:
                yield from register_shards(self.names, fresh)
                self._registered |= fresh
        return layout

    def _command(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        require_users_keys(args)
        return self._command_steps(args, options)

    def withdrawal(self, name: Any, nonce: bytes) -> Steps[Any]:
        """Give a lease back that may have been granted; for the package itself."""
        # Nothing has been asked for before the layout is known.
        if self._layout is not None:
            yield from self._command_steps(("WITHDRAW", name, nonce), {})

    def _command_steps(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        nothing = empty_reply(args, options)
        if nothing is not None:
            return nothing
        layout = self._layout
        if layout is None or layout.registers_shards:
            layout = yield from self.ready_steps((args,))
        pieces = self.translator.translate(layout, args, options)
        replies = []
        for each in pieces.operations:
            reply = yield each
            replies.append(reply)
        return pieces.combine(replies)


class DurableKeys(_Keys[BlockingClient | Fleet], BlockingKeySurface, BlockingAsks):
    """Strings that live exactly until their deadline, however full the server is.

    For locks, leases and results that were expensive to make. A ``volatile-*`` policy may evict a
    key with a time to live at any time. A durable key has no time to live in Redis, so the server
    leaves it alone; a due index holds its deadline. The key is gone for every reader here from the
    millisecond of its deadline on, by the server's clock. `KeyExpiry` frees the memory.

    Arguments:
        client: a redis.Redis, a redis.RedisCluster or a `Fleet` (`AsyncDurableKeys` takes an
            asyncio client, or an `AsyncFleet`).
        namespace: the group of keys that one job collects, 1 to 64 letters, digits, dots, dashes or
            underscores.
        allow_eviction: names of ``allkeys-*`` policies to accept although they may evict a durable
            key.
        clock_shift_ms: for tests, how far this object's clock is ahead of the server's.

    Methods, signatures and replies are redis-py's for strings, with one exception: a key of another
    type is never overwritten or deleted (WRONGTYPE). Plain clients can read the values, but not the
    deadlines. The constructor makes no connection. The first command costs two or three more round
    trips, to read the namespace's layout.

    Source: seed of Jim Nelson's talk on work stealing at the Internet Archive ("expire keys only
    after their time-to-live passes").
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command of redis-py's on this namespace; all its methods end here.

        Raises: errors of redis-py; LayoutError for a namespace that holds something foreign;
        ConfigurationError for a name of this package's own keys.
        """
        layout = self._layout
        # This branch saves a usual command the generator, about a microsecond.
        if layout is not None and not layout.registers_shards and len(args) > 1:
            require_users_keys(args)
            pieces = self.translator.translate(layout, args, options)
            if len(pieces.operations) == 1:
                try:
                    return pieces.combine([run(self.client, pieces.operations[0])])
                except ResponseError as error:
                    raise as_layout_error(error) or error from None
        return super().execute_command(*args, **options)

    def lock(self, name: Any, lease: Duration) -> Lease:
        """Return a lease to be held by ``with``; entering raises `Aborted` if somebody holds it.

        Arguments as of `acquire`. No round trip; entering and leaving cost one each.
        """
        return Lease(self, name, lease)

    def at_home(self, name: Any) -> DurableKeys:  # noqa: ARG002 - it decides on a fleet
        """Return the durable keys of a name's node; for the package itself."""
        return self

    def pipeline(self, transaction: bool = True) -> KeyPipeline:
        """Return a pipeline that queues these commands, and the user's own, for one round trip.

        Arguments:
            transaction: whether they run as one MULTI/EXEC; a cluster never does so.
        """
        return KeyPipeline(self, transaction)


class AsyncDurableKeys(_Keys[AsyncClient | AsyncFleet], AsyncKeySurface, AsynchronousAsks):
    """`DurableKeys` on a redis.asyncio client: every command is awaited."""

    def lock(self, name: Any, lease: Duration) -> AsyncLease:
        """Return a lease to be held by ``async with``; see `DurableKeys.lock`."""
        return AsyncLease(self, name, lease)

    async def at_home(self, name: Any) -> AsyncDurableKeys:  # noqa: ARG002 - as there
        """Return the durable keys of a name's node; for the package itself."""
        return self

    def pipeline(self, transaction: bool = True) -> AsyncKeyPipeline:
        """Return a pipeline whose `execute` is awaited; see `DurableKeys.pipeline`."""
        return AsyncKeyPipeline(self, transaction)


class _LeaseBlock:
    """The part that `Lease` and `AsyncLease` share.

    Attribute: kept: None until the block has ended; then True if the lease was still held when it
    was released, False if it had run out, so that somebody else may have worked meanwhile. `kept`
    stays None if nobody knows, because the release was interrupted, or its reply was lost.
    """

    def __init__(self, name: Any, lease: Duration) -> None:
        self.name = name
        self.lease = lease
        self.kept: bool | None = None
        self._token: int | None = None

    @property
    def token(self) -> int:
        """The fencing token. Raises: ConfigurationError outside the block."""
        if self._token is None:
            raise ConfigurationError(
                f"the lease on {self.name!r} is not held: its token is there inside a with block"
            )
        return self._token

    def _begin(self, token: int | None) -> None:
        if token is None:
            raise Aborted(f"somebody else holds the lease on {self.name!r}")
        self._token, self.kept = token, None

    def _require_unheld(self) -> None:
        if self._token is not None:
            raise ConfigurationError(f"this lease on {self.name!r} is held: make another one")


class Lease(_LeaseBlock):
    """A lease that a ``with`` block holds; see `DurableKeys.lock`."""

    def __init__(self, keys: DurableKeys, name: Any, lease: Duration) -> None:
        super().__init__(name, lease)
        self._keys = keys

    def extend(self, lease: Duration | None = None) -> bool:
        """Let the lease end `lease` from now; by default, as long as when it was taken.

        Returns: False if it had run out. One round trip.
        """
        lease = self.lease if lease is None else lease
        return self._keys.extend(self.name, self.token, lease)

    def __enter__(self) -> Self:
        """Take the lease. Raises: Aborted if somebody holds it."""
        self._require_unheld()
        self._home = self._keys.at_home(self.name)
        self._asking: Asking[int | None] = self._home.asking(self.name, self.lease, new_nonce())
        try:
            self._begin(self._home._ask(self._asking))  # noqa: SLF001 - a form of this class's own
            return self
        except BaseException as error:
            give_back(self._home.client, self._asking, error)
            self._token = None
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the lease back, unless it has run out."""
        try:
            self.kept = self._home.release(self.name, self.token)
            self._token = None
        except BaseException as error:
            is_back = give_back(self._home.client, self._asking, error)
            self._token = None
            # After a fault of the connection it has been released by its nonce. The block's own
            # error says more, and the lease ends by itself.
            if not isinstance(error, Exception) or (
                kind is None and not (is_back and is_connection_fault(error))
            ):
                raise


class AsyncLease(_LeaseBlock):
    """A `Lease` for ``async with``."""

    def __init__(self, keys: AsyncDurableKeys, name: Any, lease: Duration) -> None:
        super().__init__(name, lease)
        self._keys = keys

    async def extend(self, lease: Duration | None = None) -> bool:
        """Let the lease end `lease` from now; see `Lease.extend`."""
        lease = self.lease if lease is None else lease
        return await self._keys.extend(self.name, self.token, lease)

    async def __aenter__(self) -> Self:
        """Take the lease. Raises: Aborted if somebody holds it."""
        self._require_unheld()
        self._home = await self._keys.at_home(self.name)
        self._asking: Asking[int | None] = self._home.asking(self.name, self.lease, new_nonce())
        try:
            self._begin(await self._home._ask(self._asking))  # noqa: SLF001 - a form of this class's own
            return self
        except BaseException as error:
            await give_back_async(self._home.client, self._asking, error)
            self._token = None
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the lease back, unless it has run out."""
        try:
            self.kept = await self._home.release(self.name, self.token)
            self._token = None
        except BaseException as error:
            is_back = await give_back_async(self._home.client, self._asking, error)
            self._token = None
            # After a fault of the connection it has been released by its nonce. The block's own
            # error says more, and the lease ends by itself.
            if not isinstance(error, Exception) or (
                kind is None and not (is_back and is_connection_fault(error))
            ):
                raise


class _EitherKeyPipeline(Pipeline, BlockingKeySurface):
    """The part that both forms of a pipeline share; see `KeyPipeline`.

    The methods are typed as in redis-py's own pipelines: by the replies that `execute` returns.
    """

    def __init__(self, keys: _Keys[Any], transaction: bool) -> None:
        super().__init__(keys.client, transaction)
        self._keys = keys
        self._commands: list[tuple[Any, ...]] = []

    def _command(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        require_users_keys(args)
        self._commands.append(args)
        return self._command_steps(args, options)

    def _command_steps(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        # The index shard of a command is known only when the layout has been read.
        layout = self._keys.layout
        assert layout is not None, "the layout is read before"
        pieces = self._keys.translator.translate(layout, args, options)
        return pieces.combine((yield list(pieces.operations)))

    def reset(self) -> None:
        """Forget what is queued."""
        super().reset()
        self._commands = []

    def _opening(self) -> Steps[Any]:
        return self._keys.ready_steps(self._commands)

    def _giving_back(self) -> Steps[None]:
        for args in self._commands:
            if args[0] == "ACQUIRE":
                yield from self._keys.withdrawal(args[1], args[-1])


class KeyPipeline(_EitherKeyPipeline, BlockingPipeline):
    """Commands on durable keys and the user's own, sent together by `execute` in one round trip.

    The methods are those of `DurableKeys`; every other method of redis-py's pipelines queues the
    user's own command (``p.incr("visits")``), and so does ``p.plain.set(...)`` where the name is
    taken. Use the pipeline as a context manager, or call `reset` if you do not execute it.

    `execute` takes one round trip, and more at the first use of a namespace or a cluster slot.
    """


class AsyncKeyPipeline(_EitherKeyPipeline, AsyncPipeline):
    """A `KeyPipeline` whose `execute` is awaited."""


class FleetKeys(OnFleet, DurableKeys):
    """`DurableKeys` on a `Fleet`: each key lives on one node, which does its commands.

    A command on several keys runs on each of their nodes in turn, one round trip a node. If a node
    fails, its error is raised when the other nodes have done their part.
    """

    single_form = DurableKeys

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command on the node of its key, or on those of its keys."""
        self.ready(keys_in(args))
        split = self._split(keys_in(args))
        if split is None:
            return self._node_of(keys_in(args)).execute_command(*args, **options)
        found: dict[str, Any] = {}
        for node, some in split.items():
            with self._noting(found, node):
                found[node] = self.on_nodes[node].execute_command(args[0], *some, **options)
        return self._combined(args, found)

    acquire, release, extend = led("acquire"), led("release"), led("extend")

    def at_home(self, name: Any) -> DurableKeys:
        """Return the durable keys of a name's node; for the package itself."""
        self.ready((name,), leases=True)
        home: DurableKeys = self._node_of((name,))
        return home

    def pipeline(self, transaction: bool = True) -> Any:
        """Return a pipeline that sends each node its own commands: one MULTI/EXEC a node."""
        return FleetKeyPipeline(self, transaction)


class AsyncFleetKeys(OnFleet, AsyncDurableKeys):
    """`FleetKeys` on an `AsyncFleet`."""

    single_form = AsyncDurableKeys

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command on the node of its key, or on the nodes of its keys; see `FleetKeys`."""
        await self.aready(keys_in(args))
        split = self._split(keys_in(args))
        if split is None:
            return await self._node_of(keys_in(args)).execute_command(*args, **options)
        found: dict[str, Any] = {}
        for node, some in split.items():
            with self._noting(found, node):
                found[node] = await self.on_nodes[node].execute_command(args[0], *some, **options)
        return self._combined(args, found)

    acquire, release, extend = led("acquire"), led("release"), led("extend")

    async def at_home(self, name: Any) -> AsyncDurableKeys:
        """Return the durable keys of a name's node; for the package itself."""
        await self.aready((name,), leases=True)
        home: AsyncDurableKeys = self._node_of((name,))
        return home

    def pipeline(self, transaction: bool = True) -> Any:
        """Return a pipeline whose `execute` is awaited; see `FleetKeys.pipeline`."""
        return AsyncFleetKeyPipeline(self, transaction)


class _EitherFleetKeyPipeline(FleetPipeline, BlockingKeySurface):
    """The part that both forms of a pipeline on a fleet share."""

    _names_in = staticmethod(keys_in)

    def _command(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return args, options

    def _ask(self, asking: Asking[Any]) -> Self:
        return self._run(asking.steps)

    def _run(self, queued: Any) -> Self:
        args, options = queued
        return FleetPipeline.execute_command(self, *args, **options)


class FleetKeyPipeline(_EitherFleetKeyPipeline, BlockingFleetPipeline):
    """Commands on durable keys of a fleet; see `FleetPipeline`."""


class AsyncFleetKeyPipeline(_EitherFleetKeyPipeline, AsyncFleetPipeline):
    """A `FleetKeyPipeline` whose `execute` is awaited."""


DurableKeys.fleet_form = FleetKeys
AsyncDurableKeys.fleet_form = AsyncFleetKeys
# inspect.signature looks at __new__ first, and follows this.
_Keys.__new__.__wrapped__ = _Keys.__init__  # type: ignore[attr-defined]


def checked_keys(keys: object) -> DurableKeys | AsyncDurableKeys:
    """Return a job's argument if it is DurableKeys. Raises: ConfigurationError if it is not."""
    if isinstance(keys, DurableKeys | AsyncDurableKeys):
        return keys
    raise ConfigurationError(
        f"expected DurableKeys, not {type(keys).__name__}: give DurableKeys(client,"
        ' namespace="...")'
    )
