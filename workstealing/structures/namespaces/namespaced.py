"""What structures that live in a namespace hold alike, whatever their commands are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Generic

from workstealing.store.twin import ClientT, Twin, twin_for
from workstealing.structures.namespaces.layout import Layout, checked_policies


class Namespaced(Generic[ClientT]):
    """A client, a namespace on it, and what this process knows of the namespace's layout.

    Arguments: client: any client of redis-py; namespace; allow_eviction: names of ``allkeys-*``
    policies that are accepted. Errors: ConfigurationError, also for the client of the other form.
    Makes no connection.
    """

    def __init__(self, client: ClientT, namespace: str, allow_eviction: Collection[str]) -> None:
        self._policies = checked_policies(allow_eviction)
        # Checks the client; makes no connection.
        self.twin: Twin = twin_for(self, client)
        self.client: Any = client
        self.namespace = namespace
        self._layout: Layout | None = None
        self._registered: set[int] = set()

    def __repr__(self) -> str:
        # Without the client: redis-py's own repr of one is a page.
        return f"<{type(self).__name__} {self.namespace!r}>"

    @property
    def layout(self) -> Layout | None:
        """The namespace's layout as this process has read it; None before the first command."""
        return self._layout

    def forget(self) -> None:
        """Read the layout, and register index shards, anew at the next command; no round trip.

        For when the server has lost its data: the structure's job calls it when it sees that.
        """
        self._layout = None
        self._registered = set()
