"""Clients from URLs; each keeps redis-py's own habits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

import redis
from redis import asyncio as redis_asyncio
from redis.cluster import REDIS_ALLOWED_KEYS
from redis.connection import parse_url

from workstealing import config
from workstealing.errors import ConfigurationError
from workstealing.store.embedded import EmbeddedServer

_PLAIN = ("redis", "rediss", "unix")
_CLUSTER = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_EXAMPLES = {
    **{scheme: f"{scheme}://host:port/database" for scheme in _PLAIN},
    **{scheme: f"{scheme}://host:port" for scheme in _CLUSTER},
    "unix": "unix:///path/of/redis.sock",
}
_SCHEME = re.compile(r"[a-z][a-z+.-]{0,20}")
_DATABASE = re.compile(r"/?|/[0-9]+")
_KNOWN = "redis://, rediss://, unix://, redis+cluster://, rediss+cluster:// or embedded://"


def connect(url: str | None = None, **options: Any) -> redis.Redis | redis.RedisCluster:
    """Return a client for a URL.

    Arguments: url: redis://, rediss:// (TLS), unix://, redis+cluster://, rediss+cluster:// or
    embedded://; None takes WORKSTEALING_REDIS_URL, then REDIS_URL; options: the options of
    redis-py's client. embedded:// starts a private throw-away server, which ends with the client or
    the process. Raises: ConfigurationError for a missing URL, an unknown scheme, a malformed URL or
    a wrong option. No round trip, except that a cluster's client reads its map.
    """
    url, scheme = checked_url(url)
    if scheme == "embedded":
        return _embedded(options)
    try:
        if scheme in _CLUSTER:
            plain = _plain(url, scheme)
            _check_cluster_options(redis.RedisCluster, plain, options)
            cluster: redis.RedisCluster = redis.RedisCluster.from_url(plain, **options)
            return cluster
        single: redis.Redis = redis.Redis.from_url(url, **options)
        _check_options(single.connection_pool)
        return single
    except (ValueError, TypeError) as error:
        raise _malformed(scheme, error) from None


def connect_async(
    url: str | None = None, **options: Any
) -> redis_asyncio.Redis | redis_asyncio.RedisCluster:
    """Return an asyncio client for a URL, as `connect` does; embedded:// is refused."""
    url, scheme = checked_url(url)
    if scheme == "embedded":
        raise ConfigurationError(
            "embedded:// is for blocking clients: start an EmbeddedServer and connect to its url"
        )
    try:
        if scheme in _CLUSTER:
            plain = _plain(url, scheme)
            _check_cluster_options(redis_asyncio.RedisCluster, plain, options)
            return redis_asyncio.RedisCluster.from_url(plain, **options)
        single: redis_asyncio.Redis = redis_asyncio.Redis.from_url(url, **options)
        _check_options(single.connection_pool)
        return single
    except (ValueError, TypeError) as error:
        raise _malformed(scheme, error) from None


def _embedded(options: dict[str, Any]) -> redis.Redis:
    server = EmbeddedServer().start()
    try:
        client: redis.Redis = redis.Redis.from_url(server.url, **options)
        _check_options(client.connection_pool)
    except BaseException as error:
        server.stop()
        if isinstance(error, ValueError | TypeError):
            raise _malformed("embedded", error) from None
        raise
    # The server ends when nobody can reach the client any more.
    client.embedded_server = server  # type: ignore[attr-defined]
    return client


def checked_url(url: str | None) -> tuple[str, str]:
    """Return a URL that `connect` would take, and its scheme; nothing is connected.

    Arguments: url: None takes the environment's. Raises: ConfigurationError, which never shows the
    URL.
    """
    if url is None:
        url = config.redis_url()
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a URL was expected as text, not {type(url).__name__}; a structure takes a client"
        )
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in (*_PLAIN, *_CLUSTER, "embedded"):
        # The error never shows the URL, because it may hold a password.
        shown = f"{scheme}://" if _SCHEME.fullmatch(scheme) else "no scheme"
        raise ConfigurationError(f"the Redis URL begins with {shown}: give {_KNOWN}")
    if scheme == "embedded":
        if url.partition("://")[2].strip("/"):
            raise ConfigurationError(
                "embedded:// stands alone: a private server has no host and no path"
            )
        return url, scheme
    try:
        parts = urlsplit(url)
        named = parts.path if scheme == "unix" else parts.hostname
        is_whole = parts.port != 0 and (scheme == "unix" or _DATABASE.fullmatch(parts.path))
    except ValueError:
        named, is_whole = "?", None
    if not named:
        what = "path" if scheme == "unix" else "host"
        raise ConfigurationError(f"the {scheme}:// URL names no {what}: give {_EXAMPLES[scheme]}")
    if not is_whole:
        raise ConfigurationError(
            f"the {scheme}:// URL is malformed: give {_EXAMPLES[scheme]}, with a number from 1 on"
            " as port, and with / ? # @ : in a name or password percent-encoded"
        )
    return scheme + url[len(scheme) :], scheme


def _plain(url: str, scheme: str) -> str:
    return _CLUSTER[scheme] + url[len(scheme) :]


def _check_options(pool: Any) -> None:
    """Make a connection object, which opens nothing, to see that it takes its options."""
    pool.connection_class(**pool.connection_kwargs)


def _check_cluster_options(kind: type[Any], url: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that a cluster's client would silently drop."""
    accepted = {*signature(kind).parameters, *REDIS_ALLOWED_KEYS}
    unknown = {*parse_url(url), *options} - accepted
    if unknown:
        raise TypeError(f"a cluster's client has no option {', '.join(sorted(unknown))}")


def _malformed(scheme: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the options of the {scheme}:// URL are wrong: {error}")
