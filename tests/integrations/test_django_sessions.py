"""Django's sessions in our cache raise as in Django's own, when Redis is dead, full or silent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.sessions.backends.base import UpdateError
from django.contrib.sessions.backends.cache import SessionStore
from django.core.cache.backends.redis import RedisCache

from support.faulty_server import FaultyServer
from support.servers import RedisServer
from workstealing.integrations import cache_entries
from workstealing.integrations.django_cache import Cache
from workstealing.recruiting import Recruiter

if not settings.configured:
    settings.configure(SECRET_KEY="of no use", LOGGING_CONFIG=None)

ANSWERED = 50
"""More commands than a session needs; 10,000 keys were tried."""


@pytest.fixture(params=["ours", "ours, raising", "Django's"])
def cache_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes a cache on a port."""
    monkeypatch.setattr(cache_entries, "_opened", {})
    monkeypatch.setattr(cache_entries, "default_recruiter", Recruiter())

    def make(port: int, seconds: float = 60.0) -> Any:
        monkeypatch.setattr(cache_entries, "_SECONDS", seconds)
        # The faulty server reads no other.
        url = f"redis://127.0.0.1:{port}?protocol=2"
        if request.param == "Django's":
            return RedisCache(url, {"OPTIONS": {"socket_timeout": seconds, "retry": None}})
        options = {"ON_FAULT": "raise"} if "raising" in request.param else {}
        return Cache(url, {"OPTIONS": {**options, "RATE": 0}})

    return make


def _session(cache: Any, key: str | None = None) -> SessionStore:
    session = SessionStore(key)
    session._cache = cache
    return session


def test_a_session_is_kept(cache_at: Callable[..., Any], redis7: RedisServer) -> None:
    cache = cache_at(redis7.port)
    session = _session(cache)
    session["a"] = 1
    session.create()
    session["b"] = 2
    session.save()
    assert dict(_session(cache, session.session_key).items()) == {"a": 1, "b": 2}
    session.delete()
    with pytest.raises(UpdateError):
        session.save()


def test_a_dead_redis(cache_at: Callable[..., Any]) -> None:
    session = _session(cache_at(1))
    with pytest.raises(redis.ConnectionError):
        session.create()
    with pytest.raises(redis.ConnectionError):
        session.exists("key")


def test_a_full_redis(cache_at: Callable[..., Any], start_redis: Any) -> None:
    server = start_redis(7)
    cache = cache_at(server.port)
    cache.set("a", 1)
    server.client().config_set("maxmemory", "1")
    with FaultyServer(server.port) as between:
        # The same cache through a door that counts.
        session = _session(cache_at(between.port))
        with pytest.raises(redis.OutOfMemoryError):
            session.create()
        assert len(between.names()) < ANSWERED


def test_a_silent_redis(cache_at: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        session = _session(cache_at(silent.getsockname()[1], 0.1))
        with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            session.create()
        # Each try opens a connection, which nobody has accepted so far.
        silent.setblocking(False)
        tries = 0
        with contextlib.suppress(BlockingIOError):
            while tries < ANSWERED:
                silent.accept()[0].close()
                tries += 1
        assert 1 <= tries < ANSWERED


def test_a_missed_read_is_no_deleted_session_if_reads_raise(
    cache_at: Callable[..., Any], start_redis: Any, request: pytest.FixtureRequest
) -> None:
    server = start_redis(7)
    cache = cache_at(server.port)
    session = _session(cache)
    session.create()
    server.stop()
    expected = UpdateError if request.node.callspec.id == "ours" else redis.ConnectionError
    session["a"] = 1
    with pytest.raises(expected):
        session.save()
