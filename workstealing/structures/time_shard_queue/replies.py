"""What the scripts of a time shard return, as what a store gives."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from workstealing.structures.time_shard_queue.store import Buried, Held


def held(reply: list[Any]) -> tuple[bool, list[Held]]:
    """Read what `time_shard_take` returns: whether more is to be looked at, and what was taken."""
    more, ends, *flat = reply
    found = [
        Held(
            _text(flat[i]),
            flat[i + 1],
            int(flat[i + 2]),
            flat[i + 3],
            _text(flat[i + 4]),
            int(ends),
        )
        for i in range(0, len(flat), 5)
    ]
    return more == 1, found


def buried(flat: list[Any]) -> list[Buried]:
    """Read what `time_shard_dead` returns."""
    found = [
        Buried(
            _text(flat[i]),
            flat[i + 2],
            int(flat[i + 3]),
            flat[i + 4],
            int(float(flat[i + 1])),
            _text(flat[i + 5]),
        )
        for i in range(0, len(flat), 6)
    ]
    return sorted(found, key=itemgetter(4))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
