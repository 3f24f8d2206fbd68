"""Clients from URLs; each keeps redis-py's own habits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import redis
from redis import asyncio as redis_asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.cluster import REDIS_ALLOWED_KEYS
from redis.connection import parse_url
from redis.sentinel import Sentinel

from workstealing.errors import ConfigurationError

URL_VARIABLES = ("WORKSTEALING_REDIS_URL", "REDIS_URL")
"""The environment's variables that name a Redis; each is read when it is needed."""

_PLAIN = ("redis", "rediss", "unix")
_CLUSTER = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_SENTINEL = {"redis+sentinel": False, "rediss+sentinel": True}
_EXAMPLES = {
    **{scheme: f"{scheme}://host:port/database" for scheme in _PLAIN},
    **{scheme: f"{scheme}://host:port" for scheme in _CLUSTER},
    **{scheme: f"{scheme}://host:port,host:port/service/database" for scheme in _SENTINEL},
    "unix": "unix:///path/of/redis.sock",
}
_SENTINEL_PORT = 26379
_FOR_SENTINELS = "sentinel_"
# Settings of the servers' connections that hold for those to sentinels as well.
_ALIKE = ("socket_", "ssl_", "retry")
_SCHEME = re.compile(r"[a-z][a-z+.-]{0,20}")
_DATABASE = re.compile(r"/?|/[0-9]+")
_SERVICE = re.compile(r"([^/]*)(?:/([0-9]*))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:#\s]+)(?::([0-9]{1,5}))?")
_KNOWN = (
    "redis://, rediss://, unix://, redis+cluster://, rediss+cluster://, redis+sentinel://,"
    " rediss+sentinel:// or embedded://"
)


def names_redis() -> bool:
    """Say whether the environment names a Redis."""
    return any(os.environ.get(variable, "").strip() for variable in URL_VARIABLES)


def redis_url() -> str:
    """Return the Redis URL that the environment names.

    Returns: the value of WORKSTEALING_REDIS_URL, else of REDIS_URL. Raises: ConfigurationError if
    neither is set, so a forgotten setting never writes into a throw-away server.
    """
    for variable in URL_VARIABLES:
        url = os.environ.get(variable, "").strip()
        if url:
            return url
    raise ConfigurationError(
        "no Redis URL was given: pass one to connect(), or set WORKSTEALING_REDIS_URL or REDIS_URL"
        ' ("embedded://" starts a private throw-away server)'
    )


def connect(url: str | None = None, **options: Any) -> redis.Redis | redis.RedisCluster:
    """Return a client for a URL.

    Arguments:
        url: redis://, rediss:// (TLS), unix://, redis+cluster://, rediss+cluster://,
            redis+sentinel://, rediss+sentinel:// or embedded://; None takes WORKSTEALING_REDIS_URL,
            then REDIS_URL.
        options: the options of redis-py's client; behind sentinels, those that begin with
            `sentinel_` are the sentinels' own. embedded:// starts a private throw-away server,
            which ends with the client or the process.

    Raises: ConfigurationError for a missing URL, an unknown scheme, a malformed URL or a wrong
    option. No round trip, except that a cluster's client reads its map.
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
        if scheme in _SENTINEL:
            master: redis.Redis = _master(Sentinel, url, scheme, options)
            return master
        single: redis.Redis = redis.Redis.from_url(url, **options)
        _check_options(single.connection_pool)
        return single
    except (ValueError, TypeError) as error:
        raise _malformed(scheme, error) from None


def connect_async(
    url: str | None = None, **options: Any
) -> redis_asyncio.Redis | redis_asyncio.RedisCluster:
    """Return an asyncio client for a URL, as `connect` does, but for embedded://.

    Raises: ConfigurationError for embedded://, and as `connect`.
    """
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
        if scheme in _SENTINEL:
            master: redis_asyncio.Redis = _master(AsyncSentinel, url, scheme, options)
            return master
        single: redis_asyncio.Redis = redis_asyncio.Redis.from_url(url, **options)
        _check_options(single.connection_pool)
        return single
    except (ValueError, TypeError) as error:
        raise _malformed(scheme, error) from None


def _master(kind: type[Any], url: str, scheme: str, options: Mapping[str, Any]) -> Any:
    """Return the client of a service's master, whose address sentinels tell."""
    place = _sentinel_place(url)
    # The options of the URL go first, as redis-py has it.
    asked = _query(place.query)
    known: dict[str, Any] = {**options, **asked, **place.options}
    if "db" in asked:
        # Before the path's, also as redis-py has it.
        known["db"] = asked["db"]
    own = {
        name.removeprefix(_FOR_SENTINELS): known.pop(name)
        for name in list(known)
        if name.startswith(_FOR_SENTINELS)
    }
    alike = {name: value for name, value in known.items() if name.startswith(_ALIKE)}
    tls = {"ssl": True} if _SENTINEL[scheme] else {}
    manager = kind(place.hosts, sentinel_kwargs={**alike, **tls, **own}, **known, **tls)
    for each in manager.sentinels:
        _check_options(each.connection_pool)
    client = manager.master_for(place.service)
    _check_options(client.connection_pool)
    return client


class _SentinelPlace(NamedTuple):
    """The parts of a URL that names sentinels; its query is apart."""

    hosts: list[tuple[str, int]]
    service: str
    options: dict[str, Any]
    query: str


def _sentinel_place(url: str) -> _SentinelPlace:
    """Take a URL that names sentinels apart.

    Hosts and service may come out empty. Raises: ValueError, which never shows the URL.
    """
    # urlsplit knows one host, and refuses several in brackets.
    body, _, query = url.partition("://")[2].partition("?")
    place, _, path = body.partition("/")
    user, at, listed = place.rpartition("@")
    if "@" in user and "," in user:
        # Each host with a name and a password of its own: only the last would be kept.
        raise ValueError("a name or password has both an @ and a comma")
    hosts = []
    for each in listed.split(",") if listed.strip(",") else ():
        match = _HOST.fullmatch(each)
        port = int(match[2] or _SENTINEL_PORT) if match else 0
        if match is None or not 0 < port < 1 << 16:
            raise ValueError("a sentinel's address is malformed")
        hosts.append((match[1].strip("[]"), port))
    named = _SERVICE.fullmatch(path)
    if named is None or "#" in body:
        raise ValueError("the path is malformed")
    options: dict[str, Any] = {"db": int(named[2])} if named[2] else {}
    name, colon, password = user.partition(":")
    if at and name:
        options["username"] = unquote(name)
    if colon:
        options["password"] = unquote(password)
    return _SentinelPlace(hosts, unquote(named[1]), options, query)


def _query(query: str) -> dict[str, Any]:
    """Return a query's options, read by redis-py's own rules for their values."""
    pairs = [each for each in query.split("&") if each]
    rest = [each for each in pairs if not each.startswith(_FOR_SENTINELS)]
    # One for sentinels is read as its namesake for servers is.
    own = [each.removeprefix(_FOR_SENTINELS) for each in pairs if each.startswith(_FOR_SENTINELS)]
    for_sentinels = parse_url(f"redis://?{'&'.join(own)}")
    return {
        **parse_url(f"redis://?{'&'.join(rest)}"),
        **{f"{_FOR_SENTINELS}{name}": value for name, value in for_sentinels.items()},
    }


def _embedded(options: dict[str, Any]) -> redis.Redis:
    from workstealing.store.embedded import EmbeddedServer

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

    Arguments:
        url: None takes the environment's.

    Raises: ConfigurationError, which never shows the URL.
    """
    if url is None:
        url = redis_url()
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a URL was expected as text, not {type(url).__name__}; a structure takes a client"
        )
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in (*_PLAIN, *_CLUSTER, *_SENTINEL, "embedded"):
        # The error never shows the URL, because it may hold a password.
        shown = f"{scheme}://" if _SCHEME.fullmatch(scheme) else "no scheme"
        raise ConfigurationError(f"the Redis URL begins with {shown}: give {_KNOWN}")
    if scheme == "embedded":
        if url.partition("://")[2].strip("/"):
            raise ConfigurationError(
                "embedded:// stands alone: a private server has no host and no path"
            )
        return url, scheme
    missing, is_whole = "", True
    try:
        if scheme in _SENTINEL:
            place = _sentinel_place(url)
            missing = "host" if not place.hosts else "" if place.service else "service"
        else:
            parts = urlsplit(url)
            if not (parts.path if scheme == "unix" else parts.hostname):
                missing = "path" if scheme == "unix" else "host"
            is_whole = parts.port != 0 and (
                scheme == "unix" or _DATABASE.fullmatch(parts.path) is not None
            )
    except ValueError:
        missing, is_whole = "", False
    if missing:
        raise ConfigurationError(
            f"the {scheme}:// URL names no {missing}: give {_EXAMPLES[scheme]}"
        )
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
    try:
        pool.connection_class(**pool.connection_kwargs)
    except redis.RedisError as error:
        # For a protocol that there is not.
        raise ValueError(str(error)) from error


def _check_cluster_options(kind: type[Any], url: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that a cluster's client would silently drop."""
    accepted = {*signature(kind).parameters, *REDIS_ALLOWED_KEYS}
    unknown = {*parse_url(url), *options} - accepted
    if unknown:
        raise TypeError(f"a cluster's client has no option {', '.join(sorted(unknown))}")


def _malformed(scheme: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the options of the {scheme}:// URL are wrong: {error}")
