"""What may happen to one who asks for a grant: replies cut off, cancelled awaits, interruptions."""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.askers import ASKERS, Asker, in_time, kill_greenlets, seconds_of
from support.faulty_server import FaultyServer
from support.interruptions import (
    PACKAGE,
    Interruption,
    Point,
    alarms,
    cancelled_at,
    interrupt,
    place_of,
    points_of,
)
from support.proof import seed, tried
from support.servers import RedisServer
from workstealing.store.job_client import job_client_of

CUT = "a reply that is cut off while asking for a grant"
SIGNAL = "a signal handler that raises at a random moment while asking for a grant"
GREENLET = "a greenlet killed at a random moment while it asks for a grant"
# A run of `make prove` makes more of them than a test.
_MANY = 20 if "PROVE_SEED" in os.environ else 1


def every_cut(
    door: FaultyServer, ask: Callable[[Any], Any], *, retries: bool = True
) -> Iterator[Any]:
    """Ask through a new client for each command whose reply is cut off; yield each answer.

    Arguments:
        ask: is given a client.
        retries: whether redis-py sends a cut-off command again, as it does by default.

    Yields: the answer, or the ConnectionError. The last one, a whole run, is an answer.
    """
    options: dict[str, Any] = {} if retries else {"retry": Retry(NoBackoff(), 0)}
    at = 0
    while at == 0 or len(door.seen) >= at:
        at += 1
        door.reset()
        door.fail(at, "cut")
        tried(CUT)
        with redis.Redis(port=door.port, protocol=2, **options) as client:
            try:
                answer = ask(client)
            except redis.ConnectionError as error:
                assert not retries, (at, door.names())
                answer = error
            yield answer


async def every_async_cut(
    door: FaultyServer, ask: Callable[[Any], Awaitable[Any]]
) -> AsyncIterator[Any]:
    """Ask through a new asyncio client with its default retries; see `every_cut`."""
    at = 0
    while at == 0 or len(door.seen) >= at:
        at += 1
        door.reset()
        door.fail(at, "cut")
        tried(CUT)
        async with redis_asyncio.Redis(port=door.port, protocol=2) as client:
            yield await ask(client)


async def every_cancel(
    server: RedisServer, ask: Callable[[Any], Any], free: Callable[[], bool], least: int
) -> None:
    """Cancel a coroutine function at each of its awaits; see that nothing stays granted.

    Arguments:
        ask: is given a new client, which connects first.
        free: says whether all is free.
        least: how many awaits there are at least.

    No job's connection is used.
    """
    at, reaches = 0, True
    while reaches:
        at += 1
        async with redis_asyncio.Redis(port=server.port) as client:
            reaches = await cancelled_at(ask(client), at)
            tried("a task that is cancelled at an await while it asks for a grant")
            assert not job_client_of(client)._idle
        await eventually(free, f"all to be free after a cancel at await {at}")
    assert at > least


async def eventually(free: Callable[[], bool], what: str) -> None:
    """Wait until something holds, without holding up the event loop."""
    for _ in range(3_000):
        if free():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


def every_opcode(
    call: Callable[[], object], free: Callable[[], bool], left_out: Collection[Point] = ()
) -> None:
    """Raise into a call before each of the package's opcodes; see that nothing stays granted."""
    points = [each for each in points_of(call, (PACKAGE,)) if each not in left_out]
    call()
    landed = 0
    for point in points:
        landed += interrupt(call, point) is not None
        tried("an exception at an opcode while asking for a grant")
        assert free(), place_of(point)
    assert landed > 0.5 * len(points) > 50


def signals_at_random_moments(server: RedisServer, structure: str, count: int = 100) -> None:
    """Let signals' handlers raise into one who asks for a grant; see that nothing stays held.

    One moment is known: an `__exit__` that has not begun. Then its lease ends by itself.
    """
    chance = random.Random(seed())
    landed = known = 0
    with alarms() as alarm:
        while landed < count * _MANY:
            server.wipe()
            # By protocol 3 redis-py sends a number in `HELLO`, at which hiredis may crash.
            client, direct = server.client(protocol=2), server.client()
            asker = ASKERS[structure](client, direct)
            longest = seconds_of(asker)
            error = None
            # redis-py's pool loses a connection that is interrupted, and has a hundred at most.
            for _ in range(60):
                if landed >= count * _MANY or isinstance(error, AttributeError):
                    break
                error = _interrupted(asker, alarm, chance.uniform(2e-5, longest))
                is_known = isinstance(error, Interruption) and _at_an_exit(error)
                landed += isinstance(error, Interruption)
                known += is_known
                if isinstance(error, Interruption):
                    tried(SIGNAL, held=is_known)
                if is_known:
                    break
                assert in_time(asker.is_free), f"something stays held after {landed} signals"
            client.close()
            direct.close()
    assert known < 0.02 * landed


def _interrupted(asker: Asker, alarm: Callable[[float], None], seconds: float) -> Exception | None:
    """Ask, with an alarm after some seconds; return what came out of it."""
    try:
        try:
            alarm(seconds)
            asker.ask()
        finally:
            alarm(0)
    except Interruption as error:
        return error
    except AttributeError as error:
        # redis-py's pool has kept a connection that was interrupted while it was made.
        if "_reader" not in str(error) and "_buffer" not in str(error):
            raise
        return error
    return None


def _at_an_exit(error: BaseException) -> bool:
    """Say whether an `__exit__` was interrupted before its first statement."""
    # The last frame is the handler's.
    *_, (frame, line), _ = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_name == "__exit__" and line == frame.f_code.co_firstlineno


def greenlets_killed(server: RedisServer, structure: str, count: int = 50) -> None:
    """Kill greenlets that ask for a grant at random moments; see that nothing stays held."""
    pytest.importorskip("gevent")
    done = kill_greenlets(server.port, structure, seed(), count * _MANY)
    tried(GREENLET, done.tried, held=done.held)
    assert done.held == 0
    assert done.tried >= count
