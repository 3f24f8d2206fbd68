"""Hashes whose fields expire one by one: the namespace, its backend and its layout.

The commands themselves, `hsetex` and the others, are found where they are done: `surface.py` has
the methods, which are redis-py's own, and the commands that no server has; `commands.py` looks up
the script of each on an emulated namespace, `hsetex` that of lua/volatile_hashes/hsetex.lua; a
native namespace sends the server its own command.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import (
    ClusterCrossSlotError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.connection import as_layout_error
from workstealing.store.fleet import AnyFleet, AsyncFleet, Fleet
from workstealing.store.job_client import AsyncClient, BlockingClient, ClientT, is_cluster
from workstealing.store.keys import SLOTS, key_slot, to_bytes
from workstealing.store.operations import (
    Asynchronous,
    Blocking,
    Operation,
    Steps,
    command,
    operation,
    run,
)
from workstealing.store.pipeline import (
    AsyncPipeline,
    BlockingPipeline,
    Pipeline,
    checked_results,
)
from workstealing.store.redis_versions import MISREAD_COMMANDS
from workstealing.store.sending import ask_uncached
from workstealing.structures.access import EXPIRING, NAMESPACE_KEYS, Access
from workstealing.structures.layout import ask_server, require_policy
from workstealing.structures.namespace import (
    EMULATED,
    INDEX_SHARDS_OF_A_SERVER,
    LEAVING,
    MIGRATING,
    NATIVE,
    RETURNING,
    Layout,
    NamespaceStructure,
    read_layout,
    register_shards,
    write_layout,
)
from workstealing.structures.on_fleet import (
    AsyncFleetPipeline,
    BlockingFleetPipeline,
    OnFleet,
    form_for,
    set_up,
)
from workstealing.structures.structure import NOTE, WARNING, Check
from workstealing.structures.volatile_hashes.cached import AsyncCaching, BlockingCaching
from workstealing.structures.volatile_hashes.commands import (
    NATIVE_COMMANDS,
    OPTIONAL_NATIVE_COMMANDS,
    HashNames,
    HashTranslator,
    hashes_in,
    is_once,
    require_users_keys,
)
from workstealing.structures.volatile_hashes.server_faults import (
    REDIS,
    applying_to_any,
    reason_against,
    server_of,
)
from workstealing.structures.volatile_hashes.surface import (
    OWN_COMMANDS,
    VALKEY_QUIRKS,
    AsyncHashSurface,
    BlockingHashSurface,
    QueuedHashSurface,
    require_faithful,
)

BACKENDS = ("auto", "emulated", "native")
_log = logging.getLogger("workstealing")
LAYOUT_SECONDS = 5.0


class _Hashes(NamespaceStructure[ClientT]):
    """The part that both clients' forms share: the namespace, its layout, its translator."""

    kind = "volatile hashes"
    access = Access(
        keys=NAMESPACE_KEYS,
        scripts=("volatile_hashes", "layout"),
        commands=EXPIRING
        # Scripts are told these by name.
        | {"DEL", "TTL", "EXPIRETIME", "PEXPIRETIME"}
        | {"EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"},
        native=frozenset({"HSETEX", "HGETEX", "HGETDEL", "HVALS", "HGETALL", "HMSET", "RENAMENX"})
        | {"HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT", "HTTL", "HPTTL", "HPERSIST"}
        | {"HEXPIRETIME", "HPEXPIRETIME"},
        native_scripts=tuple(
            f"volatile_hashes/{each}"
            for each in (
                *("mark_shard", "guarded", "migrate", "native_hgetdel", "native_hincrbyfxx"),
                *(
                    "native_hlook",
                    "native_hmovefield",
                    "take_back",
                    "hlease",
                    "hunlease",
                    "hstore",
                    "hforget",
                    "delete",
                ),
            )
        ),
        users_keys=True,
    )
    holds = "hash"
    names: HashNames

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
        backend: str = "auto",
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigurationError(
                f"backend={backend!r} is unknown: give one of {', '.join(BACKENDS)}"
            )
        self.names = HashNames(namespace)
        if isinstance(client, AnyFleet):
            settings = {"allow_eviction": allow_eviction, "clock_shift_ms": clock_shift_ms}
            set_up(self, client, namespace, backend=backend, **settings)
            return
        super().__init__(client, namespace, allow_eviction)
        self._backend = backend
        self._layout_read = 0.0
        self.translator = HashTranslator(
            self.names, nested_pairs=_protocol(self.client) == 3, clock_shift_ms=clock_shift_ms
        )

    @operation
    def open(self) -> Steps[Layout]:
        """Read the namespace's layout, or write it down at its first use; return it.

        Each command does this when it is needed. Raises: LayoutError; EvictionPolicyError;
        ConfigurationError. Two or three round trips the first time, then none.
        """
        return self.layout_steps()

    def layout_steps(self, *, again: bool = False) -> Steps[Layout]:
        """Return the layout; if unknown or `again` is true, read it, or at first use write it.

        A layout that is not emulated is read every few seconds, to notice that the namespace begins
        or ends to move.
        """
        layout = self._layout
        if layout is not None and not again and self._is_old(layout):
            found = yield from read_layout(self.names)
            again = found is not None and found.rules != layout.rules
            self._layout_read = time.monotonic()
        if layout is None or again:
            shards = SLOTS if is_cluster(self.client) else INDEX_SHARDS_OF_A_SERVER
            others = functools.partial(self.names.on_each_primary, self.job_client)
            steps = open_layout(self.names, self._backend, shards, self._policies, others)
            layout = self._layout = yield from steps
            self._layout_read = time.monotonic()
        return layout

    def _is_old(self, layout: Layout) -> bool:
        # No process can miss the way back for longer: see MigrateToEmulated. A script's mark tells
        # an emulated one of the way there.
        is_told = layout.backend == EMULATED
        return not is_told and time.monotonic() - self._layout_read > LAYOUT_SECONDS

    def register_steps(self, layout: Layout, commands: Iterable[tuple[Any, ...]]) -> Steps[Layout]:
        """Register the index shards whose marks commands need, before their first use.

        Returns: the layout, read again if an index shard was registered. The end of a move marks
        the registered index shards, so a process that adds one must check whether it has begun.
        """
        if not layout.registers_shards or layout.is_native:
            return layout
        used = {shard for args in commands for shard in self.translator.shards(layout, args)}
        fresh = used - self._registered
        if not fresh:
            return layout
        yield from register_shards(self.names, fresh)
        self._registered |= fresh
        return (yield from self.layout_steps(again=True))

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Check the layout, and which faults of its server a native namespace inherits."""
        checks, layout = yield from self._layout_checks()
        if layout is None or not layout.is_native:
            return checks
        try:
            infos = []
            for key in self.names.on_each_primary(self.job_client):
                facts = yield from ask_server(key, NATIVE_COMMANDS)
                infos.append(facts.info)
        except NoPermissionError:
            # The check of the server reports that.
            return checks
        for info in infos:
            if not server_of(info)[0]:
                said = f"{reason_against(info)}: nobody knows whether its fields keep deadlines"
                return [*checks, Check(", server", WARNING, said)]
        for fault, is_certain in applying_to_any(infos):
            doubt = "" if is_certain else "the server does not tell its settings; "
            said = doubt + fault.said(is_native=True)
            checks = [*checks, Check(f", {fault.name}", WARNING if is_certain else NOTE, said)]
        return checks

    def _command_steps(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        """Run one command by the namespace's present backend."""
        layout = yield from self.layout_steps()
        while True:
            layout = yield from self.register_steps(layout, (args,))
            try:
                # One by one: a refusal must keep the next one from being sent.
                for operation in self.translator.operations(layout, args, options):
                    reply = yield operation
                return reply
            except LayoutError:
                # The command was not done. If the layout has changed, it is done by that.
                known = layout.rules
                layout = yield from self.layout_steps(again=True)
                if layout.rules == known:
                    raise


class VolatileHashes(
    _Hashes[BlockingClient | Fleet], BlockingHashSurface, BlockingCaching, Blocking
):
    """Hashes whose fields expire one by one, by Redis 8's API on any Redis from 6.2 on.

    Arguments:
        client: a redis.Redis, a redis.RedisCluster or a `Fleet` (`AsyncVolatileHashes` takes an
            asyncio client, or an `AsyncFleet`).
        namespace: the group of hashes that one job collects, 1 to 64 letters, digits, dots, dashes
            or underscores.
        backend: "auto" (native where a new namespace's server has the commands), "emulated" or
            "native".
        allow_eviction: names of ``allkeys-*`` policies to accept although they may evict a hash's
            deadlines without the hash.
        clock_shift_ms: for tests, how far this object's clock is ahead of the server's.

    The values stay in an ordinary hash at the user's own key; ``lua/README.md`` lists the other
    keys. An expired field is gone for every reader at once; `HashFieldExpiry` frees its memory.

    Source: seed of Jim Nelson's talk on work stealing at the Internet Archive (deadlines in a
    sorted set beside the hash), with a due index added, so that garbage is found without looking
    for it. The constructor makes no connection. The first command costs two or three more round
    trips, to read the namespace's layout.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one hash command of redis-py's on this namespace; all methods end here."""
        require_users_keys(args)
        layout = self._layout
        if layout is not None:
            # These two branches save a usual command the generators, about a microsecond.
            backend = layout.backend
            is_plain = backend == NATIVE and layout.writable and args[0] not in layout.missing
            if is_plain and not self._is_old(layout):
                if args[0] in layout.quirks:
                    require_faithful(args)
                if is_once(args):
                    return run(self.client, command(*args, options=options, once=True))
                return ask_uncached(self.client, args, options)
            if backend == EMULATED and not layout.registers_shards:
                try:
                    return run(self.client, self.translator.translate(layout, args, options))
                except ResponseError as error:
                    if as_layout_error(error) is None:
                        raise
                    # The script did nothing: the steps below run it again by the new layout.
        return self._run(self._command_steps(args, options))

    def pipeline(self, transaction: bool = True) -> HashPipeline:
        """Return a pipeline that queues hash commands, and the user's own, for one round trip.

        Arguments:
            transaction: whether they run as one MULTI/EXEC; a cluster never does so.
        """
        return HashPipeline(self, transaction)


class AsyncVolatileHashes(
    _Hashes[AsyncClient | AsyncFleet], AsyncHashSurface, AsyncCaching, Asynchronous
):
    """`VolatileHashes` on a redis.asyncio client: every command is awaited."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one hash command of redis-py's on this namespace; all methods end here."""
        require_users_keys(args)
        return await self._run(self._command_steps(args, options))

    def pipeline(self, transaction: bool = True) -> AsyncHashPipeline:
        """Return a pipeline whose `execute` is awaited; see `VolatileHashes.pipeline`."""
        return AsyncHashPipeline(self, transaction)


class _EitherHashPipeline(Pipeline, QueuedHashSurface):
    """The part that both forms of a pipeline share; see `HashPipeline`."""

    def __init__(self, hashes: _Hashes[Any], transaction: bool) -> None:
        super().__init__(hashes.client, transaction)
        self._hashes = hashes
        # The hash commands: position in the queue, arguments and options.
        self._commands: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Queue one hash command; all the methods end here. Returns the pipeline."""
        require_users_keys(args)
        self._commands[len(self._queue)] = args, options
        self._queue.append(functools.partial(self._operations, args, options))
        return self

    def reset(self) -> None:
        """Forget what is queued."""
        super().reset()
        self._commands = {}

    def _operations(self, args: tuple[Any, ...], options: dict[str, Any]) -> Sequence[Operation]:
        """Return the operations of a command by the layout that is known when it is sent."""
        layout, translator = self._hashes.layout, self._hashes.translator
        assert layout is not None, "the layout is read before"
        named = hashes_in(args)
        if len(named) > 1 and is_cluster(self._client):
            first, second = (key_slot(to_bytes(each)) for each in named)
            if first != second:
                # As the server says it: redis-py itself would refuse the whole pipeline.
                raise ClusterCrossSlotError("Keys in request don't hash to the same slot")
        if layout.backend == EMULATED:
            return (translator.translate(layout, args, options),)
        return translator.operations(layout, args, options)

    def _execution(self, raise_on_error: bool) -> Steps[list[Any]]:
        queue, commands = self._queue, self._commands
        layout = yield from self._hashes.layout_steps()
        used = [args for args, _ in commands.values()]
        layout = yield from self._hashes.register_steps(layout, used)
        if not queue:
            return []
        results = yield from self._sent(queue)
        known = layout.rules
        # While it migrates, the server runs a command although its hash was not handed over.
        refused = self._refused(results) if layout.is_emulated or layout.is_guarded else []
        if refused:
            layout = yield from self._hashes.layout_steps(again=True)
            layout = yield from self._hashes.register_steps(layout, used)
            if layout.rules != known:
                again = yield from self._sent([queue[each] for each in refused])
                for position, result in zip(refused, again, strict=True):
                    results[position] = result
                del again, result
        try:
            return checked_results(results, raise_on_error)
        finally:
            # An error that is raised holds this frame, which must not hold the error.
            del results

    def _refused(self, results: Sequence[Any]) -> list[int]:
        """Return the positions of the commands to run again, because the layout has changed.

        These are the refused hash commands, whose scripts did nothing, and later reads of the same
        hashes. Commands that were done, the user's own among them, do not run again.
        """
        if not any(isinstance(result, LayoutError) for result in results):
            return []
        names: set[bytes] = set()
        again: list[int] = []
        translator = self._hashes.translator
        for position, (args, _) in self._commands.items():
            if isinstance(results[position], LayoutError):
                names.update(translator.names_in(args))
                again.append(position)
            elif translator.only_reads(args) and names.intersection(translator.names_in(args)):
                again.append(position)
        return again


class HashPipeline(_EitherHashPipeline, BlockingPipeline):
    """Hash commands and the user's own, sent together by `execute` in one round trip.

    The methods are those of `VolatileHashes`; every other method of redis-py's pipelines queues the
    user's own command (``p.incr("visits")``), and so does ``p.plain.hset(...)`` where the name is
    taken by the hash's own. Use the pipeline as a context manager, or call `reset` if you do not
    execute it.

    `execute` takes one round trip, and more at the first use of a namespace or a cluster slot. If
    the namespace has begun to migrate and this process did not know, some hash commands are
    refused. The refused commands run again in a second round trip, after the rest and outside its
    transaction.
    """


class AsyncHashPipeline(_EitherHashPipeline, AsyncPipeline):
    """A `HashPipeline` whose `execute` is awaited."""


class FleetHashes(OnFleet, VolatileHashes):
    """`VolatileHashes` on a `Fleet`: each hash lives on one node, which does its commands.

    RENAME, RENAMENX and COPY need two names of one node: see `Fleet.common_home`.
    """

    single_form = VolatileHashes

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one hash command on the node of its hash. Raises: CrossSlotError."""
        self.ready(hashes_in(args))
        return self._node_of(hashes_in(args)).execute_command(*args, **options)

    def pipeline(self, transaction: bool = True) -> Any:
        """Return a pipeline that sends each node its own commands: one MULTI/EXEC a node."""
        return FleetHashPipeline(self, transaction)


class AsyncFleetHashes(OnFleet, AsyncVolatileHashes):
    """`FleetHashes` on an `AsyncFleet`."""

    single_form = AsyncVolatileHashes

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one hash command on the node of its hash; see `FleetHashes`."""
        await self.aready(hashes_in(args))
        return await self._node_of(hashes_in(args)).execute_command(*args, **options)

    def pipeline(self, transaction: bool = True) -> Any:
        """Return a pipeline whose `execute` is awaited; see `FleetHashes.pipeline`."""
        return AsyncFleetHashPipeline(self, transaction)


class FleetHashPipeline(BlockingFleetPipeline, QueuedHashSurface):
    """Hash commands on a fleet; see `FleetPipeline`."""

    _names_in = staticmethod(hashes_in)


class AsyncFleetHashPipeline(AsyncFleetPipeline, QueuedHashSurface):
    """A `FleetHashPipeline` whose `execute` is awaited."""

    _names_in = staticmethod(hashes_in)


VolatileHashes.fleet_form = FleetHashes
AsyncVolatileHashes.fleet_form = AsyncFleetHashes
# inspect.signature looks at __new__ first, and follows this.
_Hashes.__new__.__wrapped__ = _Hashes.__init__  # type: ignore[attr-defined]


def checked_hashes(hashes: object) -> VolatileHashes | AsyncVolatileHashes:
    """Return a job's argument if it is VolatileHashes. Raises: ConfigurationError if it is not."""
    if isinstance(hashes, VolatileHashes | AsyncVolatileHashes):
        return hashes
    raise ConfigurationError(
        f"expected VolatileHashes, not {type(hashes).__name__}: give VolatileHashes(client,"
        ' namespace="...")'
    )


def _protocol(client: Any) -> int | None:
    """Return the protocol that the user has set explicitly, if any."""
    if is_cluster(client):
        options = getattr(client.nodes_manager, "connection_kwargs", {})
    else:
        options = client.connection_pool.connection_kwargs
    wanted = options.get("protocol")
    return None if wanted is None else int(wanted)


def open_layout(
    names: HashNames,
    backend: str,
    index_shards: int,
    allowed_policies: Collection[str],
    on_each_primary: Callable[[], Sequence[bytes]],
) -> Steps[Layout]:
    """Read a namespace's layout, or write it down if this is its first use.

    Arguments:
        backend: "auto", "emulated" or "native".
        index_shards: of a new namespace.
        allowed_policies: eviction policies that the user accepts by name.
        on_each_primary: returns keys to ask each primary by, the layout's first.

    Raises: LayoutError for a foreign layout, or for a backend other than the requested one;
    EvictionPolicyError; ConfigurationError if the server lacks the native commands. Two or three
    round trips, once; with "auto" on a cluster of servers that expire fields, one more for each
    further primary.
    """
    layout = yield from read_layout(names)
    wanted = (*NATIVE_COMMANDS, *OPTIONAL_NATIVE_COMMANDS)
    policy, info, known = yield from ask_server(names.layout, wanted)
    has_native = known.issuperset(NATIVE_COMMANDS)
    if layout is None:
        if backend == NATIVE and not has_native:
            raise ConfigurationError(
                f'backend="native" needs a server with {", ".join(NATIVE_COMMANDS)} (Redis 8,'
                ' Valkey 9), and this one lacks them: use backend="auto"'
            )
        chosen = backend
        if backend == "auto":
            against = reason_against(info) if has_native else None
            if has_native and against is None:
                against = yield from _reason_elsewhere(on_each_primary()[1:])
            chosen = NATIVE if has_native and against is None else EMULATED
            if against is not None:
                _log.info(
                    "the namespace %r is emulated although the server expires fields: %s",
                    names.namespace,
                    against,
                )
        if chosen == EMULATED:
            require_policy(names.kind, policy, allowed_policies)
        layout = yield from write_layout(names, chosen, index_shards)
    is_between = layout.backend in (LEAVING, RETURNING) or (backend, layout.backend) == (
        NATIVE,
        MIGRATING,
    )
    if backend not in ("auto", layout.backend) and not is_between:
        raise LayoutError(
            f"the namespace {names.namespace!r} was laid out as {layout.backend}, not {backend}:"
            ' use backend="auto", or move it over with MigrateToNative or MigrateToEmulated'
        )
    if layout.backend != EMULATED:
        if not has_native:
            raise LayoutError(
                f"the namespace {names.namespace!r} was laid out for a server that expires fields"
                " itself, and this server cannot: go back to Redis 8 or Valkey 9, or use another"
                " namespace"
            )
        missing = frozenset(OPTIONAL_NATIVE_COMMANDS) - known
        # A server that does not tell its kind may be a Valkey.
        quirks = frozenset() if server_of(info)[0] == REDIS else VALKEY_QUIRKS
        missing |= MISREAD_COMMANDS | OWN_COMMANDS
        return replace(layout, missing=missing, quirks=quirks)
    require_policy(names.kind, policy, allowed_policies)
    return layout


def _reason_elsewhere(keys: Iterable[bytes]) -> Steps[str | None]:
    """Return why the other primaries of a cluster are not to be trusted; None: they are.

    Arguments:
        keys: one on each of them.

    One round trip each.
    """
    for key in keys:
        try:
            facts = yield from ask_server(key, NATIVE_COMMANDS)
        except (RedisError, RedisClusterException) as error:
            # The choice stays, and the namespace can be moved later.
            return f"a primary of the cluster could not be asked: {error}"
        if not facts.known.issuperset(NATIVE_COMMANDS):
            return "a primary of the cluster lacks the commands"
        if against := reason_against(facts.info):
            return against
    return None
