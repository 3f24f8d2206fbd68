"""Removing entries: evicting the oldest, and deleting the log.

An eviction moves the first available offset at once, and frees memory by whole blocks. Deleting
evicts all entries first, block by block, and then deletes the rest at once: a client that dies in
between leaves an empty log that is whole.
"""

from __future__ import annotations

from typing import Any

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import AS_BYTES, Steps, command, operation
from workstealing.structures.log.base import MOST_BLOCK, Known, LogBase, checked_integer
from workstealing.structures.stored import ADVICE, holding_ours, stored_number

BLOCKS_A_SCRIPT = 100
_TRIES = 100
MOST_IN_VAIN = 100
"""After so many scripts in a row that freed nothing, what the log says is not believed."""


class Removing(LogBase):
    """Evicting entries of a log, and deleting it."""

    @operation
    def evict(self, offset: int | None = None, *, keep: int | None = None) -> Steps[int]:
        """Evict old entries: all up to and including an offset, or all but the last ones.

        Evicted entries are gone for all readers at once; their memory is freed by whole blocks. All
        other entries keep their offsets. Give one of the two arguments: offset, 0 or more, or keep,
        how many entries stay. Returns: how many were evicted. Raises: ConfigurationError;
        LayoutError, also for keep= if the block of the last entry is not there, and if 10,000
        blocks in a row are not there that would have to be freed. One round trip for each 100
        blocks, and one more if the client knows too little of the log; if the process dies in
        between, the next eviction or `LogTrimmer` frees the rest.
        """
        if (offset is None) == (keep is None):
            raise ConfigurationError(
                "evict() needs one bound: give the offset up to which entries go, or keep= for how"
                " many stay"
            )
        until: int | str = "" if offset is None else _checked_until(offset) + 1
        return self._evicting(until, 0 if keep is None else checked_integer(keep, "keep", 0))

    @operation
    def delete(self) -> Steps[bool]:
        """Delete the log with its entries, its groups and the groups' dead entries.

        Returns: whether there was one. Raises: LayoutError, also if entries are appended faster
        than it can delete. One round trip for each 100 blocks, and three more. The deletion is not
        atomic, but an append in between loses nothing that a reader could still have found.
        """
        return self._deleting()

    def _evicting(self, until: int | str, last: int) -> Steps[int]:
        evicted, made, in_vain = 0, b"", 0
        some: int
        end, told = self.known.next, 0
        while True:
            known, keys = self.known, self.keys
            end_block = keys.block(max(0, end - 1) // known.block)
            some, first, kept, block, tail, epoch, freed = yield self.on_keys(
                "evict",
                (
                    *(keys.meta, keys.news, keys.full, keys.raw, keys.times, end_block),
                    *keys.blocks(known.kept, BLOCKS_A_SCRIPT),
                ),
                *(known.block, until, last, known.kept, made, end, told),
            )
            self.note(kept=kept, block=block, next=tail)
            in_vain = 0 if freed else in_vain + 1
            if in_vain > MOST_IN_VAIN:
                raise LayoutError(
                    f"the log {self.name!r} says {first} as the offset at which it begins, but"
                    f" {in_vain * BLOCKS_A_SCRIPT:,} blocks in a row before that are not there"
                    f"{ADVICE}; the blocks before these are freed"
                )
            if some < 0:
                # The log's end was not known here. Entries from now on stay.
                end, told = int(tail), 1
                continue
            evicted += some
            # Once the log was deleted and made anew, its entries are those of another one.
            if kept >= first // block or (made and epoch != made):
                return evicted
            # Entries that come meanwhile push nothing out any more.
            until, made = first, epoch

    def _deleting(self) -> Steps[bool]:
        keys = self.keys
        for _ in range(_TRIES):
            yield from self._evicting("", 0)
            with holding_ours(keys.meta):
                flat = yield command("HGETALL", keys.meta, options=AS_BYTES)
            meta: dict[bytes, Any] = (
                flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
            )
            if not meta:
                self.note(next=0, kept=0, epoch=b"", groups=())
                return False
            tail, kept, block = self._sizes_in(meta)
            blocks = -(-tail // block) - kept
            if blocks > BLOCKS_A_SCRIPT:
                # So many entries came since the eviction.
                continue
            others = [keys.news, keys.full, keys.raw, keys.times, keys.waiting]
            others += keys.blocks(kept, blocks)
            for name in meta:
                kind, _, rest = name.partition(b":")
                if kind == b"group":
                    others += keys.group(rest).all
                elif kind == b"written":
                    others.append(keys.written(rest))
            deleted = yield self.on_keys(
                "delete",
                (keys.meta, *others),
                *(tail, kept, meta.get(b"joined", b"0"), len(meta)),
            )
            if deleted >= 0:
                self.known = Known(block)
                return True
        raise LayoutError(
            f"the log {self.name!r} grows faster than it can be deleted: stop its writers, and call"
            " delete() again; the entries that it had are evicted"
        )

    def _sizes_in(self, meta: dict[bytes, Any]) -> tuple[int, int, int]:
        """Return the end, the lowest block and the size of one, as meta says them."""
        key = self.keys.meta
        block = stored_number(key, "block", meta.get(b"block"), 1, MOST_BLOCK)
        tail = stored_number(key, "next", meta.get(b"next"))
        return tail, stored_number(key, "kept", meta.get(b"kept"), 0, tail // block), block


def _checked_until(offset: Any) -> int:
    if isinstance(offset, int) and offset < 0:
        raise ConfigurationError(
            f"offset={offset:d} evicts nothing: give the offset up to which entries go, 0 or more,"
            f" or keep={-offset:d} for the last {-offset:d} to stay"
        )
    return checked_integer(offset, "offset", 0)
