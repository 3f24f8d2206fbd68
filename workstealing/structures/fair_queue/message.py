"""A message of a fair queue: how it is kept, and as a consumer gets it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workstealing.errors import LayoutError
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.message import Message
from workstealing.structures.stored import unbelieved


class SharedTime:
    """The messages that one read was granted, for the time that each of them has taken.

    One after the other is worked on, so a message is charged the time since the one before.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since = time.monotonic()

    def __reduce__(self) -> Any:
        # Another process has another clock: there the server measures.
        return _no_time, ()

    def spent_us(self, messages: int) -> int:
        """Return the time since the last call, a share for each of some messages, in us."""
        before, self.since = self.since, time.monotonic()
        return max(0, int((self.since - before) * 1e6 / messages))


def _no_time() -> None:
    return None


@dataclass(frozen=True, slots=True)
class FairMessage(Message):
    """A message that was delivered by a `FairQueue`: a `Message` with an account.

    Fields: as of `Message` (group is empty, and stream None); account: its turns are counted
    there; priority: 0, or 1 for one that goes first; delivery: the number of this delivery, by
    which `ack` names it.
    """

    account: str = ""
    priority: int = 0
    delivery: str = ""
    batch: SharedTime | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class DeadFairMessage:
    """A message that was set aside.

    Fields: id: as `FairQueue.write` returned it; tenant; account; fields: the user's; attempts: how
    often it was delivered; written, delivered, set_aside: when it was written, delivered for the
    last time, and set aside, in Unix seconds; deadline: Unix seconds or None; tracking_id;
    priority.
    """

    id: str
    tenant: str
    account: str
    fields: dict[Any, Any]
    attempts: int
    written: float
    delivered: float
    set_aside: float
    deadline: float | None
    tracking_id: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A message as the server keeps it.

    Fields: written_ms; deadline_ms: 0 without one; priority; tenant; tracking_id: None without one;
    dedupe: None without a key; account; fields.
    """

    written_ms: int
    deadline_ms: int
    priority: int
    tenant: bytes
    tracking_id: bytes | None
    dedupe: bytes | None
    account: bytes
    fields: dict[Any, Any]

    @property
    def deadline(self) -> float | None:
        """The deadline in Unix seconds, None without one."""
        return self.deadline_ms / 1000 if self.deadline_ms else None

    @property
    def tracked(self) -> str | None:
        """The tracking id as text."""
        return None if self.tracking_id is None else as_text(self.tracking_id)


def packed(  # noqa: PLR0917 - the parts in their order
    flat: Sequence[Any],
    encode: Callable[[Any], bytes],
    priority: int,
    tenant: bytes,
    account: bytes,
    tracking_id: bytes,
    dedupe: bytes,
) -> bytes:
    """Return a message's text from its priority on; the server puts the times before it.

    Arguments:
        flat: the user's names and values, one after the other.
        encode: makes bytes of a value, as the client would send it.
        tracking_id: empty for none.
        dedupe: its key, empty for none.

    The form is in ``lua/fair_queue/message.lua``. Raises: UnicodeEncodeError.
    """
    if account == tenant:
        account = b""
    head = b"%d %d %d %d %d " % (
        *(priority, len(tenant), len(tracking_id), len(dedupe), len(account)),
    )
    parts = [head, tenant, tracking_id, dedupe, account]
    for each in flat:
        raw = encode(each)
        parts += (b"%d:" % len(raw), raw)
    return b"".join(parts)


def unpacked(key: bytes, text: bytes, decode: Callable[[bytes], Any]) -> KeptMessage:
    """Return the message of a text, as the server keeps it.

    Arguments:
        key: where it stands.
        decode: makes the user's values of bytes, as the client would.

    Raises: LayoutError for any other text; UnicodeDecodeError.
    """
    try:
        *numbers, rest = text.split(b" ", 7)
        written, deadline, priority, *sizes = map(int, numbers)
        own = []
        at = 0
        for size in sizes:
            own.append(rest[at : at + size])
            at += size
        fields = []
        while at < len(rest):
            colon = rest.index(b":", at)
            end = colon + 1 + int(rest[at:colon])
            if end > len(rest) or end <= colon:
                raise ValueError
            fields.append(rest[colon + 1 : end])
            at = end
        tenant, tracking_id, dedupe, account = own
        if len(fields) % 2:
            raise ValueError
    except ValueError:
        raise _foreign(key, text) from None
    values = [decode(each) for each in fields]
    return KeptMessage(
        written,
        deadline,
        priority,
        tenant,
        tracking_id or None,
        dedupe or None,
        account or tenant,
        dict(zip(values[::2], values[1::2], strict=True)),
    )


def _foreign(key: bytes, text: bytes) -> LayoutError:
    return unbelieved(key, "a message", text, "a message of a fair queue")
