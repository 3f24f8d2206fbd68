"""The bytes of single keys, and the bytes that removing garbage frees.

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

Garbage that is a key frees all of its bytes. A member frees the mean of its key's elements,
corrected by how much longer or shorter it is than they are. The first entries of a stream, or the
lowest members of a sorted set, free their share of the key's bytes, weighted by the lengths of the
first 32 elements and of the last 32: their variance is that of the ratio of the two means (Cochran,
Sampling Techniques, Wiley 1977, section 6.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from workstealing.jobs.leftovers import Garbage, Item, Parts, Removal
from workstealing.store.connection import Command
from workstealing.store.job_client import Node
from workstealing.store.keys import to_bytes
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


_ENDS = 32
_NONE = Size(0.0, 0.0, 0)


class Freed(NamedTuple):
    """The bytes that removing an item frees. Fields: value; variance: of the value."""

    value: float
    variance: float = 0.0


class Freeing:
    """Tells how many bytes removals free: each key is measured once.

    Arguments:
        lengths: by key, the mean length of its elements.
    """

    def __init__(
        self, reader: Reader, measurer: Measurer, node: Node, lengths: dict[bytes, float]
    ) -> None:
        self._reader, self._measurer, self._node = reader, measurer, node
        self._lengths = lengths
        self._sizes: dict[bytes, Size] = {}
        self._types: dict[bytes, str] = {}

    def measure(self, keys: Iterable[bytes]) -> None:
        """Measure keys. One round trip for each batch, and as `Measurer.nested`."""
        new = [each for each in dict.fromkeys(keys) if each not in self._sizes]
        asked: list[Command] = []
        for key in new:
            asked += [measuring(key), ("TYPE", key)]
        replies = self._reader.read(self._node, asked)
        nested: list[tuple[bytes, str, int]] = []
        for key, size, told in zip(new, replies[::2], replies[1::2], strict=True):
            of_type = "" if isinstance(told, Exception) else to_bytes(told).decode()
            self._types[key] = of_type
            self._sizes[key] = Size(float(size)) if isinstance(size, int) else _NONE
            if isinstance(size, int) and of_type in NESTED:
                nested.append((key, of_type, size))
        sizes = self._measurer.nested(self._node, nested)
        self._sizes |= {key: each for (key, _, _), each in zip(nested, sizes, strict=True)}

    def of(self, garbage: Garbage) -> Freed:
        """Return the bytes that removals free, all of them measured before."""
        found = [self._of(each) for each in garbage.removals]
        return Freed(sum(each.value for each in found), sum(each.variance for each in found))

    def of_parts(self, item: Item, parts: Parts) -> Freed | None:
        """Return the bytes that a rule's script frees; None: nobody knows.

        One round trip for a stream or a sorted set.
        """
        size, of_type = self._sizes.get(item.key, _NONE), self._types.get(item.key, "")
        if not size.value or not parts.of:
            return None
        if item.member is not None:
            elements = size.elements or 1
            return self._member(item.key, len(item.member) + len(item.value or b""), elements)
        ends = self._ends(item.key, of_type)
        share = parts.number / parts.of
        whole = Freed(size.value * share, size.variance * share * share)
        if ends is None or share >= 1.0:
            return whole
        first, last = ends
        front, rest = parts.number * fmean(first), (parts.of - parts.number) * fmean(last)
        if not front + rest:
            return whole
        share = front / (front + rest)
        spread = share * (1.0 - share)
        relative = _of_mean(first) + _of_mean(last)
        about = size.value * size.value * spread * spread * relative
        return Freed(size.value * share, size.variance * share * share + about)

    def _of(self, removal: Removal) -> Freed:
        size = self._sizes.get(removal.key, _NONE)
        if removal.type is None:
            return Freed(size.value, size.variance)
        return self._member(removal.key, len(removal.member), size.elements or 1)

    def _member(self, key: bytes, length: int, elements: int) -> Freed:
        size = self._sizes.get(key, _NONE)
        longer = length - self._lengths.get(key, float(length))
        # The members of a key have its uncertainty in common: n of them have n^2 times that of one.
        return Freed(max(0.0, size.value / elements + longer), size.variance / elements)

    def _ends(self, key: bytes, of_type: str) -> tuple[list[float], list[float]] | None:
        if of_type == "stream":
            asked: list[Command] = [
                ("XRANGE", key, "-", "+", "COUNT", _ENDS),
                ("XREVRANGE", key, "+", "-", "COUNT", _ENDS),
            ]
        elif of_type == "zset":
            asked = [("ZRANGE", key, 0, _ENDS - 1), ("ZRANGE", key, -_ENDS, -1)]
        else:
            return None
        replies = self._reader.read(self._node, asked)
        if any(not isinstance(each, list) or not each for each in replies):
            return None
        first, last = (
            [entry_bytes(one) if of_type == "stream" else float(len(one)) for one in each]
            for each in replies
        )
        return first, last


def _of_mean(lengths: Sequence[Any]) -> float:
    """Return the variance of a mean, relative to its square."""
    mean = fmean(lengths)
    if len(lengths) < 2 or not mean:
        return 0.0
    return float(variance(lengths) / len(lengths) / mean**2)
