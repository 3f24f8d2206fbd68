"""A message as a consumer gets it, and the ids of messages."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.names import LEGACY, MOST_STREAMS, stored_place
from workstealing.structures.stored import stored_number

TENANT, DEADLINE, TRACKING = "ws:tenant", "ws:deadline", "ws:tracking"
GROUP = "ws:group"
"""The queue's own fields of an entry; the last belongs to a message revived for one group."""


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
