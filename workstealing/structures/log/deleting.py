"""Deleting a log: its entries go first, block by block, then all that is left at once.

Whoever dies in between leaves an empty log that is whole.
"""

from __future__ import annotations

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError
from workstealing.store.operations import Plain, Steps
from workstealing.structures.log.base import AS_BYTES, Known, as_bytes
from workstealing.structures.log.evicting import Evicting

_TRIES = 100


class Deleting(Evicting):
    """The steps of `delete`."""

    def delete_steps(self) -> Steps[bool]:
        """Delete the log; see `Log.delete`."""
        keys = self.keys
        for _ in range(_TRIES):
            yield from self.evict_steps(None, 0)
            try:
                flat = yield Plain(("HGETALL", keys.meta), AS_BYTES)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                # The script says it in its own words.
                flat = {}
            meta = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
            if not meta:
                self.note(next=0, kept=0, epoch=b"", groups=())
                return False
            tail, kept, block = (int(meta[name]) for name in (b"next", b"kept", b"block"))
            others = [keys.news, keys.full, keys.raw, keys.times, keys.waiting]
            others += keys.blocks(kept, -(-tail // block) - kept)
            for name in meta:
                kind, _, rest = name.partition(b":")
                if kind == b"group":
                    others += keys.group(rest).all
                elif kind == b"written":
                    others.append(keys.written(rest))
            deleted = yield from as_bytes(
                self.operation(
                    "delete",
                    (keys.meta, *others),
                    *(tail, kept, meta.get(b"joined", b"0"), len(meta)),
                )
            )
            if deleted >= 0:
                self.known = Known(block)
                return True
        raise LayoutError(
            f"the log {self.name!r} is appended to faster than it can be deleted: stop its writers"
            " first; its entries of before were evicted"
        )
