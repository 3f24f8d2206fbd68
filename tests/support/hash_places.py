"""A namespace of volatile hashes on some server, as Spark's source and sink are tested with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes.scanning import HashScan, LiveField

NAMESPACE = "items"


@dataclass
class Place:
    """A server and the backend of the namespace on it."""

    server: Any
    backend: str

    @property
    def options(self) -> dict[str, str]:
        """Spark's options for it."""
        return {"url": self.server.url, "backend": self.backend}

    def hashes(self) -> VolatileHashes:
        """Return the namespace, seen by a client with habits of its own."""
        client = self.server.client(decode_responses=True)
        return VolatileHashes(client, NAMESPACE, backend=self.backend)

    def pages(self, match: str = "*") -> list[list[LiveField]]:
        """Return all that a scan finds."""
        scan = HashScan(self.hashes(), match)
        layout = scan.layout()
        assert layout is not None
        if layout.is_native:
            return [page for node in scan.nodes() for page in scan.of_node(layout, node)]
        return list(scan.of_shards(layout, scan.shards(layout)))

    def read(self, match: str = "*") -> list[LiveField]:
        """Return all that a scan finds, in order."""
        found = [each for page in self.pages(match) for each in page]
        return sorted(found, key=lambda each: (each.key, each.field))
