"""A namespace goes native, emulated, native and so on, and nobody loses or is refused anything.

By default a few seconds on Redis 8. `WORKSTEALING_MOVES` asks for more, by the arguments of
`python -m support.moving_namespace`: ``WORKSTEALING_MOVES="--seconds 60 --seed 7"``; ``--server``
names the binary of another server.
"""

from __future__ import annotations

import os
import shlex

import pytest

from support import proof
from support.moving_namespace import main, moving_namespace
from support.servers import RedisServer

STEPS, MOST_STEPS = 120, 1_200
MORE = os.environ.get("WORKSTEALING_MOVES", "")
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.mark.smoke
@pytest.mark.parametrize(("backend", "seed"), [("emulated", 2), ("native", 1)])
def test_nothing_is_lost_and_nothing_refused(redis8: RedisServer, backend: str, seed: int) -> None:
    with moving_namespace(redis8.binary, seed * proof.seed(), backend) as moving:
        for number in range(MOST_STEPS):
            moving.step()
            proof.tried("a step of a namespace that is moved, cut off and restarted")
            # Chance decides when a move ends.
            if number >= STEPS and moving.counts["kills"] and moving.counts["moves"]:
                return
        raise AssertionError(f"no move has ended: {dict(moving.counts)}")


@pytest.mark.timeout(0)
@pytest.mark.skipif(not MORE, reason="WORKSTEALING_MOVES asks for no more moves")
def test_more_moves(redis8: RedisServer) -> None:
    main(["--server", str(redis8.binary), *shlex.split(MORE)])
