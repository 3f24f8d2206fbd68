"""A queue of accounts, each of which gets its share of turns, of time and of workers."""

from workstealing.structures.fair_queue.base import FairQueueNamespace
from workstealing.structures.fair_queue.message import DeadFairMessage, FairMessage
from workstealing.structures.fair_queue.queue import AsyncFairQueue, FairQueue
from workstealing.structures.fair_queue.rules import AccountRule, AccountState, WaitReason
from workstealing.structures.queue_messages import Exchanged, NewMessage

__all__ = [
    "AccountRule",
    "AccountState",
    "AsyncFairQueue",
    "DeadFairMessage",
    "Exchanged",
    "FairMessage",
    "FairQueue",
    "FairQueueNamespace",
    "NewMessage",
    "WaitReason",
]
