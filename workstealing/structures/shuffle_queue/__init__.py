"""Shuffle queues: a queue of many tenants over Redis streams, served fairly."""

from workstealing.structures.shuffle_queue.choice import overlap_probability, streams_of
from workstealing.structures.shuffle_queue.dead import DeadMessage
from workstealing.structures.shuffle_queue.message import Message, OverdueMessage
from workstealing.structures.shuffle_queue.queue import AsyncShuffleQueue, ShuffleQueue

__all__ = [
    "AsyncShuffleQueue",
    "DeadMessage",
    "Message",
    "OverdueMessage",
    "ShuffleQueue",
    "overlap_probability",
    "streams_of",
]
