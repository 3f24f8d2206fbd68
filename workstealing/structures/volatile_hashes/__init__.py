"""Hashes whose fields expire one by one; see `VolatileHashes`."""

from workstealing.structures.volatile_hashes.hashes import (
    AsyncVolatileHashes,
    VolatileHashes,
)
from workstealing.structures.volatile_hashes.serializers import Serializer

__all__ = ["AsyncVolatileHashes", "Serializer", "VolatileHashes"]
