"""The format of a sealed block: many entries in one string, each found without its neighbours.

A header of 16 bytes comes first; every number is big-endian and unsigned:

| bytes | what |
|---|---|
| 0-2 | ``WSL`` |
| 3 | the format's version, 1 |
| 4 | the codec: ``r`` raw, ``z`` zlib, ``s`` zstd |
| 5 | flags: 0, or 1 in a block with holes, as below; a reader refuses others |
| 6-7 | 0 |
| 8-11 | how many entries |
| 12-15 | the length of the raw body in bytes |

The raw body is a table of one 4-byte number for each entry, its end, counted from the first byte
after this table; then the entries, one after the other. So entry i of n stands from ``16 + 4 * n +
end(i - 1)`` up to ``16 + 4 * n + end(i)``, and end(-1) is 0.

The body of a compressed block is a compressed raw body whose table is written in columns: the first
byte of every end, then the second byte of every end, and so on. Neighbours differ in the last bytes
only, so this saves about 1.5 bytes an entry.

Compaction by key leaves a hole in the place of an entry: the entry has no bytes then, and the
highest bit of its end is set, which no end needs. A release that does not know holes refuses the
flag.
"""

from __future__ import annotations

import importlib
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from workstealing.errors import (
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    MissingExtraError,
)
from workstealing.recruiting.checks import checked_count

__all__ = [
    "HEADER_BYTES",
    "LONGEST_BLOCK_BYTES",
    "MOST_COMPRESSED_BYTES",
    "BlockCache",
    "BlockHead",
    "SealedBlock",
    "compress",
    "compress_codec",
    "entries_of",
    "head_of",
    "open_block",
    "seal",
]

_HEADER = struct.Struct(">3sBcBHII")
_MAGIC = b"WSL"
VERSION = 1
HEADER_BYTES = _HEADER.size
# The server's proto-max-bulk-len: no string in Redis can be longer.
LONGEST_BLOCK_BYTES = 512 * 1024 * 1024
MOST_COMPRESSED_BYTES = 32 * 1024 * 1024
"""The most bytes that the raw body of a compressed block has; a larger one stays raw.

A few kilobytes may decompress into anything. So a reader makes room for no more than this, whatever
size a block claims.
"""
_PIECE_BYTES = 64 * 1024
_HOLES = 1
"""The flag of a block with holes."""
_HOLE = 1 << 31
"""The bit of an end that says that the entry is a hole."""
_LETTERS = {"raw": b"r", "zlib": b"z", "zstd": b"s"}
_NAMES = {letter: name for name, letter in _LETTERS.items()}
_DEFAULT_LEVELS = {"zlib": 6, "zstd": 3}
_LEVELS = {"zlib": (0, 9), "zstd": (1, 22)}


class BlockHead(NamedTuple):
    """The contents of a sealed block's header.

    Fields: codec: ``raw``, ``zlib`` or ``zstd``; entries: how many, holes included; raw_bytes: the
    length of the body when it is not compressed; has_holes: whether some entries are holes.
    """

    codec: str
    entries: int
    raw_bytes: int
    has_holes: bool = False


class SealedBlock:
    """The entries of a sealed block, decompressed but not yet split; it never changes.

    Arguments:
        data: bytes that hold the raw body.
        base: where in them it begins.
        count: how many entries it has, holes included.
        has_holes: whether some of them are holes.

    Raises: DamagedBlockError if the table of ends and the length do not agree.
    """

    __slots__ = ("_base", "_data", "_has_holes", "_table", "count")

    def __init__(self, data: bytes, base: int, count: int, has_holes: bool = False) -> None:
        self._data = data
        self._table = base
        self._base = base + 4 * count
        self.count = count
        self._has_holes = has_holes
        last = 0
        if count and self._base <= len(data):
            last = int.from_bytes(data[self._base - 4 : self._base])
            if has_holes:
                last &= ~_HOLE
        if self._base + last != len(data):
            raise damaged("its table of ends does not fit its length")

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return len(self._data)

    def entries(self, start: int = 0, stop: int | None = None) -> list[bytes | None]:
        """Return entries start..stop-1, both clamped to the block, as Python's slices do.

        A hole is None.

        Arguments:
            start: positions within the block, from 0.
            stop: positions within the block, from 0.

        Raises: DamagedBlockError. O(entries returned): the others are not touched.
        """
        start, stop, _ = slice(start, stop).indices(self.count)
        if start >= stop:
            return []
        data, begin = self._data, self._base
        first = start - 1 if start else 0
        ends = struct.unpack_from(f">{stop - first}I", data, self._table + 4 * first)
        base = begin
        if start:
            begin += ends[0] & ~_HOLE if self._has_holes else ends[0]
            ends = ends[1:]
        found: list[bytes | None] = []
        for end in ends:
            if self._has_holes and end & _HOLE:
                if base + (end & ~_HOLE) != begin:
                    break
                found.append(None)
                continue
            end_at = base + end
            if end_at < begin:
                break
            found.append(data[begin:end_at])
            begin = end_at
        if len(found) < stop - start or begin > len(data):
            raise damaged("its table of ends is not in order")
        return found

    def behind_holes(self, place: int) -> int:
        """Return the place of the first entry from a place on that is no hole, or `count`.

        O(holes passed).
        """
        while self._has_holes and place < self.count:
            if not self._data[self._table + 4 * place] & _HOLE >> 24:
                break
            place += 1
        return place


def seal(entries: Sequence[bytes | None], codec: str = "raw", level: int | None = None) -> bytes:
    """Return the entries as one sealed block.

    Arguments:
        entries: bytes, in order; None for a hole.
        codec: ``raw``, ``zlib``, ``zstd``.
        level: as of `compress`.

    Raises: ConfigurationError if they are too long for one string of Redis or the codec is unknown;
    MissingExtraError.
    """
    ends = list(accumulate(0 if each is None else len(each) for each in entries))
    length = 4 * len(ends) + (ends[-1] if ends else 0)
    if HEADER_BYTES + length > LONGEST_BLOCK_BYTES:
        raise ConfigurationError(
            f"{len(ends)} entries make a block of {HEADER_BYTES + length} bytes; a string of Redis"
            f" has at most {LONGEST_BLOCK_BYTES}: make the log with a smaller block="
        )
    has_holes = None in entries
    if has_holes:
        ends = [
            end | _HOLE if each is None else end for end, each in zip(ends, entries, strict=True)
        ]
    body = b"".join(
        (struct.pack(f">{len(ends)}I", *ends), *(each for each in entries if each is not None))
    )
    return _sealed(codec, len(ends), body, level, has_holes=has_holes)


def compress(
    block: bytes,
    codec: str,
    level: int | None = None,
    *,
    between: Callable[[int], None] | None = None,
) -> bytes:
    """Return a sealed block with another codec, its entries not split on the way.

    Arguments:
        block: a sealed block of any codec.
        codec: ``raw``, ``zlib`` or ``zstd``.
        level: of the compression, 0 to 9 for zlib, 1 to 22 for zstd, by default 6 and 3.
        between: is called after each 64 KiB with the number of bytes done, and may raise to break
            off.

    Raises: ConfigurationError, also for more than 32 MiB of entries; MissingExtraError;
    DamagedBlockError; LayoutError.
    """
    head = head_of(block)
    body = _body(block, head)
    return _sealed(codec, head.entries, body, level, between, has_holes=head.has_holes)


def compress_codec(codec: str = "auto") -> str:
    """Return the codec that compresses here: zstd where it is installed, else zlib, for ``auto``.

    Arguments:
        codec: ``auto``, or ``zstd`` or ``zlib`` to insist.

    Raises: ConfigurationError; MissingExtraError for ``zstd`` without the extra ``log``.
    """
    if codec == "auto":
        try:
            _zstandard()
        except MissingExtraError:
            return "zlib"
        return "zstd"
    if not isinstance(codec, str) or codec not in _LEVELS:
        raise ConfigurationError(
            f"codec is {codec!r}; expected 'auto', 'zstd' or 'zlib', or 'none' where nothing is to"
            " be compressed"
        )
    if codec == "zstd":
        _zstandard()
    return codec


def head_of(block: bytes) -> BlockHead:
    """Return the header in a sealed block's first `HEADER_BYTES` bytes.

    Raises: DamagedBlockError if it is not a sealed block; LayoutError if its format is newer.
    """
    if len(block) < HEADER_BYTES or block[:3] != _MAGIC:
        raise damaged("it does not begin as one")
    _, version, letter, flags, reserved, count, length = _HEADER.unpack_from(block)
    if version > VERSION or (version == VERSION and (flags & ~_HOLES or reserved)):
        raise LayoutError(
            f"a sealed block has format {version}, flags {flags}; this version of workstealing"
            f" reads format {VERSION} with no flags but {_HOLES}: upgrade workstealing"
        )
    if version != VERSION or 4 * count > length or length > LONGEST_BLOCK_BYTES:
        raise damaged("its header contradicts itself")
    if letter != b"r" and length > MOST_COMPRESSED_BYTES:
        raise damaged(
            f"it is compressed and says that it holds {length} bytes, and no such block has more"
            f" than {MOST_COMPRESSED_BYTES}"
        )
    name = _NAMES.get(letter)
    if name is None:
        raise LayoutError(
            f"a sealed block has the codec {letter!r}; this version of workstealing reads"
            f" {', '.join(_LETTERS)}: upgrade workstealing"
        )
    return BlockHead(name, count, length, bool(flags))


def open_block(block: bytes) -> SealedBlock:
    """Return a sealed block decompressed, ready to be kept and read from often.

    Raises: MissingExtraError if its codec is not installed; DamagedBlockError, before any room is
    made if the block claims more bytes than a compressed block may have; LayoutError.
    """
    head = head_of(block)
    if head.codec == "raw":
        # As it came: the header is cheaper to carry along than to cut off.
        _body_length_checked(len(block) - HEADER_BYTES, head)
        return SealedBlock(block, HEADER_BYTES, head.entries, head.has_holes)
    return SealedBlock(_body(block, head), 0, head.entries, head.has_holes)


def entries_of(block: bytes, start: int = 0, stop: int | None = None) -> list[bytes | None]:
    """Return entries start..stop-1 of a sealed block; a hole is None.

    Arguments:
        block: as the server has it.
        start: as of `SealedBlock.entries`.
        stop: as of `SealedBlock.entries`.

    Raises: as of `open_block`. A compressed block is decompressed as a whole, but only the wanted
    entries are split.
    """
    return open_block(block).entries(start, stop)


def _sealed(
    codec: str,
    count: int,
    body: bytes,
    level: int | None,
    between: Callable[[int], None] | None = None,
    *,
    has_holes: bool = False,
) -> bytes:
    letter = _LETTERS.get(codec)
    if letter is None:
        raise ConfigurationError(f"codec is {codec!r}; expected one of {', '.join(_LETTERS)}")
    header = _HEADER.pack(_MAGIC, VERSION, letter, _HOLES * has_holes, 0, count, len(body))
    if codec == "raw":
        return header + body
    if len(body) > MOST_COMPRESSED_BYTES:
        raise ConfigurationError(
            f"{count} entries of {len(body)} bytes are too many to be compressed: a compressed"
            f" block has at most {MOST_COMPRESSED_BYTES}; leave it raw"
        )
    return header + _compressed(codec, _columns(body, count), level, between)


def _columns(body: bytes, count: int) -> bytes:
    """Return a raw body with its table in columns."""
    table = body[: 4 * count]
    return b"".join((*(table[byte::4] for byte in range(4)), memoryview(body)[4 * count :]))


def _rows(body: bytes, count: int) -> bytes:
    """Return a raw body whose table stood in columns."""
    table = bytearray(4 * count)
    for byte in range(4):
        table[byte::4] = body[byte * count : (byte + 1) * count]
    return b"".join((table, memoryview(body)[4 * count :]))


def checked_level(codec: str, level: int | None) -> int:
    """Return the level to compress with, the codec's default for None.

    Raises: ConfigurationError for a level that the codec lacks.
    """
    if level is None:
        return _DEFAULT_LEVELS[codec]
    lowest, highest = _LEVELS[codec]
    if isinstance(level, bool) or not isinstance(level, int) or not lowest <= level <= highest:
        raise ConfigurationError(
            f"level is {level!r}; expected a whole number from {lowest} to {highest} for {codec}"
        )
    return int(level)


def _compressed(
    codec: str, body: bytes, level: int | None, between: Callable[[int], None] | None
) -> bytes:
    level = checked_level(codec, level)
    stream: Any
    if codec == "zlib":
        stream = zlib.compressobj(level)
    else:
        stream = _own(("compress", level), _compressor).compressobj(size=len(body))
    if between is None:
        return b"".join((stream.compress(body), stream.flush()))
    made = []
    view = memoryview(body)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = view[start : start + _PIECE_BYTES]
        made.append(stream.compress(piece))
        between(start + len(piece))
    made.append(stream.flush())
    return b"".join(made)


def _body(block: bytes, head: BlockHead) -> bytes:
    """Return the raw body, of exactly the length that the header says."""
    stored = block[HEADER_BYTES:]
    if head.codec == "zlib":
        stored = _inflated(stored, head)
    elif head.codec == "zstd":
        stored = _unpacked(stored, head)
    _body_length_checked(len(stored), head)
    return stored if head.codec == "raw" else _rows(stored, head.entries)


def _body_length_checked(length: int, head: BlockHead) -> None:
    if length != head.raw_bytes:
        raise damaged(f"its body has {length} bytes, its header says {head.raw_bytes}")


def _inflated(stored: bytes, head: BlockHead) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than there should be: so it is bounded, and its end is seen.
        body = inflater.decompress(stored, head.raw_bytes + 1)
    except zlib.error as error:
        raise damaged(f"zlib says: {error}") from error
    if not inflater.eof or inflater.unused_data:
        raise damaged("its compressed part does not end where it should")
    return body


def _unpacked(stored: bytes, head: BlockHead) -> bytes:
    zstandard = _zstandard()
    try:
        # The library makes room for any size that the frame claims: so compare that first.
        if zstandard.frame_content_size(stored) != head.raw_bytes:
            raise damaged("its zstd frame and its header do not agree")
        body: bytes = _own(("decompress",), _decompressor).decompress(
            stored, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise damaged(f"zstd says: {error}") from error
    return body


def damaged(why: str) -> DamagedBlockError:
    """Return the error for a damaged block."""
    return DamagedBlockError(
        f"a sealed block of a log is damaged: {why}; another program has written to its key, so"
        " restore the key from a backup, or evict() its entries"
    )


class _Own(threading.local):
    """A thread's own compressors: making one costs more than a small block, sharing is unsafe."""

    def __init__(self) -> None:
        self.made: dict[tuple[Any, ...], Any] = {}


_own_of_thread = _Own()


def _own(key: tuple[Any, ...], make: Callable[..., Any]) -> Any:
    made = _own_of_thread.made
    if key not in made:
        made[key] = make(*key[1:])
    return made[key]


def _compressor(level: int) -> Any:
    return _zstandard().ZstdCompressor(
        level=level, write_content_size=True, write_checksum=True, write_dict_id=False
    )


def _decompressor() -> Any:
    return _zstandard().ZstdDecompressor()


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingExtraError("log", "zstandard") from error


# One for all caches, held for less than a microsecond, so that a fork never copies it held.
_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class BlockCache:
    """Keeps the sealed blocks that were used last, decompressed; safe for threads and forks.

    While its log lives, a sealed block changes in one way only: compaction by key takes entries out
    of it, which a kept block shows for longer. A log that was deleted and made anew has another
    epoch, so its blocks are others. Only a server that comes back with older data fills blocks
    anew: then `clear` the cache. The cache does not know whether an entry was evicted: ask the
    server first.

    Arguments:
        blocks: the most it keeps, 0 to keep none.
        most_bytes: the most that they may take together, decompressed.
    """

    __slots__ = ("_blocks", "_kept", "_most_bytes", "_size")

    def __init__(self, blocks: int = 16, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._blocks = checked_count(blocks, "cache_blocks")
        self._most_bytes = checked_count(most_bytes, "most_bytes")
        self._kept: OrderedDict[tuple[bytes, int], SealedBlock] = OrderedDict()
        self._size = 0

    def get(self, epoch: bytes, number: int) -> SealedBlock | None:
        """Return a kept block, and note that it was used last; None if it is not kept. O(1)."""
        if not self._kept:
            return None
        key = (epoch, number)
        with _lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, epoch: bytes, number: int, block: SealedBlock) -> None:
        """Keep a block, and drop the blocks used longest ago if there are too many. O(1)."""
        if not self._blocks or block.size > self._most_bytes:
            return
        key = (epoch, number)
        with _lock:
            old = self._kept.pop(key, None)
            self._size += block.size - (old.size if old else 0)
            self._kept[key] = block
            while len(self._kept) > self._blocks or self._size > self._most_bytes:
                self._size -= self._kept.popitem(last=False)[1].size

    def clear(self) -> None:
        """Drop all blocks. O(blocks kept)."""
        with _lock:
            self._kept.clear()
            self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """How many bytes the kept blocks take together."""
        return self._size
