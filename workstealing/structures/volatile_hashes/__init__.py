"""Hashes whose fields expire one by one; see `VolatileHashes`."""

from workstealing.structures.volatile_hashes.hashes import (
    AsyncVolatileHashes,
    VolatileHashes,
)

__all__ = ["AsyncVolatileHashes", "VolatileHashes"]
