"""Writing: a message goes to the shortest of its tenant's streams, and into every group's ring."""

from __future__ import annotations

from typing import Any

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Operation, Steps
from workstealing.structures.names import checked_text
from workstealing.structures.shuffle_queue.base import TENANTS_KNOWN, QueueBase, same
from workstealing.structures.shuffle_queue.message import (
    DEADLINE,
    TENANT,
    TRACKING,
    as_text,
    checked_fields,
    deadline_ms,
    unwritable,
)

MOST_FIELDS = 1000
# How often the groups may change while one message is being written.
_TRIES = 100


class Writing(QueueBase):
    """The steps of `write`, and the groups that this process knows of."""

    # The queue's `joined` number, and the rings of the groups that there were then: one value, so
    # that threads see both or neither change.
    _known: tuple[str, tuple[bytes, ...]] = ("0", ())

    def write_steps(
        self, tenant: str | bytes, fields: Any, deadline: Any, tracking_id: str | bytes | None
    ) -> Steps[str]:
        """Write a message; see `ShuffleQueue.write`."""
        flat = checked_fields(fields)
        if len(flat) > 2 * MOST_FIELDS:
            raise ConfigurationError(
                f"a message of {len(flat) // 2} fields is too wide: give at most {MOST_FIELDS}"
            )
        # The queue's own come last, where the scripts look for them.
        flat += (TENANT, tenant)
        ends: int | str = ""
        if deadline is not None:
            ends = deadline_ms(deadline)
            flat += (DEADLINE, ends)
        tracked: str | bytes = ""
        if tracking_id is not None:
            tracked = checked_text(tracking_id, "tracking id")
            flat += (TRACKING, tracked)
        try:
            known = self._tenants.get(tenant)
        except TypeError:
            # What cannot be looked up is no tenant either, and is told so.
            known = None
        streams = known or self._learn(tenant)
        due, mark, text = self._place or (yield from self.place_steps())
        keys = self.keys
        script = self.script("write")
        settings = (self.streams, int(self.notify), len(streams), tracked, ends, *flat)
        for _ in range(_TRIES):
            joined, rings = self._known
            args = (text, keys.name, self.ttl_ms, joined, *settings)
            beside = (keys.notifications, keys.tracking, keys.deadlines)
            fixed = (keys.meta, due, mark, *beside, *streams)
            try:
                reply = yield Operation(script, fixed + rings, args, same)
            except UnicodeEncodeError as error:
                raise unwritable(fields, error) from None
            if not isinstance(reply, list):
                return as_text(reply)
            if as_text(reply[0]) == "0":
                # The queue has gone, and its namespace perhaps, without which no job finds it.
                self.forget()
                due, mark, text = yield from self.place_steps()
            self._known = (as_text(reply[0]), tuple(keys.group(name).ring for name in reply[1:]))
        raise LayoutError(
            f"the groups of the queue {keys.text!r} change faster than one message can be written:"
            " look for what registers them; nothing was written"
        )

    def _learn(self, tenant: str | bytes) -> tuple[bytes, ...]:
        streams = tuple(self.keys.stream(number) for number in self.streams_of(tenant))
        if len(self._tenants) >= TENANTS_KNOWN:
            self._tenants = {}
        self._tenants[tenant] = streams
        return streams
