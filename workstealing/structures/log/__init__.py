"""Logs with offsets that never change, on any Redis."""

from workstealing.errors import DamagedBlockError, UndecodableEntryError
from workstealing.structures.log.facts import LogFacts
from workstealing.structures.log.group import AsyncLogGroup, LogGroup
from workstealing.structures.log.group_entries import (
    DeadLogEntry,
    GroupEntry,
    GroupInfo,
    PendingEntry,
)
from workstealing.structures.log.log import AsyncLog, Log
from workstealing.structures.log.reading import LogInfo

__all__ = [
    "AsyncLog",
    "AsyncLogGroup",
    "DamagedBlockError",
    "DeadLogEntry",
    "GroupEntry",
    "GroupInfo",
    "Log",
    "LogFacts",
    "LogGroup",
    "LogInfo",
    "PendingEntry",
    "UndecodableEntryError",
]
