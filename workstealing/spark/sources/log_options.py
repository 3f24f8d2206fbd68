"""The options of ``format("workstealing.log")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.batches import Minimum, minimum_of
from workstealing.spark.sources.options import (
    OptionReader,
    ParsedOptions,
    Position,
    Positions,
    without_path,
)
from workstealing.spark.sources.origins import batch_option, check_once
from workstealing.structures.log.base import LogNames

FORMAT = "workstealing.log"
OFFSETS_A_TRIGGER = 100_000
MOST_OFFSETS_A_TRIGGER = 100_000_000
PARTITIONS, MOST_PARTITIONS = 16, 10_000
# More of them would be asked for one by one before each batch.
MOST_LOGS = 1_000

EARLIEST, LATEST = Positions("earliest"), Positions("latest")


@dataclass(frozen=True, slots=True)
class LogOptions(ParsedOptions):
    """The options of logs; picklable, made at the driver. None: nothing was said.

    Fields: logs: their names, () for a write by the column `log`; client. Of reads: values: that
    column's type, "binary" or "string"; starting and ending: where; fail_on_data_loss; partitions:
    the most tasks of a read; pushes: the option `pushFilters`; max_offsets_per_trigger and minimum:
    the most and the least entries of a stream's batch. Of writes: block: entries a block of a new
    log; exactly_once: of a stream; query and batch: of a batch write that is done once.
    """

    format: ClassVar[str] = FORMAT

    logs: tuple[str, ...]
    client: ClientSettings
    values: str | None = None
    starting: Positions | None = None
    ending: Positions | None = None
    fail_on_data_loss: bool | None = None
    partitions: int | None = None
    pushes: bool | None = None
    max_offsets_per_trigger: int | None = None
    minimum: Minimum | None = None
    block: int | None = None
    exactly_once: bool | None = None
    query: str | None = None
    batch: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LogOptions:
        """Read Spark's options. No round trip.

        Raises: ConfigurationError for unknown, contradictory or unusable options.
        """
        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "logs"))
        logs = _names(reader)
        most = reader.number("maxOffsetsPerTrigger", 0, 1, MOST_OFFSETS_A_TRIGGER)
        parsed = cls(
            logs=logs,
            values=reader.choice_or_none("values", ("binary", "string")),
            starting=_positions(reader, "startingOffset", ("earliest", "latest"), logs, "earliest"),
            ending=_positions(reader, "endingOffset", ("latest",), logs, "latest"),
            fail_on_data_loss=reader.boolean_or_none("failOnDataLoss"),
            partitions=reader.number("partitions", 0, 1, MOST_PARTITIONS) or None,
            pushes=reader.boolean_or_none("pushFilters"),
            max_offsets_per_trigger=most or None,
            minimum=minimum_of(reader, "minOffsetsPerTrigger", most or OFFSETS_A_TRIGGER),
            block=reader.number("block", 0, 1) or None,
            exactly_once=reader.boolean_or_none("exactlyOnce"),
            query=reader.text("query"),
            batch=batch_option(reader),
            client=reader.client(),
        )
        reader.finish()
        return parsed

    def for_reading(self, is_stream: bool) -> LogOptions:
        """Check that these options go with a read, and return them.

        Arguments:
            is_stream: whether it is read by readStream.

        Raises: ConfigurationError for an option that does not.
        """
        if not self.logs:
            raise self.wrong(
                "the option 'logs' is missing: give the names of logs, or a path as in"
                ' load("activity")'
            )
        self.refuse(self._of_writes(), "writing, and this is a read")
        if is_stream:
            of_tables = {"endingOffset": self.ending, "pushFilters": self.pushes}
            self.refuse(of_tables, "read, not for readStream")
            return self
        of_streams = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "minOffsetsPerTrigger": self.minimum,
        }
        self.refuse(of_streams, "readStream")
        for log in self.logs:
            start, end = (self.starting or EARLIEST).of(log), (self.ending or LATEST).of(log)
            # Of unlike signs they can only be compared when the log's end is known.
            if _is_behind(start, end):
                raise self.wrong(
                    f"of the log {log!r} startingOffset {start} is behind endingOffset {end}: the"
                    " ending offset is that of the first entry which is not read"
                )
        return self

    def for_writing(self, is_stream: bool, has_log_column: bool) -> LogOptions:
        """Check that these options go with a write, and return them.

        Arguments:
            is_stream: whether it is written by writeStream.
            has_log_column: whether each row says into which log it goes.

        Raises: ConfigurationError for an option that does not.
        """
        given = {
            "values": self.values,
            "startingOffset": self.starting,
            "endingOffset": self.ending,
            "failOnDataLoss": self.fail_on_data_loss,
            "partitions": self.partitions,
            "pushFilters": self.pushes,
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "minOffsetsPerTrigger": self.minimum,
        }
        self.refuse(given, "reading, and this is a write")
        if len(self.logs) > 1:
            raise self.wrong(
                f"{len(self.logs)} logs are given, but a write goes to one: give one, or a column"
                " 'log' instead"
            )
        if has_log_column == bool(self.logs):
            raise self.wrong(
                "both the option 'logs' (or a path) and a column 'log' say where rows go: leave one"
                " out"
                if has_log_column
                else "nothing says where rows go: give the option 'logs' (or a path), or a column"
                " 'log'"
            )
        check_once(self, is_stream=is_stream)
        return self

    def positions(self) -> tuple[Positions, Positions]:
        """Return where reads begin and end."""
        return self.starting or EARLIEST, self.ending or LATEST

    @property
    def is_text(self) -> bool:
        """Whether values are read as text."""
        return self.values == "string"

    @property
    def fails_on_loss(self) -> bool:
        """Whether lost entries are an error."""
        return self.fail_on_data_loss is not False

    @property
    def tasks(self) -> int:
        """How many tasks a read has at most."""
        return self.partitions or PARTITIONS

    @property
    def batch_size(self) -> int:
        """How many entries a batch of a stream has at most."""
        return self.max_offsets_per_trigger or OFFSETS_A_TRIGGER

    def _of_writes(self) -> dict[str, object]:
        return {
            "block": self.block,
            "exactlyOnce": self.exactly_once,
            "query": self.query,
            "batch": self.batch,
        }


def _is_behind(start: Position, end: Position) -> bool:
    if isinstance(start, str) or isinstance(end, str):
        return False
    return start > end and (start < 0) == (end < 0)


def _names(reader: OptionReader) -> tuple[str, ...]:
    """Return the names of logs."""
    names = reader.names("logs", "log")
    if names is None:
        return ()
    if not 1 <= len(names) <= MOST_LOGS:
        raise reader.wrong(f"the option 'logs' has {len(names)} names: give 1 to {MOST_LOGS:,}")
    with reader.naming():
        for name in names:
            LogNames(name)
    return tuple(names)


def _positions(
    reader: OptionReader, name: str, words: tuple[str, ...], logs: tuple[str, ...], default: str
) -> Positions | None:
    meaning = (
        f"{', '.join(words)}, the number of an entry (negative: from the end), or for each log one"
        ' of these as JSON, {"activity": 17}'
    )

    def is_position(found: object) -> bool:
        is_number = isinstance(found, int) and not isinstance(found, bool)
        return is_number or (isinstance(found, str) and found in words)

    return reader.positions(name, is_position, meaning, ("logs", logs), default=default)
