"""The data structures that the ready-made jobs keep clean."""

from workstealing.structures.ick import AsyncIck, AsyncIckPipeline, Ick, IckPipeline
from workstealing.structures.ick_dead import DeadMember
from workstealing.structures.volatile_hashes import (
    AsyncHashPipeline,
    AsyncVolatileHashes,
    HashPipeline,
    VolatileHashes,
)

__all__ = [
    "AsyncHashPipeline",
    "AsyncIck",
    "AsyncIckPipeline",
    "AsyncVolatileHashes",
    "DeadMember",
    "HashPipeline",
    "Ick",
    "IckPipeline",
    "VolatileHashes",
]
