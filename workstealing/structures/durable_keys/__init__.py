"""Keys that live exactly until their deadline; see `DurableKeys`."""

from workstealing.structures.durable_keys.keys import AsyncDurableKeys, DurableKeys
from workstealing.structures.durable_keys.lease import AsyncLease, Lease
from workstealing.structures.durable_keys.pipeline import AsyncKeyPipeline, KeyPipeline

__all__ = [
    "AsyncDurableKeys",
    "AsyncKeyPipeline",
    "AsyncLease",
    "DurableKeys",
    "KeyPipeline",
    "Lease",
]
