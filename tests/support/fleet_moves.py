"""A fleet of two nodes to which a third comes: the names that move, and the job carries them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Fleet
from workstealing.jobs import FleetRebalance
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.structures import (
    DurableKeys,
    VolatileHashes,
)

OLD, NEW = ("a", "b"), ("a", "b", "c")
DONE = Backlog(0, 0.0, "keys at their former homes")


def fleet(servers: dict[str, RedisServer], names: tuple[str, ...], **options: Any) -> Fleet:
    return Fleet({name: servers[name].client() for name in names}, **options)


def both(on: Fleet) -> tuple[VolatileHashes, DurableKeys]:
    return VolatileHashes(on, "h", backend="emulated"), DurableKeys(on, "k")


def work_off(job: FleetRebalance, most: int = 2_000) -> int:
    carried = 0
    for turn in range(most):
        # A busy machine may be slower than a job waits: the next recruit goes on.
        with suppress(redis.TimeoutError):
            carried += job.perform(Slice(25, 10.0)) or 0
            # A backlog reads as many pages as 16 slices or more.
            if turn % 8 == 7 and job.backlog(10.0) == DONE:
                return carried
    raise AssertionError("the job came to no end")


def moving(on: Fleet, kind: str) -> str:
    return next(n for n in (f"{kind}:{i}" for i in range(1000)) if on.former_home(n))
