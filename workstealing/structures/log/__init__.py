"""Logs with offsets that never change, on any Redis."""

from workstealing.errors import DamagedBlockError, UndecodableEntryError
from workstealing.structures.log.group import AsyncLogGroup, LogGroup
from workstealing.structures.log.group_reading import (
    DeadLogEntry,
    GroupEntry,
    GroupStats,
    PendingEntry,
)
from workstealing.structures.log.log import AsyncLog, Log
from workstealing.structures.log.reading import LogRange, LogStats

__all__ = [
    "AsyncLog",
    "AsyncLogGroup",
    "DamagedBlockError",
    "DeadLogEntry",
    "GroupEntry",
    "GroupStats",
    "Log",
    "LogGroup",
    "LogRange",
    "LogStats",
    "PendingEntry",
    "UndecodableEntryError",
]
