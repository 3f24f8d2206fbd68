"""ShardedIck: several Icks behind one name, each leased to one consumer at a time."""

from workstealing.errors import LeaseLost, NoLease
from workstealing.structures.sharded_ick.holding import Leases
from workstealing.structures.sharded_ick.leasing import AsyncLeasedIck, LeasedIck
from workstealing.structures.sharded_ick.pipeline import (
    AsyncShardedIckPipeline,
    ShardedIckPipeline,
)
from workstealing.structures.sharded_ick.resizing import Resized
from workstealing.structures.sharded_ick.sharded import (
    AsyncIckLease,
    AsyncShardedIck,
    IckLease,
    ShardedIck,
)

__all__ = [
    "AsyncIckLease",
    "AsyncLeasedIck",
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
