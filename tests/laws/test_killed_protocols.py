"""Processes are killed within each protocol that changes a layout or a mark, and nothing is lost.

The kills of a run are summed up by `make prove PROVE_ARGS="--only kills"`; PROVE_KILLS says how
many each test makes. By default they take a minute in all, with one seed.
"""

from __future__ import annotations

import os

import pytest

from support import proof
from support.killed_fair_queues import KilledFairQueue
from support.killed_protocols import MovingFleet, Protocol, ResizedIck, model_of
from support.killed_queues import Adoption, ChangedQueue
from support.moving_namespace import moving_namespace
from support.patience import patient  # noqa: F401 - an autouse fixture

KILLS = int(os.environ.get("PROVE_KILLS", "50"))
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.mark.parametrize("server", ["redis7", "redis8", "redis82", "valkey9"])
@pytest.mark.parametrize(
    "protocol",
    [MovingFleet, ResizedIck, ChangedQueue, KilledFairQueue, Adoption],
    ids=lambda each: each.__name__,
)
def test_a_protocol_outlives_its_processes(
    request: pytest.FixtureRequest, protocol: type[Protocol], server: str
) -> None:
    binary = request.getfixturevalue(server).binary
    with model_of(protocol, binary, proof.seed(3)) as model:
        while model.counts["killed"] < KILLS:
            model.step()
        model.end()


@pytest.mark.parametrize("backend", ["emulated", "native"])
@pytest.mark.parametrize("server", ["redis8", "redis82", "valkey9"])
def test_a_namespace_is_moved_by_movers_that_are_cut_off(
    request: pytest.FixtureRequest, server: str, backend: str
) -> None:
    binary = request.getfixturevalue(server).binary
    with moving_namespace(binary, proof.seed(3), backend, moves=300) as moving:
        while moving.counts["kills"] < KILLS // 2:
            moving.step()
