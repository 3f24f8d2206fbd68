"""A pytest plugin: the fixture any_server, and on which servers a test runs that takes it."""

from __future__ import annotations

import pytest

from support.servers import AnyServer

SERVERS = {
    "fakeredis": ("fakeredis_server", [pytest.mark.fake]),
    "redis7": ("redis7", [pytest.mark.real]),
    "redis8": ("redis8", [pytest.mark.real]),
    "valkey8": ("valkey8", [pytest.mark.real]),
    "cluster": ("cluster", [pytest.mark.real, pytest.mark.cluster]),
}
TWO = ("redis7", "cluster")
"""The servers that differ most to our code: one node, and keys spread over several."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test that takes any_server run on two servers, and a contract on all.

    The further ones bear the mark matrix, by which `make test` leaves them out.
    """
    if "any_server" in metafunc.fixturenames:
        names = SERVERS if metafunc.definition.get_closest_marker("contract") else TWO
        metafunc.parametrize(
            "any_server",
            [
                pytest.param(
                    SERVERS[name][0],
                    id=name,
                    marks=[*SERVERS[name][1], *([] if name in TWO else [pytest.mark.matrix])],
                )
                for name in names
            ],
            indirect=True,
        )


@pytest.fixture
def any_server(request: pytest.FixtureRequest) -> AnyServer:
    """Each kind of server in turn: those that pytest_generate_tests gives to the test."""
    server: AnyServer = request.getfixturevalue(request.param)
    return server
