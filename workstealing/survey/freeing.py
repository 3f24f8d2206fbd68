"""The bytes that removing garbage frees.

A key frees all of its bytes. A member frees the mean of its key's elements, corrected by how much
longer or shorter it is than they are. The first entries of a stream, or the lowest members of a
sorted set, free their share of the key's bytes, weighted by the lengths of the first 32 elements
and of the last 32: their variance is that of the ratio of the two means (Cochran, Sampling
Techniques, Wiley 1977, section 6.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from workstealing.jobs.leftovers import Garbage, Item, Parts, Removal
from workstealing.store.connection import Command
from workstealing.store.job_client import Node
from workstealing.store.keys import to_bytes
from workstealing.survey.measuring import NESTED, Measurer, Size, entry_bytes, measuring
from workstealing.survey.scanning import Reader

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
