"""Shuffle queues: a queue of many tenants over Redis streams, served fairly."""

from workstealing.structures.shuffle_queue.base import QueueNamespace
from workstealing.structures.shuffle_queue.choice import overlap_probability, streams_of
from workstealing.structures.shuffle_queue.message import Message, OverdueMessage
from workstealing.structures.shuffle_queue.queue import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.settling import DeadMessage

__all__ = [
    "AsyncShuffleQueue",
    "DeadMessage",
    "Message",
    "OverdueMessage",
    "QueueNamespace",
    "ShuffleQueue",
    "overlap_probability",
    "streams_of",
]
