"""``format("workstealing.ick")``: an Ick or a ShardedIck as a table, as a sink, and as a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    IntegralType,
    StructType,
)
from redis.client import NEVER_DECODE

from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.arrow import (
    checked_columns,
    column_of,
    is_number,
    is_text,
    require_schema,
    text_type,
)
from workstealing.spark.sources.batches import Admission, Minimum, minimum_of
from workstealing.spark.sources.compat import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Format,
    InputPartition,
    OptionsKeeper,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    WriterCommitMessage,
)
from workstealing.spark.sources.ick_stream import FORMAT, IckConsumer, IckOffset
from workstealing.spark.sources.options import OptionReader, ParsedOptions, without_path
from workstealing.spark.sources.pushing import (
    BYTES,
    FLAG,
    NUMBER,
    TEXT,
    Column,
    Pushing,
    as_key,
)
from workstealing.store.operations import drive
from workstealing.structures import Ick, ShardedIck
from workstealing.structures.sharded_ick.layout import MOST_ICK_SHARDS, shard_of

MEMBERS_A_TRIGGER = 10_000
MOST_MEMBERS_A_TRIGGER = 1_000_000
LEASE_SECONDS = 60


@dataclass(frozen=True)
class IckOptions(ParsedOptions):
    """The options of an Ick or a ShardedIck; picklable, made at the driver.

    Fields: name: of a ShardedIck, or None; key: of an Ick, or None; ick_shards: for a ShardedIck
    that is not there yet, or None; members: "string" or "binary", the type of that column;
    max_members_per_trigger, lease_seconds and minimum: of a streaming read, None where nothing was
    said; client; pushes: the option `pushFilters` of a batch read; patience: for how many seconds a
    stream waits for others' leases.
    """

    format: ClassVar[str] = FORMAT

    name: str | None
    key: str | None
    ick_shards: int | None
    members: str
    max_members_per_trigger: int | None
    lease_seconds: int | None
    client: ClientSettings
    minimum: Minimum | None = None
    pushes: bool | None = None
    patience: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> IckOptions:
        """Read Spark's options.

        Raises: ConfigurationError for unknown, missing, contradictory or unusable options.
        """
        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "name"))
        name, key = reader.text("name"), reader.text("key")
        ick_shards = reader.number("ickShards", 0, 1, MOST_ICK_SHARDS)
        members = reader.choice("members", ("string", "binary"))
        most = reader.number("maxMembersPerTrigger", 0, 1, MOST_MEMBERS_A_TRIGGER)
        minimum = minimum_of(reader, "minMembersPerTrigger", most or MEMBERS_A_TRIGGER)
        lease = reader.number("leaseSeconds", 0, 1, 86_400)
        patience = reader.number("waitForLeaseSeconds", 0, 1, 86_400) or None
        pushes = reader.boolean_or_none("pushFilters")
        client = reader.client()
        reader.finish()
        if name is None and key is None:
            raise reader.wrong(
                "neither the option 'name' nor 'key' is given: give the name of a ShardedIck,"
                ' as in load("name"), or the key of a single Ick'
            )
        if key is not None and name is not None:
            raise reader.wrong(
                "both the options 'name' (or a path) and 'key' are given: give the name of a"
                " ShardedIck, or the key of a single Ick"
            )
        if key is not None and ick_shards:
            raise reader.wrong(
                "the option 'ickShards' belongs to a ShardedIck, but 'key' names a single Ick:"
                " leave it out, or give 'name' instead"
            )
        bounds = (most or None, lease or None)
        return cls(
            name, key, ick_shards or None, members, *bounds, client, minimum, pushes, patience
        )

    @property
    def batch_size(self) -> int:
        """How many members a batch of a stream has at most."""
        return self.max_members_per_trigger or MEMBERS_A_TRIGGER

    @property
    def lease(self) -> float:
        """How long the leases of a stream hold, in seconds."""
        return float(self.lease_seconds or LEASE_SECONDS)

    def refuse_stream_options(self, use: str) -> None:
        """Refuse options that mean nothing but to a streaming read.

        Arguments:
            use: what is done instead, for the error.

        Raises: ConfigurationError.
        """
        for option, value in (
            ("maxMembersPerTrigger", self.max_members_per_trigger),
            ("minMembersPerTrigger", self.minimum),
            ("leaseSeconds", self.lease_seconds),
            ("waitForLeaseSeconds", self.patience),
        ):
            if value is not None:
                raise self.wrong(
                    f"the option {option!r} belongs to readStream and means nothing to {use}: leave"
                    " it out"
                )

    def refuse_key(self) -> None:
        """Refuse to read a single Ick as a stream. Raises: ConfigurationError."""
        if self.key is not None:
            raise self.wrong(
                "a stream is read from a ShardedIck, whose leases keep other consumers away, not"
                " from a single Ick: give the option 'name' instead of 'key' (one ick shard is"
                " enough)"
            )

    def sharded(self, create: bool) -> ShardedIck:
        """Return the ShardedIck on this process's client, its layout read.

        Arguments:
            create: whether it is made if it is not there yet.

        Raises: ConfigurationError if it is not there, or has another number of ick shards;
        LayoutError. One round trip, two for a new one.
        """
        client = self.client.connected()
        made = ShardedIck(client, self.name or "", self.ick_shards if create else None)
        with OptionReader(FORMAT, {}).naming():
            if drive(client, made.core.read_layout()) is None:
                self._require_new(create)
            found = made.open()
        if self.ick_shards not in (None, found):
            raise self.wrong(
                f"the ShardedIck {self.name!r} has {found} ick shards, not {self.ick_shards}: leave"
                " the option 'ickShards' out"
            )
        return made

    def _require_new(self, create: bool) -> None:
        """Raise an error unless a ShardedIck that is not there is to be made now."""
        if not create:
            remedy = "a read makes none: write to it first, with the option 'ickShards'"
        elif self.ick_shards is None:
            remedy = "give the option 'ickShards', how many ick shards it is to have"
        else:
            return
        raise self.wrong(f"there is no ShardedIck {self.name!r} yet: {remedy}")

    def adder(self) -> Any:
        """Return what members are added to: the ShardedIck, its layout read, or the Ick."""
        if self.key is not None:
            return Ick(self.client.connected(), self.key)
        return self.sharded(create=True)


class IckSource(Format[IckOptions]):
    """Reads and writes members of an Ick or a ShardedIck; see docs/spark_ick.md.

    Options: name (or a path) of a ShardedIck, or key of a single Ick; ickShards, for a ShardedIck
    that is not there yet; members: string or binary; maxMembersPerTrigger, minMembersPerTrigger,
    maxTriggerDelay, leaseSeconds and waitForLeaseSeconds, of a streaming read; client or url.
    Raises: ConfigurationError.
    """

    options_class = IckOptions

    def schema(self) -> StructType:
        """Return the columns: member, score, reserved (always true in a stream) and ick_shard."""
        return (
            StructType()
            .add("member", text_type(self._options.members))
            .add("score", DoubleType())
            .add("reserved", BooleanType())
            .add("ick_shard", IntegerType())
        )

    def _check_write(self, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise self._options.wrong(
                "it only adds members and never replaces what is there: write with"
                ' mode("append"), or as a stream with outputMode("append") or "update"'
            )
        self._options.refuse_stream_options("a write")
        check_schema(schema)
        # A missing ShardedIck, or another number of ick shards, is refused before any task runs.
        self._options.adder()

    def reader(self, schema: StructType) -> IckReader:
        """Return what reads all members once."""
        require_schema(FORMAT, schema, self.schema())
        self._options.refuse_stream_options("a batch read")
        return IckReader(self._options)

    def stream_reader(self, schema: StructType) -> IckStreamReader:
        """Return what reads a ShardedIck as a stream."""
        require_schema(FORMAT, schema, self.schema())
        self._options.refuse_key()
        return IckStreamReader(self._options)

    def writer(self, schema: StructType, overwrite: bool) -> IckWriter:
        """Return what adds the rows of a table."""
        self._check_write(schema, overwrite)
        return IckWriter(self._options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> IckStreamWriter:  # noqa: N802
        """Return what adds the rows of a stream."""
        self._check_write(schema, overwrite)
        return IckStreamWriter(self._options)


logger = logging.getLogger("workstealing.spark")

MEMBERS_A_PAGE = 1000
Rows = list[tuple[bytes, float]]


class SetPartition(InputPartition):
    """An ick shard of a batch read, or the only Ick (0).

    Arguments:
        waiting: the keys of sorted sets with members that wait.
        reserved: those of sets with members that are reserved.
        members: those to look for, None for all.
    """

    def __init__(
        self,
        ick_shard: int,
        waiting: tuple[bytes, ...] = (),
        reserved: tuple[bytes, ...] = (),
        members: tuple[bytes, ...] | None = None,
    ) -> None:
        super().__init__(ick_shard)
        self.ick_shard, self.waiting, self.reserved = ick_shard, waiting, reserved
        self.members = members


class ReservationPartition(InputPartition):
    """A stream's reservation in an ick shard: its number, and the reservation's token."""

    def __init__(self, ick_shard: int, token: str) -> None:
        super().__init__(ick_shard)
        self.ick_shard, self.token = ick_shard, token


class IckReader(OptionsKeeper[IckOptions], Pushing, DataSourceReader):
    """Reads all members of a ShardedIck or an Ick, and changes nothing."""

    def chooses_by(self) -> Mapping[str, Column]:
        """Return the columns member, ick_shard and reserved: nothing else is asked for."""
        return {
            "member": Column(BYTES if self._options.members == "binary" else TEXT),
            "ick_shard": Column(NUMBER, bounds=True),
            "reserved": Column(FLAG),
        }

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each ick shard; one round trip."""
        whole = self._all_partitions()
        is_wanted, state = self.wanted_of("ick_shard").lets_pass, self.wanted_of("reserved")
        for each in whole:
            each.waiting = each.waiting if state.lets_pass(False) else ()
            each.reserved = each.reserved if state.lets_pass(True) else ()
        # There must be one.
        return [
            each
            for each in whole
            if is_wanted(each.ick_shard) and (each.waiting or each.reserved) and each.members != ()
        ] or [SetPartition(0)]

    def _all_partitions(self) -> list[SetPartition]:
        named = self.wanted_of("member").chosen()
        members = None if named is None else tuple(sorted(map(as_key, named)))
        if self._options.key is not None:
            ick = Ick(self._options.client.connected(), self._options.key)
            # Refuses what is no Ick.
            ick.stats()
            return [SetPartition(0, (ick.names.pset,), (ick.names.cset,), members)]
        sharded = self._options.sharded(create=False)
        # Foreign keys are refused here, too.
        count = len(sharded.stats()["shards"])
        layout = sharded.core.layout
        parts = []
        for shard in range(count):
            names, its = sharded.core.names(shard), members
            # In a resize a member may be where it was, or where it belongs.
            if members is not None and layout is not None and not layout.moving_from:
                its = tuple(each for each in members if shard_of(each, count) == shard)
            parts.append(SetPartition(shard, (names.pset, names.moving), (names.cset,), its))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read an ick shard, in pages of about 1,000 members; a round trip each."""
        assert isinstance(partition, SetPartition)
        client = self._options.client.connected()
        for keys, is_reserved in ((partition.waiting, False), (partition.reserved, True)):
            # A scan may return a member twice while the server makes room in its table.
            known: set[bytes] = set()
            for key in keys:
                members = partition.members
                pages = _scanned(client, key) if members is None else _found(client, key, members)
                for page in pages:
                    rows = [row for row in dict(page).items() if row[0] not in known]
                    known.update(member for member, _ in rows)
                    if rows:
                        yield _record_batch(self._options, partition.ick_shard, rows, is_reserved)


class IckStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a ShardedIck as a stream: the driver reserves, and tasks look at what is reserved."""

    def __init__(self, options: IckOptions) -> None:
        self._options = options
        # Spark may ask for the initial offset twice, and must be told the same.
        self._initial = IckOffset.new()
        # Made at the driver, when it is first needed: this object is sent to tasks.
        self._consumer: IckConsumer | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offset of a new query; no round trip."""
        return self._initial.as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit on a batch, in members."""
        return ReadMaxRows(self._options.batch_size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is there now; see `IckConsumer.prepare_available_now`."""
        self._consuming().prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Finish the last batch and reserve the next one; see `IckConsumer.latest`."""
        most = self._options.batch_size
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        before = IckOffset.parse(start)
        end = self._consuming().latest(
            before, None if isinstance(limit, ReadAllAvailable) else most
        )
        # The very same where nothing is new: Spark compares texts.
        return start if end is before else end.as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the backlog for the query's progress; see `IckConsumer.seen`."""
        return None if self._consumer is None else self._consumer.seen()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition for each ick shard that the batch has members of.

        Spark has written `end` into the checkpoint by now; see `IckConsumer.begin`. No round trip
        but for a query's first batch.
        """
        if start == end:
            return []
        batch = IckOffset.parse(end)
        if self._consumer is not None:
            self._consumer.begin(batch)
        tokens = batch.tokens
        return [ReservationPartition(shard, token) for shard, token in sorted(tokens.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what is reserved in an ick shard, in pages of 1,000 members; a round trip each."""
        assert isinstance(partition, ReservationPartition)
        options = self._options
        sharded: ShardedIck = ShardedIck(options.client.connected(), options.name or "")
        start = 0
        while True:
            page = sharded.reserved(partition.ick_shard, partition.token, start)
            if page is None:
                logger.warning(
                    "ick shard %d of %s: the reservation %s of this batch does not hold any more;"
                    " its members are passed over here, and come again in a later batch unless"
                    " they are done with",
                    *(partition.ick_shard, options.name, partition.token),
                )
            if not page:
                return
            yield _record_batch(options, partition.ick_shard, page, True)
            start += len(page)

    def commit(self, end: dict[str, Any]) -> None:
        """Finish what was read up to `end`; see `IckConsumer.commit`."""
        if self._consumer is not None:
            self._consumer.commit(IckOffset.parse(end))

    def _consuming(self) -> IckConsumer:
        if self._consumer is None:
            sharded = self._options.sharded(create=True)
            admission = Admission(self._options.minimum)
            self._consumer = IckConsumer(
                sharded, self._options.lease, admission, patience=self._options.patience
            )
        return self._consumer


def _scanned(client: Any, key: bytes) -> Iterator[Rows]:
    cursor = 0
    while True:
        # As bytes, whatever the client makes of replies.
        cursor, page = client.execute_command(
            *("ZSCAN", key, cursor, "COUNT", MEMBERS_A_PAGE), **{NEVER_DECODE: True}
        )
        yield [(member, float(score)) for member, score in page]
        if not int(cursor):
            return


def _found(client: Any, key: bytes, members: Sequence[bytes]) -> Iterator[Rows]:
    for start in range(0, len(members), MEMBERS_A_PAGE):
        asked = members[start : start + MEMBERS_A_PAGE]
        scores = client.execute_command("ZMSCORE", key, *asked, **{NEVER_DECODE: True})
        pairs = zip(asked, scores, strict=True)
        yield [(member, float(score)) for member, score in pairs if score is not None]


def _record_batch(
    options: IckOptions, ick_shard: int, rows: Rows, is_reserved: bool
) -> pa.RecordBatch:
    """Return rows as Spark takes them fastest."""
    members = [member for member, _ in rows]
    remedy = "give the option members=binary, for a binary column"
    columns = [
        column_of(members, options.members, f"format {FORMAT!r}: the member", remedy),
        pa.array([score for _, score in rows], pa.float64()),
        pa.array([is_reserved] * len(rows), pa.bool_()),
        pa.array([ick_shard] * len(rows), pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["member", "score", "reserved", "ick_shard"])


MEMBERS_AN_ADD = 1000
_REQUIRED: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "member": (
        lambda kind: is_text(kind) or isinstance(kind, IntegralType),
        "a string, binary or whole-number column",
    )
}
_OPTIONAL: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "score": (is_number, "a number, for instance seconds since the epoch")
}


@dataclass
class AddedMembers(WriterCommitMessage):
    """How many members a task has added: new ones, and others whose score became lower."""

    new: int
    changed: int


def check_schema(schema: StructType) -> None:
    """Raise a ConfigurationError for a table that cannot be written to an Ick."""
    checked_columns(f"format {FORMAT!r}", schema, _REQUIRED, _OPTIONAL)


def add_all(options: IckOptions, batches: Iterable[pa.RecordBatch]) -> AddedMembers:
    """Add all rows, 1,000 in a call; a round trip each.

    Raises: ConfigurationError for a member that is null, and a score that is no number.
    """
    target = options.adder()
    new = changed = 0
    for batch in batches:
        members = batch.column(batch.schema.get_field_index("member")).to_pylist()
        at = batch.schema.get_field_index("score")
        scores = [None] * len(members) if at < 0 else batch.column(at).to_pylist()
        pairs = [_pair(options, *row) for row in zip(members, scores, strict=True)]
        for start in range(0, len(pairs), MEMBERS_AN_ADD):
            added = target.add(pairs[start : start + MEMBERS_AN_ADD])
            new, changed = new + added.new, changed + added.changed
    return AddedMembers(new, changed)


def _pair(options: IckOptions, member: Any, score: Any) -> tuple[Any, Any]:
    if member is None:
        raise options.wrong(
            "a member is null: leave such rows out before writing; rows before it were written"
        )
    if isinstance(member, int):
        member = str(member)
    return member, float(score) if isinstance(score, Decimal) else score


class _IckSink(OptionsKeeper[IckOptions]):
    """The common part of the batch writer and the stream writer."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add the rows of a partition; a task that is tried again adds them again, as one."""
        return add_all(self._options, iterator)


class IckWriter(_IckSink, DataSourceArrowWriter):
    """Adds the rows of a table."""


class IckStreamWriter(_IckSink, DataSourceStreamArrowWriter):
    """Adds the rows of each batch of a stream."""
