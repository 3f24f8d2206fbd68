"""The bytes of single keys: exact for most, and with an interval for those with many elements.

MEMORY USAGE counts some elements of a key, by default five, and takes them for all. A key of 512
elements or fewer is counted whole. Of a larger one 512 are counted, and an interval of 95 % says
how far the others may differ:

- A hash or a set: the server counts elements in the order of its hash table, which is as good as
  random. The variance of their mean is s^2 / 512, where s is the standard deviation of the lengths
  of 128 random elements.
- A sorted set: the server counts those with the lowest scores. The figure is corrected by the
  difference of their mean length and that of 128 random ones (a difference estimator: Cochran,
  Sampling Techniques, Wiley 1977, section 7.2), whose variance is s^2 / 128.
- A list or a stream: the server counts the first 512 of its blocks of elements, and nobody tells
  how many elements that are. 64 random elements (of a stream: those behind 64 random moments) and
  the first 64 tell by how much the rest may differ. The interval is as wide as that difference, and
  1.96 of its standard errors more.

Where the server refuses such a look, elements count as varying as much as their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from workstealing.store.connection import Command
from workstealing.store.job_client import Node
from workstealing.survey.scanning import Reader
from workstealing.survey.sizing import NORMAL

WHOLE = 512
"""The elements of a key, or the blocks of a stream or list, that the server counts."""

NESTED = ("hash", "set", "zset", "list", "stream")
SMALL_BYTES = 1_024
"""A key below that has no more elements than the server counts: each takes two bytes or more."""

_RANDOM, _PLACES = 128, 64
_COUNTS = {"hash": "HLEN", "set": "SCARD", "zset": "ZCARD", "list": "LLEN"}
_ID_BYTES = 8


def measuring(key: bytes) -> Command:
    """Return the command that tells the bytes of a key, by 512 of its elements."""
    return ("MEMORY", "USAGE", key, "SAMPLES", WHOLE)


class Size(NamedTuple):
    """The bytes of a key. Fields: value; variance: of the value; elements: None: nobody knows."""

    value: float
    variance: float = 0.0
    elements: int | None = None


class Measurer:
    """Measures keys with elements.

    Arguments:
        random: returns a float in [0, 1).
    """

    def __init__(self, reader: Reader, random: Callable[[], float]) -> None:
        self._reader, self._random = reader, random

    def nested(self, node: Node, keys: Sequence[tuple[bytes, str, int]]) -> list[Size]:
        """Return the sizes of keys whose type is one of NESTED.

        Arguments:
            keys: each with its type, and the bytes that `measuring` has told.

        Raises: connection faults. One round trip, and one for each large key.
        """
        replies = self._reader.read(
            node,
            [
                ("XINFO", "STREAM", key) if of_type == "stream" else (_COUNTS[of_type], key)
                for key, of_type, _ in keys
            ],
        )
        found: list[Size] = []
        for (key, of_type, told), reply in zip(keys, replies, strict=True):
            count, counted = _count(of_type, reply)
            size = Size(float(told), 0.0, count)
            if counted is None or counted > WHOLE:
                size = self._large(node, key, of_type, size, reply)
            found.append(size)
        return found

    def _large(self, node: Node, key: bytes, of_type: str, size: Size, told: Any) -> Size:
        """Return the bytes of a key of which the server has counted a part."""
        count = size.elements
        if count is None:
            self._reader.note("the number of some keys' elements is refused: their bytes are vague")
            return size._replace(variance=_vague(size.value, WHOLE))
        looks = self._looks(key, of_type, count, told)
        replies = self._reader.read(node, looks)
        if any(isinstance(each, Exception) for each in replies):
            self._reader.note(
                f"{looks[0][0]} is refused: how exactly large keys are measured is a guess"
            )
            return size._replace(variance=_vague(size.value, WHOLE))
        random, front = _lengths(of_type, replies)
        if len(random) < 2:
            return size._replace(variance=_vague(size.value, WHOLE))
        spread = variance(random)
        if of_type in ("hash", "set"):
            left = max(0.0, 1.0 - WHOLE / count)
            return size._replace(variance=count**2 * spread / WHOLE * left)
        differ = fmean(random) - fmean(front or random)
        if of_type == "zset":
            value = max(0.0, size.value + count * differ)
            return size._replace(value=value, variance=count**2 * spread / len(random))
        other = variance(front) / len(front) if len(front) > 1 else 0.0
        error = math.sqrt(spread / len(random) + other)
        mean = max(1.0, fmean(front or random))
        half = size.value * (abs(differ) + NORMAL * error) / mean
        return size._replace(variance=(half / NORMAL) ** 2)

    def _looks(self, key: bytes, of_type: str, count: int, told: Any) -> list[Command]:
        """Return the commands that read random elements of a key, and the first ones."""
        if of_type == "hash":
            return [("HRANDFIELD", key, -_RANDOM, "WITHVALUES")]
        if of_type == "set":
            return [("SRANDMEMBER", key, -_RANDOM)]
        if of_type == "zset":
            return [("ZRANDMEMBER", key, -_RANDOM), ("ZRANGE", key, 0, WHOLE - 1)]
        places = [self._random() for _ in range(_PLACES)]
        if of_type == "list":
            at = [int(each * count) for each in places]
            return [*(("LINDEX", key, each) for each in at), ("LRANGE", key, 0, _PLACES - 1)]
        about = _about(told)
        first, last = (_ms(about[name][0]) for name in (b"first-entry", b"last-entry"))
        moments = [b"%d-0" % int(first + each * (last - first)) for each in places]
        return [
            *(("XRANGE", key, each, "+", "COUNT", 1) for each in moments),
            ("XRANGE", key, "-", "+", "COUNT", _PLACES),
        ]


def _count(of_type: str, told: Any) -> tuple[int | None, int | None]:
    """Return how many elements a key has, and how many things the server would have to count."""
    if of_type != "stream":
        return (told, told) if isinstance(told, int) else (None, None)
    if not isinstance(told, list):
        return None, None
    about = _about(told)
    return int(about[b"length"]), int(about[b"radix-tree-keys"])


def _lengths(of_type: str, replies: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the lengths of random elements, and those of the first ones."""
    if of_type == "hash":
        (pairs,) = replies
        fields = zip(pairs[::2], pairs[1::2], strict=True)
        return [float(len(field) + len(value)) for field, value in fields], []
    if of_type == "set":
        return [float(len(each)) for each in replies[0]], []
    if of_type == "zset":
        random, front = replies
        return [float(len(each)) for each in random], [float(len(each)) for each in front]
    *some, front = replies
    if of_type == "list":
        return [float(len(each)) for each in some if each is not None], [
            float(len(each)) for each in front
        ]
    random = [entry_bytes(page[0]) for page in some if page]
    return random, [entry_bytes(each) for each in front]


def entry_bytes(entry: Any) -> float:
    """Return the bytes of the fields of a stream's entry, and some for its id."""
    return float(_ID_BYTES + sum(map(len, entry[1] or ())))


def _about(reply: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _ms(number: bytes) -> int:
    return int(number.partition(b"-")[0])


def _vague(size: float, counted: int) -> float:
    """Return the variance of a size whose elements vary as much as their mean."""
    return size**2 / counted
