"""Evicting: the first available offset moves at once, and memory goes by whole blocks."""

from __future__ import annotations

from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.operations import Steps
from workstealing.structures.log.base import LogBase, as_bytes, checked_integer

BLOCKS_A_SCRIPT = 100


class Evicting(LogBase):
    """The steps of `evict`."""

    def evict_steps(self, offset: Any, keep: Any) -> Steps[int]:
        """Evict entries; see `Log.evict`."""
        if (offset is None) == (keep is None):
            raise ConfigurationError(
                "evict() needs to know what goes: give it the offset up to which, or keep="
            )
        until: int | str = "" if offset is None else checked_until(offset) + 1
        last = 0 if keep is None else checked_integer(keep, "keep", 0)
        evicted, made = 0, b""
        while True:
            some, first, kept, block, epoch = yield from self._evict(until, last, made)
            evicted += some
            # What is there once the log was deleted and made anew is another one's.
            if kept >= first // block or (made and epoch != made):
                return evicted
            # Entries that come meanwhile push nothing out any more.
            until, made = first, epoch

    def _evict(
        self, until: int | str, last: int, made: bytes
    ) -> Steps[tuple[int, int, int, int, bytes]]:
        known, keys = self.known, self.keys
        reply = yield from as_bytes(
            self.operation(
                "evict",
                (
                    *(keys.meta, keys.news, keys.full, keys.raw, keys.times),
                    *keys.blocks(known.kept, BLOCKS_A_SCRIPT),
                ),
                *(known.block, until, last, known.kept, made),
            )
        )
        some, first, kept, block, tail, epoch = reply
        self.note(kept=kept, block=block, next=tail)
        return some, first, kept, block, epoch


def checked_until(offset: Any) -> int:
    """Return the offset up to which entries go. Errors: ConfigurationError."""
    if isinstance(offset, int) and offset < 0:
        raise ConfigurationError(
            f"offset={offset} evicts nothing: give the offset up to which entries go, 0 or more, or"
            f" keep={-offset} for how many stay"
        )
    return checked_integer(offset, "offset", 0)
