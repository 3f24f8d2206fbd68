"""From a URL to a client with redis-py's own habits."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import redis
from redis import asyncio as redis_asyncio

from workstealing import config
from workstealing.errors import ConfigurationError
from workstealing.store.embedded import EmbeddedServer

_PLAIN = ("redis", "rediss", "unix")
_CLUSTER = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_KNOWN = "redis://, rediss://, unix://, redis+cluster://, rediss+cluster:// or embedded://"


def connect(url: str | None = None, **options: Any) -> redis.Redis | redis.RedisCluster:
    """Return a client for a URL.

    Arguments: url: redis://, rediss:// (TLS), unix://, redis+cluster://, rediss+cluster://, or
    embedded://, which starts a private throw-away server that ends with the client or the process;
    without one, WORKSTEALING_REDIS_URL or REDIS_URL is taken; options: those of redis-py's client.
    Errors: ConfigurationError for no URL, an unknown scheme or a malformed URL. No round trip, but
    for a cluster, whose map is read.
    """
    url, scheme = _checked(url)
    if scheme == "embedded":
        server = EmbeddedServer().start()
        client = redis.Redis.from_url(server.url, **options)
        # The server ends when nobody can reach it any more.
        client.embedded_server = server  # type: ignore[attr-defined]
        return client
    try:
        if scheme in _CLUSTER:
            cluster: redis.RedisCluster = redis.RedisCluster.from_url(
                _plain(url, scheme), **options
            )
            return cluster
        single: redis.Redis = redis.Redis.from_url(url, **options)
        return single
    except (ValueError, TypeError) as error:
        raise _malformed(scheme, error) from error


def connect_async(
    url: str | None = None, **options: Any
) -> redis_asyncio.Redis | redis_asyncio.RedisCluster:
    """Return an asyncio client for a URL; as `connect`, without embedded://."""
    url, scheme = _checked(url)
    if scheme == "embedded":
        raise ConfigurationError(
            "embedded:// is for blocking clients: start an EmbeddedServer and connect to its url"
        )
    try:
        if scheme in _CLUSTER:
            return redis_asyncio.RedisCluster.from_url(_plain(url, scheme), **options)
        single: redis_asyncio.Redis = redis_asyncio.Redis.from_url(url, **options)
        return single
    except (ValueError, TypeError) as error:
        raise _malformed(scheme, error) from error


def _checked(url: str | None) -> tuple[str, str]:
    if url is None:
        url = config.redis_url()
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a URL was expected as text, not {type(url).__name__}; a structure takes a client"
        )
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in (*_PLAIN, *_CLUSTER, "embedded"):
        # The URL itself is not shown: it may hold a password.
        raise ConfigurationError(
            f"the Redis URL begins with {scheme + '://' if scheme else 'no scheme'}: give {_KNOWN}"
        )
    if scheme not in ("unix", "embedded"):
        try:
            parts = urlsplit(url)
            complete = bool(parts.hostname) and parts.port != 0
        except ValueError as error:
            raise _malformed(scheme, error) from error
        if not complete:
            raise ConfigurationError(
                f"the {scheme}:// URL names no host: give {scheme}://host:port"
            )
    return url, scheme


def _plain(url: str, scheme: str) -> str:
    return _CLUSTER[scheme] + url[len(scheme) :]


def _malformed(scheme: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the {scheme}:// URL or its options are malformed: {error}")
