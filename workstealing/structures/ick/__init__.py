"""Ick: a queue of dirty members, in which each stands once and is never forgotten."""

from workstealing.structures.ick.ick import AsyncIck, Ick
from workstealing.structures.ick.members import Acked, Added, Batch, DeadMember

__all__ = [
    "Acked",
    "Added",
    "AsyncIck",
    "Batch",
    "DeadMember",
    "Ick",
]
