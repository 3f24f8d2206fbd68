"""Keys that live exactly until their deadline; see `DurableKeys`."""

from workstealing.structures.durable_keys.keys import (
    AsyncDurableKeys,
    AsyncLease,
    DurableKeys,
    Lease,
)

__all__ = [
    "AsyncDurableKeys",
    "AsyncLease",
    "DurableKeys",
    "Lease",
]
