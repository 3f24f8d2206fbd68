"""The base of all calls on a fair queue: its keys, its settings, its place in the namespace."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_attempts, checked_seconds
from workstealing.store.fleet import placed
from workstealing.store.keys import to_bytes
from workstealing.store.operations import AS_BYTES, Operation, Steps
from workstealing.structures.access import ALWAYS, DUE, OPENING_SCRIPTS, Access
from workstealing.structures.fair_queue.message import KeptMessage, unpacked
from workstealing.structures.fair_queue.names import FairIndexNames, FairQueueNames
from workstealing.structures.queue_place import PlacedQueue, QueuesOfNamespace

_GONE = -1
ANNOUNCE_SECONDS = 5.0
"""How often a consumer, or a writer, says that it is alive, which checks the keys too."""


class FairQueueBase(PlacedQueue):
    """A client, a queue's name and settings.

    Attributes: as of `PlacedQueue`; lease; max_attempts.
    """

    family = "fair_queue"
    keys: FairQueueNames
    # Whether a pipeline, whose steps are about to be sent, has just read the place.
    _is_placed_now = False

    def __init__(  # noqa: PLR0917 - the settings that the public class has in this order
        self,
        client: Any,
        name: str | bytes,
        lease: Duration = 60.0,
        max_attempts: int = 5,
        ttl: Duration = 604800.0,
        notify: bool = True,
        *,
        namespace: str = "fair_queues",
        allow_eviction: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        super().__init__(
            placed(client, name),
            FairQueueNames(name),
            FairIndexNames(namespace),
            ttl,
            notify,
            allow_eviction,
            clock_shift_ms,
        )
        self.lease = checked_seconds(lease, "lease")
        self.lease_ms = max(1, int(self.lease * 1000))
        self.max_attempts = checked_attempts(max_attempts)
        self._encoder = self.client.get_encoder()
        self._checked: float | None = None

    def all_keys(self, due: bytes = b"", mark: bytes = b"") -> tuple[bytes, ...]:
        """Return the keys that every script is passed, those of the place empty if not needed."""
        keys = self.keys
        # A script that does not keep the queue in use looks at neither; their slot must be right.
        return (keys.meta, due or keys.meta, mark or keys.meta, *keys.parts)

    def _asking(self, name: str, *args: Any, once: bool = False) -> Operation:
        """Return a script that needs no place in the due index."""
        return Operation(self._script(name), self.all_keys(), args, options=AS_BYTES, once=once)

    def _using(self, name: str, *args: Any, once: bool = False) -> Steps[Operation]:
        """Return a script by which the queue is in use."""
        due, mark, text = self._place or (yield from self._placing())
        return Operation(
            self._script(name),
            self.all_keys(due, mark),
            (text, self.keys.name, self.ttl_ms, *args),
            options=AS_BYTES,
            once=once,
        )

    def _beginning(self, name: str, *args: Any, once: bool = False) -> Steps[Any]:
        """Send a script that may begin the queue, and return its reply.

        A queue that has gone since this process was here may have lost its namespace, too, without
        which no job finds it: the script changes nothing then, and is sent again after a look.
        """
        place = self._place
        is_placed = int(place is None or self._is_placed_now)
        reply = yield (yield from self._using(name, is_placed, *args, once=once))
        if reply == _GONE:
            if self._place is place:
                self.forget()
            reply = yield (yield from self._using(name, 1, *args, once=once))
        return reply

    def _is_check_due(self) -> bool:
        """Whether the types of the keys are to be checked now; then they are taken for checked."""
        moment = self.monotonic()
        if self._checked is not None and moment - self._checked < ANNOUNCE_SECONDS:
            return False
        self._checked = moment
        return True

    def _decode(self, raw: bytes) -> Any:
        return self._encoder.decode(raw) if self._encoder.decode_responses else raw

    def _kept(self, text: bytes, part: str = "messages") -> KeptMessage:
        """Return a message of its text. Raises: LayoutError; UnicodeDecodeError."""
        return unpacked(self.keys.of(part), text, self._decode)


class FairQueueNamespace(QueuesOfNamespace):
    """All fair queues of one namespace; see `QueuesOfNamespace`.

    Arguments:
        client: any client of redis-py, blocking or not.
    """

    kind = "fair queues"
    names_of = FairIndexNames
    access = Access(
        keys=("ws:NAME:layout", "ws:NAME:slots", "{*}:ws:NAME:*"),
        scripts=("fair_queue/expire", *OPENING_SCRIPTS),
        commands=ALWAYS | DUE | {"EXISTS"},
        # The names of the queues, which only their users know.
        users_keys=True,
    )

    def __init__(self, client: Any, namespace: str = "fair_queues") -> None:
        super().__init__(client, namespace)


def checked_delay(delay: Duration, name: str = "delay") -> int:
    """Return a delay in ms. Raises: ConfigurationError."""
    return int(seconds_of(delay, name) * 1000)


def checked_account(name: object, what: str) -> bytes:
    """Return a tenant's, an account's or a pattern's name as bytes. Raises: ConfigurationError."""
    if isinstance(name, str | bytes) and name:
        try:
            raw = to_bytes(name)
        except Exception:  # noqa: BLE001 - redis-py's error says less
            raw = b""
        if raw:
            return raw
    raise ConfigurationError(
        f"the {what} {str(name)[:60]!r} is not usable: give a text that UTF-8 can write, or bytes,"
        " not empty"
    )
