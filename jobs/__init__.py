"""The ready-made jobs: each keeps a structure, a SQL table or another program's keys clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.jobs.adopt_hashes import AdoptHashes, AdoptionExample, AdoptionReport
    from workstealing.jobs.celery_leftovers import CeleryLeftovers
    from workstealing.jobs.fair_queue_reaper import FairQueueReaper
    from workstealing.jobs.family_leftovers import FamilyLeftovers, TagSetLeftovers
    from workstealing.jobs.fleet_rebalance import FleetRebalance
    from workstealing.jobs.hash_field_expiry import HashFieldExpiry
    from workstealing.jobs.ick_reaper import IckReaper
    from workstealing.jobs.key_expiry import KeyExpiry
    from workstealing.jobs.leftovers import Leftovers
    from workstealing.jobs.library_leftovers import (
        FeastLeftovers,
        HueyLeftovers,
        LangGraphLeftovers,
    )
    from workstealing.jobs.log_compactor import LogCompactor
    from workstealing.jobs.log_trimmer import LogTrimmer
    from workstealing.jobs.migrate_to_emulated import MigrateToEmulated
    from workstealing.jobs.migrate_to_native import MigrateToNative
    from workstealing.jobs.native_field_audit import NativeFieldAudit
    from workstealing.jobs.queue_expiry import QueueExpiry
    from workstealing.jobs.rq_leftovers import RqLeftovers
    from workstealing.jobs.shuffle_queue_reaper import ShuffleQueueReaper
    from workstealing.jobs.sql_expiry import SqlExpiry
    from workstealing.jobs.stream_leftovers import StreamLeftovers
    from workstealing.jobs.time_shard_sweeper import TimeShardSweeper
    from workstealing.jobs.track_queued import TrackQueued
    from workstealing.jobs.untrack_done import UntrackDone
    from workstealing.recruiting.job import Backlog

__all__ = [
    "AdoptHashes",
    "AdoptionExample",
    "AdoptionReport",
    "Backlog",
    "CeleryLeftovers",
    "FairQueueReaper",
    "FamilyLeftovers",
    "FeastLeftovers",
    "FleetRebalance",
    "HashFieldExpiry",
    "HueyLeftovers",
    "IckReaper",
    "KeyExpiry",
    "LangGraphLeftovers",
    "Leftovers",
    "LogCompactor",
    "LogTrimmer",
    "MigrateToEmulated",
    "MigrateToNative",
    "NativeFieldAudit",
    "QueueExpiry",
    "RqLeftovers",
    "ShuffleQueueReaper",
    "SqlExpiry",
    "StreamLeftovers",
    "TagSetLeftovers",
    "TimeShardSweeper",
    "TrackQueued",
    "UntrackDone",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.jobs.adopt_hashes": "AdoptHashes AdoptionExample AdoptionReport",
            "workstealing.jobs.celery_leftovers": "CeleryLeftovers",
            "workstealing.jobs.fair_queue_reaper": "FairQueueReaper",
            "workstealing.jobs.family_leftovers": "FamilyLeftovers TagSetLeftovers",
            "workstealing.jobs.fleet_rebalance": "FleetRebalance",
            "workstealing.jobs.hash_field_expiry": "HashFieldExpiry",
            "workstealing.jobs.ick_reaper": "IckReaper",
            "workstealing.jobs.key_expiry": "KeyExpiry",
            "workstealing.jobs.leftovers": "Leftovers",
            "workstealing.jobs.library_leftovers": (
                "FeastLeftovers HueyLeftovers LangGraphLeftovers"
            ),
            "workstealing.jobs.log_compactor": "LogCompactor",
            "workstealing.jobs.log_trimmer": "LogTrimmer",
            "workstealing.jobs.migrate_to_emulated": "MigrateToEmulated",
            "workstealing.jobs.migrate_to_native": "MigrateToNative",
            "workstealing.jobs.native_field_audit": "NativeFieldAudit",
            "workstealing.jobs.queue_expiry": "QueueExpiry",
            "workstealing.jobs.rq_leftovers": "RqLeftovers",
            "workstealing.jobs.shuffle_queue_reaper": "ShuffleQueueReaper",
            "workstealing.jobs.sql_expiry": "SqlExpiry",
            "workstealing.jobs.stream_leftovers": "StreamLeftovers",
            "workstealing.jobs.time_shard_sweeper": "TimeShardSweeper",
            "workstealing.jobs.track_queued": "TrackQueued",
            "workstealing.jobs.untrack_done": "UntrackDone",
            "workstealing.recruiting.job": "Backlog",
        },
        needs={"sqlalchemy": "SqlExpiry"},
    )
