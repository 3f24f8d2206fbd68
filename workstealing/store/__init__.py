"""How this package talks to Redis: clients, their one-attempt twins, attempts and operations."""

from workstealing.store.attempt import Attempt, attempt
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
