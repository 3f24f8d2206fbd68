"""The one-attempt twin of an application's client: the connections that jobs work through.

The application's own client keeps redis-py's habits, retries among them. A job must never retry and
never wait long, so it gets connections of its own, made from the same settings.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import redis
from redis import asyncio as redis_asyncio
from redis import sentinel
from redis.asyncio import sentinel as async_sentinel
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from workstealing.errors import ConfigurationError, Moved, is_connection_fault
from workstealing.store.connection import (
    Budget,
    Command,
    OneAttempt,
    Tls,
    one_attempt_class,
    one_attempt_options,
)
from workstealing.store.keys import require_one_slot
from workstealing.store.scripts import load_all

BlockingClient = redis.Redis | redis.RedisCluster
AsyncClient = redis_asyncio.Redis | redis_asyncio.RedisCluster
# The kind of client that a form of a structure takes.
ClientT = TypeVar("ClientT")
_PACKAGE = "workstealing."

# What identifies a node to a twin: its address in a cluster or behind sentinels, None for the only
# server there is.
Node = tuple[str, int] | None

_BLOCKING = {
    redis_asyncio.Connection: Connection,
    redis_asyncio.SSLConnection: SSLConnection,
    redis_asyncio.UnixDomainSocketConnection: UnixDomainSocketConnection,
}
# The twin takes the address that the application's pool has learned; it asks no sentinel itself.
_UNMANAGED = (
    (sentinel.SentinelManagedSSLConnection, SSLConnection),
    (sentinel.SentinelManagedConnection, Connection),
    (async_sentinel.SentinelManagedSSLConnection, SSLConnection),
    (async_sentinel.SentinelManagedConnection, Connection),
)
_CREDENTIALS = frozenset({"username", "password", "credential_provider"})


def is_cluster(client: Any) -> bool:
    """Say whether a client talks to a Redis Cluster."""
    return isinstance(client, redis.RedisCluster | redis_asyncio.RedisCluster)


def is_async(client: Any) -> bool:
    """Say whether a client's commands must be awaited."""
    return isinstance(client, AsyncClient)


class Twin:
    """One-attempt connections to the server, or to the nodes of the cluster, of a client.

    Arguments: client: a redis.Redis, redis.RedisCluster or their asyncio counterparts, whose
    settings (address, password, TLS, database) are taken over. Makes no connection before its first
    use; safe under threads and after fork.
    """

    def __init__(self, client: Any) -> None:
        if not isinstance(
            client,
            redis.Redis | redis.RedisCluster | redis_asyncio.Redis | redis_asyncio.RedisCluster,
        ):
            raise ConfigurationError(
                f"a client of redis-py was expected (redis.Redis, redis.RedisCluster or their"
                f" asyncio counterparts), not {type(client).__name__}"
            )
        # Not a strong reference: the twin is kept by a table that is keyed by its client.
        self._client_ref = ref(client)
        self.is_cluster = is_cluster(client)
        pool: Any = getattr(client, "connection_pool", None)
        self._is_managed = not self.is_cluster and _is_managed(pool)
        if self._is_managed and not pool.is_master:
            raise ConfigurationError(
                "a client of Sentinel's replicas was given, but jobs and structures write: pass"
                " sentinel.master_for(...)"
            )
        self._idle: dict[Node, list[OneAttempt]] = {}
        # Slot -> what the client's map said when its move was noted, and where it has gone.
        self._moved: dict[int, tuple[Node, Node]] = {}
        self._tls = Tls()
        self._pid = os.getpid()

    @property
    def _client(self) -> Any:
        client = self._client_ref()
        if client is None:
            raise ConfigurationError(
                "the client that this twin was made from is gone: keep it alive"
            )
        return client

    @property
    def identity(self) -> Hashable:
        """What jobs on one server or cluster have in common, so that they share a breaker."""
        if self.is_cluster:
            nodes = getattr(self._client.nodes_manager, "startup_nodes", {})
            return ("cluster", *sorted(map(str, nodes)))
        pool = self._client.connection_pool
        if self._is_managed:
            known = (each.connection_pool for each in pool.sentinel_manager.sentinels)
            return ("sentinel", pool.service_name, *sorted(_address(each) for each in known))
        options = pool.connection_kwargs
        return ("server", options.get("path") or (options.get("host"), options.get("port")))

    def nodes(self) -> list[Node]:
        """Return the nodes that hold slots, as the client knows them; no round trip."""
        if not self.is_cluster:
            return [self._only_node()]
        cache = self._client.nodes_manager.slots_cache
        return list({(nodes[0].host, nodes[0].port) for nodes in list(cache.values()) if nodes})

    def node_of(self, slot: int) -> Node:
        """Return the node that holds a slot.

        Errors: Moved if the client's map does not know. No round trip.
        """
        if not self.is_cluster:
            return self._only_node()
        known = self._known_node_of(slot)
        noted = self._moved.get(slot)
        if noted is not None:
            told_then, gone_to = noted
            if told_then == known:
                return gone_to
            # The client has read the map anew since, and knows better.
            self._moved.pop(slot, None)
        return known

    def _only_node(self) -> Node:
        if not self._is_managed:
            return None
        address = self._client.connection_pool.master_address
        if address is None:
            raise Moved(
                "the client has not asked its sentinels for the master yet: it does so before its"
                " own first command"
            )
        return (address[0], int(address[1]))

    def _known_node_of(self, slot: int) -> tuple[str, int]:
        nodes = self._client.nodes_manager.slots_cache.get(slot)
        if not nodes:
            raise Moved(f"the client does not know yet which node of the cluster holds slot {slot}")
        return (nodes[0].host, int(nodes[0].port))

    @contextmanager
    def connection(self, node: Node) -> Iterator[OneAttempt]:
        """Lend a connection to a node; it goes back when the block ends, unless it was closed.

        Where the node says that slots have gone, the next recruit will ask.
        """
        connection = self._take(node)
        try:
            yield connection
        except Moved as error:
            self._note_moved(node, error)
            raise
        except Exception as error:
            if is_connection_fault(error):
                self._forget_moved_to(node)
            raise
        finally:
            # A host's time-out in here, or on the way here, only drops the connection.
            self._put(node, connection)

    def call(self, node: Node, commands: Sequence[Command], budget: Budget) -> list[Any]:
        """Send commands to a node in one round trip; see `OneAttempt.call`."""
        with self.connection(node) as connection:
            return connection.call(commands, budget)

    def call_keys(
        self, keys: tuple[bytes, ...], commands: Sequence[Command], budget: Budget
    ) -> list[Any]:
        """Send commands to the node that holds the keys' slot, in one round trip.

        Errors: CrossSlotError if the keys do not share a slot; see `OneAttempt.call`.
        """
        return self.call(self.node_of(require_one_slot(keys)), commands, budget)

    def _note_moved(self, asked: Node, error: Moved) -> None:
        """Remember where slots have gone, for as long as the client's own map stays as it is."""
        if asked is None or not self.is_cluster:
            return
        remap = getattr(self._client.nodes_manager, "address_remap", None)
        for slot, (host, port) in error.gone.items():
            # An empty host stands for the one that was asked.
            address = (host or asked[0], port)
            self._moved[slot] = (self._known_node_of(slot), remap(address) if remap else address)

    def _forget_moved_to(self, node: Node) -> None:
        """Trust the client's map again, rather than a node that cannot be reached."""
        for slot, (_, gone_to) in list(self._moved.items()):
            if gone_to == node:
                self._moved.pop(slot, None)

    def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.disconnect()

    def _take(self, node: Node) -> OneAttempt:
        if self._pid != os.getpid():
            # A child of fork() shares its parent's sockets: it may close its copies, not use them.
            self.close()
            self._pid = os.getpid()
        try:
            # One step for every thread, without a lock: a signal handler may need one as well.
            connection = self._idle[node].pop()
        except (KeyError, IndexError):
            return self._make(node)
        if connection.is_stale():
            # The server closed it while it was idle. Nothing was sent, so this is no retry.
            connection.disconnect()
        return connection

    def _put(self, node: Node, connection: OneAttempt) -> None:
        if connection.is_at_rest:
            self._idle.setdefault(node, []).append(connection)
        else:
            connection.disconnect()

    def _make(self, node: Node) -> OneAttempt:
        return self._made(*self.settings_of(node))

    def _made(self, kind: type[Any], options: dict[str, Any]) -> OneAttempt:
        kind = _blocking_class(kind)
        if kind.__module__.startswith("fakeredis"):
            # Its own clients send no password, and it would refuse one.
            options = {name: value for name, value in options.items() if name not in _CREDENTIALS}
        connection: Any = one_attempt_class(kind)(**one_attempt_options(kind, options))
        connection.tls = self._tls
        connection.names_default_user = options.get("protocol") not in (2, "2")
        made: OneAttempt = connection
        return made

    def warm_up(self, *families: str) -> None:
        """Do what a first slice would have to do and needs no server for.

        Arguments: families: how the names of the scripts begin that it will run. It loads them,
        makes a connection object (TLS has certificates to read) and connects to nothing.
        """
        for family in families:
            load_all(family)
        self._made(*self._settings()).warm_up()

    def settings_of(self, node: Node) -> tuple[type[Any], dict[str, Any]]:
        """Return the application's connection class and options for a node."""
        kind, options = self._settings()
        return kind, options if node is None else {**options, "host": node[0], "port": node[1]}

    def _settings(self) -> tuple[type[Any], dict[str, Any]]:
        """Return the connection class and options, whose address may be that of another node."""
        if not self.is_cluster:
            pool = self._client.connection_pool
            kind, options = pool.connection_class, dict(pool.connection_kwargs)
            if self._is_managed:
                plain = (each for managed, each in _UNMANAGED if issubclass(kind, managed))
                kind = next(plain, kind)
                del options["connection_pool"]
            return kind, options
        manager = self._client.nodes_manager
        if is_async(self._client):
            known = next(iter(manager.startup_nodes.values()))
            return known.connection_class, dict(known.connection_kwargs)
        # There is no default node in the moment when the client reads its map anew.
        known = self._client.get_default_node() or next(iter(manager.startup_nodes.values()))
        pool = self._client.get_redis_connection(known).connection_pool
        return pool.connection_class, dict(pool.connection_kwargs)


def _is_managed(pool: Any) -> bool:
    """Say whether a pool asks sentinels for the address of its server."""
    return isinstance(pool, sentinel.SentinelConnectionPool | async_sentinel.SentinelConnectionPool)


def _address(pool: Any) -> str:
    options = pool.connection_kwargs
    return f"{options.get('path') or options.get('host')}:{options.get('port')}"


def _blocking_class(kind: type[Any]) -> type[Any]:
    """Return the blocking connection class that does what an asynchronous one does."""
    if kind in _BLOCKING:
        return _BLOCKING[kind]
    if not inspect.iscoroutinefunction(kind.send_packed_command):
        return kind
    if kind.__module__.startswith("fakeredis"):
        import fakeredis

        sibling: type[Any] = fakeredis.FakeRedisConnection
        return sibling
    raise ConfigurationError(
        f"the connection class {kind.__name__} has no blocking counterpart that is known here:"
        " pass a client with redis-py's own connection classes"
    )


_twins: WeakKeyDictionary[Any, Twin] = WeakKeyDictionary()


def twin_of(client: Any) -> Twin:
    """Return the one twin of a client, made on first use; no round trip.

    Arguments: client: a client of redis-py, or a twin, which is returned as it is. Errors:
    ConfigurationError for anything else.
    """
    if isinstance(client, Twin):
        return client
    try:
        twin = _twins.get(client)
    except TypeError:
        return Twin(client)
    if twin is None:
        twin = _twins.setdefault(client, Twin(client))
    return twin


def twin_for(structure: Any, client: Any) -> Twin:
    """Return the twin of a structure's client.

    Arguments: structure: its class says by `_is_async_client` which clients it takes. Errors:
    ConfigurationError for the other kind of client, which names the class that takes it. No round
    trip.
    """
    twin = twin_of(client)
    wants_async: bool = structure._is_async_client  # noqa: SLF001 - redis-py's own name for it
    if is_async(client) is not wants_async:
        raise wrong_form(structure, "client")
    return twin


def wrong_form(structure: Any, given: str) -> ConfigurationError:
    """Return the error for a blocking structure on an asyncio client (or store), or the reverse.

    Arguments: structure; given: the word for it, client or store.
    """
    ours = (each for each in type(structure).__mro__ if each.__module__.startswith(_PACKAGE))
    name = next(ours).__name__
    is_ours = name.startswith("Async")
    right = name.removeprefix("Async") if is_ours else f"Async{name}"
    kind = "a blocking" if is_ours else "an asyncio"
    return ConfigurationError(f"{name} was given {kind} {given}: give it to {right}")
