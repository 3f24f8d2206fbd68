"""A client of valkey-py is replaced by a client of redis-py with the same settings.

Everything in this package speaks through redis-py. For a client of valkey-py it makes a client of
redis-py, with connections of its own: address, credentials, TLS, database, encoding, protocol,
time-outs, retries, pool, sentinels and cluster are those of the given client. So errors are
redis-py's. valkey-py is imported by whoever makes its clients, and never here without one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import redis
from redis import asyncio as redis_asyncio
from redis import connection as connections
from redis import exceptions
from redis.asyncio import connection as async_connections
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from workstealing.errors import ConfigurationError

ClientT = TypeVar("ClientT")

_CONNECTIONS = ("Connection", "SSLConnection", "UnixDomainSocketConnection")
# valkey-py's own ways to send and to read, its name, and its cache: redis-py has others.
_DROPPED = frozenset(
    {
        *("cache_allow_list", "cache_deny_list", "cache_enabled", "cache_max_size"),
        *("cache_policy", "cache_ttl", "client_cache"),
        *("command_packer", "connection_class", "connection_pool", "parser_class"),
        *("lib_name", "lib_version", "response_callbacks"),
    }
)
_OF_ONE_SERVER = frozenset({"host", "port", "path", "db"})
# With valkey-py's defaults, which are left out: redis-py deprecates some of these options.
_CLUSTER_OPTIONS = {
    "require_full_coverage": None,
    "reinitialize_steps": None,
    "read_from_replicas": False,
    "address_remap": None,
    "cluster_error_retry_attempts": 3,
    "dynamic_startup_nodes": True,
}
_made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def redis_client(client: ClientT) -> ClientT:
    """Return the client of redis-py that stands for a client.

    Arguments:
        client: a client of valkey-py; anything else is returned as it is.

    The same client always gets the same one. Raises: ConfigurationError for a valkey.Valkey whose
    connection class is the user's own, and for an option that this redis-py lacks. No round trip,
    except that a blocking cluster's client reads its map.
    """
    if isinstance(client, redis.Redis | redis_asyncio.Redis) or not _is_valkeys(client):
        return client
    known: Any = _made.get(client)
    if known is None:
        known = _made.setdefault(client, _one_attempt_client(client))
    stand_in: ClientT = known
    return stand_in


def _is_valkeys(client: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "valkey" for base in type(client).__mro__)


def _one_attempt_client(client: Any) -> Any:
    """Make the client of redis-py; what is no client of valkey-py's comes back as it is."""
    import valkey
    from valkey import asyncio as valkey_asyncio

    if isinstance(client, valkey.ValkeyCluster):
        node = client.get_default_node() or next(iter(client.nodes_manager.startup_nodes.values()))
        pool = client.get_valkey_connection(node).connection_pool
        settings = _cluster_settings(client, pool.connection_class, pool.connection_kwargs)
        nodes: list[Any] = [ClusterNode(*each) for each in _places(client)]
        accepted = {*inspect.signature(redis.RedisCluster).parameters, *REDIS_ALLOWED_KEYS}
        return redis.RedisCluster(startup_nodes=nodes, **_accepted(settings, accepted))
    if isinstance(client, valkey_asyncio.ValkeyCluster):
        options = client.nodes_manager.connection_kwargs
        kind = options.get("connection_class", valkey_asyncio.Connection)
        settings = _cluster_settings(client, kind, options)
        nodes = [AsyncClusterNode(*each) for each in _places(client)]
        accepted = {*inspect.signature(redis_asyncio.RedisCluster).parameters}
        return redis_asyncio.RedisCluster(startup_nodes=nodes, **_accepted(settings, accepted))
    if isinstance(client, valkey.Valkey | valkey_asyncio.Valkey):
        return _single(client)
    return client


def _places(client: Any) -> list[tuple[str, int]]:
    return [(node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values()]


def _single(client: Any) -> Any:
    """Make the client of one server, or of a service that sentinels know."""
    is_async = inspect.iscoroutinefunction(type(client).execute_command)
    pool = client.connection_pool
    kind: Any = redis_asyncio.Redis if is_async else redis.Redis
    if hasattr(pool, "sentinel_manager"):
        return _behind_sentinels(pool, is_async=is_async)
    theirs = pool.connection_class
    ours: Any = async_connections if is_async else connections
    if theirs.__name__ not in _CONNECTIONS or not theirs.__module__.startswith("valkey."):
        raise ConfigurationError(
            f"the connection class {theirs.__name__} is not valkey-py's own: pass a client with"
            " valkey-py's connection classes, or a client of redis-py"
        )
    ours_kind = getattr(ours, theirs.__name__)
    settings = _settings(pool.connection_kwargs, is_async=is_async)
    settings = _accepted(settings, _parameters(ours_kind))
    pools: Any = redis_asyncio if is_async else redis
    if any(base.__name__ == "BlockingConnectionPool" for base in type(pool).__mro__):
        made = pools.BlockingConnectionPool(
            pool.max_connections, pool.timeout, connection_class=ours_kind, **settings
        )
    else:
        made = pools.ConnectionPool(ours_kind, pool.max_connections, **settings)
    return kind(connection_pool=made)


def _behind_sentinels(pool: Any, *, is_async: bool) -> Any:
    """Make the client of a service from valkey-py's pool and the sentinels that it asks."""
    manager = pool.sentinel_manager
    known = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    uses_tls = "SSL" in pool.connection_class.__name__
    made: Any = (AsyncSentinel if is_async else Sentinel)(
        [(options["host"], options["port"]) for options in known],
        min_other_sentinels=manager.min_other_sentinels,
        sentinel_kwargs=_settings(manager.sentinel_kwargs, is_async=is_async),
    )
    settings = _settings(pool.connection_kwargs, is_async=is_async)
    settings.update(check_connection=pool.check_connection, max_connections=pool.max_connections)
    if uses_tls:
        settings["ssl"] = True
    asked = made.master_for if pool.is_master else made.slave_for
    return asked(pool.service_name, **settings)


def _cluster_settings(client: Any, kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cluster's client; `kind` and `options` are those of its nodes."""
    is_async = inspect.iscoroutinefunction(type(client).execute_command)
    named = {name: value for name, value in options.items() if name not in _OF_ONE_SERVER}
    # The client's own function would prepare a connection of valkey-py.
    named["valkey_connect_func"] = getattr(client, "user_on_connect_func", None)
    settings = _settings(named, is_async=is_async)
    if "SSL" in kind.__name__:
        settings["ssl"] = True
    for owner in (client, client.nodes_manager):
        for name, default in _CLUSTER_OPTIONS.items():
            value = getattr(owner, name, getattr(owner, f"_{name}", None))
            if value is not None and value != default:
                settings.setdefault(name, value)
    return settings


def _settings(options: Mapping[str, Any], *, is_async: bool) -> dict[str, Any]:
    """Return a connection's options as redis-py names them."""
    settings = {name: value for name, value in options.items() if name not in _DROPPED}
    if "valkey_connect_func" in settings:
        settings["redis_connect_func"] = settings.pop("valkey_connect_func")
    if settings.get("retry") is not None:
        settings["retry"] = _retry(settings["retry"], is_async=is_async)
    if settings.get("retry_on_error"):
        settings["retry_on_error"] = [_error(each) for each in settings["retry_on_error"]]
    provider = settings.get("credential_provider")
    kind = type(provider)
    if (
        kind.__name__ == "UsernamePasswordCredentialProvider"
        and kind.__module__ == "valkey.credentials"
    ):
        settings["credential_provider"] = UsernamePasswordCredentialProvider(
            provider.username,  # type: ignore[union-attr]
            provider.password,  # type: ignore[union-attr]
        )
    return settings


def _retry(theirs: Any, *, is_async: bool) -> Any:
    kind: Any = AsyncRetry if is_async else Retry
    supported = tuple(_error(each) for each in theirs._supported_errors)  # noqa: SLF001 - no other way to read it
    return kind(theirs._backoff, theirs._retries, supported)  # noqa: SLF001 - no other way to read it


def _error(theirs: type[Exception]) -> type[Exception]:
    """Return redis-py's error for one of valkey-py's; others stay as they are."""
    if not theirs.__module__.startswith("valkey."):
        return theirs
    name = theirs.__name__.replace("Valkey", "Redis")
    ours: type[Exception] = getattr(exceptions, name, exceptions.RedisError)
    return ours


def _accepted(settings: Mapping[str, Any], accepted: set[str]) -> dict[str, Any]:
    """Return the settings that redis-py knows.

    Raises: ConfigurationError for one about TLS that it does not know, because leaving it out would
    make a connection less safe than the user wanted it.
    """
    for name, value in settings.items():
        if name.startswith("ssl_") and name not in accepted and value not in (None, False):
            raise ConfigurationError(
                f"the client of valkey-py has {name}, which this redis-py"
                f" ({redis.__version__}) lacks here: install a newer redis-py"
            )
    return {name: value for name, value in settings.items() if name in accepted}


def _parameters(kind: type[Any]) -> set[str]:
    own = (base for base in kind.__mro__ if "__init__" in base.__dict__)
    return {name for base in own for name in inspect.signature(base).parameters}
