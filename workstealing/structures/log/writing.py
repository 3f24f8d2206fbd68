"""Changing a log: entries come behind the last one, the oldest are evicted, or all is deleted.

Of a batch all entries are appended, or none.

A script must be told its keys before it knows where the log ends. So a writer passes the blocks
from the last end that it knows. If the log has grown past them since, the script changes nothing,
and the writer calls again with the end that the reply names. The script also passes the groups in
which members wait. If these are too many for one script, further scripts wake the others, so that
none holds the server up for long.

An eviction moves the first available offset at once, and frees memory by whole blocks. Deleting
evicts all entries first, block by block, and then deletes the rest at once: a client that dies in
between leaves an empty log that is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Never

from redis.exceptions import RedisError, ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import AS_BYTES, Operation, Steps, command, operation, same
from workstealing.store.scripts import Script
from workstealing.structures.layout import checked_text
from workstealing.structures.log.base import (
    MOST_BLOCK,
    Known,
    LogBase,
    checked_integer,
    refuse_options,
)
from workstealing.structures.log.codecs import encode_all
from workstealing.structures.log.ids import EntryIds, checked_each, checked_id
from workstealing.structures.stored import ADVICE, holding_ours, stored_number

MOST_ENTRIES = 10_000
"""How many entries one call appends at most."""
MOST_BLOCKS = 1_000
"""The most blocks that these may fill."""
MOST_BYTES = 512 * 1024 * 1024
"""The most bytes of one entry, or of all in a call: the server's limit for one value."""
# Extra blocks for entries that others append meanwhile: twice as many at each try.
_SPARE_BLOCKS, _MOST_SPARE_BLOCKS = 1, 1_024
# The most blocks that the appends of a pipeline are told of beside their own.
_BLOCKS_TOGETHER = 64
EVICTED_BLOCKS = 100
"""How many blocks a call with `keep` frees at most, beside those that it fills."""
WOKEN_GROUPS = 64
"""One script wakes the members of this many groups."""
_TRIES = 100
# The most entries that take the short path, so that Lua can pass them on at once.
_MOST_SHORT = 1_000
# For so many appends at most no short path is tried after one in vain.
_LONGEST_REST = 1_024


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


class Together:
    """The appends of one pipeline, which keep their order.

    All of them begin with the same belief. One that finds the log longer than the belief allows
    appends nothing, and then those behind it append nothing either, because a log only grows.
    They are repeated one after the other.

    Attributes: number: of the entries of all appends; known: the belief, as it is sent; woken: the
    groups that were woken when all was sent.
    """

    __slots__ = ("known", "number", "woken")

    def __init__(self, known: Known) -> None:
        self.number = 0
        self.known = known
        self.woken: set[bytes] = set()

    @property
    def most(self) -> int:
        """The highest end behind which an append of the belief comes."""
        block = self.known.block
        return self.known.next + min(self.number, _BLOCKS_TOGETHER * block) + block

    def spare(self, batch: int) -> int:
        """Return how many more blocks than a batch needs right behind the known end."""
        known = self.known
        return (self.most + batch - 1) // known.block - (known.next + batch - 1) // known.block


class ShortHead(NamedTuple):
    """The beginning of all short paths into one block.

    Fields: block: how many entries it has; number; script; keys; args: those before the entries.
    """

    block: int
    number: int
    script: Script | None
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]


class WrittenRows(NamedTuple):
    """The rows that a partition has written already and does not write again, with their digest."""

    batch: int
    rows: int
    digest: str


class Appending(LogBase):
    """Appending to a log, and waking the groups in which members wait.

    An append into the middle of a block takes the short path, a script for this case alone. If it
    finds anything unusual, it changes nothing, and the whole script comes after it.
    """

    _head = ShortHead(0, 0, None, (), ())
    # How many appends are left that try no short path, and how many it will be after the next one
    # in vain.
    _resting, _next_rest = 0, 1

    @operation
    def append(
        self,
        /,
        *entries: Any,
        keep: int | None = None,
        producer: str | bytes | None = None,
        id: str | bytes | None = None,  # noqa: A002 - what it is everywhere
        **others: Never,
    ) -> Steps[int]:
        """Append entries behind the last one, all or none.

        Arguments:
            entries: 1 to 10,000, of 512 MiB together at most; bytes, or values that the codec
                takes.
            keep: evict whole blocks as long as at least so many entries stay.
            producer: whose id it is; with `id` only.
            id: of these entries, 1 to 256 bytes: of the calls with it, the first appends.

        Returns: the offset of the first; the others follow without a gap. With an id that the log
        knows of this producer, the offset that its first call was given, whatever the entries are;
        then nothing is written. Raises: ConfigurationError; LayoutError; errors of redis-py, for
        instance of a full server. After an error nothing is written, but after a lost connection
        the entries may be there, and a repeated call without an id would append them twice; the
        client's own retries do not. One round trip; one more if others have filled a block, or a
        member has begun to wait in a group, since the last call; one more for each 64 groups beyond
        the first 64 in which members wait. Seven Redis commands in the middle of a block without an
        id; else about 12, 8 more with an id, three for each block and some 15 for each such group.
        """
        check_append(entries, others)
        return self.append_steps(entries, keep, ids=checked_id(producer, id))

    @operation
    def append_each(
        self,
        entries: Sequence[Any],
        ids: Sequence[str | bytes],
        producer: str | bytes,
        *,
        keep: int | None = None,
    ) -> Steps[list[int]]:
        """Append those of some entries whose ids the log does not know yet, all or none.

        Arguments:
            entries: as of `append`.
            ids: one for each entry, in their order, no more than the log's `most_ids`.
            producer: whose ids they are.
            keep: as of `append`.

        Returns: the offset of each entry, in their order; for an id that the log knows, the one
        that it was given then. If an id stands there twice, its first entry is appended. Errors and
        cost: as of `append`; O(log(most_ids)) for each id.
        """
        return self.each_steps(entries, ids, producer, keep)

    def each_steps(
        self,
        entries: Any,
        ids: Any,
        producer: str | bytes,
        keep: int | None,
        together: Together | None = None,
    ) -> Steps[list[int]]:
        """Append as `append_each` does, in a pipeline, too. Raises: as it."""
        if isinstance(entries, str | bytes) or not isinstance(entries, Sequence):
            raise ConfigurationError(
                f"entries is a {type(entries).__name__}: give a list of the entries"
            )
        found = checked_each(producer, ids, len(entries), self.id_window)
        return self.append_steps(entries, keep, together=together, ids=found)

    def append_steps(
        self,
        entries: Any,
        keep: int | None = None,
        marker: Marker | None = None,
        together: Together | None = None,
        ids: EntryIds | None = None,
    ) -> Steps[Any]:
        """Append entries, once for each marker or id; see `append`.

        Arguments:
            together: of a pipeline's appends.
            ids: without a marker.

        Returns: the offset of the first, or of each if each has an id; `WrittenRows`, with nothing
        appended, if the marker does not match the rows written so far.
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
        if ids is not None:
            written = self.keys.ids(ids.producer)
            note = ("ids", *self.id_window, len(ids.ids))
        if together is not None:
            together.number += len(batch)
        elif marker is None and keep is None and ids is None:
            short = self._short(batch)
            if short is not None:
                return self._shortly(short, batch, written, note)
        return self._appended(batch, least, written, note, together, ids)

    def _short(self, batch: list[bytes]) -> Operation | None:
        """Return the short path of an append, None where more is expected to be needed."""
        known, count = self.known, len(batch)
        block = known.block
        number, place = divmod(known.next, block)
        if not place or place + count >= block or known.groups or count > _MOST_SHORT:
            return None
        if self._resting > 0:
            self._resting -= 1
            return None
        head = self._head
        if head.number != number or head.block != block:
            keys = self.keys
            all_keys = (keys.meta, keys.block(number), keys.times, keys.news, keys.waiting)
            script, first = self.script("append_short"), (b"%d" % block, b"%d" % number)
            self._head = head = ShortHead(block, number, script, all_keys, first)
        args = (*head.args, *batch)
        return Operation(head.script, head.keys, args, same, AS_BYTES, once=True)

    def _shortly(
        self, short: Operation, batch: list[bytes], written: bytes, note: tuple[Any, ...]
    ) -> Steps[int]:
        known = self.known
        reply = yield short
        if isinstance(reply, int):
            if reply < known.next:
                self.has_lost(known, reply)
            self._next_rest = 1
            self.known = self.known._replace(next=reply + len(batch))
            return reply
        if reply:
            self.note(groups=tuple(reply))
        else:
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        offset: int = yield from self._appended(batch, "", written, note, None, None)
        return offset

    def _appended(  # noqa: PLR0917 - what a call has
        self,
        batch: list[bytes],
        least: int | str,
        written: bytes,
        note: tuple[Any, ...],
        together: Together | None,
        ids: EntryIds | None = None,
    ) -> Steps[Any]:
        for tried in range(_TRIES):
            known = self.known
            spare = min(_SPARE_BLOCKS << tried, _MOST_SPARE_BLOCKS)
            most: int | str = ""
            if together is not None:
                known, most, spare = together.known, together.most, together.spare(len(batch))
            settings = self._arguments(known, batch, least, written, note, spare, most)
            if ids is not None:
                settings = self._with_ids(settings, batch, ids)
            # A batch with a marker is found to be there already.
            reply = yield self.on_keys("append", *settings, once=written == self.keys.meta)
            offset = int(reply[0])
            if offset >= 0:
                self.has_lost(known, offset)
                _, kept, *waiting = reply
                yield from self._end(offset + len(batch), kept, waiting, known, together)
                each = ids is not None and ids.is_each
                return [*range(offset, offset + len(batch))] if each else offset
            if offset == -2:
                return WrittenRows(int(reply[1]), int(reply[2]), reply[3].decode())
            if offset < -2:
                _, tail, kept, offsets, *waiting = reply
                self.has_lost(known, int(tail))
                if offset == -3:
                    yield from self._end(int(tail), kept, waiting, known, together)
                else:
                    self.note(next=int(tail), kept=int(kept))
                assert ids is not None
                return offsets if ids.is_each else offsets[0]
            _, tail, kept, block, *waiting = reply
            self.has_lost(known, int(tail))
            self.note(next=int(tail), kept=int(kept), block=int(block), groups=tuple(waiting))
            # The log's own blocks may be smaller than was expected.
            checked_entries(batch, int(block))
            together = None
        raise LayoutError(
            f"others append to the log {self.name!r} faster than one batch can be written: let them"
            " append more entries by fewer calls; nothing was written"
        )

    def _end(
        self,
        end: int,
        kept: Any,
        waiting: list[bytes],
        known: Known,
        together: Together | None,
    ) -> Steps[None]:
        """Remember where the log ends now, and wake who is not awake yet."""
        self.note(next=end, kept=int(kept), groups=tuple(waiting))
        asleep = set(waiting).difference(known.groups[:WOKEN_GROUPS])
        if together is not None:
            # The first of them has woken them when all entries were there.
            asleep -= together.woken
            together.woken |= asleep
        yield from self._wake(asleep)

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
        most: int | str,
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
        # Several appends must not be refused apart, for a group that is unknown at one of them.
        woken = WOKEN_GROUPS if most == "" else 0
        settings = (known.block, woken, least, low, needed, known.kept, evicted)
        return ((*fixed, *blocks, *groups), *settings, *note, most, *batch)

    def _with_ids(
        self, settings: tuple[Any, ...], batch: list[bytes], ids: EntryIds
    ) -> tuple[Any, ...]:
        """Return the arguments of an append with the key and the ids that one with ids has."""
        keys, *others = settings
        before = others[: len(others) - len(batch)]
        return ((*keys, self.keys.producers), *before, *ids.ids, *batch)


def check_append(entries: tuple[Any, ...], others: Iterable[object]) -> None:
    """Refuse what RCP 11 says elsewhere. Raises: ConfigurationError; TypeError."""
    refuse_options(others)
    if [each for each in entries[:3:2] if type(each) is str] == ["BACKLOG", "ENTRIES"]:
        refuse_options(["BACKLOG"])


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


BLOCKS_A_SCRIPT = 100
PRODUCERS_A_SCRIPT = 100
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
        than it can delete. One round trip for each 100 blocks, two for each 100 producers whose ids
        are known, and four more. The deletion is not atomic, but an append in between loses nothing
        that a reader could still have found.
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
            yield from self._forgetting()
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
            others += [keys.latest, keys.superseded]
            others += keys.blocks(kept, blocks)
            for name in meta:
                kind, _, rest = name.partition(b":")
                if kind == b"group":
                    others += keys.group(rest).all
                elif kind == b"written":
                    others.append(keys.written(rest))
            deleted = yield self.on_keys(
                "delete",
                (keys.meta, keys.producers, *others),
                *(tail, kept, meta.get(b"joined", b"0"), len(meta)),
            )
            if deleted >= 0:
                self.known = Known(block)
                return True
        raise LayoutError(
            f"the log {self.name!r} grows faster than it can be deleted: stop its writers, and call"
            " delete() again; the entries that it had are evicted"
        )

    def _forgetting(self) -> Steps[None]:
        """Forget the ids of all producers. Two round trips for each 100 of them, and one more."""
        keys = self.keys
        while True:
            with holding_ours(keys.producers):
                names = yield command(
                    "ZRANGE", keys.producers, 0, PRODUCERS_A_SCRIPT - 1, options=AS_BYTES
                )
            if not names:
                return
            sent = (keys.meta, keys.producers, *map(keys.ids, names))
            yield self.on_keys("forget", sent, "all")

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
