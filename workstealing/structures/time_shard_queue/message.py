"""The arguments and results of a TimeShardQueue: messages, their ids and their due times."""

from __future__ import annotations

import math
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError
from workstealing.structures.time_shard_queue.store import Due

DueTime = datetime | timedelta | float | int | None
LONGEST_CONSUMER = 512
_LAST_MS = 253_402_300_799_999  # the end of the year 9999
_ID = re.compile(r"(0|[1-9][0-9]{0,3})-([0-9a-f]+)")


class Taken(NamedTuple):
    """A message that is leased to a consumer until it is acknowledged, released, or the lease ends.

    Fields: id; message: bytes; due: when it was due, an aware datetime; attempts: how many takes
    were not released, this one included; lease_end: an aware datetime by the store's clock; token:
    of this lease, for `release`; time_shard.
    """

    id: str
    message: bytes
    due: datetime
    attempts: int
    lease_end: datetime
    token: str
    time_shard: int


class TimeShardStats(NamedTuple):
    """How many messages one time shard holds.

    Fields: time_shard: its number; role: now, by this process's clock: producing, consuming or
    quiet; waiting: messages without a lease; due: waiting messages whose time has come; leased;
    consumed: acknowledged or cancelled messages, which also count as waiting or leased until they
    are cleared away; dead: set aside; overdue_seconds: for how long the message with the lowest due
    time has waited.
    """

    time_shard: int
    role: str
    waiting: int
    due: int
    leased: int
    consumed: int
    dead: int
    overdue_seconds: float

    @property
    def total(self) -> int:
        """How many messages are not done: waiting plus leased messages, minus consumed ones."""
        return max(0, self.waiting + self.leased - self.consumed)


class DeadDueMessage(NamedTuple):
    """A message that was set aside because its lease has ended too often.

    Fields: id; message: bytes; due: aware datetime; attempts; since: when it was set aside, aware;
    consumer: the last one to hold it.
    """

    id: str
    message: bytes
    due: datetime
    attempts: int
    since: datetime
    consumer: str


def new_id(time_shard: int, now_s: float) -> str:
    """Return an id: `<time shard>-<16 digits of microseconds><16 random digits>`, hexadecimal.

    Of two messages with the same due time, the message with the lower id is taken first.
    """
    return f"{time_shard}-{int(now_s * 1e6) & (1 << 64) - 1:016x}{os.urandom(8).hex()}"


def time_shard_of(message_id: Any, time_shards: int) -> int:
    """Return the time shard that an id names.

    Raises: ConfigurationError for anything but an id of a queue with so many time shards.
    """
    found = _ID.fullmatch(message_id) if isinstance(message_id, str) else None
    if found is None or int(found[1]) >= time_shards:
        raise ConfigurationError(
            f"{message_id!r} is no id of a message of this queue: give an id that put() has"
            " returned, or a Taken"
        )
    return int(found[1])


def message_bytes(message: Any) -> bytes:
    """Return a message as bytes, text in UTF-8. Raises: ConfigurationError for anything else."""
    if isinstance(message, str):
        try:
            return message.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the message {message!r} is no UTF-8 text ({error}): give bytes, or another text"
            ) from None
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    raise ConfigurationError(
        f"a message of type {type(message).__name__} cannot be kept: give bytes or text"
    )


def due_of(due: Any) -> Due:
    """Return a due time as a store takes it: None is now, a timedelta counts from now.

    Raises: ConfigurationError for a datetime without a time zone, and for anything but a time.
    """
    if due is None:
        return Due(0, True)
    if isinstance(due, timedelta):
        return Due(_checked(due.total_seconds(), due), True)
    if isinstance(due, datetime):
        if due.utcoffset() is None:
            raise ConfigurationError(
                f"due={due!r} has no time zone: give an aware datetime, as with tzinfo=UTC"
            )
        return Due(_checked((due - _EPOCH).total_seconds(), due), False)
    if isinstance(due, bool) or not isinstance(due, int | float):
        raise ConfigurationError(
            f"due={due!r} is no time: give an aware datetime, Unix seconds, or a timedelta from now"
        )
    return Due(_checked(due, due), False)


def moment(ms: int) -> datetime:
    """Return a Unix time in milliseconds as an aware datetime."""
    return _EPOCH + timedelta(milliseconds=min(ms, _LAST_MS))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _checked(seconds: float, due: Any) -> int:
    # As a float the last microseconds of that year are its end.
    if not abs(seconds) <= (_LAST_MS + 1) / 1000:
        raise ConfigurationError(f"due={due!r} is out of range: give a time before the year 10000")
    # Rounded up: a message is never readable before its time.
    return min(_LAST_MS, math.ceil(seconds * 1000 - 1e-3))
