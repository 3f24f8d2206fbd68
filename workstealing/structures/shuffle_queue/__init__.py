"""Shuffle queues: a queue of many tenants over Redis streams, served fairly."""

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.structures.queue_messages import Exchanged, NewMessage
    from workstealing.structures.shuffle_queue.base import QueueNamespace
    from workstealing.structures.shuffle_queue.message import Message, OverdueMessage
    from workstealing.structures.shuffle_queue.queue import AsyncShuffleQueue, ShuffleQueue
    from workstealing.structures.shuffle_queue.settling import DeadMessage
    from workstealing.structures.shuffle_queue.streams import overlap_probability, streams_of

__all__ = [
    "AsyncShuffleQueue",
    "DeadMessage",
    "Exchanged",
    "Message",
    "NewMessage",
    "OverdueMessage",
    "QueueNamespace",
    "ShuffleQueue",
    "overlap_probability",
    "streams_of",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.structures.queue_messages": "Exchanged NewMessage",
            "workstealing.structures.shuffle_queue.base": "QueueNamespace",
            "workstealing.structures.shuffle_queue.message": "Message OverdueMessage",
            "workstealing.structures.shuffle_queue.queue": "AsyncShuffleQueue ShuffleQueue",
            "workstealing.structures.shuffle_queue.settling": "DeadMessage",
            "workstealing.structures.shuffle_queue.streams": "overlap_probability streams_of",
        },
    )
