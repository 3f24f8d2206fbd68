"""Filters that Spark hands to a batch source: those that it keeps itself, and the others.

A filter may be kept from Spark only if the source leaves out every row that it refuses. So a reader
names, for each column, the kinds of filters that it applies exactly; all others go back to Spark.
Columns here are never null, so that "is not null" is kept by doing nothing.

Spark asks only where `spark.sql.python.filterPushdown.enabled` is true. Where it is not, it refuses
readers that have a `pushFilters` of their own; ours are read all the same, and Spark applies every
filter itself.

Spark 4.1 to 4.3 hands a read with its filters on to all other queries on the same DataFrame, which
then lack rows. So nothing is taken there but by the option `pushFilters`, for a DataFrame that one
query uses.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from workstealing.spark.sources.compat import DataSourceReader

logger = logging.getLogger("workstealing.spark")
SETTING = "spark.sql.python.filterPushdown.enabled"

# The version that can push limits has mended it.
KEEPS_READS_APART = hasattr(DataSourceReader, "pushLimit")

# The Python types of a column's values, as filters have them.
TEXT, BYTES, NUMBER, FLAG = str, bytes, int, bool


@dataclass(frozen=True)
class Wanted:
    """The values of one column that filters let pass.

    Fields: values: these alone, None for all; prefix: a text that each begins with; least, most:
    the smallest and the largest number, None without such a bound.
    """

    values: frozenset[Any] | None = None
    prefix: str = ""
    least: int | None = None
    most: int | None = None

    def lets_pass(self, value: Any) -> bool:
        """Say whether a value is wanted."""
        return (
            (self.values is None or value in self.values)
            and (not self.prefix or value.startswith(self.prefix))
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
        )

    def only(self, values: Iterable[Any]) -> Wanted:
        """Return this `Wanted`, restricted to the given values."""
        given = frozenset(values)
        return replace(self, values=given if self.values is None else self.values & given)

    def beginning(self, prefix: str) -> Wanted:
        """Return this with no values but those that begin with a text."""
        if self.prefix.startswith(prefix):
            return self
        # Of two beginnings the longer one, unless no text has both.
        return replace(self if prefix.startswith(self.prefix) else self.only(()), prefix=prefix)

    def within(self, least: int | None, most: int | None) -> Wanted:
        """Return this with no numbers outside of bounds, which belong to it."""
        lows = [each for each in (self.least, least) if each is not None]
        highs = [each for each in (self.most, most) if each is not None]
        return replace(self, least=max(lows) if lows else None, most=min(highs) if highs else None)

    def chosen(self) -> frozenset[Any] | None:
        """Return the wanted values one by one, None where they are not named."""
        if self.values is None:
            return None
        return frozenset(filter(self.lets_pass, self.values))


ANYTHING = Wanted()


@dataclass(frozen=True)
class Column:
    """A column by which a source can choose its rows.

    Fields: kind: the type of its values, one of TEXT, BYTES, NUMBER and FLAG; prefix, bounds:
    whether the source chooses by the beginning of a text, and by a least and a most number, too.
    """

    kind: type
    prefix: bool = False
    bounds: bool = False


def sorted_out(
    filters: Iterable[Any], columns: Mapping[str, Column]
) -> tuple[dict[str, Wanted], list[Any]]:
    """Return what is wanted of each column, and the filters that Spark must apply.

    Arguments:
        filters: as `pushFilters` is given them, all of which hold.
        columns: by which the source chooses, by their names.

    Returns: column -> `Wanted`, for columns with filters; and the filters, the very same objects,
    that the source does not apply.
    """
    wanted: dict[str, Wanted] = {}
    left = []
    for each in filters:
        # A path: of a part of a column it has several names.
        name = ".".join(getattr(each, "attribute", ()))
        before = wanted.get(name, ANYTHING)
        after = _narrowed(before, each, columns[name]) if name in columns else None
        if after is None:
            left.append(each)
        elif after is not before:
            wanted[name] = after
    return wanted, left


def _narrowed(wanted: Wanted, each: Any, column: Column) -> Wanted | None:
    """Return what a filter leaves of a column, None if the source cannot apply it."""
    # By name: PySpark 4.0 has no such classes.
    kind = type(each).__name__
    if kind == "IsNotNull":
        return wanted
    if not hasattr(each, "value"):
        return None
    if kind == "In":
        # A null in the list makes no row pass.
        values = [value for value in each.value if value is not None]
        return wanted.only(values) if all(_is_a(value, column) for value in values) else None
    if not _is_a(each.value, column):
        return None
    if kind in ("EqualTo", "EqualNullSafe"):
        return wanted.only([each.value])
    if kind == "StringStartsWith" and column.prefix:
        return wanted.beginning(each.value)
    if kind in _BOUNDS and column.bounds:
        return wanted.within(*_BOUNDS[kind](each.value))
    return None


def _is_a(value: Any, column: Column) -> bool:
    # Not isinstance: a bool is an int.
    return type(value) is column.kind


def as_key(value: str | bytes) -> bytes:
    """Return a value of a text or binary column as Redis holds it."""
    return value.encode() if isinstance(value, str) else value


_BOUNDS: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "GreaterThan": lambda value: (value + 1, None),
    "GreaterThanOrEqual": lambda value: (value, None),
    "LessThan": lambda value: (None, value - 1),
    "LessThanOrEqual": lambda value: (None, value),
}


class _Push:
    """The method `pushFilters` of a reader."""

    def __init__(self, reader: Pushing) -> None:
        self.reader = reader

    @property
    def __func__(self) -> Any:
        """By this Spark knows readers that push nothing, which it takes where its setting is off.

        The planner looks at it once for each read, and nobody else says there that it is off.
        """
        planner = sys._getframe(1).f_locals  # noqa: SLF001 - there is no other way to learn it
        if planner.get("enable_pushdown") is False and self.reader.pushes():
            logger.warning(
                "format %r: the option pushFilters=true is given, but Spark's setting %s is false:"
                " no filter reaches Redis, and all that the options name is read; spark.conf.set"
                "(%r, True) switches it on",
                *(self.reader.format_name(), SETTING, SETTING),
            )
        return getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> list[Any]:
        given = self.reader.pushes()
        if not (KEEPS_READS_APART if given is None else given):
            return filters
        self.reader.wanted, left = sorted_out(filters, self.reader.chooses_by())
        return left


class Pushing:
    """The base of batch readers that take pushed filters; list it before `DataSourceReader`.

    Before Spark asks for partitions it may call `pushFilters`, which keeps in `wanted` the values
    that filters let pass. The reader keeps its options in `_options`, with a field `pushes`.
    """

    _options: Any
    wanted: Mapping[str, Wanted] = {}
    columns: ClassVar[Mapping[str, Column]] = {}

    @property
    def pushFilters(self) -> Callable[[list[Any]], Iterable[Any]]:  # noqa: N802 - Spark's name
        """Return the method that takes filters, and returns those that Spark must apply."""
        return _Push(self)

    def pushes(self) -> bool | None:
        """Return the option `pushFilters`, None where it was not given."""
        given: bool | None = self._options.pushes
        return given

    def format_name(self) -> str:
        """Return the format's name."""
        name: str = self._options.format
        return name

    def chooses_by(self) -> Mapping[str, Column]:
        """Return the columns by which this reader chooses its rows."""
        return self.columns

    def wanted_of(self, column: str) -> Wanted:
        """Return what is wanted of a column."""
        return self.wanted.get(column, ANYTHING)
