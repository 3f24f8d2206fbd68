"""A pytest plugin: the fixture any_server, and on which servers a test runs that takes it.

support.parts imports it before pytest can rewrite its assertions, so it has none:
PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import os

import pytest

from support.servers import AnyServer

SERVERS = {
    "fakeredis": ("fakeredis_server", [pytest.mark.fake]),
    "redis7": ("redis7", [pytest.mark.real]),
    "redis8": ("redis8", [pytest.mark.real]),
    "valkey8": ("valkey8", [pytest.mark.real]),
    "redis62": ("redis62", [pytest.mark.real]),
    "redis82": ("redis82", [pytest.mark.real]),
    "valkey9": ("valkey9", [pytest.mark.real]),
    "cluster": ("cluster", [pytest.mark.real, pytest.mark.cluster]),
}
TWO = ("redis7", "cluster")
"""The servers that differ most to our code: one node, and keys spread over several."""
CASSANDRA = pytest.param("cassandra", id="cassandra", marks=[pytest.mark.cassandra])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test that takes any_server run on two servers, and a contract on all.

    The further ones bear the mark matrix, by which `make test` leaves them out.
    """
    if "any_server" in metafunc.fixturenames:
        names = SERVERS if metafunc.definition.get_closest_marker("contract") else TWO
        servers = [
            pytest.param(
                SERVERS[name][0],
                id=name,
                marks=[*SERVERS[name][1], *([] if name in TWO else [pytest.mark.matrix])],
            )
            for name in names
        ]
        if metafunc.definition.get_closest_marker("every_store"):
            servers.append(CASSANDRA)
        metafunc.parametrize("any_server", servers, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that fork first.

    A fork costs as much as the process is large, and a worker grows with each test. They are also
    the longest ones, so no worker is left alone with one of them at the end. So each worker of
    xdist begins with its share of them.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        first = [item for item in items if forks(item)]
        rest = [item for item in items if not forks(item)]
        size = -(-len(rest) // workers)
        items[:] = [
            item
            for number in range(workers)
            for item in (*first[number::workers], *rest[number * size : (number + 1) * size])
        ]


def forks(item: pytest.Item) -> bool:
    """Say whether the module of a test uses what forks the test's process."""
    known = vars(getattr(item, "module", None) or object)
    return not known.keys().isdisjoint({"in_child", "every_death", "deaths_among"})


@pytest.fixture
def any_server(request: pytest.FixtureRequest) -> AnyServer:
    """Each kind of server in turn: those that pytest_generate_tests gives to the test."""
    server: AnyServer = request.getfixturevalue(request.param)
    return server
