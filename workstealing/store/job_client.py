"""The job client of an application's client: the one-attempt connections through which jobs work.

The application's own client keeps redis-py's habits, retries among them. A job must never retry and
never wait long, so it gets connections of its own, made from the same settings. The host's own
calls to the server, such as a cache's, share a breaker with its jobs: see `HostCall`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary, ref

import redis
from redis import asyncio as redis_asyncio
from redis import sentinel
from redis.asyncio import sentinel as async_sentinel
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ReadOnlyError, ResponseError

from workstealing.errors import (
    ConfigurationError,
    Moved,
    Unmapped,
    blamed,
    is_connection_fault,
    is_pool_full,
)
from workstealing.recruiting.breakers import SERVER_BREAKERS, Breaker, Server
from workstealing.recruiting.faults import HostTimeouts
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget, RoundTripTime
from workstealing.store.connection import (
    Command,
    Commands,
    OneAttempt,
    moved_of,
    one_attempt_class,
    one_attempt_options,
    takes_no_writes,
)
from workstealing.store.keys import key_slot, require_one_slot, to_bytes
from workstealing.store.opening import Tls
from workstealing.store.redis_versions import DEFAULT_PROTOCOL
from workstealing.store.scripts import load_all
from workstealing.store.valkey_clients import redis_client

BlockingClient = redis.Redis | redis.RedisCluster
AsyncClient = redis_asyncio.Redis | redis_asyncio.RedisCluster
# The kind of client that a form of a structure takes.
ClientT = TypeVar("ClientT")
_PACKAGE = "workstealing."

# A job client knows a node by its address in a cluster or behind sentinels; None stands for the
# only server.
Node = tuple[str, int] | None

_BLOCKING = {
    redis_asyncio.Connection: Connection,
    redis_asyncio.SSLConnection: SSLConnection,
    redis_asyncio.UnixDomainSocketConnection: UnixDomainSocketConnection,
}
# The job client takes the address that the application's pool has learned; it asks no sentinel.
_UNMANAGED = (
    (sentinel.SentinelManagedSSLConnection, SSLConnection),
    (sentinel.SentinelManagedConnection, Connection),
    (async_sentinel.SentinelManagedSSLConnection, SSLConnection),
    (async_sentinel.SentinelManagedConnection, Connection),
)
_CREDENTIALS = frozenset({"username", "password", "credential_provider"})
# redis-py's ConnectionErrors that are replies: the server was reached, and said no.
_REPLIES = frozenset({"AuthenticationError", "AuthorizationError", "BusyLoadingError"})
_FEW_CONNECTIONS = "max number of clients reached"


_CLUSTERS = (redis.RedisCluster, redis_asyncio.RedisCluster)


def is_cluster(client: Any) -> bool:
    """Say whether a client talks to a Redis Cluster."""
    return isinstance(client, _CLUSTERS)


def is_async(client: Any) -> bool:
    """Say whether a client's commands must be awaited."""
    return isinstance(client, AsyncClient)


class JobClient:
    """One-attempt connections to a client's server, or to the nodes of its cluster.

    Arguments:
        client: a redis.Redis, a redis.RedisCluster or an asyncio counterpart, whose settings
            (address, password, TLS, database) the job client uses.

    The job client connects at its first use. A job client is safe under threads and after fork.
    Raises: ConfigurationError for any other client, and for a client of Sentinel's replicas.
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
        # A weak reference, because the table of job clients has the clients as its keys.
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
        # Slot -> the node in the client's map when the move was noted, and the node after the move.
        self._moved: dict[int, tuple[Node, Node]] = {}
        self._tls = Tls()
        # The pool's address when the job client asked a sentinel itself, and the sentinel's answer.
        self._master: tuple[Node, Node] | None = None
        self._doubts_master = False
        self._sentinels_asked = 0
        self._trips: dict[Node, RoundTripTime] = {}
        self._identified: tuple[Hashable, ...] | None = None
        self._breakers: dict[Node, Breaker] = {}
        # Whether a node has been asked for something since one last said that it is a primary.
        self._is_unconfirmed = False
        self._tells_role = not self.is_cluster
        self._pid = os.getpid()

    @property
    def _client(self) -> Any:
        client = self._client_ref()
        if client is None:
            raise ConfigurationError(
                "the client that this job client was made from is gone: keep it alive"
            )
        return client

    @property
    def identity(self) -> Server:
        """The server or cluster, by which jobs on the same one share a breaker."""
        return _JobClientServer(self._identity(), self)

    def _identity(self) -> tuple[Hashable, ...]:
        # It is read once, because a cluster's client adds learned nodes to its startup nodes, and a
        # fault must be blamed on the identity with which the jobs were installed.
        if self._identified is None:
            self._identified = self._identify()
        return self._identified

    def _identify(self) -> tuple[Hashable, ...]:
        if self.is_cluster:
            nodes = getattr(self._client.nodes_manager, "startup_nodes", {})
            return ("cluster", *sorted(map(str, nodes)))
        pool = self._client.connection_pool
        if self._is_managed:
            known = (each.connection_pool for each in pool.sentinel_manager.sentinels)
            return ("sentinel", pool.service_name, *sorted(_address(each) for each in known))
        options = pool.connection_kwargs
        return ("server", options.get("path") or (options.get("host"), options.get("port")))

    def breaker_of(self, key: Any) -> Breaker:
        """Return the breaker that calls on a key share with jobs: of its server, or of its node.

        A job on a cluster has one for the whole cluster, and chooses among the nodes by itself. No
        round trip.
        """
        node = None
        if self.is_cluster:
            try:
                node = self.node_of(key_slot(to_bytes(key)))
            except Unmapped:
                # The client has not read its map yet.
                return self._breaker_of_node(None)
        return self._breaker_of_node(node)

    def _breaker_of_node(self, node: Node) -> Breaker:
        found = self._breakers.get(node)
        if found is None:
            # A node is the same server for its cluster's clients and for a client of its own.
            server = self._identity() if node is None else ("server", node)
            found = self._breakers[node] = SERVER_BREAKERS.of(server)
        return found

    def round_trip(self) -> float | None:
        """Return the seconds of a round trip to the slowest node; None before the first one."""
        known = [each.seconds for each in list(self._trips.values()) if each.seconds is not None]
        return max(known, default=None)

    def confirm(self, budget: Budget) -> None:
        """Make sure that the server asked last is a primary.

        A replica answers reads, and data that it lacks so far would look like nothing to do.
        Raises: redis.exceptions.ReadOnlyError from a replica, whose sockets are closed then;
        OutOfTime; connection faults. One round trip; none on a cluster, whose replicas refuse
        reads, none if nothing has been asked since the last time, and none if the server refuses
        ROLE.
        """
        if not (self._is_unconfirmed and self._tells_role):
            return
        node = self._only_node()
        (reply,) = self.call(node, [("ROLE",)], budget)
        self._is_unconfirmed = False
        if isinstance(reply, Exception) or not reply:
            self._tells_role = False
        elif reply[0] in (b"slave", "slave"):
            self._leave(node)
            raise ReadOnlyError(
                "the server is a replica, which may lack data of its primary: the next recruit"
                " connects anew"
            )

    def nodes(self) -> list[Node]:
        """Return the nodes that hold slots, as the client knows them; no round trip."""
        if not self.is_cluster:
            return [self._only_node()]
        return list(self.a_slot_of_each())

    def a_slot_of_each(self) -> dict[Node, int]:
        """Return a slot of each node that holds any, as the client knows them; no round trip."""
        if not self.is_cluster:
            return {self._only_node(): 0}
        cache = list(self._client.nodes_manager.slots_cache.items())
        return {(nodes[0].host, int(nodes[0].port)): slot for slot, nodes in cache if nodes}

    def node_of(self, slot: int) -> Node:
        """Return the node that holds a slot.

        Raises: Unmapped if the client's map does not know it. No round trip.
        """
        if not self.is_cluster:
            return self._only_node()
        known = self._known_node_of(slot)
        noted = self._moved.get(slot)
        if noted is not None:
            told_then, gone_to = noted
            if told_then == known:
                return gone_to
            # The client has read the map again since, and its map is newer.
            self._moved.pop(slot, None)
        return known

    def _only_node(self) -> Node:
        if not self._is_managed:
            return None
        address = self._client.connection_pool.master_address
        told = None if address is None else (address[0], int(address[1]))
        if self._master is not None and self._master[0] != told:
            # The application has asked again since, and its answer is newer.
            self._master = None
        # A process that does nothing but jobs never asks by the application's own pool.
        if self._doubts_master or (told is None and self._master is None):
            self._master = (told, self._ask_sentinel())
            self._doubts_master = False
        return told if self._master is None else self._master[1]

    def _ask_sentinel(self) -> Node:
        """Ask the next sentinel for the master; the application may not ask for a long time.

        Raises: Unmapped if the sentinel knows no master; connection faults. Within one time-out.
        """
        known = self._client.connection_pool.sentinel_manager.sentinels
        self._sentinels_asked += 1
        return self._ask(known[self._sentinels_asked % len(known)].connection_pool)

    def _ask(self, its_pool: Any) -> tuple[str, int]:
        """Ask a sentinel for the master, by the settings of the application's connections to it."""
        service = self._client.connection_pool.service_name
        connection: Any = self._made(its_pool.connection_class, its_pool.connection_kwargs)
        # Sentinels have certificates of their own.
        connection.tls = Tls()
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        try:
            (reply,) = connection.call([question], Budget())
        finally:
            connection.disconnect()
        if isinstance(reply, Exception) or not reply:
            raise Unmapped(f"a sentinel does not know the master of {service!r}: {reply}")
        return (reply[0].decode(), int(reply[1]))

    def ask_sentinels(self) -> list[tuple[str, tuple[str, int] | Exception]]:
        """Ask every sentinel for the master.

        Returns: the address of each, with its answer or the error; nothing for a client of no
        sentinels. One round trip each.
        """
        if not self._is_managed:
            return []
        answers: list[tuple[str, tuple[str, int] | Exception]] = []
        for each in self._client.connection_pool.sentinel_manager.sentinels:
            pool = each.connection_pool
            try:
                answers.append((_address(pool), self._ask(pool)))
            except Exception as error:  # noqa: BLE001 - each is told beside the others' answers
                answers.append((_address(pool), error))
        return answers

    def _known_node_of(self, slot: int) -> tuple[str, int]:
        nodes = self._client.nodes_manager.slots_cache.get(slot)
        if not nodes:
            raise Unmapped(
                f"the client does not know yet which node of the cluster holds slot {slot}"
            )
        return (nodes[0].host, int(nodes[0].port))

    @contextmanager
    def connection(self, node: Node) -> Iterator[OneAttempt]:
        """Lend a connection to a node; it returns when the block ends, unless it was closed.

        If the node says that slots have moved, the next recruit asks their new node.
        """
        connection = self._take(node)
        self._is_unconfirmed = True
        try:
            yield connection
            if self.is_cluster and (known := self._breakers.get(node)) and known.outage:
                known.recover()
        except Moved as error:
            self.note_moved(node, error)
            raise
        except Exception as error:
            # The block may raise faults of other services, too, such as a database.
            if blamed(error) == self._identity():
                self._forget_moved_to(node)
                self._doubts_master = True
                if self.is_cluster:
                    # The job's own breaker is the whole cluster's.
                    self._breaker_of_node(node).trip(SERVER_BREAKERS.clock.monotonic())
            elif isinstance(error, ResponseError) and takes_no_writes(error):
                self._leave(node)
            raise
        finally:
            # A host's time-out in here, or on the way here, only drops the connection.
            self._put(node, connection)

    def _leave(self, node: Node) -> None:
        """Close the connections to a node that takes no writes, and doubt its address."""
        self._doubts_master = True
        connections = self._idle.pop(node, [])
        for connection in connections:
            connection.disconnect()

    def call(self, node: Node, commands: Commands, budget: Budget) -> list[Any]:
        """Send commands to a node in one round trip; see `OneAttempt.call`."""
        with self.connection(node) as connection:
            return connection.call(commands, budget)

    def call_each(
        self, node: Node, commands: Commands, budget: Budget
    ) -> tuple[list[Any], Moved | None]:
        """Send commands to a node in one round trip, although some of their slots may have moved.

        Returns: the replies, with MOVED, ASK and TRYAGAIN among the error replies in their places;
        and the error that stands for these, None if there are none. The next recruit asks the
        slots' new nodes. Raises: as `OneAttempt.call`, except for Moved.
        """
        with self.connection(node) as connection:
            replies = connection.call_each(commands, budget)
        moved = moved_of(replies)
        if moved is not None:
            self.note_moved(node, moved)
        return replies, moved

    def call_keys(
        self, keys: tuple[bytes, ...], commands: Sequence[Command], budget: Budget
    ) -> list[Any]:
        """Send commands to the node that holds the keys' slot, in one round trip.

        Raises: CrossSlotError if the keys do not share a slot; see `OneAttempt.call`.
        """
        return self.call(self.node_of(require_one_slot(keys)), commands, budget)

    def note_moved(self, asked: Node, error: Moved) -> None:
        """Remember where slots have moved, as long as the client's own map stays as it is."""
        if asked is None or not self.is_cluster:
            return
        remap = getattr(self._client.nodes_manager, "address_remap", None)
        for slot, (host, port) in error.gone.items():
            # An empty host stands for the node that was asked.
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
        if not connection.owes and connection.is_stale():
            # The server closed it while it was idle. Nothing was sent, so this is no retry.
            connection.disconnect()
            # Sentinels, too, close every client's connection to a primary that they demote.
            self._doubts_master = True
        return connection

    def _put(self, node: Node, connection: OneAttempt) -> None:
        if connection.is_at_rest:
            idle = self._idle.setdefault(node, [])
            # The last one is taken first, so that a connection which owes replies has time to get
            # them.
            idle.insert(0 if connection.owes else len(idle), connection)
        else:
            connection.disconnect()

    def made_for(self, node: Node) -> OneAttempt:
        """Return a new connection to a node, which its user closes; not opened yet."""
        return self._made(*self.settings_of(node))

    def _make(self, node: Node) -> OneAttempt:
        connection = self.made_for(node)
        connection.trip = self._trips.setdefault(node, RoundTripTime())
        return connection

    def _made(self, kind: type[Any], options: Mapping[str, Any]) -> OneAttempt:
        kind = _blocking_class(kind)
        if kind.__module__.startswith("fakeredis"):
            # fakeredis' own clients send no password, and its server would refuse one.
            options = {name: value for name, value in options.items() if name not in _CREDENTIALS}
        connection: Any = one_attempt_class(kind)(**one_attempt_options(kind, options))
        connection.tls = self._tls
        protocol = options.get("protocol") or DEFAULT_PROTOCOL
        connection.names_default_user = protocol not in (2, "2")
        connection.dependency = self._identity()
        made: OneAttempt = connection
        return made

    def warm_up(self, *families: str) -> None:
        """Prepare for a first slice as far as no server is needed.

        Arguments:
            families: how the names of the slice's scripts begin.

        The call loads the scripts and makes a connection object, because TLS has certificates to
        read. It connects to nothing.
        """
        for family in families:
            load_all(family)
        self._made(*self._settings()).warm_up()

    def settings_of(self, node: Node) -> tuple[type[Any], dict[str, Any]]:
        """Return the application's connection class and options for a node."""
        kind, options = self._settings()
        return kind, options if node is None else {**options, "host": node[0], "port": node[1]}

    def _settings(self) -> tuple[type[Any], dict[str, Any]]:
        """Return the client's connection class and options; a cluster gives any node's address."""
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
        # While the client reads its map anew, it has no default node.
        known = self._client.get_default_node() or next(iter(manager.startup_nodes.values()))
        pool = self._client.get_redis_connection(known).connection_pool
        return pool.connection_class, dict(pool.connection_kwargs)


class _JobClientServer(Server):
    """A job client's server, as jobs name it."""

    def __new__(cls, parts: tuple[Hashable, ...], job_client: JobClient) -> Self:
        """Make it of the parts that distinguish it from other servers."""
        made = super().__new__(cls, parts)
        # A weak reference, because a breaker's table may outlive the job client's use.
        made._job_client_ref = ref(job_client)
        return made

    _job_client_ref: ref[JobClient]

    @property
    def job_client(self) -> JobClient | None:
        """The server's job client; None if the job client is gone."""
        return self._job_client_ref()

    def round_trip(self) -> float | None:
        """Return the job client's round trip; None if the job client is gone."""
        job_client = self.job_client
        return None if job_client is None else job_client.round_trip()

    def confirm(self, slice: Slice) -> None:
        """Confirm within the time that is left of the slice."""
        job_client = self.job_client
        if job_client is not None:
            job_client.confirm(Budget(slice.remaining()))


def _is_managed(pool: Any) -> bool:
    """Say whether a pool asks sentinels for the address of its server."""
    return isinstance(pool, sentinel.SentinelConnectionPool | async_sentinel.SentinelConnectionPool)


def _address(pool: Any) -> str:
    options = pool.connection_kwargs
    return f"{options.get('path') or options.get('host')}:{options.get('port')}"


def _blocking_class(kind: type[Any]) -> type[Any]:
    """Return the blocking connection class that stands for an asynchronous one."""
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


_job_clients: WeakKeyDictionary[Any, JobClient] = WeakKeyDictionary()


def job_client_of(client: Any) -> JobClient:
    """Return the one job client of a client, made on first use; no round trip.

    Arguments:
        client: a client of redis-py or valkey-py, or a job client, which comes back as it is.

    Raises: ConfigurationError for anything else.
    """
    if isinstance(client, JobClient):
        return client
    client = redis_client(client)
    try:
        job_client = _job_clients.get(client)
    except TypeError:
        return JobClient(client)
    if job_client is None:
        job_client = _job_clients.setdefault(client, JobClient(client))
    return job_client


def job_client_for(structure: Any, client: Any) -> JobClient:
    """Return the job client of a structure's client.

    Arguments:
        structure: its class says by `_is_async_client` which clients it takes.

    Raises: ConfigurationError for the other kind of client; the error names the right class. No
    round trip.
    """
    job_client = job_client_of(client)
    wants_async: bool = structure._is_async_client  # noqa: SLF001 - redis-py's own name for it
    if is_async(redis_client(client)) is not wants_async:
        raise wrong_form(structure, "client")
    return job_client


def wrong_form(structure: Any, given: str) -> ConfigurationError:
    """Return the error for a blocking structure on an asyncio client (or store), or the reverse.

    Arguments:
        given: the word for the wrong argument, client or store.
    """
    ours = (each for each in type(structure).__mro__ if each.__module__.startswith(_PACKAGE))
    name = next(ours).__name__
    is_ours = name.startswith("Async")
    right = name.removeprefix("Async") if is_ours else f"Async{name}"
    kind = "a blocking" if is_ours else "an asyncio"
    return ConfigurationError(f"{name} was given {kind} {given}: give it to {right}")


def may_ask(breaker: Breaker) -> bool:
    """Say whether a host's call may ask the server now; after a fault, one call at a time may.

    Ask this before a call that may be left out. A call that may not be left out, such as an
    invalidation, only tells of its success or fault, by `HostCall`.
    """
    return breaker.outage is None or breaker.admits(SERVER_BREAKERS.clock.monotonic())


class HostCall:
    """A host's call to a server, whose end its breaker learns: `with HostCall(breaker, timeouts)`.

    A fault opens the breaker, and a reply closes it, an error reply too. A full pool says nothing
    about the server; neither do errors that are no client's. Everything passes.

    Arguments:
        timeouts: the host's own, which say nothing about the server either.
    """

    __slots__ = ("_breaker", "_seen", "_timeouts")

    def __init__(self, breaker: Breaker, timeouts: HostTimeouts) -> None:
        self._breaker, self._timeouts = breaker, timeouts
        self._seen = breaker.outage

    def __enter__(self) -> None:
        """Begin; the breaker's state of that moment is known already."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell the breaker."""
        if error is None:
            # A usual call ends here.
            if self._breaker.outage is not None:
                self._breaker.recover()
        elif isinstance(error, Exception):
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if self._timeouts.include(error) or is_pool_full(error):
            return
        names = {base.__name__ for base in type(error).__mro__}
        replied = "ResponseError" in names or not names.isdisjoint(_REPLIES)
        if replied or str(error) == _FEW_CONNECTIONS:
            self._breaker.recover()
        elif is_connection_fault(error):
            self._breaker.fail(SERVER_BREAKERS.clock.monotonic(), self._seen)
