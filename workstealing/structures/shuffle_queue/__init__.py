"""Shuffle queues: a queue of many tenants over Redis streams, served fairly."""

from workstealing.structures.shuffle_queue.base import QueueNamespace
from workstealing.structures.shuffle_queue.message import Message, OverdueMessage
from workstealing.structures.shuffle_queue.queue import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.settling import DeadMessage
from workstealing.structures.shuffle_queue.streams import overlap_probability, streams_of

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
