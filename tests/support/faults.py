"""What tests of a failing server share: a client, how long it is held, and what is to be seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import redis
from redis._parsers import _RESP2Parser
from redis.connection import Connection

from support.faulty_server import FaultyServer
from support.patience import PATIENT_SECONDS, FairSeconds
from support.servers import ServerBrokenError, wait_until

# Longer than in production, so that a busy machine is not taken for a fault.
SECONDS = 0.400
SHORT_TIMEOUT = 0.120
# What a busy machine of two cores may take on top; an upper bound, not a measurement. A client with
# redis-py's own habits would be held for many seconds.
HELD_SECONDS = SECONDS + SHORT_TIMEOUT + 0.5
PATIENT = PATIENT_SECONDS
HANDSHAKE = ["AUTH", "SELECT"]
FAULTS = [kind for kind in FaultyServer.KINDS if kind != "error"]


class PurePython(Connection):
    """A connection that parses as redis-py does where hiredis is not installed."""

    def set_parser(self, parser_class: Any) -> None:
        super().set_parser(_RESP2Parser)


def client_of(port: int, connection_class: type[Connection] = Connection) -> redis.Redis:
    """Return a client as an application has it, with redis-py's retries and a name and password."""
    pool = redis.ConnectionPool(
        connection_class=connection_class,
        host="127.0.0.1",
        port=port,
        db=1,
        username="worker",
        password="secret",
        client_name="application",
    )
    return redis.Redis(connection_pool=pool)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Do it; return what it returns, and how many fair seconds it took."""
    with FairSeconds() as held:
        result = call()
    return result, held.seconds


Result = TypeVar("Result")


def reaching(server: FaultyServer, at: int, run: Callable[[], Result]) -> Result:
    """Run until the command with the fault was really sent.

    A machine that is too busy makes the run fail at an earlier command; then it begins again, as it
    does after a ServerBrokenError of its own.
    """
    for _ in range(10):
        with contextlib.suppress(ServerBrokenError):
            result = run()
            wait_until(lambda: len(server.seen) >= at, f"command {at} to be seen", seconds=0.3)
            return result
    pytest.fail(f"this machine was too busy ten times to come to command {at}")


def assert_nothing_sent_after(
    server: FaultyServer, at: int, kind: str, expected: list[str]
) -> None:
    """The commands of the batch with the fault are the last ones, and none came twice."""
    names = server.names()
    if kind == "drip" and names[-1] == "UNWATCH":
        # All replies were there, if late, and no time was left for more: that is no fault.
        del names[-1]
    assert names == expected[: len(names)]
    # A reply of a few bytes may drip in within the time that there is: then it is no fault yet.
    assert kind == "drip" or server.seen[-1].batch == server.seen[at - 1].batch
    assert server.connections == 1
