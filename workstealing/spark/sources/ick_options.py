"""The options of ``format("workstealing.ick")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.batches import Minimum, minimum_of
from workstealing.spark.sources.options import OptionReader, ParsedOptions, without_path
from workstealing.store.operations import drive
from workstealing.structures import Ick, ShardedIck
from workstealing.structures.sharded_ick.layout import MOST_ICK_SHARDS

FORMAT = "workstealing.ick"
MEMBERS_A_TRIGGER = 10_000
MOST_MEMBERS_A_TRIGGER = 1_000_000
LEASE_SECONDS = 60


@dataclass(frozen=True)
class IckOptions(ParsedOptions):
    """The options of an Ick or a ShardedIck; picklable, made at the driver.

    Fields: name: of a ShardedIck, or None; key: of an Ick, or None; ick_shards: for a ShardedIck
    that is not there yet, or None; members: "string" or "binary", the type of that column;
    max_members_per_trigger, lease_seconds and minimum: of a streaming read, None where nothing was
    said; client; pushes: the option `pushFilters` of a batch read.
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
        return cls(name, key, ick_shards or None, members, *bounds, client, minimum, pushes)

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
