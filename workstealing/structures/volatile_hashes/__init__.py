"""Hashes whose fields expire one by one; see `VolatileHashes`."""

from workstealing.structures.volatile_hashes.hashes import (
    AsyncHashPipeline,
    AsyncVolatileHashes,
    HashPipeline,
    VolatileHashes,
)

__all__ = ["AsyncHashPipeline", "AsyncVolatileHashes", "HashPipeline", "VolatileHashes"]
