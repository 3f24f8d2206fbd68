"""How entries become bytes and values again: as they are, JSON, msgpack, or an object's own way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from workstealing.errors import ConfigurationError, MissingExtraError, UndecodableEntryError
from workstealing.recruiting.faults import HostTimeouts

__all__ = ["Codec", "codec_of", "decode_all", "encode_all"]


@runtime_checkable
class Codec(Protocol):
    """An object with these two methods, which `codec_of` takes."""

    def encode(self, value: Any, /) -> bytes:
        """Return the value as bytes; raise an error for a value that it cannot write."""

    def decode(self, data: bytes, /) -> Any:
        """Return the value that these bytes stand for; raise an error for others."""


class BytesCodec:
    """Entries are bytes; text is written as UTF-8, and read back as bytes."""

    def encode(self, value: Any) -> bytes:
        """Return bytes, a bytearray, a memoryview or a str as bytes.

        Raises: TypeError for others.
        """
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise TypeError("expected bytes or str; for other values make the log with codec='json'")

    def decode(self, data: bytes) -> bytes:
        """Return the bytes as they are."""
        return data


class JsonCodec:
    """Entries are JSON, as short as possible, in UTF-8; NaN and infinities are refused."""

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(
            separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode

    def encode(self, value: Any) -> bytes:
        """Return the value as JSON.

        Raises: TypeError, ValueError or RecursionError if the value has no JSON text.
        """
        return self._encode(value).encode()

    def decode(self, data: bytes) -> Any:
        """Return the value of a JSON text. Raises: ValueError for any other."""
        return json.loads(data)


class MsgpackCodec:
    """Entries are msgpack. Raises: MissingExtraError without the extra ``log``."""

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as error:
            raise MissingExtraError("log", "msgpack") from error
        self._pack = msgpack.packb
        self._unpack = msgpack.unpackb

    def encode(self, value: Any) -> bytes:
        """Return the value as msgpack.

        Raises: TypeError, ValueError or OverflowError if msgpack cannot hold the value.
        """
        packed: bytes = self._pack(value)
        return packed

    def decode(self, data: bytes) -> Any:
        """Return the value of one msgpack object. Raises: ValueError for anything else."""
        return self._unpack(data, strict_map_key=False)


_BYTES = BytesCodec()
_NAMED: dict[str, Callable[[], Codec]] = {"json": JsonCodec, "msgpack": MsgpackCodec}


def codec_of(codec: Any = None) -> Codec:
    """Return the codec that a log's argument ``codec`` asks for.

    Arguments:
        codec: None for bytes; ``"json"``; ``"msgpack"``; or an object with encode() and decode().

    Raises: ConfigurationError; MissingExtraError for ``"msgpack"`` without the extra ``log``. No
    command.
    """
    if codec is None:
        return _BYTES
    if isinstance(codec, str):
        if codec not in _NAMED:
            raise ConfigurationError(
                f"codec is {codec!r}; expected 'json', 'msgpack' or an object with encode() and"
                " decode()"
            )
        return _NAMED[codec]()
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise ConfigurationError(
            f"codec is {codec!r}; expected 'json', 'msgpack' or an object with encode() and"
            " decode()"
        )
    return codec


def encode_all(codec: Codec, entries: Iterable[Any]) -> list[bytes]:
    """Return the entries as bytes, all of them or none.

    Arguments:
        codec: of `codec_of`.
        entries: values in the log's order.

    Raises: ConfigurationError that names the place in the call of an entry that the codec cannot
    write. O(entries).
    """
    encode = codec.encode
    found = []
    value: Any = None
    try:
        for value in entries:
            found.append(encode(value))
    # Any error that a codec may raise for a value that it cannot write.
    except Exception as error:
        if _is_by_chance(error):
            raise
        raise ConfigurationError(
            f"entry {len(found)} of this call is a {type(value).__name__} that cannot be written:"
            f" {error}"
        ) from error
    if codec is not _BYTES:
        for place, data in enumerate(found):
            if not isinstance(data, bytes):
                raise ConfigurationError(
                    f"the codec's encode() made a {type(data).__name__} of entry {place} of this"
                    " call; expected bytes"
                )
    return found


def decode_all(codec: Codec, entries: Sequence[bytes | None], first: int = 0) -> list[Any]:
    """Return the values of entries that were read; None, an evicted entry, stays None.

    Arguments:
        codec: of `codec_of`.
        entries: as read.
        first: the offset of the first one, for the error's text.

    Raises: UndecodableEntryError that names the offset. O(entries).
    """
    if codec is _BYTES:
        return list(entries)
    decode = codec.decode
    found = []
    try:
        for data in entries:
            found.append(None if data is None else decode(data))  # noqa: PERF401 - how many there are is asked on the way
    except Exception as error:
        if _is_by_chance(error):
            raise
        raise UndecodableEntryError(
            f"entry {first + len(found)} of the log was not written with this codec: {error}; read"
            " it with a Log without codec= to see its bytes"
        ) from error
    return found


def _is_by_chance(error: Exception) -> bool:
    """Whether an error has nothing to do with the entry at which it came."""
    return isinstance(error, TimeoutError | MemoryError) or HostTimeouts().include(error)
