"""What Redis 8 does to hashes and their fields, in pure Python: it stands in where no Redis 8 is.

`ModelHashes` answers redis-py's methods as a client on a Redis 8 does that has collected all its
garbage at once. It is itself tested, by the machine that compares it with the emulated hashes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from redis.exceptions import ResponseError

from workstealing.structures.volatile_hashes.surface import BlockingHashSurface

LAST_DEADLINE = 2**46 - 1
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_INTEGER = "value is not an integer or out of range"
_UNITS = {"EX": (1000, True), "PX": (1, True), "EXAT": (1000, False), "PXAT": (1, False)}
_AMOUNT = {"EXPIRE": (1000, True), "PEXPIRE": (1, True), "EXPIREAT": (1000, False)}
_AMOUNT["PEXPIREAT"] = (1, False)


def now_ms() -> int:
    """The clock that servers on this machine go by."""
    return time.time_ns() // 1_000_000


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def integer(value: Any) -> int:
    text = as_bytes(value)
    if not re.fullmatch(rb"0|-?[1-9][0-9]*", text) or not -(2**63) <= int(text) < 2**63:
        raise ResponseError(NO_INTEGER)
    return int(text)


class ModelHash:
    """The values and deadlines of one hash, and the deadline of the whole."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.deadlines: dict[bytes, int] = {}
        self.end: int | None = None

    def drop(self, field: bytes) -> bytes | None:
        self.deadlines.pop(field, None)
        return self.values.pop(field, None)

    def clone(self) -> ModelHash:
        other = ModelHash()
        other.values, other.deadlines, other.end = dict(self.values), dict(self.deadlines), self.end
        return other


class ModelHashes(BlockingHashSurface):
    """A server of hashes and of strings, by redis-py's methods."""

    def __init__(self) -> None:
        self.keys: dict[bytes, ModelHash | bytes] = {}
        self.now = 0

    # The few commands of a plain client that the machine needs.

    def set(self, name: Any, value: Any) -> None:
        self.keys[as_bytes(name)] = as_bytes(value)

    def type(self, name: Any) -> bytes:
        self._collect()
        found = self.keys.get(as_bytes(name))
        return b"none" if found is None else b"hash" if isinstance(found, ModelHash) else b"string"

    def delete(self, *names: Any) -> int:
        self._collect()
        return sum(self.keys.pop(as_bytes(name), None) is not None for name in names)

    def flushdb(self) -> None:
        self.keys.clear()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._collect()
        word = args[0]
        operation: Callable[..., Any] = getattr(self, f"_{word.lower()}", self._other)
        try:
            return operation(word, *args[1:], **options)
        finally:
            self._collect()

    def _collect(self) -> None:
        self.now = now_ms()
        for name, found in list(self.keys.items()):
            if isinstance(found, bytes):
                continue
            for field in [f for f, at in found.deadlines.items() if at <= self.now]:
                found.drop(field)
            if not found.values or (found.end is not None and found.end <= self.now):
                del self.keys[name]

    def _hash(self, name: Any) -> ModelHash:
        """The hash of that name; a new one, known to nobody yet, if there is none."""
        found = self.keys.get(as_bytes(name), None)
        if isinstance(found, bytes):
            raise ResponseError(WRONG_TYPE)
        return ModelHash() if found is None else found

    def _deadline(self, word: str, amount: Any, unit: int, is_relative: bool) -> int:
        number = integer(amount)
        if number < 0:
            raise ResponseError("invalid expire time, must be >= 0")
        at = number * unit + (self.now if is_relative else 0)
        if at > LAST_DEADLINE:
            raise ResponseError(f"invalid expire time in '{word.lower()}' command")
        return at

    def _options(self, word: str, args: Sequence[Any]) -> tuple[int | None, set[str], list[bytes]]:
        at, flags, i = None, set(), 0
        while args[i] != "FIELDS":
            if args[i] in _UNITS:
                at = self._deadline(word, args[i + 1], *_UNITS[args[i]])
                i += 1
            else:
                flags.add(args[i])
            i += 1
        return at, flags, self._fields(word, args[i:])

    @staticmethod
    def _fields(word: str, args: Sequence[Any]) -> list[bytes]:
        if len(args) < 3:
            raise ResponseError(f"wrong number of arguments for '{word.lower()}' command")
        return [as_bytes(field) for field in args[2:]]

    # Values.

    def _hset(self, _: str, name: Any, *pairs: Any) -> int:
        found = self._hash(name)
        before = len(found.values)
        self._put(found, [as_bytes(item) for item in pairs])
        self.keys[as_bytes(name)] = found
        return len(found.values) - before

    def _hmset(self, word: str, name: Any, *pairs: Any) -> bool:
        return self._hset(word, name, *pairs) >= 0

    @staticmethod
    def _put(found: ModelHash, pairs: list[bytes], keep: bool = False) -> None:
        for field, value in zip(pairs[::2], pairs[1::2], strict=True):
            found.values[field] = value
            if not keep:
                found.deadlines.pop(field, None)

    def _hsetex(self, word: str, name: Any, *args: Any) -> int:
        at, flags, pairs = self._options(word, args)
        found = self._hash(name)
        known = [field in found.values for field in pairs[::2]]
        if ("FNX" in flags and any(known)) or ("FXX" in flags and not all(known)):
            return 0
        self._put(found, pairs, "KEEPTTL" in flags)
        if at is not None:
            found.deadlines.update(dict.fromkeys(pairs[::2], at))
        self.keys[as_bytes(name)] = found
        return 1

    def _hsetnx(self, word: str, name: Any, field: Any, value: Any) -> int:
        return (
            0
            if as_bytes(field) in self._hash(name).values
            else self._hset(word, name, field, value)
        )

    def _hget(self, _: str, name: Any, field: Any, **__: Any) -> bytes | None:
        return self._hash(name).values.get(as_bytes(field))

    def _hmget(self, word: str, name: Any, *fields: Any, **_: Any) -> list[bytes | None]:
        if not fields:
            raise ResponseError(f"wrong number of arguments for '{word.lower()}' command")
        found = self._hash(name)
        return [found.values.get(as_bytes(field)) for field in fields]

    def _hgetex(self, word: str, name: Any, *args: Any) -> list[bytes | None]:
        found = self._hash(name)
        at, flags, fields = self._options(word, args)
        replies = []
        for field in fields:
            replies.append(found.values.get(field))
            if field in found.values and at is not None:
                found.deadlines[field] = at
                if at <= self.now:
                    found.drop(field)
            elif "PERSIST" in flags:
                found.deadlines.pop(field, None)
        return replies

    def _hgetdel(self, word: str, name: Any, *args: Any) -> list[bytes | None]:
        found = self._hash(name)
        return [found.drop(field) for field in self._fields(word, args)]

    def _hdel(self, word: str, name: Any, *fields: Any) -> int:
        if not fields:
            raise ResponseError(f"wrong number of arguments for '{word.lower()}' command")
        found = self._hash(name)
        return sum(found.drop(as_bytes(field)) is not None for field in fields)

    def _hgetall(self, _: str, name: Any, **__: Any) -> dict[bytes, bytes]:
        return dict(self._hash(name).values)

    def _hkeys(self, _: str, name: Any, **__: Any) -> list[bytes]:
        return list(self._hash(name).values)

    def _hvals(self, _: str, name: Any, **__: Any) -> list[bytes]:
        return list(self._hash(name).values.values())

    def _hlen(self, _: str, name: Any, **__: Any) -> int:
        return len(self._hash(name).values)

    def _hexists(self, _: str, name: Any, field: Any, **__: Any) -> bool:
        return as_bytes(field) in self._hash(name).values

    def _hstrlen(self, _: str, name: Any, field: Any, **__: Any) -> int:
        return len(self._hash(name).values.get(as_bytes(field), b""))

    def _hincrby(self, _: str, name: Any, field: Any, amount: Any) -> int:
        number = integer(amount)
        found = self._hash(name)
        try:
            value = integer(found.values.get(as_bytes(field), b"0"))
        except ResponseError:
            raise ResponseError("hash value is not an integer") from None
        if not -(2**63) <= value + number < 2**63:
            raise ResponseError("increment or decrement would overflow")
        self._put(found, [as_bytes(field), as_bytes(value + number)], keep=True)
        self.keys[as_bytes(name)] = found
        return value + number

    def _hincrbyfloat(self, _: str, name: Any, field: Any, amount: Any) -> float:
        number = self._decimal(amount, "value is not a valid float")
        if number.is_nan():
            raise ResponseError("value is not a valid float")
        found = self._hash(name)
        value = self._decimal(found.values.get(as_bytes(field), b"0"), "hash value is not a float")
        if not (value + number).is_finite():
            raise ResponseError("value is NaN or Infinity")
        text = f"{value + number:.17f}".rstrip("0").rstrip(".").encode()
        self._put(found, [as_bytes(field), text], keep=True)
        self.keys[as_bytes(name)] = found
        return float(text)

    @staticmethod
    def _decimal(value: Any, problem: str) -> Decimal:
        try:
            return Decimal(as_bytes(value).decode("latin-1"))
        except InvalidOperation:
            raise ResponseError(problem) from None

    def _hscan(self, _: str, name: Any, cursor: Any, *args: Any, **options: Any) -> Any:
        if not as_bytes(cursor).isdigit():
            raise ResponseError("invalid cursor")
        words = [as_bytes(word).upper() for word in args]
        found = self._hash(name).values
        if found and b"COUNT" in words and integer(args[words.index(b"COUNT") + 1]) < 1:
            raise ResponseError("syntax error")
        if b"MATCH" in words:
            pattern = as_bytes(args[words.index(b"MATCH") + 1]).replace(b"*", b".*")
            found = {f: v for f, v in found.items() if re.fullmatch(pattern, f, re.DOTALL)}
        return (0, list(found)) if options.get("no_values") else (0, dict(found))

    def _hrandfield(self, _: str, name: Any, *args: Any, **__: Any) -> Any:
        count = integer(args[0]) if args else None
        if count == -(2**63):
            raise ResponseError(
                f"value is out of range, value must between {1 - 2**63} and {2**63 - 1}"
            )
        pairs = list(self._hash(name).values.items())
        if count is None:
            return pairs[0][0] if pairs else None
        chosen = pairs[:count] if count >= 0 else (pairs * -count)[:-count]
        return [x for pair in chosen for x in (pair if len(args) > 1 else pair[:1])]

    # Deadlines of fields.

    def _other(self, word: str, name: Any, *args: Any, **_: Any) -> Any:
        if word in ("HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT"):
            return self._expire_fields(word, name, *args)
        if word in ("HTTL", "HPTTL", "HEXPIRETIME", "HPEXPIRETIME"):
            found = self._hash(name)
            return [
                self._time(word[1:], found.deadlines.get(f)) if f in found.values else -2
                for f in self._fields(word, args)
            ]
        if word in _AMOUNT:
            return self._expire_hash(word, name, *args)
        assert word in ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"), word
        whole = self.keys.get(as_bytes(name))
        if whole is None:
            return -2
        return self._time(word, whole.end if isinstance(whole, ModelHash) else None)

    def _time(self, word: str, at: int | None) -> int:
        if at is None:
            return -1
        return (
            at - self.now
            if word == "PTTL"
            else at
            if word == "PEXPIRETIME"
            else (math.ceil((at - self.now) / 1000) if word == "TTL" else math.ceil(at / 1000))
        )

    def _expire_fields(self, word: str, name: Any, amount: Any, *args: Any) -> list[int]:
        found = self._hash(name)
        at = self._deadline(word, amount, *_AMOUNT[word[1:]])
        condition = args[0] if args[0] != "FIELDS" else None
        return [
            self._expire_field(found, field, at, condition)
            for field in self._fields(word, args[0 if condition is None else 1 :])
        ]

    def _expire_field(self, found: ModelHash, field: bytes, at: int, condition: str | None) -> int:
        if field not in found.values:
            return -2
        if not self._is_met(condition, found.deadlines.get(field), at):
            return 0
        found.deadlines[field] = at
        if at > self.now:
            return 1
        found.drop(field)
        return 2

    @staticmethod
    def _is_met(condition: str | None, current: int | None, at: int) -> bool:
        return {
            None: True,
            "NX": current is None,
            "XX": current is not None,
            "GT": current is not None and at > current,
            "LT": current is None or at < current,
        }[condition]

    def _hpersist(self, word: str, name: Any, *args: Any) -> list[int]:
        found = self._hash(name)
        return [
            -2
            if field not in found.values
            else -1
            if found.deadlines.pop(field, None) is None
            else 1
            for field in self._fields(word, args)
        ]

    # Whole keys.

    def _expire_hash(self, word: str, name: Any, amount: Any, condition: str | None = None) -> bool:
        unit, is_relative = _AMOUNT[word]
        at = integer(amount) * unit
        if not -(2**63) <= at + self.now < 2**63:
            raise ResponseError(f"invalid expire time in '{word.lower()}' command")
        at += self.now if is_relative else 0
        found = self.keys.get(as_bytes(name))
        if not isinstance(found, ModelHash) or not self._is_met(condition, found.end, at):
            return False
        found.end = at
        return True

    def _persist(self, _: str, name: Any) -> bool:
        found = self.keys.get(as_bytes(name))
        if not isinstance(found, ModelHash) or found.end is None:
            return False
        found.end = None
        return True

    def _del(self, _: str, name: Any) -> int:
        return int(self.keys.pop(as_bytes(name), None) is not None)

    _unlink = _del

    def _exists(self, _: str, name: Any, **__: Any) -> int:
        return int(as_bytes(name) in self.keys)

    def _rename(self, _: str, source: Any, target: Any) -> bool:
        if as_bytes(source) not in self.keys:
            raise ResponseError("no such key")
        self.keys[as_bytes(target)] = self.keys.pop(as_bytes(source))
        return True

    def _renamenx(self, word: str, source: Any, target: Any) -> bool:
        if as_bytes(source) in self.keys and as_bytes(target) in self.keys:
            return False
        return self._rename(word, source, target)

    def _copy(self, _: str, source: Any, target: Any, *replace: Any) -> bool:
        if as_bytes(source) == as_bytes(target):
            raise ResponseError("source and destination objects are the same")
        found = self.keys.get(as_bytes(source))
        if found is None or (as_bytes(target) in self.keys and not replace):
            return False
        self.keys[as_bytes(target)] = found if isinstance(found, bytes) else found.clone()
        return True
