"""A job whose connection breaks at each of its commands in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.faults import assert_nothing_sent_after, client_of
from support.faulty_server import FaultyServer
from support.patience import set_timeout

KINDS = ["cut", "half", "silent", "garbage"]


def every_break(
    server: FaultyServer,
    kind: str,
    expected: list[str],
    prepare: Callable[[], Any],
    work: Callable[[redis.Redis], Any],
) -> Iterator[int]:
    """Let the connection break at each command in turn; yield which one it was.

    The work must fail by it, and send nothing more. Arguments: the server in front of the real
    one; the fault; the commands of the whole work; what is done before each; the work of a client.
    """
    for at in range(1, len(expected) + 1):
        prepare()
        server.reset()
        server.fail(at, kind)
        with pytest.MonkeyPatch.context() as patched:
            if kind == "silent":
                set_timeout(patched, 0.1)
            with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                work(client_of(server.port))
        if kind == "garbage":
            # The other commands of the same batch are still on their way to the real server.
            server.settle()
        if len(server.seen) >= at:
            assert_nothing_sent_after(server, at, kind, expected)
        yield at
