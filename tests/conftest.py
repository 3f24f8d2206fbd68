"""Fixtures that every test may use: real servers, started when first asked for, wiped after use.

The servers live as long as the test session (one set for each xdist worker); each test that takes
one, by name or by `request.getfixturevalue`, finds it empty. A test that changes a server's
settings, or wants its own, takes `start_redis`.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis.utils
from hypothesis import HealthCheck, settings

from support import redis_py
from support.faulty_server import FaultyServer
from support.postgres import PostgresServer, find_postgres
from support.processes import die_with_parent
from support.servers import (
    AnyServer,
    FakeRedisServer,
    RedisCluster3,
    RedisServer,
    ServerMissingError,
    find_server,
)

# Only here may a folder of tests ask for a plugin.
pytest_plugins = [
    "workstealing.testing.pytest_plugin",
    # Before any_server, so that it puts in order what is left.
    "support.parts",
    "support.any_server",
    "support.leftovers",
    "support.skips",
    "support.again",
    "support.proof",
    "support.costs",
    "support.acl",
    "support.twins",
]

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# Servers answer when they answer, so no example has a deadline; and our function-scoped fixtures
# only wipe servers, which an example does for itself where it needs to.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("dev", max_examples=50, **_COMMON)
settings.register_profile("few", max_examples=10, **_COMMON)
settings.register_profile("ci", max_examples=50, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "dev"))

redis_py.supply()
redis_py.share_commands()
# redis-py reads its own package's metadata for each client that is made: 1 ms, or a third of what
# a cluster's client costs.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no file of the half that this run leaves out."""
    # Not above: pytest rewrites a plugin's assertions when it is first imported.
    from support.parts import in_this_half

    if collection_path.is_dir() or in_this_half(collection_path):
        return None
    return True


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker of xdist end when the process that started it is killed."""
    if hasattr(config, "workerinput"):
        die_with_parent()


def pytest_collection_finish() -> None:
    """Prepare for the tests themselves."""
    # The options of this run are none for a run of pytest inside a test.
    os.environ.pop("PYTEST_ADDOPTS", None)
    # Half a million objects of 12,000 tests stay. Each collection of garbage in a forked child
    # would copy all of their memory.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Fail the test that leaves logging changed, not a later one that misses its log line."""
    before = _logging()
    yield
    assert _logging() == before, "this test leaves logging changed for those that follow"


@pytest.fixture(autouse=True)
def _breakers_are_closed() -> Iterator[None]:
    """Leave no server alone because of a fault in an earlier test."""
    yield
    # Only if a test has loaded it: an import here would cost those that load nothing.
    breakers = sys.modules.get("workstealing.recruiting.breakers")
    if breakers is not None:
        breakers.SERVER_BREAKERS.reset()


def _logging() -> list[object]:
    loggers = [logging.getLogger(), logging.getLogger("workstealing")]
    return [logging.root.manager.disable, *((each.level, each.disabled) for each in loggers)]


def _find(product: str, version: int | str) -> Any:
    """Return the binary; without it the test is skipped, but in CI it fails."""
    try:
        return find_server(product, version)
    except ServerMissingError as error:
        if IN_CI:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def shared_redis7() -> Iterator[RedisServer]:
    with RedisServer(_find("redis", 7), 7, name="redis7") as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis8() -> Iterator[RedisServer]:
    with RedisServer(_find("redis", 8), 8, name="redis8") as server:
        yield server


@pytest.fixture(scope="session")
def shared_valkey8() -> Iterator[RedisServer]:
    with RedisServer(_find("valkey", 8), 8, name="valkey8") as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis62() -> Iterator[RedisServer]:
    with RedisServer(_find("redis", "6.2"), "6.2", name="redis62") as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis82() -> Iterator[RedisServer]:
    with RedisServer(_find("redis", "8.2"), "8.2", name="redis82") as server:
        yield server


@pytest.fixture(scope="session")
def shared_valkey9() -> Iterator[RedisServer]:
    with RedisServer(_find("valkey", "9.1"), "9.1", name="valkey9") as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RedisCluster3]:
    with RedisCluster3(_find("redis", 7), 7, name="cluster") as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster8() -> Iterator[RedisCluster3]:
    with RedisCluster3(_find("redis", 8), 8, name="cluster8") as server:
        yield server


@pytest.fixture(scope="session")
def shared_fakeredis_server() -> FakeRedisServer:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.importorskip("lupa", reason="lupa, fakeredis's Lua, has no free-threaded build")
    return FakeRedisServer()


_wiped_after: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _wiping() -> Iterator[ExitStack]:
    """Wipe the servers that were lent when all else of the test is over: it is set up first."""
    with ExitStack() as stack:
        yield stack
        # A ledger that a test has left reports every half minute that its process is there.
        gathering = sys.modules.get("workstealing.metrics.gathering")
        for each in [] if gathering is None else list(gathering._alive):
            each._closed = True


def _lent(name: str, what: str) -> Any:
    """Make the fixture that lends a shared server to one test; it is wiped however it was taken.

    What it finds in it is wiped, with a warning that names the test whose threads still wrote.
    """

    def lent(request: pytest.FixtureRequest, _wiping: ExitStack) -> AnyServer:
        server: AnyServer = request.getfixturevalue(f"shared_{name}")
        before, _wiped_after[name] = _wiped_after.get(name), request.node.nodeid
        _wiping.callback(server.wipe)
        if keys := server.size():
            warnings.warn(
                f"{name} held {keys} keys: something of {before} has written after its end",
                stacklevel=1,
            )
            server.wipe()
        return server

    lent.__doc__ = what
    return pytest.fixture(name=name)(lent)


@pytest.fixture(scope="session")
def shared_cassandra() -> Iterator[Any]:
    from support.cassandra import (
        CassandraMissingError,
        CassandraNode,
        CassandraServer,
        connected,
        find_jars,
    )

    try:
        find_jars()
    except CassandraMissingError as error:
        pytest.skip(str(error))
    with CassandraNode() as node, connected(node) as session:
        yield CassandraServer(node, session)


cassandra = _lent("cassandra", "One Cassandra node with an empty table.")
redis7 = _lent("redis7", "One plain Redis 7.")
redis8 = _lent("redis8", "One plain Redis 8, with the native field commands.")
valkey8 = _lent("valkey8", "One plain Valkey 8, without native field commands.")
redis62 = _lent("redis62", "One plain Redis 6.2, the oldest that is supported.")
redis82 = _lent("redis82", "One plain Redis 8.2, with the native field commands.")
valkey9 = _lent("valkey9", "One plain Valkey 9, with native field commands of its own.")
cluster = _lent("cluster", "A Redis 7 cluster of three masters.")
cluster8 = _lent("cluster8", "A Redis 8 cluster of three masters.")
fakeredis_server = _lent("fakeredis_server", "A fakeredis in this process, in Redis 6.2's dialect.")


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    """A faulty server before Redis 7."""
    with FaultyServer(redis7.port) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL; a test makes tables under names of its own."""
    try:
        find_postgres()
    except ServerMissingError as error:
        if IN_CI:
            pytest.fail(str(error))
        pytest.skip(str(error))
    with PostgresServer() as server:
        yield server


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start servers for one test alone: `start_redis(7, maxmemory="3mb")`; they end with it."""
    started: list[RedisServer] = []

    def start(version: int | str = 7, product: str = "redis", **config: Any) -> RedisServer:
        server = RedisServer(
            _find(product, version), version, name=f"own {product}{version}", **config
        )
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()
