"""A namespace goes native, emulated, native and so on, and nobody loses or is refused anything.

By default a few seconds on each server that has the commands, and on a cluster.
`WORKSTEALING_MOVES` asks for more, by the arguments of `python -m support.moving_namespace`:
``WORKSTEALING_MOVES="--seconds 60 --seed 7"``; ``--server`` names the binary of another server.
"""

from __future__ import annotations

import os
import shlex

import pytest

from support import proof
from support.moving_namespace import MovingNamespace, main, moving_namespace
from support.servers import RedisCluster3, RedisServer

STEPS, MOST_STEPS = 120, 1_200
MORE = os.environ.get("WORKSTEALING_MOVES", "")
pytestmark = [pytest.mark.real, pytest.mark.slow]


def until_it_has_moved(moving: MovingNamespace, steps: int) -> None:
    for number in range(MOST_STEPS):
        moving.step()
        proof.tried("a step of a namespace that is moved, cut off and restarted")
        # Chance decides when a move ends.
        counts = moving.counts
        if number >= steps and counts["kills"] and counts["moves"] and counts["refused"]:
            return
    raise AssertionError(f"no move has ended: {dict(moving.counts)}")


@pytest.mark.parametrize(
    ("server", "backend", "seed"),
    [
        pytest.param("redis8", "emulated", 2, marks=pytest.mark.smoke),
        pytest.param("redis8", "native", 1, marks=pytest.mark.smoke),
        ("redis82", "emulated", 3),
        ("redis82", "native", 4),
        ("valkey9", "emulated", 5),
        ("valkey9", "native", 6),
    ],
)
def test_nothing_is_lost_and_nothing_refused(
    request: pytest.FixtureRequest, server: str, backend: str, seed: int
) -> None:
    binary = request.getfixturevalue(server).binary
    with moving_namespace(binary, seed * proof.seed(), backend) as moving:
        until_it_has_moved(moving, STEPS)


@pytest.mark.parametrize(("backend", "seed"), [("emulated", 2), ("native", 1)])
def test_nothing_is_lost_on_a_cluster(cluster8: RedisCluster3, backend: str, seed: int) -> None:
    binary = cluster8.nodes[0].binary
    with moving_namespace(binary, seed * proof.seed(), backend, is_cluster=True) as moving:
        until_it_has_moved(moving, STEPS // 4)


@pytest.mark.timeout(0)
@pytest.mark.skipif(not MORE, reason="WORKSTEALING_MOVES asks for no more moves")
def test_more_moves(redis8: RedisServer) -> None:
    main(["--server", str(redis8.binary), *shlex.split(MORE)])
