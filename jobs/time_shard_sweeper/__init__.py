"""The job that keeps a TimeShardQueue clean, and the sweeping of each store."""

from workstealing.jobs.time_shard_sweeper.cassandra_sweeping import CassandraSweeping
from workstealing.jobs.time_shard_sweeper.job import TimeShardSweeper
from workstealing.jobs.time_shard_sweeper.redis_sweeping import RedisSweeping
from workstealing.jobs.time_shard_sweeper.sweeping import Sweeping, Swept, Unswept, sweeping_of

__all__ = [
    "CassandraSweeping",
    "RedisSweeping",
    "Sweeping",
    "Swept",
    "TimeShardSweeper",
    "Unswept",
    "sweeping_of",
]
