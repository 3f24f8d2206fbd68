"""ShardedIck: several Icks behind one name, each leased to one consumer at a time."""

from workstealing.errors import LeaseLost, NoLease
from workstealing.structures.sharded_ick.leasing import (
    AsyncLeasedIck,
    AsyncLeases,
    LeasedIck,
    Leases,
)
from workstealing.structures.sharded_ick.resizing import Resized
from workstealing.structures.sharded_ick.sharded import (
    AsyncIckLease,
    AsyncShardedIck,
    AsyncShardedIckPipeline,
    IckLease,
    ShardedIck,
    ShardedIckPipeline,
)

__all__ = [
    "AsyncIckLease",
    "AsyncLeasedIck",
    "AsyncLeases",
    "AsyncShardedIck",
    "AsyncShardedIckPipeline",
    "IckLease",
    "LeaseLost",
    "LeasedIck",
    "Leases",
    "NoLease",
    "Resized",
    "ShardedIck",
    "ShardedIckPipeline",
]
