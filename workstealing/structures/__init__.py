"""The data structures that the ready-made jobs keep clean."""

from workstealing.structures.volatile_hashes import (
    AsyncHashPipeline,
    AsyncVolatileHashes,
    HashPipeline,
    VolatileHashes,
)

__all__ = ["AsyncHashPipeline", "AsyncVolatileHashes", "HashPipeline", "VolatileHashes"]
