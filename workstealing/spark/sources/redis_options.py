"""The options of ``format("workstealing.redis")``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.options import (
    OptionReader,
    ParsedOptions,
    Positions,
    without_path,
)
from workstealing.spark.sources.origins import batch_option, check_once
from workstealing.structures.access import CONNECTION, Access

OF_PLAIN_KEYS = Access(
    keys=(),
    scripts=("plain_keys",),
    commands=CONNECTION
    | {"MULTI", "EXEC", "EXISTS", "TYPE", "PTTL", "PEXPIRE", "UNLINK", "EVAL"}
    | {"SCAN", "HSCAN", "SSCAN", "ZSCAN", "LRANGE", "XRANGE", "XINFO|STREAM"}
    | {"GET", "MGET", "HGETALL", "HMGET", "HLEN", "LLEN", "SCARD", "ZCARD", "XLEN"}
    | {"SET", "HSET", "RPUSH", "SADD", "ZADD", "XADD"},
    users_keys=True,
)
"""The rights that Spark's format "workstealing.redis" needs, on keys that its user names."""

FORMAT = "workstealing.redis"
KINDS = ("hash", "string", "list", "set", "zset", "stream")
PARTITIONS, MOST_PARTITIONS = 16, 10_000
# They travel with each task.
MOST_KEYS = 100_000
MOST_STREAMS = 1_000
MOST_OFFSETS = 100_000_000
_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")


@dataclass(frozen=True, slots=True)
class RedisOptions(ParsedOptions):
    """The options of plain keys; picklable, made at the driver. None: nothing was said.

    Fields: kind: the type of the keys; client; key_prefix: of all keys, which no column shows;
    key_column and ttl_column: their names; hash_as: "rows" or "columns". Of reads: match: a
    pattern for the keys; keys: their names; partitions: the most tasks; permissive: whether a value
    that does not fit is null; pushes: whether Spark's filters are taken; starting, most_offsets and
    fail_on_data_loss: of a stream. Of writes: replaces: whether a key's old value goes;
    ttl_seconds; max_length, exactly_once, query and batch: of streams, the latter two of a batch
    write that is done once.
    """

    format: ClassVar[str] = FORMAT

    kind: str
    client: ClientSettings
    key_prefix: str = ""
    key_column: str = "key"
    ttl_column: str = "ttl"
    hash_as: str | None = None
    match: str | None = None
    keys: tuple[str, ...] | None = None
    partitions: int | None = None
    permissive: bool | None = None
    pushes: bool | None = None
    starting: Positions | None = None
    most_offsets: int | None = None
    fail_on_data_loss: bool | None = None
    replaces: bool | None = None
    ttl_seconds: float | None = None
    max_length: int | None = None
    exactly_once: bool | None = None
    query: str | None = None
    batch: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> RedisOptions:
        """Read Spark's options. No round trip.

        Raises: ConfigurationError for unknown, missing, contradictory or unusable options.
        """
        with OptionReader(FORMAT, {}).naming():
            reader = OptionReader(FORMAT, without_path(options, "match"))
        reader.required("type", f"the type of the keys, {', '.join(KINDS)}")
        reader = OptionReader(FORMAT, without_path(options, "match"))
        kind = reader.choice("type", KINDS)
        keys = reader.names("keys", "key")
        mode = reader.text("mode")
        if mode is not None and mode.upper() not in _MODES:
            raise reader.wrong(
                f"the option 'mode' is {mode!r}: give failfast, for an error at a value that does"
                " not fit its column, or permissive, for null"
            )
        write_mode = reader.choice_or_none("writeMode", ("append", "overwrite"))
        parsed = cls(
            kind=kind,
            key_prefix=reader.text("keyPrefix") or "",
            key_column=reader.text("keyColumn") or "key",
            ttl_column=reader.text("ttlColumn") or "ttl",
            hash_as=reader.choice_or_none("hashAs", ("rows", "columns")),
            match=reader.text("match"),
            keys=None if keys is None else tuple(keys),
            partitions=reader.number("partitions", 0, 1, MOST_PARTITIONS) or None,
            pushes=reader.boolean_or_none("pushFilters"),
            permissive=None if mode is None else _MODES[mode.upper()],
            starting=_starting(reader, keys or ()),
            most_offsets=reader.number("maxOffsetsPerTrigger", 0, 1, MOST_OFFSETS) or None,
            fail_on_data_loss=reader.boolean_or_none("failOnDataLoss"),
            replaces=None if write_mode is None else write_mode == "overwrite",
            ttl_seconds=reader.seconds("ttlSeconds"),
            max_length=reader.number("maxLength", 0, 1) or None,
            exactly_once=reader.boolean_or_none("exactlyOnce"),
            query=reader.text("query"),
            batch=batch_option(reader),
            client=reader.client(),
        )
        reader.finish()
        return parsed._checked()

    def _checked(self) -> RedisOptions:
        if self.key_column == self.ttl_column:
            raise self.wrong(
                f"both the key and the time to live are to be the column {self.key_column!r}: give"
                " 'keyColumn' and 'ttlColumn' different names"
            )
        if self.hash_as is not None and self.kind != "hash":
            raise self.wrong(f"the option 'hashAs' is for hashes, not for type={self.kind}")
        if self.match is not None and self.keys is not None:
            raise self.wrong(
                "both the options 'keys' and 'match' (or a path) say what is read: give one"
            )
        if self.keys is not None and not 1 <= len(self.keys) <= MOST_KEYS:
            raise self.wrong(
                f"the option 'keys' has {len(self.keys):,} names: give 1 to {MOST_KEYS:,}, or a"
                " pattern by the option 'match'"
            )
        return self

    def for_reading(self, *, is_stream: bool) -> RedisOptions:
        """Check that these options go with a read, and return them.

        Arguments:
            is_stream: whether it is read by readStream.

        Raises: ConfigurationError for an option that does not.
        """
        given = {
            "writeMode": self.replaces,
            "ttlSeconds": self.ttl_seconds,
            "maxLength": self.max_length,
            "exactlyOnce": self.exactly_once,
            "query": self.query,
            "batch": self.batch,
        }
        self.refuse(given, "writing, and this is a read")
        if is_stream:
            return self._for_streaming()
        self.refuse(self._of_streams(), "readStream")
        if self.match is None and self.keys is None and not self.key_prefix:
            raise self.wrong(
                "nothing says which keys are read: give a pattern, as a path in load('item:*') or"
                " as the option 'match' ('*' for all), or names as the option 'keys'"
            )
        return self

    def _for_streaming(self) -> RedisOptions:
        if self.kind != "stream":
            raise self.wrong(
                f"readStream reads Redis' streams, but type={self.kind} is given: read other keys"
                " by spark.read"
            )
        self.refuse({"pushFilters": self.pushes}, "spark.read")
        self.refuse({"match": self.match}, "spark.read: give the streams as the option 'keys'")
        if self.keys is None:
            raise self.wrong("the option 'keys' is missing: give the names of streams")
        if len(self.keys) > MOST_STREAMS:
            raise self.wrong(
                f"the option 'keys' has {len(self.keys):,} names: a query reads up to"
                f" {MOST_STREAMS:,} streams, so divide them among several"
            )
        return self

    def for_writing(self, *, is_stream: bool) -> RedisOptions:
        """Check that these options go with a write, and return them.

        Arguments:
            is_stream: whether it is written by writeStream.

        Raises: ConfigurationError for an option that does not.
        """
        given = {
            "match": self.match,
            "keys": self.keys,
            "partitions": self.partitions,
            "mode": self.permissive,
            "pushFilters": self.pushes,
            **self._of_streams(),
        }
        self.refuse(given, "reading, and this is a write")
        if self.max_length is not None and self.kind != "stream":
            raise self.wrong(f"the option 'maxLength' is for streams, not for type={self.kind}")
        if check_once(self, is_stream=is_stream):
            self._check_streams_once()
        return self

    @property
    def is_once(self) -> bool:
        """Whether each row of a batch is written exactly once."""
        return self.exactly_once is True or self.query is not None

    def _check_streams_once(self) -> None:
        if self.kind != "stream":
            raise self.wrong(
                "the options 'exactlyOnce', 'query' and 'batch' are for streams, not for"
                f" type={self.kind}: leave them out"
            )
        if self.max_length is not None or self.replaces:
            other = "writeMode=overwrite" if self.replaces else "maxLength"
            raise self.wrong(
                f"exactly once and {other} do not go together, because an entry that is gone"
                " cannot be compared: leave one out"
            )

    @property
    def fails_on_loss(self) -> bool:
        """Whether lost entries are an error."""
        return self.fail_on_data_loss is not False

    @property
    def tasks(self) -> int:
        """How many tasks a read by names has at most."""
        return self.partitions or PARTITIONS

    @property
    def prefix(self) -> bytes:
        """The beginning of all keys, as bytes."""
        return self.key_prefix.encode()

    def _of_streams(self) -> dict[str, object]:
        return {
            "startingOffsets": self.starting,
            "maxOffsetsPerTrigger": self.most_offsets,
            "failOnDataLoss": self.fail_on_data_loss,
        }


_WORDS = ("earliest", "latest")
_MODES = {"FAILFAST": False, "PERMISSIVE": True}


def _starting(reader: OptionReader, keys: list[str] | tuple[str, ...]) -> Positions | None:
    meaning = (
        "earliest, latest, or for each stream one of these or the id after which to begin, as JSON,"
        ' {"clicks": "1700000000000-0"}'
    )
    known = ("keys", keys)
    return reader.positions(
        "startingOffsets",
        _is_place,
        meaning,
        known,
        default="earliest",
        is_common=_WORDS.__contains__,
    )


def _is_place(value: object) -> bool:
    if not isinstance(value, str):
        return False
    return value in _WORDS or _ID.fullmatch(value) is not None
