"""Keys that live exactly until their deadline; see `DurableKeys`."""

from workstealing.structures.durable_keys.keys import (
    AsyncDurableKeys,
    AsyncKeyPipeline,
    AsyncLease,
    DurableKeys,
    KeyPipeline,
    Lease,
)

__all__ = [
    "AsyncDurableKeys",
    "AsyncKeyPipeline",
    "AsyncLease",
    "DurableKeys",
    "KeyPipeline",
    "Lease",
]
