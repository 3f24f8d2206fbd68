"""Hashes whose fields expire one by one; see `VolatileHashes`."""

from workstealing.structures.volatile_hashes.hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.pipeline import AsyncHashPipeline, HashPipeline

__all__ = ["AsyncHashPipeline", "AsyncVolatileHashes", "HashPipeline", "VolatileHashes"]
