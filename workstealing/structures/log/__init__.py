"""Logs with offsets that never change, on any Redis."""

from workstealing.structures.log.facts import LogFacts
from workstealing.structures.log.log import AsyncLog, Log
from workstealing.structures.log.reading import LogInfo

__all__ = ["AsyncLog", "Log", "LogFacts", "LogInfo"]
