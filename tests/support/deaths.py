"""Law 6, killed for real: a process that dies between any two of its commands (SIGKILL).

The process is forked from the test and talks to the server through a socket that kills it before
command k is passed on, or after it has been, for every k.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.children import in_child
from support.faulty_server import FaultyServer, KillSwitch
from support.proof import tried
from support.servers import RedisCluster3

MOST_COMMANDS = 200
DEATH = "a death (SIGKILL) of a process before or after one of its commands"


def died_of_the_switch(
    switch: KillSwitch,
    servers: list[FaultyServer],
    work: Callable[[], Any],
    attack: str = DEATH,
    on: str = "",
) -> bool:
    """Do the work in a forked child whose commands the switch counts; say whether it was killed.

    Arguments:
        attack: how a death is counted, see `proof.tried`.
        on: how a death is counted, see `proof.tried`.
    """
    ready, go = os.pipe()

    def work_when_told() -> None:
        os.read(ready, 1)
        work()

    child = in_child(work_when_told)
    switch.victim = child
    for server in servers:
        server.reset()
        server.switch = switch
    os.write(go, b"!")
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(go)
    for server in servers:
        server.reset()
    if switch.fired:
        tried(attack, on=on)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
    else:
        assert os.waitstatus_to_exitcode(status) == 0
    return switch.fired


def every_death(
    servers: list[FaultyServer], work: Callable[[], Any], prepare: Callable[[], Any]
) -> Iterator[str]:
    """Kill the work before and after each of its commands in turn; yield which one it was."""
    for after in (False, True):
        for at in range(1, MOST_COMMANDS):
            prepare()
            killed = died_of_the_switch(KillSwitch(at, after=after), servers, work)
            yield f"killed {'after' if after else 'before'} command {at}"
            if not killed:
                # It got by with fewer commands, so this was the last point, and a whole run.
                assert at > 1
                break
        else:
            pytest.fail(f"still working after {MOST_COMMANDS} commands")


def deaths_among(
    servers: list[FaultyServer], most: int, work: Callable[[int], Callable[[], Any]]
) -> int:
    """Kill work before and after each of its first so many commands; return how often it was.

    Nothing is prepared in between: each goes on where the last one has died.

    Arguments:
        work: returns, for the number of a command, what is to be killed there.
    """
    return sum(
        died_of_the_switch(KillSwitch(at, after=after), servers, work(at))
        for at in range(1, most + 1)
        for after in (False, True)
    )


@contextlib.contextmanager
def doors_of(cluster: RedisCluster3) -> Iterator[tuple[list[FaultyServer], Any]]:
    """Put a faulty server before each master; yield them, and a client that goes through them."""
    with contextlib.ExitStack() as stack:
        doors = [stack.enter_context(FaultyServer(node.port)) for node in cluster.nodes]
        ports = {node.port: door.port for node, door in zip(cluster.nodes, doors, strict=True)}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (address[0], ports.get(address[1], address[1]))

        # Made once: a child that is forked opens connections of its own.
        yield doors, stack.enter_context(cluster.client(address_remap=remap, protocol=2))
