"""The options of ``format("volatile_hash")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workstealing.errors import ConfigurationError
from workstealing.spark.clients import ClientSettings
from workstealing.spark.sources.options import OptionReader, without_path

if TYPE_CHECKING:
    from workstealing.structures.volatile_hashes import VolatileHashes

FORMAT = "volatile_hash"
PARTITIONS = 16
# A deadline must stay below 2^46 ms since the epoch, the servers' own limit.
MOST_SECONDS = 60_000_000_000
_KINDS = ("string", "binary")
_BACKENDS = ("auto", "emulated", "native")


@dataclass(frozen=True, slots=True)
class VolatileHashOptions:
    """What a user said about a namespace of volatile hashes; hashable and safe to pickle.

    Fields: namespace; client; backend and allow_eviction: as `VolatileHashes` takes them. For
    writing: ttl_seconds: of every row. For reading: names and values: "string" or "binary", the
    type of the columns key and field, and of the column value; match: a pattern for the keys;
    partitions: the most. None: not given.
    """

    namespace: str
    client: ClientSettings
    backend: str = "auto"
    allow_eviction: tuple[str, ...] = ()
    ttl_seconds: float | None = None
    names: str | None = None
    values: str | None = None
    match: str | None = None
    partitions: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> VolatileHashOptions:
        """Return what Spark's options say.

        Errors: ConfigurationError for unknown, missing or contradictory ones. No round trip.
        """
        from workstealing.structures.volatile_hashes.layout import HashNames

        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "namespace"))
        with reader.naming():
            namespace = reader.required("namespace", 'a namespace, or a path as in load("items")')
            HashNames(namespace)
        ttl_seconds = reader.seconds("ttlSeconds")
        if ttl_seconds is not None and ttl_seconds > MOST_SECONDS:
            raise reader.wrong(f"the option 'ttlSeconds' is above {MOST_SECONDS:,} seconds")
        parsed = cls(
            namespace=namespace,
            client=reader.client(),
            backend=reader.choice("backend", _BACKENDS),
            allow_eviction=reader.words("allowEviction"),
            ttl_seconds=ttl_seconds,
            names=reader.choice_or_none("names", _KINDS),
            values=reader.choice_or_none("values", _KINDS),
            match=reader.text("match"),
            partitions=reader.number("partitions", 0) or None,
        )
        reader.finish()
        return parsed

    def for_reading(self) -> VolatileHashOptions:
        """Return these options, or raise an error for one that says how to write."""
        self._refuse({"ttlSeconds": self.ttl_seconds}, "writing, and this is a read")
        return self

    def for_writing(self) -> VolatileHashOptions:
        """Return these options, or raise an error for one that says how to read."""
        given = {
            "names": self.names,
            "values": self.values,
            "match": self.match,
            "partitions": self.partitions,
        }
        self._refuse(given, "reading, and this is a write")
        return self

    def hashes(self) -> VolatileHashes:
        """Return the namespace on this process's client; no round trip but a cluster's map."""
        from workstealing.structures.volatile_hashes import VolatileHashes

        made: VolatileHashes = VolatileHashes(
            self.client.connected(),
            self.namespace,
            backend=self.backend,
            allow_eviction=self.allow_eviction,
        )
        return made

    def _refuse(self, options: Mapping[str, object], why: str) -> None:
        for name, value in options.items():
            if value is not None:
                raise ConfigurationError(
                    f"format {FORMAT!r}: the option {name!r} is for {why}: leave it out"
                )
