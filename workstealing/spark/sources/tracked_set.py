"""``format("workstealing.tracked_set")``: tracked ids as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructType

from workstealing.errors import LayoutError
from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.arrow import column_of, require_schema, text_type
from workstealing.spark.sources.compat import DataSourceReader, Format, InputPartition
from workstealing.spark.sources.options import OptionReader, ParsedOptions, runs, without_path
from workstealing.spark.sources.pushing import BYTES, NUMBER, TEXT, Column, Pushing, as_key
from workstealing.structures.tracked_set.sub_sets import find, laid_out_sub_sets, scan

if TYPE_CHECKING:
    from workstealing.store.job_client import JobClient
    from workstealing.structures.tracked_set.layout import TrackedSetNames


FORMAT = "workstealing.tracked_set"
PARTITIONS = 16


@dataclass(frozen=True, slots=True)
class TrackedSetOptions(ParsedOptions):
    """The options of a tracked set; hashable and safe to pickle.

    Fields: name; client; sub_sets: how many it should have, None: as many as it has; partitions:
    the most; ids: "string" or "binary", the type of the column id; pushes: the option
    `pushFilters`, None where it was not given.
    """

    format: ClassVar[str] = FORMAT

    name: str
    client: ClientSettings
    sub_sets: int | None = None
    partitions: int = PARTITIONS
    ids: str = "string"
    pushes: bool | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TrackedSetOptions:
        """Return what Spark's options say.

        Raises: ConfigurationError for unknown, missing or contradictory options. No round trip.
        """
        from workstealing.structures.tracked_set.layout import MOST_SUB_SETS

        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "name"))
        parsed = cls(
            name=reader.required("name", 'the tracked set\'s name, or a path as in load("ids")'),
            client=reader.client(),
            sub_sets=reader.number("subSets", 0, most=MOST_SUB_SETS) or None,
            partitions=reader.number("partitions", PARTITIONS),
            ids=reader.choice("ids", ("string", "binary")),
            pushes=reader.boolean_or_none("pushFilters"),
        )
        reader.finish()
        return parsed

    def tracked_names(self, sub_sets: int) -> TrackedSetNames:
        """Return the keys of the tracked set, laid out over so many sub-sets."""
        from workstealing.structures.tracked_set.layout import TrackedSetNames

        return TrackedSetNames(self.name, sub_sets)

    def job_client(self) -> JobClient:
        """Return one-attempt connections beside this process's client; no round trip."""
        from workstealing.store.job_client import job_client_of

        return job_client_of(self.client.connected())

    def require_sub_sets(self, found: int) -> None:
        """Check that no other number of sub-sets was asked for than there is.

        Raises: LayoutError if one was.
        """
        if self.sub_sets not in (None, found):
            raise LayoutError(
                f"format {FORMAT!r}: the tracked set {self.name!r} was laid out over {found}"
                f" sub-sets, not {self.sub_sets}: leave the option 'subSets' out"
            )


class TrackedSetSource(Format[TrackedSetOptions]):
    """Reads a tracked set's ids and their sub-sets.

    Arguments:
        options: see `TrackedSetOptions`.

    Raises: ConfigurationError for wrong options, before any task runs.
    """

    options_class = TrackedSetOptions

    def schema(self) -> StructType:
        """Return the columns."""
        return _columns_of(self._options)

    def reader(self, schema: StructType) -> TrackedSetReader:
        """Return the reader; see `TrackedSetReader`."""
        return TrackedSetReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's
        """Refuse to write. Raises: ConfigurationError."""
        raise self._options.wrong(
            "it is a table to read: an application tracks ids by TrackedSet.track(), and"
            " reconcile() makes the set equal to a table"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's
        """Refuse to write. Raises: ConfigurationError."""
        self.writer(schema, overwrite)


@dataclass(frozen=True, slots=True)
class SubSets(InputPartition):
    """Some sub-sets of a tracked set that is laid out over so many of them.

    Fields: ids: the ids to look for, None for all.
    """

    sub_sets: tuple[int, ...]
    of: int
    ids: tuple[bytes, ...] | None = None


class TrackedSetReader(Pushing, DataSourceReader):
    """Reads a tracked set by runs of sub-sets.

    Arguments:
        schema: as Spark wants to read, which must be the source's own.
    """

    def __init__(self, options: TrackedSetOptions, schema: StructType) -> None:
        self._options = options
        require_schema(FORMAT, schema, _columns_of(options))

    def chooses_by(self) -> Mapping[str, Column]:
        """Return both columns: the ids that are asked for, and the sub-sets that are read."""
        kind = BYTES if self._options.ids == "binary" else TEXT
        return {"id": Column(kind), "sub_set": Column(NUMBER, bounds=True)}

    def partitions(self) -> Sequence[InputPartition]:
        """Return runs of sub-sets.

        At the driver, before any task. Raises: LayoutError for a tracked set that is not there, a
        foreign layout, and another number of sub-sets than the option says. One round trip.
        """
        options = self._options
        names = options.tracked_names(options.sub_sets or 1)
        found = laid_out_sub_sets(options.job_client(), names)
        if found is None:
            # Read as an empty table, a misspelled name would untrack everything elsewhere.
            raise LayoutError(
                f"format {FORMAT!r}: there is no tracked set {options.name!r} on this server: see"
                " whether its name and the server are right; its first use, such as track([]),"
                " lays it out"
            )
        options.require_sub_sets(found)
        wanted = list(filter(self.wanted_of("sub_set").lets_pass, range(found)))
        ids = self.wanted_of("id").chosen()
        if ids is None:
            parts = [SubSets(each, found) for each in runs(wanted, options.partitions)]
        else:
            names = options.tracked_names(found)
            asked = names.grouped(sorted(map(as_key, ids)))
            parts = [
                SubSets(each, found, tuple(one for sub_set in each for one in asked[sub_set]))
                for each in runs([each for each in wanted if each in asked], options.partitions)
            ]
        return parts or [SubSets((), found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the ids of one partition, page by page."""
        if not isinstance(partition, SubSets) or not partition.sub_sets:
            return
        options = self._options
        names = options.tracked_names(partition.of)
        remedy = "give the option ids=binary, for a binary column"
        found = (
            scan(options.job_client(), names, partition.sub_sets)
            if partition.ids is None
            else find(options.job_client(), names, partition.ids)
        )
        for sub_sets, ids in found:
            if ids:
                columns = [
                    column_of(ids, options.ids, "the id", remedy),
                    pa.array(sub_sets, pa.int32()),
                ]
                yield pa.RecordBatch.from_arrays(columns, ["id", "sub_set"])


def _columns_of(options: TrackedSetOptions) -> StructType:
    return StructType().add("id", text_type(options.ids)).add("sub_set", IntegerType())
