"""Entries of plain streams, written exactly once by ids that a batch of a query gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ReplayDiffersError
from workstealing.spark.sources.origins import Origin
from workstealing.spark.sources.pipelines import Group, KeyCalls
from workstealing.spark.sources.redis_options import RedisOptions
from workstealing.spark.sources.redis_remembering import MOST_REMEMBERED, remembered_bytes
from workstealing.store.connection import Command

# How many rows of a key a task has at most; beyond that an id would be another partition's.
ROWS_OF_A_TASK = 1 << 40


def of_each_key(groups: Sequence[Group]) -> list[Group]:
    """Join the commands of each key, for one transaction.

    A row that the server refuses, having no room for instance, must keep back those behind it: they
    have greater ids, and no later attempt could write it.
    """
    joined: dict[bytes, list[Command]] = {}
    for key, commands in groups:
        joined.setdefault(key, []).extend(commands)  # type: ignore[arg-type]
    return list(joined.items())


def is_known_id(reply: Exception) -> bool:
    """Say whether XADD was refused because the stream has had this id, or a greater one."""
    return isinstance(reply, ResponseError) and "equal or smaller" in str(reply)


class EntriesOnce:
    """Writes each row of a batch into a stream once: its id says which row it is.

    The id is the batch's number and one, and behind the minus the partition and the row's place
    among the rows of its key in this task. A task that runs again sends the same ids; the server
    refuses those that it has, and what they hold is compared. It remembers a number for each key,
    up to 64 MiB of keys.

    Arguments:
        turn: whose rows they are.
    """

    def __init__(self, options: RedisOptions, calls: KeyCalls, turn: Origin) -> None:
        self._options = options
        self._calls = calls
        self._turn = turn
        self._rows: dict[bytes, int] = {}
        # How many rows of this partition and batch each stream had when this task came to it.
        self._before: dict[bytes, int] = {}
        self._size = 0

    def ids(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the ids of the task's next rows.

        Raises: ConfigurationError if it has more keys than can be remembered.
        """
        self._size += sum(remembered_bytes(key) for key in set(keys) if key not in self._rows)
        if self._size > MOST_REMEMBERED:
            raise self._options.wrong(
                f"a task has more streams than {MOST_REMEMBERED >> 20} MiB of names, which"
                f' exactlyOnce must remember: write df.repartition(n, "{self._options.key_column}")'
                " with more partitions"
            )
        rows, batch, first = self._rows, self._turn.batch + 1, self._turn.partition * ROWS_OF_A_TASK
        found = []
        for key in keys:
            rows[key] = row = rows.get(key, 0) + 1
            found.append(b"%d-%d" % (batch, first + row))
        return found

    def before(self, groups: Sequence[Group]) -> None:
        """Look at the ends of streams that this task has not written to yet; one round trip.

        Raises: ConfigurationError if another partition of this batch has written there;
        ResponseError if the server does not let us look.
        """
        new = [key for key, _ in groups if key not in self._before]
        if new:
            self._before.update(self._rows_before(new))

    def finish(self) -> None:
        """Check that the task had all rows that it had before; no round trip.

        Raises: ReplayDiffersError if a stream that it has written to has more.
        """
        for key, before in self._before.items():
            if before > self._rows[key]:
                raise ReplayDiffersError(
                    f"the stream {key!r} has {before} rows of {self._turn}, that has"
                    f" {self._rows[key]} now: a batch must have the same rows again; write to a new"
                    " stream if the query has begun anew"
                )

    def _rows_before(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return how many rows of this task each stream has had, the deleted ones with them."""
        looks = [(key, (("XINFO", "STREAM", key),)) for key in keys]
        found = {}
        for key, (reply,) in zip(keys, self._calls.on_keys(looks), strict=True):
            if isinstance(reply, Exception):
                # A key of another type is refused by XADD, too, which says so.
                if not str(reply).startswith(("no such key", "WRONGTYPE")):
                    raise _not_read(key, reply) from reply
                found[key] = 0
                continue
            last = dict(zip(reply[::2], reply[1::2], strict=True))[b"last-generated-id"]
            batch, place = map(int, bytes(last).split(b"-"))
            other, row = divmod(place, ROWS_OF_A_TASK)
            is_ours = batch == self._turn.batch + 1
            if is_ours and other != self._turn.partition:
                raise self._options.wrong(
                    f"rows of the stream {key!r} stand in the partitions {other} and"
                    f" {self._turn.partition} of batch {self._turn.batch}, so that their order, and"
                    " exactlyOnce, cannot be kept: write"
                    f' df.repartition(8, "{self._options.key_column}"), with a number, or Spark'
                    " may choose another one when a batch runs again; this batch is written in"
                    " part, so begin with a new stream and a new checkpoint"
                )
            found[key] = row if is_ours else 0
        return found

    def compare(self, refused: Sequence[tuple[bytes, Command]]) -> None:
        """Check that entries whose ids the server knows are the same; one round trip, or two.

        Arguments:
            refused: the keys, and the XADD commands.

        Raises: ReplayDiffersError if one is another, or is not there; ConfigurationError if another
        partition of this batch writes there in this moment.
        """
        looks = [(key, (("XRANGE", key, command[2], command[2]),)) for key, command in refused]
        replies = self._calls.on_keys(looks)
        for (key, command), (reply,) in zip(refused, replies, strict=True):
            if isinstance(reply, Exception):
                raise _not_read(key, reply) from reply
            entry_id = command[2].decode()
            if not reply:
                self._rows_before([key])
                raise ReplayDiffersError(
                    f"the stream {key!r} has no entry {entry_id}, which {self._turn} writes, but"
                    " a greater one: another program or query has written there, or the entry was"
                    " trimmed or deleted, or the query has begun anew; write to a new stream"
                )
            if list(reply[0][1]) != [_as_sent(each) for each in command[3:]]:
                raise ReplayDiffersError(
                    f"the stream {key!r} has another entry {entry_id} than {self._turn} writes"
                    " now: the rows of a batch must come again in the same order; sort them within"
                    " partitions, or write to a new stream if the query has begun anew"
                )


def _as_sent(part: Any) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


def _not_read(key: bytes, error: Exception) -> ResponseError:
    return ResponseError(f"the stream {key!r} was not read: {error}")
