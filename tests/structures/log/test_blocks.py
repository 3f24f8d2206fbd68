"""Sealed blocks: what goes in comes out, from anywhere, and what is no such block is refused."""

from __future__ import annotations

import itertools
import struct
import sys
import threading
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from workstealing.errors import (
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    MissingExtraError,
)
from workstealing.structures.log import blocks
from workstealing.structures.log.blocks import (
    HEADER_BYTES,
    MOST_COMPRESSED_BYTES,
    compress,
    compress_codec,
    entries_of,
    head_of,
    open_block,
    seal,
)

CODECS = ["raw", "zlib", "zstd"]
SOME = [b"a", b"", b"\x00\xff", b"x" * 300, b"last"]


class TestRoundTrip:
    @pytest.mark.parametrize("codec", CODECS)
    @given(entries=st.lists(st.binary(max_size=50), max_size=40), start=..., stop=...)
    def test_as_a_list_is_sliced(
        self, codec: str, entries: list[bytes], start: int, stop: int | None
    ) -> None:
        block = seal(entries, codec)
        assert entries_of(block) == entries
        assert entries_of(block, start, stop) == entries[start:stop]
        raw_bytes = 4 * len(entries) + sum(map(len, entries))
        assert head_of(block) == (codec, len(entries), raw_bytes, False)

    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("before", CODECS)
    def test_from_one_codec_to_another(self, before: str, codec: str) -> None:
        assert compress(seal(SOME, before), codec) == seal(SOME, codec)

    def test_the_raw_form_is_the_one_that_scripts_read(self) -> None:
        """Change this, and lua/log/entries.lua, and the format's version, or nothing."""
        expected = b"WSL\x01r\x00\x00\x00" + struct.pack(">II", 2, 8 + 5)
        expected += struct.pack(">II", 3, 5) + b"abcde"
        assert seal([b"abc", b"de"]) == expected
        assert seal([b"abc"], "zlib")[HEADER_BYTES:] == zlib.compress(b"\0\0\0\3abc", 6)

    def test_a_compressed_form_has_its_table_in_columns(self) -> None:
        """Change this, and the format's version, or nothing."""
        packed = seal([b"abc", b"x" * 300], "zlib")[HEADER_BYTES:]
        # The ends are 00 00 00 03 and 00 00 01 2f.
        table = b"\0\0" + b"\0\0" + b"\0\1" + b"\x03\x2f"
        assert zlib.decompress(packed) == table + b"abc" + b"x" * 300

    def test_what_is_kept_open_is_read_again_and_again(self) -> None:
        kept = open_block(seal(SOME, "zstd"))
        assert [kept.entries(i, i + 1) for i in range(5)] == [[each] for each in SOME]
        assert kept.count == 5
        assert kept.size == 4 * 5 + sum(map(len, SOME))

    def test_by_many_threads_at_once(self) -> None:
        entries = [b"%d" % i * 20 for i in range(500)]
        right = []

        def work() -> None:
            right.extend(entries_of(compress(seal(entries), "zstd")) == entries for _ in range(30))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right == [True] * 30 * 8


class TestRefusals:
    @pytest.mark.parametrize("codec", CODECS)
    def test_every_cut_is_seen(self, codec: str) -> None:
        block = seal(SOME, codec)
        for length in range(len(block)):
            with pytest.raises(DamagedBlockError, match="is damaged"):
                entries_of(block[:length])

    @pytest.mark.parametrize("codec", CODECS)
    def test_what_follows_is_seen(self, codec: str) -> None:
        for more in (b"\0", seal(SOME, codec), seal(SOME, codec)[HEADER_BYTES:]):
            with pytest.raises(DamagedBlockError):
                entries_of(seal(SOME, codec) + more)

    @pytest.mark.parametrize("codec", ["zlib", "zstd"])
    def test_every_changed_byte_of_a_compressed_block_is_seen(self, codec: str) -> None:
        block = seal(SOME * 3, codec)
        for place in range(HEADER_BYTES, len(block)):
            changed = bytearray(block)
            changed[place] ^= 0x41
            try:
                same = entries_of(bytes(changed)) == SOME * 3
            except DamagedBlockError:
                continue
            # A bit that the format does not use.
            assert same

    @pytest.mark.parametrize("codec", CODECS)
    def test_every_changed_byte_of_a_header_is_seen(self, codec: str) -> None:
        block = seal(SOME, codec)
        for place in range(HEADER_BYTES):
            changed = bytearray(block)
            changed[place] ^= 0x41
            with pytest.raises((DamagedBlockError, LayoutError)):
                entries_of(bytes(changed))

    def test_ends_out_of_order(self) -> None:
        block = bytearray(seal([b"abc", b"de", b"f"]))
        block[HEADER_BYTES : HEADER_BYTES + 4] = struct.pack(">I", 9)
        with pytest.raises(DamagedBlockError, match="not in order"):
            entries_of(bytes(block), 0, 2)

    @pytest.mark.parametrize("codec", ["zlib", "zstd"])
    def test_a_bomb_is_not_unpacked(self, codec: str) -> None:
        body = b"\0" * 50_000_000
        packed = zlib.compress(body) if codec == "zlib" else zstandard.compress(body)
        with pytest.raises(DamagedBlockError):
            entries_of(seal(SOME, codec)[:HEADER_BYTES] + packed)

    @pytest.mark.parametrize("other", [b"", b"WS", b"plain text that somebody has set", b"\0" * 99])
    def test_what_is_no_block(self, other: bytes) -> None:
        with pytest.raises(DamagedBlockError, match="another program has written"):
            entries_of(other)

    @pytest.mark.parametrize(
        ("place", "byte", "said"),
        [(3, 2, "has format 2"), (5, 2, "flags 2"), (4, ord("l"), "the codec b'l'")],
    )
    def test_a_newer_form_asks_for_an_upgrade(self, place: int, byte: int, said: str) -> None:
        block = bytearray(seal(SOME))
        block[place] = byte
        with pytest.raises(LayoutError, match=f"{said}.*upgrade workstealing"):
            entries_of(bytes(block))

    def test_what_no_string_of_redis_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(blocks, "LONGEST_BLOCK_BYTES", 100)
        assert len(seal([b"x" * 80])) == 100
        with pytest.raises(ConfigurationError, match="make a block of 101 bytes"):
            seal([b"x" * 81])

    def test_settings_that_are_none(self) -> None:
        with pytest.raises(ConfigurationError, match="codec is 'lz4'"):
            seal(SOME, "lz4")
        with pytest.raises(ConfigurationError, match="codec is 'raw'; expected 'auto'"):
            compress_codec("raw")
        for codec, level in (("zlib", 10), ("zlib", -1), ("zstd", 0), ("zstd", 23), ("zstd", True)):
            with pytest.raises(ConfigurationError, match="expected a whole number from"):
                seal(SOME, codec, level)


class TestWithoutTheExtra:
    @pytest.fixture(autouse=True)
    def _hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zstandard", None)

    def test_zlib_and_raw_work(self) -> None:
        assert compress_codec() == "zlib"
        assert entries_of(seal(SOME, compress_codec("auto"))) == SOME

    @pytest.mark.parametrize(
        "call", [lambda: compress_codec("zstd"), lambda: seal(SOME, "zstd", 9)]
    )
    def test_zstd_says_what_to_install(self, call: object) -> None:
        with pytest.raises(MissingExtraError, match=r"pip install 'workstealing\[log\]'"):
            call()  # type: ignore[operator]

    def test_a_block_whose_codec_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as installed:
            installed.setitem(sys.modules, "zstandard", zstandard)
            block = seal(SOME, "zstd")
        with pytest.raises(MissingExtraError, match=r"pip install 'workstealing\[log\]'"):
            entries_of(block)


def test_auto_is_zstd_where_it_is_installed() -> None:
    assert compress_codec("auto") == "zstd"
    assert compress_codec("zlib") == "zlib"


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["zlib", "zstd"])
@pytest.mark.parametrize("entries", [1, 1000])
def test_a_small_block_cannot_ask_for_much_memory(codec: str, entries: int) -> None:
    """Some kilobytes that say they hold half a gigabyte: refused before any room is made."""
    length = 500 * 1024 * 1024
    if codec == "zlib":
        stream = zlib.compressobj(9)
        stored = b"".join(stream.compress(bytes(1 << 20)) for _ in range(500)) + stream.flush()
    else:
        made = zstandard.ZstdCompressor().compressobj(size=length)
        stored = b"".join(made.compress(bytes(1 << 20)) for _ in range(500)) + made.flush()
    letter = {"zlib": b"z", "zstd": b"s"}[codec]
    block = struct.pack(">3sBcBHII", b"WSL", 1, letter, 0, 0, entries, length) + stored
    # What lies about it in the header alone is found out by the frame, or where it should end.
    liar = struct.pack(">3sBcBHII", b"WSL", 1, letter, 0, 0, entries, 8000) + stored
    tracemalloc.start()
    try:
        for call in (lambda each: compress(each, "raw"), open_block, entries_of):
            for each in (block, liar):
                with pytest.raises(DamagedBlockError):
                    call(each)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["zlib", "zstd"])
def test_no_block_is_compressed_that_nobody_would_open(codec: str) -> None:
    least = MOST_COMPRESSED_BYTES - 4
    assert len(open_block(compress(seal([bytes(least)]), codec)).entries()[0]) == least
    with pytest.raises(ConfigurationError, match="too many to be compressed"):
        compress(seal([bytes(least + 1)]), codec)


@pytest.mark.parametrize("codec", ["zlib", "zstd"])
def test_compressing_may_be_broken_off_between_pieces(codec: str) -> None:
    block = seal([b"x%d" % number * 1000 for number in range(1000)])
    places: list[int] = []
    assert open_block(compress(block, codec, between=places.append)).entries() == entries_of(block)
    assert places == sorted(places)
    assert len(places) > 10
    assert max(b - a for a, b in itertools.pairwise([0, *places])) <= 64 * 1024
    assert places[-1] == len(block) - HEADER_BYTES

    def stop(done: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        compress(block, codec, between=stop)
    # What was broken off leaves nothing behind.
    assert open_block(compress(block, codec)).entries() == entries_of(block)
