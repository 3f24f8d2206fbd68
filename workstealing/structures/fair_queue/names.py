"""The names of the keys of a fair queue, and of the namespace whose due index finds it."""

from __future__ import annotations

from workstealing.structures.layout import NamesBeside
from workstealing.structures.namespace import Names, NamespaceKind
from workstealing.structures.queue_place import checked_queue_name

FAIR_QUEUES = NamespaceKind(
    name="fair_queues",
    called="fair queues",
    version=1,
    backends=("accounts",),
    evicted="messages of a queue, or the accounts that lead to them",
)
FAIR_VERSION = "1"
"""The value of the field `mark` of a queue's `meta`."""

PARTS = (
    *("accounts", "rules", "ready", "messages", "leases", "held", "back", "parked", "limited"),
    *("idle", "dead", "tracking", "dedupe", "deadlines", "notifications", "consumers"),
)
"""The keys of a queue beside its `meta`, in the order in which every script is passed them."""


class FairIndexNames(Names):
    """The names of a namespace of queues; see the catalogue in ``lua/README.md``."""

    kind = FAIR_QUEUES


class FairQueueNames(NamesBeside[bytes]):
    """The keys of one queue; all share the slot of its name.

    Attributes: parts: the keys of `PARTS`; notifications.

    Raises: ConfigurationError for anything but a usable name.
    """

    def __init__(self, name: object) -> None:
        super().__init__(checked_queue_name(name), b"fair", lambda base, group: base + group)
        self.parts = tuple(self.base + part.encode() for part in PARTS)
        self.notifications = self.base + b"notifications"

    def of(self, part: str) -> bytes:
        """Return the key of one of `PARTS`."""
        return self.parts[PARTS.index(part)]

    @staticmethod
    def receipt(nonce: bytes) -> bytes:
        """Return the field of `meta` for the receipts that a reader names by a nonce."""
        return b"read:" + nonce
