"""A message as a consumer gets it, and the ids of messages."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.names import LEGACY, MOST_STREAMS, stored_place
from workstealing.structures.stored import stored_number

TENANT, DEADLINE, TRACKING = "ws:tenant", "ws:deadline", "ws:tracking"
GROUP = "ws:group"
"""The queue's own fields of an entry; the last belongs to a message revived for one group."""
_LATEST_MS = 2**52
# The types that redis-py can send; a bool, though a number, is not among them.
_SENT = (str, bytes, int, float, bytearray, memoryview)
_SENT_AT_ONCE = frozenset(_SENT)


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was delivered, and stays pending until `ShuffleQueue.ack`.

    Fields: id: as `write` returned it; group and consumer: it was delivered to them; tenant: None
    for a message of the legacy stream; fields: the user's, as the client reads them; attempts: how
    often it has been delivered, 1 the first time; pickup_delay_ms: since it was written, by the
    server's clock; deadline: Unix seconds or None; tracking_id; stream: its number, None for the
    legacy one.
    """

    id: str
    group: str
    consumer: str
    tenant: str | None
    fields: dict[Any, Any]
    attempts: int
    pickup_delay_ms: int
    deadline: float | None
    tracking_id: str | None
    stream: int | None

    @property
    def entry_id(self) -> str:
        """The id of the entry within its stream."""
        return self.id.split("-", 1)[1]

    @property
    def number(self) -> int:
        """The number of its stream, -1 for the legacy one."""
        return LEGACY if self.stream is None else self.stream


@dataclass(frozen=True, slots=True)
class OverdueMessage:
    """A message that is still in its queue after its deadline.

    Fields: id: as `ShuffleQueue.write` returned it; tracking_id: the writer's, None without one;
    deadline: Unix seconds.
    """

    id: str
    tracking_id: str | None
    deadline: float


def overdue_message(key: bytes, member: Any, deadline: Any) -> OverdueMessage:
    """Return the message of a member of the index of deadlines, whose score is its deadline.

    Arguments:
        key: of the index.

    Raises: LayoutError for nonsense.
    """
    number, entry, tracked = stored_place(key, member)
    ms = stored_number(key, "a deadline in ms", deadline)
    return OverdueMessage(message_id(number, entry), tracked, ms / 1000)


def message_id(number: int, entry_id: str) -> str:
    """Return the id of a message from the number of its stream and its entry's id."""
    return f"{'default' if number == LEGACY else number}-{entry_id}"


def split_id(message_id: object) -> tuple[int, str]:
    """Return the stream's number and the entry's id of a message's id.

    Raises: ConfigurationError for anything but a message's id.
    """
    try:
        place, ms, sequence = str(message_id).split("-")
        number = LEGACY if place == "default" else int(place)
        if not LEGACY <= number < MOST_STREAMS or int(ms) < 0 or int(sequence) < 0:
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            f"{message_id!r} is no id of a message: give one as write() returned it,"
            " like '3-17000-0'"
        ) from None
    return number, f"{ms}-{sequence}"


def read_message(
    number: int,
    entry_id: str,
    flat: list[Any],
    group: str,
    consumer: str,
    *,
    attempts: int,
    now: int,
) -> Message:
    """Make the message of an entry: its fields and values in one flat list, bytes or text.

    Arguments:
        attempts: how often it was delivered.
        now: the server's time at delivery, in ms.
    """
    fields: dict[Any, Any] = {}
    own: dict[str, str] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        text = _OWN.get(name)
        if text is None:
            fields[name] = value
        else:
            own[text] = as_text(value)
    return Message(
        message_id(number, entry_id),
        group,
        consumer,
        own.get(TENANT),
        fields,
        attempts,
        max(0, now - int(entry_id.split("-", 1)[0])),
        _seconds(own.get(DEADLINE)),
        own.get(TRACKING),
        None if number == LEGACY else number,
    )


def _seconds(deadline: str | None) -> float | None:
    """Return a deadline in seconds; None if another writer's text is no deadline."""
    if deadline is None or not (deadline.isascii() and deadline.isdigit()):
        return None
    try:
        return int(deadline) / 1000
    except (ValueError, OverflowError):
        return None


_OWN: dict[Any, str] = {
    form: text for text in (TENANT, DEADLINE, TRACKING, GROUP) for form in (text, text.encode())
}
# Later releases may have further ones.
_KEPT = ("ws:", b"ws:")


def checked_fields(fields: object) -> list[Any]:
    """Return the user's fields as a flat list.

    Raises: ConfigurationError if the fields are not a mapping, for a name that belongs to the
    queue, and for a name or a value of a type that Redis cannot keep.
    """
    if not isinstance(fields, Mapping):
        raise ConfigurationError(
            f"the fields {fields!r} cannot be written: give a mapping of names to values"
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


def unwritable(fields: Mapping[Any, Any], error: UnicodeEncodeError) -> ConfigurationError:
    """Return the error for a message with a text that the client could not encode."""
    for name, value in fields.items():
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


def note_pickup_delay(message: Message) -> None:
    """Set ``queue.pickup_delay_ms`` on the current OpenTelemetry span, if there is one.

    OpenTelemetry is not imported here: if the program has not imported it, there is no span, and
    this costs one look-up.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return
    try:
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute("queue.pickup_delay_ms", message.pickup_delay_ms)
    except Exception:  # noqa: BLE001, S110 - a half-loaded tracer is no reason to lose a message
        pass
