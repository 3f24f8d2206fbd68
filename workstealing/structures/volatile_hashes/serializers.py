"""How values stand in a field: by which serializer, in which version. No I/O.

A stored value begins with its mark, `#msgpack1:`, so a process reads its own serializer's values
alone, and a pickle is loaded only where pickle was chosen. The default serializer of each kind of
cache has no mark in its first version: former releases wrote no mark, and processes of old and new
releases read each other's values. `#` begins neither a JSON text nor a pickle.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from workstealing.errors import ConfigurationError, MissingExtraError

SerializerName = Literal["json", "msgpack", "pickle"]
_NAME = re.compile(r"[a-z][a-z_-]{0,31}")
_MARK_BEGINS, _MARK_ENDS = b"#", b":"
# No name is so long; what stands there without an end is no mark.
_LONGEST_MARK = 64
_DIGITS = b"-0123456789"
_SIGNED_64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Serializer:
    """Two functions, with the name and the version that stand before each value in Redis.

    Arguments:
        name: 1 to 32 of a to z, `-` and `_`.
        dumps: makes str or bytes of a value.
        loads: its inverse for bytes.
        version: from 1 on.

    A value of another name or version counts as missing, so a new version forgets what the former
    one wrote. Raises: ConfigurationError.
    """

    name: str
    dumps: Callable[[Any], str | bytes]
    loads: Callable[[bytes], Any]
    version: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ConfigurationError(
                f"the serializer's name is {self.name!r}; expected 1 to 32 of a to z, - and _"
            )
        if not (type(self.version) is int and 1 <= self.version < 2**31):
            raise ConfigurationError(
                f"the version of serializer {self.name!r} is {self.version!r}; expected a whole"
                " number from 1 on"
            )
        if not (callable(self.dumps) and callable(self.loads)):
            raise ConfigurationError(
                f"dumps and loads of serializer {self.name!r} must be functions of one argument"
            )


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


JSON = Serializer("json", compact, json.loads)
# The bytes of pickle name their protocol, which is its version.
PICKLE = Serializer("pickle", _pickled, pickle.loads)


def _msgpack() -> Serializer:
    try:
        import msgpack
    except ModuleNotFoundError as error:
        if error.name != "msgpack":
            raise
        raise MissingExtraError("msgpack", "msgpack") from error

    return Serializer(
        "msgpack",
        msgpack.packb,
        lambda data: msgpack.unpackb(data, strict_map_key=False),
    )


_BY_NAME: dict[str, Callable[[], Serializer]] = {
    "json": lambda: JSON,
    "msgpack": _msgpack,
    "pickle": lambda: PICKLE,
}


def checked_serializer(given: object) -> Serializer:
    """Return a serializer by its name, or the given one.

    Raises: ConfigurationError for anything else; MissingExtraError if msgpack is not installed.
    """
    if isinstance(given, Serializer):
        return given
    make = _BY_NAME.get(given) if isinstance(given, str) else None
    if make is None:
        raise ConfigurationError(
            f'serializer={given!r} is none: give "json", "msgpack", "pickle", or a Serializer'
        )
    return make()


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How one cache's values stand in Redis.

    Arguments:
        default: the serializer of such caches whose first version has no mark.
        counts: whether whole numbers of 64 bits are digits, so that Redis can count on them.
    """

    serializer: Serializer
    default: Serializer = JSON
    counts: bool = False
    _mark: bytes = field(init=False)

    def __post_init__(self) -> None:
        named = f"#{self.serializer.name}{self.serializer.version}:".encode()
        mark = b"" if self.serializer == self.default else named
        object.__setattr__(self, "_mark", mark)

    def encode(self, value: Any) -> bytes:
        """Return a value's bytes. Raises: the errors of the serializer."""
        if self.counts and type(value) is int and value in _SIGNED_64:
            return b"%d" % value
        content = self.serializer.dumps(value)
        return self._mark + (content.encode() if isinstance(content, str) else bytes(content))

    def decode(self, data: bytes) -> Any:
        """Return the value of `encode`'s bytes.

        Raises: ValueError for bytes of another serializer or version, which are not looked into;
        any error of the serializer for damaged bytes.
        """
        if self.counts and data[:1] in _DIGITS:
            return int(data)
        mark = b""
        if data[:1] == _MARK_BEGINS:
            mark = data[: data.find(_MARK_ENDS, 0, _LONGEST_MARK) + 1]
        if mark != self._mark:
            raise ValueError(
                f"it was written by {_shown(mark, self.default)}, and this cache reads"
                f" {_shown(self._mark, self.default)}"
            )
        return self.serializer.loads(data[len(mark) :] if mark else data)


def _shown(mark: bytes, default: Serializer) -> str:
    text = mark[1:-1].decode("ascii", "replace")
    return f"serializer {text or default.name}" if text or not mark else "an unknown serializer"
