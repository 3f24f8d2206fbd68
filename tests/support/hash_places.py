"""A namespace of volatile hashes on some server, as Spark's source and sink are tested with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes.scanning import HashScan

NAMESPACE = "items"


class LiveField(NamedTuple):
    """A field that a scan has found; left_ms: None without a deadline."""

    key: bytes
    field: bytes
    value: bytes
    left_ms: int | None


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
            pages = [page for node in scan.nodes() for page in scan.of_node(layout, node)]
        else:
            pages = list(scan.of_shards(layout, scan.shards(layout)))
        return [
            [
                LiveField(key, field, value, None if left < 0 else left)
                for key, field, value, left in zip(*page, strict=True)
            ]
            for page in pages
        ]

    def read(self, match: str = "*") -> list[LiveField]:
        """Return all that a scan finds, in order."""
        found = [each for page in self.pages(match) for each in page]
        return sorted(found, key=lambda each: (each.key, each.field))
