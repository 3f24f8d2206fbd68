"""How this package talks to Redis: clients, their job clients, attempts and operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

# Not behind the door: its module has the name of the function, and would stand in its place.
from workstealing.store.attempt import Attempt, attempt

if TYPE_CHECKING:
    from workstealing.store.client import connect, connect_async
    from workstealing.store.embedded import EmbeddedServer
    from workstealing.store.fleet import AsyncFleet, Fleet

__all__ = [
    "AsyncFleet",
    "Attempt",
    "EmbeddedServer",
    "Fleet",
    "attempt",
    "connect",
    "connect_async",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.store.client": "connect connect_async",
            "workstealing.store.embedded": "EmbeddedServer",
            "workstealing.store.fleet": "AsyncFleet Fleet",
        },
    )
