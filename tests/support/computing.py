"""The leases of those who compute a cached function's results, as a test sees them."""

from __future__ import annotations

from typing import Any

from workstealing.structures.volatile_hashes.commands import HashNames


def leased_fields(hashes: Any, key: str, client: Any = None) -> list[bytes]:
    """Return the fields of a hash on which somebody has a lease. For blocking clients."""
    leases = HashNames(hashes.namespace).computing(key.encode())
    entries = (client or hashes.client).execute_command("HKEYS", leases)
    as_bytes = [each.encode() if isinstance(each, str) else each for each in entries]
    return [each[1:] for each in as_bytes if each.startswith(b"=")]
