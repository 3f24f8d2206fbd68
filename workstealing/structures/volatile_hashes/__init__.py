"""Hashes whose fields expire one by one; see `VolatileHashes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.structures.volatile_hashes.cached_policy import Serializer
    from workstealing.structures.volatile_hashes.hashes import AsyncVolatileHashes, VolatileHashes

__all__ = [
    "AsyncVolatileHashes",
    "Serializer",
    "VolatileHashes",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.structures.volatile_hashes.hashes": "AsyncVolatileHashes VolatileHashes",
            "workstealing.structures.volatile_hashes.cached_policy": "Serializer",
        },
    )
