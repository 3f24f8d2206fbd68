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
    IckLease,
    ShardedIck,
)

__all__ = [
    "AsyncIckLease",
    "AsyncLeasedIck",
    "AsyncLeases",
    "AsyncShardedIck",
    "IckLease",
    "LeaseLost",
    "LeasedIck",
    "Leases",
    "NoLease",
    "Resized",
    "ShardedIck",
]
