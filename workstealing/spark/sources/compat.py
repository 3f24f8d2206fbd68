"""The classes of Spark's data sources that the formats build on, in whichever PySpark there is.

Every format imports them from here. Where PySpark has a class, it is PySpark's own. Older ones lack
some, and this module has others in their place:

- PySpark 4.0 has no Arrow writer for streams. The workers of 4.0 hand Arrow batches to whatever is
  an Arrow writer of tables, so a stream's writer that is one as well gets them.
- PySpark 4.0 and 4.1 have no read limits: `latestOffset()` is called without a start and a limit.
  The start is where the reader itself stood last, and the limit its own, so the format's options
  alone bound a batch.
- They have no `SupportsTriggerAvailableNow` either: Spark ends such a query after one batch.

An executor chooses anew, by the PySpark that it has.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.datasource import DataSourceStreamReader as _AnyStreamReader

from workstealing.errors import ConfigurationError
from workstealing.spark.sources.options import ParsedOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "HAS_READ_LIMITS",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
]

OptionsT = TypeVar("OptionsT", bound=ParsedOptions)
Offset = dict[str, Any]
_POSITION = "_compat_position"


class OptionsKeeper(Generic[OptionsT]):
    """The base of readers and writers that keep the options alone; Spark sends them to tasks."""

    def __init__(self, options: OptionsT) -> None:
        self._options = options


class Format(DataSource, Generic[OptionsT]):
    """The base of the formats, each of which names the class of its options.

    Arguments:
        options: as Spark hands them over.

    Raises: ConfigurationError for wrong options, before any task runs.
    """

    options_class: ClassVar[type[Any]]
    _options: OptionsT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = self.options_class.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name, `workstealing.log` for instance."""
        name: str = cls.options_class.format
        return name

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 - Spark's name
        """Return what reads a stream, or what says at its first use why there is none."""
        try:
            return self.stream_reader(schema)
        except ConfigurationError as error:
            return RefusedStream(error)

    def stream_reader(self, schema: StructType) -> Any:  # noqa: ARG002 - of subclasses
        """Return what reads a stream. Raises: ConfigurationError for options that refuse it."""
        raise self._options.wrong("it is no source of streams: read it by spark.read")


class TableAndStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[misc]
    """A stream's writer of Arrow batches, for a PySpark that has none."""


class PositionedStreamReader(_AnyStreamReader):
    """A stream's reader that knows its position, for a PySpark that does not tell it.

    Subclasses are written for `latestOffset(start, limit)` all the same. Spark names an offset in
    four calls, and the last one named is the position: the initial one, the latest one that was
    returned, the end of the batch that is planned, and after a restart the end of the last batch,
    by `partitions(end, end)`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, wrap in (("latestOffset", _without_arguments), ("partitions", _noting_the_end)):
            if name in vars(cls):
                setattr(cls, name, wrap(vars(cls)[name]))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the limit of every batch; by default there is none."""
        return NoBound()


class RefusedStream(_AnyStreamReader):
    """Stands for the reader of a stream that is refused, and says why at the driver's first call.

    Where `streamReader` itself raises, Spark's runner stops a reader that it does not have, and an
    UnboundLocalError stands behind our sentence.
    """

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's names, here and below
        """Raise the error; since PySpark 4.2 this is the first call."""
        raise self._error from None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Raise the error; before PySpark 4.2 this is the first call of a new query."""
        raise self._error from None

    def latestOffset(self, *_: Any) -> Offset:  # noqa: N802
        """Raise the error."""
        raise self._error from None

    def partitions(self, *_: Any) -> Sequence[InputPartition]:
        """Raise the error; before PySpark 4.2 this is the first call after a restart."""
        raise self._error from None

    def read(self, _: InputPartition) -> Any:
        """Raise the error."""
        raise self._error from None


def _without_arguments(latest: Callable[..., Offset]) -> Callable[..., Offset]:
    @wraps(latest)
    def latest_offset(self: Any, *given: Any) -> Offset:
        if given:
            return latest(self, *given)
        start = vars(self).get(_POSITION)
        if start is None:
            start = self.initialOffset()
        end = latest(self, start, self.getDefaultReadLimit())
        setattr(self, _POSITION, end)
        return end

    return latest_offset


def _noting_the_end(partitions: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(partitions)
    def noting(self: Any, start: Offset, end: Offset) -> Any:
        setattr(self, _POSITION, end)
        return partitions(self, start, end)

    return noting


class NoLimit:
    """A limit on what a batch reads, as of PySpark 4.2's `ReadLimit`."""


@dataclass
class NoBound(NoLimit):
    """Read all that there is, as of PySpark 4.2's `ReadAllAvailable`."""


@dataclass
class MostRows(NoLimit):
    """Read so many rows at most, as of PySpark 4.2's `ReadMaxRows`."""

    max_rows: int


class NothingSupported:
    """Stands for PySpark 4.2's `SupportsTriggerAvailableNow`; nothing looks for it."""


if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS: bool
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        DataSourceStreamArrowWriter = TableAndStreamWriter
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ModuleNotFoundError:
        HAS_READ_LIMITS = False
        DataSourceStreamReader = PositionedStreamReader
        ReadLimit, ReadAllAvailable, ReadMaxRows = NoLimit, NoBound, MostRows
        SupportsTriggerAvailableNow = NothingSupported
    else:
        HAS_READ_LIMITS = True
        DataSourceStreamReader = _AnyStreamReader
