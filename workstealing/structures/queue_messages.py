"""Messages to be written to a queue of tenants, and the answer to an exchange.

`FairQueue` and `ShuffleQueue` share them: what a producer says of a message, and the checks of it.
A dedupe key is a `TimeShardQueue`'s too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.structures.layout import checked_text

MessageT = TypeVar("MessageT")
MOST_FIELDS = 1000
MOST_DEDUPE_SECONDS = 366 * 86400.0
_LATEST_MS = 2**52
# The types that redis-py can send; a bool, though a number, is not among them.
_SENT = (str, bytes, int, float, bytearray, memoryview)
_SENT_AT_ONCE = frozenset(_SENT)
# The queues' own fields; later releases may have further ones.
_KEPT = ("ws:", b"ws:")


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be written by `write_many`; the `write` of the queue says its fields.

    Fields: tenant; fields; deadline; tracking_id; account; and those that only a `FairQueue` knows:
    priority; delay; ttl; dedupe; dedupe_ended.
    """

    tenant: str | bytes
    fields: Mapping[Any, Any]
    deadline: dt.datetime | float | None = None
    tracking_id: str | bytes | None = None
    account: str | bytes | None = None
    priority: int = 0
    delay: Duration = 0.0
    ttl: Duration | None = None
    dedupe: tuple[str | bytes, Duration] | None = None
    dedupe_ended: bool = False


@dataclass(frozen=True, slots=True)
class Exchanged(Generic[MessageT]):
    """The result of an `exchange`.

    Fields: done: how many of the given messages were still there to be done, and are done now;
    messages: those that the consumer has instead, empty if nothing came.
    """

    done: int
    messages: list[MessageT]


def checked_new(messages: object) -> list[NewMessage]:
    """Return messages to be written. Raises: ConfigurationError for anything else."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise ConfigurationError(
            f"{messages!r} are no messages to be written: give a list of NewMessage(tenant, fields)"
        )
    found = list(messages)
    for each in found:
        if not isinstance(each, NewMessage):
            raise ConfigurationError(
                f"{each!r} is no message to be written: give a NewMessage(tenant, fields)"
            )
    return found


def written_text(before: int) -> str:
    """Say what a call has written whose scripts before the refused one were of some messages."""
    if not before:
        return "nothing was written"
    return f"the first {before:,} messages of the call were written, and no other"


def checked_fields(fields: object) -> list[Any]:
    """Return the user's fields as a flat list.

    Raises: ConfigurationError if the fields are not a mapping, for more than 1,000, for a name that
    belongs to the queue, and for a name or a value of a type that Redis cannot keep.
    """
    if not isinstance(fields, Mapping):
        raise ConfigurationError(
            f"the fields {fields!r} cannot be written: give a mapping of names to values"
        )
    if len(fields) > MOST_FIELDS:
        raise ConfigurationError(
            f"a message of {len(fields)} fields is too wide: give at most {MOST_FIELDS}"
        )
    flat: list[Any] = []
    for name, value in fields.items():
        if isinstance(name, str | bytes) and name[:3] in _KEPT:
            raise ConfigurationError(
                f"the field {name!r} is the queue's own: give a name that does not begin with 'ws:'"
            )
        if type(name) not in _SENT_AT_ONCE or type(value) not in _SENT_AT_ONCE:
            _refuse_type("name", name, name)
            _refuse_type("value", name, value)
        flat += (name, value)
    return flat


def _refuse_type(what: str, name: object, part: object) -> None:
    """Raise ConfigurationError for a field's name or value that redis-py cannot send."""
    if isinstance(part, bool) or not isinstance(part, _SENT):
        raise ConfigurationError(
            f"the field {name!r} cannot be written, because its {what} is of type"
            f" {type(part).__name__}: give a text, bytes or a number"
        )


def unwritable(error: UnicodeEncodeError, *messages: Mapping[Any, Any]) -> ConfigurationError:
    """Return the error for messages with a text that the client could not encode.

    Arguments:
        messages: the fields of each.
    """
    for name, value in (pair for fields in messages for pair in fields.items()):
        if error.object in (name, value):
            return ConfigurationError(
                f"the field {name!r} cannot be written: give a text that {error.encoding} can"
                f" write, or bytes ({error.reason})"
            )
    return ConfigurationError(
        f"{error.object!r} cannot be written: give a text that {error.encoding} can write, or bytes"
    )


def deadline_ms(deadline: object) -> int:
    """Return a deadline in ms since the epoch.

    Arguments:
        deadline: an aware datetime, or Unix seconds.

    Raises: ConfigurationError.
    """
    seconds = deadline
    if isinstance(deadline, dt.datetime):
        if deadline.utcoffset() is None:
            raise ConfigurationError(
                f"the deadline {deadline!r} has no time zone: give an aware datetime or Unix"
                " seconds"
            )
        seconds = deadline.timestamp()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ConfigurationError(
            f"the deadline {deadline!r} is no time: give an aware datetime or Unix seconds"
        )
    if not 0 <= seconds <= _LATEST_MS / 1000:
        raise ConfigurationError(
            f"the deadline {deadline!r} is out of range: give an aware datetime or Unix seconds"
        )
    return int(seconds * 1000)


def checked_dedupe(dedupe: object) -> tuple[bytes, int]:
    """Return a dedupe key, and for how many ms it holds. Raises: ConfigurationError."""
    if not isinstance(dedupe, tuple) or len(dedupe) != 2:
        raise ConfigurationError(
            f"dedupe={dedupe!r} is not usable: give a key, and for how many seconds it holds"
        )
    key = to_bytes(checked_text(dedupe[0], "dedupe key"))
    seconds = seconds_of(dedupe[1], "the window of dedupe", least=0.001)
    if seconds > MOST_DEDUPE_SECONDS:
        raise ConfigurationError(
            f"the window of dedupe is {seconds:g} seconds: give a year at most"
        )
    return key, int(seconds * 1000)
