"""Codecs: what is written is what is read, and what cannot be is refused by its place."""

from __future__ import annotations

import gzip
import math
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstealing.errors import ConfigurationError, MissingExtraError, UndecodableEntryError
from workstealing.structures.log.codecs import (
    codec_of,
    decode_all,
    encode_all,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc\u00e9"), inner),
    max_leaves=10,
)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@given(values=st.lists(VALUES, max_size=5))
def test_values_come_back(name: str, values: list[Any]) -> None:
    codec = codec_of(name)
    written = encode_all(codec, values)
    assert all(isinstance(each, bytes) for each in written)
    assert decode_all(codec, written) == values


def test_bytes_by_default() -> None:
    codec = codec_of()
    written = encode_all(codec, [b"a", "\u00e9", bytearray(b"b"), memoryview(b"c")])
    assert written == [b"a", b"\xc3\xa9", b"b", b"c"]
    assert all(type(each) is bytes for each in written)
    assert decode_all(codec, [b"a", None, b"\xff"]) == [b"a", None, b"\xff"]


def test_json_is_short_and_readable() -> None:
    assert encode_all(codec_of("json"), [{"a": [1, "\u00e9"]}]) == [b'{"a":[1,"\xc3\xa9"]}']


def test_msgpack_has_bytes_and_keys_that_json_has_not() -> None:
    codec = codec_of("msgpack")
    values = [{1: b"\xff", "a": "text"}]
    assert decode_all(codec, encode_all(codec, values)) == values


def test_what_was_evicted_stays_none() -> None:
    assert decode_all(codec_of("json"), [b"1", None, b"null"]) == [1, None, None]


def loop() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (None, 17, "is a int that cannot be written: expected bytes or str"),
        (None, None, "is a NoneType"),
        (None, "\ud800", "is a str that cannot be written"),
        ("json", {1, 2}, "is a set that cannot be written"),
        ("json", math.nan, "is a float that cannot be written"),
        ("json", "\ud800", "is a str that cannot be written"),
        ("json", loop(), "is a list that cannot be written"),
        ("msgpack", object(), "is a object that cannot be written"),
        ("msgpack", 2**64, "is a int that cannot be written"),
        ("msgpack", loop(), "is a list that cannot be written"),
    ],
)
def test_what_cannot_be_written_is_named(name: str | None, value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"entry 2 of this call {said}"):
        encode_all(codec_of(name), ["a", "b", value, "d"])


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize("data", [b"\xc1", b"", b"[1", b"\x81", b"1 2 3"])
def test_what_was_not_written_so_is_named(name: str, data: bytes) -> None:
    codec = codec_of(name)
    good = encode_all(codec, [1])
    with pytest.raises(UndecodableEntryError, match="entry 42 of the log was not written with"):
        decode_all(codec, [*good, None, data], first=40)


class Reversed:
    def encode(self, value: Any) -> Any:
        return value if isinstance(value, int) else bytes(reversed(value))

    def decode(self, data: bytes) -> Any:
        return bytes(reversed(data))


def test_an_objects_own_way() -> None:
    codec = codec_of(Reversed())
    assert encode_all(codec, [b"abc"]) == [b"cba"]
    assert decode_all(codec, [b"cba", None]) == [b"abc", None]
    with pytest.raises(ConfigurationError, match=r"encode\(\) made a int of entry 1 of this call"):
        encode_all(codec, [b"a", 1])


class Raising:
    """Reads nothing but raises what it was given, as pickle, gzip or a missing key would."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def encode(self, value: Any) -> Any:
        raise self._error

    def decode(self, data: bytes) -> Any:
        raise self._error


OWN_ERRORS = [pickle.UnpicklingError("no"), EOFError(), KeyError("v"), gzip.BadGzipFile("no")]


@pytest.mark.parametrize("error", OWN_ERRORS, ids=repr)
def test_whatever_error_an_objects_own_way_has(error: Exception) -> None:
    with pytest.raises(UndecodableEntryError, match="entry 7 of the log was not") as told:
        decode_all(codec_of(Raising(error)), [b"x"], first=7)
    assert told.value.__cause__ is error
    with pytest.raises(ConfigurationError, match="entry 0 of this call is a int that cannot be"):
        encode_all(codec_of(Raising(error)), [1])


JobTimeoutException = type("JobTimeoutException", (Exception,), {"__module__": "rq.timeouts"})


@pytest.mark.parametrize("error", [JobTimeoutException(), TimeoutError(), MemoryError()], ids=repr)
def test_what_only_hits_a_codec_by_chance_is_no_fault_of_the_entry(error: Exception) -> None:
    codec = codec_of(Raising(error))
    with pytest.raises(type(error)):
        decode_all(codec, [b"x"])
    with pytest.raises(type(error)):
        encode_all(codec, [1])


@pytest.mark.parametrize("wrong", ["yaml", "", 3, object(), Reversed, b"json"])
def test_what_is_no_codec(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected 'json', 'msgpack' or an object"):
        codec_of(wrong)


def test_msgpack_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'workstealing\[log\]'"):
        codec_of("msgpack")
    assert codec_of("json")
