"""Waiting for one's turn in a group of a log, in the order in which the members have come.

Why no wake-up is lost. A look that finds nothing puts the member into the group's line in the same
script; whoever adds entries gives as many turns as there are members in the line, or entries. A
turn that was given before the member blocks is found by BLPOP; one that is given later goes to who
has been blocked longest, which is BLPOP's own rule. The wait stands from the first moment to the
last on one connection, so nobody loses his place.

A member may die with a turn. So everybody who waits looks now and then, by the application's own
client, while his wait goes on: such a look gives the turns that nobody has used anew, to whoever
has waited longest, and those for pending entries whose time has come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.errors import Moved, OutOfTime, is_connection_fault
from workstealing.store.blocking import MARGIN_SECONDS, AsyncAsker
from workstealing.store.budget import Budget
from workstealing.store.keys import to_bytes
from workstealing.store.twin import Twin

# After a fault while waiting: the application's own client then looks, and says what is wrong.
_PAUSE_SECONDS = 0.05
_LEAST_SECONDS = 0.001


class Nothing(NamedTuple):
    """What a look that found nothing says.

    Fields: pause_ms: until the next look while waiting; due_ms: until a pending entry is to be
    handed out again, -1 if none is.
    """

    pause_ms: int
    due_ms: int

    def pause_seconds(self, chance: float) -> float:
        """Return when to look again. Arguments: chance: so that not all do at one moment."""
        pause = self.pause_ms * (0.5 + chance / 2)
        if self.due_ms >= 0:
            # The server's clock has whole milliseconds; of many, a few look at the first moment.
            pause = min(pause, self.due_ms + 1 + chance * max(0, self.pause_ms - 1000) / 10)
        return max(_LEAST_SECONDS, pause / 1000)


class Place(NamedTuple):
    """Where a member waits.

    Fields: slot; turns: the key; seconds: for how long; nothing: what his look said.
    """

    slot: int
    turns: bytes
    seconds: float
    nothing: Nothing

    def command(self, seconds: float) -> tuple[Any, ...]:
        """Return the command that waits."""
        return ("BLPOP", self.turns, max(_LEAST_SECONDS, round(seconds, 3)))


def wait_for_turn(
    twin: Twin, place: Place, look: Callable[[], Nothing], random: Callable[[], float]
) -> bytes:
    """Wait until it is this member's turn, or the time is over, on a connection of its own.

    Arguments: look: is called now and then. Returns: the turn; nothing if it did not come. A fault
    of the connection only ends the wait; what `look` raises is raised. One round trip, and those of
    the looks.
    """
    failed: list[BaseException] = []
    try:
        with twin.connection(twin.node_of(place.slot)) as connection:
            reply = _held(connection, place, look, random, failed)
    except (Moved, OutOfTime, ResponseError):
        # MOVED is one too: the next look lets the client learn the new node.
        time.sleep(min(place.seconds, _PAUSE_SECONDS))
        return b""
    except Exception as error:
        if failed or not is_connection_fault(error):
            raise
        time.sleep(min(place.seconds, _PAUSE_SECONDS))
        return b""
    if failed:
        raise failed[0]
    return to_bytes(reply[1]) if reply else b""


def _held(
    connection: Any,
    place: Place,
    look: Callable[[], Nothing],
    random: Callable[[], float],
    failed: list[BaseException],
) -> Any:
    limit = place.seconds + MARGIN_SECONDS
    pause = place.nothing.pause_seconds(random())
    budget = Budget(limit, timeout=limit)
    connection.call((), budget)
    if any(base.__module__.startswith("fakeredis") for base in type(connection).__mro__):
        # fakeredis waits while it is sent the command: so in pieces, without a place in a line.
        (reply,) = connection.call([place.command(min(place.seconds, pause))], budget)
        if isinstance(reply, Exception):
            raise reply
        return reply
    end = time.monotonic() + limit
    try:
        connection.send_command(*place.command(place.seconds))
        while not connection.can_read(pause):
            if time.monotonic() > end:
                raise TimeoutError("the server does not end a wait in time")
            try:
                nothing = look()
            except Exception as error:  # noqa: BLE001 - it is raised where it cannot be mistaken
                failed.append(error)
                connection.disconnect()
                return None
            pause = nothing.pause_seconds(random())
        return connection.read_response()
    except BaseException:
        # The reply may still be under way.
        connection.disconnect()
        raise


class TurnWaiter(AsyncAsker):
    """Connections on which coroutines wait for their turn; one for each that waits at a time."""

    async def wait_for_turn(
        self,
        place: Place,
        look: Callable[[], Awaitable[Nothing]],
        random: Callable[[], float],
    ) -> bytes:
        """Wait as `wait_for_turn` does, without holding up the event loop."""
        loop = asyncio.get_running_loop()
        connection = None
        reading: asyncio.Task[Any] | None = None
        end = time.monotonic() + place.seconds + MARGIN_SECONDS
        is_looking = False
        try:
            node = self._twin.node_of(place.slot)
            connection = self._take(loop, node)
            async with asyncio.timeout(MARGIN_SECONDS):
                await connection.connect()
                await connection.send_command(*place.command(place.seconds))
            reading = asyncio.ensure_future(connection.read_response())
            pause = place.nothing.pause_seconds(random())
            while not (await asyncio.wait({reading}, timeout=pause))[0]:
                if time.monotonic() > end:
                    raise TimeoutError("the server does not end a wait in time")
                is_looking = True
                pause = (await look()).pause_seconds(random())
                is_looking = False
            reply = reading.result()
        except BaseException as error:
            # A reply may still be under way, cancelled or not.
            if reading is not None:
                reading.cancel()
                await asyncio.wait({reading}, timeout=_PAUSE_SECONDS)
            await self._drop(connection)
            is_fault = isinstance(error, Moved | ResponseError) or is_connection_fault(error)
            if is_looking or not is_fault:
                raise
            await asyncio.sleep(min(place.seconds, _PAUSE_SECONDS))
            return b""
        self._idle.append((loop, node, connection))
        return to_bytes(reply[1]) if reply else b""
