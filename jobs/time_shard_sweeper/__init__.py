"""The job that keeps a TimeShardQueue clean, and the sweeping of each store."""

from workstealing.jobs.time_shard_sweeper.cassandra_sweeping import CassandraSweeping
from workstealing.jobs.time_shard_sweeper.job import (
    Sweeping,
    Swept,
    TimeShardSweeper,
    Unswept,
    sweeping_of,
)
from workstealing.jobs.time_shard_sweeper.redis_sweeping import RedisSweeping

__all__ = [
    "CassandraSweeping",
    "RedisSweeping",
    "Sweeping",
    "Swept",
    "TimeShardSweeper",
    "Unswept",
    "sweeping_of",
]
