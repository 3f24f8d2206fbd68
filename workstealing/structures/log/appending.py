"""Appending: entries come behind the last one, all of a batch or none.

A script must be told its keys before it knows where the log ends. So a writer passes the blocks
from the last end that it knows. If the log has grown past them since, the script changes nothing,
and the writer calls again with the end that the reply names. The script also passes the groups in
which members wait. If these are too many for one script, further scripts wake the others, so that
none holds the server up for long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Never

from redis.exceptions import RedisError, ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Steps, operation
from workstealing.structures.log.base import Known, LogBase, checked_integer, refuse_options
from workstealing.structures.log.codecs import encode_all
from workstealing.structures.users_names import checked_text

MOST_ENTRIES = 10_000
"""How many entries one call appends at most."""
MOST_BLOCKS = 1_000
"""The most blocks that these may fill."""
MOST_BYTES = 512 * 1024 * 1024
"""The most bytes of one entry, or of all in a call: the server's limit for one value."""
# Extra blocks for entries that others append meanwhile: twice as many at each try.
_SPARE_BLOCKS, _MOST_SPARE_BLOCKS = 1, 1_024
EVICTED_BLOCKS = 100
"""How many blocks a call with `keep` frees at most, beside those that it fills."""
WOKEN_GROUPS = 64
"""One script wakes the members of this many groups."""
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Marker:
    """The note of a query of Spark beside its entries, by which it appends them once.

    Fields: query; partition; batch, which grows; rows: how many of the batch the partition has
    written into this log before these entries; digest: of those rows and these entries, in hex.
    """

    query: str | bytes
    partition: int
    batch: int
    rows: int
    digest: str


class WrittenRows(NamedTuple):
    """The rows that a partition has written already and does not write again, with their digest."""

    batch: int
    rows: int
    digest: str


class Appending(LogBase):
    """Appending to a log, and waking the groups in which members wait."""

    @operation
    def append(self, /, *entries: Any, keep: int | None = None, **others: Never) -> Steps[int]:
        """Append entries behind the last one, all or none.

        Arguments:
            entries: 1 to 10,000, of 512 MiB together at most; bytes, or values that the codec
                takes.
            keep: evict whole blocks as long as at least so many entries stay.

        Returns: the offset of the first; the others follow without a gap. Raises:
        ConfigurationError; LayoutError; errors of redis-py, for instance of a full server. After an
        error nothing is written, but after a lost connection the entries may be there, and a
        repeated call would append them twice; the client's own retries do not. One round trip; one
        more if others have filled a block, or a member has begun to wait in a group, since the last
        call; one more for each 64 groups beyond the first 64 in which members wait. About 12 Redis
        commands, three for each block and some 15 for each such group.
        """
        refuse_options(others)
        if [each for each in entries[:3:2] if type(each) is str] == ["BACKLOG", "ENTRIES"]:
            refuse_options(["BACKLOG"])
        return self.append_steps(entries, keep)

    def append_steps(
        self, entries: Any, keep: int | None = None, marker: Marker | None = None
    ) -> Steps[Any]:
        """Append entries, once for each marker; see `append`.

        Returns: the offset of the first; `WrittenRows`, with nothing appended, if the marker does
        not match the rows written so far.
        """
        batch = checked_entries(encode_all(self.codec, entries), self.known.block)
        least = "" if keep is None else checked_integer(keep, "keep", 0)
        note: tuple[Any, ...] = ("", 0, 0, "")
        written = self.keys.meta
        if marker is not None:
            written = self.keys.written(checked_text(marker.query, "query"))
            note = (
                checked_integer(marker.partition, "partition", 0),
                checked_integer(marker.batch, "batch", 0),
                checked_integer(marker.rows, "rows", 0),
                marker.digest,
            )
        return self._appended(batch, least, written, note)

    def _appended(
        self, batch: list[bytes], least: int | str, written: bytes, note: tuple[Any, ...]
    ) -> Steps[Any]:
        for tried in range(_TRIES):
            known = self.known
            spare = min(_SPARE_BLOCKS << tried, _MOST_SPARE_BLOCKS)
            settings = self._arguments(known, batch, least, written, note, spare)
            # A batch with a marker is found to be there already.
            reply = yield self.on_keys("append", *settings, once=written == self.keys.meta)
            offset = int(reply[0])
            if offset >= 0:
                self.has_lost(known, offset)
                _, kept, *waiting = reply
                self.note(next=offset + len(batch), kept=int(kept), groups=tuple(waiting))
                yield from self._wake(set(waiting).difference(known.groups[:WOKEN_GROUPS]))
                return offset
            if offset == -2:
                return WrittenRows(int(reply[1]), int(reply[2]), reply[3].decode())
            _, tail, kept, block, *waiting = reply
            self.has_lost(known, int(tail))
            self.note(next=int(tail), kept=int(kept), block=int(block), groups=tuple(waiting))
            # The log's own blocks may be smaller than was expected.
            checked_entries(batch, int(block))
        raise LayoutError(
            f"others append to the log {self.name!r} faster than one batch can be written: let them"
            " append more entries by fewer calls; nothing was written"
        )

    def _wake(self, groups: Iterable[bytes]) -> Steps[None]:
        """Wake the members of groups that the script of an append has not woken.

        If a writer dies in between, the waiting members find the entries themselves, because they
        look now and then. So they do if this method cannot wake them; it raises no error of Redis.
        """
        left = list(groups)
        while left:
            keys = (self.keys.meta, *self._waking(left[:WOKEN_GROUPS]))
            del left[:WOKEN_GROUPS]
            try:
                yield self.on_keys("wake_groups", keys)
            except (ResponseError, LayoutError):
                # A foreign key there must not keep the others asleep.
                continue
            except RedisError:
                # The entries are there: an error would make the caller write them twice.
                return

    def _waking(self, groups: Iterable[bytes]) -> list[bytes]:
        """Return the keys by which the waiting members of groups are woken."""
        return [key for name in groups for key in self.keys.group(name).waking]

    def _arguments(  # noqa: PLR0917 - what a call and its try have
        self,
        known: Known,
        batch: list[bytes],
        least: int | str,
        written: bytes,
        note: tuple[Any, ...],
        spare: int,
    ) -> tuple[Any, ...]:
        keys = self.keys
        low = known.next // known.block
        needed = (known.next + len(batch) - 1) // known.block - low + 1 + spare
        evicted = 0
        if isinstance(least, int):
            # Up to the block where the kept entries should begin, and one for others' entries.
            stop = min(low, (known.next + len(batch) - least) // known.block + 1)
            evicted = max(0, min(stop - known.kept, EVICTED_BLOCKS))
        fixed = (keys.meta, keys.news, keys.full, keys.raw, keys.times, written, keys.waiting)
        groups = self._waking(known.groups[:WOKEN_GROUPS])
        blocks = (*keys.blocks(low, needed), *keys.blocks(known.kept, evicted))
        settings = (known.block, WOKEN_GROUPS, least, low, needed, known.kept, evicted)
        return ((*fixed, *blocks, *groups), *settings, *note, *batch)


def checked_entries(entries: list[bytes], block: int) -> list[bytes]:
    """Return the entries of one call. Raises: ConfigurationError if one call cannot take them."""
    count = len(entries)
    if not 1 <= count <= MOST_ENTRIES:
        raise ConfigurationError(
            f"{count} entries cannot be appended by one call: give 1 to {MOST_ENTRIES}"
        )
    if count > block * (MOST_BLOCKS - 1):
        raise ConfigurationError(
            f"{count} entries do not fit into {MOST_BLOCKS} blocks of {block}: append at most"
            f" {block * (MOST_BLOCKS - 1)} by one call"
        )
    size = sum(map(len, entries))
    if size > MOST_BYTES:
        raise ConfigurationError(
            f"{count} entries of {size} bytes cannot be appended by one call: give at most"
            f" {MOST_BYTES} bytes, as the server takes no more"
        )
    return entries
